"""The Kubernetes engine under test, and the objects of its cluster."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightkube import Client, KubeConfig
from lightkube.resources.core_v1 import Pod

from engines.base import Engine
from engines.kubernetes import KubernetesEngine, KubernetesOptions
from engines.kubernetes.client import Cluster
from engines.kubernetes.jobs import RUN, PodView
from engines.registry.names import PullRules
from tests.contracts.harnesses import Harness

# Variables that a cluster adds to each run, about its own service.
CLUSTER_VARIABLES = frozenset(
    {
        "KUBERNETES_SERVICE_HOST",
        "KUBERNETES_SERVICE_PORT",
        "KUBERNETES_SERVICE_PORT_HTTPS",
        "KUBERNETES_PORT",
        "KUBERNETES_PORT_443_TCP",
        "KUBERNETES_PORT_443_TCP_PROTO",
        "KUBERNETES_PORT_443_TCP_PORT",
        "KUBERNETES_PORT_443_TCP_ADDR",
    }
)


class KubernetesHarness(Harness[KubernetesEngine]):
    """Two machines, with the rights of the shipped role."""

    # The isolation depends on the cluster's network.
    isolates: frozenset[str] = frozenset()
    capabilities = frozenset({"fractional_cpu", "oom_flag", "network", "capabilities"})
    adds = Harness.adds | CLUSTER_VARIABLES
    streams = False
    cluster = "kubernetes"
    last = "2"
    gone = "machine2, on which it was placed, does not take it up"
    no_room = r"0/2 nodes are available: .*memory"

    def __init__(self, machine: str = "1") -> None:
        """``machine``: the number of the machine for runs; some tests cut the second one off."""
        super().__init__()
        self.node_selector = {"machine": machine}
        self.home = Path(os.environ["BFIA_TEST_KUBERNETES"])
        self.registry = os.environ["BFIA_TEST_KUBERNETES_REGISTRY"]
        self.image = f"{self.registry}/{Harness.image}"
        self.no_image = f"{self.registry}/no-such-image:1.0"

    def _build(
        self,
        node: str,
        installation: str,
        images: Any = None,
        cluster: Cluster | None = None,
        **options: Any,
    ) -> KubernetesEngine:
        options = {
            "kubeconfig": str(self.home / "gateway.conf"),
            "pull": PullRules(frozenset({self.registry})),
            "grace": 2.0,
            "node_selector": self.node_selector,
            **options,
        }
        return KubernetesEngine(
            node,
            installation,
            KubernetesOptions(**options),
            cluster=cluster,
            images=images,
        )

    @contextlib.contextmanager
    def down(self) -> Iterator[Engine]:
        yield self.engine(kubeconfig=str(self.home / "nothing.conf"))

    def pods(self, run: str) -> list[Pod]:
        """Return the pods of a run."""
        with self.admin() as admin:
            return pods_of(admin, run)

    def admin(self) -> Client:
        """Return a client with all rights."""
        return Client(
            KubeConfig.from_file(self.home / "admin.conf"), namespace="bfia", trust_env=False
        )


def pods_of(
    admin: Client,
    run: str,
) -> list[Pod]:
    return list(admin.list(Pod, labels={RUN: run}))


def a_pod(status: dict[str, Any], **fields: Any) -> PodView:
    """Return the view of a pod as `a_stored_pod` makes it."""
    return PodView(a_stored_pod(status, **fields))


def a_stored_pod(status: dict[str, Any], **fields: Any) -> Pod:
    """Return a pod with this status; ``fields`` are added to its metadata."""
    metadata = {
        "name": "p",
        "labels": {RUN: "r"},
        **fields,
    }
    content = {
        "metadata": metadata,
        "spec": {
            "containers": [],
            "nodeName": "m",
        },
        "status": status,
    }
    return Pod.from_dict(content)


THEN = "2026-11-26T04:00:00Z"
# Statuses of a pod's container: at first, while it runs, and after its end.
SEEN = {
    "name": "run",
    "image": "",
    "imageID": "",
    "restartCount": 0,
}
TERMINATED = {
    "exitCode": 137,
    "startedAt": THEN,
    "finishedAt": THEN,
}
ENDED = SEEN | {
    "ready": False,
    "state": {"terminated": TERMINATED},
}
