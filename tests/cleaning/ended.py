"""Ended and running jobs in the store of a test's node, with their logs and outputs on disk."""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from adapter.bfia.examples import A_PROVIDER
from engines.base import run_name
from gateway.domain.dag import Dag, DagOutput
from gateway.domain.job import Job
from gateway.domain.run import Address, LocalJob, Reporting, Run, RunData
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus, RunStatus, TaskStatus
from tests.builders import OK, a_local_job, a_node, a_run, a_spec
from tests.e2e.jobs import job_of
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, Node

# Types of the outputs of task ``a``, by key.
KEYS = {
    "out": "dataset",
    "model": "model",
    "report": "report",
}


def ago(seconds: float) -> datetime:
    """Return the time ``seconds`` seconds before now."""
    return datetime.now(UTC) - timedelta(seconds=seconds)


def a_spec_of(
    job_id: str,
    scheduler: str = ME,
    host: str = PEER,
) -> JobSpec:
    """Build a job of two tasks in which the test's node is guest."""
    outputs = tuple(DagOutput(kind, key) for key, kind in KEYS.items())
    first = replace(
        a_node("a"),
        outputs=outputs,
    )
    second = a_node("b", ["a"])
    dag = Dag((first, second))
    roles = {
        "guest": (ME,),
        "host": (host,),
    }
    return a_spec(
        dag,
        roles,
        job_id=job_id,
        scheduler=scheduler,
    )


def a_run_of(
    spec: JobSpec,
    attempt: int = 0,
) -> Run:
    """Build the guest's successful run of a job's first task."""
    job_id = spec.job_id
    task_id = f"task_{job_id}"
    secret = hashlib.sha256(f"{job_id} {attempt}".encode()).hexdigest()
    outputs = {}
    for key in KEYS:
        outputs[f"{key}_name"] = Address(f"{job_id}-guest-0", f"{task_id}-{key}")
    data = RunData(
        outputs=outputs,
        output_keys={key: f"{key}_name" for key in KEYS},
    )
    return a_run(
        "a",
        RunStatus.SUCCESS,
        spec.parties[0],
        run_id=secret,
        token=hashlib.md5(secret.encode()).hexdigest(),
        task_id=task_id,
        name=run_name(
            ME,
            job_id,
            task_id,
            "guest",
            0,
            attempt,
        ),
        attempt=attempt,
        data=data,
        collect=OK,
        reporting=Reporting(TaskStatus.SUCCESS, OK),
    )


def a_job_over(
    job_id: str,
    seconds: float,
    scheduler: str = ME,
    host: str = PEER,
) -> LocalJob:
    """Build this node's record of a job that ended ``seconds`` seconds ago."""
    spec = a_spec_of(job_id, scheduler, host)
    local = a_local_job(
        a_run_of(spec),
        status=JobStatus.FINISHED,
        closed=True,
        close=OK,
    )
    return replace(
        local,
        spec=spec,
        node=ME,
        created_at=ago(seconds + 1),
        ended_at=ago(seconds),
    )


def left_behind(
    node: Any,
    job_id: str,
    seconds: float,
    scheduler: str = ME,
    host: str = PEER,
) -> LocalJob:
    """Store a job that ended ``seconds`` seconds ago, with its logs and outputs on disk."""
    local = a_job_over(job_id, seconds, scheduler, host)
    assert node.store.local_jobs.add(local, "flow")
    for run in local.runs:
        for address in run.data.outputs.values():
            write_output(node, address)
        write_logs(node, run)
    return local


def run_left_behind(
    node: Any,
    job_id: str,
    seconds: float,
) -> Run:
    """Store a job that ended ``seconds`` seconds ago; return its only run."""
    (run,) = left_behind(node, job_id, seconds).runs
    return run


def are_stored(node: Any, run: Run) -> list[bool]:
    """Return for each output of a run whether it is stored."""
    storage = node.storage
    return [storage.exists(address) for address in run.data.outputs.values()]


def with_confirmed_stops(job: Job) -> Job:
    """Return a job whose nodes have all confirmed its stop."""
    nodes = {}
    for name, node_job in job.nodes.items():
        nodes[name] = replace(node_job, stop=OK)
    return replace(job, nodes=nodes)


def write_output(node: Any, address: Address) -> None:
    """Write a table to a node's storage, or metrics if the address is a report's."""
    content = b"id,x\n1,2\n"
    if "report" in address.name:
        content = b'{"auc": 0.5}\n'
    folder = node.storage.root / address.namespace / address.name
    folder.mkdir(parents=True)
    (folder / "data_0").write_bytes(content)


def write_logs(node: Any, run: Run) -> None:
    """Write both streams of a run's log; stdout contains the run's token."""
    logs = logs_of(node, run)
    logs.mkdir(parents=True)
    (logs / "stdout.log").write_text(f"hello\nmy token is {run.token}\n")
    (logs / "stderr.log").write_text("oh\n")


def store_running_job(
    node: Node,
    job_id: str,
    **reads: Any,
) -> None:
    """Store a job whose run reads something of another job; ``reads``: fields of the run's data."""
    spec = a_spec_of(job_id)
    run = replace(a_run_of(spec), data=RunData(**reads))
    local = replace(
        a_local_job(
            run,
            status=JobStatus.RUNNING,
        ),
        spec=spec,
        node=ME,
        created_at=ago(60),
    )
    assert node.store.local_jobs.add(local, "flow")


def session_folders(state: Path) -> list[Path]:
    """Return the folders of the channel's sessions in a node's state folder."""
    entries = (state / "channel").iterdir()
    return [path for path in entries if path.is_dir()]


def logs_of(node: Any, run: Run) -> Path:
    """Return the folder of a run's logs."""
    return node.settings.state_dir / "runs" / run.name


def run_job(register: Path, *nodes: Node) -> str:
    """Run a job of these nodes, submitted to the first, until each has cleaned up; return its id.

    ``register`` is the folder in which the job's tasks register.
    """
    register.mkdir(exist_ok=True)
    for node in nodes:
        assert node.post("/v2/provider/register", A_PROVIDER).is_success
    body = job_of(register, {"first": 0.0})
    response = nodes[0].post("/v1/platform/schedule/job/create_all", body)
    job_id = str(response.json()["data"]["job_id"])
    for node in nodes:
        wait_until_clean(node, job_id)
    return job_id


def wait_until_clean(node: Node, job_id: str) -> None:
    """Wait until a job has ended at a node and nothing is left to do about it."""

    def ended_at() -> datetime | None:
        return node.leftovers.ended_at(job_id)

    wait_for(ended_at, 60, about="the end is tidied up")
