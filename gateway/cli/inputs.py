"""What is given on a command line, checked before it is used: words, tokens, numbers, files."""

import getpass
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from itertools import islice
from pathlib import Path
from typing import IO, Any

import typer

from gateway.data.files import MIB, NotFit, bounded, check_readable, whole
from provider_registry.model import join, shorten

LARGEST = 32 * MIB
"""bytes of a file that is read whole: jobs, registrations, small tables"""


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


def who() -> str:
    """Return the name of who types, for histories; ``somebody`` where the user has none, as in a container."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"


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
        return bounded(sys.stdin.buffer.read(LARGEST + 1), "standard input", LARGEST)
    return whole(file, LARGEST)


@contextmanager
def opened(file: Path) -> Iterator[tuple[IO[bytes], int | None]]:
    """Open a file that is sent piece by piece (``-``: standard input); give it and its bytes, None: not known.

    Raises `OSError`, and `NotFit` for what is no file.
    """
    if str(file) == "-":
        yield sys.stdin.buffer, None
        return
    check_readable(file)
    with file.open("rb") as source:
        yield source, file.stat().st_size if file.is_file() else None


def new_file(target: Path, force: bool) -> None:
    """Raise `NotFit` where a file may not be written: it is there, or can be none."""
    try:
        there = target.exists()
        known = there and target.is_file()
    except OSError as error:
        raise NotFit(f"{str(target)[:80]}… cannot be written: {error.strerror}") from None
    if there and not known:
        raise NotFit(f"{target} is a folder, a device or a pipe, and is never replaced; name a file")
    if there and not force:
        raise NotFit(f"{target} exists already; give --force to overwrite, or another -o")


_MOST = 20
"""misfits that are told of one file"""


def misfits(value: Any) -> list[str]:
    """Return a line for each thing in a file's content that cannot be sent: where, what it is, what to do."""
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return list(islice(_found(value), _MOST)) or ["it holds itself, by an alias; write it out"]
    return []


def _found(value: Any) -> Iterator[str]:
    """Go through every value once, also where one is reached by several ways."""
    todo, seen = [("", value)], set[int]()
    while todo:
        path, one = todo.pop()
        if isinstance(one, Mapping | list):
            if id(one) in seen:
                continue
            seen.add(id(one))
        if isinstance(one, Mapping):
            for key in one:
                if not isinstance(key, str | int | float | None):
                    yield f"{join(path, str(key))}: the name is {_kind(key)}; put it in quotes"
            todo += reversed([(join(path, str(key)), inner) for key, inner in one.items()])
        elif isinstance(one, list):
            todo += reversed([(join(path, number), inner) for number, inner in enumerate(one)])
        elif isinstance(one, float) and not math.isfinite(one):
            yield f"{path} is {one}, which JSON has no word for; give a number"
        elif not isinstance(one, str | int | float | None):
            yield f"{path} is {_kind(one)} ({shorten(str(one))}); put it in quotes, as text"


def _kind(one: Any) -> str:
    if isinstance(one, date):
        return "a date"
    return _KINDS.get(type(one), f"a {type(one).__name__}")


_KINDS: dict[type, str] = {bytes: "binary data", set: "a set", tuple: "a list"}
