"""Rows of jobs and tasks as FATE's tools print them."""

from dataclasses import replace

import pytest

from adapter.fate.tools.deps import Sight
from adapter.fate.tools.jobs import task_rows
from gateway.domain.spec import Failure, Party
from gateway.domain.states import JobStatus, RunStatus, TaskStatus
from gateway.ports import JobView, TaskView
from tests.builders import T0, a_local_job, a_run, a_spec
from tests.inprocess import ME, PEER

STOPPED = Failure("STOPPED", "stopped on request", ME, "guest", "a")


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (
            Failure("EXIT_1", "exit code 1", PEER, "host", "a", 1),
            f"STOPPED: stopped on request; the task failed at host {PEER} of EXIT_1: exit code 1",
        ),
        (STOPPED, "STOPPED: stopped on request"),
        (None, "STOPPED: stopped on request"),
    ],
)
def test_a_party_that_was_only_stopped_tells_what_the_task_failed_of(task: Failure | None, said: str):
    spec = a_spec("a", {"guest": (ME,), "host": (PEER,)})
    run = a_run("a", RunStatus.FAILED, Party("guest", 0, ME), task_id="t", failure=STOPPED)
    local = replace(a_local_job(run, status=JobStatus.FINISHED), spec=spec, node=ME)
    nodes = {ME: {"guest": TaskStatus.FAILED}}
    view = JobView(spec.job_id, JobStatus.FINISHED, [TaskView("t", "a", TaskStatus.FAILED, task, nodes)])
    (row,) = task_rows(Sight(view, spec, local, None, spec.parties_at(ME), T0), "http://here")
    assert (row["party_status"], row["error_report"]) == ("canceled", said)
