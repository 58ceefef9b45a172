"""What every repository has to do alike: in memory, on SQLite, on MariaDB."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.dataset_model import Dataset, DatasetRepository, MemoryDatasets
from gateway.store import tables
from gateway.store.leaves import SqlDatasets, SqlProviders
from gateway.store.migrate import migrate
from gateway.store.store import Store, connect
from provider_registry.model import Provider
from provider_registry.registration import provider_from_component, provider_from_request
from provider_registry.registry import MemoryRepository, Registry, Repository
from tests.contracts.databases import careless_database
from tests.e2e.nodes import example
from tests.registry.builders import a_component_request, a_description, a_provider

Made = Callable[[Callable[[], Any], Callable[[Store], Any]], Any]
"""Makes a repository: from nothing, or from an empty store."""

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
        for table in (tables.provider, tables.dataset):
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
        gate.wait(10)
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


def test_a_provider_comes_back_as_it_was_put(providers: Repository):
    provider = provider_from_request(example("register_unionpay.json"))
    assert providers.get(provider.key) is None
    assert providers.put(provider) is True
    assert providers.get(provider.key) == provider


def test_putting_again_replaces(providers: Repository):
    old, new = a_provider(), a_provider(a_description("Other"), metadata={"image": "acme:1.0.1", "注": "文"})
    assert [providers.put(old), providers.put(new), providers.put(new)] == [True, False, False]
    assert providers.get(new.key) == new
    assert providers.list() == [new]


def test_providers_are_listed_by_key(providers: Repository):
    every = [a_provider(name=name, version=version) for name in ("b", "a", "B") for version in ("2", "10")]
    for provider in every:
        providers.put(provider)
    assert [p.key for p in providers.list()] == sorted(p.key for p in every)


@pytest.mark.parametrize("other", ["ACME", "acmé", "aсme"], ids=["case", "accent", "cyrillic"])
def test_keys_that_only_look_alike_are_different(providers: Repository, other: str):
    """A vendor that takes another's name in other letters replaces nothing."""
    first, second = a_provider(), a_provider(name=other)
    assert providers.put(first) and providers.put(second)
    assert providers.get(first.key) == first and providers.get(second.key) == second
    assert providers.delete(second.key)
    assert providers.list() == [first]


def test_deleting(providers: Repository):
    provider = a_provider()
    providers.put(provider)
    assert [providers.delete(provider.key), providers.delete(provider.key)] == [True, False]
    assert providers.get(provider.key) is None and providers.list() == []
    assert providers.put(provider) is True


def test_many_that_register_at_once_leave_one_whole_provider(providers: Repository):
    said = at_once(6, lambda i: providers.put(a_provider(metadata={"image": f"acme:{i}"})))
    assert sorted(said, key=str) == [False] * 5 + [True], said
    assert len(providers.list()) == 1


def test_the_registry_works_alike_on_each(providers: Repository):
    registry = Registry(providers)
    assert registry.register(a_provider())
    first = providers.get("acme:1.0.0@docker")
    assert first is not None
    again = Registry(providers)
    found, component = again.find("acme", "1.0.0", "Algo")
    assert (found, component) == (first, first.components["Algo"])
    from_component: Provider = _component_provider("Second", "acme:2")
    assert again.register_component(from_component) is True
    assert again.register_component(from_component) is False
    merged, second = registry.find("acme", "1.0.0", "Second")
    assert merged.image_for("Second") == "acme:2" and merged.image_for("Algo") == "acme:1.0.0"
    assert second.name == "Second"
    assert registry.delete(name="acme") == 1


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
