"""The common behaviour of all storages: the node's folder, S3 and HDFS, on real servers."""

import asyncio
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
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
from tests import storages as servers
from tests.e2e.nodes import ROOT, free_ports, wait_for
from tools.chaos.proxy import Proxy

S3 = pytest.param(
    "s3",
    marks=pytest.mark.s3,
)
HDFS = pytest.param(
    "hdfs",
    marks=pytest.mark.hdfs,
)
KINDS = ["file", S3, HDFS]
MIB = 1 << 20
# A name that has to be escaped in URLs.
TABLE_NAME = "t a%+b"
REMOTE_TABLE = Address("ns", "t", "lake")
ONE_ROW = "a\n1\n"


def remote_of(place: servers.Place) -> Remote:
    """Return the settings of a test's bucket or folder, as the storage ``lake``."""
    url = urlsplit(place.url)
    query = parse_qs(url.query)
    assert url.hostname
    assert url.port
    return Remote(
        "lake",
        url.scheme,
        url.hostname,
        url.port,
        place.name,
        query["username"][0],
        query.get("password", [""])[0],
        region="default",
    )


def open_storages(folder: Path, *remotes: Remote) -> Storages:
    """Return storages with their local files below a folder."""
    return Storages(FileStorage(folder / "storage"), list(remotes))


@contextlib.contextmanager
def opened(
    kind: str,
    folder: Path,
) -> Iterator[tuple[Storages, Address]]:
    """Yield storages, and the address of a table in the one of this kind."""
    if kind == "file":
        yield open_storages(folder), Address("ns", TABLE_NAME)
        return
    place_for_test = servers.bucket if kind == "s3" else servers.folder
    with place_for_test() as place:
        yield (
            open_storages(folder, remote_of(place)),
            Address(
                "ns",
                TABLE_NAME,
                "lake",
            ),
        )


@pytest.fixture(params=KINDS)
def site(
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> Iterator[tuple[Storages, Address]]:
    """Storages, and the address of a table in the folder, in S3 or in HDFS."""
    with opened(request.param, tmp_path) as storages_and_address:
        yield storages_and_address


@pytest.fixture(params=[S3, HDFS])
def remote_site(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Storages, Address]]:
    """Storages, and the address of a table in S3 or in HDFS."""
    with opened(request.param, tmp_path) as storages_and_address:
        yield storages_and_address


def put(
    storage: Storages,
    address: Address,
    *,
    overwrite: bool = False,
    **files: str,
) -> None:
    """Write a table; ``files`` are its parts and its metadata, by file name."""
    with storage.staging() as staging:
        for name, text in files.items():
            (staging.table / name).write_text(text)
        with storage.published(staging, address, overwrite=overwrite):
            pass


def content(
    storage: Storages,
    address: Address,
    *byte_range: int,
) -> bytes:
    """Return a table as one file; ``byte_range`` is a start and a length."""
    return b"".join(storage.stream(address, *byte_range))


FIRST_PART = "id,x\n1,a\n"
SECOND_PART = "id,x\n2,\n"
METADATA = '{"file_type": "csv", "count": 2}'
WHOLE_TABLE = b"id,x\n1,a\n2,\n"


def put_two_parts(storage: Storages, address: Address) -> None:
    """Write a table of two parts with metadata."""
    put(
        storage,
        address,
        data_0=FIRST_PART,
        data_1=SECOND_PART,
        metadata=METADATA,
    )


def test_a_table_exists_from_its_write_to_its_deletion(site):
    storage, address = site
    assert not storage.exists(address)
    assert not storage.taken(address)
    names = storage.names("ns", address.storage)
    assert names == []

    put_two_parts(storage, address)
    assert storage.exists(address)
    assert storage.taken(address)
    assert "ns" in storage.namespaces()
    names = storage.names("ns", address.storage)
    assert names == [address.name]
    assert storage.find("ns", address.name) == address

    assert storage.delete(address)
    assert not storage.exists(address)
    assert not storage.delete(address)
    names = storage.names("ns", address.storage)
    assert names == []
    assert storage.namespaces() <= {FOLDER}


def test_a_table_is_described_by_its_parts_and_metadata(site):
    storage, address = site

    put_two_parts(storage, address)

    first, second = storage.partitions(address)
    assert (first.name, first.size) == ("data_0", 9)
    assert (second.name, second.size) == ("data_1", 8)
    assert storage.size(address) == 17 + len(METADATA)
    assert storage.metadata(address)["count"] == 2
    assert storage.columns(address) == ["id", "x"]
    first_sum, second_sum, metadata_sum = storage.sums(address)
    assert first_sum.name == "data_0"
    assert second_sum.name == "data_1"
    assert metadata_sum.name == "metadata"
    assert second_sum.sha256 == hashlib.sha256(SECOND_PART.encode()).hexdigest()


def test_a_table_of_parts_is_read_as_one_table(site):
    storage, address = site

    put_two_parts(storage, address)

    rows = list(storage.iter_rows(address))
    assert rows == [
        ["1", "a"],
        ["2", ""],
    ]
    assert content(storage, address) == WHOLE_TABLE
    assert storage.checksum(address) == hashlib.sha256(WHOLE_TABLE).hexdigest()
    size, stamp = storage.stamp(address)
    assert size == len(WHOLE_TABLE)
    assert storage.stamp(address) == (size, stamp)
    for start in range(size):
        assert content(storage, address, start, 3) == WHOLE_TABLE[start : start + 3]


def test_a_copy_that_broke_off_can_be_repeated(remote_site, monkeypatch):
    storage, address = remote_site
    put_two_parts(storage, address)
    copy = replace(address, name="copied")
    copy_file = shutil.copyfileobj
    copied_files: list[str] = []

    def fail_at_second_file(*args: Any) -> None:
        copied_files.append("file")
        if len(copied_files) == 2:
            raise OSError("cut")
        copy_file(*args)

    monkeypatch.setattr(shutil, "copyfileobj", fail_at_second_file)
    with pytest.raises(StorageFailed):
        storage.copy(address, copy)
    assert len(storage.files(copy)) < 3

    # One part exists at the first repetition, all exist at the second.
    for _ in range(2):
        storage.copy(address, copy)

    assert len(copied_files) == 5
    names = storage.names("ns", address.storage)
    assert names == ["copied", address.name]
    assert content(storage, copy) == WHOLE_TABLE
    assert storage.delete(copy)


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

    table = b"id\n1\n2\n3\n"
    assert content(storage, address) == table
    size, _ = storage.stamp(address)
    assert size == len(table)
    for start in range(len(table)):
        assert content(storage, address, start, 2) == table[start : start + 2]


def test_parts_of_another_kind_than_a_table_are_joined_unchanged(site):
    storage, address = site

    put(
        storage,
        address,
        data_0="trees\n1\n",
        data_1="trees\n2\n",
    )

    assert content(storage, address) == b"trees\n1\ntrees\n2\n"


@pytest.mark.parametrize(
    "method",
    ["partitions", "read_json", "stamp", "columns", "sums"],
)
def test_reading_a_missing_table_is_refused(site, method):
    storage, address = site

    with pytest.raises(NotFound) as missing:
        getattr(storage, method)(address)

    assert missing.value.reason == "DATA_MISSING"


def test_a_missing_table_has_no_files_and_no_metadata(site):
    storage, address = site

    with pytest.raises(NotFound):
        storage.open_file(address, "data_0")

    assert storage.metadata(address) == {}


def test_a_missing_part_and_malformed_metadata_are_errors(site):
    storage, address = site
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


def test_a_json_value_is_read_up_to_a_limit(site):
    storage, address = site
    put(storage, address, data_0='{"auc": 0.97}')

    assert storage.read_json(address) == {"auc": 0.97}
    with pytest.raises(TooLarge):
        storage.read_json(address, limit=5)


def test_an_address_outside_of_the_storage_is_refused(site):
    storage, address = site

    with pytest.raises(Invalid):
        storage.files(Address("..", "x", address.storage))


def test_tables_of_other_programs_are_found(site):
    storage, address = site
    upload_table = replace(address, namespace="upload")
    job_output = replace(address, namespace="job-1-guest-0")
    imported_model = replace(address, namespace=f"model-{'0' * 32}")
    for table in (address, upload_table, job_output, imported_model):
        put(storage, table, data_0="not a table of ours")
    put(
        storage,
        replace(address, name="no-table"),
        part_0="a\n1\n",
    )
    datasets = Datasets(storage, MemoryDatasets())
    servers.upload(
        datasets,
        "id\n1\n",
        replace(address, name="uploaded"),
    )

    unregistered = datasets.find_unregistered()

    assert unregistered.tables == [address, upload_table]
    assert unregistered.notes == []
    assert datasets.find_unregistered("ns").tables == [address]
    assert datasets.find_unregistered("../ns").tables == []


def test_a_cut_search_for_tables_says_so(site):
    storage, address = site
    for name in ("t1", "t2"):
        put(
            storage,
            replace(address, name=name),
            data_0=ONE_ROW,
        )
    datasets = Datasets(storage, MemoryDatasets())

    unregistered = datasets.find_unregistered(max_tables=1)

    assert len(unregistered.tables) == 1
    assert unregistered.notes == [
        f"storage {address.storage or 'file'} may hold more tables than are listed: "
        "ask for one namespace"
    ]
    assert datasets.find_unregistered(seconds=0.0).tables == []


@pytest.mark.s3
def test_unregistered_tables_are_found_on_every_page_of_s3(tmp_path):
    with servers.bucket() as place:
        operator = place.operator.to_async_operator()

        async def write_tables(count: int) -> None:
            # every write at the same time would keep a socket open to the end of the process
            slots = asyncio.Semaphore(16)

            async def write(number: int) -> None:
                async with slots:
                    await operator.write(f"ns/t{number}/data_0", b"x")

            await asyncio.gather(*map(write, range(count)))

        asyncio.run(write_tables(1005))
        datasets = Datasets(
            open_storages(tmp_path, remote_of(place)),
            MemoryDatasets(),
        )

        all_tables = datasets.find_unregistered(
            max_tables=2000,
            seconds=60,
        )
        default_tables = datasets.find_unregistered(seconds=60)

    assert len(all_tables.tables) == 1005
    assert all_tables.notes == []
    assert len(default_tables.tables) == 1000


def test_an_existing_table_is_only_overwritten_on_request(site):
    storage, address = site
    put(storage, address, data_0="a\n1\n")

    with pytest.raises(Conflict) as conflict:
        put(storage, address, data_0="a\n2\n")
    assert conflict.value.reason == "DATASET_EXISTS"
    rows = list(storage.iter_rows(address))
    assert rows == [["1"]]

    put(
        storage,
        address,
        overwrite=True,
        data_0="a\n3\n",
    )
    rows = list(storage.iter_rows(address))
    assert rows == [["3"]]


def test_metadata_is_replaced_and_the_data_stays(site):
    storage, address = site
    put(
        storage,
        address,
        data_0=ONE_ROW,
        metadata='{"count": 1}',
    )

    storage.write_metadata(address, b'{"count": 1, "description": "one row"}')

    assert storage.metadata(address) == {
        "count": 1,
        "description": "one row",
    }
    assert set(storage.files(address)) == {"data_0", "metadata"}
    rows = list(storage.iter_rows(address))
    assert rows == [["1"]]
    assert leftovers(storage.root) == []


def test_metadata_of_a_missing_table_is_refused(site):
    storage, address = site

    with pytest.raises(NotFound):
        storage.write_metadata(address, b"{}")

    assert not storage.taken(address)


def test_a_failure_while_publishing_leaves_nothing(site):
    storage, address = site

    with storage.staging() as staging, pytest.raises(ZeroDivisionError):
        (staging.table / "data_0").write_text(ONE_ROW)
        with storage.published(staging, address, overwrite=False):
            assert storage.exists(address)
            raise ZeroDivisionError

    assert not storage.taken(address)
    assert leftovers(storage.root) == []
    assert "ns" not in storage.namespaces()


# Writes parts of a table and kills itself. Arguments: the local storage, the remote one.
KILLED_WRITER = """
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


def clear(storage: Storages, address: Address) -> None:
    """Clear the only leftover of a write to a table, as ``gc`` does."""
    (name,) = leftovers(storage.root)

    def delete(target: Address) -> bool:
        if target != address:
            return False
        storage.delete(target)
        return True

    clear_leftover(storage.root, name, delete)


def unfinished_uploads(remote: Remote) -> list[str]:
    """Return the names of S3's unfinished uploads; [] for HDFS, which has none."""
    if remote.kind != "s3":
        return []
    response = servers.client().list_multipart_uploads(Bucket=remote.folder)
    return [upload["Key"] for upload in response.get("Uploads", [])]


def test_what_a_killed_process_sent_goes_with_its_folder(remote_site):
    storage, address = remote_site
    remote = storage.remotes["lake"].remote
    command = [sys.executable, "-c", KILLED_WRITER, str(storage.root), repr(remote)]

    writer = subprocess.run(
        command,
        cwd=ROOT,
    )

    assert writer.returncode == -signal.SIGKILL
    assert bool(unfinished_uploads(remote)) is (remote.kind == "s3")
    # A new process that opens the storage leaves the data of others alone.
    reopened = Storages(FileStorage(storage.root), [remote])
    assert reopened.exists(address) is False
    clear(storage, address)
    assert unfinished_uploads(remote) == []
    assert not storage.taken(address)
    assert leftovers(storage.root) == []


def test_parts_are_sent_while_they_are_written_and_seen_at_the_end(remote_site):
    storage, address = remote_site
    written = {
        0: b"",
        1: b"",
        2: b"a\n1\n",
    }

    with storage.staging() as staging, storage.parts(staging, address) as parts:
        parts.add(2, written[2])
        for number in (0, 1, 1, 0, 1, 0, 1):
            data = os.urandom(3 * MIB)
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


def test_parts_of_a_failed_write_are_removed(remote_site):
    storage, _ = remote_site

    with (
        storage.staging() as staging,
        pytest.raises(ZeroDivisionError),
        storage.parts(staging, REMOTE_TABLE) as parts,
    ):
        parts.add(0, bytes(9 * MIB))
        raise ZeroDivisionError

    assert unfinished_uploads(storage.remotes["lake"].remote) == []
    names = storage.names("ns", "lake")
    assert names == []
    assert leftovers(storage.root) == []


def test_a_storage_that_is_no_longer_in_the_settings_has_no_tables(tmp_path):
    storage = open_storages(tmp_path)

    assert not storage.exists(REMOTE_TABLE)
    with pytest.raises(NotFound) as unknown:
        storage.open_file(REMOTE_TABLE, "data_0")
    assert unknown.value.reason == "STORAGE_UNKNOWN"


# ---------------------------------------------------------------- faults of the servers


def changed(remote: Remote, **fields: Any) -> Remote:
    """Return the settings with some fields changed."""
    return Remote(**vars(remote) | fields)


@pytest.mark.s3
@pytest.mark.parametrize(
    ("wrong_settings", "reason"),
    [
        ({"password": "not-the-key"}, "STORAGE_DENIED"),
        ({"username": "nobody"}, "STORAGE_DENIED"),
        ({"folder": "no-such-bucket"}, "STORAGE_GONE"),
        (
            {
                "host": "127.0.0.1",
                "port": free_ports(1)[0],
            },
            "STORAGE_UNREACHABLE",
        ),
    ],
    ids=["wrong key", "unknown user", "no bucket", "no server"],
)
def test_each_fault_of_s3_has_its_reason_and_shows_no_key(wrong_settings, reason, tmp_path):
    with servers.bucket() as place:
        storage = open_storages(tmp_path, changed(remote_of(place), **wrong_settings))
        for access in (
            lambda: put(storage, REMOTE_TABLE, data_0=ONE_ROW),
            lambda: storage.open_file(REMOTE_TABLE, "data_0"),
            lambda: storage.exists(REMOTE_TABLE),
        ):
            with pytest.raises(StorageFailed) as failed:
                access()

            assert failed.value.reason == reason
            assert "storage lake (s3)" in failed.value.message
            assert isinstance(failed.value, StorageAway) is (reason == "STORAGE_UNREACHABLE")
            assert os.environ["BFIA_TEST_S3_SECRET"] not in failed.value.message
        assert leftovers(storage.root) == []


def test_a_namenode_that_is_down_is_noticed_quickly(tmp_path):
    """The client of HDFS alone would take 20 s for each access."""
    down = Remote(
        "lake",
        "hdfs",
        "127.0.0.1",
        free_ports(1)[0],
        "/joint",
    )
    storage = open_storages(tmp_path, down)

    for _ in range(20):
        with pytest.raises(StorageAway, match="cannot be reached"):
            storage.exists(REMOTE_TABLE)


@pytest.fixture
def short_timeouts(monkeypatch):
    """A remote storage counts as slow after 1 s, and a failed request is repeated once."""
    for module in ("remote", "remote_storage"):
        monkeypatch.setattr(f"gateway.data.{module}.TIMEOUT", 1.0)
        monkeypatch.setattr(f"gateway.data.{module}.RETRIES", 1)


@pytest.fixture
def proxied(tmp_path) -> Iterator[tuple[Storages, Proxy, servers.Place]]:
    """Storages whose S3 is reached through a proxy that can break the connections."""
    with servers.bucket() as place:
        direct = remote_of(place)
        with Proxy(direct.host, direct.port) as proxy:
            through_proxy = changed(
                direct,
                host="127.0.0.1",
                port=proxy.port,
            )
            yield open_storages(tmp_path, through_proxy), proxy, place


def wait_for_failure(
    access: Callable[[], Any],
    reason: str,
) -> None:
    """Wait until an access fails for this reason.

    A busy machine may make a connection that was cut look slow at first.
    """

    def fails() -> bool:
        with pytest.raises(StorageFailed) as failed:
            access()
        return failed.value.reason == reason

    wait_for(fails)


def wait_for_rows(
    storage: Storages,
    rows: list[list[str]],
) -> None:
    """Wait until the remote table can be read and has these rows."""

    def has_rows() -> bool:
        try:
            return list(storage.iter_rows(REMOTE_TABLE)) == rows
        except StorageFailed:
            return False

    wait_for(has_rows)


@pytest.mark.s3
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("cut", "STORAGE_UNREACHABLE"),
        ("blackhole", "STORAGE_SLOW"),
    ],
)
def test_a_storage_that_is_cut_off_or_hangs_keeps_its_data(proxied, short_timeouts, fault, reason):
    storage, proxy, _ = proxied
    put(storage, REMOTE_TABLE, data_0=ONE_ROW)

    proxy.turn(fault)
    for access in (
        lambda: storage.exists(REMOTE_TABLE),
        lambda: storage.checksum(REMOTE_TABLE),
        storage.check,
    ):
        wait_for_failure(access, reason)

    proxy.turn("")
    # The server may need a moment after its connections were cut.
    wait_for_rows(storage, [["1"]])


@pytest.mark.s3
def test_a_slow_storage_fails_after_the_timeout_and_stores_nothing(proxied, short_timeouts):
    storage, proxy, _ = proxied
    put(
        storage,
        Address("ns", "warm-up", "lake"),
        data_0=ONE_ROW,
    )

    proxy.turn("slow")
    for access in (
        storage.remotes["lake"].check,
        lambda: put(storage, REMOTE_TABLE, data_0="1\n" * 50_000),
    ):
        with pytest.raises(StorageAway, match="took longer than 1 s") as failed:
            access()
        assert failed.value.reason == "STORAGE_SLOW"

    proxy.turn("")
    assert not storage.taken(REMOTE_TABLE)


@pytest.mark.s3
def test_a_table_that_could_not_be_removed_is_cleared_later(proxied, short_timeouts):
    storage, proxy, _ = proxied
    put(
        storage,
        Address("ns", "t0", "lake"),
        data_0=ONE_ROW,
    )

    with storage.staging() as staging, pytest.raises(StorageFailed):
        (staging.table / "data_0").write_text("a\n2\n")
        with storage.published(staging, REMOTE_TABLE, overwrite=False):
            proxy.turn("cut")
            raise StorageFailed("the database is away")

    # The storage is still unreachable.
    with pytest.raises(StorageFailed):
        clear(storage, REMOTE_TABLE)
    proxy.turn("")
    clear(storage, REMOTE_TABLE)
    names = storage.names("ns", "lake")
    assert names == ["t0"]
    assert leftovers(storage.root) == []


@pytest.mark.s3
def test_reading_continues_where_the_connection_broke(proxied):
    storage, proxy, place = proxied
    data = os.urandom(3 * MIB)
    place.operator.write("ns/t/data_0", data)
    size, _ = storage.stamp(REMOTE_TABLE)

    # With this seed the proxy breaks the first connection and not the second.
    proxy.turn(
        "half-close",
        0.5,
        seed=1,
    )

    assert content(storage, REMOTE_TABLE, 10, size) == data[10:]
    assert proxy.struck >= 1


@pytest.mark.s3
def test_a_file_in_s3_can_be_read_at_any_position(tmp_path):
    data = os.urandom(3 * MIB)
    with servers.bucket() as place:
        storage = open_storages(tmp_path, remote_of(place))
        place.operator.write("ns/t/data_0", data)

        with storage.open_file(REMOTE_TABLE, "data_0") as file:
            assert file.seek(-5, os.SEEK_END) == len(data) - 5
            assert file.read() == data[-5:]
            assert file.seek(7) == 7
            assert file.read(MIB) == data[7 : 7 + MIB]
            assert file.seek(len(data) + 9)
            assert file.read(1) == b""


def limit_quota(
    script: str,
    place: servers.Place,
) -> None:
    """Limit a place to 4096 bytes by a script of the test servers."""
    command = ["bash", str(ROOT / ".ci" / script), "quota", place.name, "4096"]
    subprocess.run(
        command,
        check=True,
        capture_output=True,
    )


@pytest.mark.s3
def test_a_full_quota_has_its_reason_and_leaves_nothing(tmp_path):
    with servers.bucket() as place:
        limit_quota("s3.sh", place)
        storage = open_storages(tmp_path, remote_of(place))

        with pytest.raises(StorageFailed) as full:
            put(storage, REMOTE_TABLE, data_0="a\n" + "1\n" * 9000, data_1=ONE_ROW)
        assert full.value.reason == "STORAGE_FULL"
        assert not storage.taken(REMOTE_TABLE)

        with (
            storage.staging() as staging,
            pytest.raises(StorageFailed),
            storage.parts(staging, REMOTE_TABLE) as parts,
        ):
            for _ in range(8):
                parts.add(0, bytes(3 * MIB))
            parts.finish()
        assert unfinished_uploads(storage.remotes["lake"].remote) == []
        assert not storage.taken(REMOTE_TABLE)

        put(storage, REMOTE_TABLE, data_0=ONE_ROW)


# Prints why it cannot write a table. Arguments: the local storage, the remote one.
DENIED_WRITER = """
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
def test_hdfs_denies_access_to_another_user(tmp_path):
    """A process has only one user of HDFS, so another process is the stranger."""
    with servers.folder() as place:
        stranger = changed(
            remote_of(place),
            username="stranger",
        )
        command = [sys.executable, "-c", DENIED_WRITER, str(tmp_path), repr(stranger)]

        writer = subprocess.run(
            command,
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )

    assert writer.stdout == "STORAGE_DENIED: storage lake (hdfs) denies access\n"


@pytest.mark.hdfs
def test_a_full_quota_of_hdfs_has_its_reason_and_leaves_nothing(tmp_path):
    with servers.folder() as place:
        limit_quota("hdfs.sh", place)
        storage = open_storages(tmp_path, remote_of(place))

        with pytest.raises(StorageFailed) as full:
            put(storage, REMOTE_TABLE, data_0=ONE_ROW)

        assert full.value.reason == "STORAGE_FULL"
        assert "storage lake (hdfs) is full" in full.value.message
        assert not storage.taken(REMOTE_TABLE)
        assert leftovers(storage.root) == []
