"""Storages whose server refuses, hangs, is away or is full."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.data.combined_storage import Storages
from gateway.data.file_storage import leftovers
from gateway.data.remote import Remote
from gateway.domain.run import Address
from gateway.errors import StorageAway, StorageFailed
from tests import storages as servers
from tests.contracts.storage_sites import (
    MIB,
    ONE_ROW,
    REMOTE_TABLE,
    clear,
    content,
    open_storages,
    put,
    remote_of,
    unfinished_uploads,
)
from tests.e2e.nodes import ROOT, free_ports, wait_for
from tools.chaos.proxy import Proxy

# A table that is registered as a single file of the storage.
FILE_IN_PLACE = Address("warehouse", "t.csv", "lake", in_place="file")


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
            lambda: storage.exists(FILE_IN_PLACE),
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
    proxy.turn("half-close", 0.5, seed=1)

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
from tests.contracts.storage_sites import put

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
