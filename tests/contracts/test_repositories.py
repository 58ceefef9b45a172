"""What every repository has to do alike: in memory, on SQLite, on MariaDB."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.domain.datasets import Dataset, DatasetRepository, MemoryDatasets
from gateway.store import schema
from gateway.store.database import connect, migrate
from gateway.store.repositories import SqlDatasets, SqlProviders
from gateway.store.store import Store
from provider_registry.model import Action, Provider, Revision
from provider_registry.registration import provider_from_component, provider_from_request
from provider_registry.registry import Registry
from provider_registry.repository import Repository, Stale
from tests.contracts.databases import careless_database
from tests.e2e.nodes import example
from tests.registry.builders import a_component_request, a_description, a_provider
from tests.registry.memory import MemoryRepository

Made = Callable[[Callable[[], Any], Callable[[Store], Any]], Any]
"""Makes a repository: from nothing, or from an empty store."""

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KINDS = ["memory", "sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)]


@contextmanager
def a_store(url: str) -> Iterator[Store]:
    engine = connect(url)
    migrate(engine)
    store = Store(engine)
    try:
        yield store
    finally:
        store.close()


@pytest.fixture(scope="module", params=KINDS)
def kind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Iterator[Store | None]:
    with ExitStack() as stack:
        if request.param == "memory":
            yield None
            return
        if request.param == "mariadb":
            url = stack.enter_context(careless_database(f"{worker_id}_repositories"))
        else:
            url = f"sqlite:///{tmp_path_factory.mktemp('repositories') / 'test.db'}"
        yield stack.enter_context(a_store(url))


@pytest.fixture
def made(kind: Store | None) -> Made:
    if kind is None:
        return lambda memory, _: memory()
    with kind.write() as connection:
        for table in (schema.provider, schema.provider_revision, schema.provider_owner, schema.dataset):
            connection.execute(table.delete())
    return lambda _, sql: sql(kind)


@pytest.fixture
def providers(made: Made) -> Repository:
    return made(MemoryRepository, SqlProviders)


@pytest.fixture
def datasets(made: Made) -> DatasetRepository:
    return made(MemoryDatasets, SqlDatasets)


def a_dataset(namespace: str = "ns", name: str = "t", **changes: Any) -> Dataset:
    values: dict[str, Any] = {
        "namespace": namespace,
        "name": name,
        "columns": ("id", "y", "x0"),
        "count": 3,
        "partitions": 1,
        "meta": {"delimiter": ",", "match_id_name": "id", "label_name": "y", "余": [1, None, {"a": 0.5}]},
        "checksum": "0" * 64,
        "size": 17,
        "created_at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        "origin": "file:表.csv",
        "types": ("string", "int", "float"),
        "description": "a table 表 \U0001f600",
    }
    return Dataset(**(values | changes))


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Do the work in so many threads that begin together; return what each returned or raised."""
    gate, results = threading.Barrier(count), [None] * count

    def run(i: int) -> None:
        gate.wait(60)
        try:
            results[i] = work(i)
        except Exception as error:  # the test looks at it
            results[i] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


# ---------------------------------------------------------------- providers


def a_revision(provider: Provider, number: int = 1, action: Action = Action.UPDATED, at: int = 0) -> Revision:
    return Revision(provider.key, number, AT + timedelta(seconds=at), "ann", action, "why 文", provider)


def test_a_provider_comes_back_as_it_was_written(providers: Repository):
    provider = provider_from_request(example("register_unionpay.json"))
    provider = replace(provider, retired=True, digests={"unionpay:2.0.0": "sha256:1"})
    assert providers.get(provider.key) is None and providers.newest(provider.key) == 0
    revision = a_revision(provider, at=3)
    providers.write(revision)
    assert providers.get(provider.key) == provider and providers.newest(provider.key) == 1
    assert list(providers.history(provider.key)) == [revision]


def test_a_revision_replaces_and_the_one_before_stays_in_the_history(providers: Repository):
    old, new = a_provider(), a_provider(a_description("Other"), metadata={"image": "acme:1.0.1", "注": "文"})
    every = [a_revision(p, i + 1, at=i) for i, p in enumerate((old, new, new))]
    for revision in every:
        providers.write(revision)
    assert providers.get(new.key) == new and providers.list() == [new]
    assert list(providers.history(new.key)) == every[::-1]
    assert list(providers.history(new.key, before=3, limit=1)) == [every[1]]
    with pytest.raises(Stale):
        providers.write(a_revision(old, 3))
    assert providers.get(new.key) == new


def test_what_was_in_force_at_a_moment_is_told_if_something_followed(providers: Repository):
    old, new = a_provider(), a_provider(metadata={"image": "acme:2"})
    first, second = a_revision(old, 1, at=10), a_revision(new, 2, at=20)
    providers.write(first)
    assert providers.since(old.key, AT + timedelta(seconds=15)) is None
    providers.write(second)
    told = [providers.since(old.key, AT + timedelta(seconds=s)) for s in (5, 10, 15, 20, 25)]
    assert told == [None, first, first, None, None]


def test_providers_are_listed_by_key(providers: Repository):
    every = [a_provider(name=name, version=version) for name in ("b", "a", "B") for version in ("2", "10")]
    for provider in every:
        providers.write(a_revision(provider))
    assert [p.key for p in providers.list()] == sorted(p.key for p in every)


@pytest.mark.parametrize("other", ["ACME", "acmé", "aсme"], ids=["case", "accent", "cyrillic"])
def test_keys_that_only_look_alike_are_different(providers: Repository, other: str):
    """A vendor that takes another's name in other letters replaces nothing, and owns nothing."""
    first, second = a_provider(), a_provider(name=other)
    for provider in (first, second):
        providers.write(a_revision(provider))
        assert providers.claim(provider.name, provider.name) == provider.name
    assert providers.get(first.key) == first and providers.get(second.key) == second
    providers.write(a_revision(second, 2, Action.DELETED))
    assert providers.list() == [first]


def test_what_is_deleted_keeps_its_history_and_its_numbers(providers: Repository):
    provider = a_provider()
    providers.write(a_revision(provider))
    providers.write(a_revision(provider, 2, Action.DELETED))
    assert providers.get(provider.key) is None and providers.list() == []
    assert providers.newest(provider.key) == 2
    providers.write(a_revision(provider, 3))
    assert [r.action for r in providers.history(provider.key)] == ["updated", "deleted", "updated"]


def test_a_name_has_one_owner_until_it_is_given(providers: Repository):
    assert providers.owner("acme") is None
    assert [providers.claim("acme", who) for who in ("ann", "bob")] == ["ann", "ann"]
    providers.give("acme", "bob")
    providers.give("acme", "bob")
    providers.give("other", "")
    assert (providers.owner("acme"), providers.owner("other")) == ("bob", "")
    assert len(set(at_once(6, lambda i: providers.claim("new", str(i))))) == 1


def test_many_that_register_at_once_all_have_their_revision(providers: Repository):
    registry = Registry(providers)
    said = at_once(6, lambda i: registry.register(a_provider(metadata={"image": f"acme:{i}"})).created)
    assert sorted(said, key=str) == [False] * 5 + [True], said
    history = providers.history("acme:1.0.0@docker")
    assert [r.number for r in history] == [6, 5, 4, 3, 2, 1]
    assert providers.list() == [history[0].provider]


def test_the_registry_works_alike_on_each(providers: Repository):
    registry = Registry(providers)
    assert registry.register(a_provider()).created
    first = providers.get("acme:1.0.0@docker")
    assert first is not None
    again = Registry(providers)
    found, component = again.find("acme", "1.0.0", "Algo")
    assert (found, component) == (first, first.components["Algo"])
    from_component: Provider = _component_provider("Second", "acme:2")
    assert again.register_component(from_component).created
    assert not again.register_component(from_component).created
    merged, second = registry.find("acme", "1.0.0", "Second")
    assert merged.image_for("Second") == "acme:2" and merged.image_for("Algo") == "acme:1.0.0"
    assert second.name == "Second"
    assert [registry.remove(p.key).created for p in registry.chosen(name="acme")] == [False]


def _component_provider(name: str, image: str) -> Provider:
    return provider_from_component(a_component_request(name, image))


# ---------------------------------------------------------------- datasets


def test_a_dataset_comes_back_as_it_was_put(datasets: DatasetRepository):
    dataset = a_dataset()
    assert datasets.get("ns", "t") is None
    datasets.put(dataset)
    assert datasets.get("ns", "t") == dataset
    assert datasets.get("ns", "other") is None and datasets.get("other", "t") is None


def test_putting_a_dataset_again_replaces(datasets: DatasetRepository):
    datasets.put(a_dataset())
    newer = a_dataset(count=4, disabled=True)
    datasets.put(newer)
    assert datasets.list() == [newer]


def test_datasets_are_listed_by_namespace_and_name(datasets: DatasetRepository):
    names = [("b", "a"), ("a", "b"), ("B", "a"), ("a", "B"), ("ab", "a"), ("a", "a")]
    for namespace, name in names:
        datasets.put(a_dataset(namespace, name))
    assert [(d.namespace, d.name) for d in datasets.list()] == sorted(names)


@pytest.mark.parametrize("other", ["T", "ţ", "т"], ids=["case", "accent", "cyrillic"])
def test_datasets_that_only_look_alike_are_different(datasets: DatasetRepository, other: str):
    """The storage tells them apart, so what is known of them must not be mixed up."""
    first, second = a_dataset(), a_dataset(name=other, disabled=True)
    datasets.put(first)
    datasets.put(second)
    assert datasets.get("ns", "t") == first and datasets.get("ns", other) == second
    assert datasets.delete("ns", other)
    assert datasets.list() == [first]


def test_deleting_a_dataset(datasets: DatasetRepository):
    datasets.put(a_dataset())
    assert [datasets.delete("ns", "t"), datasets.delete("ns", "t")] == [True, False]
    assert datasets.get("ns", "t") is None


def test_many_that_upload_at_once_leave_one_whole_dataset(datasets: DatasetRepository):
    said = at_once(6, lambda i: datasets.put(a_dataset(count=i)))
    assert said == [None] * 6
    kept = datasets.list()
    assert len(kept) == 1 and kept[0] == a_dataset(count=kept[0].count)
