"""`create_all` while the jobs' processes run, beside FATE-Flow's published server."""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from tests.e2e import fate_site
from tests.e2e.fate_site import FateSite
from tests.e2e.nodes import free_ports
from tests.plain import NO_TLS
from tools.bench.load import CREATE, quantile
from tools.bench.nodes import chain, process_engine, two_nodes
from tools.bench.parts import Rows, milliseconds, part, rounds_within

_PARTY = "9999"
_SUBMIT = "/v2/job/submit"
_CLIENTS = (1, 8, 32)
_SECONDS = 3.0  # of a measurement
_ALL_SECONDS = 22.0  # of all rounds with a number of clients
_PAUSE = 1.5  # seconds after a measurement, for the jobs that it has left
_TIMEOUT = 120.0  # seconds of a request
_END_IMMEDIATELY = "#!/bin/sh\nexit 0\n"


class _SiteAlone(FateSite):
    """A site that plays all parties of its jobs itself, so that it needs no partner."""

    def configure(self, config: dict[str, Any], grpc_port: int) -> None:
        super().configure(config, grpc_port)
        config["default_engines"]["federation"] = "standalone"
        config["authentication"]["site"] = False


@part(
    "fate",
    "create_all at two nodes and at FATE-Flow's server, whose tasks end immediately",
    ("clients", "two nodes", "p50", "FATE-Flow", "p50", "ratio of the rates", "it refused"),
)
def beside_fate_flow(options: argparse.Namespace) -> Rows:
    """Measure both in alternation, with the same client."""
    if not fate_site.PYTHON.exists():
        print(f"FATE-Flow is not measured: there is no {fate_site.HOME.name}\n")
        return
    with two_nodes(process_engine("/bin/true")) as (node, _), _fate_flow() as fate_flow:
        targets = (
            (node.operator + CREATE, chain(1)),
            (fate_flow + _SUBMIT, _job()),
        )
        for clients in _CLIENTS:
            rounds: list[list[_Responses]] = [[], []]
            for _ in rounds_within(_ALL_SECONDS, options):
                for responses, (url, body) in zip(rounds, targets, strict=True):
                    responses.append(_submit_jobs(url, body, clients))
                    time.sleep(_PAUSE)
            yield _row(clients, *rounds)


@dataclass(frozen=True)
class _Responses:
    """The responses to the clients of one round."""

    times: list[float]  # seconds of each accepted job, in ascending order
    refused: (
        int  # jobs that were refused: FATE-Flow's database is locked, or its own call times out
    )
    seconds: float  # until the last response

    @property
    def rate(self) -> float:
        """Accepted jobs per second."""
        return len(self.times) / self.seconds


def _row(
    clients: int,
    ours: list[_Responses],
    theirs: list[_Responses],
) -> list[Any]:
    """Return the row of a number of clients, from the responses of each round."""
    assert not any(responses.refused for responses in ours), "a node has refused a job"
    cells: list[Any] = [clients]
    rates = []
    for rounds in (ours, theirs):
        rate = statistics.median(responses.rate for responses in rounds)
        median = statistics.median(quantile(responses.times, 0.5) for responses in rounds)
        rates.append(rate)
        cells += [f"{rate:.0f}/s", milliseconds(median)]
    our_rate, their_rate = rates
    refused = sum(responses.refused for responses in theirs)
    return [*cells, f"{our_rate / their_rate:.2f}", refused]


def _submit_jobs(url: str, body: Mapping[str, Any], clients: int) -> _Responses:
    """Submit the job again and again by so many clients."""
    content = json.dumps(body).encode()
    start_of_all = time.perf_counter()
    end = start_of_all + _SECONDS
    times: list[float] = []
    refusals: list[str] = []

    def submit() -> None:
        headers = {"content-type": "application/json"}
        with httpx.Client(
            headers=headers,
            trust_env=False,
            verify=NO_TLS,
            timeout=_TIMEOUT,
        ) as client:
            while time.perf_counter() < end:
                start = time.perf_counter()
                response = client.post(url, content=content)
                if response.json()["code"] == 0:
                    times.append(time.perf_counter() - start)
                else:
                    refusals.append(response.text)

    threads = [threading.Thread(target=submit) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _Responses(sorted(times), len(refusals), time.perf_counter() - start_of_all)


@contextmanager
def _fate_flow() -> Iterator[str]:
    """Serve FATE-Flow with a component that ends immediately, and yield its address."""
    with TemporaryDirectory() as name:
        home = Path(name)
        program = home / "vendor" / "worker"
        program.parent.mkdir()
        program.write_text(_END_IMMEDIATELY)
        program.chmod(0o755)
        with _SiteAlone(_PARTY, home / "site", free_ports(1)[0]) as site:
            site.register("example", "1.0.0", program, "Echo")
            yield f"http://127.0.0.1:{site.port}"


def _job() -> dict[str, Any]:
    """Return a job of one task at two parties, in FATE-Flow's language."""
    parties = [{"role": role, "party_id": [_PARTY]} for role in ("guest", "host")]
    dag = {
        "parties": parties,
        "conf": {
            "initiator_party_id": _PARTY,
            "scheduler_party_id": _PARTY,
            "task": {"provider": "example:1.0.0@local"},
        },
        "stage": "train",
        "tasks": {"a": {"component_ref": "Echo", "parameters": {"name": "a"}}},
    }
    schema = {
        "dag": dag,
        "schema_version": "2.2.0",
        "kind": "fate",
    }
    return {"dag_schema": schema}
