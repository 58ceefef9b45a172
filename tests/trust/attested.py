"""Runs that have to prove their TEE, as their containers see them."""

import copy
import time
from dataclasses import dataclass
from typing import Any

import httpx

from adapter.bfia.examples import A_JOB
from engines.base import LaunchSpec
from gateway.domain.run import Run
from tests.core.example_jobs import PLATFORM, wait_for_end
from tests.e2e.nodes import wait_for
from tests.inprocess import Node
from tests.trust.software_tee import SoftwareTee

TABLE = b"id,x\na,1\nb,2\n"
TEE = SoftwareTee()


@dataclass(frozen=True)
class StartedRun:
    """A running run of a job, with the variables of its container."""

    node: Node
    job_id: str
    launch: LaunchSpec

    @property
    def name(self) -> str:
        return self.launch.name

    @property
    def url(self) -> str:
        return self.launch.environment["system.attestation.url"]

    @property
    def binding(self) -> str:
        return self.launch.environment["system.attestation.binding"]

    def run(self) -> Run:
        """Return the present record of the run."""
        local = self.node.store.local_jobs.get(self.job_id)
        by_name = {run.name: run for run in local.runs}
        return by_name[self.name]

    def report(self, **changes: Any) -> dict[str, Any]:
        """Return a report for this run."""
        return TEE.report(
            self.binding,
            time.time(),
            **changes,
        )

    def submit(
        self,
        report: Any,
        key: str | None = None,
    ) -> Any:
        """Submit a report; return the body of the response."""
        body = {
            "report": report,
            "pem_public_key": key or TEE.channel_key,
        }
        response = httpx.post(
            self.url,
            json=body,
            trust_env=False,
        )
        return response.json()

    def refusal(
        self,
        report: Any,
        key: str | None = None,
    ) -> str:
        """Submit a report that is refused; return the reason."""
        response = self.submit(report, key)
        return str(response["data"]["reason"])

    def fetch(
        self,
        name: str = "train_data",
        file: str = "data_0",
    ) -> httpx.Response:
        """Ask for a file of an input."""
        url = httpx.URL(self.url.replace("/report?", "/input?"))
        query = {
            "name": name,
            "file": file,
        }
        params = url.params.merge(query)
        return httpx.get(
            url,
            params=params,
            trust_env=False,
        )

    def input(self) -> bytes:
        """Fetch and decrypt the input."""
        return TEE.open_input(self.fetch().content)

    def fetch_refusal(self) -> str:
        """Ask for the input, which is refused; return the reason."""
        response = self.fetch().json()
        return str(response["data"]["reason"])

    def end_reason(self) -> str:
        """Wait for the failure of the job; return its reason."""
        job = wait_for_end(self.node, self.job_id)
        assert job.ending is not None
        assert job.ending.failure is not None
        return job.ending.failure.reason

    def end(self) -> None:
        """End the container, and wait for the end of the job."""
        self.node.engine.finish(self.name, 1)
        wait_for_end(self.node, self.job_id)

    def audit(self) -> list[Any]:
        """Return the details of the results in the audit."""
        details = []
        for line in self.node.audit.lines():
            detail = line["detail"]
            if line["action"] == "tee report" and detail["job"] == self.job_id:
                details.append(detail)
        return details


def submit_example(node: Node, partner: str = "") -> str:
    """Submit the example job of a guest with an input; return its id.

    ``partner``: the node of the host; empty: there is no host.
    """
    body = copy.deepcopy(A_JOB)
    config = body["config"]
    parameters = config["task_params"]
    parameters["guest"] = _reads("ns#table")
    if partner:
        config["role"]["host"] = [partner]
        parameters["host"] = _reads("")
    else:
        del config["role"]["host"]
    response = node.post(f"{PLATFORM}/create_all", body).json()
    assert response["code"] == 0, response
    return str(response["data"]["job_id"])


def _reads(dataset_id: str) -> dict[str, Any]:
    """Return the parameters of a role whose party reads a dataset."""
    task = {"dataset_id": dataset_id}
    return {"0": {"echo_1": task}}


def started_run(node: Node, job_id: str) -> StartedRun:
    """Wait until a run of a job runs at a node; return it."""

    def running() -> list[Run]:
        local = node.store.local_jobs.find(job_id)
        if local is None:
            return []
        return [run for run in local.runs if run.started_at is not None]

    wait_for(running)
    name = running()[0].name
    by_name = {launch.name: launch for launch in node.engine.launches}
    return StartedRun(
        node,
        job_id,
        by_name[name],
    )
