"""The datasets of this node, kept in its database."""

import time

import sqlalchemy as sa

from gateway.domain.dataset_model import Dataset
from gateway.store import schema
from gateway.store.database import repeating
from gateway.store.serialization import dumps, loads
from gateway.store.store import Store


class SqlDatasets:
    """Uploaded datasets: `gateway.data.datasets.DatasetRepository`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, namespace: str, name: str) -> Dataset | None:
        """Return what is known of a dataset; None: nothing."""
        t = schema.dataset
        query = sa.select(t.c.document).where(t.c.namespace == namespace, t.c.name == name)
        with self._store.read() as connection:
            text = connection.execute(query).scalar()
        return loads(Dataset, text) if text else None

    def put(self, dataset: Dataset) -> None:
        """Keep what is known, in the place of what was known before."""
        t = schema.dataset
        here = (t.c.namespace == dataset.namespace) & (t.c.name == dataset.name)
        values = {"document": dumps(dataset), "created_at": time.time()}

        def work() -> None:
            with self._store.write() as connection:
                if not connection.execute(t.update().where(here).values(**values)).rowcount:
                    row = {"namespace": dataset.namespace, "name": dataset.name, **values}
                    connection.execute(t.insert().values(**row))

        repeating(work)

    def delete(self, namespace: str, name: str) -> bool:
        """Forget a dataset; False: it was not known."""
        t = schema.dataset
        with self._store.write() as connection:
            done = connection.execute(t.delete().where(t.c.namespace == namespace, t.c.name == name))
            return bool(done.rowcount)

    def list(self) -> list[Dataset]:
        """Return all of them, by namespace and name."""
        t = schema.dataset
        with self._store.read() as connection:
            texts = connection.execute(sa.select(t.c.document).order_by(t.c.namespace, t.c.name)).scalars().all()
        return [loads(Dataset, text) for text in texts]
