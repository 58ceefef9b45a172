"""The shipped Compose files: local images, two nodes on MariaDB, a real job between them."""

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
    """Return the command of Compose, version 1 or 2; empty if none is installed."""
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
    """One Compose project under a unique name, with free ports."""

    def __init__(
        self,
        file: str,
        images: Mapping[str, str],
    ) -> None:
        self.name = f"bfiatest{uuid4().hex[:10]}"
        self.file = COMPOSE / file
        self._client = docker.from_env(timeout=300)
        self._ports = free_ports(3)
        self._tokens = {
            "bank": uuid4().hex,
            "partner": uuid4().hex,
        }
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

    def __exit__(
        self,
        raised: object = None,
        *_: object,
    ) -> None:
        try:
            if raised is not None:
                self._print_logs()
            # The project's own containers first, so that no gateway starts another run.
            for container in sorted(self._mine(), key=is_of_a_run):
                container.remove(
                    force=True,
                    v=True,
                )
            self.run("down", "-v", "--remove-orphans")
            assert self._mine() == []
            assert self._client.networks.list(names=[self.name]) == []
            assert self._client.volumes.list(filters={"name": self.name}) == []
        finally:
            self._client.close()

    def _print_logs(self) -> None:
        for container in self._mine():
            log = container.logs(tail=80).decode(errors="replace")
            print(f"--- {container.name}\n{log}")

    def run(self, *arguments: str) -> str:
        """Run a command of Compose. Raises `AssertionError` with its output if it fails."""
        command = [*compose_command(), "-f", str(self.file), *arguments]
        process = subprocess.run(
            command,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    def operator(self, service: str) -> Node:
        """Return a node as its own platform sees it."""
        port = {"bank": self._ports[0], "partner": self._ports[1]}[service]
        address = f"http://127.0.0.1:{port}"
        headers = {"authorization": f"Bearer {self._tokens[service]}"}
        return Node(
            service,
            Path("/nowhere"),
            {},
            addresses={"operator": address},
            headers=headers,
        )

    def wait_healthy(self) -> None:
        """Wait until all services respond. Raises `AssertionError` if one died."""
        wait_for(self._healthy, 120, 0.5, f"{self.file.name} is healthy")

    def _mine(self) -> list[Any]:
        """Return this project's containers, and its gateways' runs on its networks."""
        networks = {n.name for n in self._client.networks.list(names=[self.name])}
        containers = self._client.containers.list(
            ignore_removed=True,
            all=True,
        )
        in_project = []
        for container in containers:
            is_service = container.labels.get("com.docker.compose.project") == self.name
            if is_service or networks & set(container.attrs["NetworkSettings"]["Networks"]):
                in_project.append(container)
        # Containers that share the network of one of these.
        modes = {f"container:{container.id}" for container in in_project}
        joined = [c for c in containers if c.attrs["HostConfig"]["NetworkMode"] in modes]
        return in_project + joined

    def _healthy(self) -> bool:
        """Return whether all services are healthy. Raises `AssertionError` if one died."""
        states = {c.name: c.attrs["State"] for c in self._mine() if LABEL not in c.labels}
        died = {name: s for name, s in states.items() if s["Status"] in ("exited", "dead")}
        assert not died, died
        return bool(states) and all(
            s.get("Health", {}).get("Status") == "healthy" for s in states.values()
        )


def is_of_a_run(container: Any) -> bool:
    """Return whether a container was started by a gateway."""
    return LABEL in container.labels


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
    docker(
        "build",
        "-q",
        "-t",
        name,
        "--build-arg",
        f"BASE={name}-base",
        vendor,
    )
    yield name
    docker("rmi", "-f", name, f"{name}-base")


def run_config(file: str, environment_file: Path) -> "subprocess.CompletedProcess[str]":
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
    done = run_config(file, COMPOSE / ".env.example")
    assert done.returncode == 0, done.stderr
    assert "not set" not in done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    for name in {"bank", "partner"} & set(services):
        ports = [str(p) for p in services[name]["ports"]]
        assert any("7382" in p and "127.0.0.1" in p for p in ports), (
            "operators' port on the loopback address only"
        )
    (tmp_path / "empty").touch()
    done = run_config(file, tmp_path / "empty")
    assert done.returncode != 0
    assert "BANK_TOKEN" in done.stderr


def test_a_job_runs_across_two_nodes_one_of_which_is_made_anew_meanwhile(
    gateway_image, mariadb_image, shell_image
):
    """The job's image has a shell and no Python."""
    images = {
        "GATEWAY_IMAGE": gateway_image,
        "MARIADB_IMAGE": mariadb_image,
    }
    with Project("two-nodes.yml", images) as project:
        run_job(project, shell_image)


def run_job(project: Project, image: str) -> None:
    """Run a job between both nodes while the bank's gateway is replaced."""
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
