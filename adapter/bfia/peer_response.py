"""The fields of a peer's response, and the errors that a response amounts to.

Peers other than this gateway write codes as numbers or as text, and the text in ``msg`` or in
``message``.
"""

import json
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from adapter.bfia.relay_wire import relay_response
from adapter.page import Page
from gateway.domain.entries import as_mapping
from gateway.domain.problems import Problem
from gateway.errors import (
    MAX_PROBLEMS,
    GatewayError,
    Invalid,
    NotAllowed,
    NotFound,
    PeerUnreachable,
    Refused,
    shorten,
    shown,
)
from gateway.http.peers import QUOTA
from route_table.model import MAX_NODE_ID

PROFILE_MISMATCH = "PROFILE_MISMATCH"

LONGEST_MESSAGE = 2000  # characters of a peer's message in the timeline
_LONGEST_REFUSAL = 4000  # characters of a peer's message in an error
_LONGEST_REASON = 200  # characters of a peer's reason
_LONGEST_CODE = 100  # characters of a code other than a usual number
_LARGEST_NUMBER = 2**53  # larger whole numbers are not exact in JSON


def read_json(content: bytes) -> Any:
    """Return the value of a JSON text; None for anything else.

    Lone surrogates, which no database stores, become ``?``.
    """
    try:
        text = json.dumps(json.loads(content), ensure_ascii=False)
        return json.loads(text.encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def message_of(envelope: Mapping[str, Any]) -> str:
    """Return the text of a response, from ``msg`` or ``message``; empty without one."""
    return str(envelope.get("msg") or envelope.get("message") or "")


def reason_of(envelope: Mapping[str, Any]) -> Any:
    """Return the field ``reason`` of a response's data; None without one."""
    return as_mapping(envelope.get("data")).get("reason")


def code_of(envelope: Mapping[str, Any]) -> int | None:
    """Return the code of a response as a number; None if it has none.

    Some peers send the number as text.
    """
    match envelope.get("code"):
        case bool():
            return None
        case int(code):
            return code
        case float(code) if code.is_integer():
            return int(code)
        case str(code) if re.fullmatch(r"-?[0-9]{1,9}", code):
            return int(code)
    return None


def shown_code(envelope: Mapping[str, Any]) -> Any:
    """Return the code of a response as logs and messages show it.

    Null and usual numbers are unchanged; any other value becomes a short text.
    """
    code = envelope.get("code")
    if code is None:
        return None
    is_usual_number = isinstance(code, int) and abs(code) < _LARGEST_NUMBER
    if is_usual_number:
        return code
    return shorten(str(code), _LONGEST_CODE)


def unproven(speaker: str, envelope: Mapping[str, Any], fault: str, date: str) -> PeerUnreachable:
    """Return the error of a response that is not proven to be the peer's.

    - ``fault``: what is wrong with its signature
    - ``date``: its header ``Date``. If the peer refused our own signature, the error carries the
      difference of the clocks, the usual cause.
    """
    words = shorten(message_of(envelope) or "nothing", LONGEST_MESSAGE)
    reason = "ANSWER_NOT_SIGNED"
    relayed = relay_response(envelope)
    if relayed is not None:
        reason = relayed.reason
    error = PeerUnreachable(
        f"{speaker} says, unproven: {words}; this answer is not proven to be its own: {fault}",
        reason=reason,
    )
    if reason_of(envelope) == "SIGNATURE_REFUSED":
        error.skew = _skew(date)
    return error


def unavailable(
    speaker: str, status: int, envelope: Mapping[str, Any], page: Page | None
) -> PeerUnreachable:
    """Return the error of a peer, or its proxy, that cannot respond now.

    ``page``: the response if it is not a JSON object; otherwise None.
    """
    cause = shorten(message_of(envelope), _LONGEST_REFUSAL)
    if page is not None:
        cause = page.quotation
    text = f"{speaker} answers HTTP {status}"
    if cause:
        text += f": {cause}"
    reason = None
    if reason_of(envelope) == QUOTA:
        reason = QUOTA
    return PeerUnreachable(text, reason=reason)


def target_unreachable(relay: str, message: str, delivered: bool, reason: str) -> PeerUnreachable:
    """Return the error of a relay that got no response from the node behind it.

    ``delivered``: as in `PeerUnreachable`, of the request to that node.
    """
    words = shorten(message, _LONGEST_REFUSAL)
    return PeerUnreachable(
        f"next hop {relay}: {words}",
        delivered=delivered,
        reason=reason,
    )


def profile_mismatch(speaker: str, profile: str, message: str) -> Refused:
    """Return the error of a peer that speaks another dialect than its route says.

    ``profile``: the dialect that it speaks, as its ``message`` reveals.
    """
    words = shorten(message, LONGEST_MESSAGE)
    return Refused(
        f"{speaker} answers as nodes of profile {profile} do ({words}), and its route does not "
        "say so",
        reason=PROFILE_MISMATCH,
    )


def refusal(speaker: str, path: str, envelope: Mapping[str, Any]) -> GatewayError:
    """Return the error of a response without a success code.

    Its kind, reason and problems are those that the peer reports, if it reports a reason.
    """
    reason = reason_of(envelope)
    message = shorten(message_of(envelope), _LONGEST_REFUSAL)
    if isinstance(reason, str) and reason:
        text = f"{speaker}: {message or shown_code(envelope)}"
        return _refusal_with_reason(text, envelope)
    code = shown_code(envelope)
    text = f"{speaker} refuses {path} without a code"
    if code is not None:
        text = f"{speaker} refuses {path} with code {code}"
    if message:  # after the code, never alone: some peers write "success" even in a refusal
        text = f"{text}: {message}"
    return Refused(text)


def path_not_served(speaker: str, envelope: Mapping[str, Any], hint: str) -> Refused:
    """Return the error of a peer that serves none of the standard's paths.

    ``hint``: what to try instead.
    """
    message = shorten(message_of(envelope), _LONGEST_REFUSAL)
    text = f"{speaker} does not serve this path ({message}): {hint}"
    return Refused(text, reason="NOT_SERVED_THERE")


def _refusal_with_reason(message: str, envelope: Mapping[str, Any]) -> GatewayError:
    """Return the error whose kind, reason and problems a peer reports."""
    code = code_of(envelope)
    data = as_mapping(envelope.get("data"))
    reason = shorten(data["reason"], _LONGEST_REASON)
    problems = _problems(data.get("problems"))
    if problems and code == Invalid.code:
        return Invalid(problems, reason=reason)
    if code == NotAllowed.code:
        return NotAllowed(message, reason=reason)
    if code == NotFound.code:
        return NotFound(message, reason=reason)
    return Refused(message, reason=reason, problems=problems)


def _problems(value: Any) -> list[Problem]:
    """Return the problems that a peer reports, shortened; empty if they cannot be read.

    One more than `MAX_PROBLEMS` is read, so that an error can tell that there are more.
    """
    problems: list[Problem] = []
    if not isinstance(value, list):
        return problems
    for entry in value[: MAX_PROBLEMS + 1]:
        if isinstance(entry, Mapping):
            problems.append(_problem(entry))
    return problems


def _problem(entry: Mapping[str, Any]) -> Problem:
    """Return a problem that a peer reports, shortened.

    INVALID, which stands for no reason of its own, becomes "". Peers of earlier versions send
    neither a reason nor a node: their rules begin with them.
    """
    reason = shorten(entry.get("reason") or "", _LONGEST_REASON)
    if reason == Invalid.reason:
        reason = ""
    return Problem(
        path=shorten(entry.get("path") or ""),
        rule=shorten(entry.get("rule") or ""),
        got=shown(entry.get("got")),
        suggestion=shorten(entry.get("suggestion") or ""),
        reason=reason,
        node=shorten(entry.get("node") or "", MAX_NODE_ID),
    )


def _skew(date: str) -> float:
    """Return the seconds that the clock of a ``Date`` header is ahead; 0 if it is not a date."""
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except ValueError:
        return 0.0
