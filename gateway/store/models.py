"""The models that trainings left at this node."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import sqlalchemy as sa

from gateway.domain.models import Kept, PartyModel
from gateway.domain.run import Address
from gateway.domain.spec import NodeId
from gateway.errors import Conflict
from gateway.store import schema
from gateway.store.publishing import kept_of, one_version, row_of
from gateway.store.serialization import dumps, loads
from gateway.store.store import Store


class SqlModels:
    """Models: a party's part never changes; whether it is deployed, and to whom, does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self, model_id: str | None = None, limit: int | None = None) -> list[Kept]:
        """Return the parts, newest version first."""
        t = schema.model
        query = sa.select(t).order_by(t.c.created_at.desc(), t.c.version, t.c.role, t.c.idx).limit(limit)
        if model_id is not None:
            query = query.where(t.c.model_id == model_id)
        with self._store.read() as connection:
            return [kept_of(row) for row in connection.execute(query)]

    def find(self, model_id: str, version: str) -> list[Kept]:
        """Return the parts of one version, by role and index; empty where there is none."""
        t = schema.model
        with self._store.read() as connection:
            rows = connection.execute(
                sa.select(t).where(one_version(model_id, version)).order_by(t.c.role, t.c.idx)
            ).all()
        return [kept_of(row) for row in rows]

    def of_job(self, job_id: str) -> list[Kept]:
        """Return the parts that a job left."""
        t = schema.model
        with self._store.read() as connection:
            return [kept_of(row) for row in connection.execute(sa.select(t).where(t.c.job_id == job_id))]

    def addresses(self) -> dict[Address, str]:
        """Return every address that a model needs, with its name: what lies there must not be cleaned away."""
        t = schema.model
        with self._store.read() as connection:
            texts = connection.execute(sa.select(t.c.document)).scalars().all()
        models = [loads(PartyModel, text) for text in texts]
        return {p.address: f"version {m.version} of model {m.model_id}" for m in models for p in m.parts}

    def deploy(self, model_id: str, version: str, at: float | None, granted: Iterable[NodeId] | None) -> bool:
        """Say whether and since when a version is deployed; with ``granted``, to whom too. False: unknown."""
        t = schema.model
        values: dict[str, object] = {"deployed_at": at}
        if granted is not None:
            values["granted"] = dumps(sorted(granted))
        with self._store.write() as connection:
            return bool(
                connection.execute(t.update().where(one_version(model_id, version)).values(**values)).rowcount
            )

    def add(
        self,
        models: Sequence[Kept],
        inside: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Store parts in one transaction; ``inside`` is entered before it ends, so that both happen or neither.

        Raises `Conflict` where a part is there already.
        """
        with self._store.write() as connection:
            for kept in models:
                try:
                    connection.execute(schema.model.insert().values(**row_of(kept)))
                except sa.exc.IntegrityError as error:
                    name = f"version {kept.model.version} of model {kept.model.model_id}"
                    raise Conflict(f"{name} has just come here", reason="MODEL_EXISTS") from error
            with inside():
                pass

    def delete(self, model_id: str, version: str) -> bool:
        """Forget a version that is not deployed; False where there is none, or it is deployed by now."""
        t = schema.model
        with self._store.write() as connection:
            done = connection.execute(t.delete().where(one_version(model_id, version), t.c.deployed_at.is_(None)))
            return bool(done.rowcount)
