"""What an upload asks for, and the rules its values follow."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.data.storage import name_rule as name_rule
from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.errors import Invalid

MAX_PARTITIONS = 1024
LARGEST_NAMESPACE = 128
"""bytes; names may have what a file name may have"""
SID = "sid"
"""name of the column that ``extend_sid`` adds"""


def namespace_rule(text: str) -> str | None:
    """Return the rule that a dataset's namespace breaks, None where it is fine."""
    if "#" in text:
        return "must not hold #, which separates namespace and name in a dataset id"
    return name_rule(text, LARGEST_NAMESPACE)


def delimiter_rule(text: str) -> str | None:
    """Return the rule that a delimiter breaks, None where it is fine."""
    if len(text) != 1:
        return "must be one character"
    if text in '"\r\n\0\ufeff' or "\ud800" <= text <= "\udfff":
        return "must not be a quote, a line end or a character that no text holds"
    return None


def meta_rule(meta: Mapping[str, Any]) -> str | None:
    """Return the rule that free metadata breaks, None where it can be kept as JSON."""
    try:
        size = len(json.dumps(meta, allow_nan=False, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return "must not hold broken Unicode"
    except (ValueError, TypeError, RecursionError):
        return "must be a JSON object without NaN, not nested too deeply"
    return None if size <= 65536 else "must not be longer than 65536 bytes as JSON"


def text_rule(text: str) -> str | None:
    """Return the rule that free text breaks, None where it can be kept."""
    if any("\ud800" <= c <= "\udfff" for c in text):
        return "must not hold broken Unicode"
    return None if len(text) <= 65536 else "must not be longer than 65536 characters"


@dataclass(frozen=True)
class Upload:
    """A table to be stored. Raises `Invalid` with every problem when it cannot be."""

    address: Address
    head: bool = True
    """the first line names the columns; without it they are called x0, x1, …"""
    partitions: int = 1
    extend_sid: bool = False
    delimiter: str = ","
    label_name: str = ""
    match_id_name: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """further keys of ``meta``, kept as they are"""
    description: str = ""
    overwrite: bool = False

    def __post_init__(self) -> None:
        checks: list[tuple[str, str | None, Any]] = [
            ("namespace", namespace_rule(self.address.namespace), self.address.namespace),
            ("name", name_rule(self.address.name), self.address.name),
            ("meta.delimiter", delimiter_rule(self.delimiter), self.delimiter),
            ("meta", meta_rule(self.extra), self.extra),
            ("description", text_rule(self.description), self.description),
        ]
        if not 1 <= self.partitions <= MAX_PARTITIONS:
            checks.append(("partitions", f"must be from 1 to {MAX_PARTITIONS}", self.partitions))
        wrong = [Problem(path, rule, got) for path, rule, got in checks if rule]
        if wrong:
            raise Invalid(wrong)

    @property
    def meta(self) -> dict[str, Any]:
        """Return the metadata as it was asked for."""
        named = {"label_name": self.label_name, "match_id_name": self.match_id_name}
        return {**self.extra, "delimiter": self.delimiter, **{k: v for k, v in named.items() if v}}
