"""``bfia-gateway provider check``: tests an image against its description and the contract."""

import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from gateway.cli.check_input import read_trial_input, select, validate
from gateway.cli.check_report import as_json, print_component, print_outputs, print_registration
from gateway.cli.client import EXIT_BAD_INPUT, EXIT_FAILED, CallFailed, read_object
from gateway.cli.command import EngineKind, Output, command
from gateway.cli.output import say
from gateway.cli.providers import commands
from gateway.errors import GatewayError, Invalid

if TYPE_CHECKING:
    from engines.base import Engine
    from gateway.conformance.check import CheckedComponent
    from gateway.conformance.plans import Timeouts
    from gateway.conformance.sandbox import Sandbox


@command(commands, "check", "register.json --image registry.example.com/vendor:1.0.0")
def check(
    file: Annotated[
        Path, typer.Argument(help="The body that registers the provider, as JSON or YAML.")
    ],
    image: Annotated[
        str, typer.Option(help="Run this image's components, too.", metavar="REF")
    ] = "",
    program: Annotated[
        str,
        typer.Option(
            "--command", help="With the process engine: the command line that stands for the image."
        ),
    ] = "",
    engine: Annotated[
        EngineKind | None,
        typer.Option(help="How components run; default: process with --command, else docker."),
    ] = None,
    component: Annotated[
        list[str] | None, typer.Option(help="Only this one; may be repeated.")
    ] = None,
    clause: Annotated[
        list[str] | None, typer.Option(help="Only this one; may be repeated.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "A role's table, ROLE=FILE.csv, or one of its inputs, ROLE.INPUT=FILE, such as a "
                "model; may be repeated. Default: made-up tables, no models."
            )
        ),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            help="A parameter's value, NAME=VALUE, or of one role ROLE.NAME=VALUE; may be repeated."
        ),
    ] = None,
    show_outputs: Annotated[
        bool,
        typer.Option("--show-outputs", help="Print the beginning of what each party wrote, too."),
    ] = False,
    grace: Annotated[float, typer.Option(min=0.1, help="Seconds from SIGTERM to SIGKILL.")] = 10.0,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds for one run of all parties together.")
    ] = 300.0,
    memory: Annotated[float, typer.Option(min=0.01, help="GiB for each party, with Docker.")] = 2.0,
) -> Output:
    """Check a registration as a gateway does, and with --image its components clause by clause.
    Needs no gateway.

    Each component runs in a sandbox: all its parties against each other with small made-up data,
    then each one alone. Nothing outside this machine is contacted. Exit code 1: a clause is broken,
    or the description refused.

    Example: bfia-gateway provider check register.json --command "python -m vendor" --parameter
    max_iter=3
    """
    from gateway.conformance.check import add_label_warnings, check_registration
    from gateway.conformance.check import check as check_component
    from gateway.conformance.clauses import CLAUSES
    from gateway.conformance.plans import Timeouts

    if image and program and engine is None:
        text = "--image and --command name two programs: leave one out, or choose one with --engine"
        raise CallFailed(text, EXIT_BAD_INPUT)
    registration = check_registration(read_object(file))
    trial_input = read_trial_input(data or [], parameter or [], registration)
    checked: list[CheckedComponent] = []
    if registration.provider is not None:
        described = {each.name: each for each in registration.provider.components.values()}
        components = select(
            described, component or [], noun="component", reason="COMPONENT_UNKNOWN"
        )
        known_clauses = {each.name: each for each in CLAUSES}
        clauses = select(known_clauses, clause or [], noun="clause", reason="CLAUSE_UNKNOWN")
        validate(trial_input, components, strict=registration.provider.strict_values)
        if image or program or engine:
            # With the process engine, the image's name is only the key of its command.
            image_name = image or registration.provider.image or "the-image"
            timeouts = Timeouts(  # no trial may take longer than --timeout
                run=timeout,
                without_data=min(timeout, Timeouts.without_data),
                grace=grace,
                all_wait=min(timeout, Timeouts.all_wait),
            )
            with _sandbox(engine, image_name, program, timeouts, memory) as sandbox:
                registration = add_label_warnings(registration, sandbox)
                progress = partial(say, err=True)
                for each in components:
                    checked.append(check_component(sandbox, each, trial_input, progress, clauses))
    good = not registration.errors and all(result.good for result in checked)
    yield as_json(good, registration, checked), good
    print_registration(file, registration)
    for result in checked:
        print_component(result)
    if show_outputs:
        print_outputs(checked)


@contextmanager
def _sandbox(
    kind: EngineKind | None,
    image: str,
    program: str,
    timeouts: "Timeouts",
    memory: float,
) -> "Iterator[Sandbox]":
    """Open a sandbox, and remove all of it afterwards, also on SIGTERM.

    ``program`` is the command line for a process engine, ``memory`` the GiB for each party. Raises
    `CallFailed`, also for an error within the block.
    """
    from engines.base import EngineError
    from engines.files import try_to_remove
    from gateway.conformance.sandbox import Sandbox

    if kind is None:
        kind = EngineKind.process if program else EngineKind.docker
    installation = uuid4().hex
    previous_handler = signal.signal(signal.SIGTERM, _exit_on_signal)
    folder = Path(tempfile.mkdtemp(prefix="bfia-check-"))
    try:
        engine = _start_engine(
            kind,
            image,
            program=program,
            folder=folder,
            installation=installation,
        )
        sandbox = Sandbox(
            engine,
            image,
            installation=installation,
            folder=folder,
            timeouts=timeouts,
            memory=memory,
        )
        try:
            with _sandbox_failures():
                yield sandbox
        finally:
            with suppress(EngineError):
                sandbox.close()
    finally:
        try_to_remove(folder)
        signal.signal(signal.SIGTERM, previous_handler)


def _exit_on_signal(*_: object) -> None:
    """Exit by an exception, so that the sandbox is removed."""
    sys.exit(128 + signal.SIGTERM)


@contextmanager
def _sandbox_failures() -> Iterator[None]:
    """Turn the errors of a sandbox into `CallFailed`."""
    from engines.base import EngineError

    try:
        yield
    except Invalid as error:
        lines = ["a table of --data cannot be used:"]
        lines += [f"  {problem}" for problem in error.problems]
        raise CallFailed("\n".join(lines), EXIT_BAD_INPUT, error.reason) from error
    except (EngineError, GatewayError) as error:
        text = f"the sandbox cannot be used: {error}"
        raise CallFailed(text, EXIT_FAILED, error.reason) from error
    except OSError as error:
        text = (
            f"the sandbox cannot be used: {error.strerror or error}; it must listen at an address "
            "of the container network: is Docker on this machine?"
        )
        raise CallFailed(text, EXIT_FAILED, "SANDBOX_FAILED") from error


def _start_engine(
    kind: EngineKind,
    image: str,
    *,
    program: str,
    folder: Path,
    installation: str,
) -> "Engine":
    """Return an engine that responds. Raises `CallFailed`.

    A process engine runs the command line ``program`` for the ``image``, below ``folder``.
    """
    from engines.base import EngineError
    from engines.docker import ContainerdEngine, DockerOptions
    from engines.process.engine import ProcessEngine
    from gateway.conformance.sandbox import NODE

    engine: Engine
    if kind is EngineKind.docker:
        network = f"bfia-check-{installation[:8]}"
        engine = ContainerdEngine(NODE, installation, DockerOptions(network=network))
    else:
        engine = ProcessEngine(
            node=NODE,
            installation=installation,
            images={image: _command_words(program)},
            run_root=folder / "process",
        )
    try:
        engine.check()
    except EngineError as error:
        engine.close()
        text = f"{error}; start Docker, or give --command to run the program without an image"
        raise CallFailed(text, EXIT_FAILED, error.reason) from error
    return engine


def _command_words(program: str) -> tuple[str, ...]:
    """Return the words of ``--command``. Raises `CallFailed` for a command that cannot work."""
    if not program:
        text = "the process engine needs --command, the command line that stands for the image"
        raise CallFailed(text, EXIT_BAD_INPUT)
    try:
        words = shlex.split(program)
    except ValueError as error:
        raise CallFailed(f"--command cannot be read: {error}", EXIT_BAD_INPUT) from error
    if not words:  # a text of blanks
        _check_program("")  # raises `CallFailed`, as no program has this name
    else:
        _check_program(words[0])
    for word in words[1:]:
        _check_argument(word)
    return tuple(words)


def _check_program(program: str) -> None:
    """Raise `CallFailed` for a program that cannot be started."""
    from engines.process.engine import SEARCH_PATH

    if shutil.which(program, path=SEARCH_PATH) is not None:
        return
    where = SEARCH_PATH
    step = "give its whole path"
    if "/" in program:
        path = Path(program).absolute()
        program = path.name
        where = f"{path.parent}"
        step = "correct the path, make it executable (chmod +x), or write its interpreter before it"
    text = f"--command: {program!r} is not an executable in {where}; {step}"
    raise CallFailed(text, EXIT_BAD_INPUT, "COMMAND_NOT_FOUND")


def _check_argument(word: str) -> None:
    """Raise `CallFailed` for the relative path of an existing file: the program runs in another
    folder and would not find it.
    """
    if os.path.isabs(word) or not os.path.isfile(word):
        return
    text = (
        f"--command: {word!r} is in {Path.cwd()}, and the program is started in a folder of its "
        "own; "
    )
    raise CallFailed(f"{text}write {Path(word).absolute()}", EXIT_BAD_INPUT, "COMMAND_NOT_FOUND")
