"""The core stays pure: it imports the standard library and itself, and never asks what time it is."""

import ast
import sys
from pathlib import Path

import pytest

import gateway.domain

MODULES = sorted(Path(gateway.domain.__file__).parent.rglob("*.py"))
ASKS_THE_WORLD = {
    *("os", "io", "socket", "ssl", "select", "selectors", "asyncio", "threading", "multiprocessing", "subprocess"),
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
        "logging",
    ),
}
NOW = {"now", "utcnow", "today"}


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_of_the_core_imports_only_the_standard_library_and_the_core(path):
    for name in imported(ast.parse(path.read_text())):
        inside = name == "gateway.domain" or name.startswith("gateway.domain.")
        assert inside or name.partition(".")[0] in sys.stdlib_module_names, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_of_the_core_does_not_touch_the_world(path):
    tree = ast.parse(path.read_text())
    assert not {name.partition(".")[0] for name in imported(tree)} & ASKS_THE_WORLD
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            assert name not in NOW | {"open", "print", "input", "__import__"}, f"{path.name}:{node.lineno} {name}"
