"""Every table and column of the project.

A job is one row: what is queried or raced for (status, due time, version) has columns of its own, the rest of
the record is one JSON text beside it, written as a whole under the version. `task` and `run` repeat from that
text what other queries need: which job a task id belongs to, which containers there should be.
Times are seconds since the epoch, UTC.
"""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from gateway.store.serialization import as_time, dumps, loads

metadata = sa.MetaData()

LongText = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
Seconds: sa.Double[float] = sa.Double()
Id = sa.String(128)
Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""of rows in the order in which they were added"""


class _Moment(sa.types.TypeDecorator[datetime]):
    """A time, stored as seconds since the epoch."""

    impl = sa.Double
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> float | None:
        return None if value is None else value.timestamp()

    def process_result_value(self, value: float | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else as_time(value)


class _Cut(sa.types.TypeDecorator[str]):
    """A text from outside: cut to the column, and what cannot be encoded replaced."""

    impl = sa.String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._length = length

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else _encodable(value)[: self._length]


class _Json(sa.types.TypeDecorator[Any]):
    """Plain data, stored as JSON text."""

    impl = LongText
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else _encodable(dumps(value))

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:
        return None if value is None else loads(dict, value)


def _encodable(text: str) -> str:
    """Return a text that every database takes: what somebody sent may hold half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode()


EXACT: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}
"""Whatever the server's default is: every character is kept, and names that differ in case are different. The
revisions make their tables so, too."""


def _table(name: str, *items: sa.schema.SchemaItem) -> sa.Table:
    return sa.Table(name, metadata, *items, **EXACT)


def _job_table(name: str) -> sa.Table:
    return _table(
        name,
        sa.Column("job_id", Id, primary_key=True),
        sa.Column("flow_id", sa.String(255), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("outcome", sa.String(16)),
        sa.Column("created_at", Seconds, nullable=False),
        sa.Column("due_at", Seconds),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("spec", LongText, nullable=False),
        sa.Column("state", LongText, nullable=False),
        sa.Index(f"{name}_due", "due_at"),
        sa.Index(f"{name}_flow", "flow_id", "created_at"),
        sa.Index(f"{name}_created", "created_at"),
        sa.Index(f"{name}_status", "status", "outcome", "created_at"),
    )


job = _job_table("job")
"""What this node schedules."""

local_job = _job_table("local_job")
"""What this node takes part in."""

task = _table(
    "task",
    sa.Column("task_id", Id, primary_key=True),
    sa.Column("job_id", Id, nullable=False),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Index("task_job", "job_id"),
    sa.Index("task_status", "status"),
)

run = _table(
    "run",
    sa.Column("run_id", Id, primary_key=True),
    sa.Column("name", sa.String(64), nullable=False, unique=True),
    sa.Column("token", sa.String(64), nullable=False),
    sa.Column("job_id", Id, nullable=False),
    sa.Column("task_id", Id, nullable=False),
    sa.Column("role", sa.String(64), nullable=False),
    sa.Column("idx", sa.Integer, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("owner", sa.String(255), nullable=False),
    sa.Index("run_token", "token"),
    sa.Index("run_job", "job_id"),
    sa.Index("run_task", "task_id"),
    sa.Index("run_status", "status"),
)

timeline = _table(
    "timeline",
    sa.Column("id", Number, primary_key=True, autoincrement=True),
    sa.Column("job_id", Id, nullable=False),
    sa.Column("side", sa.String(16), nullable=False),
    sa.Column("at", Seconds, nullable=False),
    sa.Column("event", sa.String(255), nullable=False),
    sa.Column("actor", sa.String(255), nullable=False),
    sa.Column("detail", LongText, nullable=False),
    sa.Index("timeline_job", "job_id", "id"),
)
"""Append-only: every state change of a job and every call made for it."""

submission = _table(
    "submission",
    sa.Column("job_id", Id, primary_key=True),
    sa.Column("flow_id", sa.String(255), nullable=False),
    sa.Column("scheduler", Id, nullable=False),
    sa.Column("created_at", Seconds, nullable=False),
)
"""Jobs that were submitted here, and which node schedules them."""

job_audit = _table(
    "job_audit",
    sa.Column("sender", Id, primary_key=True),
    sa.Column("audit_id", Id, primary_key=True),
    sa.Column("job_id", Id, nullable=False),
    sa.Index("job_audit_job", "job_id"),
)
"""Audits that other nodes requested for jobs they want to create here."""

provider = _table(
    "provider",
    sa.Column("provider_key", sa.String(255), primary_key=True),
    sa.Column("document", LongText, nullable=False),
    sa.Column("updated_at", Seconds, nullable=False),
)

provider_revision = _table(
    "provider_revision",
    sa.Column("provider_key", sa.String(255), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", _Moment, nullable=False),
    sa.Column("author", _Cut(255), nullable=False),
    sa.Column("action", sa.String(16), nullable=False),
    sa.Column("reason", _Cut(1000), nullable=False),
    sa.Column("document", LongText, nullable=False),
)
"""Append-only: every state that a provider ever had, and who made it so."""

provider_owner = _table(
    "provider_owner",
    sa.Column("name", Id, primary_key=True),
    sa.Column("owner", sa.String(255), nullable=False),
)
"""Whose a provider's name is, over all its versions: the name of a token; empty: the node's admins."""

dataset = _table(
    "dataset",
    sa.Column("namespace", Id, primary_key=True),
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("document", LongText, nullable=False),
    sa.Column("created_at", Seconds, nullable=False),
)

dataset_grant = _table(
    "dataset_grant",
    sa.Column("namespace", Id, primary_key=True),
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("node", Id, primary_key=True),
    sa.Column("granted_at", _Moment, nullable=False),
    sa.Column("granted_by", _Cut(255), nullable=False),
    sa.Column("reason", _Cut(1000), nullable=False),
    sa.Column("expires_at", _Moment),
    sa.Column("revoked_at", _Moment),
    sa.Column("revoked_by", _Cut(255), nullable=False),
)
"""Which partner node may use which dataset; rows of grants that ended stay."""

application = _table(
    "application",
    sa.Column("number", Number, primary_key=True, autoincrement=True),
    sa.Column("partner", Id, nullable=False),
    sa.Column("side", sa.String(16), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("id", Id, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("address", sa.String(64), nullable=False),
    sa.Column("jobs", sa.Integer, nullable=False),
    sa.Column("due_at", Seconds),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("document", LongText, nullable=False),
    sa.UniqueConstraint("partner", "side", "kind", "id", name="application_id"),
    sa.Index("application_due", "due_at"),
    sa.Index("application_status", "status", "kind"),
)
"""What nodes applied for: contracts, datasets, projects, flows, models. ``address``: of who sent it, where that
was an unknown peer; ``jobs``: how many have used it."""

application_job = _table(
    "application_job",
    sa.Column("job_id", Id, primary_key=True),
    sa.Column("number", Number, primary_key=True, autoincrement=False),
    sa.Column("permit", sa.Boolean, nullable=False),
)
"""Which jobs have used an application; whether they came with its permit."""

gateway = _table(
    "gateway",
    sa.Column("owner", Id, primary_key=True),
    sa.Column("url", sa.String(255), nullable=False),
    sa.Column("seen_at", Seconds, nullable=False),
)
"""The gateways that share this database, each with its last heartbeat by the database's clock."""

installation = _table(
    "installation",
    sa.Column("id", sa.String(36), primary_key=True),
    sa.Column("created_at", Seconds, nullable=False),
)
"""One row, made with the database: tells this installation's containers from another's."""

route_version = _table(
    "route_version",
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", _Moment, nullable=False),
    sa.Column("author", _Cut(255), nullable=False),
    sa.Column("reason", _Cut(1000), nullable=False),
    sa.Column("source", sa.String(16), nullable=False),
    sa.Column("text", LongText, nullable=False),
)
"""Append-only: every accepted state of the route table, as its YAML text."""

route_export = _table(
    "route_export",
    sa.Column("owner", Id, primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
)
"""Per gateway that follows a file: which version this held when the gateway last wrote or accepted it."""

webhook = _table(
    "webhook",
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("holder", sa.String(255), nullable=False),
    sa.Column("until", Seconds, nullable=False),
)
"""Per receiver of events: the number of the last entry that it took, and which gateway delivers until when."""

resource_claim = _table(
    "resource_claim",
    sa.Column("job_id", Id, primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("cpu", sa.BigInteger, nullable=False),
    sa.Column("memory", sa.BigInteger, nullable=False),
    sa.Column("disk", sa.BigInteger, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("since", _Moment, nullable=False),
    sa.Column("asked_at", _Moment, nullable=False),
    sa.Column("held_at", _Moment),
    sa.Column("scheduler", Id, nullable=False),
    sa.Column("reason", LongText, nullable=False),
    sa.Column("further", _Json),
    sa.Column("gpu", sa.BigInteger, nullable=False, server_default="0"),
)
"""What each job that is not over holds of the node, or waits for: thousandths of a core, bytes, bytes, devices.
``further`` is the same by the names of engines beside the main one, as JSON; null: nothing of them."""

resource_engine = _table(
    "resource_engine",
    sa.Column("engine", sa.String(255), primary_key=True),
    sa.Column("cpu", Seconds, nullable=False),
    sa.Column("memory", sa.BigInteger, nullable=False),
    sa.Column("seen_at", _Moment, nullable=False),
    sa.Column("gpu", sa.BigInteger, nullable=False, server_default="0"),
)
"""What each engine beside the main one had when it last answered: cores, bytes, devices."""

resource_pool = _table(
    "resource_pool",
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("ignored", sa.Integer, nullable=False),
    sa.Column("repaired", sa.Integer, nullable=False),
    sa.Column("expired", sa.Integer, nullable=False),
)
"""One row: the lock of all claims, and how often something was out of step."""

model = _table(
    "model",
    sa.Column("model_id", Id, primary_key=True),
    sa.Column("version", Id, primary_key=True),
    sa.Column("role", sa.String(64), primary_key=True),
    sa.Column("idx", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("job_id", Id, nullable=False),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Column("deployed_at", Seconds),
    sa.Column("granted", _Json, nullable=False),
    sa.Column("document", LongText, nullable=False),
    sa.Index("model_job", "job_id"),
)
"""What trainings left here, one row per party; its files lie in the storage."""

token = _table(
    "token",
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False, unique=True),
    sa.Column("created_at", _Moment, nullable=False),
    sa.Column("expires_at", _Moment),
    sa.Column("revoked_at", _Moment),
)

template = _table(
    "template",
    sa.Column("name", Id, primary_key=True),
    sa.Column("author", _Cut(255), nullable=False),
    sa.Column("saved_at", _Moment, nullable=False),
    sa.Column("job", _Json, nullable=False),
)
"""Jobs that people here keep to begin further ones with."""

used_signature = _table(
    "heard_signature",
    sa.Column("signature", sa.String(64), primary_key=True),
    sa.Column("request", sa.String(64), nullable=False),
    sa.Column("until", Seconds, nullable=False),
    sa.Index("heard_signature_until", "until"),
)
"""Signatures that came with a request, with its fingerprint, while they hold: each is good for one request."""

audit = _table(
    "audit",
    sa.Column("id", Number, primary_key=True, autoincrement=True),
    sa.Column("at", _Moment, nullable=False),
    sa.Column("who", _Cut(255), nullable=False),
    sa.Column("action", _Cut(1000), nullable=False),
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("code", sa.Integer),
    sa.Column("detail", _Json, nullable=False),
    sa.Column("hash", sa.String(64)),
)
"""Append-only: every change that was asked for on the operators' listener, by whom, and how it went. ``hash``
covers the line and the hash of the one before; null: the line is older than the chain."""
