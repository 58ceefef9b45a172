"""Where modules of the product may be, and which of their names tests may replace."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Modules that every package of the gateway may import.
SHARED = {
    "__init__.py",
    "auth.py",
    "container_listener.py",
    "errors.py",
    "ports.py",
    "version.py",
}


def test_only_shared_modules_are_outside_a_package():
    modules = {path.name for path in (ROOT / "gateway").glob("*.py")}
    assert modules == SHARED


def test_no_test_replaces_a_private_name():
    """A test uses what the product offers: a constructor argument, a setting, a public method."""
    replacements = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        lines = replacements_in(ast.parse(path.read_text(encoding="utf-8")))
        if lines:
            replacements[str(path.relative_to(ROOT / "tests"))] = lines
    assert replacements == {}


def replacements_in(tree: ast.Module) -> list[int]:
    """Return the lines that set an attribute with a private name of an object other than self."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not is_own and is_private(node.attr):
                lines.append(node.lineno)
        elif isinstance(node, ast.Call) and is_setattr(node.func):
            for argument in node.args[:2]:
                if isinstance(argument, ast.Constant) and is_private(argument.value):
                    lines.append(node.lineno)
    return lines


def is_setattr(function: ast.expr) -> bool:
    """Return whether a called function is ``setattr``, of a monkeypatch or the built-in one."""
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name == "setattr"
    return False


def is_private(name: object) -> bool:
    """Return whether the last part of a dotted name begins with one underscore."""
    last = str(name).rpartition(".")[2]
    return last.startswith("_") and not last.startswith("__")
