"""``bfia-gateway``: all commands, and those that come before there is a node: init, serve, demo."""

import errno
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from gateway.cli import backup, node
from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXAMPLE_NODE,
    EXIT_BAD_INPUT,
    CallFailed,
    check_there,
    invalid_in,
)
from gateway.cli.command import EngineKind, command, loaded_from, say
from gateway.cli.language import asked, speak, translated
from gateway.errors import Invalid
from gateway.version import VERSION

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    name="",
    help="Gateway that lets a privacy-computing platform run joint jobs with any other that speaks BFIA v1.2.0.",
    no_args_is_help=True,
    epilog="Exit codes: 0 done, 1 failed or refused by the node, 2 bad input or configuration, 3 no response from "
    "the node, 130 interrupted. Completion of commands and names: bfia-gateway --install-completion.",
    pretty_exceptions_enable=False,
)


class Language(StrEnum):
    """What help and messages are written in."""

    en = "en"
    zh = "zh"


class DemoData(StrEnum):
    """What the demo trains on."""

    breast = "breast"
    credit = "credit"


def _print_version(wanted: bool) -> None:
    if wanted:
        say(VERSION)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
    lang: Annotated[
        Language | None,
        typer.Option(help="en or zh; default: that of LC_ALL, LC_MESSAGES or LANG."),
    ] = None,
) -> None:
    """Options before every command."""


@command(app, "init", "--node JG0100001100000010 -o node.yml")
def init(
    node: Annotated[
        str | None,
        typer.Option(
            help="Id of this node, which no partner may have. "
            f"Default: {EXAMPLE_NODE}, for trials; change it before you invite partners."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = DEFAULT_CONFIG,
    engine: Annotated[
        EngineKind | None, typer.Option(help="Default: docker if a daemon responds.")
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=1,
            max=65533,
            help="Port for peers; containers get the next one, operators the third.",
        ),
    ] = 7380,
    auth: Annotated[bool, typer.Option("--auth", help="Require tokens of operators.")] = False,
    tls: Annotated[
        Path | None,
        typer.Option(
            help="Folder with node.pem, node.key and ca.pem: serve peers by https, and want certificates."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a commented configuration, an empty route table beside it, and the key pair that signs requests."""
    from gateway.cli.init import TLS_FILES, docker_answers, empty_routes, example, more, own_key
    from gateway.config.values import NODE_RULE, is_node

    name = EXAMPLE_NODE if node is None else node
    if not is_node(name):
        raise CallFailed(f"--node {name!r}: {NODE_RULE}", EXIT_BAD_INPUT)
    routes = output.with_name("routes.yml")
    try:
        if not force and (existing := [str(f) for f in (output, routes) if f.exists()]):
            text = f"this would overwrite {', '.join(existing)}; give --force, or --output in another folder"
            raise CallFailed(text, EXIT_BAD_INPUT)
        kind = engine or (EngineKind.docker if docker_answers() else EngineKind.process)
        output.parent.mkdir(parents=True, exist_ok=True)
        chosen = more(port, auth, tls, output.parent)
        output.write_text(
            example(name, str(kind), routes.name, output.parent, chosen), encoding="utf-8"
        )
        routes.write_text(empty_routes(), encoding="utf-8")
        for file in (output, routes):  # with --force it may have been readable to others before
            file.chmod(0o600)
        key = own_key(output.parent)
    except OSError as error:
        text = f"{output} cannot be written: {error.strerror}; give another --output"
        raise CallFailed(text, EXIT_BAD_INPUT) from None
    say(f"wrote {output} and {routes}; engine kind: {kind}")
    say(f"this node signs its requests with the key {key}")
    if kind is EngineKind.process:
        say(
            "the process engine runs vendor code with the gateway's own rights: for trials, not for production"
        )
    if node is None:
        text = f"this node is now {name}, the default id, and no two nodes may have the same"
        say(
            f"warning: {text}: give it an id of its own with --node before it meets partners",
            err=True,
        )
    if tls is not None and (
        missing := [str(tls / one) for one in TLS_FILES if not (tls / one).is_file()]
    ):
        say(
            f"put there before the start: {', '.join(missing)} (docs/operations.md has a recipe)",
            err=True,
        )
    if auth:
        say(f"tokens are required: bfia-gateway token create NAME --role admin --config {output}")
    else:
        say(
            "every user of this machine may do everything at the operator listener: --auth requires tokens"
        )
    say(f"next: bfia-gateway serve --config {output}")


@command(app, "serve", "--config node.yml")
def serve(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="The configuration file.")
    ] = DEFAULT_CONFIG,
    log_format: Annotated[str, typer.Option(help="text or json")] = "text",
    ready_file: Annotated[
        Path | None,
        typer.Option(help="Write the listeners' addresses there (JSON) once they respond."),
    ] = None,
) -> None:
    """Serve one node until SIGTERM or Ctrl-C. Running containers go on and are picked up at the next start."""
    from gateway.cli.serve import run

    check_there(config)
    try:
        run(config, log_format, ready_file)
    except Invalid as error:
        raise invalid_in(config, error) from None
    except OSError as error:
        text = str(error)
        if error.errno == errno.EADDRINUSE:
            text = f"{error.strerror}; end what listens there, or change listen in {config}"
        raise CallFailed(text, EXIT_BAD_INPUT) from None


@command(app, "demo", "--data credit")
def demo(
    engine: Annotated[
        EngineKind, typer.Option(help="How the vendor's code runs.")
    ] = EngineKind.process,
    data: Annotated[
        DemoData,
        typer.Option(help="breast: breast-cancer diagnosis; credit: synthetic credit scoring."),
    ] = DemoData.breast,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the two nodes up afterwards.")
    ] = False,
    directory: Annotated[
        Path, typer.Option("--dir", help="Where the nodes keep their state.")
    ] = Path("var/demo"),
    base_image: Annotated[
        str, typer.Option(help="With --engine docker: image with Python 3.11.")
    ] = "",
    key_length: Annotated[int, typer.Option(help="Bits of the Paillier keys.")] = 2048,
) -> None:
    """Two institutions train a model together on this machine, from upload to result. Needs a checkout."""
    try:
        from examples.demo.nodes import DemoFailed
        from examples.demo.training import Options, run
    except ModuleNotFoundError:
        text = "the demo is not part of the installed package: run it from a checkout of the project (make demo)"
        raise CallFailed(text, EXIT_BAD_INPUT) from None

    try:
        run(Options(str(engine), str(data), keep, directory, base_image, key_length))
    except DemoFailed as error:
        raise CallFailed(f"\nThe demo failed: {error}") from None
    except KeyboardInterrupt:
        say("\nStopped.", err=True)
        raise


def _group(
    name: str,
    text: str,
    kind: type[TyperGroup],
) -> None:
    app.add_typer(
        typer.Typer(
            name=name,
            help=text,
            no_args_is_help=True,
            cls=kind,
        )
    )


for _commands in (node.commands, backup.commands):
    app.add_typer(_commands)
_group(
    "token",
    "Who may use the operator listener, and in which role.",
    loaded_from("tokens", "access"),
)
_group(
    "identity",
    "The key pair with which this node signs what it requests of partners.",
    loaded_from("identity", "access"),
)
_group(
    "audit",
    "Who requested which change, and what became of it.",
    loaded_from("audit", "access", default="list"),
)
_group(
    "partner",
    "Become the partner of another node; contracts, and what partners apply for.",
    loaded_from("commands", "partner"),
)
_group(
    "data",
    "Datasets of this node, and which partner nodes may use them.",
    loaded_from("commands", "data"),
)
_group(
    "job",
    "Submit a job, watch it, see what it wrote and left, stop it.",
    loaded_from("commands", "jobs", "draft", "outputs"),
)
_group(
    "model",
    "Models that trainings left here: show, predict, deploy, export, import.",
    loaded_from("commands", "models"),
)
_group(
    "provider",
    "Algorithm images, the components in them, and who may change them. A provider's full name is "
    "name:version@device; parts may be left out where that is clear.",
    loaded_from("commands", "providers", "check"),
)
_group(
    "route",
    "Which nodes there are, how to reach them, and whether that works.",
    loaded_from("commands", "routes"),
)


def main() -> None:
    """Entry point of the console script."""
    os.umask(
        0o077
    )  # what it writes is this user's alone; a container's folders are opened one by one
    speak(asked(sys.argv[1:]))
    try:
        translated(typer.main.get_command(app))()
    except KeyboardInterrupt:  # before a command has begun
        sys.exit(130)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        say(f"the output cannot be written: {error.strerror}", err=True)
        os._exit(1)  # without a second try to write what is buffered


if __name__ == "__main__":
    main()
