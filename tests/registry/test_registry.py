"""Registering, finding, listing, retiring and removing providers, and what every change of one tells."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from provider_registry.model import MAX_PROBLEMS, MORE, Problem, bounded
from provider_registry.registration import provider_from_component
from provider_registry.registry import (
    Change,
    Registry,
    Unknown,
    changes,
    order,
    parts_by_name,
)
from tests.builders import at
from tests.registry.builders import a_component_request, a_description, a_parameter, a_provider
from tests.registry.memory import MemoryRepository


def keys(providers):
    return [p.key for p in providers]


REGISTER = "register it with: bfia-gateway provider register FILE"


@pytest.mark.parametrize(
    ("asked", "reason", "message"),
    [
        (
            ("absent", "1.0.0", "A"),
            "PROVIDER_UNKNOWN",
            f"no provider absent is registered; {REGISTER}",
        ),
        (
            ("acne", "1", "A"),
            "PROVIDER_UNKNOWN",
            f"no provider acne is registered, but acme is: did you mean that?; {REGISTER}",
        ),
        (("*", "1.0.0", "A"), "PROVIDER_UNKNOWN", f"no provider * is registered; {REGISTER}"),
        (
            ("acme", "9", "A"),
            "VERSION_UNKNOWN",
            "provider acme on docker has no version 9; it has 1.0.0, 2.0.0",
        ),
        (
            ("acme", "1.0.0", "Z"),
            "COMPONENT_UNKNOWN",
            "provider acme:1.0.0@docker has no component Z; it has A, B",
        ),
        (
            ("other", "1.0.0", "A"),
            "PROVIDER_UNKNOWN",
            "no provider other is registered on docker; it is registered as other:1.0.0@local",
        ),
    ],
)
def test_what_is_unknown_is_said_with_what_there_is(
    registry,
    asked,
    reason,
    message,
):
    registry.register(a_provider(a_description("A"), a_description("B")))
    registry.register(a_provider(version="2.0.0"))
    registry.register(a_provider(name="other", device="local"))
    with pytest.raises(Unknown) as raised:
        registry.find(*asked)
    assert (raised.value.reason, raised.value.message, str(raised.value)) == (
        reason,
        message,
        message,
    )


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, ["acme:1.0.0@docker", "acme:1.0.0@k8s", "acme:2.0.0@docker", "other:1.0.0@docker"]),
        ({"name": "acme"}, ["acme:1.0.0@docker", "acme:1.0.0@k8s", "acme:2.0.0@docker"]),
        ({"version": "1.0.0", "device": "docker"}, ["acme:1.0.0@docker", "other:1.0.0@docker"]),
        (
            {"name": "acme", "version": "*"},
            ["acme:1.0.0@docker", "acme:1.0.0@k8s", "acme:2.0.0@docker"],
        ),
        ({"provider_name": "other"}, ["other:1.0.0@docker"]),
        ({"provider_name": "acme:2.0.0"}, ["acme:2.0.0@docker"]),
        ({"provider_name": "acme@k8s"}, ["acme:1.0.0@k8s"]),
        ({"provider_name": "acme:1.0.0@docker"}, ["acme:1.0.0@docker"]),
        ({"provider_name": "*:1.0.0@*", "device": "k8s"}, ["acme:1.0.0@k8s"]),
        ({"provider_name": "acme:1.0.0@docker", "name": "other"}, []),
        (
            {"name": ""},
            ["acme:1.0.0@docker", "acme:1.0.0@k8s", "acme:2.0.0@docker", "other:1.0.0@docker"],
        ),
        ({"name": "acm"}, []),
    ],
)
def test_providers_are_listed_and_removed_by_any_of_their_parts(
    registry,
    asked,
    found,
):
    every = [
        a_provider(),
        a_provider(version="2.0.0"),
        a_provider(device="k8s"),
        a_provider(name="other"),
    ]
    for provider in every:
        registry.register(provider)
    assert keys(registry.query(**asked)) == found
    if any(asked.values()):
        assert [registry.remove(p.key).revision.key for p in registry.query(**asked)] == found
        assert keys(registry.query()) == sorted(p.key for p in every if p.key not in found)


def test_warnings_of_a_replaced_component_go_with_it(registry):
    for name, title in (("A", None), ("AB", None), ("A", "now named")):
        registry.register_component(provider_from_component(a_component_request(name, title=title)))
    [provider] = registry.query()
    assert [w.path for w in provider.warnings] == ["components_description.AB.title"]


def test_components_registered_at_the_same_time_are_all_kept(registry):
    requests = [provider_from_component(a_component_request(f"C{i}")) for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(registry.register_component, requests))
    assert all(done.created for done in created)
    [provider] = registry.query()
    assert len(provider.components) == 40


def test_versions_are_ordered_by_their_numbers():
    rising = [
        "0.9",
        "1.0.0-alpha",
        "1.0.0-rc1",
        "1.0.0-rc2",
        "1.0.0",
        "1.9.0",
        "1.10.0",
        "v2",
        "10",
        "10.0.1",
    ]
    shuffled = [*rising[5:], *rising[:5]]
    assert sorted(shuffled, key=order) == rising
    odd = ["", "latest", "1..2", "2026-01-01", "1.0", "1.0.0", "1.0+b", "²", "9" * 255]
    assert len({order(v) for v in odd}) == len(odd) and sorted(odd, key=order)


def test_a_job_means_the_provider_for_docker_before_one_for_another_device(registry):
    registry.register(a_provider(device="swarm"))
    assert registry.find("acme", "1.0.0", "Algo")[0].key == "acme:1.0.0@swarm"
    assert registry.pin("acme", "1.0.0", "acme:1", "sha256:1") == "sha256:1"
    assert registry.get("acme:1.0.0@swarm").digests == {"acme:1": "sha256:1"}
    registry.register(a_provider())
    assert registry.find("acme", "1.0.0", "Algo")[0].key == "acme:1.0.0@docker"
    registry.remove("acme:1.0.0@docker")
    assert registry.find("acme", "1.0.0", "Algo")[0].key == "acme:1.0.0@swarm"


def test_the_newest_version_is_in_use_and_has_the_component(registry):
    registry.register(a_provider(a_description("A"), version="1.9"))
    registry.register(a_provider(a_description("A"), version="1.10"))
    registry.register(a_provider(a_description("B"), version="1.11"))
    registry.register(a_provider(a_description("A"), version="1.12", device="local"))
    assert registry.newest("acme", "A") == "1.10"
    registry.retire("acme:1.10@docker")
    assert registry.newest("acme", "A") == "1.9"
    for asked, reason, said in (
        (("acme", "C"), "COMPONENT_UNKNOWN", "1.11, 1.9"),
        (("other", "A"), "PROVIDER_UNKNOWN", "no provider other"),
        (("*", "A"), "PROVIDER_UNKNOWN", "no provider *"),
    ):
        with pytest.raises(Unknown, match=re.escape(said)) as caught:
            registry.newest(*asked)
        assert caught.value.reason == reason
    registry.retire("acme:1.9@docker")
    registry.retire("acme:1.11@docker")
    with pytest.raises(Unknown, match="retired") as caught:
        registry.newest("acme", "A")
    assert caught.value.reason == "PROVIDER_RETIRED"


KEY = "acme:1.0.0@docker"


def words(before, after):
    return [str(change) for change in changes(before, after)]


def test_a_difference_names_its_place_and_both_values():
    old = a_provider(
        a_description(inputParam=[a_parameter("a", defaultValue="1"), a_parameter("b")])
    )
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
    assert raised.value.reason == "PROVIDER_RETIRED"
    assert registry.find("acme", "1.0.0", "Algo", at=at(5))[0].key == KEY
    registry.register(a_provider(a_description(title="new")))
    assert registry.get(KEY).retired  # an update does not take back what an admin decided
    registry.unretire(KEY, "ann")
    assert registry.find("acme", "1.0.0", "Algo")[1].title == "new"
    assert [str(r.action) for r in registry.history(KEY)] == [
        "unretired",
        "updated",
        "retired",
        "registered",
    ]


def test_registering_the_same_once_more_is_no_revision(registry):
    first = registry.register(a_provider())
    assert first.written and first.created
    for again in (registry.register, registry.register_component):
        done = again(a_provider(), "ann")
        assert (done.written, done.created, done.changes, done.revision) == (
            False,
            False,
            (),
            first.revision,
        )
    assert registry.register(a_provider(a_description(title="new"))).revision.number == 2
    registry.remove(KEY)
    assert registry.register(a_provider()).revision.number == 4


def test_an_approved_image_is_good_for_jobs_under_way_too(registry, clock):
    registry.register(a_provider())
    clock.seconds = 10
    registry.approve(KEY, {"acme:1.0.0": "sha256:2"}, "ann", "rebuilt")
    assert registry.find("acme", "1.0.0", "Algo", at=at(5))[0].digests == {"acme:1.0.0": "sha256:2"}
    registry.register(
        a_provider(a_description(title="new"))
    )  # its image could not be looked at this time
    assert registry.get(KEY).digests == {"acme:1.0.0": "sha256:2"}
    registry.register(a_provider(metadata={"image": "acme:3"}))
    assert registry.get(KEY).digests == {}


class Interrupted(MemoryRepository):
    """Does something else just before its n-th call."""

    calls = 0

    def __init__(
        self,
        provider,
        before,
        work,
    ):
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
    kept = Interrupted(
        a_provider(), call, lambda registry: registry.pin("acme", "1.0.0", "acme:1.0.0", other)
    )
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


def test_a_component_joins_a_provider_that_was_registered_as_a_whole(registry):
    registry.register(
        a_provider(a_description("A"), metadata={"image": "a:1", "base_url": "tcp://x:1"})
    )
    assert registry.register_component(
        provider_from_component(a_component_request("B", image="b:1"))
    )
    [provider] = registry.query()
    assert list(provider.components) == ["A", "B"]
    assert (provider.image, provider.base_url) == ("a:1", "tcp://x:1")
    assert (provider.image_for("A"), provider.image_for("B")) == ("a:1", "b:1")


def test_a_value_of_another_type_is_a_change_and_nameless_ones_compare():
    assert str(Change("p", 1, "1")) == '~ p: 1 → "1"'
    assert parts_by_name([{"a": 1}]) is None
    assert list(parts_by_name([{"name": "x"}])) == ["x"]


def test_problems_without_end_are_cut():
    found = bounded(Problem("p", "r") for _ in range(MAX_PROBLEMS + 5))
    assert len(found) == MAX_PROBLEMS + 1 and found[-1] == MORE


def test_an_unregistered_provider_has_no_revision_to_pin_or_retire(registry):
    assert registry.pin("acme", "1.0.0", "image", "sha256:1") == "sha256:1"
    with pytest.raises(Unknown):
        registry.retire("acme:1.0.0@docker")
    key = registry.register(a_provider()).revision.key
    with pytest.raises(Unknown, match="has no revision 9"):
        registry.revision(key, 9)
