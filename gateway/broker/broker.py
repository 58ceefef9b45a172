"""The broker: push, pop, peek and release on sessions that outlive the process.

It runs on one event loop. Only this module waits: readers for a message, writers for free capacity; nothing polls.
"""

import asyncio
import contextlib
import fcntl
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import anyio.to_thread

from gateway.broker.journal import Kind, Spool, folder_name, folders, remove_tree
from gateway.broker.mailbox import Stored
from gateway.broker.session import (
    RECENT_SECONDS,
    BrokerLimits,
    BufferFull,
    Message,
    PartsMissing,
    Pool,
    Received,
    Session,
    SessionReleased,
    Upload,
    Usage,
    Waiting,
    digest,
)
from gateway.errors import Busy, TooLarge

log = logging.getLogger(__name__)

_MOST_PAUSE = 120.0
"""seconds until a message of which no more comes is dropped: who brings it may wait long for the container"""

_MOST_REFUSED = 200
"""sessions whose last refused request is kept"""


class _Reader(asyncio.Event):
    """An event that is set when a message arrives for a waiting reader."""

    def __init__(self, run: str | None) -> None:
        super().__init__()
        self.run = run


class Broker:
    """The mailboxes of one node, kept under one folder that no other process may use at the same time.

    Call ``recover`` once before anything else and ``close`` at the end.
    """

    def __init__(
        self,
        root: Path,
        limits: BrokerLimits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._root = root
        self._limits = limits if limits is not None else BrokerLimits()
        self._clock = clock
        self._pool = Pool(self._limits)
        self._sessions: dict[str, Session] = {}
        self._used: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._readers: dict[tuple[str, str], list[_Reader]] = {}
        self._refused: dict[str, str] = {}
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._writers: dict[Session, list[asyncio.Event]] = {}
        self._over: list[asyncio.Event] = []
        self._left: list[Session] = []
        """found at the start, maybe with uploads"""
        self._lock: IO[bytes] | None = None
        self._leaving = False

    def leave(self) -> None:
        """Let no pop wait any more: those that wait end empty, as after their time."""
        self._leaving = True
        for waiting in self._readers.values():
            for arrival in waiting:
                arrival.set()

    def recover(self) -> None:
        """Locks the folder and reads back every session that has not ended.

        Raises Busy if another process uses the folder.
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
        spool = Spool(folder)
        records, torn = spool.load()
        if torn:
            log.warning("incomplete record dropped", extra={"folder": folder.name, "bytes": torn})
        if not records or records[0].kind is not Kind.OPEN:
            remove_tree(folder)
            return
        session = Session(str(records[0].head["session"]), spool, self._limits, self._pool)
        session.load(records)
        self._sessions[session.name] = session
        self._used[session.name] = self._clock()
        self._left.append(session)

    def close(self) -> None:
        """Releases the folder; everything that was accepted is on disk already."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def usage(self) -> Usage:
        """Returns how much is waiting to be delivered."""
        messages = sum(session.messages for session in self._sessions.values())
        return Usage(len(self._sessions), messages, self._pool.bytes)

    def waiting(self, session: str) -> list[Waiting]:
        """Returns what waits on each topic of a session, and who waits there; the longest waiting first."""
        box = self._sessions.get(session)
        pending, recent = (box.pending(), box.recent()) if box is not None else ({}, {})
        readers = {
            topic: list(waiting)
            for (name, topic), waiting in list(self._readers.items())
            if name == session
        }
        now = time.monotonic()
        found = [
            Waiting(
                topic,
                len(stored := pending.get(topic, [])),
                sum(one.size for one in stored),
                max((now - one.at for one in stored), default=0.0),
                recent.get(topic, 0) // RECENT_SECONDS,
                tuple(reader.run or "" for reader in readers.get(topic, ())),
            )
            for topic in pending.keys() | readers.keys()
        ]
        return sorted(found, key=lambda topic: (-topic.oldest, topic.topic))

    def refused(self, session: str, why: str) -> None:
        """Keeps what was refused last and why; of few sessions, as any container may name one."""
        self._refused.pop(session, None)
        self._refused[session] = why
        if len(self._refused) > _MOST_REFUSED:
            self._refused.pop(next(iter(self._refused)))

    def last_refused(self, session: str) -> str:
        """Returns which request of a session was refused last, and why; empty where none was."""
        return self._refused.get(session, "")

    def count_refusal(self, operation: str, reason: str) -> None:
        """Counts a refused request."""
        self._refusals[operation, reason] += 1

    def refusals(self) -> dict[tuple[str, str], int]:
        """Returns how many requests were refused since the start of this process, by operation and reason."""
        return dict(self._refusals)

    def received(self) -> dict[str, Received]:
        """Returns what each session has received since the start of this process."""
        return {name: box.received() for name, box in list(self._sessions.items())}

    def sessions(self) -> tuple[str, ...]:
        """Returns the names of the sessions that hold something on disk."""
        return tuple(self._sessions)

    def holds(self, session: str) -> bool:
        """Says whether a session has messages on disk and has not ended."""
        return session in self._sessions

    def idle(self, seconds: float) -> tuple[str, ...]:
        """Returns the sessions without a push or pop for so long."""
        before = self._clock() - seconds
        return tuple(session for session, used in self._used.items() if used <= before)

    def released(self, session: str) -> bool:
        """Tell whether the session has ended, as far as this process remembers."""
        return self._ended.get(session, -math.inf) + self._limits.remember_ended > self._clock()

    async def push(
        self,
        session: str,
        topic: str,
        source: str,
        payload: bytes | Iterable[bytes],
        *,
        size: int | None = None,
        run: str | None = None,
        sequence: str | None = None,
        wait: float = 5.0,
    ) -> None:
        """Appends a message; it is on disk when this returns. A repeat of a sequence is accepted and not stored.

        A payload in pieces has ``size`` bytes, and is read in a thread where it is large.

        Waits up to ``wait`` seconds for capacity. Raises BufferFull if there is none then (or the disk refuses),
        TooLarge if there never will be, SessionReleased if the session has ended.
        """
        self._refuse_released(session)
        pieces = [payload] if isinstance(payload, bytes) else payload
        size = len(payload) if isinstance(payload, bytes) else size or 0
        self._refuse_oversize(size)
        box = self._open(session)
        stored = Stored(topic, source, run, sequence, size)
        if box.seen(stored):
            return
        try:
            await self._wait_for_share(box, stored, wait)
            await self._reserve(box, stored, wait)
            kept = False
            try:
                kept = await self._store(box, stored, pieces)
            finally:
                if not kept:
                    box.unreserve(stored)
                    self._wake_writers()
        finally:
            self._leave(box)
        self._wake_readers(session, topic)

    def _leave(self, box: Session) -> None:
        """Forget a session in which nothing was ever stored."""
        if not box.on_disk and not box.messages and box not in self._writers and not box.ended:
            self._sessions.pop(box.name, None)
            self._used.pop(box.name, None)

    async def part(
        self,
        session: str,
        topic: str,
        source: str,
        pieces: Sequence[bytes],
        *,
        offset: int,
        size: int,
        run: str | None = None,
        sequence: str,
        wait: float = 5.0,
    ) -> None:
        """Stores a part of a message of ``size`` bytes, in pieces; with the last one it is there as by ``push``.

        The first part waits for capacity for the whole message, which is given back when none follows. A part may
        be repeated. Raises what ``push`` does (BufferFull also while another part of the message is being
        written), and PartsMissing where those before it are not there.
        """
        self._refuse_released(session)
        self._refuse_oversize(size)
        self._await_left()
        box = self._open(session)
        stored = Stored(topic, source, run, sequence, size)
        if box.seen(stored):
            return
        name = digest(topic, source, sequence, str(size)).hex()
        upload = box.uploads.setdefault(name, Upload(stored))
        if upload.busy:
            raise BufferFull("another part of this message is being written")
        upload.busy = True
        try:
            there = upload.there
            if there is None:
                there = box.spool.part_size(name, size) if box.on_disk else 0
            if offset > there:
                raise PartsMissing(
                    f"only {there} bytes of this message are here, not what is before byte {offset}"
                )
            if upload.there is None:
                await self._wait_for_share(box, upload.stored, wait)
                await self._reserve(box, upload.stored, wait)
                upload.there = there
                self._await_more(box, name, upload)
            end = max(upload.there, offset + sum(map(len, pieces)))
            with self._disk(box):
                box.begin()
                await anyio.to_thread.run_sync(
                    box.spool.write_part, name, offset, pieces, size, end
                )
            if box.ended:
                raise SessionReleased(f"session {box.name} has ended")
            if end > upload.there:
                upload.there = end
                self._await_more(box, name, upload)
            if upload.there == size:
                self._complete(box, name)
        finally:
            upload.busy = False
            if upload.there is None:
                box.uploads.pop(name, None)
            self._leave(box)

    def _await_more(
        self,
        box: Session,
        name: str,
        upload: Upload,
    ) -> None:
        """Drop a message of which no more comes in time."""
        if upload.drop is not None:
            upload.drop.cancel()

        def drop() -> None:
            if upload.busy:
                self._await_more(box, name, upload)
            else:
                self._drop_upload(box, name)

        upload.drop = asyncio.get_running_loop().call_later(_MOST_PAUSE, drop)

    def _await_left(self) -> None:
        """Remove what an earlier process left of messages if that does not go on in time."""
        boxes, self._left = self._left, []

        def remove() -> None:
            for box in boxes:
                for name in box.left - box.uploads.keys():
                    box.spool.remove_part(name)

        if boxes:
            asyncio.get_running_loop().call_later(_MOST_PAUSE, remove)

    def _drop_upload(self, box: Session, name: str) -> None:
        upload = box.uploads.pop(name)
        box.spool.remove_part(name)
        box.unreserve(upload.stored)
        self._wake_writers()

    def _complete(self, box: Session, name: str) -> None:
        """Make a message of which all is there one to be read, unless its repeat came meanwhile."""
        upload = box.uploads[name]
        stored = upload.stored
        if upload.drop is not None:
            upload.drop.cancel()
        if box.seen(stored):
            self._drop_upload(box, name)
            return
        try:
            with self._disk(box):
                stored.number = box.new_number()
                box.spool.complete(name, stored.number, stored.size)
                box.add(stored, b"")
        except BufferFull:
            self._drop_upload(box, name)
            raise
        del box.uploads[name]
        self._wake_readers(box.name, stored.topic)

    async def _store(
        self,
        box: Session,
        stored: Stored,
        pieces: Iterable[bytes],
    ) -> bool:
        """Write a message; False where its repeat came while this one waited or was being written."""
        payload = b""
        with self._disk(box):
            stored.number = box.new_number()
            if stored.size > self._limits.inline_bytes:
                await anyio.to_thread.run_sync(
                    box.spool.write_payload, stored.number, pieces, stored.size
                )
            else:
                stored.offset, payload = 0, b"".join(pieces)
        if box.ended:
            raise SessionReleased(f"session {box.name} has ended")
        if box.seen(stored):
            box.spool.remove_payload(stored.number)
            return False
        with self._disk(box):
            box.add(stored, payload)
        return True

    @contextlib.contextmanager
    def _disk(self, box: Session) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if box.ended:
                raise SessionReleased(f"session {box.name} has ended") from error
            raise BufferFull(f"the message cannot be stored: {error.strerror}") from error

    async def _wait_for_share(
        self,
        box: Session,
        stored: Stored,
        wait: float,
    ) -> None:
        """Wait while a run would hold over half of its session, where it holds some already. Raises BufferFull.

        It does not queue for capacity, so that others may push to the same session meanwhile.
        """
        run = stored.run

        def fits(_: asyncio.Event | None = None) -> bool:
            return not box.messages_of[run] or (
                box.bytes_of[run] + stored.size <= self._limits.session_bytes // 2
                and box.messages_of[run] < self._limits.session_messages // 2
            )

        if run is not None and not fits() and not await self._turn(self._over, fits, box, wait):
            raise BufferFull(
                f"this run has {box.bytes_of[run]} bytes in {box.messages_of[run]} unread messages in session "
                f"{box.name}: half of what the session may hold"
            )

    async def _reserve(
        self,
        box: Session,
        stored: Stored,
        wait: float,
    ) -> None:
        size = stored.size
        if box not in self._writers and self._fits(box, size):
            box.reserve(stored)
            return
        queue = self._writers.setdefault(box, [])
        try:
            if not await self._turn(
                queue, lambda own: queue[0] is own and self._fits(box, size), box, wait
            ):
                raise BufferFull(
                    f"session {box.name} has no capacity for {size} bytes: {box.messages} are unread"
                )
            box.reserve(stored)
        finally:
            if not queue:
                del self._writers[box]
            self._wake_writers()

    async def _turn(
        self,
        queue: list[asyncio.Event],
        ready: Callable[[asyncio.Event], bool],
        box: Session,
        wait: float,
    ) -> bool:
        """Wait in a queue for capacity; False if there was none for so long. Raises SessionReleased."""
        ticket = asyncio.Event()
        queue.append(ticket)
        try:
            async with asyncio.timeout(max(wait, 0.0)):
                while not ready(ticket):
                    ticket.clear()
                    await ticket.wait()
                    if box.ended:
                        raise SessionReleased(f"session {box.name} has ended")
                return True
        except TimeoutError:
            return False
        finally:
            queue.remove(ticket)

    def _fits(self, box: Session, size: int) -> bool:
        return (
            box.bytes + size <= self._limits.session_bytes
            and box.messages < self._limits.session_messages
            and self._pool.bytes + size <= self._limits.total_bytes
        )

    async def pop(
        self,
        session: str,
        topic: str,
        *,
        sources: Collection[str] | None = None,
        reader: str,
        run: str | None = None,
        pop_id: str | None = None,
        timeout: float = 120.0,
    ) -> Message | None:
        """Takes the next message of these sources (None: of any, by arrival), or gives None after ``timeout``.

        A run never gets what it pushed itself. The caller must call ``delivered`` or ``returned`` with the
        message afterwards; if this call is cancelled, the message stays. With a ``pop_id`` the message is kept
        after its delivery, and the same reader, topic and pop id get it again. Raises SessionReleased.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + min(max(timeout, 0.0), self._limits.pop_seconds)
        arrival = _Reader(run)
        try:
            while True:
                self._refuse_released(session)
                box = self._sessions.get(session)
                if box is not None:
                    self._used[session] = self._clock()
                    stored = box.take(
                        topic,
                        sources=sources,
                        reader=reader,
                        run=run,
                        pop_id=pop_id,
                    )
                    if stored is not None:
                        content = box.content(stored)
                        return Message(
                            content, stored.size, stored.source, topic, session, stored.number
                        )
                if loop.time() >= end or self._leaving:
                    return None
                arrival.clear()
                if arrival not in (waiting := self._readers.setdefault((session, topic), [])):
                    waiting.append(arrival)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(end):
                        await arrival.wait()
        finally:
            waiting = self._readers.get((session, topic), [])
            if arrival in waiting:
                waiting.remove(arrival)
            if not waiting:
                self._readers.pop((session, topic), None)

    def delivered(self, message: Message) -> None:
        """Records that the response with this message was sent."""
        box = self._sessions.get(message.session)
        if box is not None and box.delivered(message.number):
            self._wake_writers()

    def returned(self, message: Message) -> None:
        """Records that the response with this message was not sent: it is unread again, in its old place."""
        box = self._sessions.get(message.session)
        if box is not None and box.returned(message.number):
            self._wake_readers(message.session, message.topic)

    async def release(
        self,
        session: str,
        topic: str | None = None,
        *,
        reader: str,
        run: str | None = None,
    ) -> None:
        """Drops a topic's unread messages, as far as this reader could get them, and what was sent to the reader.

        Without a topic only the latter: a container releases its session when it ends, and by then others
        on this node may not have read what is meant for them. Those messages go with ``end_session``.
        """
        box = self._sessions.get(session)
        if box is not None and box.release(topic, reader=reader, run=run):
            self._wake_writers()

    async def end_session(self, session: str) -> None:
        """Deletes a session whose job has ended, wakes everybody who waits for it, and refuses it from now on."""
        self._ended = {name: at for name, at in self._ended.items() if self.released(name)}
        self._ended[session] = self._clock()
        box = self._sessions.pop(session, None)
        self._used.pop(session, None)
        for name, topic in self._readers:
            if name == session:
                self._wake_readers(session, topic)
        if box is None:
            return
        box.end()
        for ticket in self._writers.get(box, []):
            ticket.set()
        self._wake_writers()
        if not box.on_disk:
            return
        try:
            gone = box.spool.retire()
        except OSError as error:
            log.warning("folder not removed", extra={"session": session, "error": str(error)})
        else:
            await anyio.to_thread.run_sync(remove_tree, gone)

    def _open(self, session: str) -> Session:
        box = self._sessions.get(session)
        if box is None:
            if len(self._sessions) >= self._limits.sessions:
                raise BufferFull(f"{self._limits.sessions} sessions are open, which is the limit")
            spool = Spool(self._root / folder_name(session))
            box = self._sessions[session] = Session(session, spool, self._limits, self._pool)
        self._used[session] = self._clock()
        return box

    def _refuse_released(self, session: str) -> None:
        if self.released(session):
            raise SessionReleased(f"session {session} has ended")

    def _refuse_oversize(self, size: int) -> None:
        limit = min(
            self._limits.message_bytes, self._limits.session_bytes, self._limits.total_bytes
        )
        if size > limit:
            settings = "limits.message_bytes, limits.session_bytes"
            raise TooLarge(
                f"a message of {size} bytes is over the limit of {limit} ({settings}): send it in parts"
            )

    def _wake_readers(self, session: str, topic: str) -> None:
        for arrival in self._readers.get((session, topic), ()):
            arrival.set()

    def _wake_writers(self) -> None:
        for waiting in self._writers.values():
            waiting[0].set()
        for ticket in self._over:
            ticket.set()
