"""Waiting for capacity, which is limited for a run in its session, for a session, and for the node.

Writers of a session queue for capacity and get it in the order of their arrival. Nothing polls.
"""

import asyncio
from collections.abc import Callable

from gateway.broker.mailbox import StoredMessage
from gateway.broker.messages import BrokerLimits, BufferFull, SessionReleased
from gateway.broker.session import Pool, Session

Ticket = asyncio.Event  # set when a waiting writer should check again


class Capacity:
    """Admits messages within the limits of the broker. All calls come from one event loop."""

    def __init__(self, limits: BrokerLimits, pool: Pool) -> None:
        self._limits = limits
        self._pool = pool
        # Waiting writers by session, the first one first; a queue in here is never empty.
        self._queues: dict[Session, list[Ticket]] = {}
        self._over_share: list[Ticket] = []  # of writers whose run holds too much of its session

    async def reserve(
        self,
        session: Session,
        stored: StoredMessage,
        wait: float,
    ) -> None:
        """Reserve capacity for a message.

        Waits up to ``wait`` seconds until the message fits into the run's share of the session,
        then up to ``wait`` further seconds until the session and the node have capacity. Raises
        `BufferFull` if either time is over, and `SessionReleased` if the session ends.
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
        """Wake every writer of an ended session, and the writers that may use its capacity now.

        The writers of the ended session fail with `SessionReleased`.
        """
        for ticket in self._queues.get(session, []):
            ticket.set()
        self.wake_writers()

    async def _wait_for_share(
        self,
        session: Session,
        stored: StoredMessage,
        wait: float,
    ) -> None:
        """Wait while the message would raise its run's share of the session above half.

        Writers over their share wait outside of the session's queue, so that other runs may push in
        the meantime. Raises `BufferFull`.
        """
        run = stored.run
        if run is None or self._is_within_share(session, stored):
            return

        def may_push(_: Ticket) -> bool:
            """True once the run is within its share; the order of the tickets does not matter."""
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
        """Reserve capacity, after the session's writers that came earlier. Raises `BufferFull`."""
        if session not in self._queues and self._fits(session, stored.size):
            session.reserve(stored)
            return
        queue = self._queues.setdefault(session, [])

        def is_next(ticket: Ticket) -> bool:
            """True for the first writer of the queue, once there is capacity."""
            return queue[0] is ticket and self._fits(session, stored.size)

        try:
            if not await self._wait_in(queue, is_next, session, wait):
                raise BufferFull(
                    f"session {session.name} has no capacity for {stored.size} bytes: "
                    f"{session.messages} are unread"
                )
            session.reserve(stored)
        finally:
            if not queue:  # `wake_writers` expects no empty queue
                del self._queues[session]
            self.wake_writers()

    async def _wait_in(
        self,
        queue: list[Ticket],
        is_ready: Callable[[Ticket], bool],
        session: Session,
        wait: float,
    ) -> bool:
        """Wait in a queue until ``is_ready`` returns True for this writer's new ticket.

        Return True then, and False if that takes longer than ``wait`` seconds. Raises
        `SessionReleased` if the session ends in the meantime.
        """
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
        """True if the message's run would use at most half of the session with this message.

        A run without undelivered messages may always push one message of any size.
        """
        count = session.messages_of[stored.run]
        if count == 0:
            return True
        size = session.bytes_of[stored.run] + stored.size
        limits = self._limits
        return size <= limits.session_bytes // 2 and count < limits.session_messages // 2

    def _fits(self, session: Session, size: int) -> bool:
        """True if the session and the node have capacity for a message of ``size`` bytes."""
        limits = self._limits
        if session.messages >= limits.session_messages:
            return False
        fits_session = session.bytes + size <= limits.session_bytes
        fits_node = self._pool.bytes + size <= limits.total_bytes
        return fits_session and fits_node
