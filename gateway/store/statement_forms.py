"""Every form of statement that the node uses, tried on a database server in a space of its own.

Most forms run the repositories' own statements, so that a trial cannot differ from the product.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy import func, select

from gateway.domain.spec import Note
from gateway.store import events, queries, schema
from gateway.store.audit import SqlAudit
from gateway.store.database import cause_of, increase, open_database, repeat_on_conflict
from gateway.store.dialects import POSTGRESQL, SQLITE, connect
from gateway.store.functions import json_member, position
from gateway.store.providers import SqlProviders
from gateway.store.repositories import (
    Gateways,
    SqlRouteVersions,
    SqlTemplates,
    SqlTokens,
    SqlUsedSignatures,
)
from gateway.store.snapshot import fill, snapshot
from gateway.store.store import Store

_MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
_WRITERS = 8  # threads that write at the same time
_LONG_TEXT = "余" * 100_000  # larger than the usual text types of MySQL


class FormLacking(Exception):
    """A server took a statement, but with another effect than the node needs."""


@dataclass(frozen=True)
class Stores:
    """The stores of two gateways on the same database."""

    first: Store
    second: Store


# ------------------------------------------------------------ the space for a trial


@contextmanager
def scratch_space(url: str) -> Iterator[str]:
    """Create an empty schema (MySQL: a database; SQLite: a file), yield its URL, and drop it.

    Nothing else on the server is read or written. Raises `Invalid`, `DatabaseAway` and errors of
    SQLAlchemy, such as for a user who must not create a schema.
    """
    address = sa.make_url(url)
    if address.get_backend_name() == SQLITE:
        with TemporaryDirectory() as folder:
            yield f"sqlite:///{Path(folder) / 'doctor.db'}"
        return
    name = f"{address.database}_doctor_{uuid4().hex[:8]}"
    create = "CREATE DATABASE"
    drop = f"DROP DATABASE {name}"
    inside = address.set(database=name)
    if address.get_backend_name() == POSTGRESQL:
        create = "CREATE SCHEMA"
        drop = f"DROP SCHEMA {name} CASCADE"
        inside = address.update_query_dict({"options": f"-csearch_path={name}"})
    engine = connect(url)
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"{create} {name}")
            try:
                yield inside.render_as_string(hide_password=False)
            finally:
                connection.exec_driver_sql(drop)
    finally:
        engine.dispose()


def open_stores(url: str) -> Stores:
    """Create the tables as a first start does, and open the database for two gateways."""
    return Stores(
        Store(open_database(url)),
        Store(open_database(url)),
    )


def failure_of(form: Callable[[Stores], None], stores: Stores) -> str:
    """Try a form; return why it failed, "" if it did not."""
    try:
        form(stores)
    except Exception as error:  # a driver may raise anything for a server that it does not know
        return cause_of(error)
    return ""


def _require(is_met: bool, text: str) -> None:
    """Raise `FormLacking` with a text unless an effect is as the node needs it."""
    if not is_met:
        raise FormLacking(text)


# ------------------------------------------------------------ backups


def _restores(stores: Stores) -> None:
    """Fill the empty tables with a backup's rows, and number new rows after these."""
    note = Note(_MOMENT, "job PENDING", "ann", {})
    stores.first.note("job-0", "scheduler", [note, note])
    with snapshot(stores.first) as tables:
        copied = {name: list(rows) for name, rows in tables}
    stores.first.execute(schema.timeline.delete())
    fill(stores.second, [(name, iter(rows)) for name, rows in copied.items()])
    stores.first.note("job-0", "scheduler", [note])
    _require(len(stores.second.timeline("job-0")) == 3, "rows are missing")


# ------------------------------------------------------------ rows and their values


def _exact_texts(stores: Stores) -> None:
    """Store names that only look alike, and a character beyond the basic plane."""
    templates = SqlTemplates(stores.first)
    names = ["A", "Z", "a", "ä", "名", "😀"]
    for name in reversed(names):
        templates.put(name, "ann", _MOMENT, {"name": name})
    stored = [row.name for row in templates.list()]
    _require(stored == names, f"keys are not compared by the codes of characters: {stored}")


def _long_texts(stores: Stores) -> None:
    """Store a long text and read it again."""
    templates = SqlTemplates(stores.first)
    templates.put(
        "long",
        "ann",
        _MOMENT,
        {"text": _LONG_TEXT},
    )
    stored = templates.get("long").job["text"]
    _require(stored == _LONG_TEXT, "a text of 300,000 bytes is not stored whole")


def _exact_numbers(stores: Stores) -> None:
    """Store times with microseconds and large integers."""
    row = {"key": "k", "number": 2**62, "holder": "", "until": _MOMENT.timestamp()}
    stores.first.insert(schema.webhook, row)
    stored = stores.second.first(select(schema.webhook))
    _require(dict(stored._mapping) == row, f"numbers are not exact: {stored}")


def _row_numbers(stores: Stores) -> None:
    """Let the database number rows in the order of insertion."""
    note = Note(
        _MOMENT,
        "job PENDING",
        "ann",
        {},
    )
    stores.first.note(
        "job-1",
        "scheduler",
        [note, note],
    )
    stores.second.note(
        "job-1",
        "scheduler",
        [note],
    )
    _require(len(stores.first.timeline("job-1")) == 3, "rows are missing")
    _require(events.newest_number(stores.first) >= 3, "rows are not numbered")


# ------------------------------------------------------------ transactions


def _unique_keys(stores: Stores) -> None:
    """Insert a key twice: an error of its own kind, which rolls the transaction back."""
    row = {"name": "acme", "owner": "ann"}
    stores.first.insert(schema.provider_owner, row)
    with suppress(sa.exc.IntegrityError), stores.second.write() as connection:
        connection.execute(schema.provider_owner.delete())
        connection.execute(schema.provider_owner.insert(), [row, row])
    owner = stores.first.value(select(schema.provider_owner.c.owner))
    _require(owner == "ann", "a failed transaction is not rolled back")


def _versions(stores: Stores) -> None:
    """Update a row only if it has the expected version; rows with equal values count."""
    stores.first.insert(schema.route_export, {"owner": "me", "number": 1, "digest": ""})
    update = schema.route_export.update().filter_by(owner="me", number=1)
    counts = [
        stores.first.execute(update.values(digest="")),
        stores.first.execute(update.values(number=2)),
        stores.second.execute(update.values(number=3)),
    ]
    _require(counts == [1, 1, 0], f"the numbers of updated rows are {counts}, not [1, 1, 0]")


def _row_locks(stores: Stores) -> None:
    """Change one row in many transactions at the same time, under a lock."""
    pool = schema.resource_pool
    locked = select(pool.c.repaired).where(pool.c.id == 1).with_for_update()

    def count(store: Store) -> None:
        with store.write() as connection:
            repaired = connection.execute(locked).scalar_one()
            connection.execute(pool.update().values(repaired=repaired + 1))
            increase(
                connection,
                pool,
                {"id": 1},
                {"ignored": 1},
            )

    _at_once(stores, count)
    row = stores.first.first(select(pool))
    counts = (row.repaired, row.ignored)
    _require(counts == (_WRITERS, _WRITERS), f"changes are lost: {counts} of {_WRITERS} are left")


def _first_use(stores: Stores) -> None:
    """Insert one key from several gateways at the same time: one of them is first."""
    answers: list[str] = []

    def use(store: Store) -> None:
        signatures = SqlUsedSignatures(store, lambda: _MOMENT)
        answers.append(
            signatures.first(
                "s",
                threading.current_thread().name,
                60.0,
            )
        )

    _at_once(stores, use)
    _require(len(set(answers)) == 1, f"one key was first for {len(set(answers))} writers")


def _at_once(stores: Stores, work: Callable[[Store], None]) -> None:
    """Do work in several threads, of which each gateway has half."""
    with ThreadPoolExecutor(_WRITERS) as threads:
        pending = []
        for number in range(_WRITERS):
            store = stores.first
            if number % 2:
                store = stores.second
            pending.append(
                threads.submit(
                    repeat_on_conflict,
                    partial(work, store),
                    _WRITERS,
                )
            )
        for future in pending:
            future.result()


def _snapshots(stores: Stores) -> None:
    """Copy the tables as of one moment, while another gateway writes."""
    audit = SqlAudit(stores.second)
    audit.add(
        _MOMENT,
        "ann",
        "before",
        200,
        None,
        {},
    )
    with snapshot(stores.first) as tables:
        _, rows = next(tables)
        list(rows)
        audit.add(
            _MOMENT,
            "ann",
            "during",
            200,
            None,
            {},
        )
        copied = {name: list(rows) for name, rows in tables}
    actions = [row["action"] for row in copied["audit"]]
    _require("during" not in actions, "a copy contains later changes")


# ------------------------------------------------------------ searches


def _searches(stores: Stores) -> None:
    """Find texts: their position, patterns with escapes, and members of JSON."""
    templates = SqlTemplates(stores.first)
    templates.put(
        "50% Off",
        "ann",
        _MOMENT,
        {"user": "ü", "nul": "\0"},
    )
    c = schema.template.c
    for condition in (
        position(c.name, "% O") == 3,
        position(c.name, "% o") == 0,
        c.name.contains("% Off", autoescape=True),
        c.name.startswith("50%", autoescape=True),
        json_member(c.job, "user") == '"ü"',
    ):
        names = stores.first.values(select(c.name).where(condition, c.name == "50% Off"))
        _require(names == ["50% Off"], f"a search finds nothing: {condition}")


def _lists(stores: Stores) -> None:
    """Run the lists and counts of jobs: joins, unions, groups and subqueries."""
    store = stores.first
    filters = queries.JobFilter(
        text="a",
        user="b",
        partner="c",
        component="d",
        reason="TIMEOUT",
        since=_MOMENT,
    )
    queries.page(
        store,
        filters,
        10,
        queries.JobCursor(1.0, "job"),
    )
    queries.count(store)
    queries.statuses(store)
    queries.submitted(store)
    queries.jobs_with_work_left(store)
    queries.local_jobs_naming(store, ["a_b"])
    queries.drop_job(
        store,
        "job-1",
        _MOMENT,
        "ann",
        {},
    )
    for records in (store.jobs, store.local_jobs):
        records.find("job-1")
        list(records.unfinished())
        records.due(_MOMENT)
        records.has_active_jobs(
            "scheduler",
            "A",
            0,
        )
        records.involves("A")
    SqlAudit(store).list(
        action="x",
        patterns=["POST /%"],
        refused=True,
    )
    SqlTokens(store).delete_expired("a_", _MOMENT)
    Gateways(store).jobs_with_runs_of("me")
    SqlProviders(store).superseded_since("acme:1.0.0@docker", _MOMENT)
    c = schema.task.c
    progress = select(c.job_id, func.sum(sa.case((c.status == "SUCCESS", 1), else_=0)))
    store.rows(progress.group_by(c.job_id))


def _clock(stores: Stores) -> None:
    """Ask for the server's time, with which gateways notice that another one is silent."""
    gateways = Gateways(stores.first)
    gateways.beat("me", "http://127.0.0.1")
    silence = gateways.beat("me", "http://127.0.0.1")
    _require(0 <= silence < 60, f"a heartbeat is {silence} seconds old when it is written")
    fractions = {queries.database_time(stores.first) % 1 for _ in range(3)}
    _require(fractions != {0.0}, "its time has no fractions of a second")
    SqlRouteVersions(stores.first, "me").other_follower()


# ------------------------------------------------------------ changes of tables


def _table_changes(stores: Stores) -> None:
    """Change tables as an upgrade does."""
    index = sa.Index("doctor_index", schema.token.c.name)
    with stores.first.write() as connection:
        for statement in (
            "ALTER TABLE token ADD COLUMN doctor VARCHAR(64)",
            "ALTER TABLE token ADD COLUMN doctors BIGINT DEFAULT 0 NOT NULL",
            "ALTER TABLE token DROP COLUMN doctor",
            "ALTER TABLE token DROP COLUMN doctors",
        ):
            connection.exec_driver_sql(statement)
        index.create(connection)
        columns = {column["name"] for column in sa.inspect(connection).get_columns("token")}
        index.drop(connection)
    schema.token.indexes.discard(index)
    _require("digest" in columns, "the columns of a table cannot be listed")


# The forms by name, in their order.
FORMS: Mapping[str, Callable[[Stores], None]] = {
    "restores": _restores,  # the first one, as a backup is restored into empty tables only
    "exact texts": _exact_texts,
    "long texts": _long_texts,
    "exact numbers": _exact_numbers,
    "row numbers": _row_numbers,
    "unique keys": _unique_keys,
    "versions": _versions,
    "row locks": _row_locks,
    "first use": _first_use,
    "snapshots": _snapshots,
    "searches": _searches,
    "lists": _lists,
    "clock": _clock,
    "table changes": _table_changes,
}
