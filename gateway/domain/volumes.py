"""The bytes that this node and a partner have exchanged."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from gateway.domain.spec import NodeId


@dataclass(frozen=True)
class Volume:
    """Bytes of the bodies of requests and responses: no headers, no TLS."""

    bytes_in: int = 0
    bytes_out: int = 0

    def __add__(self, other: "Volume") -> "Volume":
        return Volume(
            self.bytes_in + other.bytes_in,
            self.bytes_out + other.bytes_out,
        )


@dataclass(frozen=True)
class DayVolume:
    """The volume of a partner on one day (UTC)."""

    partner: NodeId
    day: date
    volume: Volume


@dataclass(frozen=True)
class RecentVolumes:
    """The volume of a partner today and this month, both by UTC."""

    today: Volume
    month: Volume  # from its first day until now


# Takes the node at the other end of an exchange, and the bytes of the exchange.
CountVolume = Callable[[NodeId, Volume], None]


def ignore_volume(partner: NodeId, volume: Volume) -> None:
    """Do not count an exchange."""
