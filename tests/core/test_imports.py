"""Archives of models that come in while another one does, or where there is no room for them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
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
from gateway.store.database import connect, migrate
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
        database = connect(f"sqlite:///{home / 'test.db'}")
        migrate(database)
        self.store = Store(database)

    def models(self, kept: type[SqlModels] = SqlModels, reserve: int = 0) -> Models:
        return Models("n1", kept(self.store), self.storage, list, lambda: at(0), reserve)

    def archive(self, *texts: str) -> Path:
        """Return an archive of a model whose parts have these texts."""
        elsewhere = FileStorage(self.home / "elsewhere")
        me, other = Party("guest", 0, "n1"), Party("host", 0, "n2")
        parts: Sequence[ModelPart] = ()
        for number, text in enumerate(texts):
            place = Address("job-1", f"{'-'.join(texts)}-{number}")
            elsewhere.path(place).mkdir(parents=True)
            (elsewhere.path(place) / "data_0").write_text(text)
            ref = ComponentRef("vendor", "1.0.0", "Thing")
            parts = (*parts, ModelPart(f"t{number}", ref, "model0", "model", place, elsewhere.sums(place), {}))
        model = PartyModel("credit", "v1", me, (me, other), "job-1", "flow", T0, tuple(parts))
        file = self.home / f"{'-'.join(texts)}.zip"
        file.write_bytes(b"".join(model_archive.write(elsewhere, [model])))
        return file

    def files(self) -> list[str]:
        return sorted(file.read_text() for file in self.storage.root.rglob("data_0"))


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    here = Here(tmp_path)
    yield here
    here.store.close()


def test_the_same_archive_twice_at_once_is_taken_in_once(here: Here):
    archive = here.archive("one", "two")
    first = here.models().import_archive(archive)
    assert here.models(LateSight).import_archive(archive) == first
    assert here.models().damaged("credit", "v1") == [] and here.files() == ["one", "two"]


def test_other_content_that_comes_in_meanwhile_changes_nothing(here: Here):
    here.models().import_archive(here.archive("one", "two"))
    with pytest.raises(Conflict) as caught:
        here.models(LateSight).import_archive(here.archive("one", "other"))
    assert caught.value.reason == "MODEL_EXISTS"
    assert here.models().damaged("credit", "v1") == [] and here.files() == ["one", "two"]


def test_what_has_no_room_is_not_unpacked(here: Here):
    with pytest.raises(TooLarge, match="storage_reserve_bytes") as caught:
        here.models(reserve=1 << 60).import_archive(here.archive("one"))
    assert caught.value.reason == "NO_SPACE" and here.files() == []
    archive = here.archive("two")
    (model,) = model_archive.read(archive)
    (part,) = model.parts
    huge = replace(part, files=(replace(part.files[0], size=1 << 60),))
    with pytest.raises(TooLarge, match=str(1 << 60)):
        here.models()._check_free_space([replace(model, parts=(huge,))])
