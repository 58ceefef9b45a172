"""The step of the look at a node that is about routes: the file, and whether something listens at each address."""

import queue
import socket
import threading
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from gateway.config.schema import Settings
from gateway.diagnostics.checkup_certificates import table_of
from gateway.runtime.checks import Result, Step
from gateway.text import counted

_CONNECT_SECONDS = 2.0
_TOGETHER_SECONDS = 3.0
"""for all addresses: a name that nobody answers for may take longer, and is then told as silent"""
_MOST_SHOWN = 5

Address = tuple[str, int]


def routes_of(settings: Settings) -> Step:
    """Read the file, and connect once to each address of an enabled entry; no request is sent."""
    routes = table_of(settings)
    if routes.problems:
        cause = "; ".join(map(str, routes.problems))
        return Step("routes", Result.FAILED, "", cause, "correct the file; the last good table stays in force")
    there = counted(len(routes.table.routes), "node")
    direct = {r.node: _address(r.url) for r in routes.table.routes.values() if r.enabled and r.url and not r.via}
    if not direct:
        return Step(
            "routes", Result.OK, f"{there}, none of them reached directly" if routes.table.routes else there
        )
    wrong = _tried(sorted(set(direct.values())))
    away = [f"{node}: {wrong[address]}" for node, address in direct.items() if wrong[address]]
    if away:
        more = f"; and {len(away) - _MOST_SHOWN} more" if len(away) > _MOST_SHOWN else ""
        remedy = "correct host or port, or have the peer started; more is told by: bfia-gateway route test NODE"
        return Step("routes", Result.WARNING, there, "; ".join(away[:_MOST_SHOWN]) + more, remedy)
    found = (
        f"{there}; something listens at each address; who, and the way back, tells: bfia-gateway route test NODE"
    )
    return Step("routes", Result.OK, found)


def _address(url: str) -> Address:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _tried(addresses: Sequence[Address]) -> dict[Address, str]:
    """Return what is wrong with each address; empty where something listens."""
    heard: queue.SimpleQueue[tuple[Address, str]] = queue.SimpleQueue()
    for address in addresses:  # daemons: a name's look-up cannot be given up
        threading.Thread(target=lambda at: heard.put((at, _connected(at))), args=(address,), daemon=True).start()
    found = dict.fromkeys(addresses, f"no answer within {_TOGETHER_SECONDS:g} s")
    end = time.monotonic() + _TOGETHER_SECONDS
    for _ in addresses:
        try:
            address, wrong = heard.get(timeout=max(end - time.monotonic(), 0.001))
        except queue.Empty:
            break
        found[address] = wrong
    return found


def _connected(address: Address) -> str:
    host, port = address
    try:
        with socket.create_connection(address, _CONNECT_SECONDS):
            return ""
    except (socket.gaierror, UnicodeError) as error:
        return f"the name {host} leads nowhere ({error})"
    except ConnectionRefusedError:
        return f"nothing listens at {host}:{port}"
    except OSError as error:
        return f"{host}:{port} cannot be reached ({error})"
