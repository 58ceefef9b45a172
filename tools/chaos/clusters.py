"""The containers of the trials in the suite's Kubernetes or Swarm, and what happens to such
clusters.

The nodes reach the cluster's managers through a cable that a trial cuts. The machine that tests may
take away is the world's own as long as that lasts.
"""

import contextlib
import json
import os
import signal
import socketserver
import subprocess
import threading
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, cast
from urllib.parse import urlsplit

import docker
import docker.errors
import yaml
from lightkube import Client, KubeConfig
from lightkube.operators import exists
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod, Secret

from engines.base import INSTALLATION
from engines.kubernetes.jobs import RUN
from tests import storages
from tests.e2e.test_storages import settings_of
from tests.services.cable import Cable, cable_to
from tests.services.clusters import (
    LAST,
    daemon,
    drained,
    kubectl,
    load,
    machine,
    runs_in,
    the_last_of,
)
from tools.chaos.containers import Containers, write_image

FAULTS = {
    "k8s": ("cut machine", "API away", "evict", "quota", "image missing"),
    "swarm": ("cut machine", "manager away", "drain", "image missing"),
}
SAMPLE = {
    "k8s": (
        ("running", "evict"),
        ("running", "cut machine"),
        ("running", "API away"),
        ("running", "quota"),
        ("creating", "image missing"),
        ("starting", "kill guest"),
    ),
    "swarm": (
        ("running", "cut machine"),
        ("running", "manager away"),
        ("running", "drain"),
        ("creating", "image missing"),
        ("starting", "kill guest"),
    ),
}
"""phases and faults of the trials that the test suite plays"""
_REASONS = {
    "cut machine": ("GONE", "CREATE_FAILED"),
    "evict": ("GONE", "CREATE_FAILED"),
    "drain": ("GONE", "CREATE_FAILED"),
    "quota": ("CREATE_FAILED",),
    "image missing": ("IMAGE_NOT_FOUND",),
}
_AWAY = (1.0, 4.0, 10.0, 65.0)
"""seconds"""
_TOO_LONG = 55.0
"""seconds, some less than those for which runs and failed attempts wait for their engine"""
_NOTICED = {"kubernetes": 35.0, "swarm": 25.0}
"""seconds after which a cluster has certainly given up a machine"""


class Register(socketserver.ThreadingTCPServer):
    """Writes down what containers say of their start, and answers how many were there before."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, folder: Path) -> None:
        super().__init__((host, 0), _Registration)
        self.folder = folder


class _Registration(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        folder = cast(Register, self.server).folder
        name = self.rfile.readline().decode().strip()
        task, role = name.split(".")[:2]
        before = len(list(folder.glob(f"{task}.{role}.*")))
        (folder / name).touch()
        self.wfile.write(str(before).encode())


class Cluster(Containers):
    """Use as a context: what it made in the cluster is gone at the end."""

    name = ""
    """as `tests.services.clusters` has it"""

    def __init__(self, register: Path) -> None:
        super().__init__(register)
        self.host = os.environ[f"BFIA_TEST_{self.name.upper()}_HOST"]
        self.image = f"bfia-chaos-{uuid.uuid4().hex[:8]}:1.0.0"
        self._server = Register(self.host, register)
        self._stack = ExitStack()
        self._was_away = 0.0

    def __enter__(self) -> "Cluster":
        with ExitStack() as stack:
            stack.enter_context(the_last_of(self.name))
            self._lake = stack.enter_context(storages.bucket())
            thread = threading.Thread(
                target=self._server.serve_forever, kwargs={"poll_interval": 0.05}
            )
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._server.server_close)
            stack.callback(self._server.shutdown)
            self.cable = stack.enter_context(self._managers())
            self._made(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def registers_at(self) -> str:
        return "{}:{}".format(*self._server.server_address)

    @property
    def more(self) -> dict[str, Any]:
        return {"storages": settings_of(self._lake)}

    @property
    def faults(self) -> Mapping[str, Callable[[Random], None]]:
        """Return what makes each fault, holds it for a while and takes it away again."""
        return {"cut machine": self._cut, "image missing": self._without_image}

    def reasons(self, fault: str) -> tuple[str, ...]:
        away = ("ENGINE_DOWN", "NOT_STOPPED") if self._was_away > _TOO_LONG else ()
        return _REASONS.get(fault, away)

    @abstractmethod
    def _managers(self) -> contextlib.AbstractContextManager[Cable]:
        """Give the cable to those that the nodes speak to."""

    @abstractmethod
    def _made(self, stack: ExitStack) -> None:
        """Bring the image, and whatever else the runs need, into the cluster."""

    @abstractmethod
    def _image_is_gone(self) -> contextlib.AbstractContextManager[None]:
        """Take the image away until the end."""

    def _cut(self, random: Random) -> None:
        noticed = _NOTICED[self.name]
        self._wait(random, 1.0)
        machine(self.name, "cut")
        try:
            lasts = (random.uniform(1.0, 4.0), random.uniform(noticed, noticed + 5.0))
            time.sleep(lasts[0] if self.brief else random.choice(lasts))
        finally:
            machine(self.name, "mend")

    def _away(self, random: Random) -> None:
        self._wait(random, 1.0)
        self._was_away = _AWAY[0] if self.brief else random.choice(_AWAY)
        self.cable.cut()
        try:
            time.sleep(self._was_away)
        finally:
            self.cable.mend()

    def _without_image(self, random: Random) -> None:
        with self._image_is_gone():
            self._last(random, 6.0)

    def _wait(self, random: Random, most: float) -> None:
        """Let some time go by before a fault, none in a brief trial."""
        time.sleep(0.0 if self.brief else random.uniform(0.0, most))

    def _last(self, random: Random, most: float) -> None:
        """Let a fault last, not for long in a brief trial."""
        time.sleep(2.0 if self.brief else random.uniform(1.0, most))

    def _build(self, name: str) -> None:
        """Have the shared Docker daemon make the image."""
        with TemporaryDirectory() as folder:
            write_image(Path(folder))
            _docker("build", "-q", "-t", name, folder)


class Pods(Cluster):
    """In a namespace of the world's own."""

    name = "kubernetes"

    def __init__(self, register: Path) -> None:
        super().__init__(register)
        self._home = Path(os.environ["BFIA_TEST_KUBERNETES"])
        self._registry = os.environ["BFIA_TEST_KUBERNETES_REGISTRY"]
        self._repository = self.image.partition(":")[0]
        self.image = f"{self._registry}/{self.image}"
        self._namespace = self._repository
        self._file = register.with_name("kubeconfig")

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "kind": "kubernetes",
            "kubernetes": {"kubeconfig": str(self._file), "namespace": self._namespace},
            "docker": {"registries": [self._registry]},
        }

    @property
    def faults(self) -> Mapping[str, Callable[[Random], None]]:
        return {
            **super().faults,
            "API away": self._away,
            "evict": self._evict,
            "quota": self._full,
        }

    def left(self) -> list[str]:
        """In a brief trial without pods that are about to go, for which old kubelets take half a
        minute.
        """
        found = [
            (kind, self._client.list(kind, labels={RUN: exists()})) for kind in (Job, Pod, Secret)
        ]
        return [
            f"{kind.__name__} {one.metadata.name}"
            for kind, objects in found
            for one in objects
            if not (self.brief and kind is Pod and one.metadata.deletionTimestamp)
        ]

    def kill_one(self, random: Random) -> None:
        """Kill the program as the kernel of its machine, which is this one, would."""
        running = [pod for pod in self._pods() if pod.status.phase == "Running"]
        if not running:
            return
        uid = random.choice(running).metadata.uid
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended just now
                words = (folder / "cmdline").read_bytes()
                if b"/patient.py" in words and f"pod{uid}" in (folder / "cgroup").read_text():
                    os.kill(int(folder.name), signal.SIGKILL)

    def _managers(self) -> contextlib.AbstractContextManager[Cable]:
        self._known = yaml.safe_load((self._home / "gateway.conf").read_text())
        where = urlsplit(self._known["clusters"][0]["cluster"]["server"])
        return cable_to((str(where.hostname), int(where.port or 0)))

    def _made(self, stack: ExitStack) -> None:
        config = KubeConfig.from_file(self._home / "admin.conf")
        self._client = stack.enter_context(
            Client(config, namespace=self._namespace, trust_env=False)
        )
        kubectl("create", "namespace", self._namespace)
        stack.callback(kubectl, "delete", "namespace", self._namespace, "--wait=false")
        runs_in(self._namespace)
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        asked["spec"] = {"expirationSeconds": 86400}  # type: ignore[assignment]
        account = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/bfia-gateway/token"
        token = json.loads(kubectl("create", "--raw", account, "-f", "-", given=json.dumps(asked)))
        self._known["clusters"][0]["cluster"]["server"] = (
            f"https://127.0.0.1:{self.cable.server_address[1]}"
        )
        self._known["users"][0]["user"] = {"token": token["status"]["token"]}
        self._file.write_text(yaml.safe_dump(self._known))
        self._build(self.image)
        _docker("push", "-q", self.image)
        _docker("rmi", self.image)

    def _pods(self) -> list[Any]:
        pods = list(self._client.list(Pod, labels={RUN: exists()}))
        return sorted(pods, key=lambda pod: str(pod.metadata.name))

    def _evict(self, random: Random) -> None:
        """Put one pod out, the first that is there if there is none yet."""
        self._wait(random, 2.0)
        end = time.monotonic() + 20
        while not (pods := self._pods()) and time.monotonic() < end:
            time.sleep(0.05)
        if pods:
            name = random.choice(pods).metadata.name
            body = {
                "apiVersion": "policy/v1beta1",
                "kind": "Eviction",
                "metadata": {"name": name},
            }
            path = f"/api/v1/namespaces/{self._namespace}/pods/{name}/eviction"
            with contextlib.suppress(AssertionError):  # it is gone already
                kubectl("create", "--raw", path, "-f", "-", given=json.dumps(body))

    def _full(self, random: Random) -> None:
        """Let the namespace have no further pod."""
        self._wait(random, 1.0)
        kubectl("-n", self._namespace, "create", "quota", "nothing", "--hard=pods=0")
        self._last(random, 10.0)
        kubectl("-n", self._namespace, "delete", "quota", "nothing")

    @contextmanager
    def _image_is_gone(self) -> Iterator[None]:
        tags = (
            self._home
            / "images/docker/registry/v2/repositories"
            / self._repository
            / "_manifests/tags"
        )
        away = tags.rename(tags.with_name("away"))
        try:
            yield
        finally:
            away.rename(tags)


class Tasks(Cluster):
    """On the two machines of the Swarm that are no managers."""

    name = "swarm"

    @property
    def settings(self) -> dict[str, Any]:
        host, port = self.cable.server_address[:2]
        url = f"tcp://{host!s}:{port}"
        return {
            "kind": "swarm",
            "swarm": {"base_url": url, "constraints": ["node.labels.machine!=1"]},
        }

    @property
    def faults(self) -> Mapping[str, Callable[[Random], None]]:
        return {
            **super().faults,
            "manager away": self._away,
            "drain": self._drain,
        }

    def left(self) -> list[str]:
        """Return services and networks, and containers of machines that know nothing of their
        service.
        """
        manager = self._clients[0]
        ours = [f"{INSTALLATION}={one}" for one in self.installations]
        found: list[Any] = []
        for label in ours:
            found += manager.services.list(filters={"label": label})
            found += manager.networks.list(filters={"label": label})
            for client in self._clients:
                found += client.containers.list(
                    all=True,
                    ignore_removed=True,
                    filters={"label": label},
                )
        return [f"{type(one).__name__} {one.name}" for one in found]

    def kill_one(self, random: Random) -> None:
        running = sorted(self._running(), key=lambda found: str(found.name))
        with contextlib.suppress(docker.errors.APIError, IndexError):  # it ended just now
            random.choice(running).kill()

    def _running(self) -> list[Any]:
        return [
            found
            for client in self._clients
            for one in self.installations
            for found in client.containers.list(
                ignore_removed=True, filters={"label": f"{INSTALLATION}={one}"}
            )
        ]

    def _managers(self) -> contextlib.AbstractContextManager[Cable]:
        return cable_to(urlsplit(daemon(1)).path)

    def _made(self, stack: ExitStack) -> None:
        self._clients = [docker.DockerClient(daemon(number), timeout=60) for number in (1, 2, 3)]
        for client in self._clients:
            stack.callback(client.close)
        self._build(self.image)
        stack.callback(_docker, "rmi", self.image)
        for number in (1, 2, 3):
            load(number, self.image)
            stack.callback(self._remove, number)

    def _remove(self, number: int) -> None:
        with contextlib.suppress(docker.errors.APIError):
            self._clients[number - 1].images.remove(self.image, force=True)

    def _drain(self, random: Random) -> None:
        self._wait(random, 2.0)
        with drained():
            self._last(random, 8.0)

    @contextmanager
    def _image_is_gone(self) -> Iterator[None]:
        """From one machine, as far as no container there uses it."""
        self._remove(LAST[self.name])
        try:
            yield
        finally:
            load(LAST[self.name], self.image)


def _docker(*words: str) -> None:
    done = subprocess.run(
        ["docker", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
