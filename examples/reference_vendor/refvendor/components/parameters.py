"""Reads a training component's parameters in every spelling a platform may send them in.

Nothing is raised while reading: every value that cannot work is noted with its name, the rule and what was
there, and `finish` raises them all together, before the component reads data or sends a message.
Parameters that nobody asked for give one warning each, because a platform may know more than this vendor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from refvendor.contract import BadParameters, Log

TRUE = {"true", "yes", "1", "on"}
FALSE = {"false", "no", "0", "off"}
DATA_LOCATION = {"dataset_id", "namespace", "name"}


class Reader:
    """Reads named values out of one object and keeps a list of what is wrong with them."""

    def __init__(
        self,
        values: Mapping[str, Any],
        path: str = "",
        problems: list[str] | None = None,
    ) -> None:
        self._values = values
        self._path = path
        self._problems: list[str] = [] if problems is None else problems
        self._asked: set[str] = set()
        self._parts: list[Reader] = []

    def refuse(self, name: str, rule: str) -> None:
        """Note that the value of that name cannot work."""
        self._problems.append(f"{self._path}{name}: {rule}, got {_shown(self._values.get(name))}")

    def raw(self, name: str) -> Any:
        """The value as it came, None if there is none or an empty text."""
        self._asked.add(name)
        value = self._values.get(name)
        return None if isinstance(value, str) and not value.strip() else value

    def text(self, name: str, default: str) -> str:
        """Return a text without spaces around it; the default where there is none, or none that will do."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool | Mapping | list):
            self.refuse(name, "must be text")
            return default
        return str(value).strip()

    def choice(
        self,
        name: str,
        default: str,
        allowed: Sequence[str],
        refused: Mapping[str, str],
    ) -> str:
        """One of the allowed words, whatever its case; ``refused`` says why a known word cannot work."""
        value = self.text(name, default)
        for word in allowed:
            if value.lower() == word.lower():
                return word
        why = refused.get(value.lower())
        self.refuse(name, f"must be one of {', '.join(allowed)}" + (f" ({why})" if why else ""))
        return default

    def number(
        self,
        name: str,
        default: float,
        low: float,
        high: float = math.inf,
        above: bool = False,
    ) -> float:
        """A finite number from ``low`` (or just above it) to ``high``."""
        value = self.raw(name)
        if value is None:
            return default
        number = _number(value)
        if number is None or not (low < number if above else low <= number) or number > high:
            kind = "above" if above else "from"
            upper = "" if high == math.inf else f" to {high:g}"
            self.refuse(name, f"must be a number {kind} {low:g}{upper}")
            return default
        return number

    def integer(
        self,
        name: str,
        default: int,
        low: int,
        high: int,
    ) -> int:
        """Return a whole number from ``low`` to ``high``.

        The default where there is none, or none that will do.
        """
        value = self.raw(name)
        if value is None:
            return default
        number = _number(value)
        if number is None or number != int(number) or not low <= number <= high:
            self.refuse(name, f"must be a whole number from {low} to {high}")
            return default
        return int(number)

    def flag(self, name: str, default: bool) -> bool:
        """Return yes or no; the default where there is nothing."""
        value = self.raw(name)
        if value is None:
            return default
        word = str(value).strip().lower()
        if word in TRUE:
            return True
        if word not in FALSE:
            self.refuse(name, "must be true or false")
        return False

    def words(
        self,
        name: str,
        default: Sequence[str],
        allowed: Sequence[str],
    ) -> tuple[str, ...]:
        """A list of words: a JSON list, its text, or words between commas."""
        value = _decoded(self.raw(name))
        if value is None:
            return tuple(default)
        if isinstance(value, str):
            value = [word for word in value.split(",") if word.strip()]
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            self.refuse(name, "must be a list of words")
            return tuple(default)
        words = [word.strip().lower() for word in value]
        if any(word not in allowed for word in words):
            self.refuse(name, f"may list only {', '.join(allowed)}")
            return tuple(default)
        return tuple(dict.fromkeys(words))

    def part(self, name: str, word: str | None = None) -> Reader:
        """A reader of the object of that name, given as object or JSON text.

        With ``word``, a plain text stands for an object with just that entry.
        """
        value = _decoded(self.raw(name))
        if word is not None and isinstance(value, str):
            value = {word: value}
        if value is not None and not isinstance(value, Mapping):
            self.refuse(name, "must be an object" + ("" if word is None else " or a word"))
            value = None
        part = Reader(value or {}, f"{self._path}{name}.", self._problems)
        self._parts.append(part)
        return part

    def finish(self, log: Log) -> None:
        """Raise every problem in one `BadParameters`; else warn of parameters nobody reads."""
        if self._problems:
            raise BadParameters("; ".join(self._problems))
        for name in self._unknown():
            log("warning", "unknown parameter ignored", parameter=name)

    def _unknown(self) -> list[str]:
        known = self._asked if self._path else self._asked | DATA_LOCATION
        own = [f"{self._path}{name}" for name in self._values if name not in known]
        return own + [name for part in self._parts for name in part._unknown()]


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _decoded(value: Any) -> Any:
    """JSON in a text is decoded, also where it was quoted twice; any other text stays."""
    for _ in range(2):
        if not isinstance(value, str):
            break
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            break
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
