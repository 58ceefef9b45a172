"""Regular expressions written by others, matched so that none of them can hold a thread for long.

An expression that is plainly cheap (ASCII, at most two repetitions, no repeated group) is matched here. Any other
is matched in a child process with a deadline: a backtracking match inside this process could not be
interrupted, and would keep every other thread waiting.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

MAX_PATTERN = 512
MAX_VALUE = 4096
MAX_PLAIN_VALUE = 512
SECONDS = 1.0
MAX_LOOKED_INTO = 100_000
"""characters of all expressions of one document: compiling a long one takes milliseconds"""

_CHILD = Path(__file__).with_name("pattern_child.py")
_BROKEN = (re.error, RecursionError, OverflowError, Warning)
"""what compiling can raise; warnings are here for callers that turn them into errors"""


class _Allowance:
    """How many characters of expressions are still looked into."""

    def __init__(self) -> None:
        self.left = MAX_LOOKED_INTO

    def covers(self, pattern: str) -> bool:
        self.left -= len(pattern)
        return self.left >= 0


_allowance: ContextVar[_Allowance | None] = ContextVar("allowance", default=None)


@contextmanager
def one_document() -> Iterator[None]:
    """Bound what `flaw` does for all expressions of one document together: the first ones are looked into."""
    token = _allowance.set(_Allowance())
    try:
        yield
    finally:
        _allowance.reset(token)


def flaw(pattern: str) -> str | None:
    """Say why an expression cannot be used, as far as that is cheap to find out; None if it may be used."""
    if len(pattern) > MAX_PATTERN:
        return f"is longer than {MAX_PATTERN} characters"
    allowed = _allowance.get()
    if _cheap_to_compile(pattern) and (allowed is None or allowed.covers(pattern)):
        try:
            re.compile(pattern)
        except _BROKEN as error:
            return f"is not a regular expression ({error})"
    return None


def full_matches(pairs: Sequence[tuple[str, str]], seconds: float = SECONDS) -> list[bool | None]:
    """Tell for each (pattern, value) whether the whole value matches.

    None where that could not be told: pattern or value over its length, unreadable pattern, or no result
    after ``seconds`` for all of the pairs together. Raises nothing.
    """
    results: list[bool | None] = [None] * len(pairs)
    hard: list[int] = []
    for i, (pattern, value) in enumerate(pairs):
        if len(pattern) > MAX_PATTERN or len(value) > MAX_VALUE:
            continue
        if is_plain(pattern) and len(value) <= MAX_PLAIN_VALUE:
            results[i] = _match_here(pattern, value)
        else:
            hard.append(i)
    if hard and seconds > 0:
        for i, result in zip(hard, _match_in_child([pairs[i] for i in hard], seconds), strict=False):
            results[i] = result
    return results


def is_plain(pattern: str) -> bool:
    """Tell whether matching is certainly cheap: at worst quadratic in a value of MAX_PLAIN_VALUE characters.

    That holds with at most two repetitions and no alternative, or with alternatives in at most one group and
    no repetition; and in either case with no repeated group, look-around or back reference.
    """
    if len(pattern) > MAX_PATTERN or not _cheap_to_compile(pattern):
        return False
    rest = re.sub(r"\\[^0-9]", "_", pattern)
    if "\\" in rest:
        return False
    rest = re.sub(r"\[\^?\]?[^\]]*\]", "_", rest)
    rest = re.sub(r"(?<!\))\{[0-9]+\}", "", rest).replace("(?:", "(")
    if "(?" in rest or re.search(r"\)[*+?{]", rest):
        return False
    repetitions = len(re.findall(r"[*+?{]", rest))
    if repetitions == 0:
        return rest.count("(") <= 1
    return repetitions <= 2 and "|" not in rest


def _cheap_to_compile(pattern: str) -> bool:
    """Tell whether compiling is quick: wide character ranges and inline flags can take a fifth of a second."""
    return pattern.isascii() and not re.search(r"\\[uUxN]|\(\?[^:=!<P]", pattern)


def _match_here(pattern: str, value: str) -> bool | None:
    try:
        return re.fullmatch(pattern, value) is not None
    except _BROKEN:
        return None


def _match_in_child(pairs: Sequence[tuple[str, str]], seconds: float) -> list[bool | None]:
    """Match in a process of its own; results that came before the deadline count."""
    if not sys.executable:
        return []
    command = [sys.executable, "-I", "-S", str(_CHILD)]
    request = json.dumps([list(pair) for pair in pairs]).encode()
    try:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return []
    with child:
        try:
            answer, _ = child.communicate(request, seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            answer, _ = child.communicate()
        except OSError:
            child.kill()
            answer = b""
    return [{"1": True, "0": False}.get(mark) for mark in answer.decode("ascii", "replace")]
