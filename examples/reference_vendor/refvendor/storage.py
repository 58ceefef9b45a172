"""Reads and writes tables and reports under ``system.storage``. Only ``file://`` is spoken by this image."""

from __future__ import annotations

import csv
import io
import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from refvendor.contract import StorageFailed, Table
from refvendor.env import Address

METADATA = "metadata"
_PARTITION = "data_"
_LARGEST_CELL = 2**27


class FileIo:
    """An `Io` over a directory: ``<root>/<namespace>/<name>/data_<n>`` beside ``metadata``.

    A plain file ``<root>/<namespace>/<name>`` is read too, never written.
    """

    def __init__(
        self, root: Path, inputs: Mapping[str, Address], outputs: Mapping[str, Address], description: str = ""
    ) -> None:
        self._root = root
        self._inputs = inputs
        self._outputs = outputs
        self._description = description

    def read_table(self, name: str) -> Table:
        """Return an input's rows, all partitions together. Raises `StorageFailed`."""
        address = self._inputs.get(name)
        if address is None:
            raise StorageFailed(f"input {name}: the platform gave no address for it")
        where = f"input {name} ({address.namespace}/{address.name})"
        path = self._path(where, address)
        try:
            metadata = _metadata(path, where)
            texts = [part.read_bytes().decode("utf-8-sig") for part in _partitions(path, where)]
        except UnicodeDecodeError as error:
            raise StorageFailed(f"{where}: is not UTF-8 text ({error.reason})") from error
        except OSError as error:
            raise StorageFailed(f"{where}: cannot be read ({error.strerror})") from error
        return _joined(texts, metadata, where)

    def read_json(self, name: str) -> Any:
        """Return an input's JSON. Raises `StorageFailed`."""
        address = self._inputs.get(name)
        if address is None:
            raise StorageFailed(f"input {name}: the platform gave no address for it")
        where = f"input {name} ({address.namespace}/{address.name})"
        try:
            data = b"".join(part.read_bytes() for part in _partitions(self._path(where, address), where))
            return json.loads(data)
        except OSError as error:
            raise StorageFailed(f"{where}: cannot be read ({error.strerror})") from error
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

    def _write(self, name: str, text: str, kind: str, count: int, columns: list[dict[str, str]]) -> None:
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
            "expire_time": None,
            "file_type": kind,
        }
        files = {f"{_PARTITION}0": text, METADATA: json.dumps(metadata, ensure_ascii=False)}
        target = self._path(where, address)
        try:
            _publish(target, files)
        except OSError as error:
            raise StorageFailed(f"{where}: cannot be written ({error.strerror})") from error

    def _path(self, where: str, address: Address) -> Path:
        for part in (address.namespace, address.name):
            if part in (".", "..") or any(c in "/\\" or ord(c) < 32 for c in part) or len(part.encode()) > 255:
                raise StorageFailed(f"{where}: namespace and name must be plain file names")
        return self._root / address.namespace / address.name


def open_storage(
    url: str, inputs: Mapping[str, Address], outputs: Mapping[str, Address], description: str = ""
) -> FileIo:
    """The storage behind a URL. Raises `StorageFailed` for an engine that this image does not speak."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise StorageFailed("system.storage: is not a URL") from error
    if parts.scheme != "file":
        raise StorageFailed(
            f"system.storage: storage engine {parts.scheme or 'without a name'} is not supported, "
            "this image reads and writes file://"
        )
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise StorageFailed("system.storage: must be file:///<absolute directory>")
    return FileIo(Path(unquote(parts.path)), inputs, outputs, description)


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
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL if every else csv.QUOTE_MINIMAL)
    writer.writerows(rows)
    return text.getvalue()


def _partitions(path: Path, where: str) -> list[Path]:
    if path.is_file():
        return [path]
    numbers = sorted(
        int(entry.name.removeprefix(_PARTITION))
        for entry in (path.iterdir() if path.is_dir() else ())
        if entry.name.removeprefix(_PARTITION).isdecimal() and entry.name.startswith(_PARTITION)
    )
    if not numbers:
        raise StorageFailed(f"{where}: does not exist in the storage")
    if numbers != list(range(len(numbers))):
        missing = next(i for i in range(len(numbers)) if numbers[i] != i)
        raise StorageFailed(f"{where}: partition {_PARTITION}{missing} is missing")
    return [path / f"{_PARTITION}{number}" for number in numbers]


def _metadata(path: Path, where: str) -> dict[str, Any]:
    """The metadata beside the partitions; data without any is read as plain CSV."""
    file = path / METADATA
    if not path.is_dir() or not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise StorageFailed(f"{where}: its metadata is not JSON") from error
    if not isinstance(value, dict):
        raise StorageFailed(f"{where}: its metadata is not a JSON object")
    return value


def _joined(texts: Sequence[str], metadata: Mapping[str, Any], where: str) -> Table:
    """One table of all partitions. Every partition may repeat the header, or only the first has it."""
    partitions = metadata.get("partitions")
    if isinstance(partitions, int) and not isinstance(partitions, bool) and partitions != len(texts):
        raise StorageFailed(f"{where}: metadata says {partitions} partitions, the storage has {len(texts)}")
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


def _publish(target: Path, files: Mapping[str, str]) -> None:
    """Put a complete directory in place in one step; what an earlier attempt left there goes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    mark = secrets.token_hex(8)
    if os.path.ismount(target) or (target.is_dir() and not os.access(target.parent, os.W_OK)):
        _fill(target, files, mark)
        return
    staging = target.parent / f".{mark}.new"
    try:
        staging.mkdir()
        for name, text in files.items():
            (staging / name).write_text(text, encoding="utf-8", newline="")
        if target.exists():
            old = target.parent / f".{mark}.old"
            target.rename(old)
            staging.rename(target)
            _remove(old)
        else:
            staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _fill(target: Path, files: Mapping[str, str], mark: str) -> None:
    """Write into a directory that is itself a mount and cannot be replaced; metadata comes last."""
    for entry in target.iterdir():
        if entry.name not in files:
            _remove(entry)
    for name, text in files.items():
        part = target / f".{mark}.{name}"
        part.write_text(text, encoding="utf-8", newline="")
        part.rename(target / name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
