"""The language of one command: of its help, its messages and the node's responses to it."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partialmethod
from typing import Any

from gateway.language.catalogue import CHINESE, ENGLISH, of_environment, translate

_PANELS = (
    *("ARGUMENTS_PANEL_TITLE", "OPTIONS_PANEL_TITLE", "COMMANDS_PANEL_TITLE", "ERRORS_PANEL_TITLE"),
    *("REQUIRED_LONG_STRING", "DEFAULT_STRING", "ENVVAR_STRING", "ABORTED_TEXT", "RICH_HELP"),
)
_WIDE, _OPENS, _CLOSES = "\u2e80-\u9fff\uff00-\uffef", "（《“", "，。、；：！？）》”…"
_WORD = re.compile(rf"\s*[{_OPENS}]*(?:[{_WIDE}]|[^\s{_WIDE}]+)[{_CLOSES}]*\s*")
"""what stays in one line: a Chinese character, or a word of others, with the punctuation around it"""
_chosen = [ENGLISH]


def speak(language: str) -> None:
    """Use a language from now on."""
    _chosen[0] = language


def spoken() -> str:
    """Return the language in use."""
    return _chosen[0]


def t(text: str) -> str:
    """Return an English text in the language in use."""
    return translate(text, spoken())


def asked(words: Sequence[str]) -> str:
    """Return the language of ``--lang`` before the command's name, else that of the environment."""
    for at, word in enumerate(words):
        name, given, value = word.partition("=")
        if name == "--lang":
            return (
                CHINESE
                if (value if given else "".join(words[at + 1 : at + 2])).startswith("zh")
                else ENGLISH
            )
        if not word.startswith("-"):
            break
    return of_environment()


def translated(command: Any) -> Any:
    """Translate the help of a command, and of those below it that are loaded."""
    _fold()
    if spoken() == ENGLISH:
        return command
    import click  # it takes long, and only help needs it

    _frame()
    for one in _loaded(command):
        one.help, one.epilog = (help_text(text or "") for text in (one.help, one.epilog))
        for parameter in (*one.params, one.get_help_option(click.Context(one))):
            if getattr(parameter, "help", None):
                parameter.help = t(parameter.help)
    return command


@cache
def _fold() -> None:
    """Have help fold what its columns have no room for, instead of cutting it."""
    from typer import core

    for kind in (core.TyperCommand, core.TyperGroup):
        kind.format_help = _folding(kind.format_help)  # type: ignore[method-assign]


def _folding(show: Callable[..., None]) -> Callable[..., None]:
    def format_help(*given: Any) -> None:
        from typer import rich_utils

        vars(rich_utils)["Columns"] = _folded
        show(*given)

    return format_help


def _folded(texts: Sequence[Any]) -> Any:
    from rich.columns import Columns

    for text in texts:
        text.overflow = "fold"
    return Columns(texts)


@cache
def _frame() -> None:
    """Translate what is around help, and what the parser refuses; fold Chinese between any two characters."""
    from typer import Context, rich_utils

    with suppress(ImportError):
        from rich import _wrap

        _wrap.re_word = _WORD
    usage = partialmethod(Context.formatter_class.write_usage, prefix=t("Usage:"))
    Context.formatter_class.write_usage = usage  # type: ignore[assignment,method-assign]
    for panel in _PANELS:
        setattr(rich_utils, panel, t(getattr(rich_utils, panel)))
    show = rich_utils.rich_format_error

    def refused(error: Any) -> None:
        text = t(error.format_message())
        error.format_message = lambda: text
        show(error)

    vars(rich_utils)["rich_format_error"] = refused


def _loaded(command: Any) -> list[Any]:
    """Return a command, and what is loaded of those below it."""
    return [
        command,
        *(one for inner in vars(command).get("commands", {}).values() for one in _loaded(inner)),
    ]


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a help text, each in one line, as the catalogue has them."""
    return [" ".join(one.split()) for one in re.split(r"\n\s*\n", text)]


def help_text(text: str) -> str:
    """Return a help text in the language in use."""
    return "\n\n".join(map(t, paragraphs(text)))
