"""The registry of providers: registration, search, retirement, removal, and the changes of each."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from provider_registry.model import MAX_PROBLEMS, MORE, Problem, bounded
from provider_registry.registration import provider_from_component
from provider_registry.registry import Registry, Unknown
from provider_registry.revisions import Change, changes, parts_by_name
from provider_registry.versions import version_order
from tests.builders import at
from tests.registry.builders import a_component_request, a_description, a_parameter, a_provider
from tests.registry.memory import MemoryRepository

KEY = "acme:1.0.0@docker"
KEY_2 = "acme:2.0.0@docker"
KEY_K8S = "acme:1.0.0@k8s"
KEY_OTHER = "other:1.0.0@docker"
HINT = "register it with: bfia-gateway provider register FILE"


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


def a_registered_component(name, **changes):
    return provider_from_component(a_component_request(name, **changes))


def keys(providers):
    return [provider.key for provider in providers]


# ------------------------------------------------------------ search


@pytest.mark.parametrize(
    ("wanted_component", "reason", "message"),
    [
        (
            ("absent", "1.0.0", "A"),
            "PROVIDER_UNKNOWN",
            f"no provider absent is registered; {HINT}",
        ),
        (
            ("acne", "1", "A"),
            "PROVIDER_UNKNOWN",
            "no provider acne is registered, but acme is: did you mean that?",
        ),
        (
            ("*", "1.0.0", "A"),
            "PROVIDER_UNKNOWN",
            f"no provider * is registered; {HINT}",
        ),
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
    ids=["provider", "similar name", "pattern", "version", "component", "device"],
)
def test_an_unknown_component_is_refused_with_the_registered_ones(
    registry, wanted_component, reason, message
):
    registry.register(a_provider(a_description("A"), a_description("B")))
    registry.register(a_provider(version="2.0.0"))
    registry.register(a_provider(name="other", device="local"))

    with pytest.raises(Unknown) as refusal:
        registry.find(*wanted_component)
    assert refusal.value.reason == reason
    assert refusal.value.message == message
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [KEY, KEY_K8S, KEY_2, KEY_OTHER]),
        ({"name": "acme"}, [KEY, KEY_K8S, KEY_2]),
        ({"version": "1.0.0", "device": "docker"}, [KEY, KEY_OTHER]),
        ({"name": "acme", "version": "*"}, [KEY, KEY_K8S, KEY_2]),
        ({"provider_name": "other"}, [KEY_OTHER]),
        ({"provider_name": "acme:2.0.0"}, [KEY_2]),
        ({"provider_name": "acme@k8s"}, [KEY_K8S]),
        ({"provider_name": KEY}, [KEY]),
        ({"provider_name": "*:1.0.0@*", "device": "k8s"}, [KEY_K8S]),
        ({"provider_name": KEY, "name": "other"}, []),
        ({"name": ""}, [KEY, KEY_K8S, KEY_2, KEY_OTHER]),
        ({"name": "acm"}, []),
    ],
)
def test_providers_are_listed_and_removed_by_any_of_their_parts(registry, filters, expected):
    all_keys = []
    for fields in ({}, {"version": "2.0.0"}, {"device": "k8s"}, {"name": "other"}):
        all_keys.append(registry.register(a_provider(**fields)).revision.key)

    providers = registry.query(**filters)
    assert keys(providers) == expected

    for key in expected:
        assert registry.remove(key).revision.key == key
    remaining = set(all_keys) - set(expected)
    assert keys(registry.query()) == sorted(remaining)


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

    assert sorted(shuffled, key=version_order) == rising


def test_odd_versions_are_ordered_as_well_and_never_equal():
    odd = ["", "latest", "1..2", "2026-01-01", "1.0", "1.0.0", "1.0+b", "²", "9" * 255]

    assert len({version_order(version) for version in odd}) == len(odd)
    assert len(sorted(odd, key=version_order)) == len(odd)


def test_a_job_means_the_provider_for_docker_before_one_for_another_device(registry):
    def provider_for_job():
        provider, _ = registry.find("acme", "1.0.0", "Algo")
        return provider.key

    registry.register(a_provider(device="swarm"))
    assert provider_for_job() == "acme:1.0.0@swarm"
    assert registry.pin("acme", "1.0.0", "acme:1", "sha256:1") == "sha256:1"
    assert registry.get("acme:1.0.0@swarm").digests == {"acme:1": "sha256:1"}

    registry.register(a_provider())
    assert provider_for_job() == KEY

    registry.remove(KEY)
    assert provider_for_job() == "acme:1.0.0@swarm"


@pytest.fixture
def registry_of_versions(registry):
    """A registry with versions of acme; the newest one with component A on docker is 1.10."""
    registry.register(a_provider(a_description("A"), version="1.9"))
    registry.register(a_provider(a_description("A"), version="1.10"))
    registry.register(a_provider(a_description("B"), version="1.11"))
    registry.register(a_provider(a_description("A"), version="1.12", device="local"))
    return registry


def test_the_newest_version_is_in_use_and_has_the_component(registry_of_versions):
    registry = registry_of_versions
    assert registry.newest_version("acme", "A") == "1.10"

    registry.retire("acme:1.10@docker")
    assert registry.newest_version("acme", "A") == "1.9"

    registry.retire("acme:1.9@docker")
    registry.retire("acme:1.11@docker")
    with pytest.raises(Unknown, match="retired") as refusal:
        registry.newest_version("acme", "A")
    assert refusal.value.reason == "PROVIDER_RETIRED"


@pytest.mark.parametrize(
    ("provider", "component", "reason", "words"),
    [
        ("acme", "C", "COMPONENT_UNKNOWN", "(1.11, 1.9)"),
        ("other", "A", "PROVIDER_UNKNOWN", "no provider other"),
        ("*", "A", "PROVIDER_UNKNOWN", "no provider *"),
    ],
    ids=["component", "provider", "pattern"],
)
def test_an_unknown_component_has_no_newest_version(
    registry_of_versions, provider, component, reason, words
):
    registry_of_versions.retire("acme:1.10@docker")  # a retired version is not listed

    with pytest.raises(Unknown, match=re.escape(words)) as refusal:
        registry_of_versions.newest_version(provider, component)
    assert refusal.value.reason == reason


# ------------------------------------------------------------ registration


def test_an_equal_registration_is_no_revision(registry):
    first = registry.register(a_provider())
    assert first.written
    assert first.created

    for register in (registry.register, registry.register_component):
        repetition = register(a_provider(), "ann")
        assert not repetition.written
        assert not repetition.created
        assert repetition.changes == ()
        assert repetition.revision == first.revision


def test_numbers_of_revisions_go_on_after_a_removal(registry):
    registry.register(a_provider())
    update = registry.register(a_provider(a_description(title="new")))
    assert update.revision.number == 2

    registry.remove(KEY)

    assert registry.register(a_provider()).revision.number == 4


def test_a_component_joins_a_provider_that_was_registered_as_a_whole(registry):
    metadata = {"image": "a:1", "base_url": "tcp://x:1"}
    registry.register(a_provider(a_description("A"), metadata=metadata))

    assert registry.register_component(a_registered_component("B", image="b:1"))

    [provider] = registry.query()
    assert list(provider.components) == ["A", "B"]
    assert provider.image == "a:1"
    assert provider.base_url == "tcp://x:1"
    assert provider.image_for("A") == "a:1"
    assert provider.image_for("B") == "b:1"


def test_the_warnings_of_a_component_go_when_it_is_replaced(registry):
    registry.register_component(a_registered_component("A", title=None))
    registry.register_component(a_registered_component("AB", title=None))

    registry.register_component(a_registered_component("A", title="now named"))

    [provider] = registry.query()
    paths = [warning.path for warning in provider.warnings]
    assert paths == ["components_description.AB.title"]


def test_the_warnings_of_an_image_go_when_its_component_is_replaced(registry):
    for name, image in (("A", "x/A:1"), ("B", "x/B:1"), ("B", "x/B:1")):
        written = registry.register_component(a_registered_component(name, image=image))
    assert [warning.got for warning in written.revision.provider.warnings] == ["x/A:1", "x/B:1"]

    written = registry.register_component(a_registered_component("B", image="x/b:1"))

    assert [warning.got for warning in written.revision.provider.warnings] == ["x/A:1"]


def test_components_registered_at_the_same_time_are_all_kept(registry):
    components = [a_registered_component(f"C{number}") for number in range(40)]

    with ThreadPoolExecutor(8) as pool:
        registrations = list(pool.map(registry.register_component, components))

    assert all(registration.created for registration in registrations)
    [provider] = registry.query()
    assert len(provider.components) == 40


# ------------------------------------------------------------ changes


def test_a_difference_names_its_place_and_both_values():
    old_parameters = [
        a_parameter("a", defaultValue="1"),
        a_parameter("b"),
    ]
    new_parameters = [
        a_parameter("c"),
        a_parameter("a", defaultValue="2"),
    ]
    old = a_provider(a_description(inputParam=old_parameters))
    new = a_provider(
        a_description(inputParam=new_parameters),
        metadata={"image": "acme:2"},
    )

    path = "components_description.Algo.inputParam"
    assert [str(change) for change in changes(old, new)] == [
        "- metadata.base_url: ",
        "~ metadata.image: acme:1.0.0 → acme:2",
        f"~ {path}[a].defaultValue: 1 → 2",
        f'- {path}[b]: {{"name": "b", "title": "b", "type": "string", "optional": "true"}}',
        f'+ {path}[c]: {{"name": "c", "title": "c", "type": "string", "optional": "true"}}',
    ]


def test_a_value_of_another_type_is_a_change():
    assert str(Change("p", 1, "1")) == '~ p: 1 → "1"'


@pytest.mark.parametrize(("old", "new"), [(True, 1), (1, 1.0)], ids=str)
def test_values_that_only_python_takes_for_equal_are_a_change(registry, old, new):
    registry.register(a_provider(a_description(x_note=old)))

    update = registry.register(a_provider(a_description(x_note=new)))

    assert update.written
    [change] = update.changes
    assert (change.before, change.after) == (old, new)


def test_entries_are_compared_by_name_only_if_all_have_one():
    assert parts_by_name([{"a": 1}]) is None
    assert list(parts_by_name([{"name": "x"}])) == ["x"]


def test_a_long_list_of_problems_is_cut():
    problems = bounded(Problem("p", "r") for _ in range(MAX_PROBLEMS + 5))

    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1] == MORE


# ------------------------------------------------------------ jobs under way


def test_a_job_keeps_the_registration_of_its_beginning(registry, clock):
    registry.register(a_provider(a_description("A"), metadata={"image": "acme:old"}))
    clock.seconds = 10
    registry.register(a_provider(a_description("B"), metadata={"image": "acme:new"}))

    provider, component = registry.find(
        "acme",
        "1.0.0",
        "A",
        at=at(5),
    )
    assert provider.image == "acme:old"
    assert component.name == "A"
    provider, _ = registry.find("acme", "1.0.0", "B", at=at(10))
    assert provider.image == "acme:new"
    with pytest.raises(Unknown):
        registry.find("acme", "1.0.0", "A")


def test_a_retired_provider_serves_only_jobs_from_before(registry, clock):
    registry.register(a_provider())
    registry.register(a_provider(version="2.0.0"))
    clock.seconds = 10
    registry.retire(KEY, "ann", "old")

    with pytest.raises(Unknown, match=r"versions in use are 2\.0\.0") as refusal:
        registry.find("acme", "1.0.0", "Algo")
    assert refusal.value.reason == "PROVIDER_RETIRED"
    provider, _ = registry.find(
        "acme",
        "1.0.0",
        "Algo",
        at=at(5),
    )
    assert provider.key == KEY


def test_an_update_does_not_end_a_retirement(registry):
    registry.register(a_provider())
    registry.retire(KEY, "ann", "old")

    registry.register(a_provider(a_description(title="new")))
    assert registry.get(KEY).retired

    registry.unretire(KEY, "ann")
    _, component = registry.find("acme", "1.0.0", "Algo")
    assert component.title == "new"
    assert [str(revision.action) for revision in registry.history(KEY)] == [
        "unretired",
        "updated",
        "retired",
        "registered",
    ]


def test_an_approved_image_is_good_for_jobs_under_way_too(registry, clock):
    approved = {"acme:1.0.0": "sha256:2"}
    registry.register(a_provider())
    clock.seconds = 10

    registry.approve(KEY, approved, "ann", "rebuilt")

    provider, _ = registry.find(
        "acme",
        "1.0.0",
        "Algo",
        at=at(5),
    )
    assert provider.digests == approved
    # An update without a look at the image leaves its approval.
    registry.register(a_provider(a_description(title="new")))
    assert registry.get(KEY).digests == approved
    registry.register(a_provider(metadata={"image": "acme:3"}))
    assert registry.get(KEY).digests == {}


def test_an_unregistered_provider_has_no_revision_to_pin_or_retire(registry):
    assert registry.pin("acme", "1.0.0", "image", "sha256:1") == "sha256:1"
    with pytest.raises(Unknown):
        registry.retire(KEY)

    registry.register(a_provider())
    with pytest.raises(Unknown, match="has no revision 9"):
        registry.revision(KEY, 9)


# ------------------------------------------------------------ races


class InterruptedRepository(MemoryRepository):
    """Pins the provider's image to a digest just before one of its calls."""

    def __init__(self, interrupted_call, digest):
        """``interrupted_call``: the number of the call, from 1."""
        super().__init__()
        self.interrupted_call = None  # no call before the test is
        self.digest = digest
        self.calls = 0
        Registry(self).register(a_provider())
        self.calls = 0
        self.interrupted_call = interrupted_call

    def get(self, key):
        self._count_call()
        return super().get(key)

    def newest_number(self, key):
        self._count_call()
        return super().newest_number(key)

    def history(self, key, *args, **kwargs):
        self._count_call()
        return super().history(key, *args, **kwargs)

    def write(self, revision):
        self._count_call()
        super().write(revision)

    def _count_call(self):
        self.calls += 1
        if self.calls == self.interrupted_call:
            Registry(self).pin("acme", "1.0.0", "acme:1.0.0", self.digest)


@pytest.mark.parametrize("call", range(1, 6))
@pytest.mark.parametrize("concurrent_digest", ["sha256:own", "sha256:other"])
def test_runs_that_start_an_image_at_the_same_time_agree_on_its_digest(call, concurrent_digest):
    repository = InterruptedRepository(call, concurrent_digest)

    digest = Registry(repository).pin("acme", "1.0.0", "acme:1.0.0", "sha256:own")

    assert Registry(repository).get(KEY).digests == {"acme:1.0.0": digest}


class CountingRepository(MemoryRepository):
    reads = 0

    def get(self, key):
        self.reads += 1
        return super().get(key)


def test_within_a_view_a_provider_is_read_once_and_stays_as_it_was():
    repository = CountingRepository()
    registry = Registry(repository)
    registry.register(a_provider())

    def find():
        provider, _ = registry.find("acme", "1.0.0", "Algo")
        return provider

    with registry.one_view():
        provider = find()
        other_request = threading.Thread(
            target=registry.retire,
            args=(KEY,),
        )
        other_request.start()
        other_request.join()
        reads = repository.reads
        with registry.one_view():
            assert find() is provider
        assert find() is provider
        assert repository.reads == reads

    with pytest.raises(Unknown, match="retired"):
        find()
