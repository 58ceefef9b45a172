"""Jobs that the checked node schedules for the check, which plays their party."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.conformance.platforms.answers import Answer
from gateway.conformance.platforms.findings import Broken, assume, demand
from gateway.conformance.platforms.partner import Partner, Received, Reply, refusal, success
from gateway.conformance.platforms.trial import (
    CREATE_ALL,
    POLL,
    REPORT,
    START_TASK,
    ComponentName,
    Trial,
    new_job_id,
    task_of,
)

QUIET = 3.0  # seconds without a forbidden request
# A component for jobs that the node only schedules: it need not have it.
_ANY_COMPONENT = ComponentName("conformance", "Probe", "1.0.0")
FIRST, SECOND = "probe_1", "probe_2"
_STATUS_PAUSE = 0.3  # seconds between two requests for a job's state
_MOST_REPORTS = 4  # attempts to report a state
_REPORT_PAUSE = 0.5  # seconds between them


@dataclass
class Party:
    """The check as the only party of a job: the states it gives its tasks."""

    partner: Partner
    # By name of a task: the state that polls get; other tasks succeed immediately.
    states: dict[str, str] = field(default_factory=dict)

    def play(self) -> None:
        """Answer the node's polls by the states; accept everything else."""
        self.partner.reset()
        self.partner.answer(POLL, self._poll)

    def _poll(self, request: Received) -> Reply:
        """Answer a poll."""
        task_id = str(request.body.get("task_id"))
        starts = self.partner.matching(START_TASK, task_id=task_id)
        if not starts:
            return refusal("no such task", 404)
        name = str(starts[0].body.get("task_name"))
        return success(status=self.states.get(name, "SUCCESS"))


@dataclass(frozen=True)
class Submitted:
    """A job that the node was asked to schedule."""

    body: Mapping[str, Any]
    response: Answer

    @property
    def job_id(self) -> str:
        """The job's id."""
        return str(self.body["job_id"])


def job_of_two_tasks(trial: Trial, sync_type: str = "poll", roles: int = 1) -> dict[str, Any]:
    """Return a job of two tasks, one after the other, in which only the check takes part."""
    component = trial.options.component or _ANY_COMPONENT
    first = task_of(component, FIRST)
    first["output"] = [{"type": "dataset", "key": "data0"}]
    second = task_of(component, SECOND)
    second["input"] = [{"type": "dataset", "key": f"{FIRST}.data0"}]
    parties = {"guest": [trial.me]}
    if roles > 1:
        parties["host"] = [trial.me]
    parameters: dict[str, Any] = {FIRST: {}, SECOND: {}}
    return {
        "job_id": new_job_id(),
        "flow_id": "",
        "old_job_id": "",
        "dag": {"version": "2.0", "components": [first, second]},
        "config": {
            "version": "2.0.0",
            "initiator": {"role": "guest", "node_id": trial.me},
            "role": parties,
            "job_params": {"common": {"sync_type": sync_type}},
            "task_params": {
                "common": parameters,
                **{role: {"0": parameters} for role in parties},
            },
        },
    }


def submit(trial: Trial, body: Mapping[str, Any]) -> Submitted:
    """Ask the node to schedule a job."""
    response = trial.node.ask(CREATE_ALL, body, seconds=trial.options.timeout)
    if response.succeeded:
        trial.scheduled.append(str(body["job_id"]))
    return Submitted(body, response)


def schedule_job(
    trial: Trial,
    states: dict[str, str] | None = None,
    **job: Any,
) -> tuple[Party, Submitted]:
    """Have the node schedule a job; return the played party and the job.

    Raises `CannotTry` if the node refuses.
    """
    party = Party(trial.partner, states or {})
    party.play()
    submitted = submit(trial, job_of_two_tasks(trial, **job))
    assume_scheduled(submitted)
    return party, submitted


def assume_scheduled(job: Submitted) -> None:
    """Raise `CannotTry` if the node has refused to schedule a job."""
    assume(job.response.succeeded, f"the node schedules no job: {job.response.summary}")


def wait_for_task_start(trial: Trial, job: Submitted, name: str) -> Received:
    """Wait for the first start of a task. Raises `Broken` if none comes."""
    starts = trial.partner.wait_for(
        START_TASK,
        trial.options.timeout,
        job_id=job.job_id,
        task_name=name,
    )
    demand(bool(starts), f"no task/start of {name} within {trial.options.timeout:g} s")
    return starts[0]


def wait_for_start_after_report(
    trial: Trial,
    job: Submitted,
    report: Answer,
) -> Received:
    """Wait for the start of the second task, once the first one's success was reported.

    ``report``: the response to that report. Raises `Broken` if no start comes.
    """
    try:
        return wait_for_task_start(trial, job, SECOND)
    except Broken as broken:
        text = f"task/callback of {FIRST} is answered with {report.summary}, but {broken}"
        raise Broken(text) from None


def wait_for_end(trial: Trial, job: Submitted) -> Answer:
    """Wait until a scheduled job is FINISHED. Raises `Broken` if it does not get there."""
    deadline = time.monotonic() + trial.options.timeout
    while time.monotonic() < deadline:
        response = trial.job_status(job.job_id)
        if response.value("job_status") == "FINISHED":
            return response
        time.sleep(_STATUS_PAUSE)
    state = response.value("job_status")
    raise Broken(f"the job is {state or response.summary} after {trial.options.timeout:g} s")


def refuse(_: Received) -> Reply:
    """Refuse a request."""
    return refusal("the check refuses this", 403)


def report_until_taken(trial: Trial, start: Received) -> Answer:
    """Report a task's success, again if it is refused; return the last response.

    A node may refuse a report that comes while it records the response to the task's start.
    """
    for _ in range(_MOST_REPORTS):
        response = report_state(trial, start, "SUCCESS")
        if response.succeeded:
            break
        time.sleep(_REPORT_PAUSE)
    return response


def report_state(trial: Trial, start: Received, state: str) -> Answer:
    """Report the state of a started task."""
    report = {"task_id": start.body.get("task_id"), "status": state, "role": "guest"}
    return trial.node.ask(REPORT, report)


def task_states(response: Answer) -> list[str]:
    """Return the states of a job's tasks in a response of ``status_all``, in order."""
    states = response.value("status")
    if not isinstance(states, Mapping):
        return []
    return sorted(str(state) for state in states.values())
