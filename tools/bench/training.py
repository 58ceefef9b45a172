"""Measures the channel's part in trainings: jobs of the reference vendor with timed calls."""

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e import jobs
from tests.e2e.nodes import VENDOR, VENDOR_COMMAND, Federation, example, process_engine

_LR_ITERATIONS = 2
_JOB_TIMEOUT = 3600  # seconds


class TaskTimes(NamedTuple):
    """The times of a task."""

    component: str
    seconds: float
    channel_seconds: float
    messages: int


def trainings(
    home: Path,
    rows: int,
    columns: int,
) -> Iterator[TaskTimes]:
    """Run trainings at three nodes, on tables of noise, and yield the times of each task."""
    calls_folder = home / "calls"
    calls_folder.mkdir()
    federation = _federation(home / "nodes", calls_folder)
    with federation:
        for node in federation.nodes.values():
            node.register(example("register_unionpay.json"))
        guest = federation[jobs.GUEST]
        guest_file = home / "guest.csv"
        write_noise(
            guest_file,
            rows,
            columns // 2,
            has_label=True,
        )
        guest.upload(
            guest_file,
            "testspace",
            "test_guest",
            meta={"label_name": "y"},
        )
        host_file = home / "host.csv"
        write_noise(
            host_file,
            rows,
            columns // 2,
            has_label=False,
        )
        federation[jobs.HOST].upload(
            host_file,
            "testspace",
            "test_host",
            meta={},
        )
        for body in (
            jobs.lr_job(
                jobs.GUEST,
                jobs.HOST,
                jobs.ARBITER,
                max_iter=_LR_ITERATIONS,
            ),
            jobs.quick_job(jobs.GUEST, jobs.HOST),
        ):
            guest.wait_job(guest.submit(body), _JOB_TIMEOUT)
        yield from task_times(calls_folder)


def _federation(home: Path, calls_folder: Path) -> Federation:
    """Return three nodes whose containers record their calls in a folder."""
    program = str(Path(__file__).with_name("timed_vendor.py"))
    command = [VENDOR_COMMAND[0], program, str(calls_folder), str(VENDOR)]
    engine = process_engine("unionpay:2.0.0", command=command)
    return Federation(
        home,
        [jobs.GUEST, jobs.HOST, jobs.ARBITER],
        engine,
    )


def write_noise(
    file: Path,
    rows: int,
    columns: int,
    *,
    has_label: bool,
) -> None:
    """Write a table of noise; its label depends on the first column."""
    chance = random.Random(columns + has_label)
    headings = ["id", *(f"x{number}" for number in range(columns))]
    if has_label:
        headings.insert(1, "y")
    with file.open("w", encoding="utf-8") as table:
        table.write(",".join(headings) + "\n")
        for row in range(rows):
            values = [chance.gauss(0, 1) for _ in range(columns)]
            cells = [str(row), *(f"{value:.3f}" for value in values)]
            if has_label:
                label = int(values[0] + chance.gauss(0, 1) > 0)
                cells.insert(1, str(label))
            table.write(",".join(cells) + "\n")


def task_times(folder: Path) -> Iterator[TaskTimes]:
    """Yield the times of each task whose parties recorded their calls in a folder."""
    parties_by_task: defaultdict[str, list[Any]] = defaultdict(list)
    for file in sorted(folder.iterdir(), key=_modified_at):
        task_id, _, _ = file.name.partition(".")
        parties_by_task[task_id].append(json.loads(file.read_text()))
    for parties in parties_by_task.values():
        start = min(party["began"] for party in parties)
        end = max(party["ended"] for party in parties)
        channel_seconds, messages = _channel_times(parties)
        yield TaskTimes(
            parties[0]["component"],
            end - start,
            channel_seconds,
            messages,
        )


def _modified_at(file: Path) -> float:
    return file.stat().st_mtime


def _channel_times(parties: list[Any]) -> tuple[float, int]:
    """Return the channel's seconds of a task, and the number of its messages.

    A message takes time while its sender waits for the push, and then until its reader, if that
    waits, has received it. Times of concurrent messages are added up.
    """
    calls: dict[str, dict[str, tuple[float, float]]] = {
        "push": {},
        "pop": {},
    }
    for party in parties:
        for verb, topic, start, end in party["calls"]:
            calls.setdefault(verb, {})[topic] = (start, end)
    seconds = 0.0
    for topic, (start, end) in calls["push"].items():
        pop_start, pop_end = calls["pop"].get(
            topic,
            (end, end),
        )
        seconds += end - start
        seconds += max(0.0, pop_end - max(pop_start, end))
    return seconds, len(calls["push"])
