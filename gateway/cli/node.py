"""Commands about the node itself: clean-up, drain, doctor, migrate, resources, settings."""

import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from select import select
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli import options
from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_NO_ANSWER,
    CallFailed,
    Client,
    connect,
    settings_of,
    who,
)
from gateway.cli.command import (
    Columns,
    Output,
    amount,
    command,
    listing,
    print_json,
    print_steps,
    say,
    size,
    table,
)
from gateway.errors import counted

if TYPE_CHECKING:
    from gateway.store.store import Store

commands = typer.Typer(name="")


# ---------------------------------------------------------------- looking after a node


@command(commands, "gc", "--dry-run", timeout=600)
def gc(
    node: Client,
    dry_run: options.DryRun = False,
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
    columns: Columns = {
        "kind": "kind",
        "name": "name",
        "job": "job",
        "size": size("bytes"),
    }
    title = f"{counted(len(items), 'item')}, {amount(found['bytes'])}"
    listing(found, "items", "", {**columns, "why": lambda one: one["cause"] or one["why"]}, title)
    done = "would be removed" if dry_run else "removed"
    say(f"{len(items) - failed} {done}" + (f", {failed} not" if failed else ""))


@command(commands, "drain", "--stop")
def drain(
    node: Client,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop running jobs instead of waiting for them.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Show what is left until the node exits.")
    ] = True,
    as_json: options.AsJson = False,
) -> None:
    """Drain a node: it takes no new jobs, running ones end, then its process exits with code 0.

    A gateway that is started again takes jobs again.
    """
    state = node.post("/api/v1/drain", {"running": "stop" if stop else "wait", "exit": True})
    shown, gone = None, False
    while wait and not gone and state["draining"]:
        if state["jobs"] != shown and not as_json:
            jobs = [f"{j['job_id']} {j['status']}" for j in state["jobs"]]
            more = f" and {len(jobs) - 3} more" if len(jobs) > 3 else ""
            say(f"{len(jobs)} left: {', '.join(jobs[:3])}{more}" if jobs else "nothing is left")
        shown = state["jobs"]
        time.sleep(0.5)
        try:
            state = node.get("/api/v1/drain")
        except CallFailed as error:
            if error.code != EXIT_NO_ANSWER:
                raise
            gone = _has_exited(state["process"])
    if wait and not state["draining"]:
        raise CallFailed("draining was cancelled by another user", reason="UNDRAINED")
    if as_json:
        print_json(state)
    elif wait:
        say("the node has exited")


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
def doctor(config: options.Config = DEFAULT_CONFIG) -> Output:
    """Check all that a node needs: database, storage, file modes, disk, clock, engine, images, ports, routes.

    Changes nothing. Works beside a running node and without one. Exit code 1: a step failed. Of a route, only
    whether something listens at its address is checked; `route test` tests the whole link.
    """
    from gateway.bootstrap.parts import engine_of
    from gateway.diagnostics.doctor import look
    from gateway.runtime.trials import good
    from gateway.store.serialization import to_plain

    # an installation of this name owns no containers
    steps = look(
        settings_of(config), lambda settings: engine_of(settings, "doctor", "doctor"), config
    )
    plain = to_plain(steps)
    yield {"good": good(steps), "steps": plain}, good(steps)
    print_steps(str(config), plain)


@command(commands, "migrate", "--check")
def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 1 if a migration is due.")
    ] = False,
    config: options.Config = DEFAULT_CONFIG,
) -> Output:
    """Migrate the database to this version's schema. `serve` does this at its start."""
    from gateway.store.database import schema_revisions

    before, newest = schema_revisions(settings_of(config).database.url)
    due = before != newest
    if due and not check:
        _opened(config).dispose()
    yield (
        {
            "was": before,
            "newest": newest,
            "migrated": due and not check,
        },
        not (due and check),
    )
    if due:
        say(f"{'would go' if check else 'went'} from {before or 'no schema'} to {newest}")
    else:
        say(f"nothing to do: the schema is {newest}")


# ---------------------------------------------------------------- resources

_KINDS = {
    "cpu": "cpu",
    "memory_gib": "memory GiB",
    "disk_gib": "disk GiB",
    "gpu": "gpu",
}
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
    totals = [found["total"], *(one["total"] or {} for one in engines)]
    kinds = [kind for kind in _KINDS if kind != "gpu" or any(of.get("gpu") for of in totals)]
    headings = [_KINDS[kind] for kind in kinds]
    for number, engine in enumerate(engines or [{}]):
        of = engine if number else found  # the disk belongs to the node, with its first engine
        keys = ["total", "held", *(["others"] if any(of["others"].values()) else []), "remaining"]
        rows = [[key, *_amounts(of[key], kinds)] for key in keys]
        name = f", engine {engine['engine']}" if len(engines) > 1 else ""
        table(f"node {found['node']}{name}", ["", *headings], rows)
        if number and (engine["away"] or engine["cause"]):
            say(": ".join(filter(None, (engine["away"], engine["cause"]))))
    if found["holders"]:
        held = [
            [one["job_id"], engine, *_amounts(amounts, kinds), one["since"]]
            for one in found["holders"]
            for engine, amounts in _by_engine(one, engines[0]["engine"] if engines else "")
        ]
        table("\nreserved", ["job", "engine", *headings, "since"], held)
    if found["waiting"]:
        columns: Columns = {
            "job": "job_id",
            "priority": "priority",
            "since": "since",
            "why": "reason",
        }
        listing(found, "waiting", "", columns, "\nwaiting, in this order")
    for key, text in _COUNTS.items():
        if found[key]:
            say(f"{text}: {found[key]}")


def _by_engine(one: Mapping[str, Any], main: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each engine of which a job holds something, and how much."""
    further = one.get("engines", {})
    if not further or any(one.get(kind) for kind in _KINDS):
        yield main, one
    yield from further.items()


def _amounts(one: Mapping[str, Any] | None, kinds: list[str]) -> list[str]:
    return ["?" for _ in kinds] if one is None else [f"{one.get(kind, 0):g}" for kind in kinds]


# ---------------------------------------------------------------- settings


@command(commands, "settings", "--changed")
def settings(
    contains: Annotated[str, typer.Argument(help="Only settings whose path holds this text.")] = "",
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not a default.")] = False,
    file: Annotated[
        bool,
        typer.Option(
            "--file", help="What a start with this configuration would use; needs no node."
        ),
    ] = False,
    config: options.Config = DEFAULT_CONFIG,
    url: options.Url = "",
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
    rows = [
        one
        for one in found
        if contains in one["path"]
        and (not changed or one.get("changed", one["origin"] != "default"))
    ]
    yield {"settings": rows}
    columns: Columns = {
        "setting": "path",
        "value": _value,
        "from": lambda one: one["where"] or one["origin"],
    }
    listing({"settings": rows}, "settings", "setting", columns)


def _value(setting: Mapping[str, Any]) -> str:
    value = setting["value"]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# ---------------------------------------------------------------- its database, also while nothing runs


def store_of(config: Path) -> "Store":
    """Open the node's database beside the node that may be running on it. Raises `Invalid`."""
    from gateway.store.store import Store

    return Store(_opened(config))


def _opened(config: Path) -> Any:
    from gateway.store.database import open_database

    url = settings_of(config).database.url
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    return open_database(url)


def sign_audit(store: "Store", config: Path) -> None:
    """Sign the newest entry of the audit log, where the node has a key pair."""
    from gateway.identity.audit_head import HeadFile
    from gateway.identity.keys import Keyring
    from gateway.store.audit import SqlAudit

    settings = settings_of(config)
    if pair := Keyring(settings.state_dir).signing:
        SqlAudit(store).sign(
            settings.node.id, pair, datetime.now(UTC), HeadFile(settings.state_dir)
        )


def audit_change(
    store: "Store",
    action: str,
    before: Any,
    after: Any,
) -> None:
    """Record a change that was not made through the operator listener."""
    from gateway.store.audit import SqlAudit

    detail = {"before": before, "after": after}
    SqlAudit(store).add(datetime.now(UTC), f"{who()} (command line)", action, 200, None, detail)
