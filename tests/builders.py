"""Values for tests, with defaults, so that a test names only what matters to it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from gateway.domain.dag import ComponentRef, Dag, DagInput, DagNode, DagOutput
from gateway.domain.job import Job, NodeJob, NodeTask, Task
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Call, CallState, JobSpec, NodeId, Party
from gateway.domain.states import JobStatus, RunStatus, TaskStatus

T0 = datetime(2026, 1, 1, tzinfo=UTC)
"""When everything in a test begins."""

Roles = Mapping[str, Iterable[NodeId]]

GUEST_AND_HOST: Roles = {"guest": ("n1",), "host": ("n2",)}

IDLE = Call()
OK = Call(CallState.OK, sent_at=T0, tries=1)


def at(seconds: float) -> datetime:
    """Return the moment so many seconds after the beginning."""
    return T0 + timedelta(seconds=seconds)


def raising(error: BaseException) -> Callable[..., Any]:
    """Return what raises an error, whatever it is called with."""

    def raises(*_: Any, **__: Any) -> Any:
        raise error

    return raises


def sent(seconds: float = 0.0, tries: int = 1) -> Call:
    """Return a call that is on its way since that moment."""
    return Call(CallState.SENT, sent_at=at(seconds), tries=tries)


def a_dag(text: str = "a") -> Dag:
    """Build a flow from chains such as ``"a -> b -> c; a -> c; d"``: an arrow hands on the output ``out``."""
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
    return DagNode(
        name,
        ComponentRef("vendor", "1.0.0", "Thing"),
        tuple(DagInput("dataset", task, "out") for task in after),
        tuple(DagOutput("dataset", key) for key in outputs),
    )


def parties(roles: Roles = GUEST_AND_HOST) -> tuple[Party, ...]:
    return tuple(
        Party(role, i, node) for role, nodes in roles.items() for i, node in enumerate(nodes)
    )


def a_spec(
    dag: str | Dag = "a",
    roles: Roles = GUEST_AND_HOST,
    **changes: Any,
) -> JobSpec:
    """Build what was submitted; the first party's node submits and schedules it."""
    who = parties(roles)
    first = who[0] if who else Party("guest", 0, "n1")
    spec = JobSpec(
        job_id="job-1",
        flow_id="flow-1",
        dag=a_dag(dag) if isinstance(dag, str) else dag,
        parties=who,
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
    """Build the scheduler's record of a job whose calls so far were answered as its status tells.

    ``statuses`` names tasks: one status for all nodes, or a status for each node. ``task_roles`` narrows a
    task to some roles.
    """
    spec = spec or a_spec(dag, roles)
    begun = status is not JobStatus.PENDING
    started = status in (JobStatus.RUNNING, JobStatus.FINISHED)
    nodes = {
        n: NodeJob(n, create=OK if begun else IDLE, start=OK if started else IDLE)
        for n in spec.nodes
    }
    tasks = {}
    for node in spec.dag.nodes:
        given = statuses.get(node.name, TaskStatus.READY if begun else TaskStatus.PENDING)
        tasks[node.name] = _a_task(spec, node.name, given, (task_roles or {}).get(node.name))
    return Job(spec, status, T0, nodes, tasks)


def _a_task(
    spec: JobSpec,
    name: str,
    given: TaskStatus | Mapping[NodeId, TaskStatus],
    roles: Iterable[str] | None,
) -> Task:
    wanted = None if roles is None else set(roles)
    parts: dict[NodeId, NodeTask] = {}
    for node in spec.nodes:
        mine = [p.role for p in spec.parties_at(node) if wanted is None or p.role in wanted]
        if not mine:
            continue
        status = given.get(node, TaskStatus.READY) if isinstance(given, Mapping) else given
        begun = status not in (TaskStatus.PENDING, TaskStatus.READY)
        told = status if begun else TaskStatus.PENDING
        parts[node] = NodeTask(node, dict.fromkeys(mine, told), start=OK if begun else IDLE)
    if not isinstance(given, Mapping):
        return Task(name, f"task_{name}", given, parts)
    shown = [part.status for part in parts.values() if part.status is not TaskStatus.PENDING]
    alike = len(shown) == len(parts) and len(set(shown)) == 1
    return Task(name, f"task_{name}", shown[0] if alike else TaskStatus.RUNNING, parts)


_LAUNCHED = frozenset({RunStatus.RUNNING, RunStatus.STOPPING, RunStatus.SUCCESS, RunStatus.FAILED})


def a_run(
    task: str = "a",
    status: RunStatus = RunStatus.WAITING,
    party: Party | None = None,
    **changes: Any,
) -> Run:
    """Build a container run; one that was launched began at `T0` and is looked at again 5 s later."""
    party = party or Party("guest", 0, "n1")
    run = Run(
        run_id=f"run-{task}-{party.label}",
        name=f"bfia-{task}-{party.label}",
        task_id=f"task_{task}",
        task_name=task,
        party=party,
        component=ComponentRef("vendor", "1.0.0", "Thing"),
        image="vendor:1.0.0",
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


def a_local_job(
    *runs: Run,
    status: JobStatus = JobStatus.RUNNING,
    **changes: Any,
) -> LocalJob:
    """Build a participating node's record of a job with these runs."""
    tasks = "; ".join(dict.fromkeys(run.task_name for run in runs)) or "a"
    local = LocalJob(a_spec(tasks), "n1", status, T0, "digest", tuple(runs))
    return replace(local, **changes)
