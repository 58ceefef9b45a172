"""Attack: reports and metadata of a container that would fill the gateway's memory."""

import subprocess
import sys

import pytest

from gateway.data.reports import output_warnings
from gateway.data.storage import LARGEST_JSON
from gateway.data.table_reader import LARGEST_ROW
from gateway.errors import Invalid
from tests.builders import a_spec
from tests.data.report_files import FLOW, REPORT, run_with_outputs, write_report

MIB = 1024 * 1024
MAX_GROWTH = 192 * MIB  # of a process that reads a report and metadata
# Prints, for each storage, by how many bytes a new process grows that reads from it.
MEASURE = """
import os, resource, sys
from pathlib import Path
from gateway.domain.run import Address
from gateway.errors import GatewayError
from gateway.data.reports import read_report
from gateway.data.file_storage import FileStorage

def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

for root in sys.argv[1:]:
    if os.fork():
        assert os.wait()[1] == 0
        continue
    storage = FileStorage(Path(root))
    address = Address("ns", "report")
    before = memory()
    read_report(storage, address)
    try:
        storage.metadata(address)
    except GatewayError:
        pass
    print(memory() - before, flush=True)
    os._exit(0)
"""


def repeat(
    piece,
    size,
    start=b"[",
    end=b"{}]",
):
    """Repeat a piece between a start and an end, up to a size in bytes."""
    count = (size - len(start) - len(end)) // len(piece)
    return start + piece * count + end


def one_object(keys):
    """Return a JSON object with many keys of six digits."""
    members = [b'"%06x":1' % number for number in range(keys)]
    return b"{" + b",".join(members) + b"}"


def objects_with_own_keys(number):
    """Return a JSON list of objects that have no key in common."""
    objects = [b'{"%d":1}' % key for key in range(number)]
    return b"[" + b",".join(objects) + b"]"


def tables_with_own_keys(tables, rows):
    """Return a JSON object of tables whose rows have no key in common."""
    table = objects_with_own_keys(rows)
    members = [b'"%d":%b' % (number, table) for number in range(tables)]
    return b"{" + b",".join(members) + b"}"


def empty_lists():
    return repeat(b"[],", LARGEST_JSON)


def small_objects():
    return repeat(b'{"a":1},', LARGEST_JSON)


def one_object_of_many_keys():
    return one_object(LARGEST_JSON // 11 - 1)


def objects_without_common_keys():
    return objects_with_own_keys(10_000)


def tables_without_common_keys():
    return tables_with_own_keys(100, 1_900)


def a_row_of_many_cells():
    return b"1," * (LARGEST_JSON // 2 - 1) + b"1\n"


def a_row_of_many_cells_on_many_lines():
    return b'"\n",' * (LARGEST_JSON // 4 - 1) + b"1\n"


def a_wide_table():
    return (b"12," * 99_999 + b"1\n") * 13


def a_deeply_nested_list():
    return b"[" * (LARGEST_JSON - 1)


# Functions, as the reports are too large for a constant.
REPORTS = [
    empty_lists,
    small_objects,
    one_object_of_many_keys,
    objects_without_common_keys,
    tables_without_common_keys,
    a_row_of_many_cells,
    a_row_of_many_cells_on_many_lines,
    a_wide_table,
    a_deeply_nested_list,
]


def measure_growth(*roots):
    """Return by how many bytes a process grows that reads report and metadata, by storage."""
    command = [sys.executable, "-c", MEASURE, *map(str, roots)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    sizes = [int(line) for line in done.stdout.splitlines()]
    return dict(zip([root.name for root in roots], sizes, strict=True))


def test_every_report_costs_little_memory(tmp_path):
    for build_report in REPORTS:
        content = build_report()
        assert len(content) <= LARGEST_JSON
        write_report(tmp_path / build_report.__name__, content)

    growth = measure_growth(*sorted(tmp_path.iterdir()))

    assert len(growth) == len(REPORTS)
    assert max(growth.values()) < MAX_GROWTH, growth


def test_metadata_cost_little_memory(tmp_path):
    for size in (LARGEST_JSON, 64 * MIB):
        storage = write_report(tmp_path / f"metadata {size}", b"{}")
        metadata = repeat(
            b'{"a":1},',
            size,
            start=b'{"column_info":[',
            end=b"{}]}",
        )
        (storage.path(REPORT) / "metadata").write_bytes(metadata)

    growth = measure_growth(*sorted(tmp_path.iterdir()))

    assert len(growth) == 2
    assert max(growth.values()) < MAX_GROWTH, growth


def test_an_output_that_is_too_large_to_read_is_a_warning_of_its_task(tmp_path):
    large_report = repeat(b"[],", LARGEST_JSON + 4)
    storage, run = run_with_outputs(tmp_path, b"id\n1\n", large_report)
    metadata = storage.path(run.data.outputs["data"]) / "metadata"
    metadata.write_bytes(repeat(b"[],", 64 * MIB))

    about_data, about_report = output_warnings(storage, a_spec(FLOW), run)

    assert about_data.startswith("metadata of output d: ")
    assert "more than" in about_data
    assert about_report.startswith("report r has ")
    assert "reports are read up to" in about_report


def test_a_row_that_is_too_large_is_refused(tmp_path):
    storage, run = run_with_outputs(tmp_path, b"id\n1\n", b"{}")
    report = run.data.outputs["report"]
    row = b'"\n",' * (LARGEST_ROW // 4 + 1)
    (storage.path(report) / "data_0").write_bytes(row)

    with pytest.raises(Invalid, match="must have rows of at most"):
        storage.columns(report)
