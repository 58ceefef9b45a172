"""``bfia-gateway partner show`` and ``partner report``: a partner, and the report of its check."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bfia_gateway_client.calls import path_of
from gateway.cli import options
from gateway.cli.client import EXIT_BAD_INPUT, CallFailed, Client, check_may_write, read_object
from gateway.cli.command import Output, command
from gateway.cli.language import language_in_use, t
from gateway.cli.output import say
from gateway.cli.partner import commands
from gateway.cli.tables import mark, table
from gateway.errors import Invalid, counted

_HEADINGS = ("clause", "result", "seen", "what to do", "BFIA section")
# Owners of the keys that sign reports, as the node's answers name them.
_SIGNERS = {
    "this node": "this node's key",
    "partner": "the partner's key",
    "other": "another key",
}


@command(commands, "show", example="JG0100002200000020")
def show(node: Client, partner: options.NodeId) -> Output:
    """Show a partner: its route, and when its platform was checked with which result."""
    route = node.get(path_of("routes", partner))["route"]
    report = _listed_report(node, partner)
    yield {"route": route, "report": report}
    say(f"{partner}: {_address_of(route)}")
    for heading in ("institution", "profile"):
        if route[heading]:
            say(f"{t(heading)}: {route[heading]}")
    if report is None:
        say(
            "no report of a check is stored; to make one: bfia-gateway peer check "
            f"{partner} --report FILE; to store it: bfia-gateway partner report {partner} FILE"
        )
        return
    print_summary(report)
    say(f"the clauses: bfia-gateway partner report {partner}")


@command(commands, "report", example="JG0100002200000020 report.json")
def report(
    node: Client,
    partner: options.NodeId,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Keep this report of peer check --report; without it, show the stored one."
        ),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the stored report.")] = False,
    save: Annotated[
        Path | None, typer.Option(help="Write the stored report there, as it was signed.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --save: overwrite an existing file.")
    ] = False,
) -> Output:
    """Keep the signed report of a check (peer check) with a partner, show it, or delete it.

    A report replaces the partner's earlier one. Refused: a report that was changed after it was
    signed, one of another form, and one of another node.
    """
    if delete:
        yield _deleted(node, partner, file)
        say(f"the report of {partner} is deleted")
        return
    if file is not None:
        stored = keep_report(node, partner, read_report_of(file, partner))
        yield stored
        print_summary(stored)
        return
    stored = node.get(path_of("partner-reports", partner))
    yield stored
    print_summary(stored)
    rows = [_row(clause) for clause in stored["breaches"]]
    if rows:
        table("", _HEADINGS, rows, red=[t("fails")])
    if save is not None:
        _save(node, partner, save, force)


def read_report_of(file: Path, partner: str) -> dict[str, Any]:
    """Return a signed report that is good to keep with a partner.

    Raises `CallFailed` with the reason, as the node would refuse it.
    """
    from datetime import UTC, datetime

    from gateway.conformance.platforms.reading import read_report_about

    envelope = read_object(file)
    try:
        read_report_about(partner, envelope, datetime.now(UTC))
    except Invalid as error:
        problems = "; ".join(map(str, error.problems))
        raise CallFailed(f"{file}: {problems}", EXIT_BAD_INPUT, error.reason) from None
    return envelope


def keep_report(
    node: Client,
    partner: str,
    envelope: Mapping[str, Any],
) -> dict[str, Any]:
    """Have the node keep a report with a partner; return what it says."""
    response: dict[str, Any] = node.call("PUT", path_of("partner-reports", partner), dict(envelope))
    return response


def _deleted(
    node: Client,
    partner: str,
    file: Path | None,
) -> dict[str, Any]:
    """Delete the report of a partner; return the node's response. Raises `CallFailed`."""
    if file is not None:
        text = "--delete deletes the stored report: leave the file out"
        raise CallFailed(text, EXIT_BAD_INPUT)
    response: dict[str, Any] = node.delete(path_of("partner-reports", partner))
    return response


def _listed_report(node: Client, partner: str) -> dict[str, Any] | None:
    """Return what the report of a partner says; None if none is stored."""
    reports: list[dict[str, Any]] = node.get("/api/v1/partner-reports", node=partner)["reports"]
    return next(iter(reports), None)


def _save(
    node: Client,
    partner: str,
    target: Path,
    force: bool,
) -> None:
    """Write the stored report to a file, as it was signed. Raises `CallFailed`."""
    import json

    check_may_write(target, force)
    envelope = node.get(path_of("partner-reports", partner, "file"))
    target.write_text(json.dumps(envelope, indent=1))
    say(f"wrote {target}")


def _address_of(route: Mapping[str, Any]) -> str:
    """Return the address of a route, or the node that relays its requests."""
    address = route["url"]
    if route["via"]:
        address = f"via {route['via']}"
    if not route["enabled"]:
        address += f", {t('disabled')}"
    return str(address)


def print_summary(stored: Mapping[str, Any]) -> None:
    """Print date, verdicts, version, and who has signed a report."""
    counts = ", ".join(f"{count} {t(verdict)}" for verdict, count in stored["counts"].items())
    day = stored["checked_at"][:10]
    deviations = counted(stored["deviations"], "deviation")
    say(f"checked on {day}, {deviations}: {counts}")
    signer = t(_SIGNERS[stored["signed_by"]])
    say(f"by {stored['checker']} against version {stored['standard']}, signed with {signer}")


def _row(clause: Mapping[str, Any]) -> list[str]:
    """Return a clause that does not hold as a row of the table."""
    observation = t(clause["observation"])
    if clause["dialect"]:
        observation += f" (profile {clause['dialect']})"
    return [
        clause["id"],
        mark(clause["verdict"]),
        observation,
        clause["remedy"][language_in_use()],
        clause["section"],
    ]
