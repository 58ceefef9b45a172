"""Storages of each kind for the tests: a folder, a bucket in S3 and a folder in HDFS."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from gateway.data.combined_storage import Storages
from gateway.data.file_storage import FileStorage, clear_leftover, leftovers
from gateway.data.remote import Remote
from gateway.domain.run import Address
from tests import storages as servers

S3 = pytest.param(
    "s3",
    marks=pytest.mark.s3,
)
HDFS = pytest.param(
    "hdfs",
    marks=pytest.mark.hdfs,
)
KINDS = ["file", S3, HDFS]
MIB = 1 << 20
# A name that has to be escaped in URLs.
TABLE_NAME = "t a%+b"
REMOTE_TABLE = Address("ns", "t", "lake")
ONE_ROW = "a\n1\n"


def remote_of(place: servers.Place) -> Remote:
    """Return the settings of a test's bucket or folder, as the storage ``lake``."""
    url = urlsplit(place.url)
    query = parse_qs(url.query)
    assert url.hostname
    assert url.port
    return Remote(
        "lake",
        url.scheme,
        url.hostname,
        url.port,
        place.name,
        query["username"][0],
        query.get("password", [""])[0],
        region="default",
    )


def open_storages(folder: Path, *remotes: Remote) -> Storages:
    """Return storages with their local files below a folder."""
    return Storages(FileStorage(folder / "storage"), list(remotes))


@contextlib.contextmanager
def opened(
    kind: str,
    folder: Path,
) -> Iterator[tuple[Storages, Address]]:
    """Yield storages, and the address of a table in the one of this kind."""
    if kind == "file":
        yield open_storages(folder), Address("ns", TABLE_NAME)
        return
    place_for_test = servers.bucket if kind == "s3" else servers.folder
    with place_for_test() as place:
        yield (
            open_storages(folder, remote_of(place)),
            Address(
                "ns",
                TABLE_NAME,
                "lake",
            ),
        )


def put(
    storage: Storages,
    address: Address,
    *,
    overwrite: bool = False,
    **files: str,
) -> None:
    """Write a table; ``files`` are its parts and its metadata, by file name."""
    with storage.staging() as staging:
        for name, text in files.items():
            (staging.table / name).write_text(text)
        with storage.published(staging, address, overwrite=overwrite):
            pass


def content(
    storage: Storages,
    address: Address,
    *byte_range: int,
) -> bytes:
    """Return a table as one file; ``byte_range`` is a start and a length."""
    return b"".join(storage.stream(address, *byte_range))


def clear(storage: Storages, address: Address) -> None:
    """Clear the only leftover of a write to a table, as ``gc`` does."""
    (name,) = leftovers(storage.root)

    def delete(target: Address) -> bool:
        if target != address:
            return False
        storage.delete(target)
        return True

    clear_leftover(storage.root, name, delete)


def unfinished_uploads(remote: Remote) -> list[str]:
    """Return the names of S3's unfinished uploads; [] for HDFS, which has none."""
    if remote.kind != "s3":
        return []
    response = servers.client().list_multipart_uploads(Bucket=remote.folder)
    return [upload["Key"] for upload in response.get("Uploads", [])]
