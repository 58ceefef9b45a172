"""Who may use a node, with which keys it signs, and who changed what: tokens, key pairs, the audit log."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gateway.auth import BY_PROVIDER, Role, Token, new_token, token_place
from gateway.cli import options
from gateway.cli.client import DEFAULT_CONFIG, EXIT_BAD_INPUT, CallFailed, Client, settings_of
from gateway.cli.command import (
    Columns,
    Output,
    command,
    compact,
    difference,
    listing,
    say,
    translate_own,
    when,
)
from gateway.cli.language import t
from gateway.cli.node import audit_change, sign_audit, store_of
from gateway.errors import counted

if TYPE_CHECKING:
    from gateway.identity.statements import Line

tokens = typer.Typer(name="token")
identity = typer.Typer(name="identity")
audit = typer.Typer(name="audit")


# ------------------------------------------------------------- tokens, in the database: the first one needs none


@command(tokens, "create", "ann --role admin --days 30")
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

    if not name.strip() or len(name) > 255:
        raise CallFailed("the name must have 1 to 255 characters", EXIT_BAD_INPUT)
    if name.startswith(BY_PROVIDER):
        raise CallFailed(
            f"names beginning with {BY_PROVIDER} are of those who log in by OpenID", EXIT_BAD_INPUT
        )
    now = datetime.now(UTC)
    text, token = new_token(name, role, now, now + timedelta(days=days) if days else None)
    until = token.expires_at.isoformat() if token.expires_at else None
    with closing(store_of(config)) as store:
        SqlTokens(store).add(token)
        audit_change(
            store,
            "token create",
            None,
            {
                "id": token.id,
                "name": name,
                "role": role,
                "expires_at": until,
            },
        )
    yield {
        "id": token.id,
        "name": name,
        "role": role,
        "token": text,
    }
    say(text)
    ends = f"until {until[:16].replace('T', ' ')} UTC" if until else "without expiry"
    say(f"{role} {name}, {ends}; it is shown only now", err=True)


@command(tokens, "list", options=options.paged())
def list_tokens(config: options.Config = DEFAULT_CONFIG, **page: Any) -> Output:
    """List the tokens; their text is not kept."""
    from gateway.http.pagination import page_of
    from gateway.store.repositories import SqlTokens

    with closing(store_of(config)) as store:
        found = page_of("tokens", SqlTokens(store).list(), token_place, **page)
    found["tokens"] = [_listed(token) for token in found["tokens"]]
    yield found
    columns: Columns = {key: key for key in ("id", "name", "role")}
    more: Columns = {f"{key} (UTC)": when(key, 16) for key in ("created", "expires")}
    listing(
        found,
        "tokens",
        "token",
        {
            **columns,
            **more,
            "state": "state",
        },
    )


def _listed(token: Token) -> dict[str, str]:
    expired = token.expires_at is not None and token.expires_at <= datetime.now(UTC)
    return {
        "id": token.id,
        "name": token.name,
        "role": str(token.role),
        "created": f"{token.created_at:%Y-%m-%d %H:%M}",
        "expires": f"{token.expires_at:%Y-%m-%d %H:%M}" if token.expires_at else "never",
        "state": "revoked" if token.revoked_at else "expired" if expired else "valid",
    }


@command(tokens, "revoke", "ann")
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
        audit_change(
            store, "token revoke", {"token": name, "good": count}, {"token": name, "good": 0}
        )
    yield {"revoked": count}
    say(f"{count} revoked")


# ------------------------------------------------------------- the node's key pairs, in files of its state folder


@command(identity, "show", "--config node.yml")
def show_identity(config: options.Config = DEFAULT_CONFIG) -> Output:
    """Show the node's key pairs: the one that signs, and during a rotation the next one."""
    keys = _identity(config)
    yield {"keys": keys}
    if keys:
        listing(
            {"keys": keys},
            "keys",
            "key",
            {
                "use": lambda k: t(k["use"]),
                "algorithm": "algorithm",
                "id": "id",
            },
        )
    else:
        say("this node has no key pair and signs nothing: bfia-gateway identity rotate makes one")


@command(identity, "export", "> our-keys.pem")
def export_identity(config: options.Config = DEFAULT_CONFIG) -> Output:
    """Print the public keys, for partners' routes. During a rotation that is two of them, and both are valid."""
    keys = _identity(config)
    yield {"keys": keys}
    for key in keys:
        say(
            "\n".join(
                [
                    "-----BEGIN PUBLIC KEY-----",
                    *wrap(key["public_key"], 64),
                    "-----END PUBLIC KEY-----",
                ]
            )
        )


@command(identity, "rotate", "--finish")
def rotate_identity(
    algorithm: Annotated[
        Literal["ed25519", "ecdsa-p256-sha256", "rsa-v1_5-sha256", "sm2"],
        typer.Option(help="How the new key signs."),
    ] = "ed25519",
    finish: Annotated[
        bool,
        typer.Option(
            "--finish", help="Sign with the next key from now on, and delete the one before."
        ),
    ] = False,
    config: options.Config = DEFAULT_CONFIG,
) -> Output:
    """Make the next key pair, or with --finish sign with it.

    In between, partners add what `identity export` prints to their routes; afterwards they remove the old key.
    """
    from gateway.identity.keys import Keyring

    before, ring = _identity(config), Keyring(settings_of(config).state_dir)
    if not finish:
        ring.make(algorithm)
    elif not ring.switch():
        raise CallFailed("no next key; make one with: bfia-gateway identity rotate")
    keys = _identity(config)
    with closing(store_of(config)) as store:
        audit_change(store, "identity rotate", before, keys)
        if finish:  # the old key is gone: the new one signs the log from now on
            sign_audit(store, config)
    yield {"keys": keys}
    newest = keys[-1]
    say(
        f"{newest['id']} signs" if newest["use"] == "signing" else f"{newest['id']} is the next key"
    )
    if not finish and len(keys) > 1:
        say("next: have partners add what bfia-gateway identity export prints to their routes")
        say("then: bfia-gateway identity rotate --finish")
    elif finish:
        say("next: have partners remove the old key from their routes")


def _identity(config: Path) -> list[dict[str, str]]:
    from gateway.identity.keys import Keyring

    pairs = Keyring(settings_of(config).state_dir).pairs.items()
    return [
        {
            "use": use,
            "id": p.id,
            "algorithm": p.algorithm,
            "public_key": p.public,
        }
        for use, p in pairs
    ]


# ------------------------------------------------------------- the audit log


@command(audit, "list", "--action grants --since 2026-11-01", options=options.paged(20))
def list_entries(
    node: Client,
    who: Annotated[str, typer.Option(help="Only by this person, program or node.")] = "",
    action: Annotated[
        str,
        typer.Option(help="Only whose action, or its meaning, holds this text, such as datasets."),
    ] = "",
    since: Annotated[
        str, typer.Option(help="Only since, UTC: 2026-11-21 or 2026-11-21T08:00.")
    ] = "",
    until: Annotated[str, typer.Option(help="Only before that.")] = "",
    refused: Annotated[
        bool, typer.Option("--refused", help="Only changes that were not made.")
    ] = False,
    **page: Any,
) -> Output:
    """Show who requested which change, with what was there before and after."""
    narrow = {
        "who": who,
        "action": action,
        "since": since,
        "until": until,
        "refused": refused,
    }
    found = node.get("/api/v1/audit", **narrow, **page)
    yield found
    columns: Columns = {
        "": "id",
        "at (UTC)": when("at"),
        "who": lambda e: translate_own(e["who"]),
        "what": _what,
        "result": _result,
    }
    listing(found, "audit", "change", {**columns, "before → after": _difference})


def _what(entry: Mapping[str, Any]) -> str:
    return "\n".join(
        dict.fromkeys(map(t, (entry.get("in_words", entry["action"]), entry["action"])))
    )


def _result(entry: Mapping[str, Any]) -> str:
    good = entry["status"] < 400 and entry["code"] in (None, 0, 200)
    if good:
        return "dry run" if entry["detail"].get("dry_run") else "done"
    return f"refused ({entry['code'] or entry['status']})"


def _difference(entry: Mapping[str, Any], most: int = 300) -> str:
    detail = entry["detail"]
    if isinstance(detail.get("changes"), list):
        return ", ".join(map(difference, detail["changes"][:10]))[:most]
    if "reason" in detail and "from" in detail:
        more = f", {detail['repeated']} times more" if "repeated" in detail else ""
        return _cut(
            t(f"from {detail['from']}: {detail.get('message') or detail['reason']}{more}"), most
        )
    if "before" in detail or "after" in detail:
        return f"{compact(detail.get('before'), most)} → {compact(detail.get('after'), most)}"[
            :most
        ]
    return _cut(
        t(str(detail.get("refused") or "")) or (compact(detail, most) if detail else ""), most
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


@command(audit, "export", "> audit.jsonl")
def export(config: options.Config = DEFAULT_CONFIG) -> None:
    """Sign the audit log, and print all of it, the oldest line first: a JSON object per line.

    Keep such files out of reach of anyone who can write to the node's database.
    """
    from gateway.store.audit import SqlAudit

    with closing(store_of(config)) as store:
        sign_audit(store, config)
        for line in SqlAudit(store).lines():
            sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")


@command(audit, "verify", "audit.jsonl --keys our-keys.pem")
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
    """Find lines of the audit log that were changed, removed, added or moved. Exit code 1: there are some."""
    from gateway.identity.audit_head import HeadFile
    from gateway.identity.keys import Keyring
    from gateway.identity.statements import verify_log
    from gateway.store.audit import SqlAudit
    from route_table.entries import public_keys

    try:
        if keys is None:
            trusted = [
                pair.public for pair in Keyring(settings_of(config).state_dir).pairs.values()
            ]
        else:
            trusted = list(public_keys(keys.read_text(encoding="utf-8")))
        if file is None:
            kept = HeadFile(settings_of(config).state_dir).read()
            with closing(store_of(config)) as store:
                found = verify_log(SqlAudit(store).lines(), trusted, kept)
        else:
            found = verify_log(_exported(file), trusted)
    except (OSError, ValueError) as error:
        raise CallFailed(f"not readable: {error}", EXIT_BAD_INPUT) from error
    yield vars(found), not found.problems
    for text in found.problems:
        say(text)
    say(
        f"{counted(found.lines, 'line')} from {found.first} on, {found.before} of them older than the chain"
    )
    if found.head is not None:
        text = f"newest head: line {found.head}, signed {found.head_at} with {found.key}"
        say(f"{text}; {counted(found.after_head, 'line')} after it")
    say(f"{counted(len(found.problems), 'problem')}")


def _exported(file: Path) -> "Iterator[Line]":
    """Yield the lines of a file. Raises `ValueError` for one that is not an audit log."""
    names = {"id", "at", "who", "action", "status", "code", "detail", "hash"}
    with file.open(encoding="utf-8") as lines:
        for number, text in enumerate(lines, 1):
            line = json.loads(text)
            if (
                not isinstance(line, dict)
                or line.keys() != names
                or not isinstance(line["id"], int)
            ):
                raise ValueError(f"line {number} of {file} is not one of an exported audit log")
            yield line
