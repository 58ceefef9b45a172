"""A node whose runs write the lines of the test, when the test says so."""

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
LOG_LINE = "/v1/platform/schedule/task/get_log_line"
LOG = "/v1/platform/schedule/task/get_log"


def registration(image: str = IMAGE) -> dict[str, Any]:
    """Return the registration of a component without parameters, inputs and outputs."""
    talk = a_description(
        "Talk",
        inputParam=[],
        inputData=[],
        outputData=[],
        storageEngine=["file"],
    )
    return a_request(
        talk,
        metadata={
            "base_url": "",
            "image": image,
        },
    )


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
        "initiator": {
            "role": roles[0],
            "node_id": ME,
        },
        "role": {role: [ME] for role in roles},
        "job_params": {"common": {"sync_type": "callback"}},
    }
    return body


@dataclass
class Stage:
    """A running node and its jobs. On an engine in memory, the test writes their runs' logs."""

    gateway: Gateway
    job: str = ""  # id of the last submitted job

    def submit(self, *roles: str) -> str:
        """Submit a job with these roles and return its id."""
        body = self.ask("/v1/platform/schedule/job/create_all", method="POST", json=job(*roles))
        assert body["code"] == 0, body
        self.job = str(body["data"]["job_id"])
        return self.job

    def task(self, job_id: str) -> str:
        """Return the id of a job's task once all of its runs are RUNNING."""

        def is_running() -> bool:
            runs = self.runs(job_id)
            return bool(runs) and all(run["status"] == "RUNNING" for run in runs)

        wait_for(is_running, 20, 0.02, "the runs are up")
        return str(self.runs(job_id)[0]["task_id"])

    def runs(
        self,
        job_id: str,
    ) -> list[dict[str, Any]]:
        return list(self.ask(f"/api/v1/jobs/{job_id}")["runs"])

    def order(
        self,
        label: str,
        out: str = "",
        err: str = "",
        exit: int | None = None,
    ) -> None:
        """Have a party's run of the last job write to its streams, and end with an exit code."""
        engine = self.gateway.engine
        assert isinstance(engine, MemoryEngine)
        runs = self.gateway.store.local_jobs.get(self.job).runs
        name = next(run.name for run in runs if run.party.label == label)
        engine.world.runs[name].stdout += out.encode()
        engine.world.runs[name].stderr += err.encode()
        if exit is not None:
            engine.finish(name, exit)

    def end(self, job_id: str) -> None:
        """Wait until a job has ended and its containers are removed."""

        def is_finished() -> bool:
            return bool(self.ask(f"/api/v1/jobs/{job_id}")["status"] == "FINISHED")

        def is_closed() -> bool:
            return self.gateway.store.local_jobs.get(job_id).closed

        wait_for(is_finished, 30, 0.05, "the job is over")
        wait_for(is_closed, 30, 0.05, "nothing is left to do")

    def ask(
        self,
        path: str,
        method: str = "GET",
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Send a request to the operators' listener and return the response's body."""
        return dict(ask(self.gateway, "operator", method, path, **kwargs).json())

    def number(
        self,
        task: str,
        level: str,
        **params: Any,
    ) -> int:
        """Return the number of a task's lines of at least a level."""
        body = self.ask(
            LOG_LINE,
            params={
                "task_id": task,
                "log_level": level,
                **params,
            },
        )
        assert body["code"] == 0, body
        return int(body["data"]["num"])

    def read(
        self,
        task: str,
        level: str,
        start: int = 0,
        **params: Any,
    ) -> dict[str, Any]:
        """Read a task's log from a line on; return the response's data."""
        body = self.ask(
            LOG,
            params={
                "task_id": task,
                "log_level": level,
                "start": start,
                **params,
            },
        )
        assert body["code"] == 0, body
        return dict(body["data"])

    def lines(
        self,
        task: str,
        level: str,
        start: int = 0,
        **params: Any,
    ) -> list[str]:
        """Return a task's lines from one on."""
        return str(self.read(task, level, start, **params)["data"]).splitlines()

    def wait_number(
        self,
        task: str,
        level: str,
        number: int,
        **params: Any,
    ) -> None:
        """Wait until a task has ``number`` lines of at least a level."""

        def has_lines() -> bool:
            return self.number(task, level, **params) == number

        wait_for(has_lines, 20, 0.05, f"{number} lines of {level}")


@contextmanager
def stage(home: Path) -> Iterator[Stage]:
    """Start a node with an engine in memory and the component that writes the test's lines."""
    with running(home, make_engine=MemoryEngine.making({IMAGE: Script(code=None)})) as gateway:
        stage = Stage(gateway)
        body = stage.ask(
            "/v2/provider/register",
            method="POST",
            json=registration(),
        )
        assert body["code"] == 0
        yield stage
