"""What is wrong with an input, as a value."""

import re
import unicodedata
from collections.abc import Iterator, Mapping
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
        return got if len(got) <= 200 else got[:200] + "…"

    @property
    def _hint(self) -> str:
        return f"; did you mean {self.suggestion}?" if self.suggestion else ""


def of_job(text: str, node: str) -> Iterator[Problem]:
    """Yield the problems of a job's body of which a node's message is made; each rule begins with the node."""
    for one in re.split(r"; (?=(?:config|dag)[.\[]\S*: )", text):
        if found := re.fullmatch(r"((?:config|dag)[.\[]\S*): (.+)", one, re.S):
            yield Problem(found[1], f"{node}: {found[2]}")


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


# Computing engines of other platforms, the business of vendors' images, and the settings that ask for one.

ENGINES: Mapping[str, str] = {
    "eggroll": "Eggroll",
    "spark": "Spark",
    "linkis": "Linkis",
    "hive": "Hive",
    "rabbitmq": "RabbitMQ",
    "pulsar": "Pulsar",
}
"""as configurations of other platforms spell them -> their names"""

_CHOOSING = frozenset({"engine", "engines", "backend", "computing", "federation"})
"""settings by which other platforms choose an engine, with or without ``_engine`` behind"""


def foreign_engine(value: Any) -> str:
    """Return the name of the foreign engine that a value asks for; empty where it asks for none."""
    words = str(value).lower().replace("-", "_").split("_") if isinstance(value, str) else []
    return next((ENGINES[word] for word in words if word in ENGINES), "")


def foreign_engine_rule(engine: str) -> str:
    """Return why this gateway does not provide it."""
    return (
        f"ENGINE_NOT_HERE: {engine} is the business of a vendor's image, which may bring it along; "
        "this gateway starts containers (or processes in their place) and no computing engine"
    )


def chooses_engine(setting: str) -> bool:
    """Tell whether a setting of a job is one by which other platforms choose an engine."""
    word = setting.lower()
    return word.endswith("_run") or word.removesuffix("_engine") in _CHOOSING


def foreign_engines(settings: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """Find settings such as ``computing_engine`` or ``spark_run``."""
    for key, value in settings.items():
        at, word = f"{path}.{key}", str(key).lower()
        if word.endswith("_run") and (engine := foreign_engine(word.removesuffix("_run"))):
            yield Problem(at, foreign_engine_rule(engine), value)
        elif word.removesuffix("_engine") in _CHOOSING:
            chosen = value if isinstance(value, Mapping) else {"": value}
            for part, name in chosen.items():
                if engine := foreign_engine(name):
                    yield Problem(f"{at}.{part}".rstrip("."), foreign_engine_rule(engine), name)
