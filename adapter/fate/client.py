"""Calls nodes that speak FATE's protocol: `ParticipantApi` over it; `scheduler_client` has the other.

FATE is told of each role of a node by itself, and of a task by its version. What it has no words for (a job's
state, suspension, approval, deletion) is asked in the standard's, which a gateway like this one understands at the
same address; FATE's own nodes do not serve it, which is no error where nothing depends on it.
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
from gateway.domain.rerun import Order, RerunAnswer
from gateway.domain.reservations import BUSY
from gateway.domain.retries import telling
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Ending, Failure, JobSpec, NodeId
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import Busy, GatewayError, Invalid, NotAllowed, NotFound, NotServed, PeerUnreachable, Refused
from gateway.ports import JobView, ParticipantApi, SchedulerApi, Site, TaskNews, TaskReport, as_mapping, as_seconds
from gateway.runtime.context import traced

Sign = Callable[[NodeId, NodeId], Mapping[str, str]]
"""Return the headers that sign a request to a node in an initiator's name; none where it asks for none."""


class NoChange(Refused):
    """FATE gave or took nothing: it has too little free, or what is asked for is held (or returned) already."""


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
    """The way to one node."""

    def __init__(self, node: NodeId, send: Send, sign: Sign) -> None:
        self.node = node
        self._send = send
        self._sign = sign

    def post(
        self, path: str, body: Mapping[str, Any], *, initiator: NodeId = "", patience: float = 1.0
    ) -> Mapping[str, Any]:
        """Return the whole answer of a success. Raises `Refused`, `NotFound`, `PeerUnreachable` and their like."""
        headers = {
            "dest-party-id": self.node,
            "service": "fateflow",
            "initiator-party-id": initiator,
            **self._sign(self.node, initiator),
        }
        status, answer = self._send(self.node, path, body, headers, patience)
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
    said = f"{node}: {answer.get('message') or answer.get('msg') or f'code {code}'}"
    reason = data.get("reason")
    if isinstance(reason, str) and reason:
        problems = _problems(data.get("problems"))
        if data.get("status") == Invalid.code and problems:
            return Invalid(problems, reason=reason)
        if reason in ("PATH_UNKNOWN", "METHOD_NOT_ALLOWED", "NOT_SERVED_HERE"):
            return NotServed(said)
        kinds: dict[Any, type[GatewayError]] = {NotAllowed.code: NotAllowed, NotFound.code: NotFound}
        return kinds.get(data.get("status"), Refused)(said, reason=reason)
    if status in (404, 405, 501) or (code == Code.EXCEPTION and _NO_PATH.search(said)):
        return NotServed(f"{node} does not serve {path}")
    kind, reason = _KINDS.get(code if isinstance(code, int) else -1, (Refused, Refused.reason))
    return kind(said, reason=reason)


def _problems(found: Any) -> Sequence[Problem]:
    return [
        Problem(str(entry.get("path") or ""), str(entry.get("rule") or ""), entry.get("got"))
        for entry in (found if isinstance(found, list) else [])
        if isinstance(entry, Mapping)
    ]


def task_body(key: Key, role: str, node: NodeId) -> dict[str, Any]:
    """Return how a version of a task at one party is named in a body."""
    return {
        "job_id": key.job_id,
        "role": role,
        "party_id": node,
        "task_id": key.task_id,
        "task_version": key.version,
    }


def failure_of(told: Any) -> Failure | None:
    """Read why something failed; None where that is not told."""
    said = as_mapping(told)
    reason, code = said.get("reason"), said.get("exit_code")
    if not isinstance(reason, str) or not reason:
        return None
    words = {name: str(said.get(name) or "") for name in ("message", "node", "role", "task")}
    exit_code = code if isinstance(code, int) and not isinstance(code, bool) else None
    return Failure(reason[:255], exit_code=exit_code, **words)


def names_in(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the names that an answer lists under a key; none where it has no such list."""
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
        """Tell each role of the node, then that they wait; what some took is taken back where one refuses.

        Raises what the port says, and `Invalid` for an id with an underscore, by which FATE tells tasks apart.
        """
        if "_" in spec.job_id:
            rule = "must not hold an underscore: nodes that speak FATE's protocol tell tasks apart by it"
            raise Invalid([Problem("job_id", rule, spec.job_id)])
        body = self._descriptions.written(spec, self._caller.node)
        roles = _roles(spec, self._caller.node) or ("",)
        data: Mapping[str, Any] = {}
        for number, role in enumerate(roles):
            at = {"job_id": spec.job_id, "role": role, "party_id": self._caller.node}
            try:
                said = self._caller.post(f"{PARTNER}/job/create", body | at, initiator=spec.initiator)
            except Refused as refused:
                self._take_back(spec.job_id, roles[:number])
                raise _explained(refused, spec.job_id) from refused
            data = as_mapping(said.get("data"))
        for role in roles:
            self._state(spec.job_id, role, JobWord.WAITING)
        inherited = names_in(data, "inherited") if isinstance(data.get("inherited"), list) else None
        waits = data.get("waits") is True
        within = as_seconds(data.get("within")) if waits else None
        return Acceptance(holds=True, waits=waits, within=within, inherited=inherited)

    def _take_back(self, job_id: str, roles: Iterable[str]) -> None:
        """End the job for roles that had taken it before another one refused."""
        for role in roles:
            with suppress(GatewayError):
                self._state(job_id, role, JobWord.FAILED)

    def _state(self, job_id: str, role: str, word: JobWord, **more: Any) -> None:
        """Tell a job's state; that it is so already is no error."""
        try:
            body = {"job_id": job_id, "role": role, "party_id": self._caller.node, "status": str(word), **more}
            self._caller.post(f"{PARTNER}/job/status/update", body)
        except Refused as refused:
            if refused.reason not in ("NO_EFFECT", "JOB_ENDED"):
                raise

    def foretell(self, spec: JobSpec, sender: NodeId) -> Sequence[Item]:
        """Ask in the standard's words."""
        return self._standard.foretell(spec, sender)

    def ask_first(self, spec: JobSpec, sender: NodeId) -> Acceptance | None:
        """Return None: FATE has no audit of jobs."""
        return None

    def withdraw(self, job_id: str, ending: Ending | None, sender: NodeId) -> None:
        """Nothing was asked."""

    def hold(self, job_id: str, sender: NodeId) -> None:
        """Have all roles of the node hold what the job needs, or none. Raises `Refused` with RESOURCES_BUSY.

        FATE refuses a role that holds it already, because an answer was lost, in the words that it has for one
        that must wait: so all is given back, and asked for once more.
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
        """Return the resources of each role; FATE says no where it held none, which is no error."""
        self._return(job_id, self._roles_of(job_id))

    def _return(self, job_id: str, roles: Iterable[str]) -> None:
        for role in roles:
            try:
                self._of_role(job_id, role, "resource/return")
            except Refused as refused:
                if refused.reason != BUSY:
                    raise

    def start_job(self, job_id: str, sender: NodeId, without: Sequence[str] = ()) -> None:
        """Start each role; ``without`` goes as ``extra_info``, which FATE's own nodes leave aside."""
        more: dict[str, Any] = {"extra_info": {"without": list(without)}} if without else {}
        self._of_job(job_id, "start", **more)

    def _of_job(self, job_id: str, command: str, **more: Any) -> None:
        """Tell every role of the node something about a job."""
        for role in self._roles_of(job_id):
            self._of_role(job_id, role, command, **more)

    def _of_role(self, job_id: str, role: str, command: str, **more: Any) -> None:
        self._caller.post(
            f"{PARTNER}/job/{command}", {"job_id": job_id, "role": role, "party_id": self._caller.node, **more}
        )

    def start_task(self, job_id: str, task_id: str, task_name: str, sender: NodeId) -> None:
        """Tell of a further version, apply for the task's resources, then start it, role by role.

        Raises `Busy` where a role gets no resources; what the others got is given back.
        """
        key = key_of(task_id, job_id)
        roles = self._roles_of(job_id, task_name)
        bodies = [{**task_body(key, role, self._caller.node), "task_name": task_name} for role in roles]
        if key.version:  # FATE has to be told of a further version before; of one that it has it says no
            for body in bodies:
                with suppress(Refused, NotFound):
                    told = {**body, "task_version": key.version - 1, "new_version": key.version}
                    self._caller.post(f"{PARTNER}/task/rerun", told)
        percent = self._progress_of(job_id)
        for role in roles:
            self._tell_progress({"job_id": job_id, "role": role, "party_id": self._caller.node}, percent)
        to_start: list[dict[str, Any]] = []
        for body in bodies:
            try:
                if self._has_room(body):
                    to_start.append(body)
            except Refused as refused:
                for other in to_start:  # what its other roles got must not be kept from its other jobs
                    with suppress(GatewayError):
                        self._caller.post(f"{PARTNER}/task/resource/return", other)
                if refused.reason == BUSY:  # asked again in a while, as FATE does
                    raise Busy(refused.message, reason=refused.reason) from refused
                raise
        for body in to_start:
            self._tell_task(body, TaskWord.RUNNING)
            self._caller.post(f"{PARTNER}/task/start", body)

    def _has_room(self, body: dict[str, Any]) -> bool:
        """Apply for a task's resources at a role; False where the task has begun there already.

        As with a job's, FATE refuses in one and the same way who has them by a request whose answer was lost.
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

    def _tell_progress(self, body: Mapping[str, Any], percent: int) -> None:
        """Tell how far a job is, once it has got anywhere; FATE shows it to its people, and does not ask."""
        if percent:
            with suppress(Refused, NotFound):
                self._caller.post(f"{PARTNER}/job/update", {**body, "progress": float(percent)})

    def _tell_task(self, body: Mapping[str, Any], word: TaskWord) -> None:
        """Tell how a task is at all nodes together; FATE shows it to its people and goes by it at a stop."""
        with suppress(Refused, NotFound):
            self._caller.post(f"{PARTNER}/task/status/update", {**body, "status": str(word)})

    def poll_task(self, task_id: str, role: str, sender: NodeId) -> TaskNews:
        """Ask by ``task/collect``. Raises `Invalid` (STATUS_UNKNOWN) for a word that FATE does not have."""
        key = key_of(task_id)
        said = self._caller.post(f"{PARTNER}/task/collect", task_body(key, role, self._caller.node))
        data = as_mapping(said.get("data"))
        word = data.get("party_status") or data.get("status")
        if word == TaskWord.WAITING:  # it has the task from the job on; a start makes it running at once
            text = f"task {task_id} has not been started at {self._caller.node}"
            raise NotFound(text, reason="TASK_UNKNOWN")
        try:
            status = OUR_TASK[TaskWord(str(word))]
        except ValueError:
            rule = f"must be one of {', '.join(TaskWord)}"
            raise Invalid([Problem("data.party_status", rule, word)], reason="STATUS_UNKNOWN") from None
        return TaskNews(status, _failure(data, str(word), status, self._caller.node, role))

    def stop_job(self, job_id: str, task_name: str, ending: Ending | None, sender: NodeId) -> None:
        """Tell each role how its tasks and the job ended, then to stop; or stop the newest version of one task."""
        if task_name:
            key = key_of(telling(job_id, task_name, 0), job_id)
            for role in self._roles_of(job_id, task_name):
                body = {**task_body(key, role, self._caller.node), "task_name": task_name, "newest": True}
                self._caller.post(f"{PARTNER}/task/stop", body)
            return
        self._tell_tasks(job_id, ending)
        more: dict[str, Any] = {}
        if ending is not None:
            more["status"] = str(job_word(JobStatus.FINISHED, ending.outcome, ending.failure))
            if ending.failure is not None:
                more["failed_by"] = told(ending.failure.as_dict())
        percent = 100 if ending is not None and ending.outcome is Outcome.SUCCEEDED else self._progress_of(job_id)
        for role in self._roles_of(job_id):
            body = {"job_id": job_id, "role": role, "party_id": self._caller.node, **more}
            self._tell_progress(body, percent)
            if ending is not None:
                with suppress(Refused):
                    self._caller.post(f"{PARTNER}/job/status/update", body)
            self._caller.post(f"{PARTNER}/job/stop", body)

    def _tell_tasks(self, job_id: str, ending: Ending | None) -> None:
        """Tell how each task has ended at all nodes together, or ends with the job, before the job ends there."""
        job = self._job_of(job_id)
        for task in job.tasks.values() if job is not None else ():
            part = task.nodes.get(self._caller.node)
            word = _end_of(task, ending)
            if part is None or not part.start.tries or word is None:
                continue
            key = key_of(task.task_id, job_id)
            for role in part.roles:
                body = {**task_body(key, role, self._caller.node), "task_name": task.name}
                self._tell_task(body, word)

    def stop_task(self, job_id: str, task_id: str, task_name: str, sender: NodeId) -> None:
        """Cancel the task at each role that has it."""
        key = key_of(task_id, job_id)
        for role in self._roles_of(job_id or key.job_id, task_name):
            body = {**task_body(key, role, self._caller.node), "task_name": task_name}
            self._caller.post(f"{PARTNER}/task/stop", {**body, "status": str(TaskWord.CANCELED)})

    def delete_job(self, job_id: str, dry_run: bool, sender: NodeId) -> None:
        """Ask in the standard's words. Raises `NotServed` by FATE's own nodes."""
        self._standard.delete_job(job_id, dry_run, sender)

    def _roles_of(self, job_id: str, task_name: str = "") -> tuple[str, ...]:
        """Return the roles of the node in a job that this node schedules; one without a name where it does not."""
        job = self._job_of(job_id)
        if job is None:
            return ("",)
        part = _part(job, task_name, self._caller.node)
        return tuple(part) or _roles(job.spec, self._caller.node)


def _explained(refused: Refused, job_id: str) -> Refused:
    """Return a refusal with its cause where FATE names none and its database cannot keep the job's id."""
    if refused.reason != Refused.reason or len(job_id) <= LONGEST_JOB_ID:
        return refused
    text = f"{refused.message}. The job's id has {len(job_id)} characters, FATE's databases keep {LONGEST_JOB_ID}"
    return Refused(
        f"{text}: hand it in under a shorter one, or at this node, which makes one", reason="JOB_ID_TOO_LONG"
    )


def _end_of(task: Task, ending: Ending | None) -> TaskWord | None:
    """Return how a task ended, or ends with a job that ends so; None where it does not."""
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
    """Return why a task failed: what a gateway like this one tells, else FATE's word for it."""
    if status is not TaskStatus.FAILED:
        return None
    return failure_of(data.get("failed_by")) or Failure(REASONS[word], f"{word} at {node}", node, role)


# Calls nodes that schedule and speak FATE's protocol: `SchedulerApi` over it.
#
# What FATE has no words for is asked in the standard's, as in `client`.

_LONGEST_ID = 100
_NOT_ASKED = (Refused.reason, NotServed.reason, "NO_ENVELOPE")
"""reasons of refusals that come from a node which does not know the question"""
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
        """``protocol_of`` tells of a job here by its id which protocol it runs."""
        self._me = me
        self._caller = caller
        self._descriptions = descriptions
        self._standard = standard
        self._protocol_of = protocol_of

    def submit_job(self, spec: JobSpec, sender: NodeId) -> str:
        """Hand the job in; return the id it has there, which FATE makes itself.

        Raises what the port says, and `Refused` (NO_ENVELOPE) for an id that none can have. An answer that is lost
        is `PeerUnreachable` that says so: handing in again could make a second job.
        """
        with traced(spec.trace_id):
            body = self._descriptions.written(spec, self._caller.node)
            try:
                said = self._caller.post(f"{SCHEDULER}/job/create", body, initiator=spec.initiator, patience=3.0)
            except PeerUnreachable as error:
                if not error.delivered:
                    raise
                text = f"{error.message}. It may have taken the job: look there before it is handed in again"
                raise PeerUnreachable(f"{text}. {_OWN_IDS}", reason=error.reason) from error
        there = said.get("job_id") or spec.job_id
        if not isinstance(there, str) or name_rule(there, _LONGEST_ID):
            text = f"{self._caller.node} took the job under an id that none can have: {str(there)[:40]!r}"
            raise Refused(text, reason="NO_ENVELOPE")
        return there

    def report_task(self, report: TaskReport, sender: NodeId) -> None:
        """Tell a task's state; FATE has to know that it runs before it lets it fail.

        Raises `Busy` where an end had no effect, to be told again, up to a bound.
        """
        word = task_word(report.status, report.failure)
        if report.status is TaskStatus.FAILED:  # FATE lets no task fail that it does not know to run
            with suppress(Refused):
                self._report(report, TaskWord.RUNNING)
        try:
            self._report(report, word)
        except _NoEffect as error:
            if word is TaskWord.RUNNING or report.tries >= _TRIES:
                return  # it is known already
            # or FATE was about to note that the task runs, and dropped its end
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
        """Ask in the standard's words.

        Raises `NotServed` where the node is FATE's own: it has no such question.
        """
        if self._protocol_of(job_id) == PROTOCOL:
            raise NotServed(f"{self._caller.node} tells a job's state by itself, and is not asked for it")
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
        """Cancel the job; a single task is stopped in the standard's words."""
        if task_name:
            self._standard.stop_job(job_id, task_name, sender)
            return
        body = {"job_id": self._there(job_id), "stop_status": str(JobWord.CANCELED)}
        self._caller.post(f"{SCHEDULER}/job/stop", body)

    def rerun_job(self, wanted: Order, sender: NodeId) -> RerunAnswer:
        """Have it run again; FATE does so under the same id, which is then the answer's."""
        body = {"job_id": self._there(wanted.job_id), "new_job_id": wanted.new_job_id, "from": wanted.start}
        body = {**body, "parameters": wanted.parameters}  # type: ignore[dict-item]
        said = self._caller.post(f"{SCHEDULER}/job/rerun", body, patience=3.0)
        data = as_mapping(said.get("data"))
        job_id = str(data.get("job_id") or wanted.job_id)  # FATE runs it again under the same id
        return RerunAnswer(job_id, str(data.get("from") or ""), names_in(data, "runs"), names_in(data, "inherits"))

    def suspend_job(self, job_id: str, on: bool, sender: NodeId) -> None:
        """Ask in the standard's words. Raises `NotServed` by FATE's own nodes."""
        self._standard.suspend_job(job_id, on, sender)

    def confirm_job(self, job_id: str, failure: Failure | None, sender: NodeId, audit: str = "") -> None:
        """Tell a refusal by stopping the job; a yes FATE learns when it asks for resources again."""
        if self._protocol_of(job_id) != PROTOCOL:
            self._standard.confirm_job(job_id, failure, sender, audit)
        elif failure is not None:  # a yes FATE learns when it asks for a task's resources again
            self.stop_job(job_id, "", sender)

    def resources_free(self, job_id: str, sender: NodeId) -> None:
        """Tell in the standard's words; not of FATE's jobs: FATE asks again by itself."""
        if self._protocol_of(job_id) != PROTOCOL:  # FATE asks again by itself
            self._standard.resources_free(job_id, sender)

    def _there(self, job_id: str) -> str:
        """Return a job's id at the node: FATE begins a job again under the same."""
        return original(job_id) if self._protocol_of(job_id) == PROTOCOL else job_id


_TRIES = 3
"""of telling an end that has no effect, at the pauses of every call: FATE has noted by then what it was to"""


class _NoEffect(Refused):
    """The node knew it already, or something later."""

    reason = "NO_EFFECT"


class FateProtocol:
    """Hands out clients. What runs in a container is the standard's affair, whoever schedules."""

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
