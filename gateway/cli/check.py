"""``bfia-gateway provider check``: does an image keep its description and the container contract?"""

import json
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import uuid4

import typer

from gateway.cli.client import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    AsJson,
    CallFailed,
    fitting,
    read_remarked,
    reporting,
    show,
    table,
)
from gateway.cli.console import harmless, say
from gateway.cli.inputs import content, finite
from gateway.errors import counted

if TYPE_CHECKING:
    from gateway.conformance.check import Checked, Described, Given
    from gateway.conformance.clauses import Clause
    from gateway.conformance.sandbox import Patience, Sandbox
    from provider_registry.model import Component, Problem


X = TypeVar("X")


class Engines(StrEnum):
    """What an image can be checked with."""

    docker = "docker"
    process = "process"


def add(commands: typer.Typer) -> None:
    """Add the command to ``provider``."""
    commands.command("check")(check)


def check(
    file: Annotated[Path, typer.Argument(help="The body that registers the provider, as JSON or YAML.")],
    image: Annotated[str, typer.Option(help="Run this image's components, too.", metavar="REF")] = "",
    command: Annotated[
        str, typer.Option(help="With the process engine: the command line that stands for the image.")
    ] = "",
    engine: Annotated[
        Engines | None, typer.Option(help="How components run; default: process with --command, else docker.")
    ] = None,
    component: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    clause: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="A role's table, ROLE=FILE.csv, or one of its inputs, ROLE.INPUT=FILE, such as a model; may be "
            "repeated. Default: made-up tables, no models."
        ),
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option(help="A parameter's value, NAME=VALUE; may be repeated.")
    ] = None,
    grace: Annotated[
        float, typer.Option(min=0.1, callback=finite(), help="Seconds from SIGTERM to SIGKILL.")
    ] = 10.0,
    timeout: Annotated[
        float,
        typer.Option(min=1, callback=finite(), help="Seconds for one run of all parties together."),
    ] = 300.0,
    as_json: AsJson = False,
) -> None:
    """Check a registration as a gateway does, and with --image its components clause by clause. Needs no gateway.

    Each component runs in a sandbox: all its parties against each other with small made-up data, then each one
    alone. Nothing outside this machine is asked. Exit code 1: a clause is broken, or the registration is refused.

    Example: bfia-gateway provider check register.json --image registry.example.com/vendor:1.0.0

    Example: bfia-gateway provider check register.json --command "python -m vendor" --parameter max_iter=3
    """
    with reporting(as_json):
        from gateway.conformance.check import Given, described, labelled
        from gateway.conformance.clauses import CLAUSES
        from gateway.conformance.sandbox import Patience
        from provider_registry.model import ROOT, Problem

        if image and command and engine is None:
            text = "--image and --command name two programs: leave one out, or say with --engine which one runs"
            raise CallFailed(text, EXIT_BAD_INPUT)
        body, remark = read_remarked(file)
        found = described(body)
        if remark:
            found = replace(found, warnings=(Problem(ROOT, remark), *found.warnings))
        tables, inputs = _files(data or [])
        values = dict(_pair(p, "--parameter NAME=VALUE") for p in parameter or [])
        given = Given(tables, values, inputs)
        checked: list[Checked] = []
        if found.provider is not None and (image or command or engine):
            components = {c.name: c for c in found.provider.components.values()}
            wanted = _chosen(components, component or [], "component", "COMPONENT_UNKNOWN")
            clauses = _chosen({c.name: c for c in CLAUSES}, clause or [], "clause", "CLAUSE_UNKNOWN")
            _known_parameters(given.parameters, wanted)
            _known_inputs(given, wanted)
            ref = image or found.provider.image or "the-image"
            patience = Patience(timeout, min(timeout, Patience.alone), grace)
            with _sandbox(engine, ref, command, patience) as sandbox:
                found = labelled(found, sandbox)
                checked = _with_progress(sandbox, wanted, given, clauses)
        good = not found.errors and all(c.good for c in checked)
        if as_json:
            show(_as_values(good, found, checked))
        else:
            _print(file, found, checked)
        if not good:
            raise typer.Exit(EXIT_FAILED)


def _chosen(known: Mapping[str, X], names: Sequence[str], what: str, reason: str) -> list[X]:
    """Return what is named, all where nothing is. Raises `CallFailed` with what there is."""
    if unknown := [name for name in names if name not in known]:
        text = f"there is no {what} {', '.join(unknown)}; there are: {', '.join(known) or 'none'}"
        raise CallFailed(text, EXIT_BAD_INPUT, reason)
    return [known[name] for name in dict.fromkeys(names or known)]


def _known_parameters(names: Iterable[str], components: "Sequence[Component]") -> None:
    """Raise `CallFailed` for a parameter that none of the components has."""
    from provider_registry.lint import near

    known = list(dict.fromkeys(p.name for c in components for p in c.parameters))
    unknown = [
        f"{name} (did you mean {meant}?)" if (meant := near(name, known)) else name
        for name in names
        if name not in known
    ]
    if unknown:
        text = f"no component that is checked has a parameter {', '.join(unknown)}; there are: {', '.join(known)}"
        raise CallFailed(text, EXIT_BAD_INPUT, "PARAMETER_UNKNOWN")


def _known_inputs(given: "Given", components: "Sequence[Component]") -> None:
    """Raise `CallFailed` for data that none of the components could read."""
    roles = {role for c in components for role in c.roles}
    inputs = {one.name for c in components for one in c.inputs}
    unknown = [role for role in given.tables if role not in roles]
    unknown += [f"{role}.{name}" for role, name in given.files if role not in roles or name not in inputs]
    if unknown:
        text = f"no component that is checked reads data of {', '.join(unknown)}; there are roles "
        text += f"{', '.join(sorted(roles))} and inputs {', '.join(sorted(inputs)) or 'none'}"
        raise CallFailed(text, EXIT_BAD_INPUT, "INPUT_UNKNOWN")


def _files(given: Sequence[str]) -> tuple[dict[str, bytes], dict[tuple[str, str], bytes]]:
    """Read what stands for a role's tables, and for one of its inputs."""
    tables: dict[str, bytes] = {}
    inputs: dict[tuple[str, str], bytes] = {}
    for one in given:
        place, file = _pair(one, "--data ROLE=FILE.csv or --data ROLE.INPUT=FILE")
        role, _, name = place.partition(".")
        try:
            with fitting():
                found = content(Path(file))
        except OSError as error:
            raise CallFailed(f"--data {one}: {file} cannot be read: {error.strerror}", EXIT_BAD_INPUT) from error
        if name and not name.isdecimal():  # guest.0 is a role with its index
            inputs[role, name] = found
        else:
            tables[role] = found
    return tables, inputs


def _pair(text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise CallFailed(f"{text!r} must read {form}", EXIT_BAD_INPUT)
    return name, value


@contextmanager
def _folder() -> "Iterator[Path]":
    """Make a folder, and take it away with whatever lies in it, however deep; what resists stays."""
    from engines.files import try_to_remove

    folder = Path(tempfile.mkdtemp(prefix="bfia-check-"))
    try:
        yield folder
    finally:
        try_to_remove(folder)


@contextmanager
def _sandbox(kind: Engines | None, image: str, command: str, patience: "Patience") -> "Iterator[Sandbox]":
    """Make the place in which components run, and take all of it away afterwards. Raises `CallFailed`."""
    from engines.base import Engine, EngineError
    from engines.docker import ContainerdEngine
    from engines.process.engine import ProcessEngine
    from gateway.conformance.sandbox import NODE, Sandbox
    from gateway.errors import GatewayError, Invalid

    kind = kind or (Engines.process if command else Engines.docker)
    if kind is Engines.process and not command:
        text = "the process engine needs --command, the command line that stands for the image"
        raise CallFailed(text, EXIT_BAD_INPUT)
    installation = uuid4().hex
    made: Engine
    with _folder() as folder:
        if kind is Engines.process:
            try:
                words = tuple(shlex.split(command))
            except ValueError as error:
                raise CallFailed(f"--command cannot be read: {error}", EXIT_BAD_INPUT) from error
            made = ProcessEngine(
                node=NODE, installation=installation, images={image: words}, run_root=folder / "process"
            )
        else:
            made = ContainerdEngine(node=NODE, installation=installation, network=f"bfia-check-{installation[:8]}")
        try:
            made.check()
        except EngineError as error:
            made.close()
            text = f"{error}; start Docker, or give --command to run the program without an image"
            raise CallFailed(text, EXIT_FAILED, error.reason) from error
        sandbox = Sandbox(made, image, installation, folder, patience)
        try:
            yield sandbox
        except Invalid as error:
            text = "\n".join(["a table of --data cannot be used:", *(f"  {p}" for p in error.problems)])
            raise CallFailed(text, EXIT_BAD_INPUT, error.reason) from error
        except (EngineError, GatewayError) as error:
            raise CallFailed(f"the sandbox cannot be used: {error}", EXIT_FAILED, error.reason) from error
        except OSError as error:
            text = f"the sandbox cannot be used: {error.strerror or error}; is Docker on another machine?"
            raise CallFailed(text, EXIT_FAILED, "SANDBOX_FAILED") from error
        finally:
            with suppress(EngineError):
                sandbox.close()


def _with_progress(
    sandbox: "Sandbox", components: "Sequence[Component]", given: "Given", clauses: "Sequence[Clause]"
) -> "list[Checked]":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from gateway.conformance.check import TRIALS
    from gateway.conformance.check import check as check_component

    if not sys.stderr.isatty():  # such as in a build: a line for each step
        return [
            check_component(sandbox, one, given, lambda text: say(text, err=True), clauses) for one in components
        ]
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("starting", total=TRIALS * len(components))

        def told(text: str) -> None:
            progress.update(bar, advance=1, description=harmless(text))

        return [check_component(sandbox, component, given, told, clauses) for component in components]


def _as_values(good: bool, found: "Described", checked: "Sequence[Checked]") -> dict[str, Any]:
    return {
        "good": good,
        "provider": found.provider.key if found.provider else None,
        "description": {
            "errors": [_problem(p) for p in found.errors],
            "warnings": [_problem(p) for p in found.warnings],
        },
        "components": [
            {
                "component": one.component,
                "good": one.good,
                "clauses": [
                    {
                        "clause": clause.name,
                        "section": clause.section,
                        "says": clause.says,
                        "result": str(finding.result),
                        "seen": finding.seen,
                        "remedy": clause.remedy if finding.result == "failed" else "",
                    }
                    for clause, finding in one.findings
                ],
            }
            for one in checked
        ],
    }


def _problem(problem: "Problem") -> dict[str, Any]:
    shown = {"path": problem.path, "rule": problem.rule, "got": problem.got}
    return shown | ({"suggestion": problem.suggestion} if problem.suggestion else {})


def _found(got: Any) -> str:
    return "" if got is None else json.dumps(got, ensure_ascii=False, default=str)[:200]


_MARKS = {"ok": "ok", "failed": "FAILED", "not shown": "not shown"}


def _print(file: Path, found: "Described", checked: "Sequence[Checked]") -> None:
    marked = [*(("error", p) for p in found.errors), *(("warning", p) for p in found.warnings)]
    rows = [[mark, p.path, p.rule, _found(p.got), p.suggestion] for mark, p in marked]
    said = f"{counted(len(found.errors), 'error')}, {counted(len(found.warnings), 'warning')}"
    if rows:
        table(f"{file}: {said}", ["", "where", "what", "found", "did you mean"], rows)
    else:
        say(f"{file}: {said}")
    for one in checked:
        say("")
        idle = any(clause.name in ("starts", "works") and f.result == "failed" for clause, f in one.findings)
        lines = [
            [clause.name, _MARKS[f.result], f.seen, clause.remedy if f.result == "failed" else "", clause.section]
            for clause, f in one.findings
            if not (idle and f.result == "not shown")  # what does not work shows little, which is told below
        ]
        table(one.component, ["clause", "result", "seen", "what to do", "section"], lines)
        broken = [clause.name for clause, f in one.findings if f.result == "failed"]
        hidden = sum(f.result == "not shown" for _, f in one.findings)
        verdict = f"broken: {', '.join(broken)}" if broken else "keeps all that was shown"
        say(f"{one.component} {verdict}; {hidden} of {len(one.findings)} clauses not shown")
