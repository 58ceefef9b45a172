"""New jobs: their checks before the submission, and their first record at the scheduling node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from gateway.domain import dag as flow
from gateway.domain import rerun, validation
from gateway.domain.dag import ComponentRef, Dag, DagNode
from gateway.domain.job import Job, Lineage, NodeJob, NodeTask, Task
from gateway.domain.problems import Problem
from gateway.domain.spec import PROVIDERS, JobSpec, NodeId
from gateway.domain.states import JOB, JobStatus, TaskStatus, ended
from gateway.domain.task_ids import TaskIds, first_task_id
from gateway.errors import Invalid
from gateway.jobs.fingerprint import digest
from gateway.jobs.parameter_names import misspelled_parameters
from gateway.runtime.context import NodeContext, Peers, acting_user, by_user
from provider_registry.model import ANY, Component, component_differences
from provider_registry.registry import Registry, Unknown
from route_table.live import LiveRoutes
from route_table.model import UnknownNode


@dataclass(frozen=True)
class _CheckedJob:
    """A job without problems, with the versions of its components filled in."""

    spec: JobSpec
    digest: str  # of the job as submitted
    warnings: Sequence[Problem]
    chosen_versions: list[str]  # one sentence per task whose version was left open
    # The form of task ids that each node needs; empty if other nodes submit and schedule the job.
    task_ids: Mapping[NodeId, TaskIds]


class NewJobs:
    """Checks jobs that are submitted here, and builds the records of jobs scheduled here."""

    def __init__(
        self,
        context: NodeContext,
        peers: Peers,
        registry: Registry,
        routes: LiveRoutes,
    ) -> None:
        self._store = context.store
        self._clock = context.clock
        self._peers = peers
        self._registry = registry
        self._routes = routes

    def check(self, spec: JobSpec) -> Sequence[Problem]:
        """Return warnings about a job, as far as this node can tell; empty for none.

        The job need not be scheduled by this node. Raises `Invalid` with every problem.
        """
        return self._check(spec).warnings

    def build_job(self, spec: JobSpec) -> Job:
        """Return the record of a job that begins. Raises `Invalid` with every problem."""
        checked = self._check(spec)
        spec = checked.spec
        lineage, not_inherited = self._inheritance(spec)
        tasks = self._build_tasks(
            spec,
            lineage,
            TaskIds.strictest(checked.task_ids.values()),
        )
        job = Job(
            spec=spec,
            status=JobStatus.PENDING,
            created_at=self._clock(),
            nodes={node: NodeJob(node, call_limit=self._call_limit(node)) for node in spec.nodes},
            tasks=tasks,
            warnings=(*checked.chosen_versions, *map(str, checked.warnings), *not_inherited),
            digest=checked.digest,
            user=acting_user(),
        )
        return job.with_note(self._clock(), "job PENDING", spec.initiator, **by_user())

    # ---------------------------------------------------------------- checks

    def _check(self, spec: JobSpec) -> _CheckedJob:
        """Return a job with its versions filled in. Raises `Invalid` with every problem.

        The reason is NODE_UNKNOWN if only routes are missing. A misspelled parameter refuses only a
        job of this node: the descriptions of another platform may say less. Versions that cannot be
        filled in are a problem only if this node schedules the job: another scheduling node fills
        them in itself.
        """
        submitted_digest = digest(spec)
        problems, warnings = validation.check(spec, self._roles)
        problems += self._parties_without_route(spec)
        filled, chosen, unknown_versions = with_versions(spec, self._registry)
        differences, not_compared = self._compare_providers(filled)
        problems += differences
        warnings += not_compared
        task_ids: dict[NodeId, TaskIds] = {}
        if self._peers.node in (spec.scheduler, spec.initiator):
            task_ids = self._peers.task_ids(spec)
        if spec.scheduler == self._peers.node:
            problems += unknown_versions
        if spec.initiator == self._peers.node:
            problems += misspelled_parameters(filled, self._component)
            problems += _parties_without_task_ids(spec, task_ids)
        if problems:
            raise _invalid(problems)
        return _CheckedJob(filled, submitted_digest, warnings, chosen, task_ids)

    def _parties_without_route(self, spec: JobSpec) -> list[Problem]:
        """Return a problem for each party at a node without an enabled route."""
        problems = []
        for party in spec.parties:
            if party.node == self._peers.node:
                continue
            try:
                self._routes.table.resolve(party.node)
            except UnknownNode as error:
                path = f"config.role.{party.role}[{party.index}]"
                problems.append(Problem(path, str(error), party.node))
        return problems

    def _compare_providers(
        self,
        spec: JobSpec,
    ) -> tuple[list[Problem], list[Problem]]:
        """Compare the flow's components with those of other providers that parties use instead.

        Returns problems for components that differ, and warnings for components that cannot be
        compared because one of the two is not registered here.
        """
        problems = []
        warnings = []
        for party in spec.parties:
            for task, substitute in spec.providers_of(party).items():
                path = f"config.job_params.{party.role}.{party.index}.{PROVIDERS}.{task}"
                usual = spec.dag[task].component
                try:
                    differences = self._differences(usual, substitute)
                except Unknown as error:
                    rule = f"is not compared with {usual} here: {error.message}"
                    remedy = "register both here to compare them, or ask their vendors"
                    warnings.append(Problem(path, rule, str(substitute), remedy=remedy))
                    continue
                if differences:
                    rule = (
                        f"differs from {usual} in {', '.join(differences)}: "
                        "the parties could not work together"
                    )
                    problems.append(Problem(path, rule, str(substitute)))
        return problems, warnings

    def _differences(
        self,
        usual: ComponentRef,
        substitute: ComponentRef,
    ) -> list[str]:
        """Return what differs between the descriptions of two components. Raises `Unknown`."""
        _, usual_component = self._registry.find(
            usual.provider,
            usual.version,
            usual.name,
        )
        _, substitute_component = self._registry.find(
            substitute.provider,
            substitute.version,
            substitute.name,
        )
        return component_differences(usual_component, substitute_component)

    # ---------------------------------------------------------------- record

    def _build_tasks(
        self,
        spec: JobSpec,
        lineage: dict[str, Lineage],
        form: TaskIds,
    ) -> dict[str, Task]:
        """Return the job's tasks by name, with ids of this form.

        Raises `Invalid` for tasks in which no node has a role.
        """
        roles_of_task = flow.once_per_component(self._roles)  # `_roles` with a cache
        tasks = {}
        for dag_node in spec.dag.nodes:
            name = dag_node.name
            task_id = first_task_id(
                form,
                spec.job_id,
                name,
                random=uuid4().hex,
            )
            nodes = _task_nodes(spec, roles_of_task(dag_node))
            tasks[name] = Task(
                name,
                task_id,
                TaskStatus.PENDING,
                nodes,
                lineage=lineage.get(name),
            )
        without_nodes = [name for name, task in tasks.items() if not task.nodes]
        if without_nodes:
            rule = "no node of the job has a role in this component"
            raise Invalid(Problem(f"dag.components.{name}", rule, name) for name in without_nodes)
        return tasks

    def _call_limit(self, node: NodeId) -> float | None:
        """Return the total time of a call that the route to a node allows, in seconds.

        None for a route with the default deadline, and for this node.
        """
        if node == self._peers.node:
            return None
        return self._routes.table.resolve(node).total_deadline

    def _inheritance(
        self,
        spec: JobSpec,
    ) -> tuple[dict[str, Lineage], list[str]]:
        """Return the job's lineage by inheritable task, and warnings about the other tasks.

        Raises `Invalid` if the old job is unknown or not over, or if the setting ``inherit`` names
        a task that cannot be inherited. Only this node's record of the old job is compared here;
        each party compares its part later.
        """
        if not spec.old_job_id:
            return {}, []
        old = self._ended_job(spec.old_job_id)
        lineage, reasons = rerun.candidates(old, spec)
        if reasons and spec.settings.inherit is not None:
            path = "config.job_params.common.inherit"
            problems = [
                Problem(path, f"task {task} of job {old.id}: {why}", task)
                for task, why in reasons.items()
            ]
            raise Invalid(problems, reason=rerun.INHERITANCE_FAILED)
        warnings = [f"task {task} is not inherited: {why}" for task, why in reasons.items()]
        return lineage, warnings

    def _ended_job(self, job_id: str) -> Job:
        """Return the old job to inherit from. Raises `Invalid` if it is unknown or not over."""
        old = self._store.jobs.find(job_id)
        if old is None:
            state = "no such job is scheduled here"
        elif not ended(JOB, old.status):
            state = f"it is still {old.status}"
        else:
            return old
        raise Invalid(
            [Problem("old_job_id", state, job_id)],
            reason=rerun.INHERITANCE_FAILED,
        )

    def _component(self, task: DagNode) -> Component | None:
        """Return the component of a task; None if it is not registered here."""
        return component_of(self._registry, task)

    def _roles(self, task: DagNode) -> tuple[str, ...] | None:
        """Return the roles of a task's component; None if it is not registered here."""
        return roles_of(self._registry, task)


def _invalid(problems: Sequence[Problem]) -> Invalid:
    """Return the refusal of a job with problems; NODE_UNKNOWN if all are missing routes."""
    if all(is_missing_route(problem) for problem in problems):
        return Invalid(problems, reason="NODE_UNKNOWN")
    return Invalid(problems)


def _parties_without_task_ids(
    spec: JobSpec,
    forms: Mapping[NodeId, TaskIds],
) -> list[Problem]:
    """Return a problem for each party that takes no task ids of the form another node needs."""
    numbered = [node for node, form in forms.items() if form is TaskIds.NUMBERED]
    if not numbered:
        return []
    rule = (
        "takes only names of Kubernetes as ids of tasks, and "
        f"{numbered[0]} only those of FATE: split the job"
    )
    problems = []
    for party in spec.parties:
        if forms.get(party.node) is TaskIds.KUBERNETES:
            path = f"config.role.{party.role}[{party.index}]"
            problems.append(Problem(path, rule, party.node))
    return problems


def _task_nodes(
    spec: JobSpec,
    roles: tuple[str, ...] | None,
) -> dict[NodeId, NodeTask]:
    """Return a task's record for each node that takes part in it.

    ``roles`` are the roles of the task's component; None if the component is not registered here,
    which counts as all roles.
    """
    states: dict[NodeId, dict[str, TaskStatus]] = {}
    for party in spec.parties:
        if party.takes_part(roles):
            by_role = states.setdefault(party.node, {})
            by_role[party.role] = TaskStatus.PENDING
    return {node: NodeTask(node, by_role) for node, by_role in states.items()}


def with_versions(
    spec: JobSpec,
    registry: Registry,
) -> tuple[JobSpec, list[str], list[Problem]]:
    """Fill in the versions that tasks leave open with the newest in use here.

    Returns the job, a sentence per chosen version, and a problem per task for whose component no
    version is in use.
    """
    nodes: list[DagNode] = []
    choices: list[str] = []
    problems: list[Problem] = []
    for node in spec.dag.nodes:
        ref = node.component
        if ref.version != ANY:
            nodes.append(node)
            continue
        try:
            newest = registry.newest_version(ref.provider, ref.name)
        except Unknown as error:
            rule = (
                "stands for the newest version that the scheduling node has in use, "
                f"but here {error.message}"
            )
            path = f"dag.components.{node.name}.version"
            suggestion = "a version by its number"
            problems.append(Problem(path, rule, ANY, suggestion))
            nodes.append(node)
            continue
        chosen = replace(ref, version=newest)
        nodes.append(replace(node, component=chosen))
        choices.append(
            f"task {node.name} uses {chosen}, "
            "the newest version in use when the job was created (asked for *)"
        )
    if choices:
        spec = replace(
            spec,
            dag=Dag(tuple(nodes), spec.dag.version),
        )
    return spec, choices, problems


def roles_of(
    registry: Registry,
    task: DagNode,
) -> tuple[str, ...] | None:
    """Return the roles that take part in a task; None if its component is not registered here."""
    component = component_of(registry, task)
    if component is None:
        return None
    return component.roles


def component_of(
    registry: Registry,
    task: DagNode,
) -> Component | None:
    """Return the description of a task's component; None if it is not registered here."""
    ref = task.component
    try:
        _, component = registry.find(
            ref.provider,
            ref.version,
            ref.name,
        )
    except Unknown:
        return None
    return component


def is_missing_route(problem: Problem) -> bool:
    """Return whether a problem that `NewJobs` found is a missing route to the node of a party.

    Only such a problem has the path of a single party, such as ``config.role.guest[0]``.
    """
    return problem.path.startswith("config.role.") and problem.path.endswith("]")
