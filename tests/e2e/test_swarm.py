"""The shipped stack file with the tests' addresses: a node in a Swarm with data at S3."""

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml

from tests import storages as real
from tests.e2e import jobs
from tests.e2e.nodes import ROOT, Federation, Node, process_engine, wait_for
from tests.e2e.test_storages import names, settings_of
from tests.services.clusters import daemon, load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.s3,
    pytest.mark.docker,
    pytest.mark.swarm,
]

# Numbers of the Swarm's machines.
MANAGER = 1
WORKER = 2
TOKEN = "t" * 32
# A second file for the stack, as the document has it: it opens the operators' port.
OPERATOR = {
    "version": "3.8",
    "services": {
        "bank": {
            "ports": [
                {
                    "target": 7382,
                    "published": 7382,
                    "mode": "host",
                }
            ]
        }
    },
}


@dataclass
class Site:
    """The node of the stack, its partner outside, and the manager."""

    stack: str
    node: Node
    partner: Node
    bucket: real.Place
    manager: docker.DockerClient
    # the gateway's image
    image: str

    def containers(self) -> list[Any]:
        """Return the stack's containers on the manager's machine, also ended ones."""
        label = f"com.docker.stack.namespace={self.stack}"
        return list(
            self.manager.containers.list(
                all=True,
                ignore_removed=True,
                filters={"label": label},
            )
        )


@pytest.fixture(scope="module")
def site(
    reference_image: str,
    gateway_image: str,
    mariadb_image: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    home, name = tmp_path_factory.mktemp("swarm"), f"bfia-{uuid.uuid4().hex[:8]}"
    images = {
        "GATEWAY_IMAGE": gateway_image,
        "MARIADB_IMAGE": mariadb_image,
    }
    load(MANAGER, *images.values(), "unionpay:2.0.0")
    load(WORKER, "unionpay:2.0.0")
    host = os.environ["BFIA_TEST_SWARM_HOST"]
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(
            contextlib.closing(docker.DockerClient(daemon(MANAGER), timeout=300))
        )
        swarm = manager.info()["Swarm"]
        address = swarm["NodeAddr"]
        bucket = stack.enter_context(real.bucket())
        partner = Federation(
            home / "partner",
            [jobs.HOST],
            process_engine("unionpay:2.0.0"),
        )
        outside = partner[jobs.HOST]
        outside.settings["listen"]["peer"]["bind"] = f"{host}:{outside.peer_port}"
        outside.route(**{jobs.GUEST: {"url": f"http://{address}:7380", "signing": "off"}})
        stack.enter_context(partner)
        addresses = {"operator": f"http://{address}:7382"}
        headers = {"authorization": f"Bearer {TOKEN}"}
        node = Node(
            jobs.GUEST,
            home,
            {},
            addresses=addresses,
            headers=headers,
        )
        site = Site(
            name,
            node,
            outside,
            bucket,
            manager,
            gateway_image,
        )
        _docker("node", "update", "--label-add", "bfia.gateway=true", swarm["NodeID"])
        stack.callback(
            _docker,
            "node",
            "update",
            "--label-rm",
            "bfia.gateway",
            swarm["NodeID"],
        )
        stack.callback(_remove_stack, site)
        variables = {
            "BANK_TOKEN": TOKEN,
            "BFIA_DB_PASSWORD": "p",
            "MANAGER_ADDRESS": address,
            "DOCKER_SOCKET": daemon(MANAGER).removeprefix("unix://"),
            "SETTINGS": f"{name}-1",
        }
        files = [home / "compose" / file for file in ("swarm-stack.yml", "operator.yml")]
        deploy = [
            "stack",
            "deploy",
            "--resolve-image=never",
            *(f"-c={file}" for file in files),
            name,
        ]
        shutil.copytree(ROOT / "compose", files[0].parent)
        files[1].write_text(
            yaml.safe_dump(OPERATOR),
            encoding="utf-8",
        )
        for missing in ("BANK_TOKEN", "BFIA_DB_PASSWORD", "MANAGER_ADDRESS"):
            with pytest.raises(AssertionError, match=missing):
                _docker(
                    *deploy, **{key: value for key, value in variables.items() if key != missing}
                )
        _docker(*deploy, **variables, **images)
        _edit(files[0].parent / "bank", bucket)
        with pytest.raises(AssertionError, match="only updates to Labels are allowed"):
            _docker(*deploy, **variables, **images)
        _docker(*deploy, **variables | {"SETTINGS": f"{name}-2"}, **images)
        wait_for(lambda: _is_healthy(site), about="the gateway is well")
        route = {"url": f"http://{host}:{outside.peer_port}", "signing": "off"}
        added = node.ask("PUT", f"/api/v1/routes/{jobs.HOST}", json={"route": route})
        assert added.is_success, added.text
        yield site


def _docker(*words: str, **environment: str) -> None:
    """Run a command at the manager. Raises `AssertionError` with its output if it fails."""
    line = ["docker", "-H", daemon(MANAGER), *words]
    all_variables = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        **environment,
    }
    process = subprocess.run(
        line,
        env=all_variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr


def _edit(folder: Path, bucket: real.Place) -> None:
    """Put the addresses of the tests into the shipped settings."""
    node_settings = yaml.safe_load((folder / "node.yml").read_text(encoding="utf-8"))
    node_settings["secrets"] = {"mode": "warn"}  # the storage's password is in the settings
    node_settings["storages"] = settings_of(
        bucket,
        role=os.environ["BFIA_TEST_S3_ROLE"],
    )
    node_settings["engine"]["swarm"] = {"constraints": [f"node.labels.machine=={WORKER}"]}
    (folder / "node.yml").write_text(yaml.safe_dump(node_settings), encoding="utf-8")


def _is_healthy(site: Site) -> bool:
    """Return whether Docker's health check of the gateway succeeds."""
    states = {}
    for container in site.containers():
        service = str(container.name).partition(".")[0]
        states[service] = container.attrs["State"]
    state = states.get(f"{site.stack}_bank", {})
    return bool(state.get("Health", {}).get("Status") == "healthy")


def _remove_stack(site: Site) -> None:
    _docker("stack", "rm", site.stack)
    for container in site.containers():  # without this, they have a minute to end
        with contextlib.suppress(docker.errors.APIError):
            container.kill()
    wait_for(lambda: not site.containers(), about="the stack is gone")
    for volume in site.manager.volumes.list(filters={"name": f"{site.stack}_"}):
        volume.remove()
    site.manager.images.remove(site.image)


def test_a_node_of_the_stack_runs_its_part_of_a_job_on_another_machine(site):
    node, partner = site.node, site.partner
    engine = node.get("/api/v1/engine")
    assert engine["kind"] == "swarm"
    assert engine["answers"] is True
    assert "docker_gwbridge" in str(engine["isolation"])
    for party_node, role in ((node, "guest"), (partner, "host")):
        party_node.register(jobs.example("register_unionpay.json"))
        jobs.upload(party_node, role)
    job_id = node.submit(jobs.align_job(jobs.GUEST, jobs.HOST))
    node.wait_job(job_id, 400)
    (run,) = node.get(f"/api/v1/jobs/{job_id}")["runs"]
    assert run["status"] == "SUCCESS"
    assert run["engine"] == "swarm"
    assert {name.split("/")[0] for name in names(site.bucket)} >= {f"{job_id}-guest-0"}
    wait_for(
        lambda: not site.manager.services.list(filters={"name": run["name"]}),
        about="the run is removed",
    )


def test_a_component_that_needs_the_nodes_folder_is_refused_early(site):
    assert "does not see the node's folder" in jobs.refusal_with(site.node, "9.9.8", "file")
