"""Messages that have left their mailboxes and are still needed.

A response that carries them is in progress, or they are retained for a repeat of their pop.
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
    pop_id: str | None  # None: the pop cannot be repeated
    responses: int = 0  # responses in progress that carry the message
    sent: bool = False  # True after a first response was sent


class Deliveries:
    """The deliveries of a session.

    A delivery with a pop id is retained after its response was sent: if the reader has not received
    that response, it repeats the pop.
    """

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits
        self._by_number: dict[int, Delivery] = {}
        self._by_pop: dict[tuple[str, str, str], Delivery] = {}  # by reader, topic and pop id
        # By reader, then by number of the message; the oldest first.
        self._retained: dict[str, dict[int, Delivery]] = {}

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._by_number.values())

    def __getitem__(self, number: int) -> Delivery:
        return self._by_number[number]

    def get(self, number: int) -> Delivery | None:
        """Return the delivery of the message ``number``; None if it is not in delivery."""
        return self._by_number.get(number)

    def numbers(self) -> set[int]:
        """Return the numbers of all messages in delivery."""
        return set(self._by_number)

    def add(self, delivery: Delivery) -> None:
        """Add a delivery."""
        stored = delivery.stored
        self._by_number[stored.number] = delivery
        if delivery.pop_id is not None:
            self._by_pop[delivery.reader, stored.topic, delivery.pop_id] = delivery

    def begin_repeat(
        self,
        reader: str,
        topic: str,
        pop_id: str,
    ) -> Delivery | None:
        """Begin another response, if a pop is the repeat of an earlier one.

        Return the delivery, which is not retained while the response is in progress; None if the
        pop is new.
        """
        delivery = self._by_pop.get((reader, topic, pop_id))
        if delivery is None:
            return None
        self._retained.get(reader, {}).pop(delivery.stored.number, None)
        delivery.responses += 1
        return delivery

    def retain(self, delivery: Delivery) -> None:
        """Retain a delivery for a repeat of its pop, as the reader's newest one."""
        of_reader = self._retained.setdefault(delivery.reader, {})
        of_reader[delivery.stored.number] = delivery

    def retained(
        self,
        reader: str,
        topic: str | None = None,
    ) -> list[Delivery]:
        """Return the deliveries retained for a reader, the oldest first.

        ``topic``: only deliveries of messages on this topic; None: on all topics.
        """
        deliveries = list(self._retained.get(reader, {}).values())
        if topic is None:
            return deliveries
        return [delivery for delivery in deliveries if delivery.stored.topic == topic]

    def surplus(self, reader: str) -> list[Delivery]:
        """Return a reader's oldest retained deliveries beyond the limits, never the newest one."""
        deliveries = self.retained(reader)
        count = len(deliveries)
        size = sum(delivery.stored.size for delivery in deliveries)
        surplus = []
        for delivery in deliveries[:-1]:
            if self._are_within_limits(count, size):
                break
            surplus.append(delivery)
            count -= 1
            size -= delivery.stored.size
        return surplus

    def _are_within_limits(self, count: int, size: int) -> bool:
        """True if a reader may have ``count`` retained deliveries of ``size`` bytes in total."""
        return count <= self._limits.retained_messages and size <= self._limits.retained_bytes

    def remove(self, delivery: Delivery) -> None:
        """Forget a delivery, whether it is retained or not."""
        number = delivery.stored.number
        reader = delivery.reader
        self._by_number.pop(number, None)
        if delivery.pop_id is not None:
            self._by_pop.pop(
                (reader, delivery.stored.topic, delivery.pop_id),
                None,
            )
        of_reader = self._retained.get(reader, {})
        of_reader.pop(number, None)
        if not of_reader:
            self._retained.pop(reader, None)

    def clear(self) -> None:
        """Forget all deliveries."""
        self._by_number.clear()
        self._by_pop.clear()
        self._retained.clear()
