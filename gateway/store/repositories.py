"""The tables of routes, datasets, grants, tokens, templates and gateways.

Also those of used signatures, engines' capacities and audits of jobs.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import func, or_, select

from engines.base import Capacity
from gateway.auth import Role, Token
from gateway.domain.datasets import Dataset, Grant
from gateway.domain.run import Address
from gateway.domain.spec import NodeId
from gateway.domain.states import RunStatus
from gateway.ports import Clock
from gateway.store import schema
from gateway.store.database import (
    Database,
    InDatabase,
    Prepared,
    repeat_on_conflict,
    upsert,
)
from gateway.store.functions import now
from gateway.store.serialization import dumps, loads
from gateway.store.store import Store
from route_table.live import Export, Version

GATEWAY_TIMEOUT = 8.0  # seconds without a heartbeat after which a gateway counts as stopped
_SIGNATURE_CLEANUP_INTERVAL = 10.0  # seconds between two deletions of expired signatures

_INSERT_SIGNATURE = Prepared(
    schema.used_signature.insert(),
    ("signature", "request", "until"),
)


# ------------------------------------------------------------ routes


class SqlRouteVersions(InDatabase):
    """Versions of the route table, shared by all gateways of the node.

    Implements `route_table.live.Repository`.
    """

    def __init__(
        self,
        database: Database,
        gateway: str,
    ) -> None:
        """``gateway``: the name of this gateway.

        Each gateway with a route file has an *export* stored: the version that its file had when
        the gateway last wrote or accepted the file.
        """
        super().__init__(database)
        self._gateway = gateway

    def newest_number(self) -> int:
        """Return the newest version's number, 0 if there is none."""
        query = select(func.max(schema.route_version.c.number))
        return int(self._database.value(query) or 0)

    def get(self, number: int) -> Version | None:
        """Return a version by its number, or None."""
        query = select(schema.route_version).filter_by(number=number)
        row = self._database.first(query)
        return Version(*row) if row else None

    def add(self, version: Version) -> bool:
        """Append a version; return False if its number is taken.

        Author and reason are cut to the width of their columns, by the types of the columns.
        """
        row = {column.name: getattr(version, column.name) for column in schema.route_version.c}
        try:
            self._database.insert(schema.route_version, row)
        except sa.exc.IntegrityError:
            return False
        return True

    def list(
        self,
        before: int | None = None,
        limit: int = 50,
    ) -> Sequence[Version]:
        """Return versions, newest first; with ``before``, only lower numbers."""
        t = schema.route_version
        query = select(t).order_by(t.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(t.c.number < before)
        return [Version(*row) for row in self._database.rows(query)]

    def exported(self) -> Export | None:
        """Return the version of this gateway's route file, as last written or accepted by it.

        None if the gateway has done neither yet.
        """
        query = select(schema.route_export).filter_by(owner=self._gateway)
        row = self._database.first(query)
        return Export(row.number, row.digest) if row else None

    def other_follower(self) -> str:
        """Return the URL of another running gateway that follows a route file; "" without one.

        A gateway that has stored an export has a route file, and follows it. If there are several
        such gateways, the URL is that of any of them.
        """
        export = schema.route_export.c
        gateway = schema.gateway.c
        query = select(gateway.url)
        query = query.join(
            schema.route_export,
            export.owner == gateway.owner,
        )
        query = query.where(
            gateway.owner != self._gateway,
            gateway.seen_at > now() - GATEWAY_TIMEOUT,
        )
        return str(self._database.value(query) or "")

    def set_exported(self, export: Export) -> None:
        """Store the version number and the digest that this gateway's route file has now."""
        self._database.put(
            schema.route_export,
            {"owner": self._gateway},
            vars(export),
        )


# ------------------------------------------------------------ datasets and their grants


class SqlDatasets(InDatabase):
    """Uploaded datasets. Implements `gateway.domain.datasets.DatasetRepository`."""

    def get(
        self,
        namespace: str,
        name: str,
    ) -> Dataset | None:
        """Return a dataset, or None."""
        query = select(schema.dataset.c.document).filter_by(namespace=namespace, name=name)
        return _parse_dataset(self._database.value(query))

    def put(self, dataset: Dataset) -> None:
        """Insert or replace a dataset."""
        key = {
            "namespace": dataset.namespace,
            "name": dataset.name,
        }
        self._database.put(
            schema.dataset,
            key,
            _dataset_values(dataset),
        )

    def replace(
        self,
        before: Dataset | None,
        after: Dataset,
    ) -> bool:
        """Store ``after`` if the stored dataset is still ``before`` (None: there is none).

        Returns True if it was stored, False if another gateway has changed the dataset.
        """
        key = {
            "namespace": after.namespace,
            "name": after.name,
        }
        query = select(schema.dataset.c.document).filter_by(**key).with_for_update()

        def compare_and_replace() -> bool:
            with self._database.write() as connection:
                stored = _parse_dataset(connection.execute(query).scalar())
                if stored != before:
                    return False
                values = _dataset_values(after)
                if stored is None:
                    # No lock holds a missing row, and an upsert would overwrite a later one.
                    connection.execute(schema.dataset.insert().values(**key, **values))
                else:
                    upsert(connection, schema.dataset, key, values)
            return True

        return repeat_on_conflict(compare_and_replace)

    def delete(
        self,
        namespace: str,
        name: str,
    ) -> bool:
        """Delete a dataset; return False if there is none."""
        delete = schema.dataset.delete().filter_by(namespace=namespace, name=name)
        return bool(self._database.execute(delete))

    def list(self) -> list[Dataset]:
        """Return all datasets, by namespace and name."""
        c = schema.dataset.c
        query = select(c.document).order_by(c.namespace, c.name)
        return [loads(Dataset, document) for document in self._database.values(query)]


def _parse_dataset(document: str | None) -> Dataset | None:
    """Return the dataset of a stored text; None if there is no text."""
    if not document:
        return None
    return loads(Dataset, document)


def _dataset_values(dataset: Dataset) -> dict[str, Any]:
    """Return the columns of a dataset, apart from its key."""
    return {
        "document": dumps(dataset),
        "created_at": time.time(),  # the time of this write, in spite of the column's name
    }


class SqlGrants(InDatabase):
    """Grants of datasets to nodes.

    A revoked or expired grant keeps its row, as a dataset without any row may be open to all.
    """

    def of(self, dataset: Address) -> list[Grant]:
        """Return the grants of one dataset, in the order of nodes."""
        query = select(schema.dataset_grant).filter_by(**dataset.as_dict())
        rows = self._database.rows(query.order_by("node"))
        return [_to_grant(row) for row in rows]

    def all(
        self,
        node: NodeId | None = None,
    ) -> list[Grant]:
        """Return all grants, or those to one node, in the order of datasets and nodes."""
        t = schema.dataset_grant
        query = select(t).order_by(
            t.c.namespace,
            t.c.name,
            t.c.node,
        )
        if node is not None:
            query = query.where(t.c.node == node)
        return [_to_grant(row) for row in self._database.rows(query)]

    def put(self, grant: Grant) -> None:
        """Store a grant, in place of an earlier one of the same dataset and node."""
        values = dict(vars(grant))
        dataset = values.pop("dataset")
        node = values.pop("node")
        key = {**dataset.as_dict(), "node": node}
        self._database.put(schema.dataset_grant, key, values)

    def forget(self, dataset: Address) -> None:
        """Delete every grant of a dataset, so that none applies to a later one of the same name."""
        delete = schema.dataset_grant.delete().filter_by(**dataset.as_dict())
        self._database.execute(delete)


def _to_grant(row: Any) -> Grant:
    """Return the grant of a row, whose columns are in the order of the grant's fields."""
    namespace, name, *fields = row
    return Grant(Address(namespace, name), *fields)


# ------------------------------------------------------------ tokens and templates


class SqlTokens(InDatabase):
    """The tokens of this node."""

    def add(self, token: Token) -> None:
        """Store a new token, which has only the digest of its secret."""
        self._database.insert(schema.token, vars(token))

    def find(self, digest: str) -> Token | None:
        """Return a token by its digest, even if revoked or expired; None if there is none."""
        query = select(schema.token).filter_by(digest=digest)
        row = self._database.first(query)
        return _to_token(row) if row else None

    def list(self) -> list[Token]:
        """Return all tokens, oldest first."""
        query = select(schema.token).order_by("created_at")
        return [_to_token(row) for row in self._database.rows(query)]

    def revoke(
        self,
        name_or_id: str,
        now: datetime,
    ) -> int:
        """Revoke the tokens with this name, or the token with this id.

        Returns how many tokens were revoked now; tokens revoked before do not count.
        """
        t = schema.token
        has_name_or_id = or_(
            t.c.name == name_or_id,
            t.c.id == name_or_id,
        )
        is_not_revoked = t.c.revoked_at.is_(None)
        update = t.update().where(has_name_or_id, is_not_revoked)
        return self._database.execute(update.values(revoked_at=now))

    def delete_expired(
        self,
        prefix: str,
        now: datetime,
    ) -> None:
        """Delete the expired tokens whose names begin with the prefix."""
        t = schema.token
        has_prefix = t.c.name.startswith(
            prefix,
            autoescape=True,
        )
        is_expired = t.c.expires_at < now
        self._database.execute(t.delete().where(has_prefix, is_expired))


def _to_token(row: Any) -> Token:
    """Return the token of a row, whose columns are in the order of the token's fields."""
    id_, name, role, *fields = row
    return Token(id_, name, Role(role), *fields)


class SqlTemplates(InDatabase):
    """Named jobs that serve as the start of new ones."""

    def list(self) -> list[Any]:
        """Return the name, author and time of each template, in the order of their names."""
        c = schema.template.c
        query = select(c.name, c.author, c.saved_at).order_by(c.name)
        return self._database.rows(query)

    def get(self, name: str) -> Any:
        """Return a template's row with its job, or None."""
        query = select(schema.template).filter_by(name=name)
        return self._database.first(query)

    def put(
        self,
        name: str,
        author: str,
        now: datetime,
        job: Mapping[str, Any],
    ) -> None:
        """Insert or replace a template."""
        values = {
            "author": author,
            "saved_at": now,
            "job": job,
        }
        self._database.put(
            schema.template,
            {"name": name},
            values,
        )

    def delete(self, name: str) -> bool:
        """Delete a template; return False if there is none."""
        delete = schema.template.delete().filter_by(name=name)
        return bool(self._database.execute(delete))


# ------------------------------------------------------------ gateways


@dataclass(frozen=True)
class KnownGateway:
    """A gateway on this database."""

    owner: str  # its name
    url: str  # its URL for the other gateways
    silent: float  # seconds since its last heartbeat


class Gateways:
    """The gateways that share this database, and the jobs of each.

    Times are the database's own, so that the clocks of several machines need not agree.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def beat(
        self,
        owner: str,
        url: str,
    ) -> float:
        """Write a heartbeat of the gateway named ``owner``, with its URL.

        Returns the seconds since the gateway's last heartbeat, 0 if this is its first one.
        """
        c = schema.gateway.c

        def write() -> float:
            with self._store.write() as connection:
                select_silence = select(now() - c.seen_at).where(c.owner == owner)
                silence = connection.execute(select_silence).scalar()
                values = {
                    "url": url,
                    "seen_at": now(),
                }
                upsert(
                    connection,
                    schema.gateway,
                    {"owner": owner},
                    values,
                )
            return float(silence or 0.0)

        return repeat_on_conflict(write)

    def all(self) -> list[KnownGateway]:
        """Return every gateway that ever wrote a heartbeat."""
        with self._store.read() as connection:
            time_of_database = connection.execute(select(now())).scalar_one()
            rows = connection.execute(select(schema.gateway)).all()
        gateways = []
        for row in rows:
            silent = time_of_database - row.seen_at
            gateways.append(KnownGateway(row.owner, row.url, silent))
        return gateways

    def jobs_with_runs_of(self, owner: str) -> list[str]:
        """Return the jobs with unfinished runs of the gateway named ``owner``."""
        c = schema.run.c
        is_unfinished = c.status.not_in((RunStatus.SUCCESS, RunStatus.FAILED))
        query = select(c.job_id).where(c.owner == owner, is_unfinished)
        return self._store.values(query.distinct())

    def jobs_at_home(self, owner: str) -> list[str]:
        """Return the unfinished jobs whose home (`LocalJob.home`) is the gateway named ``owner``.

        Slow: every unfinished job is read, as the home has no column.
        """
        jobs = self._store.local_jobs
        job_ids = []
        for job_id in jobs.unfinished():
            local = jobs.find(job_id)
            if local is not None and local.home == owner:
                job_ids.append(job_id)
        return job_ids


# ------------------------------------------------------------ signatures, engines, audits of jobs


class SqlUsedSignatures(InDatabase):
    """Used signatures of requests, for all gateways of the node; several threads may call it."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
    ) -> None:
        super().__init__(database)
        self._clock = clock
        self._next_cleanup = 0.0

    def first(
        self,
        signature: str,
        request: str,
        seconds: float,
    ) -> str:
        """Return the id of the first request with a signature, which may be ``request`` itself.

        A new signature is stored with its request, and deleted some time after ``seconds`` have
        passed. Implements `gateway.identity.signatures.FirstUse`.
        """
        now = self._clock().timestamp()
        if now >= self._next_cleanup:
            self._next_cleanup = now + _SIGNATURE_CLEANUP_INTERVAL
            repeat_on_conflict(partial(self._delete_expired, now))
        values = {
            "signature": signature,
            "request": request,
            "until": now + seconds,
        }

        def insert_or_find() -> str:
            try:
                self._database.execute(_INSERT_SIGNATURE, **values)
            except sa.exc.IntegrityError:
                self._delete_expired(now)
                existing = self._find(signature)
                if existing is None:  # the row had expired: `repeat_on_conflict` tries again
                    raise
                return existing
            return request

        return repeat_on_conflict(insert_or_find)

    def _delete_expired(self, now: float) -> None:
        """Delete the signatures whose time is over."""
        t = schema.used_signature
        self._database.execute(t.delete().where(t.c.until < now))

    def _find(self, signature: str) -> str | None:
        """Return the id of the request that used a signature; None if it was not used."""
        query = select(schema.used_signature.c.request).filter_by(signature=signature)
        return self._database.text(query)


class EngineTotals(InDatabase):
    """The engines' last known capacities, for all gateways of the node.

    A main engine has the name of its gateway, or ``main`` if the node has a single gateway.
    """

    def all(self) -> Mapping[str, Capacity]:
        """Return the capacity of each engine when it last answered, by the engine's name."""
        rows = self._database.rows(select(schema.resource_engine))
        capacities = {}
        for row in rows:
            capacities[row.engine] = Capacity(
                row.cpu,
                row.memory,
                row.gpu,
            )
        return capacities

    def put(
        self,
        engine: str,
        capacity: Capacity,
        at: datetime,
    ) -> None:
        """Store an engine's capacity."""
        values = {
            "cpu": capacity.cpu,
            "memory": capacity.memory,
            "gpu": capacity.gpu,
            "seen_at": at,
        }
        self._database.put(
            schema.resource_engine,
            {"engine": engine},
            values,
        )


class SqlJobAudits(InDatabase):
    """Audits that other nodes requested before they create jobs here (not lines of the audit log).

    The key of an audit is the requesting node and the id that this node has chosen for the audit.
    """

    def job_of(
        self,
        sender: str,
        audit_id: str,
    ) -> str | None:
        """Return the job of an audit, or None if the node has requested no such audit."""
        query = select(schema.job_audit.c.job_id).filter_by(sender=sender, audit_id=audit_id)
        return self._database.text(query)

    def add(
        self,
        sender: str,
        audit_id: str,
        job_id: str,
    ) -> str:
        """Store an audit; return its job, which is an earlier one if the id was used before."""
        row = {
            "sender": sender,
            "audit_id": audit_id,
            "job_id": job_id,
        }
        try:
            self._database.insert(schema.job_audit, row)
        except sa.exc.IntegrityError:
            return self.job_of(sender, audit_id) or job_id
        return job_id
