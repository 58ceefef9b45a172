"""Every table and column of the project.

Each record of a job is one row. Its searchable fields (status, due time, version) have columns. The
rest is JSON: ``spec``, which never changes, and ``state``, which each change rewrites under a new
version. The tables `task` and `run` repeat parts of ``state`` for other queries, such as the search
for the job of a task id. A record with many tasks or runs has these only there, as JSON in
``state`` with their ``position`` in the record; otherwise both columns are null. Times are seconds
since the epoch.
"""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Index
from sqlalchemy.ext.compiler import compiles

from gateway.store.job_words import CUT, LENGTH
from gateway.store.serialization import as_time, dumps, loads

metadata = sa.MetaData()

LONGEST_REASON = 64  # characters of the reason of a job's failure

# Options of tables on a server, so that its defaults do not matter: every character can be stored,
# and names that differ in case are different. The migrations create tables with the same options.
# `database` sets them when it creates tables: SQLAlchemy imports the server's dialect for them.
EXACT: dict[str, Any] = {
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
}


# ------------------------------------------------------------ types of columns


class _Moment(sa.types.TypeDecorator[datetime]):
    """A time, stored as seconds since the epoch."""

    impl = sa.Double
    cache_ok = True

    def process_bind_param(
        self,
        value: datetime | None,
        dialect: sa.Dialect,
    ) -> float | None:
        """Return a time as seconds since the epoch."""
        if value is None:
            return None
        return value.timestamp()

    def process_result_value(
        self,
        value: float | None,
        dialect: sa.Dialect,
    ) -> datetime | None:
        """Return seconds since the epoch as a time."""
        if value is None:
            return None
        return as_time(value)


class _LongText(sa.Text):
    """A text of up to 4 GiB."""


# Compiled by name: the dialect, which has a class for it, would be imported with any database.
@compiles(_LongText, "mysql", "mariadb")
def _long_text_of_server(*_: Any, **_options: Any) -> str:
    """Return the type's name at a server, whose TEXT ends at 64 KiB."""
    return "LONGTEXT"


LongText = _LongText()


class _Cut(sa.types.TypeDecorator[str]):
    """A text from outside, which the type itself cuts to the column's length.

    A character that UTF-8 cannot encode (a lone surrogate) becomes a question mark.
    """

    impl = sa.String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._length = length

    def process_bind_param(
        self,
        value: str | None,
        dialect: sa.Dialect,
    ) -> str | None:
        """Return a text that fits into the column."""
        if value is None:
            return None
        return _encodable(value)[: self._length]


class _Json(sa.types.TypeDecorator[Any]):
    """Plain data, such as lists and dictionaries, stored as JSON text."""

    impl = LongText
    cache_ok = True

    def process_bind_param(
        self,
        value: Any,
        dialect: sa.Dialect,
    ) -> str | None:
        """Return a value as JSON."""
        if value is None:
            return None
        return _encodable(dumps(value))

    def process_result_value(
        self,
        value: str | None,
        dialect: sa.Dialect,
    ) -> Any:
        """Return the value of a JSON text."""
        if value is None:
            return None
        # `Any`: the value may be an object, a list or any other JSON value, and is not converted.
        return loads(Any, value)


def _encodable(text: str) -> str:
    """Return the text with a question mark for each character that UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def _exact(length: int) -> sa.String:
    """Return the type of a text that the database compares and sorts by its characters' codes.

    For SQLite that is usual, and for MariaDB see `EXACT`. PostgreSQL would sort by the rules of the
    database's language.
    """
    codes = sa.String(length, collation="C")
    return sa.String(length).with_variant(codes, "postgresql")


Id = _exact(128)
Name = _exact(255)
Role = _exact(64)
Reason = _exact(LONGEST_REASON)
Digest = _exact(64)  # hexadecimal, or the digits of a token
Word = _exact(16)  # one of a few fixed words, such as a status, an outcome or a side
CutName = _Cut(255)
CutText = _Cut(1000)
Integer = sa.Integer()
BigInteger = sa.BigInteger()
Seconds: sa.Double[float] = sa.Double()  # a time as a number: seconds since the epoch
Cores: sa.Double[float] = sa.Double()  # a number of processor cores
Moment = _Moment()  # stored as `Seconds` are, but read and written as a datetime
Json = _Json()
# The number of a row, in the order of insertion. SQLite numbers rows by itself only in a column of
# its type INTEGER.
RowNumber = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


# ------------------------------------------------------------ builders


def _table(name: str, *items: sa.schema.SchemaItem) -> sa.Table:
    """Return a table of the project."""
    return sa.Table(name, metadata, *items)


def _key(
    name: str,
    type_: Any,
    **options: Any,
) -> sa.Column[Any]:
    """Return a column of the primary key."""
    return sa.Column(name, type_, primary_key=True, **options)


def _required(
    name: str,
    type_: Any,
    **options: Any,
) -> sa.Column[Any]:
    """Return a column that is never null."""
    return sa.Column(name, type_, nullable=False, **options)


def _optional(
    name: str,
    type_: Any,
) -> sa.Column[Any]:
    """Return a column that may be null."""
    return sa.Column(name, type_)


def _job_table(name: str) -> sa.Table:
    """Return the table for the records of one side of the jobs.

    ``digest`` is that of the job as it was submitted; ``due_at`` the time of the next action, null
    if there is none. ``words``: see `gateway.store.job_words`; ``reason``: of the job's failure.
    """
    return _table(
        name,
        _key("job_id", Id),
        _required("flow_id", Name),
        _required("status", Word),
        _optional("outcome", Word),
        _required("created_at", Seconds),
        _optional("due_at", Seconds),
        _required("version", Integer),
        _required("digest", Digest),
        _required("spec", LongText),
        _required("state", LongText),
        _required("words", sa.String(LENGTH), server_default=CUT),
        _optional("reason", Reason),
        Index(f"{name}_due", "due_at"),
        Index(f"{name}_flow", "flow_id", "created_at"),
        *_creation_indexes(name),
        Index(f"{name}_reason", "reason", "created_at"),
        Index(f"{name}_status", "status", "outcome", "created_at"),
    )


def _creation_indexes(name: str) -> list[Index]:
    """Return the index on the time of creation, in its form for each kind of database.

    It has the words, so that a search reads no rows. PostgreSQL stores large texts apart from the
    rows, and its indexes have no room for the longest words.
    """
    index = f"{name}_created"
    columns = ("created_at", "job_id")
    with_words = Index(index, *columns, "words")
    without_words = Index(index, *columns)
    return [
        with_words.ddl_if(callable_=_is_not_postgresql),
        without_words.ddl_if(dialect="postgresql"),
    ]


def _is_not_postgresql(*_: Any, dialect: sa.Dialect, **_options: Any) -> bool:
    return dialect.name != "postgresql"


# ------------------------------------------------------------ jobs

# Jobs that this node schedules.
job = _job_table("job")

# Jobs with a part at this node.
local_job = _job_table("local_job")

task = _table(
    "task",
    _key("task_id", Id),
    _required("job_id", Id),
    _required("name", Name),
    _required("status", Word),
    _required("attempt", Integer),
    _optional("state", LongText),
    _optional("position", Integer),
    Index("task_job", "job_id"),
    Index("task_status", "status"),
)

run = _table(
    "run",
    _key("run_id", Id),
    _required(
        "name",  # of the container
        sa.String(64),
        unique=True,
    ),
    _required("token", Digest),  # stored part of the container's token: see `RunTokens.id_of`
    _required("job_id", Id),
    _required("task_id", Id),
    _required("role", Role),
    _required("idx", Integer),  # the party's index within its role
    _required("attempt", Integer),
    _required("status", Word),
    _required("owner", Name),  # name of the gateway that runs the container; empty: none yet
    _optional("state", LongText),
    _optional("position", Integer),
    Index("run_token", "token"),
    Index("run_job", "job_id"),
    Index("run_task", "task_id"),
    Index("run_status", "status"),
)

# Append-only until a job is deleted: every state change of a job and every call made for the job.
# ``side``: whether the scheduler or the participant made the entry.
timeline = _table(
    "timeline",
    _key("id", RowNumber, autoincrement=True),
    _required("job_id", Id),
    _required("side", Word),
    _required("at", Seconds),
    _required("event", Name),
    _required("actor", Name),
    _required("detail", LongText),
    Index("timeline_job", "job_id", "id"),
)

# Jobs that were submitted here, with the node that schedules each.
submission = _table(
    "submission",
    _key("job_id", Id),
    _required("flow_id", Name),
    _required("scheduler", Id),
    _required("created_at", Seconds),
)

# The audits that other nodes (``sender``) requested before they create jobs here. The sender
# chooses ``audit_id``.
job_audit = _table(
    "job_audit",
    _key("sender", Id),
    _key("audit_id", Id),
    _required("job_id", Id),
    Index("job_audit_job", "job_id"),
)

# ------------------------------------------------------------ providers

# The newest state of each provider; its key is ``name:version@device``.
provider = _table(
    "provider",
    _key("provider_key", Name),
    _required("document", LongText),
    _required("updated_at", Seconds),
)

# Append-only: every state of every provider, with its author.
provider_revision = _table(
    "provider_revision",
    _key("provider_key", Name),
    _key("number", Integer, autoincrement=False),
    _required("at", Moment),
    _required("author", CutName),
    _required("action", Word),
    _required("reason", CutText),
    _required("document", LongText),
)

# Owner of a provider's name, for all its versions: the name of a token; empty: the node's admins.
provider_owner = _table(
    "provider_owner",
    _key("name", Id),
    _required("owner", Name),
)

# ------------------------------------------------------------ datasets and applications

dataset = _table(
    "dataset",
    _key("namespace", Id),
    _key("name", Name),
    _required("document", LongText),
    _required("created_at", Seconds),  # the time of the last write, in spite of the name
)

# Grants: the partner nodes that may use a dataset. Revoked and expired grants keep their rows.
dataset_grant = _table(
    "dataset_grant",
    _key("namespace", Id),
    _key("name", Name),
    _key("node", Id),
    _required("granted_at", Moment),
    _required("granted_by", CutName),
    _required("reason", CutText),
    _optional("expires_at", Moment),
    _optional("revoked_at", Moment),
    _required("revoked_by", CutName),
)

# Applications of nodes: for contracts, datasets, projects, flows, models (``kind``). ``side`` says
# which of the two nodes has applied; ``id`` is the application's id at both nodes, ``number`` its
# number at this node. ``address`` is the IP address of an unknown sender, else empty; ``jobs``
# counts the jobs that have used the application.
application = _table(
    "application",
    _key(
        "number",
        RowNumber,
        autoincrement=True,
    ),
    _required("partner", Id),
    _required("side", Word),
    _required("kind", Word),
    _required("id", Id),
    _required("status", Word),
    _required("address", sa.String(64)),
    _required("jobs", Integer),
    _optional("due_at", Seconds),
    _required("version", Integer),
    _required("document", LongText),
    sa.UniqueConstraint(
        "partner",
        "side",
        "kind",
        "id",
        name="application_id",
    ),
    Index("application_due", "due_at"),
    Index("application_status", "status", "kind"),
)

# Jobs that have used an application (``number``), and whether each came with that application's
# permit.
application_job = _table(
    "application_job",
    _key("job_id", Id),
    _key(
        "number",
        RowNumber,
        autoincrement=False,
    ),
    _required("permit", sa.Boolean()),
)

# ------------------------------------------------------------ the node

# The gateways that share this database, each with its name (``owner``), its URL for the others, and
# its last heartbeat by the database's clock.
gateway = _table(
    "gateway",
    _key("owner", Id),
    _required("url", Name),
    _required("seen_at", Seconds),
)

# The links of a node that end at one of these gateways (``owner``), as JSON, and why the last one
# failed. They stand only as long as the gateway's heartbeat is recent.
link = _table(
    "link",
    _key("owner", Id),
    _key("node", Id),
    _required("links", LongText),
)

# The bytes of requests and responses exchanged with a partner on a day (UTC), such as 2026-11-29.
partner_volume = _table(
    "partner_volume",
    _key("partner", Id),
    _key("day", Word),
    _required("bytes_in", BigInteger),
    _required("bytes_out", BigInteger),
)

# One row, written at the first start: the id that tells this installation's containers from those
# of other installations.
installation = _table(
    "installation",
    _key("id", sa.String(36)),
    _required("created_at", Seconds),
)

# Append-only: every accepted state of the route table, as its YAML text. ``source``: how it
# came, see `route_table.live.Version`.
route_version = _table(
    "route_version",
    _key("number", Integer, autoincrement=False),
    _required("at", Moment),
    _required("author", CutName),
    _required("reason", CutText),
    _required("source", Word),
    _required("text", LongText),
)

# One row per gateway with a route file (``owner``: the gateway's name). ``number`` is the version
# of the route table that was in the file when the gateway last wrote or accepted the file,
# ``digest`` the digest of the file at that time.
route_export = _table(
    "route_export",
    _key("owner", Id),
    _required("number", Integer),
    _required("digest", Digest),
)

# One row per receiver of events (``key``: the digest of its URL): the number of the last delivered
# event, the gateway that delivers (``holder``), and the end of that gateway's lease (``until``).
webhook = _table(
    "webhook",
    _key("key", Digest),
    _required("number", BigInteger),
    _required("holder", Name),
    _required("until", Seconds),
)

# ------------------------------------------------------------ resources

# The resources of the node that each unfinished job holds or waits for: the fields of
# `gateway.domain.resources.Claim`. ``cpu`` is in thousandths of a core, ``memory`` and ``disk`` in
# bytes, ``gpu`` in devices. ``further`` has the same four amounts at each engine other than the
# main one, by the engine's name; null: there are none.
resource_claim = _table(
    "resource_claim",
    _key("job_id", Id),
    _required("state", Word),
    _required("cpu", BigInteger),
    _required("memory", BigInteger),
    _required("disk", BigInteger),
    _required("priority", Integer),
    _required("since", Moment),
    _required("asked_at", Moment),
    _optional("held_at", Moment),
    _required("scheduler", Id),
    _required("reason", LongText),
    _optional("further", Json),
    _required(
        "gpu",
        BigInteger,
        server_default="0",
    ),
)

# The last known capacity of each engine: ``cpu`` in cores, ``memory`` in bytes, ``gpu`` in devices.
# For ``engine``, the name of a main engine, see `EngineTotals`.
resource_engine = _table(
    "resource_engine",
    _key("engine", Name),
    _required("cpu", Cores),
    _required("memory", BigInteger),
    _required("seen_at", Moment),
    _required(
        "gpu",
        BigInteger,
        server_default="0",
    ),
)

# One row, which serves as the lock of all claims and has the counters of
# `gateway.domain.resources.Ledger`.
resource_pool = _table(
    "resource_pool",
    _key("id", Integer, autoincrement=False),
    _required("ignored", Integer),
    _required("repaired", Integer),
    _required("expired", Integer),
)

# ------------------------------------------------------------ models

# The models of this node's parties, one row per version and party. The storage has their files.
# ``granted``: the nodes without a party in the training that may use the model, too.
model = _table(
    "model",
    _key("model_id", Id),
    _key("version", Id),
    _key("role", Role),
    _key("idx", Integer, autoincrement=False),
    _required("job_id", Id),
    _required("created_at", Seconds),
    _optional("deployed_at", Seconds),
    _required("granted", Json),
    _required("document", LongText),
    Index("model_job", "job_id"),
)

# ------------------------------------------------------------ people and their requests

token = _table(
    "token",
    _key("id", sa.String(16)),
    _required("name", Name),
    _required("role", Word),
    _required("digest", Digest, unique=True),
    _required("created_at", Moment),
    _optional("expires_at", Moment),
    _optional("revoked_at", Moment),
)

# Named jobs that serve as the start of new ones.
template = _table(
    "template",
    _key("name", Id),
    _required("author", CutName),
    _required("saved_at", Moment),
    _required("job", Json),
)

# The newest report of a check of each partner's platform, as it was signed (envelope), and what it
# says in short (summary).
platform_report = _table(
    "platform_report",
    _key("node", Id),
    _required("author", CutName),
    _required("stored_at", Moment),
    _required("summary", LongText),
    _required("envelope", Json),
)

# Signatures of requests while they are valid, with an id of the request that used each: a signature
# is valid for one request only. In the database the table has an older name.
used_signature = _table(
    "heard_signature",
    _key("signature", Digest),
    _required("request", Digest),
    _required("until", Seconds),
    Index("heard_signature_until", "until"),
)

# The audit log, append-only: every change requested on the operators' listener, and changes and
# refusals that a partner's request caused, with author and result (audits of jobs: `job_audit`).
# ``status`` is the HTTP status, ``code`` the code in the response's envelope; null: it had none.
# ``hash`` covers the line and the hash of the line before; null: the line is older than the chain.
audit = _table(
    "audit",
    _key("id", RowNumber, autoincrement=True),
    _required("at", Moment),
    _required("who", CutName),
    _required("action", CutText),
    _required("status", Integer),
    _optional("code", Integer),
    _required("detail", Json),
    _optional("hash", Digest),
)
