"""Who may predict with a model and who may not, each for a reason of its own; archives of models that race."""

import asyncio
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.admin.models import save_body
from gateway.bootstrap.node import Gateway
from gateway.data import model_archive
from gateway.data.combined_storage import Storages
from gateway.data.file_storage import FileStorage
from gateway.data.models import Models
from gateway.domain.dag import ComponentRef
from gateway.domain.models import ModelPart, PartyModel
from gateway.domain.run import Address, LocalJob
from gateway.domain.spec import JobSpec, Party
from gateway.domain.states import JobStatus
from gateway.errors import Conflict, Invalid, TooLarge
from gateway.store.database import open_database
from gateway.store.models import SqlModels
from gateway.store.store import Store
from provider_registry.model import Component, DataSpec
from tests.builders import T0, a_spec, at
from tests.cli.test_models import FLOW, PLACE, left
from tests.inprocess import ME, PEER, STRANGER, ask, running

MODEL, VERSION = "credit model", "job-1"


@pytest.fixture
def node(tmp_path: Path):
    with running(tmp_path) as gateway:
        left(gateway)
        yield gateway


def predicts(
    roles: Any = None,
    dag: Any = FLOW,
    **common: Any,
) -> JobSpec:
    asked = {
        "job_type": "predict",
        "model_id": MODEL,
        "model_version": VERSION,
        **common,
    }
    spec = a_spec(dag, roles or {"guest": (ME,), "host": (PEER,)}, job_id="job-9")
    return replace(spec, job_params={"common": asked})


def reason(gateway: Gateway, spec: JobSpec) -> str:
    refused = gateway.models.refusal(spec)
    return refused.reason if refused else ""


def test_each_reason_against_a_prediction_in_turn_until_it_is_allowed(node: Gateway):
    assert reason(node, predicts(model_version="v0")) == "MODEL_UNKNOWN"
    assert (
        reason(node, predicts({"host": (ME,), "guest": (PEER,)})) == "MODEL_UNKNOWN"
    )  # the other party's part
    stranger = predicts({"guest": (ME,), "host": (STRANGER,)})
    assert reason(node, stranger) == "MODEL_NOT_AUTHORISED"
    assert reason(node, predicts()) == "MODEL_NOT_DEPLOYED"
    node.models.deploy(MODEL, VERSION)
    assert reason(node, predicts()) == "" and reason(node, stranger) == "MODEL_NOT_AUTHORISED"
    node.models.deploy(MODEL, VERSION, [STRANGER])
    assert reason(node, stranger) == ""
    node.models.deploy(MODEL, VERSION)  # says nothing of nodes: as it was
    assert reason(node, stranger) == ""
    node.models.deploy(MODEL, VERSION, [])
    assert reason(node, stranger) == "MODEL_NOT_AUTHORISED"
    assert reason(node, predicts(dag="other")) == ""  # by its component
    other = replace(
        FLOW.nodes[0], name="other", component=replace(FLOW.nodes[0].component, name="Else")
    )
    assert reason(node, predicts(dag=replace(FLOW, nodes=(other,)))) == "MODEL_NOT_USED"
    (node.storage.path(PLACE) / "data_0").unlink()
    assert reason(node, predicts()) == "MODEL_DAMAGED"


def test_a_version_is_made_once(node: Gateway):
    params = {"common": {"model_id": MODEL, "model_version": VERSION}}
    again = replace(predicts(), job_id="job-2", job_params=params)
    assert reason(node, again) == "MODEL_VERSION_TAKEN"
    assert (
        reason(node, replace(again, job_id="job-1")) == ""
    )  # the one that made it, asked once more
    with pytest.raises(Invalid) as refused:
        node.participant.create_job(again, "")
    assert refused.value.reason == "MODEL_VERSION_TAKEN"


def test_the_models_address_goes_to_the_model_input_or_its_namesake(node: Gateway):
    spec = predicts()
    trees = FLOW.nodes[0]

    def inputs(*specs: DataSpec) -> dict[str, Any]:
        component = Component("Thing", "", "v", "1", "", ("guest",), (), (), specs, (), (), {})
        return node.models.inputs(spec, spec.parties[0], trees, component)

    assert inputs(DataSpec("rows", "", "dataset"), DataSpec("weights", "", "model")) == {
        "weights": PLACE
    }
    assert inputs(DataSpec("a", "", "model"), DataSpec("model", "", "model")) == {"model": PLACE}
    assert inputs(DataSpec("rows", "", "dataset")) == {"model": PLACE}
    assert node.models.inputs(replace(spec, job_params={}), spec.parties[0], trees, None) == {}  # type: ignore[arg-type]


def test_a_model_that_a_job_uses_is_not_deleted(node: Gateway):
    spec = predicts()
    local = LocalJob(spec, ME, JobStatus.READY, T0, "digest")
    node.store.local_jobs.add(local, spec.flow_id)
    with pytest.raises(Conflict) as refused:
        node.models.delete(MODEL, VERSION)
    assert (refused.value.reason, "job-9" in refused.value.message) == ("MODEL_IN_USE", True)
    node.store.local_jobs.update(
        "job-9", lambda job: replace(job, status=JobStatus.FINISHED, closed=True)
    )
    node.models.delete(MODEL, VERSION)
    assert not node.storage.exists(PLACE)


def test_what_is_not_so_any_more_or_cannot_be_is_refused(
    node: Gateway, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(Invalid) as wrong:
        node.models.deploy(MODEL, VERSION, [PEER, "a/b"])
    assert [p.path for p in wrong.value.problems] == ["nodes[1]"]
    with (
        monkeypatch.context() as patch,
        pytest.raises(Conflict, match="was deployed meanwhile") as refused,
    ):
        patch.setattr(SqlModels, "delete", lambda *_: False)
        node.models.delete(MODEL, VERSION)
    assert refused.value.reason == "MODEL_DEPLOYED" and node.storage.exists(PLACE)
    node.storage.delete(PLACE)
    (damage,) = node.models.damages(MODEL, VERSION)
    assert damage.startswith(f"{PLACE.dataset_id}: ")


def test_a_training_is_deleted_only_after_its_model(node: Gateway):
    node.store.local_jobs.update("job-1", lambda job: replace(job, closed=True))
    refused = ask(node, "operator", "DELETE", "/api/v1/jobs/job-1?here=true")
    assert refused.status_code == 409 and f"version {VERSION} of model {MODEL}" in refused.text, (
        refused.text
    )
    assert node.models.damages(MODEL, VERSION) == []
    node.models.delete(MODEL, VERSION)
    assert not node.storage.exists(PLACE)


def test_an_archive_larger_than_the_admin_allows_is_cut_off(tmp_path: Path):
    class Body:
        async def stream(self) -> AsyncIterator[bytes]:
            yield bytes(3)
            yield bytes(3)

    with pytest.raises(TooLarge, match=r"larger than 5 bytes, the setting data\.max_upload_bytes"):
        asyncio.run(save_body(cast(Any, Body()), tmp_path / "archive", 5))


LARGEST = 100
"""bytes of an archive's content here"""


class LateSight(SqlModels):
    """Sees a version only at the second look: another archive of it came in right after the first."""

    looked = False

    def find(self, model_id: str, version: str) -> list[Any]:
        found = super().find(model_id, version) if self.looked else []
        self.looked = True
        return found


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(open_database(f"sqlite:///{tmp_path / 'test.db'}"))) as store:
        yield store


def models(
    store: Store,
    home: Path,
    kept: type[SqlModels] = SqlModels,
) -> Models:
    return Models("n1", kept(store), Storages(FileStorage(home / "storage")), list, lambda: at(0))


def an_archive(home: Path, text: str) -> Path:
    elsewhere, place = Storages(FileStorage(home / "elsewhere")), Address("job-1", text)
    elsewhere.path(place).mkdir(parents=True)
    (elsewhere.path(place) / "data_0").write_text(text)
    part = ModelPart(
        "t",
        ComponentRef("vendor", "1.0.0", "Thing"),
        "model0",
        "model",
        place,
        elsewhere.sums(place),
        {},
    )
    me, other = Party("guest", 0, "n1"), Party("host", 0, "n2")
    model = PartyModel("credit", "v1", me, (me, other), "job-1", "flow", T0, (part,))
    file = home / f"{text}.zip"
    file.write_bytes(b"".join(model_archive.write(elsewhere, [model])))
    return file


def unpacked(home: Path) -> list[str]:
    return sorted(file.read_text() for file in (home / "storage").rglob("data_0"))


def test_of_two_archives_of_a_version_at_the_same_time_one_is_taken_in(here: Store, tmp_path: Path):
    archive = an_archive(tmp_path, "one")
    first = models(here, tmp_path).import_archive(archive, LARGEST)
    assert models(here, tmp_path).import_archive(archive, LARGEST) == first, "the same once more"
    with pytest.raises(Conflict, match=r"guest\.0 of credit lies here with other content") as known:
        models(here, tmp_path).import_archive(an_archive(tmp_path, "third"), LARGEST)
    assert known.value.reason == "MODEL_EXISTS"
    with pytest.raises(Conflict) as caught:
        models(here, tmp_path, LateSight).import_archive(an_archive(tmp_path, "other"), LARGEST)
    assert caught.value.reason == "MODEL_EXISTS"
    assert models(here, tmp_path).damages("credit", "v1") == [] and unpacked(tmp_path) == ["one"]


def test_an_archive_is_as_large_as_its_content(here: Store, tmp_path: Path):
    stored, small = an_archive(tmp_path, "x" * (LARGEST + 1)), tmp_path / "small.zip"
    with zipfile.ZipFile(stored) as old, zipfile.ZipFile(small, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(
        TooLarge, match=r"more than 100 bytes unpacked, the setting data\.max_upload_bytes"
    ):
        models(here, tmp_path).import_archive(small, LARGEST)
    assert unpacked(tmp_path) == []
