"""Real gateway nodes for tests: own processes and databases on loopback ports.

Tests start, stop and kill them as they need.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import yaml

from gateway.identity.keys import Keyring
from tests import forks
from tests.forks import ROOT, Process
from tests.namespaces import Namespace
from tests.plain import NO_TLS

VENDOR = ROOT / "examples" / "reference_vendor"
# The reference vendor has an environment of its own, which does not contain its package.
_RUN_VENDOR = f"""\
import sys
sys.path.insert(0, {str(VENDOR)!r})
from refvendor.__main__ import main
sys.exit(main())
"""
VENDOR_COMMAND = [str(ROOT / ".venv-vendor" / "bin" / "python"), "-c", _RUN_VENDOR]
REFERENCE_IMAGE = "bfia-reference-vendor:1.0.0"
# The gateway's command in a folder with its sources, also of former versions.
COMMAND = [sys.executable, "-c", "from gateway.cli import begin; begin()"]

# Ports below 32768 are given to no connection by the system, so a restarted node gets its port
# again. Each worker of a test run has 2000 of its own; the first depends on its process id.
_PORTS_OF_WORKER = 2_000


@cache
def _ports(pid: int) -> Iterator[int]:
    """Return the ports of the worker with a process id, in turn and for ever.

    The id keeps a fork from going on with the ports of the process that has imported the tests.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw") or 0) % 8
    first_port = 14_000 + _PORTS_OF_WORKER * worker
    offset = pid * 37
    return cycle(
        first_port + (offset + number) % _PORTS_OF_WORKER for number in range(_PORTS_OF_WORKER)
    )


def free_ports(count: int) -> list[int]:
    """Return ``count`` loopback ports that are not in use."""
    ports: list[int] = []
    while len(ports) < count:
        port = next(_ports(os.getpid()))
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            ports.append(port)
    return ports


# Shortest timeout of a wait in seconds: it only ends a hang, and a busy machine is slow.
LEAST = 300.0
# The pause between two checks grows to this share of the time waited so far, ...
_PAUSE_SHARE = 0.04
# ... but at most to these seconds: states that a test waits for last longer.
_LONGEST_PAUSE = 0.4
# How often `Node.good_plan` asks for a plan
_PLANS = 6


def wait_for(
    what: Callable[[], Any],
    seconds: float = LEAST,
    every: float = 0.05,
    about: str = "",
) -> Any:
    """Call a function until its result is true; return the result.

    It is called after pauses of ``every`` seconds at first and longer ones later: a request costs
    a node 10 ms, and the requests of three workers would slow down the event they wait for.
    ``about`` describes the event. Raises `AssertionError` after ``seconds``, at least `LEAST`.
    """
    seconds = max(seconds, LEAST)
    begin = time.monotonic()
    while True:
        result = what()
        if result:
            return result
        waited = time.monotonic() - begin
        assert waited < seconds, f"{about or what} is not so after {seconds:g} s"
        time.sleep(max(every, min(waited * _PAUSE_SHARE, _LONGEST_PAUSE)))


def environment_of(sources: Path) -> dict[str, str]:
    """Return the environment for a gateway of a folder with sources."""
    if sources == ROOT:
        return dict(os.environ)
    path = f"{sources}{os.pathsep}{sources / 'clients' / 'python'}"
    return os.environ | {"PYTHONPATH": path}


@dataclass
class Node:
    """One gateway node."""

    id: str
    home: Path
    settings: dict[str, Any]
    process: Process | subprocess.Popen[bytes] | None = None
    # addresses of the listeners, once the node is ready
    addresses: dict[str, Any] = field(default_factory=dict)
    starts: int = 0
    # whether the process was asked to end
    leaving: bool = False
    # put before the gateway's command, which then runs in an interpreter of its own
    prefix: list[str] = field(default_factory=list)
    # runs in an interpreter of its own, as for a user, and not as a fork (`tests.forks`)
    fresh: bool = False
    # the folder of the gateway's sources: those of another version are no fork either
    sources: Path = ROOT
    # fields of `gateway.bootstrap.parts.Pace`, if the process is a fork
    pace: dict[str, float] = field(default_factory=dict)
    # sent with every request
    headers: dict[str, str] = field(default_factory=dict)
    # the network namespace of a fork; None: that of the tests
    namespace: Namespace | None = None

    # ------------------------------------------------------------ process

    def start(self, wait: bool = True) -> None:
        """Write the settings and start the process."""
        self.home.mkdir(
            parents=True,
            exist_ok=True,
        )
        settings_file = self.home / "node.yml"
        settings_file.write_text(yaml.safe_dump(self.settings))
        self._ready_file.unlink(missing_ok=True)
        self.starts += 1
        self.leaving = False
        arguments = ["serve", "-c", str(settings_file), "--ready-file", str(self._ready_file)]
        with (self.home / f"gateway-{self.starts}.log").open("wb") as log:
            if self.prefix or self.fresh or self.sources != ROOT:
                command = [*self.prefix, *COMMAND, *arguments]
                self.process = subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=log,
                    cwd=self.sources,
                    env=environment_of(self.sources),
                    start_new_session=True,
                )
            else:
                self.process = forks.start(
                    arguments,
                    stdout=log,
                    stderr=log,
                    pace=self.pace,
                    namespace=self.namespace,
                )
        if wait:
            self.ready()

    @property
    def _ready_file(self) -> Path:
        return self.home / "ready.json"

    def ready(self) -> None:
        """Wait until the node serves. Raises `AssertionError` with its log if it has ended."""
        wait_for(
            self._is_ready,
            30,
            about=f"node {self.id} is up",
        )
        self.addresses = json.loads(self._ready_file.read_text())

    def _is_ready(self) -> bool:
        assert self.process is not None, "the node was not started"
        assert self.process.poll() is None, self.log()
        return self._ready_file.exists()

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """End the process as a power failure would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def leave(self) -> None:
        """Ask a running process to end, once, without waiting for its end."""
        if self.is_running and not self.leaving:
            assert self.process is not None
            self.process.terminate()
            self.leaving = True

    def stop(self) -> None:
        """End the process. Raises `TimeoutExpired` if it had to be killed after a minute."""
        if self.process is None or self.process.poll() is not None:
            return
        self.leave()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def log(self) -> str:
        """Return the logs of all its processes so far."""
        logs = sorted(self.home.glob("gateway-*.log"))
        return "\n".join(file.read_text(errors="replace") for file in logs)

    def run_logs(self) -> str:
        """Return the ends of the logs of its runs."""
        ends = []
        for file in sorted((self.home / "state" / "runs").glob("*/std*.log")):
            end = file.read_text(errors="replace")[-1500:]
            ends.append(f"--- {file.parent.name}/{file.name}\n{end}")
        return "\n".join(ends)

    # ------------------------------------------------------------ addresses

    @property
    def operator(self) -> str:
        """The address of its listener for operators."""
        return str(self.addresses["operator"])

    @property
    def peer(self) -> str:
        """The address of its listener for peers."""
        return str(self.addresses["peer"])

    @property
    def peer_port(self) -> int:
        """The port of its listener for peers, also before it is started."""
        return int(self.settings["listen"]["peer"]["bind"].rpartition(":")[2])

    @property
    def storage(self) -> Path:
        """The folder of its storage."""
        return self.home / "storage"

    def route(self, **entries: Any) -> None:
        """Write its routes before it is started: loopback ports, or entries of the file."""
        routes = {}
        for node_id, entry in entries.items():
            if isinstance(entry, int):
                entry = {
                    "host": "127.0.0.1",
                    "port": entry,
                }
            routes[node_id] = entry
        (self.home / "routes.yml").write_text(yaml.safe_dump(routes))

    def reached_at(self, host: str) -> None:
        """Serve containers on other machines at an address of this machine."""
        listener = self.settings["listen"]["container"]
        port = listener["bind"].rpartition(":")[2]
        listener["bind"] = f"{host}:{port}"
        listener["advertise"] = f"http://{host}:{port}"

    # ------------------------------------------------------------ requests of operators

    def ask(
        self,
        method: str,
        path: str,
        **kwargs: Any,
    ) -> httpx.Response:
        """Send a request of an operator; ``kwargs`` as for `httpx.request`."""
        defaults = {
            "headers": self.headers,
            "timeout": 120,
            "trust_env": False,
            "verify": NO_TLS,
        }
        with self._entered():
            return httpx.request(method, self.operator + path, **(defaults | kwargs))

    def _entered(self) -> contextlib.AbstractContextManager[None]:
        """Move this thread to the node's network namespace for a while."""
        if self.namespace is None:
            return contextlib.nullcontext()
        return self.namespace.entered()

    def get(
        self,
        path: str,
        **params: Any,
    ) -> dict[str, Any]:
        """Return the JSON of a path; ``params`` are its query."""
        return dict(self.ask("GET", path, params=params).json())

    def post(
        self,
        path: str,
        body: Any,
    ) -> dict[str, Any]:
        """Post a JSON body; return the JSON of the response."""
        return dict(self.ask("POST", path, json=body).json())

    def register(self, body: Any) -> None:
        """Register a provider."""
        response = self.post("/v2/provider/register", body)
        assert response["code"] == 0, response

    def upload(
        self,
        file: Path,
        namespace: str,
        name: str,
        **fields: Any,
    ) -> dict[str, Any]:
        """Upload a table; return the response's data. ``fields`` are further ones of the form."""
        meta = {
            "delimiter": ",",
            "match_id_name": "id",
        }
        meta |= fields.pop("meta", {})
        form = {
            "namespace": namespace,
            "name": name,
            "head": "true",
            "partitions": "1",
            "meta": json.dumps(meta),
        }
        form |= {field: str(value) for field, value in fields.items()}
        with file.open("rb") as stream:
            response = self.ask(
                "POST",
                "/v2/component/upload/file",
                data=form,
                files={"file": (file.name, stream, "text/csv")},
                timeout=600,
            ).json()
        assert response["code"] == 0, response
        return dict(response["data"])

    def good_plan(self, body: Any) -> Any:
        """Return the plan of a job, once it is good.

        A busy machine's engines and partners may answer too late for a plan, so it is asked for up
        to `_PLANS` times. Raises `AssertionError` with the last plan's problems.
        """
        problems: list[Any] = []
        for _ in range(_PLANS):
            plan = self.post("/api/v1/jobs/plan", body)
            if plan["good"]:
                return plan
            problems = [
                (node["node"], check)
                for node in plan["nodes"]
                for check in node["checks"]
                if check["standing"] == "problem"
            ]
        raise AssertionError(problems)

    def submit(
        self,
        body: Any,
        path: str = "/v1/platform/schedule/job/create_all",
    ) -> str:
        """Submit a job; return its id."""
        response = self.post(path, body)
        assert response["code"] == 0, response
        assert set(response) == {"code", "data", "msg"}, response
        assert response["msg"] == "success", response
        return str(response["data"]["job_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """Return a job as the node shows it."""
        return self.get(f"/api/v1/jobs/{job_id}")

    def outputs(
        self,
        job_id: str,
    ) -> dict[tuple[str, str, str], dict[str, Any]]:
        """Return a job's outputs by task, party and key."""
        outputs = self.get(f"/api/v1/jobs/{job_id}/outputs")["outputs"]
        return {(output["task"], output["party"], output["key"]): output for output in outputs}

    def timeline(
        self,
        job_id: str,
    ) -> list[dict[str, Any]]:
        """Return the events of a job."""
        return list(self.get(f"/api/v1/jobs/{job_id}/timeline")["timeline"])

    def wait_job(
        self,
        job_id: str,
        seconds: float = 90.0,
        outcome: str | None = "SUCCEEDED",
    ) -> dict[str, Any]:
        """Wait for a job's end and return the job.

        Raises `AssertionError` with the timeline and the logs unless it has the outcome; every
        outcome is right if ``outcome`` is None.
        """
        try:
            job = wait_for(lambda: self._ended(job_id), seconds, 0.1, f"job {job_id} has ended")
        except AssertionError as error:
            job_text = json.dumps(
                self.job(job_id),
                indent=1,
            )
            raise AssertionError(f"{error}\n{job_text}\n{self.log()[-4000:]}") from None
        if outcome is not None and job["outcome"] != outcome:
            events = "\n".join(str(event) for event in self.timeline(job_id))
            failure = f"{job['outcome']}: {job['failure']}"
            logs = f"{self.run_logs()}\n{self.log()[-3000:]}"
            raise AssertionError(f"{failure}\n{events}\n{logs}")
        return dict(job)

    def wait_status(self, job_id: str, status: str, seconds: float) -> None:
        """Wait until a job has a status at this node."""

        def has_status() -> bool:
            job = self.job(job_id)
            return bool(job["status"] == status)

        wait_for(has_status, seconds, about=f"job {job_id} is {status}")

    def runs_of(self, job_id: str, task: str) -> list[dict[str, Any]]:
        """Return the runs of a task at this node."""
        runs = self.job(job_id)["runs"]
        return [run for run in runs if run["task_name"] == task]

    def _ended(
        self,
        job_id: str,
    ) -> dict[str, Any] | None:
        """Return a job if it has ended, else None."""
        job = self.job(job_id)
        if job.get("status") in ("FINISHED", "REJECTED"):
            return job
        return None

    def leftovers(self) -> list[Any]:
        """Return containers without a record, and resources that ended jobs had not returned.

        Empty if the node does not respond any more.
        """
        try:
            orphans = self.ask("GET", "/api/v1/orphans")
            resources = self.ask("GET", "/api/v1/resources")
        except (httpx.TransportError, KeyError):
            return []
        leftovers = []
        if orphans.is_success:
            leftovers += orphans.json()["unknown"]
        if resources.is_success:
            returned = resources.json()["returned_by_reconciler"]
            if returned:
                leftovers.append({"node": self.id, "returned_by_reconciler": returned})
        return leftovers


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
        """``settings`` are further ones of every node, by their first key.

        For ``fresh`` and ``pace`` see `Node`.
        """
        self.nodes: dict[str, Node] = {}
        for node_id in ids:
            node_home = home / node_id
            node_home.mkdir(parents=True)
            node_settings = _default_settings(node_id, node_home, engine) | settings
            self.nodes[node_id] = Node(
                node_id,
                node_home,
                node_settings,
                fresh=fresh,
                pace=dict(pace or {}),
            )
        self._write_routes()

    def _write_routes(self) -> None:
        """Give every node a key, and routes to the others with their keys.

        Signatures are checked but not required: tests send requests in a node's name without one.
        """
        routes = {}
        for node_id, node in self.nodes.items():
            routes[node_id] = {
                "host": "127.0.0.1",
                "port": node.peer_port,
                "keys": Keyring(node.home / "state").make("ed25519").public,
                "signing": "accepted",
            }
        for node_id, node in self.nodes.items():
            to_others = {target: route for target, route in routes.items() if target != node_id}
            node.route(**to_others)

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

    def __exit__(
        self,
        raised: object = None,
        *_: object,
    ) -> None:
        """Stop all nodes.

        Raises `AssertionError` after a test without errors if a node has containers without a
        record, or if its reconciler had to return resources of ended jobs.
        """
        leftovers = []
        if raised is None:
            leftovers = [node.leftovers() for node in self.nodes.values()]
        for node in self.nodes.values():
            node.leave()
        for node in self.nodes.values():
            node.stop()
            # The supervisors of runs end those whose folder is gone.
            shutil.rmtree(
                node.home / "state" / "process",
                ignore_errors=True,
            )
        assert not any(leftovers), leftovers

    def __getitem__(self, node: str) -> Node:
        return self.nodes[node]

    def __iter__(self) -> Iterable[Node]:  # type: ignore[override]
        return iter(self.nodes.values())


def _default_settings(
    node_id: str,
    home: Path,
    engine: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the settings of a node with its files below ``home``."""
    peer, container, operator = free_ports(3)
    return {
        "node": {"id": node_id},
        "listen": {
            "peer": {"bind": f"127.0.0.1:{peer}"},
            "container": {"bind": f"127.0.0.1:{container}"},
            "operator": {"bind": f"127.0.0.1:{operator}"},
        },
        "database": {"url": "sqlite:///gateway.db"},
        "storage": {"url": f"file://{home / 'storage'}"},
        "state_dir": "state",
        "engine": dict(engine),
        "route_table": {"file": "routes.yml"},
    }


def process_engine(*images: str, command: list[str] | None = None) -> dict[str, Any]:
    """Return the settings of a process engine that runs one command for all images.

    The command is by default the reference vendor's, and so is the image.
    """
    image_settings = {}
    for image in images or (REFERENCE_IMAGE,):
        image_settings[image] = {"command": command or VENDOR_COMMAND}
    return {
        "kind": "process",
        "process": {"images": image_settings},
    }


def example(name: str) -> Any:
    """Return the JSON of a file in ``examples``."""
    return json.loads((ROOT / "examples" / name).read_text(encoding="utf-8"))


def alive(pid: int) -> bool:
    """Return whether a process of this machine exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
