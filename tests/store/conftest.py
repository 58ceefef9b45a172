"""The databases of the store's tests: one per module and kind, emptied before each test."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gateway.store import schema
from gateway.store.store import Store
from tests.contracts.databases import a_store, careless_database


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def migrated(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    worker_id: str,
) -> Iterator[str]:
    with ExitStack() as stack:
        if request.param == "mariadb":
            name = f"{worker_id}_{request.module.__name__.rpartition('.')[2]}"
            url = stack.enter_context(careless_database(name))
        else:
            url = f"sqlite:///{tmp_path_factory.mktemp('store') / 'test.db'}"
        with a_store(url):
            yield url


@pytest.fixture
def stores(migrated: str) -> Iterator[tuple[Store, Store]]:
    """Yield the stores of two gateways on one empty database."""
    with a_store(migrated) as one, a_store(migrated) as other:
        with one.write() as connection:
            for table in schema.metadata.sorted_tables:
                if table is not schema.resource_pool:
                    connection.execute(table.delete())
            connection.execute(
                schema.resource_pool.update().values(
                    ignored=0,
                    repaired=0,
                    expired=0,
                )
            )
        yield one, other


@pytest.fixture
def store(stores: tuple[Store, Store]) -> Store:
    return stores[0]
