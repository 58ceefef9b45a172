"""The date of a release in the list of changes, and its tag."""

import re
from datetime import date
from pathlib import Path

from tools.release.artefacts import ReleaseError
from tools.release.files import CHANGES
from tools.release.source import VERSION_FILE, git, version_in

CLIENT_VERSION_FILE = Path("clients/python/bfia_gateway_client/version.py")
SECTION = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)


def date_changes(repository: Path, day: date) -> str:
    """Turn the section of unreleased changes into that of a release; return its title.

    Raises `ReleaseError` if the first section is not that of the version in the sources.
    """
    path = repository / CHANGES
    text = path.read_text(encoding="utf-8")
    version = version_in((repository / VERSION_FILE).read_text(encoding="utf-8"))
    section = first_section(text)
    if section["title"] != f"Unreleased: {version}":
        raise ReleaseError(
            f'the first section of {CHANGES} is "{section["title"]}", not "Unreleased: {version}"'
        )
    title = f"{version} ({day.isoformat()})"
    start, end = section.span("title")
    path.write_text(text[:start] + title + text[end:], encoding="utf-8")
    return title


def first_section(text: str) -> re.Match[str]:
    """Return the heading of the newest changes. Raises `ReleaseError`."""
    match = SECTION.search(text)
    if match is None:
        raise ReleaseError(f"{CHANGES} has no section")
    return match


def make_tag(repository: Path) -> str:
    """Tag the current commit as the release of its version; return the tag. Pushes nothing.

    Raises `ReleaseError` if files are not committed, if the versions differ, if the changes have no
    date, or if the tag exists.
    """
    problems = []
    if git(repository, "status", "--porcelain").strip():
        problems.append("there are files that are not committed")
    version = committed_version(repository, VERSION_FILE)
    client_version = committed_version(repository, CLIENT_VERSION_FILE)
    if client_version != version:
        problems.append(f"the client has version {client_version}, the gateway {version}")
    title = first_section(git(repository, "show", f"HEAD:{CHANGES}"))["title"]
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", title):
        problems.append(
            f'the first section of {CHANGES} is "{title}", without the date of {version}: '
            "python -m tools.release date"
        )
    tag = f"v{version}"
    if git(repository, "tag", "--list", tag).strip():
        problems.append(f"the tag {tag} exists")
    if problems:
        raise ReleaseError("no tag was made:\n" + "\n".join(problems))
    git(repository, "tag", "--annotate", tag, "--message", f"bfia-gateway {version}")
    return tag


def committed_version(repository: Path, file: Path) -> str:
    """Return the version that a file of the last commit gives. Raises `ReleaseError`."""
    return version_in(git(repository, "show", f"HEAD:{file.as_posix()}"))
