"""The result of ``provider check`` as JSON, and as tables for people."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bfia_gateway_client.errors import harmless
from gateway.cli.language import t
from gateway.cli.output import say
from gateway.cli.tables import mark, table
from gateway.cli.values import compact
from gateway.errors import counted

if TYPE_CHECKING:
    from gateway.conformance.check import CheckedComponent, RegistrationCheck
    from gateway.conformance.clauses import Clause
    from gateway.conformance.evidence import Finding
    from provider_registry.model import Problem

_LISTED_LINES = 20  # lines of an output that are printed
_LONGEST_VALUE = 200  # characters of a wrong value


def as_json(
    good: bool,
    registration: "RegistrationCheck",
    checked: "Sequence[CheckedComponent]",
) -> dict[str, Any]:
    """Return the result of a check for ``--json``."""
    provider = registration.provider
    return {
        "good": good,
        "provider": provider.key if provider else None,
        "engine_kinds": list(provider.engine_kinds) if provider else [],
        "description": {
            "errors": [_problem_json(problem) for problem in registration.errors],
            "warnings": [_problem_json(problem) for problem in registration.warnings],
        },
        "components": [_component_json(result) for result in checked],
    }


def _problem_json(problem: "Problem") -> dict[str, Any]:
    """Return a problem of a description; ``suggestion`` only if there is one."""
    fields = problem._asdict()
    if not fields["suggestion"]:
        del fields["suggestion"]
    return fields


def _component_json(result: "CheckedComponent") -> dict[str, Any]:
    """Return a component's clauses with their results, and the beginnings of its outputs."""
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
    """Return the result of a clause."""
    return {
        "clause": clause.name,
        "section": clause.section,
        "says": clause.says,
        "result": str(finding.result),
        "seen": finding.seen,
        "remedy": _remedy(clause, finding),
    }


def _remedy(clause: "Clause", finding: "Finding") -> str:
    """Return what to do about a broken clause; an empty text for any other result."""
    if finding.result != "failed":
        return ""
    return finding.remedy or clause.remedy


def print_registration(file: Path, registration: "RegistrationCheck") -> None:
    """Print the errors and warnings of a description, and the engines on which the images run."""
    _print_problems(file, registration)
    provider = registration.provider
    if provider is not None and provider.engine_kinds:
        say(
            f"its images run on engines of kind {', '.join(provider.engine_kinds)}: nodes with "
            "another engine refuse its jobs (ENGINE_UNSUITABLE)"
        )


def _print_problems(file: Path, registration: "RegistrationCheck") -> None:
    """Print the errors and warnings of a description."""
    problems = [("error", problem) for problem in registration.errors]
    problems += [("warning", problem) for problem in registration.warnings]
    errors = counted(len(registration.errors), "error")
    title = f"{file}: {errors}, {counted(len(registration.warnings), 'warning')}"
    if not problems:
        say(title)
        return
    rows = []
    for severity, problem in problems:
        value = ""
        if problem.got is not None:
            value = compact(problem.got, longest=_LONGEST_VALUE)
        rows.append([t(severity), problem.path, t(problem.rule), value, problem.suggestion])
    table(title, ["", "where", "problem", "value", "suggestion"], rows)


def print_component(result: "CheckedComponent") -> None:
    """Print the table of a component's clauses, and a line that sums them up.

    If the component does not run, the table omits the clauses that could not be shown; the last
    line counts them.
    """
    by_result: dict[str, list[str]] = {}
    for clause, finding in result.findings:
        by_result.setdefault(str(finding.result), []).append(clause.name)
    broken = by_result.get("failed", [])
    not_shown = by_result.get("not shown", [])
    does_not_run = "starts" in broken or "works" in broken  # names of clauses
    findings = list(result.findings)
    if does_not_run:
        findings = [
            (clause, finding) for clause, finding in findings if clause.name not in not_shown
        ]
    rows = [_row(clause, finding) for clause, finding in findings]
    say()
    table(result.component, ["clause", "result", "seen", "what to do", "BFIA section"], rows)
    verdict = "keeps all that was shown"
    if broken:
        verdict = f"broken: {', '.join(broken)}"
    total = len(result.findings)
    say(f"{result.component} {verdict}; {len(not_shown)} of {total} clauses not shown")


def _row(clause: "Clause", finding: "Finding") -> list[str]:
    """Return the result of a clause as a row of the table."""
    # In English both names are the same; the cell then has a single line.
    names = "\n".join(dict.fromkeys([t(clause.name), clause.name]))
    remedy = _remedy(clause, finding)
    return [names, mark(finding.result), finding.seen, remedy, t(clause.section)]


def print_outputs(checked: "Sequence[CheckedComponent]") -> None:
    """Print the beginning of each output that a party wrote in the trial with all parties."""
    for result in checked:
        for (party, name), text in result.outputs.items():
            say(f"\n{result.component}, {name} of {party}:")
            lines = text.splitlines()[:_LISTED_LINES]
            typer.echo("\n".join(map(harmless, lines)))
