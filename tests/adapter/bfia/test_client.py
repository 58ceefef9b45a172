"""The requests that are made of a peer: headers, bodies, which path, and who is sent what.

Which deviation belongs to whom: profiles ``fate`` (FATE-Flow) and ``kuscia``. Bodies marked "invented" were not
recorded from a peer.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from adapter.bfia import translate, wire
from adapter.bfia.client import BfiaProtocol
from adapter.bfia.profiles import PROFILES
from gateway.domain.spec import Ending, Failure, JobSpec
from gateway.domain.states import Outcome, TaskStatus
from gateway.ports import TaskReport
from gateway.runtime.context import traced
from route_table.live import LiveRoutes
from tests.adapter.bfia import goldens
from tests.adapter.bfia.conftest import As
from tests.adapter.bfia.scripted import Clients, ScriptedPeer, says
from tests.builders import a_spec
from tests.e2e.jobs import user_job
from tests.e2e.nodes import free_ports
from tests.inprocess import ME, PEER, STRANGER

# ---------------------------------------------------------------- headers

HEADERS = {
    "x-auth-sign",
    "x-csrf-protection",
    "x-source-node-id",
    "x-node-id",
    "x-target-node-id",
    "x-nonce",
    "x-trace-id",
    "x-timestamp",
}


def every_call(found: Clients, spec: JobSpec) -> list[tuple[str, Callable[[], Any]]]:
    """Return each call that goes out, with arguments that say something."""
    why = Failure("EXIT_1", "exit code 1", ME, "guest", "a", 1)
    ending = Ending(Outcome.FAILED, datetime(2026, 1, 1, tzinfo=UTC), why, ME)
    job, task = spec.job_id, "task_11111111111111111111111111111111"
    s, p = found.scheduler, found.participant
    return [
        ("create_all", lambda: s.submit_job(spec, ME)),
        ("stop_all", lambda: s.stop_job(job, "", ME)),
        ("stop_all of a task", lambda: s.stop_job(job, "a", ME)),
        ("status_all", lambda: s.job_status(job, ME)),
        ("callback", lambda: s.report_task(TaskReport(task, "guest", TaskStatus.RUNNING, None, job), ME)),
        (
            "callback of a failure",
            lambda: s.report_task(TaskReport(task, "guest", TaskStatus.FAILED, why, job), ME),
        ),
        ("create", lambda: p.create_job(spec, ME)),
        ("start", lambda: p.start_job(job, ME)),
        ("task start", lambda: p.start_task(job, task, "intersect_rsa_1", ME)),
        ("poll", lambda: p.poll_task(task, "guest", ME)),
        ("stop", lambda: p.stop_job(job, "", ending, ME)),
        (
            "stop of a success",
            lambda: p.stop_job(job, "", replace(ending, outcome=Outcome.SUCCEEDED, failure=None), ME),
        ),
        ("stop without a word", lambda: p.stop_job(job, "", None, ME)),
        ("stop of a task", lambda: p.stop_job(job, "a", None, ME)),
        ("task stop", lambda: p.stop_task(job, task, "a", ME)),
        ("task stop by id", lambda: p.stop_task("", task, "", ME)),
    ]


FINE = says(data={"status": "RUNNING", "job_status": "RUNNING"})
"""an answer that suits every call (a map of task states is asked for where a job is)"""


def fine(call: str) -> Any:
    return says(data={"status": {"t": "RUNNING"}}) if call == "status_all" else FINE


def test_every_call_carries_every_header(peer: ScriptedPeer, spec_peer: Clients):
    for name, call in every_call(spec_peer, the_users_job()):
        peer.will(fine(name))
        call()
        headers = peer.asked[-1].headers
        assert all(headers.get(h) for h in HEADERS), (name, headers)
        assert not any("_" in h for h in headers)
        assert headers["x-source-node-id"] == headers["x-node-id"] == ME
        assert headers["x-target-node-id"] == PEER
        assert headers["content-type"] == "application/json"
        now_ms = datetime.now(UTC).timestamp() * 1000
        assert abs(int(headers["x-timestamp"]) - now_ms) < 3_600_000


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


# ---------------------------------------------------------------- bodies


def the_users_job() -> JobSpec:
    body = wire.CreateAll.model_validate(user_job(ME, PEER))
    return translate.job_spec(body, "job-00112233445566778899aabbccddeeff", ME, "trace-1")


def test_every_request_is_this_one_to_the_byte_and_differs_by_profile_only_in_these(
    peer: ScriptedPeer, calling: As
):
    sent: dict[str, dict[str, Any]] = {}
    for profile in PROFILES:
        with calling(profile) as found:
            sent[profile] = {}
            for name, call in every_call(found, the_users_job()):
                peer.will(fine(name))
                before = len(peer.asked)
                call()
                asked = peer.asked[before:]
                assert all(a.raw == json.dumps(a.body, ensure_ascii=False).encode() for a in asked)
                sent[profile][name] = [f"{a.method} {a.target}", a.body] if (a := _only(asked)) else None
    spec = sent["spec"]
    deviations = {
        profile: {name: one for name, one in found.items() if one != spec[name]} for profile, found in sent.items()
    }
    goldens.check("requests", deviations | {"spec": spec})


def _only(asked: list[Any]) -> Any:
    assert len(asked) <= 1
    return asked[0] if asked else None


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
