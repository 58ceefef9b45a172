"""The storages of a node: which one serves a component or a run, and how uploads replace tables."""

import contextlib
import errno
import io
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import urlsplit

import opendal
import pytest
from botocore.exceptions import EndpointConnectionError

from gateway.data import remote_storage
from gateway.data.datasets import Datasets
from gateway.data.remote import PATH, Remote
from gateway.data.remote_parts import RemoteParts
from gateway.data.remote_storage import RemoteStorage
from gateway.data.s3_reader import ObjectReader
from gateway.data.upload import Upload
from gateway.domain.datasets import MemoryDatasets
from gateway.domain.run import Address, RunData
from gateway.errors import Conflict, GatewayError, NotFound, StorageAway, StorageFailed
from gateway.store.database import Database, open_database
from gateway.store.repositories import SqlDatasets
from tests.adapter.bfia.scripted import raw, scripted, text
from tests.builders import a_run, raising, returning
from tests.contracts.storage_sites import remote_of
from tests.data.sites import CLUSTER, LAKE, storages_at
from tests.forks import ROOT
from tests.storages import bucket, upload

LAKE_IS_AWAY = StorageAway("storage lake cannot be reached")

# ------------------------------------------------------------ the choice of a storage


@pytest.mark.parametrize(
    ("listed", "remotes", "stand_in", "serving"),
    [
        (["s3", "hdfs"], [], True, [""]),
        (["s3", "hdfs"], [], False, []),
        (["S3"], [CLUSTER, LAKE], False, ["lake"]),
        (
            ["s3", "hdfs"],
            [CLUSTER, LAKE],
            True,
            ["cluster", "lake", ""],
        ),
        (["file"], [LAKE], False, [""]),
        ([], [LAKE], False, ["lake", ""]),
    ],
)
def test_the_first_storage_that_a_component_lists_serves_it(
    tmp_path, listed, remotes, stand_in, serving
):
    storages = storages_at(tmp_path, *remotes, stand_in=stand_in)

    assert storages.serving(listed) == serving


# Storages, where runs that have to prove their TEE may have their data -> whether they may.
LIMITED = {
    "the folder": ("", True),
    "S3 with a role": ("limited", True),
    "S3 with a shared key": ("lake", False),
    "HDFS": ("cluster", False),
    "a storage that is gone": ("gone", False),
}


@pytest.mark.parametrize("name", LIMITED)
def test_only_a_role_limits_runs_at_a_storage_elsewhere(tmp_path, name):
    storage, is_limited = LIMITED[name]
    limited = replace(
        LAKE,
        name="limited",
        role="arn:aws:iam:::role/bfia-run",
    )
    storages = storages_at(tmp_path, LAKE, limited, CLUSTER)

    assert storages.limits_runs(storage) is is_limited


@pytest.mark.parametrize(
    ("listed", "remotes", "stand_in", "words"),
    [
        (["s3", "hdfs"], [], True, "data in the node's folder alone"),
        (["hdfs"], [LAKE], False, "STORAGE_MISMATCH"),
    ],
    ids=["folder alone", "none"],
)
def test_a_component_without_its_storage_is_warned_about_at_registration(
    tmp_path, listed, remotes, stand_in, words
):
    storages = storages_at(tmp_path, *remotes, stand_in=stand_in)

    assert words in storages.mismatch_consequence(listed)


@pytest.mark.parametrize(
    ("listed", "remotes"),
    [
        (["file"], []),
        ([], []),
        (["s3"], [LAKE]),
    ],
    ids=["folder", "any", "S3"],
)
def test_a_component_with_its_storage_is_registered_without_warning(tmp_path, listed, remotes):
    assert storages_at(tmp_path, *remotes).mismatch_consequence(listed) == ""


@pytest.mark.parametrize(
    ("storage", "message", "reason"),
    [
        ("cluster", "", "STORAGE_UNREACHABLE"),
        ("cluster", "failed: DSQuotaExceededException: 1 of 1", "STORAGE_FULL"),
        ("lake", "QuotaExceeded at PUT /joint", "STORAGE_FULL"),
        ("lake", "NoSuchBucket", "STORAGE_GONE"),
        ("lost", "", "STORAGE_UNKNOWN"),
    ],
)
def test_a_run_that_failed_gets_the_reason_of_its_storage(tmp_path, storage, message, reason):
    run = a_run(data=RunData(outputs={"data": Address("job", "t", storage)}))

    failure = storages_at(tmp_path, LAKE, CLUSTER).storage_failure(run, message)

    assert failure.reason == reason


def test_a_run_in_the_nodes_folder_has_no_failed_storage(tmp_path):
    run = a_run(data=RunData(outputs={"data": Address("job", "t")}))

    assert storages_at(tmp_path, LAKE, CLUSTER).storage_failure(run, "QuotaExceeded") is None


def test_data_that_may_be_in_a_storage_that_is_away_is_not_missing(tmp_path, monkeypatch):
    storages = storages_at(tmp_path, LAKE, CLUSTER)
    lake, cluster = storages.remotes["lake"], storages.remotes["cluster"]
    monkeypatch.setattr(lake, "taken", raising(LAKE_IS_AWAY))

    monkeypatch.setattr(cluster, "taken", returning(True))
    assert storages.find("bank", "t") == Address(
        "bank",
        "t",
        "cluster",
    )

    monkeypatch.setattr(cluster, "taken", returning(False))
    with pytest.raises(StorageAway):
        storages.find("bank", "t")


# ------------------------------------------------------------ a storage elsewhere


def test_a_storage_by_tls_has_its_scheme_in_the_address_for_containers():
    assert "scheme=https" in replace(LAKE, tls=True).url()
    assert "scheme" not in LAKE.url()


def lake_with(tmp_path, monkeypatch, operator):
    """Return the storage lake, which uses an operator of a library in place of its server."""
    monkeypatch.setattr(Remote, "operator", returning(operator))
    lake = replace(LAKE, addressing="path")  # so that no request finds out
    return storages_at(tmp_path, lake).remotes["lake"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (opendal.exceptions.PermissionDenied("no"), "STORAGE_DENIED"),
        (opendal.exceptions.Unexpected("timeout"), "STORAGE_SLOW"),
    ],
    ids=["denied", "slow"],
)
def test_an_error_of_the_library_is_one_of_our_reasons(tmp_path, monkeypatch, error, reason):
    lake = lake_with(
        tmp_path,
        monkeypatch,
        SimpleNamespace(write=raising(error)),
    )

    with pytest.raises(StorageFailed) as failure:
        lake.check()
    assert failure.value.reason == reason


def test_an_error_of_this_machine_is_not_the_storages(tmp_path, monkeypatch):
    of_a_local_file = PermissionError(errno.EACCES, "not permitted")
    lake = lake_with(
        tmp_path,
        monkeypatch,
        SimpleNamespace(write=raising(of_a_local_file)),
    )

    with pytest.raises(PermissionError):
        lake.check()


def test_a_server_that_does_not_answer_is_away():
    with (
        pytest.raises(StorageAway, match="cannot be reached: EndpointConnectionError"),
        LAKE.client("s3"),
    ):
        raise EndpointConnectionError(endpoint_url="http://127.0.0.1:1")


def test_unfinished_uploads_that_cannot_be_aborted_prevent_no_deletion(tmp_path, monkeypatch):
    """A rule of the bucket itself deletes them in the end."""
    lake = lake_with(tmp_path, monkeypatch, opendal.Operator("memory"))
    address = Address("bank", "t", "lake")

    denied = StorageFailed("storage lake denies access")
    monkeypatch.setattr(Remote, "client", raising(denied))
    lake.delete(address)

    monkeypatch.setattr(Remote, "client", raising(LAKE_IS_AWAY))
    with pytest.raises(StorageAway):
        lake.delete(address)


def test_a_storage_that_takes_long_for_a_sample_is_slow_until_it_is_not(tmp_path, monkeypatch):
    lake = lake_with(tmp_path, monkeypatch, opendal.Operator("memory"))

    with monkeypatch.context() as slow:
        slow.setattr(remote_storage, "SAMPLE_SECONDS", -1.0)
        with pytest.raises(StorageFailed) as failure:
            lake.check()
        assert failure.value.reason == "STORAGE_SLOW"
        with pytest.raises(StorageFailed):
            lake.check_answers()

    lake.check_answers()  # a sample again, which is in time now
    monkeypatch.setattr(remote_storage, "SAMPLE_SECONDS", -1.0)
    lake.check_answers()  # no sample any more


def test_metadata_of_a_missing_table_are_not_written(tmp_path, monkeypatch):
    lake = lake_with(tmp_path, monkeypatch, opendal.Operator("memory"))

    with pytest.raises(NotFound):
        lake.write_metadata(Address("bank", "none", "lake"), b"{}")


PAGE_OF_LISTING = b"""<ListBucketResult>
<IsTruncated>%s</IsTruncated><NextContinuationToken>next</NextContinuationToken>
<CommonPrefixes><Prefix>%s/</Prefix></CommonPrefixes>
</ListBucketResult>"""


def test_a_health_check_reads_only_the_beginning_of_a_listing():
    pages = [text(PAGE_OF_LISTING % (b"true", b"job-%d" % number)) for number in range(9)]
    last_page = text(PAGE_OF_LISTING % (b"false", b"job-9"))
    with scripted() as (server, url):
        server.will(*pages, last_page)
        lake = RemoteStorage(replace(LAKE, port=urlsplit(url).port, addressing=PATH))

        lake.check_answers()

        assert 1 <= len(server.requests) <= 2  # the library may read one page ahead


class CountingOperator:
    """An operator in memory that notes the files it opens."""

    def __init__(self):
        self.memory = opendal.Operator("memory")
        self.opened = []

    def open(self, path, mode, **options):
        self.opened.append(path)
        return self.memory.open(path, mode, **options)

    def capability(self):
        return self.memory.capability()


def test_a_table_of_many_partitions_is_sent_with_few_files_open(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.data.remote_parts.PIECE", 100)
    operator = CountingOperator()
    parts = RemoteParts(operator, "bank/t/", tmp_path, contextlib.nullcontext)

    sent = dict.fromkeys(range(12), b"")
    for turn in range(60):
        for number in sent:
            data = b"%d of %d\n" % (turn, number)
            sent[number] += data
            parts.add(number, data)
    assert len(operator.opened) == 4

    parts.finish()
    for number, data in sent.items():
        assert operator.memory.read(f"bank/t/data_{number}") == data
    assert len(operator.opened) == 12
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def reader_of_scripted_object(*responses):
    """Open an object at a server with scripted responses; yield it and the server."""
    with scripted() as (server, url):
        server.will(*[raw(response) for response in responses])
        request = SimpleNamespace(
            method="GET",
            url=f"{url}/bucket/object?signed",
            headers={},
        )
        with contextlib.closing(ObjectReader(lambda: request, 60.0, 1)) as file:
            yield file, server


def test_an_object_of_s3_is_read_from_its_end_and_to_its_end():
    responses = [
        b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n01234567",
        b"HTTP/1.1 206 Partial\r\ncontent-length: 4\r\n\r\n4567",
    ]

    with reader_of_scripted_object(*responses) as (file, _):
        assert file.seek(-4, io.SEEK_END) == 4
        assert file.read(None) == b"4567"


@pytest.mark.parametrize(
    "response",
    [
        b"200 OK\r\ncontent-length: 8\r\n\r\n01234567",
        b"206 Partial Content\r\ntransfer-encoding: chunked\r\n\r\n4\r\n4567\r\n0\r\n\r\n",
        b"412 Precondition Failed\r\ncontent-length: 0\r\n\r\n",
    ],
    ids=["all in place of the rest", "of unknown length", "replaced"],
)
def test_the_rest_of_an_object_of_s3_is_the_rest_or_a_failure(response):
    first_half = b'HTTP/1.1 200 OK\r\netag: "a"\r\ncontent-length: 8\r\n\r\n0123'

    with reader_of_scripted_object(first_half, b"HTTP/1.1 " + response) as (file, server):
        assert file.read(4) == b"0123"
        with pytest.raises(opendal.exceptions.Unexpected):
            file.read(4)

    tags = [request.headers.get("if-match") for request in server.asked]
    assert tags == [None, '"a"']


@pytest.mark.skipif(
    os.geteuid() != 0,
    reason="mounts need root",
)
def test_a_machine_without_certificate_authorities_reaches_its_storage():
    """As in an image of few packages: the library needs authorities, also for plain HTTP."""
    script = "from tests.data.sites import LAKE; LAKE.operator().stat('x')"
    mount = f'mount -t tmpfs none /etc/ssl && exec "{sys.executable}" -c "{script}"'

    result = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )

    assert "client error (Connect)" in result.stderr
    assert "panicked" not in result.stderr


# ------------------------------------------------------------ uploads that replace tables


def test_a_table_is_not_uploaded_over_one_in_another_storage(tmp_path):
    site = Datasets(storages_at(tmp_path, LAKE), MemoryDatasets())
    dataset = upload(
        site,
        "id\n1\n",
        Address("bank", "t"),
        storage="file",
    )
    elsewhere = replace(
        dataset,
        storage="lake",
        place="t.1",
    )

    with pytest.raises(Conflict):
        site._record_upload(elsewhere, overwrite=False)


def test_a_replaced_table_in_a_storage_without_settings_is_left_there(tmp_path):
    site = Datasets(storages_at(tmp_path, LAKE), MemoryDatasets())

    site._delete_replaced(Address("bank", "t.1", "of-no-settings"))


def test_without_its_storage_a_dataset_is_the_one_on_record(tmp_path, monkeypatch):
    storages = storages_at(tmp_path, LAKE)
    site = Datasets(storages, MemoryDatasets())
    dataset = upload(
        site,
        "id\n1\n",
        Address("bank", "t"),
        storage="file",
    )
    for method in ("find", "exists", "metadata"):
        monkeypatch.setattr(storages, method, raising(LAKE_IS_AWAY))

    assert site.get("bank#t") == dataset
    with pytest.raises(StorageAway):
        site.get("bank#unknown")


@pytest.mark.s3
def test_a_replaced_table_is_the_old_or_the_new_and_the_old_goes(tmp_path, monkeypatch):
    with bucket() as place:
        storages = storages_at(tmp_path / "storage", remote_of(place))
        repository = MemoryDatasets()
        site = Datasets(storages, repository)
        address = Address("bank", "customers*")

        first = upload(site, "id,x\n1,2\n", address).address
        assert first.storage == "lake"
        assert first.name.startswith("customers_.")
        with pytest.raises(Conflict):
            upload(site, "id,x\n1,3\n", address)

        second = upload(site, "id,x\n1,3\n", address, overwrite=True).address
        assert second != first
        assert site.resolve("bank#customers*") == second
        assert storages.names("bank", "lake") == [second.name]
        assert storages.names("bank") == []
        assert list(storages.iter_rows(second)) == [["1", "3"]]
        assert site.reasons_to_keep(second) == ["dataset bank#customers*"]
        assert site.reasons_to_keep(first) == []

        with monkeypatch.context() as outage:
            outage.setattr(
                repository, "put", raising(io.UnsupportedOperation("the database is away"))
            )
            with pytest.raises(Exception, match="database is away"):
                upload(site, "id,x\n1,4\n", address, overwrite=True)
        assert storages.names("bank", "lake") == [second.name]
        assert site.resolve("bank#customers*") == second
        # The place of a dataset is not its id.
        assert not site.exists(Address("bank", second.name))

        site.delete("bank#customers*")
        assert storages.namespaces() == set()
        assert not site.exists(address)


@pytest.mark.s3
def test_the_new_table_stays_where_the_replaced_one_cannot_be_deleted(tmp_path, monkeypatch):
    with bucket() as place:
        storages = storages_at(tmp_path / "storage", remote_of(place))
        site = Datasets(storages, MemoryDatasets())
        upload(
            site,
            "id\n1\n",
            Address("bank", "t"),
            storage="file",
        )
        disk_full = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(storages.folder, "delete", raising(disk_full))

        with pytest.raises(GatewayError, match="No space left"):
            upload(
                site,
                "id\n2\n",
                Address("bank", "t"),
                overwrite=True,
            )

        assert list(storages.iter_rows(site.resolve("bank#t"))) == [["2"]]


@pytest.mark.s3
def test_two_gateways_on_one_database_lose_no_upload(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path / 'node.db'}")
    repository = SqlDatasets(Database(engine))
    begin = threading.Barrier(2)
    with bucket() as place:
        storages = [storages_at(tmp_path / str(number), remote_of(place)) for number in (0, 1)]
        sites = [Datasets(each, repository) for each in storages]

        def send(number, *, overwrite):
            """Upload a table while the other gateway does; return whether it is stored."""
            site = sites[number]
            received = site.receive()
            upload_ = Upload(
                Address("bank", "t"),
                overwrite=overwrite,
            )
            site.store_while_received(upload_, received, "t.csv")
            begin.wait(60)
            try:
                received.write(f"id,x\n1,{number}\n".encode())
                received.finish()
            except Conflict:
                return False
            finally:
                received.close()
            return True

        def send_new(number):
            return send(number, overwrite=False)

        def send_again(number):
            return send(number, overwrite=True)

        with ThreadPoolExecutor(2) as pool:
            stored = list(pool.map(send_new, (0, 1)))
            assert sorted(stored) == [False, True]
            winner = stored.index(True)
            rows = list(storages[0].iter_rows(sites[0].resolve("bank#t")))
            assert rows == [["1", str(winner)]]
            assert list(pool.map(send_again, (0, 1))) == [True, True]

        table = sites[0].resolve("bank#t")
        assert sites[1].resolve("bank#t") == table
        assert storages[0].names("bank", "lake") == [table.name]
    engine.dispose()
