"""Refused requests of the channel: kept with the job that they concern, logged and counted."""

from collections.abc import Callable

import structlog
from fastapi import Request

from adapter.bfia.channel.sessions import Cache, Claim
from gateway.broker import Broker
from gateway.errors import GatewayError, brief

log = structlog.get_logger(__name__)

# The most characters of a header, and of a token; `codec` refuses longer ones.
_LONGEST = 512
_LONGEST_TOKEN = 8 * _LONGEST


class Refusals:
    """Records each refused request; a repetition of the last refusal is only counted.

    A container that names another session than its own is recognised by its token or IP address,
    so that the job of the container shows the refusal, too.
    """

    def __init__(
        self,
        broker: Broker,
        own_session: Callable[[Claim], str],
    ) -> None:
        """``own_session`` returns the session of the run that a claim comes from; "" for no run."""
        self._broker = broker
        self._own_session = Cache(own_session)  # awaitable: each lookup runs in a thread

    async def of_container(
        self,
        operation: str,
        request: Request,
        error: GatewayError,
    ) -> None:
        """Record that a container's request was refused."""
        named_session = _header(request, "session-id", _LONGEST)
        token = _header(request, "token", _LONGEST_TOKEN)
        address = ""
        if not token and request.client is not None:
            address = request.client.host
        try:
            own_session = await self._own_session(Claim(named_session, token, address))
        except GatewayError:  # the database may be away
            own_session = ""
        self._record(operation, {named_session, own_session}, request, error)

    async def of_node(
        self,
        operation: str,
        request: Request,
        error: GatewayError,
    ) -> None:
        """Record that a request of another node was refused."""
        session = _header(request, "session-id", _LONGEST)
        self._record(operation, {session}, request, error)

    def _record(
        self,
        operation: str,
        concerned_sessions: set[str],
        request: Request,
        error: GatewayError,
    ) -> None:
        """Count a refusal; remember and log it unless it repeats the last one of its sessions.

        ``concerned_sessions`` may contain "", which is ignored.
        """
        self._broker.count_refusal(operation, error.reason)
        text = brief(error).message
        cause = f"{operation}: {error.reason}: {text}"
        sessions = sorted(concerned_sessions - {""})
        if self._is_repeated(sessions, cause):
            return
        for session in sessions:
            self._broker.remember_refusal(session, cause)
        log.warning(
            "channel request refused",
            request=operation,
            sessions=sessions,
            source=_header(request, "source-node-id", _LONGEST),
            reason=error.reason,
            cause=text,
        )

    def _is_repeated(self, sessions: list[str], cause: str) -> bool:
        """True if the last refusal of every session had the same cause; False without sessions."""
        if not sessions:
            return False
        return all(self._broker.last_refusal(session) == cause for session in sessions)


def _header(request: Request, name: str, longest: int) -> str:
    """Return the first ``longest`` characters of a header; "" if it is absent.

    ``name`` is without the prefix ``x-ptp-``.
    """
    return request.headers.get(f"x-ptp-{name}", "").strip()[:longest]
