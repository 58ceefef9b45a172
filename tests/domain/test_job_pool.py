"""The pool of a job: the resources that its runs borrow."""

from dataclasses import replace

from gateway.domain import run as domain_run
from gateway.domain.amounts import GIB, Amounts, AmountsByEngine, Pool
from gateway.domain.execution.messages import Exited, Launch, Launched, LaunchFailed, Reported
from gateway.domain.run import Exit
from gateway.domain.spec import Failure, Party
from gateway.domain.states import TaskStatus
from tests.builders import T0, a_local_job, a_run
from tests.domain.pools import FAR_ENGINE, job_with_pool
from tests.domain.script import due_commands, play

MAIN_ENGINE = ""
FOUR_CORES = Amounts.of(4)


def test_a_task_borrows_from_its_job_and_the_jobs_pool_reads_4_0_4():
    local = job_with_pool(cpu=4)
    for task in "abcdef":
        run = a_run(task, limits={"cpu": 4.0})
        assert domain_run.remaining(local)[MAIN_ENGINE] == FOUR_CORES

        local = replace(local, runs=(*local.runs, run))
        assert due_commands(local) == [Launch(run.run_id)]
        local = play(local, 0)
        assert domain_run.remaining(local)[MAIN_ENGINE] == Amounts()

        report = Reported(run.run_id, TaskStatus.SUCCESS, T0)
        exit_ = Exited(run.run_id, Exit(0), T0)
        # Repeated news return nothing twice.
        local = play(
            local,
            Launched(run.run_id, T0),
            report,
            report,
            exit_,
            exit_,
            report,
            0,
        )
    assert domain_run.remaining(local)[MAIN_ENGINE] == FOUR_CORES


def test_a_run_waits_with_a_reason_until_its_jobs_pool_has_enough():
    first = a_run("a", limits={"cpu": 3.0})
    second = a_run("b", limits={"cpu": 3.0})
    local = job_with_pool(first, second, cpu=4)
    assert due_commands(local) == [Launch(first.run_id)]

    local = play(local, 0)

    assert due_commands(local) == [], "a waiting run is not planned again and again"
    reason = domain_run.waits_for(local, local.runs[1])
    assert reason == "needs cpu 3 of the job's pool, free cpu 1, borrowed by a"


def test_a_failed_launch_returns_its_resources():
    first = a_run("a", limits={"cpu": 3.0})
    second = a_run("b", limits={"cpu": 3.0})
    local = play(job_with_pool(first, second, cpu=4), 0)

    local = play(
        local,
        LaunchFailed(first.run_id, Failure("X"), T0),
    )

    assert Launch(second.run_id) in due_commands(local)
    assert domain_run.waits_for(local, local.runs[1]) == ""


def test_the_runs_of_one_task_borrow_together_or_not_at_all():
    guest_run = a_run("a", limits={"cpu": 2.0})
    host_run = a_run(
        "a",
        party=Party("host", 0, "n1"),
        limits={"cpu": 2.0},
    )
    small_run = a_run("b", limits={"cpu": 1.0})

    too_small = job_with_pool(guest_run, host_run, cpu=3)
    large_enough = job_with_pool(guest_run, host_run, cpu=4)
    with_small_run = job_with_pool(guest_run, host_run, small_run, cpu=3)

    assert domain_run.may_launch(too_small) == set()
    assert domain_run.may_launch(large_enough) == {guest_run.run_id, host_run.run_id}
    assert domain_run.may_launch(with_small_run) == {small_run.run_id}


def test_a_run_borrows_from_its_engines_pool_and_shows_where_it_waits():
    near = a_run("a", limits={"cpu": 2.0, "disk": 1.0 * GIB}, engine=MAIN_ENGINE)
    far = a_run("b", limits={"cpu": 2.0, "disk": 1.0 * GIB}, engine=FAR_ENGINE)
    late = a_run(
        "c",
        limits={"cpu": 2.0, "disk": 0.0},
        engine=FAR_ENGINE,
    )
    pool = Pool(Amounts.of(4, disk=2 * GIB), 2, {FAR_ENGINE: Amounts.of(2)})
    local = a_local_job(near, far, late, pool=pool)
    assert due_commands(local) == [Launch(near.run_id), Launch(far.run_id)]

    local = play(local, 0)

    remaining = domain_run.remaining(local)
    assert remaining == AmountsByEngine({MAIN_ENGINE: Amounts.of(2), FAR_ENGINE: Amounts()})
    assert domain_run.waits_for(local, local.runs[2]) == (
        f"needs cpu 2 of the job's pool at engine {FAR_ENGINE}, free cpu 0, borrowed by b"
    )


def test_a_job_of_a_version_that_did_not_count_further_engines_goes_on():
    run = a_run(
        "a",
        limits={"cpu": 4.0},
        engine=FAR_ENGINE,
    )
    local = a_local_job(
        run,
        pool=Pool(FOUR_CORES, 1),
    )
    assert due_commands(local) == [Launch(run.run_id)]

    local = play(local, 0)

    assert domain_run.remaining(local)[MAIN_ENGINE] == Amounts()
