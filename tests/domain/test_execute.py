"""What a participating node decides, rule by rule. The same rules at large: `test_workshop`."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.execution import machine
from gateway.domain.execution.machine import next_due, step
from gateway.domain.execution.messages import (
    Close,
    Collect,
    Done,
    Event,
    Exited,
    Gone,
    Inspected,
    Launch,
    Launched,
    LaunchFailed,
    OwnerLost,
    Probe,
    Reported,
    Restarted,
    StopRequested,
    StopRun,
    Tell,
)
from gateway.domain.execution.transitions import merge_runs
from gateway.domain.run import Exit, Reporting, Run
from gateway.domain.spec import Failure, Party
from gateway.domain.states import JOB, RUN, JobStatus, RunStatus, TaskStatus, ended, may
from tests.builders import IDLE, OK, a_local_job, a_run, at, sent
from tests.domain.executed import (
    ENDING,
    FAILED,
    ID,
    LAUNCHING,
    RUNNING,
    STOPPING,
    SUCCESS,
    TIMING,
    WAITING,
    after,
    due,
    exited,
    only,
    said,
    settled,
    stopped,
)
from tests.domain.strategies import REPEATABLE
from tests.domain.workshop import soon

# ---------------------------------------------------------------- the way of a run


def test_a_waiting_run_is_launched_once():
    local, actions = step(a_local_job(a_run()), at(0))
    assert actions == [Launch(ID)]
    assert (only(local).status, due(local)) == (LAUNCHING, [])


def test_a_launch_without_any_end_is_repeated_after_its_deadline():
    local, _ = step(a_local_job(a_run()), at(0))
    assert next_due(local) == at(120)
    local, actions = step(local, at(120))
    assert actions == [Launch(ID)]
    assert (only(local).status, only(local).launch.tries) == (LAUNCHING, 2)


def test_a_launched_run_is_running_told_and_looked_at_from_time_to_time():
    local = after(a_local_job(a_run(status=LAUNCHING)), Launched(ID, at(1), "sha256:1"))
    run = only(local)
    assert (run.status, run.started_at, run.image_digest) == (RUNNING, at(1), "sha256:1")
    assert due(local, 1) == [Tell(ID, TaskStatus.RUNNING)]
    assert due(local, 6) == [Probe(ID), Tell(ID, TaskStatus.RUNNING)]


def test_a_look_that_shows_nothing_new_is_repeated_later():
    local = a_local_job(a_run(status=RUNNING, reporting=Reporting(TaskStatus.RUNNING)))
    local, actions = step(local, at(5))
    assert actions == [Probe(ID)]
    assert due(local, 9.9) == []
    local = after(local, Inspected(ID, at(7)))
    assert due(local, 11.9) == []
    assert due(local, 12) == [Probe(ID)]


def test_a_failed_launch_fails_the_run_in_the_engines_words_and_is_tidied():
    local = after(
        a_local_job(a_run(status=LAUNCHING)), LaunchFailed(ID, Failure("IMAGE_NOT_FOUND", "no such image"), at(1))
    )
    run = only(local)
    assert (run.status, run.ended_at) == (FAILED, at(1))
    assert run.failure == Failure("IMAGE_NOT_FOUND", "no such image", "n1", "guest", "a")
    assert due(local, 1) == [Collect(ID), Tell(ID, TaskStatus.FAILED)]


@pytest.mark.parametrize("status", [s for s in RunStatus if s is not LAUNCHING])
@pytest.mark.parametrize("late", [Launched(ID, at(9)), LaunchFailed(ID, Failure("ENGINE_DOWN"), at(9))])
def test_the_end_of_a_launch_counts_only_while_launching(status, late):
    local = a_local_job(a_run(status=status))
    assert after(local, late) == local


def test_what_a_frozen_gateway_starts_after_its_run_was_given_up_is_removed_again():
    local = a_local_job(a_run(owner="frozen", status=LAUNCHING, launch=sent(0)))
    local, [collect, _] = step(after(local, OwnerLost("frozen", "me", at(9))), at(10))
    assert collect == Collect(ID)  # and finds nothing, for the container comes just after
    local = after(local, Done(collect, at(10)), Launched(ID, at(10)))
    assert Collect(ID) in due(local, 10)


# ---------------------------------------------------------------- tidying up, telling, closing


def test_a_run_that_is_over_is_collected_until_that_is_done():
    local, actions = step(a_local_job(a_run(status=SUCCESS, reporting=Reporting(TaskStatus.SUCCESS))), at(0))
    assert actions == [Collect(ID)]
    assert due(local, 16.9) == []
    assert due(local, 17) == [Collect(ID)]
    local = after(local, Done(Collect(ID), at(1), final=False, message="engine down"))
    assert due(local, 1.2) == [Collect(ID)]
    local = after(step(local, at(2))[0], Done(Collect(ID), at(2)))
    assert due(local, 1000) == []


def test_what_is_collected_stays_collected_whatever_a_repeat_comes_to():
    local, [collect] = step(a_local_job(a_run(status=SUCCESS, reporting=Reporting(TaskStatus.SUCCESS))), at(0))
    local = after(local, Done(collect, at(1)), Done(collect, at(2), final=False))
    assert due(local, 1000) == []


@pytest.mark.parametrize(
    ("status", "news"),
    [
        (WAITING, None),
        (LAUNCHING, None),
        (RUNNING, TaskStatus.RUNNING),
        (STOPPING, TaskStatus.RUNNING),
        (SUCCESS, TaskStatus.SUCCESS),
        (FAILED, TaskStatus.FAILED),
    ],
)
def test_every_state_worth_telling_is_told_once(status, news):
    local = a_local_job(a_run(status=status))
    tells = [c for c in due(local, 0) if isinstance(c, Tell)]
    assert tells == ([Tell(ID, news)] if news else [])
    if news:
        local = after(step(local, at(0))[0], Done(Tell(ID, news), at(1)))
        assert not any(isinstance(c, Tell) for c in due(local, 1000))


def test_a_tell_that_failed_is_repeated_after_growing_pauses_but_not_for_ever():
    local, now, pauses = a_local_job(a_run(status=SUCCESS, collect=OK)), at(0), []
    while (when := next_due(local)) is not None:
        pauses.append(max((when - now).total_seconds(), 0.0))
        now = max(when, now)
        local, [tell] = step(local, now)
        local = after(local, Done(tell, now, final=False))
    assert len(pauses) == TIMING.tell_tries
    assert pauses == sorted(pauses)
    assert pauses[-1] == TIMING.retry_max


def test_news_does_not_wait_for_a_tell_of_older_news():
    local, _ = step(a_local_job(a_run(status=RUNNING)), at(0))
    local = after(local, said(TaskStatus.FAILED, 1))
    assert Tell(ID, TaskStatus.FAILED) in due(local, 1)


@pytest.mark.parametrize("final", [True, False])
def test_the_end_of_a_tell_of_older_news_says_nothing_of_the_newer(final):
    local, _ = step(a_local_job(a_run(status=RUNNING)), at(0))
    local, actions = step(after(local, said(TaskStatus.FAILED, 1)), at(1))
    assert Tell(ID, TaskStatus.FAILED) in actions
    local = after(local, Done(Tell(ID, TaskStatus.RUNNING), at(2), final=final))
    assert not any(isinstance(c, Tell) for c in due(local, 2))
    local = after(local, Done(Tell(ID, TaskStatus.FAILED), at(3)))
    local = after(local, Done(Tell(ID, TaskStatus.RUNNING), at(4), final=final))
    assert not any(isinstance(c, Tell) for c in due(local, 1000))


def _over(**changes) -> Run:
    return a_run(status=SUCCESS, reporting=Reporting(TaskStatus.SUCCESS), **changes)


@pytest.mark.parametrize(
    ("runs", "closes"),
    [
        ((), True),
        ((_over(collect=OK),), True),
        ((_over(),), False),
        ((_over(collect=sent()),), False),
        ((_over(collect=OK), a_run("b", STOPPING)), False),
        ((_over(collect=OK), a_run("b", FAILED, launch=IDLE)), True),
    ],
    ids=["no run", "collected", "not collected", "being collected", "one still there", "one never launched"],
)
def test_a_job_is_closed_only_after_all_of_it_is_collected(runs, closes):
    local = a_local_job(*runs, status=JobStatus.FINISHED)
    assert (Close() in due(local, 0)) is closes


def test_a_job_that_goes_on_is_not_closed():
    assert due(a_local_job(_over(collect=OK)), 1000) == []


def test_a_step_of_the_tidying_up_that_fails_is_told_once_and_repeated():
    local = step(a_local_job(_over(collect=IDLE), status=JobStatus.FINISHED), at(0))[0]
    for second, words in ((1, "no space"), (2, "no space"), (3, "engine down")):
        local = after(local, Done(Collect(ID), at(second), final=False, message=words))
        assert local.status is JobStatus.FINISHED and Collect(ID) in due(local, second + 60)
    told = [(n.at, n.event, n.detail["message"]) for n in local.notes if n.event == "removing failed"]
    assert told == [(at(1), "removing failed", "no space"), (at(3), "removing failed", "engine down")]
    closing = step(a_local_job(status=JobStatus.FINISHED), at(0))[0]
    closing = after(closing, Done(Close(), at(1), final=False, message="the channel is away"))
    assert [n.event for n in closing.notes] == ["closing failed"] and due(closing, 60) == [Close()]
    assert after(step(closing, at(60))[0], Done(Close(), at(61))).closed


def test_a_close_is_repeated_until_it_is_done_and_then_never():
    local, actions = step(a_local_job(status=JobStatus.FINISHED), at(0))
    assert actions == [Close()]
    assert due(local, 11.9) == []
    local = after(local, Done(Close(), at(1), final=False))
    assert due(local, 1.2) == [Close()]
    local = after(step(local, at(2))[0], Done(Close(), at(2)))
    assert local.closed
    late = after(local, Done(Close(), at(3), final=False))
    assert late.closed
    assert next_due(late) is None


# ---------------------------------------------------------------- a new process


@pytest.mark.parametrize(
    ("run", "again"),
    [
        (a_run(), [Launch(ID)]),
        (a_run(status=LAUNCHING), [Launch(ID)]),
        (a_run(status=RUNNING, reporting=Reporting(TaskStatus.RUNNING)), [Probe(ID)]),
        (
            a_run(status=RUNNING, reporting=Reporting(call=sent()), probe_at=at(5)),
            [Probe(ID), Tell(ID, TaskStatus.RUNNING)],
        ),
        (
            a_run(status=STOPPING, reporting=Reporting(TaskStatus.RUNNING), stop=sent()),
            [StopRun(ID, TIMING.stop_grace)],
        ),
        (a_run(status=STOPPING, reporting=Reporting(TaskStatus.RUNNING), stop=OK), [Probe(ID)]),
        (_over(collect=sent()), [Collect(ID)]),
        (_over(collect=OK), []),
        (
            a_run(status=FAILED, collect=OK, reporting=Reporting(TaskStatus.RUNNING, sent())),
            [Tell(ID, TaskStatus.FAILED)],
        ),
    ],
)
def test_a_new_process_takes_up_at_once_what_the_old_one_had_in_hand(run, again):
    assert due(after(a_local_job(run), Restarted(at(1))), 1) == again


def test_a_new_process_takes_up_a_close():
    local, _ = step(a_local_job(status=JobStatus.FINISHED), at(0))
    assert due(local, 1) == []
    assert due(after(local, Restarted(at(1))), 1) == [Close()]


def test_a_run_keeps_what_it_told_and_how_it_exited_over_a_new_process():
    local = after(a_local_job(a_run(status=RUNNING)), exited(0, 2), Restarted(at(2.5)))
    assert settled(local, 3).status is SUCCESS
    told = after(a_local_job(a_run(status=RUNNING)), said(TaskStatus.SUCCESS), Restarted(at(9)), exited(0, 10))
    assert only(told).status is SUCCESS


# ---------------------------------------------------------------- at large


def test_every_move_of_a_run_is_written_into_the_timeline():
    local, _ = step(a_local_job(a_run()), at(0))
    local = after(local, Launched(ID, at(1)), stopped(2), exited(143, 3))
    assert [note.event for note in local.notes] == [
        "run LAUNCHING",
        "run RUNNING",
        "run STOPPING",
        "job FINISHED here",
        "run FAILED",
    ]
    detail = local.notes[-1].detail
    assert (detail["reason"], detail["task"], detail["role"], detail["exit_code"]) == (
        "STOPPED",
        "a",
        "guest.0",
        143,
    )


def test_the_runs_of_a_task_are_told_as_one():
    host = Party("host", 1, "n1")
    runs = [a_run(status=SUCCESS), a_run(status=LAUNCHING, party=host)]
    assert merge_runs(runs) is TaskStatus.READY
    assert merge_runs([*runs, a_run(status=FAILED)]) is TaskStatus.FAILED
    assert merge_runs(runs[:1]) is TaskStatus.SUCCESS


EXIT_CODES = st.sampled_from([0, 0, 1, 137])


@st.composite
def _event(draw: st.DrawFn, run: str, seconds: float) -> Event:
    now, final = at(seconds), draw(st.booleans())
    exit_ = Exit(
        draw(EXIT_CODES), oom_killed=final, finished_at=now, missing_outputs=draw(st.sampled_from([(), ("x",)]))
    )
    return draw(
        st.sampled_from(
            [
                Launched(run, now),
                Launched(run, now),
                LaunchFailed(run, Failure("ENGINE_DOWN"), now),
                Inspected(run, now),
                Exited(run, exit_, now),
                Gone(run, now),
                Reported(run, draw(st.sampled_from(TaskStatus)), now),
                Done(Collect(run), now, final),
                Done(Tell(run, draw(st.sampled_from(TaskStatus))), now, final),
                Done(StopRun(run, 5.0), now, final),
                Done(Close(), now, final),
                StopRequested(now, frozenset({"a"}) if final else None, ENDING),
                Restarted(now),
            ]
        )
    )


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=2, unique=True), st.data())
@REPEATABLE
def test_no_news_whatever_breaks_a_job_or_moves_it_beside_the_tables(tasks, data):
    local, now = a_local_job(*(a_run(task) for task in tasks)), 0.0
    for _ in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.sampled_from((0.0, 0.1, 1.0, 15.0, 130.0)))
        old = local
        if data.draw(st.booleans()):
            local, actions = step(local, at(now))
            assert not set(actions) & set(due(local, now))
        else:
            local = after(local, data.draw(_event(data.draw(st.sampled_from(local.runs)).run_id, now)))
        assert old.status is local.status or may(JOB, old.status, local.status)
        for was, run in zip(old.runs, local.runs, strict=True):
            assert run.status in soon(was.status)
            assert (run.failure is not None) is (run.status is FAILED)
            assert run.over is (run.ended_at is not None) is ended(RUN, run.status)
            if was.over:
                assert (was.status, was.failure, was.ended_at) == (run.status, run.failure, run.ended_at)


# ---------------------------------------------------------------- several gateways


def test_a_lost_gateway_leaves_what_it_had_not_begun_and_its_other_runs_fail_by_name():
    waiting, running = a_run("a", owner="lost"), a_run("b", status=RunStatus.RUNNING, owner="lost")
    stopping = a_run("c", status=RunStatus.STOPPING, owner="lost", stop_at=at(0))
    over, mine = (
        a_run("d", status=RunStatus.SUCCESS, owner="lost"),
        a_run("e", status=RunStatus.RUNNING, owner="me"),
    )
    local = replace(a_local_job(waiting, running, stopping, over, mine), home="lost")
    local = machine.apply(local, OwnerLost("lost", "me", at(5)))
    by_task = {run.task_name: run for run in local.runs}
    assert by_task["a"] == replace(waiting, owner="me") and local.home == "me"
    assert by_task["b"].failure.reason == "CHANNEL_LOST"
    assert by_task["c"].failure.reason == "STOPPED"
    assert (by_task["d"], by_task["e"]) == (over, mine)
    assert machine.apply(local, OwnerLost("lost", "me", at(6))) == local


def test_only_the_gateway_that_has_a_job_closes_it_and_waits_for_no_container_it_left_behind():
    left = a_run("a", status=RunStatus.FAILED, owner="lost", launch=OK)
    local = replace(a_local_job(left, status=JobStatus.FINISHED), home="me")
    assert Close() in machine.plan(local, at(9), owner="me")
    assert Close() not in machine.plan(local, at(9), owner="third")
    assert machine.plan(local, at(9), owner="lost") == [
        Collect(left.run_id),
        Tell(left.run_id, TaskStatus.FAILED),
    ]
