"""Translates between the wire's bodies and the domain, both ways, without side effects."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any, TypeGuard

from pydantic import AliasChoices, BaseModel, ValidationError

from adapter.bfia import wire
from adapter.bfia.profiles import PROFILES, Profile
from adapter.body import failure_of, texts_of
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

# Bounds of a peer's response, in characters and entries.
_LONGEST_WORD = 300
_LONGEST_TEXT = 2000
_LONGEST_CHECK_NAME = 40
_MOST_CHECKS = 20
_MOST_ITEMS = 500

# Unknown fields of a submitted job.
MOST_UNKNOWN = 50
_LONGEST_KEY = 100
_UNKNOWN_RULE = "is not a field that this gateway knows; it is ignored"
_JOB_ID_RULE = "is ignored: the node chooses the id of a submitted job"


# ---------------------------------------------------------------- jobs


def job_spec(
    body: wire.CreateAll,
    job_id: str,
    scheduler: NodeId,
    trace_id: str,
    profile: Profile = PROFILES["spec"],
) -> JobSpec:
    """Return the job that a body describes; the domain checks every rule beyond its shape."""
    config = body.config
    task_params = config.task_params
    if profile.addresses_data:
        first_tasks = {component.name for component in body.dag.components if not component.input}
        task_params = _with_dataset_ids(task_params, first_tasks)
    parties = []
    for role, nodes in config.role.items():
        for index, node in enumerate(nodes):
            parties.append(Party(role, index, node))
    bundles = {}
    if isinstance(body, wire.CreateJob):
        bundles = body.signed_bundles
    return JobSpec(
        job_id=job_id,
        flow_id=body.flow_id,
        dag=dag(body.dag),
        parties=tuple(parties),
        initiator=config.initiator.node_id,
        initiator_role=config.initiator.role,
        scheduler=scheduler,
        protocol=PROTOCOL,
        trace_id=trace_id,
        job_params=config.job_params,
        task_params=task_params,
        version=config.version,
        old_job_id=body.old_job_id or config.old_job_id,
        bundles=bundles,
    )


def _with_dataset_ids(task_params: Mapping[str, Any], tasks: Collection[str]) -> dict[str, Any]:
    """Return the parameters with a ``dataset_id`` in place of each address of a dataset.

    Only the parties' own entries for ``tasks``, which read no other task's output, are changed.
    """
    changed = dict(task_params)
    for role, by_index in task_params.items():
        if role == "common" or not isinstance(by_index, Mapping):
            continue
        changed[role] = {
            index: _party_entry_with_dataset_ids(by_task, tasks)
            for index, by_task in by_index.items()
        }
    return changed


def _party_entry_with_dataset_ids(by_task: Any, tasks: Collection[str]) -> Any:
    if not isinstance(by_task, Mapping):
        return by_task
    changed = dict(by_task)
    for task, values in by_task.items():
        if task in tasks:
            changed[task] = _with_dataset_id(values)
    return changed


def _with_dataset_id(values: Any) -> Any:
    if not isinstance(values, Mapping) or "dataset_id" in values:
        return values
    namespace = values.get("namespace")
    name = values.get("name")
    if not isinstance(namespace, str) or not isinstance(name, str) or "#" in namespace:
        return values
    changed = {key: value for key, value in values.items() if key not in ("namespace", "name")}
    changed["dataset_id"] = f"{namespace}#{name}"
    return changed


def dag(body: wire.DagBody) -> Dag:
    """Return the flow of a body; the domain checks its rules."""
    return Dag(tuple(map(_dag_node, body.components)), body.version)


def _dag_node(component: wire.DagComponent) -> DagNode:
    inputs = []
    for dag_input in component.input:
        task, _, key = dag_input.key.partition(".")
        inputs.append(DagInput(dag_input.type, task, key))
    return DagNode(
        component.name,
        ComponentRef(component.provider, component.version, component.component_name),
        tuple(inputs),
        tuple(DagOutput(output.type, output.key) for output in component.output),
    )


def create_body(spec: JobSpec, profile: Profile) -> dict[str, Any]:
    """Return the body of ``create_all`` and ``create`` between nodes."""
    roles: dict[str, list[str]] = {}
    for party in spec.parties:
        roles.setdefault(party.role, []).append(party.node)
    body: dict[str, Any] = {
        "job_id": spec.job_id,
        "flow_id": spec.flow_id,
        "dag": {
            "components": [_component(node) for node in spec.dag.nodes],
            "version": spec.dag.version,
        },
        "config": {
            "initiator": {"role": spec.initiator_role, "node_id": spec.initiator},
            "role": roles,
            "job_params": _job_params(spec, profile),
            "task_params": _task_params(spec, profile),
            "version": spec.version,
        },
    }
    # A peer that does not read an omitted field as null gets an empty text.
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


def _job_params(spec: JobSpec, profile: Profile) -> dict[str, Any]:
    # One entry per party's index: some peers cannot read an entry of several, such as "0|1".
    params = spec.one_by_one(spec.job_params)
    if not profile.needs_common:
        return params
    sync_type = "poll"
    if spec.settings.by_callback:
        sync_type = "callback"
    return {"common": {"sync_type": sync_type}, **params}


def _task_params(spec: JobSpec, profile: Profile) -> dict[str, Any]:
    """Return the tasks' parameters by index; with an entry for each task of each party if the peer needs it."""
    params = spec.one_by_one(spec.task_params)
    if not profile.reads_task_entries:
        return params
    for role, by_index in params.items():
        if isinstance(by_index, Mapping):
            params[role] = dict(by_index)
    for party in spec.parties:
        by_index = params.setdefault(party.role, {})
        entry = dict(by_index.get(str(party.index)) or {})
        for node in spec.dag.nodes:
            entry.setdefault(node.name, {})
        by_index[str(party.index)] = entry
    return params


# ---------------------------------------------------------------- failures and endings


def failure_fields(failure: Failure | None) -> dict[str, Any]:
    """Return the extension field with the cause of a failure, redacted for other nodes."""
    if failure is None:
        return {}
    return {"failed_by": redacted(failure.as_dict())}


def read_ending(
    body: wire.StopJob | wire.TerminateAudit, at: datetime, sender: NodeId
) -> Ending | None:
    """Return the ending that the scheduler reports; None if it reports no outcome, or an unknown one."""
    try:
        outcome = Outcome(body.outcome)
    except ValueError:
        return None
    return Ending(outcome, at, body.failed_by, sender)


def ending_fields(ending: Ending | None) -> dict[str, Any]:
    """Return a job's outcome and cause: extensions of ``job/stop`` and ``job/audit/terminate``."""
    if ending is None:
        return {}
    return {"outcome": str(ending.outcome), **failure_fields(ending.failure)}


# ---------------------------------------------------------------- consent


def acceptance_body(acceptance: Acceptance) -> dict[str, Any]:
    """Return a party's extensions to its yes to a job; empty if the standard's yes is enough."""
    body: dict[str, Any] = {}
    if acceptance.holds:  # the job needs resources that must be reserved here
        body["resources"] = {"tasks_at_once": acceptance.tasks_at_once}
    if acceptance.inherited is not None:
        body["inherited"] = list(acceptance.inherited)
    if acceptance.waits:
        body["status"] = str(JobStatus.PENDING)
        body["approval_within"] = acceptance.within
    if acceptance.waits_for:
        body["waits_for"] = acceptance.waits_for
    if acceptance.checks:
        body["checks"] = dict(acceptance.checks)
    return body


def read_acceptance(data: Mapping[str, Any], profile: Profile = PROFILES["spec"]) -> Acceptance:
    """Read a party's yes to a job; an extension that cannot be read counts as absent."""
    status = str(data.get("status") or "").upper()
    acceptance = Acceptance(
        # A peer at which resources must be reserved sends this object.
        holds=isinstance(data.get("resources"), Mapping),
        tasks_at_once=_tasks_at_once(data),
        waits=profile.waits_by_status and status == JobStatus.PENDING,
        checks=_checks(data),
    )
    inherited = data.get("inherited")
    if isinstance(inherited, list):
        acceptance = replace(acceptance, inherited=tuple(map(str, inherited)))
    if not acceptance.waits:
        return acceptance
    waits_for = data.get("waits_for")
    if isinstance(waits_for, str):
        acceptance = replace(acceptance, waits_for=waits_for[:_LONGEST_WORD])
    return replace(acceptance, within=as_seconds(data.get("approval_within")))


def _tasks_at_once(data: Mapping[str, Any]) -> int | None:
    number = as_mapping(data.get("resources")).get("tasks_at_once")
    if not _is_integer(number) or number < 1:
        return None
    return number


def _checks(data: Mapping[str, Any]) -> dict[str, str]:
    checks = as_mapping(data.get("checks"))
    if len(checks) > _MOST_CHECKS:
        return {}
    return {
        str(name)[:_LONGEST_CHECK_NAME]: str(result)[:_LONGEST_WORD]
        for name, result in checks.items()
    }


def audit_body(spec: JobSpec, profile: Profile) -> dict[str, Any]:
    """Return the body of ``job/audit/apply``.

    The standard's project is filled with the flow, since this gateway has no projects.
    """
    create = create_body(spec, profile)
    flow_id = spec.flow_id or spec.job_id
    body = {
        "audit_id": approval.id_for(spec.job_id),
        "job_id": spec.job_id,
        "flow_id": spec.flow_id,
        "name": flow_id,
        "project_id": flow_id,
        "dag": create["dag"],
        "conf": create["config"],
    }
    if spec.old_job_id:
        body["old_job_id"] = spec.old_job_id
    return body


def audit_answer_body(audit_id: str, refused_by: Failure | None) -> dict[str, Any]:
    """Return the body of ``job/audit/confirm``; the cause of a refusal is an extension field."""
    status = AuditStatus.APPROVED
    if refused_by is not None:
        status = AuditStatus.REJECTED
    return {"audit_id": audit_id, "status": str(status), **failure_fields(refused_by)}


def read_refusal(body: wire.ConfirmJob | wire.ConfirmAudit, sender: NodeId) -> Failure | None:
    """Return why a node does not take part; None if it does. Raises `Invalid` for another status."""
    status = body.status.upper()
    if status in (JobStatus.READY, AuditStatus.APPROVED):
        return None
    if status == JobStatus.REJECTED:
        return body.failed_by or Failure("APPROVAL_REJECTED", f"{sender} refused the job", sender)
    agreed: str = JobStatus.READY
    if isinstance(body, wire.ConfirmAudit):
        agreed = AuditStatus.APPROVED
    problem = Problem("status", f"must be {agreed} or REJECTED", body.status)
    raise Invalid([problem], reason="STATUS_UNKNOWN")


# ---------------------------------------------------------------- states


def task_status(text: str) -> TaskStatus:
    """Read a task's state. Raises `Invalid` for another word."""
    try:
        return TaskStatus(text.upper())
    except ValueError:
        allowed = ", ".join(TaskStatus)
        problem = Problem("status", f"must be one of {allowed}", text)
        raise Invalid([problem], reason="STATUS_UNKNOWN") from None


def read_status(value: Any) -> TaskStatus:
    """Read a task's state in a peer's response.

    An empty text, which some peers send before a task has a state, means PENDING.
    Raises `Invalid` for null and for any other value that is not a state.
    """
    if value is None:
        raise Invalid([Problem("status", "is missing")], reason="STATUS_UNKNOWN")
    if value == "":
        return TaskStatus.PENDING
    return task_status(str(value))


def job_status(text: str) -> JobStatus | None:
    """Read a job's state as peers write it: SUCCESS and FAILED mean FINISHED; None for other words."""
    word = text.upper()
    if word in ("SUCCESS", "FAILED"):
        return JobStatus.FINISHED
    if word not in JobStatus.__members__:
        return None
    return JobStatus(word)


def wire_status(status: TaskStatus, profile: Profile) -> str:
    """Return the state in the peer's words."""
    if status is TaskStatus.READY and not profile.knows_ready:
        return str(TaskStatus.PENDING)
    return str(status)


def outcome_from_tasks(status: JobStatus, tasks: Sequence[TaskStatus]) -> Outcome | None:
    """Infer the outcome of a job from its tasks when its node does not report one.

    Returns None if they leave it open.
    """
    if status is JobStatus.REJECTED:
        return Outcome.REJECTED
    if status is not JobStatus.FINISHED or not tasks:
        return None
    if TaskStatus.FAILED in tasks:
        return Outcome.FAILED
    if all(task is TaskStatus.SUCCESS for task in tasks):
        return Outcome.SUCCEEDED
    return None


def progress_from_tasks(outcome: Outcome | None, tasks: Sequence[TaskStatus]) -> int:
    """Infer a job's progress in percent, counted as `gateway.domain.job.Job` does."""
    if outcome is Outcome.SUCCEEDED:
        return 100
    if not tasks:
        return 0
    return min(99, 100 * tasks.count(TaskStatus.SUCCESS) // len(tasks))


def status_from_tasks(tasks: set[TaskStatus]) -> JobStatus:
    """Infer the state of a job from the states of its tasks."""
    if tasks <= {TaskStatus.PENDING}:
        return JobStatus.PENDING
    if TaskStatus.FAILED in tasks or tasks == {TaskStatus.SUCCESS}:
        return JobStatus.FINISHED
    return JobStatus.RUNNING


# ---------------------------------------------------------------- status_all


def status_body(view: JobView, profile: Profile = PROFILES["spec"]) -> dict[str, Any]:
    """Return the data of ``status_all``: the standard's fields, and ours if the peer accepts them.

    The caller redacts them for other nodes.
    """
    states = {}
    for task in view.tasks:
        key = task.task_id
        if profile.status_by_name:
            key = task.name
        states[key] = wire_status(task.status, profile)
    if not profile.reads_job_status:
        return {"status": states}
    body: dict[str, Any] = {
        "job_id": view.job_id,
        "job_status": str(view.status),
        "status": states,
        "outcome": _outcome_body(view.outcome),
        "progress": view.progress,
        "failed_by": _failure_body(view.failure),
        "scheduler": view.scheduler,
        "warnings": list(view.warnings),
        "old_job_id": view.old_job_id,
        "rerun_of": _rerun_body(view.origin),
        "tasks": [_task_body(task) for task in view.tasks],
    }
    if view.waiting:
        body["waiting"] = view.waiting.as_dict()
    if view.parties:
        body["parties"] = [_party_body(party) for party in view.parties]
    if view.tolerated:
        body["tolerated"] = list(view.tolerated)
    return body


def _outcome_body(outcome: Outcome | None) -> str | None:
    if outcome is None:
        return None
    return str(outcome)


def _failure_body(failure: Failure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    return failure.as_dict()


def _rerun_body(origin: Origin | None) -> dict[str, Any] | None:
    if origin is None:
        return None
    return {
        "job_id": origin.job_id,
        "from": origin.start,
        "by": origin.by,
        "changed": list(origin.changed),
    }


def _party_body(party: PartyDetail) -> dict[str, Any]:
    return {**vars(party), "next_try": _iso(party.next_try)}


def _task_body(task: TaskView) -> dict[str, Any]:
    parties = {}
    for node, roles in task.nodes.items():
        parties[node] = {role: str(status) for role, status in roles.items()}
    body: dict[str, Any] = {
        "task_id": task.task_id,
        "task_name": task.name,
        "status": str(task.status),
        "parties": parties,
        "failed_by": _failure_body(task.failure),
        "attempt": task.attempt,
        "attempts": [_attempt_body(attempt) for attempt in task.attempts],
    }
    if task.waiting:
        body["waiting"] = task.waiting.as_dict()
    body["inherited"] = None
    if task.inherited:
        body["inherited"] = {"job_id": task.inherited.job_id, "task_id": task.inherited.task_id}
    return body


def _attempt_body(attempt: Attempt) -> dict[str, Any]:
    return {
        "task_id": attempt.task_id,
        "attempt": attempt.number,
        "status": str(TaskStatus.FAILED),
        "failed_by": attempt.failure.as_dict(),
        "started_at": _iso(attempt.started_at),
        "ended_at": _iso(attempt.ended_at),
    }


def job_view(job_id: str, data: Mapping[str, Any]) -> JobView:
    """Read a peer's ``status_all`` of a job.

    Raises `NotFound` for an empty object under a success code (FATE's response for an unknown job),
    and `Refused` (NO_ENVELOPE) for data without the job's state.
    """
    if not data:
        raise NotFound(f"job {job_id} is not known there", reason="JOB_UNKNOWN")
    # null means that the job has no tasks yet; if the field is absent (""), the response is refused.
    by_task = data.get("status", "")
    if not data.get("job_status") and not isinstance(by_task, Mapping | None):
        raise Refused(
            f"a success without a state of job {job_id} was answered", reason="NO_ENVELOPE"
        )
    states = {str(task): read_status(state) for task, state in as_mapping(by_task).items()}
    statuses = list(states.values())
    status = job_status(str(data.get("job_status") or "")) or status_from_tasks(set(statuses))
    outcome = _outcome(data.get("outcome")) or outcome_from_tasks(status, statuses)
    progress = data.get("progress")
    if not _is_integer(progress) or not 0 <= progress <= 100:
        progress = progress_from_tasks(outcome, statuses)
    details = {str(entry.get("task_id")): entry for entry in _entries(data.get("tasks"))}
    return JobView(
        job_id,
        status,
        [_task_view(task, state, details.get(task, {})) for task, state in states.items()],
        outcome,
        failure_of(data.get("failed_by")),
        progress,
        scheduler=str(data.get("scheduler") or ""),
        waiting=_waiting(data.get("waiting")),
        parties=[_party(entry) for entry in _entries(data.get("parties"))],
        tolerated=texts_of(data.get("tolerated")),
        old_job_id=str(data.get("old_job_id") or ""),
        origin=_origin(as_mapping(data.get("rerun_of"))),
    )


def _outcome(word: Any) -> Outcome | None:
    if not isinstance(word, str) or word not in Outcome.__members__:
        return None
    return Outcome(word)


def _task_view(task_id: str, status: TaskStatus, fields: Mapping[str, Any]) -> TaskView:
    parties = {}
    for node, roles in as_mapping(fields.get("parties")).items():
        parties[str(node)] = {
            str(role): read_status(state) for role, state in as_mapping(roles).items()
        }
    attempts = []
    for number, entry in enumerate(_entries(fields.get("attempts"))):
        attempts.append(_attempt(number, entry))
    return TaskView(
        task_id,
        str(fields.get("task_name") or task_id),
        status,
        failure=failure_of(fields.get("failed_by")),
        nodes=parties,
        attempt=len(attempts),
        attempts=tuple(attempts),
        waiting=_waiting(fields.get("waiting")),
        inherited=_lineage(as_mapping(fields.get("inherited"))),
    )


def _attempt(number: int, fields: Mapping[str, Any]) -> Attempt:
    return Attempt(
        number,
        str(fields.get("task_id") or ""),
        failure_of(fields.get("failed_by")) or Failure("FAILED"),
        _moment(fields.get("started_at")),
        _moment(fields.get("ended_at")),
    )


def _lineage(fields: Mapping[str, Any]) -> Lineage | None:
    if not fields.get("job_id"):
        return None
    return Lineage(str(fields["job_id"]), str(fields.get("task_id") or ""))


def _origin(fields: Mapping[str, Any]) -> Origin | None:
    if not fields.get("job_id"):
        return None
    return Origin(
        str(fields["job_id"]),
        str(fields.get("from") or ""),
        str(fields.get("by") or ""),
        texts_of(fields.get("changed")),
    )


def _party(fields: Mapping[str, Any]) -> PartyDetail:
    tries = fields.get("tries")
    if not isinstance(tries, int):
        tries = 0
    return PartyDetail(
        party=str(fields.get("party") or ""),
        node=str(fields.get("node") or ""),
        state=str(fields.get("state") or ""),
        reason=str(fields.get("reason") or ""),
        message=str(fields.get("message") or ""),
        excluded=fields.get("excluded") is True,
        tries=tries,
        next_try=_moment(fields.get("next_try")),
    )


def _waiting(value: Any) -> Waiting | None:
    fields = as_mapping(value)
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


def read_rerun_result(order: Order, fields: Mapping[str, Any]) -> RerunResult:
    """Read a peer's response to the order to run a job again."""
    return RerunResult(
        str(fields.get("job_id") or order.new_job_id),
        str(fields.get("from") or order.start),
        texts_of(fields.get("runs")),
        texts_of(fields.get("inherits")),
    )


def redact_plan(items: Sequence[Item]) -> list[Item]:
    """Return the items of a plan in words for other nodes."""
    return [
        replace(item, found=for_others(item.found), cause=for_others(item.cause)) for item in items
    ]


def read_plan(data: Mapping[str, Any]) -> tuple[Item, ...]:
    """Read a peer's plan.

    Entries that are not objects are skipped; a standing that this node does not know is UNKNOWN.
    """
    return tuple(map(_plan_item, _entries(data.get("checks"))[:_MOST_ITEMS]))


def _plan_item(fields: Mapping[str, Any]) -> Item:
    texts = {}
    for key in ("check", "standing", "found", "cause", "remedy", "about"):
        value = fields.get(key)
        if not isinstance(value, str):
            value = ""
        texts[key] = value[:_LONGEST_TEXT]
    standing = Standing.UNKNOWN
    if texts["standing"] in set(Standing):
        standing = Standing(texts["standing"])
    return Item(
        texts["check"] or "reported",
        standing,
        texts["found"],
        texts["cause"],
        texts["remedy"],
        texts["about"],
    )


# ---------------------------------------------------------------- lenient reading


def _is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _entries(value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, list):
        return []
    return [entry for entry in value if isinstance(entry, Mapping)]


def _moment(text: Any) -> datetime | None:
    """Read a moment; None for any other text, and for a time without a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    if moment.tzinfo is None:
        return None
    return moment


def _iso(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return moment.isoformat()


# ---------------------------------------------------------------- problems of a submitted job


def unknown_fields(body: wire.CreateAll) -> tuple[UnknownField, ...]:
    """Return the first `MOST_UNKNOWN` unknown fields, in the order of the body."""
    return tuple(islice(_unknown_fields(body, ()), MOST_UNKNOWN))


def _unknown_fields(model: BaseModel, path: tuple[str | int, ...]) -> Iterator[UnknownField]:
    spellings = _spellings(type(model))
    for key, value in (model.model_extra or {}).items():
        if key in spellings:  # the body has the same field in its other spelling, too
            continue
        place = join((*path, key[:_LONGEST_KEY]))
        if key == "job_id" and not path:
            yield UnknownField(place, _JOB_ID_RULE, _value_text(value), "")
        else:
            similar = near(key, spellings, 0.7)
            yield UnknownField(place, _UNKNOWN_RULE, _value_text(value), similar)
    for name in type(model).model_fields:
        yield from _unknown_fields_inside(getattr(model, name), (*path, name))


def _unknown_fields_inside(value: Any, path: tuple[str | int, ...]) -> Iterator[UnknownField]:
    if isinstance(value, BaseModel):
        yield from _unknown_fields(value, path)
    if not isinstance(value, list):
        return
    for index, entry in enumerate(value):
        if isinstance(entry, BaseModel):
            yield from _unknown_fields(entry, (*path, index))


def _spellings(model: type[BaseModel]) -> dict[str, None]:
    """Return all spellings of a model's fields, in their order."""
    spellings: dict[str, None] = {}
    for name, field in model.model_fields.items():
        spellings[name] = None
        if isinstance(field.validation_alias, AliasChoices):
            for choice in field.validation_alias.choices:
                spellings[str(choice)] = None
    return spellings


def _value_text(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return str(value)[:_LONGEST_KEY]


def is_job(model: Any) -> bool:
    """Return whether an endpoint's body model is that of a job."""
    return isinstance(model, type) and issubclass(model, wire.CreateAll)


def job_problems(body: Any, model: Any) -> list[Problem]:
    """Return the problems of the flow and the initiator in the body of a job that has invalid fields.

    They are returned so that they can be reported together with the invalid fields.
    """
    if not is_job(model) or not isinstance(body, Mapping):
        return []
    config = body.get("config", body.get("conf"))
    return [*_flow_problems(body.get("dag")), *_initiator_problems(config)]


def _flow_problems(value: Any) -> list[Problem]:
    try:
        return flow.check(dag(wire.DagBody.model_validate(value)))
    except ValidationError:
        return []


def _initiator_problems(config: Any) -> list[Problem]:
    if not isinstance(config, Mapping) or not isinstance(config.get("role"), Mapping):
        return []
    try:
        initiator = wire.Initiator.model_validate(config.get("initiator"))
    except ValidationError:
        return []
    nodes = config["role"].get(initiator.role, [])
    if not isinstance(nodes, list) or initiator.node_id in nodes:
        return []
    return [validation.unlisted(initiator.node_id, initiator.role)]
