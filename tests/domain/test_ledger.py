"""Who holds what of a node: priority, then age, no blocked head; never more than there is."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from gateway.domain import resource_queue, resources
from gateway.domain import run as domain_run
from gateway.domain.execution import machine, messages
from gateway.domain.resource_queue import QueueRules
from gateway.domain.resources import (
    GIB,
    Amounts,
    AmountsByEngine,
    Claim,
    ClaimState,
    Demand,
    EngineCapacity,
    EngineDemand,
    Ledger,
    total,
)
from gateway.domain.run import Exit, LocalJob, Run
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from tests.builders import a_run, a_spec, at
from tests.domain.test_resources import FAR, means

ALL = Amounts.of(16, 64 * GIB)
NODE = Ledger(ALL, node="n1")
TWO = Ledger(Amounts.of(4), node="n1", further={FAR: Amounts.of(16)})
AWAY = replace(TWO, away={FAR: "it has not answered"})
HELD = ""

Asked = tuple[float, Claim]
Step = Asked | Callable[[Ledger], Ledger]
"""a job asks at a moment, or something else happens"""


def asks(
    now: float,
    job: str,
    cpu: float = 0.0,
    priority: int = 0,
    memory: float = 0.0,
    far=None,
) -> Asked:
    """``far``: cores of the further engine; None: the job has no task there."""
    further = {} if far is None else {FAR: Amounts.of(far)}
    amounts, when = Amounts.of(cpu, memory * GIB), at(now)
    return now, Claim(job, amounts, ClaimState.WAITING, when, when, priority, "n9", further=further)


def sized(cpu: float) -> Step:
    return lambda ledger: replace(ledger, total=Amounts.of(cpu, 64 * GIB))


def used_by_others(used: AmountsByEngine) -> Step:
    return lambda ledger: replace(ledger, others=used)


def away(words: str = "") -> Step:
    return lambda ledger: replace(ledger, away={FAR: words} if words else {})


def without(job: str) -> Step:
    return lambda ledger: ledger.without(job)


def played(
    ledger: Ledger,
    *steps: Step,
    rules: QueueRules = QueueRules(),
) -> tuple[Ledger, list[str]]:
    """Return the ledger after the steps, and why each job that asked has to wait."""
    said = []
    for step in steps:
        if callable(step):
            ledger = step(ledger)
        else:
            ledger, held = resource_queue.apply(ledger, step[1], at(step[0]), rules)
            said.append(HELD if held else ledger.claims[step[1].job_id].reason)
    return ledger, said


A, B = "held by job job-a", f"engine {FAR} of node n1 has not answered since noon"
FULL, OLD = asks(0, "job-a", 16), asks(0, "old", 4, far=4)

CASES: dict[str, tuple[Ledger, Sequence[Step], list[str], float]] = {
    "a blocked head does not block": (
        NODE,
        [asks(0, "job-a", 8), asks(1, "job-1", 12), asks(2, "job-2", 4)],
        [HELD, "needs cpu 12 on node n1, free cpu 8, held by job job-a (cpu 8)", HELD],
        4,
    ),
    "the higher priority first": (
        NODE,
        [
            FULL,
            asks(1, "low", 16, 1),
            asks(2, "high", 16, 9),
            without("job-a"),
            asks(3, "low", 16, 1),
        ],
        [
            HELD,
            A,
            A,
            "needs cpu 16 on node n1, which is kept for jobs that go first: job high (cpu 16)",
        ],
        16,
    ),
    "and it gets it": (
        NODE,
        [
            FULL,
            asks(1, "low", 16, 1),
            asks(2, "high", 16, 9),
            without("job-a"),
            asks(3, "high", 16, 9),
        ],
        [HELD, A, A, HELD],
        0,
    ),
    "nothing is kept for who asks no more": (
        NODE,
        [
            FULL,
            asks(1, "gone", 16, 9),
            without("job-a"),
            asks(90, "other", 1),
            asks(92, "other", 1),
        ],
        [HELD, A, "kept for", HELD],
        15,
    ),
    "who does not delay the oldest may pass it": (
        NODE,
        [
            *(asks(0, "job-a", 10, memory=8), *(asks(t, "old", 8, memory=8) for t in (1, 700))),
            *(asks(700, "cpu", 1), asks(700, "memory", memory=40), asks(700, "more", memory=56)),
        ],
        [HELD, A, A, "kept for", HELD, "free memory 16 GiB"],
        6,
    ),
    "asked twice": (NODE, [asks(0, "job-a", 4), asks(1, "job-a", 4)], [HELD, HELD], 12),
    "a node that has become smaller": (
        NODE,
        [asks(0, "job-a", 8), sized(6), asks(1, "job-b", 1), sized(12), asks(2, "job-b", 1)],
        [HELD, "free cpu 0", HELD],
        3,
    ),
    # several engines
    "an engine of which it needs nothing": (
        AWAY,
        [asks(0, "job-a", far=0), away(), asks(1, "job-a", far=0)],
        ["ENGINE_DOWN: it has not answered", HELD],
        4,
    ),
    "a full engine lets the jobs of another through": (
        TWO,
        [asks(0, "job-a", 1, far=16), asks(0, "job-b", 3), asks(0, "job-c", 1, far=1)],
        [
            *(HELD, HELD),
            "needs cpu 1 on node n1, free cpu 0, held by job job-a (cpu 1), job job-b (cpu 3); "
            f"needs cpu 1 at engine {FAR} on node n1, free cpu 0, held by job job-a (cpu 16)",
        ],
        0,
    ),
    "at all or at none": (
        TWO,
        [asks(0, "job-a", far=10), asks(0, "job-b", 4, far=10)],
        [HELD, "free cpu 6"],
        4,
    ),
    "what is held of an engine stays while it is away": (
        TWO,
        [
            *(asks(0, "job-a", far=10), away(B), asks(1, "job-b", far=1)),
            *(away(), asks(2, "job-b", far=1), asks(2, "job-c", far=6)),
        ],
        [HELD, f"ENGINE_DOWN: {B}", HELD, "free cpu 5"],
        4,
    ),
    "nothing is kept at an engine that is away": (
        AWAY,
        [OLD, (9000.0, OLD[1]), asks(9000, "young", 4)],
        ["ENGINE_DOWN", "ENGINE_DOWN", HELD],
        0,
    ),
    "an old job is waited for at each of its engines": (
        TWO,
        [asks(0, "job-a", far=16), OLD, asks(5, "young", 1), (605.0, OLD[1]), asks(606, "late", 1)],
        [HELD, "free cpu 0", HELD, "free cpu", "kept for jobs that go first: job old"],
        3,
    ),
    "others use a cluster, too": (
        replace(TWO, others=AmountsByEngine.of(Amounts.of(3), {FAR: Amounts.of(12)})),
        [
            *(asks(0, "job-a", 1, far=1), asks(1, "job-b", far=4)),
            *(used_by_others(AmountsByEngine()), asks(2, "job-b", far=4)),
        ],
        [
            HELD,
            f"needs cpu 4 at engine {FAR} on node n1, free cpu 3, held by job job-a (cpu 1), others use cpu 12",
            HELD,
        ],
        3,
    ),
    "an engine that is no longer named": (
        replace(TWO, further={}),
        [asks(0, "job-a", far=1)],
        [f"there is no engine {FAR} on node n1 any more"],
        4,
    ),
}


@pytest.mark.parametrize(("ledger", "steps", "expected", "left"), CASES.values(), ids=CASES)
def test_who_gets_what_and_why_the_others_wait(
    ledger: Ledger,
    steps: Sequence[Step],
    expected: list[str],
    left: float,
):
    ledger, said = played(ledger, *steps)
    assert [bool(words) for words in said] == [bool(words) for words in expected], said
    assert all(part in words for part, words in zip(expected, said, strict=True)), said
    assert ledger.remaining.cpu == left * 1000


def test_a_job_without_priority_has_priority_0():
    asked = {
        "below": {"priority": -1},
        "none": {},
        "empty": {"priority": None},
        "above": {"priority": 1},
    }
    priorities = {
        job: a_spec(job_params={"common": common}).settings.priority
        for job, common in asked.items()
    }
    ledger, _ = played(
        NODE,
        FULL,
        *(asks(i, job, 16, number) for i, (job, number) in enumerate(priorities.items())),
    )
    order = []
    while found := resource_queue.admissible(ledger.without("job-a"), at(6.0)):
        order += found
        ledger = ledger.without(found[0])
    assert order == ["above", "none", "empty", "below"]


def test_a_large_job_starts_within_the_ageing_bound_despite_small_ones():
    rules = QueueRules(ageing=60.0)
    running = [(float(end), f"first-{end}") for end in (3, 6, 9)]
    ledger, _ = played(NODE, *(asks(0, job, 4) for _, job in running))
    for second in range(200):
        for ends, job in [r for r in running if r[0] <= second]:
            running.remove((ends, job))
            ledger = ledger.without(job)
        ledger, [why] = played(ledger, asks(second, "large", 16), rules=rules)
        if why == HELD:
            break
        ledger, [why] = played(
            ledger, asks(second, f"small-{second}", 4, priority=100), rules=rules
        )
        if why == HELD:
            running.append((second + 10, f"small-{second}"))
        else:
            ledger = ledger.without(f"small-{second}")
    assert 60 <= second <= 75  # it is passed until then, and by nobody afterwards


def test_what_is_returned_is_returned_once_and_its_job_keeps_its_age():
    ledger, _ = played(NODE, asks(0, "job-a", 4))
    ledger = ledger.give_back("job-a").give_back("job-a").give_back("nobody")
    assert (ledger.remaining, ledger.ignored) == (ALL, 2)
    ledger, said = played(ledger, asks(500, "job-a", 4))
    assert said == [HELD] and ledger.claims["job-a"].since == at(0.0)


# ---------------------------------------------------------------- the ledger, step by step

TOTAL = AmountsByEngine(
    {"": Amounts.of(8, 32 * GIB, 50 * GIB, 2), FAR: Amounts.of(16, 16 * GIB, gpu=1)}
)


def least(amounts: Amounts) -> int:
    return min(amounts.cpu, amounts.memory, amounts.disk, amounts.gpu)


class Node:
    """A node of two engines whose jobs do anything, in any order, several times; one engine comes and goes."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.ledger = Ledger(TOTAL[""], further={FAR: TOTAL[FAR]})
        self.demands: dict[str, Demand] = {}
        self.silences = 0
        self.looked_at: dict[str, object] = {}
        self.jobs: dict[str, LocalJob] = {}
        self.now = 0.0
        self.made = 0
        self.over = 0
        self.ends: list[str] = []

    def step(self) -> None:
        self.now += self.random.choice((0.0, 0.1, 5.0, 700.0))
        doing = self.random.choice(
            (
                *(
                    self.arrive,
                    self.ask,
                    self.ask,
                    self.give_back,
                    self.start,
                    self.launch,
                    self.launch,
                ),
                *(
                    self.news,
                    self.news,
                    self.news,
                    self.stop,
                    self.retry,
                    self.crash,
                    self.close,
                    self.close,
                ),
                *(self.come_and_go,),
            )
        )
        doing()

    def check(self) -> None:
        """Look at the sums of all that the step has changed: a value is frozen, what is the same was looked at."""
        if self.ledger is not self.looked_at.get(""):
            self.looked_at[""] = self.ledger
            self.check_ledger()
        for local in self.jobs.values():
            if local is not self.looked_at.get(local.id):
                self.looked_at[local.id] = local
                self.check_job(local)
            if self.up(local):
                assert self.ledger.claims[local.id].state is ClaimState.HELD

    def check_ledger(self) -> None:
        held, room = (
            sum((c.by_engine for c in self.ledger.holders), AmountsByEngine()),
            self.ledger.available,
        )
        for engine, most in TOTAL:
            remaining = most - self.ledger.held_by_engine(engine)
            assert most - remaining == held[engine]
            assert least(held[engine]) >= 0 <= least(remaining)
            assert room[engine] == (Amounts() if engine in self.ledger.away else remaining)

    def check_job(self, local: LocalJob) -> None:
        assert local.pool is not None
        left = domain_run.remaining(local)
        for engine, most in local.pool.by_engine:
            used = total(domain_run.amounts(r) for r in self.up(local) if r.engine == engine)
            disk = 0 if engine else sum(domain_run.amounts(r).disk for r in self.up(local))
            assert most - left[engine] == replace(used, disk=disk)
            assert least(left[engine]) >= 0

    @staticmethod
    def up(local: LocalJob) -> list[Run]:
        return [r for r in local.runs if not r.over and r.status is not RunStatus.WAITING]

    def arrive(self) -> None:
        if len(self.jobs) >= 12:
            return
        self.made += 1
        choose = self.random.choice
        parts = [
            EngineDemand(
                {
                    "guest.0": Amounts.of(
                        *(choose((0.5, 1, 4, 8)), choose((0, 1, 10)) * GIB, choose((0, 9)) * GIB),
                        gpu=choose((0, 0, 1)),
                    )
                },
                3,
                e,
            )
            for e in choose((("",), (FAR,), ("", FAR)))
        ]
        further = {FAR: EngineCapacity(TOTAL[FAR], 16)}
        needed = Demand(tuple(parts), choose((1, 1, 3)))
        pool = resources.pool(needed, means(total=TOTAL[""], further=further))
        spec = a_spec("a; b; c", job_id=f"job-{self.made}")
        self.demands[spec.job_id] = needed
        self.jobs[spec.job_id] = LocalJob(spec, "n1", JobStatus.READY, at(self.now), "d", pool=pool)

    def one(self, *statuses: JobStatus) -> LocalJob | None:
        found = [local for local in self.jobs.values() if local.status in statuses]
        return self.random.choice(found) if found else None

    def claim(self, local: LocalJob) -> Claim:
        when, urgent = at(self.now), self.random.choice((0, 0, 5))
        assert local.pool
        pool = local.pool
        return Claim(
            local.id,
            pool.amounts,
            ClaimState.WAITING,
            when,
            when,
            urgent,
            "n1",
            further=pool.further,
        )

    def apply(self, local: LocalJob) -> bool:
        before = self.ledger.held_by_engine(FAR)
        self.ledger, held = resource_queue.apply(self.ledger, self.claim(local), at(self.now))
        assert self.ledger.held_by_engine(FAR) == before or not self.ledger.away
        return held

    def ask(self) -> None:
        if local := self.one(JobStatus.READY, JobStatus.RUNNING):
            for _ in range(self.random.choice((1, 1, 2))):  # the same request may come twice
                self.apply(local)

    def come_and_go(self) -> None:
        self.silences += not self.ledger.away
        self.ledger = replace(
            self.ledger, away={} if self.ledger.away else {FAR: "it has not answered"}
        )

    def give_back(self) -> None:
        """Another node had to wait; or somebody returns what nobody applied for, or returns it again."""
        local = self.one(JobStatus.READY)
        name = local.id if local and self.random.random() < 0.8 else "job-nobody"
        for _ in range(self.random.choice((1, 2))):
            before, held = self.ledger, name in {c.job_id for c in self.ledger.holders}
            self.ledger = self.ledger.give_back(name)
            assert self.ledger.ignored == before.ignored + (not held)
            assert held or self.ledger.remaining == before.remaining

    def start(self) -> None:
        local = self.one(JobStatus.READY)
        if local is None:
            return
        if self.apply(local):
            runs = tuple(self.run(local, task, 0) for task in "abc"[: self.random.randint(1, 3)])
            self.jobs[local.id] = replace(local, status=JobStatus.RUNNING, runs=runs)

    def run(
        self,
        local: LocalJob,
        task: str,
        attempt: int,
    ) -> Run:
        part = self.random.choice(self.demands[local.id].parts)
        share = {
            "cpu": part.per_task.cpu / 1000,
            "memory": float(part.per_task.memory),
            "disk": float(part.per_task.disk),
        }
        name = f"{local.id}-{task}-{attempt}"
        return a_run(
            task,
            limits=share,
            run_id=name,
            name=name,
            task_id=name,
            attempt=attempt,
            engine=part.engine,
        )

    def launch(self) -> None:
        if local := self.one(JobStatus.RUNNING, JobStatus.FINISHED):
            local, actions = machine.step(local, at(self.now))
            self.jobs[local.id] = local
            for action in actions:
                if isinstance(action, messages.Launch) and self.random.random() < 0.7:
                    self.tell(local.id, messages.Launched(action.run, at(self.now)))
                elif isinstance(action, messages.Launch):
                    failed = messages.LaunchFailed(action.run, Failure("ENGINE_DOWN"), at(self.now))
                    self.tell(local.id, failed)
                elif isinstance(action, messages.Collect | messages.StopRun | messages.Tell):
                    self.tell(
                        local.id,
                        messages.Done(action, at(self.now), final=self.random.random() < 0.7),
                    )

    def news(self) -> None:
        local = self.one(JobStatus.RUNNING, JobStatus.FINISHED)
        if local and local.runs:
            run = self.random.choice(local.runs)
            status = self.random.choice((TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED))
            event = self.random.choice(
                (
                    messages.Reported(run.run_id, status, at(self.now)),
                    messages.Exited(run.run_id, Exit(self.random.choice((0, 1))), at(self.now)),
                    messages.Gone(run.run_id, at(self.now)),
                )
            )
            for _ in range(self.random.choice((1, 2, 3))):
                self.tell(local.id, event)

    def stop(self) -> None:
        if self.random.random() < 0.3 and (local := self.one(*JobStatus)):
            final = Ending(Outcome.STOPPED, at(self.now))
            self.tell(local.id, messages.StopRequested(at(self.now), None, final))

    def retry(self) -> None:
        local = self.one(JobStatus.RUNNING)
        if local:
            task = self.random.choice(local.runs).task_name
            tries = [r for r in local.runs if r.task_name == task]
            if all(r.over for r in tries) and len(tries) < 4:
                again = self.run(local, task, len(tries))
                self.jobs[local.id] = replace(local, runs=(*local.runs, again))

    def crash(self) -> None:
        for name in self.jobs:
            self.tell(name, messages.Restarted(at(self.now)))

    def close(self) -> None:
        local = self.one(JobStatus.FINISHED, JobStatus.REJECTED)
        if local and messages.Close() in machine.plan(local, at(self.now)):
            held = next(
                (c.by_engine for c in self.ledger.holders if c.job_id == local.id),
                AmountsByEngine(),
            )
            for _ in range(self.random.choice((1, 2))):  # a crash may make it happen again
                before = self.ledger
                self.ledger = self.ledger.without(local.id)
                for engine, _most in TOTAL:
                    assert (
                        before.held_by_engine(engine) - self.ledger.held_by_engine(engine)
                        == held[engine]
                    )
                held = AmountsByEngine()
            del self.jobs[local.id]
            self.over += 1

    def tell(self, job_id: str, event: messages.Event) -> None:
        self.jobs[job_id] = replace(machine.apply(self.jobs[job_id], event), notes=())


def test_ten_thousand_steps_in_any_order_and_the_sums_are_right_after_each():
    node = Node(20260101)
    for _ in range(10_000):
        node.step()
        node.check()
    assert node.over > 100
    assert node.ledger.ignored > 100
    for name in list(node.jobs):
        node.ledger = node.ledger.without(name)
    assert node.ledger.remaining == TOTAL[""]
    assert node.ledger.held_by_engine(FAR) == Amounts()
    assert node.ledger.claims == {}
    assert node.silences > 100
