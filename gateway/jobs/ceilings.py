"""What a run may use where neither its job nor the settings say: it is bounded by what the node has, always."""

from collections.abc import Callable, Mapping

from gateway.domain.amounts import CORE
from gateway.domain.needs import Means
from gateway.domain.run import Run

SHARE = 0.75
"""of the node's memory and disk for jobs, that a run may use which asks for none"""


class Ceilings:
    """Call it for the bounds of a run. Nothing is held for them: only what is asked for is."""

    def __init__(self, means: Callable[[], Means], *, part_of_a_core: bool) -> None:
        """``part_of_a_core``: the engine can bound the cores of a run to a number that is not whole."""
        self._means = means
        self._part_of_a_core = part_of_a_core

    def __call__(self, run: Run) -> Mapping[str, float | None]:
        """Return the run's limits, none of them left open but the cores of an engine that cannot bound them."""
        if None not in map(run.limits.get, ("cpu", "memory", "disk")):
            return run.limits
        means = self._means()
        room = means.room(run.engine)
        total, cores = room.total or means.total, room.cores or means.cores
        most: dict[str, float | None] = {
            "cpu": min(total.cpu / CORE, cores) if self._part_of_a_core else None,
            "memory": int(total.memory * SHARE),
            "disk": int(total.disk * SHARE),
        }
        given = {kind: amount for kind, amount in run.limits.items() if amount is not None}
        return {**dict.fromkeys(run.limits), **most, **given}
