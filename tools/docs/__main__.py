"""Writes the files that are made from the code: pages of ``docs`` and the Python client's types.

``make docs`` runs it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tools.docs import (
    between_nodes,
    client_types,
    commands,
    endpoints,
    platform_clauses,
    reasons,
    settings,
)

_PAGES_BY_NAME: Mapping[str, Callable[[str], str]] = {
    "settings": settings.page,
    "reasons": reasons.page,
    "endpoints": endpoints.page,
    "between-nodes": between_nodes.page,
    "commands": commands.page,
    "platform-conformance": platform_clauses.page,
}


def _contents_by_file() -> dict[str, Callable[[], str]]:
    """Return for each file, relative to the checkout, the function that makes its content."""
    contents: dict[str, Callable[[], str]] = {}
    for name, page in _PAGES_BY_NAME.items():
        contents[f"docs/{name}.md"] = partial(page, "en")
        contents[f"docs/{name}.zh-CN.md"] = partial(page, "zh")
    contents[f"{client_types.CLIENT}/types.py"] = client_types.module
    return contents


PAGES = _contents_by_file()


def main(root: Path = Path()) -> None:
    """Write every file."""
    for file, make in PAGES.items():
        (root / file).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
