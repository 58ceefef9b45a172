"""The broker: push, pop and release on sessions that outlive the process.

The broker runs on one event loop. Readers wait for a message, writers for capacity; nothing else
waits, and nothing polls.
"""

import asyncio
import contextlib
import fcntl
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import IO

import anyio.to_thread

from gateway.broker.capacity import Capacity
from gateway.broker.journal import Kind, Spool, folder_name, folders, remove_tree
from gateway.broker.mailbox import StoredMessage
from gateway.broker.message_parts import Uploads
from gateway.broker.messages import (
    BrokerLimits,
    BufferFull,
    Message,
    SessionReleased,
    TopicBacklog,
    Traffic,
    Usage,
)
from gateway.broker.received import Number
from gateway.broker.session import Pool, Session, refuse_on_disk_error
from gateway.broker.traffic import RECENT_SECONDS
from gateway.errors import Busy, TooLarge

log = logging.getLogger(__name__)

# Sessions whose last refusal is remembered. Limited, because a container may name any session.
MAX_REFUSALS = 200


class _Reader(asyncio.Event):
    """A waiting reader; set when a message arrives on its topic."""

    def __init__(self, run: str | None) -> None:
        """``run``: the run that waits; None if the request does not name one."""
        super().__init__()
        self.run = run


class Broker:
    """The mailboxes of one node, in a folder that no other process may use at the same time.

    Call ``recover`` before any other method, and ``close`` at the end.
    """

    def __init__(
        self,
        root: Path,
        limits: BrokerLimits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``root``: the folder; ``limits``: None for the default limits.

        ``clock`` returns the time in seconds; it serves to find idle sessions and to forget ended
        ones.
        """
        self._root = root
        self._limits = limits or BrokerLimits()
        self._clock = clock
        self._pool = Pool(self._limits)
        self._capacity = Capacity(self._limits, self._pool)
        self._uploads = Uploads(self._capacity)
        self._sessions: dict[str, Session] = {}
        self._last_use: dict[str, float] = {}  # time of the last push or pop, by session
        self._ended: dict[str, float] = {}  # time of the end, by session; the oldest end first
        self._readers: dict[tuple[str, str], list[_Reader]] = {}  # by session and topic
        self._last_refusals: dict[str, str] = {}  # by session, the oldest first
        self._refusals: Counter[tuple[str, str]] = Counter()  # by operation and reason
        self._lock: IO[bytes] | None = None  # the open file whose lock this process holds
        self._stopping = False

    # -------------------------------------------------------- start and stop

    def recover(self) -> None:
        """Lock the folder and restore every session that has not ended.

        Raises `Busy` if another process uses the folder.
        """
        self._root.mkdir(
            parents=True,
            exist_ok=True,
            mode=0o700,
        )
        lock = (self._root / "lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise Busy(f"another process uses the channel's folder {self._root}") from error
        self._lock = lock
        for folder in folders(self._root):
            self._recover_session(folder)

    def _recover_session(self, folder: Path) -> None:
        """Restore the session of a folder; delete a folder whose journal lacks its first record."""
        spool = Spool(folder)
        records, cut_off = spool.load()
        if cut_off:
            log.warning(
                "incomplete record dropped",
                extra={
                    "folder": folder.name,
                    "bytes": cut_off,
                },
            )
        has_beginning = bool(records) and records[0].kind is Kind.OPEN
        if not has_beginning:
            remove_tree(folder)
            return
        name = str(records[0].head["session"])
        session = Session(name, spool, self._limits, self._pool)
        session.load(records)
        self._sessions[name] = session
        self._last_use[name] = self._clock()
        self._uploads.restore(session)

    def stop_pops(self) -> None:
        """Let present and future pops return None immediately, as if their timeout were over."""
        self._stopping = True
        for readers in self._readers.values():
            for reader in readers:
                reader.set()

    def close(self) -> None:
        """Unlock the folder. Nothing has to be written: every accepted message is on disk."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # -------------------------------------------------------- for operators

    def usage(self) -> Usage:
        """Return the number of sessions, undelivered messages and their bytes."""
        messages = sum(session.messages for session in self._sessions.values())
        return Usage(
            len(self._sessions),
            messages,
            self._pool.bytes,
        )

    def backlog(self, session_id: str) -> list[TopicBacklog]:
        """Return the topics of a session that have unread messages or waiting readers.

        The topic with the oldest message comes first. May be called from another thread.
        """
        pending: dict[str, list[StoredMessage]] = {}
        recent_bytes: Counter[str] = Counter()
        session = self._sessions.get(session_id)
        if session is not None:
            pending = session.pending()
            recent_bytes = session.meter.recent_bytes()
        waiting_runs = self._waiting_runs(session_id)
        topics = []
        for topic in pending.keys() | waiting_runs.keys():
            messages = pending.get(topic, [])
            runs = waiting_runs.get(topic, ())
            topics.append(_topic_backlog(topic, messages, recent_bytes[topic], runs))
        return sorted(topics, key=_longest_waiting_first)

    def _waiting_runs(
        self,
        session_id: str,
    ) -> dict[str, tuple[str, ...]]:
        """Return the runs that wait for a message, by topic; "" for an unknown run."""
        runs = {}
        # Copies, as the event loop may change both while another thread reads them.
        for (name, topic), readers in list(self._readers.items()):
            if name == session_id:
                runs[topic] = tuple(reader.run or "" for reader in list(readers))
        return runs

    def traffic(self) -> dict[str, Traffic]:
        """Return figures of the messages received since the start of this process, by session."""
        sessions = list(self._sessions.items())
        return {name: session.meter.traffic() for name, session in sessions}

    def remember_refusal(self, session_id: str, cause: str) -> None:
        """Remember the last refused request of a session: a text with the request and the cause."""
        self._last_refusals.pop(session_id, None)  # so that the session becomes the newest entry
        self._last_refusals[session_id] = cause
        if len(self._last_refusals) > MAX_REFUSALS:
            oldest = next(iter(self._last_refusals))
            del self._last_refusals[oldest]

    def last_refusal(self, session_id: str) -> str:
        """Return the text of `remember_refusal`; empty if no request of the session was refused."""
        return self._last_refusals.get(session_id, "")

    def count_refusal(self, operation: str, reason: str) -> None:
        """Count a refused request."""
        self._refusals[operation, reason] += 1

    def refusals(self) -> dict[tuple[str, str], int]:
        """Return the refused requests since the start of the process, by operation and reason."""
        return dict(self._refusals)

    # -------------------------------------------------------- sessions

    def sessions(self) -> tuple[str, ...]:
        """Return the names of the open sessions."""
        return tuple(self._sessions)

    def holds(self, session_id: str) -> bool:
        """True if a session is open: a message was pushed to it, and it has not ended."""
        return session_id in self._sessions

    def idle_sessions(self, seconds: float) -> tuple[str, ...]:
        """Return the sessions without a push or pop in the last ``seconds``."""
        limit = self._clock() - seconds
        return tuple(name for name, last_use in self._last_use.items() if last_use <= limit)

    def has_ended(self, session_id: str) -> bool:
        """True if the session has ended in this process within `BrokerLimits.remember_ended`."""
        ended_at = self._ended.get(session_id, -math.inf)
        return ended_at + self._limits.remember_ended > self._clock()

    async def end_session(self, session_id: str) -> None:
        """Delete a session whose job has ended, and refuse requests for it from now on.

        Waiting readers and writers of the session fail with `SessionReleased`.
        """
        self._forget_old_ends()
        self._ended.pop(session_id, None)  # so that the session becomes the newest entry
        self._ended[session_id] = self._clock()
        session = self._sessions.pop(session_id, None)
        self._last_use.pop(session_id, None)
        for name, topic in self._readers:
            if name == session_id:
                self._wake_readers(session_id, topic)
        if session is None:
            return
        session.end()
        self._capacity.session_ended(session)
        if session.on_disk:
            await self._remove_folder(session)

    def _forget_old_ends(self) -> None:
        """Forget the ends of sessions that are no longer refused."""
        while self._ended:
            oldest = next(iter(self._ended))
            if self.has_ended(oldest):
                return
            del self._ended[oldest]

    async def _remove_folder(self, session: Session) -> None:
        """Delete a session's folder.

        If the folder cannot be renamed, it stays, and the next start restores the session.
        """
        try:
            retired = session.spool.retire()
        except OSError as error:
            extra = {
                "session": session.name,
                "error": str(error),
            }
            log.warning("folder not removed", extra=extra)
            return
        await anyio.to_thread.run_sync(remove_tree, retired)

    def _open(self, session_id: str) -> Session:
        """Return a session; open it if necessary. Raises `BufferFull` if too many are open."""
        session = self._sessions.get(session_id)
        if session is None:
            if len(self._sessions) >= self._limits.sessions:
                raise BufferFull(f"{self._limits.sessions} sessions are open, which is the limit")
            spool = Spool(self._root / folder_name(session_id))
            session = Session(session_id, spool, self._limits, self._pool)
            self._sessions[session_id] = session
        self._last_use[session_id] = self._clock()
        return session

    def _close_if_unused(self, session: Session) -> None:
        """Forget a session without messages: none was ever stored, and none waits for capacity."""
        is_used = session.on_disk or session.messages or self._capacity.is_awaited(session)
        if not is_used and not session.ended:
            self._sessions.pop(session.name, None)
            self._last_use.pop(session.name, None)

    def _refuse_ended(self, session_id: str) -> None:
        """Raise `SessionReleased` for a session that has ended."""
        if self.has_ended(session_id):
            raise SessionReleased(f"session {session_id} has ended")

    # -------------------------------------------------------- push

    async def push(
        self,
        session_id: str,
        topic: str,
        source: str,
        payload: bytes | Iterable[bytes],
        *,
        size: int | None = None,
        run: str | None = None,
        sequence: str | None = None,
        sender_number: Number | None = None,
        wait: float = 5.0,
    ) -> None:
        """Append a message, which is on disk when this function returns.

        - ``source``: id of the node that sent the message
        - ``payload``: bytes, or an iterable of pieces whose total is ``size`` bytes; a thread reads
          the pieces of a large message
        - ``run``: the run of this node that pushes; None for a push of another node
        - ``sequence``: identifies the message within its source and topic; a repeat is accepted and
          not stored. None: the message never counts as a repeat
        - ``sender_number``: as given by the sender, which uses it for no other message; a repeat is
          accepted and not stored
        - ``wait``: seconds to wait for the run's share of the session, then again as many for free
          capacity

        Raises `BufferFull` if there is no capacity after that time or the disk refuses the message,
        `TooLarge` if there will never be capacity, and `SessionReleased` if the session has ended.
        """
        self._refuse_ended(session_id)
        if isinstance(payload, bytes):
            pieces: Iterable[bytes] = [payload]
            size = len(payload)
        else:
            pieces = payload
        stored = StoredMessage(
            topic,
            source,
            run,
            sequence,
            size or 0,
            sender_number,
        )
        self._refuse_oversize(stored.size)
        session = self._open(session_id)
        if session.is_repeat(stored):
            return
        try:
            await self._capacity.reserve(session, stored, wait)
            await self._store_reserved(session, stored, pieces)
        finally:
            self._close_if_unused(session)
        self._wake_readers(session_id, topic)

    async def part(
        self,
        session_id: str,
        topic: str,
        source: str,
        pieces: Sequence[bytes],
        *,
        offset: int,
        size: int,
        run: str | None = None,
        sequence: str,
        sender_number: Number | None = None,
        wait: float = 5.0,
    ) -> None:
        """Store a part of a message of ``size`` bytes; the last part makes the message readable.

        ``pieces`` are the part's bytes; ``offset`` is the position of the first of them in the
        message. The first part waits for capacity for the entire message; that capacity is given
        back unless the other parts follow in time. A part may be repeated, and all but the last one
        may overtake each other.

        Raises the errors of ``push`` (`BufferFull` also while another request writes the same part,
        or waits for capacity), and `PartsMissing` for a last part, or the first one after a
        restart, without the preceding parts.
        """
        self._refuse_ended(session_id)
        self._refuse_oversize(size)
        self._uploads.start_expiry_of_old_uploads()
        session = self._open(session_id)
        stored = StoredMessage(
            topic,
            source,
            run,
            sequence,
            size,
            sender_number,
        )
        if session.is_repeat(stored):
            return
        try:
            is_complete = await self._uploads.write(
                session,
                stored,
                pieces,
                offset,
                wait,
            )
        finally:
            self._close_if_unused(session)
        if is_complete:
            self._wake_readers(session_id, topic)

    async def _store_reserved(
        self,
        session: Session,
        stored: StoredMessage,
        pieces: Iterable[bytes],
    ) -> None:
        """Write a message with reserved capacity; give the capacity back if that fails."""
        is_stored = False
        try:
            is_stored = await self._store(session, stored, pieces)
        finally:
            if not is_stored:
                self._capacity.unreserve(session, stored)

    async def _store(
        self,
        session: Session,
        stored: StoredMessage,
        pieces: Iterable[bytes],
    ) -> bool:
        """Write a message; return False if a repeat of it was stored in the meantime."""
        payload = b""
        with refuse_on_disk_error(session):
            stored.number = session.new_number()
            if stored.size > self._limits.inline_bytes:
                await anyio.to_thread.run_sync(
                    session.spool.write_payload, stored.number, pieces, stored.size
                )
            else:
                stored.offset = 0  # marks a payload in the journal; `Session.add` sets the offset
                payload = b"".join(pieces)
        if session.ended:
            raise SessionReleased(f"session {session.name} has ended")
        if session.is_repeat(stored):  # another push may have stored it while the thread wrote
            session.spool.remove_payload(stored.number)
            return False
        with refuse_on_disk_error(session):
            session.add(stored, payload)
        return True

    def _refuse_oversize(self, size: int) -> None:
        """Raise `TooLarge` for a message that does not fit even into an empty broker."""
        limits = self._limits
        limit = min(limits.message_bytes, limits.session_bytes, limits.total_bytes)
        if size > limit:
            settings = "limits.message_bytes, limits.session_bytes"  # `total_bytes` cannot be set
            raise TooLarge(
                f"a message of {size} bytes is over the limit of {limit} ({settings}): send it in "
                "parts"
            )

    # -------------------------------------------------------- pop

    async def pop(
        self,
        session_id: str,
        topic: str,
        *,
        sources: Collection[str] | None = None,
        reader: str,
        run: str | None = None,
        pop_id: str | None = None,
        timeout: float = 120.0,
    ) -> Message | None:
        """Take the oldest message of a topic; None if none arrives within ``timeout`` seconds.

        The timeout is limited by `BrokerLimits.pop_seconds`.

        - ``sources``: only messages of these sources; None: of all
        - ``reader``: a name for the reader, by which repeats of its pops are recognised
        - ``run``: the run that reads, which never gets its own messages; None for a reader that
          does not name its run
        - ``pop_id``: with an id, the message is retained after its delivery, and a repeat of
          reader, topic and id gets it again

        The caller must call ``confirm_delivery`` or ``put_back`` with the message afterwards. If
        this call is cancelled, the message stays unread. Raises `SessionReleased`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(
            max(timeout, 0.0),
            self._limits.pop_seconds,
        )
        waiting = _Reader(run)
        try:
            while True:
                self._refuse_ended(session_id)
                session = self._sessions.get(session_id)
                if session is not None:
                    self._last_use[session_id] = self._clock()
                    stored = session.take(
                        topic, sources=sources, reader=reader, run=run, pop_id=pop_id
                    )
                    if stored is not None:
                        return _message(session, stored)
                is_over = loop.time() >= deadline or self._stopping
                if is_over:
                    return None
                await self._wait_for_message(
                    session_id,
                    topic,
                    waiting,
                    deadline,
                )
        finally:
            self._remove_reader(session_id, topic, waiting)

    async def _wait_for_message(
        self,
        session_id: str,
        topic: str,
        reader: _Reader,
        deadline: float,
    ) -> None:
        """Wait until a message arrives on a topic, or until ``deadline``, a time of the event loop.

        The reader stays registered, so that it misses no message until its pop ends.
        """
        reader.clear()
        readers = self._readers.setdefault((session_id, topic), [])
        if reader not in readers:
            readers.append(reader)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await reader.wait()

    def _remove_reader(
        self,
        session_id: str,
        topic: str,
        reader: _Reader,
    ) -> None:
        """Forget a reader that no longer waits; it may never have waited."""
        readers = self._readers.get((session_id, topic), [])
        if reader in readers:
            readers.remove(reader)
        if not readers:
            self._readers.pop((session_id, topic), None)

    def confirm_delivery(self, message: Message) -> None:
        """Record that the response with this message was sent; that may free capacity."""
        session = self._sessions.get(message.session)
        if session is not None and session.confirm_delivery(message.number):
            self._capacity.wake_writers()

    def put_back(self, message: Message) -> None:
        """Record that the response with this message was not sent.

        The message becomes unread again, at its old position, unless another response to the same
        pop was sent or is under way.
        """
        session = self._sessions.get(message.session)
        if session is not None and session.put_back(message.number):
            self._wake_readers(message.session, message.topic)

    async def release(
        self,
        session_id: str,
        topic: str | None = None,
        *,
        reader: str,
        run: str | None = None,
    ) -> None:
        """Drop the messages that this reader could still get.

        These are the unread messages that it may read, and the messages retained for repeats of
        its pops. ``topic``: only messages of this topic; None: of the whole session.
        ``end_session`` deletes the messages of all readers.
        """
        session = self._sessions.get(session_id)
        if session is None:
            return
        has_freed_capacity = session.release(
            topic,
            reader=reader,
            run=run,
        )
        if has_freed_capacity:
            self._capacity.wake_writers()

    async def forget_retained(self, session_id: str, *, reader: str) -> None:
        """Drop only the messages retained for repeats of this reader's pops."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.forget_retained(reader)

    def _wake_readers(self, session_id: str, topic: str) -> None:
        """Let the readers that wait for a topic look for a message."""
        for reader in self._readers.get((session_id, topic), ()):
            reader.set()


def _message(session: Session, stored: StoredMessage) -> Message:
    """Return a stored message as the reader gets it."""
    return Message(
        content=session.content(stored),
        size=stored.size,
        source=stored.source,
        topic=stored.topic,
        session=session.name,
        number=stored.number,
    )


def _topic_backlog(
    topic: str,
    messages: Sequence[StoredMessage],
    recent_bytes: int,
    waiting_runs: tuple[str, ...],
) -> TopicBacklog:
    """Return the figures of a topic.

    ``recent_bytes``: the bytes received in the last `RECENT_SECONDS`.
    """
    now = time.monotonic()
    return TopicBacklog(
        topic,
        messages=len(messages),
        bytes=sum(stored.size for stored in messages),
        oldest=max((now - stored.arrival for stored in messages), default=0.0),
        bytes_per_second=recent_bytes // RECENT_SECONDS,
        readers=waiting_runs,
    )


def _longest_waiting_first(topic: TopicBacklog) -> tuple[float, str]:
    """Return the sort key that puts the oldest message first, and equal ages in order of topic."""
    return (-topic.oldest, topic.topic)
