"""Reruns: the results that a job inherits from an earlier one, and a job that is run again."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.domain import rerun, validation
from gateway.domain.dag import ComponentRef, Dag
from gateway.domain.job import Acceptance, Job, Lineage
from gateway.domain.rerun import Order
from gateway.domain.scheduling.messages import StartTaskAt
from gateway.domain.spec import Failure, JobSpec, effective
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from tests.builders import a_job, a_node, a_spec, parties
from tests.domain.calls import C1, C2
from tests.domain.script import AcceptAll, accept, due_commands, play

SUCCESS = TaskStatus.SUCCESS
FAILED = TaskStatus.FAILED
READY = TaskStatus.READY

PARAMS = {
    "common": {"a": {"x": 1}},
    "guest": {"0": {"b": {"y": 1}}},
    "host": {"0|1": {"a": {"z": 1}}},
}


def an_ended_job(**statuses: Any) -> Job:
    """Return a job ``a -> b -> c; d``; a task without a status has succeeded."""
    spec = a_spec("a -> b -> c; d", job_id="job-old", task_params=PARAMS)
    all_statuses = dict.fromkeys("abcd", SUCCESS) | statuses
    job = a_job(spec.dag, JobStatus.FINISHED, spec=spec, **all_statuses)
    return replace(job, outcome=Outcome.FAILED)


def successor(old: Job, **changes: Any) -> JobSpec:
    """Return a new job that may inherit from an old one."""
    return replace(
        old.spec,
        job_id="job-new",
        old_job_id=old.id,
        **changes,
    )


def demand(spec: JobSpec, *tasks: str) -> JobSpec:
    """Return a job that demands to inherit exactly these tasks."""
    return replace(
        spec,
        job_params={"common": {"inherit": list(tasks)}},
    )


# ---------------------------------------------------------------- candidates


def test_every_unchanged_task_that_succeeded_may_be_inherited():
    old = an_ended_job(c=FAILED)

    candidates, obstacles = rerun.candidates(old, successor(old))

    assert candidates == {task: Lineage("job-old", f"task_{task}") for task in "abd"}
    assert obstacles == {"c": "it has not succeeded in job job-old"}


def test_a_new_task_cannot_be_inherited():
    old = an_ended_job()
    larger_dag = Dag((*old.spec.dag.nodes, a_node("e")))

    _, obstacles = rerun.candidates(old, successor(old, dag=larger_dag))

    assert obstacles["e"] == "job job-old has no such task"


def test_nothing_is_inherited_from_a_running_job():
    old = replace(an_ended_job(), status=JobStatus.RUNNING)

    _, obstacles = rerun.candidates(old, successor(old))

    assert set(obstacles.values()) == {"job job-old is still RUNNING"}


DAG = an_ended_job().spec.dag
WITHOUT_A = DAG.nodes[1:]


def with_component(task: str, component: ComponentRef) -> Dag:
    """Return the flow with another component for a task."""
    nodes = [replace(n, component=component) if n.name == task else n for n in DAG.nodes]
    return Dag(tuple(nodes))


OTHER_COMPONENT = ComponentRef("vendor", "1.0.0", "Other")
OTHER_VERSION = ComponentRef("vendor", "2.0.0", "Thing")
OTHER_HOST = parties({"guest": ("n1",), "host": ("n3",)})

DIFFERENCES: dict[str, tuple[dict[str, Any], str]] = {
    "component": (
        {"dag": with_component("a", OTHER_COMPONENT)},
        "the component differs",
    ),
    "version": (
        {"dag": with_component("a", OTHER_VERSION)},
        "the version differs",
    ),
    "outputs": (
        {"dag": Dag((a_node("a", outputs=("out", "more")), *WITHOUT_A))},
        "the outputs differ",
    ),
    "inputs": ({"dag": Dag((a_node("a", ["d"]), *WITHOUT_A))}, "the inputs differ"),
    "common parameter": (
        {"task_params": PARAMS | {"common": {"a": {"x": 2}}}},
        "the parameters of guest.0 differ: x",
    ),
    "parameter of a role": (
        {"task_params": PARAMS | {"host": {}}},
        "the parameters of host.0 differ: z",
    ),
    "dataset": (
        {"task_params": PARAMS | {"host": {"0": {"a": {"z": 1, "dataset_id": "n#d"}}}}},
        "the inputs of host.0",
    ),
}


@pytest.mark.parametrize(
    ("change", "obstacle"),
    DIFFERENCES.values(),
    ids=DIFFERENCES,
)
def test_a_changed_task_and_its_downstream_tasks_are_not_inherited(
    change: dict[str, Any], obstacle: str
):
    old = an_ended_job()

    candidates, obstacles = rerun.candidates(old, successor(old, **change))

    assert set(candidates) == {"d"}
    assert obstacles["a"].startswith(obstacle)
    assert obstacles["b"] == "it needs the output of a, which is not inherited"


def test_a_change_of_parties_is_an_obstacle():
    old = an_ended_job()

    _, obstacles = rerun.candidates(old, successor(old, parties=OTHER_HOST))

    assert obstacles["a"].startswith("the roles differ: guest.0=n1, host.0=n3")


CHECKPOINTS: dict[str, tuple[dict[str, Any], bool]] = {
    "no change": ({}, True),
    "other parameters": ({"task_params": {}}, True),
    "another scheduler": ({"scheduler": "n9"}, False),
    "another party": ({"parties": OTHER_HOST}, False),
    "another component": (
        {"dag": with_component("b", OTHER_COMPONENT)},
        False,
    ),
    "another version upstream": (
        {"dag": with_component("a", OTHER_VERSION)},
        False,
    ),
    "no task upstream": ({"dag": Dag((a_node("b"), *DAG.nodes[2:]))}, False),
    "another flow downstream": ({"dag": Dag((*DAG.nodes[:2], a_node("z")))}, True),
    "other data": (
        {"task_params": {"host": {"0": {"a": {"dataset_id": "n#d"}}}}},
        False,
    ),
}


@pytest.mark.parametrize(
    ("change", "goes_on"),
    CHECKPOINTS.values(),
    ids=CHECKPOINTS,
)
def test_checkpoints_are_for_the_same_work_on_the_same_data(change: dict[str, Any], goes_on: bool):
    """Else another component would read a partner's data after the end of its grant."""
    old = an_ended_job().spec

    assert rerun.may_take_checkpoints(old, replace(old, **change), "b", old.parties) is goes_on


def test_a_new_task_has_no_checkpoint():
    old = an_ended_job().spec
    new = replace(old, dag=Dag((*DAG.nodes, a_node("z"))))

    assert not rerun.may_take_checkpoints(old, new, "z", old.parties)


def test_a_task_that_the_old_job_lacks_differs():
    old = an_ended_job().spec
    new = replace(old, dag=Dag((*DAG.nodes, a_node("new"))))

    assert rerun.difference(old, new, "new", ()) == "there is no such task"


def test_an_inherited_task_is_traced_to_the_job_in_which_it_ran():
    old = an_ended_job()
    first_run = Lineage("job-first", "task_first")
    inherited = replace(
        old.tasks["a"],
        lineage=first_run,
    )
    old = replace(old, tasks={**old.tasks, "a": inherited})

    candidates, _ = rerun.candidates(old, successor(old))

    assert candidates["a"] == first_run


@pytest.mark.parametrize(
    "tasks",
    [("a", "d"), ()],
    ids=["some", "none"],
)
def test_only_the_demanded_tasks_are_inherited(tasks: tuple[str, ...]):
    old = an_ended_job()

    candidates, _ = rerun.candidates(old, demand(successor(old), *tasks))

    assert set(candidates) == set(tasks)


# ---------------------------------------------------------------- agreement of the nodes


def create_successor(
    *inherited_at: tuple[str, ...] | None,
    demanded: tuple[str, ...] = (),
) -> Job:
    """Return a new job that may inherit a, b and d, after its creation at n1 and n2.

    ``inherited_at`` has the tasks that each node reports as inherited; None: it reports nothing.
    """
    old = an_ended_job(c=FAILED)
    spec = successor(old)
    if demanded:
        spec = demand(spec, *demanded)
    candidates, _ = rerun.candidates(old, spec)
    job = a_job(
        spec.dag,
        JobStatus.PENDING,
        spec=spec,
    )
    tasks = {name: replace(task, lineage=candidates.get(name)) for name, task in job.tasks.items()}
    responses = [
        accept(request, 1, Acceptance(inherited=tasks_at_node))
        for request, tasks_at_node in zip((C1, C2), inherited_at, strict=True)
    ]
    return play(replace(job, tasks=tasks), 0, *responses)


def test_a_task_that_every_node_inherits_has_succeeded_and_the_rest_runs():
    job = create_successor(("a", "b", "d"), ("a", "b"))

    statuses = {name: task.status for name, task in job.tasks.items()}
    assert statuses == {
        "a": SUCCESS,
        "b": SUCCESS,
        "c": READY,
        "d": READY,
    }
    assert job.tasks["a"].lineage == Lineage("job-old", "task_a")
    assert job.tasks["d"].lineage is None
    notes = {(note.event, note.detail["task"]) for note in job.notes if "inherited" in note.event}
    assert notes == {
        ("task inherited", "a"),
        ("task inherited", "b"),
        ("task not inherited", "d"),
    }
    requests = due_commands(play(job, AcceptAll(2)), 2)
    started_tasks = {request.task for request in requests if isinstance(request, StartTaskAt)}
    assert started_tasks == {"c", "d"}


def test_a_task_runs_again_if_one_node_lacks_its_input():
    job = create_successor(("a", "b"), ("b",))

    assert SUCCESS not in {task.status for task in job.tasks.values()}


@pytest.mark.parametrize("silent", [0, 1])
def test_a_node_that_does_not_report_what_it_can_inherit_refuses_the_job(silent: int):
    inherited_at: list[tuple[str, ...] | None] = [
        ("a", "b", "d"),
        ("a", "b", "d"),
    ]
    inherited_at[silent] = None

    job = create_successor(*inherited_at)

    assert (job.status, job.ending.outcome) == (JobStatus.PENDING, Outcome.REJECTED)
    assert (job.ending.failure.reason, job.ending.failure.node) == (
        rerun.INHERITANCE_FAILED,
        f"n{silent + 1}",
    )
    assert "job READY" not in {note.event for note in job.notes}


def test_a_demand_that_one_node_cannot_meet_refuses_the_job():
    job = create_successor(
        ("a", "b", "d"),
        ("a", "d"),
        demanded=("a", "b", "d"),
    )

    failure = job.ending.failure
    assert failure == Failure(
        rerun.INHERITANCE_FAILED,
        failure.message,
        "n2",
        task="b",
    )


def test_a_demand_that_every_node_meets_makes_the_job_ready():
    job = create_successor(
        ("a", "b", "d"),
        ("a", "b", "d"),
        demanded=("a", "b", "d"),
    )

    assert job.status is JobStatus.READY


# ---------------------------------------------------------------- a job that is run again


def rerun_plan(
    old: Job,
    start: str = "",
    requester: str = "n1",
    **parameters: Any,
) -> tuple[Any, list[str]]:
    """Return the plan of a rerun (None with problems), and the paths of the problems."""
    order = Order(old.id, "job-new", start, parameters)
    plan, problems = rerun.plan(old, order, requester, "trace-2")
    return plan, [problem.path for problem in problems]


def test_a_rerun_from_a_task_runs_its_downstream_and_inherits_the_rest():
    old = an_ended_job()

    plan, _ = rerun_plan(old, "b")

    assert (plan.runs, plan.inherits) == (
        ("b", "c"),
        ("a", "d"),
    )
    assert plan.spec.old_job_id == "job-old"
    assert plan.spec.job_id == "job-new"
    assert plan.spec.settings.inherit == ("a", "d")
    problems, _ = validation.check(plan.spec)
    assert problems == []
    _, obstacles = rerun.candidates(old, plan.spec)
    assert obstacles == {}


def test_a_rerun_begins_at_the_failed_task_by_default():
    plan, _ = rerun_plan(an_ended_job(b=FAILED, c=READY))

    assert plan.origin.start == "b"
    assert (plan.runs, plan.inherits) == (
        ("b", "c"),
        ("a", "d"),
    )


def test_a_rerun_of_a_job_without_a_failed_task_has_to_name_its_start():
    assert rerun_plan(an_ended_job()) == (
        None,
        ["from"],
    )


def test_a_rerun_runs_failed_tasks_of_other_branches_too():
    plan, _ = rerun_plan(an_ended_job(d=FAILED), "c")

    assert set(plan.runs) == {"c", "d"}
    assert set(plan.inherits) == {"a", "b"}


def parameters_by_party_and_task(spec: JobSpec) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the parameters with their origins of every task at every party."""
    return {
        (party.label, task): effective(spec.task_params, party, task)
        for party in parties()
        for task in "abcd"
    }


def test_changes_reach_the_tasks_that_run_and_nothing_else():
    old = an_ended_job()

    plan, _ = rerun_plan(
        old,
        "b",
        common={"c": {"n": 5}},
        host={"0": {"b": {"m": 6}}},
    )

    before = parameters_by_party_and_task(old.spec)
    changed = {
        key: {name: parameter.value for name, parameter in parameters.items()}
        for key, parameters in parameters_by_party_and_task(plan.spec).items()
        if parameters != before[key]
    }
    assert changed == {
        ("host.0", "a"): {
            "x": 1,
            "z": 1,
        },  # the same values, now from an entry of host.0 alone
        ("host.0", "b"): {"m": 6},
        ("host.0", "c"): {"n": 5},
        ("guest.0", "c"): {"n": 5},
    }
    assert plan.origin.changed == ("b", "c")
    _, obstacles = rerun.candidates(old, plan.spec)
    assert obstacles == {}


@pytest.mark.parametrize(
    ("start", "parameters", "path"),
    [
        ("x", {}, "from"),
        ("a", {"nobody": {}}, "parameters.nobody"),
        ("a", {"host": {"1": {}}}, "parameters.host.1"),
        ("a", {"host": {"0": 5}}, "parameters.host.0"),
        ("a", {"common": {"z": {}}}, "parameters.common.z"),
        ("a", {"common": {"a": 5}}, "parameters.common.a"),
    ],
    ids=[
        "unknown start",
        "unknown role",
        "unknown index",
        "entry is no object",
        "unknown task",
        "parameters are no object",
    ],
)
def test_a_wrong_order_is_refused_with_the_path(
    start: str,
    parameters: dict[str, Any],
    path: str,
):
    assert rerun_plan(an_ended_job(), start, **parameters) == (None, [path])


@pytest.mark.parametrize(
    ("requester", "start", "parameters", "paths"),
    [
        (
            "n2",
            "a",
            {"host": {"0": {"a": {}}}},
            [],
        ),
        (
            "n2",
            "a",
            {
                "guest": {"0": {"a": {}}},
                "common": {"a": {}},
            },
            ["parameters.guest.0", "parameters.common"],
        ),
        (
            "n1",
            "b",
            {
                "host": {"0": {"a": {"z": 2}}},
                "common": 5,
            },
            ["parameters.host.0.a", "parameters.common"],
        ),
    ],
    ids=[
        "a node changes its own entry",
        "a node changes those of others",
        "an inherited task is changed",
    ],
)
def test_a_change_needs_the_right_and_a_task_that_runs(
    requester: str,
    start: str,
    parameters: dict[str, Any],
    paths: list[str],
):
    _, problem_paths = rerun_plan(an_ended_job(), start, requester, **parameters)

    assert problem_paths == paths
