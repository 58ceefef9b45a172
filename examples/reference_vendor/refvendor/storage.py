"""Reads and writes tables and reports under ``system.storage``."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from refvendor.contract import StorageFailed, Table
from refvendor.env import Address
from refvendor.places import Place, open_place

METADATA = "metadata"
_PARTITION = "data_"
_NUMBERED = re.compile(r"data_([0-9]{1,9})")
_LARGEST_CELL = 2**27
_NEVER_EXPIRES = 4102444800.0  # 2100-01-01; other vendors' readers need a number


class StoredIo:
    """An `Io` over a place: ``<namespace>/<name>/data_<n>`` beside ``metadata``.

    A plain file ``<namespace>/<name>`` and files of other names in a folder are read too, never written.
    """

    def __init__(
        self,
        place: Place,
        inputs: Mapping[str, Address],
        outputs: Mapping[str, Address],
        description: str = "",
    ) -> None:
        self._place = place
        self._inputs = inputs
        self._outputs = outputs
        self._description = description

    def read_table(self, name: str) -> Table:
        """Return an input's rows, all partitions together. Raises `StorageFailed`."""
        where, partitions = self._read(name)
        try:
            texts = [data.decode("utf-8-sig") for data in partitions]
        except UnicodeDecodeError as error:
            raise StorageFailed(f"{where}: is not UTF-8 text ({error.reason})") from error
        return _joined(texts, where)

    def read_json(self, name: str) -> Any:
        """Return an input's JSON. Raises `StorageFailed`."""
        where, partitions = self._read(name)
        try:
            return json.loads(b"".join(partitions))
        except (ValueError, RecursionError) as error:
            raise StorageFailed(f"{where}: is not JSON") from error

    def write_table(self, name: str, table: Table) -> None:
        """Write a table as CSV, with its columns in the metadata; nothing for an output that nobody wants."""
        if name not in self._outputs:
            return
        text = _csv([table.header, *table.rows])
        columns = [
            {"name": column, "type": column_type([row[i] for row in table.rows])}
            for i, column in enumerate(table.header)
        ]
        self._write(name, text, "csv", len(table.rows), columns)

    def write_json(self, name: str, value: Any) -> None:
        """Write a value as JSON; nothing for an output that nobody wants."""
        if name not in self._outputs:
            return
        text = json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
        self._write(name, text, "json", len(value) if isinstance(value, list) else 1, [])

    def _write(
        self,
        name: str,
        text: str,
        kind: str,
        count: int,
        columns: list[dict[str, str]],
    ) -> None:
        address = self._outputs[name]
        where = f"output {name} ({address.namespace}/{address.name})"
        metadata = {
            "name": address.name,
            "namespace": address.namespace,
            "count": count,
            "partitions": 1,
            "column_info": columns,
            "data_type": "dense",
            "description": self._description,
            "create_time": time.time(),
            "expire_time": _NEVER_EXPIRES,
            "file_type": kind,
        }
        files = {
            f"{_PARTITION}0": text.encode(),
            METADATA: json.dumps(metadata, ensure_ascii=False).encode(),
        }
        try:
            self._place.publish(_path(where, address), files)
        except OSError as error:
            raise StorageFailed(f"{where}: cannot be written ({error.strerror})") from error

    def _read(self, name: str) -> tuple[str, list[bytes]]:
        """Return an input's name for messages, and its partitions."""
        address = self._inputs.get(name)
        if address is None:
            raise StorageFailed(f"input {name}: the platform gave no address for it")
        where = f"input {name} ({address.namespace}/{address.name})"
        path = _path(where, address, nested=True)
        try:
            return where, self._partitions(path, where)
        except OSError as error:
            raise StorageFailed(f"{where}: cannot be read ({error.strerror})") from error

    def _partitions(self, path: str, where: str) -> list[bytes]:
        """Read as many partitions as the metadata says; without it, those that are there."""
        count = self._metadata(path, where).get("partitions")
        if not isinstance(count, int) or isinstance(count, bool):
            names = self._place.names(path)
            found = [_NUMBERED.fullmatch(name) for name in names]
            count = max((int(match[1]) for match in found if match), default=-1) + 1
            if count < 1 and (others := sorted(name for name in names if _is_part(name))):
                return [
                    self._place.read(f"{path}/{name}") for name in others
                ]  # a table that others wrote
        if count < 1:
            try:
                return [self._place.read(path)]
            except FileNotFoundError:
                raise StorageFailed(f"{where}: does not exist in the storage") from None
        partitions = []
        for number in range(count):
            try:
                partitions.append(self._place.read(f"{path}/{_PARTITION}{number}"))
            except FileNotFoundError:
                raise StorageFailed(f"{where}: partition {_PARTITION}{number} is missing") from None
        return partitions

    def _metadata(self, path: str, where: str) -> dict[str, Any]:
        """The metadata beside the partitions; data without any is read as plain CSV."""
        try:
            value = json.loads(self._place.read(f"{path}/{METADATA}"))
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError) as error:
            raise StorageFailed(f"{where}: its metadata is not JSON") from error
        if not isinstance(value, dict):
            raise StorageFailed(f"{where}: its metadata is not a JSON object")
        return value


def open_storage(
    url: str,
    inputs: Mapping[str, Address],
    outputs: Mapping[str, Address],
    description: str = "",
) -> StoredIo:
    """The storage behind a URL. Raises `StorageFailed` for an engine that this image does not speak."""
    return StoredIo(open_place(url), inputs, outputs, description)


def column_type(cells: Sequence[str]) -> str:
    """The narrowest of int, float, boolean and string that fits every cell that is not empty."""
    filled = [cell for cell in cells if cell]
    if not filled:
        return "string"
    if all(cell.lower() in ("true", "false") for cell in filled):
        return "boolean"
    for kind, parse in (("int", int), ("float", float)):
        try:
            for cell in filled:
                parse(cell)
        except ValueError:
            continue
        return kind
    return "string"


def _csv(rows: Sequence[Sequence[str]]) -> str:
    # The writer sees no need to quote a carriage return, but the reader ends a line there.
    every = any("\r" in cell for row in rows for cell in row)
    text = io.StringIO()
    writer = csv.writer(
        text, lineterminator="\n", quoting=csv.QUOTE_ALL if every else csv.QUOTE_MINIMAL
    )
    writer.writerows(rows)
    return text.getvalue()


def _is_part(name: str) -> bool:
    """Whether a file of a folder without ``data_0`` holds rows; as elsewhere, ``_SUCCESS`` and ``.crc`` do not."""
    return bool(name) and name[0] not in "._" and not name.endswith("/") and name != METADATA


def _path(
    where: str,
    address: Address,
    *,
    nested: bool = False,
) -> str:
    """Return where an address lies; ``nested``: in a table that others wrote, the namespace may be a path."""
    folders = address.namespace.split("/") if nested else [address.namespace]
    for part in (*folders, address.name):
        if (
            part in ("", ".", "..")
            or any(c in "/\\" or ord(c) < 32 for c in part)
            or len(part.encode()) > 255
        ):
            raise StorageFailed(f"{where}: namespace and name must be plain file names")
    return f"{address.namespace}/{address.name}"


def _joined(texts: Sequence[str], where: str) -> Table:
    """One table of all partitions. Every partition may repeat the header, or only the first has it."""
    csv.field_size_limit(_LARGEST_CELL)
    header: list[str] = []
    rows: list[list[str]] = []
    problems = []
    for number, text in enumerate(texts):
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        first = True
        try:
            for row in reader:
                if not row:
                    continue
                repeats_header = first and row == header
                first = False
                if not header:
                    header = row
                elif repeats_header:
                    continue
                elif len(row) != len(header):
                    problems.append(
                        f"partition {number} line {reader.line_num} has {len(row)} cells instead of {len(header)}"
                    )
                else:
                    rows.append(row)
        except csv.Error as error:
            problems.append(f"partition {number} line {reader.line_num} is not CSV ({error})")
    if not header:
        problems.append("has no header line")
    if problems:
        more = f" and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise StorageFailed(f"{where}: {'; '.join(problems[:20])}{more}")
    return Table(header=header, rows=rows)
