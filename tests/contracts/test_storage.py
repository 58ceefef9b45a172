"""What every storage does alike: the node's folder, S3 and HDFS, on real servers."""

import asyncio
import contextlib
import hashlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gateway.data.combined_storage import Storages
from gateway.data.datasets import Datasets
from gateway.data.file_storage import FOLDER, FileStorage, clear_leftover, leftovers
from gateway.data.remote import Remote
from gateway.domain.datasets import MemoryDatasets
from gateway.domain.run import Address
from gateway.errors import Conflict, Invalid, NotFound, StorageAway, StorageFailed, TooLarge
from tests import storages as real
from tests.e2e.nodes import ROOT, free_ports, wait_for
from tools.chaos.proxy import Proxy

KINDS = [
    "file",
    pytest.param("s3", marks=pytest.mark.s3),
    pytest.param("hdfs", marks=pytest.mark.hdfs),
]
ELSEWHERE = KINDS[1:]


def remote_of(place: real.Place) -> Remote:
    """Return the settings of a bucket or folder of the test's own."""
    parts, query = urlsplit(place.url), parse_qs(urlsplit(place.url).query)
    password = query.get("password", [""])[0]
    assert parts.hostname
    assert parts.port
    return Remote(
        "lake",
        parts.scheme,
        parts.hostname,
        parts.port,
        place.name,
        query["username"][0],
        password,
        region="default",
    )


@contextlib.contextmanager
def opened(kind: str, folder: Path) -> Iterator[tuple[Storages, Address]]:
    """Give storages of which the first is of a kind, and an address in it."""
    here = FileStorage(folder / "storage")
    if kind == "file":
        yield Storages(here), Address("ns", "t a%+b")
        return
    with (real.bucket if kind == "s3" else real.folder)() as place:
        yield Storages(here, [remote_of(place)]), Address("ns", "t a%+b", "lake")


@pytest.fixture(params=KINDS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Storages, Address]]:
    with opened(request.param, tmp_path) as given:
        yield given


def put(
    storage: Storages,
    address: Address,
    *,
    overwrite: bool = False,
    **files: str,
) -> None:
    with storage.staging() as staging:
        for name, text in files.items():
            (staging.table / name).write_text(text)
        with storage.published(staging, address, overwrite=overwrite):
            pass


def test_what_is_put_is_read_in_parts_and_as_one_table(site, monkeypatch):
    storage, address = site
    assert not storage.exists(address)
    assert not storage.taken(address)
    assert storage.names("ns", address.storage) == []
    first, second = "id,x\n1,a\n", "id,x\n2,\n"
    put(
        storage,
        address,
        data_0=first,
        data_1=second,
        metadata='{"file_type": "csv", "count": 2}',
    )
    assert storage.exists(address)
    assert storage.taken(address)
    assert "ns" in storage.namespaces()
    assert storage.names("ns", address.storage) == [address.name]
    assert [(part.name, part.size) for part in storage.partitions(address)] == [
        ("data_0", 9),
        ("data_1", 8),
    ]
    assert storage.size(address) == 17 + len('{"file_type": "csv", "count": 2}')
    assert storage.metadata(address)["count"] == 2
    assert storage.columns(address) == ["id", "x"]
    assert list(storage.iter_rows(address)) == [
        ["1", "a"],
        ["2", ""],
    ]
    whole = b"id,x\n1,a\n2,\n"
    assert b"".join(storage.stream(address)) == whole
    assert storage.checksum(address) == hashlib.sha256(whole).hexdigest()
    size, stamp = storage.stamp(address)
    assert size == len(whole)
    assert storage.stamp(address) == (size, stamp)
    for start in range(size):
        assert b"".join(storage.stream(address, start, 3)) == whole[start : start + 3]
    assert [one.name for one in storage.sums(address)] == ["data_0", "data_1", "metadata"]
    assert storage.sums(address)[1].sha256 == hashlib.sha256(second.encode()).hexdigest()
    assert storage.find("ns", address.name) == address
    if address.storage:
        copied, copyfileobj, pieces = (
            replace(address, name="copied"),
            shutil.copyfileobj,
            itertools.count(1),
        )

        def cut(*given: Any) -> None:
            if next(pieces) == 2:
                raise OSError("cut")
            copyfileobj(*given)

        monkeypatch.setattr(shutil, "copyfileobj", cut)
        with pytest.raises(StorageFailed):
            storage.copy(address, copied)
        assert len(storage.files(copied)) < 3
        for _ in range(2):  # the first time a part is there, the second time all
            storage.copy(address, copied)
        assert next(pieces) == 6
        assert storage.names("ns", address.storage) == [
            "copied",
            address.name,
        ]
        assert b"".join(storage.stream(copied)) == whole
        assert storage.delete(copied)
    assert storage.delete(address)
    assert not storage.exists(address)
    assert not storage.delete(address)
    assert storage.names("ns", address.storage) == []
    assert storage.namespaces() <= {FOLDER}


def test_rows_of_parts_without_a_last_line_end_stay_apart(site):
    storage, address = site
    put(
        storage,
        address,
        data_0="id\n1",
        data_1="id\n2",
        data_2="id\n3\n",
        metadata='{"file_type": "csv"}',
    )
    whole = b"id\n1\n2\n3\n"
    assert b"".join(storage.stream(address)) == whole
    assert storage.stamp(address)[0] == len(whole)
    for start in range(len(whole)):
        assert b"".join(storage.stream(address, start, 2)) == whole[start : start + 2]


def test_parts_that_are_no_table_are_one_after_the_other(site):
    storage, address = site
    put(storage, address, data_0="trees\n1\n", data_1="trees\n2\n")
    assert b"".join(storage.stream(address)) == b"trees\n1\ntrees\n2\n"


def test_what_is_missing_broken_or_too_large_is_named(site):
    storage, address = site
    for read in (
        storage.partitions,
        storage.read_json,
        storage.stamp,
        storage.columns,
        storage.sums,
    ):
        with pytest.raises(NotFound) as missing:
            read(address)
        assert missing.value.reason == "DATA_MISSING"
    with pytest.raises(NotFound):
        storage.open_file(address, "data_0")
    assert storage.metadata(address) == {}
    put(
        storage,
        address,
        data_0='{"auc": 0.97}',
        data_2="x",
        metadata="[]",
    )
    with pytest.raises(NotFound, match="data_1"):
        storage.partitions(address)
    with pytest.raises(Invalid):
        storage.metadata(address)
    storage.delete(address)
    put(storage, address, data_0='{"auc": 0.97}')
    assert storage.read_json(address) == {"auc": 0.97}
    with pytest.raises(TooLarge):
        storage.read_json(address, limit=5)
    with pytest.raises(Invalid):
        storage.files(Address("..", "x", address.storage))


def test_tables_of_other_programs_are_found(site):
    storage, address = site
    upload_table = replace(address, namespace="upload")
    job_output = replace(address, namespace="job-1-guest-0")
    imported_model = replace(address, namespace=f"model-{'0' * 32}")
    for table in (address, upload_table, job_output, imported_model):
        put(storage, table, data_0="not a table of ours")
    put(storage, replace(address, name="no-table"), part_0="a\n1\n")
    datasets = Datasets(storage, MemoryDatasets())
    real.upload(datasets, "id\n1\n", replace(address, name="uploaded"))
    unregistered = datasets.find_unregistered()
    assert unregistered.tables == [address, upload_table]
    assert unregistered.notes == []
    assert datasets.find_unregistered("ns").tables == [address]
    assert datasets.find_unregistered("../ns").tables == []


def test_a_cut_search_for_tables_says_so(site):
    storage, address = site
    for name in ("t1", "t2"):
        put(storage, replace(address, name=name), data_0="a\n1\n")
    datasets = Datasets(storage, MemoryDatasets())
    unregistered = datasets.find_unregistered(max_tables=1)
    assert len(unregistered.tables) == 1
    note = f"storage {address.storage or 'file'} may hold more tables than are listed: ask for one namespace"
    assert unregistered.notes == [note]
    assert datasets.find_unregistered(seconds=0.0).tables == []


@pytest.mark.s3
def test_unregistered_tables_are_found_on_every_page_of_s3(tmp_path):
    with real.bucket() as place:
        operator = place.operator.to_async_operator()

        async def write(count: int) -> None:
            writes = (operator.write(f"ns/t{number}/data_0", b"x") for number in range(count))
            await asyncio.gather(*writes)

        asyncio.run(write(1005))
        storage = Storages(FileStorage(tmp_path / "storage"), [remote_of(place)])
        datasets = Datasets(storage, MemoryDatasets())
        all_tables = datasets.find_unregistered(max_tables=2000, seconds=60)
        assert len(all_tables.tables) == 1005
        assert all_tables.notes == []
        assert len(datasets.find_unregistered(seconds=60).tables) == 1000


def test_a_write_over_something_is_refused_unless_said(site):
    storage, address = site
    put(storage, address, data_0="a\n1\n")
    with pytest.raises(Conflict) as taken:
        put(storage, address, data_0="a\n2\n")
    assert taken.value.reason == "DATASET_EXISTS"
    assert list(storage.iter_rows(address)) == [["1"]]
    put(storage, address, overwrite=True, data_0="a\n3\n")
    assert list(storage.iter_rows(address)) == [["3"]]


def test_metadata_is_replaced_and_the_data_stays(site):
    storage, address = site
    with pytest.raises(NotFound):
        storage.write_metadata(address, b"{}")
    assert not storage.taken(address)
    put(storage, address, data_0="a\n1\n", metadata='{"count": 1}')
    storage.write_metadata(address, b'{"count": 1, "description": "one row"}')
    assert storage.metadata(address) == {"count": 1, "description": "one row"}
    assert set(storage.files(address)) == {"data_0", "metadata"}
    assert list(storage.iter_rows(address)) == [["1"]]
    assert leftovers(storage.root) == []


def test_a_failure_while_publishing_leaves_nothing(site):
    storage, address = site
    with storage.staging() as staging, pytest.raises(ZeroDivisionError):
        (staging.table / "data_0").write_text("a\n1\n")
        with storage.published(staging, address, overwrite=False):
            assert storage.exists(address)
            raise ZeroDivisionError
    assert not storage.taken(address)
    assert leftovers(storage.root) == []
    assert "ns" not in storage.namespaces()


SENDER = """
import os, signal, sys
from pathlib import Path
from gateway.data.file_storage import FileStorage
from gateway.data.remote import Remote
from gateway.data.combined_storage import Storages
from gateway.domain.run import Address

remote = eval(sys.argv[2])
storage = Storages(FileStorage(Path(sys.argv[1])), [remote])
staging = storage.staging()
with storage.parts(staging, Address("ns", "t a%+b", "lake")) as parts:
    for number in (0, 1, 0, 1, 0, 0):
        parts.add(number, b"a\\n" + os.urandom(3 << 20).replace(b"\\n", b"") + b"\\n")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_what_a_killed_process_sent_goes_with_its_folder(kind, tmp_path):
    with opened(kind, tmp_path) as (storage, address):
        remote = storage.remotes["lake"].remote
        sent = subprocess.run(
            [sys.executable, "-c", SENDER, str(storage.root), repr(remote)], cwd=ROOT
        )
        assert sent.returncode == -signal.SIGKILL
        assert bool(unfinished(remote)) is (kind == "s3")
        assert (
            Storages(FileStorage(storage.root), [remote]).exists(address) is False
        )  # opening it leaves it alone
        (name,) = leftovers(storage.root)
        clear_leftover(
            storage.root,
            name,
            lambda target: (target == address and storage.delete(target)) or True,
        )
        assert unfinished(remote) == []
        assert not storage.taken(address)
        assert leftovers(storage.root) == []


def unfinished(remote: Remote) -> list[str]:
    """Return the names of which S3 keeps pieces; nothing of HDFS."""
    if remote.kind != "s3":
        return []
    return [
        one["Key"]
        for one in real.client().list_multipart_uploads(Bucket=remote.folder).get("Uploads", [])
    ]


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_parts_are_sent_while_they_are_written_and_seen_at_the_end(kind, tmp_path):
    with opened(kind, tmp_path) as (storage, address):
        remote = storage.remotes["lake"].remote
        written = {
            0: b"",
            1: b"",
            2: b"a\n1\n",
        }
        with storage.staging() as staging, storage.parts(staging, address) as parts:
            parts.add(2, written[2])
            for number in (0, 1, 1, 0, 1, 0, 1):
                data = os.urandom(3 * 2**20)
                written[number] += data
                parts.add(number, data)
            assert not storage.exists(address)
            (staging.table / "metadata").write_text("{}")
            with storage.published(staging, address, overwrite=False):
                assert storage.exists(address)
        assert set(storage.files(address)) == {"data_0", "data_1", "data_2", "metadata"}
        for number, data in written.items():
            with storage.open_file(address, f"data_{number}") as file:
                assert file.read() == data
        with (
            storage.staging() as staging,
            pytest.raises(ZeroDivisionError),
            storage.parts(staging, Address("ns", "u", "lake")) as parts,
        ):
            parts.add(0, bytes(9 * 2**20))
            raise ZeroDivisionError
        assert unfinished(remote) == []
        assert storage.names("ns", "lake") == [address.name]
        assert leftovers(storage.root) == []


def test_a_storage_that_is_not_named_any_more_has_nothing(tmp_path):
    storage, gone = Storages(FileStorage(tmp_path / "storage")), Address("ns", "t", "lake")
    assert not storage.exists(gone)
    with pytest.raises(NotFound) as unknown:
        storage.open_file(gone, "data_0")
    assert unknown.value.reason == "STORAGE_UNKNOWN"


def _wrong_key(one: Remote) -> Remote:
    return Remote(**vars(one) | {"password": "not-the-key"})


def _unknown_key(one: Remote) -> Remote:
    return Remote(**vars(one) | {"username": "nobody"})


def _no_bucket(one: Remote) -> Remote:
    return Remote(**vars(one) | {"folder": "no-such-bucket"})


def _nobody_there(one: Remote) -> Remote:
    return Remote(**vars(one) | {"host": "127.0.0.1", "port": free_ports(1)[0]})


@pytest.mark.s3
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (_wrong_key, "STORAGE_DENIED"),
        (_unknown_key, "STORAGE_DENIED"),
        (_no_bucket, "STORAGE_GONE"),
        (_nobody_there, "STORAGE_UNREACHABLE"),
    ],
)
def test_each_fault_of_s3_has_its_reason_and_shows_no_key(wrong, reason, tmp_path):
    with real.bucket() as place:
        storage = Storages(FileStorage(tmp_path / "storage"), [wrong(remote_of(place))])
        address = Address("ns", "t", "lake")
        for act in (
            lambda: put(storage, address, data_0="a\n1\n"),
            lambda: storage.open_file(address, "data_0"),
            lambda: storage.exists(address),
        ):
            with pytest.raises(StorageFailed) as failed:
                act()
            assert failed.value.reason == reason
            assert "storage lake (s3)" in failed.value.message
            assert isinstance(failed.value, StorageAway) is (reason == "STORAGE_UNREACHABLE")
            assert os.environ["BFIA_TEST_S3_SECRET"] not in failed.value.message
        assert leftovers(storage.root) == []


def test_a_namenode_that_is_not_there_is_noticed_at_once(tmp_path):
    nobody = Remote("lake", "hdfs", "127.0.0.1", free_ports(1)[0], "/joint")
    storage = Storages(FileStorage(tmp_path / "storage"), [nobody])
    for _ in range(20):  # its client alone would take 20 s each time
        with pytest.raises(StorageAway, match="cannot be reached"):
            storage.exists(Address("ns", "t", "lake"))


def fails(act: Callable[[], Any], reason: str) -> bool:
    with pytest.raises(StorageFailed) as failed:
        act()
    return failed.value.reason == reason


def has_rows(storage: Storages, address: Address, rows: list[list[str]]) -> bool:
    """Return whether the table can be read and has these rows."""
    try:
        return list(storage.iter_rows(address)) == rows
    except StorageFailed:
        return False


@pytest.mark.s3
def test_a_storage_that_is_cut_off_or_hangs_keeps_its_data_and_returns(tmp_path, monkeypatch):
    for module in ("remote", "remote_storage"):
        monkeypatch.setattr(f"gateway.data.{module}.TIMEOUT", 1.0)
        monkeypatch.setattr(f"gateway.data.{module}.RETRIES", 1)
    with real.bucket() as place:
        direct = remote_of(place)
        with Proxy(direct.host, direct.port) as between:
            through = Remote(**vars(direct) | {"host": "127.0.0.1", "port": between.port})
            storage, address = (
                Storages(FileStorage(tmp_path / "storage"), [through]),
                Address("ns", "t", "lake"),
            )
            put(storage, address, data_0="a\n1\n")
            for fault, reason in (("cut", "STORAGE_UNREACHABLE"), ("blackhole", "STORAGE_SLOW")):
                between.turn(fault)
                for act in (
                    lambda: storage.exists(address),
                    lambda: storage.checksum(address),
                    storage.check,
                ):
                    wait_for(
                        partial(fails, act, reason)
                    )  # while the machine stands still, what is cut is slow
                between.turn("")
                # the server may need a moment after its connections were cut
                wait_for(partial(has_rows, storage, address, [["1"]]))
            new = Address("ns", "u", "lake")
            between.turn("slow")
            for act in (
                storage.remotes["lake"].check,
                lambda: put(storage, new, data_0="1\n" * 50_000),
            ):
                with pytest.raises(StorageAway, match="took longer than 1 s") as failed:
                    act()
                assert failed.value.reason == "STORAGE_SLOW"
            between.turn("")
            assert not storage.taken(new)
            with storage.staging() as staging, pytest.raises(StorageFailed):
                (staging.table / "data_0").write_text("a\n2\n")
                with storage.published(staging, new, overwrite=False):
                    between.turn("cut")
                    raise StorageFailed("the database is away")
            (name,) = leftovers(storage.root)
            with pytest.raises(StorageFailed):  # as when `gc` comes while the storage is still away
                clear_leftover(
                    storage.root, name, lambda target: target == new and storage.delete(target)
                )
            between.turn("")
            (name,) = leftovers(storage.root)
            clear_leftover(
                storage.root, name, lambda target: target == new and storage.delete(target)
            )
            assert storage.names("ns", "lake") == ["t"]
            assert leftovers(storage.root) == []


@pytest.mark.s3
def test_reading_goes_on_where_the_storage_broke_off(tmp_path):
    data = os.urandom(3 * 2**20)
    with real.bucket() as place:
        direct = remote_of(place)
        with Proxy(direct.host, direct.port) as between:
            through = Remote(**vars(direct) | {"host": "127.0.0.1", "port": between.port})
            storage, address = (
                Storages(FileStorage(tmp_path / "storage"), [through]),
                Address("ns", "t", "lake"),
            )
            place.operator.write("ns/t/data_0", data)
            size, _ = storage.stamp(address)
            between.turn("half-close", 0.5, seed=1)  # the first request, and not the second
            assert b"".join(storage.stream(address, 10, size)) == data[10:]
            assert between.struck >= 1
            between.turn("")
            with storage.open_file(address, "data_0") as file:
                assert file.seek(-5, os.SEEK_END) == len(data) - 5
                assert file.read() == data[-5:]
                assert file.seek(7) == 7
                assert file.read(2**20) == data[7 : 7 + 2**20]
                assert file.seek(len(data) + 9)
                assert file.read(1) == b""


@pytest.mark.s3
def test_a_full_quota_has_its_reason_and_leaves_nothing(tmp_path):
    with real.bucket() as place:
        script = ["bash", str(ROOT / ".ci" / "s3.sh"), "quota", place.name, "4096"]
        subprocess.run(script, check=True, capture_output=True)
        storage, address = (
            Storages(FileStorage(tmp_path / "storage"), [remote_of(place)]),
            Address("ns", "t", "lake"),
        )
        with pytest.raises(StorageFailed) as full:
            put(storage, address, data_0="a\n" + "1\n" * 9000, data_1="a\n1\n")
        assert full.value.reason == "STORAGE_FULL"
        assert not storage.taken(address)
        with (
            storage.staging() as staging,
            pytest.raises(StorageFailed),
            storage.parts(staging, address) as parts,
        ):
            for _ in range(8):
                parts.add(0, bytes(2**20 * 3))
            parts.finish()
        assert unfinished(storage.remotes["lake"].remote) == []
        assert not storage.taken(address)
        put(storage, address, data_0="a\n1\n")


STRANGER = """
import sys
from pathlib import Path
from gateway.data.file_storage import FileStorage
from gateway.data.remote import Remote
from gateway.data.combined_storage import Storages
from gateway.domain.run import Address
from gateway.errors import StorageFailed
from tests.contracts.test_storage import put

storage = Storages(FileStorage(Path(sys.argv[1])), [eval(sys.argv[2])])
try:
    put(storage, Address("ns", "t", "lake"), data_0="a\\n1\\n")
except StorageFailed as error:
    print(error.reason, error.message, sep=": ")
"""


@pytest.mark.hdfs
def test_each_fault_of_hdfs_has_its_reason(tmp_path):
    with real.folder() as place:
        remote = remote_of(place)
        stranger = Remote(
            **vars(remote) | {"username": "stranger"}
        )  # a process has one user of HDFS
        run = [sys.executable, "-c", STRANGER, str(tmp_path / "theirs"), repr(stranger)]
        said = subprocess.run(
            run,
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        assert said == "STORAGE_DENIED: storage lake (hdfs) denies access\n"
        script = ["bash", str(ROOT / ".ci" / "hdfs.sh"), "quota", place.name, "4096"]
        subprocess.run(script, check=True, capture_output=True)
        storage, address = (
            Storages(FileStorage(tmp_path / "storage"), [remote]),
            Address("ns", "t", "lake"),
        )
        with pytest.raises(StorageFailed) as full:
            put(storage, address, data_0="a\n1\n")
        assert full.value.reason == "STORAGE_FULL"
        assert "storage lake (hdfs) is full" in full.value.message
        assert not storage.taken(address)
        assert leftovers(storage.root) == []
