"""What a training leaves, when it is kept, and what a predicting job gets of it."""

from dataclasses import replace

import pytest

from gateway.domain import models
from gateway.domain.dag import ComponentRef, Dag, DagNode, DagOutput
from gateway.domain.execution import runs
from gateway.domain.execution.agenda import agenda
from gateway.domain.execution.messages import Collect, Done, Seal, Sealed, StopRequested, Tell
from gateway.domain.execution.runs import merge_runs
from gateway.domain.run import Address, FileSum
from gateway.domain.scheduling import machine as scheduling_machine
from gateway.domain.spec import CallState, Ending, Failure, Party
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from gateway.domain.timeouts import RunTiming
from tests.builders import OK, T0, a_job, a_local_job, a_run, a_spec, at
from tests.domain.calls import X1, X2
from tests.domain.execution_world import ExecutionPlot, ExecutionWorld, Program
from tests.domain.script import accept, due_commands, lose_response, play

REF = ComponentRef("vendor", "1.0.0", "Thing")
TREES = DagNode("trees", REF, (), (DagOutput("dataset", "data0"), DagOutput("model", "model0")))
FLOW = Dag((TREES,))
GOOD = Ending(Outcome.SUCCEEDED, at(9))
FILES = (FileSum("data_0", 3, "aa", "model"), FileSum("metadata", 2, "bb", "model"))


def asks(**common):
    return a_spec(FLOW, job_params={"common": common})


def trees(status=RunStatus.SUCCESS, **changes):
    run = a_run(
        "trees", status, to_seal=("model",), output_keys={"data0": "train_data", "model0": "model"}
    )
    outputs = {"train_data": Address("ns", "t-data0"), "model": Address("ns", "t-model0")}
    return replace(
        run,
        outputs=outputs,
        collect=OK,
        **changes,
    )


def local(
    *runs,
    spec=None,
    **changes,
):
    return replace(a_local_job(*runs), spec=spec or a_spec(FLOW), **changes)


def sealed():
    return trees(files=FILES, seal=OK)


# ---------------------------------------------------------------- what a job says


def test_by_default_a_model_is_named_by_flow_and_versioned_by_job():
    assert models.named(a_spec(FLOW)) == models.Named("train", "flow-1", "job-1")
    assert (
        models.named(a_spec(FLOW, flow_id="a/b")).model_id == "job-1"
    )  # a path cannot be made of it
    assert models.named(asks(model_id="m", model_version=3)) == models.Named("train", "m", "3")
    assert models.named(
        asks(
            job_type=None,
            model_id="",
            model_version="",
        )
    ) == models.named(a_spec(FLOW))


def test_only_outputs_of_category_model_are_sealed_and_only_in_training():
    keys = {"data0": "train_data", "model0": "model"}
    assert models.outputs_to_fingerprint(a_spec(FLOW), TREES, keys) == ("model",)
    assert (
        models.outputs_to_fingerprint(
            asks(
                job_type="predict",
                model_id="m",
                model_version="v",
            ),
            TREES,
            keys,
        )
        == ()
    )


# ---------------------------------------------------------------- sealing


def test_success_is_reported_only_once_the_model_is_sealed():
    job = local(trees())
    run = job.runs[0].run_id
    assert merge_runs(job.runs) is TaskStatus.RUNNING
    assert Seal(run) in due_commands(job, 1) and Tell(run, TaskStatus.SUCCESS) not in due_commands(
        job, 1
    )
    job = play(job, 1, Sealed(run, FILES, at(2)))
    assert merge_runs(job.runs) is TaskStatus.SUCCESS
    assert due_commands(job, 2) == [Tell(run, TaskStatus.SUCCESS)]
    assert play(job, Sealed(run, (), at(3))).runs[0].files == FILES  # a repeat changes nothing


def test_unreadable_files_are_retried_then_skipped_with_a_warning():
    job = local(trees())
    run = job.runs[0].run_id
    now = 0.0
    for _ in range(runs.SEAL_TRIES):
        assert job.runs[0].unsealed
        when = next(d.at for d in agenda(job, RunTiming()) if isinstance(d.command, Seal))
        now = max(now + 1, (when - T0).total_seconds() if when.year > 1 else 0.0)
        assert Seal(run) in due_commands(job, now)
        job = play(job, now, Sealed(run, None, at(now), "disk gone"))
    assert not job.runs[0].unsealed and "disk gone" in job.runs[0].warnings[0]
    once = play(local(trees()), 1, Sealed(run, None, at(1), "too large", final=True))
    assert not once.runs[0].unsealed and "too large" in once.runs[0].warnings[0]
    assert merge_runs(job.runs) is TaskStatus.SUCCESS
    ended = play(job, StopRequested(at(now), None, GOOD, "n1"))
    assert not ended.model_saved and models.left_by(ended) == []


@pytest.mark.parametrize("tasks", [None, frozenset({"trees"})])
def test_a_model_is_not_read_any_more_once_its_task_is_stopped(tasks):
    job = local(trees())
    run = job.runs[0].run_id
    assert Seal(run) in due_commands(job, 1)
    job = play(job, 1, StopRequested(at(2), tasks, Ending(Outcome.STOPPED, at(2)), "n1"))
    assert (
        not any(isinstance(d.command, Seal) for d in agenda(job, RunTiming()))
        and not job.runs[0].unsealed
    )
    assert play(job, Sealed(run, FILES, at(3))).runs[0].files == ()


def test_an_inherited_tasks_model_is_the_new_jobs_unless_it_ran_itself():
    node = DagNode("after", REF)
    spec = a_spec(Dag((TREES, node)))
    taken = replace(
        sealed(),
        of_job="job-old",
        task_id="task_old",
        outputs={"model": Address("old", "model")},
    )
    job = local(a_run("after", RunStatus.SUCCESS, collect=OK), spec=spec, inherited=(taken,))
    assert models.saves(job, GOOD) and models.saves(job, None)
    (model,) = models.left_by(job)
    assert [(part.task, part.address.namespace, part.files[0].sha256) for part in model.parts] == [
        ("trees", "old", "aa")
    ]
    own = replace(job, runs=(trees(), *job.runs))
    assert models.left_by(own) == [], "its own run counts, which is not sealed"


@pytest.mark.parametrize("dies_at", [None, *range(0, 40, 3)])
def test_a_model_is_sealed_before_success_is_reported_despite_crashes(
    dies_at,
):
    run = replace(trees(RunStatus.WAITING), launch=a_run("trees").launch)
    run = replace(run, collect=a_run("trees").collect)
    shop = ExecutionWorld(
        ExecutionPlot(local(run), {run.name: Program()}, dies_at=dies_at, seed=dies_at or 0)
    )
    end = shop.run()
    assert end.model_saved and [f.sha256 for f in end.runs[0].files] == [f"sum of {run.run_id}"]
    assert len(models.left_by(end)) == 1


# ---------------------------------------------------------------- saving


PREDICTS = {
    "job_type": "predict",
    "model_id": "m",
    "model_version": "v",
}


@pytest.mark.parametrize(
    ("changes", "ending", "saved"),
    [
        ({}, GOOD, True),
        ({}, Ending(Outcome.FAILED, at(9)), False),
        ({}, Ending(Outcome.STOPPED, at(9)), False),
        (
            {},
            None,
            True,
        ),  # a scheduling node that does not say: everything here succeeded, to the last task
        ({"spec": a_spec(Dag((TREES, DagNode("next", REF))))}, None, False),
        ({"spec": asks(**PREDICTS)}, GOOD, False),
    ],
)
def test_only_success_leaves_a_model(
    changes,
    ending,
    saved,
):
    end = play(local(sealed(), **changes), StopRequested(at(9), None, ending, "n1"))
    assert end.status is JobStatus.FINISHED and end.model_saved is saved
    assert [n.event for n in end.notes if n.event == "model saved"] == ["model saved"] * saved
    again = play(end, StopRequested(at(10), None, GOOD, "n1"))
    assert again.model_saved is saved  # what was decided once stays


def left(*runs):
    """Return the one model that a success of these leaves."""
    end = play(local(*(runs or (sealed(),))), StopRequested(at(9), None, GOOD, "n1"))
    (model,) = models.left_by(end)
    return model


def test_a_model_has_its_parts_with_checksums_addresses_and_parameters():
    model = left(
        trees(
            files=FILES,
            seal=OK,
            parameters={"num_trees": 2},
        )
    )
    assert (model.model_id, model.version, model.party) == (
        "flow-1",
        "job-1",
        Party("guest", 0, "n1"),
    )
    assert model.parties == (model.party, Party("host", 0, "n2"))
    (part,) = model.parts
    address = Address("ns", "t-model0")
    assert (part.task, part.key, part.output, part.address) == ("trees", "model0", "model", address)
    assert part.files == (FileSum("data_0", 3, "aa"), FileSum("metadata", 2, "bb"))
    assert part.parameters == {"num_trees": 2}


def test_a_part_goes_to_its_namesake_or_to_the_only_component_like_it():
    model = left()
    assert (
        models.part_for(model, TREES)
        == models.part_for(model, DagNode("renamed", REF))
        == model.parts
    )
    assert models.part_for(model, DagNode("other", ComponentRef("vendor", "1.0.0", "Other"))) == ()
    two = replace(model, parts=(*model.parts, replace(model.parts[0], task="more")))
    assert models.part_for(two, DagNode("renamed", REF)) == ()


def test_only_the_models_own_parties_and_those_granted_may_use_it():
    stranger = a_spec(FLOW, {"guest": ("n9",), "host": ("n2",)})
    scheduled = replace(
        a_spec(FLOW), scheduler="n9"
    )  # names a party of the model as its initiator, falsely maybe
    asked = [(a_spec(FLOW), ()), (stranger, ()), (stranger, ("n9",)), (scheduled, ())]
    assert [models.not_allowed(spec, left(), granted) for spec, granted in asked] == [
        [],
        ["n9"],
        [],
        ["n9"],
    ]


# ---------------------------------------------------------------- the end at the scheduling node

TOLD, LOST = accept(X1, 10), lose_response(X2, 10)


def ending_job(spec=None):
    """Return a job that has succeeded, with its stops under way."""
    return play(a_job(FLOW, JobStatus.RUNNING, trees=TaskStatus.SUCCESS, spec=spec), 9, 9)


def test_success_is_reported_once_all_have_confirmed_and_saved():
    job = play(ending_job(), TOLD, LOST)
    assert job.status is JobStatus.RUNNING
    assert play(job, accept(X2, 12)).outcome is Outcome.SUCCEEDED
    assert play(ending_job(asks(**PREDICTS)), TOLD, LOST).status is JobStatus.FINISHED, (
        "it leaves no model"
    )
    job = ending_job()
    gone = replace(
        job.nodes["n2"], excluded=Failure("UNREACHABLE"), stop=replace(OK, state=CallState.LOST)
    )
    assert play(replace(job, nodes={**job.nodes, "n2": gone}), TOLD).outcome is Outcome.SUCCEEDED


def test_a_node_that_does_not_come_back_is_not_waited_for_for_ever():
    job, now = play(ending_job(), TOLD, LOST), 10.0
    while job.status is JobStatus.RUNNING:
        now = max(now + 0.01, (scheduling_machine.next_due(job) - T0).total_seconds())
        job, requests = scheduling_machine.step(job, at(now))
        job = play(job, *(lose_response(request, now + 1) for request in requests))
    hold = models.HOLD.total_seconds()
    assert hold <= now + 1 - 9 < hold + 15 and job.outcome is Outcome.SUCCEEDED


def test_warnings_of_a_collect_are_kept_once():
    run = trees(seal=OK, files=FILES)
    done = Done(Collect(run.run_id), at(2), warnings=("report0 is no JSON",))
    job = play(local(replace(run, collect=a_run("trees").collect)), 1, done, done)
    assert job.runs[0].warnings == ("report0 is no JSON",)
