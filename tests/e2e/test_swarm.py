"""The user's two files unchanged: one node's containers on a machine of a Swarm, with its data at S3."""

import contextlib
import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
import yaml

from gateway.config.schema import Settings
from tests import storages as real
from tests.e2e import jobs
from tests.e2e.nodes import ROOT, Federation, wait_for
from tests.e2e.test_storages import TRAIN, names, settings_of
from tests.services.clusters import daemon

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.docker, pytest.mark.swarm]

MANAGER, WORKER = 1, 2


@pytest.fixture(scope="module")
def bucket() -> Iterator[real.Place]:
    with real.bucket() as bucket:
        yield bucket


@pytest.fixture(scope="module")
def two(
    reference_image: str, bucket: real.Place, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Federation]:
    """The guest's containers run on a machine that shares no folder with it, the host's beside it."""
    made = Federation(tmp_path_factory.mktemp("swarm"), [jobs.GUEST, jobs.HOST], {"kind": "docker"})
    saved = tmp_path_factory.mktemp("image") / "image.tar"
    subprocess.run(["docker", "save", "-o", str(saved), "unionpay:2.0.0"], check=True)
    for number in (MANAGER, WORKER):
        load = ["docker", "-H", daemon(number), "load", "-q", "-i", str(saved)]
        subprocess.run(load, check=True, stdout=subprocess.DEVNULL)
    saved.unlink()
    own = made[jobs.GUEST].settings
    made[jobs.GUEST].reached_at(os.environ["BFIA_TEST_SWARM_HOST"])
    placed = {"base_url": daemon(MANAGER), "constraints": [f"node.labels.machine=={WORKER}"]}
    own["engine"] = {"kind": "swarm", "swarm": placed}
    own["storages"] = settings_of(bucket, role=os.environ["BFIA_TEST_S3_ROLE"])
    with made as federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        yield federation


def test_the_users_files_run_unchanged_with_one_party_on_a_swarm(two: Federation, bucket: real.Place) -> None:
    guest = two[jobs.GUEST]
    shown = guest.get("/api/v1/engine")
    assert (shown["kind"], shown["answers"]) == ("swarm", True) and "docker_gwbridge" in str(shown["isolation"])
    job_id = guest.submit(jobs.user_job(jobs.GUEST, jobs.HOST))
    guest.wait_job(job_id, 400)
    kept = {name.split("/")[0] for name in names(bucket)}
    assert f"{job_id}-guest-0" in kept and os.listdir(guest.storage) in ([], [".staging"])
    (run,) = [one for one in guest.get(f"/api/v1/jobs/{job_id}")["runs"] if one["task_name"] == TRAIN]
    assert (run["status"], run["engine"]) == ("SUCCESS", "swarm")
    kept_log = guest.home / "state" / "runs" / run["name"] / "stdout.log"
    wait_for(kept_log.with_name("stderr.log").exists, about="the run's log is kept")
    assert b"guest" in kept_log.read_bytes() + kept_log.with_name("stderr.log").read_bytes()
    assert [model["version"] for model in guest.get("/api/v1/models")["models"]] == [job_id]


def test_the_stack_file_is_accepted_by_a_manager(tmp_path: Path) -> None:
    name = f"bfia-{uuid.uuid4().hex[:8]}"
    base = os.environ.get("BFIA_TEST_BASE_IMAGE", "bfia-base:py311")
    given = {
        "BANK_TOKEN": "t" * 32,
        "BFIA_DB_PASSWORD": "p",
        "MANAGER_ADDRESS": os.environ["BFIA_TEST_SWARM_HOST"],
    }
    stack = ["docker", "-H", daemon(MANAGER), "stack"]
    file = str(ROOT / "compose" / "swarm-stack.yml")

    def deploy(**environment: str) -> "subprocess.CompletedProcess[str]":
        known = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **environment}
        line = [*stack, "deploy", "-c", file, name]
        return subprocess.run(line, env=known, capture_output=True, text=True, check=False)

    refused = deploy()
    assert refused.returncode != 0 and any(name in refused.stderr for name in given), refused.stderr  # one of them
    try:
        done = deploy(**given, GATEWAY_IMAGE=base, MARIADB_IMAGE=base)
        assert done.returncode == 0, done.stderr
        with contextlib.closing(docker.APIClient(daemon(MANAGER))) as api:
            made = {one["Spec"]["Name"]: one["Spec"] for one in api.services(filters={"name": name})}
        assert set(made) == {f"{name}_bank", f"{name}_mariadb"}
        variables = made[f"{name}_bank"]["TaskTemplate"]["ContainerSpec"]["Env"]
        given_file = yaml.safe_load((ROOT / "compose" / "bank" / "node.yml").read_text())
        over = dict(one.removeprefix("BFIA_GATEWAY__").split("=", 1) for one in variables)
        given_file["listen"]["container"] = json.loads(over["LISTEN__CONTAINER"])
        settings = Settings(
            **given_file | {"engine": {"kind": over["ENGINE__KIND"]}, "database": {"url": over["DATABASE__URL"]}}
        )
        assert settings.engine.main is settings.engine.swarm
    finally:
        subprocess.run([*stack, "rm", name], check=True, capture_output=True)


def test_a_component_that_wants_the_nodes_folder_is_refused_before_it_starts(two: Federation) -> None:
    assert "does not see the node's folder" in jobs.refusal_with(two[jobs.GUEST], "9.9.8", "file")
