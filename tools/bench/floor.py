"""The floor: the same containers started bare, parties in parallel, stages in sequence."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import docker

from engines.docker.sandboxes import LABEL
from tests.services.own_docker import BASE

IMAGE = "bfia-bench-noop:1"
NETWORK = "bfia-bench-floor"
_QUIET = 4.0
"""seconds without a prepared container more or fewer"""


def build() -> None:
    """Build the no-op image."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "noop.py").write_text((Path(__file__).parent / "noop.py").read_text())
        (Path(folder) / "Dockerfile").write_text(
            f'FROM {BASE}\nCOPY noop.py /noop.py\nENTRYPOINT ["python3", "-I", "-S", "/noop.py"]\n'
        )
        docker.from_env().images.build(
            path=folder,
            tag=IMAGE,
            rm=True,
        )


class Answer(BaseHTTPRequestHandler):
    """Takes every callback."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


class Floor:
    """A bridge network of its own and a server for the callbacks on it."""

    def __enter__(self) -> "Floor":
        self._client = docker.from_env(max_pool_size=16)
        for container in self._client.containers.list(all=True, filters={"name": f"{NETWORK}-"}):
            container.remove(force=True)  # one run that was killed must not spoil the next
        for network in self._client.networks.list(names=[NETWORK]):
            network.remove()
        self._network = self._client.networks.create(NETWORK, driver="bridge")
        self._network.reload()
        self._address = self._network.attrs["IPAM"]["Config"][0]["Gateway"]

        self._server = ThreadingHTTPServer((self._address, 0), Answer)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._network.remove()
        self._client.close()

    def chain(self, tasks: int, network: str = NETWORK) -> float:
        """Return the seconds that a chain of tasks at two parties takes, in a network of the
        daemon's.
        """
        began = time.perf_counter()
        with ThreadPoolExecutor(2) as pool:
            for i in range(tasks):
                list(pool.map(partial(self._run, network), self._environments(i)))
        return time.perf_counter() - began

    def together(self, tasks: int, at_once: int) -> float:
        """Return the seconds of tasks at two parties on the host's network, so many containers
        concurrently.
        """
        began = time.perf_counter()
        with ThreadPoolExecutor(at_once) as pool:
            list(
                pool.map(
                    partial(self._run, "host"),
                    (e for i in range(tasks) for e in self._environments(i)),
                )
            )
        return time.perf_counter() - began

    def until_prepared(self) -> None:
        """Wait until nodes have prepared what containers to come need, which would slow what is
        measured.
        """
        count, since = -1, time.monotonic()
        while time.monotonic() - since < _QUIET:
            found = len(self._client.api.containers(filters={"label": LABEL}))
            if found != count:
                count, since = found, time.monotonic()
            time.sleep(0.5)

    def _environments(self, task: int) -> list[dict[str, str]]:
        """Return the variables of the containers of a task, one for each party."""
        callback = f"http://{self._address}:{self._server.server_address[1]}/callback"
        return [
            {
                "system.callback": callback,
                "config.task_id": f"t{task}",
                "config.self_role": f"{role}.{task}",
            }
            for role in ("guest", "host")
        ]

    def _run(self, network: str, environment: dict[str, str]) -> None:
        """Start, await and remove one container through the engine's API, as hardened as ours."""
        container = self._client.containers.create(
            IMAGE,
            name=f"{NETWORK}-{time.time_ns()}-{environment['config.self_role']}",
            environment=environment,
            network=network,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            pids_limit=512,
            user="65534:65534",
            init=True,
        )
        container.start()
        container.wait()
        container.remove()
