"""The project's pages for users: the folder ``docs``, which the installed package brings along."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from gateway.language.catalogue import CHINESE

# The folder in a checkout, and in the installed package (see ``force-include`` in
# ``pyproject.toml``). Only one of them exists.
_FOLDERS = (
    Path(__file__).resolve().parents[2] / "docs",
    Path(__file__).resolve().parents[1] / "documents",
)
_CHINESE_SUFFIX = ".zh-CN.md"
# A page with a name of one word, that is, no decision and no Chinese twin.
_PAGE = re.compile(r"[\w-]+\.md")
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
INDEX = "README"  # name of the page that lists the others


@cache
def files() -> Mapping[str, Path]:
    """Return every file of the documentation by its path in the folder, such as ``vendor.md``.

    Empty if the package was installed without them.
    """
    result = {}
    for folder in _FOLDERS:
        for path in sorted(folder.rglob("*.*")):
            result[path.relative_to(folder).as_posix()] = path
    return result


def file_of(name: str, language: str) -> str:
    """Return the file of a page in a language; "" if there is no page of that name.

    ``name``: such as ``vendor``, ``vendor.md`` or ``docs/vendor.md``. A page without a Chinese
    twin, such as a decision, is in English.
    """
    stem = name.removeprefix("docs/").removesuffix(".md").removesuffix(".zh-CN")
    candidates = [f"{stem}.md"]
    if language == CHINESE:
        candidates.insert(0, f"{stem}{_CHINESE_SUFFIX}")
    existing = filter(files().__contains__, candidates)
    return next(existing, "")


def titles(language: str) -> Mapping[str, str]:
    """Return the title of every page by its name; decisions, in a folder of their own, are not in.

    A title is the first heading.
    """
    pages = filter(_PAGE.fullmatch, files())
    names = [page.removesuffix(".md") for page in pages]
    return {name: title_of(text_of(file_of(name, language))) for name in names}


def text_of(file: str) -> str:
    """Return the Markdown of a page; ``file`` is one of `files`."""
    return files()[file].read_text(encoding="utf-8")


def title_of(text: str) -> str:
    """Return the first heading of a page; "" without one."""
    headings = _TITLE.findall(text)
    return "".join(headings[:1])
