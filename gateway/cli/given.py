"""What is given on a command line, checked before it is used: words, tokens, numbers, files."""

import math
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

LARGEST = 32 * 1024 * 1024
"""bytes of a file that is read whole: jobs, registrations, small tables"""
_OPENED = ("/dev/stdin", "/dev/fd/", "/proc/")
"""where what a shell has opened for a command is found, such as ``<(jq …)``"""


class NotFit(ValueError):
    """What was given cannot be used; the text says why, and what can."""


def no_text(words: Sequence[str]) -> str:
    """Say which of the words is no text in UTF-8, so that it can be neither sent nor printed; empty: none."""
    for place, word in enumerate(words, 1):
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            return f"argument {place} is no text in UTF-8: {os.fsencode(word)!r}"
    return ""


def token(text: str, source: str) -> str:
    """Return a token as it is sent, without the blanks and the line's end around it. Raises `NotFit`.

    The text of the error names the source, and nothing of the token.
    """
    bare = text.strip()
    if any(not "!" <= letter <= "~" for letter in bare):
        raise NotFit(f"{source} holds characters that no token has; copy the token anew")
    return bare


def finite(*, above: float | None = None, most: float = 36_500.0) -> Callable[[Any], float | None]:
    """Return what checks a number of the command line: finite, above ``above`` (None: any), at most ``most``."""

    def checked(value: float | None) -> float | None:
        if value is not None and not math.isfinite(value):
            raise typer.BadParameter(f"{value} is no amount; give a number such as 30")
        if value is not None and value > most:
            raise typer.BadParameter(f"{value:g} is more than {most:g}")
        if value is not None and above is not None and value <= above:
            raise typer.BadParameter(f"{value:g} is not more than {above:g}")
        return value

    return checked


def content(file: Path) -> bytes:
    """Return what a file holds; ``-`` is standard input. Raises `OSError`, and `NotFit` for no file and too much.

    A device or a pipe could go on for ever; only a pipe that the shell has opened already is read.
    """
    if str(file) == "-":
        return _bounded(sys.stdin.buffer.read(LARGEST + 1), "standard input")
    mode = file.stat().st_mode
    opened = stat.S_ISFIFO(mode) and str(file).startswith(_OPENED)
    if not (stat.S_ISREG(mode) or opened):
        raise NotFit(f"{file} is {'a folder' if stat.S_ISDIR(mode) else 'a device or a pipe'}, and no file")
    with file.open("rb") as source:
        return _bounded(source.read(LARGEST + 1), str(file))


def new_file(target: Path, force: bool) -> None:
    """Raise `NotFit` where a file may not be written: it is there, or can be none."""
    try:
        there = target.exists()
    except OSError as error:
        raise NotFit(f"{str(target)[:80]}… cannot be written: {error.strerror}") from None
    if there and not force:
        raise NotFit(f"{target} exists already; give --force to overwrite, or another -o")


def _bounded(found: bytes, name: str) -> bytes:
    if len(found) > LARGEST:
        raise NotFit(f"{name} is larger than {LARGEST // 1024 // 1024} MiB, which is the most that is read")
    return found
