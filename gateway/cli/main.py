"""``bfia-gateway``: its groups of commands, and the commands ``init``, ``serve`` and ``demo``."""

import errno
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from gateway.cli import backup, documents, node, secret_files
from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXAMPLE_NODE,
    EXIT_BAD_INPUT,
    CallFailed,
    check_exists,
    invalid_in,
)
from gateway.cli.command import EngineKind, command, loaded_from, reporting
from gateway.cli.language import requested_language, set_language, translated
from gateway.cli.output import say
from gateway.cli.start import absent
from gateway.errors import Invalid
from gateway.version import VERSION

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    name="",
    help=(
        "Gateway that lets a privacy-computing platform run joint jobs with any other that "
        "speaks BFIA v1.2.0."
    ),
    no_args_is_help=True,
    epilog=(
        "Exit codes: 0 done, 1 failed or refused by the node, 2 bad input or configuration, 3 no "
        "response from the node, 130 interrupted. "
        "Completion of commands and names: bfia-gateway --install-completion."
    ),
    pretty_exceptions_enable=False,
)


class Language(StrEnum):
    """The language of help and messages."""

    en = "en"
    zh = "zh"


class DemoData(StrEnum):
    """The tables of the demo."""

    breast = "breast"
    credit = "credit"


def _print_version(requested: bool) -> None:
    """Print the version and end, for the option --version."""
    if requested:
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
    # Both have taken effect already: see `_print_version` and `requested_language`.


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
            help=(
                "Folder with node.pem, node.key and ca.pem: serve peers by https, and require "
                "certificates of them."
            )
        ),
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            help=(
                "Where partners reach this node, such as https://gw.bank.example:7380 "
                "(listen.peer.advertise); invitations then need no --address."
            )
        ),
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a commented configuration, an empty route table in the same folder, and the key pair
    that signs requests.
    """
    from gateway.cli.init import check_address, docker_responds, settings_from_options
    from gateway.config.values import NODE_RULE, is_node

    node_id = EXAMPLE_NODE if node is None else node
    if not is_node(node_id):
        raise CallFailed(f"--node {node_id!r}: {NODE_RULE}", EXIT_BAD_INPUT)
    if address:
        check_address(address, by_https=tls is not None)
    routes = output.with_name("routes.yml")
    try:
        if not force:
            _refuse_overwriting(output, routes)
        kind = engine
        if kind is None:
            kind = EngineKind.docker if docker_responds() else EngineKind.process
        settings = settings_from_options(
            port,
            auth=auth,
            tls=tls,
            address=address,
            folder=output.parent,
        )
        key_id = _write_node(output, routes, node_id, kind, settings)
    except OSError as error:
        text = f"{output} cannot be written: {error.strerror}; give another --output"
        raise CallFailed(text, EXIT_BAD_INPUT) from None
    say(f"wrote {output} and {routes}; engine kind: {kind}")
    say(f"this node signs its requests with the key {key_id}")
    if kind is EngineKind.process:
        say(
            "the process engine runs vendor code with the gateway's own rights: for trials, not "
            "for production"
        )
    if node is None:
        _warn_of_example_id(node_id)
    if tls is not None:
        _print_missing_tls_files(tls)
    if auth:
        say(f"tokens are required: bfia-gateway token create NAME --role admin --config {output}")
    else:
        say(
            "every user of this machine may do everything at the operator listener; give --auth "
            "to require tokens"
        )
    say(f"next: bfia-gateway serve --config {output}")


def _refuse_overwriting(*files: Path) -> None:
    """Raise `CallFailed` if one of the files exists."""
    existing = [str(file) for file in files if file.exists()]
    if existing:
        text = (
            f"this would overwrite {', '.join(existing)}; give --force, or --output in another "
            "folder"
        )
        raise CallFailed(text, EXIT_BAD_INPUT)


def _write_node(
    config: Path,
    routes: Path,
    node_id: str,
    kind: EngineKind,
    settings: dict[str, Any],
) -> str:
    """Write the files of a new node, readable by this user only, and return the id of its key."""
    from gateway.cli.init import configuration_text, empty_routes, ensure_signing_key

    folder = config.parent
    folder.mkdir(parents=True, exist_ok=True)
    text = configuration_text(
        node=node_id,
        engine=str(kind),
        routes=routes.name,
        folder=folder,
        settings=settings,
    )
    config.write_text(text, encoding="utf-8")
    routes.write_text(empty_routes(), encoding="utf-8")
    for file in (config, routes):  # an overwritten file may have been readable to others
        file.chmod(0o600)
    return ensure_signing_key(folder)


def _warn_of_example_id(node_id: str) -> None:
    """Warn that the node has the default id, which no two nodes may share."""
    text = f"this node is now {node_id}, the default id, and no two nodes may have the same"
    say(
        f"warning: {text}: give it an id of its own with --node before it meets partners",
        err=True,
    )


def _print_missing_tls_files(folder: Path) -> None:
    """Print the files that the listener's TLS settings name and that do not exist yet."""
    from gateway.cli.init import TLS_FILES

    files = [folder / name for name in TLS_FILES]
    missing = ", ".join(str(file) for file in files if not file.is_file())
    if missing:
        recipe = "bfia-gateway docs operations has a recipe"
        say(f"these files must exist before the start: {missing} ({recipe})", err=True)


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
    """Serve one node until SIGTERM or Ctrl-C. Running containers go on and are picked up at the
    next start.
    """
    # structlog would load rich for coloured tracebacks, which the logs of a node do not have.
    with absent("rich"):
        from gateway.cli.serve import run

    check_exists(config)
    try:
        run(config, log_format, ready_file)
    except (Invalid, OSError) as error:
        raise _failed_start(config, error) from None


def report_failed_start(config: Path, error: Exception) -> NoReturn:
    """Print why a node did not start, as the command ``serve`` does, and exit."""
    set_language(requested_language([]))
    try:
        with reporting():
            raise _failed_start(config, error) from None
    except typer.Exit as end:
        sys.exit(end.exit_code)


def _failed_start(config: Path, error: Exception) -> Exception:
    """Return `CallFailed` for an error of a start; an unexpected error as it is."""
    if isinstance(error, Invalid):
        return invalid_in(config, error)
    if not isinstance(error, OSError):
        return error
    text = str(error)
    if error.errno == errno.EADDRINUSE:
        text = f"{error.strerror}; end what listens there, or change listen in {config}"
    return CallFailed(text, EXIT_BAD_INPUT)


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
    closed: Annotated[
        bool, typer.Option("--closed", help="The partner has no open port and dials the bank.")
    ] = False,
    vendor_python: Annotated[
        Path | None,
        typer.Option(
            help="Python with the reference vendor's package. Default: .venv-vendor in a checkout, "
            "else the gateway's own environment."
        ),
    ] = None,
) -> None:
    """Two institutions train a model together on this machine, from upload to result."""
    from gateway.cli.demo.failure import DemoFailed
    from gateway.cli.demo.training import Options, run

    try:
        choices = Options(
            engine=str(engine),
            data=str(data),
            keep=keep,
            directory=directory,
            base_image=base_image,
            key_length=key_length,
            closed=closed,
            vendor_python=vendor_python,
        )
        run(choices)
    except DemoFailed as error:
        raise CallFailed(f"\nThe demo failed: {error}") from None
    except KeyboardInterrupt:
        say("\nStopped.", err=True)
        raise


def _add_group(
    name: str,
    help_text: str,
    group: type[TyperGroup],
) -> None:
    """Add a group of commands; ``group`` is a class of `loaded_from`."""
    app.add_typer(
        typer.Typer(
            name=name,
            help=help_text,
            no_args_is_help=True,
            cls=group,
        )
    )


app.add_typer(node.commands)
app.add_typer(backup.commands)
app.add_typer(secret_files.commands)
app.add_typer(documents.commands)
_add_group(
    "upgrade",
    "Find out whether partners would notice a new version.",
    loaded_from("upgrade"),
)
_add_group(
    "token",
    "Who may use the operator listener, and in which role.",
    loaded_from("access", app_name="tokens"),
)
_add_group(
    "identity",
    "The key pair with which this node signs what it requests of partners.",
    loaded_from("access", app_name="identity"),
)
_add_group(
    "audit",
    "Who requested which change, and what became of it.",
    loaded_from("access", app_name="audit", default_command="list"),
)
_add_group(
    "partner",
    "Become the partner of another node; contracts, and what partners apply for.",
    loaded_from("partner", "partner_reports"),
)
_add_group(
    "data",
    "Datasets of this node, and which partner nodes may use them.",
    loaded_from("data"),
)
_add_group(
    "job",
    "Submit a job, watch it, see its logs and outputs, stop it.",
    loaded_from("jobs", "job_timeline", "job_control", "draft", "outputs"),
)
_add_group(
    "model",
    "Models that trainings left here: show, predict, deploy, export, import.",
    loaded_from("models"),
)
_add_group(
    "provider",
    "Algorithm images, the components in them, and who may change them. A provider's full name is "
    "name:version@device; parts may be left out where that is clear.",
    loaded_from("providers", "provider_init", "check"),
)
_add_group(
    "route",
    "Which nodes there are, how to reach them, and whether that works.",
    loaded_from("routes"),
)
_add_group(
    "peer",
    "Check a node of any product against the standard, clause by clause.",
    loaded_from("peer_check"),
)


def main() -> None:
    """Parse the command line and run its command; `gateway.cli.begin` calls this."""
    # New files are for this user alone; what containers use is made accessible by chmod, path by
    # path.
    os.umask(0o077)
    set_language(requested_language(sys.argv[1:]))
    try:
        translated(typer.main.get_command(app))()
    except KeyboardInterrupt:  # before the command started
        sys.exit(130)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        say(f"the output cannot be written: {error.strerror}", err=True)
        os._exit(1)  # a normal exit would try to write the buffered output again


if __name__ == "__main__":
    main()
