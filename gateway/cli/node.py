"""Commands about the node itself: clean-up, drain, doctor, migrate, resources, settings."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from select import select
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from gateway.cli import options
from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_NO_ANSWER,
    CallFailed,
    Client,
    connect,
    invalid_in,
    settings_of,
    who,
)
from gateway.cli.command import Output, command
from gateway.cli.output import print_json, say
from gateway.cli.tables import Columns, listing, print_steps, table
from gateway.cli.values import amount, size
from gateway.errors import Invalid, counted

if TYPE_CHECKING:
    from gateway.runtime.trials import Step
    from gateway.store.store import Store

commands = typer.Typer(name="")  # without a name: its commands belong to no group


# Keys of the kinds of resources in the node's response -> headings of their columns.
_KINDS = {
    "cpu": "cpu",
    "memory_gib": "memory GiB",
    "disk_gib": "disk GiB",
    "gpu": "gpu",
}
# Keys in the response about resources -> meanings of their counts. The counts are 0 unless
# something went wrong.
_COUNTS = {
    "returns_ignored": "returns with nothing to return",
    "returned_by_reconciler": "jobs that ended and still held something",
    "expired": "jobs that held something and were never started",
}
_DRAIN_INTERVAL = 0.5  # seconds between two requests of a draining node's state
_EXIT_TIMEOUT = 5.0  # seconds between the end of a node's listeners and the end of its process
_LISTED_JOBS = 3  # jobs that a line about draining names


# ---------------------------------------------------------------- looking after a node


@command(commands, "gc", "--dry-run", timeout=600)
def gc(
    node: Client,
    dry_run: options.DryRun = False,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Also what the node's database does not know.")
    ] = False,
) -> Output:
    """Remove leftovers of ended jobs, and data older than the settings' retention.

    The node does this every minute, except for orphans. Exit code 1: something could not be
    removed.
    """
    response = node.post("/api/v1/gc", {"dry_run": dry_run, "orphans": orphans})
    items = response["items"]
    failed = 0
    if not dry_run:
        failed = sum(not item["removed"] for item in items)
    yield response, not failed
    if not items:
        say("nothing to remove")
        return
    columns: Columns = {
        "kind": "kind",
        "name": "name",
        "job": "job",
        "size": size("bytes"),
        "why": _removal_reason,
    }
    title = f"{counted(len(items), 'item')}, {amount(response['bytes'])}"
    listing(response, "items", columns, title=title)
    verb = "would be removed" if dry_run else "removed"
    not_removed = f", {failed} not" if failed else ""
    say(f"{len(items) - failed} {verb}{not_removed}")


def _removal_reason(item: Mapping[str, Any]) -> str:
    """Return why an item could not be removed, else why it is removed."""
    return str(item["cause"] or item["why"])


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
    running = "stop" if stop else "wait"
    state = node.post("/api/v1/drain", {"running": running, "exit": True})
    if wait:
        state = _watch_drain(node, state, quiet=as_json)
        if not state["draining"]:
            raise CallFailed("draining was cancelled by another user", reason="UNDRAINED")
    if as_json:
        print_json(state)
    elif wait:
        say("the node has exited")


def _watch_drain(node: Client, state: Any, *, quiet: bool) -> Any:
    """Wait until a node has exited or no longer drains, and return its last known state.

    Changes of the remaining jobs are printed unless ``quiet``.
    """
    printed_jobs = None
    while state["draining"]:
        if state["jobs"] != printed_jobs and not quiet:
            say(_remaining_jobs(state["jobs"]))
        printed_jobs = state["jobs"]
        time.sleep(_DRAIN_INTERVAL)
        new_state = _drain_state(node)
        if new_state is not None:
            state = new_state
        elif _has_exited(state["process"]):
            break
    return state


def _drain_state(node: Client) -> Any:
    """Return the state of draining; None if the node does not respond."""
    try:
        return node.get("/api/v1/drain")
    except CallFailed as error:
        if error.code != EXIT_NO_ANSWER:
            raise
        return None


def _remaining_jobs(jobs: Sequence[Mapping[str, Any]]) -> str:
    """Return a line with the number of jobs that a draining node still has, and the first ones."""
    if not jobs:
        return "nothing is left"
    names = [f"{job['job_id']} {job['status']}" for job in jobs]
    text = f"{len(jobs)} left: {', '.join(names[:_LISTED_JOBS])}"
    unnamed = len(names) - _LISTED_JOBS
    if unnamed > 0:
        text += f" and {unnamed} more"
    return text


def _has_exited(process: dict[str, Any]) -> bool:
    """Return whether the process of a node that does not respond exits within `_EXIT_TIMEOUT`.

    A process on another machine cannot be observed and counts as exited.
    """
    from engines.process.run_directory import opened

    with opened(process) as descriptor:
        if descriptor is None:
            return True
        exited, _, _ = select([descriptor], [], [], _EXIT_TIMEOUT)
        return bool(exited)


@command(commands, "undrain")
def undrain(node: Client) -> Output:
    """Let a node that is being drained take jobs again."""
    yield node.post("/api/v1/undrain", {})
    say("the node takes jobs")


@command(commands, "doctor", "--config node.yml")
def doctor(
    config: options.Config = DEFAULT_CONFIG,
    database: Annotated[
        str, typer.Option(help="Try this database server instead, for a node to come.")
    ] = "",
) -> Output:
    """Check all that a node needs: database, storage, file modes, disk, clock, engine, images,
    ports, routes.

    Changes nothing. Works with a running node and without one. Exit code 1: a step failed. Of a
    route, only whether something listens at its address is checked; `route test` tests the whole
    link. With --database, every form of statement that a node uses is tried in a schema that is
    created for that and dropped.
    """
    from gateway.config.values import without_password
    from gateway.diagnostics.database_trial import try_database
    from gateway.runtime.trials import has_passed
    from gateway.store.serialization import to_plain

    if database:
        steps = try_database(_with_password(database))
    else:
        steps = _check_node(config)
    success = has_passed(steps)
    plain_steps = to_plain(steps)
    yield {"good": success, "steps": plain_steps}, success
    heading = str(config)
    if database:
        heading = without_password(database)
    print_steps(heading, plain_steps)


def _with_password(url: str) -> str:
    """Return the address of a database with the password of the environment, if it has none."""
    from gateway.cli.data import SOURCE_PASSWORD

    password = os.environ.get(SOURCE_PASSWORD, "")
    scheme, separator, rest = url.partition("://")
    user, at, place = rest.partition("@")
    if password and at and ":" not in user:
        return f"{scheme}{separator}{user}:{quote(password, safe='')}@{place}"
    return url


def _check_node(config: Path) -> "list[Step]":
    """Check everything that the node of a configuration needs."""
    from gateway.bootstrap.engine_parts import engine_of
    from gateway.diagnostics.doctor import look

    # No container has the label of the made-up installation "doctor", so the engine that is made
    # for the checks sees and removes no run.
    make_engine = partial(engine_of, installation="doctor", instance="doctor")
    return look(settings_of(config), make_engine, config)


@command(commands, "migrate", "--check")
def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 1 if a migration is due.")
    ] = False,
    config: options.Config = DEFAULT_CONFIG,
) -> Output:
    """Migrate the database to this version's schema. `serve` does this at its start."""
    from gateway.store.database import schema_revisions

    revisions = schema_revisions(_database_url(config))
    before, newest = revisions
    is_due = not revisions.are_compatible
    migrated = is_due and not check
    if migrated:
        _open_database(config).dispose()  # migrates while it opens
    outcome = {
        "was": before,  # None for a new database
        "newest": newest,
        "migrated": migrated,
    }
    yield outcome, migrated or not is_due
    if not is_due:
        say(f"nothing to do: the schema is {before}")
        return
    if revisions.is_unknown:
        say(f"this version cannot use the schema {before}: it knows those up to {newest}")
        return
    verb = "went" if migrated else "would go"
    say(f"{verb} from {before or 'no schema'} to {newest}")


# ---------------------------------------------------------------- resources


@command(commands, "resources")
def resources(node: Client) -> Output:
    """Show the resources that jobs have reserved at this node and since when, the rest, and which
    jobs wait for resources.
    """
    response = node.get("/api/v1/resources")
    yield response
    kinds = _kinds_at(response)
    _print_totals(response, kinds)
    _print_holders(response, kinds)
    if response["waiting"]:
        columns: Columns = {
            "job": "job_id",
            "priority": "priority",
            "since": "since",
            "why": "reason",
        }
        listing(response, "waiting", columns, title="\nwaiting, in this order")
    for key, meaning in _COUNTS.items():
        if response[key]:
            say(f"{meaning}: {response[key]}")


def _kinds_at(resources: Mapping[str, Any]) -> list[str]:
    """Return the kinds of resources to show: GPUs only if the node has some."""
    totals = [resources["total"]]
    # The total of an engine that has not responded yet is None.
    totals += [engine["total"] or {} for engine in resources.get("engines", [])]
    has_gpu = any(total.get("gpu") for total in totals)
    kinds = list(_KINDS)
    if not has_gpu:
        kinds.remove("gpu")
    return kinds


def _print_totals(
    resources: Mapping[str, Any],
    kinds: Sequence[str],
) -> None:
    """Print a table for each engine; a node with a single engine gets one table without its name.

    The first table shows the main engine. Its disk is the node's whole disk: all engines draw on
    it.
    """
    title = f"node {resources['node']}"
    # Nodes of earlier versions list no engines.
    main_engine, *further_engines = resources.get("engines") or [None]
    if not further_engines:
        _print_amounts(title, resources, kinds)
        return
    _print_amounts(f"{title}, engine {main_engine['engine']}", resources, kinds)
    for engine in further_engines:
        _print_amounts(f"{title}, engine {engine['engine']}", engine, kinds)
        trouble = ": ".join(filter(None, (engine["away"], engine["cause"])))
        if trouble:
            say(trouble)


def _print_amounts(
    title: str,
    amounts: Mapping[str, Any],
    kinds: Sequence[str],
) -> None:
    """Print the total, reserved and remaining amounts of a node or engine, and what other programs
    use.
    """
    keys = ["total", "held"]
    if any(amounts["others"].values()):
        keys.append("others")
    keys.append("remaining")
    rows = [[key, *_texts_of(amounts[key], kinds)] for key in keys]
    table(title, ["", *_headings(kinds)], rows)


def _print_holders(
    resources: Mapping[str, Any],
    kinds: Sequence[str],
) -> None:
    """Print a row for each job and engine with reserved resources."""
    if not resources["holders"]:
        return
    engines = resources.get("engines", [])
    main_engine = engines[0]["engine"] if engines else ""
    rows = []
    for holder in resources["holders"]:
        for engine, amounts in _by_engine(holder, main_engine):
            rows.append([holder["job_id"], engine, *_texts_of(amounts, kinds), holder["since"]])
    table("\nreserved", ["job", "engine", *_headings(kinds), "since"], rows)


def _headings(kinds: Sequence[str]) -> list[str]:
    """Return the headings of the amounts of these kinds."""
    return [_KINDS[kind] for kind in kinds]


def _by_engine(
    holder: Mapping[str, Any],
    main_engine: str,
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each engine with resources reserved by a job, and the amounts.

    ``holder``: the job's reservation, whose own fields are the amounts at the main engine. A
    reservation of nothing is shown at the main engine, as a row of zeros.
    """
    further_engines = holder.get("engines", {})
    uses_main_engine = any(holder.get(kind) for kind in _KINDS)
    if uses_main_engine or not further_engines:
        yield main_engine, holder
    yield from further_engines.items()


def _texts_of(
    amounts: Mapping[str, Any] | None,
    kinds: Sequence[str],
) -> list[str]:
    """Return amounts as text; question marks for None, the amounts of an engine that does not
    respond.
    """
    if amounts is None:
        return ["?"] * len(kinds)
    return [f"{amounts.get(kind, 0):g}" for kind in kinds]


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
    """Show every setting of the running node, its value and the origin of the value.

    Secrets are masked. What each setting means: bfia-gateway docs settings.
    """
    from gateway.config.report import effective

    if file:
        entries = effective(settings_of(config))
    else:
        with connect(config, url) as node:
            entries = node.get("/api/v1/settings")["settings"]
    selected = [entry for entry in entries if contains in entry["path"]]
    if changed:
        selected = [entry for entry in selected if _is_changed(entry)]
    yield {"settings": selected}
    columns: Columns = {
        "setting": "path",
        "value": _value_text,
        "from": _origin,
    }
    listing({"settings": selected}, "settings", columns, noun="setting")


def _is_changed(entry: Mapping[str, Any]) -> bool:
    """True unless a setting has its default value; an older node names only the value's origin."""
    return bool(entry.get("changed", entry["origin"] != "default"))


def _origin(entry: Mapping[str, Any]) -> str:
    """Return the place of a setting, such as the file's line, or the kind of its origin."""
    return str(entry["where"] or entry["origin"])


def _value_text(entry: Mapping[str, Any]) -> str:
    """Return a setting's value as JSON; a text without quotes."""
    value = entry["value"]
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


# ------------------------------------- the node's database, with or without a running node


def store_of(config: Path) -> "Store":
    """Open the node's database, which a running node may be using, too. Raises `Invalid`."""
    from gateway.store.store import Store

    return Store(_open_database(config))


def _database_url(config: Path) -> str:
    """Return the URL of the node's database with its password. Raises `CallFailed`."""
    from gateway.config.secrets import database_url

    try:
        return database_url(settings_of(config))
    except Invalid as error:
        raise invalid_in(config, error) from None


def _open_database(config: Path) -> Any:
    """Migrate the node's database, and return SQLAlchemy's engine for it.

    The folder of a new SQLite file is created.
    """
    from gateway.store.database import open_database

    url = _database_url(config)
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    return open_database(url)


def sign_audit(store: "Store", config: Path) -> None:
    """Sign the newest entry of the audit log if the node has a key. Raises `SigningFailed`."""
    from gateway.config.statement_keys import statement_keys_of
    from gateway.identity.audit_head import HeadFile
    from gateway.store.audit import SqlAudit

    settings = settings_of(config)
    signer = statement_keys_of(settings).signing
    if signer:
        head_file = HeadFile(settings.state_dir)
        SqlAudit(store).sign(settings.node.id, signer, datetime.now(UTC), head_file)


def audit_change(
    store: "Store",
    action: str,
    before: Any,
    after: Any,
) -> None:
    """Record a change that a command made without the operator listener, in the audit log."""
    from gateway.store.audit import SqlAudit

    detail = {"before": before, "after": after}
    SqlAudit(store).add(
        datetime.now(UTC),
        who=f"{who()} (command line)",
        action=action,
        status=200,  # of HTTP, as if the change was a request that succeeded
        code=None,
        detail=detail,
    )
