"""The requests that are made of a peer, beside what the exchanges show: trace, reachability, indices."""

from pathlib import Path

import pytest

from adapter.bfia import translate
from adapter.bfia.client import BfiaProtocol
from adapter.bfia.profiles import PROFILES
from gateway.runtime.context import traced
from route_table.live import LiveRoutes
from tests.adapter.bfia.scripted import Clients, ScriptedPeer
from tests.builders import a_spec
from tests.e2e.nodes import free_ports
from tests.inprocess import ME, STRANGER


def test_the_trace_follows_the_job(peer: ScriptedPeer, spec_peer: Clients):
    spec_peer.scheduler.submit_job(a_spec(trace_id="trace-of-job"), ME)
    with traced("trace-of-call"):
        spec_peer.participant.start_job("job-1", ME)
    assert [a.headers["x-trace-id"] for a in peer.asked] == ["trace-of-job", "trace-of-call"]


def test_a_node_is_reachable_where_its_route_has_a_listener(served: tuple[ScriptedPeer, str], tmp_path: Path):
    file = tmp_path / "routes.yml"
    file.write_text(f"A: {{url: '{served[1]}'}}\nB: {{url: 'http://127.0.0.1:{free_ports(1)[0]}'}}\n")
    protocol = BfiaProtocol(ME, LiveRoutes(file))
    assert [protocol.reaches(node) for node in ("A", "B", STRANGER)] == [True, False, False]
    protocol.close()


@pytest.mark.parametrize("profile", PROFILES)
def test_indices_are_sent_one_by_one(profile: str):
    """``"0|1"`` is read, but not every peer reads it."""
    roles = {"guest": ("n1",), "host": ("n2", "n3", "n4")}
    common = {"common": {"sync_type": "poll"}}
    spec = a_spec(
        "a; b",
        roles,
        job_params=common | {"host": {"0|1": {"resources": {"cpu": 1}}, "1": {"resources": {"memory": 2}}}},
        task_params={"host": {"0|1|2": {"a": {"x": 1, "y": 1}}, "1": {"a": {"y": 2}}, "2": {"b": {"z": 3}}}},
    )
    sent = translate.create_body(spec, PROFILES[profile])["config"]
    assert sent["job_params"] == common | {
        "host": {"0": {"resources": {"cpu": 1}}, "1": {"resources": {"cpu": 1, "memory": 2}}}
    }
    task_params = {k: {t: v for t, v in e.items() if v} for k, e in sent["task_params"]["host"].items()}
    assert task_params == {
        "0": {"a": {"x": 1, "y": 1}},
        "1": {"a": {"x": 1, "y": 2}},
        "2": {"a": {"x": 1, "y": 1}, "b": {"z": 3}},
    }
