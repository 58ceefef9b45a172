"""What changed between two states of a provider, in words."""

import threading

import pytest

from provider_registry.registry import PROVIDER_RETIRED, Registry, Unknown
from provider_registry.revisions import Stale, changes
from tests.builders import at
from tests.registry.builders import a_description, a_parameter, a_provider
from tests.registry.memory import MemoryRepository

KEY = "acme:1.0.0@docker"


def words(before, after):
    return [str(change) for change in changes(before, after)]


def test_a_difference_names_its_place_and_both_values():
    old = a_provider(a_description(inputParam=[a_parameter("a", defaultValue="1"), a_parameter("b")]))
    new = a_provider(
        a_description(inputParam=[a_parameter("c"), a_parameter("a", defaultValue="2")]),
        metadata={"image": "acme:2"},
    )
    at = "components_description.Algo.inputParam"
    assert words(old, new) == [
        "- metadata.base_url: ",
        "~ metadata.image: acme:1.0.0 → acme:2",
        f"~ {at}[a].defaultValue: 1 → 2",
        f'- {at}[b]: {{"name": "b", "title": "b", "type": "string", "optional": "true"}}',
        f'+ {at}[c]: {{"name": "c", "title": "c", "type": "string", "optional": "true"}}',
    ]


def test_the_order_of_named_entries_is_no_difference():
    a, b = a_parameter("a"), a_parameter("b")
    assert words(a_provider(a_description(inputParam=[a, b])), a_provider(a_description(inputParam=[b, a]))) == []


class Clock:
    seconds = 0

    def __call__(self):
        return at(self.seconds)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def registry(clock):
    return Registry(MemoryRepository(), clock)


def test_a_job_keeps_what_was_registered_when_it_began(registry, clock):
    registry.register(a_provider(a_description("A"), metadata={"image": "acme:old"}))
    clock.seconds = 10
    registry.register(a_provider(a_description("B"), metadata={"image": "acme:new"}))
    provider, component = registry.find("acme", "1.0.0", "A", at=at(5))
    assert (provider.image, component.name) == ("acme:old", "A")
    assert registry.find("acme", "1.0.0", "B", at=at(10))[0].image == "acme:new"
    with pytest.raises(Unknown):
        registry.find("acme", "1.0.0", "A")


def test_a_retired_provider_is_for_the_jobs_that_were_there_before(registry, clock):
    registry.register(a_provider())
    registry.register(a_provider(version="2.0.0"))
    clock.seconds = 10
    registry.retire(KEY, "ann", "old")
    with pytest.raises(Unknown, match=r"versions in use are 2\.0\.0") as raised:
        registry.find("acme", "1.0.0", "Algo")
    assert raised.value.reason == PROVIDER_RETIRED
    assert registry.find("acme", "1.0.0", "Algo", at=at(5))[0].key == KEY
    registry.register(a_provider(a_description(title="new")))
    assert registry.get(KEY).retired  # an update does not take back what an admin decided
    registry.unretire(KEY, "ann")
    assert registry.find("acme", "1.0.0", "Algo")[1].title == "new"
    assert [str(r.action) for r in registry.history(KEY)] == ["unretired", "updated", "retired", "registered"]


def test_registering_the_same_once_more_is_no_revision(registry):
    first = registry.register(a_provider())
    assert first.written and first.created
    for again in (registry.register, registry.register_component):
        done = again(a_provider(), "ann")
        assert (done.written, done.created, done.changes, done.revision) == (False, False, (), first.revision)
    assert registry.register(a_provider(a_description(title="new"))).revision.number == 2
    registry.remove(KEY)
    assert registry.register(a_provider()).revision.number == 4


def test_an_approved_image_is_good_for_jobs_under_way_too(registry, clock):
    registry.register(a_provider())
    clock.seconds = 10
    registry.approve(KEY, {"acme:1.0.0": "sha256:2"}, "ann", "rebuilt")
    assert registry.find("acme", "1.0.0", "Algo", at=at(5))[0].digests == {"acme:1.0.0": "sha256:2"}
    registry.register(a_provider(a_description(title="new")))  # its image could not be looked at this time
    assert registry.get(KEY).digests == {"acme:1.0.0": "sha256:2"}
    registry.register(a_provider(metadata={"image": "acme:3"}))
    assert registry.get(KEY).digests == {}


def test_a_writer_that_always_comes_second_gives_up(registry, monkeypatch):
    def taken(revision):
        raise Stale("again")

    monkeypatch.setattr(registry.repository, "write", taken)
    with pytest.raises(Stale):
        registry.register(a_provider())


class Interrupted(MemoryRepository):
    """Does something else just before its n-th call."""

    calls = 0

    def __init__(self, provider, before, work):
        super().__init__()
        other = Registry(self)
        other.register(provider)
        self._before, self._work, self.calls = before, lambda: work(other), 0

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name in ("get", "newest", "history", "write") and "_work" in self.__dict__:
            self.calls += 1
            if self.calls == self._before:
                self._work()
        return found


@pytest.mark.parametrize("call", range(1, 6))
@pytest.mark.parametrize("other", ["sha256:own", "sha256:other"])
def test_runs_that_start_an_image_at_the_same_time_agree_on_its_digest(call, other):
    kept = Interrupted(a_provider(), call, lambda registry: registry.pin("acme", "1.0.0", "acme:1.0.0", other))
    digest = Registry(kept).pin("acme", "1.0.0", "acme:1.0.0", "sha256:own")
    assert Registry(kept).get(KEY).digests == {"acme:1.0.0": digest}


class Counting(MemoryRepository):
    reads = 0

    def get(self, key):
        self.reads += 1
        return super().get(key)


def test_within_a_view_a_provider_is_read_once_and_stays_as_it_was():
    kept = Counting()
    registry = Registry(kept)
    provider = a_provider()
    registry.register(provider)
    (name,) = provider.components

    def found():
        return registry.find(provider.name, provider.version, name)[0]

    kept.reads = 0
    with registry.one_view():
        before = found()
        work = threading.Thread(target=registry.retire, args=(provider.key,))  # another request
        work.start()
        work.join()
        reads = kept.reads
        with registry.one_view():
            assert found() is before
        assert found() is before
        assert kept.reads == reads
    with pytest.raises(Unknown, match="retired"):
        found()
