"""The two gateway nodes of the demo: their folder, their processes, and the end of all that they started."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from engines.docker.sandboxes import sandbox_of
from engines.files import remove, try_to_remove
from engines.process.run_directory import RunDirectory
from examples.demo.partners import Authority
from gateway.cli.language import t
from gateway.identity.keys import Keyring

ROOT = Path(__file__).resolve().parents[2]
VENDOR = ROOT / "examples" / "reference_vendor"
IMAGE = "bfia-reference-vendor:1.0.0"
BANK = "JG0100001100000010"
PARTNER = "JG0100002200000020"
NAMES = {BANK: "bank", PARTNER: "partner"}
MARKER = ".bfia-demo"
"""File by which a folder is known as one that a demo made."""
MADE = ("bank", "partner", "data")
"""What a demo makes in its folder, and all that a later one deletes there."""

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TIMEOUT = 15.0
"""seconds that a node, or what is left of the runs, may take to end"""


class DemoFailed(Exception):
    """The demo cannot go on; the text is the cause."""


@dataclass
class NodeProcess:
    """One running gateway node of the demo."""

    node: str
    home: Path
    process: subprocess.Popen[bytes] | None = None
    addresses: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its institution's name in what the demo prints."""
        return NAMES[self.node]

    @property
    def operator(self) -> str:
        """Where its operators' listener is, once it serves."""
        return str(self.addresses["operator"])

    @property
    def config(self) -> Path:
        """Its configuration file."""
        return self.home / "node.yml"

    @property
    def runs(self) -> Path:
        """Return the folder of the process engine's runs."""
        return self.home / "state" / "process"


@contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM, and the terminal's end, as Ctrl-C. A signal that is ignored stays ignored.

    The first of them ends the demo; more of them do not disturb its clean-up.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let nothing keep the clean-up from its end, which is bounded."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def prepare(home: Path) -> list[NodeProcess]:
    """Return the two nodes, with an empty place for each in the folder.

    Delete only what an earlier demo made. Raises `DemoFailed` for a folder that no demo made, and while nodes of
    an earlier demo run in it.
    """
    nodes = [NodeProcess(BANK, home / "bank"), NodeProcess(PARTNER, home / "partner")]
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not (home / MARKER).is_file() and any(home.iterdir()):
            raise DemoFailed(
                f"{home} is not empty and was not made by a demo (it has no {MARKER}): nothing was deleted; "
                "name another folder with --dir, or empty this one"
            )
        (home / MARKER).write_text(
            t("Made by `bfia-gateway demo`, which replaces bank, partner and data here.\n"),
            encoding="utf-8",
        )
        if pids := _gateways(nodes):
            raise DemoFailed(
                f"nodes of an earlier demo still run in {home}; stop them with: kill {' '.join(map(str, pids))}"
            )
        for name in MADE:
            if (home / name).exists():
                remove(home / name)
    except OSError as error:
        raise DemoFailed(f"{home} cannot be used for the demo: {error}") from error
    return nodes


def configure(nodes: Sequence[NodeProcess], engine: str) -> None:
    """Write each node's settings, its key pair, and the certificate that its partner's authority signed."""
    authority = Authority()
    ports = {node.node: _free_ports(3) for node in nodes}
    for node in nodes:
        peer, container, operator = ports[node.node]
        files = authority.files(node.home / "tls", node.node)
        tls = {
            "certificate": files["certificate"],
            "key": files["key"],
            "client_ca": files["ca"],
        }
        python = ROOT / ".venv-vendor" / "bin" / "python"
        command = [
            str(python),
            "-c",
            f"import sys; sys.path.insert(0, {str(VENDOR)!r}); "
            "from refvendor.__main__ import main; sys.exit(main())",
        ]
        settings = {
            "node": {"id": node.node},
            "listen": {
                "peer": {"bind": f"127.0.0.1:{peer}", "tls": tls},
                "container": {"bind": f"127.0.0.1:{container}"},
                "operator": {"bind": f"127.0.0.1:{operator}"},
            },
            "database": {"url": "sqlite:///gateway.db"},
            "storage": {"url": f"file://{node.home / 'storage'}"},
            "state_dir": "state",
            "engine": {"kind": engine, "process": {"images": {IMAGE: {"command": command}}}},
            "route_table": {"file": "routes.yml"},
            "data": {"grants": "listed"},
            "trust": {"level": "permit"},
        }
        node.config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        (node.home / "routes.yml").write_text("{}\n", encoding="utf-8")
        Keyring(node.home / "state").make("ed25519")


def _free_ports(count: int) -> list[int]:
    socks = [socket.socket() for _ in range(count)]
    for sock in socks:
        sock.bind(("127.0.0.1", 0))
    ports = [int(sock.getsockname()[1]) for sock in socks]
    for sock in socks:
        sock.close()
    return ports


def start(node: NodeProcess) -> None:
    """Start the node's process."""
    command = [sys.executable, "-m", "gateway.cli.main", "serve", "--config", str(node.config)]
    command += ["--ready-file", str(node.home / "ready.json")]
    with (node.home / "gateway.log").open("wb") as log:
        node.process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=ROOT,
        )


def await_ready(node: NodeProcess, seconds: float = 30.0) -> None:
    """Wait until the node answers. Raises `DemoFailed` with the end of its log."""
    ready = node.home / "ready.json"
    end = time.monotonic() + seconds
    while not ready.exists():
        if node.process is None or node.process.poll() is not None or time.monotonic() > end:
            tail = (node.home / "gateway.log").read_text(errors="replace")[-2000:]
            raise DemoFailed(
                f"node {node.name} did not start; the end of {node.home / 'gateway.log'}:\n{tail}"
            )
        time.sleep(0.05)
    node.addresses = json.loads(ready.read_text())


def stop(nodes: Sequence[NodeProcess], engine: str) -> None:
    """Stop the nodes, then end and remove every run that they left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in _gateways(
            nodes
        ):  # found by their settings: a start may have been interrupted half-way
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        end = time.monotonic() + _TIMEOUT
        while _gateways(nodes) and time.monotonic() < end:
            time.sleep(0.05)
    for node in nodes:
        if node.process is not None:
            node.process.poll()  # collects it
    if engine == "docker":
        _remove_containers(nodes)
        _docker("network", "rm", *(f"bfia-{node.node}" for node in nodes))
    else:
        _remove_runs(nodes)


def _remove_runs(nodes: Sequence[NodeProcess]) -> None:
    for node in nodes:
        for path in node.runs.glob("*"):
            run = RunDirectory(path)
            run.kill()
            run.delete()
        # a supervisor that has not come to claim its run, or did not respond, exits when the folder is gone
        try_to_remove(node.runs)
    end = time.monotonic() + _TIMEOUT
    while any(_below(node.runs) for node in nodes) and time.monotonic() < end:
        time.sleep(0.05)


def _remove_containers(nodes: Sequence[NodeProcess]) -> None:
    """Remove the containers of these nodes that mount something of the demo's folder: ids are not unique."""
    for node in nodes:
        listed = _docker("ps", "-aq", "--filter", f"label=bfia.node={node.node}").split()
        for found in json.loads(_docker("inspect", *listed) or "[]") if listed else ():
            host = found["HostConfig"]
            if any(
                Path(m.get("Source", "")).is_relative_to(node.home)
                for m in host.get("Mounts") or []
            ):
                _docker("rm", "-fv", *filter(None, (found["Id"], sandbox_of(host["NetworkMode"]))))


def _docker(*words: str) -> str:
    return subprocess.run(
        ["docker", *words],
        capture_output=True,
        text=True,
        check=False,
    ).stdout


def _gateways(nodes: Sequence[NodeProcess]) -> list[int]:
    """Return the processes that serve with these nodes' settings."""
    configs = {os.fsencode(node.config) for node in nodes}
    return [
        pid for pid, line in _command_lines() if b"serve" in line and configs.intersection(line)
    ]


def _below(folder: Path) -> bool:
    """Say whether a process runs for, or in, this folder."""
    prefix = os.fsencode(folder) + b"/"
    return any(
        part.startswith(prefix) for _, line in _command_lines(with_folder=True) for part in line
    )


def _command_lines(with_folder: bool = False) -> Iterator[tuple[int, list[bytes]]]:
    """Yield each process with the words of its command, and the folder that it is in."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it is over, or another user's
            if entry.name.isdecimal():
                folder = [os.fsencode(os.readlink(entry / "cwd"))] if with_folder else []
                yield int(entry.name), [*(entry / "cmdline").read_bytes().split(b"\0"), *folder]
