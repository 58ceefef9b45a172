"""The user's unchanged files: containers in Kubernetes at one node and a Swarm at the other.

Data is at S3. Kubernetes pulls its image with a login and runs it with a runtime class.
"""

import contextlib
import copy
import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapter.bfia.examples import A_JOB, A_PROVIDER
from gateway.config.schema import Settings
from tests import storages as real
from tests.e2e import jobs
from tests.e2e.conftest import small_image
from tests.e2e.jobs import limited
from tests.e2e.nodes import ROOT, Federation, wait_for
from tests.e2e.test_storages import TRAIN, names, settings_of
from tests.e2e.test_swarm import MANAGER, WORKER
from tests.services.clusters import daemon, guarded_registry, kubectl, load, pushed
from tests.services.registry import log_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.s3,
    pytest.mark.docker,
    pytest.mark.swarm,
    pytest.mark.kubernetes,
]
IMAGE = "unionpay:2.0.0"
STEPPING = "stepping:1.0.0"


@pytest.fixture(scope="module")
def buckets() -> Iterator[tuple[real.Place, real.Place]]:
    """The buckets of the guest and of the host."""
    with real.bucket() as of_guest, real.bucket() as of_host:
        yield of_guest, of_host


@pytest.fixture(scope="module")
def runtime() -> Iterator[str]:
    name = f"bfia-{uuid.uuid4().hex[:8]}"
    about = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": name},
        "handler": "runc",
    }
    kubectl(
        "apply",
        "-f",
        "-",
        stdin=json.dumps(about),
    )
    yield name
    kubectl("delete", "runtimeclass", name)


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of ``docker login``'s file, for the nodes."""
    folder = tmp_path_factory.mktemp("login")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_CONFIG", str(folder))
        yield folder


@pytest.fixture(scope="module")
def closed(login: Path) -> Iterator[str]:
    """The address of a registry that demands the login."""
    with guarded_registry(login / "registry") as address:
        log_in(login, address)
        yield address


@pytest.fixture(scope="module")
def two(
    reference_image: str,
    buckets: tuple[real.Place, real.Place],
    runtime: str,
    closed: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Federation]:
    """The guest has three engines and runs the user's job in the cluster; the host has a Swarm."""
    pushed(IMAGE)
    for number in (MANAGER, WORKER):
        load(number, IMAGE)
    federation = Federation(
        tmp_path_factory.mktemp("clusters"), [jobs.GUEST, jobs.HOST], {"kind": "docker"}
    )
    kubeconfig = f"{os.environ['BFIA_TEST_KUBERNETES']}/gateway.conf"
    swarm = {
        "base_url": daemon(MANAGER),
        "constraints": [f"node.labels.machine=={WORKER}"],
    }
    cluster = {
        "kubeconfig": kubeconfig,
        "node_selector": {"machine": "1"},
        "runtime_class": runtime,
    }
    settings: dict[str, tuple[str, dict[str, Any]]] = {
        jobs.GUEST: (
            os.environ["BFIA_TEST_KUBERNETES_HOST"],
            {
                "engine": {
                    "kind": "docker",
                    "docker": {"registries": [closed]},
                },
                "engines": {
                    "k8s": {
                        "kind": "kubernetes",
                        "kubernetes": cluster,
                    },
                    "farm": {"kind": "swarm", **swarm},
                },
            },
        ),
        jobs.HOST: (
            os.environ["BFIA_TEST_SWARM_HOST"],
            {"engine": {"kind": "swarm", "swarm": swarm}},
        ),
    }
    for (node, (host, engines)), bucket in zip(settings.items(), buckets, strict=True):
        federation[node].reached_at(host)
        federation[node].settings |= engines
        federation[node].settings["storages"] = settings_of(
            bucket, role=os.environ["BFIA_TEST_S3_ROLE"]
        )
    with federation:
        for version, fields, metadata in (
            ("2.0.0", {"device": "k8s"}, {"image": f"{closed}/{IMAGE}"}),
            ("2.0.1", {}, {"engine": "farm"}),
            ("2.0.2", {}, {}),
        ):
            body = jobs.example("register_unionpay.json") | {"version": version}
            for description in body["components_description"].values():
                description["version"] = version
            federation[jobs.HOST].register(body)
            federation[jobs.GUEST].register(
                body | fields | {"metadata": body["metadata"] | metadata}
            )
        for node, role in ((jobs.GUEST, "guest"), (jobs.HOST, "host")):
            jobs.upload(federation[node], role)
        yield federation


def test_the_shipped_manifests_are_accepted_by_the_api_server():
    """The disruption budget gets an older version: the tests' cluster lacks the shipped one."""
    folder = ROOT / "compose" / "kubernetes"
    manifests = kubectl("kustomize", str(folder)).replace("policy/v1\n", "policy/v1beta1\n")
    resources = kubectl(
        "apply", "-n", "bfia", "--dry-run=server", "-o", "name", "-f", "-", stdin=manifests
    ).split()
    assert {"statefulset.apps/bfia-gateway", "poddisruptionbudget.policy/bfia-gateway"} <= set(
        resources
    )
    parts = [part for part in yaml.safe_load_all(manifests) if part]
    assert len(parts) == 16
    assert len(resources) == 16
    sets = [part for part in parts if part["kind"] == "StatefulSet"]
    node_settings = yaml.safe_load((folder / "node.yml").read_text(encoding="utf-8"))
    container = sets[0]["spec"]["template"]["spec"]["containers"][0]
    line = container["args"][0].partition("exec ")[0] + 'echo "$BFIA_GATEWAY__LISTEN__CONTAINER"'
    environment = {
        "POD": "bfia-gateway-1",
        "BFIA_GATEWAY_0_SERVICE_HOST": "10.0.0.1",
        "BFIA_GATEWAY_1_SERVICE_HOST": "10.0.0.2",
    }
    process = subprocess.run(
        [*container["command"], line],
        env=environment,
        capture_output=True,
        check=True,
    )
    node_settings["listen"]["container"] = json.loads(process.stdout)
    assert node_settings["listen"]["container"]["advertise"] == "http://10.0.0.2:7381"
    settings = Settings(**node_settings)
    assert settings.engine.main is settings.engine.kubernetes
    assert settings.auth.mode == "on"


def test_the_users_files_run_unchanged_in_a_cluster_and_on_a_swarm(two, buckets, runtime):
    guest, host = two[jobs.GUEST], two[jobs.HOST]
    job_id = guest.submit(jobs.user_job(jobs.GUEST, jobs.HOST))
    file = wait_for(
        lambda: log_file_of_a_run_with(runtime), about="the log file of a run in the cluster"
    )
    assert '"party": "guest.0"' in file, file
    guest.wait_job(job_id, 400)
    parties = (
        (guest, "guest", "k8s", buckets[0]),
        (host, "host", "swarm", buckets[1]),
    )
    for node, role, engine, bucket in parties:
        (run,) = [
            run for run in node.get(f"/api/v1/jobs/{job_id}")["runs"] if run["task_name"] == TRAIN
        ]
        assert run["status"] == "SUCCESS"
        assert run["engine"] == engine
        assert {name.split("/")[0] for name in names(bucket)} >= {f"{job_id}-{role}-0"}
        assert os.listdir(node.storage) in ([], [".staging"])
        stored_log = node.home / "state" / "runs" / run["name"] / "stdout.log"
        wait_for(
            stored_log.with_name("stderr.log").exists,
            about="the run's log is kept",
        )
        assert (
            role.encode()
            in stored_log.read_bytes() + stored_log.with_name("stderr.log").read_bytes()
        )
    assert [model["version"] for model in guest.get("/api/v1/models")["models"]] == [job_id]
    scores = guest.outputs(job_id)[TRAIN, "guest.0", "report1"]["value"]
    assert scores["auc"] > 0.99
    assert scores["ks"] > 0.9  # as on one machine


def test_the_tasks_of_a_job_run_at_the_engines_that_their_providers_name(two):
    guest = two[jobs.GUEST]
    kinds = {
        "": "docker",
        "farm": "swarm",
        "k8s": "kubernetes",
    }
    main = guest.get("/api/v1/engine")
    engines = {"": main}
    engines |= {engine["name"]: engine for engine in main["engines"]}
    assert {name: engine["kind"] for name, engine in engines.items()} == kinds
    for engine in engines.values():
        assert engine["answers"] is True
    assert "NetworkPolicy" in str(engines["k8s"]["isolation"])
    assert "docker_gwbridge" in str(engines["farm"]["isolation"])
    steps = {step["name"]: step["found"] for step in guest.get("/api/v1/doctor")["steps"]}
    for words in ("docker, and 2 further", "farm (swarm)", "k8s (kubernetes)"):
        assert words in steps["engine"]
    assert steps["images"] == "3 images registered, all here"
    body = aligned_at(
        {
            "2.0.0": "k8s",
            "2.0.1": "farm",
            "2.0.2": "docker",
        }
    )
    plan = guest.good_plan(body)
    (plan_of_guest,) = [node for node in plan["nodes"] if node["node"] == guest.id]
    planned_kinds = {}
    for check in plan_of_guest["checks"]:
        if check["check"] == "engine":
            planned_kinds[check["about"]] = check["found"]
    assert planned_kinds == kinds
    job_id = guest.submit(body)
    guest.wait_job(job_id, 400)
    runs = guest.get(f"/api/v1/jobs/{job_id}")["runs"]
    assert {run["task_name"]: run["engine"] for run in runs} == {
        name: name for name in ("k8s", "farm", "docker")
    }


def aligned_at(versions: dict[str, str]) -> Any:
    """Return a job with a task for each version of the vendor's, named after the task's engine."""
    body = jobs.align_job(jobs.GUEST, jobs.HOST)
    (task,) = body["dag"]["components"]
    body["dag"]["components"] = [
        task | {"name": name, "version": version} for version, name in versions.items()
    ]
    params = body["config"]["task_params"]
    for task_params in (params["common"], params["guest"]["0"], params["host"]["0"]):
        values = task_params.pop(task["name"])
        task_params |= dict.fromkeys(versions.values(), values)
    return body


def log_file_of_a_run_with(runtime: str) -> str:
    """Return the log file of a run with a runtime class; "" while there is no such run."""
    pods = json.loads(kubectl("get", "pods", "-n", "bfia", "-l", "bfia-run", "-o", "json"))["items"]
    for pod in pods:
        if pod["spec"].get("runtimeClassName") == runtime:
            with contextlib.suppress(AssertionError):  # the container has not started, or has ended
                return kubectl(
                    "exec",
                    "-n",
                    "bfia",
                    pod["metadata"]["name"],
                    "--",
                    "sh",
                    "-c",
                    "cat /bfia/log/*",
                )
    return ""


def test_a_task_that_was_killed_goes_on_from_what_it_kept_at_its_storage(
    two, buckets, closed, tmp_path
):
    guest = two[jobs.GUEST]
    lines = [f"FROM {IMAGE}", "COPY stepping_elsewhere.py /app/"]
    lines.append('ENTRYPOINT ["python3", "-m", "stepping_elsewhere"]')
    with small_image(
        tmp_path / "image", STEPPING, lines, Path(__file__).with_name("stepping_elsewhere.py")
    ):
        pushed(STEPPING)
    body = copy.deepcopy(A_PROVIDER) | {
        "device": "k8s",
        "metadata": {"image": f"{closed}/{STEPPING}"},
    }
    body["components_description"]["Echo"]["storageEngine"] = ["s3"]
    guest.register(body)
    job = limited(
        copy.deepcopy(A_JOB),
        checkpoints=True,
        auto_retries=1,
    )
    job["config"] |= {
        "initiator": {
            "role": "guest",
            "node_id": jobs.GUEST,
        },
        "role": {"guest": [jobs.GUEST]},
    }
    job_id = guest.submit(job)
    guest.wait_job(job_id, 400)
    runs = guest.get(f"/api/v1/jobs/{job_id}")["runs"]
    assert [run["attempt"] for run in runs] == [0, 1]
    assert runs[0]["failure"]["reason"] == "EXIT_137"
    assert not runs[1]["failure"]
    output = guest.ask("GET", f"/api/v1/jobs/{job_id}/outputs/echo_1/guest.0/data0/download").text
    assert output.splitlines()[-1] == "1,5"
    assert any(name.endswith("-checkpoint/step-8") for name in names(buckets[0]))
    wait_for(
        lambda: guest.ask("DELETE", f"/api/v1/jobs/{job_id}").status_code == 200,
        about="it can be deleted",
    )
    assert not any(name.startswith(job_id) for name in names(buckets[0]))


def test_an_image_behind_a_login_that_is_gone_fails_its_run(two, login):
    (login / "config.json").unlink()
    guest = two[jobs.GUEST]
    job_id = guest.submit(jobs.quick_job(jobs.GUEST, jobs.HOST))
    guest.wait_job(job_id, 400, outcome="FAILED")
    run = guest.get(f"/api/v1/jobs/{job_id}")["runs"][0]
    assert run["failure"]["reason"] == "PULL_DENIED"
    assert "log in: docker login" in run["failure"]["message"], run
