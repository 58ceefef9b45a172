"""What jobs need of a node, and who holds what of it: never more than there is, never returned twice."""

from dataclasses import replace
from random import Random

import pytest

from gateway.domain import admission, resources, validation
from gateway.domain import run as domain_run
from gateway.domain.execution import machine
from gateway.domain.execution.machine import agenda
from gateway.domain.execution.messages import (
    Close,
    Collect,
    Done,
    Event,
    Exited,
    Gone,
    Launch,
    Launched,
    LaunchFailed,
    Reported,
    Restarted,
    StopRequested,
    StopRun,
    Tell,
)
from gateway.domain.resources import (
    GIB,
    Amounts,
    Claim,
    ClaimState,
    Defaults,
    Demand,
    Ledger,
    Means,
    Never,
    Part,
    Pool,
    Portions,
    Room,
    together,
    total,
)
from gateway.domain.run import Exit, LocalJob, Run
from gateway.domain.spec import Ending, Failure, JobSpec, Party
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from gateway.domain.timeouts import NOW, RunTiming
from tests.builders import T0, a_local_job, a_run, a_spec, at

SIX = "a -> b -> c -> d -> e -> f"


def asking(dag: str = "a", roles: dict[str, tuple[str, ...]] | None = None, **asked: dict[str, float]) -> JobSpec:
    """Build a job whose parties, named like ``guest_0``, ask for amounts."""
    params: dict[str, dict[str, object]] = {}
    for label, amounts in asked.items():
        role, _, index = label.partition("_")
        params.setdefault(role, {})[index] = {"resources": amounts}
    return a_spec(dag, roles or {"guest": ("n1",), "host": ("n2",)}, job_params=params)


def means(cpu: float = 8, memory: float = 64, disk: float = 100, **more: object) -> Means:
    return replace(Means("n1", Amounts.of(cpu, memory * GIB, disk * GIB), cpu), **more)


def pool_of(spec: JobSpec, has: Means) -> Pool | None:
    return resources.pool(resources.demand(spec, has.node, has.defaults), has)


# ---------------------------------------------------------------- what a job needs


def test_both_roles_at_one_node_are_counted_together():
    spec = asking(roles={"guest": ("n1",), "host": ("n1",)}, guest_0={"cpu": 2, "memory": 4}, host_0={"cpu": 1})
    assert pool_of(spec, means()) == Pool(Amounts.of(3, 4 * GIB), 1)


def test_a_job_that_asks_for_nothing_where_the_node_gives_no_default_holds_nothing():
    assert pool_of(asking(guest_0={"cpu": -1, "memory": -1, "disk": -1}), means()) is None
    assert pool_of(a_spec(), means()) is None


def test_what_is_left_open_is_the_sites_default_and_said_to_be():
    spec = asking(roles={"guest": ("n1",), "arbiter": ("n1",)}, guest_0={"cpu": -1, "memory": 2, "disk": -1})
    defaults = Defaults(cpu=1, roles={"arbiter": Defaults(cpu=0.5)})
    guest, arbiter = (resources.granted(spec, p, defaults) for p in spec.parties)
    assert (guest.cpu, guest.memory, guest.disk) == (1, 2 * GIB, None)
    assert guest.origins == {"cpu": "site default", "memory": "guest.0", "disk": "the node's bound"}
    assert (arbiter.cpu, arbiter.origins["cpu"]) == (0.5, "site default for arbiter")
    assert pool_of(spec, means(defaults=defaults)) == Pool(Amounts.of(1.5, 2 * GIB), 1)


def test_independent_tasks_overlap_by_default_and_the_job_holds_enough_for_that():
    wide = "a -> b; a -> c; a -> d; b -> e"
    assert pool_of(asking(wide, guest_0={"cpu": 2}), means()) == Pool(Amounts.of(6), 3)
    assert pool_of(asking(wide, guest_0={"cpu": 3}), means()) == Pool(Amounts.of(6), 2)
    spec = asking(wide, guest_0={"cpu": 2})
    spec = replace(spec, job_params={**spec.job_params, "common": {"task_parallelism": 1}})
    assert pool_of(spec, means()) == Pool(Amounts.of(2), 1)


def test_what_can_never_fit_is_said_with_numbers_for_all_roles_together():
    spec = asking(roles={"guest": ("n1",), "host": ("n1",)}, guest_0={"cpu": 8}, host_0={"cpu": 4})
    with pytest.raises(Never) as caught:
        pool_of(spec, means(cpu=8))
    assert str(caught.value) == "one task at a time needs cpu 12 (guest.0 cpu 8; host.0 cpu 4), node n1 has cpu 8"


def test_a_job_over_its_share_is_refused_with_numbers():
    spec = asking(guest_0={"cpu": 6, "memory": 1})
    assert pool_of(spec, means()) is not None
    with pytest.raises(
        Never, match=r"needs cpu 6 \(guest.0\), node n1 has cpu 8, of which one job may hold cpu 4"
    ):
        pool_of(spec, means(share=0.5))


def test_no_container_gets_more_cores_than_the_engine_has_whatever_the_overcommit():
    wide = replace(means(cpu=16), cores=2)
    assert pool_of(asking("a; b", guest_0={"cpu": 2}), wide) == Pool(Amounts.of(4), 2)
    with pytest.raises(Never, match=r"guest\.0 asks for cpu 4, the engine of node n1 has 2"):
        pool_of(asking(guest_0={"cpu": 4}), wide)


@pytest.mark.parametrize(
    ("kind", "value", "wrong"),
    [
        *((k, v, False) for k in ("cpu", "memory", "disk") for v in (-1, 0, 1, 2.5, "4", None, -0.0, 5e-324)),
        *(
            (k, v, True)
            for k in ("cpu", "memory", "disk")
            for v in ("much", [], {}, True, 1e308, "nan", "inf", "")
        ),
    ],
)
def test_amounts_are_numbers(kind: str, value: object, wrong: bool):
    problems = validation.check(asking(guest_0={kind: value}))[0]  # type: ignore[dict-item]
    assert [p.path for p in problems] == [f"config.job_params.guest.0.resources.{kind}"] * wrong


def test_every_problem_is_told_at_once():
    spec = asking(guest_0={"cpu": "x", "disk": "y"})
    common = {"priority": "high", "task_parallelism": 0}
    spec = replace(spec, job_params={**spec.job_params, "common": common, "host": {"0": {"resources": 3}}})
    assert [p.path.removeprefix("config.job_params.") for p in validation.check(spec)[0]] == [
        "common.priority",
        "common.task_parallelism",
        "guest.0.resources.cpu",
        "guest.0.resources.disk",
        "host.0.resources",
    ]


@pytest.mark.parametrize("value", [True, 1.5, "1", [], 10**9])
def test_a_priority_is_a_whole_number(value: object):
    assert validation.check(a_spec(job_params={"common": {"priority": value}}))[0]


def test_amounts_are_never_counted_as_less_than_asked():
    assert Amounts.of(cpu=5e-324).cpu == 1
    assert Amounts.of(0.1).cpu == 100
    assert Amounts.of(0.30000000000000004).cpu in (300, 301)


# ---------------------------------------------------------------- two pools


def with_pool(*runs: Run, cpu: float, **changes: object) -> LocalJob:
    return a_local_job(*runs, pool=Pool(Amounts.of(cpu), 1), **changes)


def test_a_task_borrows_from_its_job_and_the_jobs_pool_reads_4_0_4():
    local = with_pool(cpu=4)
    six = [a_run(name, limits={"cpu": 4.0}) for name in "abcdef"]
    for run in six:
        assert domain_run.remaining(local)[""] == Amounts.of(4)
        local = replace(local, runs=(*local.runs, run))
        local, actions = machine.step(local, T0)
        assert actions == [Launch(run.run_id)]
        assert domain_run.remaining(local)[""] == Amounts()
        for event in (
            Launched(run.run_id, T0),
            Reported(run.run_id, TaskStatus.SUCCESS, T0),
            Reported(run.run_id, TaskStatus.SUCCESS, T0),
            Exited(run.run_id, Exit(0), T0),
            Exited(run.run_id, Exit(0), T0),
            Reported(run.run_id, TaskStatus.SUCCESS, T0),
        ):
            local = machine.apply(local, event)
        local, _ = machine.step(local, T0)
    assert domain_run.remaining(local)[""] == Amounts.of(4)


def test_a_run_waits_with_a_reason_until_its_jobs_pool_has_enough():
    first, second = (a_run(name, limits={"cpu": 3.0}) for name in "ab")
    local, actions = machine.step(with_pool(first, second, cpu=4), T0)
    assert actions == [Launch(first.run_id)]
    waiting = local.runs[1]
    assert domain_run.waits_for(local, waiting) == "needs cpu 3 of the job's pool, free cpu 1, borrowed by a"
    assert machine.next_due(local) != NOW  # it is not asked again and again
    local = machine.apply(local, LaunchFailed(first.run_id, Failure("X"), T0))
    local, actions = machine.step(local, T0)
    assert Launch(second.run_id) in actions
    assert domain_run.waits_for(local, local.runs[1]) == ""


def test_the_runs_of_one_task_borrow_together_or_not_at_all():
    host = Party("host", 0, "n1")
    both = [a_run("a", limits={"cpu": 2.0}), a_run("a", party=host, limits={"cpu": 2.0})]
    assert domain_run.may_launch(with_pool(*both, cpu=3)) == set()
    assert domain_run.may_launch(with_pool(*both, cpu=4)) == {run.run_id for run in both}
    small = a_run("b", limits={"cpu": 1.0})
    assert domain_run.may_launch(with_pool(*both, small, cpu=3)) == {small.run_id}


def test_without_a_pool_nothing_waits():
    runs = [a_run(name, limits={"cpu": 100.0}) for name in "ab"]
    assert len(machine.step(a_local_job(*runs), T0)[1]) == 2


# ---------------------------------------------------------------- the ledger, step by step

FAR = "ssh://far"
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
        held, room = together(c.portions for c in self.ledger.holders), self.ledger.room
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
        spec = a_spec(SIX, job_id=f"job-{self.made}")
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
                if isinstance(action, Launch) and self.random.random() < 0.7:
                    self.tell(local.id, Launched(action.run, at(self.now)))
                elif isinstance(action, Launch):
                    failed = LaunchFailed(action.run, Failure("ENGINE_DOWN"), at(self.now))
                    self.tell(local.id, failed)
                elif isinstance(action, Collect | StopRun | Tell):
                    self.tell(local.id, Done(action, at(self.now), final=self.random.random() < 0.7))

    def news(self) -> None:
        local = self.one(JobStatus.RUNNING, JobStatus.FINISHED)
        if local and local.runs:
            run = self.random.choice(local.runs)
            status = self.random.choice((TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED))
            event = self.random.choice(
                (
                    Reported(run.run_id, status, at(self.now)),
                    Exited(run.run_id, Exit(self.random.choice((0, 1))), at(self.now)),
                    Gone(run.run_id, at(self.now)),
                )
            )
            for _ in range(self.random.choice((1, 2, 3))):
                self.tell(local.id, event)

    def stop(self) -> None:
        if self.random.random() < 0.3 and (local := self.one(*JobStatus)):
            final = Ending(Outcome.STOPPED, at(self.now))
            self.tell(local.id, StopRequested(at(self.now), None, final))

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
            self.tell(name, Restarted(at(self.now)))

    def close(self) -> None:
        local = self.one(JobStatus.FINISHED, JobStatus.REJECTED)
        if local and any(due.command == Close() and due.at <= at(self.now) for due in agenda(local, RunTiming())):
            held = next((c.portions for c in self.ledger.holders if c.job_id == local.id), Portions())
            for _ in range(self.random.choice((1, 2))):  # a crash may make it happen again
                before = self.ledger
                self.ledger = self.ledger.without(local.id)
                for engine, _most in TOTAL:
                    assert before.held_at(engine) - self.ledger.held_at(engine) == held[engine]
                held = Portions()
            del self.jobs[local.id]
            self.over += 1

    def tell(self, job_id: str, event: Event) -> None:
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
