"""Object stores that accept virtual-hosted requests only are recognised and named in doctor."""

import os
import subprocess
import sys

import pytest

from gateway.config.loader import load
from gateway.data.remote import Remote
from gateway.data.remote_storage import RemoteStorage
from gateway.diagnostics.machine import storages_of
from gateway.errors import Invalid, StorageFailed
from tests.e2e.nodes import ROOT

# The message with which the store refuses requests that are not virtual-hosted.
REFUSAL = "SecondLevelDomainForbidden: Please use virtual hosted style to access."
# Uses a store below store.test, which this process resolves by its own /etc/hosts.
SCRIPT = """
import sys
from pathlib import Path
from gateway.data.combined_storage import Storages
from gateway.data.datasets import Datasets
from gateway.data.file_storage import FileStorage
from gateway.data.remote import Remote
from gateway.domain.datasets import MemoryDatasets
from gateway.domain.run import Address
from tests.storages import upload

folder, port, addressing = sys.argv[1:]
remote = Remote(
    "lake", "s3", "store.test", int(port), "lake", "key", "secret", addressing=addressing
)
storages = Storages(FileStorage(Path(folder)), [remote])
tables = Datasets(storages, MemoryDatasets())
storages.check()
dataset = upload(tables, "id,x\\n1,2\\n", Address("bank", "customers"), storage="lake")
assert list(storages.iter_rows(dataset.address)) == [["1", "2"]]
tables.delete("bank#customers")
detected = storages.remotes["lake"].remote
assert "addressing=virtual" in detected.url()
assert detected.services == (f"lake.store.test:{port}",)
"""


@pytest.fixture(scope="module")
def port():
    """The port of a store that accepts virtual-hosted requests only."""
    command = [sys.executable, "-m", "tests.services.virtual_hosted"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as store:
        try:
            yield int(store.stdout.readline())
        finally:
            store.kill()


@pytest.mark.skipif(
    os.geteuid() != 0,
    reason="mounts need root",
)
@pytest.mark.parametrize("addressing", ["auto", "virtual"])
def test_a_store_of_the_virtual_hosted_style_is_used(tmp_path, port, addressing):
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost store.test lake.store.test\n")
    mount = f'mount --bind {hosts} /etc/hosts && exec "$@"'
    script = [sys.executable, "-c", SCRIPT, str(tmp_path / "storage"), str(port), addressing]

    result = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", *script],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )

    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("addressing", ["auto", "path"])
def test_a_store_that_cannot_be_addressed_is_named(port, addressing):
    remote = Remote(
        "lake",
        "s3",
        "127.0.0.1",
        port,
        "lake",
        "key",
        "secret",
        addressing=addressing,
    )

    with pytest.raises(StorageFailed) as failure:
        RemoteStorage(remote).check()

    assert failure.value.reason == "STORAGE_ADDRESSING"
    assert failure.value.own_words == REFUSAL
    assert REFUSAL not in failure.value.message, "partners read it"


def load_settings(tmp_path, **lake):
    """Load the settings of a node with a storage elsewhere."""
    return load(
        None,
        {
            "node": {"id": "JG1"},
            "engine": {"kind": "process"},
            "storage": {"url": f"file://{tmp_path}"},
            "storages": {"lake": {"username": "key", "password": "secret", **lake}},
        },
    )


def test_doctor_shows_code_and_sentence_of_a_store(tmp_path, port):
    settings = load_settings(
        tmp_path,
        url=f"s3://127.0.0.1:{port}/lake",
        addressing="path",
    )

    step = storages_of(settings)

    assert f"the storage says: {REFUSAL}" in step.cause
    assert "addressing: virtual" in step.remedy


@pytest.mark.parametrize(
    "lake",
    [
        {"url": "s3://127.0.0.1:9/lake", "addressing": "host"},
        {"url": "hdfs://h:1/x", "addressing": "path"},
    ],
    ids=["unknown style", "not S3"],
)
def test_another_addressing_is_refused(tmp_path, lake):
    with pytest.raises(Invalid):
        load_settings(tmp_path, **lake)
