"""Reads what the daemon says of a container."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import datetime
from struct import unpack
from typing import Any

from docker import APIClient

from engines.base import Exited, Missing, Probe, Running, signal_of
from engines.docker.errors import check_answer

_NEVER = "0001-"
_FRAME_HEAD = 8
_CHANGE = b'"Kind":'
"""is once in each change; in a name its quotes would be escaped"""


def labels_of(container: Mapping[str, Any]) -> Mapping[str, str]:
    """Return a container's labels; the daemon says null where there are none."""
    return container["Config"].get("Labels") or {}


def probe_of(state: Mapping[str, Any], network: Mapping[str, Any] | None = None) -> Probe:
    """Say what the daemon's record of a container's state means, and of its networks, if that is known.

    A container that ends keeps its network in the record; one that was taken off it has none.
    """
    started = _moment(state.get("StartedAt"))
    match state["Status"]:
        case "created":
            return Missing()
        case "running" | "paused" | "restarting":
            return Running(started, cut_off=(network or {}).get("Networks") == {})
        case _:
            code = int(state["ExitCode"])
            killed = bool(state.get("OOMKilled"))
            finished = _moment(state.get("FinishedAt"))
            if started is not None and finished is not None and finished < started:
                started = finished  # the daemon notes the start of a very short run after its end
            return Exited(code, signal_of(code), killed, started, finished)


def log_of(api: APIClient, container: str, stream: str) -> Iterator[bytes]:
    """Yield what a container wrote to a stream, piece by piece. Raises APIError, OSError."""
    url = f"{api.base_url}/v{api.api_version}/containers/{container}/logs"
    answer = api.get(url, params={stream: "1", "tail": "all"}, stream=True, timeout=api.timeout)
    with closing(answer):
        check_answer(answer)
        while len(head := answer.raw.read(_FRAME_HEAD)) == _FRAME_HEAD:
            left = unpack(">xxxxL", head)[0]
            while left and (piece := answer.raw.read(left)):
                left -= len(piece)
                yield piece


def changes_of(api: APIClient, container: str, most: int) -> int:
    """Count what a container made, changed or deleted in its own layer; stop soon after ``most``.

    Read piece by piece: the list is as long as the container likes. Raises APIError, OSError.
    """
    url = f"{api.base_url}/v{api.api_version}/containers/{container}/changes"
    answer = api.get(url, stream=True, timeout=api.timeout)
    found, rest = 0, b""
    with closing(answer):
        check_answer(answer)
        while found <= most and (piece := answer.raw.read(65536)):
            piece = rest + piece
            found += piece.count(_CHANGE)
            rest = piece[-len(_CHANGE) + 1 :]
    return found


def _moment(text: str | None) -> datetime | None:
    """Read the daemon's time, which has nanoseconds; the year 1 stands for never."""
    if not text or text.startswith(_NEVER):
        return None
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{fraction[:6].ljust(6, '0')}+00:00")
