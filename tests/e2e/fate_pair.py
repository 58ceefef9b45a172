"""A FATE-Flow site and nodes of ours beside it: what their people hand in, and what each side shows of it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapter.fate.signing import Signatures
from tests.e2e import jobs
from tests.e2e.fate_site import FateSite
from tests.e2e.nodes import Node, wait_for
from tests.e2e.recorder import Recorder, Seen

OURS, CAREFUL, THEIRS = jobs.GUEST, jobs.HOST, "9999"
"""two nodes of ours, one of which asks a person about each job, and FATE-Flow"""
PARTNER = "/v2/partner"
ENDED = ("success", "failed", "canceled")


@dataclass
class Pair:
    """The site and the node, and the jobs that they run together, by what they are about."""

    site: FateSite
    node: Node
    careful: Node
    proxy: Recorder
    register: Path
    signatures: Signatures
    """as FATE-Flow signs to our node, and our node to it"""
    jobs: dict[str, str] = field(default_factory=dict)

    def hand_in_there(
        self,
        scheduler: str = THEIRS,
        conf: dict[str, Any] | None = None,
        **parameters: Any,
    ) -> str:
        """Hand in a chain of two tasks at FATE-Flow, as its people do; FATE is the guest."""
        return self._hand_in(self.dag(scheduler, conf, **parameters))

    def hand_in_carefully(self) -> str:
        return self._hand_in(json.loads(json.dumps(self.dag()).replace(OURS, CAREFUL)))

    def _hand_in(self, dag: Any) -> str:
        for _ in range(5):
            answer = self.site.post("/v2/job/submit", {"dag_schema": dag})
            if "Read timed out" not in answer["message"]:  # it waits ten seconds for a busy machine
                break
        assert answer["code"] == 0, answer
        return str(answer["job_id"])

    def dag(
        self,
        scheduler: str = THEIRS,
        conf: dict[str, Any] | None = None,
        **parameters: Any,
    ) -> Any:
        given = {"lasts": 0, "register": str(self.register)}
        channel = {"producer_task": "a", "output_artifact_key": "train_data"}
        tasks: dict[str, Any] = {
            name: {"component_ref": "Echo", "parameters": given | {"name": name} | parameters}
            for name in ("a", "b")
        }
        tasks["b"] |= {
            "dependent_tasks": ["a"],
            "inputs": {"data": {"train_data": {"task_output_artifact": channel}}},
        }
        parties = [{"role": "guest", "party_id": [THEIRS]}, {"role": "host", "party_id": [OURS]}]
        settings = {
            "initiator_party_id": THEIRS,
            "scheduler_party_id": scheduler,
            **(conf or {}),
        }
        settings["task"] = {"provider": "example:1.0.0@local"}
        dag = {
            "parties": parties,
            "conf": settings,
            "stage": "train",
            "tasks": tasks,
        }
        return {
            "dag": dag,
            "schema_version": "2.2.0",
            "kind": "fate",
        }

    def hand_in_here(
        self,
        tasks: dict[str, float],
        common: dict[str, Any] | None = None,
        **more: Any,
    ) -> str:
        """Hand in a job at our node; FATE is the host."""
        body = jobs.job_of(self.register, tasks, {"b": "a"} if "b" in tasks else {}, **more)
        body["config"]["role"] = {"guest": [OURS], "host": [THEIRS]}
        body["config"]["job_params"]["common"] |= common or {}
        return self.node.submit(body)

    def runs_there(self, job_id: str) -> bool:
        return any(row["party_status"] == "running" for row in self.tasks(job_id))

    def tasks(self, job_id: str) -> list[dict[str, Any]]:
        """Return the tasks of a job as FATE-Flow shows them to its people, the newest version of each."""
        return list(self.site.get("/v2/job/task/query", job_id=job_id).get("data") or [])

    def shown(self, about: str) -> tuple[str, dict[str, tuple[int, str, str]]]:
        """Return a job's state at FATE-Flow once it ended, and of each task version, state, own state."""
        job_id = self.jobs[about]
        wait_for(
            lambda: self.site.job(job_id).get("status") in ENDED,
            120,
            0.2,
            f"{about} ended at FATE-Flow",
        )
        rows = {
            row["task_name"]: (row["task_version"], row["status"], row["party_status"])
            for row in self.tasks(job_id)
        }
        return str(self.site.job(job_id)["status"]), rows

    def ended_here(
        self,
        about: str,
        outcome: str,
        again: str = "",
        at: Node | None = None,
    ) -> dict[str, Any]:
        job_id, node = self.jobs[about] + again, at or self.node
        wait_for(lambda: node.job(job_id).get("outcome"), 120, 0.2, f"{about} ended here")
        return node.wait_job(job_id, 1, outcome)

    def waits(self, about: str) -> bool:
        """Say whether FATE-Flow was told to ask again for a task's resources, while nobody has agreed."""
        asked = [
            p
            for p in self.passed(about)
            if p.to == CAREFUL and p.path.endswith("/task/resource/apply")
        ]
        return any(p.answer["code"] == 2004 for p in asked)

    def passed(self, about: str) -> list[Seen]:
        job_id = self.jobs[about]
        return [p for p in self.proxy.seen if job_id in json.dumps(p.body)]

    def asked(self, about: str, to: str) -> list[str]:
        """Return what a side was asked about a job, without how far it is and what changes nothing."""
        paths = [p.path for p in self.passed(about) if p.to == to]
        return [
            p.removeprefix(PARTNER) for p in paths if not p.endswith(("/collect", "/job/update"))
        ]
