"""Measures what the channel takes of a training: jobs of the reference vendor, each of its calls
timed.
"""

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e import jobs
from tests.e2e.nodes import VENDOR, VENDOR_COMMAND, Federation, example, process_engine

Row = tuple[str, float, float, int]


def trainings(
    home: Path,
    rows: int,
    columns: int,
) -> Iterator[Row]:
    """Yield component, seconds, seconds within the channel and messages of each task at three
    nodes.
    """
    home.joinpath("calls").mkdir()
    line = [
        VENDOR_COMMAND[0],
        str(Path(__file__).with_name("timed_vendor.py")),
        str(home / "calls"),
        str(VENDOR),
    ]
    federation = Federation(
        home / "nodes",
        [jobs.GUEST, jobs.HOST, jobs.ARBITER],
        process_engine("unionpay:2.0.0", command=line),
    )
    with federation:
        for node in federation.nodes.values():
            node.register(example("register_unionpay.json"))
        for party, node in (("guest", federation[jobs.GUEST]), ("host", federation[jobs.HOST])):
            file = home / f"{party}.csv"
            made_up(file, rows, columns // 2, labelled=party == "guest")
            meta = {"label_name": "y"} if party == "guest" else {}
            node.upload(file, "testspace", f"test_{party}", meta=meta)
        guest = federation[jobs.GUEST]
        for body in (
            jobs.lr_job(jobs.GUEST, jobs.HOST, jobs.ARBITER, max_iter=2),
            jobs.quick_job(jobs.GUEST, jobs.HOST),
        ):
            guest.wait_job(guest.submit(body), 3600)
        yield from measured(home / "calls")


def made_up(
    file: Path,
    rows: int,
    columns: int,
    *,
    labelled: bool,
) -> None:
    """Write a table of noise in which the first column tells the label."""
    chance = random.Random(columns + labelled)
    with file.open("w", encoding="utf-8") as table:
        table.write(
            ",".join(["id", *(["y"] if labelled else []), *(f"x{n}" for n in range(columns))])
            + "\n"
        )
        for row in range(rows):
            values = [chance.gauss(0, 1) for _ in range(columns)]
            label = [str(int(values[0] + chance.gauss(0, 1) > 0))] if labelled else []
            table.write(",".join([str(row), *label, *(f"{value:.3f}" for value in values)]) + "\n")


def measured(folder: Path) -> Iterator[Row]:
    """Yield the figures of each task whose parties wrote their calls into a folder.

    A message takes the channel's time while its sender waits for the push, and from then until its
    reader, who has asked for it, has it. These are added up, so that of messages that pass at the
    same time both count.
    """
    tasks: defaultdict[str, list[Any]] = defaultdict(list)
    for file in sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime):
        tasks[file.name.partition(".")[0]].append(json.loads(file.read_text()))
    for parties in tasks.values():
        spans: dict[str, dict[str, tuple[float, float]]] = {"push": {}, "pop": {}}
        for party in parties:
            for verb, topic, began, ended in party["calls"]:
                spans.setdefault(verb, {})[topic] = (began, ended)
        inside = 0.0
        for topic, (began, ended) in spans["push"].items():
            asked, got = spans["pop"].get(topic, (ended, ended))
            inside += ended - began + max(0.0, got - max(asked, ended))
        lasted = max(party["ended"] for party in parties) - min(party["began"] for party in parties)
        yield parties[0]["component"], lasted, inside, len(spans["push"])
