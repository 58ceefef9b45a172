"""Exchanges with peers of each dialect, as files: who asks, what goes over the wire, what it means.

In a file of ``exchanges/`` each entry has a ``source`` for the peer's side of it: ``observed`` where that form was
seen on the wire of a running peer, ``read`` where its code or the standard says so, ``invented`` where nobody
knows and something had to stand there. Ids, names and nonces are made up throughout. ``rows`` names the fields of
`Profile` that the exchange shows; ``we`` says which side this gateway is on. Unless ``exact`` is false, nothing
may stand beside what a reply shows.
"""

import functools
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter
from fastapi import FastAPI
from fastapi.testclient import TestClient

from adapter.bfia import envelope, interconn, requests
from adapter.bfia.client import ParticipantClient, SchedulerClient
from adapter.bfia.connections import Connections
from adapter.bfia.peer import PROFILE_QUESTION, Peer
from adapter.bfia.profiles import PROFILES, Profile
from adapter.bfia.requests import Peers
from gateway.domain.job import Acceptance
from gateway.domain.run import Audit
from gateway.domain.spec import Ending, Failure, JobSpec, NodeId, effective
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import Conflict, GatewayError, Invalid, NotAllowed, NotFound, Problem
from gateway.ports import JobView, Limiters, TaskNews, TaskReport, TaskView
from route_table.live import LiveRoutes
from tests.adapter.bfia.scripted import Asked, ScriptedPeer, says
from tests.builders import T0, a_spec
from tests.inprocess import ME, PEER

FOLDER = Path(__file__).with_name("exchanges")
HEADERS = (
    "x-auth-sign",
    "x-csrf-protection",
    "x-source-node-id",
    "x-node-id",
    "x-target-node-id",
    "x-nonce",
)
WHY = Failure("EXIT_1", "exit code 1", ME, "guest", "a", 1)
ENDINGS = {
    "": None,
    "FAILED": Ending(Outcome.FAILED, T0, WHY, ME),
    "SUCCEEDED": Ending(Outcome.SUCCEEDED, T0, None, ME),
}


def exchanges(profile: str) -> list[dict[str, Any]]:
    return list(json.loads((FOLDER / f"{profile}.json").read_text(encoding="utf-8")))


# ---------------------------------------------------------------- we ask


class PeerLike(Peer):
    """A peer of a given profile, whatever its route says."""

    like: Profile

    @property
    def profile(self) -> Profile:
        return self.like


def the_job() -> JobSpec:
    params = {"common": {"a": {"x": 1}}, "guest": {"0": {"a": {"dataset_id": "space#mine"}}}}
    roles = {"guest": (ME,), "host": (PEER,)}
    return a_spec(
        "a",
        roles,
        job_id="job-1",
        flow_id="",
        task_params=params,
    )


def calls(peer: Peer) -> dict[str, Callable[..., Any]]:
    """Return what can be asked of a peer, by the name that the files use."""
    s, p = SchedulerClient(peer), ParticipantClient(peer)
    return {
        "create_job": lambda: p.create_job(the_job(), ME),
        "submit_job": lambda: s.submit_job(the_job(), ME),
        "start_job": lambda: p.start_job("job-1", ME),
        "start_task": lambda: p.start_task("job-1", "task_a", "a", ME),
        "poll_task": lambda role: p.poll_task("task_a", role, ME),
        "stop_job": lambda outcome="": p.stop_job("job-1", "", ENDINGS[outcome], ME),
        "stop_task": lambda job="job-1": p.stop_task(job, "task_a", "a", ME),
        "stop_all": lambda task="": s.stop_job("job-1", task, ME),
        "job_status": lambda: s.job_status("job-1", ME),
        "report_task": lambda: s.report_task(TaskReport("task_a", "guest", TaskStatus.SUCCESS), ME),
        "report_failure": lambda: s.report_task(
            TaskReport("task_a", "guest", TaskStatus.FAILED, WHY), ME
        ),
        "ask_first": lambda: p.ask_first(the_job(), ME),
        "withdraw": lambda: p.withdraw("job-1", None, ME),
        "approve": lambda: s.confirm_job("job-1", None, ME, "audit-7"),
        "reject": lambda: s.confirm_job(
            "job-1", Failure("APPROVAL_REJECTED", "no", ME), ME, "audit-7"
        ),
        "extension": lambda: peer.ask("/job/delete", {"job_id": "job-1"}),
    }


def asked_by_us(
    one: dict[str, Any],
    profile: Profile,
    peer: ScriptedPeer,
    url: str,
    home: Path,
) -> dict[str, Any]:
    """Make the call of an exchange; return what went out, and what the answer means to us."""
    file = home / "routes.yml"
    file.write_text(f"{PEER}: {{url: '{url}'}}\n")
    reply = one["reply"]
    peer.will(says(reply["body"], reply["status"]) if reply else says())
    peer.asked.clear()
    connections = Connections()
    found = PeerLike(ME, PEER, LiveRoutes(file).resolve, connections)
    found.like = profile
    name, *arguments = one["call"]
    try:
        means = _plain(calls(found)[name](*arguments))
    except GatewayError as error:
        means = {
            "error": type(error).__name__,
            "reason": error.reason,
            "message": error.message,
        }
    finally:
        connections.close()
    for asked in peer.asked:
        _has_every_header(asked)
        assert asked.raw == json.dumps(asked.body, ensure_ascii=False).encode()
    about_jobs = [a for a in peer.asked if a.body != PROFILE_QUESTION]
    sent = [
        {
            "method": a.method,
            "target": a.target,
            "body": a.body,
        }
        for a in about_jobs
    ]
    return {"request": sent[0] if sent else None, "means": means}


def _has_every_header(asked: Asked) -> None:
    headers = asked.headers
    assert all(headers.get(name) for name in (*HEADERS, "x-trace-id")), headers
    assert not any("_" in name for name in headers)
    assert (headers["x-source-node-id"], headers["x-node-id"], headers["x-target-node-id"]) == (
        ME,
        ME,
        PEER,
    )
    assert headers["content-type"] == "application/json"
    assert abs(int(headers["x-timestamp"]) - datetime.now(UTC).timestamp() * 1000) < 3_600_000


def _plain(value: Any) -> Any:
    if isinstance(value, TaskNews):
        return str(value.status)
    if isinstance(value, JobView):
        tasks = {t.task_id: str(t.status) for t in value.tasks}
        outcome = str(value.outcome) if value.outcome else None
        return {
            "status": str(value.status),
            "outcome": outcome,
            "progress": value.progress,
            "tasks": tasks,
        }
    if isinstance(value, Acceptance) and value.waits:
        return "waits"
    if value == the_job().job_id:
        return "done"
    return "done" if value is None or value == Acceptance() else dict(value)


# ---------------------------------------------------------------- we are asked


class OneNode:
    """Use cases of a node that schedules ``job-1``: task a runs and failed here, task b is about to start.

    It was asked ``audit-7`` by the peer, and has asked about ``job-1`` itself.
    """

    def submit_job(self, spec: JobSpec, sender: NodeId) -> str:
        if sender != spec.initiator:
            raise NotAllowed(
                f"only the initiator {spec.initiator} may submit this job, not {sender}"
            )
        return spec.job_id

    def create_job(self, spec: JobSpec, sender: NodeId) -> Acceptance:
        self.submit_job(spec, sender)
        for party in spec.parties_at(ME):
            if "namespace" in effective(spec.task_params, party, "a"):
                raise Invalid(
                    [Problem("config.task_params", "task a takes no namespace", party.label)]
                )
        return Acceptance()

    def start_job(self, job_id: str, *_: Any) -> None:
        if job_id != "job-1":
            raise NotFound(f"no job {job_id} here", reason="JOB_UNKNOWN")

    start_task = stop_job = start_job

    def stop_task(
        self,
        job_id: str,
        task_id: str,
        *_: Any,
    ) -> None:
        if task_id not in ("task_a", "task_b"):
            raise NotFound(f"no task {task_id} runs here", reason="TASK_UNKNOWN")

    def poll_task(
        self,
        task_id: str,
        role: str,
        sender: NodeId,
    ) -> TaskNews:
        self.stop_task("", task_id)
        if task_id == "task_b":
            return TaskNews(TaskStatus.READY)
        return TaskNews(TaskStatus.FAILED, Failure("EXIT_3", "exit code 3", ME, "guest", "a", 3))

    def job_status(self, job_id: str, sender: NodeId) -> JobView:
        self.start_job(job_id)
        tasks = [
            TaskView("task_a", "a", TaskStatus.RUNNING),
            TaskView("task_b", "b", TaskStatus.READY),
        ]
        return JobView(job_id, JobStatus.RUNNING, tasks, scheduler=ME)

    def report_task(self, report: TaskReport, sender: NodeId) -> None:
        self.stop_task("", report.task_id)

    def apply(
        self,
        spec: JobSpec,
        audit: Audit,
        sender: NodeId,
    ) -> None:
        if audit.id != "audit-7":
            raise Conflict(f"job {spec.job_id} is here already", reason="JOB_ID_CONFLICT")

    def confirm(
        self,
        audit_id: str,
        failure: Failure | None,
        sender: NodeId,
    ) -> None:
        self.status(audit_id if audit_id != "audit-7" else "")

    def terminate(self, audit_id: str, *_: Any) -> None:
        self.status(audit_id)

    def status(self, audit_id: str, *_: Any) -> str:
        if audit_id not in ("audit-7", "audit_job-1"):
            raise NotFound(f"no audit {audit_id} is known here", reason="AUDIT_UNKNOWN")
        return "APPLIED"


def asked_of_us(one: dict[str, Any], profile: Profile) -> dict[str, Any]:
    """Answer the request of an exchange; return the reply."""
    request = one["request"]
    body = request.get("body")
    content = None if body is None else json.dumps(body, ensure_ascii=False)
    client = TestClient(_application(profile), raise_server_exceptions=False)
    answer = client.request(
        request["method"], request["target"], content=content, headers=request["headers"]
    )
    return {"status": answer.status_code, "body": answer.json()}


@functools.cache
def _application(profile: Profile) -> FastAPI:
    def profile_of(node: NodeId) -> Profile:
        return profile if node == PEER else PROFILES["spec"]

    def as_200(request: Any) -> bool:
        return profile_of(requests.incoming(request).source).errors_as_200

    limiters = Limiters(CapacityLimiter(2), CapacityLimiter(2), CapacityLimiter(2))
    node: Any = OneNode()
    app = FastAPI()
    peers = Peers(
        lambda node: node == PEER, profile_of, limiters, lambda node: False, lambda *_: None
    )
    app.include_router(interconn.router(ME, node, node, peers))
    app.include_router(interconn.audit_router(node, peers))
    envelope.install(app, as_200)
    return app
