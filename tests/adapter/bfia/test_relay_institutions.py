"""A relay finds the target of a request that names only an institution."""

import httpx
import pytest

from route_table.document import parse
from route_table.institutions import nodes_of
from tests.adapter.bfia.test_relay import body_part, response_of_relay

TABLE = """
A: {url: 'http://a', relay: true, institution: bank-a}
B: {url: 'http://b', relay: true, institution: bank-b}
B2: {url: 'http://b2', relay: true, institution: bank-b}
C: {url: 'http://c', relay: true, institution: bank-c, enabled: false}
D: {url: 'http://d', relay: true}
default: {url: 'http://e'}
"""


@pytest.mark.parametrize(
    ("institution", "nodes"),
    {
        "bank-a": ("A",),
        "bank-b": ("B", "B2"),
        "bank-c": (),
        "default": (),
        "A": ("A",),
        "D": ("D",),
        "": (),
    }.items(),
)
def test_an_institution_has_the_nodes_whose_enabled_routes_name_it(institution, nodes):
    assert nodes_of(parse(TABLE), institution) == nodes


def relay(institution):
    """Send a request of A, for an institution only, through a relay; return response and host."""
    hosts = []

    def respond(request):
        hosts.append(request.url.host)
        return httpx.Response(200, json={"code": 0})

    response = response_of_relay(
        respond,
        [body_part(b"{}")],
        routes=TABLE,
        **{"x-target-node-id": "", "x-ptp-target-inst-id": institution},
    )
    return response.json(), hosts


def test_a_request_for_an_institution_is_relayed_to_its_node():
    body, hosts = relay("D")

    assert body == {"code": 0}
    assert hosts == ["d"]


@pytest.mark.parametrize(
    ("institution", "reason"),
    [
        ("bank-b", "INSTITUTION_AMBIGUOUS"),
        ("bank-c", "INSTITUTION_UNKNOWN"),
    ],
)
def test_a_request_for_an_institution_without_one_node_is_refused(institution, reason):
    body, hosts = relay(institution)

    assert body["data"]["reason"] == reason
    assert hosts == []
