"""``python -m tools.release``: the commands ``build`` and ``verify``."""

import argparse
import sys
import tempfile
from pathlib import Path

from tools.release.artefacts import Build, ReleaseError
from tools.release.builders import build_artefacts
from tools.release.checksums import write_checksums
from tools.release.source import export
from tools.release.verify import problems_of

ROOT = Path(__file__).resolve().parents[2]


def main(words: list[str] | None = None) -> int:
    """Run a command; return its exit code."""
    options = parse_options(words)
    try:
        return int(options.run(options))
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1


def parse_options(words: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="build all files of a release from a commit")
    build.set_defaults(run=run_build)
    build.add_argument("folder", type=Path, nargs="?", default=Path("dist/release"))
    build.add_argument("--commit", default="HEAD", help="revision to build (default: HEAD)")
    verify = commands.add_parser("verify", help="check the files of a release, offline")
    verify.set_defaults(run=run_verify)
    verify.add_argument("folder", type=Path)
    return parser.parse_args(words)


def run_build(options: argparse.Namespace) -> int:
    """Build a release into an empty or new folder."""
    build_release(options.folder, options.commit)
    for path in sorted(options.folder.iterdir()):
        print(path)
    return 0


def build_release(folder: Path, revision: str) -> None:
    """Build every file of a release. Raises `ReleaseError`, also for a folder with files."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ReleaseError(f"{folder} is not empty: empty it, or name another folder")
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        source = export(ROOT, revision, scratch / "source")
        build_artefacts(Build(source, folder, scratch))
    write_checksums(folder)


def run_verify(options: argparse.Namespace) -> int:
    """Check a release; print each problem, or the number of correct files."""
    problems = problems_of(options.folder)
    for problem in problems:
        print(problem)
    if not problems:
        number = len(list(options.folder.iterdir()))
        print(f"{options.folder}: {number} files are correct")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
