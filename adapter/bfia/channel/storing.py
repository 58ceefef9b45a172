"""Stores messages for the containers of this node, unless their session has ended."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from adapter.bfia.channel import codec
from adapter.bfia.channel.codec import Ptp
from adapter.bfia.channel.dependencies import ChannelParts
from adapter.bfia.channel.message_forms import Form
from adapter.bfia.channel.pieces import Payload, total_length
from adapter.bfia.channel.responses import IN_THREAD
from adapter.bfia.channel.sessions import Cache, UnknownSessions
from gateway.broker import SessionReleased
from gateway.broker.received import Number

T = TypeVar("T")


class CodecThreads:
    """Parses and writes messages: short ones on the event loop, long ones in a few threads."""

    def __init__(self, threads: int) -> None:
        self.limiter = CapacityLimiter(threads)

    async def run(
        self,
        pieces: list[bytes],
        work: Callable[[list[bytes]], T],
        limit: int = IN_THREAD,
    ) -> T:
        """Return the result of ``work`` with the pieces of a message.

        ``limit``: the most bytes for which the event loop does the work itself.
        """
        if total_length(pieces) <= limit:
            return work(pieces)
        return await anyio.to_thread.run_sync(
            work,
            pieces,
            limiter=self.limiter,
        )


@dataclass(frozen=True, slots=True)
class ParsedPush:
    """A parsed push."""

    topic: str
    payload: Payload
    # The id of the logical push, which its repeats share; "" if the sender gave none.
    push_id: str


def parse_push(
    ptp: Ptp,
    form: Form,
    token: str,
    pieces: list[bytes],
) -> ParsedPush:
    """Read a push. The topic of a header takes precedence over that of the body.

    ``push_id`` is a digest of the sender's own sequence, of ``token`` (the sender's token, or the
    digest that another node sends in its place), and of the payload's size and checksum: messages
    of a second attempt of a task, or of a sender that uses "sequence" for something else, must not
    be lost as repeats. Without a sequence, it is the message id of the headers. Raises Invalid.
    """
    push, payload = codec.read_push(pieces, form)
    push_id = ptp.message_id
    sequence = push.metadata.get("sequence", "")
    if sequence:
        push_id = short_digest("sequence", token, sequence, f"{payload.size} {payload.checksum}")
    topic = push.topic
    if ptp.topic is not None:
        topic = ptp.topic
    return ParsedPush(topic, payload, push_id)


def short_digest(*texts: str) -> str:
    """Return a digest of some texts (32 hexadecimal digits)."""
    joined = "\0".join(texts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(joined, digest_size=16).hexdigest()


class Inbox:
    """Stores messages in the broker.

    `store`, `store_part` and `refuse_ended` raise SessionReleased for a session that has ended.
    """

    def __init__(self, parts: ChannelParts, codec_threads: CodecThreads) -> None:
        self._broker = parts.broker
        self._codec_threads = codec_threads
        self._session_open = Cache(parts.session_open)
        self._unknown = UnknownSessions(
            parts.broker,
            self._session_open,
            parts.unknown_sessions,
        )

    async def store(
        self,
        ptp: Ptp,
        form: Form,
        pieces: list[bytes],
        source: str,
        run: str | None = None,
        sender_number: Number | None = None,
    ) -> None:
        """Store a whole message of node ``source``. A message and its repeats are stored once.

        ``run``: the run of this node that pushes; None for a message of another node.
        ``sender_number``: a sealed message's number. Raises Invalid, and BufferFull if there is no
        capacity.
        """
        read = partial(parse_push, ptp, form, ptp.token)
        push = await self._codec_threads.run(pieces, read)
        if not self._broker.holds(ptp.session):
            await self.refuse_ended(ptp.session)
            await self._unknown.admit(ptp.session, source)
        sequence = None
        if push.push_id:
            sequence = short_digest("message", push.push_id)
        await self._broker.push(
            ptp.session,
            push.topic,
            source,
            push.payload,
            size=push.payload.size,
            run=run,
            sequence=sequence,
            sender_number=sender_number,
        )

    async def store_part(
        self,
        ptp: Ptp,
        pieces: list[bytes],
        offset: int,
        size: int,
        source: str,
        run: str | None = None,
        sender_number: Number | None = None,
    ) -> None:
        """Store a part of a bare payload.

        ``offset`` and ``size`` (of the whole message) are in bytes; ``sender_number`` is that of a
        sealed message. Raises BufferFull, and
        PartsMissing if an earlier part was not received.
        """
        # No `admit`, unlike in `store`: the callers take parts only in sessions of known jobs.
        await self.refuse_ended(ptp.session)
        await self._broker.part(
            ptp.session,
            ptp.topic or "",
            source,
            pieces,
            offset=offset,
            size=size,
            run=run,
            sequence=short_digest("message", ptp.message_id),
            sender_number=sender_number,
        )

    async def refuse_ended(self, session: str) -> None:
        """Raise SessionReleased if the job of a session has ended."""
        if self._broker.holds(session):  # then the session is open
            return
        if await self._session_open(session) is False:
            raise SessionReleased(f"session {session} has ended")

    async def is_of_known_job(self, session: str) -> bool:
        """True if a session belongs to a job that this node knows."""
        return await self._session_open(session) is not None
