"""What was granted of this node's datasets: the newest grant per dataset and partner node."""

from typing import Any

import sqlalchemy as sa

from gateway.domain.datasets import Grant
from gateway.domain.run import Address
from gateway.domain.spec import NodeId
from gateway.store import schema
from gateway.store.database import repeating
from gateway.store.rows import as_time
from gateway.store.store import Store


class SqlGrants:
    """Grants of datasets. One that ended stays, so that the dataset does not become open by it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def of(self, dataset: Address) -> list[Grant]:
        """Return the grants of one dataset, by node."""
        t = schema.dataset_grant
        return self._found(sa.select(t).where(_of(dataset)).order_by(t.c.node))

    def all(self, node: NodeId | None = None, limit: int = 1000) -> list[Grant]:
        """Return all grants, or those to one node, by dataset."""
        t = schema.dataset_grant
        query = sa.select(t).order_by(t.c.namespace, t.c.name, t.c.node).limit(limit)
        return self._found(query if node is None else query.where(t.c.node == node))

    def put(self, grant: Grant) -> None:
        """Write a grant, in place of an earlier one of the same dataset and node."""
        t = schema.dataset_grant
        here = _of(grant.dataset) & (t.c.node == grant.node)
        values = {
            "granted_at": grant.granted_at.timestamp(),
            "granted_by": grant.granted_by[:255],
            "reason": grant.reason[:1000],
            "expires_at": grant.expires_at.timestamp() if grant.expires_at else None,
            "revoked_at": grant.revoked_at.timestamp() if grant.revoked_at else None,
            "revoked_by": grant.revoked_by[:255],
        }

        def work() -> None:
            with self._store.write() as connection:
                if not connection.execute(t.update().where(here).values(**values)).rowcount:
                    row = {"namespace": grant.dataset.namespace, "name": grant.dataset.name, "node": grant.node}
                    connection.execute(t.insert().values(**row, **values))

        repeating(work)

    def forget(self, dataset: Address, node: NodeId | None = None) -> None:
        """Delete every grant of a dataset that is gone: one of the same name later is another one.

        With ``node``, that node's grant only.
        """
        t = schema.dataset_grant
        where = _of(dataset) if node is None else _of(dataset) & (t.c.node == node)
        with self._store.write() as connection:
            connection.execute(t.delete().where(where))

    def _found(self, query: sa.Select[Any]) -> list[Grant]:
        with self._store.read() as connection:
            return [_grant(row) for row in connection.execute(query)]


def _of(dataset: Address) -> Any:
    t = schema.dataset_grant
    return (t.c.namespace == dataset.namespace) & (t.c.name == dataset.name)


def _grant(row: Any) -> Grant:
    return Grant(
        Address(row.namespace, row.name),
        row.node,
        as_time(row.granted_at),
        row.granted_by,
        row.reason,
        as_time(row.expires_at) if row.expires_at is not None else None,
        as_time(row.revoked_at) if row.revoked_at is not None else None,
        row.revoked_by,
    )
