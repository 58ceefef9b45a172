"""The repositories of the leaf rooms, kept in the same database."""

import time
from functools import lru_cache

import sqlalchemy as sa

from gateway.dataset_model import Dataset
from gateway.store import tables
from gateway.store.mapping import dumps, loads
from gateway.store.store import Store, repeating
from provider_registry.model import Provider
from provider_registry.registration import from_document


class SqlProviders:
    """Registered providers: `provider_registry.registry.Repository`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, key: str) -> Provider | None:
        t = tables.provider
        with self._store.read() as connection:
            text = connection.execute(sa.select(t.c.document).where(t.c.provider_key == key)).scalar()
        return _provider(text) if text else None

    def put(self, provider: Provider) -> bool:
        """Store a provider; True when it is new."""
        t = tables.provider
        values = {"document": dumps(provider.document()), "updated_at": time.time()}

        def work() -> bool:
            with self._store.write() as connection:
                if connection.execute(
                    t.update().where(t.c.provider_key == provider.key).values(**values)
                ).rowcount:
                    return False
                connection.execute(t.insert().values(provider_key=provider.key, **values))
                return True

        return repeating(work)

    def delete(self, key: str) -> bool:
        t = tables.provider
        with self._store.write() as connection:
            return bool(connection.execute(t.delete().where(t.c.provider_key == key)).rowcount)

    def list(self) -> list[Provider]:
        t = tables.provider
        with self._store.read() as connection:
            texts = connection.execute(sa.select(t.c.document).order_by(t.c.provider_key)).scalars().all()
        return [_provider(text) for text in texts]


@lru_cache(maxsize=256)
def _provider(text: str) -> Provider:
    """Parse a stored provider; the same text is parsed once."""
    return from_document(loads(dict, text))


class SqlDatasets:
    """Uploaded datasets: `gateway.datasets.DatasetRepository`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, namespace: str, name: str) -> Dataset | None:
        t = tables.dataset
        query = sa.select(t.c.document).where(t.c.namespace == namespace, t.c.name == name)
        with self._store.read() as connection:
            text = connection.execute(query).scalar()
        return loads(Dataset, text) if text else None

    def put(self, dataset: Dataset) -> None:
        t = tables.dataset
        here = (t.c.namespace == dataset.namespace) & (t.c.name == dataset.name)
        values = {"document": dumps(dataset), "created_at": time.time()}

        def work() -> None:
            with self._store.write() as connection:
                if not connection.execute(t.update().where(here).values(**values)).rowcount:
                    row = {"namespace": dataset.namespace, "name": dataset.name, **values}
                    connection.execute(t.insert().values(**row))

        repeating(work)

    def delete(self, namespace: str, name: str) -> bool:
        t = tables.dataset
        with self._store.write() as connection:
            done = connection.execute(t.delete().where(t.c.namespace == namespace, t.c.name == name))
            return bool(done.rowcount)

    def list(self) -> list[Dataset]:
        t = tables.dataset
        with self._store.read() as connection:
            texts = connection.execute(sa.select(t.c.document).order_by(t.c.namespace, t.c.name)).scalars().all()
        return [loads(Dataset, text) for text in texts]
