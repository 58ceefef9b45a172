"""Reads and writes tables and reports under ``system.storage``."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refvendor.contract import StorageFailed, Table
from refvendor.csv_tables import column_type, table_to_text, texts_to_table
from refvendor.env import Address
from refvendor.storage_engines import StorageEngine, open_engine

METADATA = "metadata"
_NUMBERED_PARTITION = re.compile(r"data_([0-9]{1,9})")
NEVER_EXPIRES = 4102444800.0  # 2100-01-01; other vendors' readers need a number
LONGEST_NAME = 255  # bytes


@dataclass(frozen=True)
class InputData:
    """The partitions of an input, and its name in messages."""

    label: str
    partitions: Sequence[bytes]


class StoredIo:
    """An `Io` over a storage engine: partitions ``<namespace>/<name>/data_<n>``, with their
    ``metadata``.

    Plain files ``<namespace>/<name>``, and folders with files of other names, are read too but
    never written.
    """

    def __init__(
        self,
        engine: StorageEngine,
        inputs: Mapping[str, Address],
        outputs: Mapping[str, Address],
        description: str = "",
        input_engine: StorageEngine | None = None,
    ) -> None:
        """``description`` is written to the metadata of outputs.

        ``input_engine``: where the inputs are, if not in ``engine``.
        """
        self._engine = engine
        self._input_engine = input_engine or engine
        self._inputs = inputs
        self._outputs = outputs
        self._description = description

    def read_table(self, name: str) -> Table:
        """Return an input's rows from all partitions. Raises `StorageFailed`."""
        data = self._read(name)
        try:
            texts = [partition.decode("utf-8-sig") for partition in data.partitions]
        except UnicodeDecodeError as error:
            raise StorageFailed(f"{data.label}: is not UTF-8 text ({error.reason})") from error
        return texts_to_table(texts, data.label)

    def read_json(self, name: str) -> Any:
        """Return an input's JSON value. Raises `StorageFailed`."""
        data = self._read(name)
        try:
            return json.loads(b"".join(data.partitions))
        except (ValueError, RecursionError) as error:
            raise StorageFailed(f"{data.label}: is not JSON") from error

    def write_table(self, name: str, table: Table) -> None:
        """Write a table as CSV, with its columns in the metadata. Raises `StorageFailed`."""
        if name not in self._outputs:
            return
        columns = []
        for place, column in enumerate(table.header):
            cells = [row[place] for row in table.rows]
            # Ids are text, even where they look like numbers: 007 is not 7.
            type_name = "string" if column == table.id_column else column_type(cells)
            columns.append({"name": column, "type": type_name})
        metadata = {
            "file_type": "csv",
            "count": len(table.rows),
            "column_info": columns,
            "id_column": table.id_column or None,
        }
        self._write(name, table_to_text(table), metadata)

    def write_json(self, name: str, value: Any) -> None:
        """Write a value as JSON. Raises `StorageFailed`."""
        if name not in self._outputs:
            return
        text = json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
        count = len(value) if isinstance(value, list) else 1
        self._write(
            name,
            text,
            {
                "file_type": "json",
                "count": count,
                "column_info": [],
            },
        )

    def _write(
        self,
        name: str,
        text: str,
        metadata: Mapping[str, Any],
    ) -> None:
        """Write the only partition of an output, then its metadata."""
        address = self._outputs[name]
        label = _label("output", name, address)
        common = {
            "name": address.name,
            "namespace": address.namespace,
            "partitions": 1,
            "data_type": "dense",
            "description": self._description,
            "create_time": time.time(),
            "expire_time": NEVER_EXPIRES,
        }
        content = {
            _partition_name(0): text.encode(),
            METADATA: json.dumps({**common, **metadata}, ensure_ascii=False).encode(),
        }
        path = _path(address, label, [address.namespace])
        try:
            self._engine.publish(path, content)
        except OSError as error:
            raise StorageFailed(f"{label}: cannot be written ({error.strerror})") from error

    def _read(self, name: str) -> InputData:
        address = self._inputs.get(name)
        if address is None:
            raise StorageFailed(f"input {name}: the platform gave no address for it")
        label = _label("input", name, address)
        # The namespace of a table that other programs wrote may be a path.
        path = _path(
            address,
            label,
            address.namespace.split("/"),
        )
        try:
            return InputData(label, self._read_partitions(path, label))
        except OSError as error:
            raise StorageFailed(f"{label}: cannot be read ({error.strerror})") from error

    def _read_partitions(
        self,
        path: str,
        label: str,
    ) -> list[bytes]:
        """Return as many partitions as the metadata says; without metadata, all that the folder
        has.
        """
        count = self._read_metadata(path, label).get("partitions")
        if isinstance(count, int) and not isinstance(count, bool):
            names = [_partition_name(number) for number in range(count)]
        else:
            names = self._list_partitions(path)
        if not names:
            return [self._read_plain_file(path, label)]
        return [self._read_partition(path, name, label) for name in names]

    def _list_partitions(self, path: str) -> list[str]:
        """Return all partitions up to the highest number; without any, other files that may hold
        rows.
        """
        names = self._input_engine.names(path)
        matches = [_NUMBERED_PARTITION.fullmatch(name) for name in names]
        numbers = [int(match[1]) for match in matches if match is not None]
        if numbers:
            return [_partition_name(number) for number in range(max(numbers) + 1)]
        return sorted(name for name in names if _may_hold_rows(name))

    def _read_plain_file(self, path: str, label: str) -> bytes:
        try:
            return self._input_engine.read(path)
        except FileNotFoundError:
            raise StorageFailed(f"{label}: does not exist in the storage") from None

    def _read_partition(
        self,
        path: str,
        name: str,
        label: str,
    ) -> bytes:
        try:
            return self._input_engine.read(f"{path}/{name}")
        except FileNotFoundError:
            raise StorageFailed(f"{label}: partition {name} is missing") from None

    def _read_metadata(
        self,
        path: str,
        label: str,
    ) -> dict[str, Any]:
        """Return the metadata of an input, empty if there is none."""
        try:
            value = json.loads(self._input_engine.read(f"{path}/{METADATA}"))
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError) as error:
            raise StorageFailed(f"{label}: its metadata is not JSON") from error
        if not isinstance(value, dict):
            raise StorageFailed(f"{label}: its metadata is not a JSON object")
        return value


def open_storage(
    url: str,
    inputs: Mapping[str, Address],
    outputs: Mapping[str, Address],
    description: str = "",
    input_url: str = "",
) -> StoredIo:
    """Return the storage behind a URL; ``input_url``: where the inputs are, if elsewhere.

    Raises `StorageFailed` for a URL that this image does not support.
    """
    input_engine = None
    if input_url:
        input_engine = open_engine(input_url)
    return StoredIo(open_engine(url), inputs, outputs, description, input_engine)


def _label(
    direction: str,
    name: str,
    address: Address,
) -> str:
    """Return the name of an input or output in messages."""
    return f"{direction} {name} ({address.namespace}/{address.name})"


def _partition_name(number: int) -> str:
    return f"data_{number}"


def _may_hold_rows(name: str) -> bool:
    """True for files that may be part of a table; like other readers, this one skips ``_SUCCESS``
    and ``.crc``.
    """
    is_folder = name.endswith("/")
    return not is_folder and name != METADATA and not name.startswith((".", "_")) and bool(name)


def _path(
    address: Address,
    label: str,
    folders: Sequence[str],
) -> str:
    """Return the path of an address whose namespace consists of ``folders``.

    Raises `StorageFailed` if a name is not safe as a file name.
    """
    if not all(_is_file_name(name) for name in (*folders, address.name)):
        raise StorageFailed(f"{label}: namespace and name must be plain file names")
    return f"{address.namespace}/{address.name}"


def _is_file_name(name: str) -> bool:
    if name in ("", ".", "..") or len(name.encode()) > LONGEST_NAME:
        return False
    return not any(character in "/\\" or ord(character) < 32 for character in name)
