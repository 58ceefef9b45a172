"""Object stores that take virtual-hosted requests only are recognised, and speak for themselves in doctor."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config.loader import load
from gateway.data.remote import Remote
from gateway.data.remote_storage import RemoteStorage
from gateway.diagnostics.machine import storages_of
from gateway.errors import Invalid, StorageFailed
from tests.e2e.nodes import ROOT

WORDS = "SecondLevelDomainForbidden: Please use virtual hosted style to access."
USE = """
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
remote = Remote("lake", "s3", "store.test", int(port), "lake", "key", "secret", addressing=addressing)
storages = Storages(FileStorage(Path(folder)), [remote])
tables = Datasets(storages, MemoryDatasets())
storages.check()
dataset = upload(tables, "id,x\\n1,2\\n", Address("bank", "customers"), storage="lake")
assert list(storages.iter_rows(dataset.address)) == [["1", "2"]]
tables.delete("bank#customers")
now = storages.remotes["lake"].remote
assert "addressing=virtual" in now.url() and now.services == (f"lake.store.test:{port}",)
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    command = [sys.executable, "-m", "tests.services.virtual_hosted"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as store:
        assert store.stdout is not None
        try:
            yield int(store.stdout.readline())
        finally:
            store.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
@pytest.mark.parametrize("addressing", ["auto", "virtual"])
def test_a_store_of_the_virtual_hosted_style_is_used(
    tmp_path: Path,
    port: int,
    addressing: str,
):
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost store.test lake.store.test\n")
    line = f'mount --bind {hosts} /etc/hosts && exec "$@"'
    use = [sys.executable, "-c", USE, str(tmp_path / "storage"), str(port), addressing]
    command = ["unshare", "--mount", "sh", "-c", line, "sh", *use]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("addressing", ["auto", "path"])
def test_a_store_that_cannot_be_addressed_is_named(port: int, addressing: str):
    remote = Remote("lake", "s3", "127.0.0.1", port, "lake", "key", "secret", addressing=addressing)
    with pytest.raises(StorageFailed) as refused:
        RemoteStorage(remote).check()
    assert refused.value.reason == "STORAGE_ADDRESSING" and refused.value.own_words == WORDS
    assert WORDS not in refused.value.message  # partners read it


def test_doctor_shows_code_and_sentence_of_a_store(tmp_path: Path, port: int):
    lake = {
        "url": f"s3://127.0.0.1:{port}/lake",
        "username": "key",
        "password": "secret",
    }
    common = {
        "node": {"id": "JG1"},
        "engine": {"kind": "process"},
        "storage": {"url": f"file://{tmp_path}"},
    }
    step = storages_of(load(None, common | {"storages": {"lake": lake | {"addressing": "path"}}}))
    assert f"the storage says: {WORDS}" in step.cause and "addressing: virtual" in step.remedy
    for wrong in ({"addressing": "host"}, {"url": "hdfs://h:1/x", "addressing": "path"}):
        with pytest.raises(Invalid):
            load(None, common | {"storages": {"lake": lake | wrong}})
