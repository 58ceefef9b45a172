"""Who holds what of a node: priority, then age, no blocked head; never more than there is."""

from dataclasses import replace
from random import Random

from gateway.domain import admission, resources
from gateway.domain import run as domain_run
from gateway.domain.admission import Rules
from gateway.domain.execution import machine, messages
from gateway.domain.resources import (
    GIB,
    Amounts,
    Claim,
    ClaimState,
    Demand,
    Ledger,
    Part,
    Portions,
    Room,
    total,
)
from gateway.domain.run import Exit, LocalJob, Run
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from tests.builders import a_run, a_spec, at
from tests.domain.test_resources import FAR, means

ALL = Amounts.of(16, 64 * GIB)


def a_claim(job: str, cpu: float, since: float = 0.0, priority: int = 0, memory: float = 0.0) -> Claim:
    return Claim(job, Amounts.of(cpu, memory * GIB), ClaimState.WAITING, at(since), at(since), priority, "n9")


def ask(ledger: Ledger, claim: Claim, now: float, rules: Rules = Rules()) -> tuple[Ledger, bool]:
    return admission.apply(ledger, claim, at(now), rules)


def holding(*claims: Claim, total: Amounts = ALL) -> Ledger:
    ledger = Ledger(total, node="n1")
    for claim in claims:
        ledger, held = ask(ledger, claim, 0.0)
        assert held
    return ledger


def test_a_blocked_head_does_not_block():
    ledger, held = ask(holding(a_claim("job-a", 8)), a_claim("job-1", 12), 1.0)
    assert not held
    assert ledger.claims["job-1"].reason == "needs cpu 12 on node n1, free cpu 8, held by job job-a (cpu 8)"
    ledger, held = ask(ledger, a_claim("job-2", 4), 2.0)
    assert held
    assert ledger.remaining.cpu == 4000


def test_the_higher_priority_goes_first_where_both_fit():
    ledger = holding(a_claim("job-a", 16))
    ledger, _ = ask(ledger, a_claim("low", 16, priority=1), 1.0)
    ledger, _ = ask(ledger, a_claim("high", 16, 2.0, priority=10), 2.0)
    ledger = ledger.without("job-a")
    assert admission.admissible(ledger, at(3.0)) == ["high"]
    ledger, held = ask(ledger, a_claim("low", 16, priority=1), 3.0)  # it asks first, and does not get it
    assert not held
    assert ledger.claims["low"].reason == (
        "needs cpu 16 on node n1, which is kept for jobs that go first: job high (cpu 16)"
    )
    ledger, held = ask(ledger, a_claim("high", 16, priority=10), 4.0)
    assert held


def test_a_job_that_names_no_priority_goes_before_those_below_0_and_after_those_above():
    ledger = holding(a_claim("job-a", 16))
    asked = {"below": {"priority": -1}, "none": {}, "empty": {"priority": None}, "above": {"priority": 1}}
    for i, (job, common) in enumerate(asked.items()):
        priority = resources.priority(a_spec(job_params={"common": common}))
        ledger, _ = ask(ledger, a_claim(job, 16, i, priority), 5.0)
    order = []
    while found := admission.admissible(ledger.without("job-a"), at(6.0)):
        order += found
        ledger = ledger.without(found[0])
    assert order == ["above", "none", "empty", "below"]


def test_what_is_kept_for_a_job_that_asks_no_more_is_given_to_others_after_a_while():
    ledger = holding(a_claim("job-a", 16))
    ledger, _ = ask(ledger, a_claim("gone", 16, priority=10), 1.0)
    ledger = ledger.without("job-a")
    assert not ask(ledger, a_claim("other", 1), 90.0)[1]
    assert ask(ledger, a_claim("other", 1), 92.0)[1]


def test_a_large_job_starts_within_the_ageing_bound_although_small_ones_never_cease():
    rules = Rules(ageing=60.0)
    running = [(float(end), f"first-{end}") for end in (3, 6, 9)]
    ledger = holding(*(a_claim(job, 4) for _, job in running))
    for second in range(200):
        for ends, job in [r for r in running if r[0] <= second]:
            running.remove((ends, job))
            ledger = ledger.without(job)
        ledger, held = ask(ledger, a_claim("large", 16, second), second, rules)
        if held:
            break
        small = f"small-{second}"
        ledger, held = ask(ledger, a_claim(small, 4, second, priority=100), second, rules)
        if held:
            running.append((second + 10, small))
        else:
            ledger = ledger.without(small)
    assert 60 <= second <= 75  # it is passed until then, and by nobody afterwards


def test_who_does_not_delay_the_oldest_may_pass_it():
    ledger = holding(a_claim("job-a", 10, memory=8))
    ledger, _ = ask(ledger, a_claim("old", 8, memory=8), 1.0)
    now = 700.0
    ledger, _ = ask(ledger, a_claim("old", 8, memory=8), now)
    assert not ask(ledger, a_claim("some cpu", 1, now), now)[1]
    assert ask(ledger, a_claim("memory only", 0, now, memory=40), now)[1]
    assert not ask(ledger, a_claim("too much memory", 0, now, memory=56), now)[1]


def test_a_job_keeps_its_age_when_it_has_to_give_back():
    ledger = holding(a_claim("job-a", 4)).give_back("job-a")
    ledger, held = ask(ledger, a_claim("job-a", 4, 500.0), 500.0)
    assert held
    assert ledger.claims["job-a"].since == at(0.0)


def test_asked_twice_it_holds_once_and_returned_twice_it_is_returned_once():
    ledger, held = ask(holding(a_claim("job-a", 4)), a_claim("job-a", 4), 1.0)
    assert held
    assert ledger.held.cpu == 4000
    ledger = ledger.give_back("job-a").give_back("job-a").give_back("nobody")
    assert (ledger.remaining, ledger.ignored) == (ALL, 2)


def test_a_node_that_has_become_smaller_has_the_rest_of_its_new_total():
    ledger = replace(holding(a_claim("job-a", 8)), total=Amounts.of(6, 64 * GIB))
    assert ledger.remaining.cpu == -2000
    ledger, held = ask(ledger, a_claim("job-b", 1), 1.0)
    assert not held
    assert "free cpu 0" in ledger.claims["job-b"].reason
    assert ask(replace(ledger, total=Amounts.of(12)), a_claim("job-b", 1), 2.0)[1]


# ---------------------------------------------------------------- several engines


def at_engines(job: str, since: float = 0.0, main: float = 0.0, far: float | None = None) -> Claim:
    """``main``, ``far``: cores at each engine."""
    further = {FAR: Amounts.of(far)} if far is not None else {}
    return replace(a_claim(job, main, since), further=further)


def two_engines(**more: object) -> Ledger:
    return replace(Ledger(Amounts.of(4), node="n1", further={FAR: Amounts.of(16)}), **more)


def asks(there: Ledger, claim: Claim, now: float = 0.0) -> tuple[Ledger, str]:
    there, held = admission.apply(there, claim, at(now))
    return there, "" if held else there.claims[claim.job_id].reason


def test_a_job_that_needs_nothing_of_an_engine_waits_for_it_all_the_same():
    asked = at_engines("job-a", far=0)
    there, why = asks(two_engines(away={FAR: "it has not answered"}), asked)
    assert why == "ENGINE_DOWN: it has not answered"
    assert asks(replace(there, away={}), asked)[1] == ""


def test_a_full_engine_lets_the_jobs_of_another_through_and_is_named_to_its_own():
    there, _ = asks(two_engines(), at_engines("job-a", main=1, far=16))
    there, why = asks(there, at_engines("job-b", main=3))
    assert why == ""
    there, why = asks(there, at_engines("job-c", main=1, far=1))
    assert why == (
        "needs cpu 1 on node n1, free cpu 0, held by job job-a (cpu 1), job job-b (cpu 3); "
        f"needs cpu 1 at engine {FAR} on node n1, free cpu 0, held by job job-a (cpu 16)"
    )
    assert there.held_at(FAR) == Amounts.of(16)
    assert there.without("job-a").held_at(FAR) == Amounts()


def test_a_job_holds_at_all_its_engines_or_at_none():
    there, _ = asks(two_engines(), at_engines("job-a", far=10))
    there, why = asks(there, at_engines("job-b", main=4, far=10))
    assert "free cpu 6" in why
    assert there.remaining == Amounts.of(4)


def test_what_an_engine_holds_stays_while_it_is_away_and_nothing_more_is_held_of_it():
    there, _ = asks(two_engines(), at_engines("job-a", far=10))
    away = replace(there, away={FAR: f"engine {FAR} of node n1 has not answered since noon"})
    there, why = asks(away, at_engines("job-b", far=1))
    assert why == f"ENGINE_DOWN: engine {FAR} of node n1 has not answered since noon"
    assert (there.held_at(FAR), there.further[FAR]) == (Amounts.of(10), Amounts.of(16))
    assert admission.admissible(there, at(1)) == []
    assert admission.admissible(replace(there, away={}), at(1)) == ["job-b"]


def test_nothing_is_kept_for_an_old_job_whose_engine_is_away():
    there = two_engines(away={FAR: "it has not answered"})
    there, _ = asks(there, at_engines("job-old", main=4, far=1))
    there, _ = asks(there, at_engines("job-old", main=4, far=1), 10_000.0)
    there, why = asks(there, at_engines("job-young", 10_000.0, main=4), 10_000.0)
    assert why == ""


def test_an_old_job_is_waited_for_at_each_of_its_engines_and_no_other():
    rules = admission.Rules(ageing=10, fresh=1000)
    there, _ = asks(two_engines(), at_engines("job-a", far=16))
    for claim in (at_engines("job-old", main=4, far=4), at_engines("job-young", 1.0, main=1)):
        there = there.with_claim(claim)
    assert admission.admissible(there, at(5), rules) == ["job-young"]
    assert admission.admissible(there, at(50), rules) == []


def test_an_engine_that_the_settings_no_longer_name_is_told():
    there, why = asks(two_engines(further={}), at_engines("job-a", far=1))
    assert why == f"there is no engine {FAR} on node n1 any more"
    assert there.held == Amounts()


# ---------------------------------------------------------------- the ledger, step by step

TOTAL = Portions({"": Amounts.of(8, 32 * GIB, 50 * GIB), FAR: Amounts.of(16, 16 * GIB)})


def least(amounts: Amounts) -> int:
    return min(amounts.cpu, amounts.memory, amounts.disk)


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
                *(self.arrive, self.ask, self.ask, self.give_back, self.start, self.launch, self.launch),
                *(self.news, self.news, self.news, self.stop, self.retry, self.crash, self.close, self.close),
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
        held, room = sum((c.portions for c in self.ledger.holders), Portions()), self.ledger.room
        for engine, most in TOTAL:
            remaining = most - self.ledger.held_at(engine)
            assert most - remaining == held[engine]
            assert least(held[engine]) >= 0 <= least(remaining)
            assert room[engine] == (Amounts() if engine in self.ledger.away else remaining)

    def check_job(self, local: LocalJob) -> None:
        assert local.pool is not None
        left = domain_run.remaining(local)
        for engine, most in local.pool.portions:
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
            Part(
                {"guest.0": Amounts.of(choose((0.5, 1, 4, 8)), choose((0, 1, 10)) * GIB, choose((0, 9)) * GIB)},
                3,
                e,
            )
            for e in choose((("",), (FAR,), ("", FAR)))
        ]
        further = {FAR: Room(TOTAL[FAR], 16)}
        needed = Demand(tuple(parts), choose((1, 1, 3)))
        pool = resources.pool(needed, means(8, 32, 50, further=further))
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
        return Claim(local.id, pool.amounts, ClaimState.WAITING, when, when, urgent, "n1", further=pool.further)

    def apply(self, local: LocalJob) -> bool:
        before = self.ledger.held_at(FAR)
        self.ledger, held = admission.apply(self.ledger, self.claim(local), at(self.now))
        assert self.ledger.held_at(FAR) == before or not self.ledger.away
        return held

    def ask(self) -> None:
        if local := self.one(JobStatus.READY, JobStatus.RUNNING):
            for _ in range(self.random.choice((1, 1, 2))):  # the same request may come twice
                self.apply(local)

    def come_and_go(self) -> None:
        self.silences += not self.ledger.away
        self.ledger = replace(self.ledger, away={} if self.ledger.away else {FAR: "it has not answered"})

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

    def run(self, local: LocalJob, task: str, attempt: int) -> Run:
        part = self.random.choice(self.demands[local.id].parts)
        share = {"cpu": part.one.cpu / 1000, "memory": float(part.one.memory), "disk": float(part.one.disk)}
        name = f"{local.id}-{task}-{attempt}"
        return a_run(task, limits=share, run_id=name, name=name, task_id=name, attempt=attempt, engine=part.engine)

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
                    self.tell(local.id, messages.Done(action, at(self.now), final=self.random.random() < 0.7))

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
            held = next((c.portions for c in self.ledger.holders if c.job_id == local.id), Portions())
            for _ in range(self.random.choice((1, 2))):  # a crash may make it happen again
                before = self.ledger
                self.ledger = self.ledger.without(local.id)
                for engine, _most in TOTAL:
                    assert before.held_at(engine) - self.ledger.held_at(engine) == held[engine]
                held = Portions()
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
    assert node.ledger.held_at(FAR) == Amounts()
    assert node.ledger.claims == {}
    assert node.silences > 100
