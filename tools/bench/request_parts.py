"""Requests without the cost of containers: create_all, reads, commands and the channel."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.e2e.nodes import Node, wait_for
from tools.bench import channel as channels
from tools.bench import load, requests
from tools.bench.bare import CREATE_PATH
from tools.bench.nodes import (
    HOST,
    MEMORY_NODE,
    PROCESS_ENGINE,
    chain,
    process_engine,
    two_nodes,
)
from tools.bench.parts import (
    PARTS,
    Rows,
    milliseconds,
    part,
    print_table,
    rounds_of,
    rounds_within,
)
from tools.bench.upload import peak_growth

_PAUSE = 5.0  # seconds between two measurements, so that the jobs of the first one end
_LISTED_JOBS = 200
_WARM_UP_CLIENTS = 8
_MIB = 2**20
_GIB = 2**30
# Seconds of all rounds: of the reads, of the commands, of create_all with a number of clients, and
# of messages of one size.
_READ_SECONDS = 12.0
_COMMAND_SECONDS = 6.0
_SUBMISSION_SECONDS = 20.0
_MESSAGE_SECONDS = 5.0
_PAIR_MESSAGES = 100  # small messages of each pair


# Clients of `create_all`, and seconds of a measurement while containers run.
_CLIENTS = {1: 3.0, 8: 6.0, 32: 10.0}
_PAUSE_OF_CLIENT = 0.7  # seconds before each request where a job is to end before the next one
_PAUSED_SECONDS = 25.0  # of that measurement
_CREATE_HEADINGS = (
    "clients",
    "throughput",
    "p50",
    "bare pair of FastAPI nodes",
    "p50",
    "share of its throughput",
)


@part(
    "create",
    "create_all at two nodes (whole jobs: their tasks start and end meanwhile on the same cores)",
    _CREATE_HEADINGS,
)
def create_all(options: argparse.Namespace) -> Rows:
    """Measure the submission of jobs whose containers end immediately."""
    body = json.dumps(chain(1)).encode()
    with (
        two_nodes(process_engine("/bin/true")) as (node, _),
        TemporaryDirectory() as folder,
        requests.bare_pair(Path(folder)) as floor,
    ):
        yield _paused_row(node, floor, body)
        for clients, seconds in _CLIENTS.items():
            time.sleep(_PAUSE)
            rates = requests.create_rates(
                node,
                floor,
                body,
                wait_for_jobs=partial(time.sleep, _PAUSE),
                rounds=range(1),
                clients=clients,
                seconds=seconds,
            )
            yield _create_row(clients, rates)


def _paused_row(node: Node, floor: str, body: bytes) -> list[Any]:
    """Return the row of one client that posts each job after the one before has ended."""
    pause = _PAUSE_OF_CLIENT
    ours = requests.Measurement(node.operator, load.CREATE, 1, body, _PAUSED_SECONDS, pause)
    bare = requests.Measurement(floor, CREATE_PATH, 1, body, _PAUSED_SECONDS, pause)
    medians = [milliseconds(responses.quantile(0.5), 1) for responses in (ours, bare)]
    return ["1, each job after the last", "", medians[0], "", medians[1], ""]


def _create_row(clients: int, rates: requests.CreateRates) -> list[Any]:
    """Return the row of ``clients`` clients that post without a pause."""
    return [
        clients,
        f"{rates.rate:.0f}/s",
        milliseconds(rates.median, 1),
        f"{rates.bare_rate:.0f}/s",
        milliseconds(rates.bare_median, 1),
        f"{rates.share:.2f}",
    ]


def requests_alone(options: argparse.Namespace) -> None:
    """Measure requests to nodes whose containers cost nothing, and commands of the command line."""
    job = chain(1)
    job["dag"]["components"][0]["output"] = []  # no container could write it
    with (
        two_nodes(PROCESS_ENGINE, prefix=MEMORY_NODE) as nodes,
        TemporaryDirectory() as folder,
        requests.bare_pair(Path(folder)) as floor,
    ):
        node = nodes[0]
        job_id = load.submit_many([node], job, _LISTED_JOBS, _WARM_UP_CLIENTS)[0]
        load.wait_until_all_ended(nodes, 120)
        assert load.wait_until_ended(node, job_id)["outcome"] == "SUCCEEDED"
        reads = list(_read_rows(node, job_id, Path(folder), options))
        print_table(
            "requests",
            "Reads without containers (memory engine), and commands",
            ("what", "median"),
            reads,
        )
        submissions = list(_submission_rows(nodes, floor, job, options))
        print_table(
            "create alone",
            "create_all at two nodes without containers (memory engine)",
            _CREATE_HEADINGS,
            submissions,
        )


PARTS["requests"] = requests_alone


def _read_rows(
    node: Node,
    job_id: str,
    folder: Path,
    options: argparse.Namespace,
) -> Rows:
    """Yield the rates of reads, and the times of commands."""
    rates = requests.read_rates(
        node,
        job_id,
        folder,
        rounds_within(_READ_SECONDS, options),
    )
    yield ["status_all, 8 clients", f"{rates.status:.0f}/s"]
    yield ["a bare path with one indexed SELECT, 8 clients", f"{rates.bare:.0f}/s"]
    yield ["status_all by the bare path", f"{rates.status / rates.bare:.2f}"]
    yield ["query_job_list of 200 jobs, 8 clients", f"{rates.job_list:.0f}/s"]
    for name, seconds in requests.command_times(node, rounds_within(_COMMAND_SECONDS, options)):
        yield [f"command: {name}", f"{seconds:.2f} s"]


def _submission_rows(
    nodes: Sequence[Node],
    floor: str,
    job: dict[str, Any],
    options: argparse.Namespace,
) -> Rows:
    """Yield the rates of create_all by the number of clients."""
    wait_for_jobs = partial(load.wait_until_all_ended, nodes, 600)
    for clients in _CLIENTS:
        rates = requests.create_rates(
            nodes[0],
            floor,
            json.dumps(job).encode(),
            wait_for_jobs,
            rounds_within(_SUBMISSION_SECONDS, options),
            clients,
        )
        yield _create_row(clients, rates)


# ---------------------------------------------------------------- the channel

# Sizes of messages in bytes, by their names, with the messages of a round.
_MESSAGES = {
    "1 KiB": (1024, 200),
    "1 MiB": (_MIB, 20),
    "64 MiB": (64 * _MIB, 3),
    "1 GiB": (_GIB, 1),
}


# The messages of `measure_sealing`: size in bytes, messages of a turn, turns of a round. Turns are
# short, so that other work on the machine slows sealed and unsealed messages alike.
_SEALED_MESSAGES = {
    "1 KiB": (1024, 50, 4),
    "1 MiB": (_MIB, 5, 4),
    "64 MiB": (64 * _MIB, 1, 6),
}


def measure_channel(options: argparse.Namespace) -> None:
    """Measure the channel between two nodes by HTTP, without the longest messages."""
    with _channel_ends("HTTP") as (ends, floor, _):
        sizes = ("1 KiB", "1 MiB", "64 MiB")
        _print_messages("channel", "HTTP", sizes, ends, floor, options)


PARTS["channel"] = measure_channel


def measure_links(options: argparse.Namespace) -> None:
    """Measure the channel by HTTP, by gRPC and by mutual TLS, with all sizes and eight pairs.

    The floor uses the same link. Containers speak HTTP with their node in all cases.
    """
    for link in channels.LINKS:
        with _channel_ends(link) as (ends, floor, nodes):
            _print_messages(f"channel {link}", link, tuple(_MESSAGES), ends, floor, options)
            _print_pairs(link, ends, floor, rounds_of(options), nodes)


PARTS["links"] = measure_links


@contextmanager
def _channel_ends(
    link: str,
) -> Iterator[tuple[channels.Ends, channels.Ends, tuple[Node, Node]]]:
    """Yield the ends of a channel between two nodes, those of a bare relay, and the nodes."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        program = str(Path(__file__).with_name("staying.py"))
        engine = process_engine(sys.executable, program, name)
        limits = {"message_bytes": 2 * _GIB, "session_bytes": 16 * _GIB}
        connect = partial(channels.connect, link, folder)
        with (
            channels.bare_relay(link, folder) as floor,
            two_nodes(engine, connect=connect, limits=limits) as nodes,
        ):
            yield start_job(nodes, folder), floor, nodes


def measure_sealing(options: argparse.Namespace) -> None:
    """Measure sealed messages between two nodes, in alternation with unsealed ones, by HTTP."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        program = str(Path(__file__).with_name("staying.py"))
        engine = process_engine(sys.executable, program, name)
        with two_nodes(engine) as nodes:
            ends = start_job(nodes, folder)
            rows = []
            for label, (size, times, turns) in _SEALED_MESSAGES.items():
                sealed, unsealed = channels.sealing_medians(
                    nodes, ends, size, times, turns * rounds_of(options)
                )
                times_shown = [milliseconds(sealed, 1), milliseconds(unsealed, 1)]
                rows.append([label, *times_shown, f"{sealed / unsealed:.2f}"])
    print_table(
        "sealing",
        "Channel by HTTP: sealed and unsealed (bare payload)",
        ["message", "sealed", "unsealed", "ratio"],
        rows,
    )


PARTS["sealing"] = measure_sealing


def start_job(
    nodes: tuple[Node, Node],
    folder: Path,
) -> channels.Ends:
    """Start a job whose containers stay, and return the ends of their channel.

    The containers write the headers of their messages into the folder.
    """
    sender, reader = nodes
    sender.submit(chain(1))
    files = [folder / party for party in ("guest.0", "host.0")]

    def both_exist() -> bool:
        return all(file.exists() for file in files)

    wait_for(both_exist, about="both containers are there")
    push_headers, pop_headers = (json.loads(file.read_text()) for file in files)
    content_type = {"content-type": "application/octet-stream"}
    push_headers |= {"x-ptp-target-node-id": HOST, **content_type}
    pop_headers |= {"x-ptp-timeout": "120000", **content_type}
    return channels.Ends(
        sender.addresses["container"], reader.addresses["container"], push_headers, pop_headers
    )


def _print_messages(
    table: str,
    link: str,
    sizes: Sequence[str],
    ends: channels.Ends,
    floor: channels.Ends,
    options: argparse.Namespace,
) -> None:
    """Print the times of single messages of these sizes, as a table with a name."""
    rows = []
    for name in sizes:
        size, times = _MESSAGES[name]
        rounds = rounds_within(_MESSAGE_SECONDS, options)
        seconds, bare_seconds = channels.medians(ends, floor, size, times, rounds)
        rates = [f"{size / value / 1e6:.1f} MB/s" for value in (seconds, bare_seconds)]
        rows.append([name, milliseconds(seconds, 1), *rates, f"{bare_seconds / seconds:.2f}"])
    print_table(
        table,
        f"Channel by {link}: push at one node, pop at the other (bare payload)",
        ["message", "median", "rate", "bare relay", "share of it"],
        rows,
    )


def _print_pairs(
    link: str,
    ends: channels.Ends,
    floor: channels.Ends,
    rounds: int,
    nodes: tuple[Node, Node],
) -> None:
    """Print the rate of eight concurrent pairs, and the growth of both gateways."""
    sender, reader = nodes
    rates = []
    bare_rates = []
    for _ in range(rounds):
        rates.append(channels.pair_rate(ends, 1024, _PAIR_MESSAGES))
        bare_rates.append(channels.pair_rate(floor, 1024, _PAIR_MESSAGES))

    def send_large() -> float:
        return channels.pair_rate(ends, _GIB, 1)

    def send_and_watch_reader() -> int:
        _, growth = peak_growth(reader, send_large)
        return growth

    reader_growth, sender_growth = peak_growth(sender, send_and_watch_reader)
    row = [f"{statistics.median(values):.0f}/s" for values in (rates, bare_rates)]
    row += [f"{growth / _MIB:.0f} MiB" for growth in (sender_growth, reader_growth)]
    print_table(
        f"pairs {link}",
        f"Channel by {link}: eight pairs together",
        [
            "1 KiB",
            "bare relay",
            "8 x 1 GiB: growth of the sending gateway",
            "and of the receiving one",
        ],
        [row],
    )
