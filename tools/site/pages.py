"""Which files of the repository become pages of the site, and where."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tools.site import CHINESE_SUFFIX, ROOT, language_of

# Pages outside docs/ that the documentation refers to.
_OTHER_PAGES = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "compose/README.md",
    "compose/README.zh-CN.md",
    "examples/fate_vendor/README.md",
    "examples/fate_vendor/README.zh-CN.md",
    "examples/reference_vendor/README.md",
    "examples/reference_vendor/README.zh-CN.md",
)


@dataclass(frozen=True)
class Page:
    """A page of the site.

    ``source``: its file, relative to the repository; ``target``: relative to its language's site.
    """

    source: PurePosixPath
    language: str
    target: PurePosixPath


def pages() -> Mapping[PurePosixPath, Page]:
    """Return the pages of both languages by their source."""
    documents = [path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")]
    outside = [Path(name) for name in _OTHER_PAGES]
    by_source = {}
    for path in sorted([*documents, *outside]):
        source = PurePosixPath(path)
        by_source[source] = Page(
            source,
            language_of(path),
            _target_of(source),
        )
    return by_source


def _target_of(source: PurePosixPath) -> PurePosixPath:
    """Return a page's place in the site of its language: docs/ is the site's root."""
    name = source.name
    if name.endswith(CHINESE_SUFFIX):
        name = name.removesuffix(CHINESE_SUFFIX) + ".md"
    if source == PurePosixPath("docs") / source.name and name == "README.md":
        return PurePosixPath("index.md")
    if source.parts[0] == "docs":
        return PurePosixPath(*source.parts[1:-1], name)
    return PurePosixPath("project", *source.parts[:-1], name)


def html_of(target: PurePosixPath) -> PurePosixPath:
    """Return the file into which MkDocs makes a page."""
    if target.name == "README.md":
        return target.with_name("index.html")
    return target.with_suffix(".html")


def up_to_root(target: PurePosixPath) -> str:
    """Return the relative path from a page to the root of its language's site."""
    return "../" * (len(target.parts) - 1)


def other_site(language: str, version: str) -> str:
    """Return the path from the root of one language's site to that of the other language."""
    return f"../../{translated_to(language)}/{version}/"


def translated_to(language: str) -> str:
    """Return the language of a page's translation."""
    translations = {"en": "zh", "zh": "en"}
    return translations[language]
