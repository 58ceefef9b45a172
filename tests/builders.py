"""Builders of domain values with defaults, so that a test names only what matters to it."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from gateway.domain.dag import ComponentRef, Dag, DagInput, DagNode, DagOutput
from gateway.domain.job import Job, NodeJob, NodeTask, Task
from gateway.domain.run import LocalJob, Run, Software
from gateway.domain.spec import Call, CallState, JobSpec, NodeId, Party
from gateway.domain.states import JobStatus, RunStatus, TaskStatus

# The moment at which everything in a test begins.
T0 = datetime(2026, 1, 1, tzinfo=UTC)

Roles = Mapping[str, Iterable[NodeId]]

GUEST_AND_HOST: Roles = {
    "guest": ("n1",),
    "host": ("n2",),
}

IDLE = Call()
OK = Call(
    CallState.OK,
    sent_at=T0,
    tries=1,
)


def at(seconds: float) -> datetime:
    """Return the moment that many seconds after `T0`."""
    return T0 + timedelta(seconds=seconds)


def raising(error: BaseException) -> Callable[..., Any]:
    """Return a function that raises an error for any arguments."""

    def raises(*_: Any, **__: Any) -> Any:
        raise error

    return raises


def returning(value: Any) -> Callable[..., Any]:
    """Return a function that returns a value, whatever it is called with."""

    def returns(*_: Any, **__: Any) -> Any:
        return value

    return returns


def sent(seconds: float = 0.0, tries: int = 1) -> Call:
    """Return a call sent at that moment and not answered yet."""
    return Call(
        CallState.SENT,
        sent_at=at(seconds),
        tries=tries,
    )


def a_dag(text: str = "a") -> Dag:
    """Build a flow from chains such as ``"a -> b -> c; a -> c; d"``.

    An arrow connects the output ``out`` of a task to the next task.
    """
    upstream: dict[str, list[str]] = {}
    for chain in text.split(";"):
        names = [name.strip() for name in chain.split("->")]
        for name in names:
            upstream.setdefault(name, [])
        for before, after in pairwise(names):
            upstream[after].append(before)
    return Dag(tuple(a_node(name, after) for name, after in upstream.items()))


def a_node(
    name: str,
    after: Iterable[str] = (),
    outputs: Iterable[str] = ("out",),
) -> DagNode:
    """Build a task that reads ``out`` of the tasks in ``after``."""
    return DagNode(
        name,
        ComponentRef("vendor", "1.0.0", "Thing"),
        tuple(DagInput("dataset", task, "out") for task in after),
        tuple(DagOutput("dataset", key) for key in outputs),
    )


def parties(roles: Roles = GUEST_AND_HOST) -> tuple[Party, ...]:
    """Build parties from the nodes of each role, with indices from 0 in each role."""
    built = []
    for role, nodes in roles.items():
        for index, node in enumerate(nodes):
            built.append(Party(role, index, node))
    return tuple(built)


def a_spec(
    dag: str | Dag = "a",
    roles: Roles = GUEST_AND_HOST,
    **changes: Any,
) -> JobSpec:
    """Build a submitted job; the first party's node submits and schedules it."""
    all_parties = parties(roles)
    first = Party("guest", 0, "n1")
    if all_parties:
        first = all_parties[0]
    if isinstance(dag, str):
        dag = a_dag(dag)
    spec = JobSpec(
        job_id="job-1",
        flow_id="flow-1",
        dag=dag,
        parties=all_parties,
        initiator=first.node,
        initiator_role=first.role,
        scheduler=first.node,
        protocol="bfia",
        trace_id="trace-1",
    )
    return replace(spec, **changes)


def a_job(
    dag: str | Dag = "a",
    status: JobStatus = JobStatus.PENDING,
    *,
    roles: Roles = GUEST_AND_HOST,
    task_roles: Mapping[str, Iterable[str]] | None = None,
    spec: JobSpec | None = None,
    **statuses: TaskStatus | Mapping[NodeId, TaskStatus],
) -> Job:
    """Build the scheduler's record of a job whose calls so far were answered, as its status
    implies.

    ``statuses`` names tasks: one status for all nodes, or a status for each node. ``task_roles``
    narrows a task to some roles.
    """
    spec = spec or a_spec(dag, roles)
    task_roles = task_roles or {}
    is_created = status is not JobStatus.PENDING
    is_started = status in (JobStatus.RUNNING, JobStatus.FINISHED)
    nodes = {}
    for node_id in spec.nodes:
        nodes[node_id] = NodeJob(
            node_id,
            create=_call(is_created),
            start=_call(is_started),
        )
    default = TaskStatus.PENDING
    if is_created:
        default = TaskStatus.READY
    tasks = {}
    for dag_node in spec.dag.nodes:
        name = dag_node.name
        task_status = statuses.get(name, default)
        tasks[name] = _a_task(
            spec,
            name,
            task_status,
            task_roles.get(name),
        )
    return Job(spec, status, T0, nodes, tasks)


def _a_task(
    spec: JobSpec,
    name: str,
    status: TaskStatus | Mapping[NodeId, TaskStatus],
    roles: Iterable[str] | None,
) -> Task:
    """Build a task of one status, or with a status for each node; other nodes are READY.

    ``roles`` None: all roles take part.
    """
    by_node: dict[NodeId, NodeTask] = {}
    for node_id in spec.nodes:
        node_roles = _roles_at(spec, node_id, roles)
        if not node_roles:
            continue
        node_status = status
        if isinstance(status, Mapping):
            node_status = status.get(node_id, TaskStatus.READY)
        by_node[node_id] = _a_node_task(node_id, node_status, node_roles)
    if isinstance(status, Mapping):
        status = _common_status(by_node.values())
    return Task(name, f"task_{name}", status, by_node)


def _roles_at(
    spec: JobSpec,
    node_id: NodeId,
    roles: Iterable[str] | None,
) -> list[str]:
    """Return the roles of a node's parties, as far as they are among ``roles``."""
    at_node = [party.role for party in spec.parties_at(node_id)]
    if roles is None:
        return at_node
    allowed = set(roles)
    return [role for role in at_node if role in allowed]


def _a_node_task(
    node_id: NodeId,
    status: TaskStatus,
    roles: Iterable[str],
) -> NodeTask:
    """Build a node's part of a task; it was started unless it is PENDING or READY."""
    is_started = status not in (TaskStatus.PENDING, TaskStatus.READY)
    reported = TaskStatus.PENDING
    if is_started:
        reported = status
    return NodeTask(
        node_id,
        dict.fromkeys(roles, reported),
        start=_call(is_started),
    )


def _common_status(node_tasks: Collection[NodeTask]) -> TaskStatus:
    """Return the status that all nodes reported; RUNNING if they differ or one reported none."""
    statuses = {node_task.status for node_task in node_tasks}
    if len(statuses) == 1 and TaskStatus.PENDING not in statuses:
        return statuses.pop()
    return TaskStatus.RUNNING


def _call(is_answered: bool) -> Call:
    """Return a call that was answered, or one that was not sent."""
    return OK if is_answered else IDLE


_LAUNCHED = frozenset({RunStatus.RUNNING, RunStatus.STOPPING, RunStatus.SUCCESS, RunStatus.FAILED})


def a_run(
    task: str = "a",
    status: RunStatus = RunStatus.WAITING,
    party: Party | None = None,
    **changes: Any,
) -> Run:
    """Build a container run; a launched one began at `T0` and is probed again 5 s later."""
    party = party or Party("guest", 0, "n1")
    run = Run(
        run_id=f"run-{task}-{party.label}",
        name=f"bfia-{task}-{party.label}",
        task_id=f"task_{task}",
        task_name=task,
        party=party,
        software=Software(ComponentRef("vendor", "1.0.0", "Thing"), "vendor:1.0.0"),
        created_at=T0,
        status=status,
    )
    if status is RunStatus.LAUNCHING:
        run = replace(run, launch=sent())
    if status in _LAUNCHED:
        run = replace(
            run,
            launch=OK,
            started_at=T0,
            probe_at=at(5),
        )
    if status is RunStatus.STOPPING:
        run = replace(run, stop_at=T0)
    if run.over:
        run = replace(run, ended_at=T0)
    return replace(run, **changes)


def with_data(run: Run, **changes: Any) -> Run:
    """Return a run with other values of some fields of its data."""
    return replace(run, data=replace(run.data, **changes))


def a_local_job(
    *runs: Run,
    status: JobStatus = JobStatus.RUNNING,
    **changes: Any,
) -> LocalJob:
    """Build a participating node's record of a job with these runs."""
    tasks = "; ".join(dict.fromkeys(run.task_name for run in runs)) or "a"
    local = LocalJob(
        a_spec(tasks),
        "n1",
        status,
        T0,
        "digest",
        tuple(runs),
    )
    return replace(local, **changes)
