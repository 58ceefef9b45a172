"""Peers whose routes are tested, and the test of such a route."""

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import yaml

from adapter.bfia.connections import Connections
from adapter.bfia.peer import Peer
from adapter.bfia.route_check import STEPS, try_route
from gateway.runtime.trials import Result, Step
from route_table.live import LiveRoutes
from route_table.proof import ListenerProof
from tests.adapter.bfia.scripted import Answer, says, scripted
from tests.inprocess import ME, PEER

# ---------------------------------------------------------------- peers


def greeting(**fields: Any) -> Answer:
    """Return the answer of a healthy peer to hello; ``fields`` replace fields of its data."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        data = {
            "node_id": PEER,
            "institution": "JG2",
            "gateway": "1",
            "protocol": "1.2.0",
            "knows_you": True,
            # the present when the request arrives
            "time_ms": int(time.time() * 1000),
            "back": {
                "ok": True,
                "ms": 1.0,
            },
        }
        says(data=data | fields)(handler)

    return answer


@contextmanager
def serving_peer(
    response: Answer | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[int]:
    """Serve a peer, by default a healthy one; yield its port."""
    with scripted(tls) as (peer, url):
        peer.will(response or greeting())
        _, _, port = url.rpartition(":")
        yield int(port)


# ---------------------------------------------------------------- routes under test


def local(port: int, **fields: Any) -> dict[str, Any]:
    """Return the entry of a route to a port of this machine."""
    return {"host": "127.0.0.1", "port": port, **fields}


def by_tls(port: int, **fields: Any) -> dict[str, Any]:
    """Return the entry of a route by TLS to a port of this machine."""
    return {"url": f"https://127.0.0.1:{port}", **fields}


def run_trial(
    home: Path,
    entry: dict[str, Any] | None,
    listener: ListenerProof = ListenerProof(is_local=True),
    **routes: dict[str, Any],
) -> dict[str, Step]:
    """Test the route to the peer; return the steps by name.

    Without an entry there is no such route; ``routes`` are further ones. By default only this
    machine reaches the node's ``listener``.
    """
    file = home / "routes.yml"
    if entry is not None:
        routes[PEER] = entry
    file.write_text(yaml.safe_dump(routes))
    live_routes = LiveRoutes(file)
    connections = Connections()
    try:
        peer = Peer(ME, PEER, live_routes.resolve, connections)
        steps = try_route(peer, live_routes.table, PEER, ME, listener)
    finally:
        connections.close()
    assert [step.name for step in steps] == list(STEPS)
    return {step.name: step for step in steps}


def failed_steps(steps: dict[str, Step]) -> list[str]:
    """Return the failed steps. Fails if a fault has no cause or no remedy.

    A peer of another product makes the step ``answer`` a warning without either.
    """
    for step in steps.values():
        is_fault = step.result in (Result.FAILED, Result.WARNING)
        if is_fault and step.name != "answer":
            assert step.cause, step
            assert step.remedy, step
    return [step.name for step in steps.values() if step.result is Result.FAILED]
