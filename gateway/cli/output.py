"""Texts and JSON for the terminal, without control characters that could steer it."""

import json
import re
from collections.abc import Iterable
from typing import Any

import typer

from bfia_gateway_client.errors import CONTROL, harmless
from gateway.cli.language import t


def say(
    text: str = "",
    *,
    err: bool = False,
    nl: bool = True,
) -> None:
    """Print a text, translated and made `harmless`, with a line feed unless ``nl`` is False.

    ``err``: to standard error.
    """
    typer.echo(harmless(t(text)), err=err, nl=nl)


def warn(warnings: Iterable[str]) -> None:
    """Print warnings to standard error."""
    for warning in warnings:
        say(f"warning: {warning}", err=True)


def print_json(
    value: Any,
    *,
    indent: int | None = 2,
    err: bool = False,
) -> None:
    """Print JSON; control characters are escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    typer.echo(CONTROL.sub(_escape, text), err=err)


def _escape(match: re.Match[str]) -> str:
    """Return a control character as JSON writes it."""
    return f"\\u{ord(match[0]):04x}"
