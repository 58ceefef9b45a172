"""What is given on a command line, checked before it is used: words, tokens, numbers, files."""

import getpass
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import typer

from gateway.data.whole_files import MIB, NotFit, bounded, check_readable, whole

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
