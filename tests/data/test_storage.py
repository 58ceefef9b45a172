"""The node's folder: permitted names, files that are read, and writes of all or nothing."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.data.file_storage import STAGING_FOLDER, FileStorage, clear_leftover
from gateway.domain.problems import name_rule
from gateway.domain.run import Address
from gateway.errors import Conflict, Invalid, NotFound
from tests.builders import raising
from tests.contracts.storage_sites import put

TABLE = Address("ns", "name")


@pytest.fixture
def storage(tmp_path):
    return FileStorage(tmp_path / "storage")


def write_files(storage, address=TABLE, **files):
    """Write files as a container does, straight to the place; return the folder."""
    folder = storage.path(address)
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def rows(storage, address=TABLE):
    return list(storage.iter_rows(address))


def used_places(storage):
    """Return the places in use, and whatever staging holds."""
    return {str(path.relative_to(storage.root)) for path in storage.root.glob("*/*")}


# ------------------------------------------------------------ names

HOSTILE_NAMES = {
    "empty": "",
    "dot": ".",
    "parent": "..",
    "below the parent": "../x",
    "path": "a/b",
    "absolute path": "/etc",
    "backslash": "a\\b",
    "NUL": "a\0",
    "line break": "a\nb",
    "DEL": "\x7f",
    "next line": "a\x85",
    "half a character": "\ud800",
    "staging folder": ".staging",
    "leading space": " a",
    "trailing space": "a ",
    "too long": "x" * 256,
    "too many bytes": "ü" * 128,
}


@pytest.mark.parametrize(
    "name",
    HOSTILE_NAMES.values(),
    ids=HOSTILE_NAMES,
)
def test_a_hostile_name_is_refused_and_names_nothing(storage, name):
    paths_by_address = {
        Address(name, "a"): ["namespace"],
        Address("a", name): ["name"],
        Address(name, ".."): ["namespace", "name"],
    }
    for address, paths in paths_by_address.items():
        with pytest.raises(Invalid) as refusal:
            storage.path(address)
        assert [problem.path for problem in refusal.value.problems] == paths
        assert not storage.exists(address)


@given(st.text(), st.text())
def test_no_name_escapes_the_root(namespace, name):
    storage = FileStorage(Path("/nowhere/at/all"))

    try:
        path = storage.path(Address(namespace, name))
    except Invalid:
        assert name_rule(namespace) or name_rule(name)
        return

    assert os.path.normpath(path) == str(path)
    assert path.parent.parent == storage.root
    assert path.parent.name == namespace
    assert namespace != STAGING_FOLDER
    assert path.name == name
    os.fsencode(path)


# ------------------------------------------------------------ reads


def test_parts_are_read_in_order_with_or_without_headers(storage):
    parts = {f"data_{number}": f"id,x\n{number},1\n" for number in range(12)}
    parts["data_3"] = '3,"a\nb"\n'
    parts["data_4"] = ""
    parts["data_5"] = "id,x\n"
    write_files(storage, **parts)

    ids = [row[0] for row in rows(storage)]
    assert ids == ["0", "1", "2", "3", "6", "7", "8", "9", "10", "11"]
    assert storage.columns(TABLE) == ["id", "x"]
    assert storage.metadata(TABLE) == {}
    content = "".join(parts.values()).encode()
    assert b"".join(storage.stream(TABLE)) == content
    assert storage.checksum(TABLE) == hashlib.sha256(content).hexdigest()


def test_a_plain_file_is_a_table_too(storage):
    (storage.root / "ns").mkdir(parents=True)
    (storage.root / "ns" / "name").write_bytes(b"\xef\xbb\xbfid,x\r\n1,2\r\n")

    assert storage.exists(TABLE)
    assert rows(storage) == [["1", "2"]]
    assert storage.metadata(TABLE) == {}
    with storage.open_file(TABLE, "data_0") as file:
        assert file.read(2) == b"\xef\xbb"


def test_parts_are_one_table_only_with_readable_metadata(storage):
    folder = write_files(
        storage,
        data_0="a\n1\n",
        data_1="a\n2\n",
        metadata="[]",
    )
    assert b"".join(storage.stream(TABLE)) == b"a\n1\na\n2\n"

    (folder / "metadata").write_text('{"file_type": "csv"}')
    assert b"".join(storage.stream(TABLE)) == b"a\n1\n2\n"


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[" * 200_000, b"\xff"],
    ids=["empty", "half an object", "nested deeply", "not UTF-8"],
)
def test_a_broken_report_is_refused(storage, data):
    (write_files(storage) / "data_0").write_bytes(data)

    with pytest.raises(Invalid):
        storage.read_json(TABLE)


@pytest.mark.parametrize(
    "data",
    [b"", b'a,"b', b'a\n"x"y\n'],
    ids=["empty", "open quote", "text after a quote"],
)
def test_a_broken_table_is_refused(storage, data):
    folder = write_files(storage, metadata="[]")
    (folder / "data_0").write_bytes(data)

    with pytest.raises(Invalid):
        rows(storage)
    with pytest.raises(Invalid):
        storage.metadata(TABLE)


def link_to_secret(folder):
    """Let data and metadata be links to a file outside the storage."""
    secret = folder.parents[2] / "secret"
    secret.write_text('{"key": 1}')
    (folder / "data_0").symlink_to(secret)
    (folder / "metadata").symlink_to(secret)


def pipe_and_folder(folder):
    """Let the data be a pipe and the metadata a folder."""
    os.mkfifo(folder / "data_0")
    (folder / "metadata").mkdir()


@pytest.mark.parametrize("prepare", [link_to_secret, pipe_and_folder])
def test_nothing_but_files_is_read(storage, prepare):
    prepare(write_files(storage))

    assert not storage.exists(TABLE)
    assert storage.metadata(TABLE) == {}
    with pytest.raises(NotFound):
        storage.read_json(TABLE)
    with pytest.raises(NotFound, match=r"data_0 (cannot be opened|is not a file)") as error:
        storage.open_file(TABLE, "data_0")
    assert error.value.reason == "DATA_MISSING"


def test_data_deleted_during_a_read_is_missing(storage):
    class VanishingStorage(FileStorage):
        def files(self, address):
            files = super().files(address)
            self.delete(address)
            return files

    put(storage, TABLE, data_0="a\n1\n")

    with pytest.raises(NotFound) as error:
        VanishingStorage(storage.root).sums(TABLE)
    assert error.value.reason == "DATA_MISSING"


def test_a_header_whose_quote_never_closes_is_read_once(storage):
    # To count its quotes again at each line would take minutes.
    part = 'id,"x\n' + "1,\n" * 300_000
    write_files(
        storage,
        data_0=part,
        data_1=part,
        metadata='{"file_type": "csv"}',
    )

    assert b"".join(storage.stream(TABLE)) == 2 * part.encode()


# ------------------------------------------------------------ writes


def test_a_write_is_atomic_and_readable_by_any_user_of_the_folder(storage):
    umask = os.umask(0o077)
    try:
        put(
            storage,
            TABLE,
            data_0="a\n1\n",
            metadata="{}",
        )
    finally:
        os.umask(umask)

    folder = storage.path(TABLE)
    assert permissions(folder.parent) == 0o700
    assert permissions(folder) == 0o755
    assert permissions(folder / "data_0") == 0o644
    assert used_places(storage) == {"ns/name"}


def permissions(path):
    return path.stat().st_mode & 0o777


def test_a_plain_file_is_replaced_only_on_request(storage):
    (storage.root / "ns").mkdir(parents=True)
    (storage.root / "ns" / "name").write_text("a\n1\n")

    with pytest.raises(Conflict):
        put(storage, TABLE, data_0="a\n2\n")
    assert rows(storage) == [["1"]]

    put(
        storage,
        TABLE,
        overwrite=True,
        data_0="a\n3\n",
    )
    assert rows(storage) == [["3"]]
    assert used_places(storage) == {"ns/name"}


def test_a_failure_during_a_replacement_restores_the_old_table(storage):
    put(storage, TABLE, data_0="a\n1\n")

    with pytest.raises(RuntimeError), storage.staging() as staging:
        (staging.table / "data_0").write_text("a\n2\n")
        with storage.published(staging, TABLE, overwrite=True):
            assert rows(storage) == [["2"]]
            raise RuntimeError

    assert used_places(storage) == {"ns/name"}
    assert rows(storage) == [["1"]]


# Replaces the table in a process that kills itself at a moment: while it writes, between the
# renames of the old and the new table, or after both.
WRITER = """
    import os, signal, sys
    from pathlib import Path
    from gateway.domain.run import Address
    from gateway.data.file_storage import FileStorage

    storage, moment = FileStorage(Path(sys.argv[1])), sys.argv[2]

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def rename(self, target, _rename=Path.rename):
        if moment == "between" and self.name == "new":
            die()
        return _rename(self, target)

    Path.rename = rename
    staging = storage.staging()
    (staging.table / "data_0").write_text("a\\n2\\n")
    if moment == "writing":
        die()
    with storage.published(staging, Address("ns", "name"), overwrite=True):
        die()
"""


@pytest.mark.parametrize(
    ("moment", "row"),
    [
        ("writing", "1"),
        ("between", "2"),
        ("published", "2"),
    ],
)
def test_a_process_that_dies_leaves_the_old_or_the_new(storage, moment, row):
    put(storage, TABLE, data_0="a\n1\n")
    script = textwrap.dedent(WRITER)

    writer = subprocess.run(
        [sys.executable, "-c", script, str(storage.root), moment],
        cwd=Path(__file__).parents[2],
    )

    assert writer.returncode == -signal.SIGKILL
    assert used_places(storage) != {"ns/name"}
    restarted = FileStorage(storage.root)
    assert rows(restarted) == [[row]]
    assert used_places(restarted) == {"ns/name"}


def test_a_write_under_way_survives_another_start(storage):
    with storage.staging() as staging:
        (staging.table / "data_0").write_text("a\n1\n")
        FileStorage(storage.root)
        with storage.published(staging, TABLE, overwrite=False):
            pass

    assert rows(storage) == [["1"]]


def test_one_of_many_concurrent_writes_wins_and_the_rest_are_refused(storage):
    def write(number):
        try:
            put(storage, TABLE, data_0=f"a\n{number}\n")
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(write, range(16))) == 1


def test_concurrent_replacements_are_never_mixed(storage):
    def replace(number):
        part = f"a\n{number}\n"
        put(
            storage,
            TABLE,
            overwrite=True,
            data_0=part,
            data_1=part,
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(replace, range(16)))

    first, second = rows(storage)
    assert first == second
    assert used_places(storage) == {"ns/name"}


# ------------------------------------------------------------ races with another process


@pytest.fixture
def failed_renames(monkeypatch):
    """The names whose rename failed as their folder was gone: the first one after each clear."""
    rename = Path.rename
    names = []

    def fail_once(path, target):
        if not names:
            names.append(path.name)
            raise FileNotFoundError
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_once)
    return names


def test_a_table_that_vanishes_during_its_deletion_is_not_deleted(storage, failed_renames):
    failed_renames.append("none fails")
    put(storage, TABLE, data_0="a\n1\n")
    failed_renames.clear()

    assert storage.delete(TABLE) is False


def test_a_namespace_that_vanishes_during_a_write_is_made_again(storage, failed_renames):
    put(storage, TABLE, data_0="a\n1\n")

    assert failed_renames == ["new"]
    assert used_places(storage) == {"ns/name"}


def test_a_rename_that_is_not_permitted_fails_the_write(storage, monkeypatch):
    not_permitted = PermissionError(errno.EACCES, "not permitted")
    monkeypatch.setattr(Path, "rename", raising(not_permitted))

    with pytest.raises(PermissionError):
        put(storage, TABLE, data_0="a\n1\n")


def test_missing_folders_have_no_names_and_nothing_to_clear(storage):
    clear_leftover(storage.root, "gone")

    assert storage.names("gone") == []
