"""``bfia-gateway provider init`` and ``check``: a first image, and whether it keeps description and contract."""

import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from gateway.cli.command import EngineKind, Output, command, compact, mark, say, table
from gateway.cli.language import t
from gateway.cli.providers import commands
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
    found = check_registration(read_object(file))
    given = _given(data or [], parameter or [], found)
    checked: list[CheckedComponent] = []
    if found.provider is not None:
        components = {c.name: c for c in found.provider.components.values()}
        chosen = _chosen(components, component or [], "component", "COMPONENT_UNKNOWN")
        clauses = _chosen({c.name: c for c in CLAUSES}, clause or [], "clause", "CLAUSE_UNKNOWN")
        _validate(given, chosen, strict=found.provider.strict_values)
    if found.provider is not None and (image or program or engine):
        name = image or found.provider.image or "the-image"
        timeouts = Timeouts(timeout, min(timeout, Timeouts.alone), grace)
        with _sandbox(engine, name, program, timeouts, memory) as sandbox:
            found = add_label_warnings(found, sandbox)
            report = partial(say, err=True)
            checked = [check_component(sandbox, one, given, report, clauses) for one in chosen]
    good = not found.errors and all(c.good for c in checked)
    yield _as_json(good, found, checked), good
    _print(file, found, checked)
    for one in checked if show_outputs else ():
        for (party, name), text in one.outputs.items():
            say(f"\n{one.component}, {name} of {party}:")
            typer.echo("\n".join(map(harmless, text.splitlines()[:_LINES])))


def _given(
    data: Sequence[str],
    parameters: Sequence[str],
    found: "RegistrationCheck",
) -> "TrialInput":
    """Read what stands for a role's tables, for one of its inputs, and for parameters."""
    from gateway.conformance.check import TrialInput

    tables: dict[str, bytes] = {}
    inputs: dict[tuple[str, str], bytes] = {}
    for one in data:
        place, file = _pair(one, "--data ROLE=FILE.csv or --data ROLE.INPUT=FILE")
        role, _, name = place.partition(".")
        if name and not name.isdecimal():  # guest.0 is a role with its index
            inputs[role, name] = content(Path(file))
        else:
            tables[role] = content(Path(file))
    roles = (
        {r for c in found.provider.components.values() for r in c.roles}
        if found.provider
        else set()
    )
    common: dict[str, str] = {}
    of_roles: dict[str, dict[str, str]] = {}
    for name, value in (
        _pair(one, "--parameter NAME=VALUE or ROLE.NAME=VALUE") for one in parameters
    ):
        role, _, own = name.partition(".")
        if own and role in roles:
            of_roles.setdefault(role, {})[own] = value
        else:
            common[name] = value
    return TrialInput(tables, common, of_roles, inputs)


def _pair(text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise CallFailed(f"{text!r} must read {form}", EXIT_BAD_INPUT)
    return name, value


def _chosen(
    known: Mapping[str, X],
    names: Sequence[str],
    what: str,
    reason: str,
) -> list[X]:
    """Return what is named, all where nothing is. Raises `CallFailed`."""
    if unknown := [name for name in names if name not in known]:
        text = f"there is no {what} {', '.join(unknown)}; there are: {', '.join(known) or 'none'}"
        raise CallFailed(text, EXIT_BAD_INPUT, reason)
    return [known[name] for name in dict.fromkeys(names or known)]


def _validate(
    given: "TrialInput",
    components: "Sequence[Component]",
    *,
    strict: bool,
) -> None:
    """Raise `CallFailed` for a parameter, or data, that none of the components has or reads, and for a value that
    rejects a job. A value that is only reported there is a warning here."""
    from provider_registry import values

    known = list(dict.fromkeys(p.name for c in components for p in c.parameters))
    names = [*given.parameters, *(name for own in given.of_roles.values() for name in own)]
    if unknown := [name for name in names if name not in known]:
        text = f"no component that is checked has a parameter {', '.join(unknown)}; there are: {', '.join(known)}"
        raise CallFailed(text, EXIT_BAD_INPUT, "PARAMETER_UNKNOWN")
    wrong = []
    for one in components:
        for role, own in {"": given.parameters, **given.of_roles}.items():
            declared = {p.name: own[p.name] for p in one.parameters if p.name in own}
            found = values.check(declared, one, role, strict=strict)
            # a parameter that is missing has no value, and gets one that is made up
            wrong += [f"{one.name}, --parameter {p}" for p in found.errors if p.got is not None]
            for problem in (p for p in found.warnings if p.got is not None):
                say(f"warning: {one.name}, --parameter {problem}", err=True)
    if wrong:
        raise CallFailed("\n".join(wrong), EXIT_BAD_INPUT, "INVALID")
    roles = {role for c in components for role in c.roles}
    inputs = {one.name for c in components for one in c.inputs}
    unused = [role for role in given.tables if role not in roles]
    unused += [
        f"{role}.{name}" for role, name in given.files if role not in roles or name not in inputs
    ]
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
    """Make the place in which components run, and remove all of it afterwards. Raises `CallFailed`."""
    from engines.base import EngineError
    from engines.files import try_to_remove
    from gateway.conformance.sandbox import Sandbox

    installation = uuid4().hex
    before = signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # and remove all below
    folder = Path(tempfile.mkdtemp(prefix="bfia-check-"))
    try:
        kind = kind or (EngineKind.process if program else EngineKind.docker)
        made = _engine(kind, image, program, folder, installation)
        sandbox = Sandbox(made, image, installation, folder, timeouts, memory)
        try:
            yield sandbox
        except Invalid as error:
            text = "\n".join(
                ["a table of --data cannot be used:", *(f"  {p}" for p in error.problems)]
            )
            raise CallFailed(text, EXIT_BAD_INPUT, error.reason) from error
        except (EngineError, GatewayError) as error:
            raise CallFailed(
                f"the sandbox cannot be used: {error}", EXIT_FAILED, error.reason
            ) from error
        except OSError as error:
            text = f"the sandbox cannot be used: {error.strerror or error}; is Docker on another machine?"
            raise CallFailed(text, EXIT_FAILED, "SANDBOX_FAILED") from error
        finally:
            with suppress(EngineError):
                sandbox.close()
    finally:
        try_to_remove(folder)
        signal.signal(signal.SIGTERM, before)


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

    made: Engine
    if kind is EngineKind.docker:
        made = ContainerdEngine(
            NODE, installation, DockerOptions(network=f"bfia-check-{installation[:8]}")
        )
    elif program:
        try:
            words = shlex.split(program)
        except ValueError as error:
            raise CallFailed(f"--command cannot be read: {error}", EXIT_BAD_INPUT) from error
        _find(words)
        images = {image: tuple(words)}
        made = ProcessEngine(
            node=NODE,
            installation=installation,
            images=images,
            run_root=folder / "process",
        )
    else:
        text = "the process engine needs --command, the command line that stands for the image"
        raise CallFailed(text, EXIT_BAD_INPUT)
    try:
        made.check()
    except EngineError as error:
        made.close()
        text = f"{error}; start Docker, or give --command to run the program without an image"
        raise CallFailed(text, EXIT_FAILED, error.reason) from error
    return made


def _find(words: Sequence[str]) -> None:
    """Raise `CallFailed` for a program that cannot be started, or a file of this folder that it would not find."""
    from engines.process.engine import SEARCH_PATH

    first = "".join(words[:1])
    if shutil.which(first, path=SEARCH_PATH) is None:
        where, step = SEARCH_PATH, "give its whole path"
        if "/" in first:
            path = Path(first).absolute()
            first, where = path.name, f"{path.parent}"
            step = "correct the path, make it executable (chmod +x), or write its interpreter before it"
        text = f"--command: {first!r} is not an executable in {where}; {step}"
        raise CallFailed(text, EXIT_BAD_INPUT, "COMMAND_NOT_FOUND")
    for word in words[1:]:
        if not os.path.isabs(word) and os.path.isfile(word):
            text = f"--command: {word!r} is in {Path.cwd()}, and the program is started in a folder of its own; "
            raise CallFailed(
                f"{text}write {Path(word).absolute()}", EXIT_BAD_INPUT, "COMMAND_NOT_FOUND"
            )


def _as_json(
    good: bool,
    found: "RegistrationCheck",
    checked: "Sequence[CheckedComponent]",
) -> dict[str, Any]:
    def problems(those: "Iterable[Problem]") -> list[dict[str, Any]]:
        return [
            {key: value for key, value in p._asdict().items() if key != "suggestion" or value}
            for p in those
        ]

    def clause(of: "Clause", finding: "Finding") -> dict[str, Any]:
        remedy = (finding.remedy or of.remedy) if finding.result == "failed" else ""
        about = {
            "clause": of.name,
            "section": of.section,
            "says": of.says,
            "result": str(finding.result),
        }
        return {
            **about,
            "seen": finding.seen,
            "remedy": remedy,
        }

    components = []
    for one in checked:
        outputs = [
            {
                "party": p,
                "output": name,
                "begins": text,
            }
            for (p, name), text in one.outputs.items()
        ]
        clauses = [clause(*pair) for pair in one.findings]
        components.append(
            {
                "component": one.component,
                "good": one.good,
                "clauses": clauses,
                "outputs": outputs,
            }
        )
    description = {"errors": problems(found.errors), "warnings": problems(found.warnings)}
    key = found.provider.key if found.provider else None
    return {
        "good": good,
        "provider": key,
        "description": description,
        "components": components,
    }


def _print(
    file: Path,
    found: "RegistrationCheck",
    checked: "Sequence[CheckedComponent]",
) -> None:
    marked = [*(("error", p) for p in found.errors), *(("warning", p) for p in found.warnings)]
    rows = [
        [t(m), p.path, t(p.rule), "" if p.got is None else compact(p.got, 200), p.suggestion]
        for m, p in marked
    ]
    title = (
        f"{file}: {counted(len(found.errors), 'error')}, {counted(len(found.warnings), 'warning')}"
    )
    if rows:
        table(title, ["", "where", "problem", "value", "suggestion"], rows)
    else:
        say(title)
    for one in checked:
        say()
        idle = any(
            clause.name in ("starts", "works") and f.result == "failed"
            for clause, f in one.findings
        )
        lines = [
            [
                "\n".join(dict.fromkeys((t(clause.name), clause.name))),
                mark(f.result),
                f.seen,
                (f.remedy or clause.remedy) if f.result == "failed" else "",
                t(clause.section),
            ]
            for clause, f in one.findings
            if not (
                idle and f.result == "not shown"
            )  # what does not work shows little: the last line counts them
        ]
        table(one.component, ["clause", "result", "seen", "what to do", "BFIA section"], lines)
        broken = [clause.name for clause, f in one.findings if f.result == "failed"]
        hidden = sum(f.result == "not shown" for _, f in one.findings)
        verdict = f"broken: {', '.join(broken)}" if broken else "keeps all that was shown"
        say(f"{one.component} {verdict}; {hidden} of {len(one.findings)} clauses not shown")
