"""Many concurrent jobs on three gateways of one node with one MariaDB: their cost and growth."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import sqlalchemy as sa

from tests.contracts.databases import careless_database
from tests.e2e.nodes import Federation, Node, wait_for
from tests.plain import NO_TLS
from tools.bench.load import quantile, status_time, submit_many
from tools.bench.nodes import GUEST, PROCESS_ENGINE, provider
from tools.bench.parts import milliseconds
from tools.bench.upload import resident

HEADINGS = [
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
_RUNS_PER_JOB = 2
_TIMEOUT = 3600  # seconds until all jobs run, or have ended
_TIMED_JOBS = 300  # jobs whose state is asked for
_MIB = 2**20
_KIB = 2**10
# The server's counters of statements.
_READS = ("Com_select",)
_WRITES = ("Com_insert", "Com_update", "Com_delete")
_COUNTERS = "show global status like 'Com\\_%'"
_SIZE = (
    "select sum(data_length + index_length) from information_schema.tables "
    "where table_schema = database()"
)
_ENDS = "select count(*), count(distinct job_id) from timeline where event = 'job FINISHED'"
_SUCCEEDED = "select count(*) from job where outcome = 'SUCCEEDED'"


def soak(
    job: dict[str, Any],
    counts: Sequence[int],
) -> Iterator[list[str]]:
    """Yield a row for each number of jobs in progress, in rising order; then end them all.

    ``job``: one task at two roles of this node. The memory engine keeps its containers until the
    end. Raises `AssertionError` if a job does not succeed, or ends twice.
    """
    with TemporaryDirectory() as folder:
        end_file = Path(folder) / "end"
        with _gateways(Path(folder), end_file) as (gateways, database):
            job_ids: list[str] = []
            for count in counts:
                counters = _counters(database)
                start = time.perf_counter()
                new_ids = submit_many(gateways, job, count - len(job_ids), _CLIENTS)
                rate = len(new_ids) / (time.perf_counter() - start)
                job_ids += new_ids
                _wait_for_status(database, "run", "RUNNING", _RUNS_PER_JOB * count)
                statements = _statements(counters, _counters(database), len(new_ids))
                sample = job_ids[:: max(1, count // _TIMED_JOBS)]
                yield [
                    f"{count:,}",
                    f"{rate:.0f}/s",
                    *_status_quantiles(gateways, sample),
                    _memory(gateways),
                    *statements,
                    f"{_number(database, _SIZE) / count / _KIB:.1f} KiB",
                ]
            yield _end_all(database, end_file, len(job_ids))


def _end_all(
    database: sa.Engine,
    end_file: Path,
    count: int,
) -> list[str]:
    """End all containers; return a row with the rate of ended jobs."""
    start = time.perf_counter()
    end_file.touch()
    _wait_for_status(database, "job", "FINISHED", count)
    rate = count / (time.perf_counter() - start)
    with database.connect() as connection:
        ends = tuple(connection.execute(sa.text(_ENDS)).one())
    assert ends == (count, count)
    assert _number(database, _SUCCEEDED) == count
    empty_cells = [""] * (len(HEADINGS) - 2)
    return ["all ended", f"{rate:.0f}/s", *empty_cells]


@contextmanager
def _gateways(
    home: Path,
    end_file: Path,
) -> Iterator[tuple[list[Node], sa.Engine]]:
    """Start three gateways of one node, whose containers run until the file exists."""
    with ExitStack() as stack:
        url = stack.enter_context(careless_database("soak"))
        federation = Federation(
            home,
            [GUEST, "second", "third"],
            PROCESS_ENGINE,
            fresh=True,
        )
        gateways = list(federation.nodes.values())
        program = [sys.executable, "-m", "tools.bench.memory_node", "--until", str(end_file)]
        for gateway in gateways:
            gateway.prefix = program
            gateway.settings["node"] = {"id": GUEST}
            gateway.settings["database"] = {"url": url}
            gateway.settings["storage"] = {"url": f"file://{home / 'shared'}"}
            gateway.settings.pop("route_table")
        stack.enter_context(federation)
        gateways[0].register(provider())
        database = sa.create_engine(url)
        stack.callback(database.dispose)
        yield gateways, database


def _status_quantiles(
    gateways: Sequence[Node],
    job_ids: Sequence[str],
) -> list[str]:
    """Ask for the state of jobs, at each gateway in turn; return the median and p99."""
    times = []
    with httpx.Client(
        trust_env=False,
        verify=NO_TLS,
        timeout=60,
    ) as client:
        for number, job_id in enumerate(job_ids):
            gateway = gateways[number % len(gateways)]
            times.append(status_time(client, gateway, job_id))
    times.sort()
    return [milliseconds(quantile(times, share)) for share in (0.5, 0.99)]


def _memory(gateways: Sequence[Node]) -> str:
    """Return the resident memory of each gateway."""
    megabytes = [f"{resident(gateway) / _MIB:.0f}" for gateway in gateways]
    return f"{', '.join(megabytes)} MB"


def _wait_for_status(
    database: sa.Engine,
    table: str,
    status: str,
    count: int,
) -> None:
    """Wait until ``count`` rows of a table have a status."""
    query = f"select count(*) from {table} where status = '{status}'"

    def have_status() -> bool:
        return _number(database, query) == count

    wait_for(have_status, _TIMEOUT, 1.0, f"{count} of {table} are {status}")


def _counters(database: sa.Engine) -> Mapping[str, int]:
    """Return the server's counters of statements, which include all other work on the server."""
    with database.connect() as connection:
        rows = connection.execute(sa.text(_COUNTERS)).all()
    return {str(name): int(value) for name, value in rows}


def _statements(
    before: Mapping[str, int],
    after: Mapping[str, int],
    jobs: int,
) -> list[str]:
    """Return the reads and the writes per job."""
    per_job = []
    for names in (_READS, _WRITES):
        statements = sum(after[name] - before[name] for name in names)
        per_job.append(f"{statements / jobs:.0f}")
    return per_job


def _number(database: sa.Engine, query: str) -> int:
    """Return the number that a query yields; 0 for NULL."""
    with database.connect() as connection:
        return int(connection.execute(sa.text(query)).scalar() or 0)
