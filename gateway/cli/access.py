"""Who may use a node, with which keys it signs, and who changed what: tokens, key pairs, the audit
log.

What a command yields is its `--json` output.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gateway.auth import OPENID_PREFIX, Role, Token, new_token, token_order
from gateway.cli import options
from gateway.cli.client import DEFAULT_CONFIG, EXIT_BAD_INPUT, CallFailed, Client, settings_of
from gateway.cli.command import Output, command
from gateway.cli.language import t
from gateway.cli.node import audit_change, sign_audit, store_of
from gateway.cli.output import say
from gateway.cli.tables import Columns, listing
from gateway.cli.values import compact, difference, translate_own, when
from gateway.errors import counted

if TYPE_CHECKING:
    from gateway.identity.audit_chain import Line, Verification
    from gateway.store.store import Store

_LONGEST_NAME = 255  # characters of the name of a token
_LONGEST_DIFFERENCE = 300  # characters of a change in the list of the audit log
_LISTED_CHANGES = 10  # changes of routes or providers shown for one entry of ``audit list``
# Keys of a line of the exported log.
_LINE_KEYS = {
    "id",
    "at",
    "who",
    "action",
    "status",
    "code",
    "detail",
    "hash",
}

tokens = typer.Typer(name="token")
identity = typer.Typer(name="identity")
audit = typer.Typer(name="audit")


# ------------------------------------------------------------- tokens
# The commands write to the database, not through the node's API: the first token is made before the
# node runs.


@command(tokens, "create", example="ann --role admin --days 30")
def create_token(
    name: Annotated[str, typer.Argument(help="Whose it is; shown in the audit and in histories.")],
    role: Annotated[Role, typer.Option(help="What it is for.")],
    days: Annotated[
        float,
        typer.Option(
            min=0,
            max=36_500,
            help="Days until it expires; 0: never.",
        ),
    ] = 90,
    config: options.Config = DEFAULT_CONFIG,
) -> Output:
    """Create a token and print it, once: only its hash is kept."""
    from gateway.store.repositories import SqlTokens

    if not name.strip() or len(name) > _LONGEST_NAME:
        raise CallFailed("the name must have 1 to 255 characters", EXIT_BAD_INPUT)
    if name.startswith(OPENID_PREFIX):
        text = f"names beginning with {OPENID_PREFIX} are reserved for people who log in by OpenID"
        raise CallFailed(text, EXIT_BAD_INPUT)
    now = datetime.now(UTC)
    expires_at = None
    expiry_text = None  # for the audit log; None: without expiry
    validity = "without expiry"
    if days:
        expires_at = now + timedelta(days=days)
        expiry_text = expires_at.isoformat()
        validity = f"until {expires_at:%Y-%m-%d %H:%M} UTC"
    secret, token = new_token(name, role, now, expires_at)
    created = {
        "id": token.id,
        "name": name,
        "role": role,
    }
    with closing(store_of(config)) as store:
        SqlTokens(store).add(token)
        audit_change(store, "token create", None, {**created, "expires_at": expiry_text})
    yield {**created, "token": secret}
    say(secret)
    say(f"{role} {name}, {validity}; it is shown only now", err=True)


@command(tokens, "list", options=options.paged())
def list_tokens(config: options.Config = DEFAULT_CONFIG, **paging: Any) -> Output:
    """List the tokens; their text is not kept."""
    from gateway.http.pagination import page_of
    from gateway.store.repositories import SqlTokens

    with closing(store_of(config)) as store:
        response = page_of("tokens", SqlTokens(store).list(), token_order, **paging)
    response["tokens"] = [_token_json(token) for token in response["tokens"]]
    yield response
    columns: Columns = {
        "id": "id",
        "name": "name",
        "role": "role",
        "created (UTC)": "created",
        "expires (UTC)": _expiry,
        "state": "state",
    }
    listing(response, "tokens", columns, noun="token")


def _expiry(token: Mapping[str, str]) -> str:
    """Return the time at which a token expires, or ``never`` in the language in use."""
    return t(token["expires"])


def _token_json(token: Token) -> dict[str, str]:
    """Return a token as lists show it, without its secret."""
    expires = "never"
    if token.expires_at:
        expires = f"{token.expires_at:%Y-%m-%d %H:%M}"
    return {
        "id": token.id,
        "name": token.name,
        "role": str(token.role),
        "created": f"{token.created_at:%Y-%m-%d %H:%M}",
        "expires": expires,
        "state": token.state(datetime.now(UTC)),
    }


@command(tokens, "revoke", example="ann")
def revoke_token(
    name: Annotated[str, typer.Argument(help="Name (all its tokens) or id (that one).")],
    config: options.Config = DEFAULT_CONFIG,
) -> Output:
    """Revoke tokens; a running node denies them within two seconds."""
    from gateway.store.repositories import SqlTokens

    with closing(store_of(config)) as store:
        count = SqlTokens(store).revoke(name, datetime.now(UTC))
        if not count:
            raise CallFailed(f"no valid token has the name or id {name}")
        # The audit log calls the number of valid tokens "good".
        before = {"token": name, "good": count}
        audit_change(store, "token revoke", before, {"token": name, "good": 0})
    yield {"revoked": count}
    say(f"{count} revoked")


# ------------------------------------- the node's key pairs, in files of its state folder


@command(identity, "show", example="--config node.yml")
def show_identity(config: options.Config = DEFAULT_CONFIG) -> Output:
    """Show the node's keys: the one that signs requests, during a rotation the next one, and those
    of jobs and the audit log if another key signs these.
    """
    keys = _keys_of(config)
    yield {"keys": keys}
    if not keys:
        say("this node has no key pair and signs nothing: bfia-gateway identity rotate makes one")
        return

    def translated_use(key: Mapping[str, str]) -> str:
        """Return the use of a key in the language in use."""
        return t(key["use"])

    columns: Columns = {
        "use": translated_use,
        "algorithm": "algorithm",
        "id": "id",
    }
    listing({"keys": keys}, "keys", columns, noun="key")


@command(identity, "export", example="> our-keys.pem")
def export_identity(config: options.Config = DEFAULT_CONFIG) -> Output:
    """Print the public keys, for partners' routes. If there are several, all are valid."""
    keys = _keys_of(config)
    yield {"keys": keys}
    for key in keys:
        lines = wrap(key["public_key"], 64)
        say("\n".join(["-----BEGIN PUBLIC KEY-----", *lines, "-----END PUBLIC KEY-----"]))


@command(identity, "rotate", example="--finish")
def rotate_identity(
    algorithm: Annotated[
        Literal["ed25519", "ecdsa-p256-sha256", "rsa-v1_5-sha256", "sm2"],
        typer.Option(help="How the new key signs."),
    ] = "ed25519",
    finish: Annotated[
        bool,
        typer.Option(
            "--finish",
            help=(
                "Sign with the next key from now on, and delete the one before, once all partners "
                "with a contract know the next one."
            ),
        ),
    ] = False,
    config: options.Config = DEFAULT_CONFIG,
) -> Output:
    """Make the next key pair, or with --finish sign with it.

    In between, partners add what `identity export` prints to their routes; afterwards they remove
    the old key.
    """
    from gateway.identity.keys import Keyring

    before = _keys_of(config)
    ring = Keyring(settings_of(config).state_dir)
    with closing(store_of(config)) as store:
        has_contracts = _has_contracts(store)
        if not finish:
            ring.make(algorithm)
        elif not ring.switch(keep_previous=has_contracts):
            raise CallFailed("no next key; make one with: bfia-gateway identity rotate")
        keys = _keys_of(config)
        audit_change(store, "identity rotate", before, keys)
        if finish:  # the new key signs the log from now on
            sign_audit(store, config)
    yield {"keys": keys}
    pairs = [key for key in keys if key["use"] in ring.files]
    newest = pairs[-1]
    role = "signs" if newest["use"] == "signing" else "is the next key"
    say(f"{newest['id']} {role}")
    if finish:
        say("next: have partners remove the old key from their routes")
        if has_contracts:
            say(
                "the running node reports the new key to those with a contract: "
                "bfia-gateway partner update"
            )
    elif len(pairs) > 1:
        say("next: have partners add what bfia-gateway identity export prints to their routes")
        say("then: bfia-gateway identity rotate --finish")


def _has_contracts(store: "Store") -> bool:
    """Return whether a contract with a partner is approved, in force or not."""
    from gateway.domain.applications import APPROVED, Kind
    from gateway.store.applications import SqlApplications

    contracts = SqlApplications(store).list(
        kind=Kind.CONTRACT,
        status=APPROVED,
        limit=1,
    )
    return bool(contracts)


def _keys_of(config: Path) -> list[dict[str, str]]:
    """Return the node's public keys: the one that signs, the next one, those of statements."""
    from gateway.config.statement_keys import statement_keys_of
    from gateway.identity.keys import Keyring

    settings = settings_of(config)
    statement_keys = statement_keys_of(settings)
    pairs = Keyring(settings.state_dir).pairs
    keys = [_described(pair.public, use) for use, pair in pairs.items()]
    if statement_keys.external is not None:
        keys.append(_described(statement_keys.external.public, "statements"))
    keys += [_described(public, "further") for public in statement_keys.further]
    return keys


def _described(public: str, use: str) -> dict[str, str]:
    """Return a public key with its id, its algorithm and what it is used for."""
    from route_table.certificates import key_pin, public_key, signature_algorithm

    key = public_key(public)
    return {
        "use": use,
        "id": key_pin(key),
        "algorithm": signature_algorithm(key),
        "public_key": public,
    }


# ------------------------------------------------------------- the audit log


@command(
    audit, "list", example="--action grants --since 2026-11-01", options=options.paged(limit=20)
)
def list_entries(
    node: Client,
    who: Annotated[str, typer.Option(help="Only by this person, program or node.")] = "",
    action: Annotated[
        str,
        typer.Option(
            help=(
                "Only changes whose action, or its description, contains this text, such as "
                "datasets."
            )
        ),
    ] = "",
    since: Annotated[
        str, typer.Option(help="Only since, UTC: 2026-11-21 or 2026-11-21T08:00.")
    ] = "",
    until: Annotated[str, typer.Option(help="Only before this time, UTC.")] = "",
    refused: Annotated[
        bool, typer.Option("--refused", help="Only changes that were not made.")
    ] = False,
    **paging: Any,
) -> Output:
    """Show who requested which change, and the values before and after it."""
    filters = {
        "who": who,
        "action": action,
        "since": since,
        "until": until,
        "refused": refused,
    }
    response = node.get("/api/v1/audit", **filters, **paging)
    yield response
    columns: Columns = {
        "": "id",
        "at (UTC)": when("at"),
        "who": _author,
        "what": _action,
        "result": _result,
        "before → after": _difference,
    }
    listing(response, "audit", columns, noun="change")


def _author(entry: Mapping[str, Any]) -> str:
    """Return the person, program or node that requested a change."""
    return translate_own(entry["who"])


def _action(entry: Mapping[str, Any]) -> str:
    """Return the meaning of an entry's action, and the action."""
    action = entry["action"]
    meaning = entry.get("in_words", action)
    texts = dict.fromkeys([t(meaning), t(action)])  # once if they are the same
    return "\n".join(texts)


def _result(entry: Mapping[str, Any]) -> str:
    """Return whether a change was made.

    The standard's paths respond with HTTP status 200, and refuse with the code in their body.
    """
    is_refused = entry["status"] >= 400 or entry["code"] not in (None, 0, 200)
    if is_refused:
        return f"refused ({entry['code'] or entry['status']})"
    if entry["detail"].get("dry_run"):
        return "dry run"
    return "done"


def _difference(entry: Mapping[str, Any]) -> str:
    """Return an entry's change, or why it was refused, in one line."""
    text = _detail_text(entry["detail"])
    if len(text) > _LONGEST_DIFFERENCE:
        return f"{text[: _LONGEST_DIFFERENCE - 1]}…"
    return text


def _detail_text(detail: Mapping[str, Any]) -> str:
    """Return an entry's change, or why the request was refused, whatever its length."""
    match detail:
        case {"changes": list(changes)}:  # an edit of routes or providers
            return ", ".join(map(difference, changes[:_LISTED_CHANGES]))
        case {"reason": _, "from": _}:  # a refused request, with the sender's address
            return _refusal_text(detail)
        case {"before": _} | {"after": _}:  # a change of one object
            before = compact(detail.get("before"), longest=_LONGEST_DIFFERENCE)
            after = compact(detail.get("after"), longest=_LONGEST_DIFFERENCE)
            return f"{before} → {after}"
        case {"refused": refusal} if refusal:  # a request of an operator
            return t(str(refusal))
    if detail:  # the request's ids, or marks such as ``dry_run``
        return compact(detail, longest=_LONGEST_DIFFERENCE)
    return ""


def _refusal_text(detail: Mapping[str, Any]) -> str:
    """Return why a sender's request was refused, and how often the same refusal occurred since
    its last entry.
    """
    repeated = ""
    if "repeated" in detail:
        repeated = f", {detail['repeated']} times more"
    message = detail.get("message") or detail["reason"]
    return t(f"from {detail['from']}: {message}{repeated}")


@command(audit, "export", example="> audit.jsonl")
def export(config: options.Config = DEFAULT_CONFIG) -> None:
    """Sign the audit log, and print all of it, the oldest line first: a JSON object per line.

    Keep such files out of reach of anyone who can write to the node's database.
    """
    from gateway.store.audit import SqlAudit

    with closing(store_of(config)) as store:
        sign_audit(store, config)
        for line in SqlAudit(store).lines():
            sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")


@command(audit, "verify", example="audit.jsonl --keys our-keys.pem")
def verify(
    file: Annotated[
        Path | None, typer.Argument(help="What was exported; default: the node's database.")
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            help="The node's public keys (identity export); default: those that it has now."
        ),
    ] = None,
    config: options.Config = DEFAULT_CONFIG,
) -> Output:
    """Find lines of the audit log that were changed, removed, added or moved. Exit code 1: there
    are some.
    """
    try:
        trusted_keys = _trusted_keys(keys, config)
        verification = _verify(file, trusted_keys, config)
    except (OSError, ValueError) as error:
        raise CallFailed(f"not readable: {error}", EXIT_BAD_INPUT) from error
    problems = verification.problems
    # A pair: the JSON output, and whether the command succeeds.
    yield vars(verification), not problems
    for problem in problems:
        say(problem)
    lines = counted(verification.lines, "line")
    say(
        f"{lines} from {verification.first} on, {verification.before} of them written before the "
        "hash chain began"
    )
    if verification.head is not None:
        head = f"line {verification.head}, signed {verification.head_at} with {verification.key}"
        text = f"newest head: {head}"
        say(f"{text}; {counted(verification.after_head, 'line')} after it")
    say(f"{counted(len(problems), 'problem')}")


def _trusted_keys(file: Path | None, config: Path) -> list[str]:
    """Return the public keys in a file or, if none is given, the node's own.

    Raises `OSError` and `ValueError`.
    """
    from gateway.config.statement_keys import statement_keys_of
    from route_table.readers import public_keys

    if file is not None:
        return list(public_keys(file.read_text(encoding="utf-8")))
    return statement_keys_of(settings_of(config)).for_audit


def _verify(
    file: Path | None,
    trusted_keys: list[str],
    config: Path,
) -> "Verification":
    """Verify an exported log or, if no file is given, the log in the node's database.

    Raises `OSError` and `ValueError`.
    """
    from gateway.identity.audit_chain import verify_log
    from gateway.identity.audit_head import HeadFile
    from gateway.store.audit import SqlAudit

    if file is not None:
        return verify_log(_exported(file), trusted_keys)
    newest_head = HeadFile(settings_of(config).state_dir).read()
    with closing(store_of(config)) as store:
        return verify_log(SqlAudit(store).lines(), trusted_keys, newest_head)


def _exported(file: Path) -> "Iterator[Line]":
    """Yield the lines of an exported audit log. Raises `ValueError` for a line in another form."""
    with file.open(encoding="utf-8") as lines:
        for number, text in enumerate(lines, 1):
            line = json.loads(text)
            is_entry = isinstance(line, dict) and line.keys() == _LINE_KEYS
            if not is_entry or not isinstance(line["id"], int):
                raise ValueError(f"line {number} of {file} is not one of an exported audit log")
            yield line
