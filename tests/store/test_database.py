"""The database itself: repeated transactions, failures of the server, bounded caches."""

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest
import sqlalchemy as sa

from gateway.errors import DatabaseAway, TooLarge
from gateway.runtime.loop import wait_for_database
from gateway.store import providers as providers_module
from gateway.store import queries, schema, timeline
from gateway.store import store as store_module
from gateway.store.database import Database, increase, open_database, repeat_on_conflict
from gateway.store.providers import SqlProviders
from gateway.store.records import CachedRecord, RecordCache
from gateway.store.store import Store
from provider_registry.revisions import Action, Revision
from tests.builders import a_job, a_spec, at, raising
from tests.contracts.databases import careless_database
from tests.registry.builders import a_provider
from tests.store.kinds import on_sqlite
from tests.store.parallel import in_parallel

pytestmark = pytest.mark.xdist_group("database")  # one database for the module

LOST_RACE = sa.exc.IntegrityError(
    "insert",
    {},
    Exception("taken"),
)
SYNTAX_ERROR = sa.exc.OperationalError(
    "select",
    {},
    Exception(1064, "syntax"),
)


class Transaction:
    """Work that fails with each of some errors, then succeeds."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def test_a_transaction_is_repeated_while_another_one_wins():
    transaction = Transaction(LOST_RACE, LOST_RACE)

    assert repeat_on_conflict(transaction) == "done"
    assert transaction.calls == 3


@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        ([LOST_RACE] * 20, sa.exc.IntegrityError),
        ([SYNTAX_ERROR], sa.exc.OperationalError),
    ],
    ids=["never wins", "no conflict"],
)
def test_a_transaction_is_not_repeated_for_ever(errors, raised):
    with pytest.raises(raised):
        repeat_on_conflict(Transaction(*errors), retries=2)


def test_a_pool_without_a_free_connection_is_a_database_that_is_away():
    database = Database(sa.create_engine("sqlite://"))

    with (
        pytest.raises(
            DatabaseAway,
            match="every connection to the database is in use",
        ),
        database.read(),
    ):
        raise sa.exc.TimeoutError("QueuePool limit")


@pytest.mark.mariadb
def test_a_write_above_the_servers_limit_is_refused_before_it_is_sent():
    """The server would close the connection as if it went away, and the write would be repeated."""
    with careless_database("packet") as url:
        engine = open_database(url)
        store = Store(engine)
        max_packet = store.value(sa.text("select @@max_allowed_packet"))
        new_connections = []
        sa.event.listen(engine, "connect", lambda *connection: new_connections.append(connection))
        changed_jobs = []

        def grow_too_much(job):
            changed_jobs.append(job.id)
            return replace(job, warnings=("余" * (max_packet // 3),))  # three bytes each

        def grow(job):
            return replace(job, warnings=("w" * (max_packet // 2),))

        job = a_job(spec=a_spec("a"))
        quotes = '"' * (max_packet // 2)  # two bytes each in JSON
        large_spec = replace(
            job.spec,
            job_id="job-large",
            job_params={"common": {"blob": quotes}},
        )
        assert store.jobs.add(job, "")
        with pytest.raises(TooLarge, match=f"max_allowed_packet of the database is {max_packet}"):
            store.jobs.add(
                replace(job, spec=large_spec),
                "",
            )
        with pytest.raises(TooLarge):
            wait_for_database(lambda: store.jobs.update(job.id, grow_too_much))
        assert changed_jobs == [job.id]
        assert new_connections == []
        assert store.jobs.find("job-large") is None
        assert store.jobs.update(job.id, grow).warnings
        store.close()


def test_concurrent_increases_of_a_new_row_add_up(stores):
    pool = schema.resource_pool
    key = {"id": 2}
    amounts = {
        "ignored": 1,
        "repaired": 2,
        "expired": 0,
    }

    def work(store):
        with store.write() as connection:
            increase(connection, pool, key, amounts)

    def increase_once(number):
        repeat_on_conflict(partial(work, stores[number % 2]))

    in_parallel(10, increase_once)

    store = stores[0]
    row = store.first(pool.select().filter_by(**key))
    assert row.ignored == 10
    assert row.repaired == 20
    store.execute(pool.delete().filter_by(**key))


@on_sqlite
def test_a_log_that_cannot_be_written_rolls_nothing_back(store, monkeypatch):
    disk_full = OSError(28, "No space left on device")
    monkeypatch.setattr(timeline.log, "info", raising(disk_full))
    job = a_job(spec=a_spec("a", job_id="job-quiet")).with_note(at(1), "job PENDING")

    assert store.jobs.add(
        replace(
            job,
            nodes={},
            tasks={},
        ),
        "",
    )
    events = [entry.event for entry in store.timeline("job-quiet")]
    assert events == ["job PENDING"]


@on_sqlite
def test_an_unknown_job_is_not_deleted(store):
    assert queries.drop_job(store, "job-nowhere", at(2), "ann", {}) is False


def test_a_database_server_is_asked_for_its_time(store):
    with store.read() as connection:
        is_server = connection.dialect.name != "sqlite"
    if is_server:
        now = datetime.now(UTC).timestamp()
        assert abs(queries.database_time(store) - now) < 60


# ------------------------------------------------------------ bounded caches


@on_sqlite
def test_the_cache_of_providers_is_bounded(store, monkeypatch):
    monkeypatch.setattr(providers_module, "MAX_CACHED_READS", 1)
    first = a_provider()
    second = a_provider(name="second")
    providers = SqlProviders(store, sole_writer=True)
    assert providers.get(first.key) is None
    assert providers.get(second.key) is None

    for provider in (first, second):
        revision = Revision(
            provider.key,
            1,
            at(0),
            "ann",
            Action.REGISTERED,
            "",
            provider,
        )
        SqlProviders(store).write(revision)

    assert providers.get(second.key) is None, "the last read is cached"
    assert providers.get(first.key) == first, "earlier ones are not"


def test_the_cache_of_records_is_bounded():
    cache = RecordCache(
        capacity=1,
        characters=1000,
    )

    for number in (1, 2):
        entry = CachedRecord(1, 0.0, number, 1, 1)
        cache.put(f"job-{number}", entry, 0)

    assert cache.get("job-1") is None
    assert cache.get("job-2") is not None


@on_sqlite
def test_the_cache_of_the_jobs_of_tasks_is_bounded(store, monkeypatch):
    monkeypatch.setattr(store_module, "MAX_TASK_IDS", 1)
    for number in (1, 2):
        job = a_job(spec=a_spec("a", job_id=f"job-{number}"))
        task = replace(
            job.tasks["a"],
            task_id=f"task-{number}",
        )
        assert store.jobs.add(
            replace(
                job,
                tasks={"a": task},
            ),
            "",
        )
        assert store.job_of_task(task.task_id) == job.id

    with store.write() as connection:
        connection.execute(schema.task.delete())

    assert store.job_of_task("task-2") == "job-2", "the last search is cached"
    assert store.job_of_task("task-1") is None, "earlier ones are not"


def test_a_connection_that_is_in_use_at_the_close_is_closed_later(shared_url):
    database = Database(open_database(shared_url))

    with database.read() as connection:
        raw = connection.connection.dbapi_connection
        database.close()

    with pytest.raises(Exception, match=r"(?i)closed|^\(0, ''\)"):
        raw.cursor().execute("select 1")
