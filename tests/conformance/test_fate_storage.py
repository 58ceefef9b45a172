"""The storages of FATE's wrapper: a folder, a bucket of S3, and HDFS."""

import json
from types import SimpleNamespace

import pytest

from examples.fate_vendor.fatevendor.storage import (
    Remote,
    StorageFailed,
    cause_of,
    open_storage,
)
from tests import storages as real

OUTPUT = "job-guest-0/out"


@pytest.fixture
def publish(tmp_path):
    """Return a function that writes an output, with the contents of its parts."""

    def write(url, *parts, count=None):
        local = tmp_path / "local"
        local.mkdir(exist_ok=True)
        for number, part in enumerate(parts):
            (local / f"data_{number}").write_text(part, encoding="utf-8")
        metadata = json.dumps({"partitions": count or len(parts)})
        (local / "metadata").write_text(metadata, encoding="utf-8")
        open_storage(url).publish(local, OUTPUT)

    return write


def test_an_output_is_read_back_as_the_last_attempt_wrote_it(storage_url, publish, tmp_path):
    publish(storage_url, "id,x\n1,a\n2,b\n")
    publish(storage_url, "id,x\n", "id,x\n1,值\n")
    folder = open_storage(storage_url).fetch(OUTPUT, tmp_path / "input")
    parts = [(folder / name).read_text(encoding="utf-8") for name in ("data_0", "data_1")]
    assert parts == ["id,x\n", "id,x\n1,值\n"]


@pytest.mark.parametrize(
    ("path", "missing"),
    [("job-guest-0/none", "metadata"), (OUTPUT, "data_1")],
)
def test_a_missing_file_is_named(storage_url, publish, tmp_path, path, missing):
    publish(storage_url, "id,x\n", count=2)
    with pytest.raises(StorageFailed, match=f"^input {path} cannot be read: {missing}"):
        open_storage(storage_url).fetch(path, tmp_path / "input")


@pytest.mark.parametrize("count", ["many", float("inf")])
def test_broken_metadata_is_named(storage_url, publish, tmp_path, count):
    publish(storage_url, "id,x\n", count=count)
    with pytest.raises(StorageFailed, match=f"^input {OUTPUT} cannot be read: its metadata is"):
        open_storage(storage_url).fetch(OUTPUT, tmp_path / "input")


@pytest.mark.s3
@pytest.mark.parametrize(
    ("wrong", "cause"),
    [("bucket", "NoSuchBucket"), ("password", "AccessDenied")],
)
def test_a_refusal_of_s3_is_named_without_a_credential(publish, wrong, cause):
    with real.bucket() as place, pytest.raises(StorageFailed) as refusal:
        publish(f"{place.url}&{wrong}=not-right", "id,x\n")
    assert str(refusal.value).startswith(f"output {OUTPUT} cannot be written: data_0: ")
    assert str(refusal.value).endswith(cause)
    assert "not-right" not in str(refusal.value)


class Forgetful:
    """A client of a server that keeps nothing and reports success, as WebHDFS beyond a quota."""

    def write(self, _path, _content):
        pass

    def stat(self, _path):
        return SimpleNamespace(content_length=0)


def test_an_output_that_a_full_server_did_not_keep_is_a_failure(tmp_path):
    (tmp_path / "data_0").write_text("id,x\n", encoding="utf-8")
    with pytest.raises(StorageFailed, match=r"data_0: 0 of 5 bytes are there, it may be full$"):
        Remote(Forgetful()).publish(tmp_path, OUTPUT)


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("timed out at http://namenode/a?delegation=TOKEN", "timed out at http://namenode/a"),
        ("All DataNodes failed: [DatanodeInfoProto { id: 1 }]", "All DataNodes failed"),
    ],
)
def test_the_cause_of_an_error_contains_neither_token_nor_servers(source, cause):
    context = "\n\nContext:\n   url: http://namenode/a?delegation=TOKEN"
    text = (
        f"Unexpected (temporary) at read => failed{context}\n\nSource:\n   {source}\n\nBacktrace:"
    )
    assert cause_of(TimeoutError(text)) == f"TimeoutError, {cause}"
