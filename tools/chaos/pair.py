"""One node that is two gateways on one database and one storage folder; faults that meet one of
them, or both.

A frozen gateway is the hard one: it wakes up in the middle of whatever it was at, and others may
have given it up.
"""

import itertools
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from tests.e2e.nodes import Node

FAULTS = tuple(
    f"{what} {which}" for what in ("kill", "freeze") for which in ("holder", "other", "both")
)
"""the holder took the job in, and so its containers are its own"""

LOST_AFTER = 8.0
"""seconds after which a silent gateway is given up, in these trials"""

_SHORT, _LONG = (0.2, 2.0), (LOST_AFTER + 2.0, LOST_AFTER + 5.0)
_BETWEEN_BEATS = 4.0
"""seconds by which a gateway may seem to be silent for longer than it was, on a busy machine too"""


@dataclass
class Pair(Node):
    """The two gateways, asked in turn like one node; those that are dead or frozen are left out."""

    gateways: tuple[Node, ...] = ()
    silent: set[str] = field(default_factory=set)
    """addresses of those that a fault holds now"""
    away: float = 0.0
    """how long at most one was silent since the trial began"""
    _turn: Iterator[int] = field(default_factory=itertools.count)

    @property
    def operator(self) -> str:
        able = [node.operator for node in self.gateways if node.operator not in self.silent]
        return (able or [node.operator for node in self.gateways])[
            next(self._turn) % max(len(able), 1)
        ]

    def log(self) -> str:
        return "\n".join(
            f"---- gateway {i}\n{node.log()[-6000:]}" for i, node in enumerate(self.gateways)
        )

    def run_logs(self) -> str:
        return "\n".join(node.run_logs() for node in self.gateways)

    @property
    def given_up(self) -> bool:
        """Whether one may have been given up by the other in this trial."""
        return self.away + _BETWEEN_BEATS > LOST_AFTER


def one_node(first: Node, second: Node) -> Pair:
    """Return the node that these two are."""
    return Pair(first.id, first.home, first.settings, gateways=(first, second))


def fault(
    pair: Pair,
    name: str,
    holder: Node,
    random: Random,
) -> Callable[[], None]:
    """Return what makes the fault, holds it for a while and takes it away again.

    Half of them last until others have given up who is silent.
    """
    what, which = name.split()
    victims = [n for n in pair.gateways if which == "both" or (n is holder) == (which == "holder")]
    first, lasts = random.uniform(0.0, 0.3), random.uniform(*random.choice((_SHORT, _LONG)))
    begin: Callable[[Node], object] = (
        Node.kill if what == "kill" else partial(_send, signal.SIGSTOP)
    )
    end: Callable[[Node], object] = partial(_send, signal.SIGCONT)
    if what == "kill":
        end = partial(Node.start, wait=False)

    def spoil() -> None:
        time.sleep(first)
        began = time.monotonic()
        for node in victims:
            pair.silent.add(node.operator)
            begin(node)
        try:
            time.sleep(lasts)
        finally:
            for node in victims:
                end(node)
            for node in victims:
                node.ready()
                pair.silent.discard(node.operator)
            pair.away = time.monotonic() - began

    return spoil


def may_end(
    name: str,
    phase: str,
    pair: Pair,
) -> dict[str, tuple[str, ...]]:
    """Return how a job may end because of such a fault, and for which reasons; none named: for
    any.
    """
    ends: dict[str, tuple[str, ...]] = {"STOPPED": ()} if phase == "stopping" else {"SUCCEEDED": ()}
    if phase == "creating":
        ends["REJECTED"] = ()
    if name in ("kill holder", "freeze holder") and pair.given_up:
        ends["FAILED"] = ("CHANNEL_LOST",)
    return ends


def _send(number: int, node: Any) -> None:
    node.process.send_signal(number)
