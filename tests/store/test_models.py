"""Models in the database: published by the end of a training, deployed, deleted, imported."""

from dataclasses import replace

import pytest

from gateway.domain.run import Address, FileSum
from gateway.domain.states import Outcome
from gateway.errors import Conflict
from gateway.store.models import SqlModels, publish
from tests.builders import at
from tests.store.builders import FLOW_ID, store_training
from tests.store.kinds import on_sqlite

pytestmark = pytest.mark.xdist_group("models")  # one database for the module


def test_the_write_that_ends_a_training_stores_its_model_once(store):
    store_training(store)
    store_training(store, "job-2", Outcome.FAILED)

    models = SqlModels(store)
    [stored] = models.all()
    assert stored.model.model_id == FLOW_ID
    assert stored.model.version == "job-1"
    assert stored.model.party.label == "guest.0"
    assert stored.deployed_at is None
    assert stored.granted == ()
    assert stored.model.parts[0].files == (FileSum("data_0", 3, "aa"),)
    assert models.addresses() == {Address("ns", "job-1-模型"): f"version job-1 of model {FLOW_ID}"}


@on_sqlite
def test_a_deleted_model_is_not_stored_again_by_later_writes(store):
    def close(local):
        return replace(local, closed=True)

    store_training(store)
    models = SqlModels(store)

    assert models.delete(FLOW_ID, "job-1")
    store.local_jobs.update("job-1", close)
    assert models.all() == []


@on_sqlite
def test_an_existing_version_stays_as_it_is(store):
    store_training(store)
    [stored] = SqlModels(store).all()
    later_record = replace(
        store.local_jobs.get("job-1"),
        created_at=at(99),
    )

    with store.write() as connection:
        publish(connection, None, later_record)

    assert SqlModels(store).all() == [stored]


@on_sqlite
def test_a_deployed_version_is_not_deleted(store):
    models = SqlModels(store)
    store_training(store)

    assert models.deploy(
        FLOW_ID,
        "job-1",
        7.5,
        ["n9", "n3"],
    )
    [deployed] = models.find(FLOW_ID, "job-1")
    assert deployed.deployed_at == 7.5
    assert deployed.granted == ("n3", "n9")
    assert not models.delete(FLOW_ID, "job-1")

    assert models.deploy(FLOW_ID, "job-1", None, None)
    [withdrawn] = models.find(FLOW_ID, "job-1")
    assert withdrawn.granted == ("n3", "n9")
    assert models.delete(FLOW_ID, "job-1")
    assert models.find(FLOW_ID, "job-1") == []
    assert not models.deploy(FLOW_ID, "job-1", 1.0, None)


def test_models_are_added_all_or_none(store):
    models = SqlModels(store)
    store_training(store)
    [stored] = models.all()
    new = replace(
        stored,
        model=replace(
            stored.model,
            version="v2",
        ),
    )

    with pytest.raises(Conflict, match="was imported at the same time"):
        models.add([new, stored])
    assert models.find(FLOW_ID, "v2") == []

    models.add([new])
    assert [each.model.version for each in models.all(FLOW_ID)] == ["job-1", "v2"]
