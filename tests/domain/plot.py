"""What will happen to a job in a simulated world."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.domain.job import Job, NodeJob, NodeTask, Task
from gateway.domain.spec import JobSpec, NodeId
from gateway.domain.states import JobStatus, TaskStatus
from tests.builders import T0


@dataclass(frozen=True)
class Fate:
    """What a role of a task does at its node once it is accepted, in seconds after that."""

    runs: float = 0.1
    ends: float = 1.0
    status: TaskStatus = TaskStatus.SUCCESS
    fails: int = 0
    """how many attempts fail before one ends as ``status`` says"""


@dataclass(frozen=True)
class Outage:
    """A node does not answer for a while: it refuses connections, or (``hangs``) swallows requests."""

    node: NodeId
    begins: float
    ends: float
    hangs: bool = False


@dataclass(frozen=True)
class Plot:
    """What will happen. The ``seed`` draws times and the trouble of the network."""

    spec: JobSpec
    task_roles: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """roles of a task; a task that is missing here has all"""
    unknown: frozenset[str] = frozenset()
    """tasks whose roles the scheduling node does not know, so that it asks every node"""
    fates: Mapping[tuple[str, NodeId, str], Fate] = field(default_factory=dict)
    """by task, node and role"""
    refuses_create: frozenset[NodeId] = frozenset()
    refuses_start: frozenset[NodeId] = frozenset()
    refuses_task: frozenset[tuple[str, NodeId]] = frozenset()
    forgets: frozenset[tuple[str, NodeId]] = frozenset()
    """a node that accepts the task, and once loses what it knows of it"""
    needs: frozenset[NodeId] = frozenset()
    """nodes at which the job needs something that must be held before it starts"""
    busy: tuple[tuple[NodeId, float, float], ...] = ()
    """when which of them has too little free: node, begin, end"""
    asks: Mapping[NodeId, tuple[float, bool | None]] = field(default_factory=dict)
    """nodes at which somebody has to agree: after how long they say yes or no; None: they say nothing"""
    suspended: tuple[float, float] | None = None
    """from when until when no further task is to start"""
    pushes: frozenset[NodeId] = frozenset()
    """nodes that report by themselves"""
    stop_at: float | None = None
    stop_tasks: tuple[tuple[float, str], ...] = ()
    """when which task is asked to stop"""
    outages: tuple[Outage, ...] = ()
    planners: int = 1
    trouble: float = 0.0
    """share of the messages with which something goes wrong"""
    crash: float = 0.0
    """chance of a planner to die at each pause"""
    stalls: float = 0.0
    """chance of a planner to record an answer only long after it has come"""
    dies_at: int | None = None
    """the pause at which the first planner dies for certain"""
    trouble_until: float = 0.0
    seed: int = 0

    def fate(
        self,
        task: str,
        node: NodeId,
        role: str,
    ) -> Fate:
        return self.fates.get((task, node, role), Fate())

    def roles(self, task: str, node: NodeId) -> tuple[str, ...]:
        """Return the roles that the node really plays in the task."""
        of_task = self.task_roles.get(task)
        mine = dict.fromkeys(p.role for p in self.spec.parties_at(node))
        return tuple(r for r in mine if of_task is None or r in of_task)

    def job(self) -> Job:
        """Return the job as the scheduling node takes it in."""
        tasks = {}
        for name in (n.name for n in self.spec.dag.nodes):
            parts = {}
            for node in self.spec.nodes:
                roles = (
                    [p.role for p in self.spec.parties_at(node)] if name in self.unknown else None
                )
                if known := dict.fromkeys(
                    self.roles(name, node) if roles is None else roles, TaskStatus.PENDING
                ):
                    parts[node] = NodeTask(node, known)
            tasks[name] = Task(name, f"task_{name}", TaskStatus.PENDING, parts)
        return Job(
            self.spec, JobStatus.PENDING, T0, {n: NodeJob(n) for n in self.spec.nodes}, tasks
        )
