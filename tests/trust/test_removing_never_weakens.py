"""A person who removes fields of a route never opens the node further than before."""

from pathlib import Path

import pytest
import yaml

from gateway.diagnostics.network import signing_of
from gateway.identity.keys import KEY_GENERATORS, KeyPair
from gateway.runtime.trials import Result
from tests.inprocess import PEER
from tests.trust.agreeing import call_api, edit_route, put_route, set_routes
from tests.trust.peer_requests import PeerRequest
from tests.world import UNREACHABLE, write_routes

KEY = KeyPair(KEY_GENERATORS["ed25519"]()).public
UNSIGNED = PeerRequest()  # a poll in the name of the partner


@pytest.fixture
def me(world):
    """Give a node without routes."""
    return world.node()


def route_file(node):
    """Return the file of a node's route table."""
    return Path(str(node.settings.route_table.file))


def set_partner(node, **fields):
    """Replace the route table by a route to the partner with these fields."""
    set_routes(node, {PEER: {**UNREACHABLE, **fields}})


# ---------------------------------------------------------------- the last key of a partner


def unset_the_keys(node):
    edit_route(node, PEER, keys=None)


def replace_the_entry(node):
    put_route(node, PEER, **UNREACHABLE)


def edit_the_file(node):
    set_partner(node)


def roll_back(node):
    call_api(node, "POST", "/route-versions/2/rollback", {})


def unset_every_field(node):
    edit_route(
        node,
        PEER,
        keys=None,
        signing=None,
        bundles=None,
    )
    edit_route(node, PEER, signing=None)


def remove_and_add_the_entry(node):
    set_routes(node, {})
    set_partner(node)


@pytest.mark.parametrize(
    "fields", [{}, {"signing": "required", "bundles": "required"}], ids=["keys", "partner"]
)
@pytest.mark.parametrize(
    "remove_keys",
    [
        unset_the_keys,
        replace_the_entry,
        edit_the_file,
        roll_back,
        unset_every_field,
        remove_and_add_the_entry,
    ],
)
def test_a_route_without_its_last_key_accepts_nothing(me, remove_keys, fields):
    """Attack: a lost key is revoked, and its finder sends requests without a signature."""
    set_partner(me)
    set_partner(me, keys=KEY, **fields)
    assert UNSIGNED.refusal_of(me) == "SIGNATURE_REFUSED"

    remove_keys(me)

    assert me.routes.table.routes[PEER].keys == ()
    assert UNSIGNED.refusal_of(me) == "SENDER_UNPROVEN"
    written = yaml.safe_load(route_file(me).read_text())
    assert written[PEER]["signing"] == "required"
    assert me.routes.problems == ()


def test_a_route_accepts_unsigned_requests_again_on_explicit_demand(me):
    set_partner(me, keys=KEY)
    edit_route(me, PEER, keys=None)
    edit_route(me, PEER, signing="off")
    assert UNSIGNED.refusal_of(me) == "TASK_UNKNOWN"


def test_a_file_that_cannot_be_written_weakens_no_route(me):
    set_partner(me, keys=KEY)
    file = route_file(me)
    # A folder in the place of the temporary file: the gateway cannot write the table.
    file.with_name(".routes.yml.part").mkdir()
    write_routes(file, {PEER: UNREACHABLE})

    for _ in range(2):
        me.routes.reload()
        assert "cannot be written" in str(me.routes.problems[0])
        assert UNSIGNED.refusal_of(me) == "SENDER_UNPROVEN"


def test_doctor_names_a_route_that_accepts_nothing(me):
    set_partner(me, keys=KEY)
    edit_route(me, PEER, keys=None)

    step = signing_of(me.settings)

    assert step.result is Result.WARNING
    assert PEER in step.cause
    assert "partner accept" in step.remedy


# ---------------------------------------------------------------- the list of components


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_a_list_of_components_is_not_removed_unnoticed(me, method):
    """Without the list, the partner could run every component."""
    set_partner(
        me,
        keys=KEY,
        components="vendor/*",
    )
    path = f"/routes/{PEER}"
    entry = {**UNREACHABLE, "keys": KEY}

    refusal = call_api(me, method, path, {"route": {**entry, "components": None}}, 400)
    assert refusal["data"]["reason"] == "ROUTE_INVALID"
    assert not me.routes.table.routes[PEER].may_run("other/sum")

    call_api(me, method, path, {"route": {**entry, "components": "*"}})
    assert me.routes.table.routes[PEER].may_run("other/sum")


def test_a_file_without_the_list_of_components_leaves_it_in_force(me):
    set_partner(me, components="vendor/*")
    write_routes(route_file(me), {PEER: UNREACHABLE})

    me.routes.reload()

    assert me.routes.problems[0].path == f"{PEER}.components"
    assert not me.routes.table.routes[PEER].may_run("other/sum")
