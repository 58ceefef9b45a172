"""Jobs with nodes that need different forms of task ids."""

import copy

from adapter.bfia.examples import A_JOB
from tests.inprocess import ME, PEER, STRANGER
from tests.trust.agreeing import set_routes

UNREACHABLE = {
    "host": "127.0.0.1",
    "port": 9,
    "signing": "off",
}
PROFILES = {
    PEER: "fate-partner",
    STRANGER: "kuscia",
}


def test_a_job_with_a_fate_and_a_kuscia_node_is_refused_with_the_cause(world):
    fate = {
        "enabled": True,
        "sites": {},
    }
    node = world.node(settings={"fate": fate})
    routes = {}
    for partner, profile in PROFILES.items():
        routes[partner] = UNREACHABLE | {"profile": profile}
    set_routes(node, routes)
    job = copy.deepcopy(A_JOB)
    job["config"]["role"] = {
        "guest": [ME],
        "host": list(PROFILES),
    }
    job["config"]["initiator"] = {
        "role": "guest",
        "node_id": ME,
    }

    response = node.post("/v1/platform/schedule/job/create_all", job)

    rules = {}
    for problem in response.json()["data"]["problems"]:
        rules[problem["path"]] = problem["rule"]
    assert f"{PEER} only those of FATE" in rules["config.role.host[1]"]
    assert "config.role.host[0]" not in rules
