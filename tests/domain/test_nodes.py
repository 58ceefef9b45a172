"""What a job needs of its nodes before it runs: approval, reservations, enough parties."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gateway.bootstrap.parts import call_timing, queue_rules
from gateway.domain import quorum, reservations, resource_queue
from gateway.domain.approval import DEADLINE, contradicts
from gateway.domain.job import GRACE, Acceptance, Job, Reservation
from gateway.domain.resource_queue import QueueRules
from gateway.domain.resources import Amounts, Claim, ClaimState, Ledger
from gateway.domain.scheduling import machine
from gateway.domain.scheduling.messages import (
    Accepted,
    Event,
    Expire,
    Freed,
    Refused,
    ReleaseAt,
    ReserveAt,
    StartAt,
    StartTaskAt,
    StopRequested,
)
from gateway.domain.spec import Failure, JobSpec
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.domain.timeouts import Timing
from tests.builders import a_job, a_spec, at
from tests.domain.calls import A1, A2, A3, C1, C2, C3, C4, S1, S2, S3, S4, X1, X2, X3, X4
from tests.domain.script import (
    Step,
    accept,
    due_commands,
    end_reason,
    lose_request,
    lose_response,
    play,
    refuse,
    report_approval,
)
from tests.inprocess import settings

PENDING, READY, RUNNING, REJECTED = (
    JobStatus.PENDING,
    JobStatus.READY,
    JobStatus.RUNNING,
    JobStatus.REJECTED,
)
R1, R2, R3 = (ReserveAt(f"n{i}") for i in range(1, 4))
G1 = ReleaseAt("n1")
STOP = StopRequested("n1", at(3))
REFUSED = Failure("APPROVAL_REJECTED", "li at n2 refused: not this data", "n2")
BUSY = Failure(reservations.BUSY, "needs cpu 4 on node n2, free cpu 1")
WAITS, HOLDS = Acceptance(waits=True, within=60.0), Acceptance(holds=True)
ONLY_ASKED = Acceptance(waits=True, asked_only=True)
ASKED: list[Step] = [0, accept(C1, 0), accept(C2, 1, WAITS)]
AUDITED: list[Step] = [0, accept(C1, 0), accept(C2, 1, ONLY_ASKED)]
AGREED: list[Step] = [0, accept(C2, 1, ONLY_ASKED), report_approval("n2", 2)]
HOSTS = {"guest": ("n1",), "host": ("n2", "n3", "n4")}
END = 61 + GRACE


def spec(
    dag: str = "a",
    roles: Any = HOSTS,
    **common: Any,
) -> JobSpec:
    return a_spec(dag, roles, job_params={"common": common})


def two_of_three() -> Job:
    return a_job(spec=spec(min_parties={"host": 2}))


def holding(*needing: str) -> Job:
    """Return a READY job of n3, n1 and n2 that needs something to be reserved at some of them."""
    job = a_job("a; b; c", READY, roles={"guest": ("n3",), "host": ("n1", "n2")})
    held = {n: replace(job.nodes[n], reservation=Reservation(HOLDS)) for n in needing}
    return replace(job, nodes={**job.nodes, **held})


def granted(*requests: ReserveAt, begin: float = 0.0) -> list[Step]:
    """Have these granted, one after the other."""
    return [
        step for i, r in enumerate(requests) for step in (begin + i, accept(r, begin + i + 0.5))
    ]


BUSY_2: list[Step] = [*granted(R1), 2, refuse(R2, 3, BUSY)]
RELEASED: list[Step] = [*BUSY_2, 3, accept(G1, 3.2)]
TWICE_RELEASED: list[Step] = [*BUSY_2, 3, lose_response(G1, 4), 5, accept(G1, 5.1)]
LATER: list[Step] = [*RELEASED, *granted(R1, begin=600), 602, refuse(R2, 603, BUSY), 603.9]
THREE: list[Step] = [0, accept(C1, 0.1), accept(C2, 0.1), accept(C3, 0.1)]
STARTING: list[Step] = [*THREE, accept(C4, 0.1), 1, accept(S1, 2), accept(S2, 2)]

ALL, BOTH, FIRST = holding("n3", "n1", "n2"), holding("n1", "n2"), holding("n1")
JOB, READY_JOB, OPTIONAL = a_job(), a_job(status=READY), two_of_three()
NO_LIMIT, UNKNOWN = Acceptance(waits=True), Failure("JOB_UNKNOWN")
DENIED, SILENT = "APPROVAL_REJECTED", "APPROVAL_TIMEOUT"
AGREES, REFUSES, FREED_EARLY = (
    report_approval("n2", 50),
    report_approval("n2", 5, REFUSED),
    Freed("n1", at(0.1)),
)
ALL_START, ALL_STOP = [S3, S1, S2], [X3, X1, X2]
OVERTAKEN: list[Step] = [0, accept(C1, 0), report_approval("n2", 1)]

CASES: dict[str, tuple[Job, Sequence[Step], Mapping[float, list], JobStatus, str]] = {
    # somebody approves
    "somebody decides": (
        JOB,
        ASKED,
        {
            50: [],
            END - 0.1: [],
            END: [Expire("n2")],
        },
        PENDING,
        "",
    ),
    "agreed twice": (JOB, [*ASKED, AGREES, report_approval("n2", 51)], {51: [S1, S2]}, READY, ""),
    "refused and stopped": (JOB, [*ASKED, REFUSES, 5, accept(X1, 6)], {99: []}, REJECTED, DENIED),
    "silent": (JOB, [*ASKED, END], {END: [], END + 12: [X1, X2]}, PENDING, SILENT),
    "no deadline said": (
        JOB,
        [0, accept(C1, 0), accept(C2, 1, NO_LIMIT)],
        {DEADLINE + GRACE: [], 1 + DEADLINE + GRACE: [Expire("n2")]},
        PENDING,
        "",
    ),
    "decided before the response": (
        JOB,
        [*OVERTAKEN, accept(C2, 2, WAITS)],
        {2: [S1, S2]},
        READY,
        "",
    ),
    "which says nothing of it": (JOB, [*OVERTAKEN, accept(C2, 2)], {2: [S1, S2]}, READY, ""),
    "which is lost": (JOB, [*OVERTAKEN, lose_response(C2, 2)], {3: [C2]}, PENDING, ""),
    "stopped meanwhile": (
        JOB,
        [*ASKED, STOP, report_approval("n2", 4)],
        {4: [X1, X2]},
        PENDING,
        "STOPPED",
    ),
    "refused too late": (READY_JOB, [report_approval("n2", 1, REFUSED)], {1: [S1, S2]}, READY, ""),
    # asked before the job is created
    "audited, created": (JOB, [*AUDITED, AGREES, 50, accept(C2, 51)], {51: [S1, S2]}, READY, ""),
    "agreed before the response": (
        JOB,
        [*OVERTAKEN, accept(C2, 2, ONLY_ASKED), 3],
        {15: [C2]},
        PENDING,
        "",
    ),
    "so created": (
        JOB,
        [*OVERTAKEN, accept(C2, 2, ONLY_ASKED), 3, accept(C2, 4)],
        {4: [S1, S2]},
        READY,
        "",
    ),
    "audited, silent": (JOB, [*AUDITED, 86_460], {86_472: [X1, X2]}, PENDING, SILENT),
    "audited, refused": (JOB, [*AUDITED, REFUSES], {50: [X1]}, PENDING, DENIED),
    "another refused after no creation": (
        JOB,
        [*AGREED, refuse(C1, 4)],
        {80: [X2]},
        PENDING,
        "BECAUSE",
    ),
    "so, after an undelivered one": (
        JOB,
        [*AGREED, 2, lose_request(C2, 3), refuse(C1, 4)],
        {80: [X2]},
        REJECTED,
        "BECAUSE",
    ),
    "so, after a lost one": (
        JOB,
        [*AGREED, 2, lose_response(C2, 3), refuse(C1, 4)],
        {80: [X2]},
        REJECTED,
        "BECAUSE",
    ),
    "refused too, after it": (
        JOB,
        [*AGREED, 2, refuse(C2, 3, REFUSED), refuse(C1, 4)],
        {80: [X2]},
        PENDING,
        DENIED,
    ),
    # reservations: at all nodes or at none, in one order for every job
    "none needed": (holding(), [], {0: ALL_START}, READY, ""),
    "everywhere": (ALL, granted(R1, R2, R3), {9: ALL_START}, READY, ""),
    "as the acceptance says": (JOB, [0, accept(C1, 1), accept(C2, 1, HOLDS)], {1: [R2]}, READY, ""),
    "busy": (ALL, BUSY_2, {3: [G1]}, READY, ""),
    "released": (ALL, RELEASED, {3.4: [], 3.5: [R1]}, READY, ""),
    "a refused release": (BOTH, [*BUSY_2, 3, refuse(G1, 3.2)], {3.4: [], 3.5: [R1]}, READY, ""),
    "and again": (ALL, [*RELEASED, *granted(R1, R2, R3, begin=4)], {9: ALL_START}, READY, ""),
    "another has room": (
        BOTH,
        [0, refuse(R1, 1, BUSY), Freed("n2", at(1.1))],
        {1.1: []},
        READY,
        "",
    ),
    "it has room": (BOTH, [0, refuse(R1, 1, BUSY), Freed("n1", at(1.1))], {1.1: [R1]}, READY, ""),
    "it has had since": (FIRST, [0, FREED_EARLY, refuse(R1, 0.2, BUSY)], {0.2: [R1]}, READY, ""),
    "but no more": (
        FIRST,
        [0, FREED_EARLY, refuse(R1, 0.2, BUSY), 0.2, refuse(R1, 0.3, BUSY)],
        {0.3: []},
        READY,
        "",
    ),
    "no response": (BOTH, [*granted(R1), 2, lose_response(R2, 3)], {3: [G1]}, READY, ""),
    "kept after a long wait": (BOTH, LATER, {603.95: [], 604: [R1]}, READY, ""),
    "an earlier grant": (FIRST, [0, 20, accept(R1, 10)], {31.9: [], 32: [R1]}, READY, ""),
    "an earlier refusal": (FIRST, [0, 20, refuse(R1, 10, BUSY)], {31.9: [], 32: [R1]}, READY, ""),
    "a release on its way": (BOTH, TWICE_RELEASED, {16.9: [], 17: [R1]}, READY, ""),
    "refused for good": (FIRST, [0, refuse(R1, 1, UNKNOWN)], {1: ALL_STOP}, READY, "FAILED_TO_RUN"),
    "stopped while it waits": (BOTH, [*granted(R1), STOP], {3: ALL_STOP}, READY, "STOPPED"),
    # parties that the job can do without
    "an optional party refuses": (OPTIONAL, [*THREE, refuse(C4, 1)], {1: [S1, S2, S3]}, READY, ""),
    "is silent": (OPTIONAL, [*THREE, lose_response(C4, 3), 11], {40: [X4, S1, S2, S3]}, READY, ""),
    "accepts after all": (
        OPTIONAL,
        [*THREE, lose_request(C4, 3), 11, accept(C4, 12)],
        {22: [X4]},
        READY,
        "",
    ),
    "one too many": (
        OPTIONAL,
        [0, accept(C1, 1), accept(C2, 1), refuse(C4, 1), refuse(C3, 1)],
        {},
        PENDING,
        "BECAUSE",
    ),
    "refuses the start": (OPTIONAL, [*STARTING, refuse(S4, 2)], {2: [X4, S1, S2, S3]}, READY, ""),
    "all start again": (
        OPTIONAL,
        [*STARTING, refuse(S4, 2), 2, accept(S3, 2), accept(S1, 3), accept(S2, 3), accept(S3, 3)],
        {3: [A1, A2, A3]},
        RUNNING,
        "",
    ),
}


@pytest.mark.parametrize(("job", "steps", "dues", "status", "why"), CASES.values(), ids=CASES)
def test_what_is_due_before_a_job_runs(
    job: Job,
    steps: Sequence[Step],
    dues: Mapping[float, list],
    status: JobStatus,
    why: str,
):
    job = play(job, *steps)
    assert {seconds: due_commands(job, seconds) for seconds in dues} == dues
    assert (job.status, end_reason(job)) == (status, why)


# ---------------------------------------------------------------- approval


@pytest.mark.parametrize("first", [None, REFUSED])
@pytest.mark.parametrize("then", [None, REFUSED])
def test_only_the_first_answer_counts(first: Failure | None, then: Failure | None):
    job = play(a_job(), *ASKED, report_approval("n2", 5, first))
    assert bool(contradicts(job, report_approval("n2", 6, then))) is (first is not then)
    again = play(job, report_approval("n2", 6, then))
    assert (again.status, again.ending, again.nodes) == (job.status, job.ending, job.nodes)


def test_answers_that_come_too_late_say_so():
    for job in (a_job(status=READY), a_job(status=RUNNING)):
        assert contradicts(job, report_approval("n2", 1)) == ""  # it was ready anyway
        assert "already" in contradicts(job, report_approval("n2", 1, REFUSED))
    assert "ended" in contradicts(play(a_job(), *ASKED, STOP), report_approval("n2", 4))


def test_a_node_that_would_ask_a_person_when_the_job_is_over_is_stopped():
    job = play(
        a_job(),
        0,
        accept(C1, 0),
        STOP,
        20,
        accept(X1, 20),
        lose_response(X2, 21),
        accept(C2, 22, WAITS),
    )
    assert (
        job.status is REJECTED and job.nodes["n2"].consent is None and X2 in due_commands(job, 60)
    )


# ---------------------------------------------------------------- reservations


def test_a_job_of_two_busy_nodes_starts_within_its_ageing_bound():
    """They last longer than a node keeps a place for who does not ask: n2 did not, while n1 was waited for."""
    rules, timing, large = QueueRules(ageing=60.0), Timing(ageing=60.0), holding("n1", "n2")
    ledgers = {node: Ledger(Amounts.of(2), node=node) for node in ("n1", "n2")}
    ends: dict[str, float] = {}

    def asks(
        node: str,
        name: str,
        cores: int,
        now: float,
    ) -> bool:
        claim = Claim(name, Amounts.of(cores), ClaimState.WAITING, at(now), at(now))
        ledgers[node], held = resource_queue.apply(ledgers[node], claim, at(now), rules)
        return held

    for now in range(0, 2000, 5):
        for node in ledgers:
            for name in [
                name for name, end in ends.items() if end <= now and name in ledgers[node].claims
            ]:
                ledgers[node] = ledgers[node].without(name)
            if "large" in resource_queue.admissible(ledgers[node], at(now), rules):
                large = play(large, Freed(node, at(now)))
            for number in range(2):
                name = f"{node} {now} {number}"
                if asks(node, name, 1, now):
                    ends[name] = now + 100 + 50 * number
                else:
                    ledgers[node] = ledgers[node].without(name)
        large, requests = machine.step(large, at(now), timing)
        while requests and not isinstance(requests[0], StartAt):
            for request in requests:
                event: Event = Accepted(request, at(now))
                if isinstance(request, ReleaseAt):
                    ledgers[request.node] = ledgers[request.node].give_back("large")
                elif not asks(request.node, "large", 2, now):
                    event = Refused(request, BUSY, at(now))
                large = machine.apply(large, event, timing)
            large, requests = machine.step(large, at(now), timing)
        if requests:
            break
    assert 60 < now < 60 + 2 * 150 + 2 * timing.hold_most


def test_one_missed_response_is_no_silence_while_the_job_waits():
    job = play(holding("n1", "n2"), *granted(R1), 2, lose_response(R2, 3), 3, accept(G1, 3.1))
    assert job.nodes["n2"].unreachable_since == at(3), "it is asked again after n1"
    job = play(job, 5, refuse(R1, 5, BUSY))  # somebody else was faster, and takes an hour
    assert job.nodes["n2"].unreachable_since is None
    job = play(job, 3600, accept(R1, 3601), 3602, lose_response(R2, 3603))
    for second in range(3604, 4202, 30):  # n1 has room, n2 says nothing: that is a silence
        job, requests = machine.step(job, at(second))
        job = play(
            job,
            *(accept(r, second) if r.node == "n1" else lose_response(r, second) for r in requests),
        )
        assert job.ending is None and job.nodes["n2"].unreachable_since == at(3603)
    assert play(job, 4203).ending is not None


def test_no_more_tasks_at_once_than_the_job_wants_and_every_node_bears():
    def begun(job: Job) -> set[str]:
        return {r.task for r in due_commands(job) if isinstance(r, StartTaskAt)}

    job = a_job("a; b; c", RUNNING)
    assert begun(job) == {"a", "b", "c"}
    bound = replace(job.spec, job_params={"common": {"task_parallelism": 2}})
    assert begun(replace(job, spec=bound)) == {"a", "b"}
    node = replace(job.nodes["n2"], reservation=Reservation(Acceptance(True, 1)))
    small = {**job.nodes, "n2": node}
    assert begun(replace(job, nodes=small)) == {"a"}
    done = a_job("a; b; c", RUNNING, a=TaskStatus.SUCCESS, b=TaskStatus.RUNNING)
    assert begun(replace(done, spec=bound)) == {"c"} and begun(replace(done, nodes=small)) == set()


def test_the_settings_bound_pauses_from_ten_seconds_to_ten_minutes(tmp_path: Path):
    limits = {
        "schedule_pause_seconds": 10,
        "schedule_longest_pause_seconds": 600,
        "schedule_attempts": 9,
    }
    set_so = settings(tmp_path, limits=limits)
    timing = call_timing(set_so)
    job, tried, now = holding("n2"), list[float](), 0.0
    while job.ending is None:
        job, requests = machine.step(job, at(now), timing)
        assert requests == [R2]
        tried.append(now)
        job = machine.apply(job, refuse(R2, now, BUSY), timing)
        now = (machine.next_due(job, timing) - at(0)).total_seconds()  # type: ignore[operator]
    assert [b - a for a, b in pairwise(tried)] == [10, 20, 40, 80, 160, 320, 600, 600]
    history = [note.at for note in job.notes if note.event == "resources refused"]
    assert history == [at(moment) for moment in tried]
    failure = job.ending.failure
    assert failure and failure.reason == "CANNOT_SCHEDULE" and "asked 9 times" in failure.message
    assert (
        queue_rules(set_so).fresh == 1800
    )  # the place is kept that long, for three of the longest


def test_without_a_limit_it_waits_on_and_repeats_ever_more_rarely():
    job = holding("n2")
    for moment in range(0, 6000, 30):
        job, requests = machine.step(job, at(moment))
        job = play(job, *(refuse(r, moment, BUSY) for r in requests))
    assert job.ending is None and job.nodes["n2"].reservation.apply.tries > 100
    told = [note.detail.get("tries") for note in job.notes if note.event == "resources refused"]
    assert told == [None, 2, 3, 4, 8, 16, 32, 64, 128]
    job = play(job, 6030, refuse(R2, 6030, replace(BUSY, message="held by another job now")))
    assert job.notes[-1].detail["message"] == "held by another job now"


# ---------------------------------------------------------------- parties


@pytest.mark.parametrize(
    ("common", "gone", "can"),
    [
        ({}, ["n4"], False),
        ({"min_parties": {"host": 2}}, ["n4"], True),
        ({"min_parties": {"host": 2}}, ["n3", "n4"], False),
        ({"min_parties": {"host": 0}}, ["n2", "n3", "n4"], True),
        ({"min_parties": {"host": 0, "guest": 0}}, ["n1"], False),  # the initiator's
        ({"min_parties": {"host": 2}, "required_parties": ["host.1"]}, ["n3"], False),
        ({"min_parties": {"host": 2}, "required_parties": ["host.1"]}, ["n4"], True),
        ({"required_parties": ["host.0"]}, ["n3", "n4"], True),
        ({"required_parties": ["host.0"]}, ["n2"], False),
        ({"required_parties": ["guest.0"]}, ["n4"], False),  # of hosts it says nothing
    ],
)
def test_who_can_be_spared(
    common: dict[str, Any],
    gone: list[str],
    can: bool,
):
    assert quorum.can_spare(spec(**common), gone) is can


def test_a_job_does_not_run_without_the_only_node_of_a_task():
    job = a_job(spec=spec("a; b", {"guest": ("n1",), "host": ("n2",)}, min_parties={"host": 0}))
    assert quorum.exclude(job, "n2", REFUSED, at(1)) is not None
    alone = a_job(spec=job.spec, task_roles={"b": ["host"]})
    assert quorum.exclude(alone, "n2", REFUSED, at(1)) is None


def shown(job: Job, party: str = "host.2") -> tuple[str, bool, str]:
    return next((d.state, d.excluded, d.reason) for d in quorum.details(job) if d.party == party)


def test_a_missing_reply_counts_as_not_ok_and_is_shown_as_unknown():
    refused = play(two_of_three(), *THREE, refuse(C4, 1))
    assert shown(refused) == ("error", True, "BECAUSE") and shown(refused, "host.1") == (
        "ok",
        False,
        "",
    )
    assert quorum.excluded_parties(refused) == ("host.2",) and list(refused.tasks["a"].nodes) == [
        "n1",
        "n2",
        "n3",
    ]
    job = play(two_of_three(), *THREE, lose_response(C4, 3))
    assert job.status is PENDING and shown(job) == ("unknown", False, "PEER_UNREACHABLE")
    assert shown(play(job, 11)) == ("unknown", True, "PEER_UNREACHABLE")


def test_a_node_that_does_not_answer_the_reservation_is_not_ok():
    job = play(a_job(), 0, accept(C1, 0.1, HOLDS), accept(C2, 0.1, HOLDS), 0.2)
    job = play(job, lose_request(R1, 3, "cannot connect"), 700)
    assert job.ending is not None and job.ending.failure is not None
    assert job.ending.failure.reason == "FAILED_TO_RUN"
    assert "n1 unknown: PEER_UNREACHABLE cannot connect" in job.ending.failure.message


def test_a_party_that_ignores_the_start_is_left_out_or_ends_the_job():
    for common, outcome in (({"min_parties": {"host": 2}}, None), ({}, Outcome.FAILED)):
        job = play(a_job(spec=spec(**common)), *STARTING, accept(S3, 2), lose_response(S4, 11))
        assert job.ending is None and job.status is READY
        job = play(job, 11 + Timing().start_deadline)
        assert (job.ending.outcome if job.ending else None) is outcome
        if job.ending:
            assert (
                job.ending.failure.reason == "FAILED_TO_RUN"
                and "n4 unknown" in job.ending.failure.message
            )
            assert not any(isinstance(c, StartTaskAt) for c in due_commands(job, 100))
