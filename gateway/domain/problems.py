"""What is wrong with an input, as a value; descriptions and route tables use it, too."""

import json
import re
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
            with suppress(ValueError, TypeError, RecursionError):  # else it is nothing that JSON has
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


def near(word: str, known: Iterable[str], certain: float = 0.6) -> str:
    """Return the known word that is meant; empty where that is not clear."""
    by_lower = {name.lower(): name for name in reversed(list(known))}
    found = get_close_matches(str(word)[:64].lower(), list(by_lower), n=1, cutoff=certain)
    return by_lower[found[0]] if found else ""


_AS_TEXT = re.compile(r"((?:config|dag)[.\[]\S*): (.+?)(?: \(got (.+)\))?(?:; did you mean (.+)\?)?", re.DOTALL)


def of_job(text: str, node: str) -> Iterator[Problem]:
    """Yield the problems of a job's body of which a node's message is made; each rule begins with the node."""
    for one in re.split(r"; (?=(?:config|dag)[.\[]\S*: )", text):
        if found := _AS_TEXT.fullmatch(one):
            path, rule, got, meant = found.groups(default="")
            yield Problem(path, f"{node}: {rule}", got.strip("'") or None, meant)


LARGEST_NAME = 255
"""bytes of one path segment"""


def name_rule(text: str, largest: int = LARGEST_NAME) -> str | None:
    """Return the rule that a namespace or a name breaks, None where it may name a folder."""
    if not text:
        return "must not be empty"
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in text):
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
