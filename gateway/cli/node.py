"""Commands about the node itself: tokens, key pairs, doctor, drain, clean-up, resources, settings, audit log."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from select import select
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from gateway.auth import BY_PROVIDER, Role, Token, new_token, token_place
from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    EXIT_NO_ANSWER,
    CallFailed,
    Client,
    connect,
    settings_of,
    who,
)
from gateway.cli.command import (
    After,
    AfterNumber,
    AsJson,
    Columns,
    Config,
    DryRun,
    Limit,
    Output,
    Url,
    amount,
    command,
    compact,
    difference,
    finite,
    group,
    listing,
    print_json,
    say,
    size,
    table,
    when,
)
from gateway.cli.routes import print_steps
from gateway.errors import counted

if TYPE_CHECKING:
    from gateway.store.store import Store

commands = typer.Typer(name="")
tokens = group("token", "Who may use the operator listener, and in which role.")
identity = group("identity", "The key pair with which this node signs what it requests of partners.")


# ------------------------------------------------------------- tokens, in the database: the first one needs none


@command(tokens, "create", "ann --role admin --days 30")
def create_token(
    name: Annotated[str, typer.Argument(help="Whose it is; shown in the audit and in histories.")],
    role: Annotated[Role, typer.Option(help="What it is for.")],
    days: Annotated[float, typer.Option(min=0, callback=finite(), help="Days until it expires; 0: never.")] = 90,
    config: Config = DEFAULT_CONFIG,
) -> Output:
    """Create a token and print it, once: only its hash is kept."""
    from gateway.store.repositories import SqlTokens

    if not name.strip() or len(name) > 255:
        raise CallFailed("the name must have 1 to 255 characters", EXIT_BAD_INPUT)
    if name.startswith(BY_PROVIDER):
        raise CallFailed(f"names beginning with {BY_PROVIDER} are of those who log in by OpenID", EXIT_BAD_INPUT)
    now = datetime.now(UTC)
    text, token = new_token(name, role, now, now + timedelta(days=days) if days else None)
    until = token.expires_at.isoformat() if token.expires_at else None
    with closing(store_of(config)) as store:
        SqlTokens(store).add(token)
        audit_change(
            store, "token create", None, {"id": token.id, "name": name, "role": role, "expires_at": until}
        )
    yield {"id": token.id, "name": name, "role": role, "token": text}
    say(text)
    say(f"{role} {name}, {f'until {until[:10]}' if until else 'without expiry'}; it is shown only now", err=True)


@command(tokens, "list")
def list_tokens(after: After = "", limit: Limit = 100, config: Config = DEFAULT_CONFIG) -> Output:
    """List the tokens; their text is not kept."""
    from gateway.http.pagination import page_of
    from gateway.store.repositories import SqlTokens

    with closing(store_of(config)) as store:
        page = page_of("tokens", SqlTokens(store).list(), token_place, after, limit)
    found = page | {"tokens": [_listed(token) for token in page["tokens"]]}
    yield found
    listing(found, "tokens", "token", {key: key for key in ("id", "name", "role", "created", "expires", "state")})


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
    config: Config = DEFAULT_CONFIG,
) -> Output:
    """Revoke tokens; a running node denies them within two seconds."""
    from gateway.store.repositories import SqlTokens

    with closing(store_of(config)) as store:
        count = SqlTokens(store).revoke(name, datetime.now(UTC))
        if not count:
            raise CallFailed(f"no valid token has the name or id {name}")
        audit_change(store, "token revoke", {"token": name, "good": count}, {"token": name, "good": 0})
    yield {"revoked": count}
    say(f"{count} revoked")


def store_of(config: Path) -> "Store":
    """Open the node's database beside the node that may be running on it. Raises `Invalid`."""
    from gateway.store.store import Store

    return Store(_opened(config))


def _opened(config: Path) -> Any:
    from gateway.store.database import opened

    url = settings_of(config).database.url
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    return opened(url)


def sign_audit(store: "Store", config: Path) -> None:
    """Sign the audit log as it is now; without a key pair nothing is signed."""
    from gateway.identity.keys import Keyring
    from gateway.store.audit import SqlAudit

    settings = settings_of(config)
    if pair := Keyring(settings.state_dir).signing:
        SqlAudit(store).sign(settings.node.id, pair, datetime.now(UTC))


def audit_change(store: "Store", action: str, before: Any, after: Any) -> None:
    """Record a change that was not made through the operator listener."""
    from gateway.store.audit import SqlAudit

    detail = {"before": before, "after": after}
    SqlAudit(store).add(datetime.now(UTC), f"{who()} (command line)", action, 200, None, detail)


# ------------------------------------------------------------- the node's key pairs, in files of its state folder


@command(identity, "show", "--config node.yml")
def show_identity(config: Config = DEFAULT_CONFIG) -> Output:
    """Show the node's key pairs: the one that signs, and during a rotation the next one."""
    keys = _identity(config)
    yield {"keys": keys}
    if keys:
        listing({"keys": keys}, "keys", "key", {key: key for key in ("use", "algorithm", "id")})
    else:
        say("this node has no key pair and signs nothing: bfia-gateway identity rotate makes one")


@command(identity, "export", "> our-keys.pem")
def export_identity(config: Config = DEFAULT_CONFIG) -> Output:
    """Print the public keys, for partners' routes. During a rotation that is two of them, and both are valid."""
    keys = _identity(config)
    yield {"keys": keys}
    for key in keys:
        say("\n".join(["-----BEGIN PUBLIC KEY-----", *wrap(key["public_key"], 64), "-----END PUBLIC KEY-----"]))


@command(identity, "rotate", "--finish")
def rotate_identity(
    algorithm: Annotated[
        Literal["ed25519", "ecdsa-p256-sha256", "rsa-v1_5-sha256", "sm2"],
        typer.Option(help="How the new key signs."),
    ] = "ed25519",
    finish: Annotated[
        bool, typer.Option("--finish", help="Sign with the next key from now on, and delete the one before.")
    ] = False,
    config: Config = DEFAULT_CONFIG,
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
    say(f"{newest['id']} signs" if newest["use"] == "signing" else f"{newest['id']} is the next key")


def _identity(config: Path) -> list[dict[str, str]]:
    from gateway.identity.keys import Keyring

    pairs = Keyring(settings_of(config).state_dir).pairs.items()
    return [{"use": use, "id": p.id, "algorithm": p.algorithm, "public_key": p.public} for use, p in pairs]


# ---------------------------------------------------------------- looking after a node


@command(commands, "gc", "--dry-run", timeout=600)
def gc(
    node: Client,
    dry_run: DryRun = False,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Also what the node's database does not know.")
    ] = False,
) -> Output:
    """Remove what jobs left behind: leftovers of ended jobs, and what is past the settings' retention.

    The node does this every minute, except for orphans. Exit code 1: something could not be
    removed.
    """
    found = node.post("/api/v1/gc", {"dry_run": dry_run, "orphans": orphans})
    items = found["items"]
    failed = 0 if dry_run else sum(not item["removed"] for item in items)
    yield found, not failed
    if not items:
        say("nothing to remove")
        return
    columns: Columns = {"kind": "kind", "name": "name", "job": "job", "size": size("bytes")}
    title = f"{counted(len(items), 'item')}, {amount(found['bytes'])}"
    listing(found, "items", "", {**columns, "why": lambda one: one["cause"] or one["why"]}, title)
    done = "would be removed" if dry_run else "removed"
    say(f"{len(items) - failed} {done}" + (f", {failed} not" if failed else ""))


@command(commands, "drain", "--stop")
def drain(
    node: Client,
    stop: Annotated[bool, typer.Option("--stop", help="Stop running jobs instead of waiting for them.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Show what is left until the node exits.")] = True,
    stay: Annotated[bool, typer.Option("--stay", help="Keep the process up when nothing is left.")] = False,
    as_json: AsJson = False,
) -> None:
    """Drain a node: it takes no new jobs, running ones end, then its process exits with code 0.

    A gateway that is started again takes jobs again.
    """
    state = node.post("/api/v1/drain", {"running": "stop" if stop else "wait", "exit": not stay})
    shown, gone = None, False
    while wait and not gone and state["draining"] and not (stay and shown == []):
        if state["jobs"] != shown and not as_json:
            jobs = [f"{j['job_id']} {j['status']}" for j in state["jobs"]]
            more = f" and {len(jobs) - 3} more" if len(jobs) > 3 else ""
            say(f"{len(jobs)} left: {', '.join(jobs[:3])}{more}" if jobs else "nothing is left")
        shown = state["jobs"]
        time.sleep(0.5)
        try:
            state = node.get("/api/v1/drain")
        except CallFailed as error:
            if error.code != EXIT_NO_ANSWER or stay:
                raise
            gone = _has_exited(state["process"])
    if wait and not state["draining"]:
        raise CallFailed("draining was cancelled by another user", reason="UNDRAINED")
    if as_json:
        print_json(state)
    elif wait:
        say("the node is empty" if stay else "the node has exited")


def _has_exited(process: dict[str, Any]) -> bool:
    """Wait until a node's process is over, whose listeners are closed; one of another machine is not seen."""
    from engines.process.run_directory import opened

    with opened(process) as descriptor:
        return descriptor is None or bool(select([descriptor], [], [], 5.0)[0])


@command(commands, "undrain")
def undrain(node: Client) -> Output:
    """Let a node that is being drained take jobs again."""
    yield node.post("/api/v1/undrain", {})
    say("the node takes jobs")


@command(commands, "doctor", "--config node.yml")
def doctor(config: Config = DEFAULT_CONFIG) -> Output:
    """Check all that a node needs: database, storage, file modes, disk, clock, engine, images, ports, routes.

    Changes nothing. Works beside a running node and without one. Exit code 1: a step failed. Of a route, only
    whether something listens at its address is checked; `route test` tests the whole link.
    """
    from gateway.bootstrap.parts import engine_of
    from gateway.diagnostics.doctor import look
    from gateway.runtime.checks import good
    from gateway.store.serialization import to_plain

    # an installation of this name owns no containers
    steps = look(settings_of(config), lambda settings: engine_of(settings, "doctor", "doctor"), config)
    plain = to_plain(steps)
    yield {"good": good(steps), "steps": plain}, good(steps)
    print_steps(str(config), plain)


@command(commands, "migrate", "--check")
def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 1 if a migration is due.")
    ] = False,
    config: Config = DEFAULT_CONFIG,
) -> Output:
    """Migrate the database to this version's schema. `serve` does this at its start."""
    from gateway.store.database import revisions

    before, newest = revisions(settings_of(config).database.url)
    due = before != newest
    if due and not check:
        _opened(config).dispose()
    yield {"was": before, "newest": newest, "migrated": due and not check}, not (due and check)
    if due:
        say(f"{'would go' if check else 'went'} from {before or 'no schema'} to {newest}")
    else:
        say(f"nothing to do: the schema is {newest}")


# ---------------------------------------------------------------- resources

_KINDS = {"cpu": "cpu", "memory_gib": "memory GiB", "disk_gib": "disk GiB"}
_COUNTS = {
    "returns_ignored": "returns with nothing to return",
    "returned_by_reconciler": "jobs that ended and still held something",
    "expired": "jobs that held something and were never started",
}


@command(commands, "resources")
def resources(node: Client) -> Output:
    """Show what jobs have reserved at this node, since when, what is left, and which jobs wait for what."""
    found = node.get("/api/v1/resources")
    yield found
    engines = found.get("engines", [])
    for number, engine in enumerate(engines or [{}]):
        totals = engine if number else found  # the disk belongs to the node, with its first engine
        rows = [[key, *_amounts(totals[key])] for key in ("total", "held", "remaining")]
        name = f", engine {engine['engine']}" if len(engines) > 1 else ""
        table(f"node {found['node']}{name}", ["", *_KINDS.values()], rows)
        if number and (engine["away"] or engine["cause"]):
            say(": ".join(filter(None, (engine["away"], engine["cause"]))))
    if found["holders"]:
        held = [
            [one["job_id"], engine, *_amounts(amounts), one["since"]]
            for one in found["holders"]
            for engine, amounts in _by_engine(one, engines[0]["engine"] if engines else "")
        ]
        table("\nreserved", ["job", "engine", *_KINDS.values(), "since"], held)
    if found["waiting"]:
        columns: Columns = {"job": "job_id", "priority": "priority", "since": "since", "why": "reason"}
        listing(found, "waiting", "", columns, "\nwaiting, in this order")
    for key, text in _COUNTS.items():
        if found[key]:
            say(f"{text}: {found[key]}")


def _by_engine(one: Mapping[str, Any], main: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each engine of which a job holds something, and how much."""
    further = one.get("engines", {})
    if not further or any(one[kind] for kind in _KINDS):
        yield main, one
    yield from further.items()


def _amounts(one: Mapping[str, Any] | None) -> list[str]:
    return ["?" for _ in _KINDS] if one is None else [f"{one.get(kind, 0):g}" for kind in _KINDS]


# ---------------------------------------------------------------- settings


@command(commands, "settings", "--changed")
def settings(
    contains: Annotated[str, typer.Argument(help="Only settings whose path holds this text.")] = "",
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not a default.")] = False,
    file: Annotated[
        bool, typer.Option("--file", help="What a start with this configuration would use; needs no node.")
    ] = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
) -> Output:
    """Show what the running node works with: every setting, its value and where that comes from.

    Secrets are masked. What each setting means: docs/settings.md.
    """
    from gateway.config.loader import effective

    if file:
        found = effective(settings_of(config))
    else:
        with connect(config, url) as node:
            found = node.get("/api/v1/settings")["settings"]
    rows = [one for one in found if contains in one["path"] and not (changed and one["origin"] == "default")]
    yield {"settings": rows}
    columns: Columns = {"setting": "path", "value": _value, "from": lambda one: one["where"] or one["origin"]}
    listing({"settings": rows}, "settings", "setting", columns)


def _value(setting: Mapping[str, Any]) -> str:
    value = setting["value"]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


if TYPE_CHECKING:
    from gateway.identity.statements import Line


# ------------------------------------------------------------- the audit log


class _OrList(TyperGroup):
    """Lists where no command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else ["list", *args])


audit = typer.Typer(name="audit", help="Who requested which change, and what became of it.", cls=_OrList)


@command(audit, "list", "--action grants --since 2026-11-01")
def list_entries(
    node: Client,
    who: Annotated[str, typer.Option(help="Only by this person, program or node.")] = "",
    action: Annotated[str, typer.Option(help="Only whose action holds this text, such as datasets.")] = "",
    since: Annotated[str, typer.Option(help="Only since, UTC: 2026-11-21 or 2026-11-21T08:00.")] = "",
    until: Annotated[str, typer.Option(help="Only before that.")] = "",
    refused: Annotated[bool, typer.Option("--refused", help="Only changes that were not made.")] = False,
    after: AfterNumber = 0,
    limit: Limit = 20,
) -> Output:
    """Show who requested which change, with what was there before and after."""
    narrow = {"who": who, "action": action, "since": since, "until": until, "refused": refused}
    found = node.get("/api/v1/audit", limit=limit, after=after or None, **narrow)
    yield found
    columns: Columns = {"": "id", "at (UTC)": when("at"), "who": "who", "what": "action", "result": _result}
    listing(found, "audit", "change", {**columns, "before → after": _difference})


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
        return f"from {detail['from']}: {detail.get('message') or detail['reason']}{more}"[:most]
    if "before" in detail or "after" in detail:
        return f"{compact(detail.get('before'), most)} → {compact(detail.get('after'), most)}"[:most]
    return str(detail.get("refused") or (compact(detail, most) if detail else ""))[:most]


@command(audit, "export", "> audit.jsonl")
def export(config: Config = DEFAULT_CONFIG) -> None:
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
    file: Annotated[Path | None, typer.Argument(help="What was exported; default: the node's database.")] = None,
    keys: Annotated[
        Path | None, typer.Option(help="The node's public keys (identity export); default: those that it has now.")
    ] = None,
    config: Config = DEFAULT_CONFIG,
) -> Output:
    """Find lines of the audit log that were changed, removed, added or moved. Exit code 1: there are some."""
    from gateway.identity.keys import Keyring
    from gateway.identity.statements import verify_log
    from gateway.store.audit import SqlAudit
    from route_table.document import public_keys

    try:
        if keys is None:
            trusted = [pair.public for pair in Keyring(settings_of(config).state_dir).pairs.values()]
        else:
            trusted = list(public_keys(keys.read_text(encoding="utf-8")))
        if file is None:
            with closing(store_of(config)) as store:
                found = verify_log(SqlAudit(store).lines(), trusted)
        else:
            found = verify_log(_exported(file), trusted)
    except (OSError, ValueError) as error:
        raise CallFailed(f"not readable: {error}", EXIT_BAD_INPUT) from error
    yield vars(found), not found.problems
    for text in found.problems:
        say(text)
    say(f"{counted(found.lines, 'line')} from {found.first} on, {found.before} of them older than the chain")
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
            if not isinstance(line, dict) or line.keys() != names or not isinstance(line["id"], int):
                raise ValueError(f"line {number} of {file} is not one of an exported audit log")
            yield line
