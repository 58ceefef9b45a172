"""The command that shows a page of the documentation."""

from typing import Annotated

import typer

from bfia_gateway_client.calls import near
from gateway.cli.client import EXIT_BAD_INPUT, CallFailed
from gateway.cli.command import Output, command
from gateway.cli.language import language_in_use
from gateway.cli.output import say
from gateway.cli.tables import table
from gateway.language.documents import file_of, text_of, titles

commands = typer.Typer(name="")  # without a name: its command belongs to no group


@command(commands, "docs", "vendor")
def docs(
    page: Annotated[str, typer.Argument(help="Name of the page; without one, a list.")] = "",
) -> Output:
    """Show a page of the documentation; a running node has all of them at /docs/ of its operator
    listener.
    """
    if not page:
        by_name = titles(language_in_use())
        yield by_name
        table("", ["page", "title"], list(by_name.items()))
        return
    file = file_of(page, language_in_use())
    if not file:
        raise _unknown(page)
    text = text_of(file)
    yield {"page": file, "text": text}
    _print_page(text)


def _unknown(page: str) -> CallFailed:
    """Return the refusal of a page that does not exist, with the most similar name."""
    text = f"no page is called {page}; bfia-gateway docs lists them"
    similar = near(page, titles(language_in_use()))
    if similar:
        text += f"; did you mean {similar}?"
    return CallFailed(text, EXIT_BAD_INPUT)


def _print_page(text: str) -> None:
    """Print a page: formatted in a terminal, as Markdown in a pipe."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    if not console.is_terminal:
        say(text.rstrip("\n"))
        return
    with console.pager(styles=True, links=True):
        console.print(Markdown(text))
