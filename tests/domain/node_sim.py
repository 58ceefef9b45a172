"""A participating node of a simulated world.

It is stricter than a real node: a second start of the same attempt of a task breaks the simulation.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.domain.approval import ApprovalReported
from gateway.domain.dag import downstream
from gateway.domain.job import Acceptance
from gateway.domain.scheduling import messages
from gateway.domain.spec import Failure, NodeId
from gateway.domain.states import JOB, TASK, JobStatus, TaskStatus, ended
from tests.builders import T0
from tests.domain.clockwork import Activity, require

if TYPE_CHECKING:
    from tests.domain.world import World

# Seconds after which a node without a person's decision refuses the job.
DECISION_DEADLINE = 50.0

# Seconds after which a node repeats a decision that the scheduling node does not have yet.
DECISION_REPEAT = 3.0

# Seconds that a container takes at most to lose its record, or to end after a stop.
SLOWEST_CONTAINER = 5.0

JOB_STARTERS = (
    messages.ReserveAt,
    messages.ReleaseAt,
    messages.StartAt,
    messages.StartTaskAt,
)


class Attempt(NamedTuple):
    """One of the attempts of a task, counted from 0."""

    task: str
    number: int


@dataclass(frozen=True)
class NoRole:
    """The node does not start the task because it plays no role in it."""

    request: messages.StartTaskAt
    at: datetime


# The events in a node's answer to a request. They bear the moment `T0` until the answer arrives.
Answer = list[messages.Event | NoRole]


class SimulatedNode:
    """Answers requests as the plot says and lives through the fates of its tasks."""

    def __init__(self, world: "World", node: NodeId) -> None:
        self.world = world
        self.plot = world.plot
        self.clockwork = world.clockwork
        self.node = node

        # Requests of a created job.
        self._handlers: Mapping[type[messages.Request], Callable[[Any], Answer]] = {
            messages.ReserveAt: self._reserve,
            messages.ReleaseAt: self._release,
            messages.StartAt: self._start,
            messages.StartTaskAt: self._start_task,
            messages.PollTaskAt: self._poll,
            messages.StopTaskAt: self._stop_task,
            messages.StopAt: self._stop,
        }

        self.create_requests = 0
        self.created = False
        self.started = False
        self.ended = False
        self.holds_resources = False
        self.approved: bool | None = None  # the decision of a person; None: there is none yet

        self.statuses: dict[Attempt, dict[str, TaskStatus]] = {}  # by role
        self.attempt_failures: dict[tuple[Attempt, str], Failure] = {}  # by attempt and role
        self.starts: Counter[Attempt] = Counter()
        self.forgotten: Counter[Attempt] = Counter()
        self.stopping: set[Attempt] = set()  # only the end of their containers counts now

    @property
    def tasks(self) -> dict[str, dict[str, TaskStatus]]:
        """The states by role of the newest attempt of each task."""
        return {attempt.task: self.statuses[attempt] for attempt in sorted(self.statuses)}

    @property
    def failures(self) -> dict[str, Failure]:
        """The failures of the newest attempts by ``task.role``."""
        return {
            f"{attempt.task}.{role}": self.attempt_failures[attempt, role]
            for attempt, role in sorted(self.attempt_failures)
        }

    def newest_attempt(self, task: str) -> int:
        """Return the number of the newest attempt; -1 without any."""
        numbers = [attempt.number for attempt in self.statuses if attempt.task == task]
        return max(numbers, default=-1)

    def has_ended(self, attempt: Attempt) -> bool:
        """True if every role of the attempt has ended here, or none has begun."""
        statuses = self.statuses.get(attempt, {})
        return all(ended(TASK, status) for status in statuses.values())

    # ------------------------------------------------------------ requests

    def receive(self, request: messages.Request) -> Answer:
        """Carry out a request and return the answer."""
        if isinstance(request, messages.CreateAt):
            return self._create(request)
        if not self.created:
            return self._refuse(request, "JOB_UNKNOWN")
        if self.ended and isinstance(request, JOB_STARTERS):
            return self._refuse(request, "JOB_ENDED")
        return self._handlers[type(request)](request)

    def _accept(
        self,
        request: messages.Request,
        acceptance: Acceptance | None = None,
    ) -> Answer:
        """Return an acceptance; ``acceptance`` has the conditions of a created job."""
        return [messages.Accepted(request, T0, acceptance)]

    def _refuse(self, request: messages.Request, reason: str) -> Answer:
        """Return a refusal for a reason."""
        failure = Failure(reason, f"said {self.node}", self.node)
        return [messages.Refused(request, failure, T0)]

    def _create(self, request: messages.CreateAt) -> Answer:
        """Take part in the job, unless the plot or a person refuses it."""
        self.create_requests += 1
        if self.node in self.plot.refuses_create:
            return self._refuse(request, "COMPONENT_UNKNOWN")
        if self.approved is False:
            return self._refuse(request, "APPROVAL_REJECTED")
        if not self.created:
            self._await_decision()
        self.created = True
        needs_resources = self.node in self.plot.needs_resources
        acceptance = Acceptance(needs_resources, waits=self._waits_for_decision())
        if acceptance.waits:
            acceptance = replace(acceptance, within=DECISION_DEADLINE)
        return self._accept(request, acceptance)

    def _waits_for_decision(self) -> bool:
        """True if a person has still to decide on the job."""
        needs_approval = self.node in self.plot.approvals
        return needs_approval and self.approved is None and not self.ended

    def _reserve(self, request: messages.ReserveAt) -> Answer:
        """Reserve resources, unless the node is busy."""
        self.world.check_approvals()
        if self._is_busy():
            return self._refuse(request, "RESOURCES_BUSY")
        self.holds_resources = True
        return self._accept(request)

    def _is_busy(self) -> bool:
        """True if the plot has no room for the job now."""
        now = self.clockwork.now
        return any(node == self.node and begin <= now < end for node, begin, end in self.plot.busy)

    def _release(self, request: messages.ReleaseAt) -> Answer:
        """Return the resources of a job that has not started."""
        require(not self.started, f"{self.node} has to release its resources of a running job")
        self.holds_resources = False
        return self._accept(request)

    def _start(self, request: messages.StartAt) -> Answer:
        """Start the job, unless the plot refuses it."""
        self.world.check_approvals()
        self._check_reservations()
        self.started = True
        if self.node in self.plot.refuses_start:
            return self._refuse(request, "NOT_TODAY")
        return self._accept(request)

    def _check_reservations(self) -> None:
        """Check that every node with a reservation holds it when the job starts."""
        for node in self.world.participating_nodes():
            needs_resources = node.node in self.plot.needs_resources and not node.ended
            require(
                node.holds_resources or not needs_resources,
                f"the job starts at {self.node} while {node.node} holds nothing for it",
            )

    def _stop(self, request: messages.StopAt) -> Answer:
        """End the job and every container of it."""
        self.ended = True
        self.holds_resources = False
        for attempt in self.statuses:
            self._kill(attempt)
        return self._accept(request)

    # ------------------------------------------------------------ approval

    def _await_decision(self) -> None:
        """Have a person decide as the plot says, or the deadline pass; nothing without a person."""
        if self.node not in self.plot.approvals:
            return
        seconds, decision = self.plot.approvals[self.node]
        if decision is None:
            self.clockwork.call_later(DECISION_DEADLINE, self._decide, "APPROVAL_TIMEOUT")
        elif decision:
            self.clockwork.call_later(seconds, self._decide, "")
        else:
            self.clockwork.call_later(seconds, self._decide, "APPROVAL_REJECTED")

    def _decide(self, refusal: str) -> None:
        """Approve the job, or refuse it for a reason, unless it has been stopped already."""
        if self.ended:
            return
        self.approved = not refusal
        self.ended = bool(refusal)
        failure = Failure(refusal, "somebody said no", self.node) if refusal else None
        self.clockwork.log(f"{self.node} decides {refusal or 'yes'}")
        self._report_decision(ApprovalReported(self.node, T0, failure))

    def _report_decision(self, decision: ApprovalReported) -> None:
        """Push the decision until the scheduling node has it or needs it no more."""
        job = self.world.job
        consent = job.nodes[self.node].consent
        is_recorded = consent is not None and consent.status is not JobStatus.PENDING
        is_outdated = self.ended and decision.failure is None
        if is_recorded or is_outdated or ended(JOB, job.status):
            return
        self.world.push(self.node, decision)
        self.clockwork.call_later(DECISION_REPEAT, self._report_decision, decision)

    # ------------------------------------------------------------ tasks

    def _start_task(self, request: messages.StartTaskAt) -> Answer:
        """Start an attempt of a task and return the answer."""
        task = request.task
        if (task, self.node) in self.plot.refuses_task:
            return self._refuse(request, "INPUT_MISSING")
        roles = self.plot.played_roles(task, self.node)
        if not roles:
            return [NoRole(request, T0)]
        attempt = Attempt(task, request.attempt)
        self._check_start(attempt)
        self.starts[attempt] += 1
        self.statuses[attempt] = dict.fromkeys(roles, TaskStatus.READY)
        forgets = (task, self.node) in self.plot.forgets_task and not self.forgotten[attempt]
        if forgets:
            delay = self.clockwork.random.uniform(0.0, SLOWEST_CONTAINER)
            self.clockwork.call_later(delay, self._forget, attempt)
        else:
            for role in roles:
                self.clockwork.spawn(self._live(attempt, role))
        return self._accept(request)

    def _check_start(self, attempt: Attempt) -> None:
        """Check that an attempt may start: no other one runs, and every upstream task succeeded."""
        start = f"{attempt} starts at {self.node}"
        require(attempt not in self.statuses, f"{start} twice")
        require(attempt not in self.stopping, f"{start} after it was stopped there")
        newest = self.newest_attempt(attempt.task)
        require(attempt.number >= newest, f"{start} after a later attempt")
        previous = Attempt(attempt.task, attempt.number - 1)
        for node in self.world.nodes.values():
            require(node.has_ended(previous), f"{start} while {previous} runs at {node.node}")
        self.world.check_upstream(attempt.task, self.node)

    def _forget(self, attempt: Attempt) -> None:
        """Lose the record of an attempt."""
        if self.ended:
            return
        self.clockwork.log(f"{self.node} forgets {attempt}")
        self.forgotten[attempt] += 1
        del self.statuses[attempt]

    def _poll(self, request: messages.PollTaskAt) -> Answer:
        """Report the roles of an attempt; the answer says so if it is unknown."""
        attempt = Attempt(request.task, request.attempt)
        statuses = self.statuses.get(attempt)
        if statuses is None:
            return [messages.TaskUnknown(request, T0)]
        reports = [self._report(attempt, role, statuses[role]) for role in request.roles]
        return [*reports, messages.Accepted(request, T0)]

    def _report(
        self,
        attempt: Attempt,
        role: str,
        status: TaskStatus,
        *,
        pushed: bool = False,
    ) -> messages.TaskReported:
        """Return a report of a role, with its failure if it has one."""
        return messages.TaskReported(
            self.world.task_id(attempt),
            self.node,
            role,
            status,
            T0,
            self.attempt_failures.get((attempt, role)),
            pushed=pushed,
        )

    def _live(self, attempt: Attempt, role: str) -> Activity:
        """Go through the states of a role as its fate says."""
        fate = self.plot.fate(attempt.task, self.node, role)
        yield fate.runs_after
        self._change_status(attempt, role, TaskStatus.RUNNING)
        yield max(fate.ends_after - fate.runs_after, 0.0)
        fails = attempt.number < fate.failing_attempts
        status = TaskStatus.FAILED if fails else fate.final_status
        reason = "BROKE" if status is TaskStatus.FAILED else ""
        self._change_status(attempt, role, status, reason)

    def _change_status(
        self,
        attempt: Attempt,
        role: str,
        status: TaskStatus,
        reason: str = "",
    ) -> None:
        """Give a role another state; ``reason`` is that of its failure."""
        statuses = self.statuses[attempt]
        is_stopping = attempt in self.stopping and reason != "STOPPED"
        if is_stopping or ended(TASK, statuses[role]):
            return
        statuses[role] = status
        self.clockwork.log(f"{self.node} {attempt} {role} is {status} {reason}")
        if reason:
            failure = Failure(
                reason,
                "at the node",
                self.node,
                role,
                attempt.task,
                1,
            )
            self.attempt_failures[attempt, role] = failure
        if self.node in self.plot.pushes:
            self.world.push(
                self.node,
                self._report(
                    attempt,
                    role,
                    status,
                    pushed=True,
                ),
            )

    def _stop_task(self, request: messages.StopTaskAt) -> Answer:
        """Stop an attempt, and the tasks that follow it, unless it has succeeded here."""
        attempt = Attempt(request.task, request.attempt)
        newest = self.newest_attempt(attempt.task)
        require(
            newest <= attempt.number, f"a stop of {attempt} arrives after attempt {newest} began"
        )
        statuses = set(self.tasks.get(attempt.task, {}).values())
        if statuses != {TaskStatus.SUCCESS}:
            attempts = {attempt, *self._following_attempts(attempt.task)}
            for stopped in sorted(attempts - self.stopping):
                self._stop_attempt(stopped)
        return self._accept(request)

    def _following_attempts(self, task: str) -> set[Attempt]:
        """Return the newest attempts of the tasks downstream that began here or were stopped."""
        following = downstream(self.plot.spec.dag, [task]) - {task}
        relevant = following & (self.tasks.keys() | self.world.stopped_tasks)
        return {Attempt(name, max(self.newest_attempt(name), 0)) for name in relevant}

    def _stop_attempt(self, attempt: Attempt) -> None:
        """End the containers of an attempt, which takes them a while."""
        self.stopping.add(attempt)
        delay = self.clockwork.random.uniform(0.0, SLOWEST_CONTAINER)
        self.clockwork.call_later(delay, self._kill, attempt)

    def _kill(self, attempt: Attempt) -> None:
        """End the containers of an attempt now."""
        for role in self.statuses.get(attempt, ()):
            self._change_status(attempt, role, TaskStatus.FAILED, "STOPPED")
