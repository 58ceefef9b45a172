"""Where commands print: nothing that others wrote (a log, a name, a refusal) steers the terminal."""

import json
import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gateway.errors import counted

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """Return text that others wrote without what would steer a terminal: lines and blanks stay as they are."""
    return _STEERING.sub("?", text)


def harmless_in(value: Any) -> Any:
    """Return a value of JSON with all its texts, names of fields too, `harmless`."""
    match value:
        case str():
            return harmless(value)
        case Mapping():
            return {harmless_in(key): harmless_in(one) for key, one in value.items()}
        case list():
            return [harmless_in(one) for one in value]
    return value


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text, `harmless`; with ``err`` to standard error."""
    typer.echo(harmless(text), err=err, nl=nl)


def say_json(value: Any, *, indent: int | None = None, err: bool = False) -> None:
    """Print JSON that says the same to scripts, and steers no terminal either."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    typer.echo(_STEERING.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text), err=err)


After = Annotated[str, typer.Option("--after", help="The next page: what the last one ended with.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many.")]
PAGE = 100


def of_all(found: Mapping[str, Any], shown: int, noun: str) -> str:
    """Return a page's title: how many of how many."""
    total = int(found["total"])
    return counted(total, noun) if shown == total else f"{shown} of {counted(total, noun)}"


def print_more(found: Mapping[str, Any]) -> None:
    """Say how to get at the next page, on standard error, where there is one."""
    if found["next"]:
        say(f"more: --after {shlex.quote(str(found['next']))}", err=True)
