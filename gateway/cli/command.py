"""What all commands share: their options, exit codes, and how results and failures are shown.

Exit codes: 0 done, 1 the node said no or something failed, 2 bad input or configuration, 3 no response from the
node, 130 interrupted.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    TOKEN,
    URL,
    CallFailed,
    Client,
    connect,
)
from gateway.cli.console import print_json, say
from gateway.data.files import NotFit

Config = Annotated[
    Path, typer.Option("--config", "-c", help="The node's configuration file, for its address and token.")
]
Url = Annotated[
    str, typer.Option("--url", envvar=URL, help=f"The node's operator listener; the token is then {TOKEN}.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list what would be done.")]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; kept in the history.")]
After = Annotated[str, typer.Option("--after", help="The next page: what the last one ended with.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many.")]

Output = Iterator[Any]
"""What a command yields, once: the value that ``--json`` prints, or a pair of it and whether that is a success.
What it does afterwards prints the same for people."""


def group(text: str) -> typer.Typer:
    """Return a group of commands."""
    return typer.Typer(help=text, no_args_is_help=True)


def command(
    app: typer.Typer, name: str, *, timeout: float = 60.0, options: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a command.

    Where its first parameter is a `Client`, ``--config`` and ``--url`` are added; where it is a generator, also
    ``--json``. ``options`` (name -> type) are passed as keyword arguments, None where they were not given.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        own = list(inspect.signature(function).parameters.values())
        needs_node = bool(own) and own[0].annotation is Client
        parameters = {
            p.name: (p.annotation, p.default)
            for p in own[needs_node:]
            if p.kind is not inspect.Parameter.VAR_KEYWORD
        }
        parameters |= {key: (annotation, None) for key, annotation in (options or {}).items()}
        prints_json = "as_json" not in parameters and inspect.isgeneratorfunction(function)
        if needs_node:
            parameters |= {"config": (Config, DEFAULT_CONFIG), "url": (Url, "")}
        if prints_json:
            parameters["as_json"] = (AsJson, False)

        @functools.wraps(function)
        def run(**given: Any) -> None:
            as_json = given.pop("as_json") if prints_json else given.get("as_json", False)
            with reporting(as_json):
                if not needs_node:
                    _show(function(**given), as_json)
                    return
                with connect(given.pop("config"), given.pop("url"), timeout=timeout) as node:
                    _show(function(node, **given), as_json)

        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
                for key, (annotation, default) in parameters.items()
            ]
        )
        run.__annotations__ = {key: annotation for key, (annotation, _) in parameters.items()}
        app.command(name)(run)
        return function

    return register


def _show(output: Any, as_json: bool) -> None:
    if output is None:
        return
    value, good = next(output), True
    if isinstance(value, tuple):
        value, good = value
    if as_json:
        print_json(value)
    else:
        next(output, None)
    if not good:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def reporting(as_json: bool = False) -> Iterator[None]:
    """Turn a failure into a message on standard error (with ``as_json`` JSON) and the command's exit code."""
    try:
        try:
            yield
        except NotFit as error:
            raise CallFailed(str(error), EXIT_BAD_INPUT) from None
    except CallFailed as error:
        if as_json:
            print_json({"error": str(error), "reason": error.reason, "data": error.data}, indent=None, err=True)
        else:
            say(str(error), err=True)
        raise typer.Exit(error.code) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
