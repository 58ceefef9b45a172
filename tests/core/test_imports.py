"""Archives of models that come in while another one does, or where there is no room for them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.data import model_archive
from gateway.data.models import Models
from gateway.data.storage import FileStorage
from gateway.domain.dag import ComponentRef
from gateway.domain.models import Kept, ModelPart, PartyModel
from gateway.domain.run import Address
from gateway.domain.spec import Party
from gateway.errors import Conflict, TooLarge
from gateway.store.database import opened
from gateway.store.models import SqlModels
from gateway.store.store import Store
from tests.builders import T0, at


class LateSight(SqlModels):
    """Sees a version only at the second look: another archive of it came in right after the first."""

    looked = False

    def find(self, model_id: str, version: str) -> list[Kept]:
        found = super().find(model_id, version) if self.looked else []
        self.looked = True
        return found


class Here:
    """A node's storage and database, and archives from elsewhere."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.storage = FileStorage(home / "storage")
        self.store = Store(opened(f"sqlite:///{home / 'test.db'}"))

    def models(self, kept: type[SqlModels] = SqlModels, reserve: int = 0) -> Models:
        return Models("n1", kept(self.store), self.storage, list, lambda: at(0), reserve)

    def archive(self, text: str) -> Path:
        elsewhere, place = FileStorage(self.home / "elsewhere"), Address("job-1", text)
        elsewhere.path(place).mkdir(parents=True)
        (elsewhere.path(place) / "data_0").write_text(text)
        ref = ComponentRef("vendor", "1.0.0", "Thing")
        part = ModelPart("t", ref, "model0", "model", place, elsewhere.sums(place), {})
        me, other = Party("guest", 0, "n1"), Party("host", 0, "n2")
        model = PartyModel("credit", "v1", me, (me, other), "job-1", "flow", T0, (part,))
        file = self.home / f"{text}.zip"
        file.write_bytes(b"".join(model_archive.write(elsewhere, [model])))
        return file

    def files(self) -> list[str]:
        return sorted(file.read_text() for file in self.storage.root.rglob("data_0"))


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    here = Here(tmp_path)
    yield here
    here.store.close()


def test_of_two_archives_of_a_version_at_the_same_time_one_is_taken_in(here: Here):
    archive = here.archive("one")
    first = here.models().import_archive(archive)
    assert here.models(LateSight).import_archive(archive) == first, "the same once more"
    with pytest.raises(Conflict) as caught:
        here.models(LateSight).import_archive(here.archive("other"))
    assert caught.value.reason == "MODEL_EXISTS"
    assert here.models().damaged("credit", "v1") == [] and here.files() == ["one"]


def test_what_has_no_room_is_not_unpacked(here: Here):
    with pytest.raises(TooLarge, match="storage_reserve_bytes") as caught:
        here.models(reserve=1 << 60).import_archive(here.archive("one"))
    assert caught.value.reason == "NO_SPACE" and here.files() == []
