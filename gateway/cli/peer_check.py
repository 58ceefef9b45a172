"""``bfia-gateway peer check``: judges another platform clause by clause, and its reports."""

import json
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bfia_gateway_client.calls import path_of
from gateway.cli import options
from gateway.cli.client import DEFAULT_CONFIG, EXIT_BAD_INPUT, CallFailed, connect, read_object
from gateway.cli.command import Output, command
from gateway.cli.language import language_in_use, t
from gateway.cli.output import say
from gateway.cli.peer_check_sides import Side, Sides, node_at, operator_at, read_side
from gateway.cli.tables import mark, table
from gateway.config.values import NODE_RULE, is_node

if TYPE_CHECKING:
    from gateway.conformance.platforms.check import CheckResult, Judgement
    from gateway.conformance.platforms.clauses import Clause
    from gateway.conformance.platforms.findings import Evidence, Verdict
    from gateway.conformance.platforms.partner import Partner
    from gateway.conformance.platforms.report import Subject
    from gateway.conformance.platforms.trial import ComponentName, Trial, TrialOptions
    from gateway.identity.keys import KeyPair

commands = typer.Typer(name="peer")

_DEFAULT_ID = "JG0000000000000777"  # of the check; the other side needs a route for it
_LISTEN = re.compile(r"(.+):([0-9]{1,5})")
_HEADINGS = ("clause", "result", "seen", "what to do", "BFIA section")


@dataclass(frozen=True)
class _Target:
    """The node to be checked, and the files of its TLS."""

    node_id: str
    url: str
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True)
class _WayBack:
    """Where the check listens, and the address by which the node reaches it."""

    host: str
    port: int
    url: str


@command(
    commands,
    "check",
    "--url http://partner.example:9380 --node JG0100002200000020 "
    "--listen 10.0.0.5:7390 --component acme/Probe@1.0.0",
)
def check(
    route: Annotated[
        str,
        typer.Argument(
            metavar="[NODE]",
            help="A node that this node has a route to; else give --url.",
        ),
    ] = "",
    url: Annotated[str, typer.Option(help="Address of the node's listener for peers.")] = "",
    node: Annotated[str, typer.Option(help="With --url: the node's id.")] = "",
    component: Annotated[
        str,
        typer.Option(
            help=(
                "A component registered there that runs without data and without a partner, as "
                "PROVIDER/NAME@VERSION; without it, no task is run."
            )
        ),
    ] = "",
    listen: Annotated[
        str,
        typer.Option(
            help=(
                "HOST:PORT where the check receives the node's requests; without it, the clauses "
                "about these are not tried."
            )
        ),
    ] = "",
    advertise: Annotated[
        str,
        typer.Option(help="Address by which the node reaches --listen; default: http://HOST:PORT."),
    ] = "",
    container_url: Annotated[
        str,
        typer.Option(
            help=(
                "Address of the node's transport for its containers; without it, push, pop, peek "
                "and release are not tried."
            )
        ),
    ] = "",
    container_token: Annotated[
        Path | None,
        typer.Option(
            help=(
                "File with the token of containers, where the component does not tell its own "
                "and the transport demands one."
            )
        ),
    ] = None,
    operator_url: Annotated[
        str,
        typer.Option(
            help=(
                "Address at which the node's own platform submits jobs; the check then submits "
                "some, with itself as the other party, and stops them."
            )
        ),
    ] = "",
    operator_token: Annotated[
        Path | None,
        typer.Option(help="File with the token of that platform (Authorization: Bearer)."),
    ] = None,
    identity: Annotated[
        str, typer.Option("--as", help="The id that the check has for the node.")
    ] = _DEFAULT_ID,
    key_folder: Annotated[
        Path | None,
        typer.Option(
            help="Sign requests with the key in this folder, which is made if it is absent."
        ),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="PEM file: the authority of the node's certificate.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM file: the certificate that the check shows.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="PEM file: the private key of that certificate.")
    ] = None,
    clause: Annotated[
        list[str] | None,
        typer.Option(help="Only clauses whose id begins so, such as C-3.4; may be repeated."),
    ] = None,
    standard: Annotated[
        str, typer.Option(help="Version of the standard: 1.0, 1.1 or 1.2.0.")
    ] = "1.2.0",
    rate: Annotated[float, typer.Option(min=0.1, help="Most requests in a second.")] = 20.0,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that a task or a step of the node may take.")
    ] = 60.0,
    report: Annotated[
        Path | None, typer.Option(help="Write the signed report there (JSON).")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report there as a page.")] = None,
    only_list: Annotated[
        bool, typer.Option("--list", help="Only list the clauses; send nothing.")
    ] = False,
    print_route: Annotated[
        bool, typer.Option("--print-route", help="Only print the route that the node needs.")
    ] = False,
    propose_profile: Annotated[
        bool,
        typer.Option("--propose-profile", help="Print the profile of a route that fits the node."),
    ] = False,
    verify: Annotated[
        Path | None, typer.Option(help="Only verify a report and print what it says.")
    ] = None,
    config: options.Config = DEFAULT_CONFIG,
) -> Output:
    """Play partner to a node of any product and judge it by the clauses of the standard.

    The check is a node of its own, with its own id and listener; nothing of an installed gateway
    is used or changed. The other side needs a route to it: --print-route prints one. Jobs that the
    check creates there are stopped at its end. Exit code 1: something that the standard demands
    does not hold.
    """
    from gateway.conformance.platforms.clauses import selected
    from gateway.conformance.platforms.standards import STANDARDS

    if verify is not None:
        yield from _verify(verify)
        return
    if standard not in STANDARDS:
        text = f"--standard {standard}: one of {', '.join(STANDARDS)}"
        raise CallFailed(text, EXIT_BAD_INPUT)
    try:
        clauses = selected(clause or [], standard)
    except KeyError as error:
        text = f"--clause {error.args[0]}: no clause of version {standard} begins so; see --list"
        raise CallFailed(text, EXIT_BAD_INPUT, "CLAUSE_UNKNOWN") from None
    if only_list:
        yield [_clause_json(each) for each in clauses]
        _print_clauses(clauses)
        return
    if not is_node(identity):
        raise CallFailed(f"--as {identity!r}: {NODE_RULE}", EXIT_BAD_INPUT)
    pair = _key_in(key_folder)
    way_back = _way_back(listen, advertise)
    if print_route:
        entry = _route_entry(identity, way_back, pair)
        yield entry
        _print_route(entry)
        return
    target = _target(
        route,
        url,
        node,
        config,
        (ca, certificate, key),
    )
    component_name = _component(component)
    sides = Sides(
        containers=read_side("--container", container_url, container_token),
        operators=read_side("--operator", operator_url, operator_token),
    )
    for option, file in (("--report", report), ("--html", html)):
        _check_folder(option, file)
    trial_options = _trial_options(component_name, timeout, sides.containers)
    with _opened_trial(target, identity, pair, way_back, sides, rate, trial_options) as trial:
        trial.standard = STANDARDS[standard]
        _check_that_the_node_knows_us(trial, _route_entry(identity, way_back, pair))
        result = _run(trial, clauses)
    subject = _subject(target, standard, identity)
    yield _write_reports(subject, result, pair, report, html), result.good
    _print_result(result)
    if propose_profile:
        _print_proposal(result)


# ---------------------------------------------------------------- options


def _target(
    route: str,
    url: str,
    node: str,
    config: Path,
    files: tuple[Path | None, Path | None, Path | None],
) -> _Target:
    """Return the node that the options name. Raises `CallFailed`."""
    if route and not url:
        with connect(config) as client:
            entry = client.get(path_of("routes", route))["route"]
        return _Target(route, str(entry["url"]), *files)
    if not url or not node:
        text = "give the node to be checked: a route's NODE, or --url and --node"
        raise CallFailed(text, EXIT_BAD_INPUT)
    if not url.startswith(("http://", "https://")):
        text = f"--url {url}: must begin with http:// or https://"
        raise CallFailed(text, EXIT_BAD_INPUT)
    return _Target(node, url, *files)


def _key_in(folder: Path | None) -> "KeyPair | None":
    """Return the key pair in a folder, made if it is absent; None without a folder."""
    from gateway.identity.keys import Keyring

    if folder is None:
        return None
    ring = Keyring(folder)
    return ring.signing or ring.make("ed25519")


def _way_back(listen: str, advertise: str) -> _WayBack | None:
    """Return where the check listens; None without ``--listen``. Raises `CallFailed`."""
    if not listen:
        return None
    match = _LISTEN.fullmatch(listen)
    if match is None or int(match[2]) > 65535:
        raise CallFailed(f"--listen {listen}: write HOST:PORT", EXIT_BAD_INPUT)
    url = advertise or f"http://{listen}"
    return _WayBack(match[1].strip("[]"), int(match[2]), url)


def _component(text: str) -> "ComponentName | None":
    """Return the component of ``--component``; None without one. Raises `CallFailed`."""
    from gateway.conformance.platforms.trial import ComponentName

    if not text:
        return None
    try:
        return ComponentName.read(text)
    except ValueError:
        raise CallFailed(
            f"--component {text}: write PROVIDER/NAME@VERSION", EXIT_BAD_INPUT
        ) from None


def _check_folder(option: str, file: Path | None) -> None:
    """Raise `CallFailed` if a report cannot be written to a file: better now than after the check.

    None: no report is written.
    """
    if file is None:
        return
    if file.is_dir() or not file.parent.is_dir():
        text = f"{option} {file}: name a file in a folder that exists"
        raise CallFailed(text, EXIT_BAD_INPUT)


def _route_entry(
    identity: str,
    way_back: _WayBack | None,
    pair: "KeyPair | None",
) -> dict[str, Any]:
    """Return the route that the node needs for the check, in the form of our route tables."""
    entry: dict[str, Any] = {"url": way_back.url if way_back else "http://127.0.0.1:1"}
    if pair is None:
        entry["signing"] = "off"
    else:
        entry |= {"keys": pair.public, "signing": "required"}
    return {identity: entry}


# ---------------------------------------------------------------- the check


@contextmanager
def _opened_trial(
    target: _Target,
    identity: str,
    pair: "KeyPair | None",
    way_back: _WayBack | None,
    sides: Sides,
    rate: float,
    trial_options: "TrialOptions",
) -> "Iterator[Trial]":
    """Open the check's participants, and close them at the end. Raises `CallFailed`."""
    from gateway.conformance.platforms.findings import Evidence
    from gateway.conformance.platforms.node import CheckedNode, Identity
    from gateway.conformance.platforms.trial import Trial

    evidence = Evidence()
    node = CheckedNode(
        target.url,
        target.node_id,
        Identity(identity, pair),
        evidence,
        per_second=rate,
        http=_http_client(target),
    )
    partner = _listening_partner(way_back, evidence, pair)
    transport = node_at(sides.containers, node, rate, _http_client(target))
    operator = operator_at(sides.operators, node, rate, _http_client(target))
    try:
        yield Trial(
            node,
            partner,
            evidence,
            trial_options,
            transport,
            operator,
        )
    finally:
        node.close()
        if transport is not None:
            transport.close()
        if operator is not None:
            operator.close()
        if partner is not None:
            partner.close()


def _trial_options(
    component: "ComponentName | None",
    timeout: float,
    containers: Side | None,
) -> "TrialOptions":
    """Return the options of the trial."""
    from gateway.conformance.platforms.trial import TrialOptions

    container_token = containers.token if containers else ""
    return TrialOptions(component, timeout, container_token)


def _http_client(target: _Target) -> Any:
    """Return a client with the TLS of the options. Raises `CallFailed` for unusable files."""
    import httpx

    try:
        context = ssl.create_default_context(cafile=target.ca and str(target.ca))
        if target.certificate is not None:
            context.load_cert_chain(target.certificate, target.key)
    except (OSError, ValueError) as error:
        text = f"--ca, --certificate and --key cannot be used: {error}"
        raise CallFailed(text, EXIT_BAD_INPUT) from None
    return httpx.Client(verify=context, trust_env=False)


def _listening_partner(
    way_back: _WayBack | None,
    evidence: "Evidence",
    pair: "KeyPair | None",
) -> "Partner | None":
    """Return the partner that the check plays; None without ``--listen``. Raises `CallFailed`."""
    from gateway.conformance.platforms.partner import Partner

    if way_back is None:
        return None
    try:
        return Partner((way_back.host, way_back.port), evidence, pair)
    except OSError as error:
        text = f"--listen {way_back.host}:{way_back.port}: {error.strerror}; choose another port"
        raise CallFailed(text, EXIT_BAD_INPUT) from None


def _check_that_the_node_knows_us(trial: "Trial", entry: Mapping[str, Any]) -> None:
    """Raise `CallFailed` if the node cannot be reached or refuses the check's requests as such."""
    from gateway.conformance.platforms.findings import CannotTry

    try:
        response = trial.ask_for_nothing()
    except CannotTry as reason:
        text = f"{trial.node.url} cannot be checked: {reason}"
        raise CallFailed(text, reason="NOT_FOUND") from None
    if response.exchange.status is None:
        text = f"{trial.node.url} cannot be checked: {response.summary}"
        raise CallFailed(text, reason="UNREACHABLE")
    if response.exchange.status in (401, 403) or response.code in (401, 403):
        text = (
            f"the node refuses the check as such: {response.summary}; it needs this route, or its "
            f"own form of it:\n{json.dumps(entry, indent=2)}"
        )
        raise CallFailed(text, reason="NOT_AUTHORISED")


def _run(trial: "Trial", clauses: "Sequence[Clause]") -> "CheckResult":
    """Try the clauses; print each judgement on standard error as it comes."""
    from gateway.conformance.platforms.check import check as run_check

    total = len(clauses)
    count = 0
    timeout = f"{trial.options.timeout:g}"
    say(f"{total} clauses; a step that the node leaves out takes {timeout} s (--timeout)", err=True)

    def progress(judgement: "Judgement") -> None:
        nonlocal count
        count += 1
        verdict = t(str(judgement.finding.verdict))
        say(f"{count}/{total} {judgement.clause.id}: {verdict}", err=True)

    return run_check(trial, clauses, progress)


def _subject(target: _Target, standard: str, identity: str) -> "Subject":
    """Return the checked node, the checking one, and the date."""
    from gateway.conformance.platforms.report import Subject

    return Subject(
        target.node_id,
        target.url,
        standard,
        identity,
        datetime.now(UTC).astimezone(),
    )


# ---------------------------------------------------------------- reports


def _write_reports(
    subject: "Subject",
    result: "CheckResult",
    pair: "KeyPair | None",
    report_file: Path | None,
    page_file: Path | None,
) -> dict[str, Any]:
    """Write the files that the options name; return the report. Raises `CallFailed`."""
    from gateway.conformance.platforms.page import page
    from gateway.conformance.platforms.report import report_of, sign_report
    from gateway.identity.keys import KEY_GENERATORS, KeyPair

    report = report_of(subject, result)
    signer = pair or KeyPair(KEY_GENERATORS["ed25519"]())
    try:
        if report_file is not None:
            report_file.write_text(json.dumps(sign_report(signer, report), indent=1))
            say(f"wrote {report_file}, signed with the key {signer.id}", err=True)
        if page_file is not None:
            page_file.write_text(page(report), encoding="utf-8")
            say(f"wrote {page_file}", err=True)
    except OSError as error:
        raise CallFailed(f"a report cannot be written: {error}", EXIT_BAD_INPUT) from None
    return report


def _verify(file: Path) -> Output:
    """Verify a report's signature; print its key and verdicts."""
    from gateway.conformance.platforms.reading import read_report

    try:
        report = read_report(read_object(file))
    except ValueError as error:
        text = f"{file} is not a report as it was signed: {error}"
        raise CallFailed(text, reason="SIGNATURE_WRONG") from None
    content = report.content
    yield content
    say(f"{file} is as it was signed with the key {report.key}")
    rows = []
    for clause in content["clauses"]:
        if clause["verdict"] in ("fails", "deviates"):
            rows.append(_report_row(clause))
    counts = ", ".join(f"{count} {t(name)}" for name, count in content["counts"].items())
    title = f"{content['node_id']}, {content['standard']}, {content['at']}: {counts}"
    table(title, _HEADINGS, rows)


def _report_row(clause: Mapping[str, Any]) -> list[str]:
    """Return a clause of a report as a row of the table."""
    return [
        clause["id"],
        mark(clause["verdict"]),
        t(clause["observation"]),
        clause["remedy"][language_in_use()],
        clause["section"],
    ]


def _print_result(result: "CheckResult") -> None:
    """Print the clauses that do not hold, those not tried by reason, the counts, and jobs left."""
    from gateway.conformance.platforms.causes import by_observation, shared_causes
    from gateway.conformance.platforms.findings import Verdict

    breaches = _with_verdict(result, Verdict.FAILS, Verdict.DEVIATES)
    if breaches:
        rows = [_result_row(breach) for breach in breaches]
        table("", _HEADINGS, rows, red=[t(str(Verdict.FAILS))])
    for cause, names in shared_causes(breaches).items():
        say(f"{len(names)} clauses fail alike ({', '.join(names)}): {cause}")
    untried = by_observation(_with_verdict(result, Verdict.NOT_TRIED))
    for reason, names in untried.items():
        say(f"not tried: {', '.join(names)} ({reason})")
    counts = ", ".join(f"{result.count(verdict)} {t(str(verdict))}" for verdict in Verdict)
    say(counts)
    remaining = [job_id for job_id, stopped in result.jobs if not stopped]
    if remaining:
        say(f"these jobs could not be stopped there: {', '.join(remaining)}")


def _with_verdict(result: "CheckResult", *verdicts: "Verdict") -> "list[Judgement]":
    """Return the judgements with one of some verdicts."""
    return [each for each in result.judgements if each.finding.verdict in verdicts]


def _result_row(judgement: "Judgement") -> list[str]:
    """Return a clause that does not hold as a row of the table."""
    clause, finding = judgement.clause, judgement.finding
    observation = t(finding.observation)
    if finding.dialect:
        observation += f" ({t(_profile_note(judgement))})"
    return [
        clause.id,
        mark(str(finding.verdict)),
        observation,
        clause.remedy.in_language(language_in_use()),
        clause.section,
    ]


def _profile_note(judgement: "Judgement") -> str:
    """Return which profile lives with a breach, and if it has to be repaired all the same."""
    from gateway.conformance.platforms.clauses import Level

    dialect = judgement.finding.dialect
    if judgement.clause.level is Level.MUST:
        return f"a breach to be repaired, with which the profile {dialect} lives"
    return f"the profile {dialect} lives with it"


def _print_proposal(result: "CheckResult") -> None:
    """Print the profile that fits the node."""
    from gateway.conformance.platforms.proposal import propose

    proposal = propose(result.judgements)
    say(f"profile: {proposal.name}, which explains {proposal.explained} deviations")
    if proposal.further_fields:
        fields = ", ".join(f"{name}={value!r}" for name, value in proposal.further_fields.items())
        say(f"a profile of its own would need, besides: {fields}")


def _print_clauses(clauses: "Sequence[Clause]") -> None:
    """Print clauses as a table."""
    language = language_in_use()
    rows = [
        [each.id, t(str(each.level)), each.says.in_language(language), each.section, each.since]
        for each in clauses
    ]
    table("", ["clause", "level", "what it says", "BFIA section", "since"], rows)


def _clause_json(clause: "Clause") -> dict[str, str]:
    """Return a clause for ``--json``."""
    return {
        "id": clause.id,
        "section": clause.section,
        "level": str(clause.level),
        "since": clause.since,
        "says": clause.says.in_language(language_in_use()),
    }


def _print_route(entry: Mapping[str, Any]) -> None:
    """Print the route that the node needs."""
    import yaml

    say("the node to be checked needs this route, or its own form of it:")
    say(yaml.safe_dump(dict(entry), sort_keys=False).rstrip())
