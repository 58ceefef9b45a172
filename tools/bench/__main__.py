"""``make bench``: makespan against bare containers, create_all, the channel, memory.

Prints tables in Markdown. Every ratio compares figures of one run on one machine; seconds alone say
little about other machines. ``--readme`` measures the figures of both READMEs and performance
pages, on a quiet machine, and writes them there.
"""

import argparse
import os
import platform
import subprocess

from tests.e2e.nodes import ROOT

# The modules of parts register their parts when they are imported.
from tools.bench import (  # noqa: F401
    data_parts,
    docker_parts,
    hostile,
    idle,
    load_parts,
    readme,
    request_parts,
    threads,
)
from tools.bench.parts import PARTS, PRINTED_ROWS

# The order of the tables.
_ORDER = (
    "makespan",
    "namespaces",
    "together",
    "clusters",
    "create",
    "requests",
    "threads",
    "channel",
    "sealing",
    "training",
    "memory",
    "idle",
    "upload",
    "storage",
    "beside",
    "thousand",
    "ended",
    "console",
    "failover",
    "signing",
    "hostile",
    "soak",
)
# Parts that run only on request, as they take long.
_LONG_PARTS = ("thousand", "soak", "training")
_SOAKED_JOBS = [1000, 5000, 10_000]


def main() -> None:
    """Measure the requested parts."""
    options = parse_options()
    cores = os.cpu_count()
    print(f"Machine: {cores} cores, {platform.machine()}, Python {platform.python_version()}\n")
    for name in _ORDER:
        if is_requested(name, options):
            PARTS[name](options)
    if options.readme:
        readme.write(ROOT, machine_name(), PRINTED_ROWS)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="make bench ARGS=...",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="repetitions of each makespan; the table has the median",
    )
    parser.add_argument(
        "--only",
        choices=_ORDER,
        help="one part only",
    )
    parser.add_argument(
        "--upload-gib",
        type=float,
        default=0.25,
        help="size of the uploaded table; try 5",
    )
    parser.add_argument(
        "--tasks",
        type=int,
        default=200,
        help="independent tasks of the large job; try 1000",
    )
    parser.add_argument(
        "--soak",
        type=int,
        nargs="+",
        default=_SOAKED_JOBS,
        help="jobs in progress of that part",
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=100_000,
        help="rows of the part training, which takes long",
    )
    parser.add_argument(
        "--readme", action="store_true", help="measure the figures of the pages, and write them"
    )
    return parser.parse_args()


def is_requested(part: str, options: argparse.Namespace) -> bool:
    """Return whether the options select a part."""
    if options.only is not None:
        return bool(options.only == part)
    if options.readme:
        return part in readme.NEEDED
    return part not in _LONG_PARTS


def machine_name() -> str:
    """Return the machine as the pages name it: cores, architecture, Python and Docker."""
    docker = subprocess.run(
        ["docker", "version", "-f", "{{.Server.Version}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    docker_version = ".".join(docker.stdout.strip().split(".")[:2])
    python_version = ".".join(platform.python_version_tuple()[:2])
    versions = f"Python {python_version}, Docker {docker_version}"
    return f"{os.cpu_count()} cores ({platform.machine()}, {versions})"


if __name__ == "__main__":
    main()
