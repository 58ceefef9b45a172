"""Client for a node that speaks FATE's protocol and takes part in jobs."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from adapter.body import failure_of, texts_of
from adapter.fate.calls import Caller, NoChange, task_body
from adapter.fate.dag.description import Descriptions
from adapter.fate.envelope import PARTNER
from adapter.fate.words import (
    OUR_TASK_STATUS,
    REASONS_OF_ENDS,
    JobOf,
    JobWord,
    Key,
    TaskWord,
    job_word,
    key_of,
    read_word,
    task_word,
)
from gateway.domain.dry_run import Item
from gateway.domain.entries import as_mapping
from gateway.domain.job import Acceptance, Task
from gateway.domain.problems import Problem
from gateway.domain.redaction import redacted
from gateway.domain.reservations import BUSY
from gateway.domain.spec import Amendment, Ending, Failure, JobSpec, NodeId
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.domain.task_ids import numbered_id
from gateway.errors import Busy, GatewayError, Invalid, NotFound, NotServed, Refused
from gateway.ports import ParticipantApi, TaskNews, as_seconds

# Reasons with which a node refuses the report of a state that the job already has there
_SAME_STATE = ("NO_EFFECT", "JOB_ENDED")
# States of a task that was started
_STARTED_WORDS = [word for word in TaskWord if word is not TaskWord.WAITING]


@dataclass(frozen=True)
class ParticipantClient:
    """`ParticipantApi` of a node that speaks FATE's protocol."""

    caller: Caller
    descriptions: Descriptions
    standard: ParticipantApi  # the same node by the standard's protocol, for what FATE lacks
    job_of: JobOf

    def create_job(self, spec: JobSpec, sender: NodeId) -> Acceptance:
        """Create the job for each role of the node; if one role is refused, for none.

        Raises the port's errors, and `Invalid` for an id with an underscore, at which FATE splits
        task ids.
        """
        if "_" in spec.job_id:
            rule = (
                "must not contain an underscore: nodes that speak FATE's protocol split task ids "
                "at it"
            )
            raise Invalid([Problem("job_id", rule, spec.job_id)])
        roles = _roles(spec, self.caller.node) or ("",)  # "": any role
        data = self._create_for_roles(spec, roles)
        # FATE's scheduling nodes report this state to every party once all of them have the job.
        for role in roles:
            self._report_job(spec.job_id, role, JobWord.WAITING)
        return _acceptance(data)

    def _create_for_roles(
        self,
        spec: JobSpec,
        roles: Sequence[str],
    ) -> Mapping[str, Any]:
        """Create the job for each role and return the last response's data.

        If the node refuses the job for a role, the job is reported as failed for the roles before
        it, and the refusal is raised.
        """
        body = self.descriptions.write(spec, self.caller.node)
        data: Mapping[str, Any] = {}
        for number, role in enumerate(roles):
            try:
                data = self._job("create", spec.job_id, role, initiator=spec.initiator, **body)
            except Refused:
                self._report_failure(spec.job_id, roles[:number])
                raise
        return data

    def _report_failure(self, job_id: str, roles: Iterable[str]) -> None:
        """Report a job as failed for some roles, as far as possible."""
        for role in roles:
            with suppress(GatewayError):
                self._report_job(job_id, role, JobWord.FAILED)

    def _report_job(
        self,
        job_id: str,
        role: str,
        word: JobWord,
    ) -> None:
        """Report a job's state for a role, which may have that state already."""
        try:
            self._job(
                "status/update",
                job_id,
                role,
                status=str(word),
            )
        except Refused as refused:
            if refused.reason not in _SAME_STATE:
                raise

    def dry_run(self, spec: JobSpec, sender: NodeId) -> Sequence[Item]:
        """Ask in the standard's protocol."""
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
        """Do nothing: `ask_first` has sent no request that could be withdrawn."""

    def hold(self, job_id: str, sender: NodeId) -> None:
        """Reserve the job's resources for all roles of the node, or for none.

        FATE refuses a role that has its resources already, which happens if a response was lost, as
        it does for a lack of resources. So after a refusal the resources of all roles are returned,
        and requested once more. Raises `Refused` (RESOURCES_BUSY) if that is refused, too.
        """
        roles = self._roles_of(job_id)
        try:
            self._hold(job_id, roles)
        except NoChange:
            self._return(job_id, roles)
            self._hold(job_id, roles)

    def _hold(self, job_id: str, roles: Sequence[str]) -> None:
        """Reserve the job's resources for some roles.

        After a refusal, the resources of the earlier roles are returned. Raises `Refused`.
        """
        for number, role in enumerate(roles):
            try:
                self._job("resource/apply", job_id, role)
            except Refused:
                self._return(job_id, roles[:number])
                raise

    def give_back(self, job_id: str, sender: NodeId) -> None:
        """Return the job's resources for all roles of the node."""
        self._return(job_id, self._roles_of(job_id))

    def _return(self, job_id: str, roles: Iterable[str]) -> None:
        """Return the job's resources for some roles, as far as they have any."""
        for role in roles:
            try:
                self._job("resource/return", job_id, role)
            except Refused as refused:
                # If there is nothing to return, FATE refuses as it does for a lack of resources.
                had_none = refused.reason == BUSY
                if not had_none:
                    raise

    def start_job(
        self,
        job_id: str,
        sender: NodeId,
        without: Sequence[str] = (),
    ) -> None:
        """Start the job for each role.

        ``without`` is sent as ``extra_info``, which FATE's own nodes ignore.
        """
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
        """Send a command about a job and return the response's data.

        ``initiator``: of the job, for the headers of the request; empty: the headers name none.
        """
        body = {
            **fields,
            "job_id": job_id,
            "role": role,
            "party_id": self.caller.node,
        }
        response = self.caller.post(
            f"{PARTNER}/job/{command}",
            body,
            initiator=initiator,
        )
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
        """Return the fields that identify a version of a task, for each role."""
        bodies = []
        for role in roles:
            body = task_body(key, role, self.caller.node)
            body["task_name"] = task_name
            bodies.append(body)
        return bodies

    def offer_parameters(
        self,
        job_id: str,
        offered: Amendment,
        offers_in_force: Sequence[str],
        sender: NodeId,
        amended: JobSpec | None = None,
    ) -> None:
        """Raise `NotServed`: FATE has no such request."""
        raise NotServed(
            f"{self.caller.node} takes no new parameters for a job under way: FATE's protocol "
            "has none"
        )

    def start_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
        offers_in_force: Sequence[str] = (),
    ) -> None:
        """Start a version of a task for each role, once all roles have the task's resources.

        Before that, a version other than the first is announced, and the job's progress reported.
        Raises `Busy` if a role gets no resources; the resources of the other roles are returned.
        """
        key = key_of(task_id, job_id)
        roles = self._roles_of(job_id, task_name)
        bodies = self._bodies(key, roles, task_name)
        is_further_version = key.version > 0
        if is_further_version:
            self._announce_version(bodies, key.version)
        self._report_progress(job_id, roles, self._progress_of(job_id))
        for body in self._allocate_all(bodies):
            self._report_task(body, TaskWord.RUNNING)
            self._task("start", body)

    def _announce_version(
        self,
        bodies: Iterable[dict[str, Any]],
        version: int,
    ) -> None:
        """Announce a further version of a task, as FATE requires.

        This node does not know whether FATE knows the version already; if so, FATE's refusal is
        ignored.
        """
        for body in bodies:
            with suppress(Refused, NotFound):
                self._task(
                    "rerun",
                    body,
                    task_version=version - 1,
                    new_version=version,
                )

    def _allocate_all(
        self,
        bodies: Iterable[dict[str, Any]],
    ) -> list[dict[str, Any]]:
        """Request a task's resources for each role; return the bodies of the roles still to start.

        ``bodies``: the fields of the requests, for each role. Raises `Busy` if a role gets no
        resources, so that the start is retried later, as FATE does.
        """
        to_start: list[dict[str, Any]] = []
        for body in bodies:
            try:
                has_started = not self._allocate(body)
            except Refused as refused:
                self._return_all(to_start)
                if refused.reason == BUSY:
                    raise Busy(refused.message, reason=refused.reason) from refused
                raise
            if not has_started:
                to_start.append(body)
        return to_start

    def _return_all(
        self,
        bodies: Iterable[dict[str, Any]],
    ) -> None:
        """Return a task's resources for some roles, as far as possible.

        The node's other jobs may then get them.
        """
        for body in bodies:
            with suppress(GatewayError):
                self._task("resource/return", body)

    def _allocate(self, body: dict[str, Any]) -> bool:
        """Request a task's resources for a role; False if the task has already started there.

        As in `hold`, a refusal may only mean that the role has its resources already, by a request
        whose response was lost.
        """
        try:
            self._task("resource/apply", body)
        except NoChange:
            word = self._task("collect", body).get("party_status")
            if word in _STARTED_WORDS:
                return False
            with suppress(Refused):  # the role had none
                self._task("resource/return", body)
            self._task("resource/apply", body)
        return True

    def _progress_of(self, job_id: str) -> int:
        """Return the progress of a job in percent; 0 for a job that is scheduled elsewhere."""
        job = self.job_of(job_id)
        if job is None:
            return 0
        return job.progress

    def _report_progress(
        self,
        job_id: str,
        roles: Iterable[str],
        percent: int,
        **fields: Any,
    ) -> None:
        """Report the progress of a job for some roles; a progress of 0 is not reported.

        ``fields``: further fields of the requests. A refusal is ignored: FATE only displays the
        value.
        """
        if not percent:
            return
        for role in roles:
            with suppress(Refused, NotFound):
                self._job("update", job_id, role, **fields, progress=float(percent))

    def _report_task(
        self,
        body: Mapping[str, Any],
        word: TaskWord,
    ) -> None:
        """Report a task's state over all nodes, which FATE shows, and needs to stop the job.

        A refusal is ignored: the state may be the same, or the task unknown.
        """
        with suppress(Refused, NotFound):
            self._task(
                "status/update",
                body,
                status=str(word),
            )

    def poll_task(
        self,
        task_id: str,
        role: str,
        sender: NodeId,
    ) -> TaskNews:
        """Request ``task/collect``.

        Raises `Invalid` (STATUS_UNKNOWN) for a state that FATE does not have, `NotFound` for a task
        that was not started.
        """
        node = self.caller.node
        data = self._task(
            "collect",
            task_body(key_of(task_id), role, node),
        )
        word = data.get("party_status") or data.get("status")
        if word == TaskWord.WAITING:
            # FATE knows each task since the job's creation, and a started one is never `waiting`.
            text = f"task {task_id} has not been started at {node}"
            raise NotFound(text, reason="TASK_UNKNOWN")
        status = OUR_TASK_STATUS[read_word(TaskWord, word, "data.party_status")]
        if status is not TaskStatus.FAILED:
            return TaskNews(status)
        failure = failure_of(data.get("failed_by"))
        if failure is None:  # from FATE's own node
            failure = Failure(REASONS_OF_ENDS[str(word)], f"{word} at {node}", node, role)
        return TaskNews(status, failure)

    def stop_job(
        self,
        job_id: str,
        task_name: str,
        ending: Ending | None,
        sender: NodeId,
    ) -> None:
        """Report how a job and its tasks ended, and stop it; or stop only one of its tasks.

        ``task_name``: the task to stop, in its newest version; empty: the job.
        """
        roles = self._roles_of(job_id, task_name)
        if task_name:
            # The version in this id does not matter: with ``newest``, the newest one is stopped.
            key = key_of(numbered_id(job_id, task_name, 0), job_id)
            for body in self._bodies(key, roles, task_name):
                self._task("stop", body, newest=True)
            return
        self._report_tasks(job_id, ending)
        self._end_job(job_id, roles, ending)

    def _end_job(
        self,
        job_id: str,
        roles: Iterable[str],
        ending: Ending | None,
    ) -> None:
        """Report progress and end of a job for each role, and stop it.

        ``ending``: None for a stop before the job's end.
        """
        end_fields = _end_fields(ending)
        percent = self._progress_of(job_id)
        has_succeeded = ending is not None and ending.outcome is Outcome.SUCCEEDED
        if has_succeeded:
            percent = 100
        for role in roles:
            self._report_progress(job_id, [role], percent, **end_fields)
            if ending is not None:
                with suppress(Refused):  # the job has ended there
                    self._job("status/update", job_id, role, **end_fields)
            self._job("stop", job_id, role, **end_fields)

    def _report_tasks(self, job_id: str, ending: Ending | None) -> None:
        """Report how each task that was started at the node has ended, or ends with the job.

        Nothing is reported about a job that is scheduled elsewhere.
        """
        job = self.job_of(job_id)
        if job is None:
            return
        for task in job.tasks.values():
            word = _end_word(task, ending)
            if word is not None:
                key = key_of(task.task_id, job_id)
                for body in self._bodies(key, self._started_roles(task), task.name):
                    self._report_task(body, word)

    def _started_roles(self, task: Task) -> Iterable[str]:
        """Return the node's roles in a task; none if the task was not started there."""
        part = task.nodes.get(self.caller.node)
        if part is None or not part.start.tries:
            return ()
        return part.roles

    def stop_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
    ) -> None:
        """Stop one version of a task for each role."""
        key = key_of(task_id, job_id)
        roles = self._roles_of(job_id or key.job_id, task_name)
        for body in self._bodies(key, roles, task_name):
            self._task(
                "stop",
                body,
                status=str(TaskWord.CANCELED),
            )

    def delete_job(
        self,
        job_id: str,
        dry_run: bool,
        sender: NodeId,
    ) -> None:
        """Ask in the standard's protocol."""
        self.standard.delete_job(job_id, dry_run, sender)

    def clean_task(
        self,
        job_id: str,
        task_name: str,
        content: str,
        dry_run: bool,
        sender: NodeId,
    ) -> None:
        """Ask in the standard's protocol."""
        self.standard.clean_task(job_id, task_name, content, dry_run, sender)

    def _roles_of(
        self,
        job_id: str,
        task_name: str = "",
    ) -> tuple[str, ...]:
        """Return the node's roles in a job that this node schedules, or in one of its tasks.

        For a job that is scheduled elsewhere it is one empty role, which stands for any.
        """
        job = self.job_of(job_id)
        if job is None:
            return ("",)
        roles: tuple[str, ...] = ()
        task = job.tasks.get(task_name)
        if task is not None and self.caller.node in task.nodes:
            roles = tuple(task.nodes[self.caller.node].roles)
        return roles or _roles(job.spec, self.caller.node)


def _acceptance(data: Mapping[str, Any]) -> Acceptance:
    """Read the data of the response for a created job; FATE's own nodes send none."""
    inherited = None
    if isinstance(data.get("inherited"), list):
        inherited = texts_of(data["inherited"])
    within = None
    waits = data.get("waits") is True
    if waits:
        within = as_seconds(data.get("within"))
    return Acceptance(
        holds=True,  # FATE reserves a job's resources by a request after its creation, see `hold`
        waits=waits,
        within=within,
        inherited=inherited,
    )


def _end_fields(ending: Ending | None) -> dict[str, Any]:
    """Return the fields that say how a job ended; none if it has not."""
    if ending is None:
        return {}
    word = job_word(JobStatus.FINISHED, ending.outcome, ending.failure)
    fields: dict[str, Any] = {"status": str(word)}
    if ending.failure is not None:
        fields["failed_by"] = redacted(ending.failure.as_dict())
    return fields


def _end_word(task: Task, ending: Ending | None) -> TaskWord | None:
    """Return the state in which a task has ended, or ends with its job; None if it has no end."""
    has_ended = task.status in (TaskStatus.SUCCESS, TaskStatus.FAILED)
    if has_ended:
        return task_word(task.status, task.failure)
    if ending is None or ending.outcome is Outcome.SUCCEEDED:
        return None
    if ending.outcome is Outcome.STOPPED:
        return TaskWord.CANCELED
    return TaskWord.FAILED


def _roles(spec: JobSpec, node: NodeId) -> tuple[str, ...]:
    """Return the different roles of a node in a job."""
    return tuple(dict.fromkeys(party.role for party in spec.parties_at(node)))
