"""``bfia-gateway token …``: who may use the operators' listener. Works on the database: a first one needs none."""

import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.auth import Role, new_token, token_place
from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_NO_ANSWER,
    AsJson,
    CallFailed,
    Client,
    Config,
    Url,
    amount,
    connect,
    reporting,
    settings_of,
    show,
    table,
)
from gateway.cli.console import PAGE, After, Limit, of_all, print_more, say
from gateway.cli.inputs import finite, who
from gateway.errors import counted

commands = typer.Typer(help="Who may use the operators' listener, and in which role.", no_args_is_help=True)


def add(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="token")


@commands.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose it is; shown in the audit and in histories.")],
    role: Annotated[Role, typer.Option(help="What it is for.")],
    days: Annotated[float, typer.Option(min=0, callback=finite(), help="Days until it expires; 0: never.")] = 90,
    config: Config = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, once: only its hash is kept.

    Example: bfia-gateway token create ann --role admin --days 30
    """
    from gateway.store.repositories import SqlTokens

    with reporting(as_json), _Database(config) as store:
        now = datetime.now(UTC)
        if not name.strip() or len(name) > 255:
            raise CallFailed("the name must have 1 to 255 characters", EXIT_BAD_INPUT)
        text, token = new_token(name, role, now, now + timedelta(days=days) if days else None)
        SqlTokens(store.store).add(token)
        until = token.expires_at.isoformat() if token.expires_at else None
        store.audit("token create", None, {"id": token.id, "name": name, "role": str(role), "expires_at": until})
        if as_json:
            show({"id": token.id, "name": name, "role": role, "token": text})
        else:
            say(text)
            until = f"until {token.expires_at:%Y-%m-%d}" if token.expires_at else "without an end"
            say(f"{role} {name}, {until}; it is shown only now", err=True)


@commands.command("list")
def list_tokens(
    after: After = "", limit: Limit = PAGE, config: Config = DEFAULT_CONFIG, as_json: AsJson = False
) -> None:
    """List the tokens; their text is not kept.

    Example: bfia-gateway token list
    """
    from gateway.errors import Invalid
    from gateway.http.pagination import page_of
    from gateway.store.repositories import SqlTokens

    with reporting(as_json), _Database(config) as store:
        now = datetime.now(UTC)
        rows = []
        try:
            page = page_of(SqlTokens(store.store).list(), token_place, after, limit)
        except Invalid as error:
            raise CallFailed("; ".join(map(str, error.problems)), EXIT_BAD_INPUT, error.reason) from None
        for token in page.entries:
            state = "good"
            if token.revoked_at:
                state = "revoked"
            elif token.expires_at and token.expires_at <= now:
                state = "expired"
            until = f"{token.expires_at:%Y-%m-%d %H:%M}" if token.expires_at else "never"
            rows.append(
                [token.id, token.name, str(token.role), f"{token.created_at:%Y-%m-%d %H:%M}", until, state]
            )
        columns = ["id", "name", "role", "created", "expires", "state"]
        if as_json:
            lines = [dict(zip(columns, row, strict=True)) for row in rows]
            show({"tokens": lines, "total": page.total, "next": page.next})
            return
        table(of_all(page._asdict(), len(rows), "token"), columns, rows)
        print_more(page._asdict())


@commands.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(help="Name (all its tokens) or id (that one).")],
    config: Config = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Revoke tokens; a running node refuses them within two seconds.

    Example: bfia-gateway token revoke ann
    """
    from gateway.store.repositories import SqlTokens

    with reporting(as_json), _Database(config) as store:
        count = SqlTokens(store.store).revoke(name, datetime.now(UTC))
        if count:
            store.audit("token revoke", {"token": name, "good": count}, {"token": name, "good": 0})
        if not count:
            raise CallFailed(f"no token that is still good has the name or id {name}")
        if as_json:
            show({"revoked": count})
        else:
            say(f"{count} revoked")


class _Database:
    """The node's database, opened beside the node that may be running on it."""

    def __init__(self, config: Path) -> None:
        from gateway.errors import Invalid
        from gateway.store.database import opened
        from gateway.store.store import Store

        url = settings_of(config).database.url
        if url.startswith("sqlite:///"):
            Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        try:
            self.store = Store(opened(url))
        except Invalid as error:
            raise CallFailed("; ".join(map(str, error.problems)), EXIT_BAD_INPUT, error.reason) from None

    def __enter__(self) -> "_Database":
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def audit(self, action: str, before: Any, after: Any) -> None:
        """Write down a change that went past the operators' listener."""
        from gateway.store.repositories import SqlAudit

        detail = {"before": before, "after": after}
        SqlAudit(self.store).add(datetime.now(UTC), f"{who()} (command line)", action, 200, None, detail)


def add_maintenance(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(gc)
    app.command()(drain)
    app.command()(undrain)


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Also what the node's database knows nothing of.")
    ] = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Remove what jobs left behind: strays of ended jobs, and what the settings' retention lets go.

    The node does so by itself every retention.every_seconds, but for orphans. Exit code 1: something could not be
    removed.

    Example: bfia-gateway gc --dry-run
    """
    with reporting(as_json), connect(config, url, timeout=600) as node:
        found = node.post("/api/v1/gc", {"dry_run": dry_run, "orphans": orphans})
        items = found["items"]
        failed = [] if dry_run else [item for item in items if not item["removed"]]
        if as_json:
            show(found)
        elif not items:
            say("nothing to remove")
        else:
            done = "would be removed" if dry_run else "removed"
            rows = [[i["kind"], i["name"], i["job"], amount(i["bytes"]), i["cause"] or i["why"]] for i in items]
            table(
                f"{counted(len(items), 'thing')}, {amount(found['bytes'])}",
                ["kind", "name", "job", "size", "why"],
                rows,
            )
            say(f"{len(items) - len(failed)} {done}" + (f", {len(failed)} not" if failed else ""))
        if failed:
            raise typer.Exit(1)


def drain(
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop the jobs under way instead of waiting for them.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Show what is left until the node has ended.")
    ] = True,
    stay: Annotated[bool, typer.Option("--stay", help="Leave the process up when nothing is left.")] = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Empty a node: it takes no new jobs, those under way end, then its process ends with exit code 0.

    A gateway that is started again takes jobs again.

    Example: bfia-gateway drain --stop
    """
    with reporting(as_json), connect(config, url) as node:
        begun = node.post("/api/v1/drain", {"running": "stop" if stop else "wait", "exit": not stay})
        state = begun
        if wait:
            for state in _until_empty(node, stay, begun):
                if not as_json:
                    left = ", ".join(f"{j['job_id']} {j['status']}" for j in state["jobs"][:3])
                    more = f" and {len(state['jobs']) - 3} more" if len(state["jobs"]) > 3 else ""
                    say(f"{len(state['jobs'])} left: {left}{more}" if left else "nothing is left")
            if not state["draining"]:
                raise CallFailed("draining was called off by somebody else", reason="UNDRAINED")
        if as_json:
            show(state)
        elif wait:
            say("the node is empty" if stay else "the node has ended")


def undrain(config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False) -> None:
    """Let a node that is being emptied take jobs again.

    Example: bfia-gateway undrain
    """
    with reporting(as_json), connect(config, url) as node:
        state = node.post("/api/v1/undrain", {})
        if as_json:
            show(state)
        else:
            say("the node takes jobs")


def _until_empty(node: Client, stay: bool, first: dict[str, Any], every: float = 0.5) -> Iterator[dict[str, Any]]:
    """Yield what is left, first as known, then whenever it changes, until nothing is; and the node has ended
    unless it stays."""
    known = first["jobs"]
    yield first
    while True:
        try:
            state = node.get("/api/v1/drain")
        except CallFailed as error:
            if error.code == EXIT_NO_ANSWER and not stay:
                return
            raise
        if state["jobs"] != known:
            known = state["jobs"]
            yield state
        if not state["draining"] or (stay and not known):
            yield state
            return
        time.sleep(every)


_ME = "doctor"
"""stands for the installation: what looks owns no containers"""
MARKS = {"ok": "ok", "warning": "WARNING", "failed": "FAILED", "skipped": "–"}


def add_doctor(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(doctor)
    app.command()(migrate)


def doctor(config: Config = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """Look at all that a node needs: database, storage, file modes, disk, clock, engine, images, ports, routes.

    Changes nothing. Works beside a running node and without one. Exit code 1: a step failed. Of a route, only
    whether something listens at its address is looked at; `route test` tries the whole link.

    Example: bfia-gateway doctor --config node.yml
    """
    from gateway.bootstrap.parts import engine_of
    from gateway.diagnostics.doctor import look
    from gateway.runtime.checks import good
    from gateway.store.serialization import to_plain

    with reporting(as_json):
        steps = look(settings_of(config), lambda settings: engine_of(settings, _ME, _ME), config)
        if as_json:
            show({"good": good(steps), "steps": to_plain(steps)})
        else:
            rows = [
                [s.name, MARKS[s.result], f"{s.seconds * 1000:.0f} ms", s.cause or s.found, s.remedy]
                for s in steps
            ]
            table(str(config), ["step", "result", "took", "found", "what to do"], rows)
        if not good(steps):
            raise typer.Exit(EXIT_FAILED)


def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Only look; exit code 1 if there is something to do.")
    ] = False,
    config: Config = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Bring the database to this version's schema. `serve` does so by itself.

    Example: bfia-gateway migrate --check
    """
    from pathlib import Path

    from gateway.errors import Invalid
    from gateway.store.database import opened, revisions

    with reporting(as_json):
        url = settings_of(config).database.url
        try:
            before, newest = revisions(url)
            if not check and before != newest:
                if url.startswith("sqlite:///"):
                    Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
                opened(url).dispose()
        except Invalid as error:
            raise CallFailed("; ".join(map(str, error.problems)), EXIT_FAILED, error.reason) from None
        if as_json:
            show({"was": before, "newest": newest, "migrated": not check and before != newest})
        elif before == newest:
            say(f"nothing to do: the schema is {newest}")
        else:
            say(f"{'would go' if check else 'went'} from {before or 'no schema'} to {newest}")
        if check and before != newest:
            raise typer.Exit(EXIT_FAILED)


def add_audit(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "audit", epilog="Exit codes: 0 shown, 1 the node said no, 2 bad input, 3 no answer from the node."
    )(audit)


def audit(
    who: Annotated[str, typer.Option(help="Only by this person, program or node.")] = "",
    action: Annotated[str, typer.Option(help="Only whose action holds this text, such as datasets.")] = "",
    since: Annotated[str, typer.Option(help="Only then or later, UTC: 2026-11-21 or 2026-11-21T08:00.")] = "",
    until: Annotated[str, typer.Option(help="Only before that.")] = "",
    refused: Annotated[bool, typer.Option("--refused", help="Only changes that were not made.")] = False,
    after: Annotated[int, typer.Option(help="The next page: what the last one ended with.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = 20,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Show who asked for which change, with what was there before and after.

    Example: bfia-gateway audit --action grants --since 2026-11-01
    """
    asked: dict[str, Any] = {"who": who, "action": action, "since": since, "until": until, "after": after}
    with reporting(as_json), connect(config, url) as node:
        query = {name: value for name, value in asked.items() if value}
        found = node.get("/api/v1/audit", limit=limit, refused=refused or None, **query)
        if as_json:
            show(found)
            return
        rows = [
            [e["id"], e["at"][:19].replace("T", " "), e["who"], e["action"], _went(e), _detail(e["detail"])]
            for e in found["audit"]
        ]
        table(counted(len(rows), "change"), ["", "at (UTC)", "who", "what", "went", "before → after"], rows)
        if found["next"]:
            say(f"more: --after {found['next']}", err=True)


def _went(entry: Any) -> str:
    good = entry["status"] < 400 and entry["code"] in (None, 0, 200)
    if good and entry["detail"].get("dry_run"):
        return "looked only"
    return "done" if good else f"refused ({entry['code'] or entry['status']})"


def _detail(detail: Any, most: int = 300) -> str:
    if isinstance(detail.get("changes"), list):
        text = ", ".join(_change(change) for change in detail["changes"][:10])
    elif "reason" in detail and "from" in detail:
        more = f", {detail['repeated']} times more" if "repeated" in detail else ""
        text = f"from {detail['from']}: {detail.get('message') or detail['reason']}{more}"
    elif "refused" in detail:
        text = str(detail["refused"])
    elif "before" in detail or "after" in detail:
        text = f"{_short(detail.get('before'))} → {_short(detail.get('after'))}"
    else:
        text = _short(detail) if detail else ""
    return text if len(text) <= most else text[: most - 1] + "…"


def _change(change: Any) -> str:
    """Return one line of a difference: of routes by node and key, of providers by path."""
    named = [str(change[key]) for key in ("node", "field", "path") if change.get(key)]
    before, after = change.get("before"), change.get("after")
    if "node" in change and not change.get("field"):
        return f"{'+' if before is None else '-'}{change['node']}"
    return f"{'.'.join(named)} {_short(before)} → {_short(after)}"


def _short(value: Any) -> str:
    return "–" if value is None else json.dumps(value, ensure_ascii=False)


_KINDS = (("cpu", "cpu"), ("memory_gib", "memory GiB"), ("disk_gib", "disk GiB"))
_HEADS = [head for _, head in _KINDS]


def add_resources(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(resources)


def resources(config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False) -> None:
    """Show what jobs hold of this node, since when, what is left, and which jobs wait for what.

    Example: bfia-gateway resources
    """
    with reporting(as_json), connect(config, url) as node:
        found = node.get("/api/v1/resources")
    if as_json:
        show(found)
        return
    engines = found.get("engines", [])
    several = len(engines) > 1
    rows = [[name, *_amounts(found[name])] for name in ("total", "held", "remaining")]
    main = f", engine {engines[0]['engine']}" if several else ""
    table(f"node {found['node']}{main}", ["", *_HEADS], rows)
    for one in engines[1:]:
        of = [[name, *_amounts(one[name])[:2]] for name in ("total", "held", "remaining")]
        say(f"\nengine {one['engine']}")
        table("", ["", *_HEADS[:2]], of)
        if one["away"] or one["cause"]:
            say(": ".join(filter(None, (one["away"], one["cause"]))))
    held = [
        [one["job_id"], *where, *_amounts(amounts), one["since"]] for one, where, amounts in _rows(found, several)
    ]
    if held:
        table("\nheld", ["job", *(["engine"] if several else []), *_HEADS, "since"], held)
    waiting = [[one["job_id"], one["priority"], one["since"], one["reason"]] for one in found["waiting"]]
    if waiting:
        table("\nwaiting, in this order", ["job", "priority", "since", "why"], waiting)
    for name, text in (
        ("returns_ignored", "returns with nothing to return"),
        ("returned_by_reconciler", "jobs that ended and still held something"),
        ("expired", "jobs that held something and were never started"),
    ):
        if found[name]:
            say(f"{text}: {found[name]}")


def _rows(
    found: Mapping[str, Any], several: bool
) -> Iterator[tuple[Mapping[str, Any], list[str], Mapping[str, Any]]]:
    """Yield each holder once for each engine of which it holds something."""
    for one in found["holders"]:
        further = one.get("engines", {})
        if not further or any(one[kind] for kind, _ in _KINDS):
            yield one, [found["engines"][0]["engine"]] if several else [], one
        for name, amounts in further.items():
            yield one, [name] if several else [], amounts


def _amounts(one: Mapping[str, Any] | None) -> list[str]:
    return ["?" for _ in _KINDS] if one is None else [f"{one.get(kind, 0):g}" for kind, _ in _KINDS]


def add_settings(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "settings", epilog="Exit codes: 0 shown, 1 the node said no, 2 bad input, 3 no answer from the node."
    )(settings)


def settings(
    contains: Annotated[str, typer.Argument(help="Only settings whose path holds this text.")] = "",
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not a default.")] = False,
    file: Annotated[
        bool, typer.Option("--file", help="What a start with this configuration would use; asks no node.")
    ] = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Show what the running node works with: every setting, its value and where that comes from.

    Secrets are masked. What each setting means: docs/settings.md.

    Example: bfia-gateway settings --changed
    """
    with reporting(as_json):
        found = _of_file(config) if file else _of_node(config, url)
        rows = [one for one in found if contains in one["path"] and not (changed and one["origin"] == "default")]
        if as_json:
            show({"settings": rows})
            return
        table(
            counted(len(rows), "setting"),
            ["setting", "value", "from"],
            [[one["path"], _text(one["value"]), one["where"] or one["origin"]] for one in rows],
        )


def _of_node(config: Any, url: str) -> list[dict[str, Any]]:
    with connect(config, url) as node:
        return list(node.get("/api/v1/settings")["settings"])


def _of_file(config: Any) -> list[dict[str, Any]]:
    from gateway.config.effective import effective

    return effective(settings_of(config))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
