"""Pages that are made from the code: settings, reasons, endpoints and the table of commands.

``python -m tools.docs`` writes them.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from gateway.language.catalogue import entries_of, of_settings


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
) -> str:
    """Return a table in Markdown."""
    separator = ["---"] * len(columns)
    return "\n".join(_table_line(cells) for cells in (columns, separator, *rows))


def _table_line(cells: Sequence[str]) -> str:
    """Return a line of a table; a cell is written without line breaks, with its pipes escaped."""
    texts = [" ".join(cell.replace("|", "\\|").split()) for cell in cells]
    return f"| {' | '.join(texts)} |"


def translated(text: str, language: str) -> str:
    """Return a text of the code in a language.

    Raises `LookupError` for a text without a translation in `gateway/language`.
    """
    if language == "en" or not text:
        return text
    if text not in _chinese():
        raise LookupError(f"gateway/language has no Chinese for {text!r}: add it")
    return _chinese()[text]


@cache
def _chinese() -> Mapping[str, str]:
    """Return the Chinese of each text; descriptions of settings have a catalogue of their own."""
    return {**entries_of("zh.yml"), **of_settings()}


def code(text: str) -> str:
    """Return text as code in Markdown; an empty text stays empty."""
    if not text:
        return ""
    return f"`{text}`"
