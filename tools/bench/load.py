"""Many tasks, many jobs and many concurrent clients, and how much they slow each other down."""

import copy
import re
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, TypeVar

import httpx
import sqlalchemy as sa

from gateway.store import schema
from tests.e2e.nodes import Node
from tests.plain import NO_TLS

STATUS = "/v1/platform/schedule/job/status_all"
CREATE = "/v1/platform/schedule/job/create_all"
_JOB_TIMEOUT = 1800.0  # seconds
_MANY_TIMEOUT = 3600.0  # seconds for a thousand jobs
_CLIENTS = 32
_HEAD_START = 2.0  # seconds of a large job before the small ones
_STATUS_INTERVAL = 0.02  # seconds between two questions for the state of a job
_SAMPLE_INTERVAL = 0.1  # seconds between two timed questions
_INSERTED_COPIES = 500  # of a row, in one statement
_COPIED_TABLES = ("job", "local_job", "task", "run", "timeline")
_ID = re.compile(r"[0-9a-f]{32,}")
_UNENDED = "status NOT IN ('FINISHED', 'REJECTED') OR due_at IS NOT NULL"

X = TypeVar("X")


class TimesWithLarge(NamedTuple):
    """Seconds of a small job alone, of one during a large job, and of the large job."""

    alone: float
    with_large: float
    large: float


@contextmanager
def _client(timeout: float = 60) -> Iterator[httpx.Client]:
    with httpx.Client(
        trust_env=False,
        verify=NO_TLS,
        timeout=timeout,
    ) as client:
        yield client


def independent(
    body: dict[str, Any],
    tasks: int,
) -> dict[str, Any]:
    """Return a job of ``tasks`` tasks like the first one of ``body``, without inputs."""
    job = copy.deepcopy(body)
    first = job["dag"]["components"][0]
    job["dag"]["components"] = [
        {
            **first,
            "name": f"t{number}",
            "input": [],
        }
        for number in range(tasks)
    ]
    return job


def wait_until_ended(
    node: Node,
    job_id: str,
) -> dict[str, Any]:
    """Wait until a job has ended, and return its state."""
    end = time.monotonic() + _JOB_TIMEOUT
    with _client() as client:
        while True:
            response = client.get(
                node.operator + STATUS,
                params={"job_id": job_id},
                headers=node.headers,
            )
            state = dict(response.json()["data"])
            if state["job_status"] in ("FINISHED", "REJECTED"):
                return state
            assert time.monotonic() < end, state
            time.sleep(_STATUS_INTERVAL)


def run(node: Node, body: dict[str, Any]) -> float:
    """Return the seconds from before create_all until the job is FINISHED."""
    start = time.perf_counter()
    state = wait_until_ended(node, node.submit(body))
    assert state["outcome"] == "SUCCEEDED", state
    return time.perf_counter() - start


def run_with_large(
    node: Node,
    small: dict[str, Any],
    large: dict[str, Any],
    rounds: int,
) -> TimesWithLarge:
    """Run a small job alone, and then during a large one, as often as that one lasts."""
    run(node, small)
    alone = statistics.median(run(node, small) for _ in range(rounds))
    start = time.perf_counter()
    job_id = node.submit(large)
    time.sleep(_HEAD_START)
    times_with_large = []
    for _ in range(rounds):
        seconds = run(node, small)
        if node.job(job_id)["status"] != "RUNNING":
            break
        times_with_large.append(seconds)
    assert times_with_large, "the large job was over too early"
    state = wait_until_ended(node, job_id)
    assert state["outcome"] == "SUCCEEDED", state
    return TimesWithLarge(alone, statistics.median(times_with_large), time.perf_counter() - start)


def status_times_during(
    node: Node,
    job_id: str,
    work: Callable[[], X],
) -> tuple[X, list[float]]:
    """Do the work while another thread asks for a job's state again and again.

    Return the result of the work, and the sorted seconds of the questions.
    """
    is_over = threading.Event()
    times: list[float] = []

    def ask() -> None:
        with _client() as client:
            while not is_over.wait(_SAMPLE_INTERVAL):
                times.append(status_time(client, node, job_id))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        result = work()
    finally:
        is_over.set()
        thread.join()
    return result, sorted(times)


def status_time(
    client: httpx.Client,
    node: Node,
    job_id: str,
) -> float:
    """Return the seconds of one question for a job's state."""
    start = time.perf_counter()
    response = client.get(
        node.operator + STATUS,
        params={"job_id": job_id},
    )
    assert response.json()["code"] == 0
    return time.perf_counter() - start


def submit_many(
    nodes: Sequence[Node],
    body: dict[str, Any],
    count: int,
    clients: int,
) -> list[str]:
    """Submit ``count`` jobs with ``clients`` clients, to each node in turn; return their ids."""
    with _client(120) as client:

        def submit(number: int) -> str:
            url = nodes[number % len(nodes)].operator + CREATE
            response = client.post(url, json=body).json()
            assert response["code"] == 0, response
            return str(response["data"]["job_id"])

        with ThreadPoolExecutor(clients) as pool:
            return list(pool.map(submit, range(count)))


def run_many(
    nodes: Sequence[Node],
    body: dict[str, Any],
    count: int,
) -> list[Any]:
    """Submit ``count`` jobs of one task, and wait until all have ended at both nodes.

    Return a row: jobs, succeeded jobs, runs and launches in excess of one per task, jobs per
    second, and the median and the 99th percentile of the time of a question for a job's state.
    """
    node = nodes[0]
    first_job = node.submit(body)
    wait_until_ended(node, first_job)

    def run_all() -> list[str]:
        job_ids = submit_many([node], body, count, _CLIENTS)
        wait_until_all_ended(nodes, _MANY_TIMEOUT)
        return job_ids

    start = time.perf_counter()
    job_ids, status_times = status_times_during(node, first_job, run_all)
    rate = count / (time.perf_counter() - start)
    assert len(set(job_ids)) == count
    repeated = sum(map(_repeated_starts, nodes))
    succeeded = _count(node, "SELECT count(*) FROM job WHERE outcome = 'SUCCEEDED'")
    quantiles = [f"{quantile(status_times, share) * 1000:.0f} ms" for share in (0.5, 0.99)]
    return [count, succeeded - 1, repeated, f"{rate:.1f}/s", *quantiles]


def _repeated_starts(node: Node) -> int:
    """Return the runs beyond one per task, and the launches beyond one per run."""
    runs = _count(node, "SELECT count(*) FROM run")
    tasks = _count(node, "SELECT count(DISTINCT task_id) FROM run")
    launches = _count(node, "SELECT count(*) FROM timeline WHERE event = 'run LAUNCHING'")
    return (runs - tasks) + (launches - runs)


def wait_until_all_ended(nodes: Sequence[Node], seconds: float) -> None:
    """Wait until no job is under way at any of the nodes, for at most ``seconds`` seconds."""
    end = time.monotonic() + seconds
    while any(map(has_unended_jobs, nodes)):
        assert time.monotonic() < end, "jobs are still under way"
        time.sleep(1.0)


def has_unended_jobs(node: Node) -> bool:
    """Return whether a job is under way at a node."""
    tables = ("job", "local_job")
    return any(_count(node, f"SELECT count(*) FROM {table} WHERE {_UNENDED}") for table in tables)


def _count(node: Node, query: str) -> int:
    """Return a number from a node's database, which costs the node itself no work."""
    url = f"file:{node.home / 'gateway.db'}?mode=ro"
    with closing(sqlite3.connect(url, uri=True, timeout=60)) as database:
        (number,) = database.execute(query).fetchone()
        return int(number)


def quantile(times: Sequence[float], share: float) -> float:
    """Return the quantile of sorted times."""
    index = int(len(times) * share)
    return times[min(index, len(times) - 1)]


# ---------------------------------------------------------------- many ended jobs


def copy_ended(node: Node, job_id: str, count: int) -> None:
    """Copy an ended job ``count`` times in the database of a stopped node.

    Its tasks, runs and timeline are copied, too.
    """
    engine = sa.create_engine(f"sqlite:///{node.home / 'gateway.db'}")
    with engine.begin() as connection:
        for name in _COPIED_TABLES:
            table = schema.metadata.tables[name]
            query = sa.select(table).where(table.c.job_id == job_id)
            rows = [dict(row._mapping) for row in connection.execute(query)]
            for start in range(0, count, _INSERTED_COPIES):
                numbers = range(start, min(start + _INSERTED_COPIES, count))
                copies = [_copied_row(name, row, job_id, n) for n in numbers for row in rows]
                if copies:
                    connection.execute(table.insert(), copies)
    engine.dispose()


def _copied_row(
    table: str,
    row: dict[str, Any],
    job_id: str,
    number: int,
) -> dict[str, Any]:
    """Return the copy of a row with the given number; each copy is a bit older than the last."""
    copied = {column: _copied_value(value, job_id, number) for column, value in row.items()}
    if "created_at" in row:
        copied["created_at"] = row["created_at"] - number
    copied.pop("id", None)  # the database gives the copy a new one
    if table == "run":
        copied["name"] = f"{copied['name'][:40]}-{copied['run_id'][-12:]}"
    return copied


def _copied_value(
    value: Any,
    job_id: str,
    number: int,
) -> Any:
    """Add a number to the ids of the copied job, so that no two rows have the same."""
    if not isinstance(value, str):
        return value
    is_id = value == job_id or value.startswith("task_") or _ID.fullmatch(value)
    if is_id:
        return f"{value}-{number}"
    return value.replace(job_id, f"{job_id}-{number}")
