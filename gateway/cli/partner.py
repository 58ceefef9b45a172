"""``bfia-gateway partner …``: invitations, contracts, applications and their approval.

The commands yield the value that ``--json`` prints; the code after the yield prints it as text.
"""

from collections.abc import Generator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bfia_gateway_client.calls import path_of
from gateway.cli import options
from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXAMPLE_NODE,
    EXIT_BAD_INPUT,
    CallFailed,
    Client,
    connect,
    read_object,
    settings_of,
    who,
)
from gateway.cli.command import Output, command
from gateway.cli.language import t
from gateway.cli.output import print_json, say, warn
from gateway.cli.tables import Column, Columns, listing
from gateway.cli.values import when

if TYPE_CHECKING:
    from gateway.config.schema import Settings

commands = typer.Typer(name="partner")


_AUTHORITY = (
    "PEM file: the authority of the partner's certificate, where no public one issued it; "
    "default: with --replace, that of the existing route; else none."
)
_CERTIFICATE = (
    "PEM file: this node's certificate, which it shows the partner; "
    "default: with --replace, that of the existing route; else none."
)
_KEY = (
    "PEM file: the private key of that certificate; "
    "default: with --replace, that of the existing route; else none."
)
Address = Annotated[
    str, typer.Option(help="Where the partner reaches this node; default: listen.peer.advertise.")
]


ByLink = Annotated[
    bool,
    typer.Option(
        "--link",
        help="This node dials the partner: it needs no open port and no address.",
    ),
]


@command(commands, "invite", example="--address https://gw.bank.example:7380 > invitation.json")
def invite(
    address: Address = "",
    link: ByLink = False,
    config: options.Config = DEFAULT_CONFIG,
) -> Output:
    """Print this node's invitation: its id, address and public keys. Nothing in it is secret.

    Each side sends its own to the other, and accepts the other's.
    """
    invitation = _our_invitation(settings_of(config), address, by_link=link)
    _warn_of_plain_http(invitation["address"])
    if invitation["node"] == EXAMPLE_NODE:
        text = (
            f"{EXAMPLE_NODE} is the default id, for trials: no two nodes may have the same; "
            "change node.id first"
        )
        warn([text])
    yield invitation
    print_json(invitation)


@command(commands, "accept", example="their-invitation.json --address https://gw.bank.example:7380")
def accept(
    file: Annotated[Path, typer.Argument(help="The partner's invitation; - reads standard input.")],
    address: Annotated[
        str,
        typer.Option(
            help="This node's address as its own invitation has it; default: listen.peer.advertise."
        ),
    ] = "",
    link: ByLink = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="The words are the same: write the route.")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Replace address and keys of the node's route, and enable it."
        ),
    ] = False,
    seal_control: Annotated[
        bool,
        typer.Option(
            "--seal-control",
            help=(
                "Require sealed control requests, too (jobs, tasks, reports); the partner has to "
                "say the same."
            ),
        ),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Also keep this report of a check of the partner (peer check --report) with its "
                "route; later: partner report."
            )
        ),
    ] = None,
    ca: Annotated[Path | None, typer.Option(help=_AUTHORITY)] = None,
    certificate: Annotated[Path | None, typer.Option(help=_CERTIFICATE)] = None,
    key: Annotated[Path | None, typer.Option(help=_KEY)] = None,
    config: options.Config = DEFAULT_CONFIG,
) -> Output:
    """Accept a partner's invitation: once both see the same six words, write its route; it must
    sign its requests.

    The words are derived from both invitations: ids, addresses and keys. Compare them by telephone
    with a person whose voice or number you know. Needs the running node.
    """
    from gateway.cli.partner_reports import keep_report, print_summary, read_report_of
    from gateway.identity.invitations import sealing_between, six_words

    our_invitation = _our_invitation(settings_of(config), address, by_link=link)
    their_invitation = _read_invitation(file, our_invitation["node"])
    node_id = their_invitation["node"]
    way = _way(our_invitation, their_invitation)
    words = six_words(our_invitation, their_invitation)
    sealing = sealing_between(our_invitation, their_invitation)
    if seal_control and sealing is None:
        text = (
            "--seal-control needs a sealing key in both invitations, and one of them has none: "
            "update that node's gateway, or leave the option out"
        )
        raise CallFailed(text, EXIT_BAD_INPUT)
    signed_report = None
    if report is not None:
        signed_report = read_report_of(report, node_id)
    with connect(config) as client:
        version = client.get("/api/v1/routes", limit=1)["version"]  # of the whole route table
        route = _route(client, node_id)
        if route:
            summary = _route_summary(route)
            if not replace:
                text = f"{node_id} has a route already: {summary}; to replace that, add --replace"
                raise CallFailed(text, reason="CONFLICT")
            say(f"replaces the route of {node_id}: {summary}", err=True)
        _warn_of_plain_http(our_invitation["address"], their_invitation["address"])
        if not yes:
            _confirm_words(our_invitation, their_invitation, words)
        values = _route_values(
            their_invitation,
            way,
            sealing=sealing,
            seal_control=seal_control,
            ca=ca,
            certificate=certificate,
            key=key,
        )
        method = "PUT"
        if route:  # PATCH keeps the values that are not in the invitation
            method = "PATCH"
            values["enabled"] = "true"
        body = {
            "route": values,
            "reason": "invitation accepted",
            "author": who(),
        }
        path = path_of("routes", node_id)
        response = client.call(
            method,
            path,
            body,
            query={"version": version},  # refused if the routes have changed since
        )
        stored_report = None
        if signed_report is not None:
            stored_report = keep_report(client, node_id, signed_report)
    yield {
        "node": node_id,
        "words": words,
        "version": response["version"],
        "report": stored_report,
    }
    say(f"{node_id} is a partner now, and must sign its requests; the words: {words}")
    say(_sealing_note(values.get("sealing", "")))
    if seal_control:
        say("control requests are sealed end to end, too")
    if stored_report is not None:
        print_summary(stored_report)
    say(f"next: bfia-gateway route test {node_id}, once the partner has accepted, too")


def _read_invitation(file: Path, this_node: str) -> dict[str, Any]:
    """Return the invitation in a file.

    Raises `CallFailed` if the file holds anything else, or the invitation of this node itself.
    """
    from gateway.errors import Invalid
    from gateway.identity.invitations import parse_invitation

    body = read_object(file)
    if body.get("node") == this_node:
        text = (
            f"{file} is this node's own invitation: send it to the partner, and accept the "
            "partner's"
        )
        raise CallFailed(text, EXIT_BAD_INPUT)
    try:
        return parse_invitation(body, this_node)
    except Invalid as error:
        text = f"{file} is not the invitation of another node, which has node, address and keys"
        raise CallFailed(text, EXIT_BAD_INPUT) from error


def _confirm_words(
    our_invitation: Mapping[str, Any],
    their_invitation: Mapping[str, Any],
    words: str,
) -> None:
    """Show the six words and ask whether the partner sees the same. Raises `typer.Abort` if not."""
    from gateway.identity.invitations import digits_of

    node = our_invitation["node"]
    address = our_invitation["address"]
    partner = their_invitation["node"]
    say(
        f"this node, {node}, is at {address}; {partner} is at {their_invitation['address']}",
        err=True,
    )
    say(f"the words at both sides: {words}", err=True)
    say(f"the same in digits: {digits_of(words)}", err=True)
    typer.confirm(
        t("Does the partner see the same words, or digits?"),
        abort=True,
        err=True,
    )


def _sealing_note(sealing: str) -> str:
    """Return what accepting an invitation means for containers' messages.

    ``sealing`` is the value in the route; "" if one of the two invitations has no sealing key.
    """
    if sealing:
        return "messages of containers are sealed end to end"
    return (
        "messages of containers are not sealed: one of the two nodes offers no sealing key. Older "
        "versions have none; otherwise somebody has removed it: compare the invitation with the "
        "partner's (bfia-gateway partner invite)"
    )


def _way(
    our_invitation: Mapping[str, Any],
    their_invitation: Mapping[str, Any],
) -> dict[str, str]:
    """Return the values of a route by which both nodes reach each other. Raises `CallFailed`."""
    from gateway.errors import Invalid
    from gateway.identity.invitations import way_between

    try:
        return way_between(our_invitation, their_invitation)
    except Invalid as error:
        raise CallFailed(error.problems[0].rule, EXIT_BAD_INPUT) from error


def _route_values(
    their_invitation: Mapping[str, Any],
    way: Mapping[str, str],
    *,
    sealing: str | None,
    seal_control: bool,
    **tls_files: Path | None,
) -> dict[str, str]:
    """Return the values of the route to a partner, with absolute paths of the TLS files.

    ``way`` says how the nodes reach each other. ``sealing``: None if messages are not sealed.
    ``seal_control``: control requests are, too.
    """
    values = {
        **way,
        "keys": ", ".join(their_invitation["keys"]),
        "signing": "required",
        "bundles": "required",
    }
    if sealing is not None:
        values["sealing_key"] = their_invitation["sealing_key"]
        values["sealing"] = sealing
    if seal_control:
        values["control_sealing"] = "required"
    for name, file in tls_files.items():
        if file:
            values[name] = str(file.absolute())
    return values


# ---------------------------------------------------------------- applications


Number = Annotated[
    int, typer.Argument(min=1, help="Number of the application, as the list has it.")
]
Days = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=36_500,
        help="Valid for this number of days.",
    ),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Valid for this number of jobs.")]
Scope = Annotated[
    list[str] | None,
    typer.Option(
        help=(
            "Of a dataset: only for jobs of this project, PROJECT=id, or for tasks of this "
            "component, COMPONENT=provider/name. Repeatable; default: every job of this node."
        )
    ),
]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--scope",
        help=(
            "Of a dataset: narrower limits than applied for, such as PROJECT=id. Repeatable; "
            "default: as applied for."
        ),
    ),
]
ReportsOfRuns = Annotated[
    Path | None,
    typer.Option(
        "--tee",
        help=(
            "Of a contract: file with the attestation reports that runs under it have to bring: "
            "platform, measurements, signers, max_age, tcb."
        ),
    ),
]
# Fields of the standard with the headings that people see.
_OFFER_HEADINGS = {
    "join_columns": "match id",
    "column_metas": "columns",
    "count": "rows",
}


@command(commands, "apply", example="dataset JG0100002200000020 bank#credit --days 30 --jobs 10")
def apply(
    node: Client,
    kind: Annotated[str, typer.Argument(help="contract, dataset, project, flow or model.")],
    partner: options.NodeId,
    subject: Annotated[str, typer.Argument(help="Id of the dataset, project, flow or model.")] = "",
    to: Annotated[str, typer.Option(help="Of a contract: where the partner is reached.")] = "",
    address: Annotated[
        str, typer.Option(help="Of a contract: where the partner reaches this node.")
    ] = "",
    key: Annotated[
        str,
        typer.Option(
            help=(
                "Of a contract: the partner's public key or its id, compared by telephone; not "
                "needed with https."
            )
        ),
    ] = "",
    signing: Annotated[
        str,
        typer.Option(
            help=(
                "Of a contract: whether the partner has to sign its messages: required, accepted "
                "or off; default: as its route says, or required."
            )
        ),
    ] = "",
    days: Days = None,
    jobs: Jobs = None,
    scope: Scope = None,
    fields: Annotated[
        Path | None,
        typer.Option(help="File with further fields of the standard's body, such as name or dag."),
    ] = None,
    tee: ReportsOfRuns = None,
) -> Output:
    """Apply to a node for a contract, or for the use of its datasets, projects, flows or models. A
    person there decides.
    """
    further_fields = read_object(fields) if fields else {}
    body: dict[str, Any] = {
        "kind": kind,
        "partner": partner,
        "subject": subject,
        "url": to,
        "address": address,
        "key": key,
        "signing": signing or None,
        "jobs": jobs,
        "expires_at": _expiry(days),
        "scope": _ids_by_key(scope or []),
        "fields": further_fields,
        "tee": read_object(tee) if tee else None,
    }
    application = node.call("POST", "/api/v1/applications", body)
    yield application
    number = application["number"]
    say(
        f"application {number}: {partner} has it; its answer is in: bfia-gateway partner "
        "applications"
    )


@command(commands, "applications", example="--waiting", options=options.paged())
def applications(
    node: Client,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Only what waits for a decision here.")
    ] = False,
    partner: Annotated[
        str, typer.Option(help="Only with this node.", autocompletion=options.nodes)
    ] = "",
    **paging: Any,
) -> Output:
    """List the applications of partners and of this node: which wait, which were approved, and
    until when.
    """
    filters = {}
    if waiting:
        filters = {"side": "theirs", "status": "APPLIED"}
    response = node.get(
        "/api/v1/applications",
        **filters,
        partner=partner,
        **paging,
    )
    yield response
    columns: Columns = {
        "number": "number",
        "kind": "kind",
        "applicant": _side,
        "partner": "partner",
        "for": "subject",
        "scope": _scope_or_tasks,
        "address": "url",
        "state": "status",
        "jobs": "jobs_in_words",
        "since (UTC)": when("at", length=16),
        "until": when("expires_at", length=16),
        "key id": "key",
        "signed": "signed",
        "TEE": _tee,
        "trouble": "trouble",
    }
    listing(response, "applications", columns, noun="application")


def _side(application: Mapping[str, Any]) -> str:
    """Return the side that applied, in the language in use."""
    if application["side"] == "mine":
        return t("this node")
    return t("the partner")


def _scope(application: Mapping[str, Any]) -> str:
    """Return the limits of a permit, such as ``PROJECT p1, COMPONENT bank/psi``."""
    parts = [f"{key} {' '.join(ids)}" for key, ids in application["scope"].items()]
    return ", ".join(parts)


def _scope_or_tasks(application: Mapping[str, Any]) -> str:
    """Return the limits of a permit, or the tasks of a flow."""
    return "; ".join(application.get("tasks", [])) or _scope(application)


def _tee(application: Mapping[str, Any]) -> str:
    """Return the attestation reports that a contract demands; empty for none."""
    policy = application.get("tee")
    if policy is None:
        return ""
    measurements = [f"{measurement[:12]}…" for measurement in policy["measurements"]]
    text = f"{policy['platform']} {', '.join(measurements)}, {policy['max_age']} s"
    if application["tee_agreed"] is False:
        text += f" ({t('only this node demands it')})"
    return text


def _ids_by_key(scope: Sequence[str]) -> dict[str, list[str]]:
    """Return the limits in ``--scope`` options as lists of ids by key. Raises `CallFailed`."""
    ids_by_key: dict[str, list[str]] = {}
    for option in scope:
        key, equals, id_ = option.partition("=")
        if not equals:
            text = f"--scope {option}: must be PROJECT=id, COMPONENT=provider/name or NODE=id"
            raise CallFailed(text, EXIT_BAD_INPUT)
        ids_by_key.setdefault(key.upper(), []).append(id_)
    return ids_by_key


@command(commands, "approve", example='3 --days 90 --reason "contract 2026-17"')
def approve(
    node: Client,
    number: Number,
    days: Days = None,
    jobs: Jobs = None,
    scope: Limits = None,
    signing: Annotated[
        str,
        typer.Option(
            help=(
                "Of a contract: whether the partner has to sign its messages: required, accepted "
                "or off; default: required."
            )
        ),
    ] = "",
    tee: ReportsOfRuns = None,
    reason: options.Reason = "",
) -> Output:
    """Approve a partner's application. Before a contract, compare the id of its key by telephone.

    A contract writes the route, a dataset the grant.
    """
    body = {
        "reason": reason,
        "expires_at": _expiry(days),
        "jobs": jobs,
        "scope": _ids_by_key(scope or []),
        "signing": signing or None,
        "tee": read_object(tee) if tee else None,
    }
    yield from _change(node, number, "approve", body)


@command(commands, "reject", example='3 --reason "unknown institution"')
def reject(
    node: Client,
    number: Number,
    reason: options.Reason = "",
) -> Output:
    """Reject a partner's application; it may apply again."""
    yield from _change(node, number, "reject", {"reason": reason})


@command(commands, "terminate", example='3 --reason "end of the project"')
def terminate(
    node: Client,
    number: Number,
    reason: options.Reason = "",
) -> Output:
    """End a contract or a permit, whichever side applied for it: the contract's route is disabled,
    the permit's grant is revoked.
    """
    application = yield from _change(node, number, "terminate", {"reason": reason})
    if application["kind"] != "contract":
        return
    partner = application["partner"]
    route = _route(node, partner)
    if route and not route["enabled"]:
        say(f"the route to {partner} is disabled")


@command(commands, "refresh", example="3")
def refresh(node: Client, number: Number) -> Output:
    """Deliver a pending notice to the partner now, or query its decision."""
    yield from _change(node, number, "refresh", {})


@command(commands, "update", example="")
def update(
    node: Client,
    list_only: Annotated[
        bool, typer.Option("--list", help="Only list what the partners know.")
    ] = False,
) -> Output:
    """Tell partners with a contract this node's address (listen.peer.advertise) and key, and list
    which have acknowledged them.

    The running node tells them by itself when one of the two has changed, until they acknowledge.
    """
    path = "/api/v1/announcements"
    if list_only:
        response = node.get(path)
    else:
        response = node.call("POST", path, {})
    yield response
    columns: Columns = {
        "partner": "partner",
        "contract": "application",
        "address": "address",
        "key id": "key",
        "acknowledged": "acknowledged",
        "since (UTC)": when("at", length=16),
        "trouble": "trouble",
    }
    listing(response, "announcements", columns, noun="contract")


@command(commands, "offers", example="JG0100002200000020 datasets")
def offers(
    node: Client,
    partner: options.NodeId,
    what: Annotated[str, typer.Argument(help="datasets, projects or components.")] = "datasets",
    page: Annotated[int, typer.Option(min=1, help="Which page.")] = 1,
) -> Output:
    """List what a partner offers to this node; needs a contract."""
    response = node.get(
        path_of("partners", partner, what),
        page=page,
    )
    yield response
    columns: dict[str, Column] = {}
    for record in response["records"]:
        for key in record:
            heading = _OFFER_HEADINGS.get(key, key.replace("_", " "))
            columns[heading] = partial(_offered_value, key)
    # The columns are the fields of the records. Without records, the table still needs a column.
    listing(response, "records", columns or {"name": "name"}, noun="offer")


def _offered_value(key: str, record: Mapping[str, Any]) -> Any:
    """Return a field of an offer; in a list, an object with a name is replaced by its name."""
    value = record.get(key)
    if isinstance(value, list):
        return [_name_of(entry) for entry in value]
    return value


def _name_of(entry: Any) -> Any:
    """Return the name of an object, such as a column; anything without a name unchanged."""
    if isinstance(entry, dict) and "name" in entry:
        return entry["name"]
    return entry


def _change(
    node: Client,
    number: int,
    verb: str,
    body: dict[str, Any],
) -> Generator[Any, None, Any]:
    """Change an application: yield it as the output of a command, print it, and return it.

    ``verb``: the last part of the request's path, such as ``approve``.
    """
    application = node.call("POST", f"/api/v1/applications/{number}/{verb}", body)
    yield application
    say(_outcome_text(application, verb))
    scope = _scope(application)
    if scope and application["status"] == "APPROVED":
        say(f"the permit is only for {scope}")
    policy = application.get("tee")
    if policy is not None and application["status"] == "APPROVED":
        platform = policy["platform"]
        say(
            f"runs under the contract have to prove their TEE: {platform} "
            "(no platform was verified on hardware yet)"
        )
    trouble = application["trouble"]
    if trouble:
        warn([trouble])
    return application


def _outcome_text(application: Mapping[str, Any], verb: str) -> str:
    """Return what a change of an application has led to; ``verb`` as in `_change`."""
    partner = application["partner"]
    is_contract = verb == "approve" and application["kind"] == "contract"
    if is_contract and not application["trouble"]:
        expiry = str(application["expires_at"] or "")[:10]
        if not expiry:
            return f"contract with {partner} approved; its route is written"
        return f"contract with {partner} approved until {expiry}; its route is written"
    if verb == "approve" and application["status"] == "APPROVED" and not application["trouble"]:
        return _permit_text(application)
    subject = f"{application['kind']} {application['subject']}"
    return f"application {application['number']}: {subject}, {partner}: {application['status']}"


def _permit_text(application: Mapping[str, Any]) -> str:
    """Return who may now use what, and until when."""
    subject = application["subject"]
    partner = application["partner"]
    expiry = str(application["expires_at"] or "")[:10]
    if not expiry:
        return f"use of {subject} by {partner} approved"
    return f"use of {subject} by {partner} approved until {expiry}"


def _expiry(days: float | None) -> str | None:
    """Return the time ``days`` days from now; None without a limit."""
    if days is None:
        return None
    return (datetime.now(UTC) + timedelta(days=days)).isoformat()


# ---------------------------------------------------------------- invitations and routes


def _our_address(
    settings: "Settings",
    address: str,
    by_link: bool,
) -> str:
    """Return the address in this node's invitation. Raises `CallFailed`."""
    from route_table.model import link_url

    if by_link and address:
        raise CallFailed("give --address or --link, not both", EXIT_BAD_INPUT)
    if by_link:
        return link_url(settings.node.id)
    address = address or str(settings.listen.peer.advertise or "")
    if not address:
        text = (
            "give --address, or set listen.peer.advertise: where the partner reaches this node; or "
            "give --link if it cannot, so that this node dials the partner"
        )
        raise CallFailed(text, EXIT_BAD_INPUT)
    if not address.lower().startswith(("http://", "https://")):
        raise CallFailed(
            f"the address {address} must begin with https:// or http://", EXIT_BAD_INPUT
        )
    return address


def _our_invitation(
    settings: "Settings",
    address: str,
    *,
    by_link: bool = False,
) -> dict[str, Any]:
    """Return this node's invitation.

    ``address``: where partners reach this node; empty: ``listen.peer.advertise``. ``by_link``: it
    dials them instead. Raises `CallFailed`.
    """
    from gateway.config.statement_keys import statement_keys_of
    from gateway.identity.sealing_keys import SealingKeyFile

    address = _our_address(settings, address, by_link)
    keys = statement_keys_of(settings).for_partners
    if not keys:
        raise CallFailed("this node has no key pair: bfia-gateway identity rotate makes one")
    invitation: dict[str, Any] = {
        "node": settings.node.id,
        "address": address,
        "keys": keys,
    }
    pair = SealingKeyFile(settings.state_dir).ensure()
    if pair is not None:
        invitation["sealing_key"] = pair.public
    return invitation


def _warn_of_plain_http(*addresses: str) -> None:
    """Warn about each address that is not https."""
    for address in addresses:
        if address.lower().startswith("http://"):
            text = f"{address} is not encrypted: anyone on the network can read it; use https"
            warn([text])


def _route(client: Client, node: str) -> dict[str, Any]:
    """Return a node's route; an empty dictionary if it has none."""
    try:
        route: dict[str, Any] = client.get(path_of("routes", node))["route"]
    except CallFailed as error:
        if error.reason != "NODE_UNKNOWN":
            raise
        return {}
    return route


def _route_summary(route: Mapping[str, Any]) -> str:
    """Return address and key ids of a route, and whether it is disabled."""
    from route_table.certificates import key_pin, public_key

    address = route["url"]
    if route["via"]:
        address = f"via {route['via']}"
    if not route["enabled"]:
        address += ", disabled"
    key_ids = ", ".join(key_pin(public_key(key)) for key in route["keys"])
    return f"{address}, keys: {key_ids or 'none'}"
