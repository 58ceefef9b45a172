"""What is wrong with an input, as a value; descriptions and route tables use it, too."""

import json
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, NamedTuple


class Problem(NamedTuple):
    """One thing wrong in an input: where, which rule, and what was found there."""

    path: str
    rule: str
    got: Any = None
    suggestion: str = ""  # what to write instead, where that is obvious

    def __str__(self) -> str:
        found = "" if self.got is None or self.rule == "is missing" else f" (got {self._got})"
        return f"{self.path}: {self.rule}{found}{self._hint}"

    @property
    def text(self) -> str:
        """The rule and what was found, without the path."""
        return f"{self.rule}{'' if self.got is None else f' (got {self._got})'}{self._hint}"

    @property
    def _got(self) -> str:
        got = repr(self.got)
        if not isinstance(self.got, str):
            with suppress(
                ValueError, TypeError, RecursionError
            ):  # else it is nothing that JSON has
                got = json.dumps(self.got, ensure_ascii=False)
        return got if len(got) <= 200 else got[:200] + "…"

    @property
    def _hint(self) -> str:
        return f"; did you mean {self.suggestion}?" if self.suggestion else ""


class Unfit(Exception):
    """An input that cannot be used; ``problems`` holds every reason with its path."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("; ".join(map(str, problems[:20])))
        self.problems = problems


def near(
    word: str,
    known: Iterable[str],
    certain: float = 0.6,
) -> str:
    """Return the known word that is meant; empty where that is not clear."""
    by_lower = {name.lower(): name for name in reversed(list(known))}
    found = get_close_matches(str(word)[:64].lower(), list(by_lower), n=1, cutoff=certain)
    return by_lower[found[0]] if found else ""


_OF_JOB = ("config.", "config[", "dag.", "dag[")
_LONGEST = 10_000
"""characters of a node's message that are read"""


def of_job(text: str, node: str) -> Iterator[Problem]:
    """Yield the problems of a job's body of which a node's message is made; each rule begins with the node."""
    ones: list[str] = []
    for part in text[:_LONGEST].split("; "):
        path, found, _ = part.partition(": ")
        if found and path.startswith(_OF_JOB) and " " not in path:
            ones.append(part)
        elif ones:
            ones[-1] += f"; {part}"
    for path, _, rule in (one.partition(": ") for one in ones):
        got = meant = ""
        if rule.endswith("?") and "; did you mean " in rule:
            rule, _, meant = rule[:-1].rpartition("; did you mean ")
        if rule.endswith(")") and " (got " in rule:
            rule, _, got = rule[:-1].partition(" (got ")
        quote = got[:1] if got.startswith(("'", '"')) else ""  # of a text; else it is JSON
        yield Problem(
            path, f"{node}: {rule}", got.removeprefix(quote).removesuffix(quote) or None, meant
        )


LARGEST_NAME = 255
"""bytes of one path segment"""


def unprintable(text: str) -> bool:
    """Tell whether a text holds control characters or broken Unicode."""
    return any(unicodedata.category(c) in ("Cc", "Cs") for c in text)


def name_rule(text: str, largest: int = LARGEST_NAME) -> str | None:
    """Return the rule that a namespace or a name breaks, None where it may name a folder."""
    if not text:
        return "must not be empty"
    if unprintable(text):
        return "must not hold control characters or broken Unicode"
    if "/" in text or "\\" in text:
        return "must not hold / or \\"
    if text.startswith("."):
        return "must not begin with a dot"
    if text != text.strip():
        return "must not begin or end with a space"
    if len(text.encode()) > largest:
        return f"must not be longer than {largest} bytes"
    return None


def index_of(text: str) -> int | None:
    """Read a party's index; None for what is not a decimal number of at most nine digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
