"""The plot of a simulation: everything that happens to a job in a `World`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.domain.job import Job, NodeJob, NodeTask, Task
from gateway.domain.spec import JobSpec, NodeId
from gateway.domain.states import JobStatus, TaskStatus
from tests.builders import T0


@dataclass(frozen=True)
class Fate:
    """What a role of a task does at its node; times are seconds after the start was accepted."""

    runs_after: float = 0.1
    ends_after: float = 1.0
    final_status: TaskStatus = TaskStatus.SUCCESS
    failing_attempts: int = 0  # attempts that fail before one ends with ``final_status``


@dataclass(frozen=True)
class Outage:
    """A time without answers of a node: it refuses connections, unless a field says otherwise."""

    node: NodeId
    begins: float
    ends: float
    hangs: bool = False  # requests are swallowed behind an open connection
    drops: bool = False  # packets vanish, so that no connection comes up


@dataclass(frozen=True)
class Plot:
    """What happens to a job. ``seed`` draws the random times and the network's trouble.

    Times are seconds since `T0`, chances are probabilities from 0 to 1.
    """

    spec: JobSpec

    # tasks
    task_roles: Mapping[str, frozenset[str]] = field(
        default_factory=dict
    )  # missing task: every role
    # tasks whose roles the scheduling node does not know, so that it asks every node to start them
    unknown_roles: frozenset[str] = frozenset()
    fates: Mapping[tuple[str, NodeId, str], Fate] = field(default_factory=dict)  # task, node, role

    # nodes
    refuses_create: frozenset[NodeId] = frozenset()
    refuses_start: frozenset[NodeId] = frozenset()
    refuses_task: frozenset[tuple[str, NodeId]] = frozenset()
    # nodes that accept the task and lose their record of it once
    forgets_task: frozenset[tuple[str, NodeId]] = frozenset()
    needs_resources: frozenset[NodeId] = frozenset()  # nodes with a reservation before the start
    busy: tuple[tuple[NodeId, float, float], ...] = ()  # no room for the job: node, begin, end
    # nodes where a person decides: seconds until the decision, and the decision (None: never comes)
    approvals: Mapping[NodeId, tuple[float, bool | None]] = field(default_factory=dict)
    pushes: frozenset[NodeId] = frozenset()  # nodes that report without being polled
    repeats_reports: bool = False  # a report that an outage prevents comes after the outage
    outages: tuple[Outage, ...] = ()

    # users
    suspended: tuple[float, float] | None = None  # begin and end of a suspension of the job
    stop_at: float | None = None
    stop_tasks: tuple[tuple[float, str], ...] = ()

    # network and planners
    planners: int = 1
    trouble_chance: float = 0.0  # share of the messages that suffer in the network
    crash_chance: float = 0.0  # of a planner, at each pause
    stall_chance: float = 0.0  # of a planner, to record a response only long after its arrival
    dies_at: int | None = None  # number of the pause at which the first planner dies for certain
    trouble_until: float = 0.0
    seed: int = 0

    def fate(
        self,
        task: str,
        node: NodeId,
        role: str,
    ) -> Fate:
        """Return the fate of a role; one without an entry succeeds after 1 s."""
        return self.fates.get((task, node, role), Fate())

    def played_roles(
        self,
        task: str,
        node: NodeId,
    ) -> tuple[str, ...]:
        """Return the roles that the node plays in the task."""
        node_roles = self._roles_at(node)
        if task not in self.task_roles:
            return node_roles
        return tuple(role for role in node_roles if role in self.task_roles[task])

    def assumed_roles(
        self,
        task: str,
        node: NodeId,
    ) -> tuple[str, ...]:
        """Return the roles that the scheduling node believes the node to play in the task."""
        if task in self.unknown_roles:
            return self._roles_at(node)
        return self.played_roles(task, node)

    def _roles_at(self, node: NodeId) -> tuple[str, ...]:
        """Return the roles of the node in the job."""
        return tuple(dict.fromkeys(party.role for party in self.spec.parties_at(node)))

    def job(self) -> Job:
        """Return the scheduling node's record of the job at its submission."""
        nodes = {node: NodeJob(node) for node in self.spec.nodes}
        tasks = {dag_node.name: self._task(dag_node.name) for dag_node in self.spec.dag.nodes}
        return Job(self.spec, JobStatus.PENDING, T0, nodes, tasks)

    def _task(self, name: str) -> Task:
        """Return the record of a task that has not begun."""
        parts = {}
        for node in self.spec.nodes:
            roles = self.assumed_roles(name, node)
            if roles:
                parts[node] = NodeTask(
                    node,
                    dict.fromkeys(roles, TaskStatus.PENDING),
                )
        return Task(name, f"task_{name}", TaskStatus.PENDING, parts)
