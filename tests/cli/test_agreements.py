"""Contract and dataset by the commands alone, at two nodes that know nothing of each other."""

from typing import Any

import pytest
import yaml

from adapter.bfia.examples import A_JOB
from gateway.bootstrap.node import Gateway
from gateway.errors import Invalid
from tests.builders import a_spec
from tests.cli import call_node, json_from_node
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER, ask, running
from tests.trust.agreeing import two_nodes


def done(node: Gateway, *words: str) -> str:
    said = call_node("partner", node, *words)
    assert said.exit_code == 0, said.stderr
    return said.stdout


def listed(node: Gateway, *words: str) -> list[dict[str, Any]]:
    return list(json_from_node("partner", node, "applications", *words)["applications"])


def test_two_admins_agree_on_a_contract_and_a_dataset(tmp_path):
    with two_nodes(tmp_path) as (me, peer):
        everywhere = (PEER, "--to", peer.addresses()["peer"], "--address", "https://0.0.0.0:7380")
        refused = call_node("partner", me, "apply", "contract", *everywhere)
        assert refused.exit_code == 2
        assert "give --address, or set listen.peer.advertise" in refused.stderr
        to_peer = ("--to", peer.addresses()["peer"], "--key", peer.card.key().id)  # type: ignore[union-attr]
        done(me, "apply", "contract", PEER, *to_peer, "--days", "30")
        assert me.addresses()["peer"] in done(peer, "applications", "--waiting")
        [waits] = listed(peer, "--waiting")
        assert waits["key"] == me.card.key().id
        assert waits["expires_at"]  # type: ignore[union-attr]
        assert "APPROVED" in done(peer, "approve", str(waits["number"]), "--reason", "contract 17")
        wait_for(lambda: listed(me)[0]["status"] == "APPROVED")
        form = {
            "namespace": "bank",
            "name": "credit",
            "head": "true",
            "partitions": "1",
            "meta": "{}",
        }
        file = {"file": ("t.csv", b"id,x\na,1\n", "text/csv")}
        assert (
            ask(
                peer, "operator", "POST", "/v2/component/upload/file", data=form, files=file
            ).json()["code"]
            == 0
        )
        assert call_node("data", peer, "publish", "bank#credit", "--to", ME).exit_code == 0
        assert "bank#credit" in done(me, "offers", PEER)
        done(me, "apply", "dataset", PEER, "bank#credit", "--jobs", "10")
        [waits] = listed(peer, "--waiting")
        assert waits["most_jobs"] == 10
        done(peer, "approve", str(waits["number"]), "--jobs", "5")
        wait_for(lambda: listed(me)[-1]["most_jobs"] == 5)
        assert [g["node"] for g in json_from_node("data", peer, "grants")["grants"]] == [ME]
        project = tmp_path / "project.yml"
        project.write_text(yaml.safe_dump({"name": "scoring"}))
        done(me, "apply", "project", PEER, "project-1", "--fields", str(project))
        spec = a_spec(roles={"guest": (ME,), "host": ("ALL_SITES",)}, flow_id="project-1")
        with pytest.raises(Invalid, match="needs an approved project"):
            me.offers.expanded(spec)
        [waits] = listed(peer, "--waiting")
        done(peer, "approve", str(waits["number"]))
        wait_for(lambda: listed(me)[-1]["status"] == "APPROVED")
        assert [(p.label, p.node) for p in me.offers.expanded(spec).parties] == [
            ("guest.0", ME),
            ("host.0", PEER),
        ]
        for role, flow, reason in (
            (["ALL_SITES"], "project-2", "PROJECT_UNKNOWN"),
            (["ALL_SITES", "ALL_SITES"], "project-1", "INVALID"),
            ([PEER, "ALL_SITES"], "project-1", "INVALID"),
        ):
            job = {
                **A_JOB,
                "flow_id": flow,
                "config": {**A_JOB["config"], "role": {"guest": [ME], "host": role}},
            }
            for path in ("/v1/platform/schedule/job/create_all", "/api/v1/jobs/plan"):
                refused = ask(me, "operator", "POST", path, json=job).json()
                assert reason in str(refused) and f"config.role.host[{len(role) - 1}]" in str(
                    refused
                ), refused
        done(me, "apply", "project", PEER, "project-2", "--fields", str(project))
        [waits] = listed(peer, "--waiting")
        done(peer, "reject", str(waits["number"]))
        mine = str(listed(me)[-1]["number"])
        wait_for(lambda: "REJECTED" in done(me, "refresh", mine))
        assert call_node("data", peer, "unpublish", "bank#credit").exit_code == 0
        ended = done(me, "terminate", str(listed(me)[0]["number"]))
        assert f"the route to {PEER} is disabled" in ended
        assert not me.routes.table.routes[PEER].enabled
        noted = [
            line.detail["after"]["status"]
            for line in peer.audit.list(action="/applications/", limit=9)
        ]
        assert noted == ["REJECTED", "APPROVED", "APPROVED", "APPROVED"]
        refused = call_node("partner", me, "apply", "dataset", PEER, "bank#credit")
        assert refused.exit_code == 1
        assert "NO_CONTRACT" in refused.stderr


@pytest.mark.parametrize("level", ["open", "known"])
def test_a_node_without_a_route_is_known_at_level_open_only(tmp_path, level):
    with running(tmp_path, trust={"level": level}) as node:
        headers = {"x-source-node-id": STRANGER}
        body = {"task_id": "t", "role": "guest"}
        said = ask(
            node, "peer", "POST", "/v1/interconn/schedule/task/poll", json=body, headers=headers
        ).json()
        assert said["data"]["reason"] == ("TASK_UNKNOWN" if level == "open" else "NOT_AUTHORISED")
