"""What all commands share: how they are registered, run and reported, and groups that load them
when needed.

Exit codes: 0 done, 1 failed or refused by the node, 2 bad input or configuration, 3 no response
from the node, 130 interrupted.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from bfia_gateway_client.progress import Progress
from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_NO_ANSWER,
    CallFailed,
    Client,
    check_may_write,
    connect,
)
from gateway.cli.language import translated
from gateway.cli.options import AsJson, Config, Url
from gateway.cli.output import print_json, say
from gateway.cli.values import FULL_ID, amount
from gateway.data.reading import NotFit
from gateway.errors import DatabaseAway, Invalid, SigningFailed

_LISTED_MATCHES = 5  # ids that a message about an ambiguous one names

# The output of a command, a generator. It yields once: the value that ``--json`` prints, or a pair
# of that value and whether the command was a success. The code after the yield prints the same
# for people.
Output = Iterator[Any]
# The type and the default of an option or argument of typer; a required one has the default
# `inspect.Parameter.empty` or ``...``.
OptionSpec = tuple[Any, Any]


class EngineKind(StrEnum):
    """The engines that ``init``, ``demo`` and ``provider check`` can start.

    A configuration may name further kinds.
    """

    docker = "docker"
    process = "process"


# ---------------------------------------------------------------- registration


def command(
    app: typer.Typer,
    name: str,
    example: str = "",
    *,
    timeout: float = 60.0,
    options: Mapping[str, OptionSpec] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a command; its help is the docstring and an example of its arguments.

    A first parameter of the type `Client` adds ``--config`` and ``--url``, a generator adds
    ``--json``. ``options`` are passed as further keyword arguments. ``timeout``: seconds for each
    request to the node.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = {**_declared_parameters(function), **(options or {})}
        needs_node = _takes_node(function)
        if needs_node:
            parameters |= {
                "config": (Config, DEFAULT_CONFIG),
                "url": (Url, ""),
            }
        adds_json = inspect.isgeneratorfunction(function) and "as_json" not in parameters
        if adds_json:
            parameters["as_json"] = (AsJson, False)

        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            as_json = arguments.get("as_json", False)
            if adds_json:
                del arguments["as_json"]
            with reporting(as_json):
                if not needs_node:
                    _print_output(function(**arguments), as_json)
                    return
                with connect(
                    arguments.pop("config"), arguments.pop("url"), timeout=timeout
                ) as node:
                    if "job_id" in arguments:
                        arguments["job_id"] = whole_id(node, arguments["job_id"])
                    _print_output(function(node, **arguments), as_json)

        _set_parameters(run, parameters)
        app.command(name, help=_help(function, app.info.name, name, example))(run)
        return function

    return register


def _takes_node(function: Callable[..., Any]) -> bool:
    """Return whether the first parameter is a client of the node."""
    parameters = list(inspect.signature(function).parameters.values())
    return bool(parameters) and parameters[0].annotation is Client


def _declared_parameters(function: Callable[..., Any]) -> dict[str, OptionSpec]:
    """Return a function's options and arguments by name, except its client and ``**``."""
    parameters = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.annotation is not Client and parameter.kind is not parameter.VAR_KEYWORD:
            parameters[parameter.name] = (parameter.annotation, parameter.default)
    return parameters


def _set_parameters(
    function: Callable[..., None],
    parameters: Mapping[str, OptionSpec],
) -> None:
    """Give a function the keyword parameters that typer reads."""
    signature = []
    for name, (annotation, default) in parameters.items():
        signature.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
            )
        )
    function.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    function.__annotations__ = {name: annotation for name, (annotation, _) in parameters.items()}


def _help(
    function: Callable[..., Any],
    group: Any,
    name: str,
    example: str,
) -> str:
    """Return a command's docstring and the line of an example."""
    words = ["Example: bfia-gateway", group, name, example]
    description = inspect.cleandoc(function.__doc__ or "")
    return f"{description}\n\n{' '.join(filter(None, words))}"


def loaded_from(
    *modules: str,
    app_name: str = "commands",
    default_command: str = "",
) -> type[TyperGroup]:
    """Return a class of groups that import their commands when they are used.

    - ``modules``: modules of this package; the first defines the group's `typer.Typer`, and the
      others add commands to it
    - ``app_name``: the name of that `typer.Typer` in its module
    - ``default_command``: what runs if the command line names no command of the group
    """

    class Loading(TyperGroup):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            del self.commands  # an attribute of the object, which would hide the property below

        @cached_property
        def commands(self) -> Any:  # type: ignore[override]
            imported = [import_module(f"gateway.cli.{module}") for module in modules]
            app = getattr(imported[0], app_name)
            commands = typer.main.get_group(app).commands
            return {name: translated(command) for name, command in commands.items()}

        def parse_args(
            self,
            ctx: Any,
            args: list[str],
        ) -> list[str]:
            if default_command and not self._names_command(ctx, args):
                args = [default_command, *args]
            return super().parse_args(ctx, args)

        def _names_command(self, ctx: Any, args: list[str]) -> bool:
            """Return whether the words begin with a command or with ``--help`` for the group."""
            if not args:
                return False
            return args[0] in self.commands or args[0] in ctx.help_option_names

    return Loading


# ---------------------------------------------------------------- running


@contextmanager
def reporting(as_json: bool = False) -> Iterator[None]:
    """Print a failure of the block to standard error, and end with the failure's exit code.

    ``as_json``: print the failure as JSON. Raises `typer.Exit`.
    """
    try:
        with _as_call_failed():
            yield
    except CallFailed as error:
        if as_json:
            body = {
                "error": str(error),
                "reason": error.reason,
                "data": error.data,
            }
            print_json(body, indent=None, err=True)
        else:
            say(str(error), err=True)
        raise typer.Exit(error.code) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@contextmanager
def _as_call_failed() -> Iterator[None]:
    """Turn the errors of this machine's files and database into `CallFailed`."""
    try:
        yield
    except NotFit as error:
        raise CallFailed(str(error), EXIT_BAD_INPUT) from None
    except Invalid as error:
        text = "; ".join(map(str, error.problems))
        raise CallFailed(text, EXIT_BAD_INPUT, error.reason) from None
    except DatabaseAway as error:
        raise CallFailed(error.message, EXIT_NO_ANSWER, error.reason) from None
    except SigningFailed as error:
        text = f"{error.message} ({error.reason})"
        raise CallFailed(text, EXIT_FAILED, error.reason) from None


def _print_output(output: Any, as_json: bool) -> None:
    """Print the output of a command (see `Output`); None: the command has printed it itself.

    Raises `typer.Exit` unless it is a success.
    """
    if output is None:
        return
    value = next(output)
    success = True
    if isinstance(value, tuple):
        value, success = value
    if as_json:
        print_json(value)
    else:
        next(output, None)
    if not success:
        raise typer.Exit(EXIT_FAILED)


def whole_id(node: Client, text: str) -> str:
    """Return the id of the job with this beginning, or of the newest job for ``last``.

    A text that is the whole id of a job is returned unchanged, also if further ids begin with it;
    so is a text with which no id begins: the node refuses it. Raises `CallFailed` if several ids
    begin with the text. Only the newest 1000 jobs are compared.
    """
    if len(text) >= FULL_ID:  # too long for a beginning: no request is needed
        return text
    if text == "last":
        matches = _job_ids(node, limit=1)
    else:
        matches = [job_id for job_id in _job_ids(node, limit=1000) if job_id.startswith(text)]
    if len(matches) == 1:
        return matches[0]
    if not matches or text in matches:
        return text
    examples = ", ".join(matches[:_LISTED_MATCHES])
    if len(matches) > _LISTED_MATCHES:
        examples += ", …"
    message = f"{text} may be any of {examples}: write more of it"
    raise CallFailed(message, EXIT_BAD_INPUT, "JOB_AMBIGUOUS")


def _job_ids(node: Client, limit: int) -> list[str]:
    """Return the newest jobs' ids; [] without a response, which the command itself reports."""
    try:
        page = node.get("/api/v1/jobs", limit=limit)
    except CallFailed:
        return []
    return [job["job_id"] for job in page["jobs"]]


def save(
    node: Client,
    path: str,
    target: Path,
    force: bool,
    **query: Any,
) -> Output:
    """Download ``path`` into the file ``target``, and print its name and size.

    Raises `NotFit` if the file exists, unless ``force``.
    """
    check_may_write(target, force)
    with Progress(f"fetching {target.name}") as progress:
        length = node.download(path, target, progress.advance, **query)
    yield {"file": str(target), "bytes": length}
    say(f"wrote {target} ({amount(length)})")
