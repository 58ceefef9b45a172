"""Has a process make once what libraries make anew for each node or command: a third of the time of the suite.

FastAPI needs some 1,300 of pydantic's validators for a node, and Typer 40 ms for its commands.
"""

import functools
from typing import Any, get_args

import fastapi._compat.v2 as fields
import typer.testing
from pydantic import TypeAdapter

_made: dict[str, tuple[Any, TypeAdapter[Any]]] = {}


def install() -> None:
    """Let all nodes of this process share their validators, and all commands that run in it theirs."""
    fields.TypeAdapter = _validator  # type: ignore[misc,assignment]
    typer.testing._get_command = functools.cache(typer.main.get_command)


def _validator(annotated: Any, config: Any = None) -> TypeAdapter[Any]:
    name, kind = repr((annotated, config)), get_args(annotated)[0]
    found = _made.get(name)
    if found is None or found[0] != kind:  # a type that each node makes itself has the name of another one's
        found = _made[name] = (kind, TypeAdapter(annotated, config=config))
    return found[1]
