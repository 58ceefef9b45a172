"""A damaged or hostile archive of a model is refused in words and leaves nothing."""

import io
import json
import struct
import subprocess
import sys
import zipfile

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
from tests.forks import ROOT

MODEL = Address("job-1-guest-0", "task-model")
MANIFEST = "manifest.json"
DATA = "guest.0/0/data_0"  # the model's file in the archive
DATA_SIZE = 200  # bytes
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    """A storage with the files of a model."""
    storage = FileStorage(tmp_path_factory.mktemp("storage"))
    folder = storage.path(MODEL)
    folder.mkdir(parents=True)
    (folder / "data_0").write_text("0123456789" * (DATA_SIZE // 10))
    (folder / "metadata").write_text("{}")
    return storage


@pytest.fixture(scope="module")
def archive(storage):
    """The bytes of an archive of the model."""
    guest = Party("guest", 0, "n1")
    host = Party("host", 0, "n2")
    part = ModelPart(
        "trees",
        ComponentRef("vendor", "1.0.0", "Thing"),
        "model0",
        "model",
        MODEL,
        storage.sums(MODEL),
        {"num_trees": 2},
    )
    model = PartyModel(
        "模型",
        "v 1",
        guest,
        (guest, host),
        "job-1",
        "flow",
        T0,
        (part,),
    )
    return b"".join(model_archive.write(storage, [model]))


class Importer:
    """Imports archives below a folder."""

    def __init__(self, home):
        self.home = home
        self.file = home / "archive.zip"
        self.target = FileStorage(home / "target")

    def run(self, data):
        """Import an archive; return its model. Raises `Invalid`."""
        self.file.write_bytes(data)
        models = model_archive.read(self.file)
        with model_archive.unpack(self.file, models, self.target) as publish, publish():
            pass
        [model] = model_archive.read(self.file)
        return model

    def files(self):
        """Return the files in the target, except for those being written."""
        files = []
        for path in (self.home / "target").rglob("*"):
            if path.is_file() and ".staging" not in path.parts:
                files.append(path)
        return files


@pytest.fixture
def importer(tmp_path):
    return Importer(tmp_path)


# ------------------------------------------------------------ changes of an archive


def rewrite(
    archive,
    files=None,
    *,
    method=zipfile.ZIP_STORED,
    without=(),
):
    """Return an archive with other content in some of its files, and without some members."""
    files = files or {}
    output = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(archive)) as source,
        zipfile.ZipFile(output, "w", method) as copy,
    ):
        for name in source.namelist():
            if name not in without:
                copy.writestr(
                    name,
                    files.get(name, source.read(name)),
                )
    return output.getvalue()


def read_manifest(archive):
    with zipfile.ZipFile(io.BytesIO(archive)) as source:
        return source.read(MANIFEST)


def with_manifest(archive, manifest):
    return rewrite(
        archive,
        {MANIFEST: json.dumps(manifest).encode()},
    )


def with_member(archive, member, content):
    """Return an archive with one more member, which replaces the one of its name."""
    output = io.BytesIO(rewrite(archive, without=[member.filename]))
    with zipfile.ZipFile(output, "a") as copy:
        copy.writestr(member, content)
    return output.getvalue()


# ------------------------------------------------------------ intact archives


def test_an_archive_is_read_back_as_it_was_written(archive, storage, importer):
    model = importer.run(archive)

    assert model.model_id == "模型"
    assert model.version == "v 1"
    assert model.imported is True
    [part] = model.parts
    assert part.files == storage.sums(MODEL)
    assert importer.target.sums(part.address) == part.files


def test_the_usual_compression_is_accepted(archive, importer):
    importer.run(rewrite(archive, method=zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize(
    "method",
    [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA],
    ids=["bzip2", "lzma"],
)
def test_other_compressions_are_refused(archive, importer, method):
    with pytest.raises(Invalid):
        importer.run(rewrite(archive, method=method))


# ------------------------------------------------------------ damaged archives


@st.composite
def damages(draw):
    """Draw a function that changes up to three bytes of an archive and may cut its end off."""
    changes = draw(
        st.lists(
            st.tuples(
                st.floats(
                    0,
                    1,
                    exclude_max=True,
                ),
                st.integers(0, 255),
            ),
            min_size=1,
            max_size=3,
        )
    )
    kept_share = draw(st.sampled_from([1.0, 0.5]))
    cut_off = draw(st.sampled_from([0, 5]))

    def damage(archive):
        damaged = bytearray(archive)
        for position, byte in changes:
            damaged[int(position * len(damaged))] = byte
        return bytes(damaged[: int(kept_share * len(damaged)) - cut_off])

    return damage


@settings(max_examples=150)
@given(damage=damages())
def test_any_damage_is_named_and_nothing_of_it_stays(archive, tmp_path_factory, damage):
    importer = Importer(tmp_path_factory.mktemp("damaged"))

    try:
        model = importer.run(damage(archive))
    except Invalid as error:
        assert error.problems
        assert importer.files() == []
    else:  # the damaged bytes have no effect on the content; they may belong to a time
        for part in model.parts:
            assert importer.target.sums(part.address) == part.files


def test_a_file_larger_than_in_the_manifest_is_not_unpacked_to_its_end(archive, importer):
    larger = rewrite(
        archive,
        {DATA: bytes(1_000_000)},
        method=zipfile.ZIP_DEFLATED,
    )

    with pytest.raises(Invalid, match="must have the 200 bytes that the manifest says"):
        importer.run(larger)


def test_a_file_with_another_checksum_than_in_the_manifest_is_refused(archive, importer):
    with pytest.raises(Invalid) as refusal:
        importer.run(rewrite(archive, {DATA: b"y" * DATA_SIZE}))

    assert refusal.value.reason == "CHECKSUM_MISMATCH"
    assert importer.files() == []


def test_repeated_and_further_members_are_refused(archive, importer):
    output = io.BytesIO(archive)
    with (
        zipfile.ZipFile(output, "a") as copy,
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        copy.writestr(DATA, b"")
        copy.writestr("guest.0/0/data_9", b"")

    with pytest.raises(Invalid) as refusal:
        importer.run(output.getvalue())
    problems = [(problem.path, problem.rule) for problem in refusal.value.problems]
    assert ("(archive)", "must have each member once") in problems
    assert ("guest.0/0/data_9", "is not in the manifest") in problems


def test_a_manifest_above_its_limit_is_refused(archive, importer):
    manifest = bytes(model_archive.LARGEST_MANIFEST + 1)

    with pytest.raises(Invalid, match="has more than"):
        importer.run(rewrite(archive, {MANIFEST: manifest}))


def test_the_files_of_a_part_are_numbered_without_a_gap(archive, importer):
    manifest = json.loads(read_manifest(archive).replace(b'"data_0"', b'"data_1"'))

    with pytest.raises(Invalid, match="data_0, data_1, … without a gap") as refusal:
        importer.run(with_manifest(archive, manifest))
    path = "manifest.json.models[0].parts[0].files"
    assert refusal.value.problems[0].path == path


DIRECTORY_ENTRY = b"PK\1\2" + bytes(42)


@pytest.mark.parametrize(
    ("count", "rule"),
    [
        (
            model_archive.LARGEST_DIRECTORY // len(DIRECTORY_ENTRY) + 1,
            "list of members has more than",
        ),
        (model_archive.MOST_MEMBERS + 1, "at most 100000 members"),
    ],
    ids=["bytes", "members"],
)
def test_an_archive_of_too_many_members_is_refused(importer, count, rule):
    directory = DIRECTORY_ENTRY * count
    counts_in_zip64 = 0xFFFF
    end = struct.pack(
        "<4s4H2LH",
        b"PK\5\6",
        0,
        0,
        counts_in_zip64,
        counts_in_zip64,
        len(directory),
        0,
        0,
    )

    with pytest.raises(Invalid, match=rule):
        importer.run(directory + end)


@pytest.mark.parametrize(
    ("key", "value", "path"),
    [
        ("created_at", "2108-01-01T00:00:00+00:00", "created_at"),
        ("created_at", "0001-01-01T00:00:00+14:00", "created_at"),
        ("model_id", "a/../b", "model_id"),
        (
            "parties",
            [{"role": "host", "index": 0, "node": "n2"}],
            "models",
        ),
        ("models", [], "models"),
        ("format", "another", "format"),
        ("extra", 1, "extra"),
    ],
    ids=[
        "after the last time of a zip",
        "before the first time",
        "hostile id",
        "party without a part",
        "no parts",
        "another format",
        "unknown key",
    ],
)
def test_a_wrong_manifest_is_refused_with_the_path(archive, importer, key, value, path):
    manifest = json.loads(read_manifest(archive)) | {key: value}

    with pytest.raises(Invalid) as refusal:
        importer.run(with_manifest(archive, manifest))
    assert [problem.path for problem in refusal.value.problems] == [f"manifest.json.{path}"]


# ------------------------------------------------------------ a full disk

# Imports a model in a process that may write only 100 bytes to a file.
FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from gateway.data import model_archive
from gateway.data.file_storage import FileStorage
from gateway.errors import GatewayError

archive = Path(sys.argv[1])
storage = FileStorage(archive.parent / "target")
models = model_archive.read(archive)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    with model_archive.unpack(archive, models, storage):
        raise AssertionError("was unpacked")
except GatewayError as error:
    print(error.reason)
"""


def test_a_full_disk_is_no_damage_of_the_archive(archive, importer):
    importer.file.write_bytes(archive)
    command = [sys.executable, "-c", FULL_DISK, str(importer.file)]

    unpacking = subprocess.run(
        command,
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )

    assert unpacking.stdout == "STORAGE_FAILED\n"
    assert importer.files() == []


# ------------------------------------------------------------ hostile archives


def empty(archive):
    return b""


def truncated(archive):
    return archive[:-30]


def without_beginning(archive):
    return archive[200:]


def without_manifest(archive):
    return rewrite(archive, without=[MANIFEST])


def without_data(archive):
    return rewrite(archive, without=[DATA])


def encrypted(archive):
    """Let the members claim to be encrypted."""
    header = b"PK\1\2\x14\x03\x14\0"  # of an entry of the directory; its flags follow
    plain = rewrite(archive)
    assert header + b"\0\0" in plain
    return plain.replace(header + b"\0\0", header + b"\1\0")


def symbolic_link(archive):
    """Let the data file be a symbolic link."""
    link = zipfile.ZipInfo(DATA)
    link.external_attr = 0o120777 << 16
    return with_member(archive, link, b"/etc/passwd".ljust(DATA_SIZE, b"\0"))


def bomb(archive):
    """Let the data file expand a thousandfold, while its header has the size in the manifest."""
    large = rewrite(archive, {DATA: bytes(16 * MIB)}, method=zipfile.ZIP_DEFLATED)
    assert len(large) < MIB
    return large.replace(struct.pack("<L", 16 * MIB), struct.pack("<L", DATA_SIZE))


def bomb_in_manifest(archive):
    """Let the manifest expand beyond its limit."""
    manifest = b" " * (2 * model_archive.LARGEST_MANIFEST)
    return rewrite(
        archive,
        {MANIFEST: manifest},
        method=zipfile.ZIP_DEFLATED,
    )


def path_as_role(archive):
    """Let the model belong to a party with a path as its role."""
    manifest = read_manifest(archive).replace(b'"guest"', b'"../../evil"')
    return rewrite(archive, {MANIFEST: manifest})


def parent_folder(archive):
    return with_member(archive, zipfile.ZipInfo("../evil"), b"x")


def absolute_path(archive):
    return with_member(archive, zipfile.ZipInfo("/tmp/evil"), b"x")


def dots_inside(archive):
    return with_member(archive, zipfile.ZipInfo("guest.0/0/../../evil"), b"x")


def backslash(archive):
    return with_member(archive, zipfile.ZipInfo("..\\evil"), b"x")


@pytest.mark.parametrize(
    ("attack", "rule"),
    [
        (empty, "is not a zip archive"),
        (truncated, "is not a zip archive"),
        (without_beginning, "cannot be read"),
        (without_manifest, "cannot be read"),
        (without_data, "must have the 200 bytes"),
        (encrypted, "cannot be read"),
        (symbolic_link, "must have 200 bytes with sha256"),
        (bomb, "cannot be read|must have 200 bytes"),
        (bomb_in_manifest, "has more than 16777216 bytes"),
        (parent_folder, "is not in the manifest"),
        (absolute_path, "is not in the manifest"),
        (dots_inside, "is not in the manifest"),
        (backslash, "is not in the manifest"),
        (path_as_role, "role"),
    ],
)
def test_a_hostile_archive_is_refused_and_leaves_nothing(archive, importer, attack, rule):
    with pytest.raises(Invalid, match=rule):
        importer.run(attack(archive))

    assert importer.files() == []
    names = {path.name for path in importer.home.iterdir()}
    assert names <= {"archive.zip", "target"}
