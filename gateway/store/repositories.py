"""What the node keeps beside its jobs: providers, routes, datasets, grants, tokens, gateways, engines."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

import sqlalchemy as sa

from engines.base import Capacity
from gateway.auth import Role, Token
from gateway.domain.datasets import Dataset, Grant
from gateway.domain.run import Address
from gateway.domain.spec import NodeId
from gateway.domain.states import RunStatus
from gateway.ports import Clock
from gateway.store import schema
from gateway.store.database import Database, InDatabase, Prepared, repeating, upsert
from gateway.store.serialization import dumps, loads
from gateway.store.store import Store
from provider_registry.model import Provider
from provider_registry.registration import from_document
from provider_registry.registry import Action, Revision, Stale
from route_table.live import Export, Version

X = TypeVar("X")
_MOST_READ = 1000
"""answers that are kept"""
_USE = Prepared(schema.used_signature.insert(), ("signature", "request", "until"))
_PROVIDER = Prepared(
    sa.select(schema.provider.c.document).where(
        schema.provider.c.provider_key == sa.bindparam("key")
    )
)


class SqlProviders(InDatabase):
    """Providers, their history and their names' owners: `provider_registry.registry.Repository`."""

    def __init__(self, database: Database, *, alone: bool = False) -> None:
        """``alone``: nothing else writes them, so that what was read holds until the next change."""
        super().__init__(database)
        self._alone = alone
        self._lock = threading.Lock()
        self._read: dict[tuple[str, str], Any] = {}

    def _once(
        self,
        what: str,
        key: str,
        read: Callable[[], X],
    ) -> X:
        if not self._alone:
            return read()
        with self._lock:
            if (what, key) not in self._read:
                if len(self._read) >= _MOST_READ:
                    self._read.clear()
                self._read[what, key] = read()
            found: X = self._read[what, key]
            return found

    def get(self, key: str) -> Provider | None:
        """Return what is registered now; None: nothing."""
        text = self._once("document", key, lambda: self._database.text(_PROVIDER, key=key))
        return _provider(text) if text else None

    def list(self) -> list[Provider]:
        """Return every provider, ordered by key."""
        t = schema.provider
        return [
            _provider(text)
            for text in self._database.values(sa.select(t.c.document).order_by(t.c.provider_key))
        ]

    def write(self, revision: Revision) -> None:
        """Append a revision. Raises `Stale`: the number is the primary key, so of two writers one comes second."""
        t = schema.provider
        document = dumps(revision.provider.document())
        row = {
            name: getattr(revision, name) for name in ("number", "at", "author", "action", "reason")
        }
        row |= {"provider_key": revision.key, "document": document}

        def work() -> None:
            try:
                with self._database.write() as connection:
                    connection.execute(schema.provider_revision.insert().values(**row))
                    if revision.action is Action.DELETED:
                        connection.execute(t.delete().where(t.c.provider_key == revision.key))
                    else:
                        now = {"document": document, "updated_at": revision.at.timestamp()}
                        upsert(connection, t, {"provider_key": revision.key}, now)
            except sa.exc.IntegrityError as error:
                raise Stale(
                    f"revision {revision.number} of {revision.key} is there already"
                ) from error

        try:
            repeating(work)
        finally:
            with self._lock:
                self._read.clear()

    def newest(self, key: str) -> int:
        """Return the number of the last revision; 0: there was never one."""
        t = schema.provider_revision
        return int(
            self._database.value(sa.select(sa.func.max(t.c.number)).where(t.c.provider_key == key))
            or 0
        )

    def history(
        self,
        key: str,
        before: int | None = None,
        limit: int = 50,
    ) -> Sequence[Revision]:
        """Return revisions, newest first."""
        query = _revisions(key).limit(limit)
        if before is not None:
            query = query.where(schema.provider_revision.c.number < before)
        return [_revision(row) for row in self._database.rows(query)]

    def since(self, key: str, moment: datetime) -> Revision | None:
        """Return the revision in force at a moment, if another one followed it."""
        t = schema.provider_revision
        newest = _revisions(key).with_only_columns(t.c.at).limit(1)
        last = self._once("last change", key, lambda: self._database.first(newest))
        if last is None or last.at <= moment:
            return None
        row = self._database.first(_revisions(key).where(t.c.at <= moment).limit(1))
        return _revision(row) if row else None

    def owner(self, name: str) -> str | None:
        """Return who owns a name; None: nobody yet."""
        t = schema.provider_owner
        return self._database.text(sa.select(t.c.owner).where(t.c.name == name))

    def claim(self, name: str, owner: str) -> str:
        """Make somebody the owner of a name that has none; return who owns it now."""
        try:
            self._database.execute(schema.provider_owner.insert().values(name=name, owner=owner))
        except sa.exc.IntegrityError:  # it has one
            return self.owner(name) or ""
        return owner

    def give(self, name: str, owner: str) -> None:
        """Make somebody the owner of a name."""
        self._database.put(schema.provider_owner, {"name": name}, {"owner": owner})


def _revisions(key: str) -> sa.Select[Any]:
    t = schema.provider_revision
    return sa.select(t).where(t.c.provider_key == key).order_by(t.c.number.desc())


def _revision(row: Any) -> Revision:
    key, number, at, author, action, reason, document = row
    return Revision(key, number, at, author, Action(action), reason, _provider(document))


@lru_cache(maxsize=256)
def _provider(text: str) -> Provider:
    """Parse a stored provider; the same text is parsed once."""
    return from_document(loads(dict, text))


_THERE = 8.0
"""seconds of silence after which a gateway is taken for one that was stopped"""


class SqlRouteVersions:
    """Kept in the node's database, so that several gateways of the node have one table."""

    def __init__(self, database: Database, owner: str) -> None:
        """``owner`` is the gateway whose file is followed."""
        self._database = database
        self._owner = owner

    def newest_number(self) -> int:
        """Return the newest version's number, 0 if there is none."""
        return int(self._database.value(sa.select(sa.func.max(schema.route_version.c.number))) or 0)

    def get(self, number: int) -> Version | None:
        """Return a version; None: there is none of that number."""
        t = schema.route_version
        row = self._database.first(sa.select(t).where(t.c.number == number))
        return Version(*row) if row else None

    def add(self, version: Version) -> bool:
        """Append a version; False where its number is taken. Author and reason are cut to the columns."""
        row = {column.name: getattr(version, column.name) for column in schema.route_version.c}
        try:
            self._database.execute(schema.route_version.insert().values(**row))
        except sa.exc.IntegrityError:
            return False
        return True

    def list(self, before: int | None = None, limit: int = 50) -> Sequence[Version]:
        """Return versions older than ``before``, newest first."""
        t = schema.route_version
        query = sa.select(t).order_by(t.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(t.c.number < before)
        return [Version(*row) for row in self._database.rows(query)]

    def exported(self) -> Export | None:
        """Return what the file held last; None: no gateway has written one yet."""
        t = schema.route_export
        row = self._database.first(sa.select(t).where(t.c.owner == self._owner))
        return Export(row.number, row.digest) if row else None

    def followed_by(self) -> str:
        """Return where another gateway is reached that follows a file and was there a few seconds ago."""
        file, t = schema.route_export, schema.gateway
        with self._database.read() as connection:
            there = t.c.seen_at > _now(connection) - _THERE
            query = (
                sa.select(t.c.url)
                .join(file, file.c.owner == t.c.owner)
                .where(t.c.owner != self._owner, there)
            )
            return str(connection.execute(query).scalar() or "")

    def set_exported(self, export: Export) -> None:
        """Note what the file holds now."""
        self._database.put(schema.route_export, {"owner": self._owner}, vars(export))


class SqlDatasets(InDatabase):
    """Uploaded datasets: `gateway.domain.datasets.DatasetRepository`."""

    def get(self, namespace: str, name: str) -> Dataset | None:
        """Return what is known of a dataset; None: nothing."""
        query = sa.select(schema.dataset.c.document).filter_by(namespace=namespace, name=name)
        text = self._database.value(query)
        return loads(Dataset, text) if text else None

    def put(self, dataset: Dataset) -> None:
        """Keep what is known, in place of what was known before."""
        key = {"namespace": dataset.namespace, "name": dataset.name}
        self._database.put(
            schema.dataset, key, {"document": dumps(dataset), "created_at": time.time()}
        )

    def replace(self, before: Dataset | None, after: Dataset) -> bool:
        """Keep what is known unless another gateway was faster."""
        t, key = schema.dataset, {"namespace": after.namespace, "name": after.name}
        query = sa.select(t.c.document).filter_by(**key).with_for_update()

        def work() -> bool:
            with self._database.write() as connection:
                text = connection.execute(query).scalar()
                if (loads(Dataset, text) if text else None) != before:
                    return False
                upsert(connection, t, key, {"document": dumps(after), "created_at": time.time()})
                return True

        return repeating(work)

    def delete(self, namespace: str, name: str) -> bool:
        """Forget a dataset; False: it was not known."""
        return bool(
            self._database.execute(
                schema.dataset.delete().filter_by(namespace=namespace, name=name)
            )
        )

    def list(self) -> list[Dataset]:
        """Return all of them, by namespace and name."""
        t = schema.dataset
        query = sa.select(t.c.document).order_by(t.c.namespace, t.c.name)
        return [loads(Dataset, text) for text in self._database.values(query)]


class SqlGrants(InDatabase):
    """Grants of datasets. One that ended stays, so that the dataset does not become open by it."""

    def of(self, dataset: Address) -> list[Grant]:
        """Return the grants of one dataset, by node."""
        query = sa.select(schema.dataset_grant).filter_by(**dataset.as_dict()).order_by("node")
        return [_grant(row) for row in self._database.rows(query)]

    def all(self, node: NodeId | None = None) -> list[Grant]:
        """Return all grants, or those to one node, by dataset."""
        t = schema.dataset_grant
        query = sa.select(t).order_by(t.c.namespace, t.c.name, t.c.node)
        if node is not None:
            query = query.where(t.c.node == node)
        return [_grant(row) for row in self._database.rows(query)]

    def put(self, grant: Grant) -> None:
        """Write a grant, in place of an earlier one of the same dataset and node."""
        key = {**grant.dataset.as_dict(), "node": grant.node}
        values = {
            name: value for name, value in vars(grant).items() if name not in ("dataset", "node")
        }
        self._database.put(schema.dataset_grant, key, values)

    def forget(self, dataset: Address) -> None:
        """Delete every grant of a dataset: one of the same name later is another one."""
        self._database.execute(schema.dataset_grant.delete().filter_by(**dataset.as_dict()))


def _grant(row: Any) -> Grant:
    namespace, name, *rest = row
    return Grant(Address(namespace, name), *rest)


class SqlTokens(InDatabase):
    """The tokens of this node."""

    def add(self, token: Token) -> None:
        """Keep a new token; of its secret only the digest."""
        self._database.execute(schema.token.insert().values(**vars(token)))

    def find(self, digest: str) -> Token | None:
        """Return a token by its digest, revoked and expired ones too; None: there is none."""
        row = self._database.first(sa.select(schema.token).where(schema.token.c.digest == digest))
        return _token(row) if row else None

    def list(self) -> list[Token]:
        """Return all tokens, oldest first."""
        return [
            _token(row)
            for row in self._database.rows(sa.select(schema.token).order_by("created_at"))
        ]

    def revoke(self, name_or_id: str, now: datetime) -> int:
        """Revoke every token of that name, or the one with that id; return how many were still valid."""
        t = schema.token
        which = (sa.or_(t.c.name == name_or_id, t.c.id == name_or_id), t.c.revoked_at.is_(None))
        return self._database.execute(t.update().where(*which).values(revoked_at=now))

    def forget(self, prefix: str, now: datetime) -> None:
        """Remove the expired ones whose names begin so."""
        t = schema.token
        named = t.c.name.startswith(prefix, autoescape=True)
        self._database.execute(t.delete().where(named, t.c.expires_at < now))


def _token(row: Any) -> Token:
    id_, name, role, *rest = row
    return Token(id_, name, Role(role), *rest)


class SqlTemplates(InDatabase):
    """Jobs that people keep under a name to begin further ones with."""

    def list(self) -> list[Any]:
        """Return name, author and time of each."""
        t = schema.template
        return self._database.rows(sa.select(t.c.name, t.c.author, t.c.saved_at).order_by(t.c.name))

    def get(self, name: str) -> Any:
        """Return one with its job; None: there is none."""
        return self._database.first(sa.select(schema.template).filter_by(name=name))

    def put(
        self,
        name: str,
        author: str,
        now: datetime,
        job: Mapping[str, Any],
    ) -> None:
        """Keep one, in place of one of that name."""
        self._database.put(
            schema.template,
            {"name": name},
            {
                "author": author,
                "saved_at": now,
                "job": job,
            },
        )

    def delete(self, name: str) -> bool:
        """Forget one; False: there is none."""
        return bool(self._database.execute(schema.template.delete().filter_by(name=name)))


@dataclass(frozen=True)
class KnownGateway:
    """A gateway on this database; ``silent`` is how many seconds ago its last heartbeat was."""

    owner: str
    url: str
    silent: float


class Gateways:
    """The gateways that share this database, and what belongs to whom.

    Times are the database's own, so that the clocks of several machines need not agree.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def beat(self, owner: str, url: str) -> float:
        """Write a heartbeat with the address; return the seconds since the last one, 0 the first time."""
        t = schema.gateway

        def write() -> float:
            with self._store.write() as connection:
                now = _now(connection)
                silent = connection.execute(
                    sa.select(now - t.c.seen_at).where(t.c.owner == owner)
                ).scalar()
                upsert(connection, t, {"owner": owner}, {"url": url, "seen_at": now})
                return float(silent or 0.0)

        return repeating(write)

    def known(self) -> list[KnownGateway]:
        """Return every gateway that ever wrote a heartbeat."""
        t = schema.gateway
        with self._store.read() as connection:
            now = connection.execute(sa.select(_now(connection))).scalar_one()
            return [
                KnownGateway(r.owner, r.url, now - r.seen_at)
                for r in connection.execute(sa.select(t))
            ]

    def jobs_of(self, owner: str) -> list[str]:
        """Return the jobs with runs of this gateway that are not over."""
        c = schema.run.c
        going_on = c.status.not_in((RunStatus.SUCCESS, RunStatus.FAILED))
        return self._store.values(sa.select(c.job_id).where(c.owner == owner, going_on).distinct())

    def jobs_at(self, owner: str) -> list[str]:
        """Return the unfinished jobs whose home is this gateway. Reads each of those under way."""
        jobs = self._store.local_jobs
        found = ((job_id, jobs.find(job_id)) for job_id in jobs.unfinished())
        return [job_id for job_id, local in found if local is not None and local.home == owner]


def _now(connection: sa.Connection) -> sa.ColumnElement[float]:
    if connection.dialect.name == "sqlite":
        return sa.literal_column("((julianday('now') - 2440587.5) * 86400.0)", sa.Double())
    return sa.literal_column("(unix_timestamp(now(6)) + 0e0)", sa.Double())


_TIDY_SECONDS = 10.0
"""from one removal of signatures that are not valid any more to the next"""


class SqlUsedSignatures:
    """Remembers signatures of FATE requests while they are valid, for several threads and gateways."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._tidy_at = 0.0

    def first(
        self,
        signature: str,
        request: str,
        seconds: float,
    ) -> str:
        """Return the fingerprint of the request that came first with a signature, and remember it for so long."""
        t, now = schema.used_signature, self._clock().timestamp()
        if tidy := now >= self._tidy_at:
            self._tidy_at = now + _TIDY_SECONDS

        def forget() -> None:
            self._database.execute(t.delete().where(t.c.until < now))

        def work() -> str:
            try:
                if tidy:
                    forget()
                self._database.execute(
                    _USE,
                    signature=signature,
                    request=request,
                    until=now + seconds,
                )
                return request
            except sa.exc.IntegrityError:
                forget()
                known = self._database.value(
                    sa.select(t.c.request).where(t.c.signature == signature)
                )
                if known is None:
                    raise
                return str(known)

        return repeating(work)


class EngineTotals(InDatabase):
    """What the engines had when they last answered, by name, for all gateways of the node."""

    _LONGEST = 255

    def known(self) -> Mapping[str, Capacity]:
        """Return what each engine had when it last answered."""
        rows = self._database.rows(sa.select(schema.resource_engine))
        return {row.engine: Capacity(row.cpu, row.memory, row.gpu) for row in rows}

    def keep(
        self,
        engine: str,
        capacity: Capacity,
        at: datetime,
    ) -> None:
        """Write down what an engine has; one whose name is too long for that is forgotten with the process."""
        if len(engine) <= self._LONGEST:
            values = {
                "cpu": capacity.cpu,
                "memory": capacity.memory,
                "gpu": capacity.gpu,
                "seen_at": at,
            }
            self._database.put(schema.resource_engine, {"engine": engine}, values)


class SqlJobAudits(InDatabase):
    """Audits of jobs that other nodes requested, by node and by the id that it gave the audit."""

    def job_of(self, sender: str, audit_id: str) -> str | None:
        """Return the job that an audit is about; None: that node has requested no such audit."""
        query = sa.select(schema.job_audit.c.job_id).filter_by(sender=sender, audit_id=audit_id)
        return self._database.text(query)

    def add(
        self,
        sender: str,
        audit_id: str,
        job_id: str,
    ) -> str:
        """Keep an audit; return the job that it is about, which is another one where the id was used before."""
        row = {
            "sender": sender,
            "audit_id": audit_id,
            "job_id": job_id,
        }
        try:
            self._database.execute(schema.job_audit.insert().values(**row))
        except sa.exc.IntegrityError:
            return self.job_of(sender, audit_id) or job_id
        return job_id
