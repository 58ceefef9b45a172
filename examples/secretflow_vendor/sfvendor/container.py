"""The contract with the platform: variables, tables, reports and callbacks."""

from __future__ import annotations

import contextlib
import csv
import http.client
import io
import json
import os
import re
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sfvendor.storage import Storage, StorageFailed, open_storage

NODE_ID = "config.node_id."
PARAMETER = "runtime.component.parameter."
METADATA = "metadata"
REPORT_SECONDS = 60.0  # for which a callback is repeated: the gateway may be restarting
PAUSE = 1.0  # seconds before it is repeated

environment = dict(os.environ)


class BadInput(Exception):
    """A table or a parameter cannot be used."""


def role() -> str:
    """Return the party that this container runs for, such as ``guest.0``."""
    return environment["config.self_role"]


def party_nodes() -> list[tuple[str, str]]:
    """Return parties and their nodes, sorted by party."""
    parties = []
    for name, node in environment.items():
        if name.startswith(NODE_ID) and node:
            parties.append((name.removeprefix(NODE_ID), node))
    return sorted(parties)


def parameter(name: str, default: str) -> str:
    """Return a parameter as text."""
    return environment.get(PARAMETER + name, default)


def number(
    name: str,
    default: float,
    smallest: float,
) -> float:
    """Return a parameter as a number. Raises `BadInput`."""
    text = parameter(name, str(default))
    try:
        value = float(text)
    except ValueError:
        raise BadInput(f"{name}: {text!r} is not a number") from None
    if not smallest <= value < float("inf"):
        raise BadInput(f"{name}: must be at least {smallest:g}, got {text}")
    return value


def choice(name: str, allowed: Sequence[str]) -> str:
    """Return a parameter that is one of these texts, the first by default. Raises `BadInput`."""
    value = parameter(name, allowed[0])
    if value not in allowed:
        raise BadInput(f"{name}: must be one of {', '.join(allowed)}, got {value!r}")
    return value


# ------------------------------------------------------------ storage


def read_table(name: str) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of an input. Raises `BadInput` and `StorageFailed`."""
    path = path_of("input", name)
    if path is None:
        raise BadInput(f"the input {name} is missing")
    header: list[str] = []
    rows: list[list[str]] = []
    with naming(f"the input {name} cannot be read"):
        storage = storage_of_run()
        for file in partitions_of(storage, path):
            content = read_file(storage, path, file)
            try:
                header, *partition = csv.reader(io.StringIO(content))
            except (csv.Error, ValueError):
                raise BadInput(f"the input {name} is not a table: see its {file}") from None
            rows += partition
    if not rows:
        raise BadInput(f"the input {name} has no rows")
    return header, rows


def partitions_of(storage: Storage, path: str) -> list[str]:
    """Return the names of a table's files in order. Raises `StorageFailed`.

    Their number is in the metadata, which not every table has.
    """
    names = storage.names(path)
    count = sum(bool(re.fullmatch(r"data_\d+", name)) for name in names)
    if METADATA in names:
        metadata = read_file(storage, path, METADATA)
        try:
            count = int(json.loads(metadata).get("partitions", count))
        except (ValueError, TypeError, AttributeError):
            raise StorageFailed("its metadata is invalid") from None
    return [f"data_{number}" for number in range(max(count, 1))]


def read_file(storage: Storage, path: str, name: str) -> str:
    """Return the text of a file of an input. Raises `StorageFailed`."""
    with naming(name):
        try:
            return storage.read(f"{path}/{name}").decode()
        except UnicodeDecodeError:
            raise StorageFailed("it is not UTF-8 text") from None


def write_table(
    name: str,
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    id_column: str,
) -> None:
    """Write an output that the job asks for: its data, then its metadata.

    Raises `StorageFailed`.
    """
    path = path_of("output", name)
    if path is None:
        return
    namespace, _, table_name = path.rpartition("/")
    rows = list(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    metadata = {
        "namespace": namespace,
        "name": table_name,
        "count": len(rows),
        "partitions": 1,
        "data_type": "dense",
        "id_column": id_column,
        "column_info": [
            {"name": column, "type": "string" if column == id_column else "float"}
            for column in header
        ],
    }
    write_files(name, path, {"data_0": text.getvalue(), METADATA: json.dumps(metadata)})


def write_json(
    name: str,
    value: Any,
) -> None:
    """Write a report or a model that the job asks for. Raises `StorageFailed`."""
    path = path_of("output", name)
    if path is not None:
        write_files(name, path, {"data_0": json.dumps(value)})


def write_files(name: str, path: str, files: Mapping[str, str]) -> None:
    """Write the files of an output, one after the other. Raises `StorageFailed`."""
    with naming(f"the output {name} cannot be written"):
        storage = storage_of_run()
        for file, text in files.items():
            with naming(file):
                storage.write(f"{path}/{file}", text.encode())


def read_json(name: str) -> Any:
    """Return the content of an input that is a model; None without it.

    Raises `BadInput` and `StorageFailed`.
    """
    path = path_of("input", name)
    if path is None:
        return None
    with naming(f"the input {name} cannot be read"):
        storage = storage_of_run()
        text = read_file(storage, path, "data_0")
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadInput(f"the input {name} is not JSON: {error}") from None


def storage_of_run() -> Storage:
    """Return the storage of the inputs and outputs. Raises `StorageFailed`."""
    return open_storage(environment.get("system.storage", ""))


def path_of(
    kind: str,
    name: str,
) -> str | None:
    """Return the path of an input or output in the storage; None if the job has none."""
    text = environment.get(f"runtime.component.{kind}.{name}")
    if not text:
        return None
    address = json.loads(text)
    return f"{address['namespace']}/{address['name']}"


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Say in the text of a `StorageFailed` what has failed."""
    try:
        yield
    except StorageFailed as error:
        raise StorageFailed(f"{what}: {error}") from None


# ------------------------------------------------------------ callbacks


def report(
    status: str,
    code: str = "",
    message: str = "",
) -> None:
    """Tell the platform the state of this run."""
    body = {
        "task_id": environment["config.task_id"],
        "role": role(),
        "status": status,
        "result_code": code,
        "result_message": message,
    }
    request = urllib.request.Request(
        environment["system.callback"],
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    end = time.monotonic() + REPORT_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30):
                return
        except (OSError, http.client.HTTPException):
            if time.monotonic() > end:
                raise
        time.sleep(PAUSE)
