"""Records for tests of the store."""

from dataclasses import replace

from gateway.domain.dag import ComponentRef, Dag, DagNode, DagOutput
from gateway.domain.execution import machine
from gateway.domain.execution.messages import StopRequested
from gateway.domain.run import Address, FileSum, LocalJob, RunData, Sealing
from gateway.domain.spec import Ending
from gateway.domain.states import Outcome, RunStatus
from gateway.store.store import Store
from tests.builders import OK, a_local_job, a_run, a_spec, at

FLOW_ID = "流程 1"
# A job whose only task trains the model ``model0``.
TRAINING = Dag(
    (
        DagNode(
            "trees",
            ComponentRef("vendor", "1.0.0", "Thing"),
            (),
            (DagOutput("model", "model0"),),
        ),
    )
)


def store_training(
    store: Store,
    job_id: str = "job-1",
    outcome: Outcome = Outcome.SUCCEEDED,
) -> None:
    """Store a job that trains a model, then end it: this last write publishes the model."""
    local = replace(
        a_local_job(_training_run(job_id)),
        spec=a_spec(
            TRAINING,
            job_id=job_id,
            flow_id=FLOW_ID,
        ),
    )
    store.local_jobs.add(local, FLOW_ID)
    stop = StopRequested(
        at(5),
        None,
        Ending(outcome, at(5)),
        "n1",
    )

    def end(local: LocalJob) -> LocalJob:
        return machine.apply(local, stop)

    store.local_jobs.update(job_id, end)


def _training_run(job_id: str):
    return a_run(
        "trees",
        RunStatus.SUCCESS,
        run_id=f"run-{job_id}",
        name=f"bfia-{job_id}",
        task_id=f"task_{job_id}",
        data=RunData(
            outputs={"model": Address("ns", f"{job_id}-模型")},
            output_keys={"model0": "model"},
        ),
        sealing=Sealing(
            ("model",),
            OK,
            (FileSum("data_0", 3, "aa", "model"),),
        ),
    )
