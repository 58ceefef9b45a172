"""The sources of a release: the files of one commit."""

import io
import re
import subprocess
import tarfile
from pathlib import Path

from tools.release.artefacts import ReleaseError, Source

VERSION_FILE = Path("gateway") / "version.py"
VERSION_LINE = re.compile(r'^VERSION = "([^"]+)"$', re.MULTILINE)


def export(
    repository: Path,
    revision: str,
    folder: Path,
) -> Source:
    """Write the files of a commit to a folder. Files that are not committed are left out.

    Raises `ReleaseError` for an unknown revision.
    """
    commit = git(repository, "rev-parse", "--verify", f"{revision}^{{commit}}").strip()
    epoch = int(git(repository, "show", "-s", "--format=%ct", commit))
    archive = git_bytes(repository, "-c", "tar.umask=0022", "archive", "--format=tar", commit)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="tar")
    return Source(
        folder=folder,
        commit=commit,
        epoch=epoch,
        version=version_in((folder / VERSION_FILE).read_text(encoding="utf-8")),
    )


def version_in(text: str) -> str:
    """Return the version that a module `version.py` gives. Raises `ReleaseError`."""
    match = VERSION_LINE.search(text)
    if match is None:
        raise ReleaseError('version.py has no line VERSION = "…"')
    return match.group(1)


def git(repository: Path, *words: str) -> str:
    """Return the output of a git command. Raises `ReleaseError`."""
    return git_bytes(repository, *words).decode()


def git_bytes(repository: Path, *words: str) -> bytes:
    """Return the output of a git command as bytes. Raises `ReleaseError`."""
    command = ["git", "-C", str(repository), *words]
    process = subprocess.run(
        command,
        capture_output=True,
        check=False,
    )
    if process.returncode != 0:
        reason = process.stderr.decode(errors="replace").strip()
        raise ReleaseError(f"git {words[0]} failed: {reason}")
    return process.stdout
