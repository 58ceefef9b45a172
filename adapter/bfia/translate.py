"""Wire <-> domain, both ways, without side effects."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any, TypeGuard

from pydantic import AliasChoices, BaseModel, ValidationError

from adapter.bfia import wire
from adapter.bfia.profiles import PROFILES, Profile
from adapter.body import failure_of, names_of
from gateway.domain import approval, validation
from gateway.domain import dag as flow
from gateway.domain.approval import AuditStatus
from gateway.domain.dag import ComponentRef, Dag, DagInput, DagNode, DagOutput
from gateway.domain.dry_run import Item, Standing
from gateway.domain.job import Acceptance, Attempt, Lineage, Origin
from gateway.domain.problems import Problem
from gateway.domain.quorum import PartyDetail
from gateway.domain.redaction import for_others, redacted
from gateway.domain.rerun import Order, RerunResult
from gateway.domain.spec import Ending, Failure, JobSpec, NodeId, Party, UnknownField
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.domain.waiting import Waiting
from gateway.errors import Invalid, NotFound, Refused, join, near
from gateway.ports import JobView, TaskView, as_mapping, as_seconds

PROTOCOL = "bfia"
_LONGEST_WORD = 300
_LONGEST_TEXT = 2000
"""characters of one text of a peer's plan"""
_MOST_ITEMS = 500


def job_spec(
    body: wire.CreateAll,
    job_id: str,
    scheduler: NodeId,
    trace_id: str,
    profile: Profile = PROFILES["spec"],
) -> JobSpec:
    """Return what the body asks for. Rules beyond the shape are the domain's to check."""
    config = body.config
    task_params = config.task_params
    if profile.addresses_data:
        first_tasks = {component.name for component in body.dag.components if not component.input}
        task_params = _with_dataset_ids(task_params, first_tasks)
    return JobSpec(
        job_id=job_id,
        flow_id=body.flow_id,
        dag=dag(body.dag),
        parties=tuple(
            Party(role, i, node)
            for role, nodes in config.role.items()
            for i, node in enumerate(nodes)
        ),
        initiator=config.initiator.node_id,
        initiator_role=config.initiator.role,
        scheduler=scheduler,
        protocol=PROTOCOL,
        trace_id=trace_id,
        job_params=config.job_params,
        task_params=task_params,
        version=config.version,
        old_job_id=body.old_job_id or config.old_job_id,
        bundles=body.signed_bundles if isinstance(body, wire.CreateJob) else {},
    )


def _with_dataset_ids(task_params: Mapping[str, Any], tasks: Collection[str]) -> dict[str, Any]:
    """Return the parameters with a ``dataset_id`` in place of each address of a dataset.

    Only in the parties' own entries for ``tasks``, which read no other task's output.
    """
    changed = dict(task_params)
    for role, by_index in task_params.items():
        if role == "common" or not isinstance(by_index, Mapping):
            continue
        changed[role] = {index: _own_entry(by_task, tasks) for index, by_task in by_index.items()}
    return changed


def _own_entry(by_task: Any, tasks: Collection[str]) -> Any:
    if not isinstance(by_task, Mapping):
        return by_task
    return {
        task: _with_dataset_id(values) if task in tasks else values
        for task, values in by_task.items()
    }


def _with_dataset_id(values: Any) -> Any:
    if not isinstance(values, Mapping) or "dataset_id" in values:
        return values
    namespace, name = values.get("namespace"), values.get("name")
    if not isinstance(namespace, str) or not isinstance(name, str) or "#" in namespace:
        return values
    others = {key: value for key, value in values.items() if key not in ("namespace", "name")}
    return {**others, "dataset_id": f"{namespace}#{name}"}


def dag(body: wire.DagBody) -> Dag:
    """Return the flow that a body has. Its rules are the domain's to check."""
    return Dag(
        tuple(
            DagNode(
                c.name,
                ComponentRef(c.provider, c.version, c.component_name),
                tuple(
                    DagInput(i.type, i.key.partition(".")[0], i.key.partition(".")[2])
                    for i in c.input
                ),
                tuple(DagOutput(o.type, o.key) for o in c.output),
            )
            for c in body.components
        ),
        body.version,
    )


def create_body(spec: JobSpec, profile: Profile) -> dict[str, Any]:
    """Return the body of ``create_all`` and ``create`` between nodes."""
    job_params, task_params = spec.one_by_one(spec.job_params), spec.one_by_one(spec.task_params)
    if profile.needs_common:
        job_params = {
            "common": {"sync_type": "callback" if spec.settings.by_callback else "poll"}
        } | job_params
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


def _entries_for_all(spec: JobSpec, task_params: Mapping[str, Any]) -> dict[str, Any]:
    params = {k: dict(v) if isinstance(v, Mapping) else v for k, v in task_params.items()}
    for party in spec.parties:
        by_index = params.setdefault(party.role, {})
        entry = dict(by_index.get(str(party.index)) or {})
        for node in spec.dag.nodes:
            entry.setdefault(node.name, {})
        by_index[str(party.index)] = entry
    return params


# ---------------------------------------------------------------- failures and endings


def failed_by(failure: Failure | None) -> dict[str, Any]:
    """Return the extension field that says why something failed, in words for other nodes."""
    return {"failed_by": redacted(failure.as_dict())} if failure else {}


def ending(
    body: wire.StopJob | wire.TerminateAudit,
    at: Any,
    sender: NodeId,
) -> Ending | None:
    """Return how the scheduler says the job ended; None where it does not say."""
    try:
        outcome = Outcome(body.outcome)
    except ValueError:
        return None
    return Ending(outcome, at, body.failed_by, sender)


def ending_fields(ending: Ending | None) -> dict[str, Any]:
    """Return what says how a job ended, and why: extension fields of ``job/stop`` and ``job/audit/terminate``."""
    return {"outcome": str(ending.outcome), **failed_by(ending.failure)} if ending else {}


# ---------------------------------------------------------------- consent


def acceptance_body(acceptance: Acceptance) -> dict[str, Any]:
    """Return what a party says beside yes when it takes a job: nothing, where the standard's yes is enough."""
    body: dict[str, Any] = (
        {"resources": {"tasks_at_once": acceptance.tasks_at_once}} if acceptance.holds else {}
    )
    if acceptance.inherited is not None:
        body["inherited"] = list(acceptance.inherited)
    if acceptance.waits:
        body |= {"status": str(JobStatus.PENDING), "approval_within": acceptance.within}
    if acceptance.waits_for:
        body["waits_for"] = acceptance.waits_for
    if acceptance.checks:
        body["checks"] = dict(acceptance.checks)
    return body


def acceptance(data: Mapping[str, Any], profile: Profile = PROFILES["spec"]) -> Acceptance:
    """Read what a party says beside yes; what cannot be read counts as not said."""
    found = data.get("resources")
    most = as_mapping(found).get("tasks_at_once")
    waits = profile.waits_by_status and str(data.get("status") or "").upper() == JobStatus.PENDING
    names, why, checks = (
        data.get("inherited"),
        data.get("waits_for"),
        as_mapping(data.get("checks")),
    )
    return Acceptance(
        isinstance(found, Mapping),
        most if _is_number(most) and most >= 1 else None,
        waits,
        as_seconds(data.get("approval_within")) if waits else None,
        tuple(map(str, names)) if isinstance(names, list) else None,
        waits_for=why[:_LONGEST_WORD] if waits and isinstance(why, str) else "",
        checks={str(k)[:40]: str(v)[:_LONGEST_WORD] for k, v in checks.items()}
        if len(checks) <= 20
        else {},
    )


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
        **failed_by(why_not),
    }


def refusal(body: wire.ConfirmJob | wire.ConfirmAudit, sender: NodeId) -> Failure | None:
    """Return why a node does not take part, None where it does. Raises `Invalid` for another status."""
    match body.status.upper():
        case JobStatus.READY | AuditStatus.APPROVED:
            return None
        case JobStatus.REJECTED:
            return body.failed_by or Failure(
                "APPROVAL_REJECTED", f"{sender} refused the job", sender
            )
    agreed = AuditStatus.APPROVED if isinstance(body, wire.ConfirmAudit) else JobStatus.READY
    raise Invalid(
        [Problem("status", f"must be {agreed} or REJECTED", body.status)], reason="STATUS_UNKNOWN"
    )


# ---------------------------------------------------------------- states


def task_status(text: str) -> TaskStatus:
    """Read a task's state. Raises `Invalid` for another word."""
    try:
        return TaskStatus(text.upper())
    except ValueError:
        allowed = ", ".join(TaskStatus)
        raise Invalid(
            [Problem("status", f"must be one of {allowed}", text)], reason="STATUS_UNKNOWN"
        ) from None


def read_status(value: Any) -> TaskStatus:
    """Read a task's state in a peer's response; an empty text, for a phase without a word, is PENDING.

    Raises `Invalid` for what is not a state.
    """
    if value is None:
        raise Invalid([Problem("status", "is missing")], reason="STATUS_UNKNOWN")
    return TaskStatus.PENDING if value == "" else task_status(str(value))


def job_status(text: str) -> JobStatus | None:
    """Read a job's state as peers write it; SUCCESS and FAILED of a job mean FINISHED, other words nothing."""
    word = text.upper()
    if word in ("SUCCESS", "FAILED"):
        return JobStatus.FINISHED
    return JobStatus(word) if word in JobStatus.__members__ else None


def wire_status(status: TaskStatus, profile: Profile) -> str:
    """Return the state in the peer's words."""
    return str(
        TaskStatus.PENDING if status is TaskStatus.READY and not profile.knows_ready else status
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


# ---------------------------------------------------------------- status_all


def status_body(view: JobView, profile: Profile = PROFILES["spec"]) -> dict[str, Any]:
    """Return the data of ``status_all``: the standard's two fields, and ours where the peer accepts them."""
    states = {
        t.name if profile.status_by_name else t.task_id: wire_status(t.status, profile)
        for t in view.tasks
    }
    if not profile.reads_job_status:
        return {"status": states}
    of, parties = view.origin, [vars(p) | {"next_try": _iso(p.next_try)} for p in view.parties]
    rerun = (
        {
            "job_id": of.job_id,
            "from": of.start,
            "by": of.by,
            "changed": list(of.changed),
        }
        if of
        else None
    )
    return {
        "job_id": view.job_id,
        "job_status": str(view.status),
        "status": states,
        "outcome": str(view.outcome) if view.outcome else None,
        "progress": view.progress,
        "failed_by": view.failure.as_dict() if view.failure else None,
        "scheduler": view.scheduler,
        "warnings": list(view.warnings),
        "old_job_id": view.old_job_id,
        "rerun_of": rerun,
        "tasks": [_task_body(t) for t in view.tasks],
        **({"waiting": view.waiting.as_dict()} if view.waiting else {}),
        **({"parties": parties} if parties else {}),
        **({"tolerated": list(view.tolerated)} if view.tolerated else {}),
    }


def _task_body(task: TaskView) -> dict[str, Any]:
    of = task.inherited
    return {
        "task_id": task.task_id,
        "task_name": task.name,
        "status": str(task.status),
        "parties": {n: {r: str(s) for r, s in roles.items()} for n, roles in task.nodes.items()},
        "failed_by": task.failure.as_dict() if task.failure else None,
        "attempt": task.attempt,
        "attempts": [
            {
                "task_id": past.task_id,
                "attempt": past.number,
                "status": str(TaskStatus.FAILED),
                "failed_by": past.failure.as_dict(),
                "started_at": _iso(past.started_at),
                "ended_at": _iso(past.ended_at),
            }
            for past in task.attempts
        ],
        **({"waiting": task.waiting.as_dict()} if task.waiting else {}),
        "inherited": {"job_id": of.job_id, "task_id": of.task_id} if of else None,
    }


def job_view(job_id: str, data: Mapping[str, Any]) -> JobView:
    """Return what a peer says of a job.

    Raises `NotFound` where its response, by its code a success, is an empty object: so FATE's nodes say that they
    do not know the job. Raises `Refused` (NO_ENVELOPE) where it says something, and nothing of the job's state.
    """
    if not data:
        raise NotFound(f"job {job_id} is not known there", reason="JOB_UNKNOWN")
    found = data.get("status", "")  # null: the job has no tasks yet
    if not data.get("job_status") and not isinstance(found, Mapping | None):
        raise Refused(
            f"a success without a state of job {job_id} was answered", reason="NO_ENVELOPE"
        )
    states = {str(k): read_status(v) for k, v in as_mapping(found).items()}
    every = list(states.values())
    status = job_status(str(data.get("job_status") or "")) or status_of(set(every))
    tasks = {str(t.get("task_id")): t for t in _entries(data.get("tasks"))}
    word = data.get("outcome")
    outcome = (
        Outcome(word)
        if isinstance(word, str) and word in Outcome.__members__
        else outcome_of(status, every)
    )
    progress = data.get("progress")
    return JobView(
        job_id,
        status,
        [_task_view(key, state, tasks.get(key, {})) for key, state in states.items()],
        outcome,
        failure_of(data.get("failed_by")),
        progress if _is_number(progress) and 0 <= progress <= 100 else progress_of(outcome, every),
        scheduler=str(data.get("scheduler") or ""),
        waiting=_waiting(data.get("waiting")),
        parties=[_party(p) for p in _entries(data.get("parties"))],
        tolerated=names_of(data.get("tolerated")),
        old_job_id=str(data.get("old_job_id") or ""),
        origin=_origin(as_mapping(data.get("rerun_of"))),
    )


def _task_view(
    task_id: str,
    status: TaskStatus,
    fields: Mapping[str, Any],
) -> TaskView:
    parties = {
        str(node): {str(role): read_status(state) for role, state in as_mapping(roles).items()}
        for node, roles in as_mapping(fields.get("parties")).items()
    }
    past = tuple(
        _attempt(number, one) for number, one in enumerate(_entries(fields.get("attempts")))
    )
    of = as_mapping(fields.get("inherited"))
    return TaskView(
        task_id,
        str(fields.get("task_name") or task_id),
        status,
        failure_of(fields.get("failed_by")),
        parties,
        None,
        len(past),
        past,
        _waiting(fields.get("waiting")),
        Lineage(str(of["job_id"]), str(of.get("task_id") or "")) if of.get("job_id") else None,
    )


def _attempt(number: int, fields: Mapping[str, Any]) -> Attempt:
    why = failure_of(fields.get("failed_by")) or Failure("FAILED")
    times = _moment(fields.get("started_at")), _moment(fields.get("ended_at"))
    return Attempt(number, str(fields.get("task_id") or ""), why, *times)


def _origin(fields: Mapping[str, Any]) -> Origin | None:
    if not fields.get("job_id"):
        return None
    start, by = str(fields.get("from") or ""), str(fields.get("by") or "")
    return Origin(str(fields["job_id"]), start, by, names_of(fields.get("changed")))


def _party(fields: Mapping[str, Any]) -> PartyDetail:
    texts = {
        name: str(fields.get(name) or "")
        for name in ("party", "node", "state", "reason", "message")
    }
    tries = fields.get("tries")
    return PartyDetail(
        **texts,
        excluded=fields.get("excluded") is True,
        tries=tries if isinstance(tries, int) else 0,
        next_try=_moment(fields.get("next_try")),
    )


def _waiting(found: Any) -> Waiting | None:
    fields = as_mapping(found)
    since = _moment(fields.get("since"))
    if since is None or not fields.get("reason"):
        return None
    return Waiting(
        str(fields["reason"]),
        str(fields.get("message") or ""),
        since,
        _moment(fields.get("next_check")),
    )


# ---------------------------------------------------------------- rerun and plan


def rerun_answer(wanted: Order, fields: Mapping[str, Any]) -> RerunResult:
    """Read what a peer says of a job that it runs again."""
    job_id, start = (
        str(fields.get("job_id") or wanted.new_job_id),
        str(fields.get("from") or wanted.start),
    )
    return RerunResult(
        job_id, start, names_of(fields.get("runs")), names_of(fields.get("inherits"))
    )


def in_words(items: Sequence[Item]) -> list[Item]:
    """Return what a plan found in words for other nodes."""
    return [replace(i, found=for_others(i.found), cause=for_others(i.cause)) for i in items]


def items(data: Mapping[str, Any]) -> tuple[Item, ...]:
    """Read a peer's plan; an unknown standing counts as unknown, what is not an entry is left out."""
    return tuple(map(_item, _entries(data.get("checks"))[:_MOST_ITEMS]))


def _item(one: Mapping[str, Any]) -> Item:
    def text(key: str) -> str:
        value = one.get(key)
        return value[:_LONGEST_TEXT] if isinstance(value, str) else ""

    name = text("standing")
    standing = Standing(name) if name in set(Standing) else Standing.UNKNOWN
    return Item(
        text("check") or "reported",
        standing,
        text("found"),
        text("cause"),
        text("remedy"),
        text("about"),
    )


# ---------------------------------------------------------------- lenient reading


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _entries(value: Any) -> list[Mapping[str, Any]]:
    return (
        [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
    )


def _moment(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo else None


def _iso(at: datetime | None) -> str | None:
    return at.isoformat() if at else None


# ---------------------------------------------------------------- what else is wrong with a submitted job


_RULE = "is not a field that this gateway knows; it is ignored"
_GIVEN = "is ignored: the node chooses the id of a submitted job"
_LONGEST_KEY = 100
MOST_UNKNOWN = 50


def unknown_fields(body: wire.CreateAll) -> tuple[UnknownField, ...]:
    """Return the first `MOST_UNKNOWN` of them, in the order of the body's parts."""
    return tuple(islice(_found(body, ()), MOST_UNKNOWN))


def _found(model: BaseModel, at: tuple[str | int, ...]) -> Iterator[UnknownField]:
    known = _spellings(type(model))
    for key, value in (model.model_extra or {}).items():
        if key in known:
            continue  # the other spelling of a key stands beside it
        rule = _GIVEN if key == "job_id" and not at else _RULE
        meant = near(key, known, 0.7) if rule is _RULE else ""
        yield UnknownField(join((*at, key[:_LONGEST_KEY])), rule, _shown_as(value), meant)
    for name in type(model).model_fields:
        inner = getattr(model, name)
        if isinstance(inner, BaseModel):
            yield from _found(inner, (*at, name))
        elif isinstance(inner, list):
            for i, one in enumerate(inner):
                if isinstance(one, BaseModel):
                    yield from _found(one, (*at, name, i))


def _spellings(kind: type[BaseModel]) -> dict[str, None]:
    found: dict[str, None] = {}
    for name, field in kind.model_fields.items():
        alias = field.validation_alias
        known = [str(one) for one in alias.choices] if isinstance(alias, AliasChoices) else [name]
        found |= dict.fromkeys((name, *known))
    return found


def _shown_as(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else str(value)[:_LONGEST_KEY]


def is_job(model: Any) -> bool:
    """Tell whether what a path declares as its body is a job."""
    return isinstance(model, type) and issubclass(model, wire.CreateAll)


def faults(body: Any, model: Any) -> list[Problem]:
    """Return what else is wrong with the flow and the initiator of a job's body of which some field is invalid."""
    if not (is_job(model) and isinstance(body, Mapping)):
        return []
    return [*_of_flow(body.get("dag")), *_of_initiator(body.get("config", body.get("conf")))]


def _of_flow(found: Any) -> list[Problem]:
    try:
        return flow.check(dag(wire.DagBody.model_validate(found)))
    except ValidationError:
        return []


def _of_initiator(config: Any) -> Iterator[Problem]:
    if not isinstance(config, Mapping) or not isinstance(config.get("role"), Mapping):
        return
    try:
        initiator = wire.Initiator.model_validate(config.get("initiator"))
    except ValidationError:
        return
    nodes = config["role"].get(initiator.role, [])
    if isinstance(nodes, list) and initiator.node_id not in nodes:
        yield validation.unlisted(initiator.node_id, initiator.role)
