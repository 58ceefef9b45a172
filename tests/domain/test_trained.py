"""Models: what a training leaves, when it is saved, and the parts that a predicting job gets."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from gateway.domain import models
from gateway.domain.dag import ComponentRef, Dag, DagNode, DagOutput
from gateway.domain.execution import runs
from gateway.domain.execution.agenda import agenda
from gateway.domain.execution.messages import Collect, Done, Seal, Sealed, StopRequested, Tell
from gateway.domain.execution.runs import merge_runs
from gateway.domain.job import Job
from gateway.domain.run import Address, FileSum, LocalJob, Run, RunData, Sealing
from gateway.domain.scheduling import machine as scheduling_machine
from gateway.domain.spec import CallState, Ending, Failure, JobSpec, Party
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from gateway.domain.timeouts import RunTiming
from tests.builders import OK, T0, a_job, a_local_job, a_run, a_spec, at, with_data
from tests.domain.calls import X1, X2
from tests.domain.execution_world import ExecutionPlot, ExecutionWorld, Program
from tests.domain.script import accept, due_commands, lose_response, play

COMPONENT = ComponentRef("vendor", "1.0.0", "Thing")
OUTPUTS = (
    DagOutput("dataset", "data0"),
    DagOutput("model", "model0"),
)
OUTPUT_KEYS = {"data0": "train_data", "model0": "model"}
TREES = DagNode("trees", COMPONENT, (), OUTPUTS)
FLOW = Dag((TREES,))
SUCCEEDED = Ending(Outcome.SUCCEEDED, at(9))
FILES = (
    FileSum("data_0", 3, "aa", "model"),
    FileSum("metadata", 2, "bb", "model"),
)
TRAINING = a_spec(FLOW)
PREDICTION = {
    "job_type": "predict",
    "model_id": "m",
    "model_version": "v",
}


def spec_with(**common: Any) -> JobSpec:
    """Return a job with these common settings."""
    return a_spec(FLOW, job_params={"common": common})


def training_run(status: RunStatus = RunStatus.SUCCESS, **changes: Any) -> Run:
    """Return a run of the task ``trees`` with a model to seal."""
    outputs = {
        "train_data": Address("ns", "t-data0"),
        "model": Address("ns", "t-model0"),
    }
    run = a_run(
        "trees",
        status,
        data=RunData(outputs=outputs, output_keys=OUTPUT_KEYS),
        sealing=Sealing(("model",)),
    )
    return replace(run, collect=OK, **changes)


def sealed_run() -> Run:
    """Return a run of the task ``trees`` with a sealed model."""
    return training_run(sealing=Sealing(("model",), OK, FILES))


def local_job(
    *job_runs: Run,
    spec: JobSpec | None = None,
    **changes: Any,
) -> LocalJob:
    """Return a local job of the flow above, or of another one."""
    return replace(a_local_job(*job_runs), spec=spec or a_spec(FLOW), **changes)


def seals(local: LocalJob) -> list[Any]:
    """Return the entries of the agenda that seal a model."""
    return [entry for entry in agenda(local, RunTiming()) if isinstance(entry.command, Seal)]


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (a_spec(FLOW), models.ModelVersion("train", "flow-1", "job-1")),
        (
            spec_with(model_id="m", model_version=3),
            models.ModelVersion("train", "m", "3"),
        ),
        (
            spec_with(
                job_type=None,
                model_id="",
                model_version="",
            ),
            models.ModelVersion("train", "flow-1", "job-1"),
        ),
    ],
    ids=["by default", "named by the job", "empty names"],
)
def test_a_model_is_named_by_its_job_or_else_by_flow_and_job(spec, expected):
    assert models.model_version(spec) == expected


def test_a_flow_id_that_makes_no_path_does_not_name_a_model():
    assert models.model_version(a_spec(FLOW, flow_id="a/b")).model_id == "job-1"


def test_only_outputs_of_category_model_are_sealed_and_only_in_training():
    prediction = spec_with(**PREDICTION)

    assert models.outputs_to_fingerprint(a_spec(FLOW), TREES, OUTPUT_KEYS) == ("model",)
    assert models.outputs_to_fingerprint(prediction, TREES, OUTPUT_KEYS) == ()


# ---------------------------------------------------------------- sealing


def test_success_is_reported_only_once_the_model_is_sealed():
    local = local_job(training_run())
    run_id = local.runs[0].run_id
    report = Tell(run_id, TaskStatus.SUCCESS)
    assert merge_runs(local.runs) is TaskStatus.RUNNING
    assert Seal(run_id) in due_commands(local, 1)
    assert report not in due_commands(local, 1)

    local = play(
        local,
        1,
        Sealed(run_id, FILES, at(2)),
    )

    assert merge_runs(local.runs) is TaskStatus.SUCCESS
    assert due_commands(local, 2) == [report]


def test_a_repeated_seal_changes_nothing():
    local = local_job(training_run())
    run_id = local.runs[0].run_id
    local = play(
        local,
        1,
        Sealed(run_id, FILES, at(2)),
    )

    local = play(local, Sealed(run_id, (), at(3)))

    assert local.runs[0].sealing.files == FILES


def fail_every_seal(local: LocalJob) -> tuple[LocalJob, float]:
    """Return the job after its last try to seal has failed, and the second of that try."""
    run_id = local.runs[0].run_id
    now = 0.0
    for _ in range(runs.SEAL_TRIES):
        assert local.runs[0].unsealed
        due_at = seals(local)[0].at
        # The agenda says "immediately" with a moment in the year 1.
        is_immediate = due_at.year == 1
        now = max(now + 1, 0.0 if is_immediate else (due_at - T0).total_seconds())
        assert Seal(run_id) in due_commands(local, now)
        local = play(
            local,
            now,
            Sealed(run_id, None, at(now), "disk gone"),
        )
    return local, now


def test_unreadable_files_are_retried_then_skipped_with_a_warning():
    local, now = fail_every_seal(local_job(training_run()))

    assert not local.runs[0].unsealed
    assert "disk gone" in local.runs[0].warnings[0]
    assert merge_runs(local.runs) is TaskStatus.SUCCESS
    ended = play(
        local,
        StopRequested(at(now), None, SUCCEEDED, "n1"),
    )
    assert not ended.model_saved
    assert models.models_of(ended) == []


def test_a_final_failure_of_a_seal_is_not_retried():
    local = local_job(training_run())

    local = play(
        local,
        1,
        Sealed(
            local.runs[0].run_id,
            None,
            at(1),
            "too large",
            final=True,
        ),
    )

    assert not local.runs[0].unsealed
    assert "too large" in local.runs[0].warnings[0]


@pytest.mark.parametrize(
    "tasks",
    [None, frozenset({"trees"})],
    ids=["job", "task"],
)
def test_a_model_is_not_read_after_a_stop(tasks):
    local = local_job(training_run())
    run_id = local.runs[0].run_id
    assert Seal(run_id) in due_commands(local, 1)

    stop = StopRequested(
        at(2),
        tasks,
        Ending(Outcome.STOPPED, at(2)),
        "n1",
    )
    local = play(local, 1, stop)

    assert seals(local) == []
    assert not local.runs[0].unsealed
    assert play(local, Sealed(run_id, FILES, at(3))).runs[0].sealing.files == ()


def job_with_inherited_model() -> LocalJob:
    """Return a job ``trees; after`` that has inherited the run of ``trees``."""
    spec = a_spec(Dag((TREES, DagNode("after", COMPONENT))))
    inherited_run = replace(
        sealed_run(),
        of_job="job-old",
        task_id="task_old",
    )
    outputs = {"model": Address("old", "model")}
    inherited_run = with_data(inherited_run, outputs=outputs)
    own_run = a_run("after", RunStatus.SUCCESS, collect=OK)
    return local_job(
        own_run,
        spec=spec,
        inherited=(inherited_run,),
    )


def test_the_model_of_an_inherited_task_belongs_to_the_new_job():
    local = job_with_inherited_model()

    [model] = models.models_of(local)

    assert models.leaves_model(local, SUCCEEDED)
    assert models.leaves_model(local, None)
    parts = [(part.task, part.address.namespace, part.files[0].sha256) for part in model.parts]
    assert parts == [("trees", "old", "aa")]


def test_an_unsealed_run_goes_before_an_inherited_model():
    local = job_with_inherited_model()

    local = replace(local, runs=(training_run(), *local.runs))

    assert models.models_of(local) == []


@pytest.mark.parametrize("dies_at", [None, *range(0, 40, 3)])
def test_a_model_is_sealed_before_success_is_reported_despite_crashes(dies_at):
    new_run = a_run("trees")
    run = replace(
        training_run(RunStatus.WAITING),
        launch=new_run.launch,
        collect=new_run.collect,
    )
    plot = ExecutionPlot(
        local_job(run),
        {run.name: Program()},
        dies_at=dies_at,
        seed=dies_at or 0,
    )

    local = ExecutionWorld(plot).run()

    assert local.model_saved
    assert [file.sha256 for file in local.runs[0].sealing.files] == [f"sum of {run.run_id}"]
    assert len(models.models_of(local)) == 1


# ---------------------------------------------------------------- saving


@dataclass(frozen=True)
class SavingCase:
    """The end of a job, and whether its model is saved."""

    ending: Ending | None
    saved: bool
    spec: JobSpec = TRAINING


SAVING: dict[str, SavingCase] = {
    "succeeded": SavingCase(SUCCEEDED, saved=True),
    "failed": SavingCase(
        Ending(Outcome.FAILED, at(9)),
        saved=False,
    ),
    "stopped": SavingCase(
        Ending(Outcome.STOPPED, at(9)),
        saved=False,
    ),
    "no outcome, but every task succeeded": SavingCase(None, saved=True),
    "no outcome, and a task is open": SavingCase(
        None,
        saved=False,
        spec=a_spec(Dag((TREES, DagNode("next", COMPONENT)))),
    ),
    "a prediction": SavingCase(SUCCEEDED, saved=False, spec=spec_with(**PREDICTION)),
}


@pytest.mark.parametrize("case", SAVING.values(), ids=SAVING)
def test_only_success_leaves_a_model(case: SavingCase):
    local = local_job(sealed_run(), spec=case.spec)

    local = play(
        local,
        StopRequested(at(9), None, case.ending, "n1"),
    )

    assert local.status is JobStatus.FINISHED
    assert local.model_saved is case.saved
    saved_notes = [note for note in local.notes if note.event == "model saved"]
    assert len(saved_notes) == case.saved
    repeated = play(
        local,
        StopRequested(at(10), None, SUCCEEDED, "n1"),
    )
    assert repeated.model_saved is case.saved, "the decision stays"


def model_of(run: Run) -> models.PartyModel:
    """Return the one model that the success of a run leaves."""
    local = play(
        local_job(run),
        StopRequested(at(9), None, SUCCEEDED, "n1"),
    )
    [model] = models.models_of(local)
    return model


def test_a_model_has_its_parts_with_checksums_addresses_and_parameters():
    model = model_of(with_data(sealed_run(), parameters={"num_trees": 2}))

    guest = Party("guest", 0, "n1")
    assert (model.model_id, model.version, model.party) == ("flow-1", "job-1", guest)
    assert model.parties == (
        guest,
        Party("host", 0, "n2"),
    )
    [part] = model.parts
    assert (part.task, part.key, part.output) == ("trees", "model0", "model")
    assert part.address == Address("ns", "t-model0")
    assert part.files == (
        FileSum("data_0", 3, "aa"),
        FileSum("metadata", 2, "bb"),
    )
    assert part.parameters == {"num_trees": 2}


def test_a_part_goes_to_its_namesake_or_to_the_only_component_like_it():
    model = model_of(sealed_run())
    renamed = DagNode("renamed", COMPONENT)
    other_component = DagNode("other", ComponentRef("vendor", "1.0.0", "Other"))

    assert models.parts_for(model, TREES) == model.parts
    assert models.parts_for(model, renamed) == model.parts
    assert models.parts_for(model, other_component) == ()


def test_a_part_goes_to_no_renamed_task_if_two_parts_fit():
    model = model_of(sealed_run())
    second_part = replace(
        model.parts[0],
        task="more",
    )

    model = replace(model, parts=(*model.parts, second_part))

    assert models.parts_for(model, DagNode("renamed", COMPONENT)) == ()


STRANGERS_JOB = a_spec(
    FLOW,
    {
        "guest": ("n9",),
        "host": ("n2",),
    },
)
# Its initiator, by its own account, is a party of the model.
STRANGER_SCHEDULES = replace(a_spec(FLOW), scheduler="n9")


@pytest.mark.parametrize(
    ("spec", "granted", "refused"),
    [
        (a_spec(FLOW), (), []),
        (STRANGERS_JOB, (), ["n9"]),
        (STRANGERS_JOB, ("n9",), []),
        (STRANGER_SCHEDULES, (), ["n9"]),
    ],
    ids=["its parties", "a stranger", "a stranger with a grant", "a stranger schedules"],
)
def test_only_the_models_own_parties_and_those_granted_may_use_it(spec, granted, refused):
    assert models.not_allowed(spec, model_of(sealed_run()), granted) == refused


# ---------------------------------------------------------------- the end at the scheduling node

STOP_CONFIRMED = accept(X1, 10)
STOP_LOST = lose_response(X2, 10)


def ending_job(spec: JobSpec | None = None) -> Job:
    """Return a job that has succeeded, with its stops under way since second 9."""
    running = a_job(
        FLOW,
        JobStatus.RUNNING,
        trees=TaskStatus.SUCCESS,
        spec=spec,
    )
    return play(running, 9, 9)


def test_success_is_reported_once_all_have_confirmed_and_saved():
    job = play(ending_job(), STOP_CONFIRMED, STOP_LOST)
    assert job.status is JobStatus.RUNNING

    job = play(job, accept(X2, 12))

    assert job.outcome is Outcome.SUCCEEDED


def test_a_job_without_a_model_does_not_wait_for_every_confirmation():
    job = play(ending_job(spec_with(**PREDICTION)), STOP_CONFIRMED, STOP_LOST)

    assert job.status is JobStatus.FINISHED


def test_success_does_not_wait_for_an_excluded_node():
    job = ending_job()
    excluded = replace(
        job.nodes["n2"],
        excluded=Failure("UNREACHABLE"),
        stop=replace(OK, state=CallState.LOST),
    )
    job = replace(job, nodes={**job.nodes, "n2": excluded})

    assert play(job, STOP_CONFIRMED).outcome is Outcome.SUCCEEDED


def test_a_job_does_not_wait_for_a_lost_node_for_ever():
    job = play(ending_job(), STOP_CONFIRMED, STOP_LOST)
    now = 10.0

    while job.status is JobStatus.RUNNING:
        due_at = (scheduling_machine.next_due(job) - T0).total_seconds()
        now = max(now + 0.01, due_at)
        job, requests = scheduling_machine.step(job, at(now))
        responses = [lose_response(request, now + 1) for request in requests]
        job = play(job, *responses)

    waited = now + 1 - 9
    longest = models.SAVE_TIMEOUT.total_seconds()
    assert longest <= waited < longest + 15
    assert job.outcome is Outcome.SUCCEEDED


def test_a_repeated_warning_of_a_collect_is_kept_once():
    run = replace(
        sealed_run(),
        collect=a_run("trees").collect,
    )
    collected = Done(
        Collect(run.run_id),
        at(2),
        warnings=("report0 is no JSON",),
    )

    local = play(local_job(run), 1, collected, collected)

    assert local.runs[0].warnings == ("report0 is no JSON",)
