"""What is given on a command line, validated before it is used: files, numbers, tokens."""

import getpass
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfileobj
from typing import Any, BinaryIO

import typer

from gateway.data.files import MIB, NotFit, bounded, check_readable, whole

LARGEST = 32 * MIB
"""bytes of a file that is read whole: jobs, registrations, small tables"""


def token(text: str, source: str) -> str:
    """Return a token without surrounding whitespace. Raises `NotFit`, which names the source and not the token."""
    bare = text.strip()
    if any(not "!" <= letter <= "~" for letter in bare):
        raise NotFit(f"{source} holds characters that no token has; copy the token again")
    return bare


def who() -> str:
    """Return the user's name, for histories; ``somebody`` where there is none, as in a container."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"


def finite(*, above: float | None = None, most: float = 36_500.0) -> Callable[[Any], float | None]:
    """Return a callback that validates a number: finite, above ``above`` (None: any), at most ``most``."""

    def checked(value: float | None) -> float | None:
        if value is not None and not (math.isfinite(value) and value <= most):
            raise typer.BadParameter(f"{value} is not a number up to {most:g}")
        if value is not None and above is not None and value <= above:
            raise typer.BadParameter(f"{value:g} is not more than {above:g}")
        return value

    return checked


def content(file: Path) -> bytes:
    """Return a file's content; ``-`` is standard input. Raises `NotFit`."""
    if str(file) == "-":
        return bounded(sys.stdin.buffer.read(LARGEST + 1), "standard input", LARGEST)
    with _readable(file):
        return whole(file, LARGEST)


@contextmanager
def opened(file: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file that is sent in pieces (``-``: standard input); give it and its size. Raises `NotFit`."""
    with _readable(file):
        if str(file) != "-":
            check_readable(file)
        source = tempfile.TemporaryFile() if str(file) == "-" else file.open("rb")  # noqa: SIM115 (closed below)
    with source:
        if str(file) == "-":
            copyfileobj(sys.stdin.buffer, source)
            source.seek(0)
        yield source, source.seek(0, 2) - source.seek(0)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotFit(f"{file} cannot be read: {error.strerror}") from error


def new_file(target: Path, force: bool) -> None:
    """Raise `NotFit` where a file may not be written: it exists, or its place is not one for a file."""
    try:
        exists = target.exists()
        replaceable = exists and target.is_file()
    except OSError as error:
        raise NotFit(f"{str(target)[:80]}… cannot be written: {error.strerror}") from None
    if exists and not replaceable:
        raise NotFit(f"{target} is a folder, a device or a pipe, and is never replaced; name a file")
    if exists and not force:
        raise NotFit(f"{target} exists already; give --force to overwrite, or another -o")


def read_object(file: Path) -> dict[str, Any]:
    """Return the object in a file (``-``: standard input), JSON or YAML. Raises `NotFit`."""
    import yaml

    from gateway.config.loader import DuplicateKey, load_yaml, syntax_error, unique_keys

    try:
        text = content(file).decode()
    except UnicodeDecodeError as error:
        raise NotFit(f"{file} is not text in UTF-8 (byte {error.start})") from None
    try:
        try:
            body = json.loads(text, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError):
            body = load_yaml(text)  # reads JSON with commas at the end, too
    except DuplicateKey as error:
        raise NotFit(f"{file}: {error}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise NotFit(f"{file} is neither JSON nor YAML: {syntax_error(error)}") from None
    if not isinstance(body, dict):
        found = "a list" if isinstance(body, list) else "nothing" if body is None else "a single value"
        raise NotFit(f"{file} must hold an object (name: value) and holds {found}")
    try:
        json.dumps(body, allow_nan=False, ensure_ascii=False, default=_not_json).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise NotFit(f"{file} holds what JSON cannot express: {error}") from None
    return body


def _not_json(value: object) -> None:
    raise TypeError(f"{value} is a {type(value).__name__}; put it in quotes")
