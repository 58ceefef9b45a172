"""``make chaos``: every fault in every phase of a job, on two real nodes, with processes and with
Docker.

Then those of a node that is two gateways. SEED= for the order, COUNT= how many with each engine.
ENGINE=k8s and ENGINE=swarm are in the clusters that .ci/services.sh starts.
"""

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.e2e.nodes import wait_for
from tests.services import usable
from tests.services.own_docker import PROGRAMS
from tools.chaos.trials import Result, Trial, all_trials, play, sample
from tools.chaos.world import ENGINES, World, within

LEAST = 3
"""trials that are played whatever time they take"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="make chaos SEED=... COUNT=...")
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
    parser.add_argument("--only", default="", help="faults or phases whose names hold this text")
    parser.add_argument("--engine", choices=(*ENGINES, "both"), default="both")
    parser.add_argument(
        "--gateways",
        choices=("1", "2", "both"),
        default="both",
        help="of the guest's node",
    )
    asked = parser.parse_args()
    results = []
    for engine in ("process", "docker") if asked.engine == "both" else (asked.engine,):
        if engine == "docker":
            try:
                usable(*PROGRAMS)
            except OSError as error:
                sys.exit(f"with Docker nothing is shown: {error}")
        for paired in {
            "1": (False,),
            "2": (True,),
            "both": (False, True),
        }[asked.gateways]:
            results += run(asked.seed, asked.count, asked.seconds, asked.only, engine, paired)
    sys.exit(1 if any(result.broken for result in results) else 0)


def run(
    seed: int,
    count: int = 0,
    seconds: float = 0,
    only: str = "",
    engine: str = "process",
    paired: bool = False,
    brief: bool = False,
) -> list[Result]:
    """Play trials, telling of each; return what became of them. ``brief``: those of `sample`."""

    def chosen(seed: int) -> list[Trial]:
        if brief:
            return sample(seed, engine)
        return [t for t in all_trials(seed, engine, paired) if only in t.fault or only in t.phase]

    trials = chosen(seed)
    while count > len(trials):
        seed += 1
        trials += chosen(seed)
    began = time.monotonic()

    def played(world: World) -> list[Result]:
        of = f"{engine}, {'two gateways' if paired else 'one gateway'}, seed {seed}"
        print(f"| phase | fault | outcome | reason | seconds | {of} |\n|---|---|---|---|---|---|")
        results: list[Result] = []
        for trial in trials[: count or None]:
            if seconds and time.monotonic() - began > seconds and len(results) >= LEAST:
                break
            results.append(play(world, trial))
            tell(world, results[-1])
        world.containers.brief = False
        wait_for(lambda: not world.containers.left(), about="no container is left of any trial")
        return results

    with TemporaryDirectory(prefix="bfia-chaos-") as home:
        results = within(engine, Path(home), played, paired)
    broken = sum(bool(result.broken) for result in results)
    print(f"\n{len(results)} trials, {broken} broken", flush=True)
    return results


def tell(world: World, result: Result) -> None:
    """Print what became of a trial, and what the nodes logged if a rule was broken."""
    text = result.broken.replace("\n", " ")[:4000] or "well"
    trial = result.trial
    cells = (trial.phase, trial.fault, result.outcome, result.reason, f"{result.seconds:.1f}", text)
    print(f"| {' | '.join(cells)} |", flush=True)
    if result.broken:
        for node in world.nodes:
            print(node.log()[-6000:], node.run_logs(), file=sys.stderr)


if __name__ == "__main__":
    main()
