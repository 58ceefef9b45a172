"""Intersection: every party keeps the rows whose ids all parties have, sorted by id.

The guest talks to each host; hosts do not talk to each other. One side learns the common ids first:
the guest under ``rsa`` and ``ecdh``, the side that ``join_role`` names under ``raw``. It shares
them if ``sync_intersect_ids`` is true; otherwise the other side knows no common id and writes an
empty table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refvendor.components import matching, open_messages, open_psi
from refvendor.components.links import Link, aborting_peers, connect
from refvendor.components.matching import Matches, RsaSettings, Tagging
from refvendor.components.open_psi import OpenLink, OpenSettings
from refvendor.components.parameters import Reader
from refvendor.contract import BadParameters, Io, Log, Net, Table, Task, VendorError
from refvendor.crypto import rsa
from refvendor.crypto.hashing import HASHES, available

INPUT = "train_data"
OUTPUT = "train_data"
REPORT = "train-intersection"
RAW = "raw"
RSA = "rsa"
ECDH = "ecdh"
METHODS = (RAW, RSA, ECDH)
# Protocols of the messages between the parties.
OWN = "own"
OPEN = "open"
# Parameters that have an effect with one method only.
METHOD_OF_PARAMETER = {
    "use_hash": RAW,
    "hash_method": RAW,
    "salt": RAW,
    "base64": RAW,
    "join_role": RAW,
    "rsa_params": RSA,
    "ecdh_params": ECDH,
}
MOST_PROBLEMS_SHOWN = 20
MOST_ROWS = 2**32 - 1


@dataclass(frozen=True)
class Settings:
    """The component's parameters."""

    id_column: str
    method: str
    shares_common_ids: bool
    only_id: bool  # whether the output holds the id column only
    tagging: Tagging
    join_role: str  # the role that learns the common ids first under `RAW`
    rsa: RsaSettings
    protocol: str
    open: OpenSettings

    @property
    def host_learns_first(self) -> bool:
        """True if the host learns the common ids first, not the guest."""
        return self.method == RAW and self.join_role == "host"

    def comparable(
        self,
        task_id: str,
    ) -> dict[str, Any]:
        """Return the settings that must be equal at both sides, by parameter name.

        The salt goes as a hash.
        """
        values: dict[str, Any] = {
            "intersect_method": self.method,
            "sync_intersect_ids": self.shares_common_ids,
        }
        if self.method == RSA:
            values["rsa_params.hash_method"] = self.rsa.hash_method
            values["rsa_params.final_hash_method"] = self.rsa.final_hash_method
            values["rsa_params.key_length"] = self.rsa.key_length
        if self.method == RAW:
            values["join_role"] = self.join_role
            values["use_hash"] = self.tagging.use_hash
        if self.method == RAW and self.tagging.use_hash:
            salt = f"salt\n{task_id}\n{self.tagging.salt}".encode()
            values["hash_method"] = self.tagging.hash_method
            values["base64"] = self.tagging.base64
            values["salt"] = hashlib.sha256(salt).hexdigest()
        return values


@dataclass(frozen=True)
class KeyedRows:
    """A table with its rows by id, in the order of the table."""

    table: Table
    by_id: Mapping[str, Sequence[str]]

    @property
    def ids(self) -> list[str]:
        """The ids in the order of the table."""
        return list(self.by_id)


def guest(
    task: Task,
    io: Io,
    net: Net,
    log: Log,
) -> None:
    """Run as the party that talks to every host."""
    settings = read_settings(task, log)
    if settings.protocol == OPEN:
        _match_openly(task, io, net, log, settings, "host.0")
        return
    links: Mapping[str, Link] = connect(
        task,
        net,
        task.peers("host"),
        None,
    )
    with aborting_peers(list(links.values())):
        rows = read_rows(io.read_table(INPUT), settings.id_column)
        counts = {task.me: len(rows.ids)}
        for peer, link in links.items():
            counts[peer] = _compare_settings(
                task,
                link,
                settings,
                len(rows.ids),
            )
        if settings.host_learns_first:
            (link,) = links.values()  # `read_settings` allows no further host
            common = _help(
                link,
                rows.ids,
                settings,
                counts[link.peer],
            )
        else:
            common = _learn_from_hosts(links, rows.ids, settings, counts)
    _write(io, log, rows, settings, counts, common)


def host(
    task: Task,
    io: Io,
    net: Net,
    log: Log,
) -> None:
    """Run as one of the parties that talk to the guest only."""
    settings = read_settings(task, log)
    (guest_name,) = task.peers("guest")
    if settings.protocol == OPEN:
        _match_openly(task, io, net, log, settings, guest_name)
        return
    link = connect(task, net, [guest_name], None)[guest_name]
    common: set[str] | None
    with aborting_peers([link]):
        rows = read_rows(io.read_table(INPUT), settings.id_column)
        guest_rows = _compare_settings(
            task,
            link,
            settings,
            len(rows.ids),
        )
        if settings.host_learns_first:
            matches = _learn(link, rows.ids, settings, guest_rows)
            common = set(matches.positions)
            if settings.shares_common_ids:
                matches.share(link, common)
        else:
            common = _help(link, rows.ids, settings, guest_rows)
    counts = {
        task.me: len(rows.ids),
        guest_name: guest_rows,
    }
    _write(io, log, rows, settings, counts, common)


def _match_openly(
    task: Task,
    io: Io,
    net: Net,
    log: Log,
    settings: Settings,
    peer: str,
) -> None:
    """Run as either party of the standard's open protocol."""
    link = OpenLink(net, task, peer)
    try:
        rows = read_rows(io.read_table(INPUT), settings.id_column)
    except VendorError:
        if link.rank == open_psi.RESPONDER:
            open_psi.refuse(link)
        raise
    result = open_psi.match(link, rows.ids, settings.open)
    counts = {
        task.me: len(rows.ids),
        peer: result.peer_count,
    }
    _write(io, log, rows, settings, counts, result.common)


# ------------------------------------------------------------ parameters


def read_settings(task: Task, log: Log) -> Settings:
    """Read all parameters.

    Raises `BadParameters` with every invalid one, before any message is sent.
    """
    reader = Reader(task.parameters)
    method = reader.choice("intersect_method", RAW, METHODS)
    join_role = reader.choice("join_role", "host", ("guest", "host"))
    tagging = _read_tagging(reader, task)
    shares_common_ids = reader.flag("sync_intersect_ids", True)
    settings = Settings(
        id_column=reader.text("id", "id"),
        method=method,
        shares_common_ids=shares_common_ids,
        only_id=reader.flag("only_output_key", True),
        tagging=tagging,
        join_role=join_role,
        rsa=_read_rsa_settings(reader),
        protocol=reader.choice("protocol", OWN, (OWN, OPEN)),
        open=_read_open_settings(reader, shares_common_ids),
    )
    _check_parties(task, settings, reader)
    reader.finish(log)
    _warn_of_idle_parameters(task, settings, log)
    return settings


def _read_tagging(reader: Reader, task: Task) -> Tagging:
    reader.raw("salt")  # not `text`, which would strip spaces and replace an empty salt
    salt = task.parameters.get("salt", "12345")
    if not isinstance(salt, str | int | float) or isinstance(salt, bool):
        reader.refuse("salt", "must be text")
    return Tagging(
        use_hash=reader.flag("use_hash", True),
        hash_method=_read_hash(reader, "hash_method"),
        salt=str(salt),
        base64=reader.flag("base64", True),
    )


def _read_rsa_settings(reader: Reader) -> RsaSettings:
    parameters = reader.nested("rsa_params")
    key_length = parameters.integer(
        "key_length",
        2048,
        rsa.SMALLEST_KEY,
        rsa.LARGEST_KEY,
    )
    if key_length % 2:
        parameters.refuse("key_length", "must be even")
    return RsaSettings(
        hash_method=_read_hash(parameters, "hash_method"),
        final_hash_method=_read_hash(parameters, "final_hash_method"),
        key_length=key_length,
    )


def _read_open_settings(reader: Reader, shares_common_ids: bool) -> OpenSettings:
    parameters = reader.nested("ecdh_params")
    curves = parameters.words("curves", tuple(open_psi.SUITES), tuple(open_psi.SUITES))
    if not curves:
        parameters.refuse("curves", f"must name one of {', '.join(open_psi.SUITES)}")
    truncated_bits = parameters.integer(
        "bit_length_after_truncated",
        open_messages.NOT_TRUNCATED,
        open_messages.NOT_TRUNCATED,
        open_psi.MOST_TRUNCATED_BITS,
    )
    is_long_enough = truncated_bits >= open_psi.FEWEST_TRUNCATED_BITS and truncated_bits % 8 == 0
    if truncated_bits != open_messages.NOT_TRUNCATED and not is_long_enough:
        fewest = open_psi.FEWEST_TRUNCATED_BITS
        parameters.refuse(
            "bit_length_after_truncated",
            f"must be -1 or a multiple of 8 from {fewest} to {open_psi.MOST_TRUNCATED_BITS}",
        )
    result_to_rank = open_psi.RESPONDER
    if shares_common_ids:
        result_to_rank = open_messages.EVERY_RANK
    return OpenSettings(
        curves=curves,
        truncated_bits=truncated_bits,
        batch_size=parameters.integer("batch_size", 4096, 1, open_psi.LARGEST_BATCH),
        result_to_rank=result_to_rank,
    )


def _read_hash(reader: Reader, name: str) -> str:
    reasons = dict.fromkeys(HASHES, "this installation does not compute it")
    return reader.choice(name, "sha256", available(), reasons)


def _check_parties(
    task: Task,
    settings: Settings,
    reader: Reader,
) -> None:
    """Check the number of guests and hosts. Raises `BadParameters` for an impossible one."""
    hosts = task.count("host")
    guests = task.count("guest")
    if settings.host_learns_first and hosts > 1:
        reader.refuse("join_role", f"must be guest when there are {hosts} hosts")
    if settings.protocol == OPEN and settings.method != ECDH:
        reader.refuse("protocol", "may be open with the intersect_method ecdh only")
    if settings.protocol == OPEN and hosts > 1:
        reader.refuse("protocol", f"must be own when there are {hosts} hosts")
    if guests != 1 or not hosts:
        raise BadParameters(
            f"config.node_id: needs one guest and at least one host, got {guests} and {hosts}"
        )


def _warn_of_idle_parameters(
    task: Task,
    settings: Settings,
    log: Log,
) -> None:
    for name, method in METHOD_OF_PARAMETER.items():
        if name in task.parameters and settings.method != method:
            log(
                "warning",
                "parameter has no effect with this intersect_method",
                parameter=name,
                method=settings.method,
            )
    if settings.protocol == OWN and settings.method == ECDH and "ecdh_params" in task.parameters:
        log("warning", "parameter has no effect with this protocol", parameter="ecdh_params")
    if settings.method == RAW and not settings.tagging.use_hash:
        log("warning", "use_hash is false: ids are sent to the peer as they are")


# ------------------------------------------------------------ rows


def read_rows(table: Table, column: str) -> KeyedRows:
    """Return the rows by id.

    Raises `BadParameters` for a missing column, and for empty and repeated ids with the numbers of
    their rows.
    """
    occurrences = table.header.count(column)
    if occurrences != 1:
        amount = "more than one column" if occurrences else "no column"
        raise BadParameters(f"id: {INPUT} has {amount} {column!r} among its {len(table.header)}")
    place = table.header.index(column)
    by_id: dict[str, Sequence[str]] = {}
    row_numbers: dict[str, int] = {}
    problems = []
    for number, row in enumerate(table.rows, start=1):
        if len(row) != len(table.header):
            problems.append(f"row {number} has {len(row)} cells instead of {len(table.header)}")
            continue
        value = row[place]
        if not value:
            problems.append(f"row {number} has an empty id")
        elif value in by_id:
            problems.append(f"row {number} has the id of row {row_numbers[value]}")
        else:
            by_id[value] = row
            row_numbers[value] = number
    if problems:
        raise BadParameters(
            f"id: every row of {INPUT} needs an id of its own in column {column!r}: "
            f"{_list(problems)}"
        )
    return KeyedRows(table, by_id)


def _list(problems: Sequence[str]) -> str:
    """Join problems to one text, with a count in place of those beyond the first
    `MOST_PROBLEMS_SHOWN`.
    """
    text = "; ".join(problems[:MOST_PROBLEMS_SHOWN])
    hidden = len(problems) - MOST_PROBLEMS_SHOWN
    if hidden > 0:
        text += f" and {hidden} more"
    return text


# ------------------------------------------------------------ the protocol


def _compare_settings(
    task: Task,
    link: Link,
    settings: Settings,
    rows: int,
) -> int:
    """Compare settings with a peer and return its number of rows.

    Raises `BadParameters` with the names and values that differ, without the salt's value.
    """
    values = settings.comparable(task.task_id)
    link.send("settings", {"rows": rows, "settings": values})
    message = link.expect("settings")
    peer_values = message.fields.get("settings")
    if not isinstance(peer_values, dict):
        peer_values = {}
    differences = []
    for name in sorted({*values, *peer_values}):
        value = values.get(name)
        peer_value = peer_values.get(name)
        if value == peer_value:
            continue
        if name == "salt":
            differences.append(name)
        else:
            differences.append(f"{name} is {value!r} here and {peer_value!r} there")
    if differences:
        raise BadParameters(f"{link.peer} has other parameters: {'; '.join(differences)}")
    return message.integer("rows", 0, MOST_ROWS)


def _learn_from_hosts(
    links: Mapping[str, Link],
    ids: Sequence[str],
    settings: Settings,
    counts: Mapping[str, int],
) -> set[str]:
    """Match with each host and return the ids that all hosts have, after sharing them if the job
    says so.
    """
    matches = {peer: _learn(link, ids, settings, counts[peer]) for peer, link in links.items()}
    common = set(ids)
    for match in matches.values():
        common.intersection_update(match.positions)
    if settings.shares_common_ids:
        for peer, link in links.items():
            matches[peer].share(link, common)
    return common


def _learn(
    link: Link,
    ids: Sequence[str],
    settings: Settings,
    peer_rows: int,
) -> Matches:
    """Run the learning side of the chosen method."""
    if settings.method == RSA:
        return matching.rsa_match(link, ids, settings.rsa, peer_rows)
    if settings.method == ECDH:
        return matching.curve_match(link, ids, peer_rows)
    return matching.raw_collect(link, ids, settings.tagging, peer_rows)


def _help(
    link: Link,
    ids: Sequence[str],
    settings: Settings,
    peer_rows: int,
) -> set[str] | None:
    """Run the helping side of the chosen method.

    Returns the common ids as the learning side shares them, None if it does not.
    """
    if settings.method == RSA:
        sent_ids = matching.rsa_sign(link, ids, settings.rsa, peer_rows)
    elif settings.method == ECDH:
        sent_ids = matching.curve_send(link, ids, peer_rows)
    else:
        sent_ids = matching.raw_send(link, ids, settings.tagging)
    if not settings.shares_common_ids:
        return None
    return matching.receive_common_ids(link, sent_ids)


# ------------------------------------------------------------ outputs


def _write(
    io: Io,
    log: Log,
    rows: KeyedRows,
    settings: Settings,
    counts: Mapping[str, int],
    common: set[str] | None,
) -> None:
    """Write the common rows and the report; ``common`` is None if the ids were not shared with this
    party.
    """
    io.write_table(OUTPUT, _common_rows(rows, settings, sorted(common or ())))
    total = "" if common is None else str(len(common))
    report = [[party, str(count)] for party, count in sorted(counts.items())]
    report.append(["intersection", total])
    io.write_table(
        REPORT,
        Table(["party", "count"], report),
    )
    if common is None:
        message = "intersection done, hits not shared with this party"
        log("info", message, method=settings.method, **counts)
    else:
        log("info", "intersection done", method=settings.method, common=len(common), **counts)


def _common_rows(
    rows: KeyedRows,
    settings: Settings,
    ids: Sequence[str],
) -> Table:
    if settings.only_id:
        header = [settings.id_column]
        cells = [[value] for value in ids]
    else:
        header = list(rows.table.header)
        cells = [list(rows.by_id[value]) for value in ids]
    return Table(
        header,
        cells,
        id_column=settings.id_column,
    )
