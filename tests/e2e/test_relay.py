"""A job of two nodes without a route between them, through a third one that is killed in the middle of it."""

import copy
import sys
from pathlib import Path

import pytest
import yaml

from adapter.bfia.examples import A_JOB, A_PROVIDER
from tests.certificates import Authority
from tests.e2e import jobs
from tests.e2e.nodes import Federation, process_engine, wait_for

A, B, X = jobs.GUEST, jobs.HOST, jobs.ARBITER


def relayed(home: Path) -> Federation:
    """Return the three nodes: A and B know X by https, and each other only behind it."""
    script = Path(__file__).with_name("ping_pong.py")
    engine = process_engine("example:1.0.0", command=[sys.executable, str(script)])
    federation = Federation(home, [A, B, X], engine)
    authority = Authority(home / "certificates")
    own = {node: authority.sign(node, "127.0.0.1", node) for node in (A, B, X)}
    listen = federation[X].settings["listen"]
    listen["peer"]["tls"] = {
        "certificate": own[X].certificate,
        "key": own[X].key,
        "client_ca": authority.file,
    }
    for node, other in ((A, B), (B, A)):
        hop = {
            "url": f"https://{listen['peer']['bind']}",
            "ca": authority.file,
            "certificate": own[node].certificate,
            "key": own[node].key,
        }
        (home / node / "routes.yml").write_text(yaml.safe_dump({X: hop, other: {"via": X}}))
    ends = {n: {"url": f"http://{federation[n].settings['listen']['peer']['bind']}"} for n in (A, B)}
    (home / X / "routes.yml").write_text(yaml.safe_dump({n: {**e, "relay": True} for n, e in ends.items()}))
    return federation


@pytest.mark.slow
def test_a_job_through_a_third_node_that_is_killed_meanwhile(tmp_path: Path):
    with relayed(tmp_path) as federation:
        for node in (federation[A], federation[B]):
            node.register(A_PROVIDER)
        assert federation[A].post(f"/api/v1/routes/{B}/test", {})["good"]
        body = copy.deepcopy(A_JOB)
        body["dag"]["components"][0]["output"] = []
        body["config"]["role"] = {"guest": [A], "host": [B]}
        body["config"]["task_params"] = {"common": {"echo_1": {"rounds": 60}}}
        guest, host, relay = federation[A], federation[B], federation[X]
        job_id = guest.submit(body)
        wait_for(
            lambda: [r["status"] for n in (guest, host) for r in n.job(job_id)["runs"]] == ["RUNNING"] * 2, 30
        )
        relay.kill()
        relay.start()
        assert guest.wait_job(job_id, 90)["progress"] == 100
        for node in (guest, host):
            assert len([e for e in node.timeline(job_id) if e["event"] == "run RUNNING"]) == 1
        assert relay.get("/api/v1/jobs")["jobs"] == []  # it has seen none of the job
