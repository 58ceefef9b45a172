"""Rows, runs and a plain recorded wire for the tests of the training components."""

from __future__ import annotations

import csv
import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from refvendor.components.links import Message, decode, encode, require_kind
from refvendor.components.training import Rows
from refvendor.contract import PeerTimeout, Table, Task

EXAMPLES = Path(__file__).resolve().parents[2]
SMALL_KEY = {"method": "Paillier", "key_length": 1024}


def breast_cancer(
    part: str,
    rows: int | None = None,
) -> Table:
    """The demo's rows that guest and host both have, sorted by id as Intersection leaves them."""
    tables = {}
    for name in ("guest", "host"):
        with (EXAMPLES / "data" / f"breast_hetero_{name}.csv").open(newline="") as file:
            header, *lines = csv.reader(file)
        tables[name] = Table(header, lines)
    common = {row[0] for row in tables["guest"].rows} & {row[0] for row in tables["host"].rows}
    chosen = sorted(common)[:rows]
    by_id = {row[0]: row for row in tables[part].rows}
    return Table(tables[part].header, [by_id[key] for key in chosen])


def made_up(
    guest: np.ndarray,
    host: np.ndarray,
    labels: np.ndarray,
    missing: bool = False,
) -> tuple[Table, Table]:
    """Tables of the given numbers with columns g0, g1, … and h0, h1, …; zeros become empty if
    ``missing``.
    """
    ids = [f"person-{i:05d}" for i in range(len(labels))]

    def cells(row: np.ndarray) -> list[str]:
        return ["" if missing and value == 0 else repr(float(value)) for value in row]

    return (
        Table(
            ["id", "y", *(f"g{i}" for i in range(guest.shape[1]))],
            [
                [key, str(int(y)), *cells(row)]
                for key, y, row in zip(ids, labels, guest, strict=True)
            ],
        ),
        Table(
            ["id", *(f"h{i}" for i in range(host.shape[1]))],
            [[key, *cells(row)] for key, row in zip(ids, host, strict=True)],
        ),
    )


def random_tables(
    rows: int,
    guest: int,
    host: int,
    seed: int = 7,
) -> tuple[Table, Table]:
    """Normal features with a label that depends on features of both parties."""
    draw = np.random.default_rng(seed)
    a, b = draw.normal(size=(rows, guest)), draw.normal(size=(rows, host))
    u = a[:, 0] - 1.5 * b[:, 0] + 0.7 * b[:, -1] * a[:, -1] + 0.3 * draw.normal(size=rows)
    return made_up(
        a,
        b,
        (u > 0).astype(int),
    )


def a_task(
    parameters: Mapping[str, Any],
    role: str = "guest",
    *further_roles: str,
) -> Task:
    roles = {
        "guest": ["n1"],
        "host": ["n2"],
        **{further: ["n3"] for further in further_roles},
    }
    return Task(
        "a component",
        "task_1",
        role,
        0,
        roles,
        dict(parameters),
    )


def no_log(
    level: str,
    message: str,
    **fields: Any,
) -> None:
    pass


def scores_of(table: Table) -> np.ndarray:
    return np.array([float(row[table.header.index("score")]) for row in table.rows])


def labels_of(table: Table) -> np.ndarray:
    return np.array([float(row[table.header.index("y")]) for row in table.rows])


class PlainWire:
    """Unsealed links between parties; keeps every frame, so that a test reads what a peer can
    read.
    """

    def __init__(self) -> None:
        self.frames: list[tuple[str, str, Message, bytes]] = []
        self._lock = threading.Lock()
        self._queues: dict[tuple[str, str], queue.Queue[bytes]] = {}

    def link(self, me: str, peer: str) -> PlainLink:
        return PlainLink(self, me, peer)

    def queue(
        self,
        source: str,
        to: str,
    ) -> queue.Queue[bytes]:
        with self._lock:
            return self._queues.setdefault(
                (source, to),
                queue.Queue(),
            )

    def put(
        self,
        source: str,
        to: str,
        data: bytes,
    ) -> None:
        with self._lock:
            self.frames.append((source, to, decode(data), data))
        self.queue(source, to).put(data)


class PlainLink:
    def __init__(
        self,
        wire: PlainWire,
        me: str,
        peer: str,
    ) -> None:
        self.peer = peer
        self._wire, self._me = wire, me

    def send(
        self,
        kind: str,
        fields: Mapping[str, Any] | None = None,
        blobs: Sequence[bytes] = (),
    ) -> None:
        self._wire.put(self._me, self.peer, encode(kind, fields or {}, blobs))

    def expect(self, *kinds: str) -> Message:
        try:
            data = self._wire.queue(self.peer, self._me).get(timeout=60)
        except queue.Empty:
            raise PeerTimeout(f"{self.peer} said nothing") from None
        return require_kind(self.peer, decode(data), kinds)


def together(*works: Callable[[], Any]) -> list[Any]:
    """Run the parties' work at the same time; the first error is raised."""
    results: list[Any] = [None] * len(works)
    errors: list[BaseException] = []

    def run(place: int) -> None:
        try:
            results[place] = works[place]()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(
            target=run,
            args=(place,),
            daemon=True,
        )
        for place in range(len(works))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def traces(
    rows: Rows,
    gradients: Sequence[int] = (),
) -> dict[str, list[bytes]]:
    """Return the usual encodings of a party's secrets, as they would look on a wire.

    Short ones are left out: they would be found by accident.
    """
    forms: dict[str, list[bytes]] = {
        "id": [key.encode() for key in rows.ids],
        "feature": [],
        "label": [],
    }
    forms["feature"] += [name.encode() for name in rows.names]
    for value in rows.values.ravel():
        if not np.isnan(value):
            text = repr(float(value)).encode()
            forms["feature"] += [
                np.float64(value).tobytes(),
                np.array(value, ">f8").tobytes(),
            ]
            forms["feature"] += [text] if len(text) >= 6 else []
    if rows.labels is not None:
        y = rows.labels.astype(int)
        for labels in (y, 1 - y):
            bits = labels.astype(np.uint8)
            forms["label"] += [
                bits.tobytes(),
                np.packbits(bits).tobytes(),
                np.packbits(bits, bitorder="little").tobytes(),
                labels.astype(float).tobytes(),
                labels.astype(np.int64).tobytes(),
                json.dumps(labels.tolist()).encode(),
                json.dumps(labels.tolist(), separators=(",", ":")).encode(),
                "".join(str(label) for label in labels.tolist()).encode(),
            ]
    forms["gradient"] = [
        form
        for value in set(gradients)
        if abs(value) > 1 << 16
        for form in (
            str(value).encode(),
            value.to_bytes(
                8,
                "big",
                signed=True,
            ),
            value.to_bytes(
                8,
                "little",
                signed=True,
            ),
        )
    ]
    return forms


def readable(
    forms: Sequence[bytes],
    data: bytes,
) -> list[bytes]:
    """The forms that occur in the data; one pass over the data sorts most of them out."""
    shortest = min((len(form) for form in forms), default=0)
    windows = {data[i : i + shortest] for i in range(len(data) - shortest + 1)}
    return [form for form in forms if form[:shortest] in windows and form in data]
