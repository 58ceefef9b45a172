"""What a job and a task are, for every mix of what their parts are: truth tables, played through the rules."""

from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement, permutations, product

import pytest

from adapter.bfia.translate import outcome_of, progress_of, status_of
from gateway.domain.dag import Dag
from gateway.domain.job import Job
from gateway.domain.states import JOB, TASK, JobStatus, Outcome, TaskStatus, ended, may, merge
from tests.builders import a_job, a_spec
from tests.domain.script import AllAnswer, after, reported

PENDING, READY, RUNNING = TaskStatus.PENDING, TaskStatus.READY, TaskStatus.RUNNING
SUCCESS, FAILED = TaskStatus.SUCCESS, TaskStatus.FAILED
MULTISETS = [m for n in range(5) for m in combinations_with_replacement(TaskStatus, n)]


def played(states: Sequence[TaskStatus], *, stops_answered: bool) -> Job:
    """Return a job of unrelated tasks that both nodes have told to be in these states."""
    names = [f"t{i}" for i in range(len(states))]
    spec = a_spec("; ".join(names) if names else Dag(()))
    job = after(a_job(spec=spec, status=JobStatus.RUNNING), AllAnswer(0))
    for name, status in zip(names, states, strict=True):
        job = told(job, name, dict.fromkeys(("n1", "n2"), status))
    return after(job, *([AllAnswer(3)] if stops_answered else [3]))


def told(job: Job, name: str, states: Mapping[str, TaskStatus]) -> Job:
    """Return the job after nodes have told how a task is there, in this order; PENDING is not told."""
    return after(job, *(reported(s, node, name, 2) for node, s in states.items() if s is not PENDING))


def wanted(states: Sequence[TaskStatus]) -> tuple[JobStatus, Outcome | None]:
    """The rule once more, written from the user's point of view."""
    if FAILED in states:
        return JobStatus.FINISHED, Outcome.FAILED
    if states and all(s is SUCCESS for s in states):
        return JobStatus.FINISHED, Outcome.SUCCEEDED
    return JobStatus.RUNNING, None


@pytest.mark.parametrize("states", MULTISETS, ids=lambda m: "+".join(m) or "no task")
def test_what_a_job_is_follows_from_its_tasks(states: tuple[TaskStatus, ...]):
    status, outcome = wanted(states)
    orders = set(permutations(states)) if len(states) < 4 else {states, states[::-1]}
    for order in orders:
        job = played(order, stops_answered=True)
        assert (job.status, job.outcome) == (status, outcome)
        assert (job.progress == 100) is (outcome is Outcome.SUCCEEDED)
        if not ended(JOB, status):
            shown = [READY if s is PENDING else s for s in order]
            assert [t.status for t in job.tasks.values()] == shown
        else:
            assert all(ended(TASK, t.status) for t in job.tasks.values() if t.status is not READY)


@pytest.mark.parametrize("states", [m for m in MULTISETS if wanted(m)[1]], ids="+".join)
def test_the_end_and_full_progress_come_in_one_step_once_every_node_was_notified(
    states: tuple[TaskStatus, ...],
):
    job = played(states, stops_answered=False)
    assert job.ending is not None and not ended(JOB, job.status)
    assert job.outcome is None and job.progress < 100


PARTIES = ("n1", "n2", "n3")


@pytest.mark.parametrize("states", list(product(TaskStatus, repeat=3)), ids="+".join)
def test_the_state_of_a_task_follows_from_its_parties_in_whatever_order_they_report(
    states: tuple[TaskStatus, ...],
):
    merged = merge(states)
    expected = merged if may(TASK, READY, merged) else READY
    roles = {"guest": ("n1",), "host": ("n2",), "arbiter": ("n3",)}
    for order in permutations(zip(PARTIES, states, strict=True)):
        job = told(after(a_job(status=JobStatus.RUNNING, roles=roles), AllAnswer(0)), "a", dict(order))
        task = job.tasks["a"]
        assert task.status is expected
        assert (task.failure is not None) is (expected is FAILED)
        assert [task.nodes[n].status for n in PARTIES] == list(states)


@pytest.mark.parametrize("states", MULTISETS, ids=lambda m: "+".join(m) or "no task")
def test_the_state_of_a_job_whose_peer_reports_tasks_only(states: tuple[TaskStatus, ...]):
    status = status_of(set(states))
    assert status is (JobStatus.PENDING if set(states) <= {PENDING} else wanted(states)[0])
    outcome = outcome_of(status, states)
    assert outcome is wanted(states)[1]
    progress = progress_of(outcome, states)
    assert (progress == 100) is (outcome is Outcome.SUCCEEDED) and 0 <= progress <= 100
