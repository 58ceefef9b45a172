"""Has a process make once, and no sooner than it is used, what libraries make anew for each node or command.

FastAPI needs some 660 of pydantic's validators for a node, a test few of them, and Typer 40 ms for its commands.
And uvicorn takes a fifth of a second to end, in which it only sleeps.
"""

import asyncio
import contextlib
import functools
from types import SimpleNamespace
from typing import Any, get_args

import fastapi._compat.v2 as fields
import typer.testing
import uvicorn.server
from pydantic import TypeAdapter

_made: dict[str, tuple[Any, TypeAdapter[Any]]] = {}
_make = fields.ModelField.__post_init__


def install() -> None:
    """Let all nodes of this process share their validators, and all commands that run in it theirs."""
    fields.TypeAdapter = _validator  # type: ignore[misc,assignment]
    typer.testing._get_command = functools.cache(typer.main.get_command)
    awake = {"sleep": lambda seconds: asyncio.sleep(min(seconds, 0.02))}
    uvicorn.server.asyncio = SimpleNamespace(**vars(asyncio) | awake)  # type: ignore[assignment]


def when_used() -> None:
    """Have nodes from now on make a validator when they use it; what FastAPI hides meanwhile is hidden anyway."""
    quiet = {"catch_warnings": contextlib.nullcontext, "simplefilter": lambda *_, **__: None}
    fields.warnings = SimpleNamespace(**quiet)  # type: ignore[assignment]
    field: Any = fields.ModelField
    field.__post_init__ = lambda self: None
    field._type_adapter = functools.cached_property(_of_field)
    field._type_adapter.__set_name__(field, "_type_adapter")


def _of_field(field: Any) -> Any:
    _make(field)
    return vars(field)["_type_adapter"]


def _validator(annotated: Any, config: Any = None) -> TypeAdapter[Any]:
    name, kind = repr((annotated, config)), get_args(annotated)[0]
    found = _made.get(name)
    if (
        found is None or found[0] != kind
    ):  # a type that each node makes itself has the name of another one's
        found = _made[name] = (kind, TypeAdapter(annotated, config=config))
    return found[1]
