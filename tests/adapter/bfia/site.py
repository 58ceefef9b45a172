"""A node among peers of each dialect; one scripted peer plays them all."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from itertools import count
from pathlib import Path
from typing import Any

from gateway.bootstrap.parts import Pace
from gateway.domain.job import Job
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import JobSpec, NodeId
from gateway.domain.states import TaskStatus
from gateway.ports import Callback
from tests.adapter.bfia.scripted import Answer, Received, ScriptedPeer, says, scripted
from tests.builders import a_spec
from tests.contracts.apis import IMAGE, registration
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, Node
from tests.memory_engine import MemoryEngine, Script
from tests.world import World

# The peers, by the profile of their routes.
SPEC = "JG0100000000000001"
FATE = "JG0100000000000002"
KUSCIA = "JG0100000000000003"
PROFILES = {
    SPEC: "spec",
    FATE: "fate",
    KUSCIA: "kuscia",
}

# Prefixes of the paths for other nodes, and of the paths for the own platform.
CONTROL = "/v1/interconn/schedule"
PLATFORM = "/v1/platform/schedule"

# Numbers for job ids; all tests of a module share one node.
_numbers = count()


@dataclass(frozen=True)
class Site:
    """A node, and the scripted peer that plays all of its partners."""

    node: Node
    peer: ScriptedPeer

    # ------------------------------------------------------------ requests to the node

    def send_as(
        self,
        sender: NodeId,
        path: str,
        body: Any,
        method: str = "POST",
    ) -> dict[str, Any]:
        """Send a control request to the node as one of its peers; return the body of the response.

        The HTTP status has to be 200.
        """
        response = self.node.request(
            method,
            CONTROL + path,
            listener="peer",
            json=body,
            headers={"x-node-id": sender},
        )
        assert response.status_code == 200
        return dict(response.json())

    # The name that tests of other packages use.
    asks = send_as

    def platform(
        self,
        path: str,
        **params: str,
    ) -> dict[str, Any]:
        """Query the node as its platform does; return the body of the response."""
        return dict(self.node.get(PLATFORM + path, params=params).json())

    # ------------------------------------------------------------ what the peer received

    def requests_about(self, job_id: str) -> list[Received]:
        """Return the requests that the peer received about a job or its tasks.

        The node may still send requests about the job of an earlier test.
        """
        ids = {job_id}
        job = self.node.store.jobs.find(job_id)
        if job:
            ids.update(task.task_id for task in job.tasks.values())
        local = self.node.store.local_jobs.find(job_id)
        if local:
            ids.update(run.task_id for run in local.runs)
        return [request for request in self.peer.requests if _names(request, ids)]

    # The name that tests of other packages use.
    asked = requests_about

    # ------------------------------------------------------------ the node's jobs

    @property
    def engine(self) -> MemoryEngine:
        """The node's engine, whose containers end when a test ends them."""
        engine = self.node.engine
        assert isinstance(engine, MemoryEngine)
        return engine

    def job(self, job_id: str) -> Job:
        """Return a job that the node schedules."""
        job: Job = self.node.store.jobs.get(job_id)
        return job

    def local_job(self, job_id: str) -> LocalJob:
        """Return a job in which the node takes part."""
        local: LocalJob = self.node.store.local_jobs.get(job_id)
        return local

    def submit(self, spec: JobSpec) -> None:
        """Submit a job that the node schedules, as the node itself."""
        self.node.coordinator.submit_job(spec, ME)

    def stop(self, job_id: str) -> None:
        """Stop a job that the node schedules, as the node itself."""
        self.node.coordinator.stop_job(job_id, "", ME)

    def take_part(self, scheduler: NodeId) -> JobSpec:
        """Take part in a job of another node, up to the start of the guest's container.

        The task's id is ``task-<job id>``.
        """
        spec = a_job_with(scheduler, scheduler=scheduler)
        self.node.participant.create_job(spec, scheduler)
        self.node.participant.start_task(
            spec.job_id,
            f"task-{spec.job_id}",
            "a",
            scheduler,
        )
        self.run(spec.job_id, "guest.0")
        return spec

    def run(self, job_id: str, label: str) -> Run:
        """Wait until a party's container has started; return its run."""

        def started_run() -> Run | None:
            for run in self.local_job(job_id).runs:
                if run.party.label == label and run.started_at is not None:
                    return run
            return None

        run: Run = wait_for(started_run, 20, 0.01, f"{label} of {job_id} has started")
        return run

    def succeed(self, job_id: str) -> Run:
        """Let the guest's container report a success and exit; return its run from before."""
        run = self.run(job_id, "guest.0")
        self.node.container_callbacks.record(Callback(TaskStatus.SUCCESS, run_id=run.run_id))
        self.engine.finish(run.name, 0)
        return run

    def wait_for_run_end(self, job_id: str) -> LocalJob:
        """Wait until the node's first run of a job is over; return the node's part."""

        def is_over() -> bool:
            return self.local_job(job_id).runs[0].over

        wait_for(is_over, 20, 0.02, f"the run of {job_id} is over")
        return self.local_job(job_id)

    def wait_for_end(self, job_id: str) -> Job:
        """Wait until a job that the node schedules has ended; return it."""

        def has_ended() -> bool:
            return self.job(job_id).ended_at is not None

        wait_for(has_ended, 30, 0.02, f"{job_id} has ended")
        return self.job(job_id)

    def wait_until_closed(self, job_id: str) -> LocalJob:
        """Wait until the node has released everything of a job; return its part."""

        def is_closed() -> bool:
            return self.local_job(job_id).closed

        wait_for(is_closed, 20, 0.02, f"{job_id} is closed")
        return self.local_job(job_id)


def _names(
    request: Received,
    ids: set[str],
) -> bool:
    """Return whether a request names one of these jobs or tasks."""
    body = request.body
    return body.get("job_id") in ids or body.get("task_id") in ids


@contextmanager
def serving_site(
    home: Path,
    pace: Pace = Pace(),
) -> Iterator[Site]:
    """Serve a node whose routes lead, in each dialect, to one scripted peer."""
    with scripted() as (peer, url), World(home) as world:
        routes = {}
        for node_id, profile in PROFILES.items():
            routes[node_id] = {
                "url": url,
                "profile": profile,
            }
        node = world.node(
            routes=routes,
            scripts={IMAGE: Script(code=None)},
            providers=[registration()],
            pace=pace,
        )
        yield Site(node, peer)


def a_job_with(
    partner: NodeId,
    dag: str = "a",
    *,
    scheduler: NodeId = ME,
) -> JobSpec:
    """Return a job in which this node is the guest and a partner the host."""
    guest = {"guest": (ME,)}
    host = {"host": (partner,)}
    # The first role is the initiator's, whose node schedules the job.
    if scheduler == ME:
        roles = guest | host
    else:
        roles = host | guest
    return a_spec(
        dag,
        roles,
        job_id=f"job-dialects-{next(_numbers)}",
        scheduler=scheduler,
    )


def by_path(*, other: Answer | None = None, **responses: Answer) -> Answer:
    """Return a script for several paths, each named by its last words, such as ``task_poll``.

    Requests to further paths get ``other``, or else a success.
    """
    default = other or says()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        name = path.removeprefix(CONTROL + "/").replace("/", "_")
        respond = responses.get(name, default)
        respond(handler)

    return answer
