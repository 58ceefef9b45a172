"""The capacity that the Kubernetes engine reports: machines, quotas and GPUs."""

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import Client
from lightkube.models.authentication_v1 import TokenRequestSpec
from lightkube.models.core_v1 import ResourceQuotaSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import (
    Namespace,
    Node,
    Pod,
    ResourceQuota,
    ServiceAccountToken,
)
from lightkube.types import PatchType

from engines.base import Capacity, CreateFailed, Engine, EngineDown, Limits
from engines.kubernetes.jobs import RUN
from tests.contracts.engine_acts import WAITS, a_spec, exits, used_by_others, wait_for
from tests.contracts.kubernetes import KubernetesHarness
from tests.services.clusters import kubectl, runs_in

pytestmark = pytest.mark.kubernetes
# The account of a gateway in the shipped manifests.
ACCOUNT = "bfia-gateway"


@pytest.fixture
def harness() -> Iterator[KubernetesHarness]:
    with contextlib.closing(KubernetesHarness()) as harness:
        yield harness


@pytest.fixture
def admin(harness: KubernetesHarness) -> Iterator[Client]:
    with harness.admin() as client:
        yield client


@pytest.fixture
def space(admin: Client) -> Iterator[str]:
    """A namespace that no other test uses."""
    name = f"bfia-test-{uuid.uuid4().hex[:8]}"
    admin.create(Namespace(metadata=ObjectMeta(name=name)))
    yield name
    admin.delete(Namespace, name)


@pytest.fixture
def shipped_rights(
    harness: KubernetesHarness,
    admin: Client,
    space: str,
    tmp_path: Path,
) -> dict[str, Any]:
    """Return options with the rights of the shipped manifests in `space`, but without the quota.

    They do not include the right to list machines, or pods of other namespaces.
    """
    runs_in(space)
    admin.delete(ResourceQuota, "bfia-runs", namespace=space)
    request = ServiceAccountToken(
        metadata=ObjectMeta(name=ACCOUNT),
        spec=TokenRequestSpec(expirationSeconds=3600),
    )
    token = admin.create(request, ACCOUNT, namespace=space).status.token

    content = yaml.safe_load((harness.home / "gateway.conf").read_text(encoding="utf-8"))
    content["contexts"][0]["context"]["namespace"] = space
    content["users"][0]["user"] = {"token": token}
    kubeconfig = tmp_path / "shipped.conf"
    kubeconfig.write_text(yaml.safe_dump(content), encoding="utf-8")
    options = {"kubeconfig": str(kubeconfig)}

    wait_for(partial(responds, harness.engine(**options)), "the account has its rights")
    return options


def responds(engine: Engine) -> bool:
    """Return whether the cluster accepts an engine's account and lets it use Jobs."""
    try:
        engine.check()
    except EngineDown:
        return False
    return True


@contextlib.contextmanager
def allowed_to_list_machines(space: str) -> Iterator[None]:
    """Let the gateway's account in a namespace list the cluster's machines for a while."""
    account = f"{space}:{ACCOUNT}"
    kubectl("create", "clusterrole", space, "--verb=list", "--resource=nodes")
    try:
        kubectl(
            "create",
            "clusterrolebinding",
            space,
            f"--clusterrole={space}",
            f"--serviceaccount={account}",
        )
        yield
    finally:
        kubectl(
            "delete",
            "clusterrole,clusterrolebinding",
            space,
            "--ignore-not-found",
        )


def admin_options(
    harness: KubernetesHarness,
    namespace: str,
) -> dict[str, Any]:
    """Return options with more rights than a gateway needs, for a namespace of a test."""
    return {
        "kubeconfig": str(harness.home / "admin.conf"),
        "namespace": namespace,
        "place_seconds": 2.0,
    }


def create_quota(
    admin: Client,
    namespace: str,
    **hard: str,
) -> None:
    quota = ResourceQuota(
        metadata=ObjectMeta(name="q"),
        spec=ResourceQuotaSpec(hard=hard),
    )
    admin.create(quota, namespace=namespace)


def create_foreign_pod(
    admin: Client,
    harness: KubernetesHarness,
    namespace: str,
) -> None:
    """Create a pod that is not ours, with half a core and 16 MiB, which is never placed."""
    container = {
        "name": "theirs",
        "image": harness.image,
        "resources": {"requests": {"cpu": "500m", "memory": "16Mi"}},
    }
    pod = {
        "containers": [container],
        "nodeSelector": {"machine": "none"},
    }
    content = {
        "metadata": {"name": "theirs"},
        "spec": pod,
    }
    admin.create(
        Pod.from_dict(content),
        namespace=namespace,
    )


def test_a_capacity_without_machines_and_quota_is_unknown(harness, shipped_rights):
    engine = harness.engine(**shipped_rights)

    with pytest.raises(EngineDown, match="may not list its nodes") as refusal:
        engine.capacity()

    assert "ResourceQuota" in refusal.value.remedy  # type: ignore[attr-defined]


def test_jobs_wait_for_machines_that_are_away(harness, space):
    engine = harness.engine(**admin_options(harness, space), node_selector={"machine": "none"})

    with pytest.raises(EngineDown, match="none of the cluster's machines"):
        engine.capacity()


def test_a_quota_is_the_capacity_and_says_what_does_not_fit(harness, admin, space, shipped_rights):
    engine = harness.engine(**admin_options(harness, space))
    blind = harness.engine(**shipped_rights)
    of_one_machine = engine.capacity()
    assert of_one_machine.cpu >= 1
    assert of_one_machine.memory > 1 << 30

    hard = {
        "requests.cpu": "1500m",
        "requests.memory": "64Mi",
        "pods": "5",
    }
    create_quota(admin, space, **hard)

    assert engine.capacity() == Capacity(
        1.5,
        64 << 20,
        others=Capacity(0, 0),
    )
    wait_for(lambda: admin.get(ResourceQuota, "q", namespace=space).status.hard, "it holds")
    with pytest.raises(CreateFailed, match="exceeded quota"):
        engine.launch(a_spec(harness, exits(0), reserved=Limits(memory=65 << 20)))
    assert engine.list() == []

    create_foreign_pod(admin, harness, space)

    used = Capacity(0.5, 16 << 20)
    assert engine.capacity() == Capacity(
        1.5,
        64 << 20,
        others=used,
    )
    assert blind.capacity() == Capacity(
        1.5,
        64 << 20,
        others=used,
    )


def test_the_shipped_quota_is_the_capacity(harness):
    """The shipped role may not list machines."""
    engine = harness.engine()

    assert replace(engine.capacity(), others=None) == Capacity(
        16,
        64 << 30,
    )


def test_the_capacity_is_the_smaller_of_quota_and_machines(harness, admin, space, shipped_rights):
    """The account may list machines and no pods of other namespaces."""
    machine = harness.engine(**admin_options(harness, space)).capacity()
    quota = Capacity(
        2 * machine.cpu,
        2 * machine.memory,
        others=Capacity(0, 0),
    )
    hard = {
        "requests.cpu": f"{quota.cpu:.0f}",
        "requests.memory": str(quota.memory),
    }
    create_quota(admin, space, **hard)
    engine = harness.engine(**shipped_rights)
    assert engine.capacity() == quota

    with allowed_to_list_machines(space):
        wait_for(lambda: engine.capacity() != quota, "the account has its new right")

        assert engine.capacity() == replace(machine, others=Capacity(0, 0))


@contextlib.contextmanager
def advertised(
    admin: Client,
    resource: str,
    count: str,
) -> Iterator[None]:
    """Let machine 1 advertise a resource for a while."""
    (node,) = admin.list(
        Node,
        labels={"machine": "1"},
    )

    def patch(value: str | None) -> None:
        status = {
            "capacity": {resource: value},
            "allocatable": {resource: value},
        }
        content = {"status": status}
        admin.patch(
            Node.Status,
            node.metadata.name,
            content,
            patch_type=PatchType.MERGE,
        )

    patch(count)
    try:
        yield
    finally:
        patch(None)


def test_gpus_are_those_of_ready_machines_within_the_quota(harness, admin, space):
    """Machine 1 advertises a resource without a device, such as another vendor's GPUs."""
    gpu = f"bfia.test/gpu-{uuid.uuid4().hex[:8]}"
    options = {
        "kubeconfig": str(harness.home / "admin.conf"),
        "namespace": space,
    }
    first = a_spec(
        harness,
        WAITS,
        limits=Limits(gpu=1),
    )
    second = a_spec(
        harness,
        WAITS,
        limits=Limits(gpu=2),
    )
    with advertised(admin, gpu, "2"):
        engine = harness.engine(gpu=gpu, **options)
        assert engine.capacity().gpu == 2
        assert harness.engine(**options).capacity().gpu == 0

        engine.launch(first)

        (pod,) = admin.list(
            Pod,
            namespace=space,
            labels={RUN: first.name},
        )
        resources = pod.spec.containers[0].resources
        assert resources.limits[gpu] == "1"
        assert resources.requests[gpu] == "1"
        in_another_namespace = {**options, "namespace": "bfia"}
        beta = harness.engine(node="beta", gpu=gpu, **in_another_namespace)
        assert used_by_others(engine).gpu == 0
        assert used_by_others(beta).gpu == 1
        impatient = harness.engine(gpu=gpu, place_seconds=2.0, **options)
        with pytest.raises(CreateFailed, match=f"1 Insufficient {gpu}"):
            impatient.launch(second)

        create_quota(admin, space, **{f"requests.{gpu}": "1"})

        assert engine.capacity().gpu == 1
        engine.remove(first.name)
