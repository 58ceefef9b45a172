"""Jobs on the suite's Kubernetes and Swarm against their containers started bare, in turn."""

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

# The import makes lightkube usable by several threads.
import engines.kubernetes  # noqa: F401
from adapter.bfia.examples import A_PROVIDER
from tests import storages
from tests.e2e.nodes import Federation, Node
from tests.e2e.test_storages import settings_of
from tests.services.clusters import daemon, pushed, the_last_of
from tests.services.clusters import load as load_images
from tools.bench import load
from tools.bench.floor import IMAGE, CallbackHandler

KINDS = ("kubernetes", "swarm")
HEADINGS = ["tasks", "one job", "bare", "concurrent bare ones", "ratio"]
# Numbers of concurrent bare containers; the best one of a small sample is used.
_CONCURRENCIES = (4, 8, 16)
_SAMPLE_SHARE = 5  # a sample has this fraction of the tasks
_BARE = "bfia-bench"
_POLL_INTERVAL = 0.1  # seconds
_MACHINES = (1, 2, 3)  # of the Swarm

RunContainer = Callable[[], None]


def rows(
    kind: str,
    node_id: str,
    body: dict[str, Any],
    tasks: int,
    rounds: int,
) -> Iterator[list[Any]]:
    """Yield a row for a job of one task at one node, and one for many independent tasks.

    ``body``: a job of one task.
    """
    with ExitStack() as stack:
        stack.enter_context(the_last_of(kind))
        image, run_bare = stack.enter_context(_CLUSTERS[kind]())
        node = stack.enter_context(_node(kind, node_id, image))
        job = copy.deepcopy(body)
        job["config"]["role"] = {"guest": [node_id]}
        job["dag"]["components"][0]["output"] = []
        load.run(node, job)  # so that each machine has the image
        _bare_seconds(run_bare, 8, 8)
        yield _single_row(node, job, run_bare, 2 * rounds + 1)
        yield _large_row(node, load.independent(job, tasks), run_bare, tasks)


def _single_row(
    node: Node,
    job: dict[str, Any],
    run_bare: RunContainer,
    rounds: int,
) -> list[Any]:
    """Compare a job of one task with its container, in turn."""
    times = []
    bare_times = []
    for _ in range(rounds):
        times.append(load.run(node, job))
        bare_times.append(_bare_seconds(run_bare, 1, 1))
    return _row(
        1,
        statistics.median(times),
        statistics.median(bare_times),
        1,
    )


def _large_row(
    node: Node,
    job: dict[str, Any],
    run_bare: RunContainer,
    tasks: int,
) -> list[Any]:
    """Compare a job of many tasks with its containers, in their best concurrency."""
    sample = max(tasks // _SAMPLE_SHARE, 1)
    sample_times = {count: _bare_seconds(run_bare, sample, count) for count in _CONCURRENCIES}
    concurrent = min(sample_times, key=sample_times.__getitem__)
    seconds = load.run(node, job)
    return _row(tasks, seconds, _bare_seconds(run_bare, tasks, concurrent), concurrent)


def _row(
    tasks: int,
    seconds: float,
    bare_seconds: float,
    concurrent: int,
) -> list[Any]:
    ratio = seconds / bare_seconds
    return [tasks, f"{seconds:.2f} s", f"{bare_seconds:.2f} s", concurrent, f"{ratio:.2f}"]


def _bare_seconds(
    run_bare: RunContainer,
    count: int,
    concurrent: int,
) -> float:
    """Return the seconds of ``count`` bare containers."""
    start = time.perf_counter()
    with ThreadPoolExecutor(concurrent) as pool:
        for future in [pool.submit(run_bare) for _ in range(count)]:
            future.result()
    return time.perf_counter() - start


@contextmanager
def _node(
    kind: str,
    node_id: str,
    image: str,
) -> Iterator[Node]:
    """Run a node on a cluster, with a provider of the image and a storage of its own."""
    with TemporaryDirectory() as home, storages.bucket() as lake:
        federation = Federation(
            Path(home),
            [node_id],
            _engine_settings(kind, image),
            fresh=True,
            storages=settings_of(lake),
        )
        node = federation[node_id]
        node.reached_at(os.environ[f"BFIA_TEST_{kind.upper()}_HOST"])
        with federation:
            provider = copy.deepcopy(A_PROVIDER)
            provider["metadata"]["image"] = image
            provider["components_description"]["Echo"]["storageEngine"] = ["s3"]
            node.register(provider)
            yield node


def _engine_settings(kind: str, image: str) -> dict[str, Any]:
    """Return the settings of a node's engine on a cluster."""
    if kind == "swarm":
        return {
            "kind": kind,
            "swarm": {"base_url": daemon(1)},
        }
    kubeconfig = f"{os.environ.get('BFIA_TEST_KUBERNETES')}/gateway.conf"
    registry, _, _ = image.partition("/")
    return {
        "kind": kind,
        "kubernetes": {"kubeconfig": kubeconfig},
        "docker": {"registries": [registry]},
    }


@contextmanager
def _callback_variables(kind: str) -> Iterator[Mapping[str, str]]:
    """Yield the variables of a bare container, with a server for its callback."""
    host = os.environ[f"BFIA_TEST_{kind.upper()}_HOST"]
    server = ThreadingHTTPServer((host, 0), CallbackHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield {
            "system.callback": f"http://{host}:{server.server_address[1]}/callback",
            "config.task_id": "t",
            "config.self_role": "guest.0",
        }
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def _kubernetes() -> Iterator[tuple[str, RunContainer]]:
    """Yield the name of the image in the cluster, and the function that runs a bare Job of it."""
    image = pushed(IMAGE)
    config = KubeConfig.from_file(f"{os.environ['BFIA_TEST_KUBERNETES']}/admin.conf")
    with (
        _callback_variables("kubernetes") as variables,
        Client(config, namespace="bfia", trust_env=False) as client,
    ):
        pod = _pod(image, variables)

        def run() -> None:
            name = f"{_BARE}-{uuid.uuid4().hex[:12]}"
            labels = {_BARE: name}
            template = PodTemplateSpec(
                metadata=ObjectMeta(labels=labels),
                spec=pod,
            )
            spec = JobSpec(template=template, backoffLimit=0)
            client.create(Job(metadata=ObjectMeta(name=name), spec=spec))
            _wait_for_pod(client, labels)
            client.delete(
                Job,
                name,
                cascade=CascadeType.BACKGROUND,
            )

        yield image, run


def _pod(image: str, variables: Mapping[str, str]) -> PodSpec:
    """Return a pod of one container."""
    container = Container(
        name="run",
        image=image,
        env=[EnvVar(name=name, value=value) for name, value in variables.items()],
        resources=ResourceRequirements(requests={"cpu": "0", "memory": "0"}),
    )
    return PodSpec(
        containers=[container],
        restartPolicy="Never",
        automountServiceAccountToken=False,
    )


def _wait_for_pod(
    client: Client,
    labels: dict[str, str],
) -> None:
    """Wait until the pod with these labels has succeeded."""
    for _, pod in client.watch(Pod, labels=labels):
        phase = "" if pod.status is None else pod.status.phase
        assert phase != "Failed", pod.status
        if phase == "Succeeded":
            return


@contextmanager
def _swarm() -> Iterator[tuple[str, RunContainer]]:
    """Yield the image of each machine, and the function that runs a bare service of one task."""
    for number in _MACHINES:
        load_images(number, IMAGE)
    with (
        _callback_variables("swarm") as variables,
        contextlib.closing(docker.APIClient(daemon(1), num_pools=32)) as api,
    ):
        environment = [f"{name}={value}" for name, value in variables.items()]
        container = ContainerSpec(
            api.inspect_image(IMAGE)["Id"],
            env=environment,
        )
        template = TaskTemplate(
            container,
            restart_policy=RestartPolicy(condition="none"),
        )

        def run() -> None:
            name = f"{_BARE}-{uuid.uuid4().hex[:12]}"
            mode = ServiceMode("replicated", replicas=1)
            service = api.create_service(template, name=name, mode=mode)["ID"]
            _wait_for_service(api, service)
            api.remove_service(service)

        yield IMAGE, run


def _wait_for_service(api: docker.APIClient, service: str) -> None:
    """Wait until the task of a service has ended."""
    while True:
        states = {task["Status"]["State"] for task in api.tasks(filters={"service": service})}
        assert not {"failed", "rejected"} & states, states
        if "complete" in states:
            return
        time.sleep(_POLL_INTERVAL)


_CLUSTERS = {"kubernetes": _kubernetes, "swarm": _swarm}
