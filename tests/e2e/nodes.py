"""Real gateway nodes for tests: own processes, own databases, loopback ports; killed and started at will."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import yaml

from gateway.identity.keys import Keyring
from tests import forks
from tests.forks import ROOT, Process
from tests.plain import NO_TLS

VENDOR = ROOT / "examples" / "reference_vendor"
VENDOR_COMMAND = [
    str(ROOT / ".venv-vendor" / "bin" / "python"),
    "-c",
    f"import sys; sys.path.insert(0, {str(VENDOR)!r}); from refvendor.__main__ import main; sys.exit(main())",
]
REFERENCE_IMAGE = "bfia-reference-vendor:1.0.0"
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw") or 0) % 8
_PORTS = cycle(14_000 + 2_000 * _WORKER + (os.getpid() * 37 + n) % 2_000 for n in range(2_000))
"""Ports that the system gives to no connection (those begin at 32768): a node that is started again finds its
own free. Each worker of a test run has its own two thousand."""


def free_ports(count: int) -> list[int]:
    found: list[int] = []
    for port in _PORTS:
        if len(found) == count:
            break
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            found.append(port)
    return found


LEAST = 300.0
"""Seconds that a wait goes on at least: it is there to end a hang, and a busy machine takes its time."""


def wait_for(
    what: Callable[[], Any],
    seconds: float = LEAST,
    every: float = 0.05,
    about: str = "",
) -> Any:
    """Ask until the answer is true. Raises `AssertionError` after ``seconds``, and not before `LEAST` are over.

    Asks every ``every`` seconds at first, and less often the longer it takes: a question costs a node 10 ms, and
    those of three waiting workers took the machine from what they waited for.
    """
    seconds = max(seconds, LEAST)
    begun = time.monotonic()
    while not (found := what()):
        waited = time.monotonic() - begun
        assert waited < seconds, f"{about or what} is not so after {seconds:g} s"
        time.sleep(max(every, min(waited * _SELDOM, _AT_LEAST_EVERY)))
    return found


_SELDOM = 0.04
"""of the time waited so far, that passes until a wait asks again"""

_AT_LEAST_EVERY = 0.4
"""seconds; a state that a wait is to see lasts longer"""


@dataclass
class Node:
    """One gateway node."""

    id: str
    home: Path
    settings: dict[str, Any]
    process: Process | subprocess.Popen[bytes] | None = None
    addresses: dict[str, Any] = field(default_factory=dict)
    starts: int = 0
    leaving: bool = False
    prefix: list[str] = field(default_factory=list)
    """put before the gateway's command, which is then started anew"""
    fresh: bool = False
    """started by an interpreter of its own, as a user starts it, and not a fork (`tests.forks`)"""
    pace: dict[str, float] = field(default_factory=dict)
    """fields of `gateway.bootstrap.parts.Pace`, where the process is a fork"""
    headers: dict[str, str] = field(default_factory=dict)
    """sent with every request"""

    def start(self, wait: bool = True) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "node.yml").write_text(yaml.safe_dump(self.settings))
        ready = self.home / "ready.json"
        ready.unlink(missing_ok=True)
        self.starts += 1
        self.leaving = False
        with (self.home / f"gateway-{self.starts}.log").open("wb") as log:
            words = ["serve", "-c", str(self.home / "node.yml"), "--ready-file", str(ready)]
            if self.prefix or self.fresh:
                line = [*self.prefix, sys.executable, "-m", "gateway.cli.main", *words]
                self.process = subprocess.Popen(
                    line,
                    stdout=log,
                    stderr=log,
                    cwd=ROOT,
                    start_new_session=True,
                )
            else:
                self.process = forks.start(
                    words,
                    stdout=log,
                    stderr=log,
                    pace=self.pace,
                )
        if wait:
            self.ready()

    def ready(self) -> None:
        def up() -> bool:
            assert self.process is not None and self.process.poll() is None, self.log()
            return (self.home / "ready.json").exists()

        wait_for(up, 30, about=f"node {self.id} is up")
        self.addresses = json.loads((self.home / "ready.json").read_text())

    def log(self) -> str:
        return "\n".join(
            p.read_text(errors="replace") for p in sorted(self.home.glob("gateway-*.log"))
        )

    def kill(self) -> None:
        """End the process as a power cut would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def leave(self) -> None:
        """Ask the process to end, once, and do not wait for it."""
        if self.process is not None and self.process.poll() is None and not self.leaving:
            self.process.terminate()
            self.leaving = True

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.leave()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    @property
    def operator(self) -> str:
        return str(self.addresses["operator"])

    @property
    def peer(self) -> str:
        return str(self.addresses["peer"])

    @property
    def peer_port(self) -> int:
        """The port of its listener for peers, which it need not serve yet."""
        return int(self.settings["listen"]["peer"]["bind"].rpartition(":")[2])

    def route(self, **entries: Any) -> None:
        """Write its routes before it is started: ports, or entries of the file."""
        made = {
            k: {"host": "127.0.0.1", "port": v} if isinstance(v, int) else v
            for k, v in entries.items()
        }
        (self.home / "routes.yml").write_text(yaml.safe_dump(made))

    def reached_at(self, host: str) -> None:
        """Have containers on other machines reach it at that address of this one."""
        listener = self.settings["listen"]["container"]
        where = f"{host}:{listener['bind'].rpartition(':')[2]}"
        listener |= {"bind": where, "advertise": f"http://{where}"}

    @property
    def storage(self) -> Path:
        return self.home / "storage"

    def ask(
        self,
        method: str,
        path: str,
        **more: Any,
    ) -> httpx.Response:
        more = {
            "headers": self.headers,
            "timeout": 120,
            "trust_env": False,
            "verify": NO_TLS,
        } | more
        return httpx.request(method, self.operator + path, **more)

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        return dict(self.ask("GET", path, params=params).json())

    def post(self, path: str, body: Any) -> dict[str, Any]:
        return dict(self.ask("POST", path, json=body).json())

    def register(self, body: Any) -> None:
        answer = self.post("/v2/provider/register", body)
        assert answer["code"] == 0, answer

    def upload(
        self,
        file: Path,
        namespace: str,
        name: str,
        **more: Any,
    ) -> dict[str, Any]:
        meta = {"delimiter": ",", "match_id_name": "id"} | more.pop("meta", {})
        form = {
            "namespace": namespace,
            "name": name,
            "head": "true",
            "partitions": "1",
            "meta": json.dumps(meta),
        }
        with file.open("rb") as stream:
            data, files = (
                form | {k: str(v) for k, v in more.items()},
                {"file": (file.name, stream, "text/csv")},
            )
            answer = self.ask(
                "POST",
                "/v2/component/upload/file",
                data=data,
                files=files,
                timeout=600,
            ).json()
        assert answer["code"] == 0, answer
        return dict(answer["data"])

    def submit(self, body: Any, path: str = "/v1/platform/schedule/job/create_all") -> str:
        answer = self.post(path, body)
        assert answer["code"] == 0, answer
        assert set(answer) == {"code", "data", "msg"} and answer["msg"] == "success", answer
        return str(answer["data"]["job_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return self.get(f"/api/v1/jobs/{job_id}")

    def outputs(self, job_id: str) -> dict[tuple[str, str, str], dict[str, Any]]:
        found = self.get(f"/api/v1/jobs/{job_id}/outputs")["outputs"]
        return {(o["task"], o["party"], o["key"]): o for o in found}

    def timeline(self, job_id: str) -> list[dict[str, Any]]:
        return list(self.get(f"/api/v1/jobs/{job_id}/timeline")["timeline"])

    def wait_job(
        self,
        job_id: str,
        seconds: float = 90.0,
        outcome: str | None = "SUCCEEDED",
    ) -> dict[str, Any]:
        """Wait for the job's end; fail with all that is known of it when it ends otherwise."""

        def over() -> dict[str, Any] | None:
            job = self.job(job_id)
            return job if job.get("status") in ("FINISHED", "REJECTED") else None

        try:
            job = wait_for(over, seconds, 0.1, f"job {job_id} has ended")
        except AssertionError as error:
            raise AssertionError(
                f"{error}\n{json.dumps(self.job(job_id), indent=1)}\n{self.log()[-4000:]}"
            ) from None
        if outcome is not None and job["outcome"] != outcome:
            lines = "\n".join(str(e) for e in self.timeline(job_id))
            raise AssertionError(
                f"{job['outcome']}: {job['failure']}\n{lines}\n{self.run_logs()}\n{self.log()[-3000:]}"
            )
        return job

    def left(self) -> list[Any]:
        """Return containers that this node has no record of, and what jobs that had ended still held.

        Nothing if it cannot be asked any more.
        """
        try:
            orphans, resources = (
                self.ask("GET", f"/api/v1/{what}") for what in ("orphans", "resources")
            )
        except (httpx.TransportError, KeyError):
            return []
        found = list(orphans.json()["unknown"]) if orphans.is_success else []
        if resources.is_success and (held := resources.json()["returned_by_reconciler"]):
            found.append({"node": self.id, "returned_by_reconciler": held})
        return found

    def run_logs(self) -> str:
        parts = []
        for path in sorted((self.home / "state" / "runs").glob("*/std*.log")):
            parts.append(
                f"--- {path.parent.name}/{path.name}\n{path.read_text(errors='replace')[-1500:]}"
            )
        return "\n".join(parts)


class Federation:
    """Some nodes that know each other. Use as a context: all are stopped at the end."""

    def __init__(
        self,
        home: Path,
        ids: Iterable[str],
        engine: Mapping[str, Any],
        fresh: bool = False,
        pace: Mapping[str, float] | None = None,
        **settings: Any,
    ) -> None:
        self.nodes: dict[str, Node] = {}
        ids = list(ids)
        ports = {node: free_ports(3) for node in ids}
        for node in ids:
            peer, container, operator = ports[node]
            own: dict[str, Any] = {
                "node": {"id": node},
                "listen": {
                    "peer": {"bind": f"127.0.0.1:{peer}"},
                    "container": {"bind": f"127.0.0.1:{container}"},
                    "operator": {"bind": f"127.0.0.1:{operator}"},
                },
                "database": {"url": "sqlite:///gateway.db"},
                "storage": {"url": f"file://{home / node / 'storage'}"},
                "state_dir": "state",
                "engine": dict(engine),
                "route_table": {"file": "routes.yml"},
                **settings,
            }
            self.nodes[node] = Node(node, home / node, own, fresh=fresh, pace=dict(pace or {}))
            (home / node).mkdir(parents=True)
        keys = {node: Keyring(home / node / "state").make("ed25519").public for node in ids}
        for node in (
            self.nodes.values()
        ):  # signatures are checked, and what tests send in their name may have none
            signed = {n: {"keys": keys[n], "signing": "accepted"} for n in ids if n != node.id}
            node.route(
                **{
                    n: {
                        "host": "127.0.0.1",
                        "port": ports[n][0],
                        **more,
                    }
                    for n, more in signed.items()
                }
            )

    def __enter__(self) -> "Federation":
        try:
            for node in self.nodes.values():
                node.start(wait=False)
            for node in self.nodes.values():
                node.ready()
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, raised: object = None, *_: object) -> None:
        """Stop all; in a test that went well, no node may have a container that it knows nothing of.

        Nor may any job have kept what it held, so that the reconciler had to return it.
        """
        left = [] if raised is not None else [node.left() for node in self.nodes.values()]
        for node in self.nodes.values():
            node.leave()
        for node in self.nodes.values():
            node.stop()
            # runs whose directory is gone are ended by their supervisors
            shutil.rmtree(node.home / "state" / "process", ignore_errors=True)
        assert not any(left), left

    def __getitem__(self, node: str) -> Node:
        return self.nodes[node]

    def __iter__(self) -> Iterable[Node]:  # type: ignore[override]
        return iter(self.nodes.values())


def process_engine(*images: str, command: list[str] | None = None) -> dict[str, Any]:
    """Return the settings of a process engine in which these images run the reference vendor's code."""
    chosen = command or VENDOR_COMMAND
    return {
        "kind": "process",
        "process": {"images": {i: {"command": chosen} for i in images or (REFERENCE_IMAGE,)}},
    }


def example(name: str) -> Any:
    return json.loads((ROOT / "examples" / name).read_text(encoding="utf-8"))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
