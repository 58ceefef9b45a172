"""``make bench``: makespan against bare containers, create_all, the channel, memory.

Prints tables in Markdown. Every ratio compares figures of one run on one machine; seconds alone say
little about other machines. ``--readme`` measures the figures of both READMEs and performance
pages, on a quiet machine, and writes them there.
"""

import argparse
import os
import platform
import subprocess
import time

from tests.e2e.nodes import ROOT

# The modules of parts register their parts when they are imported.
from tools.bench import (  # noqa: F401
    data_parts,
    docker_parts,
    fate_flow,
    hostile,
    idle,
    load_parts,
    party_parts,
    readme,
    request_parts,
    threads,
)
from tools.bench.parts import PARTS, PRINTED_ROWS

# What each part measures, in the order of the tables.
_DESCRIPTIONS = {
    "makespan": "chains of tasks under Docker, against bare containers",
    "namespaces": "prepared network namespaces, for tasks of some seconds",
    "together": "fifty jobs under Docker, against bare containers",
    "clusters": "jobs under Swarm and Kubernetes, against bare ones",
    "fate": "create_all beside FATE-Flow's published server",
    "create": "create_all while containers run, against a bare pair of nodes",
    "requests": "create_all and reads without containers, against bare nodes; commands",
    "threads": "system calls and threads for one job",
    "channel": "messages between nodes, against a bare relay",
    "sealing": "sealed messages, against unsealed ones",
    "training": "the channel's part in trainings",
    "idle": "memory by package and threads of an idle node, beside FATE-Flow's server",
    "upload": "a table into the node's folder, and the growth of the node",
    "storage": "a table into S3 and back, against the bare library",
    "beside": "a small job beside a large one, against the small job alone",
    "thousand": "a thousand jobs submitted together",
    "ended": "a job beside ended jobs in the database, against the same job alone",
    "parties": "jobs with 2, 5 and 10 parties",
    "console": "the console's pages beside ended jobs",
    "failover": "the death of one of two gateways",
    "signing": "signatures of control requests",
    "hostile": "health while a node reads hostile descriptions",
    "soak": "thousands of jobs in progress on three gateways",
}
# The parts of a run without options, which together take less than ten minutes on two cores. The
# others run by ``--only`` or ``--all``.
_DAILY_PARTS = (
    "makespan",
    "fate",
    "create",
    "requests",
    "threads",
    "channel",
    "idle",
    "beside",
    "ended",
    "failover",
    "signing",
)
_SOAKED_JOBS = [1000, 5000, 10_000]


def main() -> None:
    """Measure the requested parts."""
    options = parse_options()
    cores = os.cpu_count()
    load = os.getloadavg()[0]  # of the last minute: other work makes the figures larger
    python = platform.python_version()
    print(f"Machine: {cores} cores, {platform.machine()}, Python {python}, load {load:.1f}\n")
    start = time.monotonic()
    for name in _DESCRIPTIONS:
        if is_requested(name, options):
            PARTS[name](options)
    print(f"Measured in {time.monotonic() - start:.0f} s")
    if options.readme:
        readme.write(ROOT, machine_name(), PRINTED_ROWS)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="make bench ARGS=...",
        epilog=_list_of_parts(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="repetitions of each makespan; the table has the median",
    )
    parser.add_argument(
        "--only",
        choices=_DESCRIPTIONS,
        metavar="PART",
        help="one part only; the parts are listed below",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="all parts; this takes hours",
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
    return options.all or part in _DAILY_PARTS


def _list_of_parts() -> str:
    """Return the lines of the help that describe the parts; a star marks those that run daily."""
    lines = ["parts (*: without --only):"]
    for name, description in _DESCRIPTIONS.items():
        mark = "*" if name in _DAILY_PARTS else " "
        lines.append(f"  {mark} {name:11} {description}")
    return "\n".join(lines)


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
