"""The engine contract over a Kubernetes of two machines, and further promises of that engine.

A cluster lacks two capabilities, so some tests of the contract expect a refusal or less:

- ``test_mounts_are_read_only_or_writable``: no folder is shared: refused with NOT_SUPPORTED
- ``test_saved_logs_…``, ``test_a_new_object_…``: a cluster keeps both streams as one, in stdout.log
"""

import base64
import contextlib
import json
import os
import queue
import re
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from lightkube import Client, KubeConfig
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod, Secret

from engines import seccomp
from engines.base import (
    CreateFailed,
    EngineDown,
    ImageNotFound,
    LaunchSpec,
    Limits,
    Missing,
    PullDenied,
    Running,
)
from engines.kubernetes import KubernetesEngine, KubernetesOptions
from engines.kubernetes.client import Cluster, Gone, Listing, PodEvents
from engines.kubernetes.jobs import RUN, STARTED, PodView, job_of, owner_of
from engines.registry.logins import Login
from engines.registry.names import PullRules
from tests.contracts.engine_acts import (
    LONG,
    WAITS,
    ExitListener,
    a_spec,
    exits,
    launch_run,
    output_of,
    python,
    wait_for,
    wait_for_exit,
)
from tests.contracts.engine_contract import ClusterContract
from tests.contracts.kubernetes import KubernetesHarness, pods_of
from tests.contracts.test_isolation import LOOK, SERVES, open_doors
from tests.e2e.nodes import ROOT
from tests.services.cable import cable_to
from tests.services.clusters import guarded_registry
from tests.services.registry import PASSWORD, USER, log_in

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def harness() -> Iterator[KubernetesHarness]:
    with contextlib.closing(KubernetesHarness()) as harness:
        yield harness


class TestKubernetes(ClusterContract):
    """With the harness of this module."""


@pytest.fixture
def admin(harness: KubernetesHarness) -> Iterator[Client]:
    with harness.admin() as client:
        yield client


def secrets_of(
    admin: Client,
    run: str,
) -> list[Secret]:
    return list(admin.list(Secret, labels={RUN: run}))


def test_runs_have_the_seccomp_profile_of_their_machines(harness):
    """Attack: the system calls of `tests.trust.system_calls`."""
    folder = harness.home / "1" / "kubelet" / "seccomp"
    folder.mkdir(exist_ok=True)
    profile = folder / f"bfia-{uuid.uuid4().hex[:8]}.json"
    profile.write_text(json.dumps(seccomp.cluster_profile()))
    try:
        engine = harness.engine(seccomp_profile=profile.name)
        attacks = (ROOT / "tests" / "trust" / "system_calls.py").read_text(encoding="ascii")
        assert output_of(harness, engine, python(attacks)) == b"done\n"
    finally:
        profile.unlink()


def test_a_run_is_one_hardened_pod_of_the_image_by_its_digest(harness, admin):
    engine = harness.engine()

    spec = launch_run(harness, engine, WAITS)

    (pod,) = pods_of(admin, spec.name)
    container = pod.spec.containers[0]
    repository, _, digest = container.image.partition("@")
    assert repository == harness.image.rpartition(":")[0]
    assert digest == engine.registry_digest(harness.image, 5)
    security = container.securityContext
    assert security.allowPrivilegeEscalation is False
    assert security.privileged is False
    assert security.runAsNonRoot is True
    assert security.runAsUser == 65534
    assert security.runAsGroup == 65534
    assert security.capabilities.drop == ["ALL"]
    assert pod.spec.securityContext.seccompProfile.type == "RuntimeDefault"
    assert pod.spec.automountServiceAccountToken is False
    assert pod.spec.restartPolicy == "Never"


def test_a_run_is_limited_and_its_job_ends_by_itself(harness, admin):
    limits = Limits(
        cpu=1.5,
        memory=96 << 20,
    )
    reserved = Limits(memory=64 << 20)

    spec = launch_run(
        harness,
        harness.engine(),
        WAITS,
        limits=limits,
        reserved=reserved,
    )

    (pod,) = pods_of(admin, spec.name)
    resources = pod.spec.containers[0].resources
    assert resources.limits == {
        "cpu": "1500m",
        "memory": str(96 << 20),
    }
    assert resources.requests == {
        "cpu": "0",
        "memory": str(64 << 20),
    }
    job = admin.get(Job, spec.name).spec
    assert job.backoffLimit == 0
    assert job.parallelism == 1
    assert job.ttlSecondsAfterFinished == 7 * 24 * 3600
    assert job.activeDeadlineSeconds > pod.spec.activeDeadlineSeconds


def test_options_of_the_admin_are_in_the_job(harness):
    options = KubernetesOptions(
        read_only_root=True,
        priority_class="system-node-critical",
        tolerations=({"key": "gpu"},),
    )
    image = harness.engine().image_metadata(harness.image)
    spec = a_spec(
        harness,
        WAITS,
        limits=Limits(cpu=1.5),
        private_folders=("/bfia/log",),
    )

    job = job_of(
        spec,
        image,
        owner_of("alpha", harness.installation),
        False,
        options,
    )

    pod_spec = job.spec.template.spec
    container = pod_spec.containers[0]
    assert pod_spec.priorityClassName == "system-node-critical"
    assert pod_spec.tolerations[-1].key == "gpu"
    assert container.securityContext.readOnlyRootFilesystem
    assert [mount.mountPath for mount in container.volumeMounts] == [
        "/bfia/log",
        "/tmp",
        "/bfia/home",
        "/dev/shm",
    ]


def test_the_variables_are_secret_and_gone_once_the_run_has_begun(harness, admin):
    """Without its variables, a run cannot start a second time.

    The pod is deleted here, and the pod in its place never begins.
    """
    engine = harness.engine()
    reported = ExitListener()
    spec = launch_run(
        harness,
        engine,
        WAITS,
        environment={"config.token": "confidential"},
    )
    engine.watch(reported)
    (pod,) = pods_of(admin, spec.name)
    assert "confidential" not in repr(pod.to_dict())
    assert "confidential" not in repr(admin.get(Job, spec.name).to_dict())
    assert secrets_of(admin, spec.name) == []

    admin.delete(
        Pod,
        pod.metadata.name,
        grace_period=1,
    )

    reported.wait_for(spec.name)
    assert engine.probe(spec.name) == Missing()

    def replacements() -> list[Pod]:
        pods = pods_of(admin, spec.name)
        return [later for later in pods if later.metadata.uid != pod.metadata.uid]

    wait_for(replacements, "the cluster replaces the pod")
    successor = harness.engine()
    reported_later = ExitListener()
    successor.watch(reported_later)  # does not take the replacement for a running pod
    reported_later.wait_for(spec.name)
    successor.launch(spec)
    assert successor.probe(spec.name) == Missing()
    successor.remove(spec.name)


class RecordingCluster(Cluster):
    """Records the objects that an engine creates, and the pods that it lists."""

    def __init__(self, harness: KubernetesHarness) -> None:
        super().__init__(str(harness.home / "gateway.conf"), "")
        self.created: list[Any] = []
        self.listed_pods: list[Any] = []

    def create(self, manifest: Any) -> Any:
        created = super().create(manifest)
        self.created.append(created)
        return created

    def list_with_version(self, kind: type[Any], *selectors: Any) -> Listing:
        listing = super().list_with_version(kind, *selectors)
        if kind is Pod:
            self.listed_pods.extend(listing.objects)
        return listing


def test_the_login_at_the_registry_goes_along_while_the_image_is_pulled(
    harness, admin, monkeypatch, tmp_path
):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with guarded_registry(tmp_path / "closed") as closed:
        cluster = RecordingCluster(harness)
        engine = harness.engine(cluster=cluster, pull=PullRules(frozenset({closed})))
        image = harness.image.replace(harness.registry, closed)
        spec = a_spec(
            harness,
            WAITS,
            image=image,
        )
        denied = a_spec(
            harness,
            WAITS,
            image=image,
        )

        log_in(tmp_path, closed, "a wrong password")
        with pytest.raises(PullDenied, match=r"responds with 401 .*log in: docker login"):
            engine.launch(denied)

        log_in(tmp_path, closed)
        with monkeypatch.context() as without_login:
            without_login.setattr("engines.kubernetes.engine.login_for", lambda _: Login())
            with pytest.raises(PullDenied, match="401 Unauthorized"):  # the machine's words
                engine.launch(denied)
        assert engine.list() == []

        cluster.created.clear()
        engine.launch(spec)
    (pod,) = pods_of(admin, spec.name)
    job, variables, login = cluster.created
    assert [secret.name for secret in pod.spec.imagePullSecrets] == [login.metadata.name]
    assert login.type == "kubernetes.io/dockerconfigjson"
    assert variables.type == "Opaque"
    auths = json.loads(base64.b64decode(login.data[".dockerconfigjson"]))["auths"]
    assert auths == {closed: {"auth": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}}
    for secret in (variables, login):
        assert [owner.uid for owner in secret.metadata.ownerReferences] == [job.metadata.uid]
    assert secrets_of(admin, spec.name) == []


def wait_until_nothing_is_left(admin: Client, run: str) -> None:
    """Wait until the cluster has neither Job nor pod nor secret of a run."""
    for kind in (Job, Pod, Secret):

        def is_gone(kind: Any = kind) -> bool:
            return not list(admin.list(kind, labels={RUN: run}))

        wait_for(is_gone, f"no {kind} is left")


def test_a_removed_run_leaves_nothing_in_the_cluster(harness, admin):
    engine = harness.engine()
    spec = launch_run(harness, engine, exits(0))
    wait_for_exit(engine, spec.name)

    engine.remove(spec.name)

    assert engine.list() == []
    wait_until_nothing_is_left(admin, spec.name)


def test_a_refused_run_leaves_nothing(harness, admin):
    engine = harness.engine()
    spec = a_spec(
        harness,
        exits(0),
        environment={"not valid": ""},
    )

    with pytest.raises(CreateFailed, match="env"):
        engine.launch(spec)

    assert engine.list() == []
    wait_until_nothing_is_left(admin, spec.name)


def test_a_launch_that_was_cut_off_is_completed_by_the_next(harness, admin):
    engine = harness.engine()
    spec = a_spec(harness, exits(4))
    engine._create(spec, engine.image_metadata(spec.image))  # the gateway is killed after this step
    assert engine.probe(spec.name) == Missing()
    assert pods_of(admin, spec.name) == []

    successor = harness.engine()
    successor.launch(spec)

    assert wait_for_exit(successor, spec.name).code == 4
    # The gateway may also be killed before it notes that the run has started.
    admin.patch(
        Job,
        spec.name,
        {"metadata": {"annotations": {STARTED: ""}}},
    )
    harness.engine().watch(ExitListener())
    wait_for(lambda: admin.get(Job, spec.name).metadata.annotations[STARTED], "it is noted")


REPLACED = "evicted or deleted before it was seen to have begun"


def test_a_pod_that_is_evicted_before_it_has_begun_is_not_replaced(harness, admin):
    cluster = RecordingCluster(harness)
    engine = harness.engine(cluster=cluster)
    spec = a_spec(
        harness,
        exits(0),
        reserved=Limits(cpu=12),
    )  # so much that it is not placed
    with ThreadPoolExecutor(1) as pool:
        launch = pool.submit(engine.launch, spec)
        wait_for(lambda: cluster.listed_pods, "its pod is seen")

        admin.delete(
            Pod,
            pods_of(admin, spec.name)[0].metadata.name,
        )

        with pytest.raises(CreateFailed, match=REPLACED):
            launch.result()
    assert engine.list() == []
    wait_for(
        lambda: not [*pods_of(admin, spec.name), *secrets_of(admin, spec.name)],
        "nothing is left",
    )


def launch_without_note(engine: KubernetesEngine, spec: LaunchSpec) -> None:
    """Launch a run as a gateway does that is killed before it notes the start."""
    image = engine.image_metadata(spec.image)
    engine._release(
        spec,
        image,
        engine._create(spec, image),
    )


def evict_unnoted_pod(admin: Client, run: str) -> str:
    """Wait until a run has started and delete its pod; return the name of the next pod."""

    def started_pods() -> list[PodView]:
        return [pod for pod in map(PodView, pods_of(admin, run)) if pod.has_started]

    wait_for(started_pods, "it begins")
    (pod,) = pods_of(admin, run)
    admin.delete(
        Pod,
        pod.metadata.name,
        grace_period=1,
    )

    def is_replaced() -> bool:
        pods = [PodView(later) for later in pods_of(admin, run)]
        if len(pods) != 1:
            return False
        return pods[0].name != pod.metadata.name and pods[0].has_started

    wait_for(is_replaced, "another pod begins")
    (replacement,) = pods_of(admin, run)
    return str(replacement.metadata.name)


@pytest.mark.parametrize("by", ["launch", "watch"])
def test_a_pod_in_place_of_one_that_may_have_begun_unseen_is_put_out(harness, admin, by):
    """The gateway was killed before it noted the first pod, which was then evicted."""
    spec = a_spec(harness, WAITS)
    launch_without_note(harness.engine(), spec)
    replacement = evict_unnoted_pod(admin, spec.name)
    successor = harness.engine()

    if by == "launch":
        with pytest.raises(CreateFailed, match=REPLACED):
            successor.launch(spec)
        assert successor.list() == []
    else:
        reported = ExitListener()
        successor.watch(reported)
        reported.wait_for(spec.name)
        wait_for(lambda: successor.probe(spec.name) == Missing(), "it is lost")
        successor.launch(spec)  # starts nothing
        assert successor.probe(spec.name) == Missing()

    assert secrets_of(admin, spec.name) == []
    # Under load, the cluster may need minutes for the deletion itself.
    remaining = [pod for pod in pods_of(admin, spec.name) if pod.metadata.name == replacement]
    assert all(pod.metadata.deletionTimestamp for pod in remaining)
    successor.remove(spec.name)


@pytest.mark.parametrize(
    ("image", "error", "words"),
    [
        ("bfia-base:py311", PullDenied, "registry docker"),
        ("https://a/b", ImageNotFound, "not a valid image name"),
    ],
)
def test_an_image_that_machines_may_not_pull_is_named(harness, image, error, words):
    with pytest.raises(error, match=words):
        harness.engine().image_digest(image)


def test_an_image_that_a_machine_does_not_find_is_named(harness):
    spec = a_spec(harness, exits(0))
    missing = f"{harness.registry}/b@sha256:{'0' * 64}"
    image = replace(
        harness.engine().image_metadata(spec.image),
        repo_digests=(missing,),
    )
    engine = harness.engine(images=SimpleNamespace(find=lambda _: image))

    with pytest.raises(ImageNotFound, match="not found"):
        engine.launch(spec)

    assert engine.list() == []


FORGOTTEN_VERSION = "1"  # no API server keeps the changes since its first one


class ForgetfulCluster(Cluster):
    """Hands the streams of watches to the test.

    With ``forgets`` the watches after the first start at a version that the API server has
    forgotten, until it refuses one of them.
    """

    def __init__(self, harness: KubernetesHarness, forgets: bool) -> None:
        super().__init__(str(harness.home / "gateway.conf"), "")
        self.streams: queue.SimpleQueue[PodEvents] = queue.SimpleQueue()
        self.forgets = forgets
        self.refused_watches = 0
        self._has_watched = False

    @contextlib.contextmanager
    def watching(self, labels: str, version: str) -> Iterator[PodEvents]:
        if self.forgets and self._has_watched:
            version = FORGOTTEN_VERSION
        try:
            with super().watching(labels, version) as stream:
                self._has_watched = True
                self.streams.put(stream)
                yield stream
        except Gone:
            if version == FORGOTTEN_VERSION:
                self.forgets = False
                self.refused_watches += 1
            raise


@pytest.mark.parametrize(
    "forgets",
    [False, True],
    ids=["resumes", "starts over"],
)
def test_a_watch_resumes_or_starts_over_if_the_cluster_forgot(harness, forgets):
    cluster = ForgetfulCluster(harness, forgets)
    engine = harness.engine(cluster=cluster)
    reported = ExitListener()
    engine.watch(reported)
    stream = cluster.streams.get(timeout=LONG)

    stream.end()

    spec = launch_run(harness, engine, exits(0))
    reported.wait_for(spec.name)
    if forgets:
        assert cluster.refused_watches > 0


@contextlib.contextmanager
def cable_to_api_server(
    harness: KubernetesHarness,
    kubeconfig: Path,
) -> Iterator[Any]:
    """Yield a cable to the API server; the kubeconfig leads through the cable."""
    text = (harness.home / "gateway.conf").read_text(encoding="utf-8")
    (server,) = re.findall(r'server: "(https://[^"]+)"', text)
    url = urlsplit(server)
    with cable_to((str(url.hostname), int(url.port or 0))) as cable:
        near_end = f"https://127.0.0.1:{cable.server_address[1]}"
        kubeconfig.write_text(
            text.replace(server, near_end),
            encoding="utf-8",
        )
        yield cable


def test_while_the_api_server_is_away_nothing_is_known_and_nothing_is_lost(harness, tmp_path):
    kubeconfig = tmp_path / "cable.conf"
    reported = ExitListener()
    reported_away = ExitListener()
    with cable_to_api_server(harness, kubeconfig) as cable:
        engine = harness.engine(kubeconfig=str(kubeconfig))
        spec = launch_run(harness, engine, WAITS)
        engine.watch(reported, reported_away)
        wait_for(lambda: isinstance(engine.probe(spec.name), Running), "it runs")

        cable.cut()

        reported_away.wait_for("")
        calls = [
            engine.check,
            engine.list,
            partial(engine.probe, spec.name),
            partial(engine.logs, spec.name),
        ]
        for call in calls:
            with pytest.raises(EngineDown, match="does not answer"):
                call()
        harness.engine().stop(spec.name, 1)  # by a direct connection

        cable.mend()

        reported.wait_for(spec.name)
        assert wait_for_exit(engine, spec.name).code == 143
        assert engine.logs(spec.name).stdout == b"ready\n"
        engine.close()  # before the cable is closed


# Six threads decode the first objects of their kinds at the same time.
DECODING = """
import sys, threading
from engines.kubernetes import engine

sys.setswitchinterval(1e-6)
barrier = threading.Barrier(6)
pod = {"spec": {"containers": []}}


def decode(kind):
    barrier.wait()
    kind.from_dict({"spec": {"template": pod, **pod["spec"]}})


for n in range(6):
    threading.Thread(target=decode, args=([engine.Job, engine.Pod][n % 2],)).start()
"""


def test_the_first_responses_may_come_together():
    """In a process of its own, as an error of the decoder's cache would last in this one."""
    process = subprocess.run(
        [sys.executable, "-c", DECODING],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )

    assert process.returncode == 0, process
    assert "Traceback" not in process.stderr, process


@pytest.fixture
def listen() -> Iterator[Callable[[str], str]]:
    """Listen at an address of this machine; return ``host:port``."""
    with contextlib.ExitStack() as stack:

        def listen(host: str) -> str:
            server = stack.enter_context(socket.create_server((host, 0)))
            return f"{host}:{server.getsockname()[1]}"

        yield listen


def test_a_run_reaches_the_gateway_and_the_storage_and_nothing_else(harness, admin, listen):
    """By the shipped policy, on a network that enforces it; other pods reach all doors."""
    engine = harness.engine()
    neighbour = launch_run(harness, engine, python(SERVES))
    (pod,) = pods_of(admin, neighbour.name)
    api = urlsplit(KubeConfig.from_file(harness.home / "admin.conf").get().cluster.server)
    gateway = listen(os.environ["BFIA_TEST_KUBERNETES_HOST"])
    storage = os.environ["BFIA_TEST_S3"].removeprefix("http://")
    closed = [
        api.netloc,
        "10.217.0.1:443",  # the API server by the cluster's own service
        listen(str(api.hostname)),  # another service of the gateway's machine
        f"{pod.status.hostIP}:10250",  # the kubelet
        listen("169.254.169.254"),  # the address of a cloud's metadata
        listen("198.51.100.1"),  # an address of the internet
    ]
    neighbour_door = f"{pod.status.podIP}:9000"

    doors = open_doors(harness, engine, gateway, storage, *closed, neighbour_door)

    assert doors == {
        gateway: True,
        storage: True,
        **dict.fromkeys(closed, False),
        neighbour_door: False,
    }
    doors_of_other_pod = output_of_pod(admin, harness.image, LOOK, *closed)
    assert doors_of_other_pod == dict.fromkeys(closed, True)


def output_of_pod(
    admin: Client,
    image: str,
    program: str,
    *arguments: str,
) -> Any:
    """Run a Python program in a pod that is no run's; return its output, which is JSON."""
    name = f"try-{uuid.uuid4().hex[:8]}"
    container = {
        "name": "try",
        "image": image,
        "command": ["python3", "-c", program, *arguments],
        "resources": {"requests": {"cpu": "0", "memory": "0"}},
    }
    spec = {
        "restartPolicy": "Never",
        "containers": [container],
        "nodeSelector": {"machine": "1"},
    }
    admin.create(Pod.from_dict({"metadata": {"name": name}, "spec": spec}))

    def has_ended() -> bool:
        return admin.get(Pod, name).status.phase in ("Succeeded", "Failed")

    try:
        wait_for(has_ended, "the program has ended")
        return json.loads("".join(admin.log(name)))
    finally:
        admin.delete(Pod, name)
