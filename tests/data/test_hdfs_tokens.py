"""HDFS with Kerberos: the node's tickets, and a delegation token for each run."""

import os
import stat
import subprocess
import sys
import uuid
from dataclasses import replace

import pytest

from examples.fate_vendor.fatevendor import storage as fate_storage
from gateway.config.loader import load
from gateway.data import hdfs_tokens
from gateway.data.hdfs_tokens import TokenFiles
from gateway.data.remote import Remote
from gateway.domain.run import Address
from gateway.errors import Invalid, StorageFailed
from tests.contracts.storage_sites import content, open_storages, put
from tests.e2e.nodes import ROOT
from tests.storages import kerberos

RUN = "run-1"
NODE = {"node": {"id": "JG1"}, "engine": {"kind": "process"}}
HDFS = {
    "url": "hdfs://namenode:8020/bfia",
    "datanodes": ["10.0.8.0/24:9866"],
}
KERBEROS = {
    "principal": "bfia/gw.bank.example@BANK.EXAMPLE",
    "keytab": "bfia.keytab",
    "web": "http://namenode:9870",
}
TABLE = {
    "data_0": "id\n1\n",
    "metadata": '{"partitions": 1}',
}
# What a run does with its storage: reads its input and writes its output.
RUNS = """
import sys
from refvendor.storage_engines import open_engine
try:
    storage = open_engine(sys.argv[1])
    print(storage.read("in/table/data_0").decode())
    for text in (b"first", b"second"):
        storage.publish("out/table", {"data_0": text})
    print(storage.names("out/table"), storage.read("out/table/data_0").decode())
except OSError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def tokens(tmp_path):
    """The folder with the tokens of runs."""
    return TokenFiles(tmp_path / "tokens")


@pytest.fixture
def cluster(monkeypatch):
    """A folder of the suite's HDFS with Kerberos, which belongs to the principal bfia."""
    site = kerberos()
    monkeypatch.setenv("KRB5_CONFIG", str(site.folder / "krb5.conf"))
    for name in ("KRB5_CLIENT_KTNAME", "KRB5CCNAME", "HADOOP_CONF_DIR"):
        monkeypatch.setenv(name, "")  # restored after the test
    return Remote(
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


def act_as_run(remote: Remote) -> subprocess.CompletedProcess[str]:
    """Use a storage in a process that has nothing but the storage's URL."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "examples" / "reference_vendor"),
        "KRB5_CONFIG": "/none",
    }
    return subprocess.run(
        [sys.executable, "-c", RUNS, remote.url()],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.kerberos
def test_the_node_reads_and_writes_with_its_keytab(cluster, tmp_path):
    storages = open_storages(tmp_path, cluster)
    table = Address("in", "table", "cluster")

    put(storages, table, data_0="id\n1\n")

    assert content(storages, table) == b"id\n1\n"
    storages.check()
    assert storages.delete(table)


@pytest.mark.kerberos
def test_a_run_works_with_its_token_alone_until_its_end(cluster, tokens, tmp_path):
    put(open_storages(tmp_path, cluster), Address("in", "table", "cluster"), data_0="id\n1\n")

    for_run = hdfs_tokens.for_run(cluster, RUN, tokens)

    assert cluster.keytab not in for_run.url()
    process = act_as_run(for_run)
    assert process.stdout == "id\n1\n\n['data_0'] second\n", process.stderr

    hdfs_tokens.end(cluster, RUN, tokens)

    process = act_as_run(for_run)
    assert process.returncode != 0
    assert process.stdout == ""
    assert for_run.token not in process.stderr
    assert tokens.read(RUN) == ""
    hdfs_tokens.end(cluster, RUN, tokens)  # a second end does nothing


@pytest.mark.kerberos
def test_fates_wrapper_works_with_a_token_alone(cluster, tokens, tmp_path):
    table = Address(
        "in",
        "table",
        "cluster",
    )
    put(
        open_storages(tmp_path, cluster),
        table,
        **TABLE,
    )
    for_run = hdfs_tokens.for_run(cluster, RUN, tokens)
    storage = fate_storage.open_storage(for_run.url())

    folder = storage.fetch("in/table", tmp_path / "input")
    storage.publish(folder, "out/table")
    folder = storage.fetch("out/table", tmp_path / "output")
    content = (folder / "data_0").read_text()
    assert content == TABLE["data_0"]

    hdfs_tokens.end(cluster, RUN, tokens)

    refused = pytest.raises(fate_storage.StorageFailed, match="PermissionDenied")
    with refused:
        storage.fetch("in/table", tmp_path / "second")


@pytest.mark.kerberos
def test_a_repeated_launch_ends_the_token_of_the_first(cluster, tokens, tmp_path):
    put(open_storages(tmp_path, cluster), Address("in", "table", "cluster"), data_0="x")
    first = hdfs_tokens.for_run(cluster, RUN, tokens)

    second = hdfs_tokens.for_run(cluster, RUN, tokens)

    assert act_as_run(first).returncode != 0
    assert act_as_run(second).returncode == 0
    hdfs_tokens.end(cluster, RUN, tokens)


@pytest.mark.kerberos
def test_nobody_gets_in_without_a_ticket_or_token(cluster):
    """Attack: a run without its token gives the node's user name, as HDFS would once believe."""
    process = act_as_run(replace(cluster, web=""))

    assert process.returncode != 0
    assert process.stdout == ""


@pytest.mark.kerberos
def test_a_missing_ticket_and_a_refusal_are_named(cluster, tmp_path):
    without_key = replace(cluster, keytab=str(tmp_path / "none.keytab"))
    with pytest.raises(StorageFailed, match="gets no Kerberos ticket"):
        hdfs_tokens.fetch(replace(without_key, web="http://no-such-host.example:1"))

    with pytest.raises(StorageFailed, match="cannot be reached by WebHDFS"):
        hdfs_tokens.fetch(replace(cluster, web=f"http://{cluster.host}:1"))


# ------------------------------------------------------------ without a server


def test_tokens_are_stored_for_the_gateway_alone(tokens, tmp_path):
    tokens.write(RUN, "token")

    (file,) = (tmp_path / "tokens").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert tokens.read(RUN) == "token"
    tokens.delete(RUN)
    assert tokens.read(RUN) == ""


def test_a_runs_address_has_the_token_and_webhdfs():
    remote = Remote(
        "c",
        "hdfs",
        "h",
        1,
        "/bfia",
        "bfia",
        principal="bfia@R",
        keytab="/key",
        web="https://h.example",
        token="abc",
    )

    assert remote.url() == (
        "hdfs://h:1?username=bfia&token=abc&dir=%2Fbfia&web=https%3A%2F%2Fh.example"
    )
    assert remote.services == ("h:1", "h.example:443")


@pytest.mark.parametrize("missing", KERBEROS)
def test_the_settings_of_kerberos_belong_together(missing):
    incomplete = {name: value for name, value in KERBEROS.items() if name != missing}

    with pytest.raises(Invalid, match="principal, keytab and web belong together"):
        load(None, NODE | {"storages": {"cluster": HDFS | incomplete}})


def test_hdfs_with_kerberos_needs_no_shared_key_in_a_new_node(tmp_path):
    keytab = tmp_path / "bfia.keytab"
    keytab.touch(mode=0o600)
    cluster = HDFS | KERBEROS | {"keytab": str(keytab)}
    sections = NODE | {"storages": {"cluster": cluster}, "secrets": {"mode": "refuse"}}

    settings = load(None, sections)

    assert settings.storages["cluster"].user == "bfia"
    keytab.chmod(0o644)
    with pytest.raises(Invalid, match=r"storages\.cluster\.keytab: is open to other users"):
        load(None, sections)
