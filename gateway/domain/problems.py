"""Errors in inputs, as values: of jobs, descriptions of components, and route tables."""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, NamedTuple

LARGEST_NAME = 255  # bytes of one path segment
_MAX_VALUE = 200  # characters of an input's value that a message repeats
_MAX_LISTED = 20  # problems that the message of an exception lists
_MAX_WORD = 64  # characters of a misspelled word that are compared with the valid names
_MAX_MESSAGE = 10_000  # characters of another node's message that are parsed
_INDEX = re.compile("[0-9]{1,9}")  # a party's index

# Separators in the text of problems, as `Problem` writes them: `job_problems_in` looks for them in
# messages of other nodes.
_BETWEEN_PROBLEMS = "; "
_BEFORE_RULE = ": "
_BEFORE_VALUE = " (got "
_BEFORE_SUGGESTION = "; did you mean "
# The reason before a rule; every reason of a single problem consists of several words.
_REASON_START = re.compile(rf"([A-Z]+(?:_[A-Z0-9]+)+){_BEFORE_RULE}")
# The path in the body of a job with which a problem begins; a path has no blanks.
_PROBLEM_START = re.compile(rf"(?:config|dag)[.\[][^ ]*{_BEFORE_RULE}")


class Problem(NamedTuple):
    """One error in an input: its path, the violated rule, and the value."""

    path: str
    rule: str
    got: Any = None
    suggestion: str = ""  # the value that was probably meant
    reason: str = ""  # stable, such as COMPONENT_UNKNOWN; "" for a mistake without one of its own
    node: str = ""  # the node that found the problem; "" for the node that reports it
    remedy: str = ""  # what to do about this problem alone; not part of its text

    def __str__(self) -> str:
        """Path, node, reason, rule, value and suggestion in the form that `job_problems_in` parses.

        A missing entry has no value, so the text of its problem has none.
        """
        if self.rule == "is missing":
            return f"{self.path}: {self._prefix}{self.rule}{self._hint}"
        return f"{self.path}: {self.text}"

    @property
    def text(self) -> str:
        """Node, reason, rule and value, without the path."""
        if self.got is None:
            return f"{self._prefix}{self.rule}{self._hint}"
        return f"{self._prefix}{self.rule} (got {self._value}){self._hint}"

    @property
    def _prefix(self) -> str:
        """The node and the reason before the rule, as far as the problem has them."""
        parts = [part for part in (self.node, self.reason) if part]
        return "".join(f"{part}{_BEFORE_RULE}" for part in parts)

    @property
    def _value(self) -> str:
        """The value as JSON, or as Python shows it if JSON has no such value; shortened."""
        value = repr(self.got)
        if not isinstance(self.got, str):
            with suppress(ValueError, TypeError, RecursionError):
                value = json.dumps(
                    self.got,
                    ensure_ascii=False,
                )
        if len(value) > _MAX_VALUE:
            return value[:_MAX_VALUE] + "…"
        return value

    @property
    def _hint(self) -> str:
        """The suggestion as the end of a sentence, which `_parse_problem` can read.

        Empty without a suggestion.
        """
        if not self.suggestion:
            return ""
        return f"; did you mean {self.suggestion}?"


class Unfit(Exception):
    """An input that cannot be used; ``problems`` holds every reason with its path."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(_BETWEEN_PROBLEMS.join(map(str, problems[:_MAX_LISTED])))
        self.problems = problems


# ---------------------------------------------------------------- names


def near(
    word: str,
    names: Iterable[str],
    cutoff: float = 0.6,
) -> str:
    """Return the name that was probably meant by a misspelled word; empty if none is similar.

    ``cutoff`` is the least similarity, from 0 to 1. Of names that differ only in case, the first
    one counts.
    """
    by_lower: dict[str, str] = {}
    for name in names:
        by_lower.setdefault(name.lower(), name)
    matches = get_close_matches(
        str(word)[:_MAX_WORD].lower(),
        list(by_lower),
        n=1,
        cutoff=cutoff,
    )
    if not matches:
        return ""
    return by_lower[matches[0]]


def violation(path: str, rule: str | None, value: Any) -> Iterator[Problem]:
    """Yield the problem of a value that violates a rule; nothing if ``rule`` is empty or None.

    ``path`` is the path of the value in the input, and ``rule`` the text of the violated rule.
    """
    if rule:
        yield Problem(path, rule, value)


def has_json_type(value: Any, *types: type) -> bool:
    """Return whether a JSON value has one of these types.

    False for a boolean, which Python counts as an integer.
    """
    return isinstance(value, types) and not isinstance(value, bool)


def is_unprintable(text: str) -> bool:
    """Return whether a text has control characters or broken Unicode.

    These are the Unicode categories Cc and Cs (halves of surrogate pairs).
    """
    if text.isprintable():  # much faster; other texts are not all unprintable in this sense
        return False
    return any(unicodedata.category(character) in ("Cc", "Cs") for character in text)


def name_rule(text: str, largest: int = LARGEST_NAME) -> str | None:
    """Return the rule that a name or namespace violates; None for a valid folder name.

    ``largest`` is the limit of its size in bytes. Of several violated rules the first one is
    returned.
    """
    # rules that a name may violate -> whether this one does, in the order of the checks
    rules = {
        "must not be empty": not text,
        "must not hold control characters or broken Unicode": is_unprintable(text),
        "must not hold / or \\": "/" in text or "\\" in text,
        "must not begin with a dot": text.startswith("."),
        "must not begin or end with a space": text != text.strip(),
    }
    for rule, is_violated in rules.items():
        if is_violated:
            return rule
    # after the check for broken Unicode, which cannot be encoded
    if len(text.encode()) > largest:
        return f"must not be longer than {largest} bytes"
    return None


def index_of(text: str) -> int | None:
    """Parse a party's index; None for any text but a decimal number of at most nine digits.

    Digits of other scripts than ASCII are no index, though ``int`` accepts them.
    """
    if _INDEX.fullmatch(text) is None:
        return None
    return int(text)


# ---------------------------------------------------------- problems in the message of another node


def job_problems_in(message: str, node: str) -> Iterator[Problem]:
    """Parse the problems of a job's body in a message of another node, which found them.

    Text before the first problem is skipped, and so is text beyond `_MAX_MESSAGE` characters.
    """
    texts: list[str] = []
    for part in message[:_MAX_MESSAGE].split(_BETWEEN_PROBLEMS):
        if _PROBLEM_START.match(part):
            texts.append(part)
        elif texts:  # the separator was part of the problem's text
            texts[-1] += _BETWEEN_PROBLEMS + part
    for text in texts:
        yield _parse_problem(text, node)


def _parse_problem(text: str, node: str) -> Problem:
    """Parse a problem in the form of `Problem.__str__`, which the ``node`` found.

    Value and suggestion are texts. The value is None for a problem without one; suggestion and
    reason are empty for a problem without them.
    """
    path, _, rule = text.partition(_BEFORE_RULE)
    rule = rule.removeprefix(f"{node}{_BEFORE_RULE}")
    reason = ""
    match = _REASON_START.match(rule)
    if match is not None:
        reason = match[1]
        rule = rule[match.end() :]
    value = ""
    suggestion = ""
    # the suggestion comes last in the text, so it is removed first
    if rule.endswith("?") and _BEFORE_SUGGESTION in rule:
        rule, _, suggestion = rule[:-1].rpartition(_BEFORE_SUGGESTION)
    if rule.endswith(")") and _BEFORE_VALUE in rule:
        # the first separator counts, as the value may contain another one
        rule, _, value = rule[:-1].partition(_BEFORE_VALUE)
    return Problem(
        path,
        rule,
        _unquoted(value) or None,
        suggestion,
        reason,
        node,
    )


def _unquoted(value: str) -> str:
    """Return a quoted text without its quotes, and any other value as it is, in JSON.

    Empty for an empty value.
    """
    quote = value[:1]
    if quote not in ("'", '"'):
        return value
    return value.removeprefix(quote).removesuffix(quote)
