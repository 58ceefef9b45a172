"""Predictions with a model: each reason for a refusal; the life of a model; imported archives."""

import asyncio
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.admin.models import save_body
from gateway.data import model_archive
from gateway.data.combined_storage import Storages
from gateway.data.file_storage import FileStorage
from gateway.data.models import Models
from gateway.domain.dag import ComponentRef
from gateway.domain.models import ModelPart, PartyModel
from gateway.domain.run import Address, LocalJob
from gateway.domain.spec import Party
from gateway.domain.states import JobStatus
from gateway.errors import Conflict, GatewayError, Invalid, TooLarge
from gateway.store.database import open_database
from gateway.store.models import SqlModels
from gateway.store.store import Store
from provider_registry.model import Component, DataSpec
from tests.builders import T0, a_spec, at, returning
from tests.cli.test_models import FLOW, PLACE, store_training
from tests.inprocess import ME, PEER, STRANGER

MODEL = "credit model"
VERSION = "job-1"
TRAINING_PARTIES = {
    "guest": (ME,),
    "host": (PEER,),
}
MAX_CONTENT = 100  # bytes of an archive's content


@pytest.fixture
def node(world):
    """A node with the model of a training."""
    return world.node(prepare=store_training)


def a_prediction(roles=TRAINING_PARTIES, dag=FLOW, **settings):
    """Build a job that predicts with the model; ``settings`` are further ones for all parties."""
    common = {
        "job_type": "predict",
        "model_id": MODEL,
        "model_version": VERSION,
    }
    return a_spec(
        dag,
        roles,
        job_id="job-9",
        job_params={"common": common | settings},
    )


def refusal_reason(node, spec):
    """Return the reason for which the node refuses a job's use of a model; None for no refusal."""
    refusal = node.models.refusal(spec)
    return refusal.reason if refusal else None


# ------------------------------------------------------------ predictions

WITH_STRANGER = {
    "guest": (ME,),
    "host": (STRANGER,),
}


def test_a_prediction_with_an_unknown_model_is_refused(node):
    swapped_roles = {
        "host": (ME,),
        "guest": (PEER,),
    }  # this node has the guest's part

    assert refusal_reason(node, a_prediction(model_version="v0")) == "MODEL_UNKNOWN"
    assert refusal_reason(node, a_prediction(swapped_roles)) == "MODEL_UNKNOWN"


def test_a_prediction_is_allowed_once_the_model_is_deployed(node):
    assert refusal_reason(node, a_prediction()) == "MODEL_NOT_DEPLOYED"

    node.models.deploy(MODEL, VERSION)

    assert refusal_reason(node, a_prediction()) is None


def test_a_node_outside_the_training_needs_a_grant(node):
    prediction = a_prediction(WITH_STRANGER)
    assert refusal_reason(node, prediction) == "MODEL_NOT_AUTHORISED"

    node.models.deploy(MODEL, VERSION)
    assert refusal_reason(node, prediction) == "MODEL_NOT_AUTHORISED"
    node.models.deploy(MODEL, VERSION, [STRANGER])
    assert refusal_reason(node, prediction) is None
    node.models.deploy(MODEL, VERSION)  # names no nodes, so the grants stay
    assert refusal_reason(node, prediction) is None
    node.models.deploy(MODEL, VERSION, [])
    assert refusal_reason(node, prediction) == "MODEL_NOT_AUTHORISED"


def test_a_prediction_has_to_use_the_models_component(node):
    node.models.deploy(MODEL, VERSION)
    [trees] = FLOW.nodes
    renamed_task = a_prediction(dag="other")
    other_component = replace(
        trees.component,
        name="Else",
    )
    other_task = replace(
        trees,
        name="other",
        component=other_component,
    )

    assert refusal_reason(node, renamed_task) is None
    prediction = a_prediction(dag=replace(FLOW, nodes=(other_task,)))
    assert refusal_reason(node, prediction) == "MODEL_NOT_USED"


def test_a_prediction_with_a_damaged_model_is_refused(node):
    node.models.deploy(MODEL, VERSION)

    (node.storage.path(PLACE) / "data_0").unlink()

    refusal = node.models.refusal(a_prediction())

    assert refusal.reason == "MODEL_DAMAGED"
    assert refusal.problem.path == "config.job_params.common.model_version"
    assert refusal.problem.got == VERSION


def test_a_version_is_trained_once(node):
    settings = {
        "model_id": MODEL,
        "model_version": VERSION,
    }
    second_training = replace(
        a_prediction(),
        job_id="job-2",
        job_params={"common": settings},
    )
    repeated_training = replace(second_training, job_id="job-1")

    assert refusal_reason(node, second_training) == "MODEL_VERSION_TAKEN"
    assert refusal_reason(node, repeated_training) is None
    with pytest.raises(Invalid) as refusal:
        node.participant.create_job(second_training, "")
    assert refusal.value.reason == "MODEL_VERSION_TAKEN"


@pytest.mark.parametrize(
    ("inputs", "model_input"),
    [
        (
            [
                DataSpec("rows", "", "dataset"),
                DataSpec("weights", "", "model"),
            ],
            "weights",
        ),
        (
            [
                DataSpec("a", "", "model"),
                DataSpec("model", "", "model"),
            ],
            "model",
        ),
        ([DataSpec("rows", "", "dataset")], "model"),
    ],
    ids=["the only one", "namesake", "none described"],
)
def test_the_models_address_goes_to_the_model_input_or_its_namesake(node, inputs, model_input):
    spec = a_prediction()
    component = Component(
        name="Thing",
        title="",
        provider="v",
        version="1",
        description="",
        roles=("guest",),
        storage_engines=(),
        parameters=(),
        inputs=tuple(inputs),
        outputs=(),
        results=(),
        document={},
    )

    addresses = node.models.inputs(
        spec,
        spec.parties[0],
        FLOW.nodes[0],
        component,
    )

    assert addresses == {model_input: PLACE}


def test_a_job_without_a_model_has_no_model_input(node):
    spec = replace(
        a_prediction(),
        job_params={},
    )

    assert node.models.inputs(spec, spec.parties[0], FLOW.nodes[0], None) == {}


# ------------------------------------------------------------ deployment and deletion


def test_a_model_that_a_job_uses_is_not_deleted(node):
    spec = a_prediction()
    node.store.local_jobs.add(
        LocalJob(spec, ME, JobStatus.READY, T0, "digest"),
        spec.flow_id,
    )

    with pytest.raises(Conflict) as refusal:
        node.models.delete(MODEL, VERSION)
    assert refusal.value.reason == "MODEL_IN_USE"
    assert "job-9" in refusal.value.message

    change_job(
        node,
        "job-9",
        status=JobStatus.FINISHED,
        closed=True,
    )
    node.models.delete(MODEL, VERSION)
    assert not node.storage.exists(PLACE)


def test_a_model_is_deployed_for_ids_of_nodes_only(node):
    with pytest.raises(Invalid) as refusal:
        node.models.deploy(
            MODEL,
            VERSION,
            [PEER, "a/b"],
        )
    assert [problem.path for problem in refusal.value.problems] == ["nodes[1]"]


def test_a_model_that_was_deployed_during_its_deletion_stays(node, monkeypatch):
    monkeypatch.setattr(SqlModels, "delete", returning(False))

    with pytest.raises(Conflict, match="was deployed meanwhile") as refusal:
        node.models.delete(MODEL, VERSION)
    assert refusal.value.reason == "MODEL_DEPLOYED"
    assert node.storage.exists(PLACE)


def test_a_missing_file_of_a_model_is_a_damage(node):
    assert node.models.damages(MODEL, VERSION) == []

    node.storage.delete(PLACE)

    [damage] = node.models.damages(MODEL, VERSION)
    assert damage.startswith(f"{PLACE.dataset_id}: ")


def test_a_training_is_deleted_only_after_its_model(node):
    change_job(node, "job-1", closed=True)

    response = node.request("DELETE", "/api/v1/jobs/job-1?here=true")
    assert response.status_code == 409
    assert f"version {VERSION} of model {MODEL}" in response.text
    assert node.models.damages(MODEL, VERSION) == []

    node.models.delete(MODEL, VERSION)
    assert not node.storage.exists(PLACE)


def change_job(node, job_id, **changes):
    def change(local):
        return replace(local, **changes)

    node.store.local_jobs.update(job_id, change)


# ------------------------------------------------------------ archives


class LateModels(SqlModels):
    """Sees a version only at the second look: another archive with it arrives after the first."""

    looks = 0

    def find(self, model_id, version):
        self.looks += 1
        if self.looks == 1:
            return []
        return super().find(model_id, version)


@pytest.fixture
def import_archive(tmp_path):
    """A function that imports an archive and checks that no model is damaged.

    Its second argument is the class of the models in the database.
    """
    with closing(Store(open_database(f"sqlite:///{tmp_path / 'test.db'}"))) as store:

        def import_archive(archive, models_class=SqlModels):
            storage = Storages(FileStorage(tmp_path / "storage"))
            models = Models("n1", models_class(store), storage, list, lambda: at(0))
            imported = models.import_archive(archive, MAX_CONTENT)
            assert models.damages("credit", "v1") == []
            return imported

        yield import_archive


def an_archive(home, text):
    """Write an archive of version v1 of the model credit with this text as its only file."""
    storage = Storages(FileStorage(home / "source"))
    address = Address("job-1", text)
    storage.path(address).mkdir(parents=True)
    (storage.path(address) / "data_0").write_text(text)
    part = ModelPart(
        "t",
        ComponentRef("vendor", "1.0.0", "Thing"),
        "model0",
        "model",
        address,
        storage.sums(address),
        {},
    )
    guest = Party("guest", 0, "n1")
    host = Party("host", 0, "n2")
    model = PartyModel(
        "credit",
        "v1",
        guest,
        (guest, host),
        "job-1",
        "flow",
        T0,
        (part,),
    )
    file = home / f"{text}.zip"
    file.write_bytes(b"".join(model_archive.write(storage, [model])))
    return file


def unpacked_texts(home):
    return sorted(file.read_text() for file in (home / "storage").rglob("data_0"))


def test_an_upload_above_the_limit_of_the_settings_is_cut_off(tmp_path):
    class Request:
        async def stream(self):
            yield bytes(3)
            yield bytes(3)

    message = r"larger than 5 bytes, the setting data\.max_upload_bytes"
    with pytest.raises(TooLarge, match=message):
        asyncio.run(save_body(Request(), tmp_path / "archive", 5))


def test_an_upload_to_a_full_disk_is_refused_by_name():
    class Request:
        async def stream(self):
            yield bytes(3)

    with pytest.raises(GatewayError, match="No space left on device") as refused:
        asyncio.run(save_body(Request(), Path("/dev/full"), 5))
    assert refused.value.reason == "STORAGE_FAILED"


def test_a_repeated_import_changes_nothing(import_archive, tmp_path):
    archive = an_archive(tmp_path, "first")

    assert import_archive(archive) == import_archive(archive)
    assert unpacked_texts(tmp_path) == ["first"]


@pytest.mark.parametrize(
    ("models_class", "message"),
    [
        (SqlModels, r"guest\.0 of credit lies here with other content"),
        (LateModels, None),
    ],
    ids=["one after the other", "at the same time"],
)
def test_of_two_different_archives_of_a_version_one_is_imported(
    import_archive, tmp_path, models_class, message
):
    first_archive = an_archive(tmp_path, "first")
    import_archive(first_archive)

    with pytest.raises(Conflict, match=message) as refusal:
        import_archive(an_archive(tmp_path, "second"), models_class)

    assert refusal.value.reason == "MODEL_EXISTS"
    import_archive(first_archive)
    assert unpacked_texts(tmp_path) == ["first"]


def test_the_size_of_an_archive_is_its_unpacked_content(import_archive, tmp_path):
    compressed = tmp_path / "small.zip"
    with (
        zipfile.ZipFile(an_archive(tmp_path, "x" * (MAX_CONTENT + 1))) as archive,
        zipfile.ZipFile(compressed, "w", zipfile.ZIP_DEFLATED) as copy,
    ):
        for name in archive.namelist():
            copy.writestr(name, archive.read(name))

    message = r"more than 100 bytes unpacked, the setting data\.max_upload_bytes"
    with pytest.raises(TooLarge, match=message):
        import_archive(compressed)
    assert unpacked_texts(tmp_path) == []
