"""What is remembered of a record is what would be worked out anew, and only what changed is worked out again."""

from dataclasses import replace

from hypothesis import given, settings

from gateway.domain.execution import agenda as executing
from gateway.domain.job import Job
from gateway.domain.run import LocalJob
from gateway.domain.scheduling import agenda as scheduling
from gateway.domain.scheduling import machine
from gateway.domain.scheduling.messages import Heard, SuspendAsked
from gateway.domain.states import JobStatus, RunStatus, TaskStatus
from gateway.domain.timeouts import RunTiming as Execution
from gateway.domain.timeouts import Timing
from tests.builders import a_job, a_local_job, a_run, at
from tests.domain.plot import Plot
from tests.domain.strategies import PLAYED, plots, shifts
from tests.domain.workshop import Workshop
from tests.domain.world import World

TIMING, EXECUTION = Timing(), Execution()


class AttentiveWorld(World):
    """Compares each record that is stored with an equal one of which nothing is remembered."""

    def _check_move(self, old: Job, new: Job) -> None:
        super()._check_move(old, new)
        forgetful = replace(new, tasks={name: replace(task) for name, task in new.tasks.items()})
        assert scheduling.agenda(new, self.timing) == scheduling.agenda(forgetful, self.timing)
        assert machine.step(new, at(self.works.now), self.timing) == machine.step(
            forgetful, at(self.works.now), self.timing
        )


class AttentiveWorkshop(Workshop):
    def _check_move(self, old: LocalJob, new: LocalJob) -> None:
        super()._check_move(old, new)
        forgetful = replace(new, runs=tuple(replace(run) for run in new.runs))
        assert executing.agenda(new, EXECUTION) == executing.agenda(forgetful, EXECUTION)


@given(plots())
@settings(PLAYED, max_examples=40)
def test_what_is_remembered_of_a_job_is_what_follows_from_it(plot: Plot):
    AttentiveWorld(plot).run()


@given(shifts())
@settings(PLAYED, max_examples=40)
def test_what_is_remembered_of_a_job_here_is_what_follows_from_it(shift):
    AttentiveWorkshop(shift).run()


def test_a_step_of_a_large_job_works_out_anew_only_what_changed():
    names = [f"t{i}" for i in range(50)]
    running = dict.fromkeys(names, TaskStatus.RUNNING)
    job = a_job("; ".join(names), JobStatus.RUNNING, **running)
    before = scheduling.agenda(job, TIMING)
    event = Heard(job.tasks["t7"].task_id, "n1", "guest", TaskStatus.SUCCESS, at(1))
    job = machine.apply(job, event, TIMING)
    after = scheduling.agenda(job, TIMING)
    assert {due.command.task for due in after} == set(names)
    anew = {due.command.task for due in after if not any(due is known for known in before)}
    assert anew == {"t7"}
    assert scheduling.agenda(job, TIMING) is after


def test_a_job_that_is_held_back_remembers_both_ways():
    job = a_job("a; b", JobStatus.RUNNING)
    starts = scheduling.agenda(job, TIMING)
    held = machine.apply(job, SuspendAsked("n1", at(1)), TIMING)
    assert starts
    assert scheduling.agenda(held, TIMING) == ()
    going_on = machine.apply(held, SuspendAsked("n1", at(2), on=False), TIMING)
    assert scheduling.agenda(going_on, TIMING) == starts


def test_of_many_runs_only_those_that_changed_are_looked_at_anew():
    local = a_local_job(*(a_run(f"t{i}", RunStatus.RUNNING) for i in range(50)))
    before = executing.agenda(local, EXECUTION)
    changed = replace(local.runs[3], probe_at=at(99))
    after = executing.agenda(replace(local, runs=(*local.runs[:3], changed, *local.runs[4:])), EXECUTION)
    anew = [due for due in after if not any(due is known for known in before)]
    assert {due.command.run for due in anew} == {changed.run_id}
