"""The storages of SecretFlow's wrapper, without SecretFlow: a folder, S3, and HDFS."""

import json
import os
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from sfvendor import container
from sfvendor.storage import StorageFailed, cause_of, open_storage

from gateway.data import hdfs_tokens
from gateway.data.hdfs_tokens import TokenFiles
from gateway.data.remote import Remote
from tests import storages as real
from tests.e2e.nodes import ROOT
from tests.e2e.test_secretflow import PYTHON

INPUT = "runtime.component.input.train_data"
OUTPUT = "runtime.component.output.train_data"
ADDRESS = json.dumps({"namespace": "job-guest-0/a", "name": "out"})
FOLDER = "job-guest-0/a/out"
FILE = f"{FOLDER}/data_0"
RUN = "run-1"
WHOLE = 20_000
# What WebHDFS says about an empty file.
EMPTY = {
    "accessTime": 0,
    "blockSize": 0,
    "group": "",
    "length": 0,
    "modificationTime": 0,
    "owner": "",
    "pathSuffix": "",
    "permission": "644",
    "replication": 1,
}
BUCKET_OF_4_KIB = ["bash", str(ROOT / ".ci" / "s3.sh"), "quota"]


@pytest.fixture
def connect(monkeypatch):
    """Return a function that gives this run a storage, with an input and an output there."""

    def set_variables(url):
        for name, value in (
            ("system.storage", url),
            (INPUT, ADDRESS),
            (OUTPUT, ADDRESS),
        ):
            monkeypatch.setitem(container.environment, name, value)

    return set_variables


def put(url, **files):
    """Write the files of the input."""
    storage = open_storage(url)
    for name, text in files.items():
        storage.write(f"{FOLDER}/{name}", text.encode())


def test_a_table_is_read_back_as_the_last_attempt_wrote_it(storage_url, connect):
    connect(storage_url)
    container.write_table("train_data", ["id", "x"], [["1", 0.5], ["2", 1.5]], "id")
    container.write_table("train_data", ["id", "x"], [["00", "值"]], "id")

    assert container.read_table("train_data") == (["id", "x"], [["00", "值"]])
    metadata = json.loads(open_storage(storage_url).read(f"{FOLDER}/metadata"))
    assert metadata["namespace"] == "job-guest-0/a"
    assert metadata["count"] == 1


def test_partitions_are_read_in_order_also_without_metadata(storage_url, connect):
    connect(storage_url)
    parts = {f"data_{number}": f"id,x\n{number},a\n" for number in range(3)}
    put(storage_url, **parts, other="")

    _, rows = container.read_table("train_data")

    assert [row[0] for row in rows] == [str(number) for number in range(3)]


def test_a_missing_partition_is_named(storage_url, connect):
    connect(storage_url)
    put(storage_url, data_0="id\n1\n", metadata='{"partitions": 2}')
    with pytest.raises(StorageFailed, match=r"^the input train_data cannot be read: data_1: "):
        container.read_table("train_data")


def test_a_missing_input_is_named(storage_url, connect):
    connect(storage_url)
    with pytest.raises(StorageFailed, match=r"^the input train_data cannot be read: data_0: "):
        container.read_table("train_data")


@pytest.mark.parametrize(
    ("metadata", "data", "problem"),
    [
        ("{", "id\n1\n", "cannot be read: its metadata is invalid"),
        ('{"partitions": "many"}', "id\n1\n", "cannot be read: its metadata is invalid"),
        ("[]", "id\n1\n", "cannot be read: its metadata is invalid"),
        ("{}", "", "is not a table: see its data_0"),
        ("{}", "id\n", "has no rows"),
    ],
)
def test_a_broken_input_is_named(tmp_path, connect, metadata, data, problem):
    url = f"file://{tmp_path}"
    connect(url)
    put(url, metadata=metadata, data_0=data)
    with pytest.raises((container.BadInput, StorageFailed)) as failure:
        container.read_table("train_data")
    assert str(failure.value) == f"the input train_data {problem}"


def test_text_in_another_encoding_is_named(tmp_path, connect):
    url = f"file://{tmp_path}"
    connect(url)
    open_storage(url).write(FILE, b"id\n\xff\n")
    with pytest.raises(StorageFailed, match=r"data_0: it is not UTF-8 text$"):
        container.read_table("train_data")


@pytest.mark.parametrize("url", ["", "oss://a:1?bucket=b", "s3://127.0.0.1:1", "/tmp"])
def test_an_address_of_no_storage_is_named(connect, url):
    connect(url)
    with pytest.raises(StorageFailed, match=r"the output train_data cannot .*: system\.storage "):
        container.write_json("train_data", {})


# ------------------------------------------------------------ refusals


@pytest.mark.s3
@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        ("bucket", "the bucket does not exist (NoSuchBucket)"),
        ("password", "access is denied (AccessDenied)"),
    ],
)
def test_a_refusal_of_s3_is_named_without_a_credential(connect, wrong, cause):
    with real.bucket() as place:
        connect(f"{place.url}&{wrong}=not-right")
        with pytest.raises(StorageFailed) as refusal:
            container.write_json("train_data", {})
    assert str(refusal.value) == f"the output train_data cannot be written: data_0: {cause}"


@pytest.mark.s3
def test_a_full_bucket_is_named(connect):
    with real.bucket() as place:
        subprocess.run([*BUCKET_OF_4_KIB, place.name, "4096"], check=True, capture_output=True)
        connect(place.url)
        with pytest.raises(StorageFailed, match=r"the storage is full \(QuotaExceeded\)$"):
            container.write_json("train_data", "x" * WHOLE)


@pytest.mark.hdfs
def test_another_user_of_hdfs_is_denied(connect, monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "")  # restored after the test
    with real.folder() as place:
        connect(place.url.replace(f"username={real.HDFS_USER}", "username=bob"))
        with pytest.raises(StorageFailed, match=r"data_0: access is denied \(AccessControl"):
            container.write_json("train_data", {})


@pytest.mark.kerberos
def test_a_delegation_token_is_enough_until_the_run_ends(connect, monkeypatch, tmp_path):
    site = real.kerberos()
    monkeypatch.setenv("KRB5_CONFIG", str(site.folder / "krb5.conf"))
    for name in ("KRB5_CLIENT_KTNAME", "KRB5CCNAME", "HADOOP_CONF_DIR", "HADOOP_USER_NAME"):
        monkeypatch.setenv(name, "")  # restored after the test
    cluster = Remote(
        "cluster",
        "hdfs",
        site.host,
        site.port,
        f"/bfia/{uuid.uuid4().hex[:12]}",
        "bfia",
        principal="bfia@BFIA.TEST",
        keytab=str(site.folder / "client.keytab"),
        web=site.web,
    )
    tokens = TokenFiles(tmp_path / "tokens")
    of_run = hdfs_tokens.for_run(cluster, RUN, tokens)
    connect(of_run.url())

    container.write_table("train_data", ["id"], [["1"], ["2"]], "id")
    container.write_table("train_data", ["id"], [["3"]], "id")
    assert container.read_table("train_data") == (["id"], [["3"]])

    hdfs_tokens.end(cluster, RUN, tokens)
    with pytest.raises(StorageFailed, match="have expired or are not valid") as refusal:
        container.read_table("train_data")
    assert of_run.token not in str(refusal.value)


# ------------------------------------------------------------ servers of the test


@contextmanager
def server(respond: Callable[[str, bytes], tuple[int, str]]) -> Iterator[str]:
    """Serve requests at an address; ``respond`` turns path and body into status and body."""

    class Handler(BaseHTTPRequestHandler):
        def handle_request(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content = respond(self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content.encode())

        do_GET = do_POST = do_PUT = handle_request

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http_server:
        thread = threading.Thread(target=http_server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{http_server.server_port}"
        finally:
            http_server.shutdown()
            thread.join()


def test_an_expired_token_of_s3_is_named(connect):
    refusal = "<Error><Code>ExpiredToken</Code><Message>SECRET</Message></Error>"
    with server(lambda *_: (400, refusal)) as address:
        connect(f"s3://{address}?username=u&password=p&token=TOKEN&bucket=b")
        with pytest.raises(StorageFailed) as failure:
            container.write_json("train_data", {})
    cause = "data_0: the credentials have expired or are not valid (ExpiredToken)"
    assert str(failure.value) == f"the output train_data cannot be written: {cause}"


def test_a_storage_may_be_away_for_a_moment(connect):
    statuses = iter([503, 200])
    with server(lambda *_: (next(statuses), "")) as address:
        connect(f"s3://{address}?username=u&password=p&bucket=b")
        container.write_json("train_data", {})
    assert list(statuses) == []


def test_a_full_hdfs_is_noticed_though_it_reports_success(connect):
    """As HDFS 2.7 does by WebHDFS with a quota."""
    addresses = []

    def respond(path, _):
        if "op=CREATE" in path:
            return 200, json.dumps({"Location": f"http://{addresses[0]}/data"})
        if "op=GETFILESTATUS" in path:
            kind = "DIRECTORY" if "/a/?" in path else "FILE"
            return 200, json.dumps({"FileStatus": EMPTY | {"type": kind}})
        return 201, ""

    with server(respond) as address:
        addresses.append(address)
        connect(f"hdfs://namenode:1?token=TOKEN&web=http://{address}&dir=/a")
        with pytest.raises(StorageFailed, match=r"data_0: HDFS has 0 of 2 bytes, it may be full$"):
            container.write_json("train_data", {})


@pytest.mark.secretflow
def test_the_platform_is_told_which_input_is_missing(tmp_path):
    reports = []

    def respond(_, body):
        reports.append(json.loads(body))
        return 200, "{}"

    with server(respond) as address:
        variables = {
            "PATH": os.environ["PATH"],
            "config.task_id": "task-1",
            "config.self_role": "guest.0",
            "system.callback": f"http://{address}/callback",
            "system.transport": address,
            "system.storage": f"file://{tmp_path}",
            "runtime.component.name": "PSI",
            INPUT: ADDRESS,
        }
        process = subprocess.run([*PYTHON, "-m", "sfvendor"], env=variables, check=False)

    assert process.returncode == 1
    running, failed = reports
    assert running["status"] == "RUNNING"
    assert failed["status"] == "FAILED"
    cause = "data_0: No such file or directory"
    assert failed["result_message"] == f"the input train_data cannot be read: {cause}"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (
            "send http request\n\nSource:\n   timed out at http://namenode/a?delegation=TOKEN",
            "timed out at http://namenode/a",
        ),
        (
            "failed\n\nSource:\n   All DataNodes failed: [DatanodeInfoProto { id: 1 }]",
            "All DataNodes failed",
        ),
        (
            "failed\n\nSource:\n   RPC error: org.apache.hadoop.hdfs.DSQuotaExceededException The",
            "the storage is full (DSQuotaExceededException)",
        ),
        (
            "failed\n\nSource:\n   RPC error: java.io.FileNotFoundException File /a does not exist",
            "it does not exist (FileNotFoundException)",
        ),
        (
            'WebHdfsError { exception: "DSQuotaExceededException", message: "?" }',
            "the storage is full (DSQuotaExceededException)",
        ),
        (
            'WebHdfsError { exception: "IOException", message: "a.b.T$InvalidToken: no" }',
            "the credentials have expired or are not valid (InvalidToken)",
        ),
    ],
)
def test_the_cause_of_an_error_contains_neither_token_nor_servers(error, cause):
    text = f"Unexpected (permanent) at read => {error}\n\nContext:\n   url: http://a?token=TOKEN"
    assert cause_of(TimeoutError(text)) == cause
    assert cause_of(TimeoutError()) == "TimeoutError"
