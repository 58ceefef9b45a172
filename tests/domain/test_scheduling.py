"""What the scheduling node decides, rule by rule: (given, events, expected). At large: `test_world`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bootstrap.parts import call_timing, run_timing
from gateway.domain.job import Job
from gateway.domain.scheduling.agenda import is_claimed, max_deferred, with_call
from gateway.domain.scheduling.machine import apply, next_due, step
from gateway.domain.scheduling.messages import (
    Accepted,
    CreateAt,
    Delayed,
    Event,
    Lost,
    PollTaskAt,
    Refused,
    ReleaseAt,
    ReserveAt,
    RoleNotPlayed,
    StartAt,
    StartTaskAt,
    StopAt,
    StopRequested,
    TaskReported,
    TaskStopRequested,
    TaskUnknown,
)
from gateway.domain.scheduling.responses import exclude
from gateway.domain.spec import Failure
from gateway.domain.states import JOB, TASK, JobStatus, Outcome, TaskStatus, ended, may
from gateway.domain.timeouts import Timing
from tests.builders import a_job, a_spec, at, sent
from tests.domain.calls import (
    A1,
    A2,
    A3,
    B1,
    B2,
    C1,
    C2,
    C3,
    POLL_1,
    POLL_2,
    S1,
    S2,
    S3,
    X1,
    X2,
    X3,
)
from tests.domain.script import (
    GUEST_AND_TWO_HOSTS,
    ONE_GUEST,
    REFUSAL,
    AcceptAll,
    Step,
    accept,
    due_commands,
    lose_request,
    lose_response,
    play,
    refuse,
    report_task,
)
from tests.domain.strategies import REPEATABLE, plots
from tests.inprocess import settings

READY, RUNNING, SUCCESS, FAILED = (
    TaskStatus.READY,
    TaskStatus.RUNNING,
    TaskStatus.SUCCESS,
    TaskStatus.FAILED,
)
UNKNOWN = TaskUnknown(POLL_1, at(13))
STOP = StopRequested("n1", at(1), "enough")
INTERNAL = Failure("INTERNAL", "", "n2")


def ready(**more) -> Job:
    return a_job(status=JobStatus.READY, **more)


def running(dag: str = "a", **more) -> Job:
    return a_job(dag, JobStatus.RUNNING, **more)


NEW, TRIO, BEGUN, RUNS = a_job(), a_job(roles=GUEST_AND_TWO_HOSTS), running(), running(a=RUNNING)
ALONE, CHAIN, TRIO_RUNS = (
    running(roles=ONE_GUEST),
    running("a -> b", a=RUNNING),
    running(roles=GUEST_AND_TWO_HOSTS, a=RUNNING),
)
NO_NEWS: list[Step] = [1, report_task(SUCCESS, pushed=True), lose_response(POLL_2, 2)]
DUE: dict[str, tuple[Job, Sequence[Step], Mapping[float, list]]] = {
    # creating
    "every node once": (
        a_job(roles={"guest": ("n1", "n2"), "host": ("n2", "n3")}),
        [],
        {0: [C1, C2, C3]},
    ),
    "an unrecorded create": (
        a_job(roles=ONE_GUEST),
        [0],
        {
            0: [],
            11.9: [],
            12: [C1],
        },
    ),
    "accepted everywhere": (NEW, [AcceptAll(0)], {0: [S1, S2]}),
    "refused, another open": (TRIO, [0, accept(C1, 1), refuse(C2, 1)], {1: [X1]}),
    "refused": (TRIO, [0, accept(C1, 1), refuse(C2, 1), accept(C3, 2)], {2: [X1, X3]}),
    "refused after a lost try": (
        NEW,
        [0, accept(C1, 1), lose_response(C2, 1), 2, refuse(C2, 3)],
        {60: [X1, X2]},
    ),
    "a refusal that leaves it open": (
        NEW,
        [0, accept(C1, 1), refuse(C2, 1, INTERNAL)],
        {60: [X1, X2]},
    ),
    "no envelope": (NEW, [0, accept(C1, 1), refuse(C2, 1, Failure("NO_ENVELOPE"))], {60: [X1, X2]}),
    "so is a stop": (
        NEW,
        [0, accept(C1, 1), refuse(C2, 1, INTERNAL), 60, accept(X1, 60), refuse(X2, 60, INTERNAL)],
        {70: [X2]},
    ),
    "unreachable": (NEW, [0, accept(C1, 0), lose_request(C2, 9.95), 10], {10: [], 22: [X1]}),
    "a create on its way": (
        NEW,
        [0, accept(C1, 0), lose_request(C2, 1), 9, 10],
        {20.9: [], 21: [X2]},
    ),
    "it may have arrived": (NEW, [0, lose_response(C2, 1), refuse(C1, 1)], {12: [X2]}),
    "it did not arrive": (NEW, [0, lose_request(C2, 1), refuse(C1, 1)], {12: []}),
    "only the second did not arrive": (
        NEW,
        [0, lose_response(C2, 1), 2, lose_request(C2, 2), refuse(C1, 2)],
        {14: [X2]},
    ),
    "accepted after all": (NEW, [0, lose_request(C2, 0), refuse(C1, 1), accept(C2, 2)], {2: [X2]}),
    # starting
    "ready": (ready(), [], {0: [S1, S2]}),
    "started at one": (ready(), [0, accept(S1, 1)], {1: []}),
    # tasks
    "upstream open": (
        running("a -> b", a={"n1": SUCCESS, "n2": RUNNING}),
        [report_task(SUCCESS)],
        {1: [B1, B2]},
    ),
    "nodes with a role": (
        running("a; b", roles=GUEST_AND_TWO_HOSTS, task_roles={"a": ["guest"], "b": ["host"]}),
        [],
        {0: [A1, B2, StartTaskAt("n3", "b")]},
    ),
    "a start without a response": (ALONE, [0], {11.9: [], 12: [POLL_1]}),
    "a lost start": (ALONE, [0, lose_response(A1, 1)], {11.9: [], 12: [POLL_1]}),
    "a start that never left": (ALONE, [0, lose_request(A1, 1)], {1.2: [A1]}),
    "unknown there": (ALONE, [0, 12, UNKNOWN], {13: [A1]}),
    "known, and not begun": (ALONE, [0, 12, accept(POLL_1, 13)], {1000: [POLL_1]}),
    "known there": (ALONE, [0, 12, report_task(READY, "n1"), accept(POLL_1, 13)], {1000: [POLL_1]}),
    "news before it": (
        ALONE,
        [0, 12, UNKNOWN, report_task(RUNNING, "n1", seconds=13.1)],
        {1000: [POLL_1]},
    ),
    "it pushes": (
        BEGUN,
        [AcceptAll(0), report_task(RUNNING, pushed=True)],
        {2.9: [POLL_1], 3: [POLL_1, POLL_2]},
    ),
    # the end
    "a failure": (
        running("a -> b", roles=GUEST_AND_TWO_HOSTS, a=RUNNING),
        [report_task(FAILED, "n3")],
        {1: [X1, X2, X3]},
    ),
    "stopped before anything was sent": (NEW, [STOP], {1: [], 1000: []}),
    "stopped with a start under way": (BEGUN, [0, STOP], {11.9: [], 12: [X1, X2]}),
    "stopped with a lost start": (
        BEGUN,
        [0, STOP, lose_response(A1, 2), lose_response(A2, 2)],
        {11.9: [], 12: [X1, X2]},
    ),
    "a lost stop": (RUNS, [STOP, 1, accept(X1, 2), lose_request(X2, 2)], {3: [X2]}),
    "a refused stop": (RUNS, [STOP, 1, accept(X1, 2), refuse(X2, 2)], {10_000: []}),
}


@pytest.mark.parametrize(("job", "steps", "expected"), DUE.values(), ids=DUE)
def test_what_is_due(
    job: Job,
    steps: Sequence[Step],
    expected: Mapping[float, list],
):
    job = play(job, *steps)
    assert {seconds: due_commands(job, seconds) for seconds in expected} == expected


def test_a_node_without_callbacks_is_polled_like_any_other():
    polled, called_back = (
        play(running(job_params={"common": {"sync_type": mode}}), AcceptAll(0))
        for mode in ("poll", "callback")
    )
    assert next_due(called_back) == next_due(polled)
    assert [due_commands(called_back, s) for s in (0.1, 1, 2)] == [
        due_commands(polled, s) for s in (0.1, 1, 2)
    ]


def test_a_task_that_runs_for_hours_is_asked_for_ever_more_rarely():
    """A lost report is noticed when the task was silent for twice as long; what is polled, a twentieth late."""
    for node, poll, pushed, late, rarest in (
        ("n2", POLL_2, True, 1.0, 60),
        ("n2", POLL_2, False, 0.05, 60),
        ("n1", POLL_1, True, 1.0, 600),
        ("n1", POLL_1, False, 0.05, 60),
    ):
        job, asked = play(BEGUN, AcceptAll(0), report_task(RUNNING, node, pushed=pushed)), [1.0]
        while asked[-1] < 4 * 3600:
            due_at = job.tasks["a"].nodes[node].poll.due_at
            assert due_at is not None
            asked.append((due_at - at(0)).total_seconds())
            job = play(job, asked[-1], accept(poll, asked[-1]))
        pauses = [(later - before, before) for before, later in pairwise(asked)]
        assert all(pause <= max(2.0, late * (before - 1)) + 0.001 for pause, before in pauses)
        assert pauses[-1][0] == rarest and len(pauses) < 400


def test_the_message_of_a_node_that_does_not_know_its_task_is_kept():
    unknown = [
        replace(UNKNOWN, at=at(t + 50), message="n1 refuses /task/poll with code 1: no")
        for t in range(0, 500, 100)
    ]
    steps = [
        s
        for one, t in zip(unknown, range(0, 500, 100), strict=True)
        for s in (t, accept(A1, t), t + 50, one)
    ]
    job = play(ALONE, *steps)
    assert job.ending is not None and job.ending.failure is not None
    assert job.ending.failure.message.endswith(
        "does not know the task: n1 refuses /task/poll with code 1: no"
    )


SILENT = [1, lose_request(POLL_2, 2)]

ENDINGS: dict[str, tuple[Job, Sequence[Step], str]] = {
    "the first of two refusals": (
        NEW,
        [0, refuse(C2, 1), refuse(C1, 2, Failure("TOO"))],
        "REJECTED REJECTED BECAUSE n2",
    ),
    "unreachable, not yet": (NEW, [0, accept(C1, 0), lose_request(C2, 0), 9.9], ""),
    "unreachable": (
        NEW,
        [0, accept(C1, 0), lose_request(C2, 0), 9.9, lose_request(C2, 9.95), 10],
        "REJECTED REJECTED PEER_UNREACHABLE n2",
    ),
    "no proven answer": (
        NEW,
        [0, accept(C1, 0), replace(lose_request(C2, 0), reason="ANSWER_NOT_SIGNED"), 10],
        "REJECTED REJECTED ANSWER_NOT_SIGNED n2",
    ),
    "a task's start refused": (
        running("a -> b", roles=GUEST_AND_TWO_HOSTS),
        [0, accept(A1, 9), accept(A3, 9), refuse(A2, 9)],
        "FINISHED FAILED BECAUSE n2",
    ),
    "never known": (
        ALONE,
        [
            s
            for t in range(0, 500, 100)
            for s in (t, accept(A1, t), t + 50, replace(UNKNOWN, at=at(t + 50)))
        ],
        "FINISHED FAILED TASK_UNKNOWN n1",
    ),
    "polls refused": (
        ALONE,
        [AcceptAll(0), *(s for i in range(1, 11) for s in (20 * i, refuse(POLL_1, 20 * i)))],
        "FINISHED FAILED POLL_REFUSED n1",
    ),
    "polls refused now and then": (
        ALONE,
        [
            AcceptAll(0),
            *(
                s
                for i in range(1, 40)
                for s in (20 * i, (refuse if i % 9 else accept)(POLL_1, 20 * i))
            ),
        ],
        "",
    ),
    "silent, not yet": (TRIO_RUNS, [*SILENT, 601.9], ""),
    "silent": (TRIO_RUNS, [*SILENT, 602], "FINISHED FAILED UNREACHABLE n2"),
    "polled again": (TRIO_RUNS, [*SILENT, 400, accept(POLL_2, 500), 700], ""),
    "done before it was silent": (CHAIN, [*NO_NEWS, 5000], ""),
    "and for too long": (
        CHAIN,
        [*NO_NEWS, report_task(SUCCESS, "n1", seconds=5000), 5000, lose_request(B2, 5001), 5601],
        "FINISHED FAILED UNREACHABLE n2",
    ),
    "stopped while it is created": (NEW, [0, STOP], "REJECTED STOPPED STOPPED"),
    "stopped before it starts": (ready(), [0, STOP], "FINISHED STOPPED STOPPED"),
    "stopped": (BEGUN, [0, STOP], "FINISHED STOPPED STOPPED"),
}


@pytest.mark.parametrize(("job", "steps", "expected"), ENDINGS.values(), ids=ENDINGS)
def test_how_a_job_ends(
    job: Job,
    steps: Sequence[Step],
    expected: str,
):
    """``expected``: status, outcome, reason and node; empty for a job that goes on."""
    job = play(job, *steps)
    assert (job.ending is not None) is bool(expected)
    if not expected:
        return
    while (when := next_due(job)) is not None and not ended(JOB, job.status):
        job = play(job, AcceptAll(max((when - at(0)).total_seconds(), 0.0)))
    failure = job.ending.failure
    assert f"{job.status} {job.outcome} {failure.reason} {failure.node}".strip() == expected


CLAIMED = play(BEGUN, 0)
STARTED = play(CLAIMED, accept(A1, 1), accept(A2, 1))
WITHOUT_N2 = exclude(CLAIMED, A2, at(1))
UNCHANGED: dict[str, tuple[Job, Sequence[Event]]] = {
    "late reports": (
        play(CHAIN, report_task(SUCCESS)),
        [report_task(status, seconds=2) for status in TaskStatus],
    ),
    "reports of what nobody was asked": (
        CHAIN,
        [
            TaskReported("task_x", "n2", "", FAILED, at(1)),
            report_task(FAILED, "n9"),
            report_task(FAILED, role="arbiter"),
            report_task(SUCCESS, task="b"),
            report_task(FAILED, task="b"),
        ],
    ),
    "later responses": (
        STARTED,
        [
            lose_response(A2, 2),
            lose_request(A2, 2),
            refuse(A2, 2),
            refuse(S2, 2),
            refuse(C2, 2),
            lose_request(C2, 2),
        ],
    ),
    "responses to what was never sent": (
        NEW,
        [
            *(
                event
                for r in (C1, S1, A1, POLL_1, X1)
                for event in (accept(r, 1), refuse(r, 1), lose_request(r, 1))
            ),
            UNKNOWN,
        ],
    ),
    "an unknown task that nobody polled": (play(ALONE, 0), [UNKNOWN]),
    "an earlier try": (play(ALONE, 0, 12, UNKNOWN, 13), [lose_request(A1, 1)]),
    "a poll before the last start": (
        play(ALONE, 0, 12, lose_request(A1, 12.5), 13),
        [replace(UNKNOWN, at=at(12.6))],
    ),
    "a node left out": (
        WITHOUT_N2,
        [
            accept(A2, 2),
            refuse(A2, 2),
            lose_response(A2, 2),
            accept(POLL_2, 2),
            TaskUnknown(POLL_2, at(2)),
        ],
    ),
    "a start overtaken by another claim": (CLAIMED, [Delayed(A2, at(-20), at(1.5))]),
}


@pytest.mark.parametrize(("job", "events"), UNCHANGED.values(), ids=UNCHANGED)
def test_what_changes_nothing_but_the_timeline(job: Job, events: Sequence[Event]):
    for event in events:
        assert play(job, event) == job, event


def test_a_late_report_is_noted():
    job = play(running(a=RUNNING), report_task(SUCCESS), report_task(FAILED, seconds=2))
    assert job.notes[-1].event == "late report ignored"


# ---------------------------------------------------------------- pauses


def test_a_lost_create_is_repeated_after_growing_pauses():
    job = play(a_job(roles=ONE_GUEST), 0)
    pauses, now = [], 0.0
    for _ in range(4):
        job = play(job, lose_response(C1, now))
        again = (next_due(job) - at(now)).total_seconds()
        pauses.append(again)
        now += again
        job, requests = step(job, at(now))
        assert requests == [C1]
    assert pauses == [0.2, 0.4, 0.8, 1.6]


def test_joint_failures_are_not_retried_together_nor_after_the_pause(
    tmp_path: Path,
):
    timing = Timing(jitter=0.25)
    ids = [f"job-{i}" for i in range(40)]
    for tries, pause in ((1, 0.4), (10, 10.0)):
        found = {i: timing.retry(tries, i, C1).total_seconds() for i in ids}
        assert len(set(found.values())) == len(ids) and all(
            0.75 * pause <= s <= pause for s in found.values()
        )
        assert found == {i: timing.retry(tries, i, C1).total_seconds() for i in ids}, (
            "decided once more"
        )
    dues = set()
    for i in ids:
        job = play(a_job(spec=a_spec(roles=ONE_GUEST, job_id=i)), 0)
        dues.add(next_due(apply(job, lose_response(C1, 1), timing), timing))
    assert len(dues) == len(ids)
    given = settings(tmp_path)
    assert call_timing(given).jitter == run_timing(given).jitter == timing.jitter


def test_polls_follow_at_growing_pauses():
    job = play(
        a_job(status=JobStatus.RUNNING, spec=a_spec("a", {"guest": ("n2",)}, scheduler="n1")),
        AcceptAll(0),
    )
    pauses, now = [], 0.0
    for _ in range(8):
        again = (next_due(job) - at(now)).total_seconds()
        pauses.append(round(again, 3))
        now += again
        job, requests = step(job, at(now))
        job = play(job, accept(requests[0], now))
    assert pauses == [0.05, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    assert next_due(play(running(roles=ONE_GUEST), AcceptAll(0))) == at(2), (
        "the node's own part is polled seldom"
    )


def polled_often(roles) -> Job:
    return play(running(roles=roles), *(AcceptAll(3 * second) for second in range(12)))


def test_news_or_a_loss_makes_the_polls_frequent_again():
    job = play(polled_often(GUEST_AND_TWO_HOSTS), report_task(RUNNING, seconds=40))
    assert POLL_2 in due_commands(job, 40.1)
    assert PollTaskAt("n3", "a", ("host",)) not in due_commands(play(job, AcceptAll(40)), 40.1)
    job = play(polled_often({"guest": ("n9",)}), 60)
    job = play(job, lose_request(PollTaskAt("n9", "a", ("guest",)), 60))
    assert next_due(job) <= at(60.5)


def test_a_stop_is_not_repeated_for_ever():
    job = play(running(a=RUNNING), STOP, 1, accept(X1, 2), lose_request(X2, 2))
    repeats, now, timing = 0, 2.0, Timing(redeliver_for=100)
    while (when := next_due(job, timing)) is not None:
        now = max((when - at(0)).total_seconds(), now)
        job = apply(step(job, at(now), timing)[0], lose_request(X2, now))
        repeats += 1
    assert 10 < repeats < 30
    assert 100 < now < 120


# ---------------------------------------------------------------- a start that waited for its turn


def test_a_start_that_waited_for_its_turn_counts_from_when_it_is_sent():
    job = play(running(), 0, Delayed(A2, at(0), at(10)))
    assert is_claimed(job, A2, at(10))
    assert not any(c.node == "n2" for c in due_commands(job, 10 + Timing().call_deadline - 0.1))
    assert POLL_2 in due_commands(job, 10 + Timing().call_deadline)
    assert not is_claimed(play(CLAIMED, Delayed(A2, at(-20), at(1.5))), A2, at(1.5))
    assert not is_claimed(job, replace(A2, attempt=1), at(10))


@pytest.mark.parametrize(
    "request_of", [CreateAt, StartAt, ReserveAt, ReleaseAt, lambda node: StartTaskAt(node, "a")]
)
def test_what_waited_until_the_job_was_stopped_is_not_sent(request_of):
    request = request_of("n2")
    status = {CreateAt: JobStatus.PENDING, StartTaskAt: JobStatus.RUNNING}.get(
        type(request), JobStatus.READY
    )
    job = with_call(a_job("a", status), request, sent(0))
    assert is_claimed(job, request, at(0))
    job = play(job, STOP, Delayed(request, at(0), at(2)))
    assert not is_claimed(job, request, at(2)) and request not in due_commands(job, 1000)


# ---------------------------------------------------------------- which tasks, and which roles


def test_tasks_of_a_job_are_limited_and_follow_in_the_flows_order():
    timing = replace(Timing(), abreast=2)
    job, requests = step(running("a; b; c; d"), at(0), timing)
    assert {r.task for r in requests} == {"a", "b"}
    job = play(job, report_task(SUCCESS, "n1", "b", role="guest"), report_task(SUCCESS, "n2", "b"))
    _, requests = step(job, at(1), timing)
    assert {r.task for r in requests if isinstance(r, StartTaskAt)} == {"c"}
    job = play(running("a; b"), TaskStopRequested("a", "n1", at(0)))
    _, requests = step(job, at(1), replace(timing, abreast=1))
    assert {r.task for r in requests} == {"b"}, "a stopped task takes no place"


def test_a_role_that_a_node_does_not_play_is_not_waited_for():
    spec = a_spec("a", {"guest": ("n2",), "host": ("n2",)}, scheduler="n1")
    job = play(a_job(status=JobStatus.RUNNING, spec=spec), AcceptAll(0))
    job = play(
        job,
        RoleNotPlayed("task_a", "n2", "host", at(1)),
        report_task(SUCCESS, role="guest", seconds=2),
    )
    assert job.tasks["a"].status is SUCCESS
    only = play(job, RoleNotPlayed("task_a", "n2", "guest", at(3)))
    assert set(only.tasks["a"].nodes["n2"].roles) == {"guest"}


def test_a_node_without_a_role_in_the_task_is_taken_out_of_it():
    job = exclude(play(running("a -> b"), 0), A2, at(1))
    assert set(job.tasks["a"].nodes) == {"n1"} and exclude(job, A2, at(2)) == job
    job = play(job, accept(A1, 1), report_task(SUCCESS, "n1"))
    assert job.tasks["a"].status is SUCCESS and due_commands(job, 1) == [B1, B2]
    job = exclude(exclude(CLAIMED, A1, at(1)), A2, at(1))
    assert (job.tasks["a"].status, job.ending.failure.reason) == (FAILED, "NO_ROLE_HERE")
    assert due_commands(job, 1) == [X1, X2]


@pytest.mark.parametrize("role", ["host", "host.0", ""])
def test_a_report_may_name_the_role_with_its_index_or_not_at_all(role):
    job = play(running(a=RUNNING), report_task(SUCCESS, role=role))
    assert job.tasks["a"].nodes["n2"].roles == {"host": SUCCESS}


@pytest.mark.parametrize("status", TaskStatus)
def test_an_early_report_does_not_hinder_the_job(status):
    job = play(a_job(), 0, report_task(status, seconds=0), accept(C1, 1))
    assert job.status is JobStatus.PENDING
    job = play(job, accept(C2, 1))
    assert (job.status, job.tasks["a"].status) == (JobStatus.READY, READY)


# ---------------------------------------------------------------- what the end says


def test_a_failure_at_one_party_ends_the_job_at_all_with_the_same_cause():
    failure = Failure("EXIT_1", "exit code 1", role="host", exit_code=1)
    job = play(
        running("a -> b", roles=GUEST_AND_TWO_HOSTS, a=RUNNING),
        report_task(FAILED, "n3", failure=failure),
    )
    assert job.ending.failure == job.tasks["a"].failure == replace(failure, node="n3", task="a")
    job = play(job, AcceptAll(1))
    assert (job.status, job.outcome) == (JobStatus.FINISHED, Outcome.FAILED)
    assert (job.tasks["a"].status, job.tasks["b"].status) == (FAILED, READY)


def test_a_refused_start_names_what_each_party_answered_and_runs_nothing():
    job = play(ready(roles=GUEST_AND_TWO_HOSTS), 0, accept(S1, 1), refuse(S2, 1), accept(S3, 1))
    words = "not every node started the job: n1 ok; n2 error: BECAUSE of something; n3 unknown"
    assert job.ending.failure.message == words
    assert job.tasks["a"].status is READY
    job = play(ready(), 0, refuse(S2, 1), refuse(S1, 2, Failure("TOO", "late")))
    assert [n.start.reason for n in job.nodes.values()] == ["TOO", "BECAUSE"]


def test_an_unreachable_node_is_named_with_the_last_message():
    steps = (lose_request(C2, 0), 9.9, lose_request(C2, 9.95, "connection refused"), 10)
    assert play(a_job(), 0, accept(C1, 0), *steps).ending.failure.message == "connection refused"


def test_the_silence_of_a_node_ends_with_the_task_that_was_to_start_there():
    begun = {"a": {"n1": RUNNING, "n2": READY}, "b": RUNNING}
    job = play(running("a; b", task_roles={"b": ("guest",)}, **begun), 1, lose_request(A2, 2))
    assert job.nodes["n2"].unreachable_since == at(2)
    job = play(job, TaskStopRequested("a", "n1", at(3)), AcceptAll(3))
    assert job.nodes["n2"].unreachable_since is None
    assert step(job, at(5000))[0].ending is None


# ---------------------------------------------------------------- at large

STATUSES = st.sampled_from(TaskStatus)

ROLES = st.sampled_from(["", "guest", "guest.0", "host", "arbiter", "nobody"])


@st.composite
def _event(
    draw: st.DrawFn,
    job: Job,
    seconds: float,
) -> Event:
    node = draw(st.sampled_from(job.spec.nodes))
    task = draw(st.sampled_from(sorted(job.tasks)))
    poll = PollTaskAt(node, task, ("guest",))
    requests = (CreateAt(node), StartAt(node), StartTaskAt(node, task), poll, StopAt(node))
    request = draw(st.sampled_from(requests))
    return draw(
        st.sampled_from(
            [
                Accepted(request, at(seconds)),
                Accepted(request, at(seconds)),
                Refused(request, REFUSAL, at(seconds)),
                Lost(request, at(seconds), delivered=draw(st.booleans())),
                TaskUnknown(poll, at(seconds)),
                TaskReported(
                    f"task_{task}",
                    node,
                    draw(ROLES),
                    draw(STATUSES),
                    at(seconds),
                    pushed=draw(st.booleans()),
                ),
                TaskReported("task_x", "n9", "", draw(STATUSES), at(seconds)),
                StopRequested("n1", at(seconds)),
            ]
        )
    )


@given(plots(calm=True), st.data())
@REPEATABLE
def test_no_news_whatever_breaks_a_job_or_moves_it_beside_the_tables(plot, data):
    job, now = plot.job(), 0.0
    for _ in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.sampled_from((0.0, 0.1, 1.0, 15.0, 700.0)))
        old = job
        if data.draw(st.booleans()):
            job = play(job, now)
        else:
            job = play(job, data.draw(_event(job, now)))
        assert old.status is job.status or may(JOB, old.status, job.status)
        for name, task in job.tasks.items():
            assert old.tasks[name].status is task.status or may(
                TASK, old.tasks[name].status, task.status
            )
        assert job.progress >= old.progress
        assert old.ending in (None, job.ending)
        if ended(JOB, old.status):
            assert (job.status, job.outcome, job.ended_at) == (
                old.status,
                old.outcome,
                old.ended_at,
            )


def test_of_answers_from_which_nothing_follows_none_is_stored_by_itself():
    asked, begun = play(NEW, 0), play(BEGUN, 0)
    assert max_deferred(asked, C1) == 1, "the last one makes the job ready"
    assert max_deferred(begun, A1) == 1, (
        "the last one has a node that does not report by itself asked"
    )
    reports = begun.with_node(replace(begun.nodes["n2"], pushes=True))
    assert max_deferred(reports, A1) == 2
