"""``/v1/platform/schedule/task/get_log_line`` and ``get_log``: a task's log, by level (control layer 5.4 and 5.5).

The standard leaves open how lines are numbered, what makes a line's level, and whose lines a node with several
roles gives. Here: from 0; see `gateway.data.log_index`; those of all its roles, unless ``role`` picks one.
``data.data`` is one text as the standard says, each line with a line break behind it.
"""

from functools import partial
from itertools import groupby
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from adapter.bfia import wire
from adapter.bfia.envelope import Route, ok
from adapter.bfia.platform import OTHER, SCHEDULE
from adapter.bfia.requests import Sender, given, on
from gateway.data.log_levels import LEVELS, Level
from gateway.data.logs import Excerpt, RunLogs
from gateway.errors import Invalid, problems_of
from gateway.ports import Limiters

TASK = f"{SCHEDULE}/task"
LARGEST_NUMBER = 10**15

M = TypeVar("M", bound=BaseModel)


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("rule", "must be a whole number")
    return value or (None if value == "" else value)


def _level(value: Any) -> Any:
    if not isinstance(value, str) or value.lower() not in LEVELS:
        raise PydanticCustomError("rule", "must be one of {levels}", {"levels": ", ".join(LEVELS)})
    return value.lower()


_Number = Annotated[int, BeforeValidator(_number), Field(ge=0, le=LARGEST_NUMBER)]


class _LineQuery(BaseModel):
    task_id: str = Field(min_length=1, description="the task's id; required")
    log_level: Annotated[Level, BeforeValidator(_level)] = Field(
        description="required: debug for all lines, info for info and worse, error for errors alone"
    )
    role: str = Field(default="", description="guest or guest.0: only that role's lines, numbered separately")


class _LogQuery(_LineQuery):
    start: _Number = Field(description="number of the first line, from 0; required")
    length: _Number | None = Field(default=None, description="how many lines at most; without it all to the end")


def router(run_logs: RunLogs, limiters: Limiters) -> APIRouter:
    """Return the two paths; POST is accepted too."""
    router = APIRouter(tags=["platform"], route_class=Route)

    @router.get(f"{OTHER}/task/get_log_line", include_in_schema=False)
    @router.post(f"{OTHER}/task/get_log_line", include_in_schema=False)
    @router.post(f"{TASK}/get_log_line", include_in_schema=False)
    @router.get(
        f"{TASK}/get_log_line",
        summary="How many lines a task's log has by now",
        openapi_extra=_described(_LineQuery),
    )
    async def get_log_line(request: Request, sender: Sender) -> wire.Answer[wire.LogLines]:
        """``data.num`` lines; ``data.roles`` says whose, where the node plays several roles in the task."""
        query = await _read(request, _LineQuery)
        work = partial(run_logs.number, query.task_id, query.log_level, query.role)
        found = await on(limiters.rest, sender, work)
        return ok(wire.LogLines(num=found.total, **_about(found)))

    @router.get(f"{OTHER}/task/get_log", include_in_schema=False)
    @router.post(f"{OTHER}/task/get_log", include_in_schema=False)
    @router.post(f"{TASK}/get_log", include_in_schema=False)
    @router.get(f"{TASK}/get_log", summary="Lines of a task's log", openapi_extra=_described(_LogQuery))
    async def get_log(request: Request, sender: Sender) -> wire.Answer[wire.LogData]:
        """``data.data`` is the text of ``data.num`` lines.

        ``data.left_out`` more lines were requested but do not fit into one response: continue from ``data.next``.
        ``data.parts`` says of which role and stream the lines are, in their order. A line keeps its number for as
        long as the log is kept; lines of several roles stand in the order in which the node found them.
        """
        q = await _read(request, _LogQuery)
        work = partial(run_logs.read, q.task_id, q.log_level, q.start, q.length, q.role)
        found = await on(limiters.rest, sender, work)
        whose = groupby(found.lines, key=lambda line: (line.party, line.stream))
        data = wire.LogData(
            data="".join(f"{line.text}\n" for line in found.lines),
            num=len(found.lines),
            start=found.start,
            next=found.next,
            left_out=found.left_out,
            parts=[{"role": r, "stream": s, "num": sum(1 for _ in same)} for (r, s), same in whose],
            **_about(found),
        )
        return ok(data)

    return router


async def _read(request: Request, model: type[M]) -> M:
    """Read the parameters from query or body. Raises `Invalid` with every problem."""
    found = await given(request, *model.model_fields)
    try:
        return model.model_validate({name: value for name, value in found.items() if value is not None})
    except ValidationError as error:
        raise Invalid(problems_of(error.errors(), model)) from None


def _described(model: type[BaseModel]) -> dict[str, Any]:
    """Return the parameters for the interface description; any of them may stand in a body instead."""
    names = model.model_fields.items()
    schema = {"type": "string"}
    return {
        "parameters": [
            {"name": n, "in": "query", "description": f.description, "schema": schema} for n, f in names
        ]
    }


def _about(found: Excerpt) -> dict[str, Any]:
    """Return what both responses have beyond the standard."""
    more = {"incomplete": found.incomplete} if found.incomplete else {}
    return {"roles": list(found.parties), "over": found.over, **more}
