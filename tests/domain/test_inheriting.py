"""What a job takes over from an earlier one, and a job that is run again."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.domain import rerun, validation
from gateway.domain.dag import ComponentRef, Dag
from gateway.domain.job import Acceptance, Job, Lineage, Task
from gateway.domain.rerun import Order
from gateway.domain.scheduling.messages import StartTaskAt
from gateway.domain.spec import Failure, JobSpec, effective
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from tests.builders import a_job, a_node, a_spec, parties
from tests.domain.calls import C1, C2
from tests.domain.script import AcceptAll, accept, due_commands, play

SUCCESS, FAILED, READY = TaskStatus.SUCCESS, TaskStatus.FAILED, TaskStatus.READY
PARAMS = {
    "common": {"a": {"x": 1}},
    "guest": {"0": {"b": {"y": 1}}},
    "host": {"0|1": {"a": {"z": 1}}},
}


def an_ended_job(**statuses: Any) -> Job:
    """Return a job ``a -> b -> c; d`` of which everything has succeeded, or is as named."""
    spec = a_spec("a -> b -> c; d", job_id="job-old", task_params=PARAMS)
    statuses = dict.fromkeys("abcd", SUCCESS) | statuses
    return replace(
        a_job(spec.dag, JobStatus.FINISHED, spec=spec, **statuses), outcome=Outcome.FAILED
    )


def heir(old: Job, **changes: Any) -> JobSpec:
    return replace(
        old.spec,
        job_id="job-new",
        old_job_id=old.id,
        **changes,
    )


def demanding(spec: JobSpec, *tasks: Any) -> JobSpec:
    return replace(spec, job_params={"common": {"inherit": list(tasks)}})


# ---------------------------------------------------------------- what may be taken over


def test_all_that_is_the_same_and_has_succeeded_may_be_taken_over():
    old = an_ended_job(c=FAILED)
    found, lacking = rerun.candidates(old, heir(old))
    assert found == {n: Lineage("job-old", f"task_{n}") for n in "abd"}
    assert lacking == {"c": "it has not succeeded in job job-old"}
    more = heir(old, dag=Dag((*old.spec.dag.nodes, a_node("e"))))
    assert rerun.candidates(old, more)[1]["e"] == "job job-old has no such task"
    going_on = replace(old, status=JobStatus.RUNNING)
    assert set(rerun.candidates(going_on, heir(old))[1].values()) == {
        "job job-old is still RUNNING"
    }


def other_component(
    dag: Dag,
    task: str,
    ref: ComponentRef,
) -> Dag:
    return Dag(tuple(replace(n, component=ref) if n.name == task else n for n in dag.nodes))


DAG = an_ended_job().spec.dag


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"dag": other_component(DAG, "a", ComponentRef("vendor", "1.0.0", "Other"))},
            "the component differs",
        ),
        (
            {"dag": other_component(DAG, "a", ComponentRef("vendor", "2.0.0", "Thing"))},
            "the version differs",
        ),
        (
            {"dag": Dag((a_node("a", outputs=("out", "more")), *DAG.nodes[1:]))},
            "the outputs differ",
        ),
        ({"dag": Dag((a_node("a", ["d"]), *DAG.nodes[1:]))}, "the inputs differ"),
        (
            {"parties": parties({"guest": ("n1",), "host": ("n3",)})},
            "the roles differ: guest.0=n1, host.0=n3",
        ),
        (
            {"task_params": PARAMS | {"common": {"a": {"x": 2}}}},
            "the parameters of guest.0 differ: x",
        ),
        ({"task_params": PARAMS | {"host": {}}}, "the parameters of host.0 differ: z"),
        (
            {"task_params": PARAMS | {"host": {"0": {"a": {"z": 1, "dataset_id": "n#d"}}}}},
            "the inputs of host.0",
        ),
    ],
)
def test_what_differs_is_named_and_takes_what_follows_with_it(change: dict[str, Any], says: str):
    old = an_ended_job()
    found, lacking = rerun.candidates(old, heir(old, **change))
    assert lacking["a"].startswith(says)
    if "parties" not in change:
        assert (
            set(found) == {"d"}
            and lacking["b"] == "it needs the output of a, which is not inherited"
        )


@pytest.mark.parametrize(
    ("change", "goes_on"),
    [
        ({}, True),
        ({"task_params": {}}, True),
        ({"scheduler": "n9"}, False),
        ({"parties": parties({"guest": ("n1",), "host": ("n3",)})}, False),
        ({"dag": other_component(DAG, "b", ComponentRef("vendor", "1.0.0", "Other"))}, False),
        ({"dag": other_component(DAG, "a", ComponentRef("vendor", "2.0.0", "Thing"))}, False),
        ({"dag": Dag((a_node("b"), *DAG.nodes[2:]))}, False),
        ({"dag": Dag((*DAG.nodes[:2], a_node("z")))}, True),
        ({"task_params": {"host": {"0": {"a": {"dataset_id": "n#d"}}}}}, False),
    ],
)
def test_checkpoints_are_for_the_same_work_on_the_same_data(change: dict[str, Any], goes_on: bool):
    """Or another component would read at a partner what was left of data that is granted no more."""
    old = an_ended_job().spec
    assert rerun.may_go_on(old, replace(old, **change), "b", old.parties) is goes_on
    assert not rerun.may_go_on(
        old, replace(old, dag=Dag((*DAG.nodes, a_node("z")))), "z", old.parties
    )


def test_a_task_that_the_old_job_lacks_differs():
    old = an_ended_job().spec
    new = replace(old, dag=Dag((*DAG.nodes, a_node("new"))))
    assert rerun.difference(old, new, "new", ()) == "there is no such task"


def test_a_task_that_was_taken_over_itself_is_traced_to_where_it_ran():
    old = an_ended_job()
    first = Lineage("job-first", "task_first")
    old = replace(old, tasks={**old.tasks, "a": replace(old.tasks["a"], lineage=first)})
    assert rerun.candidates(old, heir(old))[0]["a"] == first


def test_a_demand_is_exactly_that():
    old = an_ended_job()
    assert set(rerun.candidates(old, demanding(heir(old), "a", "d"))[0]) == {"a", "d"}
    assert rerun.candidates(old, demanding(heir(old)))[0] == {}


# ---------------------------------------------------------------- what all nodes agree on


def created(*said: tuple[str, ...] | None, demand: bool = False) -> Job:
    """Return a new job that may take over a, b and d, after n1 and n2 have said what they can."""
    old = an_ended_job(c=FAILED)
    spec = demanding(heir(old), "a", "b", "d") if demand else heir(old)
    found, _ = rerun.candidates(old, spec)
    job = a_job(spec.dag, JobStatus.PENDING, spec=spec)
    tasks: dict[str, Task] = {n: replace(t, lineage=found.get(n)) for n, t in job.tasks.items()}
    accepted = (
        accept(c, 1, Acceptance(inherited=names)) for c, names in zip((C1, C2), said, strict=True)
    )
    return play(replace(job, tasks=tasks), 0, *accepted)


def test_what_every_node_can_take_over_has_succeeded_and_the_rest_runs():
    job = created(("a", "b", "d"), ("a", "b"))
    assert {n: t.status for n, t in job.tasks.items()} == {
        "a": SUCCESS,
        "b": SUCCESS,
        "c": READY,
        "d": READY,
    }
    assert job.tasks["a"].lineage == Lineage("job-old", "task_a") and job.tasks["d"].lineage is None
    told = {(n.event, n.detail["task"]) for n in job.notes if "inherited" in n.event}
    assert told == {("task inherited", "a"), ("task inherited", "b"), ("task not inherited", "d")}
    assert {
        r.task for r in due_commands(play(job, AcceptAll(2)), 2) if isinstance(r, StartTaskAt)
    } == {
        "c",
        "d",
    }


def test_a_task_whose_input_one_node_lacks_runs_too():
    job = created(("a", "b"), ("b",))
    assert {n for n, t in job.tasks.items() if t.status is SUCCESS} == set()


@pytest.mark.parametrize("silent", [0, 1])
def test_a_node_that_does_not_report_what_it_can_inherit_refuses_the_job(silent: int):
    said: list[Any] = [("a", "b", "d"), ("a", "b", "d")]
    said[silent] = None
    job = created(*said)
    assert (job.status, job.ending.outcome) == (JobStatus.PENDING, Outcome.REJECTED)
    assert (job.ending.failure.reason, job.ending.failure.node) == (rerun.REASON, f"n{silent + 1}")
    assert "job READY" not in {note.event for note in job.notes}


def test_a_demand_that_one_node_cannot_meet_refuses_the_job():
    job = created(("a", "b", "d"), ("a", "d"), demand=True)
    assert job.ending.failure == Failure(rerun.REASON, job.ending.failure.message, "n2", task="b")
    assert created(("a", "b", "d"), ("a", "b", "d"), demand=True).status is JobStatus.READY


# ---------------------------------------------------------------- run again


def again(
    old: Job,
    start: str = "",
    by: str = "n1",
    **parameters: Any,
) -> tuple[Any, list[str]]:
    made, problems = rerun.plan(old, Order(old.id, "job-new", start, parameters), by, "trace-2")
    return made, [p.path for p in problems]


def test_from_a_task_on_all_that_follows_runs_and_the_rest_is_taken_over():
    old = an_ended_job()
    made, _ = again(old, "b")
    assert (made.runs, made.inherits) == (("b", "c"), ("a", "d"))
    assert made.spec.old_job_id == "job-old" and made.spec.job_id == "job-new"
    assert made.spec.settings.inherit == ("a", "d") and validation.check(made.spec)[0] == []
    assert rerun.candidates(old, made.spec)[1] == {}


def test_without_a_task_it_begins_where_the_job_failed():
    made, _ = again(an_ended_job(b=FAILED, c=READY))
    assert (made.origin.start, made.runs, made.inherits) == ("b", ("b", "c"), ("a", "d"))
    assert again(an_ended_job()) == (None, ["from"])


def test_what_had_not_succeeded_elsewhere_runs_too():
    made, _ = again(an_ended_job(d=FAILED), "c")
    assert (set(made.runs), set(made.inherits)) == ({"c", "d"}, {"a", "b"})


def test_changes_reach_the_tasks_that_run_and_nothing_else():
    old = an_ended_job()
    made, _ = again(old, "b", common={"c": {"n": 5}}, host={"0": {"b": {"m": 6}}})
    host, guest = parties()[1], parties()[0]
    now = {
        (p.label, t): effective(made.spec.task_params, p, t) for p in (host, guest) for t in "abcd"
    }
    was = {
        (p.label, t): effective(old.spec.task_params, p, t) for p in (host, guest) for t in "abcd"
    }
    assert {k: {n: v.value for n, v in now[k].items()} for k in now if now[k] != was[k]} == {
        ("host.0", "a"): {"x": 1, "z": 1},  # the same values, now from an entry of its own
        ("host.0", "b"): {"m": 6},
        ("host.0", "c"): {"n": 5},
        ("guest.0", "c"): {"n": 5},
    }
    assert made.origin.changed == ("b", "c")
    assert rerun.candidates(old, made.spec)[1] == {}


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
)
def test_what_is_wrong_with_an_order_is_named(
    start: str,
    parameters: dict[str, Any],
    path: str,
):
    assert again(an_ended_job(), start, **parameters) == (None, [path])


def test_who_may_change_what():
    old = an_ended_job()
    assert again(old, "a", "n2", host={"0": {"a": {}}})[1] == []
    assert again(old, "a", "n2", guest={"0": {"a": {}}}, common={"a": {}})[1] == [
        "parameters.guest.0",
        "parameters.common",
    ]
    assert again(old, "b", host={"0": {"a": {"z": 2}}}, common=5)[1] == [
        "parameters.host.0.a",
        "parameters.common",
    ]
