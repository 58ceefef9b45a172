"""The core stays pure: it imports the standard library and itself, and never asks what time it is."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gateway.domain

MODULES = sorted(Path(gateway.domain.__file__).parent.rglob("*.py"))
ASKS_THE_WORLD = {
    *(
        "os",
        "io",
        "socket",
        "ssl",
        "select",
        "selectors",
        "asyncio",
        "threading",
        "multiprocessing",
        "subprocess",
    ),
    *(
        "time",
        "random",
        "secrets",
        "uuid",
        "tempfile",
        "shutil",
        "pathlib",
        "sqlite3",
        "http",
        "urllib",
    ),
    "logging",
}
NOT_CALLED = {"now", "utcnow", "today", "open", "print", "input", "__import__"}


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_of_the_core_imports_and_calls_nothing_of_the_world(path):
    tree = ast.parse(path.read_text())
    for name in imported(tree):
        inside = name == "gateway.domain" or name.startswith("gateway.domain.")
        assert inside or name.partition(".")[0] in sys.stdlib_module_names - ASKS_THE_WORLD, name
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            assert name not in NOT_CALLED, f"{path.name}:{node.lineno} {name}"
