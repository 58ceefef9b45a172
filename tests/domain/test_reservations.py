"""Reservations at several nodes: pauses, silence, ageing, and the tasks that run in parallel."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.bootstrap.parts import call_timing, queue_rules
from gateway.domain import resource_queue
from gateway.domain.amounts import Amounts
from gateway.domain.job import Acceptance, Job, Reservation
from gateway.domain.resource_queue import QueueRules
from gateway.domain.resources import Claim, ClaimState, Ledger
from gateway.domain.scheduling import machine
from gateway.domain.scheduling.messages import (
    Accepted,
    Freed,
    Refused,
    ReleaseAt,
    Request,
    StartAt,
    StartTaskAt,
)
from gateway.domain.states import JobStatus, TaskStatus
from gateway.domain.timeouts import Timing
from tests.builders import a_job, at
from tests.domain.new_jobs import (
    BUSY,
    RELEASE_1,
    RESERVE_1,
    RESERVE_2,
    grant,
    job_with_reservations,
)
from tests.domain.script import accept, due_commands, lose_response, play, refuse
from tests.inprocess import settings

# Seconds after which a waiting job goes before younger ones.
AGEING = 60.0
QUEUE_RULES = QueueRules(ageing=AGEING)
TIMING = Timing(ageing=AGEING)

# Seconds that the two small jobs of a round run.
RUNNING_TIMES = (100, 150)


@dataclass
class BusyNode:
    """A node with two cores on which small jobs of one core arrive all the time."""

    name: str
    ledger: Ledger
    ends: dict[str, float] = field(default_factory=dict)  # seconds, by small job

    def reserve(
        self,
        job: str,
        cores: int,
        now: float,
    ) -> bool:
        """Apply for cores; return whether the job holds them."""
        claim = Claim(
            job,
            Amounts.of(cores),
            ClaimState.WAITING,
            at(now),
            at(now),
        )
        self.ledger, is_held = resource_queue.apply(
            self.ledger,
            claim,
            at(now),
            QUEUE_RULES,
        )
        return is_held

    def end_small_jobs(self, now: float) -> None:
        """Return the cores of the small jobs that have ended."""
        ended = [job for job, end in self.ends.items() if end <= now]
        for job in ended:
            self.ledger = self.ledger.without(job)
            del self.ends[job]

    def begin_small_jobs(self, now: float) -> None:
        """Reserve a core for two small jobs, which do not wait if there is none."""
        for number, running_time in enumerate(RUNNING_TIMES):
            job = f"{self.name} {now} {number}"
            if self.reserve(job, 1, now):
                self.ends[job] = now + running_time
            else:
                self.ledger = self.ledger.without(job)

    def has_room_for(self, job: str, now: float) -> bool:
        """True if a waiting job would get its cores now."""
        return job in resource_queue.admissible(self.ledger, at(now), QUEUE_RULES)

    def answer(self, request: Request, now: float) -> Accepted | Refused:
        """Answer a request of the large job."""
        if isinstance(request, ReleaseAt):
            self.ledger = self.ledger.give_back("large")
        elif not self.reserve("large", 2, now):
            return Refused(request, BUSY, at(now))
        return Accepted(request, at(now))


def schedule(
    job: Job,
    nodes: dict[str, BusyNode],
    now: float,
) -> tuple[Job, bool]:
    """Have the job reserve until nothing is due; return it, and whether it starts."""
    job, requests = machine.step(job, at(now), TIMING)
    while requests:
        if isinstance(requests[0], StartAt):
            return job, True
        for request in requests:
            job = machine.apply(
                job,
                nodes[request.node].answer(request, now),
                TIMING,
            )
        job, requests = machine.step(job, at(now), TIMING)
    return job, False


def test_a_job_of_two_busy_nodes_starts_within_its_ageing_bound():
    """Its place at n2 outlives the wait for n1, though n2 gets no request during that wait."""
    large = job_with_reservations("n1", "n2")
    nodes = {name: BusyNode(name, Ledger(Amounts.of(2), node=name)) for name in ("n1", "n2")}

    starts = False
    now = 0
    while not starts and now < 2000:
        for name, node in nodes.items():
            node.end_small_jobs(now)
            if node.has_room_for("large", now):
                large = play(large, Freed(name, at(now)))
            node.begin_small_jobs(now)
        large, starts = schedule(large, nodes, now)
        if not starts:
            now += 5

    longest_wait = AGEING + 2 * max(RUNNING_TIMES) + 2 * TIMING.hold_most
    assert AGEING < now < longest_wait


def test_one_missed_response_is_no_silence_while_the_job_waits():
    job = play(
        job_with_reservations("n1", "n2"),
        *grant(RESERVE_1),
        2,
        lose_response(RESERVE_2, 3),
        3,
        accept(RELEASE_1, 3.1),
    )
    assert job.nodes["n2"].unreachable_since == at(3), "it is asked again after n1"

    job = play(job, 5, refuse(RESERVE_1, 5, BUSY))

    assert job.nodes["n2"].unreachable_since is None


def test_free_capacity_does_not_overtake_a_late_copy_of_a_release():
    job = play(
        job_with_reservations("n1", "n2"),
        *grant(RESERVE_1),
        2,
        refuse(RESERVE_2, 2, BUSY),
        2,
        lose_response(RELEASE_1, 3),
    )
    release_due = machine.next_due(job, TIMING)
    assert release_due is not None
    seconds = (release_due - at(0)).total_seconds()
    job = play(job, seconds, accept(RELEASE_1, seconds))
    reservation = job.nodes["n1"].reservation
    assert reservation.request.due_at == at(seconds + TIMING.call_deadline)

    job = play(job, Freed("n1", at(seconds + 1)))

    assert job.nodes["n1"].reservation == reservation


def test_missed_responses_while_the_other_node_has_room_are_a_silence():
    job = play(job_with_reservations("n1", "n2"), *grant(RESERVE_1), 2, lose_response(RESERVE_2, 3))
    job = play(
        job,
        3,
        accept(RELEASE_1, 3.1),
        5,
        refuse(RESERVE_1, 5, BUSY),
    )

    job = play(
        job,
        3600,
        accept(RESERVE_1, 3601),
        3602,
        lose_response(RESERVE_2, 3603),
    )
    for second in range(3604, 4202, 30):
        job, requests = machine.step(job, at(second))
        for request in requests:
            if request.node == "n1":
                job = play(job, accept(request, second))
            else:
                job = play(job, lose_response(request, second))
        assert job.ending is None
        assert job.nodes["n2"].unreachable_since == at(3603)

    assert play(job, 4203).ending is not None


def started_tasks(job: Job) -> set[str]:
    """Return the tasks whose start is due."""
    return {request.task for request in due_commands(job) if isinstance(request, StartTaskAt)}


def limit_by_job(job: Job) -> Job:
    """Return the job with at most two parallel tasks by its own setting."""
    params = {"common": {"task_parallelism": 2}}
    return replace(
        job,
        spec=replace(job.spec, job_params=params),
    )


def limit_by_node(job: Job) -> Job:
    """Return the job with at most one parallel task at n2."""
    node = replace(
        job.nodes["n2"],
        reservation=Reservation(Acceptance(True, 1)),
    )
    return replace(job, nodes={**job.nodes, "n2": node})


NEW_TASKS = a_job("a; b; c", JobStatus.RUNNING)
ONE_TASK_RUNS = a_job(
    "a; b; c",
    JobStatus.RUNNING,
    a=TaskStatus.SUCCESS,
    b=TaskStatus.RUNNING,
)


@pytest.mark.parametrize(
    ("job", "tasks"),
    [
        (NEW_TASKS, {"a", "b", "c"}),
        (limit_by_job(NEW_TASKS), {"a", "b"}),
        (limit_by_node(NEW_TASKS), {"a"}),
        (limit_by_job(ONE_TASK_RUNS), {"c"}),
        (limit_by_node(ONE_TASK_RUNS), set()),
    ],
    ids=[
        "no limit",
        "the job's limit",
        "a node's limit",
        "the job's limit, one task runs",
        "a node's limit, one task runs",
    ],
)
def test_no_more_tasks_at_once_than_the_job_wants_and_every_node_bears(job: Job, tasks: set[str]):
    assert started_tasks(job) == tasks


def test_the_settings_bound_pauses_from_ten_seconds_to_ten_minutes(tmp_path: Path):
    limits = {
        "schedule_pause_seconds": 10,
        "schedule_longest_pause_seconds": 600,
        "schedule_attempts": 9,
    }
    node_settings = settings(tmp_path, limits=limits)
    timing = call_timing(node_settings)
    job = job_with_reservations("n2")

    tries: list[float] = []
    now = 0.0
    while job.ending is None:
        job, requests = machine.step(job, at(now), timing)
        assert requests == [RESERVE_2]
        tries.append(now)
        job = machine.apply(job, refuse(RESERVE_2, now, BUSY), timing)
        due_at = machine.next_due(job, timing)
        assert due_at is not None
        now = (due_at - at(0)).total_seconds()

    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600]
    refusals = [note.at for note in job.notes if note.event == "resources refused"]
    assert refusals == [at(seconds) for seconds in tries]
    failure = job.ending.failure
    assert failure is not None
    assert failure.reason == "CANNOT_SCHEDULE"
    assert "asked 9 times" in failure.message


def test_a_node_keeps_a_place_for_three_of_the_longest_pauses(tmp_path: Path):
    node_settings = settings(tmp_path, limits={"schedule_longest_pause_seconds": 600})

    assert queue_rules(node_settings).fresh == 3 * 600


def test_without_a_limit_a_job_waits_on_and_notes_ever_more_rarely():
    job = job_with_reservations("n2")
    for second in range(0, 6000, 30):
        job, requests = machine.step(job, at(second))
        refusals = [refuse(request, second, BUSY) for request in requests]
        job = play(job, *refusals)

    assert job.ending is None
    assert job.nodes["n2"].reservation.request.tries > 100
    refusal_notes = [note for note in job.notes if note.event == "resources refused"]
    noted_tries = [note.detail.get("tries") for note in refusal_notes]
    assert noted_tries == [None, 2, 3, 4, 8, 16, 32, 64, 128]

    other_cause = replace(BUSY, message="held by another job now")
    job = play(job, 6030, refuse(RESERVE_2, 6030, other_cause))
    assert job.notes[-1].detail["message"] == "held by another job now"
