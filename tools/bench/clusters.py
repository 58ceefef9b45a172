"""Jobs on the suite's Kubernetes and Swarm against the same containers started bare, in turn."""

import contextlib
import copy
import os
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import docker
from docker.types import ContainerSpec, RestartPolicy, ServiceMode, TaskTemplate
from lightkube import Client, KubeConfig
from lightkube.models.batch_v1 import JobSpec
from lightkube.models.core_v1 import (
    Container,
    EnvVar,
    PodSpec,
    PodTemplateSpec,
    ResourceRequirements,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod
from lightkube.types import CascadeType

import engines.kubernetes  # noqa: F401 - lightkube can be used by several threads then
from adapter.bfia.examples import A_PROVIDER
from tests import storages
from tests.e2e.nodes import Federation, Node
from tests.e2e.test_storages import settings_of
from tests.services.clusters import daemon, pushed, the_last_of
from tests.services.clusters import load as load_images
from tools.bench import load
from tools.bench.floor import IMAGE, Answer

KINDS = ("kubernetes", "swarm")
HEADS = ["tasks", "one job", "bare", "concurrent bare ones", "ratio"]
_ABREAST = (4, 8, 16)
"""so many bare ones at a time are tried, with a fifth of them"""
_BARE = "bfia-bench"

Run = Callable[[], None]


def rows(
    kind: str,
    node_id: str,
    body: dict[str, Any],
    tasks: int,
    rounds: int,
) -> Iterator[list[Any]]:
    """Yield a row for a job of one task at one node, and for one of so many independent tasks."""
    with ExitStack() as stack:
        stack.enter_context(the_last_of(kind))
        image, bare = stack.enter_context({"kubernetes": _kubernetes, "swarm": _swarm}[kind]())
        node = stack.enter_context(_node(kind, node_id, image))
        body = copy.deepcopy(body)
        body["config"]["role"] = {"guest": [node_id]}
        body["dag"]["components"][0]["output"] = []
        load.run(node, body)  # warm: each machine has the image
        _together(bare, 8, 8)
        ours, theirs = [], []
        for _ in range(2 * rounds + 1):
            ours.append(load.run(node, body))
            theirs.append(_together(bare, 1, 1))
        yield _row(1, statistics.median(ours), statistics.median(theirs), 1)
        many = load.independent(body, tasks)
        abreast = {at_once: _together(bare, max(tasks // 5, 1), at_once) for at_once in _ABREAST}
        at_once = min(abreast, key=lambda n: abreast[n])
        whole = load.run(node, many)
        yield _row(tasks, whole, _together(bare, tasks, at_once), at_once)


def _row(
    tasks: int,
    ours: float,
    bare: float,
    at_once: int,
) -> list[Any]:
    return [tasks, f"{ours:.2f} s", f"{bare:.2f} s", at_once, f"{ours / bare:.2f}"]


def _together(
    run: Run,
    count: int,
    at_once: int,
) -> float:
    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        for done in [pool.submit(run) for _ in range(count)]:
            done.result()
    return time.perf_counter() - began


@contextmanager
def _node(
    kind: str,
    node_id: str,
    image: str,
) -> Iterator[Node]:
    engines: dict[str, dict[str, Any]] = {
        "kubernetes": {
            "kubernetes": {"kubeconfig": f"{os.environ.get('BFIA_TEST_KUBERNETES')}/gateway.conf"},
            "docker": {"registries": [image.partition("/")[0]]},
        },
        "swarm": {"swarm": {"base_url": daemon(1)}},
    }
    with TemporaryDirectory() as home, storages.bucket() as lake:
        engine = {"kind": kind, **engines[kind]}
        made = Federation(Path(home), [node_id], engine, fresh=True, storages=settings_of(lake))
        made[node_id].reached_at(os.environ[f"BFIA_TEST_{kind.upper()}_HOST"])
        with made:
            provider = copy.deepcopy(A_PROVIDER)
            provider["metadata"]["image"] = image
            provider["components_description"]["Echo"]["storageEngine"] = ["s3"]
            made[node_id].register(provider)
            yield made[node_id]


@contextmanager
def _called_back(kind: str) -> Iterator[Mapping[str, str]]:
    """Give the variables of a bare container, with a server of its own to call back."""
    server = ThreadingHTTPServer((os.environ[f"BFIA_TEST_{kind.upper()}_HOST"], 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        callback = "http://{}:{}/callback".format(*server.server_address)
        yield {
            "system.callback": callback,
            "config.task_id": "t",
            "config.self_role": "guest.0",
        }
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def _kubernetes() -> Iterator[tuple[str, Run]]:
    """Give the image as the cluster has it, and what runs a bare Job of it."""
    image = pushed(IMAGE)
    config = KubeConfig.from_file(f"{os.environ['BFIA_TEST_KUBERNETES']}/admin.conf")
    with (
        _called_back("kubernetes") as given,
        Client(config, namespace="bfia", trust_env=False) as client,
    ):
        environment = [EnvVar(name=name, value=value) for name, value in given.items()]
        resources = ResourceRequirements(requests={"cpu": "0", "memory": "0"})
        container = Container(
            name="run",
            image=image,
            env=environment,
            resources=resources,
        )
        pod = PodSpec(
            containers=[container],
            restartPolicy="Never",
            automountServiceAccountToken=False,
        )

        def run() -> None:
            name = f"{_BARE}-{uuid.uuid4().hex[:12]}"
            template = PodTemplateSpec(metadata=ObjectMeta(labels={_BARE: name}), spec=pod)
            client.create(
                Job(metadata=ObjectMeta(name=name), spec=JobSpec(template=template, backoffLimit=0))
            )
            for _, seen in client.watch(Pod, labels={_BARE: name}):
                assert seen.status is None or seen.status.phase != "Failed", seen.status
                if seen.status is not None and seen.status.phase == "Succeeded":
                    break
            client.delete(Job, name, cascade=CascadeType.BACKGROUND)

        yield image, run


@contextmanager
def _swarm() -> Iterator[tuple[str, Run]]:
    """Give the image as each machine has it, and what runs a bare service of one task of it."""
    for number in (1, 2, 3):
        load_images(number, IMAGE)
    with (
        _called_back("swarm") as given,
        contextlib.closing(docker.APIClient(daemon(1), num_pools=32)) as api,
    ):
        container = ContainerSpec(
            api.inspect_image(IMAGE)["Id"], env=[f"{k}={v}" for k, v in given.items()]
        )
        template = TaskTemplate(container, restart_policy=RestartPolicy(condition="none"))

        def run() -> None:
            mode = ServiceMode("replicated", replicas=1)
            made = api.create_service(template, name=f"{_BARE}-{uuid.uuid4().hex[:12]}", mode=mode)[
                "ID"
            ]
            while True:
                states = [task["Status"]["State"] for task in api.tasks(filters={"service": made})]
                assert not {"failed", "rejected"} & {*states}, states
                if "complete" in states:
                    break
                time.sleep(0.1)
            api.remove_service(made)

        yield IMAGE, run
