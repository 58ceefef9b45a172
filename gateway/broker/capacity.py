"""Waiting for capacity: of a run in its session, of a session, and of the node.

Writers of a session queue for capacity and get it in their order. Nothing polls.
"""

import asyncio
from collections.abc import Callable

from gateway.broker.mailbox import StoredMessage
from gateway.broker.messages import BrokerLimits, BufferFull, SessionReleased
from gateway.broker.session import Pool, Session

Ticket = asyncio.Event  # set when a waiting writer should check again


class Capacity:
    """Admits messages within the limits of the broker. For one event loop."""

    def __init__(self, limits: BrokerLimits, pool: Pool) -> None:
        self._limits = limits
        self._pool = pool
        self._queues: dict[Session, list[Ticket]] = {}
        self._over_share: list[Ticket] = []  # of writers whose run holds too much of its session

    async def reserve(self, session: Session, stored: StoredMessage, wait: float) -> None:
        """Reserve capacity for a message, waiting up to ``wait`` seconds for each limit.

        Raises `BufferFull` if there is none then, and `SessionReleased` if the session ends.
        """
        await self._wait_for_share(session, stored, wait)
        await self._wait_for_capacity(session, stored, wait)

    def unreserve(self, session: Session, stored: StoredMessage) -> None:
        """Give the capacity of a message back."""
        session.unreserve(stored)
        self.wake_writers()

    def is_awaited(self, session: Session) -> bool:
        """True if writers of a session wait for capacity."""
        return session in self._queues

    def wake_writers(self) -> None:
        """Let the first writer of each session, and writers over their share, check again."""
        for queue in self._queues.values():
            queue[0].set()
        for ticket in self._over_share:
            ticket.set()

    def session_ended(self, session: Session) -> None:
        """Let every writer of an ended session fail, and others use its capacity."""
        for ticket in self._queues.get(session, []):
            ticket.set()
        self.wake_writers()

    async def _wait_for_share(self, session: Session, stored: StoredMessage, wait: float) -> None:
        """Wait while the message would raise its run's share of the session above half.

        A run without undelivered messages may always push one. Such a writer does not queue for
        capacity, so that others may push to the session in the meantime. Raises `BufferFull`.
        """
        run = stored.run
        if run is None or self._is_within_share(session, stored):
            return

        def may_push(_: Ticket) -> bool:
            return self._is_within_share(session, stored)

        if not await self._wait_in(self._over_share, may_push, session, wait):
            size = session.bytes_of[run]
            count = session.messages_of[run]
            raise BufferFull(
                f"this run has {size} bytes in {count} unread messages in session "
                f"{session.name}: half of what the session may hold"
            )

    async def _wait_for_capacity(
        self, session: Session, stored: StoredMessage, wait: float
    ) -> None:
        """Reserve capacity in turn. Raises `BufferFull`."""
        if session not in self._queues and self._fits(session, stored.size):
            session.reserve(stored)
            return
        queue = self._queues.setdefault(session, [])

        def is_next(ticket: Ticket) -> bool:
            return queue[0] is ticket and self._fits(session, stored.size)

        try:
            if not await self._wait_in(queue, is_next, session, wait):
                raise BufferFull(
                    f"session {session.name} has no capacity for {stored.size} bytes: "
                    f"{session.messages} are unread"
                )
            session.reserve(stored)
        finally:
            if not queue:
                del self._queues[session]
            self.wake_writers()

    async def _wait_in(
        self,
        queue: list[Ticket],
        is_ready: Callable[[Ticket], bool],
        session: Session,
        wait: float,
    ) -> bool:
        """Wait in a queue; False after ``wait`` seconds. Raises `SessionReleased`."""
        ticket = Ticket()
        queue.append(ticket)
        try:
            async with asyncio.timeout(max(wait, 0.0)):
                while not is_ready(ticket):
                    ticket.clear()
                    await ticket.wait()
                    if session.ended:
                        raise SessionReleased(f"session {session.name} has ended")
                return True
        except TimeoutError:
            return False
        finally:
            queue.remove(ticket)

    def _is_within_share(self, session: Session, stored: StoredMessage) -> bool:
        count = session.messages_of[stored.run]
        size = session.bytes_of[stored.run] + stored.size
        if count == 0:
            return True
        return (
            size <= self._limits.session_bytes // 2 and count < self._limits.session_messages // 2
        )

    def _fits(self, session: Session, size: int) -> bool:
        limits = self._limits
        fits_session = session.bytes + size <= limits.session_bytes
        fits_node = self._pool.bytes + size <= limits.total_bytes
        return fits_session and fits_node and session.messages < limits.session_messages
