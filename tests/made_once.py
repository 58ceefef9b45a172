"""Makes nodes in one process cheap: shares what FastAPI would build for each.

FastAPI builds some 660 pydantic validators for a node; a test uses few of them. uvicorn sleeps
0.2 s when it stops.
"""

import asyncio
import contextlib
import functools
from types import SimpleNamespace
from typing import Any, get_args

import fastapi._compat.v2 as fields
import uvicorn.server
from pydantic import TypeAdapter

_LONGEST_SLEEP = 0.02  # seconds, of uvicorn's main loop

# The type and its validator, by the text of the annotation.
_validators: dict[str, tuple[Any, TypeAdapter[Any]]] = {}


class LateField(fields.ModelField):
    """A parameter or a body of an endpoint, which builds its validator at the first use."""

    def __post_init__(self) -> None:
        """Build nothing yet."""

    @functools.cached_property
    def _type_adapter(self) -> Any:  # type: ignore[override]
        super().__post_init__()  # replaces this property of the object by the validator
        return vars(self)["_type_adapter"]


def install() -> None:
    """Share validators between nodes; shorten uvicorn's sleeps."""
    fields.TypeAdapter = _shared_validator  # type: ignore[misc,assignment]
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
    fields.ModelField = LateField  # type: ignore[misc]


async def _short_sleep(seconds: float) -> None:
    await asyncio.sleep(min(seconds, _LONGEST_SLEEP))


def _do_nothing(*_: Any, **__: Any) -> None:
    pass


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
