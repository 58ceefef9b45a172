"""The Compose files as they are: images built without a registry, two nodes on MariaDB, real jobs across them."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import docker
import pytest
import yaml

from tests.e2e import jobs
from tests.e2e.nodes import ROOT, Node, example, free_ports, wait_for

BASE = os.environ.get("BFIA_TEST_BASE_IMAGE", "bfia-base:py311")
COMPOSE = ROOT / "compose"
LABEL = "bfia.installation"


def compose_command() -> list[str]:
    """Return how Compose is called here, as version 1's program or version 2's plugin; empty without either."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    plugin = ["docker", "compose"]
    if (
        shutil.which(plugin[0])
        and subprocess.run([*plugin, "version"], capture_output=True).returncode == 0
    ):
        return plugin
    return []


pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(not compose_command(), reason="Compose is not installed here"),
    pytest.mark.slow,
]


class Project:
    """One Compose project under a name that nobody else has, with free ports."""

    def __init__(self, file: str, images: Mapping[str, str]) -> None:
        self.name = f"bfiatest{uuid4().hex[:10]}"
        self.file = COMPOSE / file
        self._client = docker.from_env(timeout=60)
        self._ports = free_ports(3)
        self._tokens = {"bank": uuid4().hex, "partner": uuid4().hex}
        self._environment = {
            **{k: os.environ[k] for k in ("PATH", "HOME", "DOCKER_HOST") if k in os.environ},
            **images,
            "COMPOSE_PROJECT_NAME": self.name,
            "BFIA_PREFIX": self.name,
            "BANK_OPERATOR_PORT": str(self._ports[0]),
            "PARTNER_OPERATOR_PORT": str(self._ports[1]),
            "BANK_PEER_PORT": str(self._ports[2]),
            "BANK_TOKEN": self._tokens["bank"],
            "PARTNER_TOKEN": self._tokens["partner"],
            "MARIADB_ROOT_PASSWORD": uuid4().hex,
            "BANK_DB_PASSWORD": uuid4().hex,
            "PARTNER_DB_PASSWORD": uuid4().hex,
            "DOCKER_SOCKET": os.environ.get("DOCKER_HOST", "").removeprefix("unix://")
            or "/var/run/docker.sock",
        }

    def __enter__(self) -> "Project":
        try:
            self.run("up", "-d")
            self.wait_healthy()
        except BaseException as error:
            self.__exit__(error)
            raise
        return self

    def __exit__(self, raised: object = None, *_: object) -> None:
        try:
            for container in self._mine() if raised is not None else ():
                print(f"--- {container.name}\n{container.logs(tail=80).decode(errors='replace')}")
            there = sorted(self._mine(), key=lambda one: LABEL in one.labels)
            for (
                container
            ) in there:  # those of the project first, so that no gateway starts another one
                container.remove(force=True, v=True)
            self.run("down", "-v", "--remove-orphans")
            assert self._mine() == self._client.networks.list(names=[self.name]) == []
            assert self._client.volumes.list(filters={"name": self.name}) == []
        finally:
            self._client.close()

    def run(self, *arguments: str) -> str:
        command = [*compose_command(), "-f", str(self.file), *arguments]
        done = subprocess.run(
            command,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def operator(self, service: str) -> Node:
        """Return a node as its own platform sees it."""
        address = f"http://127.0.0.1:{self._ports[0 if service == 'bank' else 1]}"
        headers = {"authorization": f"Bearer {self._tokens[service]}"}
        return Node(service, Path("/nowhere"), {}, addresses={"operator": address}, headers=headers)

    def wait_healthy(self) -> None:
        """Wait until all services answer. Raises `AssertionError` after 2 minutes, or when one died."""
        wait_for(self._healthy, 120, 0.5, f"{self.file.name} is healthy")

    def _mine(self) -> list[Any]:
        """Return this project's containers, and those that its gateways started on its networks."""
        networks = {n.name for n in self._client.networks.list(names=[self.name])}
        found = self._client.containers.list(ignore_removed=True, all=True)
        there = [
            c
            for c in found
            if c.labels.get("com.docker.compose.project") == self.name
            or networks & set(c.attrs["NetworkSettings"]["Networks"])
        ]
        joined = {f"container:{c.id}" for c in there}
        return [*there, *(c for c in found if c.attrs["HostConfig"]["NetworkMode"] in joined)]

    def _healthy(self) -> bool:
        states = {c.name: c.attrs["State"] for c in self._mine() if LABEL not in c.labels}
        died = {name: s for name, s in states.items() if s["Status"] in ("exited", "dead")}
        assert not died, died
        return bool(states) and all(
            s.get("Health", {}).get("Status") == "healthy" for s in states.values()
        )


@pytest.fixture
def shell_image(tmp_path: Path) -> Iterator[str]:
    """The image of the shell vendor on a base that has busybox and nothing else."""
    name, folder = f"bfia-shell-vendor:{os.getpid()}", tmp_path / "base"
    folder.mkdir()
    quiet = os.environ | {"DOCKER_BUILDKIT": "0"}

    def docker(*words: str) -> str:
        return subprocess.run(
            ["docker", *words],
            check=True,
            env=quiet,
            capture_output=True,
            text=True,
        ).stdout

    has_busybox = docker("create", BASE).strip()
    docker("cp", f"{has_busybox}:/usr/bin/busybox", str(folder / "busybox"))
    docker("rm", has_busybox)
    install = 'RUN ["/bin/busybox", "--install", "-s", "/bin"]'
    (folder / "Dockerfile").write_text(f"FROM scratch\nCOPY busybox /bin/busybox\n{install}\n")
    docker("build", "-q", "-t", f"{name}-base", str(folder))
    vendor = str(ROOT / "examples" / "shell_vendor")
    docker("build", "-q", "-t", name, "--build-arg", f"BASE={name}-base", vendor)
    yield name
    docker("rmi", "-f", name, f"{name}-base")


def configured(file: str, environment_file: Path) -> "subprocess.CompletedProcess[str]":
    command = [
        *compose_command(),
        "--env-file",
        str(environment_file),
        "-f",
        str(COMPOSE / file),
        "config",
    ]
    environment = {k: os.environ[k] for k in ("PATH", "HOME") if k in os.environ}
    return subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("file", ["one-node.yml", "two-nodes.yml"])
def test_the_file_and_the_example_environment_are_valid(file, tmp_path):
    done = configured(file, COMPOSE / ".env.example")
    assert done.returncode == 0 and "not set" not in done.stderr, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    for name in {"bank", "partner"} & set(services):
        ports = [str(p) for p in services[name]["ports"]]
        assert any("7382" in p and "127.0.0.1" in p for p in ports), (
            "operators' port on the loopback address only"
        )
    (tmp_path / "empty").touch()
    done = configured(file, tmp_path / "empty")
    assert done.returncode != 0
    assert "BANK_TOKEN" in done.stderr


def test_a_job_runs_across_two_nodes_one_of_which_is_made_anew_meanwhile(
    gateway_image, mariadb_image, shell_image
):
    """The job's image has a shell and no Python."""
    images = {"GATEWAY_IMAGE": gateway_image, "MARIADB_IMAGE": mariadb_image}
    with Project("two-nodes.yml", images) as project:
        runs_a_job(project, shell_image)


def runs_a_job(project: Project, image: str) -> None:
    bank, partner = project.operator("bank"), project.operator("partner")
    for node, role in ((bank, "guest"), (partner, "host")):
        node.register(example("shell_vendor/register.json") | {"metadata": {"image": image}})
        jobs.upload(node, role)
    job_id = bank.submit(jobs.counting_job(jobs.GUEST, jobs.HOST))
    project.run("up", "-d", "--force-recreate", "--no-deps", "bank")
    project.wait_healthy()
    bank.wait_job(job_id, 120)
    guest, host = (jobs.rows_of(role) for role in ("guest", "host"))
    assert guest != host
    assert bank.outputs(job_id)["echo_1", "guest.0", "report0"]["value"] == {
        "rows": guest,
        "peer_rows": host,
    }
    assert partner.outputs(job_id)["echo_1", "host.0", "report0"]["value"] == {
        "rows": host,
        "peer_rows": guest,
    }
    log = "cat /var/lib/bfia/state/runs/*/log/echo-guest.0.log"
    assert "done" in project.run("exec", "-T", "bank", "sh", "-c", log)
