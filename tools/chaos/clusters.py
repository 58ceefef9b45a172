"""The containers of the trials in the suite's Kubernetes or Swarm, and the faults of clusters.

The nodes reach the cluster's managers by a cable that a trial may cut. The machine that tests may
disconnect is reserved for the world as long as that exists.
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
from tools.chaos.containers import Containers, name_of, write_image

FAULTS = {
    "k8s": ("cut machine", "API away", "evict", "quota", "image missing"),
    "swarm": ("cut machine", "manager away", "drain", "image missing"),
}
# Phases and faults of the trials that the test suite plays.
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
# Reasons for which each fault may end a job.
_REASONS = {
    "cut machine": ("GONE", "CREATE_FAILED"),
    "evict": ("GONE", "CREATE_FAILED"),
    "drain": ("GONE", "CREATE_FAILED"),
    "quota": ("CREATE_FAILED",),
    "image missing": ("IMAGE_NOT_FOUND",),
}
_ABSENCES = (1.0, 4.0, 10.0, 65.0)  # seconds for which the managers cannot be reached
# Seconds of an absence after which runs may fail: somewhat less than they wait for their engine.
_LONG_ABSENCE = 55.0
# Seconds after which a cluster has certainly given up a disconnected machine.
_GIVEN_UP_AFTER = {"kubernetes": 35.0, "swarm": 25.0}
_EVICTION_TIMEOUT = 20.0  # seconds until there is a pod to evict
_TOKEN_SECONDS = 86400
_MACHINES = (1, 2, 3)  # of the Swarm


class Register(socketserver.ThreadingTCPServer):
    """Records the starts of containers, and tells each how often its task had started before."""

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
    """Containers of a cluster. Use as a context, which removes everything from the cluster."""

    name = ""  # in `tests.services.clusters`

    def __init__(self, register: Path) -> None:
        super().__init__(register)
        self.host = os.environ[f"BFIA_TEST_{self.name.upper()}_HOST"]
        self.image = f"bfia-chaos-{uuid.uuid4().hex[:8]}:1.0.0"
        self._server = Register(self.host, register)
        self._stack = ExitStack()
        self._last_absence = 0.0  # seconds

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
            self._set_up(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def register_address(self) -> str:
        """Return the host and port of the register."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    @property
    def node_settings(self) -> dict[str, Any]:
        """Return the settings of a storage that all machines reach."""
        return {"storages": settings_of(self._lake)}

    @property
    def faults(self) -> Mapping[str, Callable[[Random], None]]:
        """Return the faults of the cluster; a call causes one for a while and ends it."""
        return {
            "cut machine": self._cut_machine,
            "image missing": self._miss_image,
        }

    def reasons(self, fault: str) -> tuple[str, ...]:
        """Return the reasons for which the last fault may end a job."""
        if fault in _REASONS:
            return _REASONS[fault]
        if self._last_absence > _LONG_ABSENCE:
            return ("ENGINE_DOWN", "NOT_STOPPED")
        return ()

    @abstractmethod
    def _managers(self) -> contextlib.AbstractContextManager[Cable]:
        """Return the cable to the managers that the nodes use."""

    @abstractmethod
    def _set_up(self, stack: ExitStack) -> None:
        """Bring the image, and all else that runs need, into the cluster."""

    @abstractmethod
    def _removed_image(self) -> contextlib.AbstractContextManager[None]:
        """Remove the image until the end of the context."""

    def _cut_machine(self, random: Random) -> None:
        """Disconnect a machine, for a moment or until the cluster has given it up."""
        self._delay(random, 1.0)
        machine(self.name, "cut")
        try:
            given_up_after = _GIVEN_UP_AFTER[self.name]
            short = random.uniform(1.0, 4.0)
            long = random.uniform(given_up_after, given_up_after + 5.0)
            time.sleep(short if self.brief else random.choice((short, long)))
        finally:
            machine(self.name, "mend")

    def _cut_managers(self, random: Random) -> None:
        """Disconnect the nodes from the managers for a while."""
        self._delay(random, 1.0)
        self._last_absence = _ABSENCES[0] if self.brief else random.choice(_ABSENCES)
        self.cable.cut()
        try:
            time.sleep(self._last_absence)
        finally:
            self.cable.mend()

    def _miss_image(self, random: Random) -> None:
        """Remove the image for a while."""
        with self._removed_image():
            self._hold(random, 6.0)

    def _delay(self, random: Random, longest: float) -> None:
        """Wait for a random time before a fault; in a brief trial not at all."""
        if not self.brief:
            time.sleep(random.uniform(0.0, longest))

    def _hold(self, random: Random, longest: float) -> None:
        """Keep a fault for a random time; in a brief trial for two seconds."""
        time.sleep(2.0 if self.brief else random.uniform(1.0, longest))

    def _build(self, name: str) -> None:
        """Build the image with the shared Docker daemon."""
        with TemporaryDirectory() as folder:
            write_image(Path(folder))
            _docker("build", "-q", "-t", name, folder)


class Pods(Cluster):
    """Pods in a namespace that exists for the world alone."""

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
            "kubernetes": {
                "kubeconfig": str(self._file),
                "namespace": self._namespace,
            },
            "docker": {"registries": [self._registry]},
        }

    @property
    def faults(self) -> Mapping[str, Callable[[Random], None]]:
        return {
            **super().faults,
            "API away": self._cut_managers,
            "evict": self._evict,
            "quota": self._exhaust_quota,
        }

    def remaining(self) -> list[str]:
        """Return the Jobs, pods and secrets of runs.

        In a brief trial, pods that are being deleted do not count: old kubelets need half a minute.
        """
        names = []
        for kind in (Job, Pod, Secret):
            for resource in self._client.list(kind, labels={RUN: exists()}):
                metadata = resource.metadata
                is_ending_pod = kind is Pod and metadata.deletionTimestamp is not None
                if not (self.brief and is_ending_pod):
                    names.append(f"{kind.__name__} {metadata.name}")
        return names

    def kill_one(self, random: Random) -> None:
        """Kill the program of a pod; the machines of the cluster run on this one."""
        running = [pod for pod in self._pods() if pod.status.phase == "Running"]
        if not running:
            return
        uid = random.choice(running).metadata.uid
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # the process has just ended
                is_program = b"/patient.py" in (folder / "cmdline").read_bytes()
                if is_program and f"pod{uid}" in (folder / "cgroup").read_text():
                    os.kill(int(folder.name), signal.SIGKILL)

    def _managers(self) -> contextlib.AbstractContextManager[Cable]:
        self._config = yaml.safe_load((self._home / "gateway.conf").read_text())
        server = urlsplit(self._config["clusters"][0]["cluster"]["server"])
        return cable_to((str(server.hostname), int(server.port or 0)))

    def _set_up(self, stack: ExitStack) -> None:
        config = KubeConfig.from_file(self._home / "admin.conf")
        self._client = stack.enter_context(
            Client(
                config,
                namespace=self._namespace,
                trust_env=False,
            )
        )
        kubectl("create", "namespace", self._namespace)
        stack.callback(kubectl, "delete", "namespace", self._namespace, "--wait=false")
        runs_in(self._namespace)
        port = self.cable.server_address[1]
        self._config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        self._config["users"][0]["user"] = {"token": self._new_token()}
        self._file.write_text(yaml.safe_dump(self._config))
        self._build(self.image)
        _docker("push", "-q", self.image)
        _docker("rmi", self.image)

    def _new_token(self) -> str:
        """Return a new token of the nodes' service account in the namespace."""
        account = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/bfia-gateway/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": _TOKEN_SECONDS},
        }
        response = kubectl(
            "create",
            "--raw",
            account,
            "-f",
            "-",
            stdin=json.dumps(request),
        )
        return str(json.loads(response)["status"]["token"])

    def _pods(self) -> list[Any]:
        """Return the pods of runs, in the order of their names."""
        pods = list(self._client.list(Pod, labels={RUN: exists()}))
        return sorted(pods, key=_pod_name)

    def _evict(self, random: Random) -> None:
        """Evict a pod, if necessary the first one that appears within some seconds."""
        self._delay(random, 2.0)
        end = time.monotonic() + _EVICTION_TIMEOUT
        pods = self._pods()
        while not pods and time.monotonic() < end:
            time.sleep(0.05)
            pods = self._pods()
        if not pods:
            return
        name = _pod_name(random.choice(pods))
        body = {
            "apiVersion": "policy/v1beta1",
            "kind": "Eviction",
            "metadata": {"name": name},
        }
        path = f"/api/v1/namespaces/{self._namespace}/pods/{name}/eviction"
        with contextlib.suppress(AssertionError):  # the pod has just ended
            kubectl(
                "create",
                "--raw",
                path,
                "-f",
                "-",
                stdin=json.dumps(body),
            )

    def _exhaust_quota(self, random: Random) -> None:
        """Forbid further pods in the namespace for a while."""
        self._delay(random, 1.0)
        kubectl("-n", self._namespace, "create", "quota", "nothing", "--hard=pods=0")
        self._hold(random, 10.0)
        kubectl("-n", self._namespace, "delete", "quota", "nothing")

    @contextmanager
    def _removed_image(self) -> Iterator[None]:
        """Hide the image's tags in the registry's folder."""
        repositories = self._home / "images/docker/registry/v2/repositories"
        tags = repositories / self._repository / "_manifests/tags"
        hidden = tags.rename(tags.with_name("away"))
        try:
            yield
        finally:
            hidden.rename(tags)


def _pod_name(pod: Any) -> str:
    return str(pod.metadata.name)


class Tasks(Cluster):
    """Tasks on the two machines of the Swarm that do not manage it."""

    name = "swarm"

    @property
    def settings(self) -> dict[str, Any]:
        host, port = self.cable.server_address[:2]
        url = f"tcp://{host!s}:{port}"
        return {
            "kind": "swarm",
            "swarm": {
                "base_url": url,
                "constraints": ["node.labels.machine!=1"],
            },
        }

    @property
    def faults(self) -> Mapping[str, Callable[[Random], None]]:
        return {
            **super().faults,
            "manager away": self._cut_managers,
            "drain": self._drain,
        }

    def remaining(self) -> list[str]:
        """Return the nodes' services, networks and containers.

        A machine that was disconnected may still have containers of removed services.
        """
        manager = self._clients[0]
        resources: list[Any] = []
        for label in self._labels():
            filters = {"label": label}
            resources += manager.services.list(filters=filters)
            resources += manager.networks.list(filters=filters)
            for client in self._clients:
                resources += client.containers.list(
                    all=True,
                    ignore_removed=True,
                    filters=filters,
                )
        return [f"{type(resource).__name__} {resource.name}" for resource in resources]

    def kill_one(self, random: Random) -> None:
        """Kill a running container, unless all have ended."""
        running = sorted(
            self._running_containers(),
            key=name_of,
        )
        with contextlib.suppress(docker.errors.APIError, IndexError):
            random.choice(running).kill()

    def _running_containers(self) -> list[Any]:
        """Return the nodes' running containers on all machines."""
        containers: list[Any] = []
        for client in self._clients:
            for label in self._labels():
                containers += client.containers.list(
                    ignore_removed=True,
                    filters={"label": label},
                )
        return containers

    def _labels(self) -> list[str]:
        """Return the label of each node's containers."""
        return [f"{INSTALLATION}={installation}" for installation in self.installations]

    def _managers(self) -> contextlib.AbstractContextManager[Cable]:
        return cable_to(urlsplit(daemon(1)).path)

    def _set_up(self, stack: ExitStack) -> None:
        self._clients = [docker.DockerClient(daemon(number), timeout=60) for number in _MACHINES]
        for client in self._clients:
            stack.callback(client.close)
        self._build(self.image)
        stack.callback(_docker, "rmi", self.image)
        for number in _MACHINES:
            load(number, self.image)
            stack.callback(self._remove_image, number)

    def _remove_image(self, number: int) -> None:
        """Remove the image from a machine, unless a container uses it."""
        with contextlib.suppress(docker.errors.APIError):
            self._clients[number - 1].images.remove(
                self.image,
                force=True,
            )

    def _drain(self, random: Random) -> None:
        """Drain a machine for a while."""
        self._delay(random, 2.0)
        with drained():
            self._hold(random, 8.0)

    @contextmanager
    def _removed_image(self) -> Iterator[None]:
        """Remove the image from one machine, unless a container uses it there."""
        self._remove_image(LAST[self.name])
        try:
            yield
        finally:
            load(LAST[self.name], self.image)


def _docker(*words: str) -> None:
    """Run a command of the shared Docker daemon."""
    process = subprocess.run(
        ["docker", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
