"""Models in the database, on SQLite and on MariaDB."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gateway.domain.dag import ComponentRef, Dag, DagNode, DagOutput
from gateway.domain.execution import machine
from gateway.domain.execution.messages import StopRequested
from gateway.domain.run import Address, FileSum
from gateway.domain.spec import Ending
from gateway.domain.states import Outcome, RunStatus
from gateway.errors import Conflict
from gateway.store.database import opened
from gateway.store.models import SqlModels
from gateway.store.store import Store
from tests.builders import OK, a_local_job, a_run, a_spec, at

FLOW = Dag((DagNode("trees", ComponentRef("vendor", "1.0.0", "Thing"), (), (DagOutput("model", "model0"),)),))


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    store = Store(opened(database_url))
    yield store
    store.close()


def finished(store: Store, job_id: str = "job-1", outcome: Outcome = Outcome.SUCCEEDED) -> None:
    """Play the last write of a training here."""
    run = a_run("trees", RunStatus.SUCCESS, to_seal=("model",), output_keys={"model0": "model"}, seal=OK)
    run = replace(run, run_id=f"run-{job_id}", name=f"bfia-{job_id}", task_id=f"task_{job_id}")
    run = replace(run, outputs={"model": Address("ns", f"{job_id}-模型")})
    run = replace(run, files=(FileSum("data_0", 3, "aa", "model"),))
    spec = a_spec(FLOW, job_id=job_id, flow_id="流程 1")
    store.local_jobs.add(replace(a_local_job(run), spec=spec), "流程 1")
    stop = StopRequested(at(5), None, Ending(outcome, at(5)), "n1")
    store.local_jobs.update(job_id, lambda local: machine.apply(local, stop))


def test_the_write_that_ends_a_training_stores_its_model(store: Store):
    finished(store)
    finished(store, "job-2", Outcome.FAILED)
    (kept,) = SqlModels(store).all()
    assert (kept.model.model_id, kept.model.version, kept.model.party.label) == ("流程 1", "job-1", "guest.0")
    assert kept.deployed_at is None and kept.granted == ()
    assert kept.model.parts[0].files == (FileSum("data_0", 3, "aa"),)
    assert SqlModels(store).addresses() == {Address("ns", "job-1-模型"): "version job-1 of model 流程 1"}
    assert SqlModels(store).of_job("job-1") == [kept] and SqlModels(store).of_job("job-2") == []


def test_later_writes_of_the_job_store_no_second_one(store: Store):
    finished(store)
    assert SqlModels(store).delete("流程 1", "job-1")
    store.local_jobs.update("job-1", lambda local: replace(local, closed=True))
    assert SqlModels(store).all() == []


def test_a_deployed_version_is_not_deleted(store: Store):
    models = SqlModels(store)
    finished(store)
    assert models.deploy("流程 1", "job-1", 7.5, ["n9", "n3"])
    (kept,) = models.find("流程 1", "job-1")
    assert (kept.deployed_at, kept.granted) == (7.5, ("n3", "n9"))
    assert not models.delete("流程 1", "job-1")
    assert models.deploy("流程 1", "job-1", None, None)
    assert models.find("流程 1", "job-1")[0].granted == ("n3", "n9")
    assert models.delete("流程 1", "job-1") and models.find("流程 1", "job-1") == []
    assert not models.deploy("流程 1", "job-1", 1.0, None)


def test_what_is_added_together_is_there_together_or_not_at_all(store: Store):
    models = SqlModels(store)
    finished(store)
    (kept,) = models.all()
    second = replace(kept, model=replace(kept.model, version="v2"))
    with pytest.raises(Conflict, match="was imported at the same time"):
        models.add([second, kept])
    assert models.find("流程 1", "v2") == []
    models.add([second])
    assert [k.model.version for k in models.all("流程 1")] == ["job-1", "v2"]
