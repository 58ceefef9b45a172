"""``docs/commands.md``: every command of the command line, with its arguments and options."""

from collections.abc import Iterator
from typing import Any

import typer

from gateway.cli.language import paragraphs
from gateway.cli.main import app
from gateway.language.catalogue import translate
from tools.docs import code, table

_INTRO = {
    "en": """# Commands

Every command of `bfia-gateway`, from the commands themselves. `bfia-gateway COMMAND --help` shows the same. Commands
for a running node find it by `node.yml` in the current folder, `--config` or `--url`; a token comes from
`BFIA_GATEWAY_TOKEN`. Most have `--json`. 中文版: [commands.zh-CN.md](commands.zh-CN.md).""",
    "zh": """# 命令

`bfia-gateway` 的全部命令，由命令本身生成；`bfia-gateway 命令 --help` 显示同样内容。访问节点的命令按当前目录的 `node.yml`、`--config` 或 `--url` 找到节点，令牌取自 `BFIA_GATEWAY_TOKEN`。凡显示内容的命令都有 `--json`。
English: [commands.md](commands.md)。""",
}
_COLUMNS = {
    "en": ("Argument or option", "Meaning"),
    "zh": ("参数或选项", "含义"),
}
_EXAMPLE = "Example: "  # beginning of the last paragraph of a command's help
# Options that the introduction explains once.
_COMMON = frozenset({"config", "url", "as_json", "help"})


def page(language: str) -> str:
    """Return the page in English (en) or Chinese (zh)."""
    sections = [_INTRO[language]]
    program = typer.main.get_command(app)
    for words, described in _commands(program):
        sections.append(_section(words, described, language))
    return "\n\n".join(sections) + "\n"


def _commands(group: Any, *words: str) -> Iterator[tuple[str, Any]]:
    """Yield every command and every group with the words that call it, a group before its own.

    They come by name: the order of a group's commands depends on which of its modules this process
    has loaded first.
    """
    for name, described in sorted(group.commands.items()):
        yield " ".join((*words, name)), described
        if hasattr(described, "commands"):
            yield from _commands(described, *words, name)


def _section(words: str, described: Any, language: str) -> str:
    """Return the part of the page about a command or a group."""
    if hasattr(described, "commands"):
        return f"## {words}\n\n{_sentences(described.help, language)}"
    level = "###" if " " in words else "##"
    parts = [f"{level} {words}", _sentences(described.help, language)]
    rows = [_row(parameter, language) for parameter in _own_parameters(described)]
    if rows:
        parts.append(table(_COLUMNS[language], rows))
    return "\n\n".join(parts)


def _sentences(text: str, language: str) -> str:
    """Return the paragraphs of a help text; the example, which is the last one, as a command."""
    parts = []
    for paragraph in paragraphs(text):
        if paragraph.startswith(_EXAMPLE):
            command = paragraph.removeprefix(_EXAMPLE)
            parts.append(f"```sh\n{command}\n```")
        else:
            parts.append(translate(paragraph, language))
    return "\n\n".join(parts)


def _own_parameters(described: Any) -> list[Any]:
    """Return a command's parameters without those that are common to all commands."""
    return [parameter for parameter in described.params if parameter.name not in _COMMON]


def _row(parameter: Any, language: str) -> tuple[str, str]:
    """Return the row of an argument or an option."""
    name = ", ".join(parameter.opts)
    if parameter.param_type_name == "argument":
        name = parameter.metavar or name.upper()
    return code(name), translate(parameter.help or "", language)
