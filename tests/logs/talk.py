"""A node whose runs say what the test tells them to, when it tells them to."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapter.bfia.examples import A_JOB
from gateway.bootstrap.node import Gateway
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, ask, running
from tests.memory_engine import MemoryEngine, Script
from tests.registry.builders import a_description, a_request

IMAGE = "talker:1"
LOG_LINE, LOG = "/v1/platform/schedule/task/get_log_line", "/v1/platform/schedule/task/get_log"


def registration(image: str = IMAGE) -> dict[str, Any]:
    talk = a_description(
        "Talk",
        inputParam=[],
        inputData=[],
        outputData=[],
        storageEngine=["file"],
    )
    return a_request(talk, metadata={"base_url": "", "image": image})


def job(*roles: str) -> dict[str, Any]:
    """Return a job of one task in which this node plays each role once."""
    body = copy.deepcopy(A_JOB)
    body["dag"]["components"][0] |= {
        "name": "talk_1",
        "componentName": "Talk",
        "provider": "acme",
        "output": [],
    }
    body["config"] |= {
        "initiator": {"role": roles[0], "node_id": ME},
        "role": {role: [ME] for role in roles},
        "job_params": {"common": {"sync_type": "callback"}},
    }
    return body


@dataclass
class Stage:
    """A running node and its job, whose runs write what the test says where their engine is in memory."""

    gateway: Gateway
    job: str = ""
    """submitted last"""

    def submit(self, *roles: str) -> str:
        answer = self.ask("/v1/platform/schedule/job/create_all", method="POST", json=job(*roles))
        assert answer["code"] == 0, answer
        self.job = str(answer["data"]["job_id"])
        return self.job

    def task(self, job_id: str) -> str:
        """Return the task's id once its runs are accepted."""

        def started() -> str | None:
            runs = self.runs(job_id)
            return (
                str(runs[0]["task_id"])
                if runs and all(r["status"] == "RUNNING" for r in runs)
                else None
            )

        return str(wait_for(started, 20, 0.02, "the runs are up"))

    def runs(self, job_id: str) -> list[dict[str, Any]]:
        return list(self.ask(f"/api/v1/jobs/{job_id}")["runs"])

    def order(
        self,
        label: str,
        out: str = "",
        err: str = "",
        exit: int | None = None,
    ) -> None:
        """Have a party's run of the job write something, and end with a code."""
        engine = self.gateway.engine
        assert isinstance(engine, MemoryEngine)
        runs = self.gateway.store.local_jobs.get(self.job).runs
        name = next(run.name for run in runs if run.party.label == label)
        engine.world.runs[name].stdout += out.encode()
        engine.world.runs[name].stderr += err.encode()
        if exit is not None:
            engine.finish(name, exit)

    def end(self, job_id: str) -> None:
        """Wait until every container of the job is gone."""
        wait_for(
            lambda: self.ask(f"/api/v1/jobs/{job_id}")["status"] == "FINISHED",
            30,
            0.05,
            "the job is over",
        )
        wait_for(lambda: self.closed(job_id), 30, 0.05, "nothing is left to do")

    def closed(self, job_id: str) -> bool:
        return self.gateway.store.local_jobs.get(job_id).closed

    def ask(
        self,
        path: str,
        method: str = "GET",
        **kwargs: Any,
    ) -> dict[str, Any]:
        return dict(ask(self.gateway, "operator", method, path, **kwargs).json())

    def number(
        self,
        task: str,
        level: str,
        **more: Any,
    ) -> int:
        said = self.ask(
            LOG_LINE,
            params={
                "task_id": task,
                "log_level": level,
                **more,
            },
        )
        assert said["code"] == 0, said
        return int(said["data"]["num"])

    def read(
        self,
        task: str,
        level: str,
        start: int = 0,
        **more: Any,
    ) -> dict[str, Any]:
        said = self.ask(
            LOG,
            params={
                "task_id": task,
                "log_level": level,
                "start": start,
                **more,
            },
        )
        assert said["code"] == 0, said
        return dict(said["data"])

    def lines(
        self,
        task: str,
        level: str,
        start: int = 0,
        **more: Any,
    ) -> list[str]:
        return str(self.read(task, level, start, **more)["data"]).splitlines()

    def wait_number(
        self,
        task: str,
        level: str,
        number: int,
        **more: Any,
    ) -> None:
        wait_for(
            lambda: self.number(task, level, **more) == number,
            20,
            0.05,
            f"{number} lines of {level}",
        )


@contextmanager
def stage(home: Path) -> Iterator[Stage]:
    with running(home, make_engine=MemoryEngine.making({IMAGE: Script(code=None)})) as gateway:
        found = Stage(gateway)
        assert found.ask("/v2/provider/register", method="POST", json=registration())["code"] == 0
        yield found
