"""A world in which the scheduling rules are played: nodes, a network that fails, planners that crash.

A `Plot` says what will happen; `World(plot).run()` plays it and raises `Broken` at the first thing that must
never happen. Planners do what the scheduler's shell does: load, decide, store (the claim), call, record; they
may die at every pause between. Nodes are stricter than real ones: no second start of a task is forgiven.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from gateway.domain import quorum, retries
from gateway.domain.approval import ApprovalReported
from gateway.domain.dag import downstream
from gateway.domain.job import Job, Task
from gateway.domain.scheduling import machine, messages
from gateway.domain.spec import Failure, NodeId
from gateway.domain.states import JOB, TASK, Outcome, TaskStatus, ended, may
from gateway.domain.timeouts import Timing
from tests.builders import T0
from tests.domain.clockwork import Broken, Life, Process, Shell
from tests.domain.node_sim import Answer, Change, NodeSim, applying
from tests.domain.plot import Outage, Plot

CLIENT_DEADLINE = 10.0
"""A client waits this long for an answer; a request arrives within it or never."""


class World(Shell[Job]):
    """Plays a plot."""

    def __init__(self, plot: Plot, timing: Timing = Timing()) -> None:
        super().__init__(machine, plot.job(), timing, plot.seed)
        self.plot = plot
        self.nodes = {node: NodeSim(self, node) for node in plot.spec.nodes}
        self.calls: Counter[messages.Request] = Counter()
        self.troubled: set[type[messages.Request]] = set()
        self.stopped: set[str] = set()
        """tasks of which a stop was taken in before they were over"""
        self.lives = 0
        self.ended_at = 0.0

    @property
    def job(self) -> Job:
        return self.store.value

    def task_id(self, name: str, attempt: int) -> str:
        return retries.following(self.job.id, name, attempt, "") if attempt else f"task_{name}"

    @property
    def trouble(self) -> bool:
        return self.works.now < self.plot.trouble_until

    def run(self, seconds: float = 6000.0) -> Job:
        """Play the plot to its end and return the job. Raises `Broken`."""
        try:
            for _ in range(self.plot.planners):
                self._begin_planner()
            if self.plot.stop_at is not None:
                self.works.call(
                    lambda: self._ask(messages.StopRequested("n1", T0)), self.plot.stop_at
                )
            for when, task in self.plot.stop_tasks:
                self.works.call(
                    lambda task=task: self._ask(messages.TaskStopRequested(task, "n1", T0)), when
                )
            if self.plot.suspended is not None:
                begin, end = self.plot.suspended
                self.works.call(lambda: self._ask(messages.SuspendRequested("n1", T0)), begin)
                for again in (
                    end,
                    end + 100.0,
                ):  # the first may have been asked late, of a planner that is new
                    self.works.call(
                        lambda: self._ask(messages.SuspendRequested("n1", T0, on=False)), again
                    )
            self.works.run(seconds)
            self._check_end()
        except Exception as error:
            error.add_note("\n".join(self.works.story))
            raise
        return self.job

    # ------------------------------------------------------------ planners

    def _begin_planner(self) -> None:
        self.lives += 1
        dies_at = self.plot.dies_at if self.lives == 1 else None
        life = Life(f"planner {self.lives}", self.plot.crash, self.plot.trouble_until, dies_at)
        life.on_death = lambda: self._bury(life)
        self.alive.append(life)
        self.wake()

    def _bury(self, life: Life) -> None:
        self.alive.remove(life)
        self.works.call(self._begin_planner, self.works.random.uniform(0.0, 20.0))

    def _record(
        self,
        life: Life,
        changes: Iterable[Change],
        stops: str = "",
    ) -> Process:
        """Do as the shell does, then make the calls."""
        old, job, requests = yield from self.stored(changes)
        if stops and old.ending is None and not ended(TASK, old.tasks[stops].status):
            self.stopped |= downstream(old.spec.dag, [stops])
        self.wake()
        for request in requests:
            if (
                isinstance(request, messages.StartTaskAt)
                and job.suspended
                and not old.tasks[request.task].begun
            ):
                raise Broken(f"{request} while the job is suspended")
            if isinstance(request, messages.StartTaskAt) and request.task in self.stopped:
                raise Broken(f"{request} after its stop was asked")
            self.works.spawn(self._call(life, request), life, self.works.pause(1.0))

    def _call(self, life: Life, request: messages.Request) -> Process:
        self.calls[request] += 1
        self.works.say(f"{life.name} calls {request}")
        news, wait = self._send(request)
        yield wait
        changes = news(self.works.clock())
        yield self.works.pause(0.5)
        if self.trouble and self.works.chance(self.plot.stalls):
            self.works.say(f"{life.name} stalls with the answer to {request}")
            yield self.works.random.uniform(0.0, 30.0)
        yield from self._record(life, changes)

    def _ask(
        self, stop: messages.StopRequested | messages.TaskStopRequested | messages.SuspendRequested
    ) -> None:
        """A user's stop: repeated until a planner lives that takes it in."""
        if not self.alive:
            self.works.call(lambda: self._ask(stop), 1.0)
            return
        self.works.say(f"somebody asks: {stop}")
        # whoever asks waits for the answer, so this record is not lost to a crash
        task = stop.task if isinstance(stop, messages.TaskStopRequested) else ""
        change = applying(replace(stop, at=self.works.clock()))
        self.works.spawn(self._record(self.alive[0], [change], stops=task))

    # ------------------------------------------------------------ the network

    def _out(self, node: NodeId) -> Outage | None:
        now = self.works.now
        return next(
            (o for o in self.plot.outages if o.node == node and o.begins <= now < o.ends), None
        )

    def _send(self, request: messages.Request) -> tuple[Answer, float]:
        """Send a request on its way; return what the caller will know, and after how long."""
        random = self.works.random
        if outage := self._out(request.node):
            self.troubled.add(type(request))
            if outage.hangs:
                return self._lost(request, delivered=True), CLIENT_DEADLINE
            return self._lost(request, delivered=False), 0.01
        there, back = random.uniform(0.0, 0.1), random.uniform(0.0, 0.1)
        kind = "well"
        if self.trouble and self.works.chance(self.plot.trouble):
            self.troubled.add(type(request))
            kind = random.choice(("refused", "dropped", "no answer", "cut", "slow"))
            there, back = random.uniform(0.0, CLIENT_DEADLINE), random.uniform(0.0, CLIENT_DEADLINE)
            self.works.say(f"  … {kind}")
        if kind == "refused":
            return self._lost(request, delivered=False), 0.01
        if kind == "dropped" and isinstance(request, messages.StopAt) and random.random() < 0.5:
            page = messages.Refused(request, Failure("NO_ENVELOPE", "<html>", request.node), T0)
            return lambda at: [applying(replace(page, at=at))], there
        if kind == "dropped":
            return self._lost(request, delivered=True), CLIENT_DEADLINE
        answer: list[Answer] = []
        self.works.call(lambda: answer.append(self._arrive(request)), there)
        if kind == "no answer" or there + back >= CLIENT_DEADLINE:
            return self._lost(request, delivered=True), CLIENT_DEADLINE
        if kind == "cut":
            return self._lost(request, delivered=True), random.uniform(0.0, there + back)
        return (lambda at: answer[0](at)), there + back

    def _arrive(self, request: messages.Request) -> Answer:
        self.works.say(f"  {request} arrives")
        return self.nodes[request.node].answer(request)

    @staticmethod
    def _lost(request: messages.Request, *, delivered: bool) -> Answer:
        return lambda at: [applying(messages.Lost(request, at, delivered, "no answer"))]

    def push(self, node: NodeId, news: messages.TaskReported | ApprovalReported) -> None:
        """Bring a node's own report to whichever planner lives; it may get lost, late or twice."""
        copies = 1
        delay = self.works.random.uniform(0.0, 0.2)
        if self._out(node):
            return
        if self.trouble and self.works.chance(self.plot.trouble):
            copies = self.works.random.choice((0, 2))
            delay = self.works.random.uniform(0.0, 30.0)
        for i in range(copies):
            self.works.call(lambda: self._pushed(news), delay * (i + 1))

    def _pushed(self, news: messages.TaskReported | ApprovalReported) -> None:
        if self.alive:
            life = self.works.random.choice(self.alive)
            self.works.spawn(
                self._record(life, [applying(replace(news, at=self.works.clock()))]), life
            )

    # ------------------------------------------------------------ what must always hold

    def with_whom(self) -> list[NodeSim]:
        """Return the nodes that the job does not do without."""
        return [
            there for there in self.nodes.values() if self.job.nodes[there.node].excluded is None
        ]

    def check_agreed(self) -> None:
        for there in self.with_whom():
            if there.node in self.plot.asks and not there.agreed:
                raise Broken(f"the job begins although nobody at {there.node} has agreed")

    def check_upstream(self, name: str, node: NodeId) -> None:
        for upstream in self.plot.spec.dag[name].upstream:
            for there in self.with_whom():
                for role in self.plot.roles(upstream, there.node):
                    if there.tasks.get(upstream, {}).get(role) is not TaskStatus.SUCCESS:
                        raise Broken(
                            f"{name} starts at {node} before {upstream} is done at {there.node}"
                        )

    def _check_move(self, old: Job, new: Job) -> None:
        if old.status is not new.status and not may(JOB, old.status, new.status):
            raise Broken(f"the job goes from {old.status} to {new.status}")
        for name, task in new.tasks.items():
            before = old.tasks[name].status
            if before is not task.status and not may(TASK, before, task.status):
                raise Broken(f"{name} goes from {before} to {task.status}")
            if task.attempt != old.tasks[name].attempt:
                self._check_attempt(old.tasks[name], task)
                continue
            for node, part in task.nodes.items():
                for role, status in part.roles.items():
                    was = old.tasks[name].nodes[node].roles[role]
                    if was is not status and not may(TASK, was, status):
                        raise Broken(f"{name} of {role} at {node} goes from {was} to {status}")
        if new.progress < old.progress:
            raise Broken(f"progress falls from {old.progress} to {new.progress}")
        if (new.progress == 100) is not (new.outcome is Outcome.SUCCEEDED):
            raise Broken(f"progress is {new.progress} and the outcome {new.outcome}")
        if (new.outcome is not None) is not ended(JOB, new.status):
            raise Broken(f"{new.status} with outcome {new.outcome}")
        if old.ending is not None and new.ending != old.ending:
            raise Broken("how the job ends is decided twice")
        if ended(JOB, old.status):
            if (new.status, new.outcome, new.ended_at) != (old.status, old.outcome, old.ended_at):
                raise Broken("the job changes after its end")
            if {n: t.status for n, t in new.tasks.items()} != {
                n: t.status for n, t in old.tasks.items()
            }:
                raise Broken("a task changes after the end of its job")
        elif ended(JOB, new.status):
            self.ended_at = self.works.now
            self.works.say(f"the job is {new.status}, {new.outcome}")

    def _check_attempt(self, old: Task, new: Task) -> None:
        if (
            new.attempt != old.attempt + 1
            or new.attempt > self.plot.spec.settings.time_limits.of(new.name).retries
        ):
            raise Broken(f"attempt {new.attempt} of {new.name} follows {old.attempt}")
        if [past.number for past in new.attempts] != list(
            range(new.attempt)
        ) or new.task_id == old.task_id:
            raise Broken(f"{new.name} forgets what it was: {new.attempts}")

    def _check_end(self) -> None:
        job, plot = self.job, self.plot
        if not ended(JOB, job.status) or job.outcome is None or job.ending is None:
            raise Broken(f"nothing is left to do and the job is {job.status}")
        for there in self.nodes.values():
            if there.created and not there.ended:
                raise Broken(f"{there.node} still holds the job")
            if there.holds:
                raise Broken(f"{there.node} still holds what the job needed")
            for tried, count in there.starts.items():
                if count > 1 + there.forgot[tried]:
                    raise Broken(f"{tried} was started {count} times at {there.node}")
        gone = [n.node for n in job.nodes.values() if n.excluded]
        if gone and not quorum.can_spare(plot.spec, gone):
            raise Broken(f"the job went on without {gone}")
        _check_outcome(self, job.outcome, job.ending.failure)
        for name, task in job.tasks.items():
            _check_task(self, name, task)
        for request in self.calls:
            if isinstance(request, messages.TaskRequest):
                name = request.task
                if name not in plot.unknown and not plot.roles(name, request.node):
                    raise Broken(f"{request} although the node has no role in {name}")
        if not (plot.trouble or plot.crash or plot.stalls or plot.outages or plot.dies_at):
            may_repeat: tuple[type, ...] = (messages.StartTaskAt, messages.PollTaskAt)
            may_repeat += (messages.ReserveAt, messages.ReleaseAt) if plot.busy else ()
            may_repeat += (
                (messages.StartAt,) if gone else ()
            )  # the others are told to start once more
            if often := [
                r for r, n in self.calls.items() if n > 1 and not isinstance(r, may_repeat)
            ]:
                raise Broken(f"called more than once although nothing went wrong: {often}")


def _done(world: World, name: str) -> bool:
    """Whether every role of the task has succeeded at its node."""
    return all(
        there.tasks.get(name, {}).get(role) is TaskStatus.SUCCESS
        for there in world.with_whom()
        for role in world.plot.roles(name, there.node)
    )


def _check_task(
    world: World,
    name: str,
    task: Task,
) -> None:
    """Compare a task of an ended job with its nodes: nothing of it runs, and nobody believes that it does."""
    if task.status is TaskStatus.RUNNING:
        raise Broken(f"{name} is RUNNING for ever")
    if task.status is TaskStatus.FAILED and task.failure is None:
        raise Broken(f"{name} has failed for no reason")
    if (
        task.ending is not None
        and task.status is TaskStatus.FAILED
        and task.failure != task.ending.failure
    ):
        raise Broken(f"{name} was stopped, and has failed because of {task.failure}")
    for node, part in task.nodes.items():
        there = world.nodes[node].tasks.get(name, {})
        for role, status in part.roles.items():
            if status is TaskStatus.SUCCESS and there.get(role) is not TaskStatus.SUCCESS:
                raise Broken(f"{name} of {role} is {status}, and {there.get(role)} at {node}")
            if task.status is TaskStatus.FAILED and not ended(TASK, status):
                raise Broken(f"{name} has failed, and is {status} of {role} at {node}")
        if running := [role for role, status in there.items() if not ended(TASK, status)]:
            raise Broken(f"{name} of {running} still runs at {node}")


def _check_outcome(
    world: World,
    outcome: Outcome,
    failure: Failure | None,
) -> None:
    """Compare how the job ended with what the nodes did."""
    plot = world.plot
    done = all(_done(world, n.name) for n in plot.spec.dag.nodes)
    long_out = {
        o.node for o in plot.outages if o.ends - o.begins > world.timing.unreachable_limit - 30.0
    }
    if outcome is Outcome.SUCCEEDED:
        if not done or failure is not None:
            raise Broken(f"a success, but {failure or 'not every task succeeded at its node'}")
        return
    if failure is None:
        raise Broken(f"{outcome} for no reason")
    if failure.task in world.stopped:
        if outcome is not Outcome.STOPPED:
            raise Broken(f"{outcome} because of {failure}, which was asked to stop")
        left = [
            n.name
            for n in plot.spec.dag.nodes
            if n.name not in world.stopped and not _done(world, n.name)
        ]
        if left:
            raise Broken(f"the job was stopped for its stopped tasks while {left} could go on")
        return
    there = world.nodes.get(failure.node)
    match outcome, failure.reason:
        case Outcome.STOPPED, "STOPPED":
            right = plot.stop_at is not None
        case (
            Outcome.FAILED,
            "NO_ROLE_HERE",
        ):  # nobody who schedules knew the roles, and who has one was left out
            with_role = [n.node for n in world.with_whom() if plot.roles(failure.task, n.node)]
            right = failure.task in plot.unknown and not with_role
        case Outcome.REJECTED, "COMPONENT_UNKNOWN":
            right = failure.node in plot.refuses_create
        case Outcome.REJECTED, "APPROVAL_REJECTED":
            right = plot.asks.get(failure.node, (0.0, None))[1] is False
        case Outcome.REJECTED, "APPROVAL_TIMEOUT":
            right = failure.node in plot.asks
        case Outcome.REJECTED, "PEER_UNREACHABLE":
            right = messages.CreateAt in world.troubled
        case Outcome.FAILED, "FAILED_TO_RUN":
            right = failure.node in plot.refuses_start or bool(
                {messages.StartAt, messages.ReserveAt} & set(world.troubled)
            )
        case Outcome.FAILED, "INPUT_MISSING":
            right = (failure.task, failure.node) in plot.refuses_task
        case Outcome.FAILED, "BROKE":
            right = (
                there is not None
                and there.failures.get(f"{failure.task}.{failure.role}") == failure
            )
            right = (
                right
                and world.job.tasks[failure.task].attempt
                == plot.spec.settings.time_limits.of(failure.task).retries
            )
        case Outcome.FAILED, "TIMEOUT":
            limits = plot.spec.settings.time_limits
            right = (
                limits.of(failure.task).timeout if failure.task else limits.job_timeout
            ) is not None
        case Outcome.FAILED, "UNREACHABLE":
            right = failure.node in long_out
        case _:
            right = False
    if not right:
        raise Broken(f"{outcome} because of {failure}, which is not what happened")
