"""``make bench``: makespan against bare containers, create_all, the channel, memory.

Prints tables in Markdown. Every ratio compares figures of one run on one machine; seconds alone
say little about other machines. ``--readme`` measures the same parts, and writes their figures
into both READMEs and performance pages: run it on a machine without other work.
"""

import argparse
import time

from tests.e2e.nodes import ROOT

# The modules of parts register their parts when they are imported.
from tools.bench import (  # noqa: F401
    data_parts,
    docker_parts,
    fate_flow,
    flame,
    hostile,
    idle,
    line,
    load_parts,
    party_parts,
    readme,
    request_parts,
    threads,
)
from tools.bench.noise import this_machine
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
    "tasks": "jobs of more and more independent tasks",
    "threads": "system calls and threads for one job",
    "flame": "the flame graph of a job, drawn into docs/images/flame.svg",
    "channel": "messages between nodes by HTTP, against a bare relay",
    "links": "the same by HTTP, gRPC and mutual TLS, up to 1 GiB",
    "line": "a line of 100 ms, with losses, against a bare TCP stream (root)",
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
    "requests",
    "tasks",
    "parties",
    "threads",
    "channel",
    "idle",
    "upload",
    "beside",
    "ended",
    "failover",
    "signing",
)
_SOAKED_JOBS = [1000, 5000, 10_000]


def main() -> None:
    """Measure the requested parts."""
    options = parse_options()
    machine = this_machine()
    print(f"Machine: {machine.english}\n")
    seconds = {}
    for name in _DESCRIPTIONS:
        if is_requested(name, options):
            start = time.monotonic()
            PARTS[name](options)
            seconds[name] = time.monotonic() - start
    parts = ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items())
    print(f"Measured in {sum(seconds.values()):.0f} s: {parts}")
    if options.readme:
        readme.write(ROOT, machine, PRINTED_ROWS)


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
        help="rounds of each measurement; the tables have medians. Default: those that fit into "
        "some seconds, at most five",
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
        "--line-mib",
        type=int,
        default=64,
        help="size of the long messages over the long line; try 256 (reno, cubic: half of it)",
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
    return options.all or part in _DAILY_PARTS


def _list_of_parts() -> str:
    """Return the lines of the help that describe the parts; a star marks those that run daily."""
    lines = ["parts (*: without --only):"]
    for name, description in _DESCRIPTIONS.items():
        mark = "*" if name in _DAILY_PARTS else " "
        lines.append(f"  {mark} {name:11} {description}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
