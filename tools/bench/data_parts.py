"""Trainings, and tables on their way into and out of a storage."""

import argparse
import os
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from tests import storages
from tests.e2e.nodes import Federation, Node
from tools.bench.nodes import GUEST, PROCESS_ENGINE, two_nodes
from tools.bench.parts import Rows, part, rounds_of
from tools.bench.training import trainings
from tools.bench.upload import (
    bare_read,
    bare_write,
    fetch,
    peak_growth,
    send,
    timed,
    write_table,
)

_TRAINING_COLUMNS = 100
_MIB = 2**20
_GIB = 2**30


@part(
    "training",
    "Training on {rows} rows, 100 columns at two parties: what the channel takes (at most)",
    ("task", "time", "messages", "in the channel", "share"),
)
def training(options: argparse.Namespace) -> Rows:
    """Measure the channel's part in the time of each task."""
    with TemporaryDirectory() as home:
        for task in trainings(Path(home), options.rows, _TRAINING_COLUMNS):
            share = task.channel_seconds / task.seconds
            yield [
                task.component,
                f"{task.seconds:.1f} s",
                task.messages,
                f"{task.channel_seconds:.2f} s",
                f"{share:.1%}",
            ]


@part("upload", "Upload of a table", ("size", "time", "rate", "growth of the node's memory"))
def upload(options: argparse.Namespace) -> Rows:
    """Upload a large table into the node's folder."""
    with TemporaryDirectory() as folder, two_nodes(PROCESS_ENGINE) as (node, _):
        file = Path(folder) / "table.csv"
        write_table(file, int(options.upload_gib * _GIB))
        upload_table = partial(
            node.upload,
            file,
            "bench",
            "table",
            partitions=4,
        )
        seconds, growth = peak_growth(node, partial(timed, upload_table))
        rate = file.stat().st_size / seconds / 1e6
        yield [
            f"{options.upload_gib:g} GiB",
            f"{seconds:.1f} s",
            f"{rate:.0f} MB/s",
            f"{growth / _MIB:.0f} MB",
        ]


@part(
    "storage",
    "A table at S3",
    ("what", "size", "gateway", "bare library", "share of it", "growth of the node's memory"),
)
def at_s3(options: argparse.Namespace) -> Rows:
    """Compare a node whose data is at S3 with the bare library, in turn.

    Needs the server of `.ci/services.sh`.
    """
    with storages.bucket() as bucket, TemporaryDirectory() as folder:
        file = Path(folder) / "table.csv"
        write_table(file, int(options.upload_gib * _GIB))
        with Federation(
            Path(folder) / "n",
            [GUEST],
            PROCESS_ENGINE,
            fresh=True,
            storages={"lake": _storage_settings(bucket)},
        ) as nodes:
            node = nodes[GUEST]
            comparisons: dict[str, tuple[Callable[..., None], Callable[[], None]]] = {
                "upload": (
                    partial(send, node, file, "bench"),
                    partial(bare_write, bucket.operator, file),
                ),
                "download": (
                    partial(fetch, node, "bench"),
                    partial(bare_read, bucket.operator),
                ),
            }
            for name, (transfer, bare_transfer) in comparisons.items():
                figures = _compare(
                    node, transfer, bare_transfer, file.stat().st_size, rounds_of(options)
                )
                yield [name, f"{options.upload_gib:g} GiB", *figures]


def _storage_settings(bucket: Any) -> dict[str, str]:
    """Return the settings of a node's storage for a bucket of the suite's S3."""
    url = urlsplit(bucket.url)
    return {
        "url": f"s3://{url.netloc}/{bucket.name}",
        "username": os.environ["BFIA_TEST_S3_KEY"],
        "password": os.environ["BFIA_TEST_S3_SECRET"],
        "region": "default",
    }


def _compare(
    node: Node,
    transfer: Callable[..., None],
    bare_transfer: Callable[[], None],
    size: int,
    rounds: int,
) -> list[str]:
    """Return both rates, the share of the bare one, and the growth of the node's memory.

    ``transfer`` takes the name of a table.
    """
    times = []
    bare_times = []
    growths = []
    for number in range(rounds):
        seconds, growth = peak_growth(
            node,
            partial(timed, partial(transfer, f"table{number}")),
        )
        times.append(seconds)
        growths.append(growth)
        bare_times.append(timed(bare_transfer))
    rates = [size / statistics.median(values) / 1e6 for values in (times, bare_times)]
    shares = [bare / seconds for seconds, bare in zip(times, bare_times, strict=True)]
    return [
        *(f"{rate:.0f} MB/s" for rate in rates),
        f"{statistics.median(shares):.2f}",
        f"{max(growths) / _MIB:.0f} MB",
    ]
