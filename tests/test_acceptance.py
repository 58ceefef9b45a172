"""Every row of `acceptance.yml` names tests that exist."""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "tests/acceptance.yml").read_text(encoding="utf-8")
ROWS: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_says_what_is_shown_and_its_tests_exist(name):
    row = ROWS[name]
    assert row["shows"]
    assert row["tests"]
    assert row.keys() <= {"shows", "open", "tests"}

    missing = []
    for test in row["tests"]:
        file, _, function = test.partition("::")
        if function not in functions(file):
            missing.append(test)
    assert missing == [], "name the tests that show this now, or take the row out"


@cache
def functions(file: str) -> frozenset[str]:
    """Return the names of a file's functions; none if there is no such file."""
    path = ROOT / file
    if not path.exists():
        return frozenset()
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return frozenset(names)
