"""An archive that is not as it should be is refused in words, whatever is wrong with it, and leaves nothing."""

import io
import json
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.data import model_archive
from gateway.data.file_storage import FileStorage
from gateway.domain.dag import ComponentRef
from gateway.domain.models import ModelPart, PartyModel
from gateway.domain.run import Address
from gateway.domain.spec import Party
from gateway.errors import Invalid
from tests.builders import T0

PLACE = Address("job-1-guest-0", "task-model")


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> FileStorage:
    storage = FileStorage(tmp_path_factory.mktemp("storage"))
    folder = storage.path(PLACE)
    folder.mkdir(parents=True)
    (folder / "data_0").write_text("0123456789" * 20)
    (folder / "metadata").write_text("{}")
    return storage


@pytest.fixture(scope="module")
def archive(storage: FileStorage) -> bytes:
    me, other = Party("guest", 0, "n1"), Party("host", 0, "n2")
    ref = ComponentRef("vendor", "1.0.0", "Thing")
    part = ModelPart("trees", ref, "model0", "model", PLACE, storage.sums(PLACE), {"num_trees": 2})
    model = PartyModel("模型", "v 1", me, (me, other), "job-1", "flow", T0, (part,))
    return b"".join(model_archive.write(storage, [model]))


def taken(data: bytes, home: Path) -> FileStorage:
    """Take in an archive. Raises `Invalid`."""
    file = home / "archive.zip"
    file.write_bytes(data)
    target = FileStorage(home / "target")
    with model_archive.unpack(file, model_archive.read(file), target) as publish, publish():
        pass
    return target


def left_over(home: Path) -> list[Path]:
    return [p for p in (home / "target").rglob("*") if ".staging" not in p.parts and p.is_file()]


def test_what_was_written_is_read_back(
    archive: bytes,
    storage: FileStorage,
    tmp_path: Path,
):
    target = taken(archive, tmp_path)
    (model,) = model_archive.read(tmp_path / "archive.zip")
    (part,) = model.parts
    assert (model.model_id, model.version, model.imported) == ("模型", "v 1", True)
    assert target.sums(part.address) == storage.sums(PLACE) == part.files


@settings(max_examples=150)
@given(data=st.data())
def test_any_damage_is_named_and_nothing_of_it_stays(
    archive: bytes,
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
):
    changed = bytearray(archive)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(changed) - 1))
        changed[place] = data.draw(st.integers(0, 255))
    changed = changed[
        : data.draw(st.sampled_from([len(changed), len(changed) // 2, len(changed) - 5]))
    ]
    home = tmp_path_factory.mktemp("damaged")
    try:
        target = taken(bytes(changed), home)
    except Invalid as error:
        assert error.problems and left_over(home) == []
    else:  # what was hit says nothing of the content, such as a time
        (model,) = model_archive.read(home / "archive.zip")
        assert all(target.sums(p.address) == p.files for p in model.parts)


def test_only_the_usual_compression_is_taken(archive: bytes, tmp_path: Path):
    taken(changed(archive, zipfile.ZIP_DEFLATED), tmp_path)
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with pytest.raises(Invalid):
            taken(changed(archive, method), tmp_path)


def test_a_file_larger_than_the_manifest_says_is_not_unpacked_to_its_end(
    archive: bytes, tmp_path: Path
):
    larger = changed(archive, zipfile.ZIP_DEFLATED, {"guest.0/0/data_0": bytes(1_000_000)})
    with pytest.raises(Invalid, match="must have the 200 bytes that the manifest says"):
        taken(larger, tmp_path)


def test_members_that_are_not_what_the_manifest_says_are_refused(archive: bytes, tmp_path: Path):
    data = changed(archive, files={"guest.0/0/data_0": b"y" * 200})
    with pytest.raises(Invalid) as caught:
        taken(data, tmp_path)
    assert caught.value.reason == "CHECKSUM_MISMATCH" and left_over(tmp_path) == []
    further = io.BytesIO(archive)
    with zipfile.ZipFile(further, "a") as more, pytest.warns(UserWarning, match="Duplicate name"):
        more.writestr("guest.0/0/data_0", b"")
        more.writestr("guest.0/0/data_9", b"")
    with pytest.raises(Invalid) as caught:
        taken(further.getvalue(), tmp_path)
    assert {(p.path, p.rule) for p in caught.value.problems} >= {
        ("(archive)", "must have each member once"),
        ("guest.0/0/data_9", "is not in the manifest"),
    }
    large = changed(archive, files={"manifest.json": bytes(model_archive.LARGEST_MANIFEST + 1)})
    with pytest.raises(Invalid, match="has more than"):
        taken(large, tmp_path)


def test_the_files_of_a_part_are_numbered_without_a_gap(archive: bytes, tmp_path: Path):
    with zipfile.ZipFile(io.BytesIO(archive)) as source:
        manifest = json.loads(source.read("manifest.json").replace(b'"data_0"', b'"data_1"'))
    with pytest.raises(Invalid, match="data_0, data_1, … without a gap") as caught:
        taken(changed(archive, files={"manifest.json": json.dumps(manifest).encode()}), tmp_path)
    assert caught.value.problems[0].path == "manifest.json.models[0].parts[0].files"


@pytest.mark.parametrize(
    ("count", "rule"),
    [
        (model_archive.LARGEST_DIRECTORY // 46 + 1, "list of members has more than"),
        (model_archive.MOST_MEMBERS + 1, "at most 100000 members"),
    ],
)
def test_an_archive_of_too_many_members_is_refused(count: int, rule: str, tmp_path: Path):
    entry = b"PK\1\2" + bytes(42)
    size = count * len(entry)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, size, 0, 0)
    with pytest.raises(Invalid, match=rule):
        taken(entry * count + end, tmp_path)


DATA = "guest.0/0/data_0"
MIB = 1024 * 1024


def symlink(archive: bytes) -> bytes:
    """Return an archive whose data file is a symbolic link."""
    link = zipfile.ZipInfo(DATA)
    link.external_attr = 0o120777 << 16
    return with_member(archive, link, b"/etc/passwd".ljust(200, b"\0"))


def with_member(archive: bytes, member: zipfile.ZipInfo, content: bytes) -> bytes:
    """Return an archive with one more member, which replaces a former one of this name."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            if name != member.filename:
                new.writestr(name, old.read(name))
        new.writestr(member, content)
    return out.getvalue()


def without(archive: bytes, member: str) -> bytes:
    """Return an archive without one of its members."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            if name != member:
                new.writestr(name, old.read(name))
    return out.getvalue()


def encrypted(archive: bytes) -> bytes:
    """Return an archive whose members claim to be encrypted."""
    header = b"PK\1\2\x14\x03\x14\0"  # of an entry of the directory; its flags follow
    plain = changed(archive)
    assert header + b"\0\0" in plain
    return plain.replace(header + b"\0\0", header + b"\1\0")


def bomb(archive: bytes) -> bytes:
    """Return an archive whose data file expands a thousandfold, while its header gives the honest size."""
    large = changed(archive, zipfile.ZIP_DEFLATED, {DATA: bytes(16 * MIB)})
    assert len(large) < MIB
    return large.replace(struct.pack("<L", 16 * MIB), struct.pack("<L", 200))


def manifest_bomb(archive: bytes) -> bytes:
    """Return an archive whose manifest expands beyond its limit."""
    size = 2 * model_archive.LARGEST_MANIFEST
    return changed(archive, zipfile.ZIP_DEFLATED, {"manifest.json": b" " * size})


def escaping(name: str) -> Callable[[bytes], bytes]:
    """Return a change that adds a member whose name is a path to another folder."""
    return lambda archive: with_member(archive, zipfile.ZipInfo(name), b"x")


def role(name: str) -> Callable[[bytes], bytes]:
    """Return a change that gives the parts to a party of this name."""

    def change(archive: bytes) -> bytes:
        with zipfile.ZipFile(io.BytesIO(archive)) as source:
            manifest = source.read("manifest.json").replace(b'"guest"', json.dumps(name).encode())
        return changed(archive, files={"manifest.json": manifest})

    return change


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        pytest.param(lambda archive: b"", "is not a zip archive", id="empty"),
        pytest.param(lambda archive: archive[:-30], "is not a zip archive", id="truncated"),
        pytest.param(lambda archive: archive[200:], "cannot be read", id="beginning cut off"),
        pytest.param(
            lambda archive: without(archive, "manifest.json"), "cannot be read", id="no manifest"
        ),
        pytest.param(
            lambda archive: without(archive, DATA), "must have the 200 bytes", id="no data"
        ),
        pytest.param(encrypted, "cannot be read", id="encrypted"),
        pytest.param(symlink, "must have 200 bytes with sha256", id="symbolic link"),
        pytest.param(bomb, "cannot be read|must have 200 bytes", id="bomb"),
        pytest.param(manifest_bomb, "has more than 16777216 bytes", id="bomb in the manifest"),
        pytest.param(escaping("../evil"), "is not in the manifest", id="parent folder"),
        pytest.param(escaping("/tmp/evil"), "is not in the manifest", id="absolute path"),
        pytest.param(escaping("guest.0/0/../../evil"), "is not in the manifest", id="dots inside"),
        pytest.param(escaping("..\\evil"), "is not in the manifest", id="backslash"),
        pytest.param(role("../../evil"), "role", id="path as a role"),
    ],
)
def test_a_hostile_archive_is_refused_and_leaves_nothing(
    change: Callable[[bytes], bytes],
    rule: str,
    archive: bytes,
    tmp_path: Path,
):
    with pytest.raises(Invalid, match=rule):
        taken(change(archive), tmp_path)
    assert left_over(tmp_path) == []
    assert sorted(p.name for p in tmp_path.iterdir()) in (
        ["archive.zip"],
        ["archive.zip", "target"],
    )


@pytest.mark.parametrize(
    ("key", "value", "path"),
    [
        ("created_at", "2108-01-01T00:00:00+00:00", "created_at"),
        ("created_at", "0001-01-01T00:00:00+14:00", "created_at"),
        ("model_id", "a/../b", "model_id"),
        (
            "parties",
            [
                {
                    "role": "host",
                    "index": 0,
                    "node": "n2",
                }
            ],
            "models",
        ),
        ("models", [], "models"),
        ("format", "another", "format"),
        ("extra", 1, "extra"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused_with_the_place(
    archive: bytes,
    tmp_path: Path,
    key: str,
    value: object,
    path: str,
):
    with zipfile.ZipFile(io.BytesIO(archive)) as source:
        manifest = json.loads(source.read("manifest.json")) | {key: value}
    with pytest.raises(Invalid) as caught:
        taken(changed(archive, files={"manifest.json": json.dumps(manifest).encode()}), tmp_path)
    assert [p.path for p in caught.value.problems] == [f"manifest.json.{path}"]


def changed(
    archive: bytes,
    method: int = zipfile.ZIP_STORED,
    files: Mapping[str, bytes] = {},
) -> bytes:
    """Return an archive with other content in some of its files."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(out, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, files.get(name, old.read(name)))
    return out.getvalue()
