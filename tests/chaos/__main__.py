"""``make chaos``: every fault in every phase of a job, on two real nodes. SEED= for the order, COUNT= how many."""

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.chaos.trials import Result, all_trials, play
from tests.chaos.world import built


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="make chaos SEED=... COUNT=...")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=0, help="0: each phase with each fault once")
    parser.add_argument("--seconds", type=float, default=0, help="begin no more trials after this; 0: no limit")
    parser.add_argument("--only", default="", help="faults or phases whose names hold this text")
    asked = parser.parse_args()
    results = run(asked.seed, asked.count, asked.seconds, asked.only)
    sys.exit(1 if any(result.broken for result in results) else 0)


def run(seed: int, count: int = 0, seconds: float = 0, only: str = "") -> list[Result]:
    """Play trials, telling of each; return what became of them."""
    trials = [t for t in all_trials(seed) if only in t.fault or only in t.phase]
    while count > len(trials):
        seed += 1
        trials += [t for t in all_trials(seed) if only in t.fault or only in t.phase]
    results: list[Result] = []
    began = time.monotonic()
    print(f"| phase | fault | outcome | reason | seconds | seed {seed} |\n|---|---|---|---|---|---|", flush=True)
    with TemporaryDirectory(prefix="bfia-chaos-") as home, built(Path(home)) as world:
        for trial in trials[: count or None]:
            if seconds and time.monotonic() - began > seconds:
                break
            result = play(world, trial)
            results.append(result)
            said = result.broken.replace("\n", " ")[:4000] or "well"
            cells = (trial.phase, trial.fault, result.outcome, result.reason, f"{result.seconds:.1f}", said)
            print(f"| {' | '.join(cells)} |", flush=True)
            if result.broken:
                for node in world.nodes:
                    print(node.log()[-6000:], file=sys.stderr)
    broken = sum(bool(result.broken) for result in results)
    print(f"\n{len(results)} trials, {broken} broken", flush=True)
    return results


if __name__ == "__main__":
    main()
