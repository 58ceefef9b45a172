"""The floor of jobs: their containers started bare, parties in parallel, tasks in sequence."""

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
# Seconds with the same number of prepared containers, after which nodes count as prepared.
_QUIET_SECONDS = 4.0
_POLL_INTERVAL = 0.5  # seconds
_PARTIES = ("guest", "host")


def build(task_seconds: float = 0) -> None:
    """Build the image of the tasks, which do nothing for some seconds."""
    program = (Path(__file__).parent / "noop.py").read_text()
    if task_seconds:
        program = f"import time\ntime.sleep({task_seconds})\n{program}"
    with TemporaryDirectory() as folder:
        (Path(folder) / "noop.py").write_text(program)
        (Path(folder) / "Dockerfile").write_text(
            f'FROM {BASE}\nCOPY noop.py /noop.py\nENTRYPOINT ["python3", "-I", "-S", "/noop.py"]\n'
        )
        docker.from_env().images.build(
            path=folder,
            tag=IMAGE,
            rm=True,
        )


class CallbackHandler(BaseHTTPRequestHandler):
    """Accepts every callback."""

    def do_POST(self) -> None:
        """Read the body, and respond with 200."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class Floor:
    """A bridge network with a server for callbacks, in which bare containers run."""

    def __enter__(self) -> "Floor":
        self._client = docker.from_env(max_pool_size=16)
        self._remove_leftovers()
        self._network = self._client.networks.create(
            NETWORK,
            driver="bridge",
        )
        self._network.reload()
        self._address = self._network.attrs["IPAM"]["Config"][0]["Gateway"]
        self._server = ThreadingHTTPServer((self._address, 0), CallbackHandler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._network.remove()
        self._client.close()

    def _remove_leftovers(self) -> None:
        """Remove containers and networks of an earlier run that was killed."""
        for container in self._client.containers.list(all=True, filters={"name": f"{NETWORK}-"}):
            container.remove(force=True)
        for network in self._client.networks.list(names=[NETWORK]):
            network.remove()

    def chain(self, tasks: int, network: str = NETWORK) -> float:
        """Return the seconds of a chain of tasks at two parties, in a network of the daemon."""
        start = time.perf_counter()
        run = partial(self._run, network)
        with ThreadPoolExecutor(len(_PARTIES)) as pool:
            for number in range(tasks):
                list(pool.map(run, self._environments(number)))
        return time.perf_counter() - start

    def together(self, tasks: int, concurrent: int) -> float:
        """Return the seconds of independent tasks at two parties, on the host's network.

        ``concurrent``: number of containers that run at a time.
        """
        environments = []
        for number in range(tasks):
            environments += self._environments(number)
        start = time.perf_counter()
        with ThreadPoolExecutor(concurrent) as pool:
            list(pool.map(partial(self._run, "host"), environments))
        return time.perf_counter() - start

    def wait_until_prepared(self) -> None:
        """Wait until nodes have prepared containers in advance, which would slow measurements."""
        count = self._prepared_count()
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < _QUIET_SECONDS:
            time.sleep(_POLL_INTERVAL)
            newest_count = self._prepared_count()
            if newest_count != count:
                count = newest_count
                quiet_since = time.monotonic()

    def _prepared_count(self) -> int:
        return len(self._client.api.containers(filters={"label": LABEL}))

    def _environments(
        self,
        task: int,
    ) -> list[dict[str, str]]:
        """Return the variables of the containers of a task, one for each party."""
        callback = f"http://{self._address}:{self._server.server_address[1]}/callback"
        return [
            {
                "system.callback": callback,
                "config.task_id": f"t{task}",
                "config.self_role": f"{role}.{task}",
            }
            for role in _PARTIES
        ]

    def _run(
        self,
        network: str,
        environment: dict[str, str],
    ) -> None:
        """Start, await and remove a container by the engine's API, with a node's restrictions."""
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
