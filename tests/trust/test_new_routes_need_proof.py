"""What writes a route for people writes one whose requests need proof, or that says that they do not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bfia_gateway_client import Client
from gateway.bootstrap.node import Gateway
from route_table.document import parse
from tests.cli import asking
from tests.e2e.nodes import ROOT
from tests.inprocess import ME, PEER, ask, running
from tests.trust.agreeing import route
from tests.trust.test_removing_never_weakens import ADDRESS, KEY, polled

FIRST_NODE = ("docs/first-node.md", "docs/first-node.zh-CN.md")


def by_command(node: Gateway, **more: str) -> None:
    words = [word for key, value in more.items() for word in (f"--{key}", value)]
    added = asking("route", node, "add", PEER, "--to", ADDRESS["url"], *words)
    assert added.exit_code == 0, added.stderr


def by_the_api(node: Gateway, **more: str) -> None:
    body = {"route": {**ADDRESS, **more}}
    assert ask(node, "operator", "PUT", f"/api/v1/routes/{PEER}", json=body).status_code == 200


def by_the_python_client(node: Gateway, **more: str) -> None:
    with Client(node.addresses()["operator"]) as client:
        client.routes.add(PEER, **ADDRESS, **more)


@pytest.mark.parametrize("added", [by_command, by_the_api, by_the_python_client])
def test_the_name_alone_is_no_partner(tmp_path: Path, added: Callable[..., None]):
    """Attack: whoever reaches the port names a partner in a header."""
    with running(tmp_path) as me:
        added(me)
        assert polled(me) == "SIGNATURE_REFUSED"
        added(me, keys=KEY)
        assert polled(me) == "SIGNATURE_REFUSED"
        added(me, signing="off")
        assert polled(me) == "TASK_UNKNOWN"


@pytest.mark.parametrize("page", FIRST_NODE)
def test_the_route_in_the_first_nodes_page_needs_a_signature(page: str):
    text = (ROOT / page).read_text(encoding="utf-8")
    (example,) = (block for block in text.split("```yaml\n")[1:] if block.startswith("JG"))
    (entry,) = parse(example.partition("```")[0]).routes.values()
    assert entry.keys and entry.signing_mode == "required"
    commands = [line for line in text.splitlines() if "`bfia-gateway route add" in line]
    assert commands and all("--keys" in line or "--signing off" in line for line in commands)


@pytest.mark.parametrize("file", ["compose/bank/routes.yml", "compose/partner/routes.yml"])
def test_an_example_without_keys_says_so(file: str):
    for entry in parse((ROOT / file).read_text()).routes.values():
        assert entry.signing == "off"


def test_a_table_in_the_form_of_host_and_port_loads_as_before(tmp_path: Path):
    with running(tmp_path) as me:
        route(me, {PEER: {"host": "127.0.0.1", "port": 7380}})
        assert polled(me) == "TASK_UNKNOWN"


@pytest.mark.parametrize(
    ("sites", "entry", "status"),
    [
        ({}, {"profile": "fate-partner"}, 400),
        ({}, {"profile": "fate-partner", "signing": "off"}, 200),
        ({PEER: {"expects": {"app_id": "a", "app_token": "t"}}}, {"profile": "fate-partner"}, 200),
    ],
)
def test_a_site_of_fate_signs_or_the_route_says_that_it_does_not(
    tmp_path: Path,
    sites: dict[str, Any],
    entry: dict[str, str],
    status: int,
):
    with running(tmp_path, fate={"enabled": True, "sites": sites}) as me:
        body = {"route": {**ADDRESS, **entry}}
        answer = ask(me, "operator", "PUT", f"/api/v1/routes/{PEER}", json=body)
        assert answer.status_code == status, answer.text
        assert status == 200 or "signing" in answer.json()["data"]["problems"][0]["path"]


def test_the_entries_for_nobody_in_particular_are_written_as_given(tmp_path: Path):
    with running(tmp_path) as me:
        body = {"route": ADDRESS}
        assert ask(me, "operator", "PUT", "/api/v1/routes/default", json=body).status_code == 200
        own = {"route": {"url": "https://127.0.0.1:9", "server_name": "gw"}}
        assert ask(me, "operator", "PUT", f"/api/v1/routes/{ME}", json=own).status_code == 200
        written = yaml.safe_load((tmp_path / "routes.yml").read_text())
        assert all("signing" not in entry for entry in written.values())
