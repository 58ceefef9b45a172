"""Messages that arrive in parts, until the last part makes them readable."""

import asyncio
from collections.abc import Sequence

import anyio.to_thread

from gateway.broker.capacity import Capacity
from gateway.broker.journal import MOST_AHEAD
from gateway.broker.mailbox import StoredMessage
from gateway.broker.messages import BufferFull, PartsMissing, SessionReleased
from gateway.broker.session import Session, Upload, digest, refuse_on_disk_error

# Seconds without a further part after which an upload is dropped. They are many, because a sender
# may have to wait for the container that makes the next part.
MAX_PAUSE = 120.0


class Uploads:
    """The incomplete messages of all sessions. All calls come from one event loop."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._restored: list[Session] = []  # sessions of an earlier process, perhaps with uploads

    def restore(self, session: Session) -> None:
        """Register a session of an earlier process, whose uploads expire unless they continue."""
        self._restored.append(session)

    def start_expiry_of_old_uploads(self) -> None:
        """Give the uploads of an earlier process `MAX_PAUSE` seconds to continue.

        The first call, with the first part after the start, begins that time. Further calls change
        nothing.
        """
        sessions = self._restored
        self._restored = []
        if not sessions:
            return

        def remove_abandoned() -> None:
            """Delete the old uploads that have not continued."""
            for session in sessions:
                for name in session.old_uploads - session.uploads.keys():
                    session.spool.remove_part(name)

        asyncio.get_running_loop().call_later(MAX_PAUSE, remove_abandoned)

    async def write(
        self,
        session: Session,
        stored: StoredMessage,
        pieces: Sequence[bytes],
        offset: int,
        wait: float,
    ) -> bool:
        """Write a part of a message; return True if the message is now complete and readable.

        Once the first part has capacity, parts may overtake each other, except the last one: its
        sender learns from the response that the message is complete.

        Raises `PartsMissing`, `SessionReleased`, and `BufferFull`, the last also while another
        request writes the same part, or the first one waits for capacity.
        """
        name = _upload_name(stored)
        if offset == 0:
            self._drop_earlier_attempts(session, stored)
        upload = session.uploads.setdefault(name, Upload(stored))
        is_beginning = upload.busy and upload.received is None
        if is_beginning or offset in upload.writing:
            raise BufferFull("another part of this message is being written")
        upload.writing.add(offset)
        try:
            await self._begin(session, name, upload, offset, wait)
            _refuse_out_of_order(upload, pieces, offset)
            await self._write_part(session, name, upload, pieces, offset)
            if upload.received == stored.size:
                return self._complete(session, name)
            return False
        finally:
            upload.writing.discard(offset)
            if upload.received is None:  # refused before it got capacity
                session.uploads.pop(name, None)

    def _drop_earlier_attempts(self, session: Session, stored: StoredMessage) -> None:
        """Drop the uploads of a sealed message that its sender begins anew."""
        for name, upload in list(session.uploads.items()):
            if _is_earlier_attempt(upload.stored, stored) and not upload.busy:
                self._drop(session, name)

    async def _begin(
        self,
        session: Session,
        name: str,
        upload: Upload,
        offset: int,
        wait: float,
    ) -> None:
        """Reserve capacity with the first part that this process receives.

        The first part after a restart continues the file of the earlier process. Raises
        `PartsMissing` if it does not follow on what that process has received.
        """
        if upload.received is not None:
            return
        received = 0
        ahead: dict[int, int] = {}
        if session.on_disk:
            received, ahead = session.spool.progress(name, upload.stored.size)
        _refuse_gap(received, offset)
        await self._capacity.reserve(session, upload.stored, wait)
        upload.received = received
        upload.ahead = ahead
        self._restart_expiry(session, name, upload)

    async def _write_part(
        self,
        session: Session,
        name: str,
        upload: Upload,
        pieces: Sequence[bytes],
        offset: int,
    ) -> None:
        """Write a part at its offset, and count it."""
        size = upload.stored.size
        end = offset + sum(len(piece) for piece in pieces)
        with refuse_on_disk_error(session):
            session.create_spool()
            await anyio.to_thread.run_sync(
                session.spool.write_part,
                name,
                offset,
                pieces,
                size,
            )
        if session.ended:
            raise SessionReleased(f"session {session.name} has ended")
        has_progress = upload.add(offset, end)
        with refuse_on_disk_error(session):
            session.spool.note_progress(
                name,
                size,
                upload.received or 0,
                upload.ahead,
            )
        if has_progress:
            self._restart_expiry(session, name, upload)

    def _restart_expiry(
        self,
        session: Session,
        name: str,
        upload: Upload,
    ) -> None:
        """Drop the upload after `MAX_PAUSE` without progress."""
        if upload.expiry is not None:
            upload.expiry.cancel()

        def expire() -> None:
            """Drop the upload; if a part is being written, give it more time."""
            if upload.busy:
                self._restart_expiry(session, name, upload)
            else:
                self._drop(session, name)

        upload.expiry = asyncio.get_running_loop().call_later(MAX_PAUSE, expire)

    def _drop(self, session: Session, name: str) -> None:
        """Delete an upload, and give its capacity back."""
        upload = session.uploads.pop(name)
        if upload.expiry is not None:
            upload.expiry.cancel()
        session.spool.remove_part(name)
        self._capacity.unreserve(session, upload.stored)

    def _complete(self, session: Session, name: str) -> bool:
        """Make a complete message readable; return False if another push has stored it before."""
        upload = session.uploads[name]
        stored = upload.stored
        if upload.expiry is not None:
            upload.expiry.cancel()
        if session.is_repeat(stored):
            self._drop(session, name)
            return False
        try:
            with refuse_on_disk_error(session):
                stored.number = session.new_number()
                session.spool.complete(name, stored.number, stored.size)
                session.add(stored, b"")  # the payload is in a file already
        except BufferFull:
            self._drop(session, name)
            raise
        del session.uploads[name]
        return True


def _refuse_out_of_order(upload: Upload, pieces: Sequence[bytes], offset: int) -> None:
    """Refuse a part that came too early.

    Raises `PartsMissing` for the last part of a message of which another part is missing, and
    `BufferFull` for it while another part is written, for a part while the last one is written, or
    for a part behind too many others.
    """
    received = upload.received or 0
    end = offset + sum(len(piece) for piece in pieces)
    is_last = end == upload.stored.size
    if is_last:
        _refuse_gap(received, offset)
    # The end of the message moves its file.
    is_exclusive = is_last or upload.last in upload.writing
    if is_exclusive and len(upload.writing) > 1:
        raise BufferFull("another part of this message is being written")
    if is_last:
        upload.last = offset
    is_ahead = offset > received and offset not in upload.ahead
    most_ahead = len(upload.ahead) + len(upload.writing)
    if is_ahead and most_ahead > MOST_AHEAD:
        raise BufferFull(f"{MOST_AHEAD} parts behind a missing one are here")


def _refuse_gap(received: int, offset: int) -> None:
    """Raise `PartsMissing` unless a part follows on the ``received`` bytes."""
    if offset > received:
        raise PartsMissing(
            f"only {received} bytes of this message are here, not what is before byte {offset}"
        )


def _upload_name(stored: StoredMessage) -> str:
    """Return the name of an upload's file: a digest, which is the same for each part.

    The sender's number counts, too: parts of two attempts, whose contents may differ, do not make
    a message together.
    """
    texts = [*_identity(stored), str(stored.size)]
    number = stored.sender_number
    if number is not None:
        texts += [number.series, str(number.value)]
    return digest(*texts).hex()


def _identity(stored: StoredMessage) -> tuple[str, str, str]:
    """Return what all attempts to send a message have in common."""
    return stored.topic, stored.source, stored.sequence or ""


def _is_earlier_attempt(earlier: StoredMessage, stored: StoredMessage) -> bool:
    """Return whether a sealed message was begun before another attempt to send it.

    An old attempt that somebody repeats is none: its number is lower.
    """
    before = earlier.sender_number
    now = stored.sender_number
    if before is None or now is None or _identity(earlier) != _identity(stored):
        return False
    return before.series != now.series or before.value < now.value
