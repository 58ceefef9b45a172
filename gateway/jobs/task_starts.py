"""Start of a task at a participating node."""

from collections.abc import Callable, Sequence

from gateway.domain import rerun
from gateway.domain.dag import DagNode
from gateway.domain.problems import LARGEST_NAME, Problem, name_rule
from gateway.domain.records import replace
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import NodeId
from gateway.domain.states import JOB, JobStatus, RunStatus, ended, move
from gateway.errors import Conflict, Invalid, NotFound
from gateway.jobs.admission import Admission
from gateway.jobs.executor import Executor
from gateway.jobs.ids import check_id_unused
from gateway.jobs.parameter_offers import check_parameters, with_offers_in_force
from gateway.jobs.planner import TaskPlanner
from gateway.jobs.resources import Resources
from gateway.runtime.context import NodeContext


class TaskStarts:
    """Checks that a task may start here, and stores its runs for the executor."""

    def __init__(
        self,
        context: NodeContext,
        admission: Admission,
        planner: TaskPlanner,
        resources: Resources,
        executor: Executor,
        home_of: Callable[[LocalJob], str],
    ) -> None:
        """``home_of`` returns which of this node's gateways runs the containers of a job."""
        self._store = context.store
        self._clock = context.clock
        self._admission = admission
        self._planner = planner
        self._resources = resources
        self._executor = executor
        self._home_of = home_of

    def start(
        self,
        local: LocalJob,
        task_id: str,
        task_name: str,
        sender: NodeId,
        offers_in_force: Sequence[str],
    ) -> None:
        """Store the runs of a task; the executor starts them afterwards.

        ``offers_in_force``: ids of offered parameters. A repeated start changes nothing.
        """
        # This replaces only the ids in the job; `rerun.in_force` below applies the parameters.
        local = with_offers_in_force(local, offers_in_force)
        if _is_started(local, task_id, task_name):
            return
        # The names of outputs and checkpoints contain the id and other names, too.
        rule = name_rule(task_id, LARGEST_NAME // 3)
        if rule:
            raise Invalid([Problem("task_id", rule, task_id)])
        task = local.spec.dag.get(task_name)
        if task is None:
            raise NotFound(f"job {local.id} has no task {task_name}", reason="TASK_UNKNOWN")
        check_id_unused(self._store, new_id=task_id, job_id=local.id)
        with self._planner.registry.one_view():  # the check and the plan see the same registrations
            self._admission.check_start(local, sender)
            amended = replace(
                local,
                spec=rerun.in_force(local),
            )
            runs = self._planner.runs(amended, task, task_id)
        # READY: the start of the job, which reserves its resources, has not arrived yet.
        if local.status is JobStatus.READY:
            self._resources.hold(local)

        def add_runs(current: LocalJob) -> LocalJob:
            # Checked again, as the job may have changed since.
            if current.runs_of(task_id):
                return current
            if ended(JOB, current.status):
                raise Conflict(f"job {current.id} has ended here", reason="JOB_ENDED")
            _check_may_begin(current, task, offers_in_force)
            return self._add_runs(current, runs, offers_in_force, sender)

        self._executor.change(local.id, add_runs)

    def _add_runs(
        self,
        local: LocalJob,
        runs: Sequence[Run],
        offers_in_force: Sequence[str],
        sender: NodeId,
    ) -> LocalJob:
        """Return the job with the runs of a task that begins."""
        now = self._clock()
        status = local.status
        if status is JobStatus.READY:  # the start of the job may arrive later
            status = move(JOB, status, JobStatus.RUNNING)
        # Another gateway may have become the job's home since the runs were planned.
        home = self._home_of(local)
        owned = tuple(replace(run, owner=home) for run in runs)
        # Offers that are in force stay so: a start that arrives late may name fewer of them.
        amendments = tuple(dict.fromkeys((*local.amendments, *offers_in_force)))
        local = replace(
            local.with_new_runs(owned),
            status=status,
            home=home,
            run_warnings=local.run_warnings + sum(len(run.warnings) for run in owned),
            amendments=amendments,
        )
        task_name = runs[0].task_name
        local = local.with_note(
            now, "task accepted", sender, task=task_name, task_id=runs[0].task_id
        )
        for run in owned:
            for message in run.warnings:
                local = local.with_note(
                    now,
                    "input missing",
                    task=task_name,
                    message=message,
                )
        return local


def _is_started(local: LocalJob, task_id: str, task_name: str) -> bool:
    """Return whether the attempt with this task id has started here already.

    Raises `Conflict` if the id is that of another task of the job.
    """
    runs = local.runs_of(task_id)
    if not runs:
        return False
    if runs[0].task_name != task_name:
        text = f"task id {task_id} is that of task {runs[0].task_name} here"
        raise Conflict(text, reason="TASK_ID_CONFLICT")
    return True


def _check_may_begin(
    local: LocalJob,
    task: DagNode,
    offers_in_force: Sequence[str],
) -> None:
    """Raise `Conflict` unless a task may begin now, with the offers ``offers_in_force`` in force.

    A task whose part here succeeded may run again if it failed at another node, until a task that
    takes its output has begun here.
    """
    check_parameters(local, task, offers_in_force)
    newest = local.newest_runs(task.name)
    if not all(run.over for run in newest):
        raise Conflict(
            f"task {task.name} runs here under another task id", reason="TASK_ID_CONFLICT"
        )
    has_succeeded = newest and all(run.status is RunStatus.SUCCESS for run in newest)
    if has_succeeded and _is_final(local, task, newest[0].software.roles):
        text = f"task {task.name} of job {local.id} has succeeded, and does not run again"
        raise Conflict(text, reason="ATTEMPTS_USED_UP")
    _check_attempts_left(local, task)


def _check_attempts_left(local: LocalJob, task: DagNode) -> None:
    """Raise `Conflict` if a task has run as often as its retries allow."""
    attempts = {run.task_id for run in local.runs if run.task_name == task.name}
    allowed = 1 + local.spec.settings.time_limits.of(task.name).retries
    if len(attempts) >= allowed:
        text = (
            f"task {task.name} of job {local.id} has run {len(attempts)} times, "
            f"of {allowed} allowed (auto_retries)"
        )
        raise Conflict(text, reason="ATTEMPTS_USED_UP")


def _is_final(
    local: LocalJob,
    task: DagNode,
    roles: Sequence[str],
) -> bool:
    """Return whether a task's success here is final.

    It is final if all parties with one of the task's ``roles`` are at this node, or if a task that
    takes its output has begun here.
    """
    parties = [party for party in local.spec.parties if party.role in roles]
    if all(party.node == local.node for party in parties):
        return True
    begun_tasks = {run.task_name for run in local.runs}
    return any(task.name in local.spec.dag[name].upstream for name in begun_tasks)
