"""``bfia-gateway provider init`` and ``check``: a first image, and whether it keeps description and contract."""

import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import uuid4

import typer

from bfia_gateway_client.errors import harmless
from gateway.cli.client import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    CallFailed,
    content,
    new_file,
    read_object,
)
from gateway.cli.command import EngineKind, Output, command
from gateway.cli.language import t
from gateway.cli.output import say
from gateway.cli.providers import commands
from gateway.cli.tables import mark, table
from gateway.cli.values import compact
from gateway.errors import GatewayError, Invalid, counted

if TYPE_CHECKING:
    from engines.base import Engine
    from gateway.conformance.check import CheckedComponent, RegistrationCheck, TrialInput
    from gateway.conformance.clauses import Clause
    from gateway.conformance.evidence import Finding
    from gateway.conformance.sandbox import Sandbox, Timeouts
    from provider_registry.model import Component, Problem

X = TypeVar("X")
_NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
_COMPONENT = re.compile(r"\w[\w-]*")
_LINES = 20
"""of an output that are shown"""


@command(commands, "init", "overlap && cd overlap && pytest")
def init(
    name: Annotated[
        str, typer.Argument(help="The provider's name: lower-case letters, digits, . _ -")
    ],
    component: Annotated[
        str, typer.Option(help="The component's name; default: from the name.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write into; default: the name.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> Output:
    """Write a component that works, to be changed: program, Dockerfile, description and a test. Needs no gateway.

    Two parties learn which ids they have in common; docs/vendor.md explains each line.
    """
    if not _NAME.fullmatch(name):
        text = f"{name!r} cannot name an image: expected lower-case letters, digits, . _ - (such as overlap)"
        raise CallFailed(text, EXIT_BAD_INPUT, "INVALID")
    component = component or "".join(
        word[:1].upper() + word[1:] for word in re.split("[._-]", name)
    )
    if not _COMPONENT.fullmatch(component):
        text = f"{component!r} cannot name a component: expected letters, digits, _ - (such as Overlap)"
        raise CallFailed(text, EXIT_BAD_INPUT, "INVALID")
    folder, module = output or Path(name), re.sub(r"\W", "_", name)
    template = files("gateway.conformance").joinpath("template")
    made = {
        folder / one.name.removesuffix(".txt").replace("NAME", module): one
        for one in template.iterdir()
    }
    for file in made:
        new_file(file, force)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, one in made.items():
            text = (
                one.read_text("utf-8").replace("test_NAME", f"test_{module}").replace("NAME", name)
            )
            file.write_text(text.replace("Overlap", component), "utf-8")
            file.chmod(0o644)  # COPY keeps it, and another user runs the image
    except OSError as error:
        raise CallFailed(f"{folder} cannot be written: {error.strerror}", EXIT_BAD_INPUT) from None
    yield {"files": sorted(map(str, made))}
    for file in sorted(made):
        say(f"wrote {file}")
    place = shlex.quote(str(folder.absolute()))  # the check runs the command in folders of its own
    say(
        f'next: bfia-gateway provider check {place}/register.json --command "$(which python3) {place}/main.py"'
    )


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
            help="A role's table, ROLE=FILE.csv, or one of its inputs, ROLE.INPUT=FILE, such as a model; may be "
            "repeated. Default: made-up tables, no models."
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
    """Check a registration as a gateway does, and with --image its components clause by clause. Needs no gateway.

    Each component runs in a sandbox: all its parties against each other with small made-up data, then each one
    alone. Nothing outside this machine is contacted. Exit code 1: a clause is broken, or the description refused.

    Example: bfia-gateway provider check register.json --command "python -m vendor" --parameter max_iter=3
    """
    from gateway.conformance.check import add_label_warnings, check_registration
    from gateway.conformance.check import check as check_component
    from gateway.conformance.clauses import CLAUSES
    from gateway.conformance.sandbox import Timeouts

    if image and program and engine is None:
        text = "--image and --command name two programs: leave one out, or choose one with --engine"
        raise CallFailed(text, EXIT_BAD_INPUT)
    registration = check_registration(read_object(file))
    trial_input = _trial_input(data or [], parameter or [], registration)
    checked: list[CheckedComponent] = []
    if registration.provider is not None:
        described = {c.name: c for c in registration.provider.components.values()}
        components = _select(described, component or [], "component", "COMPONENT_UNKNOWN")
        clauses = _select({c.name: c for c in CLAUSES}, clause or [], "clause", "CLAUSE_UNKNOWN")
        _validate(trial_input, components, strict=registration.provider.strict_values)
    if registration.provider is not None and (image or program or engine):
        name = image or registration.provider.image or "the-image"
        timeouts = Timeouts(timeout, min(timeout, Timeouts.alone), grace)
        with _sandbox(engine, name, program, timeouts, memory) as sandbox:
            registration = add_label_warnings(registration, sandbox)
            progress = partial(say, err=True)
            for described_component in components:
                result = check_component(
                    sandbox, described_component, trial_input, progress, clauses
                )
                checked.append(result)
    good = not registration.errors and all(result.good for result in checked)
    yield _as_json(good, registration, checked), good
    _print_registration(file, registration)
    for result in checked:
        _print_component(result)
    if show_outputs:
        _print_outputs(checked)


def _print_outputs(checked: "Sequence[CheckedComponent]") -> None:
    for result in checked:
        for (party, name), text in result.outputs.items():
            say(f"\n{result.component}, {name} of {party}:")
            typer.echo("\n".join(map(harmless, text.splitlines()[:_LINES])))


def _trial_input(
    data: Sequence[str],
    parameters: Sequence[str],
    registration: "RegistrationCheck",
) -> "TrialInput":
    """Read the user's tables of roles, content of single inputs, and parameters. Raises `CallFailed`."""
    from gateway.conformance.check import TrialInput

    tables: dict[str, bytes] = {}
    inputs: dict[tuple[str, str], bytes] = {}
    for text in data:
        target, file = _pair(text, "--data ROLE=FILE.csv or --data ROLE.INPUT=FILE")
        role, _, name = target.partition(".")
        if name and not name.isdecimal():  # guest.0 is a role with its index
            inputs[role, name] = content(Path(file))
        else:
            tables[role] = content(Path(file))
    roles: set[str] = set()
    if registration.provider:
        for component in registration.provider.components.values():
            roles.update(component.roles)
    common: dict[str, str] = {}
    of_roles: dict[str, dict[str, str]] = {}
    for text in parameters:
        target, value = _pair(text, "--parameter NAME=VALUE or ROLE.NAME=VALUE")
        role, _, name = target.partition(".")
        if name and role in roles:
            of_roles.setdefault(role, {})[name] = value
        else:
            common[target] = value
    return TrialInput(tables, common, of_roles, inputs)


def _pair(text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise CallFailed(f"{text!r} must read {form}", EXIT_BAD_INPUT)
    return name, value


def _select(
    available: Mapping[str, X],
    names: Sequence[str],
    what: str,
    reason: str,
) -> list[X]:
    """Return the named entries, without names all. Raises `CallFailed` for an unknown name."""
    unknown = [name for name in names if name not in available]
    if unknown:
        choices = ", ".join(available) or "none"
        text = f"there is no {what} {', '.join(unknown)}; there are: {choices}"
        raise CallFailed(text, EXIT_BAD_INPUT, reason)
    return [available[name] for name in dict.fromkeys(names or available)]


def _validate(
    trial_input: "TrialInput",
    components: "Sequence[Component]",
    *,
    strict: bool,
) -> None:
    """Check the user's parameters and data against the components.

    Raises `CallFailed` for a parameter or data of no component, and for a value that rejects a job. A value that
    is only reported in a job is a warning here.
    """
    from provider_registry import values

    _check_parameter_names(trial_input, components)
    errors = []
    for component in components:
        declared = {parameter.name for parameter in component.parameters}
        for role, parameters in {"": trial_input.parameters, **trial_input.of_roles}.items():
            used = {name: value for name, value in parameters.items() if name in declared}
            problems = values.check(used, component, role, strict=strict)
            # A missing parameter has no value: it gets a made-up one.
            for problem in problems.errors:
                if problem.got is not None:
                    errors.append(f"{component.name}, --parameter {problem}")
            for problem in problems.warnings:
                if problem.got is not None:
                    say(f"warning: {component.name}, --parameter {problem}", err=True)
    if errors:
        raise CallFailed("\n".join(errors), EXIT_BAD_INPUT, "INVALID")
    _check_data(trial_input, components)


def _check_parameter_names(
    trial_input: "TrialInput",
    components: "Sequence[Component]",
) -> None:
    declared: dict[str, None] = {}
    for component in components:
        declared |= dict.fromkeys(parameter.name for parameter in component.parameters)
    names = [*trial_input.parameters]
    for parameters in trial_input.of_roles.values():
        names += parameters
    unknown = [name for name in names if name not in declared]
    if unknown:
        text = f"no component that is checked has a parameter {', '.join(unknown)}; there are: {', '.join(declared)}"
        raise CallFailed(text, EXIT_BAD_INPUT, "PARAMETER_UNKNOWN")


def _check_data(trial_input: "TrialInput", components: "Sequence[Component]") -> None:
    roles: set[str] = set()
    inputs: set[str] = set()
    for component in components:
        roles.update(component.roles)
        inputs.update(data.name for data in component.inputs)
    unused = [role for role in trial_input.tables if role not in roles]
    for role, name in trial_input.files:
        if role not in roles or name not in inputs:
            unused.append(f"{role}.{name}")
    if unused:
        text = f"no component that is checked reads data of {', '.join(unused)}; there are roles "
        text += f"{', '.join(sorted(roles))} and inputs {', '.join(sorted(inputs)) or 'none'}"
        raise CallFailed(text, EXIT_BAD_INPUT, "INPUT_UNKNOWN")


@contextmanager
def _sandbox(
    kind: EngineKind | None,
    image: str,
    program: str,
    timeouts: "Timeouts",
    memory: float,
) -> "Iterator[Sandbox]":
    """Make a sandbox, and remove all of it afterwards. Raises `CallFailed`."""
    from engines.base import EngineError
    from engines.files import try_to_remove
    from gateway.conformance.sandbox import Sandbox

    def exit_on_signal(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)  # which removes the sandbox, below

    if kind is None:
        kind = EngineKind.process if program else EngineKind.docker
    installation = uuid4().hex
    previous_handler = signal.signal(signal.SIGTERM, exit_on_signal)
    folder = Path(tempfile.mkdtemp(prefix="bfia-check-"))
    try:
        engine = _engine(kind, image, program, folder, installation)
        sandbox = Sandbox(engine, image, installation, folder, timeouts, memory)
        try:
            yield sandbox
        except Invalid as error:
            lines = ["a table of --data cannot be used:"]
            lines += [f"  {problem}" for problem in error.problems]
            raise CallFailed("\n".join(lines), EXIT_BAD_INPUT, error.reason) from error
        except (EngineError, GatewayError) as error:
            text = f"the sandbox cannot be used: {error}"
            raise CallFailed(text, EXIT_FAILED, error.reason) from error
        except OSError as error:
            text = f"the sandbox cannot be used: {error.strerror or error}; is Docker on another machine?"
            raise CallFailed(text, EXIT_FAILED, "SANDBOX_FAILED") from error
        finally:
            with suppress(EngineError):
                sandbox.close()
    finally:
        try_to_remove(folder)
        signal.signal(signal.SIGTERM, previous_handler)


def _engine(
    kind: EngineKind,
    image: str,
    program: str,
    folder: Path,
    installation: str,
) -> "Engine":
    from engines.base import EngineError
    from engines.docker import ContainerdEngine, DockerOptions
    from engines.process.engine import ProcessEngine
    from gateway.conformance.sandbox import NODE

    engine: Engine
    if kind is EngineKind.docker:
        engine = ContainerdEngine(
            NODE, installation, DockerOptions(network=f"bfia-check-{installation[:8]}")
        )
    elif program:
        try:
            words = shlex.split(program)
        except ValueError as error:
            raise CallFailed(f"--command cannot be read: {error}", EXIT_BAD_INPUT) from error
        _check_command(words)
        images = {image: tuple(words)}
        engine = ProcessEngine(
            node=NODE,
            installation=installation,
            images=images,
            run_root=folder / "process",
        )
    else:
        text = "the process engine needs --command, the command line that stands for the image"
        raise CallFailed(text, EXIT_BAD_INPUT)
    try:
        engine.check()
    except EngineError as error:
        engine.close()
        text = f"{error}; start Docker, or give --command to run the program without an image"
        raise CallFailed(text, EXIT_FAILED, error.reason) from error
    return engine


def _check_command(words: Sequence[str]) -> None:
    """Raise `CallFailed` for a program that cannot be started, or a file of this folder that it would not find."""
    from engines.process.engine import SEARCH_PATH

    program = "".join(words[:1])
    if shutil.which(program, path=SEARCH_PATH) is None:
        where, step = SEARCH_PATH, "give its whole path"
        if "/" in program:
            path = Path(program).absolute()
            program, where = path.name, f"{path.parent}"
            step = "correct the path, make it executable (chmod +x), or write its interpreter before it"
        text = f"--command: {program!r} is not an executable in {where}; {step}"
        raise CallFailed(text, EXIT_BAD_INPUT, "COMMAND_NOT_FOUND")
    for word in words[1:]:
        if not os.path.isabs(word) and os.path.isfile(word):
            text = f"--command: {word!r} is in {Path.cwd()}, and the program is started in a folder of its own; "
            raise CallFailed(
                f"{text}write {Path(word).absolute()}", EXIT_BAD_INPUT, "COMMAND_NOT_FOUND"
            )


def _as_json(
    good: bool,
    registration: "RegistrationCheck",
    checked: "Sequence[CheckedComponent]",
) -> dict[str, Any]:
    key = None
    if registration.provider:
        key = registration.provider.key
    return {
        "good": good,
        "provider": key,
        "description": {
            "errors": [_problem_json(problem) for problem in registration.errors],
            "warnings": [_problem_json(problem) for problem in registration.warnings],
        },
        "components": [_component_json(result) for result in checked],
    }


def _problem_json(problem: "Problem") -> dict[str, Any]:
    fields = problem._asdict()
    if not fields["suggestion"]:
        del fields["suggestion"]
    return fields


def _component_json(result: "CheckedComponent") -> dict[str, Any]:
    outputs = []
    for (party, name), text in result.outputs.items():
        outputs.append({"party": party, "output": name, "begins": text})
    return {
        "component": result.component,
        "good": result.good,
        "clauses": [_finding_json(clause, finding) for clause, finding in result.findings],
        "outputs": outputs,
    }


def _finding_json(clause: "Clause", finding: "Finding") -> dict[str, Any]:
    return {
        "clause": clause.name,
        "section": clause.section,
        "says": clause.says,
        "result": str(finding.result),
        "seen": finding.seen,
        "remedy": _remedy(clause, finding),
    }


def _remedy(clause: "Clause", finding: "Finding") -> str:
    if finding.result != "failed":
        return ""
    return finding.remedy or clause.remedy


def _print_registration(file: Path, registration: "RegistrationCheck") -> None:
    problems = [("error", problem) for problem in registration.errors]
    problems += [("warning", problem) for problem in registration.warnings]
    errors = counted(len(registration.errors), "error")
    title = f"{file}: {errors}, {counted(len(registration.warnings), 'warning')}"
    if not problems:
        say(title)
        return
    rows = []
    for severity, problem in problems:
        value = "" if problem.got is None else compact(problem.got, 200)
        rows.append([t(severity), problem.path, t(problem.rule), value, problem.suggestion])
    table(title, ["", "where", "problem", "value", "suggestion"], rows)


def _print_component(result: "CheckedComponent") -> None:
    """Print a component's clauses. One that does not run shows little: then the last line counts the others."""
    by_result: dict[str, list[str]] = {}
    for clause, finding in result.findings:
        by_result.setdefault(str(finding.result), []).append(clause.name)
    broken = by_result.get("failed", [])
    not_shown = by_result.get("not shown", [])
    does_not_run = "starts" in broken or "works" in broken
    rows = []
    for clause, finding in result.findings:
        if does_not_run and finding.result == "not shown":
            continue
        names = "\n".join(dict.fromkeys((t(clause.name), clause.name)))
        remedy = _remedy(clause, finding)
        rows.append([names, mark(finding.result), finding.seen, remedy, t(clause.section)])
    say()
    table(result.component, ["clause", "result", "seen", "what to do", "BFIA section"], rows)
    verdict = "keeps all that was shown"
    if broken:
        verdict = f"broken: {', '.join(broken)}"
    total = len(result.findings)
    say(f"{result.component} {verdict}; {len(not_shown)} of {total} clauses not shown")
