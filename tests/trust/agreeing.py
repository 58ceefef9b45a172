"""Two nodes with key pairs, and the steps by which their people come to agreements."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.bootstrap.node import Gateway
from gateway.domain.applications import Application
from gateway.identity.keys import Keyring
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, Node, ask, running
from tests.world import write_routes

INTERCONN = "/v1/interconn"
# A node in this process may respond too late on a busy machine. A person applies again then, and
# the partner stores a repeated application once.
APPLY_TRIES = 5


@contextmanager
def two_nodes(
    home: Path,
    algorithm: str = "ed25519",
    **settings: Any,
) -> Iterator[tuple[Node, Node]]:
    """Serve `ME` and `PEER`, each with a key pair and an empty route table."""
    for name in ("me", "peer"):
        Keyring(home / name / "state").make(algorithm)
    with (
        running(home / "me", **settings) as me,
        running(home / "peer", PEER, **settings) as peer,
    ):
        yield me, peer


def set_routes(
    node: Gateway,
    routes: dict[str, Any],
) -> None:
    """Replace the route table of a node."""
    write_routes(
        Path(str(node.settings.route_table.file)),
        routes,
    )
    node.routes.reload()
    assert node.routes.problems == ()


def call_api(
    node: Gateway,
    method: str,
    path: str,
    body: Any = None,
    status: int = 200,
) -> Any:
    """Call the operators' API below /api/v1; check the status and return the body."""
    arguments = {}
    if body is not None:
        arguments["json"] = body
    response = ask(node, "operator", method, f"/api/v1{path}", **arguments)
    assert response.status_code == status, response.text
    return response.json()


def apply_for(
    node: Gateway,
    kind: str,
    partner: Gateway,
    subject: str = "",
    **fields: Any,
) -> int:
    """Apply to a partner for something; return the application's number at the applicant."""
    body = {
        "kind": kind,
        "partner": partner.settings.node.id,
        "subject": subject,
    }
    if kind == "contract":
        partner_key = partner.card.key()
        assert partner_key is not None
        body["url"] = partner.addresses()["peer"]
        body["key"] = partner_key.id
    for _ in range(APPLY_TRIES):
        response = ask(node, "operator", "POST", "/api/v1/applications", json=body | fields)
        if response.status_code == 200 or response.json()["data"]["reason"] != "PEER_UNREACHABLE":
            break
    assert response.status_code == 200, response.text
    return int(response.json()["number"])


def newest_waiting(node: Gateway) -> int:
    """Return the number of the newest application that waits for a decision at a node."""
    listed = call_api(node, "GET", "/applications?side=theirs&status=APPLIED")
    return int(listed["applications"][-1]["number"])


def approve(node: Gateway, number: int, **terms: Any) -> None:
    """Approve an application, as a person does; ``terms`` are fields of the request."""
    call_api(node, "POST", f"/applications/{number}/approve", terms)


def reject(node: Gateway, number: int) -> None:
    """Reject an application, as a person does."""
    call_api(node, "POST", f"/applications/{number}/reject", {})


def terminate(node: Gateway, number: int) -> None:
    """Terminate an approved application, as a person does."""
    call_api(node, "POST", f"/applications/{number}/terminate", {})


def edit_route(
    node: Gateway,
    partner: str,
    **fields: Any,
) -> None:
    """Change fields of a route, as a person does."""
    call_api(node, "PATCH", f"/routes/{partner}", {"route": fields})


def put_route(
    node: Gateway,
    partner: str,
    **fields: Any,
) -> None:
    """Replace the route to a partner, as a person does."""
    call_api(node, "PUT", f"/routes/{partner}", {"route": fields})


def status_of(node: Gateway, number: int) -> str:
    """Return the status of an application."""
    return str(call_api(node, "GET", f"/applications/{number}")["status"])


def wait_for_status(
    node: Gateway,
    number: int,
    status: str,
) -> None:
    """Wait until an application has a status."""

    def has_status() -> bool:
        return status_of(node, number) == status

    wait_for(has_status, 20, 0.02, f"application {number} is {status}")


def make_contract(
    me: Gateway,
    peer: Gateway,
    **fields: Any,
) -> tuple[int, int]:
    """Make a contract on the application of ``me``; return its numbers at both nodes."""
    mine = apply_for(me, "contract", peer, **fields)
    theirs = newest_waiting(peer)
    approve(peer, theirs)
    wait_for_status(me, mine, "APPROVED")
    return mine, theirs


def change_application(
    node: Gateway,
    number: int,
    **fields: Any,
) -> None:
    """Change stored fields of an application, past every rule of the API."""

    def change(application: Application) -> Application:
        return replace(application, **fields)

    node.stored_applications.change(number, change)


def forget_all(*nodes: Gateway) -> None:
    """Remove all applications and routes of nodes, so that the next test starts without any."""
    for node in nodes:
        for application in node.stored_applications.list():
            node.stored_applications.drop(application.number)
        set_routes(node, {})


def credentials(node: Gateway) -> dict[str, Any]:
    """Return the body of an application for a contract in a node's name, from public data."""
    return {**node.card.public(), **node.card.credentials()}


def send_unsigned(
    node: Gateway,
    method: str,
    path: str,
    body: Any = None,
    sender: str = ME,
) -> Any:
    """Send an unsigned request to the peers' listener; return the body of the response."""
    headers = {}
    if sender:
        headers["x-source-node-id"] = sender
    kind_of_body = "params" if method == "GET" else "json"
    arguments = {kind_of_body: body}
    return ask(node, "peer", method, INTERCONN + path, headers=headers, **arguments).json()
