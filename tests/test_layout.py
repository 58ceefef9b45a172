"""Where the product's modules stand, and how large they are."""

from pathlib import Path

from tools.figures import LARGEST, SMALLEST, modules

ROOT = Path(__file__).resolve().parents[1]
FLAT = {"__init__.py", "auth.py", "container_listener.py", "errors.py", "ports.py", "version.py"}


def test_a_module_fits_a_sitting_and_is_worth_a_file():
    assert {name: size for name, size in modules().items() if not SMALLEST <= size <= LARGEST} == {}


def test_only_what_every_room_shares_stands_in_no_room():
    assert {path.name for path in (ROOT / "gateway").glob("*.py")} == FLAT
