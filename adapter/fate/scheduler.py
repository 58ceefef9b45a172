"""Client for a node that speaks FATE's protocol and schedules jobs."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from adapter.body import texts_of
from adapter.fate.calls import Caller, task_body
from adapter.fate.dag.description import Descriptions
from adapter.fate.envelope import SCHEDULER
from adapter.fate.words import PROTOCOL, JobWord, TaskWord, fate_job_id, key_of, task_word
from adapter.page import KNOWN_REASONS as PAGE_REASONS
from gateway.domain.entries import as_mapping
from gateway.domain.problems import name_rule
from gateway.domain.redaction import redacted
from gateway.domain.rerun import Order, RerunResult
from gateway.domain.spec import Failure, JobSpec, NodeId
from gateway.domain.states import TaskStatus
from gateway.errors import Busy, NotServed, PeerUnreachable, Refused
from gateway.ports import JobView, SchedulerApi, TaskReport
from gateway.runtime.context import traced

# Reasons with which a node refuses a request that it does not know.
_UNKNOWN_REQUEST = (Refused.reason, NotServed.reason, "NO_ENVELOPE", *PAGE_REASONS)

_TRIES = 3  # of reporting an end, which FATE-Flow may drop in a race of its own threads

_LONGEST_ID = 100  # characters of a job's id

_CREATION_FACTOR = 3.0  # of the route's timeout, for requests that create a job

_FATE_IDS = (
    "FATE gives a job an id of its own: flow job list shows it there, and here if this node has "
    "a part in it"
)


@dataclass(frozen=True)
class SchedulerClient:
    """`SchedulerApi` of a node that speaks FATE's protocol."""

    me: NodeId
    caller: Caller
    descriptions: Descriptions
    standard: SchedulerApi  # of the same node, in the standard's protocol
    protocol_of: Callable[[str], str]  # returns the protocol of a job of this node by its id

    def submit_job(self, spec: JobSpec, sender: NodeId) -> str:
        """Submit the job and return the id that FATE gives it.

        Raises the port's errors, and `Refused` (NO_ENVELOPE) for an invalid id. If the response was
        lost, the text of `PeerUnreachable` warns that submitting again could create a second job.
        """
        with traced(spec.trace_id):
            response = self._submit(spec)
        job_id = response.get("job_id") or spec.job_id
        if not isinstance(job_id, str) or name_rule(job_id, _LONGEST_ID):
            text = f"{self.caller.node} accepted the job with an invalid id: {str(job_id)[:40]!r}"
            raise Refused(text, reason="NO_ENVELOPE")
        return job_id

    def _submit(self, spec: JobSpec) -> Mapping[str, Any]:
        """Send the job and return the complete response. Raises as `submit_job` does."""
        body = self.descriptions.write(spec, self.caller.node)
        path = f"{SCHEDULER}/job/create"
        try:
            return self.caller.post(
                path,
                body,
                initiator=spec.initiator,
                timeout_factor=_CREATION_FACTOR,
            )
        except PeerUnreachable as error:
            if not error.delivered:
                raise
            text = (
                f"{error.message}. It may have accepted the job: look there before submitting it "
                f"again. {_FATE_IDS}"
            )
            raise PeerUnreachable(text, reason=error.reason) from error

    def report_task(self, report: TaskReport, sender: NodeId) -> None:
        """Report a task's state.

        A failed task is reported as running first: FATE lets no waiting task fail. Raises `Busy` if
        an end had no effect, so that it is reported again, up to `_TRIES` times; afterwards, a
        report without effect is ignored, as one of a running task always is.
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
            is_end = word is not TaskWord.RUNNING
            if is_end and report.tries < _TRIES:
                # FATE may have dropped the report while it recorded that the task runs.
                raise Busy(refused.message, reason=refused.reason) from refused

    def _report(self, report: TaskReport, word: TaskWord) -> None:
        """Send a task's state, with its failure if it has failed."""
        key = key_of(report.task_id)
        if not key.job_id:  # the id does not contain the job's
            key = key_of(report.task_id, report.job_id)
        body = {**task_body(key, report.role, self.me), "status": str(word)}
        if report.failure is not None and word is not TaskWord.RUNNING:
            body["failed_by"] = redacted(report.failure.as_dict())
        self.caller.post(f"{SCHEDULER}/task/report", body)

    def job_status(self, job_id: str, sender: NodeId) -> JobView:
        """Ask for a job's state in the standard's protocol.

        Raises `NotServed` for jobs of FATE's protocol, and for FATE's own nodes.
        """
        if self.protocol_of(job_id) == PROTOCOL:
            raise NotServed(
                f"{self.caller.node} reports a job's state by itself, and is not asked for it"
            )
        try:
            return self.standard.job_status(job_id, sender)
        except Refused as refused:
            if refused.reason not in _UNKNOWN_REQUEST:
                raise
            raise NotServed(
                f"{self.caller.node} does not report the state of job {job_id}: FATE's protocol "
                f"has no request for it. {_FATE_IDS}"
            ) from refused

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
        body = {
            "job_id": self._id_at_node(job_id),
            "stop_status": str(JobWord.CANCELED),
        }
        self.caller.post(f"{SCHEDULER}/job/stop", body)

    def rerun_job(self, order: Order, sender: NodeId) -> RerunResult:
        """Run a job again. FATE keeps the id of the job, so the result has the same id."""
        body = {
            "job_id": self._id_at_node(order.job_id),
            "new_job_id": order.new_job_id,
            "from": order.start,
            "parameters": order.parameters,
        }
        response = self.caller.post(
            f"{SCHEDULER}/job/rerun",
            body,
            timeout_factor=_CREATION_FACTOR,
        )
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
        """Ask in the standard's protocol."""
        return self.standard.amend_job(job_id, parameters, reason, sender)

    def suspend_job(
        self,
        job_id: str,
        should_be_suspended: bool,
        sender: NodeId,
    ) -> None:
        """Ask in the standard's protocol."""
        self.standard.suspend_job(job_id, should_be_suspended, sender)

    def confirm_job(
        self,
        job_id: str,
        failure: Failure | None,
        sender: NodeId,
        audit: str = "",
        permit: str = "",
    ) -> None:
        """Report a rejection by stopping the job.

        FATE notices an approval when it requests resources again.
        """
        if self.protocol_of(job_id) != PROTOCOL:
            self.standard.confirm_job(job_id, failure, sender, audit, permit)
        elif failure is not None:
            self.stop_job(job_id, "", sender)

    def resources_free(self, job_id: str, sender: NodeId) -> None:
        """Report free resources for jobs of the standard.

        FATE's own scheduler needs no report: it repeats its requests anyway.
        """
        if self.protocol_of(job_id) != PROTOCOL:
            self.standard.resources_free(job_id, sender)

    def _id_at_node(self, job_id: str) -> str:
        """Return the job's id at the node: at FATE, all restarts of a job have one id."""
        if self.protocol_of(job_id) == PROTOCOL:
            return fate_job_id(job_id)
        return job_id
