"""Many jobs in progress together on three gateways of a node with one MariaDB: what each costs, and
what grows.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import sqlalchemy as sa

from adapter.bfia.examples import A_PROVIDER
from tests.contracts.databases import careless_database
from tests.e2e.nodes import Federation, Node, wait_for
from tests.plain import NO_TLS
from tools.bench.floor import IMAGE
from tools.bench.load import STATUS, at_once, quantile
from tools.bench.upload import resident

NODE = "JG0100001100000010"
HEADS = [
    "jobs in progress",
    "created",
    "status_all p50",
    "p99",
    "memory of the gateways",
    "reads per job",
    "writes per job",
    "database per job",
]
_CLIENTS = 8
_WRITES = ("Com_insert", "Com_update", "Com_delete")


def soak(job: dict[str, Any], counts: Sequence[int]) -> Iterator[list[str]]:
    """Yield a row for each number of jobs in progress, counted up; then all of them end, each once.

    ``job``: one task at two roles of this node. Its containers are the memory engine's and stay
    until the end.
    """
    with TemporaryDirectory() as folder:
        end = Path(folder) / "end"
        with _gateways(Path(folder), end) as (gateways, database):
            made: list[str] = []
            for count in counts:
                new = count - len(made)
                before, began = _status(database), time.perf_counter()
                made += at_once(gateways, job, new, _CLIENTS)
                rate = new / (time.perf_counter() - began)
                _until(database, "run", "RUNNING", 2 * count)
                after = _status(database)
                reads = (after["Com_select"] - before["Com_select"]) / new
                writes = sum(after[name] - before[name] for name in _WRITES) / new
                times = _ask(gateways, made[:: max(1, count // 300)])
                yield [
                    f"{count:,}",
                    f"{rate:.0f}/s",
                    f"{quantile(times, 0.5) * 1000:.0f} ms",
                    f"{quantile(times, 0.99) * 1000:.0f} ms",
                    ", ".join(f"{resident(gateway) / 2**20:.0f}" for gateway in gateways) + " MB",
                    f"{reads:.0f}",
                    f"{writes:.0f}",
                    f"{_size(database) / count / 1024:.1f} KiB",
                ]
            began = time.perf_counter()
            end.touch()
            _until(database, "job", "FINISHED", len(made))
            yield ["all ended", f"{len(made) / (time.perf_counter() - began):.0f}/s", *[""] * 6]
            with database.connect() as connection:
                ends = "select count(*), count(distinct job_id) from timeline where event = 'job FINISHED'"
                assert tuple(connection.execute(sa.text(ends)).one()) == (len(made), len(made))
                good = "select count(*) from job where outcome = 'SUCCEEDED'"
                assert connection.execute(sa.text(good)).scalar() == len(made)


@contextmanager
def _gateways(home: Path, end: Path) -> Iterator[tuple[list[Node], sa.Engine]]:
    """Start three gateways of one node; their containers end when the file is there."""
    with ExitStack() as stack:
        url = stack.enter_context(careless_database("soak"))
        federation = Federation(home, [NODE, "second", "third"], {"kind": "process"}, fresh=True)
        gateways = list(federation.nodes.values())
        for gateway in gateways:
            gateway.prefix = [sys.executable, "-m", "tools.bench.memory_node", "--until", str(end)]
            gateway.settings["node"] = {"id": NODE}
            gateway.settings["database"] = {"url": url}
            gateway.settings["storage"] = {"url": f"file://{home / 'shared'}"}
            gateway.settings.pop("route_table")
        stack.enter_context(federation)
        gateways[0].register({**A_PROVIDER, "metadata": {**A_PROVIDER["metadata"], "image": IMAGE}})
        database = sa.create_engine(url)
        stack.callback(database.dispose)
        yield gateways, database


def _ask(gateways: Sequence[Node], job_ids: Sequence[str]) -> list[float]:
    """Return how long each question for a job's state took, sorted."""
    times = []
    with httpx.Client(
        trust_env=False,
        verify=NO_TLS,
        timeout=60,
    ) as client:
        for number, job_id in enumerate(job_ids):
            url = gateways[number % len(gateways)].operator + STATUS
            began = time.perf_counter()
            assert client.get(url, params={"job_id": job_id}).json()["code"] == 0
            times.append(time.perf_counter() - began)
    return sorted(times)


def _until(
    database: sa.Engine,
    table: str,
    status: str,
    wanted: int,
) -> None:
    query = sa.text(f"select count(*) from {table} where status = :status")

    def count() -> int:
        with database.connect() as connection:
            return int(connection.execute(query, {"status": status}).scalar() or 0)

    wait_for(lambda: count() == wanted, 3600, 1.0, f"{wanted} of {table} are {status}")


def _status(database: sa.Engine) -> Mapping[str, int]:
    """Return the server's counters of statements; no other work may use it meanwhile."""
    with database.connect() as connection:
        rows = connection.execute(sa.text("show global status like 'Com\\_%'")).all()
    return {str(name): int(value) for name, value in rows}


def _size(database: sa.Engine) -> int:
    with database.connect() as connection:
        query = "select sum(data_length + index_length) from information_schema.tables where table_schema = database()"
        return int(connection.execute(sa.text(query)).scalar() or 0)
