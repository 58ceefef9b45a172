"""Refused requests of the channel: kept with the job that they concern, logged and counted."""

from collections.abc import Callable

import structlog
from fastapi import Request

from adapter.bfia.channel.sessions import Cache, Claim
from gateway.broker import Broker
from gateway.errors import GatewayError, brief

log = structlog.get_logger(__name__)

_LONGEST = 512  # characters of a header, as the codec takes them
_LONGEST_TOKEN = 8 * _LONGEST


class Refusals:
    """What is noted of each refused request; a repeated one is only counted.

    A container that names another session than its own is found by its token or address, so that its job shows
    the refusal, too.
    """

    def __init__(self, broker: Broker, own_session: Callable[[Claim], str]) -> None:
        """``own_session`` returns the session of the run that a claim comes from; empty where there is none."""
        self._broker = broker
        self._own_session = Cache(own_session)

    async def of_container(
        self,
        operation: str,
        request: Request,
        error: GatewayError,
    ) -> None:
        """Note that a container's request was refused."""
        named = _header(request, "session-id", _LONGEST)
        token = _header(request, "token", _LONGEST_TOKEN)
        address = request.client.host if request.client else ""
        try:
            own = await self._own_session(Claim(named, token, "" if token else address))
        except GatewayError:  # the database may be away
            own = ""
        self._note(operation, {named, own}, request, error)

    async def of_node(
        self,
        operation: str,
        request: Request,
        error: GatewayError,
    ) -> None:
        """Note that what another node brings was refused."""
        self._note(operation, {_header(request, "session-id", _LONGEST)}, request, error)

    def _note(
        self,
        operation: str,
        sessions: set[str],
        request: Request,
        error: GatewayError,
    ) -> None:
        self._broker.count_refusal(operation, error.reason)
        text = brief(error).message
        cause = f"{operation}: {error.reason}: {text}"
        concerned = sorted(sessions - {""})
        is_repeated = concerned != [] and all(
            self._broker.last_refused(session) == cause for session in concerned
        )
        if is_repeated:
            return
        for session in concerned:
            self._broker.refused(session, cause)
        source = _header(request, "source-node-id", _LONGEST)
        log.warning(
            "channel request refused",
            request=operation,
            sessions=concerned,
            source=source,
            reason=error.reason,
            cause=text,
        )


def _header(
    request: Request,
    name: str,
    longest: int,
) -> str:
    return request.headers.get(f"x-ptp-{name}", "").strip()[:longest]
