"""Two nodes with key pairs that come to agreements, and what their people do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from gateway.bootstrap.node import Gateway
from gateway.identity.keys import Keyring
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask, running

INTERCONN = "/v1/interconn"


@contextmanager
def two_nodes(
    home: Path,
    algorithm: str = "ed25519",
    **over: Any,
) -> Iterator[tuple[Gateway, Gateway]]:
    """Serve `ME` and `PEER`, which have keys and know nothing of each other."""
    for name in ("me", "peer"):
        Keyring(home / name / "state").make(algorithm)
    with running(home / "me", **over) as me, running(home / "peer", PEER, **over) as peer:
        yield me, peer


def route(node: Gateway, routes: dict[str, Any]) -> None:
    """Replace a node's route table."""
    Path(str(node.settings.route_table.file)).write_text(yaml.safe_dump(routes))
    node.routes.reload()
    assert node.routes.problems == ()


def person(
    node: Gateway,
    method: str,
    path: str,
    body: Any = None,
    status: int = 200,
) -> Any:
    """Do something at the operators' listener."""
    answer = ask(
        node, "operator", method, f"/api/v1{path}", **({"json": body} if body is not None else {})
    )
    assert answer.status_code == status, answer.text
    return answer.json()


def applied(
    node: Gateway,
    kind: str,
    other: Gateway,
    subject: str = "",
    **more: Any,
) -> int:
    """Apply for something; return the number here."""
    body = {
        "kind": kind,
        "partner": other.settings.node.id,
        "subject": subject,
        **more,
    }
    if kind == "contract":
        compared = other.card.key()
        assert compared is not None
        body = {
            "url": other.addresses()["peer"],
            "key": compared.id,
            **body,
        }
    return int(person(node, "POST", "/applications", body)["number"])


def waiting(node: Gateway) -> int:
    """Return the number of what came last and waits here."""
    found = person(node, "GET", "/applications?side=theirs&status=APPLIED")["applications"]
    return int(found[-1]["number"])


def state(node: Gateway, number: int) -> str:
    return str(person(node, "GET", f"/applications/{number}")["status"])


def becomes(
    node: Gateway,
    number: int,
    wanted: str,
) -> None:
    wait_for(lambda: state(node, number) == wanted, 20, 0.02, f"application {number} is {wanted}")


def contract(
    me: Gateway,
    peer: Gateway,
    **more: Any,
) -> tuple[int, int]:
    """Make a contract for which `me` applies; return its numbers at both."""
    mine = applied(me, "contract", peer, **more)
    theirs = waiting(peer)
    person(peer, "POST", f"/applications/{theirs}/approve", {})
    becomes(me, mine, "APPROVED")
    return mine, theirs


def requested(
    node: Gateway,
    method: str,
    path: str,
    body: Any = None,
    sender: str = ME,
) -> Any:
    """Send a request as a peer that signs nothing."""
    more = {"params": body} if method == "GET" else {"json": body}
    headers = {"x-source-node-id": sender} if sender else {}
    return ask(node, "peer", method, INTERCONN + path, headers=headers, **more).json()
