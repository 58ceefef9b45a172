"""Many tasks, many jobs, many concurrent clients: what one costs the other.

Ratios of one run on one machine.
"""

import copy
import re
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx
import sqlalchemy as sa

from gateway.store import schema
from tests.e2e.nodes import Node
from tests.plain import NO_TLS

STATUS = "/v1/platform/schedule/job/status_all"
CREATE = "/v1/platform/schedule/job/create_all"


def independent(body: dict[str, Any], tasks: int) -> dict[str, Any]:
    """Return the job with so many tasks that need nothing of each other."""
    body = copy.deepcopy(body)
    first = body["dag"]["components"][0]
    body["dag"]["components"] = [
        {
            **first,
            "name": f"t{i}",
            "input": [],
        }
        for i in range(tasks)
    ]
    return body


def until_over(node: Node, job_id: str) -> dict[str, Any]:
    """Ask until a job has ended; return its state."""
    end = time.monotonic() + 1800.0
    with httpx.Client(
        base_url=node.operator,
        trust_env=False,
        verify=NO_TLS,
        timeout=60,
    ) as client:
        while True:
            data = dict(client.get(STATUS, params={"job_id": job_id}).json()["data"])
            if data["job_status"] in ("FINISHED", "REJECTED"):
                return data
            assert time.monotonic() < end, data
            time.sleep(0.02)


def run(node: Node, body: dict[str, Any]) -> float:
    """Return the seconds from before create_all to the job's FINISHED."""
    began = time.perf_counter()
    state = until_over(node, node.submit(body))
    assert state["outcome"] == "SUCCEEDED", state
    return time.perf_counter() - began


def beside(
    node: Node,
    small: dict[str, Any],
    large: dict[str, Any],
    rounds: int,
) -> tuple[float, float, float]:
    """Return the seconds of a small job alone, of one beside a large job, and of the large job."""
    run(node, small)
    alone = statistics.median(run(node, small) for _ in range(rounds))
    began = time.perf_counter()
    job_id = node.submit(large)
    time.sleep(2.0)
    together = statistics.median(run(node, small) for _ in range(rounds))
    assert node.job(job_id)["status"] == "RUNNING", "the large job was over too early"
    state = until_over(node, job_id)
    assert state["outcome"] == "SUCCEEDED", state
    return alone, together, time.perf_counter() - began


def asked_meanwhile(
    node: Node,
    job_id: str,
    work: Callable[[], Any],
) -> tuple[Any, list[float]]:
    """Do the work; return what it returns, and how long each question for a job's state took
    meanwhile, sorted.
    """
    over = threading.Event()
    times: list[float] = []

    def ask() -> None:
        with httpx.Client(
            base_url=node.operator,
            trust_env=False,
            verify=NO_TLS,
            timeout=60,
        ) as client:
            while not over.wait(0.1):
                began = time.perf_counter()
                assert client.get(STATUS, params={"job_id": job_id}).json()["code"] == 0
                times.append(time.perf_counter() - began)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        result = work()
    finally:
        over.set()
        thread.join()
    return result, sorted(times)


def at_once(
    nodes: Sequence[Node],
    body: dict[str, Any],
    count: int,
    clients: int,
) -> list[str]:
    """Submit so many jobs with so many clients, to each node in turn; return their ids."""
    with httpx.Client(
        trust_env=False,
        verify=NO_TLS,
        timeout=120,
    ) as client:

        def one(number: int) -> str:
            url = nodes[number % len(nodes)].operator + CREATE
            answer = client.post(url, json=body).json()
            assert answer["code"] == 0, answer
            return str(answer["data"]["job_id"])

        with ThreadPoolExecutor(clients) as pool:
            return list(pool.map(one, range(count)))


def many(
    node: Node,
    other: Node,
    body: dict[str, Any],
    count: int,
) -> list[Any]:
    """Submit so many jobs of one task with 32 clients; wait until all are over at both nodes.

    Return how many there were, how many succeeded, and how many runs and launches there were beyond
    one; the rate; and how long each question for a job's state took meanwhile.
    """
    first = node.submit(body)
    until_over(node, first)
    began = time.perf_counter()

    def all_of_them() -> list[str]:
        ids = at_once([node], body, count, 32)
        until_none_left((node, other), 3600.0)
        return ids

    ids, asked = asked_meanwhile(node, first, all_of_them)
    seconds = time.perf_counter() - began
    assert len(set(ids)) == count
    runs = {
        n.id: _counted(n, "SELECT count(*), count(DISTINCT task_id) FROM run")[0]
        for n in (node, other)
    }
    launches = "SELECT count(*) FROM timeline WHERE event = 'run LAUNCHING'"
    twice = sum(found - different for found, different in runs.values())
    twice += sum(_counted(n, launches)[0][0] - runs[n.id][0] for n in (node, other))
    good = _counted(node, "SELECT count(*) FROM job WHERE outcome = 'SUCCEEDED'")[0][0] - 1
    times = [f"{quantile(asked, share) * 1000:.0f} ms" for share in (0.5, 0.99)]
    return [count, good, twice, f"{count / seconds:.1f}/s", *times]


def until_none_left(nodes: tuple[Node, ...], seconds: float) -> None:
    """Wait until no job is under way at any of the nodes."""
    end = time.monotonic() + seconds
    left = (
        "SELECT count(*) FROM {} WHERE status NOT IN ('FINISHED', 'REJECTED') OR due_at IS NOT NULL"
    )
    while any(_counted(n, left.format(t))[0][0] for n in nodes for t in ("job", "local_job")):
        assert time.monotonic() < end, "jobs are still under way"
        time.sleep(1.0)


def _counted(node: Node, query: str) -> list[Any]:
    """Look into a node's database, which asks nothing of the node itself."""
    with closing(
        sqlite3.connect(f"file:{node.home / 'gateway.db'}?mode=ro", uri=True, timeout=60)
    ) as database:
        return database.execute(query).fetchall()


def copy_ended(
    node: Node,
    job_id: str,
    count: int,
) -> None:
    """Write an ended job so many times into the database of a stopped node, with its tasks, runs
    and timeline.
    """
    url = f"sqlite:///{node.home / 'gateway.db'}"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for name in ("job", "local_job", "task", "run", "timeline"):
            table = schema.metadata.tables[name]
            rows = [
                dict(r._mapping)
                for r in connection.execute(sa.select(table).where(table.c.job_id == job_id))
            ]
            for start in range(0, count, 500):
                copies = [
                    {
                        k: v - i if k == "created_at" else _copied(v, job_id, i)
                        for k, v in row.items()
                    }
                    for i in range(start, min(start + 500, count))
                    for row in rows
                ]
                for copied in copies:
                    copied.pop("id", None)
                    if name == "run":
                        copied["name"] = f"{copied['name'][:40]}-{copied['run_id'][-12:]}"
                if copies:
                    connection.execute(table.insert(), copies)
    engine.dispose()


def _copied(
    value: Any,
    job_id: str,
    number: int,
) -> Any:
    """Give ids of the copied job a number, so that no two rows have the same."""
    if not isinstance(value, str):
        return value
    if value == job_id or value.startswith("task_") or re.fullmatch(r"[0-9a-f]{32,}", value):
        return f"{value}-{number}"
    return value.replace(job_id, f"{job_id}-{number}")


def quantile(times: list[float], share: float) -> float:
    """Return that quantile of sorted times."""
    return times[min(int(len(times) * share), len(times) - 1)]
