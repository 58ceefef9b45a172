"""Stores what a job leaves behind in the same write that says how it ended."""

import time
from typing import Any

import sqlalchemy as sa
import structlog

from gateway.domain import models
from gateway.domain.models import Kept, PartyModel
from gateway.domain.run import LocalJob
from gateway.store import schema
from gateway.store.serialization import dumps, loads

log = structlog.get_logger(__name__)


def publish(connection: sa.Connection, old: LocalJob | None, new: LocalJob) -> None:
    """Store what a job leaves, in the write that says it has succeeded; a version that is there stays as it is."""
    if not new.model_saved or (old is not None and old.model_saved):
        return
    t = schema.model
    for model in models.left_by(new):
        here = (
            one_version(model.model_id, model.version)
            & (t.c.role == model.party.role)
            & (t.c.idx == model.party.index)
        )
        if connection.execute(sa.select(t.c.job_id).where(here)).first() is None:
            connection.execute(t.insert().values(**row_of(Kept(model))))
        else:
            log.warning("the model was there before", job=new.id, model_id=model.model_id, version=model.version)


def one_version(model_id: str, version: str) -> sa.ColumnElement[bool]:
    """Return the condition for all parties' parts of one version of a model."""
    return (schema.model.c.model_id == model_id) & (schema.model.c.version == version)


def row_of(kept: Kept) -> dict[str, Any]:
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
        "granted": dumps(list(kept.granted)),
        "document": dumps(model),
    }


def kept_of(row: Any) -> Kept:
    """Return a row as a party's model."""
    return Kept(
        loads(PartyModel, row.document),
        row.deployed_at,
        tuple(loads(list, row.granted)),
    )
