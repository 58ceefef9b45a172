"""Where modules of the product may be."""

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
