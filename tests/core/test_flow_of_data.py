"""What a flow hands on is compared with the descriptions when a job is created: nothing vanishes on the way."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from gateway.domain.dag import Dag, DagInput, DagOutput
from gateway.domain.run import Address, Run
from gateway.domain.spec import JobSpec
from gateway.errors import Invalid
from provider_registry.registration import provider_from_request
from tests.builders import a_dag, a_spec
from tests.contracts.apis import IMAGE, World, registration
from tests.inprocess import ME, running
from tests.memory_engine import MemoryEngine, Script

_numbers = count()
OWN = {"guest": {"0": {"a": {"dataset_id": "space#mine"}}}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Serve one node with a dataset; `Thing` reads and writes one table."""

    engine = MemoryEngine.making({IMAGE: Script(code=None)})
    home = tmp_path_factory.mktemp("node")
    with running(home, make_engine=engine) as node:
        node.registry.register(provider_from_request(registration()))
        table = node.storage.path(Address("space", "mine"))
        table.mkdir(parents=True)
        (table / "data_0").write_text("id,x\na,1\n")
        yield World(node, node, home)


def a_job(
    dag: str | Dag = "a",
    *roles: str,
    strict: bool = False,
    **params: Any,
) -> JobSpec:
    return a_spec(
        dag,
        dict.fromkeys(roles or ("guest",), (ME,)),
        job_id=f"job-flow-{next(_numbers)}",
        job_params={"common": {"strict": True}} if strict else {},
        task_params=params,
    )


def test_what_keeps_a_finished_task_from_being_taken_over_is_named(world: World):
    [node] = a_job().dag.nodes
    [new] = world.me.planner.first_runs(a_job(), node)
    old = replace(new, output_keys={}, outputs={})
    changed = world.me.inheritance._difference
    assert changed(
        replace(old, inputs={}), replace(new, inputs={"in": Address("space", "mine")}), node, {}
    ) == ("the inputs of guest.0 differ")
    assert changed(old, replace(new, inputs=old.inputs), node, {}) == "guest.0 has no output out"
    lost = replace(new, image="nowhere:1")
    assert changed(old, lost, replace(node, outputs=()), {}).startswith(
        "image nowhere:1 cannot be looked at ("
    )


def warnings(world: World, spec: JobSpec) -> list[str]:
    world.me.participant.create_job(spec, "")
    return list(world.local(spec.job_id).warnings)


def refused(world: World, spec: JobSpec) -> dict[str, str]:
    """Return why a job is refused, by path; nothing of it is stored."""
    with pytest.raises(Invalid) as caught:
        world.me.participant.create_job(spec, "")
    assert world.me.store.local_jobs.find(spec.job_id) is None
    return {problem.path: str(problem) for problem in caught.value.problems}


def begun(world: World, spec: JobSpec) -> Run:
    """Start the job's task a, which writes nothing, and then b; return the run of b."""
    node = world.me.participant
    node.start_job(spec.job_id, "")
    node.start_task(spec.job_id, f"{spec.job_id}-a", "a", "")
    world.end(spec.job_id, "a", "guest.0")
    node.start_task(spec.job_id, f"{spec.job_id}-b", "b", "")
    return world.run(spec.job_id, "b", "guest.0")


def with_more_than_described() -> Dag:
    """Return a flow with a report and a model too many."""
    a, b = a_dag("a -> b").nodes
    outputs = (*a.outputs, DagOutput("report", "curve"), DagOutput("model", "weights"))
    return Dag(
        (
            replace(a, outputs=outputs),
            replace(b, inputs=(*b.inputs, DagInput("model", "a", "weights"))),
        )
    )


def test_what_no_description_has_a_counterpart_for_is_refused_all_at_once(world: World):
    found = refused(world, a_job(with_more_than_described(), **OWN))
    assert set(found) == {
        "dag.components[0].output[1]",
        "dag.components[0].output[2]",
        "dag.components[1].input[1]",
    }
    for words in (
        "inputs that Thing describes, out (dataset)",
        "take it out of the flow",
        "model a.weights",
    ):
        assert words in found["dag.components[1].input[1]"]


def test_a_flow_is_compared_only_where_its_component_runs(world: World):
    dag = with_more_than_described()
    judge = replace(a_dag("c").nodes[0], component=replace(dag.nodes[0].component, name="Judge"))
    assert warnings(world, a_job(Dag((*dag.nodes, judge)), "arbiter")) == []


def test_a_forgotten_dataset_is_warned_of_and_refused_in_a_strict_job(world: World):
    path = "config.task_params.guest.0.a.dataset_id"
    (warning,) = warnings(world, a_job())
    assert warning.startswith(f"{path}: is missing: Thing reads out")
    assert set(refused(world, a_job(strict=True))) == {path}
    assert warnings(world, a_job(strict=True, **OWN)) == []


def test_a_flow_dataset_on_a_task_warns_and_a_strict_job_refuses_it(
    world: World,
):
    both = {"a": {"dataset_id": "space#mine"}, "b": {"dataset_id": "space#mine"}}
    path = "config.task_params.guest.0|1.b.dataset_id"
    (warning,) = warnings(world, a_job("a -> b", guest={"0|1": both}))
    assert warning.startswith(f"{path}: is ignored, as the task reads a")
    assert set(refused(world, a_job("a -> b", strict=True, guest={"0": both}))) == {
        path.replace("|1", "")
    }


def test_a_dataset_of_a_component_without_inputs_is_warned_of(world: World):
    body = registration() | {"version": "3.0.0"}
    for described in body["components_description"].values():
        described |= {"version": "3.0.0", "inputData": []}
    world.me.registry.register(provider_from_request(body))
    (node,) = a_dag("a").nodes
    dag = Dag((replace(node, component=replace(node.component, version="3.0.0")),))
    (warning,) = warnings(world, a_job(dag, guest={"0": {"a": {"dataset_id": "nosharp"}}}))
    assert "guest.0.a.dataset_id: is ignored, as Thing describes no input" in warning


def test_one_output_feeds_as_many_inputs_as_the_flow_says(world: World):
    body = registration()
    table = body["components_description"]["Thing"]["inputData"][0]
    for described in body["components_description"].values():
        described |= {"version": "2.0.0", "inputData": [table, {**table, "name": "validate"}]}
    world.me.registry.register(provider_from_request(body | {"version": "2.0.0"}))
    a, b = a_dag("a -> b").nodes
    ref = replace(b.component, version="2.0.0")
    spec = a_job(Dag((a, replace(b, component=ref, inputs=b.inputs * 2))), **OWN)
    assert warnings(world, spec) == []
    run = begun(world, spec)
    assert run.inputs["validate"] == run.inputs["out"]
    third = replace(b, component=ref, inputs=b.inputs * 3)
    assert set(refused(world, a_job(Dag((a, third)), **OWN))) == {"dag.components[1].input[2]"}


@pytest.mark.parametrize("strict", [False, True])
def test_only_a_strict_job_needs_every_output_of_the_task_before(world: World, strict: bool):
    spec = a_job("a -> b", strict=strict, **OWN)
    world.me.participant.create_job(spec, "")
    if strict:
        with pytest.raises(Invalid, match="has no output out of task a") as caught:
            begun(world, spec)
        assert caught.value.reason == "INPUT_MISSING"
        return
    run = begun(world, spec)
    assert run.inputs == {"out": Address(f"{spec.job_id}-guest-0", f"{spec.job_id}-a-out")}
    (note,) = [one for one in world.me.store.timeline(spec.job_id) if one.event == "input missing"]
    assert (
        note.detail["task"] == "b"
        and "guest.0 has no output out of task a" in note.detail["message"]
    )
    assert run.warnings == (note.detail["message"],)
