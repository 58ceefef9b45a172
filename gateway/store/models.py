"""The table of models. A party's model never changes; only its deployment and its grants do."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import sqlalchemy as sa
import structlog
from sqlalchemy import select

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
    """The models of this node, one row per version and party."""

    def all(
        self,
        model_id: str | None = None,
    ) -> list[Kept]:
        """Return all models, or those with this id; the newest version comes first."""
        query = select(_T).order_by(
            _T.c.created_at.desc(),
            _T.c.version,
            _T.c.role,
            _T.c.idx,
        )
        if model_id is not None:
            query = query.where(_T.c.model_id == model_id)
        return [_kept(row) for row in self._database.rows(query)]

    def find(
        self,
        model_id: str,
        version: str,
    ) -> list[Kept]:
        """Return the models of one version, by role and index."""
        query = select(_T).filter_by(model_id=model_id, version=version)
        query = query.order_by("role", "idx")
        return [_kept(row) for row in self._database.rows(query)]

    def addresses(self) -> dict[Address, str]:
        """Return every address whose files a model needs, with the model's name."""
        names = {}
        for text in self._database.values(select(_T.c.document)):
            model = loads(PartyModel, text)
            for part in model.parts:
                names[part.address] = f"version {model.version} of model {model.model_id}"
        return names

    def deploy(
        self,
        model_id: str,
        version: str,
        at: float | None,
        granted: Iterable[NodeId] | None,
    ) -> bool:
        """Set the time of deployment and the grants of every model of a version.

        ``at``: seconds since the epoch; None if the version is not deployed any more. ``granted``:
        the new grants; None leaves them as they are. Returns False if there is no such version.
        """
        values: dict[str, object] = {"deployed_at": at}
        if granted is not None:
            values["granted"] = sorted(granted)
        update = _T.update().filter_by(model_id=model_id, version=version)
        return bool(self._database.execute(update.values(**values)))

    def add(
        self,
        new_models: Sequence[Kept],
        inside: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Store models, if the work of ``inside`` succeeds as well.

        ``inside`` is entered and left in the open transaction, after the models were inserted: if
        it fails, no model is stored. Raises `Conflict` if a model exists already.
        """
        with self._database.write() as connection:
            for new_model in new_models:
                try:
                    connection.execute(_T.insert().values(**_row(new_model)))
                except sa.exc.IntegrityError as error:
                    model = new_model.model
                    name = f"version {model.version} of model {model.model_id}"
                    text = f"{name} was imported at the same time"
                    raise Conflict(text, reason="MODEL_EXISTS") from error
            with inside():
                pass

    def delete(
        self,
        model_id: str,
        version: str,
    ) -> bool:
        """Delete a version of a model; return False if there is none, or if it is deployed."""
        delete = _T.delete().filter_by(
            model_id=model_id,
            version=version,
            deployed_at=None,
        )
        return bool(self._database.execute(delete))


def publish(
    connection: sa.Connection,
    old: LocalJob | None,
    new: LocalJob,
) -> None:
    """Store the models of a job in the transaction that records its success.

    `Records` calls this function with each change of a job; it does nothing unless the change has
    set `LocalJob.model_saved`. An existing model stays unchanged.
    """
    if not new.model_saved or (old is not None and old.model_saved):
        return
    for model in models.models_of(new):
        existing = select(_T.c.job_id).filter_by(
            model_id=model.model_id,
            version=model.version,
            role=model.party.role,
            idx=model.party.index,
        )
        if connection.execute(existing).first() is None:
            connection.execute(_T.insert().values(**_row(Kept(model))))
        else:
            log.warning(
                "the model was there before",
                job=new.id,
                model_id=model.model_id,
                version=model.version,
            )


def _row(stored: Kept) -> dict[str, Any]:
    """Return a model as a row; one without a time of creation counts as created now."""
    model = stored.model
    created_at = time.time()
    if model.created_at.year > 1:  # `datetime.min` means an unknown time
        created_at = model.created_at.timestamp()
    return {
        "model_id": model.model_id,
        "version": model.version,
        "role": model.party.role,
        "idx": model.party.index,
        "job_id": model.job_id,
        "created_at": created_at,
        "deployed_at": stored.deployed_at,
        "granted": list(stored.granted),
        "document": dumps(model),
    }


def _kept(row: Any) -> Kept:
    """Return the model of a row, with what operators decided: its deployment and its grants."""
    return Kept(
        loads(PartyModel, row.document),
        row.deployed_at,
        tuple(row.granted),
    )
