"""The two gateway nodes of the demo: their folders, their processes, and the end of every process
they started.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from engines.docker.sandboxes import sandbox_of
from engines.files import remove, try_to_remove
from engines.process.run_directory import RunDirectory
from gateway.cli.demo.failure import DemoFailed
from gateway.cli.demo.partners import Authority
from gateway.cli.demo.vendor import IMAGE, ROOT
from gateway.cli.language import t
from gateway.identity.keys import Keyring

BANK = "JG0100001100000010"
PARTNER = "JG0100002200000020"
NAMES = {BANK: "bank", PARTNER: "partner"}
MARKER = ".bfia-demo"  # file that marks a folder of a demo
CONTENTS = ("bank", "partner", "data")  # folders that a demo creates, and a later one deletes

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
END_TIMEOUT = 15.0  # seconds for nodes, or for remaining runs, to end
PAUSE = 0.05  # seconds between two looks at a process
READY_TIMEOUT = 30.0  # seconds for a node to start


@dataclass
class NodeProcess:
    """One running gateway node of the demo."""

    node: str
    home: Path
    process: subprocess.Popen[bytes] | None = None
    addresses: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its institution."""
        return NAMES[self.node]

    @property
    def operator(self) -> str:
        """The address of its operators' listener, after its start."""
        return str(self.addresses["operator"])

    @property
    def config(self) -> Path:
        """Its configuration file."""
        return self.home / "node.yml"

    @property
    def runs(self) -> Path:
        """The folder of the process engine's runs."""
        return self.home / "state" / "process"


@contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM, and the terminal's end, as Ctrl-C. An ignored signal stays ignored.

    The first one ends the demo; further ones do not disturb the clean-up.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in END_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in END_SIGNALS}
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
    """Ignore signals during the clean-up, whose time is bounded."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in END_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def prepare(home: Path) -> list[NodeProcess]:
    """Return the two nodes, without any files of an earlier demo in the folder.

    Raises `DemoFailed` for a non-empty folder without `MARKER`, and while nodes of an earlier demo
    run in it.
    """
    nodes = [
        NodeProcess(BANK, home / "bank"),
        NodeProcess(PARTNER, home / "partner"),
    ]
    try:
        home.mkdir(parents=True, exist_ok=True)
        _mark(home)
        pids = [str(pid) for pid in _gateways(nodes)]
        if pids:
            raise DemoFailed(
                f"nodes of an earlier demo still run in {home}; stop them with: kill "
                f"{' '.join(pids)}"
            )
        for name in CONTENTS:
            if (home / name).exists():
                remove(home / name)
    except OSError as error:
        raise DemoFailed(f"{home} cannot be used for the demo: {error}") from error
    return nodes


def _mark(home: Path) -> None:
    """Mark a folder as a demo's. Raises `DemoFailed` for a folder with other files."""
    marker = home / MARKER
    if not marker.is_file() and any(home.iterdir()):
        raise DemoFailed(
            f"{home} is not empty and was not made by a demo (it has no {MARKER}): nothing was "
            f"deleted; "
            "name another folder with --dir, or empty this one"
        )
    text = t("Made by `bfia-gateway demo`, which replaces bank, partner and data here.\n")
    marker.write_text(text, encoding="utf-8")


def configure(
    nodes: Sequence[NodeProcess],
    engine: str,
    vendor_command: Sequence[str],
) -> None:
    """Write each node's settings, its key pair, and its certificate, which an authority of both
    signed.

    ``vendor_command``: in place of the image, for the process engine.
    """
    authority = Authority()
    for node in nodes:
        files = authority.issue(node.home / "tls", node.node)
        settings = _settings(node, engine, vendor_command, files)
        node.config.write_text(
            yaml.safe_dump(settings, sort_keys=False),
            encoding="utf-8",
        )
        (node.home / "routes.yml").write_text("{}\n", encoding="utf-8")
        Keyring(node.home / "state").make("ed25519")


def _settings(
    node: NodeProcess,
    engine: str,
    vendor_command: Sequence[str],
    files: Mapping[str, str],
) -> dict[str, Any]:
    """Return a node's settings. ``files``: its certificate, key and authority."""
    peer, container, operator = _free_ports(3)
    images = {}
    if vendor_command:
        images[IMAGE] = {"command": list(vendor_command)}
    tls = {
        "certificate": files["certificate"],
        "key": files["key"],
        "client_ca": files["ca"],
    }
    return {
        "node": {"id": node.node},
        "listen": {
            "peer": {
                "bind": f"127.0.0.1:{peer}",
                "tls": tls,
            },
            "container": {"bind": f"127.0.0.1:{container}"},
            "operator": {"bind": f"127.0.0.1:{operator}"},
        },
        "database": {"url": "sqlite:///gateway.db"},
        "storage": {"url": f"file://{node.home / 'storage'}"},
        "state_dir": "state",
        "engine": {
            "kind": engine,
            "process": {"images": images},
        },
        "route_table": {"file": "routes.yml"},
        "data": {"grants": "listed"},
        "trust": {"level": "permit"},
    }


def _free_ports(count: int) -> list[int]:
    """Return ports on which no process listens at present."""
    sockets = [socket.socket() for _ in range(count)]
    ports = []
    for sock in sockets:
        sock.bind(("127.0.0.1", 0))
        ports.append(int(sock.getsockname()[1]))
    for sock in sockets:
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


def await_ready(node: NodeProcess) -> None:
    """Wait until the node responds. Raises `DemoFailed` with the end of its log."""
    ready = node.home / "ready.json"
    deadline = time.monotonic() + READY_TIMEOUT
    while not ready.exists():
        has_exited = node.process is None or node.process.poll() is not None
        if has_exited or time.monotonic() > deadline:
            log = node.home / "gateway.log"
            tail = log.read_text(errors="replace")[-2000:]
            raise DemoFailed(f"node {node.name} did not start; the end of {log}:\n{tail}")
        time.sleep(PAUSE)
    node.addresses = json.loads(ready.read_text())


def stop(nodes: Sequence[NodeProcess], engine: str) -> None:
    """Stop the nodes, then end and remove all of their runs."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _stop_gateways(nodes, number)
    for node in nodes:
        if node.process is not None:
            node.process.poll()  # so that no zombie remains
    if engine == "docker":
        _remove_containers(nodes)
        _docker("network", "rm", *(f"bfia-{node.node}" for node in nodes))
    else:
        _remove_runs(nodes)


def _stop_gateways(
    nodes: Sequence[NodeProcess],
    number: signal.Signals,
) -> None:
    """Send the nodes' processes a signal, and wait until they end, at most `END_TIMEOUT`.

    The processes are those with the nodes' settings, as an interrupted start may have left one
    without a record.
    """
    for pid in _gateways(nodes):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    deadline = time.monotonic() + END_TIMEOUT
    while _gateways(nodes) and time.monotonic() < deadline:
        time.sleep(PAUSE)


def _remove_runs(nodes: Sequence[NodeProcess]) -> None:
    """End the runs of the process engine, and wait until their processes end, at most
    `END_TIMEOUT`.
    """
    for node in nodes:
        for path in node.runs.glob("*"):
            run = RunDirectory(path)
            run.kill()
            run.delete()
        # A supervisor that has not claimed its run yet, or does not respond, exits without the
        # folder.
        try_to_remove(node.runs)
    deadline = time.monotonic() + END_TIMEOUT
    while any(_has_processes(node.runs) for node in nodes) and time.monotonic() < deadline:
        time.sleep(PAUSE)


def _remove_containers(nodes: Sequence[NodeProcess]) -> None:
    """Remove the nodes' containers with a mount of the demo's folder: other nodes may have the same
    id.
    """
    for node in nodes:
        for container in _containers(node):
            mounts = container["HostConfig"].get("Mounts") or []
            sources = [Path(mount.get("Source", "")) for mount in mounts]
            if any(source.is_relative_to(node.home) for source in sources):
                _remove_container(container)


def _containers(node: NodeProcess) -> list[dict[str, Any]]:
    """Return the descriptions of all containers with a node's id."""
    ids = _docker("ps", "-aq", "--filter", f"label=bfia.node={node.node}").split()
    if not ids:
        return []
    containers: list[dict[str, Any]] = json.loads(_docker("inspect", *ids) or "[]")
    return containers


def _remove_container(container: Mapping[str, Any]) -> None:
    """Remove a container, and the sandbox whose network it uses."""
    names = [container["Id"]]
    sandbox = sandbox_of(container["HostConfig"]["NetworkMode"])
    if sandbox:
        names.append(sandbox)
    _docker("rm", "-fv", *names)


def _docker(*words: str) -> str:
    """Run a docker command and return its output; empty if it fails."""
    process = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    return process.stdout


# ------------------------------------------------------------ processes


def _gateways(nodes: Sequence[NodeProcess]) -> list[int]:
    """Return the processes that serve with these nodes' settings."""
    configs = {os.fsencode(node.config) for node in nodes}
    pids = []
    for pid, words in _command_lines():
        if b"serve" in words and configs.intersection(words):
            pids.append(pid)
    return pids


def _has_processes(folder: Path) -> bool:
    """True if a process has this folder in its command, or works in it."""
    prefix = os.fsencode(folder) + b"/"
    for pid, words in _command_lines():
        for word in (*words, _working_directory(pid)):
            if word.startswith(prefix):
                return True
    return False


def _command_lines() -> Iterator[tuple[int, list[bytes]]]:
    """Yield each process with the words of its command."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):  # the process has ended, or belongs to another user
            words = (entry / "cmdline").read_bytes().split(b"\0")
            yield int(entry.name), words


def _working_directory(pid: int) -> bytes:
    """Return the working directory of a process; empty if it has ended or belongs to another
    user.
    """
    try:
        return os.fsencode(os.readlink(f"/proc/{pid}/cwd"))
    except OSError:
        return b""
