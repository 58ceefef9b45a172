"""The engine contract over a Kubernetes of two machines, and what only that engine promises.

Of the contract, three cases are there in their second form: what a capability that the engine lacks has to be.

==========================================================  ====================================================
``test_mounts_are_read_only_or_writable``                      no folder is shared: refused with NOT_SUPPORTED
``test_what_is_over_…``, ``test_a_new_object_…``            a cluster keeps both streams as one: in stdout.log
==========================================================  ====================================================
"""

import base64
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from lightkube import Client, KubeConfig
from lightkube.models.core_v1 import ResourceQuotaSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Namespace, Node, Pod, ResourceQuota, Secret
from lightkube.types import PatchType

from engines import seccomp
from engines.base import (
    Capacity,
    CreateFailed,
    Engine,
    EngineDown,
    Exited,
    ImageNotFound,
    Limits,
    Missing,
    PullDenied,
    Running,
)
from engines.kubernetes import KubernetesEngine, KubernetesOptions
from engines.kubernetes.client import PodWatch
from engines.kubernetes.jobs import RUN, STARTED, PodView, job_of
from engines.registry.logins import Login
from engines.registry.names import PullRules
from tests.contracts.engine_acts import (
    WAITS,
    ExitListener,
    a_spec,
    exits,
    launch_run,
    output_of,
    python,
    used_by_others,
    wait_for,
    wait_for_exit,
)
from tests.contracts.engine_contract import ClusterContract
from tests.contracts.harnesses import Harness
from tests.contracts.test_isolation import LOOK, SERVES, open_doors
from tests.e2e.nodes import ROOT
from tests.services.cable import cable_to
from tests.services.clusters import guarded_registry
from tests.services.registry import PASSWORD, USER, log_in

pytestmark = pytest.mark.kubernetes


class KubernetesHarness(Harness[KubernetesEngine]):
    """Two machines, and what the shipped role allows."""

    isolates: frozenset[str] = frozenset()
    """up to the cluster's network"""
    capabilities = frozenset({"fractional_cpu", "oom_flag", "network", "capabilities"})
    adds = Harness.adds | {
        *(
            f"KUBERNETES_{name}"
            for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTPS", "PORT")
        ),
        *(f"KUBERNETES_PORT_443_TCP{name}" for name in ("", "_PROTO", "_PORT", "_ADDR")),
    }
    """of the cluster's own service"""
    streams = False
    cluster, last = "kubernetes", "2"
    gone = "machine2, on which it was placed, does not take it up"
    no_room = r"0/2 nodes are available: .*memory"

    def __init__(self, where: str = "1") -> None:
        """``where``: on which machine; one of the tests takes the second away."""
        super().__init__()
        self.where = {"machine": where}
        self.home = Path(os.environ["BFIA_TEST_KUBERNETES"])
        self.registry = os.environ["BFIA_TEST_KUBERNETES_REGISTRY"]
        self.image = f"{self.registry}/{Harness.image}"
        self.no_image = f"{self.registry}/no-such-image:1.0"

    def _build(
        self,
        node: str,
        installation: str,
        **options: Any,
    ) -> KubernetesEngine:
        options = {
            "kubeconfig": str(self.home / "gateway.conf"),
            "pull": PullRules(frozenset({self.registry})),
            "grace": 2.0,
            "node_selector": self.where,
            **options,
        }
        return KubernetesEngine(node, installation, KubernetesOptions(**options))

    @contextlib.contextmanager
    def down(self) -> Iterator[Engine]:
        yield self.engine(kubeconfig=str(self.home / "nothing.conf"))

    def pods(self, run: str) -> list[Pod]:
        with self.admin() as admin:
            return pods_of(admin, run)

    def admin(self) -> Client:
        return Client(
            KubeConfig.from_file(self.home / "admin.conf"), namespace="bfia", trust_env=False
        )


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


@pytest.fixture
def space(admin: Client) -> Iterator[str]:
    """Give a namespace of the test's own."""
    name = f"bfia-test-{uuid.uuid4().hex[:8]}"
    admin.create(Namespace(metadata=ObjectMeta(name=name)))
    yield name
    admin.delete(Namespace, name)


def pods_of(admin: Client, run: str) -> list[Pod]:
    return list(admin.list(Pod, labels={RUN: run}))


def test_runs_have_the_profile_that_their_machines_have(harness):
    """Attack: the calls that `tests.trust.system_calls` makes."""
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
    options = KubernetesOptions(
        read_only_root=True,
        priority_class="system-node-critical",
        tolerations=({"key": "gpu"},),
    )
    engine = harness.engine()
    limits = Limits(cpu=1.5, memory=96 << 20)
    spec = a_spec(
        harness,
        WAITS,
        limits=limits,
        reserved=Limits(memory=64 << 20),
        private_folders=("/bfia/log",),
    )
    job = job_of(spec, engine._images.find(spec.image), engine._owner, False, options)
    engine.launch(spec)
    (pod,) = pods_of(admin, spec.name)
    assert pod.spec
    assert pod.spec.containers
    assert job.spec
    assert job.spec.template.spec
    container, wanted = pod.spec.containers[0], job.spec.template.spec
    bare, _, digest = container.image.partition("@")
    assert bare == harness.image.rpartition(":")[0]
    assert digest == engine.registry_digest(harness.image, 5)
    own = container.securityContext
    assert own.allowPrivilegeEscalation is False
    assert own.privileged is False
    assert own.runAsNonRoot is True
    assert own.runAsUser == 65534
    assert own.runAsGroup == 65534
    assert own.capabilities.drop == ["ALL"]
    assert pod.spec.securityContext.seccompProfile.type == "RuntimeDefault"
    assert pod.spec.automountServiceAccountToken is False
    assert pod.spec.restartPolicy == "Never"
    assert container.resources.limits == {"cpu": "1500m", "memory": str(96 << 20)}
    assert container.resources.requests == {"cpu": "0", "memory": str(64 << 20)}
    found = admin.get(Job, spec.name).spec
    assert found.backoffLimit == 0
    assert found.parallelism == 1
    assert found.ttlSecondsAfterFinished == 7 * 24 * 3600
    assert found.activeDeadlineSeconds > pod.spec.activeDeadlineSeconds
    assert wanted.priorityClassName == "system-node-critical"
    assert wanted.tolerations[-1].key == "gpu"
    assert wanted.containers[0].securityContext.readOnlyRootFilesystem
    assert [mount.mountPath for mount in wanted.containers[0].volumeMounts] == [
        "/bfia/log",
        "/tmp",
        "/bfia/home",
        "/dev/shm",
    ]


def test_the_variables_are_secret_and_gone_once_the_run_has_begun(harness, admin):
    """So that nothing can start it a second time: its pod is deleted, and the one in its place never begins."""
    engine, heard = harness.engine(), ExitListener()
    spec = launch_run(harness, engine, WAITS, environment={"config.token": "confidential"})
    engine.watch(heard)
    (pod,) = pods_of(admin, spec.name)
    assert "confidential" not in repr(pod.to_dict()) + repr(admin.get(Job, spec.name).to_dict())
    assert [secret.metadata.name for secret in admin.list(Secret, labels={RUN: spec.name})] == []
    admin.delete(Pod, pod.metadata.name, grace_period=1)
    heard.wait_for(spec.name)
    assert engine.probe(spec.name) == Missing()
    wait_for(
        lambda: [one for one in pods_of(admin, spec.name) if one.metadata.uid != pod.metadata.uid],
        "another",
    )
    anew, again = harness.engine(), ExitListener()
    anew.watch(again)  # a gateway that begins later does not take it for one that runs
    again.wait_for(spec.name)
    anew.launch(spec)
    assert anew.probe(spec.name) == Missing()
    anew.remove(spec.name)


def test_the_login_at_the_registry_goes_along_while_the_image_is_fetched(
    harness, admin, monkeypatch, tmp_path
):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with guarded_registry(tmp_path / "closed") as closed:
        engine, made = harness.engine(pull=PullRules(frozenset({closed}))), []
        create = engine._cluster.create
        monkeypatch.setattr(
            engine._cluster, "create", lambda what: made.append(create(what)) or made[-1]
        )
        image = harness.image.replace(harness.registry, closed)
        spec, denied = (a_spec(harness, WAITS, image=image) for _ in "ab")
        log_in(tmp_path, closed, "a wrong password")
        with pytest.raises(PullDenied, match=r"responds with 401 .*log in: docker login"):
            engine.launch(denied)
        log_in(tmp_path, closed)
        with monkeypatch.context() as without:
            without.setattr("engines.kubernetes.engine.login_for", lambda registry: Login())
            with pytest.raises(PullDenied, match="401 Unauthorized"):  # as the machine says
                engine.launch(denied)
        assert engine.list() == []
        made.clear()
        engine.launch(spec)
    (pod,) = pods_of(admin, spec.name)
    job, variables, login = made
    assert [one.name for one in pod.spec.imagePullSecrets] == [login.metadata.name]
    assert login.type == "kubernetes.io/dockerconfigjson"
    assert variables.type == "Opaque"
    auths = json.loads(base64.b64decode(login.data[".dockerconfigjson"]))["auths"]
    assert auths == {closed: {"auth": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}}
    for secret in (variables, login):
        assert [owner.uid for owner in secret.metadata.ownerReferences] == [job.metadata.uid]
    assert list(admin.list(Secret, labels={RUN: spec.name})) == []


def test_what_is_over_leaves_nothing(harness, admin):
    engine = harness.engine()
    done, never = (
        a_spec(harness, exits(0)),
        a_spec(harness, exits(0), environment={"not valid": ""}),
    )
    engine.launch(done)
    wait_for_exit(engine, done.name)
    engine.remove(done.name)
    with pytest.raises(CreateFailed, match="env"):
        engine.launch(never)
    assert engine.list() == []
    for run in (done.name, never.name):
        for kind in (Job, Pod, Secret):
            wait_for(
                lambda kind=kind, run=run: not list(admin.list(kind, labels={RUN: run})),
                f"no {kind} stays",
            )


def test_a_launch_that_was_cut_off_is_completed_by_the_next(harness, admin):
    engine = harness.engine()
    spec = a_spec(harness, exits(4))
    engine._create(spec, engine._images.find(spec.image))  # and there the gateway was killed
    assert engine.probe(spec.name) == Missing()
    assert pods_of(admin, spec.name) == []
    anew = harness.engine()
    anew.launch(spec)
    assert wait_for_exit(anew, spec.name).code == 4
    admin.patch(Job, spec.name, {"metadata": {"annotations": {STARTED: ""}}})  # or there
    harness.engine().watch(ExitListener())
    wait_for(lambda: admin.get(Job, spec.name).metadata.annotations[STARTED], "it is taken up")


def test_a_pod_that_is_evicted_before_it_has_begun_is_not_replaced(harness, admin, monkeypatch):
    engine, spec = harness.engine(), a_spec(harness, exits(0), reserved=Limits(cpu=12))
    seen: list[PodView] = []
    look = engine._pods
    monkeypatch.setattr(engine, "_pods", lambda job: seen.extend(found := look(job)) or found)
    with ThreadPoolExecutor(1) as pool:
        launched = pool.submit(engine.launch, spec)
        wait_for(lambda: seen, "its pod is seen")
        admin.delete(Pod, pods_of(admin, spec.name)[0].metadata.name)
        with pytest.raises(
            CreateFailed, match="evicted or deleted before it was seen to have begun"
        ):
            launched.result()
    assert engine.list() == []
    wait_for(
        lambda: not [*pods_of(admin, spec.name), *admin.list(Secret, labels={RUN: spec.name})],
        "nothing stays",
    )


@pytest.mark.parametrize("by", ["launch", "watch"])
def test_a_pod_in_place_of_one_that_may_have_begun_unseen_is_put_out(harness, admin, by):
    """The gateway was killed before the note of the first, which was then evicted."""
    engine, spec = harness.engine(), a_spec(harness, WAITS)
    image = engine._images.find(spec.image)
    engine._set_going(spec, image, engine._create(spec, image))
    wait_for(
        lambda: [pod for pod in map(PodView, pods_of(admin, spec.name)) if pod.has_started],
        "it begins",
    )
    (pod,) = pods_of(admin, spec.name)
    admin.delete(Pod, pod.metadata.name, grace_period=1)

    def second() -> bool:
        names = [(seen.name, seen.has_started) for seen in map(PodView, pods_of(admin, spec.name))]
        return len(names) == 1 and names[0][0] != pod.metadata.name and names[0][1]

    wait_for(second, "another begins")
    (again,) = pods_of(admin, spec.name)
    anew, heard = harness.engine(), ExitListener()
    if by == "launch":
        with pytest.raises(
            CreateFailed, match="evicted or deleted before it was seen to have begun"
        ):
            anew.launch(spec)
        assert anew.list() == []
    else:
        anew.watch(heard)
        heard.wait_for(spec.name)
        wait_for(lambda: anew.probe(spec.name) == Missing(), "it is lost")
        anew.launch(spec)  # begins nothing
        assert anew.probe(spec.name) == Missing()
    assert list(admin.list(Secret, labels={RUN: spec.name})) == []
    left = [pod for pod in pods_of(admin, spec.name) if pod.metadata.name == again.metadata.name]
    assert all(
        pod.metadata.deletionTimestamp for pod in left
    )  # which may take the cluster minutes under load
    anew.remove(spec.name)


def test_images_that_a_machine_cannot_fetch_are_told_apart(harness):
    engine = harness.engine()
    with pytest.raises(PullDenied, match="registry docker"):
        engine.image_digest("bfia-base:py311")
    with pytest.raises(ImageNotFound, match="not a valid image name"):
        engine.image_digest("https://a/b")
    spec = a_spec(harness, exits(0))
    gone = replace(
        engine._images.find(spec.image), repo_digests=(f"{harness.registry}/b@sha256:{'0' * 64}",)
    )
    engine._images = SimpleNamespace(find=lambda _: gone)  # type: ignore[assignment]
    with pytest.raises(ImageNotFound, match="not found"):
        engine.launch(spec)
    assert engine.list() == []


def test_a_quota_is_what_the_namespace_has_and_says_what_does_not_fit(harness, admin, space):
    """With more rights than a gateway needs: in a namespace of the test's own."""
    options = {
        "kubeconfig": str(harness.home / "admin.conf"),
        "namespace": space,
        "place_seconds": 2.0,
    }
    engine, unknown = harness.engine(**options), harness.engine(**options)
    whole = engine.capacity()
    assert whole.cpu >= 1
    assert whole.memory > 1 << 30  # of one machine
    unknown._machines = lambda: None  # type: ignore[method-assign]
    with pytest.raises(EngineDown, match="may not list its nodes") as refused:
        unknown.capacity()
    assert "ResourceQuota" in refused.value.remedy  # type: ignore[attr-defined]
    with pytest.raises(EngineDown, match="none of the cluster's machines"):  # jobs wait for them
        harness.engine(**options, node_selector={"machine": "none"}).capacity()
    hard = {
        "requests.cpu": "1500m",
        "requests.memory": "64Mi",
        "pods": "5",
    }
    quota = ResourceQuota(metadata=ObjectMeta(name="q"), spec=ResourceQuotaSpec(hard=hard))
    admin.create(quota, namespace=space)
    assert engine.capacity() == Capacity(1.5, 64 << 20, others=Capacity(0, 0))
    wait_for(lambda: admin.get(ResourceQuota, "q", namespace=space).status.hard, "it holds")
    with pytest.raises(CreateFailed, match="exceeded quota"):
        engine.launch(a_spec(harness, exits(0), reserved=Limits(memory=65 << 20)))
    assert engine.list() == []
    theirs = {"requests": {"cpu": "500m", "memory": "16Mi"}}
    container = {
        "name": "theirs",
        "image": harness.image,
        "resources": theirs,
    }
    pod = {"containers": [container], "nodeSelector": {"machine": "none"}}
    admin.create(Pod.from_dict({"metadata": {"name": "theirs"}, "spec": pod}), namespace=space)
    for one in (engine, unknown):
        assert one.capacity() == Capacity(1.5, 64 << 20, others=Capacity(0.5, 16 << 20))
    shipped = harness.engine()
    assert replace(shipped.capacity(), others=None) == Capacity(16, 64 << 30)
    shipped._machines = lambda: {"machine1": {"cpu": "8", "memory": "1Gi"}}  # type: ignore[method-assign]
    # an account that may list machines and no pods of other namespaces
    assert replace(shipped.capacity(), others=None) == Capacity(8, 1 << 30)


def test_gpus_are_those_of_ready_machines_within_the_quota(harness, admin, space):
    """Of a resource that one machine has while the test runs, as another vendor's would be; without a device."""
    gpu = f"bfia.test/gpu-{uuid.uuid4().hex[:8]}"
    (machine,) = admin.list(Node, labels={"machine": "1"})

    def advertise(count: str | None) -> None:
        has = {"status": {kind: {gpu: count} for kind in ("capacity", "allocatable")}}
        admin.patch(Node.Status, machine.metadata.name, has, patch_type=PatchType.MERGE)

    advertise("2")
    try:
        options = {"kubeconfig": str(harness.home / "admin.conf"), "namespace": space}
        engine = harness.engine(gpu=gpu, **options)
        assert engine.capacity().gpu == 2
        assert harness.engine(**options).capacity().gpu == 0
        first, second = (a_spec(harness, WAITS, limits=Limits(gpu=count)) for count in (1, 2))
        engine.launch(first)
        (pod,) = admin.list(Pod, namespace=space, labels={RUN: first.name})
        has = pod.spec.containers[0].resources
        assert has.limits[gpu] == "1"
        assert has.requests[gpu] == "1"
        theirs = harness.engine(
            node="beta",
            gpu=gpu,
            **{**options, "namespace": "bfia"},
        )
        assert [used_by_others(one).gpu for one in (engine, theirs)] == [
            0,
            1,
        ]  # its namespace is another one, too
        with pytest.raises(CreateFailed, match=f"1 Insufficient {gpu}"):
            harness.engine(
                gpu=gpu,
                place_seconds=2.0,
                **options,
            ).launch(second)
        quota = ResourceQuota(
            metadata=ObjectMeta(name="q"), spec=ResourceQuotaSpec(hard={f"requests.{gpu}": "1"})
        )
        admin.create(quota, namespace=space)
        assert engine.capacity().gpu == 1
        engine.remove(first.name)
    finally:
        advertise(None)


def test_a_watch_resumes_or_starts_over_if_the_cluster_forgot(harness):
    engine, heard = harness.engine(), ExitListener()
    watch = engine.watch(heard)
    assert isinstance(watch, PodWatch)
    for version in (None, "1", ""):
        wait_for(lambda: watch._stream, "it watches")
        if version is not None:
            watch._version = version
        watch._stream.end()  # type: ignore[union-attr]
        spec = launch_run(harness, engine, exits(0))
        heard.wait_for(spec.name)


def test_while_the_api_server_is_away_nothing_is_known_and_nothing_is_lost(harness, tmp_path):
    text = (harness.home / "gateway.conf").read_text(encoding="utf-8")
    (server,) = re.findall(r'server: "(https://[^"]+)"', text)
    where = urlsplit(server)
    with cable_to((str(where.hostname), int(where.port or 0))) as cable:
        file = tmp_path / "cable.conf"
        file.write_text(
            text.replace(server, f"https://127.0.0.1:{cable.server_address[1]}"), encoding="utf-8"
        )
        engine, heard, away = harness.engine(kubeconfig=str(file)), ExitListener(), ExitListener()
        spec = launch_run(harness, engine, WAITS)
        engine.watch(heard, away)
        wait_for(lambda: isinstance(engine.probe(spec.name), Running), "it runs")
        cable.cut()
        away.wait_for("")
        for call in (
            engine.check,
            engine.list,
            lambda: engine.probe(spec.name),
            lambda: engine.logs(spec.name),
        ):
            with pytest.raises(EngineDown, match="does not answer"):
                call()
        harness.engine().stop(spec.name, 1)  # it ends meanwhile
        cable.mend()
        heard.wait_for(spec.name)
        assert wait_for_exit(engine, spec.name).code == 143
        assert engine.logs(spec.name).stdout == b"ready\n"
        engine.close()  # before the cable is


def test_the_first_responses_may_come_together():
    """In a process of its own, which would be gone: each thread decodes what no other has yet."""
    code = (
        "import sys, threading; from engines.kubernetes import engine\n"
        "sys.setswitchinterval(1e-6); met = threading.Barrier(6); pod = {'spec': {'containers': []}}\n"
        "def decode(kind): met.wait(); kind.from_dict({'spec': {'template': pod, **pod['spec']}})\n"
        "for n in range(6): threading.Thread(target=decode, args=([engine.Job, engine.Pod][n % 2],)).start()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done


def test_a_run_reaches_the_gateway_and_the_storage_and_nothing_else(harness, admin):
    """By the shipped policy, on a network that keeps to it; other pods find the doors open."""
    engine, gateways = harness.engine(), os.environ["BFIA_TEST_KUBERNETES_HOST"]
    other = launch_run(harness, engine, python(SERVES))
    (pod,) = pods_of(admin, other.name)
    api = urlsplit(KubeConfig.from_file(harness.home / "admin.conf").get().cluster.server)
    with contextlib.ExitStack() as stack:

        def listens(host: str) -> str:
            where = stack.enter_context(socket.create_server((host, 0))).getsockname()
            return f"{host}:{where[1]}"

        open_ = [listens(gateways), os.environ["BFIA_TEST_S3"].removeprefix("http://")]
        closed = [
            api.netloc,
            "10.217.0.1:443",  # the same by the cluster's own service
            listens(str(api.hostname)),  # any other service of the gateway's machine
            f"{pod.status.hostIP}:10250",  # the kubelet
            listens("169.254.169.254"),  # where a cloud has metadata
            listens("198.51.100.1"),  # somewhere in the internet
        ]
        doors = [*open_, *closed, f"{pod.status.podIP}:9000"]
        expected = dict.fromkeys(doors, False) | dict.fromkeys(open_, True)
        assert open_doors(harness, engine, *doors) == expected
        assert said_by(admin, harness.image, LOOK, *closed) == dict.fromkeys(closed, True)


def said_by(
    admin: Client,
    image: str,
    program: str,
    *words: str,
) -> Any:
    """Return what a program says in a pod other than a run's."""
    name = f"try-{uuid.uuid4().hex[:8]}"
    nothing = {"requests": {"cpu": "0", "memory": "0"}}
    container = {
        "name": "try",
        "image": image,
        "command": ["python3", "-c", program, *words],
        "resources": nothing,
    }
    spec = {
        "restartPolicy": "Never",
        "containers": [container],
        "nodeSelector": {"machine": "1"},
    }
    admin.create(Pod.from_dict({"metadata": {"name": name}, "spec": spec}))
    try:
        wait_for(
            lambda: admin.get(Pod, name).status.phase in ("Succeeded", "Failed"), "it has looked"
        )
        return json.loads("".join(admin.log(name)))
    finally:
        admin.delete(Pod, name)


def a_pod(status: dict[str, Any], **metadata: Any) -> PodView:
    about = {
        "name": "p",
        "labels": {RUN: "r"},
        **metadata,
    }
    spec = {"containers": [], "nodeName": "m"}
    return PodView(
        Pod.from_dict(
            {
                "metadata": about,
                "spec": spec,
                "status": status,
            }
        )
    )


THEN = "2026-11-26T04:00:00Z"
SEEN = {
    "name": "run",
    "image": "",
    "imageID": "",
    "restartCount": 0,
}
RUNS = SEEN | {"ready": True, "state": {"running": {"startedAt": THEN}}}
OVER = {
    "terminated": {
        "exitCode": 137,
        "startedAt": THEN,
        "finishedAt": THEN,
    }
}
ENDED = SEEN | {"ready": False, "state": OVER}


@pytest.mark.parametrize(
    ("status", "metadata", "seen", "over"),
    [
        ({"phase": "Pending"}, {}, Missing, False),
        ({"phase": "Running", "containerStatuses": [RUNS]}, {}, Running, False),
        (
            {
                "phase": "Failed",
                "containerStatuses": [RUNS],
                "reason": "DeadlineExceeded",
            },
            {},
            Running,
            False,
        ),
        (
            {"phase": "Running", "containerStatuses": [RUNS]},
            {"deletionTimestamp": THEN},
            Running,
            False,
        ),
        ({"phase": "Failed", "containerStatuses": [ENDED]}, {}, Exited, True),
        (
            {
                "phase": "Failed",
                "containerStatuses": [ENDED],
                "reason": "Evicted",
            },
            {},
            Missing,
            True,
        ),
        (
            {
                "phase": "Failed",
                "reason": "Evicted",
                "message": "low on memory",
            },
            {},
            Missing,
            True,
        ),
        (
            {"phase": "Failed", "containerStatuses": [ENDED]},
            {"deletionTimestamp": THEN},
            Missing,
            True,
        ),
    ],
)
def test_what_a_cluster_takes_away_is_lost_and_no_failure_of_the_run(status, metadata, seen, over):
    pod = a_pod(status, **metadata)
    assert type(pod.probe()) is seen
    assert pod.is_over == over
