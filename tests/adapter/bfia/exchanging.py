"""Example exchanges with peers of each dialect, from files: messages and their meaning.

Each entry of a file in ``exchanges/`` has these fields:

- ``we``: ``ask`` if this gateway sends the request, ``answer`` if it responds.
- ``source``: how the peer's side is known. ``observed``: seen on the wire of a running peer;
  ``read``: taken from the peer's code or the standard; ``invented``: unknown, and made up.
- ``rows``: the fields of `Profile` that the exchange shows.
- ``exact``: unless false, a reply has exactly the fields of the file.

All ids, names and nonces are made up.
"""

import functools
import json
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
from tests.adapter.bfia.scripted import Received, ScriptedPeer, says
from tests.builders import T0, a_spec
from tests.inprocess import ME, PEER

FOLDER = Path(__file__).with_name("exchanges")

# The headers of the standard, and the gateway's own, that every request has to carry.
HEADERS = (
    "x-auth-sign",
    "x-csrf-protection",
    "x-source-node-id",
    "x-node-id",
    "x-target-node-id",
    "x-nonce",
    "x-trace-id",
)

# A timestamp may differ from the clock by an hour, in milliseconds; its unit is what matters.
MAX_CLOCK_DIFFERENCE = 3_600_000

FAILURE = Failure("EXIT_1", "exit code 1", ME, "guest", "a", 1)
# How the job of a stop has ended, by the word that the files use.
ENDINGS = {
    "": None,
    "FAILED": Ending(Outcome.FAILED, T0, FAILURE, ME),
    "SUCCEEDED": Ending(Outcome.SUCCEEDED, T0, None, ME),
}


def exchanges(profile: str) -> list[dict[str, Any]]:
    """Return the exchanges with peers of a profile."""
    return list(json.loads((FOLDER / f"{profile}.json").read_text(encoding="utf-8")))


# ---------------------------------------------------------------- this gateway asks


class PeerOfProfile(Peer):
    """A peer of a given profile, whatever its route says."""

    fixed_profile: Profile

    @property
    def profile(self) -> Profile:
        """The given profile."""
        return self.fixed_profile


def the_job() -> JobSpec:
    """Return the job of all exchanges, in which this node is the guest and the peer the host."""
    return a_spec(
        "a",
        {
            "guest": (ME,),
            "host": (PEER,),
        },
        job_id="job-1",
        flow_id="",
        task_params={
            "common": {"a": {"x": 1}},
            "guest": {"0": {"a": {"dataset_id": "space#mine"}}},
        },
    )


class Calls:
    """The calls of a peer's interfaces that the files make, by the names that they use."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.scheduler = SchedulerClient(peer)
        self.participant = ParticipantClient(peer)

    def create_job(self) -> Any:
        return self.participant.create_job(the_job(), ME)

    def submit_job(self) -> Any:
        return self.scheduler.submit_job(the_job(), ME)

    def start_job(self) -> Any:
        return self.participant.start_job("job-1", ME)

    def start_task(self) -> Any:
        return self.participant.start_task("job-1", "task_a", "a", ME)

    def poll_task(self, role: str) -> Any:
        return self.participant.poll_task("task_a", role, ME)

    def stop_job(self, outcome: str = "") -> Any:
        return self.participant.stop_job(
            "job-1",
            "",
            ENDINGS[outcome],
            ME,
        )

    def stop_task(self, job_id: str = "job-1") -> Any:
        return self.participant.stop_task(job_id, "task_a", "a", ME)

    def stop_all(self, task: str = "") -> Any:
        return self.scheduler.stop_job("job-1", task, ME)

    def job_status(self) -> Any:
        return self.scheduler.job_status("job-1", ME)

    def report_task(self) -> Any:
        report = TaskReport("task_a", "guest", TaskStatus.SUCCESS)
        return self.scheduler.report_task(report, ME)

    def report_failure(self) -> Any:
        report = TaskReport("task_a", "guest", TaskStatus.FAILED, FAILURE)
        return self.scheduler.report_task(report, ME)

    def ask_first(self) -> Any:
        return self.participant.ask_first(the_job(), ME)

    def withdraw(self) -> Any:
        return self.participant.withdraw("job-1", None, ME)

    def approve(self) -> Any:
        return self.scheduler.confirm_job("job-1", None, ME, "audit-7")

    def reject(self) -> Any:
        rejection = Failure("APPROVAL_REJECTED", "no", ME)
        return self.scheduler.confirm_job("job-1", rejection, ME, "audit-7")

    def extension(self) -> Any:
        return self.peer.ask("/job/delete", {"job_id": "job-1"})


def send_ours(
    exchange: dict[str, Any],
    profile: Profile,
    peer: ScriptedPeer,
    url: str,
    home: Path,
) -> dict[str, Any]:
    """Make the call of an exchange; return the request that was sent and its result.

    The request is None if the call sends none.
    """
    file = home / "routes.yml"
    file.write_text(f"{PEER}: {{url: '{url}'}}\n")
    peer.reset()
    reply = exchange["reply"]
    if reply:
        peer.will(says(reply["body"], reply["status"]))

    connections = Connections()
    client = PeerOfProfile(
        ME,
        PEER,
        LiveRoutes(file).resolve,
        connections,
    )
    client.fixed_profile = profile
    name, *arguments = exchange["call"]
    try:
        means = _as_json(getattr(Calls(client), name)(*arguments))
    except GatewayError as error:
        means = {
            "error": type(error).__name__,
            "reason": error.reason,
            "message": error.message,
        }
    finally:
        connections.close()

    for request in peer.requests:
        _check_headers(request)
        assert request.raw == json.dumps(request.body, ensure_ascii=False).encode()
    return {
        "request": _first_about_a_job(peer.requests),
        "means": means,
    }


def _first_about_a_job(requests: list[Received]) -> dict[str, Any] | None:
    """Return the first request but the one by which the gateway learns a peer's profile."""
    for request in requests:
        if request.body != PROFILE_QUESTION:
            return {
                "method": request.method,
                "target": request.target,
                "body": request.body,
            }
    return None


def _check_headers(request: Received) -> None:
    headers = request.headers
    missing = [name for name in HEADERS if not headers.get(name)]
    assert missing == []
    assert [name for name in headers if "_" in name] == []
    assert headers["x-source-node-id"] == ME
    assert headers["x-node-id"] == ME
    assert headers["x-target-node-id"] == PEER
    assert headers["content-type"] == "application/json"
    now = datetime.now(UTC).timestamp() * 1000
    assert abs(int(headers["x-timestamp"]) - now) < MAX_CLOCK_DIFFERENCE


def _as_json(value: Any) -> Any:
    """Return the result of a call as the files write it."""
    if isinstance(value, TaskNews):
        return str(value.status)
    if isinstance(value, JobView):
        return _view_as_json(value)
    if isinstance(value, Acceptance) and value.waits:
        return "waits"
    if value in (None, Acceptance(), the_job().job_id):
        return "done"
    return dict(value)


def _view_as_json(view: JobView) -> dict[str, Any]:
    outcome = None
    if view.outcome:
        outcome = str(view.outcome)
    return {
        "status": str(view.status),
        "outcome": outcome,
        "progress": view.progress,
        "tasks": {task.task_id: str(task.status) for task in view.tasks},
    }


# ---------------------------------------------------------------- this gateway answers


class OneJobNode:
    """The use cases of a node that schedules ``job-1``.

    Task a runs and has failed at this node; task b has not started. The peer asked this node about
    the audit ``audit-7``, and this node asked the peer about ``job-1``.
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
                problem = Problem("config.task_params", "task a takes no namespace", party.label)
                raise Invalid([problem])
        return Acceptance()

    def start_job(
        self,
        job_id: str,
        *_: Any,
        **__: Any,
    ) -> None:
        if job_id != "job-1":
            raise NotFound(f"no job {job_id} here", reason="JOB_UNKNOWN")

    start_task = stop_job = start_job

    def stop_task(
        self,
        job_id: str,
        task_id: str,
        *_: Any,
        **__: Any,
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
        return TaskNews(
            TaskStatus.FAILED,
            Failure("EXIT_3", "exit code 3", ME, "guest", "a", 3),
        )

    def job_status(self, job_id: str, sender: NodeId) -> JobView:
        self.start_job(job_id)
        tasks = [
            TaskView("task_a", "a", TaskStatus.RUNNING),
            TaskView("task_b", "b", TaskStatus.READY),
        ]
        return JobView(
            job_id,
            JobStatus.RUNNING,
            tasks,
            scheduler=ME,
        )

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
        permit: str = "",
    ) -> None:
        # audit-7 is the peer's question, which the peer itself cannot answer
        if audit_id == "audit-7":
            audit_id = ""
        self.status(audit_id)

    def terminate(
        self,
        audit_id: str,
        *_: Any,
    ) -> None:
        self.status(audit_id)

    def status(
        self,
        audit_id: str,
        *_: Any,
    ) -> str:
        if audit_id not in ("audit-7", "audit_job-1"):
            raise NotFound(f"no audit {audit_id} is known here", reason="AUDIT_UNKNOWN")
        return "APPLIED"

    def permit(self, *_: Any) -> None:
        """Issue no permit before the approval."""


def answer_theirs(
    exchange: dict[str, Any],
    profile: Profile,
) -> dict[str, Any]:
    """Send the request of an exchange to a node whose peer has a profile; return the reply."""
    request = exchange["request"]
    content = None
    if request.get("body") is not None:
        content = json.dumps(
            request["body"],
            ensure_ascii=False,
        )
    client = TestClient(
        _application(profile),
        raise_server_exceptions=False,
    )
    response = client.request(
        request["method"],
        request["target"],
        content=content,
        headers=request["headers"],
    )
    return {
        "status": response.status_code,
        "body": response.json(),
    }


@functools.cache
def _application(profile: Profile) -> FastAPI:
    """Return the paths for peers of a node whose peer has a profile."""

    def profile_of(node: NodeId) -> Profile:
        if node == PEER:
            return profile
        return PROFILES["spec"]

    def as_200(request: Any) -> bool:
        return profile_of(requests.incoming(request).source).errors_as_200

    def admits(node: NodeId) -> bool:
        return node == PEER

    def is_relay(node: NodeId) -> bool:
        return False

    def ignore(*_: Any) -> None:
        pass

    limiters = Limiters(
        CapacityLimiter(2),
        CapacityLimiter(2),
        CapacityLimiter(2),
    )
    node: Any = OneJobNode()
    peers = Peers(admits, profile_of, limiters, is_relay, ignore)
    app = FastAPI()
    app.include_router(interconn.router(ME, node, node, peers))
    app.include_router(interconn.audit_router(node, peers))
    envelope.install(app, as_200)
    return app
