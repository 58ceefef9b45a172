"""Providers, what became of them, and whose their names are: `provider_registry.repository.Repository`."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

import sqlalchemy as sa

from engines.base import Capacity
from gateway.auth import Role, Token
from gateway.domain.datasets import Dataset, Grant
from gateway.domain.models import Kept, PartyModel
from gateway.domain.run import Address
from gateway.domain.spec import NodeId
from gateway.domain.states import RunStatus
from gateway.errors import Conflict
from gateway.ports import Clock
from gateway.store import records, schema
from gateway.store.database import repeating
from gateway.store.records import kept_of, one_version, row_of
from gateway.store.serialization import as_time, dumps, loads
from gateway.store.store import Store
from provider_registry.model import Action, Provider, Revision
from provider_registry.registration import from_document
from provider_registry.repository import Stale
from route_table.versions import Export, Version


class SqlProviders:
    """Kept in the node's database. A revision and the state it leads to are one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, key: str) -> Provider | None:
        """Return what is registered now; None: nothing."""
        with self._store.read() as connection:
            text = connection.execute(records.PROVIDER, {"key": key}).scalar()
        return _provider(text) if text else None

    def list(self) -> list[Provider]:
        """Return every provider, ordered by key."""
        t = schema.provider
        with self._store.read() as connection:
            texts = connection.execute(sa.select(t.c.document).order_by(t.c.provider_key)).scalars().all()
        return [_provider(text) for text in texts]

    def write(self, revision: Revision) -> None:
        """Append a revision. Raises `Stale`: the number is the primary key, so of two writers one comes second."""
        t = schema.provider
        here = t.c.provider_key == revision.key
        at = revision.at.timestamp()
        document = dumps(revision.provider.document())
        row = {
            "provider_key": revision.key,
            "number": revision.number,
            "at": at,
            "author": revision.author[:255],
            "action": str(revision.action),
            "reason": revision.reason[:1000],
            "document": document,
        }

        def work() -> None:
            try:
                with self._store.write() as connection:
                    connection.execute(schema.provider_revision.insert().values(**row))
                    if revision.action is Action.DELETED:
                        connection.execute(t.delete().where(here))
                        return
                    present = {"document": document, "updated_at": at}
                    if not connection.execute(t.update().where(here).values(**present)).rowcount:
                        connection.execute(t.insert().values(provider_key=revision.key, **present))
            except sa.exc.IntegrityError as error:
                raise Stale(f"revision {revision.number} of {revision.key} is there already") from error

        repeating(work)

    def newest(self, key: str) -> int:
        """Return the number of the last revision; 0: there was never one."""
        t = schema.provider_revision
        with self._store.read() as connection:
            found = connection.execute(sa.select(sa.func.max(t.c.number)).where(t.c.provider_key == key)).scalar()
        return int(found or 0)

    def history(self, key: str, before: int | None = None, limit: int = 50) -> Sequence[Revision]:
        """Return revisions, newest first."""
        t = schema.provider_revision
        query = sa.select(t).where(t.c.provider_key == key).order_by(t.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(t.c.number < before)
        with self._store.read() as connection:
            return [_revision(row) for row in connection.execute(query)]

    def since(self, key: str, moment: datetime) -> Revision | None:
        """Return the revision in force at a moment, if another one followed it."""
        asked = {"key": key, "moment": moment.timestamp()}
        with self._store.read() as connection:
            last = connection.execute(records.REVISED, {"key": key}).first()
            if last is None or last.at <= asked["moment"]:
                return None
            row = connection.execute(records.REVISION_THEN, asked).first()
        return _revision(row) if row else None

    def owner(self, name: str) -> str | None:
        """Return who owns a name; None: nobody yet."""
        t = schema.provider_owner
        with self._store.read() as connection:
            found: str | None = connection.execute(sa.select(t.c.owner).where(t.c.name == name)).scalar()
        return found

    def claim(self, name: str, owner: str) -> str:
        """Make somebody the owner of a name that has none; return who owns it now."""
        known = self.owner(name)
        if known is not None:
            return known
        try:
            with self._store.write() as connection:
                connection.execute(schema.provider_owner.insert().values(name=name, owner=owner))
        except sa.exc.IntegrityError:  # another was first
            return self.owner(name) or ""
        return owner

    def give(self, name: str, owner: str) -> None:
        """Make somebody the owner of a name."""
        t = schema.provider_owner

        def work() -> None:
            with self._store.write() as connection:
                if not connection.execute(sa.select(t.c.name).where(t.c.name == name)).first():
                    connection.execute(t.insert().values(name=name, owner=owner))
                else:
                    connection.execute(t.update().where(t.c.name == name).values(owner=owner))

        repeating(work)


def _revision(row: Any) -> Revision:
    return Revision(
        row.provider_key,
        row.number,
        as_time(row.at),
        row.author,
        Action(row.action),
        row.reason,
        _provider(row.document),
    )


@lru_cache(maxsize=256)
def _provider(text: str) -> Provider:
    """Parse a stored provider; the same text is parsed once."""
    return from_document(loads(dict, text))


@dataclass(frozen=True)
class AuditEntry:
    """One change that somebody asked for, and how that went."""

    id: int
    """grows in the order in which changes were written down"""
    at: datetime
    who: str
    action: str
    status: int
    """of HTTP"""
    code: int | None
    """in the answer's envelope; None where it had none"""
    detail: Mapping[str, Any]


class SqlTokens:
    """The tokens of this node."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, token: Token) -> None:
        """Keep a new token; of what opens it only the digest."""
        row = {
            "id": token.id,
            "name": token.name,
            "role": str(token.role),
            "digest": token.digest,
            "created_at": token.created_at.timestamp(),
            "expires_at": token.expires_at.timestamp() if token.expires_at else None,
            "revoked_at": None,
        }
        with self._store.write() as connection:
            connection.execute(schema.token.insert().values(**row))

    def find(self, digest: str) -> Token | None:
        """Return a token by its digest, revoked and expired ones too; None: there is none."""
        t = schema.token
        with self._store.read() as connection:
            row = connection.execute(sa.select(t).where(t.c.digest == digest)).first()
        return _token(row) if row else None

    def list(self) -> list[Token]:
        """Return all tokens, oldest first."""
        with self._store.read() as connection:
            return [_token(row) for row in connection.execute(sa.select(schema.token).order_by("created_at"))]

    def revoke(self, name_or_id: str, now: datetime) -> int:
        """Revoke every token of that name, or the one with that id; return how many were still good."""
        t = schema.token
        which = sa.or_(t.c.name == name_or_id, t.c.id == name_or_id) & t.c.revoked_at.is_(None)
        with self._store.write() as connection:
            return connection.execute(t.update().where(which).values(revoked_at=now.timestamp())).rowcount


class SqlAudit:
    """The record of changes; nothing is ever taken out of it here."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(
        self, at: datetime, who: str, action: str, status: int, code: int | None, detail: Mapping[str, Any]
    ) -> None:
        """Write one line; texts are cut to what the columns hold."""
        row = {
            "at": at.timestamp(),
            "who": _whole(who)[:255],
            "action": _whole(action)[:1000],
            "status": status,
            "code": code,
            "detail": _whole(dumps(detail)),
        }
        with self._store.write() as connection:
            connection.execute(schema.audit.insert().values(**row))

    def list(
        self,
        before: int | None = None,
        limit: int = 100,
        who: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        refused: bool | None = None,
    ) -> list[AuditEntry]:
        """Return entries, newest first. ``action``: a part of it; ``refused``: whether the change was not made."""
        t = schema.audit
        query = sa.select(t).order_by(t.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(t.c.id < before)
        if who is not None:
            query = query.where(t.c.who == who)
        if action is not None:
            query = query.where(t.c.action.contains(action, autoescape=True))
        if since is not None:
            query = query.where(t.c.at >= since.timestamp())
        if until is not None:
            query = query.where(t.c.at < until.timestamp())
        if refused is not None:
            not_made = sa.or_(t.c.status >= 400, sa.func.coalesce(t.c.code, 0).not_in((0, 200)))
            query = query.where(not_made if refused else ~not_made)
        with self._store.read() as connection:
            return [
                AuditEntry(r.id, as_time(r.at), r.who, r.action, r.status, r.code, loads(dict, r.detail))
                for r in connection.execute(query)
            ]


def _whole(text: str) -> str:
    """Return a text that every database takes: what somebody sent may hold half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode()


def _token(row: Any) -> Token:
    return Token(
        row.id,
        row.name,
        Role(row.role),
        row.digest,
        as_time(row.created_at),
        as_time(row.expires_at) if row.expires_at is not None else None,
        as_time(row.revoked_at) if row.revoked_at is not None else None,
    )


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


# The gateways that share this database: who was heard of when, and what belongs to whom.
#
# Times are the database's own, so that the clocks of several machines need not agree. Beside them stands what time
# it was by the gateway's clock, for nobody but its own next process.

_OVER = (RunStatus.SUCCESS, RunStatus.FAILED)


@dataclass(frozen=True)
class KnownGateway:
    """A gateway on this database; ``silent`` is how many seconds ago it was last heard of."""

    owner: str
    url: str
    silent: float


class Gateways:
    """Reads and writes the list of gateways."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def beat(self, owner: str, url: str, at: datetime) -> float:
        """Write down that this gateway is alive, where the others reach it, and what time it is by its clock.

        Returns how many seconds it had been silent for until then; 0 the first time.
        """
        t = schema.gateway
        said = {"url": url, "own_time": at.timestamp()}

        def write() -> float:
            with self._store.write() as connection:
                now = _now(connection)
                silent = connection.execute(sa.select(now - t.c.seen_at).where(t.c.owner == owner)).scalar()
                if silent is None:
                    connection.execute(t.insert().values(owner=owner, **said, seen_at=now))
                else:
                    connection.execute(t.update().where(t.c.owner == owner).values(**said, seen_at=now))
                return float(silent or 0.0)

        return repeating(write)

    def known(self) -> list[KnownGateway]:
        """Return every gateway that was ever heard of."""
        t = schema.gateway
        with self._store.read() as connection:
            now = connection.execute(sa.select(_now(connection))).scalar_one()
            return [KnownGateway(r.owner, r.url, now - r.seen_at) for r in connection.execute(sa.select(t))]

    def last_time(self, owner: str) -> datetime | None:
        """Return what time it was by that gateway's clock when it last wrote; None where it has not said."""
        t = schema.gateway
        with self._store.read() as connection:
            found = connection.execute(sa.select(t.c.own_time).where(t.c.owner == owner)).scalar()
        return None if found is None else as_time(found)

    def jobs_of(self, owner: str) -> list[str]:
        """Return the jobs with runs of this gateway that are not over."""
        t = schema.run
        query = sa.select(t.c.job_id).where(t.c.owner == owner, t.c.status.not_in(_OVER)).distinct()
        with self._store.read() as connection:
            return list(connection.execute(query).scalars())

    def jobs_at(self, owner: str) -> list[str]:
        """Return the jobs whose home is this gateway and that are not done with. Reads each of those under way."""
        jobs = self._store.local_jobs
        found = ((job_id, jobs.find(job_id)) for job_id in jobs.unfinished())
        return [job_id for job_id, local in found if local is not None and local.home == owner]


def _now(connection: sa.Connection) -> sa.ColumnElement[float]:
    if connection.dialect.name == "sqlite":
        return sa.literal_column("((julianday('now') - 2440587.5) * 86400.0)", sa.Double())
    return sa.literal_column("(unix_timestamp(now(6)) + 0e0)", sa.Double())


_HERE = 1


class SqlRouteVersions:
    """Kept in the node's database, so that several gateways of the node have one table."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def newest_number(self) -> int:
        """Return the newest version's number, 0 if there is none."""
        t = schema.route_version
        with self._store.read() as connection:
            return int(connection.execute(sa.select(sa.func.max(t.c.number))).scalar() or 0)

    def get(self, number: int) -> Version | None:
        """Return a version; None: there is none of that number."""
        t = schema.route_version
        with self._store.read() as connection:
            row = connection.execute(sa.select(t).where(t.c.number == number)).first()
        return _version(row) if row else None

    def add(self, version: Version) -> bool:
        """Append a version; False where its number is taken. Author and reason are cut to the columns."""
        row = {
            "number": version.number,
            "at": version.at.timestamp(),
            "author": version.author[:255],
            "reason": version.reason[:1000],
            "source": version.source,
            "text": version.text,
        }
        try:
            with self._store.write() as connection:
                connection.execute(schema.route_version.insert().values(**row))
        except sa.exc.IntegrityError:
            return False
        return True

    def list(self, before: int | None = None, limit: int = 50) -> Sequence[Version]:
        """Return versions older than ``before``, newest first."""
        t = schema.route_version
        query = sa.select(t).order_by(t.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(t.c.number < before)
        with self._store.read() as connection:
            return [_version(row) for row in connection.execute(query)]

    def exported(self) -> Export | None:
        """Return what the file held last; None: no gateway has written one yet."""
        t = schema.route_export
        with self._store.read() as connection:
            row = connection.execute(sa.select(t).where(t.c.id == _HERE)).first()
        return Export(row.number, row.digest) if row else None

    def set_exported(self, export: Export) -> None:
        """Note what the file holds now."""
        t = schema.route_export
        values = {"number": export.number, "digest": export.digest}

        def work() -> None:
            with self._store.write() as connection:
                if not connection.execute(sa.select(t.c.id).where(t.c.id == _HERE)).first():
                    connection.execute(t.insert().values(id=_HERE, **values))
                else:
                    connection.execute(t.update().where(t.c.id == _HERE).values(**values))

        repeating(work)


def _version(row: sa.Row[tuple[object, ...]]) -> Version:
    r = row._mapping
    return Version(r["number"], as_time(r["at"]), r["author"], r["reason"], r["source"], r["text"])


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


_TIDY_EVERY = 60.0
"""seconds between deletions of what no longer holds"""


class SqlHeardSignatures:
    """Remembers each for as long as it holds; safe to use from several threads and gateways."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._tidy_at = 0.0

    def first(self, signature: str, request: str, seconds: float) -> str:
        """Return the fingerprint of the request that came first with a signature: ``request`` where this one did.

        It is remembered for so many seconds from then on.
        """
        t, now = schema.heard_signature, self._clock().timestamp()
        mine = t.c.signature == signature

        def work() -> str:
            with self._store.write() as connection:
                known = connection.execute(sa.select(t.c.request).where(mine, t.c.until >= now)).scalar()
                if known is not None:
                    return str(known)
                connection.execute(t.delete().where(mine, t.c.until < now))
                connection.execute(t.insert().values(signature=signature, request=request, until=now + seconds))
                return request

        found = repeating(work)
        if self._due(now):
            repeating(self._tidy(now))
        return found

    def _due(self, now: float) -> bool:
        with self._lock:
            due = now >= self._tidy_at
            if due:
                self._tidy_at = now + _TIDY_EVERY
            return due

    def _tidy(self, now: float) -> Callable[[], None]:
        def work() -> None:
            t = schema.heard_signature
            with self._store.write() as connection:
                connection.execute(t.delete().where(t.c.until < now))

        return work


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


_LONGEST = 255


class EngineTotals:
    """By the engine's name, for all gateways of the node."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def known(self) -> Mapping[str, Capacity]:
        """Return what each engine had when it last answered."""
        with self._store.read() as connection:
            rows = connection.execute(sa.select(schema.resource_engine)).all()
        return {row.engine: Capacity(row.cpu, row.memory) for row in rows}

    def keep(self, engine: str, capacity: Capacity, at: datetime) -> None:
        """Write down what an engine tells; one whose name is too long for that is forgotten with the process."""
        if len(engine) <= _LONGEST:
            repeating(partial(self._keep, engine, capacity, at))

    def _keep(self, engine: str, capacity: Capacity, at: datetime) -> None:
        t = schema.resource_engine
        told = {"cpu": capacity.cpu, "memory": capacity.memory, "seen_at": at.timestamp()}
        with self._store.write() as connection:
            known = connection.execute(sa.select(t.c.engine).where(t.c.engine == engine).with_for_update()).first()
            if known is None:
                connection.execute(t.insert().values(engine=engine, **told))
            else:
                connection.execute(t.update().where(t.c.engine == engine).values(**told))


class SqlJobAudits:
    """Questions by the node that asked and by the id that it gave them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def job_of(self, sender: str, audit_id: str) -> str | None:
        """Return the job that a question is about; None: that node has asked no such question."""
        t = schema.job_audit
        with self._store.read() as connection:
            query = sa.select(t.c.job_id).where(t.c.sender == sender, t.c.audit_id == audit_id)
            found: str | None = connection.execute(query).scalar()
            return found

    def add(self, sender: str, audit_id: str, job_id: str) -> str:
        """Keep a question; return the job that it is about, which is another one where the id was used before."""
        try:
            with self._store.write() as connection:
                connection.execute(
                    schema.job_audit.insert().values(sender=sender, audit_id=audit_id, job_id=job_id)
                )
        except sa.exc.IntegrityError:
            return self.job_of(sender, audit_id) or job_id
        return job_id
