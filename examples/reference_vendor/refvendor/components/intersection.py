"""Intersection: every party keeps the rows whose ids all parties have, sorted by id.

The guest talks to each host; hosts do not talk to each other. One side learns the hits first: the guest
under ``rsa`` and ``ecdh``, the side named by ``join_role`` under ``raw``. It tells the others if
``sync_intersect_ids`` is true; else they write an empty table, since they know no hits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refvendor.components import matching
from refvendor.components.links import Link, connect, telling_peers
from refvendor.components.parameters import Reader
from refvendor.contract import BadParameters, Io, Log, Net, Table, Task
from refvendor.crypto import rsa
from refvendor.crypto.hashing import HASHES, available

INPUT, OUTPUT, REPORT = "train_data", "train_data", "train-intersection"
METHODS = ("raw", "rsa", "ecdh")
RAW, RSA, ECDH = METHODS
_ONLY_FOR = {
    "use_hash": RAW,
    "hash_method": RAW,
    "salt": RAW,
    "base64": RAW,
    "join_role": RAW,
    "rsa_params": RSA,
}
_SHOWN_PROBLEMS = 20


@dataclass(frozen=True)
class Settings:
    """What the component was asked to do; ``rsa_bits`` is the key's length."""

    id: str
    method: str
    sync: bool
    only_id: bool
    tagging: matching.Tagging
    join_role: str
    rsa_hash: str
    rsa_final_hash: str
    rsa_bits: int

    def shared(self, task_id: str) -> dict[str, Any]:
        """What both sides must have set alike, by parameter name. The salt goes as a hash."""
        common: dict[str, Any] = {"intersect_method": self.method, "sync_intersect_ids": self.sync}
        if self.method == RSA:
            common |= {
                "rsa_params.hash_method": self.rsa_hash,
                "rsa_params.final_hash_method": self.rsa_final_hash,
                "rsa_params.key_length": self.rsa_bits,
            }
        if self.method == RAW:
            common |= {"join_role": self.join_role, "use_hash": self.tagging.use_hash}
        if self.method == RAW and self.tagging.use_hash:
            salt = hashlib.sha256(f"salt\n{task_id}\n{self.tagging.salt}".encode()).hexdigest()
            common |= {
                "hash_method": self.tagging.hash_method,
                "base64": self.tagging.base64,
                "salt": salt,
            }
        return common


@dataclass(frozen=True)
class Keyed:
    """A table and its rows by id."""

    table: Table
    rows: Mapping[str, Sequence[str]]

    @property
    def ids(self) -> list[str]:
        """The table's ids, in its order."""
        return list(self.rows)


def guest(
    task: Task,
    io: Io,
    net: Net,
    log: Log,
) -> None:
    """The party that every host talks to."""
    settings = read_settings(task, log)
    hosts = task.peers("host")
    links = connect(task, net, hosts, None)
    with telling_peers(list(links.values())):
        keyed = read_rows(io.read_table(INPUT), settings.id)
        counts = {task.me: len(keyed.rows)}
        for host, link in links.items():
            counts[host] = _agree(task, link, settings, len(keyed.rows))
        hits: set[str] | None
        if settings.method == RAW and settings.join_role == "host":
            hits = _passive(links[hosts[0]], keyed, settings)
        else:
            found = {
                host: _match(link, keyed.ids, settings, counts[host])
                for host, link in links.items()
            }
            hits = set(keyed.rows).intersection(*(match.places for match in found.values()))
            if settings.sync:
                for host, link in links.items():
                    found[host].tell(link, hits)
    _write(io, log, keyed, settings, counts, hits)


def host(
    task: Task,
    io: Io,
    net: Net,
    log: Log,
) -> None:
    """One of the parties that talk to the guest."""
    settings = read_settings(task, log)
    guest_name = task.peers("guest")[0]
    link = connect(task, net, [guest_name], None)[guest_name]
    with telling_peers([link]):
        keyed = read_rows(io.read_table(INPUT), settings.id)
        counts = {task.me: len(keyed.rows)}
        counts[guest_name] = rows = _agree(task, link, settings, len(keyed.rows))
        hits: set[str] | None
        if settings.method == RAW and settings.join_role == "host":
            match = matching.raw_collect(link, keyed.ids, settings.tagging, rows)
            hits = set(match.places)
            if settings.sync:
                match.tell(link, hits)
        else:
            hits = _passive(link, keyed, settings, rows)
    _write(io, log, keyed, settings, counts, hits)


def read_settings(task: Task, log: Log) -> Settings:
    """Read all parameters. Raises `BadParameters` naming every one that cannot work, before any message."""
    reader = Reader(task.parameters)
    method = reader.choice("intersect_method", RAW, METHODS, {})
    hashes = available()
    refused = {
        name: "this installation does not compute it" for name in HASHES if name not in hashes
    }
    join_role = reader.choice("join_role", "host", ("guest", "host"), {})
    salt = task.parameters.get("salt", "12345")
    reader.raw("salt")
    if not isinstance(salt, str | int | float) or isinstance(salt, bool):
        reader.refuse("salt", "must be text")
    rsa_params = reader.part("rsa_params")
    bits = rsa_params.integer("key_length", 2048, rsa.SMALLEST_KEY, rsa.LARGEST_KEY)
    if bits % 2:
        rsa_params.refuse("key_length", "must be even")
    settings = Settings(
        id=reader.text("id", "id"),
        method=method,
        sync=reader.flag("sync_intersect_ids", True),
        only_id=reader.flag("only_output_key", True),
        tagging=matching.Tagging(
            use_hash=reader.flag("use_hash", True),
            hash_method=reader.choice("hash_method", "sha256", hashes, refused),
            salt=str(salt),
            base64=reader.flag("base64", True),
        ),
        join_role=join_role,
        rsa_hash=rsa_params.choice("hash_method", "sha256", hashes, refused),
        rsa_final_hash=rsa_params.choice("final_hash_method", "sha256", hashes, refused),
        rsa_bits=bits,
    )
    hosts, guests = len(task.parties.get("host", ())), len(task.parties.get("guest", ()))
    if method == RAW and join_role == "host" and hosts > 1:
        reader.refuse("join_role", f"must be guest when there are {hosts} hosts")
    if guests != 1 or not hosts:
        raise BadParameters(
            f"config.node_id: needs one guest and at least one host, got {guests} and {hosts}"
        )
    reader.finish(log)
    for name, only in _ONLY_FOR.items():
        if name in task.parameters and method != only:
            log(
                "warning",
                "parameter has no effect with this intersect_method",
                parameter=name,
                method=method,
            )
    if method == RAW and not settings.tagging.use_hash:
        log("warning", "use_hash is false: ids are sent to the peer as they are")
    return settings


def read_rows(table: Table, column: str) -> Keyed:
    """The rows by id. Raises `BadParameters` naming a missing column, or the rows without an id of their own."""
    if table.header.count(column) != 1:
        times = "no column" if column not in table.header else "more than one column"
        raise BadParameters(f"id: {INPUT} has {times} {column!r} among its {len(table.header)}")
    place = table.header.index(column)
    rows: dict[str, Sequence[str]] = {}
    first_at: dict[str, int] = {}
    problems = []
    for number, row in enumerate(table.rows, start=1):
        value = row[place] if len(row) == len(table.header) else None
        if value is None:
            problems.append(f"row {number} has {len(row)} cells instead of {len(table.header)}")
        elif not value:
            problems.append(f"row {number} has an empty id")
        elif value in rows:
            problems.append(f"row {number} has the id of row {first_at[value]}")
        else:
            rows[value] = row
            first_at[value] = number
    if problems:
        more = len(problems) - _SHOWN_PROBLEMS
        shown = "; ".join(problems[:_SHOWN_PROBLEMS]) + (f" and {more} more" if more > 0 else "")
        raise BadParameters(
            f"id: every row of {INPUT} needs an id of its own in column {column!r}: {shown}"
        )
    return Keyed(table, rows)


def _agree(
    task: Task,
    link: Link,
    settings: Settings,
    rows: int,
) -> int:
    """Compare settings with a peer; the number of its rows. Raises `BadParameters` naming what differs."""
    mine = settings.shared(task.task_id)
    link.send("settings", {"rows": rows, "settings": mine})
    message = link.expect("settings")
    theirs = message.fields.get("settings")
    theirs = theirs if isinstance(theirs, dict) else {}
    differing = [
        name
        if name == "salt"
        else f"{name} is {mine.get(name)!r} here and {theirs.get(name)!r} there"
        for name in sorted({*mine, *theirs})
        if mine.get(name) != theirs.get(name)
    ]
    if differing:
        raise BadParameters(f"{link.peer} has other parameters: {'; '.join(differing)}")
    return message.integer("rows", 0, 2**32 - 1)


def _match(
    link: Link,
    ids: Sequence[str],
    settings: Settings,
    rows: int,
) -> matching.Matches:
    """Be the side that learns."""
    if settings.method == RSA:
        return matching.rsa_match(
            link, ids, settings.rsa_hash, settings.rsa_final_hash, settings.rsa_bits, rows
        )
    if settings.method == ECDH:
        return matching.curve_match(link, ids, rows)
    return matching.raw_collect(link, ids, settings.tagging, rows)


def _passive(
    link: Link,
    keyed: Keyed,
    settings: Settings,
    rows: int = 0,
) -> set[str] | None:
    """Be the side that learns only what the other sends; None if that is nothing."""
    if settings.method == RSA:
        sent = matching.rsa_sign(
            link, keyed.ids, settings.rsa_hash, settings.rsa_final_hash, settings.rsa_bits, rows
        )
    elif settings.method == ECDH:
        sent = matching.curve_send(link, keyed.ids, rows)
    else:
        sent = matching.raw_send(link, keyed.ids, settings.tagging)
    return matching.received_ids(link, sent) if settings.sync else None


def _write(
    io: Io,
    log: Log,
    keyed: Keyed,
    settings: Settings,
    counts: Mapping[str, int],
    hits: set[str] | None,
) -> None:
    ordered = sorted(hits or ())
    if settings.only_id:
        table = Table([settings.id], [[value] for value in ordered])
    else:
        table = Table(list(keyed.table.header), [list(keyed.rows[value]) for value in ordered])
    found = "" if hits is None else str(len(hits))
    report = [[party, str(counts[party])] for party in sorted(counts)]
    io.write_table(OUTPUT, table)
    io.write_table(REPORT, Table(["party", "count"], [*report, ["intersection", found]]))
    if hits is None:
        log(
            "info",
            "intersection done, hits not shared with this party",
            method=settings.method,
            **counts,
        )
    else:
        log(
            "info",
            "intersection done",
            method=settings.method,
            common=len(hits),
            **counts,
        )
