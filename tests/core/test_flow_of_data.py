"""The inputs and outputs of a flow are compared with the descriptions when a job is created."""

from dataclasses import replace
from itertools import count

import pytest

from gateway.domain.dag import Dag, DagInput, DagOutput
from gateway.domain.run import Address
from gateway.domain.states import JobStatus
from gateway.errors import Conflict, Invalid
from provider_registry.registration import provider_from_request
from tests.builders import a_dag, a_spec, with_data
from tests.contracts.apis import IMAGE, World, registration
from tests.e2e.nodes import wait_for
from tests.inprocess import ME
from tests.memory_engine import Script
from tests.world import NodeSetup

_numbers = count()
# Task parameters by which the guest's task a reads the node's dataset.
READS_DATASET = {"guest": {"0": {"a": {"dataset_id": "space#mine"}}}}


def write_dataset(node):
    folder = node.storage.path(Address("space", "mine"))
    folder.mkdir(parents=True)
    (folder / "data_0").write_text("id,x\na,1\n")


# The component `Thing` of the provider reads one table and writes one.
NODE = NodeSetup(
    scripts={IMAGE: Script(code=None)},
    providers=[registration()],
    prepare=write_dataset,
)


@pytest.fixture
def site(node, tmp_path):
    """The node, as the world of the contract suites."""
    return World(node, node, tmp_path)


def a_job(
    dag="a",
    *roles,
    strict=False,
    **task_params,
):
    """Build a job in which this node has all roles, by default that of the guest alone."""
    common = {"strict": True} if strict else {}
    return a_spec(
        dag,
        dict.fromkeys(roles or ("guest",), (ME,)),
        job_id=f"job-flow-{next(_numbers)}",
        job_params={"common": common},
        task_params=task_params,
    )


def create(node, spec):
    """Create a job; return its warnings."""
    node.participant.create_job(spec, "")
    return list(node.store.local_jobs.get(spec.job_id).warnings)


def refusals(node, spec):
    """Return the problems for which a job is refused, by path; check that nothing is stored."""
    with pytest.raises(Invalid) as refusal:
        node.participant.create_job(spec, "")
    assert node.store.local_jobs.find(spec.job_id) is None
    return {problem.path: str(problem) for problem in refusal.value.problems}


def run_of_second_task(site, spec):
    """Start the job's task a, which writes nothing, and then b; return the run of b."""
    participant = site.me.participant
    participant.start_job(spec.job_id, "")
    participant.start_task(spec.job_id, f"{spec.job_id}-a", "a", "")
    site.end(spec.job_id, "a", "guest.0")
    participant.start_task(spec.job_id, f"{spec.job_id}-b", "b", "")
    return site.run(spec.job_id, "b", "guest.0")


def flow_with_undescribed_outputs():
    """Return a flow whose task a also writes a report and a model, which b reads."""
    first, second = a_dag("a -> b").nodes
    undescribed = (
        DagOutput("report", "curve"),
        DagOutput("model", "weights"),
    )
    model = DagInput("model", "a", "weights")
    return Dag(
        (
            replace(first, outputs=(*first.outputs, *undescribed)),
            replace(second, inputs=(*second.inputs, model)),
        )
    )


# ------------------------------------------------------------ the start of a job scheduled here


def test_own_start_of_a_job_is_stored_before_its_first_task(site):
    spec = a_job()
    node = site.me
    node.participant.create_job(spec, "")
    node.participant.start_job(spec.job_id, "")
    node.participant.start_task(spec.job_id, f"{spec.job_id}-a", "a", "")

    assert node.store.local_jobs.get(spec.job_id).status is JobStatus.RUNNING
    events = [entry.event for entry in node.store.timeline(spec.job_id)]
    assert events[:3] == ["job READY here", "job RUNNING here", "task accepted"]
    site.end(spec.job_id, "a", "guest.0")


def test_own_start_without_a_task_is_stored_soon(site):
    spec = a_job()
    node = site.me
    node.participant.create_job(spec, "")
    node.participant.start_job(spec.job_id, "")

    def is_running():
        return node.store.local_jobs.get(spec.job_id).status is JobStatus.RUNNING

    wait_for(is_running)


def test_own_start_of_an_ended_job_is_refused(site):
    spec = a_job()
    node = site.me
    node.participant.create_job(spec, "")
    node.participant.stop_job(spec.job_id, "", None, "")

    with pytest.raises(Conflict) as refusal:
        node.participant.start_job(spec.job_id, "")

    assert refusal.value.reason == "JOB_ENDED"


def test_the_start_of_a_task_starts_a_job_whose_start_was_lost(site):
    spec = a_job()
    node = site.me
    node.participant.create_job(spec, "")
    node.participant.start_task(spec.job_id, f"{spec.job_id}-a", "a", "")

    assert node.store.local_jobs.get(spec.job_id).status is JobStatus.RUNNING
    site.end(spec.job_id, "a", "guest.0")


# ------------------------------------------------------------ inheritance of finished tasks


@pytest.mark.parametrize(
    ("old_changes", "new_changes", "difference"),
    [
        (
            {"inputs": {}},
            {"inputs": {"in": Address("space", "mine")}},
            "the inputs of guest.0 differ",
        ),
        ({}, {}, "guest.0 has no output out"),
    ],
    ids=["inputs", "outputs"],
)
def test_the_obstacle_to_inheriting_a_task_is_named(node, old_changes, new_changes, difference):
    [task] = a_job().dag.nodes
    [new] = node.planner.tentative_runs(
        a_job(),
        task,
    )
    old = with_data(new, output_keys={}, outputs={}, **old_changes)
    new = with_data(new, inputs=old.data.inputs)
    new = with_data(new, **new_changes)

    assert node.inheritance.difference(old, new, task, {}) == difference


def test_an_image_missing_at_the_engine_is_an_obstacle_to_inheritance(node):
    [task] = a_job().dag.nodes
    [new] = node.planner.tentative_runs(
        a_job(),
        task,
    )
    old = with_data(
        new,
        output_keys={},
        outputs={},
    )
    without_image = replace(new, software=replace(new.software, image="nowhere:1"))

    difference = node.inheritance.difference(
        old,
        without_image,
        replace(task, outputs=()),
        {},
    )

    assert difference.startswith("image nowhere:1 cannot be looked at (")


# ------------------------------------------------------------ what descriptions lack


def test_everything_without_a_counterpart_in_a_description_is_refused(node):
    problems = refusals(node, a_job(flow_with_undescribed_outputs(), **READS_DATASET))

    assert set(problems) == {
        "dag.components[0].output[1]",
        "dag.components[0].output[2]",
        "dag.components[1].input[1]",
    }
    text = problems["dag.components[1].input[1]"]
    assert "inputs that Thing describes, out (dataset)" in text
    assert "take it out of the flow" in text
    assert "model a.weights" in text


def test_a_flow_is_compared_only_where_its_component_runs(node):
    dag = flow_with_undescribed_outputs()
    judge = replace(
        dag.nodes[0].component,
        name="Judge",
    )
    [judging_task] = a_dag("c").nodes
    judging_task = replace(judging_task, component=judge)

    assert create(node, a_job(Dag((*dag.nodes, judging_task)), "arbiter")) == []


def test_a_forgotten_dataset_is_a_warning_and_in_a_strict_job_a_refusal(node):
    path = "config.task_params.guest.0.a.dataset_id"

    [warning] = create(node, a_job())
    assert warning.startswith(f"{path}: is missing: Thing reads out")
    assert set(refusals(node, a_job(strict=True))) == {path}
    assert create(node, a_job(strict=True, **READS_DATASET)) == []


def test_an_ignored_dataset_is_a_warning_and_in_a_strict_job_a_refusal(node):
    dataset = {"dataset_id": "space#mine"}
    both_tasks = {
        "a": dataset,
        "b": dataset,
    }

    [warning] = create(
        node,
        a_job(
            "a -> b",
            guest={"0|1": both_tasks},
        ),
    )
    path = "config.task_params.guest.0|1.b.dataset_id"
    assert warning.startswith(f"{path}: is ignored, as the task reads a")

    strict_job = a_job(
        "a -> b",
        strict=True,
        guest={"0": both_tasks},
    )
    assert set(refusals(node, strict_job)) == {"config.task_params.guest.0.b.dataset_id"}


def test_a_dataset_for_a_component_without_inputs_is_a_warning(node):
    register_version(
        node,
        "3.0.0",
        input_data=[],
    )
    [task] = a_dag("a").nodes
    dag = Dag((with_version(task, "3.0.0"),))

    [warning] = create(
        node,
        a_job(
            dag,
            guest={"0": {"a": {"dataset_id": "nosharp"}}},
        ),
    )

    assert "guest.0.a.dataset_id: is ignored, as Thing describes no input" in warning


# ------------------------------------------------------------ outputs as inputs


def test_one_output_feeds_as_many_inputs_as_the_flow_says(site):
    node = site.me
    table = registration()["components_description"]["Thing"]["inputData"][0]
    register_version(node, "2.0.0", input_data=[table, {**table, "name": "validate"}])
    first, second = a_dag("a -> b").nodes
    second = with_version(second, "2.0.0")

    twice = replace(second, inputs=second.inputs * 2)
    spec = a_job(Dag((first, twice)), **READS_DATASET)
    assert create(node, spec) == []
    run = run_of_second_task(site, spec)
    assert run.data.inputs["validate"] == run.data.inputs["out"]

    three_times = replace(second, inputs=second.inputs * 3)
    spec = a_job(Dag((first, three_times)), **READS_DATASET)
    assert set(refusals(node, spec)) == {"dag.components[1].input[2]"}


def test_a_strict_job_needs_every_output_of_the_task_before(site):
    spec = a_job("a -> b", strict=True, **READS_DATASET)
    create(site.me, spec)

    with pytest.raises(Invalid, match="has no output out of task a") as refusal:
        run_of_second_task(site, spec)
    assert refusal.value.reason == "INPUT_MISSING"
    local = site.me.store.local_jobs.get(spec.job_id)
    assert [run.task_name for run in local.runs] == ["a"]  # no container of task b


def test_a_missing_output_of_the_task_before_is_a_warning(site):
    spec = a_job("a -> b", **READS_DATASET)
    create(site.me, spec)

    run = run_of_second_task(site, spec)

    address = Address(f"{spec.job_id}-guest-0", f"{spec.job_id}-a-out")
    assert run.data.inputs == {"out": address}
    timeline = site.me.store.timeline(spec.job_id)
    [note] = [entry for entry in timeline if entry.event == "input missing"]
    assert note.detail["task"] == "b"
    assert "guest.0 has no output out of task a" in note.detail["message"]
    view = site.me.get(f"/api/v1/jobs/{spec.job_id}").json()
    assert [note.detail["message"]] in [run["warnings"] for run in view["runs"]]


def register_version(node, version, input_data):
    """Register a version of the provider whose components have these inputs."""
    request = registration() | {"version": version}
    for description in request["components_description"].values():
        description["version"] = version
        description["inputData"] = input_data
    node.registry.register(provider_from_request(request))


def with_version(task, version):
    return replace(
        task,
        component=replace(
            task.component,
            version=version,
        ),
    )
