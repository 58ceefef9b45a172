"""The user's two files unchanged: one node's containers in a Kubernetes, the other's in a Swarm, data at S3."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gateway.config.schema import Settings
from tests import storages as real
from tests.e2e import jobs
from tests.e2e.nodes import ROOT, Federation, wait_for
from tests.e2e.test_storages import TRAIN, names, settings_of
from tests.e2e.test_swarm import MANAGER, WORKER
from tests.services.clusters import daemon, kubectl

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.docker, pytest.mark.swarm, pytest.mark.kubernetes]
IMAGE = "unionpay:2.0.0"


@pytest.fixture(scope="module")
def buckets() -> Iterator[tuple[real.Place, real.Place]]:
    with real.bucket() as one, real.bucket() as other:
        yield one, other


@pytest.fixture(scope="module")
def two(
    reference_image: str, buckets: tuple[real.Place, real.Place], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Federation]:
    """The guest's containers run in the cluster, the host's on a machine of the Swarm."""
    registry = os.environ["BFIA_TEST_KUBERNETES_REGISTRY"]
    saved = tmp_path_factory.mktemp("image") / "image.tar"
    for line in (
        ["tag", IMAGE, f"{registry}/{IMAGE}"],
        ["push", "-q", f"{registry}/{IMAGE}"],
        ["rmi", "-f", f"{registry}/{IMAGE}"],
        ["save", "-o", str(saved), IMAGE],
        *(["-H", daemon(number), "load", "-q", "-i", str(saved)] for number in (MANAGER, WORKER)),
    ):
        subprocess.run(["docker", *line], check=True, stdout=subprocess.DEVNULL)
    saved.unlink()
    made = Federation(tmp_path_factory.mktemp("clusters"), [jobs.GUEST, jobs.HOST], {"kind": "docker"})
    kubeconfig = f"{os.environ['BFIA_TEST_KUBERNETES']}/gateway.conf"
    engines: dict[str, tuple[str, dict[str, Any]]] = {
        jobs.GUEST: (
            os.environ["BFIA_TEST_KUBERNETES_HOST"],
            {
                "kind": "kubernetes",
                "kubernetes": {"kubeconfig": kubeconfig, "node_selector": {"machine": "1"}},
                "docker": {"registries": [registry]},
            },
        ),
        jobs.HOST: (
            os.environ["BFIA_TEST_SWARM_HOST"],
            {
                "kind": "swarm",
                "swarm": {"base_url": daemon(MANAGER), "constraints": [f"node.labels.machine=={WORKER}"]},
            },
        ),
    }
    for (node, (host, engine)), bucket in zip(engines.items(), buckets, strict=True):
        own = made[node].settings
        made[node].reached_at(host)
        own["engine"] = engine
        own["storages"] = settings_of(bucket, role=os.environ["BFIA_TEST_S3_ROLE"])
    with made as federation:
        for node, image in ((jobs.GUEST, f"{registry}/{IMAGE}"), (jobs.HOST, IMAGE)):
            body = jobs.example("register_unionpay.json")
            body["metadata"]["image"] = image
            federation[node].register(body)
            jobs.upload(federation[node], "guest" if node == jobs.GUEST else "host")
        yield federation


def test_the_shipped_manifests_are_accepted_by_the_api_server() -> None:
    """But for the disruption budget's version, which is younger than the tests' cluster."""
    folder = ROOT / "compose" / "kubernetes"
    whole = kubectl("kustomize", str(folder)).replace("policy/v1\n", "policy/v1beta1\n")
    made = kubectl("apply", "-n", "bfia", "--dry-run=server", "-o", "name", "-f", "-", given=whole).split()
    assert {"statefulset.apps/bfia-gateway", "poddisruptionbudget.policy/bfia-gateway"} <= set(made)
    assert len(made) == len([part for part in yaml.safe_load_all(whole) if part]) == 14
    sets = [part for part in yaml.safe_load_all(whole) if part["kind"] == "StatefulSet"]
    given = yaml.safe_load((folder / "node.yml").read_text(encoding="utf-8"))
    variables = {
        one["name"]: one.get("value") for one in sets[0]["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    container = variables["BFIA_GATEWAY__LISTEN__CONTAINER"].replace("$(POD_IP)", "10.0.0.1")
    given["listen"]["container"] = json.loads(container)
    settings = Settings(**given)
    assert settings.engine.main is settings.engine.kubernetes and settings.auth.mode == "on"


def test_a_gateway_in_the_cluster_is_ready_with_the_shipped_role() -> None:
    """One of the manifests' gateways, in a namespace of the test's own: without what no test cluster has."""
    image = f"{os.environ['BFIA_TEST_KUBERNETES_REGISTRY']}/bfia-gateway:test"
    base = os.environ.get("BFIA_TEST_BASE_IMAGE", "bfia-base:py311")
    known = {**os.environ, "PYTHON": sys.executable, "EXTRA": "k8s"}
    build = ["bash", str(ROOT / "compose" / "build.sh"), base, image]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL, env=known)
    for line in (["push", "-q", image], ["rmi", image]):
        subprocess.run(["docker", *line], check=True, stdout=subprocess.DEVNULL)
    parts = {}
    for part in yaml.safe_load_all(kubectl("kustomize", str(ROOT / "compose" / "kubernetes"))):
        parts[part["kind"], part["metadata"]["name"].partition("-gateway-")[0]] = part
    settings = parts["ConfigMap", "bfia"]["data"]
    given = yaml.safe_load(settings["node.yml"])
    del given["storages"]
    settings["node.yml"] = json.dumps(given)
    gateway = parts["StatefulSet", "bfia-gateway"]["spec"]
    gateway["replicas"] = 1
    pod = gateway["template"]["spec"]
    pod["nodeSelector"] = {"machine": "1"}
    pod["containers"][0]["image"] = image
    pod["volumes"] = [one for one in pod["volumes"] if one["name"] != "storage"]
    pod["volumes"] += [{"name": name, "emptyDir": {}} for name in ("storage", "state")]
    del gateway["volumeClaimTemplates"], parts["PersistentVolumeClaim", "bfia-storage"]
    del parts["PodDisruptionBudget", "bfia-gateway"]
    secrets = {"token": "t" * 32, "s3": "x", "database": "sqlite:////var/lib/bfia/state/gateway.db"}
    name = f"bfia-node-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    try:
        literals = [f"--from-literal={key}={value}" for key, value in secrets.items()]
        kubectl("-n", name, "create", "secret", "generic", "bfia-gateway", *literals)
        kubectl("-n", name, "apply", "-f", "-", given=yaml.safe_dump_all(parts.values()))
        wait_for(lambda: "bfia-gateway-0" in kubectl("-n", name, "get", "pods", "-o", "name"), about="its pod")
        kubectl("-n", name, "wait", "--for=condition=Ready", "--timeout=180s", "pod/bfia-gateway-0")
        assert "engine=kubernetes" in kubectl("-n", name, "logs", "bfia-gateway-0")
    finally:
        kubectl("delete", "namespace", name, "--wait=false")


def test_the_users_files_run_unchanged_in_a_cluster_and_on_a_swarm(
    two: Federation, buckets: tuple[real.Place, real.Place]
) -> None:
    guest, host = two[jobs.GUEST], two[jobs.HOST]
    shown = guest.get("/api/v1/engine")
    assert (shown["kind"], shown["answers"]) == ("kubernetes", True) and "NetworkPolicy" in str(shown["isolation"])
    job_id = guest.submit(jobs.user_job(jobs.GUEST, jobs.HOST))
    guest.wait_job(job_id, 400)
    parties = ((guest, "guest", "kubernetes", buckets[0]), (host, "host", "swarm", buckets[1]))
    for node, role, engine, bucket in parties:
        (run,) = [one for one in node.get(f"/api/v1/jobs/{job_id}")["runs"] if one["task_name"] == TRAIN]
        assert (run["status"], run["engine"]) == ("SUCCESS", engine)
        assert {name.split("/")[0] for name in names(bucket)} >= {f"{job_id}-{role}-0"}
        assert os.listdir(node.storage) in ([], [".staging"])
        kept_log = node.home / "state" / "runs" / run["name"] / "stdout.log"
        assert role.encode() in kept_log.read_bytes() + kept_log.with_name("stderr.log").read_bytes()
    assert [model["version"] for model in guest.get("/api/v1/models")["models"]] == [job_id]
