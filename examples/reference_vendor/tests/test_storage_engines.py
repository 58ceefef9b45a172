"""S3 and HDFS: the layout of a directory, and refusals that name the fault but no secret."""

import os
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import opendal
import pytest
import servers
from refvendor.contract import StorageFailed, Table
from refvendor.env import Address
from refvendor.storage import StoredIo, open_storage
from refvendor.storage_engines import RemoteFolder

HERE = Path(__file__).parent.parent
IN, OUT = (
    Address("数据 a+b%2F", "in"),
    Address(
        "job-guest-0",
        "out",
    ),
)
TABLE = Table(
    ["id", "名"],
    [["1", "值"]],
)


@pytest.fixture(params=["s3", "hdfs"])
def server(request):
    make_server = {"s3": servers.bucket, "hdfs": servers.folder}[request.param]
    with make_server() as server:
        yield server


def test_what_is_written_is_read_back(server):
    open_storage(server.url, {}, {"x": OUT}).write_table("x", TABLE)
    assert open_storage(server.url, {"x": OUT}, {}).read_table("x") == TABLE
    assert names(server) == ["data_0", "metadata"]


def test_partitions_without_metadata_and_plain_files_are_read(server):
    root = f"{IN.namespace}/"
    server.operator.write(f"{root}in/data_0", b"id\n1\n")
    server.operator.write(f"{root}in/data_1", b"2\n")
    server.operator.write(f"{root}plain", b"id\n3\n")
    inputs = {
        "parts": IN,
        "plain": Address(IN.namespace, "plain"),
        "none": Address(IN.namespace, "none"),
    }
    io = open_storage(server.url, inputs, {})
    assert io.read_table("parts").rows == [["1"], ["2"]]
    assert io.read_table("plain").rows == [["3"]]
    with pytest.raises(StorageFailed, match=r"none \(.*/none\): does not exist"):
        io.read_table("none")


def test_a_second_attempt_replaces_the_first(server):
    for table in (Table(["id"], [["1"], ["2"]]), TABLE):
        open_storage(server.url, {}, {"x": OUT}).write_table("x", table)
    assert open_storage(server.url, {"x": OUT}, {}).read_table("x") == TABLE
    assert names(server) == ["data_0", "metadata"]


def test_metadata_is_written_last():
    with servers.bucket() as server:
        io = StoredIo(
            RemoteFolder(WithoutMetadata(server.operator), writes_are_atomic=True), {}, {"x": OUT}
        )
        with pytest.raises(StorageFailed, match=r"cannot be written \(full\)"):
            io.write_json("x", {})
        assert names(server) == ["data_0"]


def test_a_broken_write_leaves_in_hdfs_what_was_there():
    with servers.folder() as server:
        open_storage(server.url, {}, {"x": OUT}).write_table("x", TABLE)
        io = StoredIo(
            RemoteFolder(WithoutMetadata(server.operator), writes_are_atomic=False), {}, {"x": OUT}
        )
        with pytest.raises(StorageFailed, match=r"cannot be written \(full\)"):
            io.write_table("x", Table(["id"], []))
        assert open_storage(server.url, {"x": OUT}, {}).read_table("x") == TABLE
        assert names(server) == ["data_0", "metadata"]


def test_a_write_that_hdfs_did_not_keep_fails_and_leaves_what_was_there():
    with servers.folder() as server:
        open_storage(server.url, {}, {"x": OUT}).write_table("x", TABLE)
        io = StoredIo(
            RemoteFolder(Forgetful(server.operator), writes_are_atomic=False), {}, {"x": OUT}
        )
        with pytest.raises(StorageFailed, match=r"has 0 of \d+ bytes, it may be full\)$"):
            io.write_table("x", Table(["id"], []))
        assert open_storage(server.url, {"x": OUT}, {}).read_table("x") == TABLE


def names(server):
    return sorted(
        e.name for e in server.operator.list("job-guest-0/out/") if e.path != "job-guest-0/out/"
    )


class WithoutMetadata:
    """An operator whose server is full when the metadata come."""

    def __init__(self, operator):
        self._operator = operator

    def __getattr__(self, name):
        return getattr(self._operator, name)

    def write(self, path, data):
        if path.endswith("metadata"):
            raise opendal.exceptions.Unexpected("Unexpected (permanent) at write => full")
        self._operator.write(path, data)


class Forgetful(WithoutMetadata):
    """An operator whose server keeps nothing and reports success, as WebHDFS beyond a quota."""

    def write(self, path, data):
        self._operator.write(path, b"")


def test_a_temporary_key_for_its_inputs_and_outputs_is_enough():
    with servers.bucket() as server:
        arn = f"arn:aws:s3:::{server.bucket}"
        session = servers.session(
            [
                {
                    "Effect": "Allow",
                    "Action": ["s3:GetObject"],
                    "Resource": [f"{arn}/in/*"],
                },
                {
                    "Effect": "Allow",
                    "Action": ["s3:PutObject"],
                    "Resource": [f"{arn}/{OUT.namespace}/*"],
                },
            ]
        )
        place = Address("in", "in")
        open_storage(server.url, {}, {"x": place}).write_table("x", TABLE)
        io = open_storage(
            server.with_(**session), {"x": place, "other": OUT}, {"y": OUT, "z": place}
        )
        io.write_table("y", io.read_table("x"))
        for refused in (lambda: io.read_table("other"), lambda: io.write_json("z", {})):
            with pytest.raises(StorageFailed, match="AccessDenied"):
                refused()


def test_a_refusal_of_the_s3_server_is_named_without_the_secret():
    with servers.bucket() as server:
        for url, words in (
            (
                server.with_(password="hunter2/+"),
                "cannot be read (the S3 server returned AccessDenied)",
            ),
            (
                server.with_(bucket="gone-for-good"),
                "cannot be read (the S3 server returned NoSuchBucket)",
            ),
        ):
            with pytest.raises(StorageFailed) as caught:
                open_storage(url, {"x": IN}, {}).read_table("x")
            assert words in str(caught.value)
            assert "hunter2" not in str(caught.value)


def test_a_folder_of_another_user_is_not_written():
    with servers.folder() as server:
        server.operator.write("ns/in/data_0", b"")
        with pytest.raises(
            StorageFailed, match=r"cannot be written \(Permission denied: user=bob, .*\)$"
        ):
            open_storage(server.with_(username="bob"), {}, {"x": Address("ns", "in")}).write_json(
                "x", {}
            )


def test_a_name_node_that_is_gone_is_not_waited_for():
    with pytest.raises(StorageFailed, match=r"cannot be read .*Connection refused"):
        open_storage("hdfs://127.0.0.1:9?username=u&dir=/", {"x": IN}, {}).read_table("x")


def test_s3_over_tls(tmp_path):
    code = (
        "import sys; from refvendor.env import Address; from refvendor.storage import "
        "open_storage\n"
        "print(open_storage(sys.argv[1], {'x': Address('ns', 'in')}, {}).read_table('x').rows)"
    )
    with servers.bucket() as server, tls(tmp_path, urlsplit(server.url)) as (address, certificate):
        server.operator.write("ns/in/data_0", b"id\n1\n")
        url = server.with_(scheme="https").replace(urlsplit(server.url).netloc, address)
        trust = {
            **os.environ,
            "PYTHONPATH": str(HERE),
            "SSL_CERT_FILE": str(certificate),
        }
        run = subprocess.run(
            [sys.executable, "-c", code, url],
            env=trust,
            capture_output=True,
            text=True,
        )
        assert run.stdout == "[['1']]\n", run.stderr
        with pytest.raises(StorageFailed, match="certificate"):
            open_storage(url, {"x": Address("ns", "in")}, {}).read_table("x")


@contextmanager
def tls(folder, target):
    """Serve a TCP server over TLS; give the address and the certificate."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
    ]
    command += ["-subj", "/CN=s3", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += [
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-keyout",
        key,
        "-out",
        certificate,
    ]
    subprocess.run(
        command,
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def accept():
        while True:
            try:
                near, _ = listener.accept()
            except OSError:  # at the end
                return
            threading.Thread(
                target=relay,
                args=(near,),
                daemon=True,
            ).start()

    def relay(near):
        try:
            with (
                context.wrap_socket(near, server_side=True) as inside,
                socket.create_connection((target.hostname, target.port)) as far,
            ):
                threading.Thread(
                    target=pump,
                    args=(far, inside),
                    daemon=True,
                ).start()
                pump(inside, far)
        except OSError:  # a client that does not trust the certificate
            near.close()

    def pump(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", certificate
        finally:
            listener.shutdown(socket.SHUT_RDWR)
