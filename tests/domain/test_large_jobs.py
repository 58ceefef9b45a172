"""The costs of jobs with many tasks: counted in calls of functions, never timed."""

import sys
from collections import Counter
from functools import partial

import pytest

from gateway.domain.execution import machine as execution
from gateway.domain.execution.messages import Inspected
from gateway.domain.records import replace
from gateway.domain.run import Reporting
from gateway.domain.scheduling import machine
from gateway.domain.states import RunStatus, TaskStatus
from gateway.domain.timeouts import Timing
from gateway.jobs.views import view
from tests.builders import OK, a_job, a_local_job, a_run, at
from tests.domain.running_jobs import RUNNING, job_with
from tests.domain.script import report_task

FEW = 100  # tasks; more than may run in parallel
MANY = 800


def large_job(tasks):
    """Return a running job of independent tasks, as many under way as may run in parallel."""
    dag = "; ".join(f"t{number}" for number in range(tasks))
    job, _ = machine.step(job_with(dag), at(0))
    return job


def calls_of(work):
    """Return how many functions are called by some work, including functions in C."""
    events = Counter()

    def count(
        _frame,
        event,
        _argument,
    ):
        events[event] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return events["call"] + events["c_call"]


@pytest.mark.parametrize("tasks", [FEW, MANY])
def test_the_view_of_a_job_costs_the_same_per_task(tasks):
    job = large_job(tasks)

    calls = calls_of(
        partial(view, job, Timing()),
    )

    assert calls / tasks < 150


def test_a_report_costs_few_calls_for_each_other_task():
    few = calls_of(
        partial(record_report, large_job(FEW)),
    )
    many = calls_of(
        partial(record_report, large_job(MANY)),
    )

    calls_per_task = (many - few) / (MANY - FEW)
    assert calls_per_task < 0.1


def test_news_of_a_run_costs_few_calls_for_each_other_run():
    few = calls_of(
        partial(record_probe, large_part(FEW)),
    )
    many = calls_of(
        partial(record_probe, large_part(MANY)),
    )

    calls_per_run = (many - few) / (MANY - FEW)
    assert calls_per_run < 0.1


def large_part(runs):
    """Return a party's record of a job with runs that are done with, but for the last one."""
    ended_runs = []
    for number in range(runs - 1):
        ended_run = a_run(
            f"t{number}",
            RunStatus.SUCCESS,
            collect=OK,
            reporting=Reporting(status=TaskStatus.SUCCESS),
        )
        ended_runs.append(ended_run)
    local = a_local_job(*ended_runs, a_run("last", RunStatus.RUNNING))
    return execution.step(local, at(0))[0]


def record_probe(local):
    """Record that the container of a job's last run still runs, and take the steps that follow."""
    news = Inspected("run-last-guest.0", at(1))
    local = execution.apply(local, news)
    execution.step(local, at(1))


def record_report(job):
    """Record a report of one task, and take the steps that follow."""
    report = report_task(RUNNING, task="t0")
    job = machine.apply(job, report)
    machine.step(job, at(1))


def test_a_copied_task_computes_its_status_anew():
    task = a_job("a").tasks["a"]
    assert task.reported is TaskStatus.PENDING
    parts = {}
    for node, part in task.nodes.items():
        running_roles = dict.fromkeys(part.roles, RUNNING)
        parts[node] = replace(
            part,
            roles=running_roles,
        )

    copied = replace(task, nodes=parts)

    assert copied.reported is RUNNING
    assert not copied.is_up_to_date


def test_a_copied_run_computes_anew_whether_it_is_done_with():
    run = a_run(status=RunStatus.SUCCESS)
    assert not run.done_with

    copied = replace(
        run,
        reporting=Reporting(status=TaskStatus.SUCCESS),
        collect=OK,
    )

    assert copied.done_with
