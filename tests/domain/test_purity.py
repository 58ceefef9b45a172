"""The domain is pure: it imports the standard library and itself, and never reads the clock."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gateway.domain

MODULES = sorted(Path(gateway.domain.__file__).parent.rglob("*.py"))

# Modules of the standard library that reach outside the process, or depend on time or chance.
IMPURE_MODULES = frozenset(
    [
        "asyncio",
        "http",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "socket",
        "sqlite3",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
    ]
)
PURE_MODULES = sys.stdlib_module_names - IMPURE_MODULES

# Functions that read the clock or reach outside the process.
IMPURE_FUNCTIONS = {"now", "utcnow", "today", "open", "print", "input", "__import__"}


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Yield the name of each imported module; relative ones begin with their dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def called_functions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each call; the name is empty where the function is no plain name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
            yield node.lineno, name


def is_domain_module(name: str) -> bool:
    return name == "gateway.domain" or name.startswith("gateway.domain.")


@pytest.mark.parametrize("path", MODULES, ids=[path.stem for path in MODULES])
def test_a_domain_module_imports_and_calls_nothing_impure(path: Path):
    tree = ast.parse(path.read_text())

    for name in imported_modules(tree):
        assert is_domain_module(name) or name.partition(".")[0] in PURE_MODULES, name
    for line, name in called_functions(tree):
        assert name not in IMPURE_FUNCTIONS, f"{path.name}:{line} {name}"
