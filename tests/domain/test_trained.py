"""What a training leaves, when it is kept, and what a predicting job gets of it."""

from dataclasses import replace

import pytest

from gateway.domain import models, validation
from gateway.domain.dag import ComponentRef, Dag, DagNode, DagOutput
from gateway.domain.execution import machine, runs
from gateway.domain.execution.machine import agenda
from gateway.domain.execution.messages import Collect, Done, Seal, Sealed, StopRequested, Tell
from gateway.domain.execution.runs import merge_runs
from gateway.domain.run import Address, FileSum
from gateway.domain.scheduling import machine as scheduling_machine
from gateway.domain.scheduling.messages import Accepted, Lost, StopAt
from gateway.domain.spec import CallState, Ending, Failure, Party
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from gateway.domain.timeouts import RunTiming
from tests.builders import OK, T0, a_job, a_local_job, a_run, a_spec, at
from tests.domain.workshop import Program, Shift, Workshop

REF = ComponentRef("vendor", "1.0.0", "Thing")
TREES = DagNode("trees", REF, (), (DagOutput("dataset", "data0"), DagOutput("model", "model0")))
FLOW = Dag((TREES,))
GOOD = Ending(Outcome.SUCCEEDED, at(9))
FILES = (FileSum("data_0", 3, "aa", "model"), FileSum("metadata", 2, "bb", "model"))


def asks(**common):
    return a_spec(FLOW, job_params={"common": common})


def trees(status=RunStatus.SUCCESS, **changes):
    run = a_run("trees", status, to_seal=("model",), output_keys={"data0": "train_data", "model0": "model"})
    outputs = {"train_data": Address("ns", "t-data0"), "model": Address("ns", "t-model0")}
    return replace(run, outputs=outputs, collect=OK, **changes)


def local(*runs, spec=None, **changes):
    return replace(a_local_job(*runs), spec=spec or a_spec(FLOW), **changes)


def sealed():
    return trees(files=FILES, seal=OK)


# ---------------------------------------------------------------- what a job says


def test_without_a_word_a_job_trains_a_version_named_by_its_flow_and_itself():
    assert models.named(a_spec(FLOW)) == models.Named("train", "flow-1", "job-1")
    assert models.named(a_spec(FLOW, flow_id="a/b")).model_id == "job-1"  # a path cannot be made of it
    assert models.named(asks(model_id="m", model_version=3)) == models.Named("train", "m", "3")
    assert models.named(asks(job_type=None, model_id="", model_version="")) == models.named(a_spec(FLOW))


def test_what_cannot_work_is_told_at_once_with_its_path():
    at_ = "config.job_params.common"
    problems, _ = validation.check(asks(job_type="predict"))
    assert [p.path for p in problems] == [
        f"{at_}.model_id",
        f"{at_}.model_version",
    ]
    wrong = asks(job_type="deploy", model_id="../x", model_version=["1"])
    assert [p.path for p in validation.check(wrong)[0]] == [
        f"{at_}.job_type",
        f"{at_}.model_id",
        f"{at_}.model_version",
    ]
    assert validation.check(asks(job_type="predict", model_id="m", model_version="v"))[0] == []
    assert validation.check(a_spec(FLOW))[0] == []


def test_only_outputs_of_category_model_are_sealed_and_only_in_training():
    keys = {"data0": "train_data", "model0": "model"}
    assert models.to_seal(a_spec(FLOW), TREES, keys) == ("model",)
    assert models.to_seal(asks(job_type="predict", model_id="m", model_version="v"), TREES, keys) == ()


# ---------------------------------------------------------------- sealing


def test_success_is_told_only_once_the_model_is_sealed():
    job = local(trees())
    run = job.runs[0].run_id
    assert merge_runs(job.runs) is TaskStatus.RUNNING
    job, actions = machine.step(job, at(1))
    assert Seal(run) in actions and Tell(run, TaskStatus.SUCCESS) not in actions
    job = machine.apply(job, Sealed(run, FILES, at(2)))
    assert merge_runs(job.runs) is TaskStatus.SUCCESS
    job, actions = machine.step(job, at(2))
    assert actions == [Tell(run, TaskStatus.SUCCESS)]
    assert machine.apply(job, Sealed(run, (), at(3))).runs[0].files == FILES  # a repeat changes nothing


def test_files_that_cannot_be_read_are_tried_again_and_then_left_out_with_a_warning():
    job = local(trees())
    run = job.runs[0].run_id
    now = 0.0
    for _ in range(runs.SEAL_TRIES):
        assert job.runs[0].unsealed
        due = next(d.at for d in agenda(job, RunTiming()) if isinstance(d.command, Seal))
        now = max(now + 1, (due - T0).total_seconds() if due.year > 1 else 0.0)
        job, actions = machine.step(job, at(now))
        assert Seal(run) in actions
        job = machine.apply(job, Sealed(run, None, at(now), "disk gone"))
    assert not job.runs[0].unsealed and "disk gone" in job.runs[0].warnings[0]
    assert merge_runs(job.runs) is TaskStatus.SUCCESS
    ended = machine.apply(job, StopRequested(at(now), None, GOOD, "n1"))
    assert not ended.model_saved and models.left_by(ended) == []


def test_a_model_of_a_task_that_was_taken_over_is_the_new_jobs_too_unless_that_ran_itself():
    node = DagNode("after", REF)
    spec = a_spec(Dag((TREES, node)))
    taken = replace(sealed(), of_job="job-old", task_id="task_old", outputs={"model": Address("old", "model")})
    job = local(a_run("after", RunStatus.SUCCESS, collect=OK), spec=spec, inherited=(taken,))
    assert models.saves(job, GOOD) and models.saves(job, None)
    (model,) = models.left_by(job)
    assert [(part.task, part.address.namespace, part.files[0].sha256) for part in model.parts] == [
        ("trees", "old", "aa")
    ]
    own = replace(job, runs=(trees(), *job.runs))
    assert models.left_by(own) == [], "its own run counts, which is not sealed"


@pytest.mark.parametrize("dies_at", [None, *range(0, 40, 3)])
def test_wherever_the_process_dies_the_model_is_sealed_before_success_is_told_and_saved_once(dies_at):
    run = replace(trees(RunStatus.WAITING), launch=a_run("trees").launch)
    run = replace(run, collect=a_run("trees").collect)
    shop = Workshop(Shift(local(run), {run.name: Program()}, dies_at=dies_at, seed=dies_at or 0))
    end = shop.run()
    assert end.model_saved and [f.sha256 for f in end.runs[0].files] == [f"sum of {run.run_id}"]
    assert len(models.left_by(end)) == 1


# ---------------------------------------------------------------- saving


@pytest.mark.parametrize(
    ("ending", "saved"),
    [
        (GOOD, True),
        (Ending(Outcome.FAILED, at(9)), False),
        (Ending(Outcome.STOPPED, at(9)), False),
        (None, True),  # a scheduling node that does not say: everything here succeeded, to the last task
    ],
)
def test_only_success_leaves_a_model(ending, saved):
    end = machine.apply(local(sealed()), StopRequested(at(9), None, ending, "n1"))
    assert end.status is JobStatus.FINISHED and end.model_saved is saved
    assert [n.event for n in end.notes if n.event == "model saved"] == ["model saved"] * saved
    again = machine.apply(end, StopRequested(at(10), None, GOOD, "n1"))
    assert again.model_saved is saved  # what was decided once stays


def test_without_a_word_on_the_outcome_a_flow_that_did_not_come_to_its_end_leaves_none():
    after = DagNode("next", REF)
    job = local(sealed(), spec=a_spec(Dag((TREES, after))))
    assert not machine.apply(job, StopRequested(at(9), None, None, "n1")).model_saved


def test_a_predicting_job_leaves_none():
    spec = asks(job_type="predict", model_id="m", model_version="v")
    end = machine.apply(local(sealed(), spec=spec), StopRequested(at(9), None, GOOD, "n1"))
    assert not end.model_saved


def test_a_model_has_its_parts_with_checksums_addresses_and_parameters():
    host = Party("host", 0, "n2")
    mine = trees(files=FILES, seal=OK, parameters={"num_trees": 2})
    end = machine.apply(local(mine), StopRequested(at(9), None, GOOD, "n1"))
    (model,) = models.left_by(end)
    assert (model.model_id, model.version, model.party) == ("flow-1", "job-1", Party("guest", 0, "n1"))
    assert model.parties == (model.party, host)
    (part,) = model.parts
    assert (part.task, part.key, part.output, part.address) == (
        "trees",
        "model0",
        "model",
        Address("ns", "t-model0"),
    )
    assert part.files == (FileSum("data_0", 3, "aa"), FileSum("metadata", 2, "bb"))
    assert part.parameters == {"num_trees": 2}


def test_a_part_goes_to_the_task_of_its_name_else_to_the_only_one_with_its_component():
    end = machine.apply(local(sealed()), StopRequested(at(9), None, GOOD, "n1"))
    (model,) = models.left_by(end)
    assert models.part_for(model, TREES) == model.parts
    assert models.part_for(model, DagNode("renamed", REF)) == model.parts
    assert models.part_for(model, DagNode("other", ComponentRef("vendor", "1.0.0", "Other"))) == ()
    two = replace(model, parts=(*model.parts, replace(model.parts[0], task="more")))
    assert models.part_for(two, DagNode("renamed", REF)) == ()


def test_only_the_models_own_parties_and_those_granted_may_use_it():
    end = machine.apply(local(sealed()), StopRequested(at(9), None, GOOD, "n1"))
    (model,) = models.left_by(end)
    assert models.not_allowed(a_spec(FLOW), model, ()) == []
    stranger = a_spec(FLOW, {"guest": ("n9",), "host": ("n2",)})
    assert models.not_allowed(stranger, model, ()) == ["n9"]
    assert models.not_allowed(stranger, model, ("n9",)) == []


# ---------------------------------------------------------------- the end at the scheduling node


def ending_job(spec=None):
    job = a_job(FLOW, JobStatus.RUNNING, trees=TaskStatus.SUCCESS, spec=spec)
    job, requests = scheduling_machine.step(job, at(9))
    assert {r.node for r in requests if isinstance(r, StopAt)} == set() and job.ending is not None
    return scheduling_machine.step(job, at(9))[0]


def test_success_is_told_once_every_node_has_confirmed_and_so_saved():
    job = scheduling_machine.apply(ending_job(), Accepted(StopAt("n1"), at(10)))
    job = scheduling_machine.apply(job, Lost(StopAt("n2"), at(10), delivered=True))
    assert job.status is JobStatus.RUNNING
    job = scheduling_machine.apply(job, Accepted(StopAt("n2"), at(12)))
    assert job.status is JobStatus.FINISHED and job.outcome is Outcome.SUCCEEDED


def test_a_node_that_does_not_come_back_is_not_waited_for_for_ever():
    job = scheduling_machine.apply(ending_job(), Accepted(StopAt("n1"), at(10)))
    job = scheduling_machine.apply(job, Lost(StopAt("n2"), at(10), delivered=True))
    now = 10.0
    while job.status is JobStatus.RUNNING:
        assert now < 100
        due = scheduling_machine.next_due(job)
        assert due is not None
        now = max(now + 0.01, (due - T0).total_seconds())
        job, requests = scheduling_machine.step(job, at(now))
        for request in requests:
            job = scheduling_machine.apply(job, Lost(request, at(now + 1), delivered=True))
    hold = models.HOLD.total_seconds()
    assert hold <= now + 1 - 9 < hold + 15
    assert job.outcome is Outcome.SUCCEEDED


def test_a_node_that_the_job_runs_without_is_not_waited_for():
    job = ending_job()
    gone = replace(job.nodes["n2"], excluded=Failure("UNREACHABLE"), stop=replace(OK, state=CallState.LOST))
    job = replace(job, nodes={**job.nodes, "n2": gone})
    job = scheduling_machine.apply(job, Accepted(StopAt("n1"), at(10)))
    assert job.status is JobStatus.FINISHED and job.outcome is Outcome.SUCCEEDED


def test_a_job_without_a_model_waits_for_nobody():
    spec = asks(job_type="predict", model_id="m", model_version="v")
    job = scheduling_machine.apply(ending_job(spec), Accepted(StopAt("n1"), at(10)))
    job = scheduling_machine.apply(job, Lost(StopAt("n2"), at(10), delivered=True))
    assert job.status is JobStatus.FINISHED


def test_warnings_of_a_collect_are_kept_once():
    run = trees(seal=OK, files=FILES)
    job = local(replace(run, collect=a_run("trees").collect))
    job, _ = machine.step(job, at(1))
    done = Done(Collect(run.run_id), at(2), warnings=("report0 is no JSON",))
    job = machine.apply(machine.apply(job, done), done)
    assert job.runs[0].warnings == ("report0 is no JSON",)
