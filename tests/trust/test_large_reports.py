"""A container's report or metadata that costs the gateway its memory: it is bounded, and becomes a warning."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.data.reports import output_warnings
from gateway.data.storage import LARGEST_JSON
from gateway.data.table_reader import LARGEST_ROW
from gateway.errors import Invalid
from tests.builders import a_spec
from tests.data.test_reports import FLOW, PLACE, run_with, written

MIB = 1024 * 1024
MOST = 192 * MIB
"""bytes of memory beyond what the interpreter has without it"""

_MEASURED = """
import os, resource, sys
from pathlib import Path
from gateway.domain.run import Address
from gateway.errors import GatewayError
from gateway.data.reports import read_report
from gateway.data.file_storage import FileStorage

for root in sys.argv[1:]:
    if os.fork():
        assert os.wait()[1] == 0
        continue
    storage, place = FileStorage(Path(root)), Address("ns", "report")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read_report(storage, place)
    try:
        storage.metadata(place)
    except GatewayError:
        pass
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, flush=True)
    os._exit(0)
"""


def filled(
    piece: bytes,
    size: int,
    begin: bytes = b"[",
    end: bytes = b"{}]",
) -> bytes:
    return begin + piece * ((size - len(begin) - len(end)) // len(piece)) + end


def memory(*roots: Path) -> list[int]:
    """Return by how many bytes a process grows that reads report and metadata of each."""
    command = [sys.executable, "-c", _MEASURED, *map(str, roots)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [int(line) for line in done.stdout.splitlines()]


REPORTS: dict[str, Callable[[], bytes]] = {
    "empty lists": lambda: filled(b"[],", LARGEST_JSON),
    "small objects": lambda: filled(b'{"a":1},', LARGEST_JSON),
    "one object of many keys": lambda: (
        b"{" + b",".join(b'"%06x":1' % n for n in range(LARGEST_JSON // 11 - 1)) + b"}"
    ),
    "each object has a key of its own": lambda: (
        b"[" + b",".join(b'{"%d":1}' % n for n in range(10_000)) + b"]"
    ),
    "many tables whose objects have keys of their own": lambda: (
        b"{"
        + b",".join(
            b'"%d":[%b]' % (t, b",".join(b'{"%d":1}' % n for n in range(1_900))) for t in range(100)
        )
        + b"}"
    ),
    "a row of many cells": lambda: b"1," * (LARGEST_JSON // 2 - 1) + b"1\n",
    "a row of many cells on many lines": lambda: b'"\n",' * (LARGEST_JSON // 4 - 1) + b"1\n",
    "a wide table": lambda: (b"12," * 99_999 + b"1\n") * 13,
    "nested deeply": lambda: b"[" * (LARGEST_JSON - 1),
}


def test_a_report_and_metadata_cost_little_memory_whatever_is_in_them(tmp_path: Path):
    for kind, made in REPORTS.items():
        content = made()
        assert len(content) <= LARGEST_JSON
        written(tmp_path / kind, content)
    for size in (LARGEST_JSON, 64 * MIB):
        storage = written(tmp_path / f"metadata {size}", b"{}")
        (storage.path(PLACE) / "metadata").write_bytes(
            filled(b'{"a":1},', size, b'{"column_info":[', b"{}]}")
        )
    roots = sorted(tmp_path.iterdir())
    grown = dict(zip([root.name for root in roots], memory(*roots), strict=True))
    assert len(grown) == len(REPORTS) + 2 and max(grown.values()) < MOST, grown


def test_what_is_not_read_is_a_warning_of_its_task(tmp_path: Path):
    storage, run = run_with(tmp_path, b"id\n1\n", filled(b"[],", LARGEST_JSON + 4))
    (storage.path(run.outputs["data"]) / "metadata").write_bytes(filled(b"[],", 64 * MIB))
    about_data, about_report = output_warnings(storage, a_spec(FLOW), run)
    assert about_data.startswith("metadata of output d: ") and "more than" in about_data
    assert about_report.startswith("report r has ") and "reports are read up to" in about_report
    (storage.path(run.outputs["report"]) / "data_0").write_bytes(b'"\n",' * (LARGEST_ROW // 4 + 1))
    with pytest.raises(Invalid, match="must have rows of at most"):
        storage.columns(run.outputs["report"])
