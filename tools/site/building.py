"""Collects the pages of a language and has MkDocs build them."""

import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import yaml

from gateway.version import VERSION
from tools.site import LANGUAGES, ROOT
from tools.site.links import LinkRewriter, broken_links
from tools.site.navigation import menu
from tools.site.pages import other_site, pages, translated_to
from tools.site.reason_pages import reason_pages, with_links

_MKDOCS = Path(".venv-site/bin/mkdocs")
# Lets the search run in pages that are opened as files.
_SHIM = Path("tools/javascript/node_modules/iframe-worker/shim/index.js")
_SHIM_PATH = PurePosixPath("javascripts/iframe-worker.js")
_TITLES = {
    "en": "BFIA interconnection gateway",
    "zh": "BFIA 互联互通网关",
}
_NAMES = {"en": "English", "zh": "简体中文"}
_THEME_LANGUAGES = {"en": "en", "zh": "zh"}
_FIRST_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>BFIA interconnection gateway</title>
<ul>
{items}
</ul>
</html>
"""


class BuildFailed(Exception):
    """The site cannot be built; the text names every cause."""


def build(folder: Path, tools: Path) -> None:
    """Build this version's pages below ``folder``/LANGUAGE/VERSION.

    ``tools``: the checkout in which MkDocs and the packages of Node.js are installed.

    Versions built there before stay. Raises `BuildFailed`, and the system's error if the folder
    cannot be written.
    """
    if not (tools / _MKDOCS).exists():
        raise BuildFailed("MkDocs is not installed: run make site, which installs it")
    for language in LANGUAGES:
        staged = folder / ".pages" / language
        shutil.rmtree(staged, ignore_errors=True)
        _collect(staged / "docs", language)
        _copy_shim(tools / _SHIM, staged / "docs" / _SHIM_PATH)
        _configure(staged, language)
        site = folder / language / VERSION
        shutil.rmtree(site, ignore_errors=True)
        _run_mkdocs(tools / _MKDOCS, staged, site)
        (site / "404.html").unlink()  # its links hold only at the root of a host
    shutil.rmtree(folder / ".pages")
    versions = _list_versions(folder)
    _write_first_page(folder, versions)
    problems = sorted(broken_links(folder))
    if problems:
        raise BuildFailed("\n".join(problems))


def _collect(folder: Path, language: str) -> None:
    """Write the Markdown of a language's pages into a folder."""
    all_pages = pages()
    rewriter = LinkRewriter(all_pages, language, VERSION, folder)
    for page in all_pages.values():
        if page.language != language:
            continue
        source = ROOT / page.source
        text = rewriter.rewrite(
            page,
            source.read_text(encoding="utf-8"),
        )
        if page.target == PurePosixPath("reasons.md"):
            text = with_links(text)
        _write(folder / page.target, text)
    for path, text in reason_pages(language).items():
        _write(folder / path, text)


def _copy_shim(source: Path, target: Path) -> None:
    """Copy the script that lets the search run in pages that are opened as files."""
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(source, target)


def _write(path: Path, text: str) -> None:
    """Write a page, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _configure(staged: Path, language: str) -> None:
    """Write MkDocs' configuration of a language's site."""
    index = (staged / "docs" / "index.md").read_text(encoding="utf-8")
    translation = translated_to(language)
    translated_index = f"{other_site(language, VERSION)}index.html"
    alternates = [
        {"name": _NAMES[language], "link": "index.html", "lang": language},
        {"name": _NAMES[translation], "link": translated_index, "lang": translation},
    ]
    configuration = {
        "site_name": f"{_TITLES[language]} {VERSION}",
        "docs_dir": "docs",
        "use_directory_urls": False,
        "nav": menu(index, language),
        "theme": {
            "name": "material",
            "language": _THEME_LANGUAGES[language],
            "font": False,
            "features": ["navigation.tabs", "search.highlight", "content.code.copy"],
        },
        "extra": {
            "alternate": alternates,
            "generator": False,
            "polyfills": [str(_SHIM_PATH)],
            "version": {"provider": "mike"},
        },
        "plugins": [
            {
                "search": {
                    "lang": [_THEME_LANGUAGES[language]],
                    "separator": r"[\s\u200b\-_,:=()/`]+",
                }
            },
            "offline",
        ],
        "markdown_extensions": [
            "tables",
            "admonition",
            {"pymdownx.highlight": {"use_pygments": True}},
            "pymdownx.superfences",
            {"toc": {"permalink": True, "slugify": "SLUGIFY"}},
        ],
        # tools.site.links checks them in the built pages, across both languages.
        "validation": {
            "nav": {"omitted_files": "ignore"},
            "links": {"not_found": "ignore", "unrecognized_links": "ignore"},
        },
    }
    text = yaml.safe_dump(configuration, allow_unicode=True, sort_keys=False)
    slugify = "!!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}"
    _write(staged / "mkdocs.yml", text.replace("SLUGIFY", slugify))


def _run_mkdocs(
    mkdocs: Path,
    staged: Path,
    site: Path,
) -> None:
    """Build a language's site. Raises `BuildFailed` with the errors of MkDocs."""
    site.parent.mkdir(parents=True, exist_ok=True)
    command = [mkdocs, "build", "--strict", "--quiet", "--site-dir", site.resolve()]
    result = subprocess.run(
        [str(part) for part in command],
        cwd=staged,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise BuildFailed(result.stderr.strip())


def _list_versions(folder: Path) -> list[str]:
    """Write the list of built versions, which the pages' menu of versions reads; return it."""
    names: list[str] = []
    for language in LANGUAGES:
        built = []
        for path in (folder / language).iterdir():
            if path.is_dir():
                built.append(path.name)
        names = sorted(
            built,
            key=_version_order,
            reverse=True,
        )
        versions = [{"version": name, "title": name, "aliases": []} for name in names]
        _write(folder / language / "versions.json", json.dumps(versions, indent=2) + "\n")
    return names


def _version_order(name: str) -> list[tuple[int, str]]:
    """Sort versions by the numbers in them: 0.10.0 after 0.9.0."""
    order = []
    for part in name.split("."):
        number = -1
        if part.isdigit():
            number = int(part)
        order.append((number, part))
    return order


def _write_first_page(folder: Path, versions: Iterable[str]) -> None:
    """Write the page on which a reader chooses language and version."""
    items = []
    for version in versions:
        for language in LANGUAGES:
            link = f"{language}/{version}/index.html"
            items.append(f'<li><a href="{link}">{_NAMES[language]} {version}</a></li>')
    _write(folder / "index.html", _FIRST_PAGE.format(items="\n".join(items)))
