"""The ledger of a node whose jobs take random steps: its sums are always right."""

from dataclasses import replace
from random import Random

from gateway.domain import resource_queue, resources
from gateway.domain import run as domain_run
from gateway.domain.amounts import GIB, Amounts, AmountsByEngine, sum_of
from gateway.domain.execution import machine, messages
from gateway.domain.resources import Claim, ClaimState, Demand, EngineCapacity, EngineDemand, Ledger
from gateway.domain.run import Exit, LocalJob, Run
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from tests.builders import a_run, a_spec, at
from tests.domain.pools import FAR_ENGINE, a_capacity

MAIN_ENGINE = ""
TOTAL = AmountsByEngine(
    {
        MAIN_ENGINE: Amounts.of(8, 32 * GIB, 50 * GIB, 2),
        FAR_ENGINE: Amounts.of(16, 16 * GIB, gpu=1),
    }
)
MOST_JOBS = 12
MOST_ATTEMPTS = 4

# Share of the launches and of the other actions that the engine carries out.
SUCCESS_RATE = 0.7

# Seconds between two steps: none, a moment, more than a pause, more than the ageing of the queue.
STEP_LENGTHS = (0.0, 0.1, 5.0, 700.0)


def smallest(amounts: Amounts) -> int:
    """Return the smallest of the amounts, which must never be negative."""
    return min(amounts.cpu, amounts.memory, amounts.disk, amounts.gpu)


def launched_runs(local: LocalJob) -> list[Run]:
    """Return the runs that borrow from the pool of their job."""
    return [run for run in local.runs if not run.over and run.status is not RunStatus.WAITING]


class RandomNode:
    """A node with a main engine, a further engine that comes and goes, and random jobs."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.ledger = Ledger(
            TOTAL[MAIN_ENGINE],
            further={FAR_ENGINE: TOTAL[FAR_ENGINE]},
        )
        self.demands: dict[str, Demand] = {}
        self.jobs: dict[str, LocalJob] = {}
        self.arrived_jobs = 0
        self.closed_jobs = 0
        self.outages = 0  # of the further engine
        # Values are frozen, so an object that was checked once needs no second check.
        self.checked_ledger: Ledger | None = None
        self.checked_jobs: dict[str, LocalJob] = {}
        # A step that is listed several times is more likely.
        self.steps = (
            self.add_job,
            self.apply_for_job,
            self.apply_for_job,
            self.return_claim,
            self.start_job,
            self.act,
            self.act,
            self.receive_news,
            self.receive_news,
            self.receive_news,
            self.stop_job,
            self.retry_task,
            self.restart,
            self.close_job,
            self.close_job,
            self.lose_or_restore_engine,
        )

    def step(self) -> None:
        """Let some time pass and take a random step."""
        self.now += self.random.choice(STEP_LENGTHS)
        self.random.choice(self.steps)()

    # ------------------------------------------------------------ checks

    def check(self) -> None:
        """Check the sums of the ledger and of each job that has changed."""
        if self.ledger is not self.checked_ledger:
            self.checked_ledger = self.ledger
            self.check_ledger()
        for local in self.jobs.values():
            if local is not self.checked_jobs.get(local.id):
                self.checked_jobs[local.id] = local
                self.check_job(local)
            if launched_runs(local):
                assert self.ledger.claims[local.id].state is ClaimState.HELD

    def check_ledger(self) -> None:
        """Compare the sums of the claims with the remaining amounts of each engine."""
        claims = [claim.by_engine for claim in self.ledger.holders]
        claimed = sum(claims, AmountsByEngine())
        available = self.ledger.available
        for engine, engine_total in TOTAL:
            remaining = engine_total - self.ledger.held_by_engine(engine)
            assert engine_total - remaining == claimed[engine]
            assert smallest(claimed[engine]) >= 0
            assert smallest(remaining) >= 0
            is_away = engine in self.ledger.away
            assert available[engine] == (Amounts() if is_away else remaining)

    def check_job(self, local: LocalJob) -> None:
        """Compare the sums of the runs with the remaining amounts of their job."""
        assert local.pool is not None
        runs = launched_runs(local)
        remaining = domain_run.remaining(local)
        all_disk = sum(domain_run.amounts(run).disk for run in runs)
        for engine, claimed in local.pool.by_engine:
            used = sum_of(domain_run.amounts(run) for run in runs if run.engine == engine)
            # The disk of every engine is that of the node's storage.
            disk = all_disk if engine == MAIN_ENGINE else 0
            assert claimed - remaining[engine] == replace(
                used,
                disk=disk,
            )
            assert smallest(remaining[engine]) >= 0

    # ------------------------------------------------------------ claims

    def add_job(self) -> None:
        """Add a job with a random demand, unless the node has many."""
        if len(self.jobs) >= MOST_JOBS:
            return
        self.arrived_jobs += 1
        demand = self.random_demand()
        further = {FAR_ENGINE: EngineCapacity(TOTAL[FAR_ENGINE], 16)}
        pool = resources.pool(
            demand,
            a_capacity(total=TOTAL[MAIN_ENGINE], further=further),
        )
        spec = a_spec("a; b; c", job_id=f"job-{self.arrived_jobs}")
        self.demands[spec.job_id] = demand
        self.jobs[spec.job_id] = LocalJob(
            spec,
            "n1",
            JobStatus.READY,
            at(self.now),
            "d",
            pool=pool,
        )

    def random_demand(self) -> Demand:
        """Return a demand at one engine or both, which always fits."""
        choose = self.random.choice
        engines = choose(((MAIN_ENGINE,), (FAR_ENGINE,), (MAIN_ENGINE, FAR_ENGINE)))
        parts = []
        for engine in engines:
            cpu = choose((0.5, 1, 4, 8))
            memory = choose((0, 1, 10)) * GIB
            disk = choose((0, 9)) * GIB
            gpu = choose((0, 0, 1))
            parts.append(
                EngineDemand(
                    {"guest.0": Amounts.of(cpu, memory, disk, gpu=gpu)},
                    3,
                    engine,
                )
            )
        return Demand(tuple(parts), choose((1, 1, 3)))

    def random_job(self, *statuses: JobStatus) -> LocalJob | None:
        """Return one of the jobs in these states; None if there is none."""
        jobs = [local for local in self.jobs.values() if local.status in statuses]
        return self.random.choice(jobs) if jobs else None

    def claim(self, local: LocalJob) -> Claim:
        """Return the application of a job for the whole of its pool."""
        assert local.pool is not None
        moment = at(self.now)
        priority = self.random.choice((0, 0, 5))
        return Claim(
            local.id,
            local.pool.amounts,
            ClaimState.WAITING,
            moment,
            moment,
            priority,
            "n1",
            further=local.pool.further,
        )

    def apply(self, local: LocalJob) -> bool:
        """Apply for the job's claim; nothing of an engine that is away is given."""
        held_before = self.ledger.held_by_engine(FAR_ENGINE)
        self.ledger, is_held = resource_queue.apply(
            self.ledger,
            self.claim(local),
            at(self.now),
        )
        if self.ledger.away:
            assert self.ledger.held_by_engine(FAR_ENGINE) == held_before
        return is_held

    def apply_for_job(self) -> None:
        """Have a job apply, whether it holds its claim or not."""
        local = self.random_job(JobStatus.READY, JobStatus.RUNNING)
        if local is None:
            return
        # The same request may come twice.
        for _ in range(self.random.choice((1, 1, 2))):
            self.apply(local)

    def return_claim(self) -> None:
        """Return a claim because another node is busy; also one that does not exist, or twice."""
        local = self.random_job(JobStatus.READY)
        job_id = local.id if local and self.random.random() < 0.8 else "job-nobody"
        for _ in range(self.random.choice((1, 2))):
            before = self.ledger
            is_held = job_id in {claim.job_id for claim in before.holders}
            self.ledger = before.give_back(job_id)
            if not is_held:
                assert self.ledger.remaining == before.remaining
            assert self.ledger.ignored == before.ignored + (not is_held)

    def lose_or_restore_engine(self) -> None:
        """Have the further engine stop answering, or answer again."""
        if self.ledger.away:
            self.ledger = replace(
                self.ledger,
                away={},
            )
        else:
            self.outages += 1
            self.ledger = replace(
                self.ledger,
                away={FAR_ENGINE: "it has not answered"},
            )

    # ------------------------------------------------------------ jobs and their runs

    def update(self, job_id: str, event: messages.Event) -> None:
        """Record an event of a job."""
        self.jobs[job_id] = replace(
            machine.apply(self.jobs[job_id], event),
            notes=(),
        )

    def start_job(self) -> None:
        """Start a job with one to three tasks if it gets its claim."""
        local = self.random_job(JobStatus.READY)
        if local is None or not self.apply(local):
            return
        tasks = "abc"[: self.random.randint(1, 3)]
        runs = tuple(self.new_run(local, task, 0) for task in tasks)
        self.jobs[local.id] = replace(
            local,
            status=JobStatus.RUNNING,
            runs=runs,
        )

    def new_run(
        self,
        local: LocalJob,
        task: str,
        attempt: int,
    ) -> Run:
        """Return a run at one of the engines of its job."""
        part = self.random.choice(self.demands[local.id].parts)
        limits = {
            "cpu": part.per_task.cpu / 1000,
            "memory": float(part.per_task.memory),
            "disk": float(part.per_task.disk),
        }
        name = f"{local.id}-{task}-{attempt}"
        return a_run(
            task,
            limits=limits,
            run_id=name,
            name=name,
            task_id=name,
            attempt=attempt,
            engine=part.engine,
        )

    def act(self) -> None:
        """Carry out the due actions of a job; some fail."""
        local = self.random_job(JobStatus.RUNNING, JobStatus.FINISHED)
        if local is None:
            return
        local, actions = machine.step(local, at(self.now))
        self.jobs[local.id] = local
        for action in actions:
            if isinstance(action, messages.Launch):
                self.update(local.id, self.launch_result(action))
            elif isinstance(action, messages.Collect | messages.StopRun | messages.Tell):
                succeeds = self.random.random() < SUCCESS_RATE
                self.update(
                    local.id,
                    messages.Done(
                        action,
                        at(self.now),
                        final=succeeds,
                    ),
                )

    def launch_result(self, action: messages.Launch) -> messages.Event:
        """Return the result of a launch, which fails sometimes."""
        if self.random.random() < SUCCESS_RATE:
            return messages.Launched(action.run, at(self.now))
        return messages.LaunchFailed(
            action.run,
            Failure("ENGINE_DOWN"),
            at(self.now),
        )

    def receive_news(self) -> None:
        """Receive news of a run, up to three times."""
        local = self.random_job(JobStatus.RUNNING, JobStatus.FINISHED)
        if local is None or not local.runs:
            return
        run = self.random.choice(local.runs)
        status = self.random.choice((TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED))
        exit_code = self.random.choice((0, 1))
        event = self.random.choice(
            (
                messages.Reported(run.run_id, status, at(self.now)),
                messages.Exited(
                    run.run_id,
                    Exit(exit_code),
                    at(self.now),
                ),
                messages.Gone(run.run_id, at(self.now)),
            )
        )
        for _ in range(self.random.choice((1, 2, 3))):
            self.update(local.id, event)

    def stop_job(self) -> None:
        """Stop a job in any state; seldom, so that most jobs end by themselves."""
        if self.random.random() >= 0.3:
            return
        local = self.random_job(*JobStatus)
        if local is not None:
            ending = Ending(Outcome.STOPPED, at(self.now))
            self.update(
                local.id,
                messages.StopRequested(at(self.now), None, ending),
            )

    def retry_task(self) -> None:
        """Begin another attempt of a task whose attempts have all ended."""
        local = self.random_job(JobStatus.RUNNING)
        if local is None:
            return
        task = self.random.choice(local.runs).task_name
        attempts = [run for run in local.runs if run.task_name == task]
        have_ended = all(run.over for run in attempts)
        if have_ended and len(attempts) < MOST_ATTEMPTS:
            run = self.new_run(local, task, len(attempts))
            self.jobs[local.id] = replace(local, runs=(*local.runs, run))

    def restart(self) -> None:
        """Restart the process, which interrupts the actions of every job."""
        for job_id in self.jobs:
            self.update(job_id, messages.Restarted(at(self.now)))

    def close_job(self) -> None:
        """Close an ended job and return its claim."""
        local = self.random_job(JobStatus.FINISHED, JobStatus.REJECTED)
        if local is None or messages.Close() not in machine.plan(local, at(self.now)):
            return
        claims = {claim.job_id: claim.by_engine for claim in self.ledger.holders}
        returned = claims.get(local.id, AmountsByEngine())
        # A crash may make it happen again, which returns nothing.
        for _ in range(self.random.choice((1, 2))):
            before = self.ledger
            self.ledger = before.without(local.id)
            for engine, _total in TOTAL:
                held_before = before.held_by_engine(engine)
                assert held_before - self.ledger.held_by_engine(engine) == returned[engine]
            returned = AmountsByEngine()
        del self.jobs[local.id]
        self.closed_jobs += 1


def test_the_sums_are_right_after_each_of_ten_thousand_random_steps():
    node = RandomNode(20260101)

    for _ in range(10_000):
        node.step()
        node.check()

    assert node.closed_jobs > 100
    assert node.outages > 100
    assert node.ledger.ignored > 100

    for job_id in list(node.jobs):
        node.ledger = node.ledger.without(job_id)
    assert node.ledger.remaining == TOTAL[MAIN_ENGINE]
    assert node.ledger.held_by_engine(FAR_ENGINE) == Amounts()
    assert node.ledger.claims == {}
