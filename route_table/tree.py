"""A YAML document as a tree of what is written, each part with its line, and nothing interpreted."""

import json
import re
from dataclasses import dataclass

ROOT = "(document)"
MAX_QUOTE = 128
"""characters of a found value that a problem repeats"""


@dataclass(frozen=True)
class Scalar:
    """A single value as it is written; ``plain`` tells that it stands without quotes."""

    text: str
    plain: bool
    line: int

    @property
    def is_null(self) -> bool:
        """Whether it is YAML's null; in quotes the same is a text."""
        return self.plain and self.text in ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True)
class Entries:
    """A mapping: its keys and values in their order, repeated keys included."""

    items: tuple[tuple[Scalar, "Node"], ...]
    line: int
    last: int = 0
    """line of the closing brace where there is one, else 0"""


@dataclass(frozen=True)
class Items:
    """A list. Only its being one matters here."""

    line: int


Node = Scalar | Entries | Items


def step(path: str, key: str) -> str:
    """Extend a path by a key; odd keys are quoted."""
    if not re.fullmatch(r"[\w-]{1,128}", key):
        return f"{path}[{json.dumps(short(key), ensure_ascii=False)}]"
    return f"{path}.{key}" if path else key


def short(text: str) -> str:
    """Return text as a problem repeats it: cut, and encodable."""
    shown = text.encode("utf-8", "replace").decode()
    return shown if len(shown) <= MAX_QUOTE else shown[:MAX_QUOTE] + "…"


def kind(node: Node) -> str:
    """Say what stands where something else was expected."""
    if isinstance(node, Scalar):
        return "nothing" if node.is_null else short(node.text)
    return "a mapping" if isinstance(node, Entries) else "a list"
