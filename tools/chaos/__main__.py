"""``make chaos``: every fault in every phase of a job, on two real nodes.

Trials run with processes and with Docker, with one gateway and with two gateways of the guest's
node, and with two closed nodes that keep links to a hub (ENGINE=links). SEED= determines the order,
COUNT= the number of trials with each engine, DATABASE= whether MariaDB or PostgreSQL is used.
ENGINE=k8s and ENGINE=swarm use the clusters that .ci/services.sh starts.
"""

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.e2e.nodes import wait_for
from tests.services import own_docker, usable
from tools.chaos import links
from tools.chaos.databases import DATABASES
from tools.chaos.trials import Result, Trial, all_trials, play, sample
from tools.chaos.world import ENGINES, World, within

LEAST = 3  # trials that are played even after the time limit
_LONGEST_TEXT = 4000  # characters of a broken rule
_LONGEST_LOG = 6000  # characters of a node's log
# Programs that the world of an engine needs.
_PROGRAMS = {
    "docker": own_docker.PROGRAMS,
    "links": links.PROGRAMS,
}
# Whether the guest's node has two gateways, by the option --gateways.
_PAIRED = {
    "1": (False,),
    "2": (True,),
    "both": (False, True),
}


def main() -> None:
    """Play the trials of the options; the exit code is 1 if a rule was broken."""
    options = parse_options()
    engines = [options.engine]
    if options.engine == "both":
        engines = ["process", "docker", "links"]
    results = []
    for engine in engines:
        if engine in _PROGRAMS:
            check_programs(engine)
        gateways = _PAIRED[options.gateways]
        if engine == "links":  # its nodes have one each
            gateways = (False,)
        for paired in gateways:
            results += run(
                options.seed,
                options.count,
                options.seconds,
                options.only,
                engine,
                paired,
                database=options.database,
            )
    has_broken_rule = any(result.broken for result in results)
    sys.exit(int(has_broken_rule))


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="make chaos SEED=... COUNT=...",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--count",
        type=int,
        default=0,
        help="0: each phase with each fault once",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=0,
        help=f"after this begin none but the first {LEAST} trials; 0: no limit",
    )
    parser.add_argument(
        "--only",
        default="",
        help="faults or phases whose names hold this text",
    )
    parser.add_argument("--engine", choices=(*ENGINES, "both"), default="both")
    parser.add_argument(
        "--gateways",
        choices=tuple(_PAIRED),
        default="both",
        help="of the guest's node",
    )
    parser.add_argument(
        "--database",
        choices=tuple(DATABASES),
        default="mariadb",
        help="kind of the nodes' server",
    )
    return parser.parse_args()


def check_programs(engine: str) -> None:
    """End the program if this machine cannot run the world of an engine."""
    try:
        usable(*_PROGRAMS[engine])
    except OSError as error:
        sys.exit(f"with {engine} nothing is shown: {error}")


def run(
    seed: int,
    count: int = 0,
    seconds: float = 0,
    only: str = "",
    engine: str = "process",
    paired: bool = False,
    brief: bool = False,
    database: str = "mariadb",
) -> list[Result]:
    """Play trials, print each result, and return the results.

    - ``count``: number of trials; 0: all trials once
    - ``seconds``: no trial begins after this time, except the first ones; 0: no limit
    - ``only``: part of a fault or phase
    - ``brief``: play the trials of `sample` instead
    - ``database``: kind of the nodes' server
    """
    trials = select_trials(seed, count, only, engine, paired, brief)
    end = time.monotonic() + seconds if seconds else float("inf")

    def play_all(world: World) -> list[Result]:
        gateways = "two gateways" if paired else "one gateway"
        title = f"{engine}, {database}, {gateways}, seed {seed}"
        print(f"| phase | fault | outcome | reason | seconds | until back | {title} |")
        print("|---|---|---|---|---|---|---|")
        results: list[Result] = []
        for trial in trials:
            if time.monotonic() > end and len(results) >= LEAST:
                break
            result = play(world, trial)
            results.append(result)
            print_result(world, result)
        wait_for_containers(world)
        return results

    with TemporaryDirectory(prefix="bfia-chaos-") as home:
        results = within(engine, Path(home), play_all, paired, database)
    broken = sum(bool(result.broken) for result in results)
    print(f"\n{len(results)} trials, {broken} broken", flush=True)
    return results


def select_trials(
    seed: int,
    count: int,
    only: str,
    engine: str,
    paired: bool,
    brief: bool,
) -> list[Trial]:
    """Return ``count`` trials, with further seeds if one seed has too few; see `run`.

    The list is empty if no trial has the text ``only`` in its fault or phase.
    """
    trials: list[Trial] = []
    while True:
        new_trials = sample(seed, engine) if brief else all_trials(seed, engine, paired)
        selected = [trial for trial in new_trials if only in trial.fault or only in trial.phase]
        trials += selected
        if not selected or len(trials) >= count:
            return trials[: count or None]
        seed += 1


def wait_for_containers(world: World) -> None:
    """Wait until no container is left, now including the ones that brief trials ignore."""
    world.containers.brief = False

    def none_is_left() -> bool:
        return not world.containers.remaining()

    wait_for(none_is_left, about="no container is left of any trial")


def print_result(world: World, result: Result) -> None:
    """Print a result, and the nodes' logs if a rule was broken."""
    text = result.broken.replace("\n", " ")[:_LONGEST_TEXT] or "well"
    trial = result.trial
    seconds = f"{result.seconds:.1f}"
    until_back = ""
    if result.until_back:
        until_back = f"{result.until_back:.1f}"
    cells = (
        trial.phase,
        trial.fault,
        result.outcome,
        result.reason,
        seconds,
        until_back,
        text,
    )
    print(f"| {' | '.join(cells)} |", flush=True)
    if result.broken:
        for node in world.nodes:
            print(
                node.log()[-_LONGEST_LOG:],
                node.run_logs(),
                file=sys.stderr,
            )
        if world.database is not None:
            print(world.database.log()[-_LONGEST_LOG:], file=sys.stderr)


if __name__ == "__main__":
    main()
