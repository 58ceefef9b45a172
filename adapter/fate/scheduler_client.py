"""Calls nodes that schedule and speak FATE's protocol: `SchedulerApi` over it.

What FATE has no words for is asked in the standard's, as in `client`.
"""

from collections.abc import Callable
from contextlib import suppress

from adapter.fate.calling import Caller
from adapter.fate.dag.description import PROTOCOL, Descriptions
from adapter.fate.endpoints import SCHEDULER
from adapter.fate.keys import key_of
from adapter.fate.reruns import original
from adapter.fate.said import names_in, task_body
from adapter.fate.states import JobWord, TaskWord, task_word
from gateway.domain.names import name_rule
from gateway.domain.outward import told
from gateway.domain.rerun import Order, RerunAnswer
from gateway.domain.spec import Failure, JobSpec, NodeId
from gateway.domain.states import TaskStatus
from gateway.errors import Busy, NotServed, PeerUnreachable, Refused
from gateway.ports import JobView, SchedulerApi, TaskReport, as_mapping
from gateway.runtime.context import traced

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
