"""Links of a page: rewritten for the site, and checked in the built pages."""

import os
import posixpath
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from tools.site import ROOT
from tools.site.pages import Page, html_of, other_site, up_to_root

# A link or picture: its mark, its text, its address.
_LINK = re.compile(
    r"(!?)"
    r"\[((?:[^\[\]]|\[[^\]]*\])*)\]"
    r"\(([^()\s]+)\)",
)
_FENCE = "```"
_CODE = re.compile(rf"(^{_FENCE}.*?^{_FENCE}$)", re.MULTILINE | re.DOTALL)
_FILES = PurePosixPath("files")  # folder of the site for files that are no pages


@dataclass
class LinkRewriter:
    """Rewrites the links of a language's pages; copies files that they refer to into the site."""

    pages: Mapping[PurePosixPath, Page]
    language: str
    version: str
    folder: Path  # in which the pages of this language are collected

    def rewrite(self, page: Page, text: str) -> str:
        """Return the text of a page with its links as the site needs them."""
        parts = []
        for part in _CODE.split(text):
            if not part.startswith(_FENCE):
                part = _LINK.sub(partial(self._rewritten, page), part)
            parts.append(part)
        return "".join(parts)

    def _rewritten(self, page: Page, link: re.Match[str]) -> str:
        """Return a link; only its text if the site has no such file."""
        mark, text, address = link.groups()
        if urlsplit(address).scheme or address.startswith("#"):
            return link[0]
        path, _, anchor = address.partition("#")
        linked_path = page.source.parent / unquote(path)
        source = PurePosixPath(posixpath.normpath(linked_path))
        target = self._target(page, source)
        if target is None:
            return text
        if anchor:
            target = f"{target}#{anchor}"
        return f"{mark}[{text}]({target})"

    def _target(
        self,
        page: Page,
        source: PurePosixPath,
    ) -> str | None:
        """Return the path from a page to a file of the repository; None if it stays outside."""
        linked_page = self.pages.get(source)
        if linked_page is None:
            return self._path_of_file(page, source)
        if linked_page.language == self.language:
            return os.path.relpath(linked_page.target, page.target.parent)
        to_other_site = up_to_root(page.target) + other_site(self.language, self.version)
        return to_other_site + str(html_of(linked_page.target))

    def _path_of_file(
        self,
        page: Page,
        source: PurePosixPath,
    ) -> str | None:
        """Copy a file outside the site into the site and return the path to it."""
        file = ROOT / source
        if not file.is_file():
            return None
        target = _FILES / source
        if source.parts[0] == "docs":
            target = source.relative_to("docs")
        copy = self.folder / target
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        return os.path.relpath(target, page.target.parent)


class _Addresses(HTMLParser):
    """Collects the addresses and the anchors of an HTML page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.anchors: set[str] = set()

    def has(self, anchor: str) -> bool:
        """Return whether the page has an anchor; every page has the empty one."""
        return not anchor or anchor in self.anchors

    def handle_starttag(
        self,
        tag: str,
        attrs: list[tuple[str, str | None]],
    ) -> None:
        """Note what an element refers to, and its own anchor."""
        for name, value in attrs:
            if value is None:
                continue
            if name in ("href", "src"):
                self.addresses.append(value)
            if name == "id":
                self.anchors.add(value)


def broken_links(site: Path) -> Iterator[str]:
    """Yield the links of built pages that lead nowhere or to another host's file, with their page.

    Links that a person follows to another host are allowed; scripts, styles and pictures are not.
    """
    parsed = {path.resolve(): _parsed(path) for path in site.rglob("*.html")}
    for path, page in parsed.items():
        for address in page.addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = path
            if parts.path:
                target = (path.parent / unquote(parts.path)).resolve()
            if target.is_dir():
                target = target / "index.html"
            place = f"{path.relative_to(site.resolve())}: {address}"
            if not target.exists():
                yield f"{place}: no such file"
            elif target in parsed and not parsed[target].has(unquote(parts.fragment)):
                yield f"{place}: no such heading"


def _parsed(path: Path) -> _Addresses:
    """Return the addresses of a built page."""
    page = _Addresses()
    page.feed(path.read_text(encoding="utf-8"))
    return page
