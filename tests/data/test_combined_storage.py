"""Which of a node's storages serves what: uploads, components, and data that is replaced."""

import contextlib
import errno
import io
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import opendal
import pytest
from botocore.exceptions import EndpointConnectionError

from engines.docker import ContainerdEngine, DockerOptions
from gateway.bootstrap.parts import storages
from gateway.config.loader import load
from gateway.data import remote_storage
from gateway.data.combined_storage import Storages
from gateway.data.datasets import Datasets
from gateway.data.file_storage import FileStorage
from gateway.data.remote import Remote
from gateway.data.remote_parts import RemoteParts
from gateway.data.s3_reader import ObjectReader
from gateway.data.upload import Upload
from gateway.diagnostics.machine import storages_of
from gateway.domain.datasets import MemoryDatasets
from gateway.domain.run import Address
from gateway.errors import Conflict, GatewayError, Invalid, NotFound, StorageAway, StorageFailed
from gateway.language.catalogue import translate
from gateway.runtime.trials import Result, Step
from gateway.store.database import Database, open_database
from gateway.store.repositories import SqlDatasets
from tests import storages as real
from tests.adapter.bfia.scripted import raw, scripted
from tests.builders import a_run, raising
from tests.contracts.test_storage import remote_of
from tests.forks import ROOT

LAKE = Remote("lake", "s3", "127.0.0.1", 1, "joint", "key", "secret")
CLUSTER = Remote("cluster", "hdfs", "127.0.0.1", 1, "/joint")


def at(
    folder: Path,
    *remotes: Remote,
    stand_in: bool = True,
) -> Storages:
    return Storages(FileStorage(folder), remotes, stand_in=stand_in)


@pytest.mark.parametrize(
    ("listed", "remotes", "stand_in", "serving"),
    [
        (["s3", "hdfs"], [], True, [""]),
        (["s3", "hdfs"], [], False, []),
        (["S3"], [CLUSTER, LAKE], False, ["lake"]),
        (["s3", "hdfs"], [CLUSTER, LAKE], True, ["cluster", "lake", ""]),
        (["file"], [LAKE], False, [""]),
        ([], [LAKE], False, ["lake", ""]),
    ],
)
def test_the_first_storage_that_a_component_lists_serves_it(
    listed: list[str],
    remotes: list[Remote],
    stand_in: bool,
    serving: list[str],
    tmp_path: Path,
) -> None:
    assert at(tmp_path, *remotes, stand_in=stand_in).serving(listed) == serving


def test_what_a_component_cannot_get_here_is_said_at_registration(tmp_path: Path) -> None:
    assert at(tmp_path).at_registration(["file"]) == at(tmp_path).at_registration([]) == ""
    assert at(tmp_path, LAKE).at_registration(["s3"]) == ""
    assert "data in the node's folder alone" in at(tmp_path).at_registration(["s3", "hdfs"])
    assert "STORAGE_MISMATCH" in at(tmp_path, LAKE, stand_in=False).at_registration(["hdfs"])


@pytest.mark.parametrize(
    ("storage", "said", "reason"),
    [
        ("cluster", "", "STORAGE_UNREACHABLE"),
        ("cluster", "failed: DSQuotaExceededException: 1 of 1", "STORAGE_FULL"),
        ("lake", "QuotaExceeded at PUT /joint", "STORAGE_FULL"),
        ("lake", "NoSuchBucket", "STORAGE_GONE"),
        ("lost", "", "STORAGE_UNKNOWN"),
        ("", "QuotaExceeded", None),
    ],
)
def test_a_run_that_failed_gets_the_reason_of_its_storage(
    storage: str,
    said: str,
    reason: str | None,
    tmp_path: Path,
) -> None:
    run = a_run(outputs={"data": Address("job", "t", storage)})
    found = at(tmp_path, LAKE, CLUSTER).trouble(run, said)
    assert (found.reason if found else None) == reason


def test_what_may_lie_in_a_storage_that_is_away_is_not_taken_for_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storages = at(tmp_path, LAKE, CLUSTER)
    away = raising(StorageAway("storage lake cannot be reached"))
    monkeypatch.setattr(storages.remotes["lake"], "taken", away)
    monkeypatch.setattr(storages.remotes["cluster"], "taken", lambda address: True)
    assert storages.find("bank", "t") == Address("bank", "t", "cluster")
    monkeypatch.setattr(storages.remotes["cluster"], "taken", lambda address: False)
    with pytest.raises(StorageAway):
        storages.find("bank", "t")


def test_a_storage_by_tls_is_named_so_to_containers() -> None:
    assert "scheme=https" in replace(LAKE, tls=True).url() and "scheme" not in LAKE.url()


def test_what_a_library_says_of_a_storage_is_one_of_our_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storages = at(tmp_path, LAKE)
    lake = storages.remotes["lake"]
    with (
        pytest.raises(StorageAway, match="cannot be reached: EndpointConnectionError"),
        LAKE.client("s3"),
    ):
        raise EndpointConnectionError(endpoint_url="http://127.0.0.1:1")
    for error, reason in (
        (opendal.exceptions.PermissionDenied("no"), "STORAGE_DENIED"),
        (opendal.exceptions.Unexpected("timeout"), "STORAGE_SLOW"),
    ):
        with pytest.raises(StorageFailed) as caught, lake._storage_errors():
            raise error
        assert caught.value.reason == reason
    with pytest.raises(PermissionError), lake._storage_errors():
        raise PermissionError(13, "of a file here")

    def failing(*_: Any) -> None:
        raise failures.pop()

    failures = [
        StorageAway("storage lake cannot be reached"),
        StorageFailed("storage lake denies access"),
    ]
    monkeypatch.setattr(Remote, "client", failing)
    lake._abort_uploads("bank/t/")  # a bucket's own rule deletes what was not sent whole
    with pytest.raises(StorageAway):
        lake._abort_uploads("bank/t/")


def test_a_storage_that_takes_long_for_a_sample_is_slow_until_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = at(tmp_path, LAKE).remotes["lake"]
    monkeypatch.setattr(lake, "_operator", opendal.Operator("memory"))
    monkeypatch.setattr(remote_storage, "SAMPLE_SECONDS", -1.0)
    with pytest.raises(StorageFailed) as caught:
        lake.check()
    assert caught.value.reason == "STORAGE_SLOW"
    monkeypatch.setattr(remote_storage, "SAMPLE_SECONDS", 60.0)
    lake.check_answers()  # a sample again, which goes well now
    assert not lake._is_doubtful
    with pytest.raises(NotFound):
        lake.write_metadata(Address("bank", "none", "lake"), b"{}")


def test_a_table_is_not_uploaded_over_one_in_another_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = at(tmp_path, LAKE)
    site = Datasets(storage, MemoryDatasets())
    dataset = real.upload(site, "id\n1\n", Address("bank", "t"), storage="file")
    elsewhere = replace(dataset, storage="lake", place="t.1")
    with pytest.raises(Conflict):
        site._record_upload(elsewhere, overwrite=False)
    site._delete_replaced(Address("bank", "t.1", "of-no-settings"))
    monkeypatch.setattr(site, "_place", raising(StorageAway("storage lake cannot be reached")))
    assert site.get("bank#t") == dataset
    with pytest.raises(StorageAway):
        site.get("bank#unknown")


@pytest.mark.s3
def test_a_replaced_table_is_the_old_or_the_new_and_the_old_goes(tmp_path: Path) -> None:
    with real.bucket() as place:
        storage = at(tmp_path / "storage", remote_of(place))
        known = MemoryDatasets()
        site = Datasets(storage, known)
        address = Address("bank", "customers*")

        def upload(text: str, *, overwrite: bool = False) -> Address:
            return real.upload(site, text, address, overwrite=overwrite).address

        first = upload("id,x\n1,2\n")
        assert first.storage == "lake" and first.name.startswith("customers_.")
        with pytest.raises(Conflict):
            upload("id,x\n1,3\n")
        second = upload("id,x\n1,3\n", overwrite=True)
        assert site.resolve("bank#customers*") == second != first
        assert storage.names("bank", "lake") == [second.name] and storage.names("bank") == []
        assert list(storage.iter_rows(second)) == [["1", "3"]]
        assert site.reasons_to_keep(second) == ["dataset bank#customers*"]
        assert site.reasons_to_keep(first) == []
        broken = raising(io.UnsupportedOperation("the database is away"))
        put, known.put = known.put, broken  # type: ignore[method-assign]
        with pytest.raises(Exception, match="database is away"):
            upload("id,x\n1,4\n", overwrite=True)
        known.put = put  # type: ignore[method-assign]
        assert (
            storage.names("bank", "lake") == [second.name]
            and site.resolve("bank#customers*") == second
        )
        assert not site.exists(Address("bank", second.name))  # the place of a dataset is not its id
        site.delete("bank#customers*")
        assert storage.namespaces() == set() and not site.exists(address)


@pytest.mark.s3
def test_what_replaced_a_table_stays_where_the_old_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with real.bucket() as place:
        storage = at(tmp_path / "storage", remote_of(place))
        site = Datasets(storage, MemoryDatasets())
        real.upload(site, "id\n1\n", Address("bank", "t"), storage="file")
        monkeypatch.setattr(
            storage.folder, "delete", raising(OSError(errno.ENOSPC, "No space left on device"))
        )
        with pytest.raises(GatewayError, match="No space left"):
            real.upload(site, "id\n2\n", Address("bank", "t"), overwrite=True)
        assert list(storage.iter_rows(site.resolve("bank#t"))) == [["2"]]


def test_an_object_of_s3_is_read_from_its_end_and_to_its_end() -> None:
    with scripted() as (server, url):
        head = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n"
        server.will(
            raw(head + b"01234567"), raw(b"HTTP/1.1 206 Partial\r\ncontent-length: 4\r\n\r\n4567")
        )
        signed = SimpleNamespace(
            method="GET",
            url=f"{url}/bucket/object?signed",
            headers={},
        )
        with contextlib.closing(ObjectReader(lambda: signed, 60.0, 1)) as file:
            assert file.seek(-4, io.SEEK_END) == 4 and file.read(None) == b"4567"


def test_a_table_of_many_partitions_is_sent_with_few_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.data.remote_parts.PIECE", 100)
    operator, opened = opendal.Operator("memory"), []

    class Counting:
        """Remembers which files were opened."""

        def open(
            self,
            path: str,
            mode: str,
            **options: Any,
        ) -> Any:
            opened.append(path)
            return operator.open(path, mode, **options)

        def capability(self) -> Any:
            return operator.capability()

    parts = RemoteParts(cast(Any, Counting()), "bank/t/", tmp_path, contextlib.nullcontext)
    wanted = dict.fromkeys(range(12), b"")
    for turn in range(60):
        for number in wanted:
            data = b"%d of %d\n" % (turn, number)
            wanted[number] += data
            parts.add(number, data)
    assert len(opened) == 4
    parts.finish()
    assert {number: operator.read(f"bank/t/data_{number}") for number in wanted} == wanted
    assert len(opened) == 12 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "answer",
    [
        b"200 OK\r\ncontent-length: 8\r\n\r\n01234567",
        b"206 Partial Content\r\ntransfer-encoding: chunked\r\n\r\n4\r\n4567\r\n0\r\n\r\n",
        b"412 Precondition Failed\r\ncontent-length: 0\r\n\r\n",
    ],
    ids=["all in place of the rest", "of unknown length", "replaced"],
)
def test_the_rest_of_an_object_of_s3_is_the_rest_or_a_failure(answer: bytes) -> None:
    with scripted() as (server, url):
        head = b'HTTP/1.1 200 OK\r\netag: "a"\r\ncontent-length: 8\r\n\r\n'
        server.will(raw(head + b"0123"), raw(b"HTTP/1.1 " + answer))
        signed = SimpleNamespace(
            method="GET",
            url=f"{url}/bucket/object?signed",
            headers={},
        )
        with contextlib.closing(ObjectReader(lambda: signed, 60.0, 1)) as file:
            assert file.read(4) == b"0123"
            with pytest.raises(opendal.exceptions.Unexpected):
                file.read(4)
        assert [asked.headers.get("if-match") for asked in server.asked] == [None, '"a"']


@pytest.mark.s3
def test_two_gateways_on_one_database_lose_no_upload(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'node.db'}")
    datasets, begin, address = (
        SqlDatasets(Database(engine)),
        threading.Barrier(2),
        Address("bank", "t"),
    )
    with real.bucket() as place:
        storage = at(tmp_path / "0", remote_of(place))
        sites = [Datasets(at(tmp_path / str(i), remote_of(place)), datasets) for i in (0, 1)]

        def upload(number: int, *, overwrite: bool) -> bool:
            received = sites[number].receive()
            sites[number].store_while_received(
                Upload(address, overwrite=overwrite), received, "t.csv"
            )
            begin.wait(60)
            try:
                received.write(f"id,x\n1,{number}\n".encode())
                received.finish()
            except Conflict:
                return False
            finally:
                received.close()
            return True

        with ThreadPoolExecutor(2) as pool:
            stored = list(pool.map(lambda number: upload(number, overwrite=False), (0, 1)))
            assert sorted(stored) == [False, True]
            assert list(storage.iter_rows(sites[0].resolve("bank#t"))) == [
                ["1", str(stored.index(True))]
            ]
            assert all(pool.map(lambda number: upload(number, overwrite=True), (0, 1)))
        table = sites[0].resolve("bank#t")
        assert sites[1].resolve("bank#t") == table and storage.names("bank", "lake") == [table.name]
    engine.dispose()


NODE = """
node: {id: JG0100001100000010, institution: a}
engine: {kind: process, process: {}}
storages:
  lake: {url: "%s", username: key, password_file: lake.key}
"""


def test_the_settings_name_what_is_wrong_with_a_storage_and_never_its_key(tmp_path: Path) -> None:
    file = tmp_path / "node.yml"
    (tmp_path / "lake.key").write_text("the-secret\n")
    file.write_text(NODE % "s3://10.0.0.5:9000/joint")
    remote = storages(load(file)).remotes["lake"].remote
    assert (remote.host, remote.port, remote.folder, remote.password) == (
        "10.0.0.5",
        9000,
        "joint",
        "the-secret",
    )
    for url in (
        "ftp://h/x",
        "s3://h:9000",
        "s3://key:secret@h/joint",
        "s3://h/joint/below",
        "s3://h:0/joint",
    ):
        file.write_text(NODE % url)
        with pytest.raises(Invalid) as refused:
            load(file)
        assert "storages.lake.url" in str(refused.value) and "secret" not in str(refused.value)
    file.write_text((NODE % "s3://h/joint").replace(", password_file: lake.key", ""))
    with pytest.raises(Invalid, match="password_file"):
        load(file)
    file.write_text(NODE % "s3://h/joint")
    (tmp_path / "lake.key").unlink()
    with pytest.raises(Invalid, match=r"storages\.lake\.password_file"):
        storages(load(file))
    hdfs = NODE.replace("process, process: {}", "docker").replace(
        "username: key, password_file: lake.key", "%s"
    )
    file.write_text(hdfs % ("hdfs://h/joint", "username: bank"))
    with pytest.raises(Invalid, match=r"storages\.lake\.datanodes"):
        load(file)
    for wrong in ("10.0.8.0/24", "10.0.8/33:9866", ":9866", "h:0"):
        file.write_text(hdfs % ("hdfs://h/joint", f"datanodes: ['{wrong}']"))
        with pytest.raises(Invalid, match="datanodes"):
            load(file)
    file.write_text(hdfs % ("hdfs://h/joint", "datanodes: ['10.0.8.0/24:9866']"))
    assert storages(load(file)).remotes["lake"].remote.services == ("h:8020", "10.0.8.0/24:9866")


@pytest.mark.hdfs
def test_doctor_warns_that_hdfs_is_open_to_every_container(tmp_path: Path) -> None:
    file = tmp_path / "node.yml"
    with real.folder() as place:
        cluster = {"cluster": {"url": f"{real.hdfs()[0]}{place.name}", "username": real.HDFS_USER}}
        file.write_text(NODE.partition("storages:")[0] + f"storages: {json.dumps(cluster)}")
        found = storages_of(load(file))
        assert found.result is Result.WARNING and "change all of cluster" in found.cause


@pytest.mark.s3
def test_doctor_names_what_is_wrong_with_a_storage_and_what_its_keys_open(tmp_path: Path) -> None:
    file = tmp_path / "node.yml"
    with real.bucket() as place:
        remote = remote_of(place)

        def step(**more: str) -> Step:
            wanted = {"url": f"s3://{remote.host}:{remote.port}/{place.name}", "region": "default"}
            wanted |= {
                "username": remote.username,
                "password": remote.password,
                **more,
            }
            file.write_text(
                NODE.partition("storages:")[0] + f"storages: {json.dumps({'lake': wanted})}"
            )
            return storages_of(load(file))

        role = os.environ["BFIA_TEST_S3_ROLE"]
        assert step(role=role).result is Result.OK
        with contextlib.closing(
            ContainerdEngine("n", "i", DockerOptions(base_url="tcp://127.0.0.1:1"))
        ) as away:
            assert storages_of(load(file), away).cause.startswith(
                "containers cannot reach storage lake: "
            )
        assert step().result is Result.WARNING and "the node's own key of lake" in step().cause
        denied = step(role=role, password="not-the-key")
        assert denied.result is Result.FAILED and denied.cause.startswith(
            "STORAGE_DENIED: storage lake (s3)"
        )
        assert denied.remedy.startswith("Check username and password_file in storages")
        assert translate(denied.remedy, "zh").startswith(
            "检查 storages 中的 username 与 password_file"
        )
        policy = {
            "Effect": "Deny",
            "Principal": "*",
            "Action": ["s3:GetBucketPolicy"],
        }
        policy["Resource"] = f"arn:aws:s3:::{place.name}"
        real.client().put_bucket_policy(
            Bucket=place.name, Policy=json.dumps({"Version": "2012-10-17", "Statement": [policy]})
        )
        outlast = step(role=role)
        assert (
            outlast.result is Result.WARNING and "credentials of runs outlast them" in outlast.cause
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_a_machine_without_certificate_authorities_reaches_its_storage() -> None:
    """As in an image made from few packages: the library needs some authorities, also for plain http."""
    ask = "from tests.data.test_combined_storage import LAKE; LAKE.operator().stat('x')"
    line = f'mount -t tmpfs none /etc/ssl && exec "{sys.executable}" -c "{ask}"'
    command = ["unshare", "--mount", "sh", "-c", line]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert "client error (Connect)" in done.stderr and "panicked" not in done.stderr, done.stderr
