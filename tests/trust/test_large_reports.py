"""A container's report or metadata that costs the gateway its memory: it is bounded, and becomes a warning."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.data.reports import output_warnings
from gateway.data.storage import LARGEST_JSON, LARGEST_ROW
from gateway.errors import Invalid
from tests.builders import a_spec
from tests.data.test_reports import FLOW, PLACE, run_with, written

MIB = 1024 * 1024
MOST = 192 * MIB
"""bytes of memory beyond what the interpreter has without it"""

_MEASURED = """
import resource, sys
from pathlib import Path
from gateway.domain.run import Address
from gateway.errors import GatewayError
from gateway.data.reports import read_report
from gateway.data.file_storage import FileStorage

storage, place = FileStorage(Path(sys.argv[1])), Address("ns", "report")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read_report(storage, place)
try:
    storage.metadata(place)
except GatewayError:
    pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def filled(piece: bytes, size: int, begin: bytes = b"[", end: bytes = b"{}]") -> bytes:
    return begin + piece * ((size - len(begin) - len(end)) // len(piece)) + end


def memory(root: Path) -> int:
    """Return by how many bytes a process grows that reads report and metadata."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(root)], capture_output=True, text=True, check=True, timeout=120
    )
    return int(done.stdout)


REPORTS: dict[str, Callable[[], bytes]] = {
    "empty lists": lambda: filled(b"[],", LARGEST_JSON),
    "small objects": lambda: filled(b'{"a":1},', LARGEST_JSON),
    "one object of many keys": lambda: (
        b"{" + b",".join(b'"%06x":1' % n for n in range(LARGEST_JSON // 11 - 1)) + b"}"
    ),
    "each object has a key of its own": lambda: b"[" + b",".join(b'{"%d":1}' % n for n in range(10_000)) + b"]",
    "many tables whose objects have keys of their own": lambda: (
        b"{"
        + b",".join(b'"%d":[%b]' % (t, b",".join(b'{"%d":1}' % n for n in range(1_900))) for t in range(100))
        + b"}"
    ),
    "a row of many cells": lambda: b"1," * (LARGEST_JSON // 2 - 1) + b"1\n",
    "a row of many cells on many lines": lambda: b'"\n",' * (LARGEST_JSON // 4 - 1) + b"1\n",
    "a wide table": lambda: (b"12," * 99_999 + b"1\n") * 13,
    "nested deeply": lambda: b"[" * (LARGEST_JSON - 1),
}


@pytest.mark.parametrize("kind", REPORTS)
def test_a_report_costs_little_memory_whatever_is_in_it(tmp_path: Path, kind: str):
    content = REPORTS[kind]()
    assert len(content) <= LARGEST_JSON
    written(tmp_path, content)
    assert memory(tmp_path) < MOST


def test_metadata_costs_little_memory_whatever_is_in_it(tmp_path: Path):
    for size in (LARGEST_JSON, 64 * MIB):
        storage = written(tmp_path, b"{}")
        (storage.path(PLACE) / "metadata").write_bytes(filled(b'{"a":1},', size, b'{"column_info":[', b"{}]}"))
        assert memory(tmp_path) < MOST


def test_what_is_not_read_is_a_warning_of_its_task(tmp_path: Path):
    storage, run = run_with(tmp_path, b"id\n1\n", filled(b"[],", LARGEST_JSON + 4))
    (storage.path(run.outputs["data"]) / "metadata").write_bytes(filled(b"[],", 64 * MIB))
    about_data, about_report = output_warnings(storage, a_spec(FLOW), run)
    assert about_data.startswith("metadata of output d: ") and "more than" in about_data
    assert about_report.startswith("report r has ") and "reports are read up to" in about_report
    (storage.path(run.outputs["report"]) / "data_0").write_bytes(b'"\n",' * (LARGEST_ROW // 4 + 1))
    with pytest.raises(Invalid, match="has a row of more than"):
        storage.columns(run.outputs["report"])
