"""Jobs that are over, with all that they can leave behind, put into a node that runs in the test's process."""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from adapter.bfia.examples import A_PROVIDER
from engines.base import run_name
from gateway.bootstrap.node import Gateway
from gateway.domain.dag import Dag, DagOutput
from gateway.domain.run import Address, LocalJob, Reporting, Run
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus, RunStatus, TaskStatus
from tests.builders import OK, a_local_job, a_node, a_run, a_spec
from tests.e2e.jobs import job_of
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask

KEYS = {
    "out": "dataset",
    "model": "model",
    "report": "report",
}


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


def a_spec_of(
    job_id: str,
    scheduler: str = ME,
    host: str = PEER,
) -> JobSpec:
    first = replace(a_node("a"), outputs=tuple(DagOutput(kind, key) for key, kind in KEYS.items()))
    dag = Dag((first, a_node("b", ["a"])))
    return a_spec(dag, {"guest": (ME,), "host": (host,)}, job_id=job_id, scheduler=scheduler)


def a_run_of(spec: JobSpec, attempt: int = 0) -> Run:
    job_id = spec.job_id
    secret = hashlib.sha256(f"{job_id} {attempt}".encode()).hexdigest()
    return a_run(
        "a",
        RunStatus.SUCCESS,
        spec.parties[0],
        run_id=secret,
        token=hashlib.md5(secret.encode()).hexdigest(),
        task_id=f"task_{job_id}",
        name=run_name(ME, job_id, f"task_{job_id}", "guest", 0, attempt),
        attempt=attempt,
        outputs={
            f"{key}_name": Address(f"{job_id}-guest-0", f"task_{job_id}-{key}") for key in KEYS
        },
        output_keys={key: f"{key}_name" for key in KEYS},
        collect=OK,
        reporting=Reporting(TaskStatus.SUCCESS, OK),
    )


def a_job_over(
    job_id: str,
    seconds: float,
    scheduler: str = ME,
) -> LocalJob:
    """Return a job whose part here ended so long ago."""
    spec = a_spec_of(job_id, scheduler)
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
    node: Gateway,
    job_id: str,
    seconds: float,
    scheduler: str = ME,
) -> LocalJob:
    """Store a job that ended so long ago, with logs and outputs on disk."""
    local = a_job_over(job_id, seconds, scheduler)
    assert node.store.local_jobs.add(local, "flow")
    for run in local.runs:
        for address in run.outputs.values():
            folder = node.storage.root / address.namespace / address.name
            folder.mkdir(parents=True)
            (folder / "data_0").write_bytes(
                b'{"auc": 0.5}\n' if "report" in address.name else b"id,x\n1,2\n"
            )
        logs = logs_of(node, run)
        logs.mkdir(parents=True)
        (logs / "stdout.log").write_text(f"hello\nmy token is {run.token}\n")
        (logs / "stderr.log").write_text("oh\n")
    return local


def under_way(
    node: Gateway,
    job_id: str,
    **reads: Any,
) -> None:
    """Store a job that runs and reads something of another."""
    spec = a_spec_of(job_id)
    run = replace(
        a_run_of(spec),
        outputs={},
        output_keys={},
        **reads,
    )
    local = replace(
        a_local_job(run, status=JobStatus.RUNNING),
        spec=spec,
        node=ME,
        created_at=ago(60),
    )
    assert node.store.local_jobs.add(local, "flow")


def logs_of(node: Gateway, run: Run) -> Path:
    return node.settings.state_dir / "runs" / run.name


def played(
    register: Path,
    me: Gateway,
    *others: Gateway,
) -> str:
    """Play a job of both nodes to its end, and wait until each has tidied up."""
    register.mkdir(exist_ok=True)
    for node in (me, *others):
        assert ask(node, "operator", "POST", "/v2/provider/register", json=A_PROVIDER).is_success
    body = job_of(register, {"first": 0.0})
    answer = ask(me, "operator", "POST", "/v1/platform/schedule/job/create_all", json=body).json()
    job_id = str(answer["data"]["job_id"])
    for node in (me, *others):
        wait_for(
            lambda node=node: node.leftovers.ended_at(job_id), 60, about="the end is tidied up"
        )
    return job_id
