"""The site's menu, from the table of docs/README.md and its Chinese version."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+\.md)\)")
_SECTION = re.compile(r"^\| \*\*(.+)\*\* \|")
_START = {"en": "Start", "zh": "开始"}


def menu(index: str, language: str) -> Sequence[dict[str, Any]]:
    """Return the menu: the sections of the index page.

    ``index``: the text of the site's first page, with links as the site needs them.
    """
    entries: list[dict[str, Any]] = [{_START[language]: "index.md"}]
    section = entries
    for line in index.splitlines():
        heading = _SECTION.match(line)
        if heading is not None:
            section = []
            entries.append({heading[1]: section})
        if line.startswith("| ["):
            for title, address in _LINK.findall(line):
                section.append({title: str(PurePosixPath(address))})
    return entries
