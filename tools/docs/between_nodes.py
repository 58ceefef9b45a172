"""The table of commands in ``docs/between-nodes.md``; the rest of the page is written by hand."""

from pathlib import Path

from adapter.bfia.commands import COMMANDS, EXTENSION, ONE_PEER, Command
from tools.docs import code, table, translated

_DOCS = Path(__file__).resolve().parents[2] / "docs"
_FILES = {"en": "between-nodes.md", "zh": "between-nodes.zh-CN.md"}
_BEGIN = "<!-- commands -->\n"
_END = "\n<!-- end -->"
_COLUMNS = {
    "en": (
        "Command",
        "Path below `/v1/interconn/schedule`, or in full",
        "From",
        "At a peer without it",
    ),
    "zh": (
        "命令",
        "`/v1/interconn/schedule` 之下的路径，或完整路径",
        "来源",
        "对端没有时",
    ),
}
_ORIGINS = {
    "en": {EXTENSION: "extension", ONE_PEER: "one peer"},
    "zh": {EXTENSION: "扩展", ONE_PEER: "某对端"},
}
_STANDARD = {"en": "standard, ", "zh": "标准 "}
_NO_EFFECT = "–"


def page(language: str) -> str:
    """Return the page in English (en) or Chinese (zh), with the table as the code has it.

    Raises ValueError if the page has no place for the table.
    """
    text = (_DOCS / _FILES[language]).read_text(encoding="utf-8")
    begin = text.index(_BEGIN) + len(_BEGIN)
    end = text.index(_END, begin)
    return text[:begin] + _command_table(language) + text[end:]


def _command_table(language: str) -> str:
    """Return the table of all commands."""
    rows = []
    for command in COMMANDS:
        row = (
            translated(command.purpose, language),
            code(command.path),
            _origin(command, language),
            translated(command.without, language) or _NO_EFFECT,
        )
        rows.append(row)
    return table(_COLUMNS[language], rows)


def _origin(command: Command, language: str) -> str:
    """Return where a command comes from: a section of the standard, or a word."""
    if command.origin in (EXTENSION, ONE_PEER):
        return _ORIGINS[language][command.origin]
    section = command.origin
    if not section.replace(".", "").isdigit():
        section = translated(section, language)
    return _STANDARD[language] + section
