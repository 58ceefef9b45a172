"""A FATE-Flow site, two nodes of this project, and the jobs that they run together."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapter.fate.signing import Signatures
from tests.e2e import jobs
from tests.e2e.fate_site import FateSite
from tests.e2e.nodes import Node, wait_for
from tests.e2e.recorder import Exchange, Recorder

OURS = jobs.GUEST
# A node of ours at which a person approves each job.
CAREFUL = jobs.HOST
# FATE-Flow's party id.
THEIRS = "9999"
PARTNER = "/v2/partner"
ENDED = ("success", "failed", "canceled")
# FATE-Flow's code for a request that has to be repeated later.
TRY_AGAIN = 2004

# A task's state at FATE-Flow: its version, the task's status and the status of FATE's own part.
TaskState = tuple[int, str, str]


@dataclass(frozen=True)
class ShownJob:
    """A job as FATE-Flow shows it to its people."""

    status: str
    # by task
    tasks: Mapping[str, TaskState]


# A job of the tasks a and b that succeeded at the first attempt.
SUCCEEDED = ShownJob(
    "success",
    dict.fromkeys(
        ("a", "b"),
        (0, "success", "success"),
    ),
)


@dataclass
class Pair:
    """The site and the nodes, and the jobs that they run together, by their subject."""

    site: FateSite
    node: Node
    careful: Node
    proxy: Recorder
    register: Path
    # signs as FATE-Flow does to our node, and as our node does to FATE-Flow
    signatures: Signatures
    jobs: dict[str, str] = field(default_factory=dict)

    # ------------------------------------------------------------ submitting

    def submit_to_fate(
        self,
        scheduler: str = THEIRS,
        conf: dict[str, Any] | None = None,
        **parameters: Any,
    ) -> str:
        """Submit a chain of two tasks to FATE-Flow, as its people do; FATE is the guest."""
        return self._submit(self.dag(scheduler, conf, **parameters))

    def submit_to_fate_for_approval(self) -> str:
        """Submit a job to FATE-Flow; its host is the node with approvals."""
        return self._submit(json.loads(json.dumps(self.dag()).replace(OURS, CAREFUL)))

    def _submit(self, dag: Any) -> str:
        for _ in range(5):
            response = self.site.post(
                "/v2/job/submit",
                {"dag_schema": dag},
            )
            # FATE-Flow's own timeout of ten seconds is too short for a busy machine.
            if "Read timed out" not in response["message"]:
                break
        assert response["code"] == 0, response
        return str(response["job_id"])

    def dag(
        self,
        scheduler: str = THEIRS,
        conf: dict[str, Any] | None = None,
        **parameters: Any,
    ) -> Any:
        """Return a job of two tasks in FATE-Flow's language."""
        common = {
            "lasts": 0,
            "register": str(self.register),
        }
        tasks: dict[str, Any] = {}
        for name in ("a", "b"):
            tasks[name] = {
                "component_ref": "Echo",
                "parameters": common | {"name": name} | parameters,
            }
        output_of_a = {
            "producer_task": "a",
            "output_artifact_key": "train_data",
        }
        tasks["b"] |= {
            "dependent_tasks": ["a"],
            "inputs": {"data": {"train_data": {"task_output_artifact": output_of_a}}},
        }
        settings = {
            "initiator_party_id": THEIRS,
            "scheduler_party_id": scheduler,
            **(conf or {}),
            "task": {"provider": "example:1.0.0@local"},
        }
        dag = {
            "parties": [
                {
                    "role": "guest",
                    "party_id": [THEIRS],
                },
                {
                    "role": "host",
                    "party_id": [OURS],
                },
            ],
            "conf": settings,
            "stage": "train",
            "tasks": tasks,
        }
        return {
            "dag": dag,
            "schema_version": "2.2.0",
            "kind": "fate",
        }

    def submit_to_us(
        self,
        tasks: dict[str, float],
        common: dict[str, Any] | None = None,
        **parameters: Any,
    ) -> str:
        """Submit a job of tasks that last so many seconds to our node; FATE is the host."""
        flow = {"b": "a"} if "b" in tasks else {}
        body = jobs.job_of(self.register, tasks, flow, **parameters)
        body["config"]["role"] = {
            "guest": [OURS],
            "host": [THEIRS],
        }
        return self.node.submit(jobs.limited(body, **(common or {})))

    # ------------------------------------------------------------ FATE-Flow's view

    def tasks(
        self,
        job_id: str,
    ) -> list[dict[str, Any]]:
        """Return the newest version of each task, as FATE-Flow shows it to its people."""
        return list(self.site.get("/v2/job/task/query", job_id=job_id).get("data") or [])

    def runs_at_fate(self, job_id: str) -> bool:
        """Return whether a task of a job runs at FATE-Flow."""
        return any(row["party_status"] == "running" for row in self.tasks(job_id))

    def shown_at_fate(self, subject: str) -> ShownJob:
        """Wait for a job's end at FATE-Flow; return the job as FATE-Flow shows it."""
        job_id = self.jobs[subject]

        # The first status of an end counts: a thread of FATE-Flow that still holds the job's
        # earlier record may write that back afterwards.
        def end_status() -> str:
            status = str(self.site.job(job_id).get("status"))
            return status if status in ENDED else ""

        status = wait_for(
            end_status,
            120,
            0.2,
            f"{subject} ended at FATE-Flow",
        )
        states = {}
        for row in self.tasks(job_id):
            state = (row["task_version"], row["status"], row["party_status"])
            states[row["task_name"]] = state
        return ShownJob(status, states)

    # ------------------------------------------------------------ our view

    def wait_for_our_end(
        self,
        subject: str,
        outcome: str,
        id_suffix: str = "",
        node: Node | None = None,
    ) -> dict[str, Any]:
        """Wait for a job's end at our node and return the job.

        ``id_suffix`` is that of FATE's retries. Raises `AssertionError` unless the job has the
        outcome.
        """
        job_id = self.jobs[subject] + id_suffix
        node = node or self.node
        wait_for(lambda: node.job(job_id).get("outcome"), 120, 0.2, f"{subject} ended here")
        return node.wait_job(job_id, 1, outcome)

    # ------------------------------------------------------------ the proxy's view

    def exchanges(self, subject: str) -> list[Exchange]:
        """Return the requests between both sides about a job."""
        job_id = self.jobs[subject]
        return [
            exchange for exchange in self.proxy.exchanges if job_id in json.dumps(exchange.body)
        ]

    def waits_for_approval(self, subject: str) -> bool:
        """Return whether FATE-Flow was told to apply for a task's resources later."""
        for exchange in self.exchanges(subject):
            is_application = exchange.path.endswith("/task/resource/apply")
            if exchange.to != CAREFUL or not is_application:
                continue
            if exchange.response["code"] == TRY_AGAIN:
                return True
        return False

    def paths(
        self,
        subject: str,
        target: str,
    ) -> list[str]:
        """Return the paths of requests to a side about a job, without those about progress."""
        paths = []
        for exchange in self.exchanges(subject):
            is_progress = exchange.path.endswith(("/collect", "/job/update"))
            if exchange.to == target and not is_progress:
                paths.append(exchange.path.removeprefix(PARTNER))
        return paths
