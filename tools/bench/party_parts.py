"""Jobs with more and more parties: the submission and the whole job."""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.e2e.nodes import ROOT, Federation, Node, free_ports, wait_for
from tools.bench import load
from tools.bench.nodes import GUEST, chain, provider, reporting_engine
from tools.bench.parts import Rows, milliseconds, part
from tools.bench.requests import is_listening

_PARTIES = (2, 5, 10)
_JOBS = 10  # of a round, for each number of parties
_DELAY = 0.02  # seconds in which a partner behind a line answers
_FIRST_HOST = 33_00000000


@part(
    "parties",
    "Jobs of one task by the number of parties (process engine)",
    (
        "partners",
        "parties",
        "create_all",
        "by that of 2",
        "the job",
        "by that of 2",
    ),
)
def parties(options: argparse.Namespace) -> Rows:
    """Measure jobs with partners behind a line of 20 ms, and with real ones on the same cores.

    The numbers of parties alternate, so that other work of the machine slows them alike.
    """
    hosts = [f"JG0100{_FIRST_HOST + number:010}" for number in range(max(_PARTIES) - 1)]
    kinds = {
        f"behind a line of {milliseconds(_DELAY)}": _with_simulated_partners,
        "real nodes on the same cores": _with_real_partners,
    }
    for kind, nodes in kinds.items():
        with nodes(hosts) as guest:
            yield from _rows(kind, guest, hosts, options.rounds or 1)


def _rows(
    kind: str,
    guest: Node,
    hosts: Sequence[str],
    rounds: int,
) -> Iterator[list[Any]]:
    """Yield the medians of the jobs by their number of parties."""
    submissions: dict[int, list[float]] = {count: [] for count in _PARTIES}
    ends: dict[int, list[float]] = {count: [] for count in _PARTIES}
    _measure(guest, _job(hosts))  # connects to every partner
    for _ in range(rounds * _JOBS):
        for count in _PARTIES:
            submission, end = _measure(guest, _job(hosts[: count - 1]))
            submissions[count].append(submission)
            ends[count].append(end)
    first = _PARTIES[0]
    for count in _PARTIES:
        row: list[Any] = [kind, count]
        for times in (submissions, ends):
            median = statistics.median(times[count])
            row += [milliseconds(median), f"{median / statistics.median(times[first]):.2f}"]
        yield row


def _job(hosts: Sequence[str]) -> dict[str, Any]:
    """Return a job of one task at the guest and these hosts."""
    job = chain(1, mode="callback")
    job["config"]["role"]["host"] = list(hosts)
    return job


def _measure(guest: Node, job: dict[str, Any]) -> tuple[float, float]:
    """Return the seconds until a job is accepted, and until it has succeeded."""
    start = time.perf_counter()
    job_id = guest.submit(job)
    accepted = time.perf_counter() - start
    state = load.wait_until_ended(guest, job_id)
    assert state["outcome"] == "SUCCEEDED", state
    return accepted, time.perf_counter() - start


@contextmanager
def _with_real_partners(hosts: Sequence[str]) -> Iterator[Node]:
    """Run the guest's node and one node per host, and yield the guest's."""
    with TemporaryDirectory() as home:
        federation = Federation(Path(home), [GUEST, *hosts], reporting_engine(), fresh=True)
        with federation:
            for node in federation.nodes.values():
                node.register(provider())
            yield federation[GUEST]


@contextmanager
def _with_simulated_partners(hosts: Sequence[str]) -> Iterator[Node]:
    """Run the guest's node and one process that plays the hosts, and yield the guest's."""
    ports = free_ports(len(hosts))
    with TemporaryDirectory() as home, ExitStack() as stack:
        federation = Federation(Path(home), [GUEST], reporting_engine(), fresh=True)
        guest = federation[GUEST]
        guest.route(**dict(zip(hosts, ports, strict=True)))
        stack.enter_context(federation)
        guest.register(provider())
        addresses = [f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)]
        program = [sys.executable, "-m", "tools.bench.partners"]
        partners = subprocess.Popen([*program, str(_DELAY), guest.peer, *addresses], cwd=ROOT)
        stack.callback(partners.wait)
        stack.callback(partners.terminate)
        for port in ports:
            wait_for(partial(is_listening, port), about="the partners serve")
        yield guest
