"""New routes require signatures unless a person explicitly decides otherwise."""

from pathlib import Path

import pytest
import yaml

from bfia_gateway_client import Client
from gateway.identity.keys import KEY_GENERATORS, KeyPair
from route_table.document import parse
from tests.cli import call_node
from tests.e2e.nodes import ROOT
from tests.inprocess import ME, PEER
from tests.trust.agreeing import call_api, put_route, set_routes
from tests.trust.peer_requests import PeerRequest
from tests.world import UNREACHABLE

KEY = KeyPair(KEY_GENERATORS["ed25519"]()).public
UNSIGNED = PeerRequest()  # a poll in the name of the partner


@pytest.fixture
def me(world):
    """Give a node without routes."""
    return world.node()


def add_by_command(node, **fields):
    options = []
    for name, value in fields.items():
        options += [f"--{name}", value]
    added = call_node("route", node, "add", PEER, "--to", UNREACHABLE["url"], *options)
    assert added.exit_code == 0, added.stderr


def add_by_api(node, **fields):
    put_route(node, PEER, **UNREACHABLE, **fields)


def add_by_python_client(node, **fields):
    with Client(node.addresses()["operator"]) as client:
        client.routes.add(PEER, **UNREACHABLE, **fields)


@pytest.mark.parametrize(
    "add_route",
    [add_by_command, add_by_api, add_by_python_client],
)
def test_a_name_without_a_signature_is_no_partner(me, add_route):
    """Attack: a stranger that reaches the port names a partner in a header."""
    add_route(me)
    assert UNSIGNED.refusal_of(me) == "SENDER_UNPROVEN"
    add_route(me, keys=KEY)
    assert UNSIGNED.refusal_of(me) == "SIGNATURE_REFUSED"

    add_route(me, signing="off")
    assert UNSIGNED.refusal_of(me) == "TASK_UNKNOWN"


# ---------------------------------------------------------------- examples in the documentation


@pytest.fixture(params=["docs/first-node.md", "docs/first-node.zh-CN.md"])
def page(request):
    return (ROOT / request.param).read_text(encoding="utf-8")


def test_the_route_in_the_first_nodes_page_needs_a_signature(page):
    blocks = [text.partition("```")[0] for text in page.split("```yaml\n")[1:]]
    [table] = [block for block in blocks if block.startswith("JG")]

    [route] = parse(table).routes.values()

    assert route.keys
    assert route.signing_mode == "required"


def test_the_commands_in_the_first_nodes_page_decide_about_signatures(page):
    commands = [line for line in page.splitlines() if "`bfia-gateway route add" in line]
    assert commands
    for command in commands:
        assert "--keys" in command or "--signing off" in command


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md", "compose/README.md"])
def test_the_first_example_of_two_institutions_is_an_invitation(readme):
    text = (ROOT / readme).read_text(encoding="utf-8")
    assert "bfia-gateway partner invite" in text
    assert "bfia-gateway partner accept" in text
    assert "signing: off" not in text


# ---------------------------------------------------------------- seals


def test_seals_are_not_required_of_a_route_without_a_key_for_them(me):
    put_route(me, PEER, **UNREACHABLE, keys=KEY)

    edited = call_node("route", me, "edit", PEER, "--sealing", "required")

    assert edited.exit_code != 0
    assert f"{PEER}.sealing" in edited.stderr
    assert "partner accept --replace" in edited.stderr


def test_a_route_that_has_required_seals_without_a_key_can_be_disabled(me):
    set_routes(me, {PEER: {**UNREACHABLE, "keys": KEY, "sealing": "required"}})
    assert call_node("route", me, "disable", PEER).exit_code == 0


# ---------------------------------------------------------------- routes that need no signature


def test_a_table_in_the_form_of_host_and_port_loads_as_before(me):
    set_routes(
        me,
        {PEER: {"host": "127.0.0.1", "port": 7380}},
    )
    assert UNSIGNED.refusal_of(me) == "TASK_UNKNOWN"


FATE_SITE = {"expects": {"app_id": "a", "app_token": "t"}}


@pytest.mark.parametrize(
    ("sites", "fields"),
    [
        ({}, {"signing": "off"}),
        ({PEER: FATE_SITE}, {}),
    ],
    ids=["explicitly unsigned", "signed in FATE's way"],
)
def test_a_route_to_a_fate_site_decides_about_signatures(world, sites, fields):
    node = world.node(settings={"fate": {"enabled": True, "sites": sites}})
    put_route(node, PEER, **UNREACHABLE, profile="fate-partner", **fields)


def test_a_route_to_a_fate_site_without_a_decision_is_refused(world):
    node = world.node(settings={"fate": {"enabled": True, "sites": {}}})
    body = {"route": {**UNREACHABLE, "profile": "fate-partner"}}

    refusal = call_api(node, "PUT", f"/routes/{PEER}", body, 400)

    assert "signing" in refusal["data"]["problems"][0]["path"]


def test_the_default_and_the_nodes_own_entry_are_written_as_given(me):
    put_route(me, "default", **UNREACHABLE)
    put_route(
        me,
        ME,
        url="https://127.0.0.1:9",
        server_name="gw",
    )

    file = Path(str(me.settings.route_table.file))
    for entry in yaml.safe_load(file.read_text()).values():
        assert "signing" not in entry
