"""One node of two gateways on one database and one storage folder, and the faults of these.

The fault of one gateway, or of both, is death or a freeze. A frozen gateway is the harder one: it
wakes up in the middle of its work, and its partner may have taken over its jobs.
"""

import itertools
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.e2e.nodes import Node

# The holder is the gateway that received the job, and so runs its containers.
FAULTS = (
    "kill holder",
    "kill other",
    "kill both",
    "freeze holder",
    "freeze other",
    "freeze both",
)
LOST_AFTER = 8.0  # seconds of silence after which a gateway counts as lost, in these trials
_SHORT = (0.2, 2.0)  # seconds of a fault
_LONG = (LOST_AFTER + 2.0, LOST_AFTER + 5.0)
# Seconds by which a silence may seem longer than it was, on a busy machine too: the interval
# between two signs of life, and the delay of the last one.
_BETWEEN_BEATS = 4.0
_LONGEST_LOG = 6000  # characters of a gateway's log


@dataclass
class Pair(Node):
    """The two gateways, used in turn like one node, except the ones with a fault."""

    gateways: tuple[Node, ...] = ()
    silent: set[str] = field(default_factory=set)  # addresses of the gateways with a fault
    longest_silence: float = 0.0  # seconds, in the current trial
    _turns: Iterator[int] = field(default_factory=itertools.count)

    @property
    def operator(self) -> str:
        """Return the address of the next gateway, of one with a fault only if both have one."""
        addresses = [node.operator for node in self.gateways]
        responding = [address for address in addresses if address not in self.silent]
        candidates = responding or addresses
        return candidates[next(self._turns) % len(candidates)]

    def log(self) -> str:
        """Return the ends of both logs."""
        logs = []
        for number, node in enumerate(self.gateways):
            logs.append(f"---- gateway {number}\n{node.log()[-_LONGEST_LOG:]}")
        return "\n".join(logs)

    def run_logs(self) -> str:
        """Return the logs of both gateways' runs."""
        return "\n".join(node.run_logs() for node in self.gateways)

    @property
    def may_have_lost_one(self) -> bool:
        """Return whether a gateway may have counted as lost in the current trial."""
        return self.longest_silence + _BETWEEN_BEATS > LOST_AFTER


def one_node(first: Node, second: Node) -> Pair:
    """Return the node of two gateways."""
    return Pair(
        first.id,
        first.home,
        first.settings,
        gateways=(first, second),
    )


def fault(
    pair: Pair,
    name: str,
    holder: Node,
    random: Random,
) -> Callable[[], None]:
    """Return the action that causes a fault, keeps it for a while and ends it.

    Half of the faults last until the silent gateways count as lost.
    """
    kind, target = name.split()
    victims = _victims(pair, target, holder)
    delay = random.uniform(0.0, 0.3)
    seconds = random.uniform(*random.choice((_SHORT, _LONG)))
    begin, end = _ACTIONS[kind]

    def cause() -> None:
        time.sleep(delay)
        start = time.monotonic()
        for node in victims:
            pair.silent.add(node.operator)
            begin(node)
        try:
            time.sleep(seconds)
        finally:
            for node in victims:
                end(node)
            for node in victims:
                node.ready()
                pair.silent.discard(node.operator)
            pair.longest_silence = time.monotonic() - start

    return cause


def _victims(
    pair: Pair,
    target: str,
    holder: Node,
) -> Sequence[Node]:
    """Return the gateways of a fault; ``target``: holder, other or both."""
    match target:
        case "both":
            return pair.gateways
        case "holder":
            return [holder]
    return [node for node in pair.gateways if node is not holder]


def _freeze(node: Node) -> None:
    node.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]


def _resume(node: Node) -> None:
    node.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]


def _start(node: Node) -> None:
    node.start(wait=False)


# Begin and end of each kind of fault.
_ACTIONS: dict[str, tuple[Callable[[Node], object], Callable[[Node], object]]] = {
    "kill": (Node.kill, _start),
    "freeze": (_freeze, _resume),
}


def possible_ends(
    name: str,
    phase: str,
    pair: Pair,
) -> dict[str, tuple[str, ...]]:
    """Return the outcomes that a fault may cause, with their reasons; no reasons: any reason."""
    ends: dict[str, tuple[str, ...]] = {}
    if phase == "stopping":
        ends["STOPPED"] = ()
    else:
        ends["SUCCEEDED"] = ()
    if phase == "creating":
        ends["REJECTED"] = ()
    is_of_holder = name in ("kill holder", "freeze holder")
    if is_of_holder and pair.may_have_lost_one:
        ends["FAILED"] = ("CHANNEL_LOST",)
    return ends
