"""Clients for nodes that speak FATE's protocol, as parties and as schedulers.

FATE is called for each role of a node separately, and for a task by its version. What it has no requests for (a
job's state, suspension, approval, deletion) goes in the standard's protocol, which a gateway like this one serves
at the same address. FATE's own nodes do not, which is no error unless something depends on it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from adapter.fate.codes import Code
from adapter.fate.dag.description import PROTOCOL, Descriptions
from adapter.fate.endpoints import PARTNER, SCHEDULER
from adapter.fate.keys import LONGEST_JOB_ID, Key, key_of
from adapter.fate.ports import JobOf, Send, Standard
from adapter.fate.reruns import original
from adapter.fate.signing import Signatures
from adapter.fate.states import OUR_TASK, REASONS, JobWord, TaskWord, job_word, task_word
from gateway.domain.dry_run import Item
from gateway.domain.job import Acceptance, Job, Task
from gateway.domain.problems import Problem, name_rule
from gateway.domain.redaction import told
from gateway.domain.rerun import Order, RerunResult
from gateway.domain.reservations import BUSY
from gateway.domain.retries import telling
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Ending, Failure, JobSpec, NodeId
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import Busy, GatewayError, Invalid, NotAllowed, NotFound, NotServed, PeerUnreachable, Refused
from gateway.ports import JobView, ParticipantApi, SchedulerApi, Site, TaskNews, TaskReport, as_mapping, as_seconds
from gateway.runtime.context import traced

Sign = Callable[[NodeId, NodeId], Mapping[str, str]]
"""Return the headers that sign a request to a node in an initiator's name, if it requires a signature."""


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
_NO_PATH = re.compile(r"\b404\b.*Not Found")


class Caller:
    """Calls one node."""

    def __init__(self, node: NodeId, send: Send, sign: Sign) -> None:
        self.node = node
        self._send = send
        self._sign = sign

    def post(
        self, path: str, body: Mapping[str, Any], *, initiator: NodeId = "", timeout_factor: float = 1.0
    ) -> Mapping[str, Any]:
        """Return the whole response of a success. Raises `GatewayError`."""
        headers = {
            "dest-party-id": self.node,
            "service": "fateflow",
            "initiator-party-id": initiator,
            **self._sign(self.node, initiator),
        }
        status, answer = self._send(self.node, path, body, headers, timeout_factor)
        if not isinstance(answer, Mapping):
            if status in (404, 405, 501):
                raise NotServed(f"{self.node} does not serve {path}")
            raise Refused(f"{self.node} answers HTTP {status} without a JSON object", reason="NO_ENVELOPE")
        code = answer.get("code")
        if code == Code.SUCCESS and not isinstance(code, bool) and 200 <= status < 300:
            return answer
        raise _error(self.node, path, status, answer)


def _error(node: NodeId, path: str, status: int, answer: Mapping[str, Any]) -> GatewayError:
    code, data = answer.get("code"), as_mapping(answer.get("data"))
    text = f"{node}: {answer.get('message') or answer.get('msg') or f'code {code}'}"
    reason = data.get("reason")
    if isinstance(reason, str) and reason:
        problems = _problems(data.get("problems"))
        if data.get("status") == Invalid.code and problems:
            return Invalid(problems, reason=reason)
        if reason in ("PATH_UNKNOWN", "METHOD_NOT_ALLOWED", "NOT_SERVED_HERE"):
            return NotServed(text)
        kinds: dict[Any, type[GatewayError]] = {NotAllowed.code: NotAllowed, NotFound.code: NotFound}
        return kinds.get(data.get("status"), Refused)(text, reason=reason)
    if status in (404, 405, 501) or (code == Code.EXCEPTION and _NO_PATH.search(text)):
        return NotServed(f"{node} does not serve {path}")
    kind, reason = _KINDS.get(code if isinstance(code, int) else -1, (Refused, Refused.reason))
    return kind(text, reason=reason)


def _problems(found: Any) -> Sequence[Problem]:
    return [
        Problem(str(entry.get("path") or ""), str(entry.get("rule") or ""), entry.get("got"))
        for entry in (found if isinstance(found, list) else [])
        if isinstance(entry, Mapping)
    ]


def task_body(key: Key, role: str, node: NodeId) -> dict[str, Any]:
    """Return the fields that identify a version of a task at one party."""
    return {
        "job_id": key.job_id,
        "role": role,
        "party_id": node,
        "task_id": key.task_id,
        "task_version": key.version,
    }


def failure_of(value: Any) -> Failure | None:
    """Read why something failed; None if that is not given."""
    fields = as_mapping(value)
    reason, code = fields.get("reason"), fields.get("exit_code")
    if not isinstance(reason, str) or not reason:
        return None
    words = {name: str(fields.get(name) or "") for name in ("message", "node", "role", "task")}
    exit_code = code if isinstance(code, int) and not isinstance(code, bool) else None
    return Failure(reason[:255], exit_code=exit_code, **words)


def names_in(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the names that a response lists under a key, if it does."""
    found = data.get(key)
    return tuple(map(str, found)) if isinstance(found, list) else ()


class ParticipantClient:
    """`ParticipantApi` of a node that speaks FATE's protocol."""

    def __init__(
        self, me: NodeId, caller: Caller, descriptions: Descriptions, standard: ParticipantApi, job_of: JobOf
    ) -> None:
        self._me = me
        self._caller = caller
        self._descriptions = descriptions
        self._standard = standard
        self._job_of = job_of

    def create_job(self, spec: JobSpec, sender: NodeId) -> Acceptance:
        """Create the job for each role of the node, for none if one refuses.

        Raises what the port says, and `Invalid` for an id with an underscore, at which FATE splits task ids.
        """
        if "_" in spec.job_id:
            rule = "must not contain an underscore: nodes that speak FATE's protocol split task ids at it"
            raise Invalid([Problem("job_id", rule, spec.job_id)])
        body = self._descriptions.written(spec, self._caller.node)
        roles = _roles(spec, self._caller.node) or ("",)
        data: Mapping[str, Any] = {}
        for number, role in enumerate(roles):
            try:
                response = self._caller.post(
                    f"{PARTNER}/job/create", body | self._job_body(spec.job_id, role), initiator=spec.initiator
                )
            except Refused as refused:
                self._take_back(spec.job_id, roles[:number])
                raise _explained(refused, spec.job_id) from refused
            data = as_mapping(response.get("data"))
        for role in roles:
            self._state(spec.job_id, role, JobWord.WAITING)
        inherited = names_in(data, "inherited") if isinstance(data.get("inherited"), list) else None
        waits = data.get("waits") is True
        within = as_seconds(data.get("within")) if waits else None
        return Acceptance(holds=True, waits=waits, within=within, inherited=inherited)

    def _take_back(self, job_id: str, roles: Iterable[str]) -> None:
        """Fail the job for roles that had accepted it before another one refused."""
        for role in roles:
            with suppress(GatewayError):
                self._state(job_id, role, JobWord.FAILED)

    def _state(self, job_id: str, role: str, word: JobWord) -> None:
        """Report a job's state; that it is in it already is no error."""
        try:
            self._of_role(job_id, role, "status/update", status=str(word))
        except Refused as refused:
            if refused.reason not in ("NO_EFFECT", "JOB_ENDED"):
                raise

    def dry_run(self, spec: JobSpec, sender: NodeId) -> Sequence[Item]:
        """Request it in the standard's protocol."""
        return self._standard.dry_run(spec, sender)

    def ask_first(self, spec: JobSpec, sender: NodeId) -> Acceptance | None:
        """Return None: FATE has no audit of jobs."""
        return None

    def withdraw(self, job_id: str, ending: Ending | None, sender: NodeId) -> None:
        """Nothing was asked."""

    def hold(self, job_id: str, sender: NodeId) -> None:
        """Reserve what the job needs for all roles of the node, or none. Raises `Refused` with RESOURCES_BUSY.

        If a response was lost, FATE refuses a role that holds its resources already in the same way as one that
        must wait: so all are returned, and requested once more.
        """
        try:
            self._hold(job_id)
        except NoChange:
            self.give_back(job_id, sender)
            self._hold(job_id)

    def _hold(self, job_id: str) -> None:
        roles = self._roles_of(job_id)
        for number, role in enumerate(roles):
            try:
                self._of_role(job_id, role, "resource/apply")
            except Refused:
                self._return(job_id, roles[:number])
                raise

    def give_back(self, job_id: str, sender: NodeId) -> None:
        """Return the resources of each role; that one held none is no error."""
        self._return(job_id, self._roles_of(job_id))

    def _return(self, job_id: str, roles: Iterable[str]) -> None:
        for role in roles:
            try:
                self._of_role(job_id, role, "resource/return")
            except Refused as refused:
                if refused.reason != BUSY:
                    raise

    def start_job(self, job_id: str, sender: NodeId, without: Sequence[str] = ()) -> None:
        """Start each role; ``without`` goes as ``extra_info``, which FATE's own nodes ignore."""
        more: dict[str, Any] = {"extra_info": {"without": list(without)}} if without else {}
        for role in self._roles_of(job_id):
            self._of_role(job_id, role, "start", **more)

    def _of_role(self, job_id: str, role: str, command: str, **more: Any) -> None:
        self._caller.post(f"{PARTNER}/job/{command}", {**self._job_body(job_id, role), **more})

    def _job_body(self, job_id: str, role: str) -> dict[str, Any]:
        return {"job_id": job_id, "role": role, "party_id": self._caller.node}

    def _task_body(self, key: Key, role: str, task_name: str) -> dict[str, Any]:
        return {**task_body(key, role, self._caller.node), "task_name": task_name}

    def start_task(self, job_id: str, task_id: str, task_name: str, sender: NodeId) -> None:
        """Announce a further version, request the task's resources, then start it, role by role.

        Raises `Busy` if a role gets no resources; those of the others are returned.
        """
        key = key_of(task_id, job_id)
        roles = self._roles_of(job_id, task_name)
        bodies = [self._task_body(key, role, task_name) for role in roles]
        if key.version:  # FATE needs a further version announced, and refuses one that it has
            for body in bodies:
                with suppress(Refused, NotFound):
                    rerun = {**body, "task_version": key.version - 1, "new_version": key.version}
                    self._caller.post(f"{PARTNER}/task/rerun", rerun)
        percent = self._progress_of(job_id)
        for role in roles:
            self._report_progress(self._job_body(job_id, role), percent)
        to_start: list[dict[str, Any]] = []
        for body in bodies:
            try:
                if self._allocate(body):
                    to_start.append(body)
            except Refused as refused:
                for other in to_start:  # free them for the node's other jobs
                    with suppress(GatewayError):
                        self._caller.post(f"{PARTNER}/task/resource/return", other)
                if refused.reason == BUSY:  # retried later, as FATE does
                    raise Busy(refused.message, reason=refused.reason) from refused
                raise
        for body in to_start:
            self._report_task(body, TaskWord.RUNNING)
            self._caller.post(f"{PARTNER}/task/start", body)

    def _allocate(self, body: dict[str, Any]) -> bool:
        """Request a task's resources for a role; False if the task has started there already.

        As with a job's, FATE refuses a role in the same way if it has them by a request whose response was lost.
        """
        try:
            self._caller.post(f"{PARTNER}/task/resource/apply", body)
        except NoChange:
            word = as_mapping(self._caller.post(f"{PARTNER}/task/collect", body).get("data")).get("party_status")
            if word != TaskWord.WAITING and word in list(TaskWord):
                return False
            with suppress(Refused):  # it had none
                self._caller.post(f"{PARTNER}/task/resource/return", body)
            self._caller.post(f"{PARTNER}/task/resource/apply", body)
        return True

    def _progress_of(self, job_id: str) -> int:
        job = self._job_of(job_id)
        return 0 if job is None else job.progress

    def _report_progress(self, body: Mapping[str, Any], percent: int) -> None:
        """Report a job's progress above 0, which FATE shows."""
        if percent:
            with suppress(Refused, NotFound):
                self._caller.post(f"{PARTNER}/job/update", {**body, "progress": float(percent)})

    def _report_task(self, body: Mapping[str, Any], word: TaskWord) -> None:
        """Report a task's state at all nodes together, which FATE shows and depends on at a stop."""
        with suppress(Refused, NotFound):
            self._caller.post(f"{PARTNER}/task/status/update", {**body, "status": str(word)})

    def poll_task(self, task_id: str, role: str, sender: NodeId) -> TaskNews:
        """Request ``task/collect``. Raises `Invalid` (STATUS_UNKNOWN) for a state that FATE does not have."""
        key = key_of(task_id)
        response = self._caller.post(f"{PARTNER}/task/collect", task_body(key, role, self._caller.node))
        data = as_mapping(response.get("data"))
        word = data.get("party_status") or data.get("status")
        if (
            word == TaskWord.WAITING
        ):  # it has the task since the job was created; a start makes it running immediately
            text = f"task {task_id} has not been started at {self._caller.node}"
            raise NotFound(text, reason="TASK_UNKNOWN")
        try:
            status = OUR_TASK[TaskWord(str(word))]
        except ValueError:
            rule = f"must be one of {', '.join(TaskWord)}"
            raise Invalid([Problem("data.party_status", rule, word)], reason="STATUS_UNKNOWN") from None
        return TaskNews(status, _failure(data, str(word), status, self._caller.node, role))

    def stop_job(self, job_id: str, task_name: str, ending: Ending | None, sender: NodeId) -> None:
        """Report how the tasks and the job ended, then stop it; or stop the newest version of one task."""
        if task_name:
            key = key_of(telling(job_id, task_name, 0), job_id)
            for role in self._roles_of(job_id, task_name):
                self._caller.post(
                    f"{PARTNER}/task/stop", {**self._task_body(key, role, task_name), "newest": True}
                )
            return
        self._report_tasks(job_id, ending)
        more: dict[str, Any] = {}
        if ending is not None:
            more["status"] = str(job_word(JobStatus.FINISHED, ending.outcome, ending.failure))
            if ending.failure is not None:
                more["failed_by"] = told(ending.failure.as_dict())
        percent = 100 if ending is not None and ending.outcome is Outcome.SUCCEEDED else self._progress_of(job_id)
        for role in self._roles_of(job_id):
            body = {**self._job_body(job_id, role), **more}
            self._report_progress(body, percent)
            if ending is not None:
                with suppress(Refused):
                    self._caller.post(f"{PARTNER}/job/status/update", body)
            self._caller.post(f"{PARTNER}/job/stop", body)

    def _report_tasks(self, job_id: str, ending: Ending | None) -> None:
        """Report how each task has ended, or ends with the job, before the job ends there."""
        job = self._job_of(job_id)
        for task in job.tasks.values() if job is not None else ():
            part = task.nodes.get(self._caller.node)
            word = _end_of(task, ending)
            if part is None or not part.start.tries or word is None:
                continue
            key = key_of(task.task_id, job_id)
            for role in part.roles:
                self._report_task(self._task_body(key, role, task.name), word)

    def stop_task(self, job_id: str, task_id: str, task_name: str, sender: NodeId) -> None:
        """Cancel the task at each role that has it."""
        key = key_of(task_id, job_id)
        for role in self._roles_of(job_id or key.job_id, task_name):
            body = {**self._task_body(key, role, task_name), "status": str(TaskWord.CANCELED)}
            self._caller.post(f"{PARTNER}/task/stop", body)

    def delete_job(self, job_id: str, dry_run: bool, sender: NodeId) -> None:
        """Request it in the standard's protocol. Raises `NotServed` by FATE's own nodes."""
        self._standard.delete_job(job_id, dry_run, sender)

    def _roles_of(self, job_id: str, task_name: str = "") -> tuple[str, ...]:
        """Return the roles of the node in a job that this node schedules; of another job one without a name."""
        job = self._job_of(job_id)
        if job is None:
            return ("",)
        part = _part(job, task_name, self._caller.node)
        return tuple(part) or _roles(job.spec, self._caller.node)


def _explained(refused: Refused, job_id: str) -> Refused:
    """Add the cause to a refusal if FATE gives none and its database cannot store the job's id."""
    if refused.reason != Refused.reason or len(job_id) <= LONGEST_JOB_ID:
        return refused
    text = f"{refused.message}. The job's id has {len(job_id)} characters, FATE's databases keep {LONGEST_JOB_ID}"
    return Refused(
        f"{text}: submit it with a shorter one, or at this node, which makes one", reason="JOB_ID_TOO_LONG"
    )


def _end_of(task: Task, ending: Ending | None) -> TaskWord | None:
    """Return how a task ended, or ends with such a job; None if it does not."""
    if task.status in (TaskStatus.SUCCESS, TaskStatus.FAILED):
        return task_word(task.status, task.failure)
    if ending is None or ending.outcome is Outcome.SUCCEEDED:
        return None
    return TaskWord.CANCELED if ending.outcome is Outcome.STOPPED else TaskWord.FAILED


def _part(job: Job, task_name: str, node: NodeId) -> Iterable[str]:
    task = job.tasks.get(task_name)
    part = task.nodes.get(node) if task is not None else None
    return part.roles if part is not None else ()


def _roles(spec: JobSpec, node: NodeId) -> tuple[str, ...]:
    return tuple(dict.fromkeys(party.role for party in spec.parties_at(node)))


def _failure(data: Mapping[str, Any], word: str, status: TaskStatus, node: NodeId, role: str) -> Failure | None:
    """Return why a task failed: as a gateway like this one reports it, else FATE's word."""
    if status is not TaskStatus.FAILED:
        return None
    return failure_of(data.get("failed_by")) or Failure(REASONS[word], f"{word} at {node}", node, role)


_LONGEST_ID = 100
_NOT_ASKED = (Refused.reason, NotServed.reason, "NO_ENVELOPE")
"""reasons with which a node refuses a request that it does not know"""
_OWN_IDS = (
    "FATE gives a job an id of its own: flow job list shows it there, and here if this node has a part in it"
)


class SchedulerClient:
    """`SchedulerApi` of a node that speaks FATE's protocol."""

    def __init__(
        self,
        me: NodeId,
        caller: Caller,
        descriptions: Descriptions,
        standard: SchedulerApi,
        protocol_of: Callable[[str], str],
    ) -> None:
        """``protocol_of`` returns the protocol of a job here by its id."""
        self._me = me
        self._caller = caller
        self._descriptions = descriptions
        self._standard = standard
        self._protocol_of = protocol_of

    def submit_job(self, spec: JobSpec, sender: NodeId) -> str:
        """Submit the job; return the id it has there, which FATE makes itself.

        Raises what the port says, and `Refused` (NO_ENVELOPE) for an invalid id. A lost response is
        `PeerUnreachable` that says so: to submit again could create a second job.
        """
        with traced(spec.trace_id):
            body = self._descriptions.written(spec, self._caller.node)
            try:
                response = self._caller.post(
                    f"{SCHEDULER}/job/create", body, initiator=spec.initiator, timeout_factor=3.0
                )
            except PeerUnreachable as error:
                if not error.delivered:
                    raise
                text = f"{error.message}. It may have accepted the job: look there before submitting it again"
                raise PeerUnreachable(f"{text}. {_OWN_IDS}", reason=error.reason) from error
        there = response.get("job_id") or spec.job_id
        if not isinstance(there, str) or name_rule(there, _LONGEST_ID):
            text = f"{self._caller.node} accepted the job with an invalid id: {str(there)[:40]!r}"
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
        except _NoEffect as error:
            if word is TaskWord.RUNNING or report.tries >= _TRIES:
                return  # it is known already
            # or FATE was about to record that the task runs, and dropped its end
            raise Busy(error.message, reason=error.reason) from error

    def _report(self, report: TaskReport, word: TaskWord) -> None:
        key = key_of(report.task_id)
        key = key if key.job_id else key_of(report.task_id, report.job_id)
        body = {**task_body(key, report.role, self._me), "status": str(word)}
        if report.failure is not None and word is not TaskWord.RUNNING:
            body["failed_by"] = told(report.failure.as_dict())
        try:
            self._caller.post(f"{SCHEDULER}/task/report", body)
        except Refused as refused:
            if refused.reason == "NO_EFFECT":
                raise _NoEffect(refused.message) from refused
            raise

    def job_status(self, job_id: str, sender: NodeId) -> JobView:
        """Request it in the standard's protocol. Raises `NotServed` by FATE's own nodes."""
        if self._protocol_of(job_id) == PROTOCOL:
            raise NotServed(f"{self._caller.node} reports a job's state by itself, and is not asked for it")
        try:
            return self._standard.job_status(job_id, sender)
        except Refused as refused:
            if refused.reason not in _NOT_ASKED:
                raise
            text = (
                f"{self._caller.node} does not tell how job {job_id} stands: FATE's protocol has no such question"
            )
            raise NotServed(f"{text}. {_OWN_IDS}") from refused

    def stop_job(self, job_id: str, task_name: str, sender: NodeId) -> None:
        """Cancel the job; a single task is stopped in the standard's protocol."""
        if task_name:
            self._standard.stop_job(job_id, task_name, sender)
            return
        body = {"job_id": self._there(job_id), "stop_status": str(JobWord.CANCELED)}
        self._caller.post(f"{SCHEDULER}/job/stop", body)

    def rerun_job(self, wanted: Order, sender: NodeId) -> RerunResult:
        """Run it again; FATE does so under the same id, which is then the result's."""
        body = {
            "job_id": self._there(wanted.job_id),
            "new_job_id": wanted.new_job_id,
            "from": wanted.start,
            "parameters": wanted.parameters,
        }
        response = self._caller.post(f"{SCHEDULER}/job/rerun", body, timeout_factor=3.0)
        data = as_mapping(response.get("data"))
        job_id = str(data.get("job_id") or wanted.job_id)
        return RerunResult(job_id, str(data.get("from") or ""), names_in(data, "runs"), names_in(data, "inherits"))

    def suspend_job(self, job_id: str, on: bool, sender: NodeId) -> None:
        """Request it in the standard's protocol. Raises `NotServed` by FATE's own nodes."""
        self._standard.suspend_job(job_id, on, sender)

    def confirm_job(self, job_id: str, failure: Failure | None, sender: NodeId, audit: str = "") -> None:
        """Report a rejection by stopping the job; an approval FATE learns when it requests resources again."""
        if self._protocol_of(job_id) != PROTOCOL:
            self._standard.confirm_job(job_id, failure, sender, audit)
        elif failure is not None:
            self.stop_job(job_id, "", sender)

    def resources_free(self, job_id: str, sender: NodeId) -> None:
        """Report it in the standard's protocol; not of FATE's jobs: FATE requests them again by itself."""
        if self._protocol_of(job_id) != PROTOCOL:
            self._standard.resources_free(job_id, sender)

    def _there(self, job_id: str) -> str:
        """Return a job's id at the node: FATE restarts a job under the same id."""
        return original(job_id) if self._protocol_of(job_id) == PROTOCOL else job_id


_TRIES = 3
"""of reporting an end that has no effect, by when FATE has recorded that the task runs"""


class _NoEffect(Refused):
    """The node knew it, or a later state, already."""

    reason = "NO_EFFECT"


class FateProtocol:
    """Makes clients. A container's environment is the standard's, whoever schedules."""

    name = PROTOCOL
    numbers_tasks = True

    def __init__(
        self,
        me: NodeId,
        descriptions: Descriptions,
        standard: Standard,
        send: Send,
        signatures: Signatures,
        job_of: JobOf,
        protocol_of: Callable[[str], str],
    ) -> None:
        self._me = me
        self._descriptions = descriptions
        self._standard = standard
        self._send = send
        self._signatures = signatures
        self._job_of = job_of
        self._protocol_of = protocol_of

    def scheduler(self, node: NodeId) -> SchedulerApi:
        """Return a client for a node that schedules."""
        beside = self._standard.scheduler(node)
        return SchedulerClient(self._me, self._caller(node), self._descriptions, beside, self._protocol_of)

    def participant(self, node: NodeId) -> ParticipantApi:
        """Return a client for a node that takes part."""
        beside = self._standard.participant(node)
        return ParticipantClient(self._me, self._caller(node), self._descriptions, beside, self._job_of)

    def environment(self, local: LocalJob, run: Run, site: Site) -> dict[str, str]:
        """Return the standard's variables for a run's container."""
        return self._standard.environment(local, run, site)

    def request(self, spec: JobSpec) -> dict[str, Any]:
        """Return the job as FATE's description has it."""
        return self._descriptions.written(spec)

    def _caller(self, node: NodeId) -> Caller:
        return Caller(node, self._send, self._signatures.sign)
