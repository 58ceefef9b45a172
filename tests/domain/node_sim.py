"""A node as the world plays it: stricter than real ones, no second start of a task is forgiven."""

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from gateway.domain.approval import ApprovalReported
from gateway.domain.dag import downstream
from gateway.domain.job import Acceptance, Job
from gateway.domain.scheduling import machine, messages
from gateway.domain.scheduling.responses import exclude
from gateway.domain.spec import Failure, NodeId
from gateway.domain.states import JOB, TASK, JobStatus, TaskStatus, ended
from tests.builders import T0
from tests.domain.clockwork import Broken, Process
from tests.domain.plot import Fate

if TYPE_CHECKING:
    from tests.domain.world import World

DECIDES_WITHIN = 50.0
"""seconds after which a node counts silence as a refusal"""

Change = Callable[[Job], Job]

Tried = tuple[str, int]
"""a task and the number of its attempt"""

Answer = Callable[[datetime], list[Change]]
"""What a planner does with an answer; the argument is when it has it."""


class NodeSim:
    """A participating node: answers requests, and lives through the fates of its tasks."""

    def __init__(self, world: "World", node: NodeId) -> None:
        self.world = world
        self.plot = world.plot
        self.node = node
        self.created = False
        self.ended = False
        self.runs: dict[Tried, dict[str, TaskStatus]] = {}
        self.broken: dict[tuple[str, int, str], Failure] = {}
        self.starts: Counter[Tried] = Counter()
        self.forgot: Counter[Tried] = Counter()
        self.creates = 0
        self.holds = False
        self.started = False
        self.agreed: bool | None = None
        """what somebody here has decided, where somebody is asked"""
        self.stopping: set[Tried] = set()
        """attempts whose containers are being ended: what these say counts no more"""

    @property
    def tasks(self) -> dict[str, dict[str, TaskStatus]]:
        """The newest attempt of each task."""
        return {name: self.runs[name, attempt] for name, attempt in sorted(self.runs)}

    @property
    def failures(self) -> dict[str, Failure]:
        """Why which role of a task failed in its newest attempt."""
        return {
            f"{name}.{role}": self.broken[name, n, role] for name, n, role in sorted(self.broken)
        }

    def newest(self, name: str) -> int:
        return max((attempt for task, attempt in self.runs if task == name), default=-1)

    def over(self, name: str, attempt: int) -> bool:
        return all(ended(TASK, status) for status in self.runs.get((name, attempt), {}).values())

    def answer(self, request: messages.Request) -> Answer:
        match request:
            case messages.CreateAt():
                self.creates += 1
                if self.node in self.plot.refuses_create:
                    return self._no(request, "COMPONENT_UNKNOWN")
                if self.agreed is False:
                    return self._no(request, "APPROVAL_REJECTED")
                self._ask_somebody()
                self.created = True
                waits = self.node in self.plot.asks and self.agreed is None and not self.ended
                said = Acceptance(
                    self.node in self.plot.needs,
                    waits=waits,
                    within=DECIDES_WITHIN if waits else None,
                )
                return lambda at: [applying(messages.Accepted(request, at, said))]
            case messages.StopAt():
                if not self.created:
                    return self._no(request, "JOB_UNKNOWN")
                self._stop()
            case _ if not self.created:
                return self._no(request, "JOB_UNKNOWN")
            case messages.StopTaskAt():
                self._stop_task(request.task, request.attempt)
            case _ if self.ended and not isinstance(request, messages.PollTaskAt):
                return self._no(request, "JOB_ENDED")
            case messages.ReserveAt():
                self.world.check_agreed()
                if self._busy():
                    return self._no(request, "RESOURCES_BUSY")
                self.holds = True
            case messages.ReleaseAt():
                if self.started:
                    raise Broken(f"{self.node} is to return what it needs while the job runs there")
                self.holds = False
            case messages.StartAt():
                self.world.check_agreed()
                self._check_held()
                self.started = True
                if self.node in self.plot.refuses_start:
                    return self._no(request, "NOT_TODAY")
            case messages.StartTaskAt():
                return self._start_task(request)
            case messages.PollTaskAt():
                return self._poll(request)
        return lambda at: [applying(messages.Accepted(request, at))]

    def _ask_somebody(self) -> None:
        if self.node not in self.plot.asks or self.created:
            return
        after, answer = self.plot.asks[self.node]
        reason = "APPROVAL_TIMEOUT" if answer is None else "" if answer else "APPROVAL_REJECTED"
        self.world.works.call(
            lambda: self._decide(reason), DECIDES_WITHIN if answer is None else after
        )

    def _decide(self, reason: str) -> None:
        """Somebody decides, or time does; unless the job has been stopped meanwhile."""
        if self.ended:
            return
        self.agreed = not reason
        self.ended = self.ended or bool(reason)
        failure = Failure(reason, "somebody said no", self.node) if reason else None
        self.world.works.say(f"{self.node} decides {reason or 'yes'}")
        self._tell(ApprovalReported(self.node, T0, failure))

    def _tell(self, decision: ApprovalReported) -> None:
        """Tell the decision until it is heard, or was made without it."""
        job = self.world.job
        known = job.nodes[self.node].consent
        heard = known is not None and known.status is not JobStatus.PENDING
        if (
            not heard
            and not ended(JOB, job.status)
            and not (self.ended and decision.failure is None)
        ):
            self.world.push(self.node, decision)
            self.world.works.call(lambda: self._tell(decision), 3.0)

    def _busy(self) -> bool:
        now = self.world.works.now
        return any(node == self.node and begin <= now < end for node, begin, end in self.plot.busy)

    def _check_held(self) -> None:
        """A job starts only once every node of it holds what it needs there."""
        for there in self.world.with_whom():
            if there.node in self.plot.needs and not there.holds and not there.ended:
                raise Broken(
                    f"the job starts at {self.node} while {there.node} holds nothing for it"
                )

    def _no(self, request: messages.Request, reason: str) -> Answer:
        failure = Failure(reason, f"said {self.node}", self.node)
        return lambda at: [applying(messages.Refused(request, failure, at))]

    def _start_task(self, request: messages.StartTaskAt) -> Answer:
        name = request.task
        if (name, self.node) in self.plot.refuses_task:
            return self._no(request, "INPUT_MISSING")
        roles = self.plot.roles(name, self.node)
        if not roles:
            return lambda at: [lambda job: exclude(job, request, at)]
        tried = (name, request.attempt)
        if tried in self.runs:
            raise Broken(f"{tried} starts twice at {self.node}")
        if tried in self.stopping:
            raise Broken(f"{tried} starts at {self.node} after it was stopped there")
        if request.attempt < self.newest(name):
            raise Broken(f"{tried} starts at {self.node} after a later attempt")
        for there in self.world.nodes.values():
            if not there.over(name, request.attempt - 1):
                raise Broken(
                    f"{tried} starts at {self.node} while the last attempt still runs at {there.node}"
                )
        self.world.check_upstream(name, self.node)
        self.starts[tried] += 1
        self.runs[tried] = dict.fromkeys(roles, TaskStatus.READY)
        if (name, self.node) in self.plot.forgets and not self.forgot[tried]:
            self.world.works.call(
                lambda: self._forget(tried), self.world.works.random.uniform(0.0, 5.0)
            )
        else:
            for role in roles:
                fate = self.plot.fate(name, self.node, role)
                self.world.works.spawn(self._live(tried, role, fate))
        return lambda at: [applying(messages.Accepted(request, at))]

    def _forget(self, tried: Tried) -> None:
        if not self.ended:
            self.world.works.say(f"{self.node} forgets {tried}")
            self.forgot[tried] += 1
            del self.runs[tried]

    def _poll(self, request: messages.PollTaskAt) -> Answer:
        known = self.runs.get((request.task, request.attempt))
        if known is None:
            return lambda at: [applying(messages.TaskUnknown(request, at))]
        news = [(role, known[role]) for role in request.roles]
        task_id = self.world.task_id(request.task, request.attempt)

        def heard(at: datetime) -> list[Change]:
            events = [
                messages.TaskReported(
                    task_id,
                    self.node,
                    role,
                    status,
                    at,
                    self.broken.get((request.task, request.attempt, role)),
                )
                for role, status in news
            ]
            return [*map(applying, events), applying(messages.Accepted(request, at))]

        return heard

    def _live(
        self,
        tried: Tried,
        role: str,
        fate: Fate,
    ) -> Process:
        yield fate.runs
        self._become(tried, role, TaskStatus.RUNNING)
        yield max(fate.ends - fate.runs, 0.0)
        status = TaskStatus.FAILED if tried[1] < fate.fails else fate.status
        self._become(tried, role, status, "BROKE" if status is TaskStatus.FAILED else "")

    def _become(
        self,
        tried: Tried,
        role: str,
        status: TaskStatus,
        reason: str = "",
    ) -> None:
        name, attempt = tried
        roles = self.runs[tried]
        if ended(TASK, roles[role]) or (tried in self.stopping and reason != "STOPPED"):
            return
        roles[role] = status
        self.world.works.say(f"{self.node} {tried} {role} is {status} {reason}")
        if reason:
            self.broken[name, attempt, role] = Failure(
                reason, "at the node", self.node, role, name, 1
            )
        if self.node in self.plot.pushes:
            failure = self.broken.get((name, attempt, role))
            task_id = self.world.task_id(name, attempt)
            self.world.push(
                self.node,
                messages.TaskReported(task_id, self.node, role, status, T0, failure, pushed=True),
            )

    def _stop(self) -> None:
        self.ended = True
        self.holds = False
        for tried in self.runs:
            self._kill(tried)

    def _stop_task(self, name: str, attempt: int) -> None:
        """End a task and what follows it, a while later as containers do; one that succeeded is left alone."""
        if self.newest(name) > attempt:
            raise Broken(
                f"a stop of attempt {attempt} of {name} arrives at {self.node} after the next has begun"
            )
        if all(
            status is TaskStatus.SUCCESS for status in self.tasks.get(name, {"": None}).values()
        ):
            return
        along = downstream(self.plot.spec.dag, [name]) - {name}
        ending = {(name, attempt)}
        ending |= {
            (t, max(self.newest(t), 0)) for t in along if t in self.tasks or t in self.world.stopped
        }
        for tried in sorted(ending - self.stopping):
            self.stopping.add(tried)
            delay = self.world.works.random.uniform(0.0, 5.0)
            self.world.works.call(lambda tried=tried: self._kill(tried), delay)

    def _kill(self, tried: Tried) -> None:
        for role in self.runs.get(tried, ()):
            self._become(tried, role, TaskStatus.FAILED, "STOPPED")


def applying(event: messages.Event) -> Change:
    return lambda job: machine.apply(job, event)
