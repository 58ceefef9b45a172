"""The storage: what may name a place, what is read, and that a write is whole or not there."""

import errno
import hashlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.data import file_storage
from gateway.data.file_storage import FOLDER, FileStorage, clear_leftover
from gateway.data.storage import Stored
from gateway.domain.problems import name_rule
from gateway.domain.run import Address
from gateway.errors import Conflict, Invalid, NotFound
from tests.builders import raising
from tests.contracts.test_storage import put

HERE = Address("ns", "name")


@pytest.fixture
def storage(tmp_path: Path) -> FileStorage:
    return FileStorage(tmp_path / "storage")


def lay(
    storage: FileStorage,
    address: Address = HERE,
    **files: str,
) -> Path:
    """Write as a container does: straight to the place."""
    path = storage.path(address)
    path.mkdir(parents=True)
    for name, text in files.items():
        (path / name).write_text(text)
    return path


def seen(storage: FileStorage) -> set[str]:
    """The places in use, and whatever staging holds."""
    return {str(p.relative_to(storage.root)) for p in storage.root.glob("*/*")}


HOSTILE = [
    *("", ".", "..", "../x", "a/b", "/etc", "a\\b", "a\0", "a\nb", "\x7f", "a\x85"),
    *("\ud800", ".staging", " a", "a "),
]


def test_a_hostile_name_is_refused_and_names_nothing(storage: FileStorage) -> None:
    for name in (*HOSTILE, "x" * 256, "ü" * 128):
        for address, path in (
            (Address(name, "a"), ["namespace"]),
            (Address("a", name), ["name"]),
            (Address(name, ".."), ["namespace", "name"]),
        ):
            with pytest.raises(Invalid) as caught:
                storage.path(address)
            assert [p.path for p in caught.value.problems] == path
            assert not storage.exists(address)


@given(st.text(), st.text())
def test_no_name_escapes_the_root(namespace: str, name: str) -> None:
    storage = FileStorage(Path("/nowhere/at/all"))
    try:
        path = storage.path(Address(namespace, name))
    except Invalid:
        assert name_rule(namespace) or name_rule(name)
        return
    assert os.path.normpath(path) == str(path)
    assert path.parent.parent == storage.root
    assert path.parent.name == namespace != FOLDER and path.name == name
    os.fsencode(path)


def test_parts_are_read_in_order_with_or_without_headers(storage: FileStorage) -> None:
    parts = {f"data_{i}": f"id,x\n{i},1\n" for i in range(12)}
    parts["data_3"] = '3,"a\nb"\n'
    parts["data_4"] = ""
    parts["data_5"] = "id,x\n"
    lay(storage, **parts)
    ids = [row[0] for row in storage.iter_rows(HERE)]
    assert ids == [str(i) for i in range(12) if i not in (4, 5)]
    assert storage.columns(HERE) == ["id", "x"]
    assert storage.metadata(HERE) == {}
    whole = "".join(parts[f"data_{i}"] for i in range(12)).encode()
    assert b"".join(storage.stream(HERE)) == whole
    assert storage.checksum(HERE) == hashlib.sha256(whole).hexdigest()


def test_a_plain_file_is_read_too(storage: FileStorage) -> None:
    (storage.root / "ns").mkdir(parents=True)
    (storage.root / "ns" / "name").write_bytes(b"\xef\xbb\xbfid,x\r\n1,2\r\n")
    assert storage.exists(HERE)
    assert list(storage.iter_rows(HERE)) == [["1", "2"]]
    assert storage.metadata(HERE) == {}
    with storage.open_file(HERE, "data_0") as file:
        assert file.read(2) == b"\xef\xbb"


def test_parts_beside_metadata_that_cannot_be_read_are_no_table(storage: FileStorage) -> None:
    path = lay(
        storage,
        data_0="a\n1\n",
        data_1="a\n2\n",
        metadata="[]",
    )
    assert b"".join(storage.stream(HERE)) == b"a\n1\na\n2\n"
    (path / "metadata").write_text('{"file_type": "csv"}')
    assert b"".join(storage.stream(HERE)) == b"a\n1\n2\n"


def test_whatever_is_broken_is_named(storage: FileStorage) -> None:
    lay(storage)
    data = storage.path(HERE) / "data_0"
    for text in (b"", b"{", b"[" * 200_000, b"\xff"):
        data.write_bytes(text)
        with pytest.raises(Invalid):
            storage.read_json(HERE)
    (storage.path(HERE) / "metadata").write_text("[]")
    for text in (b"", b'a,"b', b'a\n"x"y\n'):
        data.write_bytes(text)
        for read in (storage.iter_rows, storage.metadata):
            with pytest.raises(Invalid):
                list(read(HERE))


def test_what_is_not_a_file_in_place_of_data_is_not_read(
    storage: FileStorage, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text('{"key": 1}')
    linked, piped = Address("ns", "linked"), Address("ns", "piped")
    path = lay(storage, linked)
    (path / "data_0").symlink_to(tmp_path / "secret")
    (path / "metadata").symlink_to(tmp_path / "secret")
    path = lay(storage, piped)
    os.mkfifo(path / "data_0")
    (path / "metadata").mkdir()
    for address in (linked, piped):
        assert not storage.exists(address)
        assert storage.metadata(address) == {}
        with pytest.raises(NotFound):
            storage.read_json(address)
        with pytest.raises(NotFound, match=r"data_0 (cannot be opened|is not a file)") as caught:
            storage.open_file(address, "data_0")
        assert caught.value.reason == "DATA_MISSING"


def test_a_write_is_atomic_and_readable_by_any_user_of_the_folder(
    storage: FileStorage,
) -> None:
    old = os.umask(0o077)
    try:
        put(storage, HERE, data_0="a\n1\n", metadata="{}")
    finally:
        os.umask(old)
    path = storage.path(HERE)
    assert [p.stat().st_mode & 0o777 for p in (path.parent, path, path / "data_0")] == [
        0o700,
        0o755,
        0o644,
    ]
    assert seen(storage) == {"ns/name"}


def test_a_write_over_a_plain_file_is_refused_unless_said(storage: FileStorage) -> None:
    (storage.root / "ns").mkdir(parents=True)
    (storage.root / "ns" / "name").write_text("a\n1\n")
    with pytest.raises(Conflict):
        put(storage, HERE, data_0="a\n2\n")
    assert list(storage.iter_rows(HERE)) == [["1"]]
    put(storage, HERE, overwrite=True, data_0="a\n3\n")
    assert list(storage.iter_rows(HERE)) == [["3"]]
    assert seen(storage) == {"ns/name"}


def test_a_failure_while_replacing_takes_all_back(storage: FileStorage) -> None:
    put(storage, HERE, data_0="a\n1\n")
    with pytest.raises(RuntimeError), storage.staging() as staging:
        (staging.table / "data_0").write_text("a\n2\n")
        with storage.published(staging, HERE, overwrite=True):
            assert list(storage.iter_rows(HERE)) == [["2"]]
            raise RuntimeError
    assert seen(storage) == {"ns/name"} and list(storage.iter_rows(HERE)) == [["1"]]


WRITER = """
    import os, signal, sys
    from pathlib import Path
    from gateway.data import storage as data_storage
    from gateway.domain.run import Address
    from gateway.data.file_storage import FileStorage

    storage, at = FileStorage(Path(sys.argv[1])), sys.argv[2]

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def rename(self, target, _rename=Path.rename):
        if at == "between" and self.name == "new":
            die()
        return _rename(self, target)

    Path.rename = rename
    staging = storage.staging()
    (staging.table / "data_0").write_text("a\\n2\\n")
    if at == "writing":
        die()
    with storage.published(staging, Address("ns", "name"), overwrite=True):
        die()
"""


@pytest.mark.parametrize(("at", "row"), [("writing", "1"), ("between", "2"), ("published", "2")])
def test_a_process_that_dies_leaves_the_old_or_the_new(
    storage: FileStorage,
    at: str,
    row: str,
) -> None:
    put(storage, HERE, data_0="a\n1\n")
    code = textwrap.dedent(WRITER)
    done = subprocess.run(
        [sys.executable, "-c", code, str(storage.root), at], cwd=Path(__file__).parents[2]
    )
    assert done.returncode == -9
    assert seen(storage) != {"ns/name"}
    again = FileStorage(storage.root)
    assert list(again.iter_rows(HERE)) == [[row]]
    assert seen(again) == {"ns/name"}


def test_a_write_under_way_survives_another_start(storage: FileStorage) -> None:
    with storage.staging() as staging:
        (staging.table / "data_0").write_text("a\n1\n")
        FileStorage(storage.root)
        with storage.published(staging, HERE, overwrite=False):
            pass
    assert list(storage.iter_rows(HERE)) == [["1"]]


def test_of_many_writes_at_once_one_wins_and_the_rest_are_told(storage: FileStorage) -> None:
    def write(number: int) -> bool:
        try:
            put(storage, HERE, data_0=f"a\n{number}\n")
        except Conflict:
            return False
        return True

    def replace(number: int) -> None:
        put(
            storage,
            HERE,
            overwrite=True,
            data_0=f"a\n{number}\n",
            data_1=f"a\n{number}\n",
        )

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(write, range(16))) == 1
        list(pool.map(replace, range(16)))
    first, second = storage.iter_rows(HERE)
    assert first == second
    assert seen(storage) == {"ns/name"}


def test_what_another_process_does_between_two_steps_is_met(
    storage: FileStorage,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    put(storage, HERE, data_0="a\n1\n")
    rename, met = Path.rename, []

    def gone(self: Path, target: Path) -> Path:
        if not met:
            met.append(self.name)
            raise FileNotFoundError
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", gone)
    assert storage.delete(HERE) is False
    put(storage, Address("ns", "other"), data_0="a\n1\n")
    assert met == ["deleted"] or met == [HERE.name]
    met.clear()
    put(
        storage, Address("ns", "third"), data_0="a\n1\n"
    )  # the namespace was deleted; it is made again
    assert met == ["new"] and seen(storage) == {"ns/name", "ns/other", "ns/third"}

    monkeypatch.setattr(Path, "rename", raising(PermissionError(errno.EACCES, "not permitted")))
    with pytest.raises(PermissionError):
        put(storage, Address("ns", "fourth"), data_0="a\n1\n")
    monkeypatch.undo()
    clear_leftover(storage.root, "gone")
    assert file_storage._names(tmp_path / "gone") == []


def test_data_deleted_while_it_is_looked_at_is_missing(storage: FileStorage):
    class Vanishing(FileStorage):
        def files(self, address: Address) -> Mapping[str, Stored]:
            found = super().files(address)
            self.delete(address)
            return found

    put(storage, HERE, data_0="a\n1\n")
    with pytest.raises(NotFound) as caught:
        Vanishing(storage.root).sums(HERE)
    assert caught.value.reason == "DATA_MISSING"


def test_a_header_whose_quote_never_closes_is_read_once(storage: FileStorage) -> None:
    part = 'id,"x\n' + "1,\n" * 300_000  # to count its quotes anew at each line would take minutes
    lay(
        storage,
        data_0=part,
        data_1=part,
        metadata='{"file_type": "csv"}',
    )
    assert b"".join(storage.stream(HERE)) == 2 * part.encode()
