"""``python -m tools.release``: builds, signs and checks a release; see docs/release.md."""

import argparse
import json
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

from tools.release import signatures
from tools.release.artefacts import ReleaseError
from tools.release.builders import BUILDERS, ROOT, WITHOUT_IMAGES, build_release
from tools.release.files import CHANGES
from tools.release.images.debian import ARCHITECTURES
from tools.release.images.machine_trial import try_image
from tools.release.tagging import date_changes, make_tag
from tools.release.verify import problems_of

DEFAULT_FOLDER = Path("dist/release")


def main(words: list[str] | None = None) -> int:
    """Run a command; return its exit code."""
    options = parse_options(words)
    try:
        return int(options.run(options))
    except (ReleaseError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


def parse_options(words: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    build = commands.add_parser(
        "build",
        help="build all files of a release from a commit",
    )
    build.set_defaults(run=run_build)
    build.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=DEFAULT_FOLDER,
    )
    build.add_argument(
        "--commit",
        default="HEAD",
        help="revision to build (default: HEAD)",
    )
    build.add_argument(
        "--without-images",
        action="store_true",
        help="packages and files only",
    )
    build.add_argument(
        "--key",
        type=Path,
        help="sign the release with this private key",
    )

    sign = commands.add_parser(
        "sign",
        help="sign a release, also on a machine without a network",
    )
    sign.set_defaults(run=run_sign)
    sign.add_argument("folder", type=Path)
    sign.add_argument(
        "--key",
        type=Path,
        required=True,
        help="file with the private key",
    )

    verify = commands.add_parser(
        "verify",
        help="check all files of a release, offline",
    )
    verify.set_defaults(run=run_verify)
    verify.add_argument("folder", type=Path)
    verify.add_argument(
        "--public-key",
        type=Path,
        help="file with the public key that you trust",
    )

    check = commands.add_parser(
        "check",
        help="run a node with a job in the gateway's image",
    )
    check.set_defaults(run=run_check)
    check.add_argument("folder", type=Path)
    check.add_argument(
        "--arch",
        choices=sorted(ARCHITECTURES),
        default=platform.machine(),
    )

    key = commands.add_parser(
        "key",
        help="make a key pair: FILE and FILE.pub",
    )
    key.set_defaults(run=run_key)
    key.add_argument("file", type=Path)

    day = commands.add_parser(
        "date",
        help="give the newest section of CHANGELOG.md today's date",
    )
    day.set_defaults(run=run_date)

    tag = commands.add_parser(
        "tag",
        help="tag the current commit as a release; pushes nothing",
    )
    tag.set_defaults(run=run_tag)
    return parser.parse_args(words)


def run_build(options: argparse.Namespace) -> int:
    """Build a release into an empty or new folder, and sign it if there is a key."""
    key = None
    if options.key is not None:
        key = signatures.read_private_key(options.key)
    builders = BUILDERS
    if options.without_images:
        builders = WITHOUT_IMAGES
    build_release(options.folder, options.commit, builders)
    if key is not None:
        signatures.sign_release(options.folder, key)
    for path in sorted(options.folder.iterdir()):
        print(path)
    if key is None:
        print(f"not signed yet: python -m tools.release sign {options.folder} --key FILE")
    return 0


def run_sign(options: argparse.Namespace) -> int:
    """Sign a release."""
    signatures.sign_release(options.folder, signatures.read_private_key(options.key))
    print_key(options.folder)
    return 0


def run_verify(options: argparse.Namespace) -> int:
    """Check a release; print each problem, or the number of correct files."""
    public_key = b""
    if options.public_key is not None:
        public_key = options.public_key.read_bytes()
    problems = problems_of(options.folder, public_key)
    for problem in problems:
        print(problem)
    if problems:
        return 1
    number = len(list(options.folder.iterdir()))
    print(f"{options.folder}: {number} files are correct")
    print_key(options.folder)
    if not public_key:
        print("compare this key with the one that its maker published, or give --public-key")
    return 0


def run_check(options: argparse.Namespace) -> int:
    """Try the gateway's image of a release, also of another machine; print the result."""
    images = sorted(options.folder.glob(f"bfia-gateway-image-*-{options.arch}.tar"))
    if not images:
        raise ReleaseError(f"{options.folder} has no image of the gateway for {options.arch}")
    for image in images:
        print(json.dumps(try_image(image, options.arch)))
    return 0


def run_key(options: argparse.Namespace) -> int:
    """Make a key pair."""
    signatures.make_key(options.file)
    print(f"wrote {options.file}, to be kept offline, and {options.file}.pub, to be published")
    return 0


def run_date(_options: argparse.Namespace) -> int:
    """Date the list of changes."""
    title = date_changes(ROOT, datetime.now(UTC).date())
    print(f"{CHANGES}: {title}; commit it, then: python -m tools.release tag")
    return 0


def run_tag(_options: argparse.Namespace) -> int:
    """Tag the current commit."""
    tag = make_tag(ROOT)
    print(f"made the tag {tag}; to publish it: git push origin {tag}")
    return 0


def print_key(folder: Path) -> None:
    """Print the fingerprint of the key that signed a release."""
    key = signatures.parse_public_key((folder / signatures.PUBLIC_KEY).read_bytes())
    print(f"signed with the key {signatures.fingerprint(key)}")


if __name__ == "__main__":
    sys.exit(main())
