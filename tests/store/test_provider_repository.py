"""The repositories of providers, in memory and in the database: revisions, names, owners."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gateway.store.providers import SqlProviders
from provider_registry.registration import provider_from_request
from provider_registry.registry import Registry, Stale
from provider_registry.revisions import Action, Revision
from tests.e2e.nodes import example
from tests.registry.builders import a_description, a_provider
from tests.registry.memory import MemoryRepository
from tests.store.kinds import with_implementations
from tests.store.parallel import in_parallel

pytestmark = pytest.mark.xdist_group("providers")  # one database for the module

on_each = with_implementations("providers", "memory", "database", "database of its own")

AT = datetime(
    2026,
    1,
    2,
    3,
    4,
    5,
    tzinfo=UTC,
)


@pytest.fixture
def providers(request, store):
    if request.param == "memory":
        return MemoryRepository()
    return SqlProviders(
        store,
        sole_writer=request.param == "database of its own",
    )


def after(seconds):
    return AT + timedelta(seconds=seconds)


def a_revision(
    provider,
    number=1,
    action=Action.UPDATED,
    seconds=0,
):
    """Build a revision, ``seconds`` after `AT`."""
    return Revision(
        provider.key,
        number,
        after(seconds),
        "ann",
        action,
        "why 文",
        provider,
    )


@on_each
def test_a_provider_comes_back_as_it_was(providers):
    provider = replace(
        provider_from_request(example("register_unionpay.json")),
        retired=True,
        digests={"unionpay:2.0.0": "sha256:1"},
        images={"HeteroLR": "lr:1"},
    )
    assert providers.get(provider.key) is None
    assert providers.newest_number(provider.key) == 0

    providers.write(a_revision(provider))

    assert providers.get(provider.key) == provider


@on_each
def test_revisions_are_kept_in_order_and_the_newest_is_in_force(providers):
    unionpay = provider_from_request(example("register_unionpay.json"))
    providers.write(a_revision(unionpay, seconds=3))
    old = a_provider()
    new = a_provider(
        a_description("Other"),
        metadata={
            "image": "acme:1.0.1",
            "注": "文",
        },
    )
    revisions = [
        a_revision(
            old,
            1,
            seconds=0,
        ),
        a_revision(
            new,
            2,
            seconds=1,
        ),
        a_revision(
            new,
            3,
            seconds=2,
        ),
    ]

    for revision in revisions:
        providers.write(revision)

    assert providers.get(new.key) == new
    assert [provider.key for provider in providers.list()] == sorted([new.key, unionpay.key])
    assert list(providers.history(new.key)) == revisions[::-1]
    assert list(providers.history(new.key, before=3, limit=1)) == [revisions[1]]
    with pytest.raises(Stale):
        providers.write(a_revision(old, 3))


@on_each
def test_the_history_of_a_deleted_provider_goes_on(providers):
    unionpay = provider_from_request(example("register_unionpay.json"))
    provider = a_provider()
    providers.write(a_revision(unionpay))
    providers.write(a_revision(provider))

    providers.write(a_revision(provider, 2, Action.DELETED))
    assert providers.get(provider.key) is None
    assert providers.list() == [unionpay]

    providers.write(a_revision(provider, providers.newest_number(provider.key) + 1))
    actions = [revision.action for revision in providers.history(provider.key)]
    assert actions == ["updated", "deleted", "updated"]


@on_each
def test_the_revision_replaced_since_a_moment_is_returned(providers):
    first = a_revision(
        a_provider(),
        1,
        seconds=10,
    )
    second = a_revision(
        a_provider(metadata={"image": "acme:2"}),
        2,
        seconds=20,
    )

    providers.write(first)
    assert providers.superseded_since(first.key, after(15)) is None

    providers.write(second)
    expected = {
        5: None,
        10: first,
        15: first,
        20: None,
        25: None,
    }
    for seconds, revision in expected.items():
        assert providers.superseded_since(first.key, after(seconds)) == revision


@on_each
@pytest.mark.parametrize(
    "lookalike",
    ["ACME", "acmé", "aсme"],
    ids=["case", "accent", "cyrillic"],
)
def test_keys_that_only_look_alike_are_different(providers, lookalike):
    """A vendor with a lookalike of another vendor's name replaces nothing and owns nothing."""
    original = a_provider()
    imitation = a_provider(name=lookalike)

    for provider in (original, imitation):
        providers.write(a_revision(provider))
        assert providers.claim(provider.name, provider.name) == provider.name

    assert providers.get(original.key) == original
    assert providers.get(imitation.key) == imitation
    providers.write(a_revision(imitation, 2, Action.DELETED))
    assert providers.list() == [original]


@on_each
def test_a_name_has_one_owner_until_it_is_handed_over(providers):
    assert providers.owner("acme") is None
    assert providers.claim("acme", "ann") == "ann"
    assert providers.claim("acme", "bob") == "ann"

    for _ in range(2):  # a repetition changes nothing
        providers.give("acme", "bob")
    providers.give("other", "")

    assert providers.owner("acme") == "bob"
    assert providers.owner("other") == ""


@on_each
def test_one_of_several_concurrent_claims_wins(providers):
    def claim(number):
        return providers.claim("new", str(number))

    assert len(set(in_parallel(6, claim))) == 1


@on_each
def test_concurrent_registrations_each_get_a_revision(providers):
    registry = Registry(providers)

    def register(number):
        provider = a_provider(metadata={"image": f"acme:{number}"})
        return registry.register(provider).created

    created = in_parallel(6, register)

    assert sorted(created) == [False] * 5 + [True]
    history = providers.history("acme:1.0.0@docker")
    assert [revision.number for revision in history] == [6, 5, 4, 3, 2, 1]
    assert providers.list() == [history[0].provider]
