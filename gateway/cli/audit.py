"""``bfia-gateway audit …``: who requested which change; the log as a file, and whether it is as it was written."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from gateway.cli.client import DEFAULT_CONFIG, EXIT_BAD_INPUT, CallFailed, Client, settings_of
from gateway.cli.command import AfterNumber, Config, Limit, Output, command
from gateway.cli.console import Columns, compact, difference, listing, say, when
from gateway.cli.node import sign_audit, store_of
from gateway.errors import counted

if TYPE_CHECKING:
    from gateway.identity.chain import Line


class _OrList(TyperGroup):
    """Lists where no command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else ["list", *args])


commands = typer.Typer(name="audit", help="Who requested which change, and what became of it.", cls=_OrList)


@command(commands, "list", "--action grants --since 2026-11-01")
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


@command(commands, "export", "> audit.jsonl")
def export(config: Config = DEFAULT_CONFIG) -> None:
    """Sign the audit log, and print all of it, the oldest line first: a JSON object per line.

    Keep such files where nobody can reach them who can write the node's database.
    """
    from gateway.store.audit import SqlAudit

    with closing(store_of(config)) as store:
        sign_audit(store, config)
        for line in SqlAudit(store).lines():
            sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")


@command(commands, "verify", "audit.jsonl --keys our-keys.pem")
def verify(
    file: Annotated[Path | None, typer.Argument(help="What was exported; default: the node's database.")] = None,
    keys: Annotated[
        Path | None, typer.Option(help="The node's public keys (identity export); default: those that it has now.")
    ] = None,
    config: Config = DEFAULT_CONFIG,
) -> Output:
    """Find lines of the audit log that were changed, removed, added or moved. Exit code 1: there are some."""
    from gateway.identity.chain import verified
    from gateway.identity.keys import Keyring
    from gateway.store.audit import SqlAudit
    from route_table.document import public_keys

    try:
        if keys is None:
            trusted = [pair.public for pair in Keyring(settings_of(config).state_dir).pairs.values()]
        else:
            trusted = list(public_keys(keys.read_text(encoding="utf-8")))
        if file is None:
            with closing(store_of(config)) as store:
                found = verified(SqlAudit(store).lines(), trusted)
        else:
            found = verified(_exported(file), trusted)
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
