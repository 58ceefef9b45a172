"""Models: a party's part never changes; whether it is deployed, and to whom, does."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import sqlalchemy as sa
import structlog

from gateway.domain import models
from gateway.domain.models import Kept, PartyModel
from gateway.domain.run import Address, LocalJob
from gateway.domain.spec import NodeId
from gateway.errors import Conflict
from gateway.store import schema
from gateway.store.database import InDatabase
from gateway.store.serialization import dumps, loads

log = structlog.get_logger(__name__)
_T = schema.model


class SqlModels(InDatabase):
    """The models of this node, one row per party and version."""

    def all(self, model_id: str | None = None) -> list[Kept]:
        """Return the parts, newest version first."""
        query = sa.select(_T).order_by(_T.c.created_at.desc(), _T.c.version, _T.c.role, _T.c.idx)
        if model_id is not None:
            query = query.where(_T.c.model_id == model_id)
        return [_kept(row) for row in self._database.rows(query)]

    def find(self, model_id: str, version: str) -> list[Kept]:
        """Return the parts of one version, by role and index; empty where there is none."""
        query = sa.select(_T).filter_by(model_id=model_id, version=version).order_by("role", "idx")
        return [_kept(row) for row in self._database.rows(query)]

    def addresses(self) -> dict[Address, str]:
        """Return every address that a model needs, with its name: what lies there must not be deleted."""
        found = [
            loads(PartyModel, text) for text in self._database.values(sa.select(_T.c.document))
        ]
        return {
            p.address: f"version {m.version} of model {m.model_id}" for m in found for p in m.parts
        }

    def deploy(
        self,
        model_id: str,
        version: str,
        at: float | None,
        granted: Iterable[NodeId] | None,
    ) -> bool:
        """Say whether and since when a version is deployed; with ``granted``, to whom too. False: unknown."""
        values: dict[str, object] = {"deployed_at": at}
        if granted is not None:
            values["granted"] = sorted(granted)
        here = _T.update().filter_by(model_id=model_id, version=version)
        return bool(self._database.execute(here.values(**values)))

    def add(
        self,
        parts: Sequence[Kept],
        inside: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Store parts and enter ``inside`` in one transaction: both happen or neither. Raises `Conflict`."""
        with self._database.write() as connection:
            for kept in parts:
                try:
                    connection.execute(_T.insert().values(**_row(kept)))
                except sa.exc.IntegrityError as error:
                    name = f"version {kept.model.version} of model {kept.model.model_id}"
                    raise Conflict(
                        f"{name} was imported at the same time", reason="MODEL_EXISTS"
                    ) from error
            with inside():
                pass

    def delete(self, model_id: str, version: str) -> bool:
        """Forget a version that is not deployed; False where there is none, or it is deployed by now."""
        here = _T.delete().filter_by(
            model_id=model_id,
            version=version,
            deployed_at=None,
        )
        return bool(self._database.execute(here))


def publish(
    connection: sa.Connection,
    old: LocalJob | None,
    new: LocalJob,
) -> None:
    """Store what a job leaves, in the write that says it has succeeded; a version that is there stays as it is."""
    if not new.model_saved or (old is not None and old.model_saved):
        return
    for model in models.left_by(new):
        names = {"model_id": model.model_id, "version": model.version}
        here = sa.select(_T.c.job_id).filter_by(
            **names,
            role=model.party.role,
            idx=model.party.index,
        )
        if connection.execute(here).first() is None:
            connection.execute(_T.insert().values(**_row(Kept(model))))
        else:
            log.warning(
                "the model was there before",
                job=new.id,
                model_id=model.model_id,
                version=model.version,
            )


def _row(kept: Kept) -> dict[str, Any]:
    """Return a party's model as a row; one whose time is not known counts as made now."""
    model = kept.model
    return {
        "model_id": model.model_id,
        "version": model.version,
        "role": model.party.role,
        "idx": model.party.index,
        "job_id": model.job_id,
        "created_at": model.created_at.timestamp() if model.created_at.year > 1 else time.time(),
        "deployed_at": kept.deployed_at,
        "granted": list(kept.granted),
        "document": dumps(model),
    }


def _kept(row: Any) -> Kept:
    return Kept(loads(PartyModel, row.document), row.deployed_at, tuple(row.granted))
