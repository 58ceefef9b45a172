"""Where the product's modules stand."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLAT = {"__init__.py", "auth.py", "container_listener.py", "errors.py", "ports.py", "version.py"}


def test_only_what_every_room_shares_stands_in_no_room():
    assert {path.name for path in (ROOT / "gateway").glob("*.py")} == FLAT
