"""An output is held against its description and its own metadata."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.conformance.sandbox import _problem
from gateway.data.file_storage import FileStorage
from gateway.domain.run import Address
from provider_registry.model import DataSpec

TABLE = DataSpec("total", "", "dataset", ("csv",))
GOOD = {"count": 2, "column_info": [{"id": "string"}, {"x": "float"}]}


@pytest.mark.parametrize(
    ("content", "metadata", "found"),
    [
        ("id,x\na,1\nb,2\n", GOOD, ""),
        (
            "id,x\na,1\nb,2\n",
            {"column_info": [{"name": "id", "type": "string"}, {"name": "x", "type": "float"}]},
            "",
        ),
        ('id,x\na,"1\n2"\nb,2\n', GOOD, ""),
        ("id,x\na,1\nb,2\n", None, "has no file metadata beside its data"),
        ("id,x\na,1\n", GOOD, "has 1 row, its metadata say count 2"),
        ("a,1\nb,2\nc,3\n", GOOD, "has the columns a, 1; its metadata's column_info says id, x"),
        ("id\na,1\nb,2\n", GOOD, "has 2 values in row 1 below a header of 1 column"),
        ("id\na\n", {"column_info": ["id"]}, "has metadata whose column_info is not a list of columns"),
        ("id\na\n", {"column_info": 7}, "has metadata whose column_info is not a list of columns"),
        ('{"total": 7}', GOOD, "has 0 rows, its metadata say count 2"),
        ("\n", GOOD, "has no header line"),
    ],
)
def test_a_table_is_what_its_metadata_say(tmp_path: Path, content: str, metadata: Any, found: str):
    storage, at = FileStorage(tmp_path), Address("job", "total")
    storage.path(at).mkdir(parents=True)
    (storage.path(at) / "data_0").write_text(content)
    if metadata is not None:
        (storage.path(at) / "metadata").write_text(json.dumps(metadata))
    assert _problem(storage, at, TABLE) == found
