"""Reads a component's parameters in every spelling in which a platform may send them.

Nothing is raised while reading: each invalid value is recorded with its name, the rule it breaks
and the value, and `Reader.finish` raises all of them together, before the component reads data or
sends a message. A parameter that the component does not read gives one warning, because a platform
may know more parameters than this vendor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from refvendor.contract import BadParameters, Log

TRUE_WORDS = {"true", "yes", "1", "on"}
FALSE_WORDS = {"false", "no", "0", "off"}
# Entries with which some platforms name the data set; they are no parameters of a component.
DATA_LOCATION = {"dataset_id", "namespace", "name"}
LONGEST_VALUE_IN_MESSAGE = 80  # characters


class Reader:
    """Reads named values out of one object and collects the problems with them.

    ``path`` is the prefix of the names in messages, such as ``rsa_params.``. Readers of nested
    objects add to the ``problems`` of the outermost one.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        path: str = "",
        problems: list[str] | None = None,
    ) -> None:
        self._values = values
        self._path = path
        if problems is None:
            problems = []
        self._problems = problems
        self._read_names: set[str] = set()
        self._nested: list[Reader] = []

    def refuse(self, name: str, rule: str) -> None:
        """Record that a value is invalid, with the rule that it breaks."""
        value = _shortened(self._values.get(name))
        self._problems.append(f"{self._path}{name}: {rule}, got {value}")

    def raw(self, name: str) -> Any:
        """Return a value as it came; None for a missing value or blank text."""
        self._read_names.add(name)
        value = self._values.get(name)
        if isinstance(value, str) and not value.strip():
            return None
        return value

    def text(self, name: str, default: str) -> str:
        """Return a text without surrounding spaces; the default if it is missing or invalid."""
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
        reasons: Mapping[str, str] | None = None,
    ) -> str:
        """Return the allowed word that equals the value, ignoring case; the default if it is
        missing or invalid.

        ``reasons`` says of well-known words (in lower case) why this component does not allow them.
        """
        value = self.text(name, default).lower()
        for word in allowed:
            if value == word.lower():
                return word
        rule = f"must be one of {', '.join(allowed)}"
        if reasons and value in reasons:
            rule += f" ({reasons[value]})"
        self.refuse(name, rule)
        return default

    def number(
        self,
        name: str,
        default: float,
        low: float,
        high: float = math.inf,
        above: bool = False,
    ) -> float:
        """Return a finite number from ``low`` (with ``above``: greater than ``low``) to ``high``.

        The default is returned if the value is missing or invalid.
        """
        value = self.raw(name)
        if value is None:
            return default
        number = _finite_number(value)
        is_allowed = number is not None and low <= number <= high and not (above and number == low)
        if number is not None and is_allowed:
            return number
        bounds = f"above {low:g}" if above else f"from {low:g}"
        if high != math.inf:
            bounds += f" to {high:g}"
        self.refuse(name, f"must be a number {bounds}")
        return default

    def integer(
        self,
        name: str,
        default: int,
        low: int,
        high: int,
    ) -> int:
        """Return a whole number from ``low`` to ``high``; the default if it is missing or
        invalid.
        """
        value = self.raw(name)
        if value is None:
            return default
        number = _finite_number(value)
        if number is not None and number.is_integer() and low <= number <= high:
            return int(number)
        self.refuse(name, f"must be a whole number from {low} to {high}")
        return default

    def flag(self, name: str, default: bool) -> bool:
        """Return a truth value; the default if it is missing, False if it is invalid."""
        value = self.raw(name)
        if value is None:
            return default
        word = str(value).strip().lower()
        if word in TRUE_WORDS:
            return True
        if word not in FALSE_WORDS:
            self.refuse(name, "must be true or false")
        return False

    def words(
        self,
        name: str,
        default: Sequence[str],
        allowed: Sequence[str],
    ) -> tuple[str, ...]:
        """Return a list of words in lower case, each word once; the default if it is missing or
        invalid.

        The value may be a JSON list, the text of one, or words separated by commas.
        """
        value = _decoded(self.raw(name))
        if value is None:
            return tuple(default)
        if isinstance(value, str):
            value = [word for word in value.split(",") if word.strip()]
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            self.refuse(name, "must be a list of words")
            return tuple(default)
        words = [word.strip().lower() for word in value]
        if not set(words) <= set(allowed):
            self.refuse(name, f"may list only {', '.join(allowed)}")
            return tuple(default)
        return tuple(dict.fromkeys(words))

    def nested(
        self,
        name: str,
        shorthand: str | None = None,
    ) -> Reader:
        """Return a reader of a nested object, which may come as object or as JSON text.

        With ``shorthand``, a plain word means an object with just that entry: ``encrypt_param:
        Paillier`` means ``encrypt_param: {method: Paillier}``.
        """
        value = _decoded(self.raw(name))
        if shorthand is not None and isinstance(value, str):
            value = {shorthand: value}
        if value is not None and not isinstance(value, Mapping):
            rule = "must be an object" if shorthand is None else "must be an object or a word"
            self.refuse(name, rule)
            value = None
        reader = Reader(value or {}, f"{self._path}{name}.", self._problems)
        self._nested.append(reader)
        return reader

    def finish(self, log: Log) -> None:
        """Raise one `BadParameters` with every problem; without any, warn of unknown parameters."""
        if self._problems:
            raise BadParameters("; ".join(self._problems))
        for name in self._unknown():
            log("warning", "unknown parameter ignored", parameter=name)

    def _unknown(self) -> list[str]:
        """Return the paths of all values that were not read, nested ones last."""
        expected = set(self._read_names)
        is_outermost = not self._path
        if is_outermost:
            expected |= DATA_LOCATION
        names = [f"{self._path}{name}" for name in self._values if name not in expected]
        for reader in self._nested:
            names += reader._unknown()
        return names


def _finite_number(value: Any) -> float | None:
    """Return a number or the text of one as float; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _decoded(value: Any) -> Any:
    """Decode a text that is JSON, even one that was quoted twice; return any other value as it
    is.
    """
    for _ in range(2):
        if not isinstance(value, str):
            break
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            break
    return value


def _shortened(value: Any) -> str:
    """Return a value as JSON, cut to the length that fits a message."""
    text = json.dumps(
        value,
        ensure_ascii=False,
        default=str,
    )
    if len(text) <= LONGEST_VALUE_IN_MESSAGE:
        return text
    return text[: LONGEST_VALUE_IN_MESSAGE - 3] + "..."
