"""Every table and column of the project.

A job is one row: what is queried or raced for (status, due time, version) has columns of its own, the rest of
the record is one JSON text beside it, written as a whole under the version. `task` and `run` repeat from that
text what other queries need: which job a task id belongs to, which containers there should be.
Times are seconds since the epoch, UTC.
"""

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

metadata = sa.MetaData()

LongText = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
Seconds: sa.Double[float] = sa.Double()
Id = sa.String(128)


def _job_table(name: str) -> sa.Table:
    return sa.Table(
        name,
        metadata,
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

task = sa.Table(
    "task",
    metadata,
    sa.Column("task_id", Id, primary_key=True),
    sa.Column("job_id", Id, nullable=False),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Index("task_job", "job_id"),
    sa.Index("task_status", "status"),
)

run = sa.Table(
    "run",
    metadata,
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

timeline = sa.Table(
    "timeline",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("job_id", Id, nullable=False),
    sa.Column("side", sa.String(16), nullable=False),
    sa.Column("at", Seconds, nullable=False),
    sa.Column("event", sa.String(255), nullable=False),
    sa.Column("actor", sa.String(255), nullable=False),
    sa.Column("detail", LongText, nullable=False),
    sa.Index("timeline_job", "job_id", "id"),
)
"""Append-only: every state change of a job and every call made for it."""

submission = sa.Table(
    "submission",
    metadata,
    sa.Column("job_id", Id, primary_key=True),
    sa.Column("flow_id", sa.String(255), nullable=False),
    sa.Column("scheduler", Id, nullable=False),
    sa.Column("created_at", Seconds, nullable=False),
)
"""Jobs that were handed in here, and which node schedules them."""

job_audit = sa.Table(
    "job_audit",
    metadata,
    sa.Column("sender", Id, primary_key=True),
    sa.Column("audit_id", Id, primary_key=True),
    sa.Column("job_id", Id, nullable=False),
    sa.Index("job_audit_job", "job_id"),
)
"""Questions of other nodes about jobs that they want to create here."""

provider = sa.Table(
    "provider",
    metadata,
    sa.Column("provider_key", sa.String(255), primary_key=True),
    sa.Column("document", LongText, nullable=False),
    sa.Column("updated_at", Seconds, nullable=False),
)

provider_revision = sa.Table(
    "provider_revision",
    metadata,
    sa.Column("provider_key", sa.String(255), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", Seconds, nullable=False),
    sa.Column("author", sa.String(255), nullable=False),
    sa.Column("action", sa.String(16), nullable=False),
    sa.Column("reason", sa.String(1000), nullable=False),
    sa.Column("document", LongText, nullable=False),
)
"""Append-only: every state that a provider ever had, and who made it so."""

provider_owner = sa.Table(
    "provider_owner",
    metadata,
    sa.Column("name", Id, primary_key=True),
    sa.Column("owner", sa.String(255), nullable=False),
)
"""Whose a provider's name is, over all its versions: the name of a token; empty: the node's admins."""

dataset = sa.Table(
    "dataset",
    metadata,
    sa.Column("namespace", Id, primary_key=True),
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("document", LongText, nullable=False),
    sa.Column("created_at", Seconds, nullable=False),
)

dataset_grant = sa.Table(
    "dataset_grant",
    metadata,
    sa.Column("namespace", Id, primary_key=True),
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("node", Id, primary_key=True),
    sa.Column("granted_at", Seconds, nullable=False),
    sa.Column("granted_by", sa.String(255), nullable=False),
    sa.Column("reason", sa.String(1000), nullable=False),
    sa.Column("expires_at", Seconds),
    sa.Column("revoked_at", Seconds),
    sa.Column("revoked_by", sa.String(255), nullable=False),
)
"""Which partner node may use which dataset; rows of grants that ended stay."""

gateway = sa.Table(
    "gateway",
    metadata,
    sa.Column("owner", Id, primary_key=True),
    sa.Column("url", sa.String(255), nullable=False),
    sa.Column("seen_at", Seconds, nullable=False),
    sa.Column("own_time", Seconds),
)
"""The gateways that share this database, each with when it was last heard of by the database's own clock, and what
time it was then by its own; null: written by an earlier version."""

installation = sa.Table(
    "installation",
    metadata,
    sa.Column("id", sa.String(36), primary_key=True),
    sa.Column("created_at", Seconds, nullable=False),
)
"""One row, made with the database: tells this installation's containers from another's."""

route_version = sa.Table(
    "route_version",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", Seconds, nullable=False),
    sa.Column("author", sa.String(255), nullable=False),
    sa.Column("reason", sa.String(1000), nullable=False),
    sa.Column("source", sa.String(16), nullable=False),
    sa.Column("text", LongText, nullable=False),
)
"""Append-only: every accepted state of the route table, as its YAML text."""

route_export = sa.Table(
    "route_export",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
)
"""One row: which version the file held when the gateway last wrote or accepted it."""

webhook = sa.Table(
    "webhook",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("holder", sa.String(255), nullable=False),
    sa.Column("until", Seconds, nullable=False),
)
"""Per receiver of events: the number of the last entry that it took, and which gateway delivers until when."""

resource_claim = sa.Table(
    "resource_claim",
    metadata,
    sa.Column("job_id", Id, primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("cpu", sa.BigInteger, nullable=False),
    sa.Column("memory", sa.BigInteger, nullable=False),
    sa.Column("disk", sa.BigInteger, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("since", Seconds, nullable=False),
    sa.Column("asked_at", Seconds, nullable=False),
    sa.Column("held_at", Seconds),
    sa.Column("scheduler", Id, nullable=False),
    sa.Column("reason", LongText, nullable=False),
    sa.Column("further", LongText),
)
"""What each job that is not over holds of the node, or waits for: thousandths of a core, bytes, bytes. ``further``
is the same by the names of engines beside the main one, as JSON; null: nothing of them."""

resource_engine = sa.Table(
    "resource_engine",
    metadata,
    sa.Column("engine", sa.String(255), primary_key=True),
    sa.Column("cpu", Seconds, nullable=False),
    sa.Column("memory", sa.BigInteger, nullable=False),
    sa.Column("seen_at", Seconds, nullable=False),
)
"""What each engine beside the main one had when it last answered: cores, bytes."""

resource_pool = sa.Table(
    "resource_pool",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("ignored", sa.Integer, nullable=False),
    sa.Column("repaired", sa.Integer, nullable=False),
    sa.Column("expired", sa.Integer, nullable=False),
)
"""One row: the lock of all claims, and how often something was out of step."""

model = sa.Table(
    "model",
    metadata,
    sa.Column("model_id", Id, primary_key=True),
    sa.Column("version", Id, primary_key=True),
    sa.Column("role", sa.String(64), primary_key=True),
    sa.Column("idx", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("job_id", Id, nullable=False),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Column("deployed_at", Seconds),
    sa.Column("granted", LongText, nullable=False),
    sa.Column("document", LongText, nullable=False),
    sa.Index("model_job", "job_id"),
)
"""What trainings left here, one row per party; its files lie in the storage."""

token = sa.Table(
    "token",
    metadata,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False, unique=True),
    sa.Column("created_at", Seconds, nullable=False),
    sa.Column("expires_at", Seconds),
    sa.Column("revoked_at", Seconds),
)

heard_signature = sa.Table(
    "heard_signature",
    metadata,
    sa.Column("signature", sa.String(64), primary_key=True),
    sa.Column("request", sa.String(64), nullable=False),
    sa.Column("until", Seconds, nullable=False),
    sa.Index("heard_signature_until", "until"),
)
"""Signatures that came with a request, with its fingerprint, while they hold: each is good for one request."""

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("at", Seconds, nullable=False),
    sa.Column("who", sa.String(255), nullable=False),
    sa.Column("action", sa.String(1000), nullable=False),
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("code", sa.Integer),
    sa.Column("detail", LongText, nullable=False),
)
"""Append-only: every change that was asked for on the operators' listener, by whom, and how it went."""
