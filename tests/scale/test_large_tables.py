"""A table of 5 GiB is uploaded and downloaded in less than 200 MB of the gateway's memory."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.downloads import download
from tests.e2e.jobs import GUEST
from tests.e2e.nodes import Federation, Node, wait_for
from tools.bench.upload import begin_upload, finish_upload

pytestmark = pytest.mark.scale

MIB = 2**20
GIB = 2**30
MOST_MEMORY = 200_000_000  # bytes

# A row is an id of ten digits, and a cell that fills two kibibytes with the line's end.
HEADINGS = b"id,x0\n"
CELL = b"0." + b"0625" * 508 + b"062\n"
ROW_LENGTH = 11 + len(CELL)
ROWS_OF_BLOCK = 4096


def rows_of(size: int) -> int:
    """Return the number of rows of a table of about ``size`` bytes."""
    return size // ROW_LENGTH


def table_of(rows: int) -> Iterator[bytes]:
    """Yield a table with ``rows`` rows, in blocks of a few megabytes."""
    yield HEADINGS
    for start in range(0, rows, ROWS_OF_BLOCK):
        end = min(start + ROWS_OF_BLOCK, rows)
        block = []
        for number in range(start, end):
            block.append(b"%010d,%b" % (number, CELL))
        yield b"".join(block)


def size_of(rows: int) -> int:
    """Return the bytes of a table with ``rows`` rows."""
    return len(HEADINGS) + rows * ROW_LENGTH


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node in an interpreter of its own, whose files are deleted at the end."""
    home = tmp_path / "nodes"
    with Federation(
        home,
        [GUEST],
        {"kind": "process"},
        fresh=True,
    ) as federation:
        yield federation[GUEST]
    shutil.rmtree(home)


def check_memory(node: Node) -> None:
    """Fail if a node's process has ever had more than the allowed memory resident."""
    status = Path(f"/proc/{node.addresses['pid']}/status").read_text()
    _, _, from_peak = status.partition("VmHWM:")
    kibibytes, *_ = from_peak.split()
    peak = int(kibibytes) * 1024
    print(f"the node had up to {peak / 1e6:.0f} MB resident")
    assert peak < MOST_MEMORY


def upload(node: Node, rows: int) -> dict[str, Any]:
    """Upload a table; return the response's data and, as ``sent``, the checksum of the table."""
    digest = hashlib.sha256()
    connection = begin_upload(
        node,
        size_of(rows),
        "large",
        "table",
    )
    for block in table_of(rows):
        connection.send(block)
        digest.update(block)
    dataset = finish_upload(connection)
    dataset["sent"] = digest.hexdigest()
    return dataset


def stored_files(node: Node) -> list[Path]:
    """Return the files in a node's storage."""
    files = []
    for path in node.storage.rglob("*"):
        if path.is_file():
            files.append(path)
    return files


@pytest.mark.timeout(1800)
def test_five_gibibytes_pass_in_and_out_in_bounded_memory(node):
    rows = rows_of(5 * GIB)

    dataset = upload(node, rows)

    assert dataset["count"] == rows
    assert dataset["checksum"] == dataset["sent"]
    check_memory(node)

    result = download(node)

    assert result.size == size_of(rows)
    assert result.checksum == dataset["sent"]
    assert result.announced_checksum == dataset["sent"]
    check_memory(node)


@pytest.mark.timeout(900)
def test_a_large_upload_that_breaks_off_leaves_nothing(node):
    files_before = stored_files(node)

    def is_as_before() -> bool:
        return stored_files(node) == files_before

    connection = begin_upload(
        node,
        5 * GIB,
        "large",
        "table",
    )
    for block in table_of(rows_of(GIB)):
        connection.send(block)
    assert not is_as_before(), "nothing of the upload is stored yet"

    connection.close()

    wait_for(
        is_as_before,
        about="the upload's files are gone",
    )
    assert node.ask("GET", "/api/v1/datasets/large/table").status_code == 404
    assert node.get("/api/v1/gc", orphans=1)["items"] == []
    check_memory(node)
