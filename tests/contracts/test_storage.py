"""The common behaviour of all storages: the node's folder, S3 and HDFS, on real servers."""

import asyncio
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.data.combined_storage import Storages
from gateway.data.datasets import Datasets
from gateway.data.file_storage import STAGING_FOLDER, FileStorage, leftovers
from gateway.domain.datasets import MemoryDatasets
from gateway.domain.run import Address
from gateway.errors import Conflict, Invalid, NotFound, StorageFailed, TooLarge
from tests import storages as servers
from tests.contracts.storage_sites import (
    HDFS,
    KINDS,
    MIB,
    ONE_ROW,
    REMOTE_TABLE,
    S3,
    clear,
    content,
    open_storages,
    opened,
    put,
    remote_of,
    unfinished_uploads,
)
from tests.e2e.nodes import ROOT


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


def test_single_entries_of_an_address_are_listed_and_deleted(site):
    storage, address = site
    assert storage.entries(address) == []
    put_two_parts(storage, address)

    storage.delete_entry(address, "data_1")
    storage.delete_entry(address, "never-there")

    assert storage.entries(address) == ["data_0", "metadata"]


def test_a_folder_in_an_address_is_deleted_with_its_content(site):
    storage, address = site
    parent = f"{address.namespace}/{address.name}"
    folder = Address(parent, "step-1", address.storage, in_place="folder")
    if not address.storage:
        storage.path(address).mkdir(parents=True)
    put(storage, folder, data_0=FIRST_PART)
    assert storage.entries(address) == ["step-1"]

    storage.delete_entry(address, "step-1")

    assert storage.entries(address) == []
    assert not storage.taken(folder)


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
    assert storage.namespaces() <= {STAGING_FOLDER}


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
