"""A whole node among peers of each dialect, all of which are one scripted peer."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from gateway.bootstrap.node import Gateway
from gateway.domain.run import Run
from gateway.domain.spec import JobSpec
from gateway.domain.states import TaskStatus
from gateway.ports import Callback
from provider_registry.registration import provider_from_request
from tests.adapter.bfia.scripted import Asked, ScriptedPeer, says, scripted
from tests.builders import a_spec
from tests.contracts.apis import IMAGE, registration, serving
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, Node, ask, settings
from tests.memory_engine import MemoryEngine, Script

SPEC, FATE, KUSCIA = "JG0100000000000001", "JG0100000000000002", "JG0100000000000003"
PROFILES = {
    SPEC: "spec",
    FATE: "fate",
    KUSCIA: "kuscia",
}
CONTROL = "/v1/interconn/schedule"

_numbers = count()


@dataclass(frozen=True)
class Site:
    """The node, and the one scripted peer that stands for all the others."""

    node: Gateway
    peer: ScriptedPeer

    def asks(
        self,
        sender: str,
        path: str,
        body: Any,
        method: str = "POST",
    ) -> dict[str, Any]:
        """Ask the node as a peer of some dialect does."""
        answer = ask(
            self.node, "peer", method, CONTROL + path, json=body, headers={"x-node-id": sender}
        )
        assert answer.status_code == 200
        return dict(answer.json())

    def platform(self, path: str, **params: str) -> dict[str, Any]:
        return dict(
            ask(self.node, "operator", "GET", f"/v1/platform/schedule{path}", params=params).json()
        )

    def asked(self, job_id: str) -> list[Asked]:
        """Return what the peer was asked about a job; an earlier test's job may still be spoken of."""
        job, local = self.node.store.jobs.find(job_id), self.node.store.local_jobs.find(job_id)
        ids = {job_id} | {t.task_id for t in (job.tasks.values() if job else ())}
        ids |= {r.task_id for r in (local.runs if local else ())}
        return [a for a in self.peer.asked if {a.body.get("job_id"), a.body.get("task_id")} & ids]

    def run(self, job_id: str, label: str) -> Run:
        """Return a party's run once its container is up."""

        def up() -> Run | None:
            runs = self.node.store.local_jobs.get(job_id).runs
            return next(
                (r for r in runs if r.party.label == label and r.started_at is not None), None
            )

        found: Run = wait_for(up, 20, 0.01, f"{label} of {job_id} is up")
        return found

    def succeed(self, job_id: str) -> Run:
        """Let the guest's container succeed; return its run as it was before."""
        run = self.run(job_id, "guest.0")
        self.node.participant.callback(Callback(TaskStatus.SUCCESS, run_id=run.run_id))
        assert isinstance(self.node.engine, MemoryEngine)
        self.node.engine.finish(run.name, 0)
        return run

    def take_part(self, scheduler: str) -> JobSpec:
        """Take part in a job of another node, up to its guest's container; its task is ``task-<job id>``."""
        spec = a_job_with(scheduler, scheduler=scheduler)
        self.node.participant.create_job(spec, scheduler)
        self.node.participant.start_task(spec.job_id, f"task-{spec.job_id}", "a", scheduler)
        self.run(spec.job_id, "guest.0")
        return spec


@contextmanager
def serving_site(home: Path) -> Iterator[Site]:
    """Serve a node whose routes lead, in each dialect, to one scripted peer."""

    def engine(settings: Any, installation: str) -> MemoryEngine:
        return MemoryEngine(
            node=settings.node.id,
            installation=installation,
            images={IMAGE: Script(code=None)},
        )

    with scripted() as (peer, url):
        made = settings(home)
        write_routes(
            home, {node: {"url": url, "profile": profile} for node, profile in PROFILES.items()}
        )
        gateway = Node(made, engine=engine)
        gateway.registry.register(provider_from_request(registration()))
        with serving(gateway):
            yield Site(gateway, peer)


def write_routes(home: Path, routes: dict[str, Any]) -> None:
    (home / "routes.yml").write_text(yaml.safe_dump(routes))


def a_job_with(
    other: str,
    dag: str = "a",
    *,
    scheduler: str = ME,
) -> JobSpec:
    """Return a job in which this node is the guest and the other one the host."""
    roles = (
        {"guest": (ME,), "host": (other,)}
        if scheduler == ME
        else {"host": (other,), "guest": (ME,)}
    )
    return a_spec(dag, roles, job_id=f"job-dialects-{next(_numbers)}", scheduler=scheduler)


def by_path(**answers: Any) -> Any:
    """Answer by the last words of the path, such as ``task_poll``; all else with a bare success."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        words = handler.path.partition("?")[0].removeprefix(CONTROL + "/").replace("/", "_")
        answers.get(words, answers.get("other", says()))(handler)

    return answer
