"""Makes nodes and commands in one process cheap: shares what libraries would build for each.

FastAPI builds some 660 pydantic validators for a node; a test uses few of them. Typer takes 40 ms
to build its commands. uvicorn sleeps 0.2 s when it stops.
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

_LONGEST_SLEEP = 0.02  # seconds, of uvicorn's main loop

# The type and its validator, by the text of the annotation.
_validators: dict[str, tuple[Any, TypeAdapter[Any]]] = {}
_build_validator = fields.ModelField.__post_init__


def install() -> None:
    """Share validators between nodes, and commands between calls; shorten uvicorn's sleeps."""
    fields.TypeAdapter = _shared_validator  # type: ignore[misc,assignment]
    typer.testing._get_command = functools.cache(typer.main.get_command)
    hurried = vars(asyncio) | {"sleep": _short_sleep}
    uvicorn.server.asyncio = SimpleNamespace(**hurried)  # type: ignore[assignment]


def when_used() -> None:
    """Let nodes build a validator when they first use it.

    FastAPI silences warnings while it builds validators, by a context that is not thread-safe. It
    is replaced by one that does nothing.
    """
    fields.warnings = SimpleNamespace(  # type: ignore[assignment]
        catch_warnings=contextlib.nullcontext,
        simplefilter=_do_nothing,
    )
    field: Any = fields.ModelField
    field.__post_init__ = _do_nothing
    field._type_adapter = functools.cached_property(_validator_of)
    field._type_adapter.__set_name__(field, "_type_adapter")


async def _short_sleep(seconds: float) -> None:
    await asyncio.sleep(min(seconds, _LONGEST_SLEEP))


def _do_nothing(*_: Any, **__: Any) -> None:
    pass


def _validator_of(field: Any) -> Any:
    _build_validator(field)
    return vars(field)["_type_adapter"]


def _shared_validator(annotated: Any, config: Any = None) -> TypeAdapter[Any]:
    key = repr((annotated, config))
    kind = get_args(annotated)[0]
    # Two nodes may each define a type of the same name: the types decide, not only their text.
    if key not in _validators or _validators[key][0] != kind:
        _validators[key] = (
            kind,
            TypeAdapter(annotated, config=config),
        )
    return _validators[key][1]
