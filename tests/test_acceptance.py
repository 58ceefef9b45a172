"""Every row of `acceptance.yml` names tests that are there."""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
ROWS: dict[str, dict[str, Any]] = yaml.safe_load(
    (ROOT / "tests/acceptance.yml").read_text(encoding="utf-8")
)


@cache
def functions(file: str) -> frozenset[str]:
    path = ROOT / file
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
    return frozenset(
        n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize("row", ROWS)
def test_a_row_says_what_is_shown_and_its_tests_exist(row: str):
    said = ROWS[row]
    assert said["shows"] and said["tests"] and said.keys() <= {"shows", "open", "tests"}
    missing = [
        test
        for test in said["tests"]
        if test.partition("::")[2] not in functions(test.partition("::")[0])
    ]
    assert missing == [], "name the tests that show this now, or take the row out"
