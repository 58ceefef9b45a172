"""Wire <-> domain, both ways, without side effects."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeGuard

from adapter.bfia import wire
from adapter.bfia.profiles import PROFILES, Profile
from gateway.domain import approval
from gateway.domain.approval import AuditStatus
from gateway.domain.dag import ComponentRef, Dag, DagInput, DagNode, DagOutput
from gateway.domain.dry_run import Item, Standing
from gateway.domain.job import Acceptance, Attempt, Lineage, Origin
from gateway.domain.problems import Problem
from gateway.domain.quorum import PartyDetail
from gateway.domain.redaction import for_others, told
from gateway.domain.rerun import Order, RerunAnswer
from gateway.domain.spec import Ending, Failure, JobSpec, NodeId, Party
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.domain.waiting import Waiting
from gateway.errors import Invalid, NotFound, Refused
from gateway.ports import JobView, TaskView, as_mapping, as_seconds

PROTOCOL = "bfia"
_LONGEST_WORD = 300


def job_spec(body: wire.CreateAll, job_id: str, scheduler: NodeId, trace_id: str) -> JobSpec:
    """Return what the body asks for. Rules beyond the shape are the domain's to check."""
    config = body.config
    return JobSpec(
        job_id=job_id,
        flow_id=body.flow_id,
        dag=dag(body.dag),
        parties=tuple(Party(role, i, node) for role, nodes in config.role.items() for i, node in enumerate(nodes)),
        initiator=config.initiator.node_id,
        initiator_role=config.initiator.role,
        scheduler=scheduler,
        protocol=PROTOCOL,
        trace_id=trace_id,
        job_params=config.job_params,
        task_params=config.task_params,
        version=config.version,
        old_job_id=body.old_job_id or config.old_job_id,
    )


def dag(body: wire.DagBody) -> Dag:
    """Return the flow that a body has. Its rules are the domain's to check."""
    return Dag(
        tuple(
            DagNode(
                c.name,
                ComponentRef(c.provider, c.version, c.component_name),
                tuple(_input(i) for i in c.input),
                tuple(DagOutput(o.type, o.key) for o in c.output),
            )
            for c in body.components
        ),
        body.version,
    )


def _input(body: wire.DagIo) -> DagInput:
    task, _, key = body.key.partition(".")
    return DagInput(body.type, task, key)


def create_body(spec: JobSpec, profile: Profile) -> dict[str, Any]:
    """Return the body of ``create_all`` and ``create`` between nodes."""
    job_params, task_params = _one_by_one(spec, spec.job_params), _one_by_one(spec, spec.task_params)
    if profile.needs_common:
        job_params = {"common": {"sync_type": "callback" if spec.by_callback else "poll"}} | job_params
    if profile.reads_task_entries:
        task_params = _entries_for_all(spec, task_params)
    roles: dict[str, list[str]] = {}
    for party in spec.parties:
        roles.setdefault(party.role, []).append(party.node)
    body: dict[str, Any] = {
        "job_id": spec.job_id,
        "flow_id": spec.flow_id,
        "dag": {"components": [_component(n) for n in spec.dag.nodes], "version": spec.dag.version},
        "config": {
            "initiator": {"role": spec.initiator_role, "node_id": spec.initiator},
            "role": roles,
            "job_params": job_params,
            "task_params": task_params,
            "version": spec.version,
        },
    }
    if spec.old_job_id or not profile.says_null:
        body["old_job_id"] = spec.old_job_id
    return body


def _component(node: DagNode) -> dict[str, Any]:
    ref = node.component
    return {
        "name": node.name,
        "componentName": ref.name,
        "module_name": ref.name,
        "provider": ref.provider,
        "code": ref.provider,
        "version": ref.version,
        "input": [{"type": i.type, "key": f"{i.task}.{i.key}"} for i in node.inputs],
        "output": [{"type": o.type, "key": o.key} for o in node.outputs],
    }


def _one_by_one(spec: JobSpec, params: Mapping[str, Any]) -> dict[str, Any]:
    """Write entries of several indices, such as ``0|1``, once for each: not every peer reads them otherwise.

    Indices that no party has are left out, so that a long key does not multiply its entry.
    """
    parties = {(p.role, str(p.index)) for p in spec.parties}
    result: dict[str, Any] = {}
    for role, by_index in params.items():
        if role == "common" or not isinstance(by_index, Mapping):
            result[role] = by_index
            continue
        single: dict[str, Any] = {}
        for key, entry in by_index.items():
            for index in dict.fromkeys(key.split("|")):
                if (role, index) not in parties:
                    continue
                single[index] = _overlaid(single.get(index), entry)
        result[role] = single
    return result


def _overlaid(old: Any, new: Any) -> Any:
    """Lay one entry over another as `gateway.domain.parameters` does: by task, shallow."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    both = {
        k: {**old[k], **v} for k, v in new.items() if isinstance(v, Mapping) and isinstance(old.get(k), Mapping)
    }
    return {**old, **new, **both}


def _entries_for_all(spec: JobSpec, task_params: Mapping[str, Any]) -> dict[str, Any]:
    params = {k: dict(v) if isinstance(v, Mapping) else v for k, v in task_params.items()}
    for party in spec.parties:
        by_index = params.setdefault(party.role, {})
        entry = dict(by_index.get(str(party.index)) or {})
        for node in spec.dag.nodes:
            entry.setdefault(node.name, {})
        by_index[str(party.index)] = entry
    return params


def attempt_body(past: Attempt) -> dict[str, Any]:
    """Return an earlier attempt of a task, an extension of ``status_all``."""
    return {
        "task_id": past.task_id,
        "attempt": past.number,
        "status": str(TaskStatus.FAILED),
        "failed_by": failure_body(past.failure),
        "started_at": past.started_at.isoformat() if past.started_at else None,
        "ended_at": past.ended_at.isoformat() if past.ended_at else None,
    }


def rerun_body(found: RerunAnswer) -> dict[str, Any]:
    """Return how a node answers that it runs a job again."""
    return {
        "job_id": found.job_id,
        "from": found.start,
        "runs": list(found.runs),
        "inherits": list(found.inherits),
    }


def rerun_answer(wanted: Order, told: Mapping[str, Any]) -> RerunAnswer:
    """Read what a peer says of a job that it runs again."""

    def names(key: str) -> tuple[str, ...]:
        found = told.get(key)
        return tuple(map(str, found)) if isinstance(found, list) else ()

    job_id = str(told.get("job_id") or wanted.new_job_id)
    return RerunAnswer(job_id, str(told.get("from") or wanted.start), names("runs"), names("inherits"))


def lineage_body(found: Lineage | None) -> dict[str, str] | None:
    """Return whose outputs stand for a task's own, as others are told; None: its own do."""
    return {"job_id": found.job_id, "task_id": found.task_id} if found else None


def origin_body(found: Origin | None) -> dict[str, Any] | None:
    """Return which job a job runs again, as others are told; None: none."""
    if found is None:
        return None
    return {"job_id": found.job_id, "from": found.start, "by": found.by, "changed": list(found.changed)}


def origin(told: Any) -> Origin | None:
    """Read which job a job runs again; None where it says nothing."""
    if not isinstance(told, Mapping) or not told.get("job_id"):
        return None
    changed = told.get("changed")
    names = tuple(map(str, changed)) if isinstance(changed, list) else ()
    return Origin(str(told["job_id"]), str(told.get("from") or ""), str(told.get("by") or ""), names)


def lineage(told: Any) -> Lineage | None:
    """Read from which task of an earlier job a task's outputs are; None where it says nothing."""
    if not isinstance(told, Mapping) or not told.get("job_id"):
        return None
    return Lineage(str(told["job_id"]), str(told.get("task_id") or ""))


def attempts(told: Any) -> tuple[Attempt, ...]:
    """Read earlier attempts from a peer's answer; what is no attempt is left out."""
    entries = [e for e in told if isinstance(e, Mapping)] if isinstance(told, list) else []
    return tuple(
        Attempt(
            number,
            str(entry.get("task_id") or ""),
            failure_of(failed if isinstance(failed := entry.get("failed_by"), Mapping) else {})
            or Failure("FAILED"),
            _moment(entry.get("started_at")),
            _moment(entry.get("ended_at")),
        )
        for number, entry in enumerate(entries)
    )


def _moment(text: Any) -> datetime | None:
    """Read a time with its zone; None for what is none."""
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo else None


def failure_body(failure: Failure | None) -> dict[str, Any] | None:
    """Return a failure as others are told of it; None: there is none."""
    return failure.as_dict() if failure else None


def failure(body: wire.Failed | None) -> Failure | None:
    """Read what a peer gives as the failure; None where it names no reason."""
    if body is None or not body.reason:
        return None
    return Failure(body.reason, body.message, body.node, body.role, body.task, body.exit_code)


def failure_of(body: Mapping[str, Any]) -> Failure | None:
    """Read why something failed from a peer's answer; None where it does not say."""
    try:
        return failure(wire.Failed.model_validate(body)) if body else None
    except ValueError:
        return None


def ending(body: wire.StopJob | wire.TerminateAudit, at: Any, sender: NodeId) -> Ending | None:
    """Return how the scheduler says the job ended; None where it does not say."""
    try:
        outcome = Outcome(body.outcome)
    except ValueError:
        return None
    return Ending(outcome, at, failure(body.failed_by), sender)


def ending_fields(ending: Ending | None) -> dict[str, Any]:
    """Return what says how a job ended, and why: extension fields of ``job/stop`` and ``job/audit/terminate``."""
    if ending is None:
        return {}
    why = {"failed_by": told(ending.failure.as_dict())} if ending.failure is not None else {}
    return {"outcome": str(ending.outcome), **why}


def acceptance_body(said: Acceptance) -> dict[str, Any]:
    """Return what a party says beside yes when it takes a job: nothing, where the standard's yes is enough."""
    body: dict[str, Any] = {"resources": {"tasks_at_once": said.tasks_at_once}} if said.holds else {}
    if said.inherited is not None:
        body["inherited"] = list(said.inherited)
    if said.waits:
        body |= {"status": str(JobStatus.PENDING), "approval_within": said.within}
    if said.waits_for:
        body["waits_for"] = said.waits_for
    if said.checks:
        body["checks"] = dict(said.checks)
    return body


def acceptance(data: Mapping[str, Any], profile: Profile = PROFILES["spec"]) -> Acceptance:
    """Read what a party says beside yes; what cannot be read was not said."""
    found = data.get("resources")
    most = found.get("tasks_at_once") if isinstance(found, Mapping) else None
    known = isinstance(most, int) and not isinstance(most, bool) and most >= 1
    within = data.get("approval_within")
    seconds = as_seconds(within)
    waits = profile.waits_by_status and str(data.get("status") or "").upper() == JobStatus.PENDING
    names = data.get("inherited")
    inherited = tuple(map(str, names)) if isinstance(names, list) else None
    holds, within = isinstance(found, Mapping), seconds if waits else None
    why = data.get("waits_for")
    waits_for = why[:_LONGEST_WORD] if waits and isinstance(why, str) else ""
    looked = data.get("checks")
    checks = {str(k)[:40]: str(v)[:_LONGEST_WORD] for k, v in looked.items()} if _is_short(looked) else {}
    return Acceptance(holds, most if known else None, waits, within, inherited, waits_for=waits_for, checks=checks)


def _is_short(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping) and len(value) <= 20


def audit_body(spec: JobSpec, profile: Profile) -> dict[str, Any]:
    """Return the body of ``job/audit/apply``; this node has no projects, so the flow stands for one."""
    body = create_body(spec, profile)
    flow = spec.flow_id or spec.job_id
    return {
        "audit_id": approval.id_for(spec.job_id),
        "job_id": spec.job_id,
        "flow_id": spec.flow_id,
        "name": flow,
        "project_id": flow,
        "dag": body["dag"],
        "conf": body["config"],
        **({"old_job_id": spec.old_job_id} if spec.old_job_id else {}),
    }


def audit_answer_body(audit_id: str, why_not: Failure | None) -> dict[str, Any]:
    """Return the body of ``job/audit/confirm``; why it is a refusal is an extension field."""
    status = AuditStatus.REJECTED if why_not else AuditStatus.APPROVED
    return {
        "audit_id": audit_id,
        "status": str(status),
        **({"failed_by": told(why_not.as_dict())} if why_not else {}),
    }


def audit_refusal(body: wire.ConfirmAudit, sender: NodeId) -> Failure | None:
    """Return why a node does not take part, None where it does. Raises `Invalid` for another word."""
    match body.status.upper():
        case AuditStatus.APPROVED | JobStatus.READY:
            return None
        case AuditStatus.REJECTED:
            return failure(body.failed_by) or Failure("APPROVAL_REJECTED", f"{sender} refused the job", sender)
    raise Invalid([Problem("status", "must be APPROVED or REJECTED", body.status)], reason="STATUS_UNKNOWN")


def refusal(body: wire.ConfirmJob, sender: NodeId) -> Failure | None:
    """Return why a node does not take part, None where it does. Raises `Invalid` for another word."""
    match body.status.upper():
        case JobStatus.READY:
            return None
        case JobStatus.REJECTED:
            return failure(body.failed_by) or Failure("APPROVAL_REJECTED", f"{sender} refused the job", sender)
    raise Invalid([Problem("status", "must be READY or REJECTED", body.status)], reason="STATUS_UNKNOWN")


def task_status(text: str, path: str = "status") -> TaskStatus:
    """Read a task's state. Raises `Invalid` for a word that is none."""
    try:
        return TaskStatus(text.upper())
    except ValueError:
        allowed = ", ".join(TaskStatus)
        raise Invalid([Problem(path, f"must be one of {allowed}", text)], reason="STATUS_UNKNOWN") from None


def heard_status(said: Any) -> TaskStatus:
    """Read a task's state as a peer answers it; an empty text, for a phase it has no word for, is PENDING.

    Raises `Invalid` for what is no state.
    """
    return TaskStatus.PENDING if said == "" else task_status(str(said))


def job_status(text: str) -> JobStatus | None:
    """Read a job's state as peers write it; SUCCESS and FAILED of a job mean FINISHED, other words nothing."""
    word = text.upper()
    if word in ("SUCCESS", "FAILED"):
        return JobStatus.FINISHED
    return JobStatus(word) if word in JobStatus.__members__ else None


def said_status(status: TaskStatus, profile: Profile) -> str:
    """Return the state in the peer's words."""
    return str(TaskStatus.PENDING if status is TaskStatus.READY and not profile.knows_ready else status)


def status_body(view: JobView, profile: Profile = PROFILES["spec"]) -> dict[str, Any]:
    """Return the data of ``status_all``: the standard's two fields, ours beside them where the peer bears that."""
    states = {t.name if profile.status_by_name else t.task_id: said_status(t.status, profile) for t in view.tasks}
    if not profile.reads_job_status:
        return {"status": states}
    return {
        "job_id": view.job_id,
        "job_status": str(view.status),
        "status": states,
        "outcome": str(view.outcome) if view.outcome else None,
        "progress": view.progress,
        "failed_by": failure_body(view.failure),
        "scheduler": view.scheduler,
        "warnings": list(view.warnings),
        "old_job_id": view.old_job_id,
        "rerun_of": origin_body(view.origin),
        "tasks": [
            {
                "task_id": t.task_id,
                "task_name": t.name,
                "status": str(t.status),
                "parties": {n: {r: str(s) for r, s in roles.items()} for n, roles in t.nodes.items()},
                "failed_by": failure_body(t.failure),
                "attempt": t.attempt,
                "attempts": [attempt_body(past) for past in t.attempts],
                **({"waiting": t.waiting.as_dict()} if t.waiting else {}),
                "inherited": lineage_body(t.inherited),
            }
            for t in view.tasks
        ],
        **({"waiting": view.waiting.as_dict()} if view.waiting else {}),
        **({"parties": [_party(p) for p in view.parties]} if view.parties else {}),
        **({"tolerated": list(view.tolerated)} if view.tolerated else {}),
    }


def _party(detail: PartyDetail) -> dict[str, Any]:
    return {
        "party": detail.party,
        "node": detail.node,
        "state": detail.state,
        "excluded": detail.excluded,
        "reason": detail.reason,
        "message": detail.message,
        "tries": detail.tries,
        "next_try": detail.next_try.isoformat() if detail.next_try else None,
    }


def party_of(body: Mapping[str, Any]) -> PartyDetail:
    """Read how a party stands to a job from a peer's answer."""
    said = {name: str(body.get(name) or "") for name in ("party", "node", "state", "reason", "message")}
    tries = body.get("tries")
    return PartyDetail(
        **said,
        excluded=body.get("excluded") is True,
        tries=tries if isinstance(tries, int) else 0,
        next_try=_moment(body.get("next_try")),
    )


def waiting_of(body: Mapping[str, Any]) -> Waiting | None:
    """Read what a job or task waits for; None where the peer does not say."""
    since = _moment(body.get("since"))
    if since is None or not body.get("reason"):
        return None
    return Waiting(str(body["reason"]), str(body.get("message") or ""), since, _moment(body.get("next_check")))


def job_view(job_id: str, data: Mapping[str, Any]) -> JobView:
    """Return what a peer says of a job.

    Raises `NotFound` where its answer, by its code a success, is an empty object: so FATE's nodes say that they do
    not know the job. Raises `Refused` (NO_ENVELOPE) where it says something, and nothing of the job's state.
    """
    if not data:
        raise NotFound(f"job {job_id} is not known there", reason="JOB_UNKNOWN")
    told_states = data.get("status", "")  # null: the job has no tasks yet
    if not data.get("job_status") and not isinstance(told_states, Mapping | None):
        raise Refused(f"a success without a state of job {job_id} was answered", reason="NO_ENVELOPE")
    states = {str(k): heard_status(v) for k, v in as_mapping(told_states).items()}
    status = job_status(str(data.get("job_status") or "")) or status_of(set(states.values()))
    tasks = data.get("tasks")
    told = {str(t.get("task_id")): t for t in (tasks if isinstance(tasks, list) else ()) if isinstance(t, Mapping)}
    word = data.get("outcome")
    outcome = Outcome(word) if isinstance(word, str) and word in Outcome.__members__ else None
    outcome = outcome or outcome_of(status, list(states.values()))
    progress = data.get("progress")
    if not isinstance(progress, int) or isinstance(progress, bool) or not 0 <= progress <= 100:
        progress = progress_of(outcome, list(states.values()))
    return JobView(
        job_id,
        status,
        [_task_view(key, state, told.get(key, {})) for key, state in states.items()],
        outcome,
        failure_of(as_mapping(data.get("failed_by"))),
        progress,
        scheduler=str(data.get("scheduler") or ""),
        waiting=waiting_of(as_mapping(data.get("waiting"))),
        parties=[party_of(p) for p in _entries(data.get("parties"))],
        tolerated=[str(name) for name in _list(data.get("tolerated"))],
        old_job_id=str(data.get("old_job_id") or ""),
        origin=origin(data.get("rerun_of")),
    )


def outcome_of(status: JobStatus, states: Sequence[TaskStatus]) -> Outcome | None:
    """Return how a job ended whose node does not say so; None where its tasks do not tell either."""
    if status is JobStatus.REJECTED:
        return Outcome.REJECTED
    if status is not JobStatus.FINISHED or not states:
        return None
    if TaskStatus.FAILED in states:
        return Outcome.FAILED
    return Outcome.SUCCEEDED if set(states) == {TaskStatus.SUCCESS} else None


def progress_of(outcome: Outcome | None, states: Sequence[TaskStatus]) -> int:
    """Return the progress of a job whose node does not tell it, counted as `gateway.domain.job.Job` does."""
    if outcome is Outcome.SUCCEEDED:
        return 100
    return min(99, 100 * states.count(TaskStatus.SUCCESS) // len(states)) if states else 0


def status_of(found: set[TaskStatus]) -> JobStatus:
    """Return the state of a job whose tasks are in these states."""
    if found <= {TaskStatus.PENDING}:
        return JobStatus.PENDING
    over = found <= {TaskStatus.SUCCESS} or TaskStatus.FAILED in found
    return JobStatus.FINISHED if over else JobStatus.RUNNING


def _task_view(task_id: str, status: TaskStatus, told: Mapping[str, Any]) -> TaskView:
    """Return a task's state, and what else is told of it: name, why it failed, how it is at each party."""
    parties = {
        str(node): {str(role): heard_status(state) for role, state in as_mapping(roles).items()}
        for node, roles in as_mapping(told.get("parties")).items()
    }
    failure = failure_of(as_mapping(told.get("failed_by")))
    past = attempts(told.get("attempts"))
    name = str(told.get("task_name") or task_id)
    why = waiting_of(as_mapping(told.get("waiting")))
    origin = lineage(told.get("inherited"))
    return TaskView(task_id, name, status, failure, parties, None, len(past), past, why, origin)


def _list(said: Any) -> list[Any]:
    return said if isinstance(said, list) else []


def _entries(said: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in _list(said) if isinstance(entry, Mapping)]


_MOST = 500
_LONGEST = 2000
"""characters of one text that a peer tells"""


def body(items: Iterable[Item]) -> dict[str, Any]:
    """Return the data of the answer."""
    return {
        "checks": [
            {
                "check": i.check,
                "about": i.about,
                "standing": str(i.standing),
                "found": for_others(i.found),
                "cause": for_others(i.cause),
                "remedy": i.remedy,
            }
            for i in items
        ]
    }


def items(data: Mapping[str, Any]) -> tuple[Item, ...]:
    """Read what a peer tells; a standing that is not known counts as unknown, what is no entry is left out."""
    told = data.get("checks")
    return tuple(_item(one) for one in told[:_MOST] if isinstance(one, Mapping)) if isinstance(told, list) else ()


def _item(one: Mapping[str, Any]) -> Item:
    def text(key: str) -> str:
        value = one.get(key)
        return value[:_LONGEST] if isinstance(value, str) else ""

    said = text("standing")
    standing = Standing(said) if said in set(Standing) else Standing.UNKNOWN
    return Item(text("check") or "told", standing, text("found"), text("cause"), text("remedy"), text("about"))
