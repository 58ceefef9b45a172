"""Clients for nodes that speak FATE's protocol, as parties and as schedulers.

FATE is called for each role of a node separately, and for a task by its version. Its protocol has no requests for
a job's state, suspension, approval and deletion. These go in the standard's protocol, which a gateway like this one
serves at the same address, and FATE's own nodes do not.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from adapter.body import failure_of, texts_of
from adapter.fate.dag.description import Descriptions, Standard
from adapter.fate.envelope import PARTNER, SCHEDULER, Code
from adapter.fate.signing import Signatures
from adapter.fate.words import (
    OUR_TASK,
    PROTOCOL,
    REASONS,
    JobOf,
    JobWord,
    Key,
    TaskWord,
    fate_job_id,
    job_word,
    key_of,
    read_word,
    task_word,
)
from adapter.page import REASONS as PAGES
from adapter.page import Page
from gateway.domain.dry_run import Item
from gateway.domain.job import Acceptance, Task
from gateway.domain.problems import Problem, name_rule
from gateway.domain.redaction import redacted
from gateway.domain.rerun import Order, RerunResult
from gateway.domain.reservations import BUSY
from gateway.domain.retries import numbered_id
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Amendment, Ending, Failure, JobSpec, NodeId
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import (
    Busy,
    GatewayError,
    Invalid,
    NotAllowed,
    NotFound,
    NotServed,
    PeerUnreachable,
    Refused,
)
from gateway.ports import (
    JobView,
    ParticipantApi,
    SchedulerApi,
    Site,
    TaskNews,
    TaskReport,
    as_mapping,
    as_seconds,
)
from gateway.runtime.context import traced

# Returns the headers that sign a request to a node in an initiator's name, if the node requires a signature.
Sign = Callable[[NodeId, NodeId], Mapping[str, str]]

# Posts JSON to a path of a node, with headers and a factor of the route's timeout; returns HTTP status and JSON.
# Raises `PeerUnreachable`, `Refused` without a route.
Send = Callable[[NodeId, str, Mapping[str, Any], Mapping[str, str], float], tuple[int, Any]]


class NoChange(Refused):
    """FATE changed nothing: it has too few resources, or they are reserved (or returned) already."""


# FATE's codes -> error and reason; a gateway like this one also sends its own reason.
_ERRORS_BY_CODE: Mapping[int, tuple[type[GatewayError], str]] = {
    Code.JOB_NOT_FOUND: (NotFound, "JOB_UNKNOWN"),
    Code.TASK_NOT_FOUND: (NotFound, "TASK_UNKNOWN"),
    Code.JOB_RESOURCE_EXCEPTION: (NoChange, "RESOURCES_BUSY"),
    Code.TASK_RESOURCE_EXCEPTION: (NoChange, "RESOURCES_BUSY"),
    Code.JOB_RESOURCE_LIMIT_EXCEEDED: (Refused, "RESOURCES_NEVER"),
    Code.INHERITANCE_FAILED: (Refused, "INHERITANCE_FAILED"),
    Code.EXPIRED: (NotAllowed, "SIGNATURE_EXPIRED"),
    Code.NO_FOUND_APPID: (NotAllowed, "APP_UNKNOWN"),
    Code.VERIFY_FAILED: (NotAllowed, "SIGNATURE_WRONG"),
    Code.AUTHENTICATION_FAILED: (NotAllowed, "NOT_AUTHORISED"),
    Code.NO_PERMISSION: (NotAllowed, "NOT_AUTHORISED"),
    Code.UPDATE_JOB_FAILED: (Refused, "NO_EFFECT"),
    Code.UPDATE_TASK_FAILED: (Refused, "NO_EFFECT"),
}
# Error by the HTTP-like status that a gateway sends with its reason; `Refused` for all other statuses.
_ERRORS_BY_STATUS: Mapping[Any, type[GatewayError]] = {
    NotAllowed.code: NotAllowed,
    NotFound.code: NotFound,
}
_NOT_SERVED_REASONS = ("PATH_UNKNOWN", "METHOD_NOT_ALLOWED", "NOT_SERVED_HERE")
_NOT_SERVED_STATUSES = (404, 405, 501)  # of web frameworks for unknown paths and methods
# Reasons with which a node refuses a request that it does not know.
_UNKNOWN_REQUEST = (Refused.reason, NotServed.reason, "NO_ENVELOPE", *PAGES)
_TRIES = 3  # of a request that FATE-Flow refuses, or a report that it drops, by a race of its own
_LONGEST_ID = 100  # characters of a job's id
_SLOW = 3.0  # times the route's timeout, for requests that create a job
_FATE_IDS = "FATE gives a job an id of its own: flow job list shows it there, and here if this node has a part in it"
_PROBLEMS = TypeAdapter(list[Problem])
_NO_PATH = re.compile(r"\b404\b.*Not Found")


@dataclass(frozen=True)
class Caller:
    """Calls one node."""

    node: NodeId
    send: Send
    sign: Sign

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        initiator: NodeId = "",
        timeout_factor: float = 1.0,
    ) -> Mapping[str, Any]:
        """Return the complete response of a success. Raises `GatewayError`."""
        for _ in range(_TRIES):
            status, response = self._send(path, body, initiator, timeout_factor)
            if not _is_race(response):
                break
        if not isinstance(response, Mapping):
            raise self._error_without_envelope(path, status, response)
        code = response.get("code")
        is_success_code = code == Code.SUCCESS and not isinstance(code, bool)
        if is_success_code and 200 <= status < 300:
            return response
        raise _error(self.node, path, status, response)

    def _send(
        self,
        path: str,
        body: Mapping[str, Any],
        initiator: NodeId,
        timeout_factor: float,
    ) -> tuple[int, Any]:
        headers = {
            "dest-party-id": self.node,
            "service": "fateflow",
            "initiator-party-id": initiator,
            **self.sign(self.node, initiator),
        }
        return self.send(self.node, path, body, headers, timeout_factor)

    def _error_without_envelope(self, path: str, status: int, response: Any) -> GatewayError:
        if status in _NOT_SERVED_STATUSES:
            return NotServed(f"{self.node} does not serve {path}")
        if isinstance(response, Page):
            return response.refusal(self.node)
        text = f"{self.node} answers HTTP {status} without a JSON object"
        return Refused(text, reason="NO_ENVELOPE")


def _is_race(response: Any) -> bool:
    """True if FATE-Flow may have refused a request only because of a concurrent one.

    Each signed request reloads all permissions in place, while other requests look them up.
    """
    fields = as_mapping(response)
    if fields.get("code") == Code.AUTHENTICATION_FAILED:
        return True
    return "dictionary changed size" in str(fields.get("message"))


def _error(
    node: NodeId,
    path: str,
    status: int,
    response: Mapping[str, Any],
) -> GatewayError:
    """Return the error that a refusal stands for: by a gateway's reason, or else by FATE's code."""
    code = response.get("code")
    message = str(response.get("message") or response.get("msg") or "")
    data = as_mapping(response.get("data"))
    reason = data.get("reason")
    if isinstance(reason, str) and reason:
        return _error_with_reason(f"{node}: {message or f'code {code}'}", reason, data)
    is_unknown_path = code == Code.EXCEPTION and _NO_PATH.search(message)
    if status in _NOT_SERVED_STATUSES or is_unknown_path:
        return NotServed(f"{node} does not serve {path}")
    number = code if isinstance(code, int) else -1
    kind, reason = _ERRORS_BY_CODE.get(number, (Refused, Refused.reason))
    text = f"{node} refuses {path} with code {code}"
    if message:
        text += f": {message}"  # FATE writes "success" even with some of its errors
    return kind(text, reason=reason)


def _error_with_reason(text: str, reason: str, data: Mapping[str, Any]) -> GatewayError:
    """Return a gateway's error, with its problems if they can be read."""
    if data.get("status") == Invalid.code:
        with suppress(ValidationError):
            return Invalid(_PROBLEMS.validate_python(data.get("problems")), reason=reason)
    if reason in _NOT_SERVED_REASONS:
        return NotServed(text)
    kind = _ERRORS_BY_STATUS.get(data.get("status"), Refused)
    return kind(text, reason=reason)


def task_body(
    key: Key,
    role: str,
    node: NodeId,
) -> dict[str, Any]:
    """Return the fields that identify a version of a task at one party."""
    return {
        "job_id": key.job_id,
        "role": role,
        "party_id": node,
        "task_id": key.task_id,
        "task_version": key.version,
    }


@dataclass(frozen=True)
class ParticipantClient:
    """`ParticipantApi` of a node that speaks FATE's protocol."""

    caller: Caller
    descriptions: Descriptions
    standard: ParticipantApi
    job_of: JobOf

    def create_job(self, spec: JobSpec, sender: NodeId) -> Acceptance:
        """Create the job for each role of the node, or for none if one is refused.

        Raises the port's errors, and `Invalid` for an id with an underscore, at which FATE splits task ids.
        """
        if "_" in spec.job_id:
            rule = "must not contain an underscore: nodes that speak FATE's protocol split task ids at it"
            raise Invalid([Problem("job_id", rule, spec.job_id)])
        roles = _roles(spec, self.caller.node) or ("",)
        data = self._create_for_roles(spec, roles)
        for role in roles:
            self._report_job(spec.job_id, role, JobWord.WAITING)
        return _acceptance(data)

    def _create_for_roles(self, spec: JobSpec, roles: Sequence[str]) -> Mapping[str, Any]:
        """Create the job for each role and return the last response's data; end it for all if one is refused."""
        body = self.descriptions.write(spec, self.caller.node)
        data: Mapping[str, Any] = {}
        for number, role in enumerate(roles):
            try:
                data = self._job("create", spec.job_id, role, initiator=spec.initiator, **body)
            except Refused:
                for accepted_role in roles[:number]:
                    with suppress(GatewayError):
                        self._report_job(spec.job_id, accepted_role, JobWord.FAILED)
                raise
        return data

    def _report_job(
        self,
        job_id: str,
        role: str,
        word: JobWord,
    ) -> None:
        try:
            self._job("status/update", job_id, role, status=str(word))
        except Refused as refused:
            if refused.reason not in ("NO_EFFECT", "JOB_ENDED"):  # it is in that state already
                raise

    def dry_run(self, spec: JobSpec, sender: NodeId) -> Sequence[Item]:
        return self.standard.dry_run(spec, sender)

    def ask_first(self, spec: JobSpec, sender: NodeId) -> Acceptance | None:
        """Return None: FATE has no audit of jobs."""
        return None

    def withdraw(
        self,
        job_id: str,
        ending: Ending | None,
        sender: NodeId,
    ) -> None:
        """Do nothing: `ask_first` does not ask."""

    def hold(self, job_id: str, sender: NodeId) -> None:
        """Reserve the job's resources for all roles of the node, or for none.

        Raises `Refused` (RESOURCES_BUSY). FATE gives the same refusal to a role that holds its resources already,
        because an earlier response was lost. So all are returned, and requested once more.
        """
        roles = self._roles_of(job_id)
        try:
            self._hold(job_id, roles)
        except NoChange:
            self._return(job_id, roles)
            self._hold(job_id, roles)

    def _hold(self, job_id: str, roles: Sequence[str]) -> None:
        for number, role in enumerate(roles):
            try:
                self._job("resource/apply", job_id, role)
            except Refused:
                self._return(job_id, roles[:number])
                raise

    def give_back(self, job_id: str, sender: NodeId) -> None:
        self._return(job_id, self._roles_of(job_id))

    def _return(self, job_id: str, roles: Iterable[str]) -> None:
        for role in roles:
            try:
                self._job("resource/return", job_id, role)
            except Refused as refused:
                if refused.reason != BUSY:  # busy: the role held none
                    raise

    def start_job(
        self,
        job_id: str,
        sender: NodeId,
        without: Sequence[str] = (),
    ) -> None:
        """Start each role; ``without`` goes as ``extra_info``, which FATE's own nodes ignore."""
        extra: dict[str, Any] = {}
        if without:
            extra["extra_info"] = {"without": list(without)}
        for role in self._roles_of(job_id):
            self._job("start", job_id, role, **extra)

    def _job(
        self,
        command: str,
        job_id: str,
        role: str,
        initiator: NodeId = "",
        **fields: Any,
    ) -> Mapping[str, Any]:
        """Send a command about a job and return the response's data."""
        body = {
            **fields,
            "job_id": job_id,
            "role": role,
            "party_id": self.caller.node,
        }
        response = self.caller.post(f"{PARTNER}/job/{command}", body, initiator=initiator)
        return as_mapping(response.get("data"))

    def _task(
        self,
        command: str,
        body: Mapping[str, Any],
        **fields: Any,
    ) -> Mapping[str, Any]:
        """Send a command about a task and return the response's data."""
        response = self.caller.post(f"{PARTNER}/task/{command}", {**body, **fields})
        return as_mapping(response.get("data"))

    def _bodies(
        self,
        key: Key,
        roles: Iterable[str],
        task_name: str,
    ) -> list[dict[str, Any]]:
        return [
            {**task_body(key, role, self.caller.node), "task_name": task_name} for role in roles
        ]

    def offer_parameters(
        self,
        job_id: str,
        offered: Amendment,
        holding: Sequence[str],
        sender: NodeId,
        amended: JobSpec | None = None,
    ) -> None:
        """Raise `NotServed`: FATE has no such request."""
        text = f"{self.caller.node} takes no new parameters for a job under way: FATE's protocol has none"
        raise NotServed(text)

    def start_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
        holding: Sequence[str] = (),
    ) -> None:
        """Announce a further version, request the task's resources, then start it, role by role.

        Raises `Busy` if a role gets no resources; the resources of the other roles are returned.
        """
        key = key_of(task_id, job_id)
        roles = self._roles_of(job_id, task_name)
        bodies = self._bodies(key, roles, task_name)
        if key.version:
            self._announce_version(bodies, key.version)
        self._report_progress(job_id, roles, self._progress_of(job_id))
        for body in self._allocate_all(bodies):
            self._report_task(body, TaskWord.RUNNING)
            self._task("start", body)

    def _announce_version(self, bodies: Iterable[dict[str, Any]], version: int) -> None:
        """Announce a further version, which FATE requires; it refuses one that it knows."""
        for body in bodies:
            with suppress(Refused, NotFound):
                self._task("rerun", body, task_version=version - 1, new_version=version)

    def _allocate_all(self, bodies: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Request a task's resources for each role and return the roles still to start.

        Raises `Busy` if one gets none, so that the start is retried later, as FATE does.
        """
        to_start: list[dict[str, Any]] = []
        for body in bodies:
            try:
                has_started = not self._allocate(body)
            except Refused as refused:
                for allocated in to_start:  # for the node's other jobs
                    with suppress(GatewayError):
                        self._task("resource/return", allocated)
                if refused.reason == BUSY:
                    raise Busy(refused.message, reason=refused.reason) from refused
                raise
            if not has_started:
                to_start.append(body)
        return to_start

    def _allocate(self, body: dict[str, Any]) -> bool:
        """Request a task's resources for a role; False if the task has started there already.

        As in `hold`, FATE gives the same refusal if the role has them by a request whose response was lost.
        """
        try:
            self._task("resource/apply", body)
        except NoChange:
            word = self._task("collect", body).get("party_status")
            if word != TaskWord.WAITING and word in list(TaskWord):
                return False
            with suppress(Refused):  # the role had none
                self._task("resource/return", body)
            self._task("resource/apply", body)
        return True

    def _progress_of(self, job_id: str) -> int:
        job = self.job_of(job_id)
        return 0 if job is None else job.progress

    def _report_progress(
        self,
        job_id: str,
        roles: Iterable[str],
        percent: int,
        **fields: Any,
    ) -> None:
        if not percent:
            return
        for role in roles:
            with suppress(Refused, NotFound):
                self._job("update", job_id, role, **fields, progress=float(percent))

    def _report_task(self, body: Mapping[str, Any], word: TaskWord) -> None:
        """Report the task's overall state, which FATE shows, and needs when the job is stopped."""
        with suppress(Refused, NotFound):
            self._task("status/update", body, status=str(word))

    def poll_task(
        self,
        task_id: str,
        role: str,
        sender: NodeId,
    ) -> TaskNews:
        """Request ``task/collect``. Raises `Invalid` (STATUS_UNKNOWN) for a state that FATE does not have."""
        node = self.caller.node
        data = self._task("collect", task_body(key_of(task_id), role, node))
        word = data.get("party_status") or data.get("status")
        if (
            word == TaskWord.WAITING
        ):  # since the job's creation; a start makes it running immediately
            text = f"task {task_id} has not been started at {node}"
            raise NotFound(text, reason="TASK_UNKNOWN")
        status = OUR_TASK[read_word(TaskWord, word, "data.party_status")]
        if status is not TaskStatus.FAILED:
            return TaskNews(status)
        failure = failure_of(data.get("failed_by"))
        if failure is None:
            failure = Failure(REASONS[str(word)], f"{word} at {node}", node, role)
        return TaskNews(status, failure)

    def stop_job(
        self,
        job_id: str,
        task_name: str,
        ending: Ending | None,
        sender: NodeId,
    ) -> None:
        """Report how the tasks and the job ended, then stop it; or stop the newest version of one task."""
        roles = self._roles_of(job_id, task_name)
        if task_name:
            key = key_of(numbered_id(job_id, task_name, 0), job_id)
            for body in self._bodies(key, roles, task_name):
                self._task("stop", body, newest=True)
            return
        self._report_tasks(job_id, ending)
        end_fields = _end_fields(ending)
        percent = self._progress_of(job_id)
        if ending is not None and ending.outcome is Outcome.SUCCEEDED:
            percent = 100
        for role in roles:
            self._report_progress(job_id, [role], percent, **end_fields)
            if ending is not None:
                with suppress(Refused):
                    self._job("status/update", job_id, role, **end_fields)
            self._job("stop", job_id, role, **end_fields)

    def _report_tasks(self, job_id: str, ending: Ending | None) -> None:
        """Report how each started task has ended, or ends with the job, before the job ends at the node."""
        job = self.job_of(job_id)
        if job is None:
            return
        for task in job.tasks.values():
            part = task.nodes.get(self.caller.node)
            word = _end_of(task, ending)
            if part is None or not part.start.tries or word is None:
                continue
            for body in self._bodies(key_of(task.task_id, job_id), part.roles, task.name):
                self._report_task(body, word)

    def stop_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
    ) -> None:
        key = key_of(task_id, job_id)
        roles = self._roles_of(job_id or key.job_id, task_name)
        for body in self._bodies(key, roles, task_name):
            self._task("stop", body, status=str(TaskWord.CANCELED))

    def delete_job(
        self,
        job_id: str,
        dry_run: bool,
        sender: NodeId,
    ) -> None:
        self.standard.delete_job(job_id, dry_run, sender)

    def _roles_of(self, job_id: str, task_name: str = "") -> tuple[str, ...]:
        """Return the node's roles in a job that this node schedules, or in one of its tasks.

        One role without a name for a job that is scheduled elsewhere.
        """
        job = self.job_of(job_id)
        if job is None:
            return ("",)
        task = job.tasks.get(task_name)
        if task is not None:
            part = task.nodes.get(self.caller.node)
            if part is not None and part.roles:
                return tuple(part.roles)
        return _roles(job.spec, self.caller.node)


def _acceptance(data: Mapping[str, Any]) -> Acceptance:
    """Read the data of a created job; FATE's own nodes send none."""
    inherited = None
    within = None
    if isinstance(data.get("inherited"), list):
        inherited = texts_of(data["inherited"])
    waits = data.get("waits") is True
    if waits:
        within = as_seconds(data.get("within"))
    return Acceptance(
        holds=True,
        waits=waits,
        within=within,
        inherited=inherited,
    )


def _end_fields(ending: Ending | None) -> dict[str, Any]:
    """Return the fields that say how a job ended; none if it has not."""
    if ending is None:
        return {}
    fields: dict[str, Any] = {
        "status": str(job_word(JobStatus.FINISHED, ending.outcome, ending.failure))
    }
    if ending.failure is not None:
        fields["failed_by"] = redacted(ending.failure.as_dict())
    return fields


def _end_of(task: Task, ending: Ending | None) -> TaskWord | None:
    """Return how a task ended, or ends with its job; None if it is still open."""
    if task.status in (TaskStatus.SUCCESS, TaskStatus.FAILED):
        return task_word(task.status, task.failure)
    if ending is None or ending.outcome is Outcome.SUCCEEDED:
        return None
    return TaskWord.CANCELED if ending.outcome is Outcome.STOPPED else TaskWord.FAILED


def _roles(spec: JobSpec, node: NodeId) -> tuple[str, ...]:
    return tuple(dict.fromkeys(party.role for party in spec.parties_at(node)))


@dataclass(frozen=True)
class SchedulerClient:
    """`SchedulerApi` of a node that speaks FATE's protocol."""

    me: NodeId
    caller: Caller
    descriptions: Descriptions
    standard: SchedulerApi
    protocol_of: Callable[[str], str]  # returns the protocol of a job of this node by its id

    def submit_job(self, spec: JobSpec, sender: NodeId) -> str:
        """Submit the job and return the id that FATE gives it.

        Raises the port's errors, and `Refused` (NO_ENVELOPE) for an invalid id. `PeerUnreachable` for a lost
        response says so, as submitting again could create a second job.
        """
        with traced(spec.trace_id):
            response = self._submit(spec)
        job_id = response.get("job_id") or spec.job_id
        if not isinstance(job_id, str) or name_rule(job_id, _LONGEST_ID):
            text = f"{self.caller.node} accepted the job with an invalid id: {str(job_id)[:40]!r}"
            raise Refused(text, reason="NO_ENVELOPE")
        return job_id

    def _submit(self, spec: JobSpec) -> Mapping[str, Any]:
        body = self.descriptions.write(spec, self.caller.node)
        path = f"{SCHEDULER}/job/create"
        try:
            return self.caller.post(path, body, initiator=spec.initiator, timeout_factor=_SLOW)
        except PeerUnreachable as error:
            if not error.delivered:
                raise
            text = f"{error.message}. It may have accepted the job: look there before submitting it again"
            text += f". {_FATE_IDS}"
            raise PeerUnreachable(text, reason=error.reason) from error

    def report_task(self, report: TaskReport, sender: NodeId) -> None:
        """Report a task's state. A failed task is reported as running first: FATE lets no waiting task fail.

        Raises `Busy` if an end had no effect, so that it is reported again, up to `_TRIES` times.
        """
        word = task_word(report.status, report.failure)
        if report.status is TaskStatus.FAILED:
            with suppress(Refused):
                self._report(report, TaskWord.RUNNING)
        try:
            self._report(report, word)
        except Refused as refused:
            if refused.reason != "NO_EFFECT":
                raise
            if word is not TaskWord.RUNNING and report.tries < _TRIES:
                # FATE may have dropped it while it recorded that the task runs
                raise Busy(refused.message, reason=refused.reason) from refused

    def _report(self, report: TaskReport, word: TaskWord) -> None:
        key = key_of(report.task_id)
        if not key.job_id:
            key = key_of(report.task_id, report.job_id)
        body = {**task_body(key, report.role, self.me), "status": str(word)}
        if report.failure is not None and word is not TaskWord.RUNNING:
            body["failed_by"] = redacted(report.failure.as_dict())
        self.caller.post(f"{SCHEDULER}/task/report", body)

    def job_status(self, job_id: str, sender: NodeId) -> JobView:
        if self.protocol_of(job_id) == PROTOCOL:
            raise NotServed(
                f"{self.caller.node} reports a job's state by itself, and is not asked for it"
            )
        try:
            return self.standard.job_status(job_id, sender)
        except Refused as refused:
            if refused.reason not in _UNKNOWN_REQUEST:
                raise
            text = f"{self.caller.node} does not report the state of job {job_id}: FATE's protocol has no request"
            raise NotServed(f"{text} for it. {_FATE_IDS}") from refused

    def stop_job(
        self,
        job_id: str,
        task_name: str,
        sender: NodeId,
        why: Failure | None = None,
    ) -> None:
        """Cancel the job; a single task is stopped in the standard's protocol."""
        if task_name:
            self.standard.stop_job(job_id, task_name, sender)
            return
        body = {"job_id": self._id_at_node(job_id), "stop_status": str(JobWord.CANCELED)}
        self.caller.post(f"{SCHEDULER}/job/stop", body)

    def rerun_job(self, order: Order, sender: NodeId) -> RerunResult:
        """Run a job again. FATE keeps the id of the job, which is then the result's."""
        body = {
            "job_id": self._id_at_node(order.job_id),
            "new_job_id": order.new_job_id,
            "from": order.start,
            "parameters": order.parameters,
        }
        response = self.caller.post(f"{SCHEDULER}/job/rerun", body, timeout_factor=_SLOW)
        data = as_mapping(response.get("data"))
        return RerunResult(
            job_id=str(data.get("job_id") or order.job_id),
            start=str(data.get("from") or ""),
            runs=texts_of(data.get("runs")),
            inherits=texts_of(data.get("inherits")),
        )

    def amend_job(
        self,
        job_id: str,
        parameters: Mapping[str, Any],
        reason: str,
        sender: NodeId,
    ) -> int:
        return self.standard.amend_job(job_id, parameters, reason, sender)

    def suspend_job(
        self,
        job_id: str,
        on: bool,
        sender: NodeId,
    ) -> None:
        self.standard.suspend_job(job_id, on, sender)

    def confirm_job(
        self,
        job_id: str,
        failure: Failure | None,
        sender: NodeId,
        audit: str = "",
    ) -> None:
        """Report a rejection by stopping the job. FATE notices an approval when it requests resources again."""
        if self.protocol_of(job_id) != PROTOCOL:
            self.standard.confirm_job(job_id, failure, sender, audit)
        elif failure is not None:
            self.stop_job(job_id, "", sender)

    def resources_free(self, job_id: str, sender: NodeId) -> None:
        """Report free resources for jobs of the standard; FATE's own scheduler repeats its requests anyway."""
        if self.protocol_of(job_id) != PROTOCOL:
            self.standard.resources_free(job_id, sender)

    def _id_at_node(self, job_id: str) -> str:
        """Return the job's id at the node: FATE restarts a job under the same id."""
        if self.protocol_of(job_id) == PROTOCOL:
            return fate_job_id(job_id)
        return job_id


@dataclass(frozen=True)
class FateProtocol:
    """Makes clients. A container's environment is the standard's for every scheduler."""

    me: NodeId
    descriptions: Descriptions
    standard: Standard
    send: Send
    signatures: Signatures
    job_of: JobOf
    protocol_of: Callable[[str], str]

    name = PROTOCOL
    numbers_tasks = True

    def scheduler(self, node: NodeId) -> SchedulerApi:
        return SchedulerClient(
            self.me,
            self._caller(node),
            self.descriptions,
            self.standard.scheduler(node),
            self.protocol_of,
        )

    def participant(self, node: NodeId) -> ParticipantApi:
        return ParticipantClient(
            self._caller(node),
            self.descriptions,
            self.standard.participant(node),
            self.job_of,
        )

    def environment(
        self,
        local: LocalJob,
        run: Run,
        site: Site,
    ) -> dict[str, str]:
        return self.standard.environment(local, run, site)

    def container_status(self, run: Run, address: str) -> TaskStatus | None:
        return self.standard.container_status(run, address)

    def request(self, spec: JobSpec) -> dict[str, Any]:
        return self.descriptions.write(spec)

    def _caller(self, node: NodeId) -> Caller:
        return Caller(node, self.send, self.signatures.sign)
