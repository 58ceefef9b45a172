"""Responses of the control and management layers, read liberally; deviations are remembered."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from gateway.conformance.platforms.findings import Exchange

_MOST_TEXT = 200  # characters of a response that a finding repeats
# Traces of Python, Java and Go, which a response must never show.
_TRACE = re.compile(
    r"Traceback \(most recent call last\)|^\s+at [\w.$]+\([\w.]+:\d+\)|goroutine \d+ \[",
    re.MULTILINE,
)
FATE_UNKNOWN_PATH = 6000  # FATE-Flow's code for an unknown path, and for any exception
_FATE_UNSERVED = ("404: Not Found", "405: Method Not Allowed")  # in its text for unserved paths
_UNSERVED_STATES = (404, 405, 501)  # of HTTP
SUCCESS_CODES = (0, 200)  # the standard's code; that of version 1.0, which Kuscia uses


@dataclass(frozen=True)
class Answer:
    """One response, as far as it can be read."""

    exchange: Exchange
    envelope: dict[str, Any] | None  # None if the body is not a JSON object
    # Breaches of the envelope's form: a description, and the profile of a known platform that does
    # the same ("" if none does).
    breaches: tuple[tuple[str, str], ...] = field(default=())

    @property
    def code(self) -> int | None:
        """The response's code; None without one."""
        if self.envelope is None:
            return None
        code = self.envelope.get("code", self.envelope.get("retcode"))
        if isinstance(code, bool) or not isinstance(code, int):
            return None
        return code

    @property
    def text(self) -> str:
        """The response's text for people; empty without one."""
        if self.envelope is None:
            return ""
        text = self.envelope.get("msg") or self.envelope.get("message") or ""
        return str(text)[:_MOST_TEXT]

    @property
    def data(self) -> dict[str, Any]:
        """The response's data; empty without any."""
        if self.envelope is None:
            return {}
        data = self.envelope.get("data")
        if isinstance(data, dict):
            return data
        return {}

    @property
    def has_data(self) -> bool:
        """Whether the response has an object `data`, also an empty one."""
        return self.envelope is not None and isinstance(self.envelope.get("data"), dict)

    def value(self, name: str) -> Any:
        """Return a field of the data, or of the envelope as FATE-Flow sends it; None without it."""
        if name in self.data:
            return self.data[name]
        return (self.envelope or {}).get(name)

    @property
    def succeeded(self) -> bool:
        """Whether the response is a success."""
        status = self.exchange.status
        return self.code in SUCCESS_CODES and status is not None and status < 300

    @property
    def refused(self) -> bool:
        """Whether the response is a refusal in the standard's form."""
        return self.code is not None and not self.succeeded

    @property
    def is_unserved(self) -> bool:
        """Whether the node does not serve the path, or not by this method."""
        if self.code == FATE_UNKNOWN_PATH:
            return any(words in self.text for words in _FATE_UNSERVED)
        return self.code is None and self.exchange.status in _UNSERVED_STATES

    @property
    def crashed(self) -> str:
        """How the response shows an internal error; empty if it does not."""
        status = self.exchange.status
        if status is None:
            return self.exchange.failure
        has_trace = bool(_TRACE.search(self.exchange.received.decode("utf-8", "replace")))
        if has_trace and status >= 500:
            return f"HTTP {status}, and the response holds a program's trace"
        if has_trace:
            return "the response holds a program's trace"
        if status >= 500:
            return f"HTTP {status}"
        return ""

    @property
    def summary(self) -> str:
        """The response in one line, for people."""
        if self.exchange.status is None:
            return self.exchange.failure
        if self.code is None:
            beginning = self.exchange.received[:_MOST_TEXT].decode("utf-8", "replace")
            return f"HTTP {self.exchange.status}, {beginning!r}"
        if self.text:
            return f"code {self.code}, {self.text!r}"
        return f"code {self.code}"


def read_answer(exchange: Exchange) -> Answer:
    """Read a response."""
    if exchange.status is None:
        return Answer(exchange, None)
    try:
        value = json.loads(exchange.received)
    except (ValueError, RecursionError):
        return Answer(exchange, None, (("the body is not JSON", ""),))
    if not isinstance(value, dict):
        return Answer(exchange, None, (("the body is not a JSON object", ""),))
    return Answer(exchange, value, tuple(_breaches(value)))


def _breaches(envelope: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the breaches of the envelope's form, each with the profile that does the same."""
    breaches = []
    code = envelope.get("code")
    if "code" not in envelope and "retcode" in envelope:
        breaches.append(("the code is called retcode", "fate"))
    elif isinstance(code, bool) or not isinstance(code, int):
        breaches.append((f"code is {code!r}, not an integer", ""))
    elif code == SUCCESS_CODES[1]:
        breaches.append(("the success code is 200", "kuscia"))
    if "msg" not in envelope:
        has_message = isinstance(envelope.get("message"), str)
        breaches.append(("msg is absent", "fate" if has_message else ""))
    elif not isinstance(envelope["msg"], str):
        breaches.append(("msg is not a text", ""))
    if "data" not in envelope:
        breaches.append(("data is absent", "fate"))
    elif not isinstance(envelope["data"], dict):
        breaches.append(("data is not an object", "fate" if not envelope["data"] else ""))
    return breaches
