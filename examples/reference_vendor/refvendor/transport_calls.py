"""Calls the platform's transport module, and repeats calls whose failure may pass."""

from __future__ import annotations

import base64
import http.client
import random
import time
from collections.abc import Callable, Mapping

from refvendor.connections import ChannelRefused, open_connection
from refvendor.contract import Log, PeerTimeout
from refvendor.forms import FORMS, Call, JsonForm, Response

SUCCESS_CODES = ("E0000000000", "0", 0)
NOT_YET = "E0000000601"  # no message has come
TRY_AGAIN_CODES = (
    "E0000000607",  # network unreachable
    "E0000000700",  # buffer full
)
# Seconds between two tries of a call; the pause doubles each time.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
CALL_SECONDS = 60.0  # for one try of a call, beyond the time that the transport may hold it
SINGLE_CALL_SECONDS = 2.0  # for a call that is not repeated
LOG_INTERVAL = 30.0  # seconds between two log lines about one call


class CallFailed(Exception):
    """A call failed for a reason that may pass."""


class Deadline:
    """The moment until which a run may wait for others."""

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def remaining(self) -> float:
        """Return the seconds until the deadline, 0 after it."""
        return max(0.0, self._end - self._clock())


class Caller:
    """Calls the transport module, and repeats calls until the deadline.

    Not for use by several threads.
    """

    def __init__(
        self,
        address: str,
        deadline: Deadline,
        log: Log,
        sleep: Callable[[float], None] = time.sleep,
        form: str = JsonForm.name,
    ):
        """``form`` is one of `FORMS`. Raises `BadParameters` for an invalid address."""
        self._form = FORMS[form]
        self._connection = open_connection(address, form)
        self._deadline = deadline
        self._log = log
        self._sleep = sleep

    def call(
        self,
        verb: str,
        headers: Mapping[str, str],
        call: Call,
        hold_seconds: float = 0.0,
    ) -> Response:
        """Return the transport's response to ``push``, ``pop`` or ``release``.

        The transport itself may hold the call for ``hold_seconds``. Refused and broken connections,
        HTTP 5xx, unreachable peers and full buffers are tried again. Raises `PeerTimeout` at the
        deadline and `ChannelRefused` for any other response than success.
        """
        pause = FIRST_PAUSE
        next_log = time.monotonic()
        while True:
            was_open = self._connection.is_open
            seconds = min(
                CALL_SECONDS,
                max(1.0, self._deadline.remaining()),
            )
            try:
                return self._try(verb, headers, call, hold_seconds + seconds)
            except CallFailed as error:
                failure = error
            if was_open and not self._connection.is_open:
                continue  # the other side may just have closed an idle connection
            if time.monotonic() >= next_log:
                message = "transport does not deliver yet, trying again"
                self._log(
                    "warning",
                    message,
                    call=verb,
                    cause=str(failure),
                )
                next_log = time.monotonic() + LOG_INTERVAL
            remaining = self._deadline.remaining()
            if remaining <= 0:
                raise PeerTimeout(
                    f"transport {verb}: no success before the task's deadline, last: {failure}"
                )
            self._sleep(min(remaining, pause * random.uniform(0.8, 1.2)))
            pause = min(LONGEST_PAUSE, pause * 2)

    def call_once(
        self,
        verb: str,
        headers: Mapping[str, str],
        call: Call,
    ) -> bool:
        """Call without repeating; return whether it succeeded."""
        try:
            self._try(verb, headers, call, SINGLE_CALL_SECONDS)
        except (CallFailed, ChannelRefused):
            return False
        return True

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        self._connection.close()

    def _try(
        self,
        verb: str,
        headers: Mapping[str, str],
        call: Call,
        seconds: float,
    ) -> Response:
        """Call once. Raises `CallFailed` if another try may help, else `ChannelRefused`."""
        request = self._form.request(call)
        try:
            status, content = self._connection.exchange(
                verb,
                headers,
                request,
                seconds,
            )
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise CallFailed(f"{type(error).__name__}: {error}") from error
        if status >= 500:
            raise CallFailed(f"HTTP {status}")
        response = self._parse(verb, status, content)
        reason = f"{response.code} {response.message}".strip()
        if response.code in TRY_AGAIN_CODES:
            raise CallFailed(reason)
        if response.code != NOT_YET and response.code not in SUCCESS_CODES:
            raise ChannelRefused(f"transport {verb}: {reason}")
        return response

    def _parse(
        self,
        verb: str,
        status: int,
        content: bytes,
    ) -> Response:
        try:
            return self._form.parse_response(content)
        except (ValueError, RecursionError) as error:
            raise ChannelRefused(
                f"transport {verb}: HTTP {status} without a code in {self._form.name}"
            ) from error


def payload_of(response: Response) -> bytes:
    """Return the payload of a pop, empty if there is none.

    Raises `ChannelRefused` if it does not decode.
    """
    content = response.content or b""
    if isinstance(content, bytes):
        return content
    try:
        return base64.b64decode(content, validate=True)
    except (ValueError, TypeError) as error:
        raise ChannelRefused("transport pop: content is not Base64") from error
