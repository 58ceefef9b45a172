"""Messages that were taken from their mailboxes and are still needed: in progress, or kept for a
repeated pop.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.broker.mailbox import StoredMessage
from gateway.broker.messages import BrokerLimits


@dataclass(slots=True)
class Delivery:
    """A message that was given to a reader."""

    stored: StoredMessage
    reader: str
    pop_id: str | None
    responses: int = 0  # responses in progress that carry the message
    sent: bool = False  # True after a first response was sent


class Deliveries:
    """The deliveries of a session.

    A delivery with a pop id is kept after its response was sent, because the reader may repeat the
    pop.
    """

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits
        self._by_number: dict[int, Delivery] = {}
        self._by_pop: dict[tuple[str, str, str], Delivery] = {}
        # By reader, then by number of the message; the oldest first.
        self._kept: dict[str, dict[int, Delivery]] = {}

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._by_number.values())

    def __getitem__(self, number: int) -> Delivery:
        return self._by_number[number]

    def get(self, number: int) -> Delivery | None:
        """Return the delivery of a message; None without one."""
        return self._by_number.get(number)

    def numbers(self) -> set[int]:
        """Return the numbers of all messages."""
        return set(self._by_number)

    def add(self, delivery: Delivery) -> None:
        """Add a delivery."""
        stored = delivery.stored
        self._by_number[stored.number] = delivery
        if delivery.pop_id is not None:
            self._by_pop[delivery.reader, stored.topic, delivery.pop_id] = delivery

    def repeat(self, reader: str, topic: str, pop_id: str) -> Delivery | None:
        """Begin another response to a repeated pop and return its delivery; None for a new pop."""
        delivery = self._by_pop.get((reader, topic, pop_id))
        if delivery is None:
            return None
        self._kept.get(reader, {}).pop(delivery.stored.number, None)
        delivery.responses += 1
        return delivery

    def keep(self, delivery: Delivery) -> None:
        """Keep a delivery for a repeat of its pop, as the reader's newest."""
        self._kept.setdefault(delivery.reader, {})[delivery.stored.number] = delivery

    def kept(self, reader: str, topic: str | None = None) -> list[Delivery]:
        """Return the deliveries kept for a reader, on all topics or on one."""
        deliveries = list(self._kept.get(reader, {}).values())
        if topic is None:
            return deliveries
        return [delivery for delivery in deliveries if delivery.stored.topic == topic]

    def surplus(self, reader: str) -> list[Delivery]:
        """Return a reader's oldest kept deliveries beyond the limits, never the newest one."""
        kept = self.kept(reader)
        size = sum(delivery.stored.size for delivery in kept)
        count = len(kept)
        surplus = []
        for delivery in kept[:-1]:
            within_limits = count <= self._limits.kept_messages and size <= self._limits.kept_bytes
            if within_limits:
                break
            surplus.append(delivery)
            count -= 1
            size -= delivery.stored.size
        return surplus

    def remove(self, delivery: Delivery) -> None:
        """Forget a delivery."""
        number = delivery.stored.number
        self._by_number.pop(number, None)
        if delivery.pop_id is not None:
            self._by_pop.pop((delivery.reader, delivery.stored.topic, delivery.pop_id), None)
        kept = self._kept.get(delivery.reader, {})
        kept.pop(number, None)
        if not kept:
            self._kept.pop(delivery.reader, None)

    def clear(self) -> None:
        """Forget all deliveries."""
        self._by_number.clear()
        self._by_pop.clear()
        self._kept.clear()
