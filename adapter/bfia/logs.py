"""``/v1/platform/schedule/task/get_log_line`` and ``get_log``: a task's log, by level (control layer 5.4 and 5.5).

The standard leaves open how lines are numbered, what makes a line's level, and whose lines a node with several
roles gives. Here: from 0; see `gateway.data.log_index`; those of all its roles, unless ``role`` picks one.
``data.data`` is one text as the standard says, each line with a line break behind it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fastapi import APIRouter, Query, Request

from adapter.bfia.envelope import ok
from adapter.bfia.requests import Sender, given, on
from adapter.body import JsonRoute
from gateway.data.log_levels import LEVELS, Level
from gateway.data.logs import Excerpt, RunLogs
from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.ports import Limiters

TASK = "/v1/platform/schedule/task"
OTHER_TASK = "/v2/schedule/task"
LARGEST_NUMBER = 10**15

_TASK_ID = Query(default=None, description="the task's id; required")
_LOG_LEVEL = Query(
    default=None, description="required: debug for all lines, info for info and worse, error for errors alone"
)
_ROLE = Query(default=None, description="guest or guest.0: only that role's lines, numbered by themselves")
_START = Query(default=None, description="number of the first line, from 0; required")
_LENGTH = Query(default=None, description="how many lines at most; without it all to the end")


@dataclass(frozen=True)
class LogParts:
    """What the two paths are built of."""

    logs: RunLogs
    limiters: Limiters


def router(parts: LogParts) -> APIRouter:
    """Return the two paths; ``/v2/schedule`` is another spelling, and POST is taken too."""
    router = APIRouter(tags=["platform"], route_class=JsonRoute)

    @router.get(f"{OTHER_TASK}/get_log_line", include_in_schema=False)
    @router.post(f"{OTHER_TASK}/get_log_line", include_in_schema=False)
    @router.post(f"{TASK}/get_log_line", include_in_schema=False)
    @router.get(f"{TASK}/get_log_line", summary="How many lines a task's log has by now")
    async def get_log_line(
        request: Request,
        sender: Sender,
        task_id: str | None = _TASK_ID,
        log_level: str | None = _LOG_LEVEL,
        role: str | None = _ROLE,
    ) -> dict[str, Any]:
        """``data.num`` lines; ``data.roles`` says whose, where the node plays several roles in the task."""
        asked = _Asked(await given(request, "task_id", "log_level", "role"))
        task, level, of_role = asked.text("task_id"), asked.level("log_level"), asked.text("role", needed=False)
        asked.check()
        found = await on(parts.limiters.rest, sender, lambda: parts.logs.number(task, level, of_role))
        return ok({"num": found.total, **_about(found)})

    @router.get(f"{OTHER_TASK}/get_log", include_in_schema=False)
    @router.post(f"{OTHER_TASK}/get_log", include_in_schema=False)
    @router.post(f"{TASK}/get_log", include_in_schema=False)
    @router.get(f"{TASK}/get_log", summary="Lines of a task's log")
    async def get_log(
        request: Request,
        sender: Sender,
        task_id: str | None = _TASK_ID,
        log_level: str | None = _LOG_LEVEL,
        start: str | None = _START,
        length: str | None = _LENGTH,
        role: str | None = _ROLE,
    ) -> dict[str, Any]:
        """``data.data`` is the text of ``data.num`` lines.

        ``data.left_out`` lines more were asked for but do not fit into one answer: ask again from ``data.next``.
        ``data.parts`` says of which role and stream the lines are, in their order. A line keeps its number for as
        long as the log is kept; lines of several roles stand in the order in which the node found them.
        """
        asked = _Asked(await given(request, "task_id", "log_level", "start", "length", "role"))
        task, level, of_role = asked.text("task_id"), asked.level("log_level"), asked.text("role", needed=False)
        first, most = asked.whole("start"), asked.whole("length", needed=False)
        asked.check()
        found = await on(
            parts.limiters.rest, sender, lambda: parts.logs.read(task, level, first or 0, most, of_role)
        )
        whose = groupby(found.lines, key=lambda line: (line.party, line.stream))
        return ok(
            {
                "data": "".join(f"{line.text}\n" for line in found.lines),
                "num": len(found.lines),
                "start": found.start,
                "next": found.next,
                "left_out": found.left_out,
                "parts": [{"role": r, "stream": s, "num": sum(1 for _ in same)} for (r, s), same in whose],
                **_about(found),
            }
        )

    return router


def _about(found: Excerpt) -> dict[str, Any]:
    """Return what both answers say beyond the standard."""
    said: dict[str, Any] = {"roles": list(found.parties), "over": found.over}
    if found.incomplete:
        said["incomplete"] = found.incomplete
    return said


class _Asked:
    """Reads the parameters one by one and remembers every problem."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._problems: list[Problem] = []

    def check(self) -> None:
        """Raise `Invalid` where something was wrong."""
        if self._problems:
            raise Invalid(self._problems)

    def text(self, name: str, *, needed: bool = True) -> str:
        value = self._values[name]
        if value in (None, ""):
            if needed:
                self._wrong(name, "is required, in the query or in a JSON body")
            return ""
        if not isinstance(value, str):
            self._wrong(name, "must be a text")
            return ""
        return value

    def level(self, name: str) -> Level:
        value = self._values[name]
        if isinstance(value, str) and value.lower() in LEVELS:
            return Level(value.lower())
        self._wrong(name, f"must be one of {', '.join(LEVELS)}")
        return Level.DEBUG

    def whole(self, name: str, *, needed: bool = True) -> int | None:
        value = self._values[name]
        if value in (None, "") and not needed:
            return None
        number = _number(value)
        if number is None or not 0 <= number <= LARGEST_NUMBER:
            self._wrong(name, f"must be a whole number from 0 to {LARGEST_NUMBER}")
            return None
        return number

    def _wrong(self, name: str, rule: str) -> None:
        self._problems.append(Problem(name, rule, self._values[name]))


def _number(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdecimal() and len(value) <= 16 else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
