"""The contract with the platform: variables, tables, reports and callbacks."""

from __future__ import annotations

import csv
import http.client
import json
import os
import re
import time
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

NODE_ID = "config.node_id."
PARAMETER = "runtime.component.parameter."
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
    """Return the header and the rows of an input. Raises `BadInput`."""
    folder = _folder("input", name)
    if folder is None or not folder.is_dir():
        raise BadInput(f"the input {name} is missing")
    files = [file for file in folder.iterdir() if re.fullmatch(r"data_\d+", file.name)]
    header: list[str] = []
    rows: list[list[str]] = []
    for file in sorted(files, key=lambda file: int(file.name.removeprefix("data_"))):
        with file.open(encoding="utf-8", newline="") as text:
            header, *partition = csv.reader(text)
            rows += partition
    if not rows:
        raise BadInput(f"the input {name} has no rows")
    return header, rows


def write_table(
    name: str,
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    id_column: str,
) -> None:
    """Write an output that the job asks for: its data, then its metadata."""
    folder = _output_folder(name)
    if folder is None:
        return
    count = 0
    with (folder / "data_0").open("w", encoding="utf-8", newline="") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            writer.writerow(row)
            count += 1
    metadata = {
        "namespace": folder.parent.name,
        "name": folder.name,
        "count": count,
        "partitions": 1,
        "data_type": "dense",
        "id_column": id_column,
        "column_info": [
            {"name": column, "type": "string" if column == id_column else "float"}
            for column in header
        ],
    }
    (folder / "metadata").write_text(json.dumps(metadata), encoding="utf-8")


def write_json(
    name: str,
    value: Any,
) -> None:
    """Write a report or a model that the job asks for."""
    folder = _output_folder(name)
    if folder is not None:
        (folder / "data_0").write_text(json.dumps(value), encoding="utf-8")


def read_json(name: str) -> Any:
    """Return the content of an input that is a model; None without it. Raises `BadInput`."""
    folder = _folder("input", name)
    if folder is None:
        return None
    try:
        return json.loads((folder / "data_0").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"the input {name} cannot be read: {error}") from None


def _output_folder(name: str) -> Path | None:
    """Return the new folder of an output; None if the job does not ask for it."""
    folder = _folder("output", name)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _folder(
    kind: str,
    name: str,
) -> Path | None:
    text = environment.get(f"runtime.component.{kind}.{name}")
    if not text:
        return None
    address = json.loads(text)
    root = Path(environment["system.storage"].removeprefix("file://"))
    return root / address["namespace"] / address["name"]


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
