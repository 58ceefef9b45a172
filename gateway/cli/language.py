"""The language of one command: of its help, its messages and the node's responses to it."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partialmethod
from typing import Any

from gateway.language.catalogue import CHINESE, ENGLISH, of_environment, translate

# Names in typer.rich_utils of the texts around help and refusals.
_PANELS = (
    "ARGUMENTS_PANEL_TITLE",
    "OPTIONS_PANEL_TITLE",
    "COMMANDS_PANEL_TITLE",
    "ERRORS_PANEL_TITLE",
    "REQUIRED_LONG_STRING",
    "DEFAULT_STRING",
    "ENVVAR_STRING",
    "ABORTED_TEXT",
    "RICH_HELP",
)
# Ranges of Chinese characters and their punctuation, for a regular expression.
_WIDE = "\u2e80-\u9fff\uff00-\uffef"
# Punctuation that stays on the line of the character after it.
_OPENING = "（《“"
# Punctuation that stays on the line of the character before it.
_CLOSING = "，。、；：！？）》”…"
# The parts between which a line may be folded: a Chinese character, or a word of another script,
# with its punctuation.
_WORD = re.compile(rf"\s*[{_OPENING}]*(?:[{_WIDE}]|[^\s{_WIDE}]+)[{_CLOSING}]*\s*")

# The language of this process; a list with one entry, which `set_language` replaces.
_chosen = [ENGLISH]


def set_language(language: str) -> None:
    """Use ``en`` or ``zh`` from now on."""
    _chosen[0] = language


def language_in_use() -> str:
    """Return the language in use."""
    return _chosen[0]


def t(text: str) -> str:
    """Return an English text in the language in use."""
    return translate(text, language_in_use())


def requested_language(arguments: Sequence[str]) -> str:
    """Return the language of ``--lang`` before the command's name, else that of the environment.

    ``arguments``: the command line's. Typer parses them later; its refusals need the language.
    """
    for word, next_word in zip(arguments, [*arguments[1:], ""], strict=False):
        if not word.startswith("-"):
            break
        name, equals, value = word.partition("=")
        if name == "--lang":
            language = value if equals else next_word
            is_chinese = language.startswith("zh")
            return CHINESE if is_chinese else ENGLISH
    return of_environment()


def translated(command: Any) -> Any:
    """Translate the help of a command, and of its loaded subcommands; return the command.

    In every language, help then folds texts that are too wide for their column.
    """
    _fold_help()
    if language_in_use() == ENGLISH:
        return command
    import click  # its import takes long, and only help needs it

    _translate_frame()
    for loaded_command in _with_subcommands(command):
        loaded_command.help = help_text(loaded_command.help or "")
        loaded_command.epilog = help_text(loaded_command.epilog or "")
        help_option = loaded_command.get_help_option(click.Context(loaded_command))
        for parameter in (*loaded_command.params, help_option):
            if getattr(parameter, "help", None):
                parameter.help = t(parameter.help)
    return command


def _with_subcommands(command: Any) -> Iterator[Any]:
    """Yield a command and its loaded subcommands."""
    yield command
    # `vars` does not see the property of `loaded_from`, which would import the subcommands.
    for subcommand in vars(command).get("commands", {}).values():
        yield from _with_subcommands(subcommand)


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a help text, each in one line, as the catalogue has them."""
    return [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text)]


def help_text(text: str) -> str:
    """Return a help text in the language in use."""
    return "\n\n".join(map(t, paragraphs(text)))


# ---------------------------------------------------------------- changes of typer and rich


@cache  # so that typer is changed only once in a process
def _fold_help() -> None:
    """Make help fold texts that are too wide for their column, where typer would cut them."""
    from typer import core

    for kind in (core.TyperCommand, core.TyperGroup):
        kind.format_help = _with_folded_columns(kind.format_help)  # type: ignore[method-assign]


def _with_folded_columns(show_help: Callable[..., None]) -> Callable[..., None]:
    """Return a function that shows help as typer's does, but folds long texts."""

    def format_help(*arguments: Any) -> None:
        """Show help with the folding columns."""
        from typer import rich_utils

        vars(rich_utils)["Columns"] = _folded_columns
        show_help(*arguments)

    return format_help


def _folded_columns(texts: Sequence[Any]) -> Any:
    """Return rich's `Columns` with texts that fold; typer calls this instead of the class."""
    from rich.columns import Columns

    for text in texts:
        text.overflow = "fold"
    return Columns(texts)


@cache  # so that typer is changed only once in a process
def _translate_frame() -> None:
    """Translate the frame of help and the parser's refusals; let Chinese lines fold anywhere."""
    from typer import Context, rich_utils

    with suppress(ImportError):  # a private module, which another version may not have
        from rich import _wrap

        _wrap.re_word = _WORD
    write_usage = partialmethod(
        Context.formatter_class.write_usage,
        prefix=t("Usage:"),
    )
    Context.formatter_class.write_usage = write_usage  # type: ignore[assignment,method-assign]
    for panel in _PANELS:
        setattr(rich_utils, panel, t(getattr(rich_utils, panel)))
    show_error = rich_utils.rich_format_error

    def show_translated_error(error: Any) -> None:
        """Show a refusal of the parser in the language in use."""
        text = t(error.format_message())
        error.format_message = lambda: text
        show_error(error)

    vars(rich_utils)["rich_format_error"] = show_translated_error
