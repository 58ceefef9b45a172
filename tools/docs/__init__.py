"""Pages that follow from the code: settings, reasons, endpoints.

``python -m tools.docs`` writes them.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from gateway.language.catalogue import entries_of, of_settings


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; what would end a cell is written so that it does not."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def translated(text: str, language: str) -> str:
    """Return a text of the code in a language.

    Raises `LookupError` where `gateway/language` has none.
    """
    if language == "en" or not text:
        return text
    if text not in _chinese():
        raise LookupError(f"gateway/language has no Chinese for {text!r}: add it")
    return _chinese()[text]


@cache
def _chinese() -> Mapping[str, str]:
    return {**entries_of("zh.yml"), **of_settings()}


def code(text: str) -> str:
    """Return text as code; empty stays empty."""
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
