"""A simulated world for the scheduling rules: nodes, a network that fails, planners that crash.

A `Plot` says what happens. `World(plot).run()` plays it and raises `Broken` at the first violation
of a rule. Planners work as the scheduling node's shell does: load, decide, store (the claim), call,
record. They may die at every pause in between.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gateway.domain import task_ids
from gateway.domain.approval import ApprovalReported
from gateway.domain.dag import downstream
from gateway.domain.job import Job
from gateway.domain.scheduling import machine, messages
from gateway.domain.scheduling.agenda import call_of
from gateway.domain.scheduling.responses import exclude_from_task
from gateway.domain.spec import Failure, NodeId
from gateway.domain.states import JOB, TASK, Outcome, ended
from gateway.domain.timeouts import Timing
from gateway.runtime.liveness import PROBE_INTERVAL, ProbeTimes
from tests.builders import T0
from tests.domain import world_checks
from tests.domain.clockwork import Activity, OsProcess, SimulatedShell, require, set_moment
from tests.domain.node_sim import Answer, Attempt, NoRole, SimulatedNode
from tests.domain.plot import Outage, Plot

# Seconds that a client waits for a response. A request arrives within them or never.
CLIENT_DEADLINE = 10.0

# Seconds until a refused connection is noticed.
REFUSED_AFTER = 0.01

# Seconds that a client waits for a connection to come up.
CONNECT_DEADLINE = 3.0

# Seconds that a probe of a silent node waits.
PROBE_DEADLINE = 2.0

# Seconds that a message takes at most in each direction while the network is sound.
SLOWEST_MESSAGE = 0.1

# Seconds after which a node that probes the scheduling node repeats a report.
REPORT_REPEAT = PROBE_INTERVAL + PROBE_DEADLINE

# Seconds by which a planner stalls, or a push is late, at most.
LONGEST_DELAY = 30.0

# Seconds after which a user repeats a request while no planner lives.
USER_REPEAT = 1.0

NETWORK_TROUBLES = ("refused", "dropped", "no answer", "cut", "slow")

UserRequest = messages.StopRequested | messages.TaskStopRequested | messages.SuspendRequested
PushedReport = messages.TaskReported | ApprovalReported


@dataclass(frozen=True)
class NodeReached:
    """A probe has reached a node that was silent."""

    node: NodeId
    at: datetime


def with_claim(event: Any, claimed: datetime | None) -> Any:
    """Return the event; one about an unknown task says when its poll was claimed."""
    if isinstance(event, messages.TaskUnknown):
        return replace(event, claimed=claimed)
    return event


class World(SimulatedShell[Job]):
    """Plays a plot."""

    def __init__(
        self,
        plot: Plot,
        timing: Timing = Timing(),
    ) -> None:
        super().__init__(machine, plot.job(), timing, plot.seed)
        self.plot = plot
        self.nodes = {node: SimulatedNode(self, node) for node in plot.spec.nodes}
        self.calls: Counter[messages.Request] = Counter()
        # Types of the requests with which something went wrong in the network.
        self.troubled_requests: set[type[messages.Request]] = set()
        # Tasks whose stop was recorded before they had ended.
        self.stopped_tasks: set[str] = set()
        self._probe_times = ProbeTimes()
        self._probed_now: set[NodeId] = set()
        # Progress and outcome of the job after each write.
        self.writes: list[tuple[int, Outcome | None]] = []
        self.lives = 0  # number of planners that have begun
        self.ended_at = 0.0  # seconds

    @property
    def job(self) -> Job:
        """The scheduling node's record of the job."""
        return self.store.record

    @property
    def network_is_bad(self) -> bool:
        """True while the plot has trouble in the network."""
        return self.clockwork.now < self.plot.trouble_until

    def task_id(self, attempt: Attempt) -> str:
        """Return the id of an attempt; that of the first one has the name of its task."""
        if attempt.number == 0:
            return f"task_{attempt.task}"
        return task_ids.next_task_id(
            self.job.id,
            attempt.task,
            attempt.number,
            "",
        )

    def participating_nodes(self) -> list[SimulatedNode]:
        """Return the nodes that the job has not excluded."""
        return [node for node in self.nodes.values() if self.job.nodes[node.node].excluded is None]

    def run(self, seconds: float = 6000.0) -> Job:
        """Play the plot to its end and return the job. Raises `Broken`."""
        try:
            for _ in range(self.plot.planners):
                self._begin_planner()
            self._schedule_user_requests()
            self.clockwork.run(seconds)
            world_checks.check_end(self)
        except Exception as error:
            error.add_note(self.clockwork.log_text())
            raise
        return self.job

    # ------------------------------------------------------------ users

    def _schedule_user_requests(self) -> None:
        """Have the users of the plot stop and suspend the job."""
        if self.plot.stop_at is not None:
            self._request_later(self.plot.stop_at, messages.StopRequested("n1", T0))
        for seconds, task in self.plot.stop_tasks:
            self._request_later(seconds, messages.TaskStopRequested(task, "n1", T0))
        if self.plot.suspended is not None:
            begin, end = self.plot.suspended
            resume = messages.SuspendRequested("n1", T0, on=False)
            self._request_later(begin, messages.SuspendRequested("n1", T0))
            self._request_later(end, resume)
            # A suspension that waited for a new planner may come after the first resumption.
            self._request_later(end + 100.0, resume)

    def _request_later(self, seconds: float, request: UserRequest) -> None:
        """Have a user request something at some second."""
        self.clockwork.call_later(seconds, self._request, request)

    def _request(self, request: UserRequest) -> None:
        """Record a user's request; repeat it until a planner lives that can record it."""
        if not self.processes:
            self._request_later(USER_REPEAT, request)
            return
        self.clockwork.log(f"a user requests: {request}")
        event = replace(
            request,
            at=self.clockwork.time(),
        )
        stopped_task = request.task if isinstance(request, messages.TaskStopRequested) else ""
        # The user waits for the response, so no crash of a planner interrupts this record.
        self.clockwork.spawn(self._record(self.processes[0], [event], stopped_task))

    # ------------------------------------------------------------ planners

    def _begin_planner(self) -> None:
        """Begin a planner, which looks at the job without delay."""
        self.lives += 1
        process = OsProcess(
            f"planner {self.lives}",
            self._replace_planner,
            self.plot.crash_chance,
            self.plot.trouble_until,
            dies_at=self.plot.dies_at if self.lives == 1 else None,
        )
        self.processes.append(process)
        self.schedule_wakeups()

    def _replace_planner(self, dead: OsProcess) -> None:
        """Begin another planner some seconds after a death."""
        self.processes.remove(dead)
        delay = self.clockwork.random.uniform(0.0, 20.0)
        self.clockwork.call_later(delay, self._begin_planner)

    def _apply(self, record: Job, event: Any) -> Job:
        """Return the record after an event."""
        if isinstance(event, NoRole):
            return exclude_from_task(record, event.request, event.at)
        if isinstance(event, NodeReached):
            return machine.retry_now(record, event.node)
        return machine.apply(record, event)

    def _record(
        self,
        process: OsProcess,
        events: Iterable[Any],
        stopped_task: str = "",
    ) -> Activity:
        """Store events and decisions, then make the calls.

        ``stopped_task`` is the task that the events stop; empty for none.
        """
        old, job, requests = yield from self.decide(events)
        if stopped_task and old.ending is None:
            task = old.tasks[stopped_task]
            if not ended(TASK, task.status):
                self.stopped_tasks |= downstream(old.spec.dag, [stopped_task])
        self.schedule_wakeups()
        for request in requests:
            if isinstance(request, messages.StartTaskAt):
                self._check_task_start(old, job, request)
            delay = self.clockwork.random_pause(1.0)
            claimed = call_of(job, request).sent_at
            self.clockwork.spawn(self._call(process, request, claimed), process, delay)

    def _check_task_start(
        self,
        old: Job,
        job: Job,
        request: messages.StartTaskAt,
    ) -> None:
        """Check that a start is not sent for a suspended job or a stopped task."""
        has_begun = old.tasks[request.task].begun
        require(has_begun or not job.suspended, f"{request} while the job is suspended")
        require(request.task not in self.stopped_tasks, f"{request} after the task was stopped")

    def _call(
        self,
        process: OsProcess,
        request: messages.Request,
        claimed: datetime | None,
    ) -> Activity:
        """Make a call that was claimed at some moment, and record its result."""
        self.calls[request] += 1
        self.clockwork.log(f"{process.name} calls {request}")
        events, seconds = self._send(request)
        yield seconds
        # The request has arrived by now, and its answer is complete.
        events = set_moment(events, self.clockwork.time())
        events = [with_claim(event, claimed) for event in events]
        if any(isinstance(event, messages.Lost) for event in events):
            self._note_silence(request.node)
        yield self.clockwork.random_pause(0.5)
        if self.network_is_bad and self.clockwork.chance(self.plot.stall_chance):
            self.clockwork.log(f"{process.name} stalls with the answer to {request}")
            yield self.clockwork.random.uniform(0.0, LONGEST_DELAY)
        yield from self._record(process, events)

    # ------------------------------------------------------------ the network

    def _send(self, request: messages.Request) -> tuple[Answer, float]:
        """Send a request; return its answer and the seconds after which the caller has it.

        The returned list is filled when the request arrives.
        """
        outage = self._outage(request.node)
        if outage is not None:
            self.troubled_requests.add(type(request))
            if outage.hangs:
                return self._lost(request), CLIENT_DEADLINE
            if outage.drops:
                return self._not_delivered(request), CONNECT_DEADLINE
            return self._not_delivered(request), REFUSED_AFTER
        random = self.clockwork.random
        way_there = random.uniform(0.0, SLOWEST_MESSAGE)
        way_back = random.uniform(0.0, SLOWEST_MESSAGE)
        if self.network_is_bad and self.clockwork.chance(self.plot.trouble_chance):
            return self._send_with_trouble(request)
        return self._deliver(request, way_there), way_there + way_back

    def _send_with_trouble(self, request: messages.Request) -> tuple[Answer, float]:
        """Send a request through a bad network; see `_send`."""
        self.troubled_requests.add(type(request))
        random = self.clockwork.random
        trouble = random.choice(NETWORK_TROUBLES)
        way_there = random.uniform(0.0, CLIENT_DEADLINE)
        way_back = random.uniform(0.0, CLIENT_DEADLINE)
        self.clockwork.log(f"  … {trouble}")
        if trouble == "refused":
            return self._not_delivered(request), REFUSED_AFTER
        if trouble == "dropped":
            if isinstance(request, messages.StopAt) and random.random() < 0.5:
                return self._proxy_page(request), way_there
            return self._lost(request), CLIENT_DEADLINE
        delivery = self._deliver(request, way_there)
        if trouble == "no answer" or way_there + way_back >= CLIENT_DEADLINE:
            return self._lost(request), CLIENT_DEADLINE
        if trouble == "cut":
            return self._lost(request), random.uniform(0.0, way_there + way_back)
        return delivery, way_there + way_back

    def _outage(self, node: NodeId) -> Outage | None:
        """Return the outage of a node at this moment; None if the node answers."""
        now = self.clockwork.now
        for outage in self.plot.outages:
            if outage.node == node and outage.begins <= now < outage.ends:
                return outage
        return None

    def _deliver(self, request: messages.Request, delay: float) -> Answer:
        """Bring the request to its node after a delay; return the list that gets the answer."""
        events: Answer = []
        self.clockwork.call_later(delay, self._arrive, request, events)
        return events

    def _arrive(self, request: messages.Request, events: Answer) -> None:
        """Have the node carry out the request and add its answer to the events."""
        self.clockwork.log(f"  {request} arrives")
        events.extend(self.nodes[request.node].receive(request))

    @staticmethod
    def _lost(request: messages.Request) -> Answer:
        """Return the result of a call whose request may have arrived."""
        return [messages.Lost(request, T0, delivered=True, message="no answer")]

    @staticmethod
    def _not_delivered(request: messages.Request) -> Answer:
        """Return the result of a call whose request has not arrived."""
        return [messages.Lost(request, T0, delivered=False, message="no answer")]

    @staticmethod
    def _proxy_page(request: messages.Request) -> Answer:
        """Return the answer of a proxy in place of the node."""
        failure = Failure("NO_ENVELOPE", "<html>", request.node)
        return [messages.Refused(request, failure, T0)]

    def push(self, node: NodeId, report: PushedReport) -> None:
        """Bring a pushed report to a living planner; it may get lost, come late or come twice."""
        copies = 1
        delay = self.clockwork.random.uniform(0.0, 2 * SLOWEST_MESSAGE)
        if self._outage(node) is not None:
            if self.plot.repeats_reports:
                self.clockwork.call_later(REPORT_REPEAT, self.push, node, report)
            return
        if self.network_is_bad and self.clockwork.chance(self.plot.trouble_chance):
            copies = self.clockwork.random.choice((0, 2))
            delay = self.clockwork.random.uniform(0.0, LONGEST_DELAY)
        for number in range(1, copies + 1):
            self.clockwork.call_later(delay * number, self._receive_push, report)

    def _receive_push(self, report: PushedReport) -> None:
        """Have a random planner record a pushed report; without any it is lost."""
        if not self.processes:
            return
        process = self.clockwork.random.choice(self.processes)
        event = replace(
            report,
            at=self.clockwork.time(),
        )
        self.clockwork.spawn(self._record(process, [event]), process)

    # ------------------------------------------------------------ probes

    def _note_silence(self, node: NodeId) -> None:
        """Have a silent node probed, as the shell does (`gateway.runtime.liveness`)."""
        has_silent_nodes = bool(self._probe_times.due(math.inf))
        self._probe_times.note_silence(node, self.clockwork.now)
        if not has_silent_nodes:
            self.clockwork.call_later(PROBE_INTERVAL, self._probe_due_nodes)

    def _probe_due_nodes(self) -> None:
        """Begin the probes that are due, and look again until no node is silent."""
        for node in self._probe_times.due(self.clockwork.now):
            if node not in self._probed_now:
                self._probed_now.add(node)
                self.clockwork.spawn(self._probe(node))
        if self._probe_times.due(math.inf):
            self.clockwork.call_later(PROBE_INTERVAL, self._probe_due_nodes)

    def _probe(self, node: NodeId) -> Activity:
        """Probe a node, and have a living planner hurry its calls if it was reached."""
        started = self.clockwork.now
        outage = self._outage(node)
        if outage is None:
            yield self.clockwork.random.uniform(0.0, 2 * SLOWEST_MESSAGE)
        elif outage.hangs or outage.drops:
            yield PROBE_DEADLINE
        is_reached = outage is None
        self._probed_now.remove(node)
        self._probe_times.note_probe(
            node,
            started,
            is_reached=is_reached,
        )
        if is_reached and self.processes:
            self.clockwork.log(f"{node} can be reached again")
            process = self.clockwork.random.choice(self.processes)
            event = NodeReached(node, self.clockwork.time())
            self.clockwork.spawn(self._record(process, [event]), process)

    # ------------------------------------------------------------ rules that always hold

    def check_approvals(self) -> None:
        """Check that every node with a person's decision has approved the job that begins."""
        for node in self.participating_nodes():
            is_approved = node.approved or node.node not in self.plot.approvals
            require(is_approved, f"the job begins although nobody at {node.node} has approved it")

    def check_upstream(self, task: str, node: NodeId) -> None:
        """Check that every upstream task has succeeded before a task starts at a node."""
        for upstream in self.plot.spec.dag[task].upstream:
            has_succeeded = world_checks.has_succeeded(self, upstream)
            require(has_succeeded, f"{task} starts at {node} before {upstream} has succeeded")

    def _check_move(self, old: Job, new: Job) -> None:
        """Compare the record before and after a write."""
        world_checks.check_move(old, new)
        self.writes.append((new.progress, new.outcome))
        if ended(JOB, new.status) and not ended(JOB, old.status):
            self.ended_at = self.clockwork.now
            self.clockwork.log(f"the job is {new.status}, {new.outcome}")
