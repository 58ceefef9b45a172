"""The capacity that the Kubernetes engine reports: machines, quotas and GPUs."""

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from lightkube import Client
from lightkube.models.core_v1 import ResourceQuotaSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Node, Pod, ResourceQuota
from lightkube.types import PatchType

from engines.base import Capacity, CreateFailed, EngineDown, Limits
from engines.kubernetes import KubernetesEngine
from engines.kubernetes.jobs import RUN
from tests.contracts.engine_acts import WAITS, a_spec, exits, used_by_others, wait_for
from tests.contracts.kubernetes import KubernetesHarness

pytestmark = pytest.mark.kubernetes


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


def unable_to_list_machines(engine: KubernetesEngine) -> KubernetesEngine:
    """Take the right to list machines from an engine."""
    engine._machines = lambda: None  # type: ignore[method-assign]
    return engine


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


def test_a_capacity_without_machines_and_quota_is_unknown(harness, space):
    options = admin_options(harness, space)
    engine = unable_to_list_machines(harness.engine(**options))

    with pytest.raises(EngineDown, match="may not list its nodes") as refusal:
        engine.capacity()

    assert "ResourceQuota" in refusal.value.remedy  # type: ignore[attr-defined]


def test_jobs_wait_for_machines_that_are_away(harness, space):
    engine = harness.engine(**admin_options(harness, space), node_selector={"machine": "none"})

    with pytest.raises(EngineDown, match="none of the cluster's machines"):
        engine.capacity()


def test_a_quota_is_the_capacity_and_says_what_does_not_fit(harness, admin, space):
    options = admin_options(harness, space)
    engine = harness.engine(**options)
    blind = unable_to_list_machines(harness.engine(**options))
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


def test_the_capacity_is_the_smaller_of_quota_and_machines(harness):
    """The shipped role may list machines and no pods of other namespaces."""
    engine = harness.engine()
    assert replace(engine.capacity(), others=None) == Capacity(
        16,
        64 << 30,
    )

    machines = {"machine1": {"cpu": "8", "memory": "1Gi"}}
    engine._machines = lambda: machines  # type: ignore[method-assign]

    assert replace(engine.capacity(), others=None) == Capacity(
        8,
        1 << 30,
    )


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
