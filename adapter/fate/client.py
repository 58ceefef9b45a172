"""Clients for nodes that speak FATE's protocol, as parties and as schedulers.

FATE is called for each role of a node separately, and for a task by its version. What it has no requests for (a
job's state, suspension, approval, deletion) goes in the standard's protocol, which a gateway like this one serves
at the same address, and FATE's own nodes do not.
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
    job_word,
    key_of,
    original,
    task_word,
    word_in,
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

Sign = Callable[[NodeId, NodeId], Mapping[str, str]]
"""Return the headers that sign a request to a node in an initiator's name, if it requires a signature."""


Send = Callable[[NodeId, str, Mapping[str, Any], Mapping[str, str], float], tuple[int, Any]]
"""Post JSON to a path of a node, with headers and a factor of the time that its route gives a call; return HTTP
status and JSON. Raises `PeerUnreachable`, `Refused` without a route."""


class NoChange(Refused):
    """FATE changed nothing: it has too few resources, or they are held (or returned) already."""


_KINDS: Mapping[int, tuple[type[GatewayError], str]] = {
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
"""What FATE's codes mean; a gateway like this one names its reason beside the code."""
_TRIES = 3
"""of a request that FATE-Flow refuses, or a report that it drops, by a race of its own"""
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
        """Return the whole response of a success. Raises `GatewayError`."""
        for _ in range(_TRIES):
            headers = {
                "dest-party-id": self.node,
                "service": "fateflow",
                "initiator-party-id": initiator,
                **self.sign(self.node, initiator),
            }
            status, answer = self.send(self.node, path, body, headers, timeout_factor)
            if not _raced(answer):
                break
        if not isinstance(answer, Mapping):
            if status in (404, 405, 501):
                raise NotServed(f"{self.node} does not serve {path}")
            if isinstance(answer, Page):
                raise answer.refusal(self.node)
            raise Refused(
                f"{self.node} answers HTTP {status} without a JSON object", reason="NO_ENVELOPE"
            )
        code = answer.get("code")
        if code == Code.SUCCESS and not isinstance(code, bool) and 200 <= status < 300:
            return answer
        raise _error(self.node, path, status, answer)


def _raced(answer: Any) -> bool:
    """Whether FATE-Flow may have refused a request, before all else, because of another one.

    Each signed request reloads the permissions of all in place, while others look into them.
    """
    response = as_mapping(answer)
    return response.get("code") == Code.AUTHENTICATION_FAILED or "dictionary changed size" in str(
        response.get("message")
    )


def _error(
    node: NodeId,
    path: str,
    status: int,
    answer: Mapping[str, Any],
) -> GatewayError:
    code, data = answer.get("code"), as_mapping(answer.get("data"))
    message = str(answer.get("message") or answer.get("msg") or "")
    text = f"{node}: {message or f'code {code}'}"
    reason = data.get("reason")
    if isinstance(reason, str) and reason:
        if data.get("status") == Invalid.code:
            with suppress(ValidationError):
                return Invalid(_PROBLEMS.validate_python(data.get("problems")), reason=reason)
        if reason in ("PATH_UNKNOWN", "METHOD_NOT_ALLOWED", "NOT_SERVED_HERE"):
            return NotServed(text)
        kinds: dict[Any, type[GatewayError]] = {
            NotAllowed.code: NotAllowed,
            NotFound.code: NotFound,
        }
        return kinds.get(data.get("status"), Refused)(text, reason=reason)
    if status in (404, 405, 501) or (code == Code.EXCEPTION and _NO_PATH.search(message)):
        return NotServed(f"{node} does not serve {path}")
    kind, reason = _KINDS.get(code if isinstance(code, int) else -1, (Refused, Refused.reason))
    text = f"{node} refuses {path} with code {code}"  # FATE writes "success" beside some
    return kind(f"{text}: {message}" if message else text, reason=reason)


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
        """Create the job for each role of the node, for none if one refuses.

        Raises what the port says, and `Invalid` for an id with an underscore, at which FATE splits task ids.
        """
        if "_" in spec.job_id:
            rule = "must not contain an underscore: nodes that speak FATE's protocol split task ids at it"
            raise Invalid([Problem("job_id", rule, spec.job_id)])
        body = self.descriptions.written(spec, self.caller.node)
        roles = _roles(spec, self.caller.node) or ("",)
        data: Mapping[str, Any] = {}
        for number, role in enumerate(roles):
            try:
                data = self._job("create", spec.job_id, role, initiator=spec.initiator, **body)
            except Refused:
                for accepted in roles[:number]:
                    with suppress(GatewayError):
                        self._report_job(spec.job_id, accepted, JobWord.FAILED)
                raise
        for role in roles:
            self._report_job(spec.job_id, role, JobWord.WAITING)
        inherited = texts_of(data["inherited"]) if isinstance(data.get("inherited"), list) else None
        waits = data.get("waits") is True
        within = as_seconds(data.get("within")) if waits else None
        return Acceptance(
            holds=True,
            waits=waits,
            within=within,
            inherited=inherited,
        )

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
        """Nothing was asked."""

    def hold(self, job_id: str, sender: NodeId) -> None:
        """Reserve what the job needs for all roles of the node, or none. Raises `Refused` with RESOURCES_BUSY.

        If a response was lost, FATE refuses a role that holds its resources already in the same way as one that
        must wait: so all are returned, and requested once more.
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
                if refused.reason != BUSY:  # else it held none
                    raise

    def start_job(
        self,
        job_id: str,
        sender: NodeId,
        without: Sequence[str] = (),
    ) -> None:
        """Start each role; ``without`` goes as ``extra_info``, which FATE's own nodes ignore."""
        more: dict[str, Any] = {"extra_info": {"without": list(without)}} if without else {}
        for role in self._roles_of(job_id):
            self._job("start", job_id, role, **more)

    def _job(
        self,
        command: str,
        job_id: str,
        role: str,
        initiator: NodeId = "",
        **more: Any,
    ) -> Mapping[str, Any]:
        body = {
            **more,
            "job_id": job_id,
            "role": role,
            "party_id": self.caller.node,
        }
        return as_mapping(
            self.caller.post(f"{PARTNER}/job/{command}", body, initiator=initiator).get("data")
        )

    def _task(
        self,
        command: str,
        body: Mapping[str, Any],
        **more: Any,
    ) -> Mapping[str, Any]:
        return as_mapping(
            self.caller.post(f"{PARTNER}/task/{command}", {**body, **more}).get("data")
        )

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
        """FATE has no such request. Raises `NotServed`."""
        raise NotServed(
            f"{self.caller.node} takes no new parameters for a job under way: FATE's protocol has none"
        )

    def start_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
        holding: Sequence[str] = (),
    ) -> None:
        """Announce a further version, request the task's resources, then start it, role by role.

        Raises `Busy` if a role gets no resources; those of the others are returned.
        """
        key = key_of(task_id, job_id)
        roles = self._roles_of(job_id, task_name)
        bodies = self._bodies(key, roles, task_name)
        if key.version:  # FATE needs a further version announced, and refuses one that it has
            for body in bodies:
                with suppress(Refused, NotFound):
                    self._task("rerun", body, task_version=key.version - 1, new_version=key.version)
        self._report_progress(job_id, roles, self._progress_of(job_id))
        to_start: list[dict[str, Any]] = []
        for body in bodies:
            try:
                if self._allocate(body):
                    to_start.append(body)
            except Refused as refused:
                for other in to_start:  # free them for the node's other jobs
                    with suppress(GatewayError):
                        self._task("resource/return", other)
                if refused.reason == BUSY:  # retried later, as FATE does
                    raise Busy(refused.message, reason=refused.reason) from refused
                raise
        for body in to_start:
            self._report_task(body, TaskWord.RUNNING)
            self._task("start", body)

    def _allocate(self, body: dict[str, Any]) -> bool:
        """Request a task's resources for a role; False if the task has started there already.

        As with a job's, FATE refuses a role in the same way if it has them by a request whose response was lost.
        """
        try:
            self._task("resource/apply", body)
        except NoChange:
            word = self._task("collect", body).get("party_status")
            if word != TaskWord.WAITING and word in list(TaskWord):
                return False
            with suppress(Refused):  # it had none
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
        **more: Any,
    ) -> None:
        for role in roles if percent else ():
            with suppress(Refused, NotFound):
                self._job("update", job_id, role, **more, progress=float(percent))

    def _report_task(self, body: Mapping[str, Any], word: TaskWord) -> None:
        """Report a task's state at all nodes together, which FATE shows and depends on at a stop."""
        with suppress(Refused, NotFound):
            self._task("status/update", body, status=str(word))

    def poll_task(
        self,
        task_id: str,
        role: str,
        sender: NodeId,
    ) -> TaskNews:
        """Request ``task/collect``. Raises `Invalid` (STATUS_UNKNOWN) for a state that FATE does not have."""
        data = self._task("collect", task_body(key_of(task_id), role, self.caller.node))
        word = data.get("party_status") or data.get("status")
        if (
            word == TaskWord.WAITING
        ):  # FATE has it since the job's creation; a start makes it running immediately
            raise NotFound(
                f"task {task_id} has not been started at {self.caller.node}", reason="TASK_UNKNOWN"
            )
        status = OUR_TASK[word_in(TaskWord, word, "data.party_status")]
        if status is not TaskStatus.FAILED:
            return TaskNews(status)
        at = self.caller.node
        reason = failure_of(data.get("failed_by")) or Failure(
            REASONS[str(word)], f"{word} at {at}", at, role
        )
        return TaskNews(status, reason)

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
        more: dict[str, Any] = {}
        if ending is not None:
            more["status"] = str(job_word(JobStatus.FINISHED, ending.outcome, ending.failure))
            if ending.failure is not None:
                more["failed_by"] = redacted(ending.failure.as_dict())
        percent = (
            100
            if ending is not None and ending.outcome is Outcome.SUCCEEDED
            else self._progress_of(job_id)
        )
        for role in roles:
            self._report_progress(job_id, [role], percent, **more)
            if ending is not None:
                with suppress(Refused):
                    self._job("status/update", job_id, role, **more)
            self._job("stop", job_id, role, **more)

    def _report_tasks(self, job_id: str, ending: Ending | None) -> None:
        """Report how each task has ended, or ends with the job, before the job ends there."""
        job = self.job_of(job_id)
        for task in job.tasks.values() if job is not None else ():
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
        for body in self._bodies(key, self._roles_of(job_id or key.job_id, task_name), task_name):
            self._task("stop", body, status=str(TaskWord.CANCELED))

    def delete_job(
        self,
        job_id: str,
        dry_run: bool,
        sender: NodeId,
    ) -> None:
        self.standard.delete_job(job_id, dry_run, sender)

    def _roles_of(self, job_id: str, task_name: str = "") -> tuple[str, ...]:
        """Return the roles of the node in a job that this node schedules; of another job one without a name."""
        job = self.job_of(job_id)
        if job is None:
            return ("",)
        task = job.tasks.get(task_name)
        part = task.nodes.get(self.caller.node) if task is not None else None
        return tuple(part.roles if part is not None else ()) or _roles(job.spec, self.caller.node)


def _end_of(task: Task, ending: Ending | None) -> TaskWord | None:
    """Return how a task ended, or ends with such a job; None if it does not."""
    if task.status in (TaskStatus.SUCCESS, TaskStatus.FAILED):
        return task_word(task.status, task.failure)
    if ending is None or ending.outcome is Outcome.SUCCEEDED:
        return None
    return TaskWord.CANCELED if ending.outcome is Outcome.STOPPED else TaskWord.FAILED


def _roles(spec: JobSpec, node: NodeId) -> tuple[str, ...]:
    return tuple(dict.fromkeys(party.role for party in spec.parties_at(node)))


_LONGEST_ID = 100
_NOT_ASKED = (Refused.reason, NotServed.reason, "NO_ENVELOPE", *PAGES)
"""reasons with which a node refuses a request that it does not know"""
_OWN_IDS = "FATE gives a job an id of its own: flow job list shows it there, and here if this node has a part in it"


@dataclass(frozen=True)
class SchedulerClient:
    """`SchedulerApi` of a node that speaks FATE's protocol."""

    me: NodeId
    caller: Caller
    descriptions: Descriptions
    standard: SchedulerApi
    protocol_of: Callable[[str], str]
    """returns the protocol of a job here by its id"""

    def submit_job(self, spec: JobSpec, sender: NodeId) -> str:
        """Submit the job; return the id it has there, which FATE makes itself.

        Raises what the port says, and `Refused` (NO_ENVELOPE) for an invalid id. A lost response is
        `PeerUnreachable` that says so: to submit again could create a second job.
        """
        with traced(spec.trace_id):
            body = self.descriptions.written(spec, self.caller.node)
            try:
                response = self.caller.post(
                    f"{SCHEDULER}/job/create", body, initiator=spec.initiator, timeout_factor=3.0
                )
            except PeerUnreachable as error:
                if not error.delivered:
                    raise
                text = f"{error.message}. It may have accepted the job: look there before submitting it again"
                raise PeerUnreachable(f"{text}. {_OWN_IDS}", reason=error.reason) from error
        there = response.get("job_id") or spec.job_id
        if not isinstance(there, str) or name_rule(there, _LONGEST_ID):
            text = f"{self.caller.node} accepted the job with an invalid id: {str(there)[:40]!r}"
            raise Refused(text, reason="NO_ENVELOPE")
        return there

    def report_task(self, report: TaskReport, sender: NodeId) -> None:
        """Report a task's state; FATE lets no task fail that it does not know to run.

        Raises `Busy` if an end had no effect, to be reported again, up to `_TRIES` times.
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
        key = key if key.job_id else key_of(report.task_id, report.job_id)
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
            if refused.reason not in _NOT_ASKED:
                raise
            text = f"{self.caller.node} does not report the state of job {job_id}: FATE's protocol has no request"
            raise NotServed(f"{text} for it. {_OWN_IDS}") from refused

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
        body = {"job_id": self._there(job_id), "stop_status": str(JobWord.CANCELED)}
        self.caller.post(f"{SCHEDULER}/job/stop", body)

    def rerun_job(self, wanted: Order, sender: NodeId) -> RerunResult:
        """Run it again; FATE does so under the same id, which is then the result's."""
        body = {
            "job_id": self._there(wanted.job_id),
            "new_job_id": wanted.new_job_id,
            "from": wanted.start,
            "parameters": wanted.parameters,
        }
        data = as_mapping(
            self.caller.post(f"{SCHEDULER}/job/rerun", body, timeout_factor=3.0).get("data")
        )
        job_id, start = str(data.get("job_id") or wanted.job_id), str(data.get("from") or "")
        return RerunResult(
            job_id, start, texts_of(data.get("runs")), texts_of(data.get("inherits"))
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
        """Report a rejection by stopping the job; an approval FATE learns when it requests resources again."""
        if self.protocol_of(job_id) != PROTOCOL:
            self.standard.confirm_job(job_id, failure, sender, audit)
        elif failure is not None:
            self.stop_job(job_id, "", sender)

    def resources_free(self, job_id: str, sender: NodeId) -> None:
        """Report it in the standard's protocol; not of FATE's jobs: FATE requests them again by itself."""
        if self.protocol_of(job_id) != PROTOCOL:
            self.standard.resources_free(job_id, sender)

    def _there(self, job_id: str) -> str:
        """Return a job's id at the node: FATE restarts a job under the same id."""
        return original(job_id) if self.protocol_of(job_id) == PROTOCOL else job_id


@dataclass(frozen=True)
class FateProtocol:
    """Makes clients. A container's environment is the standard's, whoever schedules."""

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
        beside = self.standard.scheduler(node)
        return SchedulerClient(
            self.me, self._caller(node), self.descriptions, beside, self.protocol_of
        )

    def participant(self, node: NodeId) -> ParticipantApi:
        return ParticipantClient(
            self._caller(node), self.descriptions, self.standard.participant(node), self.job_of
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
        return self.descriptions.written(spec)

    def _caller(self, node: NodeId) -> Caller:
        return Caller(node, self.send, self.signatures.sign)
