"""The shared part of all scenarios: node, partner, sample jobs and their removal."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import uuid4

from adapter.bfia.channel.codec import SUCCESS
from adapter.bfia.paths import SCHEDULE
from gateway.conformance.platforms.answers import Answer
from gateway.conformance.platforms.containers import Container, receive_token, take_messages
from gateway.conformance.platforms.findings import Broken, CannotTry, Evidence
from gateway.conformance.platforms.node import REQUEST_SECONDS, CheckedNode
from gateway.conformance.platforms.operators import STOP_SUBMITTED, Operator
from gateway.conformance.platforms.partner import Partner
from gateway.conformance.platforms.standards import LATEST, STANDARDS
from gateway.conformance.platforms.transport_answers import (
    LEGACY_SUCCESS,
    read_transport_answer,
)
from gateway.domain.spec import NodeId

CREATE_ALL = f"{SCHEDULE}/job/create_all"
CREATE = f"{SCHEDULE}/job/create"
START = f"{SCHEDULE}/job/start"
STOP = f"{SCHEDULE}/job/stop"
STOP_ALL = f"{SCHEDULE}/job/stop_all"
STATUS_ALL = f"{SCHEDULE}/job/status_all"
START_TASK = f"{SCHEDULE}/task/start"
POLL = f"{SCHEDULE}/task/poll"
REPORT = f"{SCHEDULE}/task/callback"

TASK_STATES = ("PENDING", "READY", "RUNNING", "SUCCESS", "FAILED")  # control layer 3.8
ENDED = ("SUCCESS", "FAILED")
_POLL_PAUSE = 0.2  # seconds between two polls of a task
TASK = "probe_1"  # name of the task of most sample jobs
UNKNOWN_NODE = "JG9999999999999999"  # a node without a route at the checked node
NODE_ROLE = "guest"  # the role of the checked node in sample jobs


@dataclass(frozen=True)
class ComponentName:
    """A component that the node can run without data and without a partner."""

    provider: str
    name: str
    version: str

    @classmethod
    def read(cls, text: str) -> "ComponentName":
        """Read ``provider/Name@version``. Raises `ValueError` for any other text."""
        provider, slash, rest = text.partition("/")
        name, at, version = rest.partition("@")
        if not (provider and slash and name and at and version):
            raise ValueError(text)
        return cls(provider, name, version)


@dataclass(frozen=True)
class TrialOptions:
    """The user's options for the check."""

    component: ComponentName | None = None
    # Seconds that a task of that component, or an action of the node, may take.
    timeout: float = 60.0
    # Of containers; empty: the component tells it, or the node needs none.
    container_token: str = ""


@dataclass(frozen=True)
class FinishedTask:
    """A task of the sample component that the node has run."""

    job_id: str
    task_id: str
    start: Answer
    states: tuple[str, ...]  # as polled, without repetitions in a row


class Trial:
    """One check of a node: its participants, and the sample jobs that scenarios share."""

    def __init__(
        self,
        node: CheckedNode,
        partner: Partner | None,
        evidence: Evidence,
        options: TrialOptions,
        transport: CheckedNode | None = None,
        operator: Operator | None = None,
    ) -> None:
        """``partner``: None if the node has no way back to the check.

        ``transport`` and ``operator``: the node at its addresses for containers and for its own
        platform; None if they are not known.
        """
        self.node = node
        self.evidence = evidence
        self.options = options
        # The version by which the node is judged.
        self.standard = STANDARDS[LATEST]
        # Whether a clause has shown that the node accepts reports and ignores them.
        self.loses_reports = False
        self._partner = partner
        self._transport = transport
        self._operator = operator
        self.submitted: list[str] = []  # jobs that the check submitted as the node's platform
        self.created: list[str] = []  # jobs that the node accepted as a party
        self.scheduled: list[str] = []  # jobs that the node schedules for the check

    @property
    def me(self) -> NodeId:
        """The id of the check's own node."""
        return self.node.identity.node_id

    @property
    def partner(self) -> Partner:
        """The partner. Raises `CannotTry` without a way back."""
        if self._partner is None:
            raise CannotTry("no way back: give --listen and --advertise")
        return self._partner

    @property
    def component(self) -> ComponentName:
        """The component of sample jobs. Raises `CannotTry` without one."""
        if self.options.component is None:
            raise CannotTry("no component: give --component PROVIDER/NAME@VERSION")
        return self.options.component

    @property
    def operator(self) -> Operator:
        """The node's interface for its own platform. Raises `CannotTry` without its address."""
        if self._operator is None:
            raise CannotTry("no way to the operators' interface: give --operator-url")
        return self._operator

    @property
    def container(self) -> Container:
        """A container of a task that the node runs for the check, played by the check.

        Raises `CannotTry` without the address for containers, if no task starts, or if the node
        demands a token and none is known.
        """
        if self._transport is None:
            raise CannotTry("no way to the containers' transport: give --container-url")
        container, refusal = self._container
        if refusal:
            text = (
                f"a push without a token is refused ({refusal}): take a --component that reports "
                "its token, or give --container-token"
            )
            raise CannotTry(text)
        return container

    @cached_property
    def _container(self) -> tuple[Container, str]:
        """The container, and why the node refuses one without a token; empty if it does not."""
        assert self._transport is not None
        if self._partner is not None:
            take_messages(self._partner)
        body = self.started_job()
        task_id = new_task_id()
        response = self.start_task(body, task_id)
        if not response.succeeded:
            raise CannotTry(f"the node does not start a task: {response.summary}")
        session = f"session_{body['job_id']}"
        token = self.options.container_token or self._reported_token(session, task_id)
        container = Container(self._transport, session, token)
        if token:
            return container, ""
        exchange = container.push("conformance", b"conformance", self.node.node_id)
        answer = read_transport_answer(exchange)
        if answer.code in (SUCCESS, LEGACY_SUCCESS):
            return container, ""
        return container, answer.summary

    def _reported_token(self, session: str, task_id: str) -> str:
        """Return the token that the container of a task reports; "" if it reports none."""
        if self._partner is None:
            return ""
        deadline = time.monotonic() + self.options.timeout
        has_ended = False
        token = ""
        while not has_ended and time.monotonic() < deadline:
            has_ended = self.poll(task_id).value("status") in ENDED
            token = receive_token(
                self._partner,
                self.evidence,
                session,
                seconds=_POLL_PAUSE,
            )
            if token:
                break
        self._partner.reset()
        return token

    def sample_job(
        self,
        *tasks: str,
        component: ComponentName | None = None,
        **changes: Any,
    ) -> dict[str, Any]:
        """Return the body of ``job/create`` for a job of both nodes, scheduled by the check.

        ``tasks``: names of tasks without inputs, by default one. ``changes`` replace fields.
        """
        component = component or self.component
        names = tasks or (TASK,)
        body: dict[str, Any] = {
            "job_id": new_job_id(),
            "flow_id": "",
            "old_job_id": "",  # FATE-Flow refuses a job without it
            "dag": {
                "version": "2.0",
                "components": [task_of(component, name) for name in names],
            },
            "config": self.config(names),
        }
        return body | changes

    def config(self, tasks: Sequence[str]) -> dict[str, Any]:
        """Return a job's config: the node is the guest, the check host and initiator."""
        return {
            "version": "2.0.0",
            "initiator": {"role": "host", "node_id": self.me},
            "role": {NODE_ROLE: [self.node.node_id], "host": [self.me]},
            "job_params": {"common": {"sync_type": "poll"}},
            "task_params": {
                "common": {name: {} for name in tasks},
                NODE_ROLE: {"0": {name: {} for name in tasks}},
            },
        }

    def ask_for_nothing(self) -> Answer:
        """Send a harmless request: a poll of a task that does not exist."""
        return self.poll(new_task_id())

    def create(self, body: Mapping[str, Any]) -> Answer:
        """Create a job at the node; an accepted job is stopped when the check ends."""
        response = self.node.ask(CREATE, body)
        if response.succeeded:
            self.created.append(str(body["job_id"]))
        return response

    def created_job(self, **changes: Any) -> dict[str, Any]:
        """Create a sample job. Raises `CannotTry` if the node does not accept it."""
        body = self.sample_job(**changes)
        response = self.create(body)
        if not response.succeeded:
            raise CannotTry(f"the node does not accept a job: {response.summary}")
        return body

    def started_job(self, **changes: Any) -> dict[str, Any]:
        """Create and start a sample job. Raises `CannotTry` if the node refuses."""
        body = self.created_job(**changes)
        response = self.node.ask(START, {"job_id": body["job_id"]})
        if not response.succeeded:
            raise CannotTry(f"the node does not start a job: {response.summary}")
        return body

    def start_task(self, body: Mapping[str, Any], task_id: str) -> Answer:
        """Start the task of a sample job."""
        task = {
            "job_id": body["job_id"],
            "task_id": task_id,
            "task_name": TASK,
        }
        return self.node.ask(START_TASK, task)

    def poll(self, task_id: str, role: str = NODE_ROLE) -> Answer:
        """Poll the state of a task."""
        return self.node.ask(POLL, {"task_id": task_id, "role": role})

    def job_status(self, job_id: str) -> Answer:
        """Request the state of a job, by POST or, if the node refuses that, by GET.

        So a node that fails C-3.7-status does not fail every clause that needs a state. Raises
        `CannotTry` if the node serves neither.
        """
        query = {"job_id": job_id}
        try:
            posted = self.node.ask(
                STATUS_ALL,
                query,
                query=query,
            )
        except CannotTry:
            return self._job_status_by_get(query)
        if posted.succeeded:
            return posted
        try:
            response = self._job_status_by_get(query)
        except CannotTry:
            return posted
        if response.succeeded:
            return response
        return posted

    def _job_status_by_get(self, query: Mapping[str, str]) -> Answer:
        """Request the state of a job by GET. Raises `CannotTry` if the node does not serve that."""
        return self.node.ask(
            STATUS_ALL,
            query,
            method="GET",
            query=query,
        )

    def states_until_end(self, task_id: str) -> tuple[str, ...]:
        """Poll a task until it has ended; return its states, without repetitions in a row.

        Raises `Broken` if it does not end in time, or if a poll is refused.
        """
        deadline = time.monotonic() + self.options.timeout
        states: list[str] = []
        while time.monotonic() < deadline:
            response = self.poll(task_id)
            state = str(response.value("status"))
            if not response.succeeded:
                raise Broken(f"a poll of a started task is refused: {response.summary}")
            if not states or states[-1] != state:
                states.append(state)
            if state in ENDED:
                return tuple(states)
            time.sleep(_POLL_PAUSE)
        raise Broken(f"the task is {states[-1]} after {self.options.timeout:g} s")

    @cached_property
    def finished_task(self) -> FinishedTask:
        """A task that the node has run to its end. Raises `CannotTry` if it does not get there."""
        body = self.started_job()
        task_id = new_task_id()
        response = self.start_task(body, task_id)
        if not response.succeeded:
            raise CannotTry(f"the node does not start a task: {response.summary}")
        try:
            states = self.states_until_end(task_id)
        except Broken as broken:
            raise CannotTry(str(broken)) from None
        return FinishedTask(str(body["job_id"]), task_id, response, states)

    @cached_property
    def open_job(self) -> str:
        """The id of a job that the node has started and that stays so. Raises `CannotTry`."""
        return str(self.started_job()["job_id"])

    def clean_up(self) -> list[tuple[str, bool]]:
        """Stop every job that the node accepted; return each with whether the node agreed."""
        stopped = []
        for job_id in self.created:
            response = self.node.ask(STOP, {"job_id": job_id})
            stopped.append((job_id, response.succeeded))
        for job_id in self.scheduled:
            response = self.node.ask(STOP_ALL, {"job_id": job_id})
            stopped.append((job_id, response.succeeded))
        for job_id in self.submitted:
            response = self.operator.post(
                STOP_SUBMITTED,
                {"job_id": job_id},
                seconds=REQUEST_SECONDS,
            )
            stopped.append((job_id, response.succeeded))
        return stopped


def task_of(component: ComponentName, name: str) -> dict[str, Any]:
    """Return a task of the DAG that runs a component, without inputs and outputs."""
    return {
        "name": name,
        "componentName": component.name,
        "provider": component.provider,
        "version": component.version,
        "input": [],
        "output": [],
    }


def new_job_id() -> str:
    """Return an unused job id in the standard's form."""
    return f"job-{uuid4().hex}"


def new_task_id() -> str:
    """Return an unused task id in the standard's form."""
    return f"task_{uuid4().hex}"
