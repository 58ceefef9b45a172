"""Build the documentation as static pages: python -m tools.site build DIR (make site)."""

import argparse
import sys
from pathlib import Path

from tools.site import ROOT
from tools.site.building import BuildFailed, build


def main() -> int:
    """Build the site and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.site",
        description="Build docs/ in both languages as static pages that need no network.",
        epilog="example: python -m tools.site build dist/site",
    )
    parser.add_argument("action", choices=["build"])
    parser.add_argument("folder", type=Path, help="folder of the site, e.g. dist/site")
    parser.add_argument(
        "--tools",
        type=Path,
        default=ROOT,
        help="checkout with the environment of MkDocs (default: this one)",
    )
    arguments = parser.parse_args()
    try:
        build(arguments.folder, arguments.tools)
    except BuildFailed as error:
        print(error, file=sys.stderr)
        return 1
    print(f"built: {arguments.folder / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
