"""What lists of the command line have in common: so many at a time, and where the next page begins."""

import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gateway.cli.console import say
from gateway.text import counted

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
