"""The databases of the store's tests: one per module and kind, emptied before each test."""

from contextlib import ExitStack

import pytest

from gateway.store import schema
from gateway.store.database import open_database
from gateway.store.store import Store
from tests.contracts.databases import a_store, careless_database, careless_postgresql

SERVERS = {
    "mariadb": careless_database,
    "postgresql": careless_postgresql,
}


@pytest.fixture(
    scope="module",
    params=[
        "sqlite",
        pytest.param(
            "mariadb",
            marks=pytest.mark.mariadb,
        ),
        pytest.param(
            "postgresql",
            marks=pytest.mark.postgresql,
        ),
    ],
)
def shared_url(request, tmp_path_factory, worker_id):
    """The address of the module's database, which has the newest schema."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path_factory.mktemp('store') / 'test.db'}"
        else:
            module = request.module.__name__.rpartition(".")[2]
            careless = SERVERS[request.param](f"{worker_id}_{module}")
            url = stack.enter_context(careless)
        with a_store(url):
            yield url


@pytest.fixture(scope="module")
def engines(shared_url):
    """The connections of two gateways to the module's database."""
    engines = [open_database(shared_url) for _ in range(2)]
    yield engines
    for engine in engines:
        engine.dispose()


@pytest.fixture
def stores(engines):
    """The stores of two gateways on one empty database."""
    first, second = map(Store, engines)
    delete_rows(first)
    return first, second


@pytest.fixture
def store(stores):
    return stores[0]


def delete_rows(store):
    """Empty every table; the row of the resource pool stays, with all its counts at 0."""
    pool = schema.resource_pool
    with store.write() as connection:
        for table in schema.metadata.sorted_tables:
            if table is not pool:
                connection.execute(table.delete())
        counts = {
            "ignored": 0,
            "repaired": 0,
            "expired": 0,
        }
        connection.execute(pool.update().values(**counts))
