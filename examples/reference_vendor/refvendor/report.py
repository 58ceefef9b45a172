"""Reports the status of a run to the platform.

A platform that does not respond never fails the run.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, urlsplit

from refvendor.contract import Log

SUCCESS_CODE = "00000000"
FAILURE_CODE = "99999999"
# Seconds between two tries of a report; the pause doubles each time.
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
SHORTEST_TIMEOUT = 0.1  # seconds for one try
START_SECONDS = 1.0  # that the start of the work waits for its report
END_SECONDS = 60.0  # that the end of the run waits for its report: the platform may be restarting
MOST_MESSAGE_CHARACTERS = 2000
MOST_REFUSAL_CHARACTERS = 300
MOST_RESPONSE_BYTES = 65536
CONNECTIONS: dict[str, type[http.client.HTTPConnection]] = {
    "http": http.client.HTTPConnection,
    "https": http.client.HTTPSConnection,
}


class ReportFailed(Exception):
    """The platform did not accept a report."""

    def __init__(
        self,
        cause: str,
        *,
        may_pass: bool,
    ) -> None:
        """``may_pass``: whether another try may help."""
        super().__init__(cause)
        self.may_pass = may_pass


class Reporter:
    """Posts the status of one party's run to ``system.callback``.

    Its methods return whether that succeeded.
    """

    def __init__(
        self,
        url: str,
        task_id: str,
        party: str,
        log: Log,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """An empty ``url`` turns reports off."""
        self._url = url
        self._common = {
            "task_id": task_id,
            "role": party,
        }
        self._log = log
        self._sleep = sleep

    def running(self, seconds: float = START_SECONDS) -> bool:
        """Report the start of the work; try for so many seconds."""
        return self._report({"status": "RUNNING"}, seconds)

    def succeeded(self, seconds: float = END_SECONDS) -> bool:
        """Report success; try for so many seconds."""
        return self._report(
            {"status": "SUCCESS", "result_code": SUCCESS_CODE},
            seconds,
        )

    def failed(
        self,
        message: str,
        result_code: str = FAILURE_CODE,
        seconds: float = END_SECONDS,
    ) -> bool:
        """Report failure and its reason; try for so many seconds."""
        body = {
            "status": "FAILED",
            "result_code": result_code,
            "result_message": message[:MOST_MESSAGE_CHARACTERS],
        }
        return self._report(body, seconds)

    def _report(
        self,
        body: dict[str, Any],
        seconds: float,
    ) -> bool:
        """Post until the platform accepts the report or ``seconds`` have passed."""
        if not self._url:
            return False
        end = time.monotonic() + seconds
        pause = FIRST_PAUSE
        while True:
            try:
                self._post(
                    self._common | body,
                    max(SHORTEST_TIMEOUT, end - time.monotonic()),
                )
                return True
            except ReportFailed as error:
                failure = error
            has_time = end - time.monotonic() > pause
            if not failure.may_pass or not has_time:
                self._log(
                    "warning", "callback not heard", status=body["status"], cause=str(failure)
                )
                return False
            self._sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _post(
        self,
        body: dict[str, Any],
        seconds: float,
    ) -> None:
        """Post once. Raises `ReportFailed`."""
        try:
            parts = urlsplit(self._url)
            connection = _open_connection(parts, seconds)
        except ValueError as error:
            raise ReportFailed("system.callback is not an HTTP URL", may_pass=False) from error
        path = parts.path or "/"
        if parts.query:
            path += f"?{parts.query}"
        headers = {"Content-Type": "application/json", "Connection": "close"}
        try:
            connection.request(
                "POST",
                path,
                json.dumps(body).encode(),
                headers,
            )
            response = connection.getresponse()
            content = response.read(MOST_RESPONSE_BYTES)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ReportFailed(f"{type(error).__name__}: {error}", may_pass=True) from error
        finally:
            connection.close()
        if response.status >= 300:
            raise ReportFailed(
                f"HTTP {response.status}",
                may_pass=response.status >= 500,
            )
        refusal = _refusal_in(content)
        if refusal:
            raise ReportFailed(refusal, may_pass=False)


def _open_connection(
    parts: SplitResult,
    seconds: float,
) -> http.client.HTTPConnection:
    """Return a connection to a URL's host. Raises `ValueError` unless it is an HTTP URL."""
    if parts.scheme not in CONNECTIONS or not parts.hostname:
        raise ValueError("not an HTTP URL")
    return CONNECTIONS[parts.scheme](
        parts.hostname,
        parts.port,
        timeout=seconds,
    )


def _refusal_in(content: bytes) -> str:
    """Return the error in a response's body, empty if it has none or is not JSON."""
    try:
        envelope = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(envelope, dict) or str(envelope.get("code", 0)) in ("0", "200"):
        return ""
    message = envelope.get("msg") or envelope.get("message") or ""
    return f"code {envelope['code']} {message}"[:MOST_REFUSAL_CHARACTERS].strip()
