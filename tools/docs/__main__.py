"""Writes what follows from the code, pages of ``docs`` and the Python client's types:

``make docs``.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tools.docs import client_types, endpoints, reasons, settings

PAGES: dict[str, Callable[[], str]] = {
    f"docs/{name}{ending}.md": partial(make, language)
    for name, make in (
        ("settings", settings.page),
        ("reasons", reasons.page),
        ("endpoints", endpoints.page),
    )
    for language, ending in (("en", ""), ("zh", ".zh-CN"))
} | {f"{client_types.CLIENT}/types.py": client_types.module}
"""file -> what it holds"""


def main(root: Path = Path()) -> None:
    """Write every file."""
    for name, make in PAGES.items():
        (root / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
