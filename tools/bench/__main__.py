"""``make bench``: makespan against bare containers, create_all, the channel, memory. Prints tables
in Markdown.

Every ratio compares figures of this one run on this machine; seconds alone say little elsewhere.
``--readme`` measures what both READMEs and docs/performance.md show, on a quiet machine, and writes
it there.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from adapter.bfia.examples import A_PROVIDER
from tests import storages as real
from tests.conftest import remove_networks
from tests.e2e.nodes import ROOT, Federation, Node, wait_for
from tests.services.browser import PROGRAM
from tools.bench import channel as ways
from tools.bench import clusters, console, load, readme, requests
from tools.bench.failover import failover
from tools.bench.floor import IMAGE, Floor, build
from tools.bench.signing import signing
from tools.bench.soak import HEADS, soak
from tools.bench.training import trainings
from tools.bench.upload import (
    bare_read,
    bare_write,
    fetch,
    peak_growth,
    resident,
    send,
    timed,
    write_table,
)

A, B = "JG0100001100000010", "JG0100002200000020"
_TOGETHER = 50
"""jobs that are submitted together under Docker"""
_ENDED = 10_000
"""ended jobs in the database"""

Rows = Iterable[list[Any]]
PARTS: dict[str, Callable[[argparse.Namespace], None]] = {}
SHOWN: dict[str, list[list[Any]]] = {}
"""the rows of each table that was printed, by the name of its part"""


def part(
    name: str,
    title: str,
    heads: Sequence[str],
) -> Callable[[Callable[[argparse.Namespace], Rows]], None]:
    """Register what yields the rows of a part's table; its title may name what was asked for."""

    def register(measure: Callable[[argparse.Namespace], Rows]) -> None:
        PARTS[name] = lambda asked: table(
            name, title.format_map(vars(asked)), heads, list(measure(asked))
        )

    return register


def table(
    part: str,
    title: str,
    heads: Sequence[str],
    rows: list[list[Any]],
) -> None:
    if not rows:
        return  # it said why
    SHOWN[part] = rows
    print(f"**{title}**\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="make bench ARGS=...")
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="repetitions of each makespan; the median is shown",
    )
    parser.add_argument("--only", choices=list(PARTS), help="one part only")
    parser.add_argument(
        "--upload-gib",
        type=float,
        default=0.25,
        help="size of the uploaded table; try 5",
    )
    parser.add_argument(
        "--tasks",
        type=int,
        default=200,
        help="independent tasks of the large job; try 1000",
    )
    soaked = [1000, 5000, 10_000]
    parser.add_argument(
        "--soak",
        type=int,
        nargs="+",
        default=soaked,
        help="jobs in progress of that part",
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=100_000,
        help="of the part training, which takes long",
    )
    parser.add_argument(
        "--readme", action="store_true", help="measure what both READMEs show and write it there"
    )
    asked = parser.parse_args()
    print(
        f"Machine: {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}\n"
    )
    for name, measure in PARTS.items():
        wanted = (
            name in readme.NEEDED if asked.readme else name not in ("thousand", "soak", "training")
        )
        if asked.only == name or (asked.only is None and wanted):
            measure(asked)
    if asked.readme:
        docker = subprocess.run(
            ["docker", "version", "-f", "{{.Server.Version}}"],
            capture_output=True,
            text=True,
            check=True,
        )
        version = ".".join(docker.stdout.strip().split(".")[:2])
        python = ".".join(platform.python_version_tuple()[:2])
        machine = (
            f"{os.cpu_count()} cores ({platform.machine()}, Python {python}, Docker {version})"
        )
        readme.write(ROOT, machine, SHOWN)


@contextmanager
def two_nodes(
    engine: dict[str, Any],
    prefix: Sequence[str] = (),
    linked: Callable[[Federation], None] = lambda federation: None,
    **settings: Any,
) -> Iterator[tuple[Node, Node]]:
    """Run two nodes; ``linked`` may change their routes and listeners before they start."""
    with TemporaryDirectory() as home:
        made = Federation(Path(home), [A, B], engine, fresh=True, **settings)
        for node in made.nodes.values():
            node.prefix = list(prefix)
        linked(made)
        with made as federation:
            for node in federation.nodes.values():
                node.register(
                    {**A_PROVIDER, "metadata": {**A_PROVIDER["metadata"], "image": IMAGE}}
                )
            yield federation[A], federation[B]


def chain(tasks: int, mode: str = "poll") -> dict[str, Any]:
    """Return a job of so many tasks at two parties, each after the one before."""
    component = {
        "componentName": "Echo",
        "provider": "example",
        "version": "1.0.0",
    }
    component |= {"output": [{"type": "dataset", "key": "d"}]}
    inputs = [[{"type": "dataset", "key": f"t{i - 1}.d"}] if i else [] for i in range(tasks)]
    components = [
        {
            "name": f"t{i}",
            **component,
            "input": given,
        }
        for i, given in enumerate(inputs)
    ]
    return {
        "flow_id": "bench",
        "dag": {"components": components, "version": "2.0"},
        "config": {
            "version": "2.0.0",
            "initiator": {"role": "guest", "node_id": A},
            "role": {"guest": [A], "host": [B]},
            "job_params": {"common": {"sync_type": mode}},
            "task_params": {"common": {}},
        },
    }


@part(
    "makespan",
    "Makespan of a job at two nodes under Docker",
    (
        "tasks in a chain",
        "job, poll",
        "job, callback",
        "bare, engine's API",
        "on the host's network",
        "ratio",
        "to the host's network",
    ),
)
def makespan(asked: argparse.Namespace) -> Rows:
    build()
    with Floor() as floor, two_nodes({"kind": "docker"}) as (node, _):
        load.run(node, chain(1))  # warm: image known, network there
        floor.chain(1)
        for tasks in (1, 3, 10):
            ours: dict[str, list[float]] = {"poll": [], "callback": []}
            api, on_host = [], []
            for _ in range(asked.rounds):
                floor.until_prepared()
                api.append(floor.chain(tasks))
                on_host.append(floor.chain(tasks, "host"))
                for mode, times in ours.items():
                    times.append(load.run(node, chain(tasks, mode)))
            poll, callback = (statistics.median(ours[m]) for m in ("poll", "callback"))
            bare, host = statistics.median(api), statistics.median(on_host)
            ratios = [f"{poll / bare:.2f}", f"{poll / host:.2f}"]
            yield [
                tasks,
                f"{poll:.2f} s",
                f"{callback:.2f} s",
                f"{bare:.2f} s",
                f"{host:.2f} s",
                *ratios,
            ]
    remove_networks()


@part(
    "together",
    "Jobs submitted together at two nodes under Docker",
    (
        "jobs of one task",
        "first",
        "again",
        "bare, on the host's network",
        "concurrent containers",
        "ratio",
        "again",
    ),
)
def together(asked: argparse.Namespace) -> Rows:
    """Compare many jobs with their containers on the host's network, as many concurrently as is
    best.

    Those that come again within ten minutes find network namespaces prepared.
    """
    build()
    ours: list[float] = []
    bare: dict[int, list[float]] = {
        2: [],
        4: [],
        8: [],
    }
    with Floor() as floor, two_nodes({"kind": "docker"}) as (node, _):
        load.run(node, chain(1))  # warm: image known, network there
        for _ in range(asked.rounds + 1):
            floor.until_prepared()
            for at_once, times in bare.items():
                times.append(floor.together(_TOGETHER, at_once))
            began = time.perf_counter()
            for job_id in load.at_once([node], chain(1), _TOGETHER, 32):
                assert load.until_over(node, job_id)["outcome"] == "SUCCEEDED"
            ours.append(time.perf_counter() - began)
    remove_networks()
    at_once, best = min(
        ((n, statistics.median(times)) for n, times in bare.items()), key=lambda pair: pair[1]
    )
    jobs = ours[0], statistics.median(ours[1:])
    shown = (
        *(f"{one:.1f} s" for one in (*jobs, best)),
        at_once,
        *(f"{one / best:.2f}" for one in jobs),
    )
    yield [_TOGETHER, *shown]


def on_clusters(asked: argparse.Namespace) -> None:
    missing = [
        name for kind in clusters.KINDS if (name := f"BFIA_TEST_{kind.upper()}") not in os.environ
    ]
    if missing:
        print(f"Clusters are not measured: {' and '.join(missing)} not set\n")
        return
    build()
    for kind in clusters.KINDS:
        rows = list(clusters.rows(kind, A, chain(1), asked.tasks, asked.rounds))
        table(
            kind,
            f"A job at one node against the same containers bare ({kind})",
            clusters.HEADS,
            rows,
        )


PARTS["clusters"] = on_clusters


@part(
    "create",
    "create_all at two nodes (whole jobs: their tasks start and end meanwhile on the same cores)",
    ("clients", "throughput", "p50", "p95"),
)
def create_all(asked: argparse.Namespace) -> Rows:
    body = json.dumps(chain(1)).encode()
    with two_nodes(
        {"kind": "process", "process": {"images": {IMAGE: {"command": ["/bin/true"]}}}}
    ) as (node, _):
        for clients, seconds, rest in (
            (1, 25.0, 0.7),
            (1, 3.0, 0.0),
            (8, 6.0, 0.0),
            (32, 10.0, 0.0),
        ):
            sent = requests.Sent(node.operator, load.CREATE, clients, body, seconds, rest)
            yield [
                f"{clients}, each job after the last" if rest else clients,
                "" if rest else f"{sent.rate:.0f}/s",
                *(f"{sent.within(share) * 1000:.1f} ms" for share in (0.5, 0.95)),
            ]
            time.sleep(5)


@part("requests", "Requests without containers (memory engine), and commands", ("what", "median"))
def request_path(asked: argparse.Namespace) -> Rows:
    """Without containers: what requests to a node cost by themselves."""
    job = chain(1)
    job["dag"]["components"][0]["output"] = []  # nothing runs that could write it
    body = json.dumps(job).encode()
    memory_node = [sys.executable, "-m", "tools.bench.memory_node"]
    with (
        two_nodes({"kind": "process"}, prefix=memory_node) as (node, other),
        TemporaryDirectory() as folder,
    ):
        first = load.at_once([node], job, 200, 8)[0]
        load.until_none_left((node, other), 120)
        assert load.until_over(node, first)["outcome"] == "SUCCEEDED"
        bare, status, listed = requests.reads(node, first, Path(folder), asked.rounds)
        commands = requests.starts(node, asked.rounds)
        yield ["status_all, 8 clients", f"{status:.0f}/s"]
        yield ["a bare path with one indexed SELECT, 8 clients", f"{bare:.0f}/s"]
        yield ["status_all by the bare path", f"{status / bare:.2f}"]
        yield ["query_job_list of 200 jobs, 8 clients", f"{listed:.0f}/s"]
        yield from ([f"command: {name}", f"{seconds:.2f} s"] for name, seconds in commands)
        for clients in (1, 8, 32):
            over = partial(load.until_none_left, (node, other), 600)
            rate, median = requests.creates(node, body, over, asked.rounds, clients)
            yield [
                f"create_all at two nodes, {clients} clients",
                f"{rate:.0f}/s, p50 {median * 1000:.0f} ms",
            ]


def channel(asked: argparse.Namespace) -> None:
    """Between the nodes by HTTP, by gRPC and by mutual TLS, as in the floor; containers always
    speak HTTP.
    """
    for way in ways.WAYS:
        with TemporaryDirectory() as name:
            folder = Path(name)
            staying = [sys.executable, str(Path(__file__).with_name("staying.py")), name]
            engine = {"kind": "process", "process": {"images": {IMAGE: {"command": staying}}}}
            limits = {"message_bytes": 2 << 30, "session_bytes": 16 << 30}
            linked = partial(ways.link, way, folder)
            with (
                ways.bare(way, folder) as floor,
                two_nodes(engine, linked=linked, limits=limits) as (one, other),
            ):
                one.submit(chain(1))
                files = [folder / party for party in ("guest.0", "host.0")]
                wait_for(
                    lambda files=files: all(map(Path.exists, files)),
                    about="both containers are there",
                )  # type: ignore[misc]
                writes, reads = (json.loads(file.read_text()) for file in files)
                writes |= {"x-ptp-target-node-id": B, "content-type": "application/octet-stream"}
                reads |= {"content-type": "application/octet-stream", "x-ptp-timeout": "120000"}
                ours = ways.Ends(
                    one.addresses["container"], other.addresses["container"], writes, reads
                )
                _channel(way, ours, floor, asked.rounds, one, other)


PARTS["channel"] = channel


def _channel(
    way: str,
    ours: ways.Ends,
    floor: ways.Ends,
    rounds: int,
    one: Node,
    other: Node,
) -> None:
    """Print the figures of one way."""
    part = "" if way == "HTTP" else f" {way}"
    rows = []
    for label, size, times in (
        ("1 KiB", 1024, 200),
        ("1 MiB", 1 << 20, 20),
        ("64 MiB", 64 << 20, 3),
        ("1 GiB", 1 << 30, 1),
    ):
        seconds, rest = ways.in_turn(ours, floor, size, times, rounds)
        shown = [
            f"{seconds * 1000:.1f} ms",
            f"{size / seconds / 1e6:.1f} MB/s",
            f"{size / rest / 1e6:.1f} MB/s",
        ]
        rows.append([label, *shown, f"{rest / seconds:.2f}"])
    heads = ["message", "median", "rate", "bare relay", "share of it"]
    table(
        f"channel{part}",
        f"Channel by {way}: push at one node, pop at the other (bare payload)",
        heads,
        rows,
    )
    rates = [[ways.pairs(ends, 1024, 100) for ends in (ours, floor)] for _ in range(rounds)]
    rate, rest = map(statistics.median, zip(*rates, strict=True))
    (_, grown), more = peak_growth(
        one, lambda: peak_growth(other, lambda: ways.pairs(ours, 1 << 30, 1))
    )
    row = [f"{rate:.0f}/s", f"{rest:.0f}/s", f"{more / 2**20:.0f} MiB", f"{grown / 2**20:.0f} MiB"]
    heads = [
        "1 KiB",
        "bare relay",
        "8 x 1 GiB: growth of the sending gateway",
        "and of the receiving one",
    ]
    table(f"pairs{part}", f"Channel by {way}: eight pairs together", heads, [row])


@part(
    "training",
    "Training on {rows} rows, 100 columns at two parties: what the channel takes (at most)",
    ("task", "time", "messages", "in the channel", "share"),
)
def trained(asked: argparse.Namespace) -> Rows:
    with TemporaryDirectory() as home:
        for component, lasted, inside, messages in trainings(Path(home), asked.rows, 100):
            yield [
                component,
                f"{lasted:.1f} s",
                messages,
                f"{inside:.2f} s",
                f"{inside / lasted:.1%}",
            ]


@part("memory", "An idle node", ("resident memory",))
def memory(asked: argparse.Namespace) -> Rows:
    with two_nodes({"kind": "process"}) as (node, _):
        time.sleep(2)
        yield [f"{resident(node) / 2**20:.0f} MB"]


@part("upload", "Upload of a table", ("size", "time", "rate", "growth of the node's memory"))
def upload(asked: argparse.Namespace) -> Rows:
    with TemporaryDirectory() as folder, two_nodes({"kind": "process"}) as (node, _):
        file = Path(folder) / "table.csv"
        write_table(file, int(asked.upload_gib * 2**30))
        work = partial(node.upload, file, "bench", "table", partitions=4)
        seconds, grown = peak_growth(node, lambda: timed(work))
        rate = file.stat().st_size / seconds / 1e6
        yield [
            f"{asked.upload_gib:g} GiB",
            f"{seconds:.1f} s",
            f"{rate:.0f} MB/s",
            f"{grown / 2**20:.0f} MB",
        ]


@part(
    "storage",
    "A table at S3",
    ("what", "size", "gateway", "bare library", "share of it", "growth of the node's memory"),
)
def at_s3(asked: argparse.Namespace) -> Rows:
    """Compare a node whose data is at S3 with the bare library, in turn; needs the server of
    `.ci/services.sh`.
    """
    with real.bucket() as place, TemporaryDirectory() as folder:
        file, key = Path(folder) / "table.csv", {"username": os.environ["BFIA_TEST_S3_KEY"]}
        write_table(file, int(asked.upload_gib * 2**30))
        url = urlsplit(place.url)
        key |= {"password": os.environ["BFIA_TEST_S3_SECRET"], "region": "default"}
        lake = {"url": f"s3://{url.netloc}/{place.name}", **key}
        engine = {"kind": "process"}
        with Federation(
            Path(folder) / "n", [A], engine, fresh=True, storages={"lake": lake}
        ) as nodes:
            node, size = nodes[A], file.stat().st_size / 1e6
            for name, ours, bare in (
                (
                    "upload",
                    partial(send, node, file, "bench"),
                    partial(bare_write, place.operator, file),
                ),
                ("download", partial(fetch, node, "bench"), partial(bare_read, place.operator)),
            ):
                found = []
                for number in range(asked.rounds):
                    seconds, grown = peak_growth(
                        node, partial(timed, partial(ours, f"table{number}"))
                    )
                    found.append((seconds, timed(bare), grown))
                seconds, floor = (statistics.median(one[at] for one in found) for at in (0, 1))
                share = statistics.median(floor / seconds for seconds, floor, _ in found)
                rate = [f"{size / seconds:.0f} MB/s", f"{size / floor:.0f} MB/s", f"{share:.2f}"]
                grown = max(one[2] for one in found)
                yield [name, f"{asked.upload_gib:g} GiB", *rate, f"{grown / 2**20:.0f} MB"]


def by_process() -> dict[str, Any]:
    """Return a process engine whose containers report and exit."""
    noop = Path(__file__).with_name("noop.sh")
    return {
        "kind": "process",
        "process": {"images": {IMAGE: {"command": ["/bin/bash", str(noop)]}}},
    }


@part(
    "beside",
    "A small job beside a large one (process engine, all on the same cores)",
    (
        "tasks of the large job",
        "chain of 3 alone",
        "beside the large job",
        "ratio",
        "the large job",
    ),
)
def beside(asked: argparse.Namespace) -> Rows:
    with two_nodes(by_process()) as (node, _):
        alone, together, large = load.beside(
            node, chain(3), load.independent(chain(1), asked.tasks), asked.rounds
        )
    yield [
        asked.tasks,
        f"{alone:.2f} s",
        f"{together:.2f} s",
        f"{together / alone:.1f}",
        f"{large:.0f} s",
    ]


@part(
    "thousand",
    "Jobs of one task, all submitted together, at two nodes (process engine)",
    ("jobs", "succeeded", "tasks started twice", "jobs", "status_all p50", "status_all p99"),
)
def thousand(asked: argparse.Namespace) -> Rows:
    """A thousand concurrent jobs: each ends and none starts anything twice, while the node
    answers.
    """
    with two_nodes(by_process()) as (node, other):
        yield load.many(node, other, chain(1), 1000)


@part(
    "ended",
    "A chain of 3 beside ended jobs in the database (SQLite)",
    ("ended jobs", "without", "with", "ratio"),
)
def beside_ended(asked: argparse.Namespace) -> Rows:
    with two_nodes(by_process()) as (node, other):
        load.run(node, chain(3))
        before = statistics.median(load.run(node, chain(3)) for _ in range(2 * asked.rounds + 1))
        job_id = node.submit(chain(3))
        load.until_over(node, job_id)
        for one in (node, other):
            one.stop()
            load.copy_ended(one, job_id, _ENDED)
            one.start()
        load.run(node, chain(3))
        after = statistics.median(load.run(node, chain(3)) for _ in range(2 * asked.rounds + 1))
    yield [_ENDED, f"{before:.2f} s", f"{after:.2f} s", f"{after / before:.2f}"]


@part("console", f"Pages of the console beside {_ENDED} ended jobs (SQLite)", console.HEADS)
def in_the_browser(asked: argparse.Namespace) -> Rows:
    if not Path(PROGRAM).exists():
        print(f"Pages are not measured: there is no {PROGRAM}\n")
        return
    with two_nodes(by_process()) as (node, _):
        job_id = node.submit(chain(3))
        load.until_over(node, job_id)
        node.stop()
        load.copy_ended(node, job_id, _ENDED)
        node.start()
        yield from console.visits(node, job_id, 2 * asked.rounds + 1)


@part(
    "failover",
    "Two gateways on one database: from the death of one until the other starts the next task",
    ("seconds",),
)
def failing_over(asked: argparse.Namespace) -> Rows:
    if "BFIA_TEST_DB_URL" not in os.environ:
        print("Failover is not measured: it needs MariaDB (BFIA_TEST_DB_URL)\n")
        return
    for _ in range(asked.rounds):
        yield [f"{failover():.1f} s"]


@part("signing", "Signature of a control request", ("algorithm", "sign", "check, nonce kept"))
def signatures(asked: argparse.Namespace) -> Rows:
    return signing()


@part("soak", "Jobs in progress on three gateways with one MariaDB", HEADS)
def soaking(asked: argparse.Namespace) -> Rows:
    """Three gateways, one database, and more and more jobs whose containers stay."""
    job = chain(1)
    job["dag"]["components"][0]["output"] = []
    job["config"]["role"]["host"] = [A]
    return soak(job, asked.soak)


if __name__ == "__main__":
    main()
