"""Tells the platform how the run goes. A platform that does not listen never fails the run."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from refvendor.contract import Log

SUCCESS_CODE, FAILURE_CODE = "00000000", "99999999"
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
_LONGEST_MESSAGE = 2000


class Reporter:
    """Posts the status of one task's party to ``system.callback``."""

    def __init__(
        self,
        url: str,
        task_id: str,
        party: str,
        log: Log,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url = url
        self._always = {"task_id": task_id, "role": party}
        self._log = log
        self._sleep = sleep

    def running(self, seconds: float = 1.0) -> bool:
        """Say that the work begins; whether the platform heard it."""
        return self._tell({"status": "RUNNING"}, seconds)

    def succeeded(self, seconds: float = 60.0) -> bool:
        """Tell that the run went well; False: nobody took it in within so many seconds."""
        return self._tell({"status": "SUCCESS", "result_code": SUCCESS_CODE}, seconds)

    def failed(
        self,
        message: str,
        result_code: str = FAILURE_CODE,
        seconds: float = 60.0,
    ) -> bool:
        """Tell that the run failed, and why; False: nobody took it in within so many seconds."""
        body = {
            "status": "FAILED",
            "result_code": result_code,
            "result_message": message[:_LONGEST_MESSAGE],
        }
        return self._tell(body, seconds)

    def _tell(self, body: dict[str, Any], seconds: float) -> bool:
        """Post until it is heard or ``seconds`` have passed."""
        if not self._url:
            return False
        end, pause = time.monotonic() + seconds, FIRST_PAUSE
        while True:
            trouble, final = self._post(self._always | body, max(0.1, end - time.monotonic()))
            if trouble is None:
                return True
            left = end - time.monotonic()
            if final or left <= pause:
                self._log("warning", "callback not heard", status=body["status"], cause=trouble)
                return False
            self._sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _post(self, body: dict[str, Any], seconds: float) -> tuple[str | None, bool]:
        """What went wrong, and whether trying again is of no use."""
        try:
            parts = urlsplit(self._url)
            kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
            if parts.scheme not in kinds or not parts.hostname:
                return "system.callback is not an HTTP URL", True
            connection = kinds[parts.scheme](parts.hostname, parts.port, timeout=seconds)
        except ValueError:
            return "system.callback is not an HTTP URL", True
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            headers = {"Content-Type": "application/json", "Connection": "close"}
            connection.request("POST", path, json.dumps(body).encode(), headers)
            response = connection.getresponse()
            content = response.read(65536)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return f"{type(error).__name__}: {error}", False
        finally:
            connection.close()
        if response.status >= 300:
            return f"HTTP {response.status}", response.status < 500
        return _refusal(content), True


def _refusal(content: bytes) -> str | None:
    """The platform's words if its envelope says no."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or str(answer.get("code", 0)) in ("0", "200"):
        return None
    return f"code {answer['code']} {answer.get('msg') or answer.get('message') or ''}"[:300].strip()
