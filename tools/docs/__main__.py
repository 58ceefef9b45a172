"""Writes the pages that follow from the code into ``docs``: ``make docs``."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tools.docs import endpoints, reasons, settings

PAGES: dict[str, Callable[[], str]] = {
    f"{name}{ending}.md": partial(make, language)
    for name, make in (("settings", settings.page), ("reasons", reasons.page), ("endpoints", endpoints.page))
    for language, ending in (("en", ""), ("zh", ".zh-CN"))
}
"""file name -> what it holds"""


def main(folder: Path = Path("docs")) -> None:
    """Write every page."""
    for name, make in PAGES.items():
        (folder / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
