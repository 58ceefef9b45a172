"""The shipped Compose files: local images, two nodes on MariaDB, real jobs between them."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any
from uuid import uuid4

import docker
import pytest
import yaml

from tests.doors import LOOK, SERVES, listening
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
        and subprocess.run(
            [*plugin, "version"],
            capture_output=True,
        ).returncode
        == 0
    ):
        return plugin
    return []


pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(
        not compose_command(),
        reason="Compose is not installed here",
    ),
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
            "DOCKER_SOCKET": os.environ.get(
                "DOCKER_HOST",
                "",
            ).removeprefix("unix://")
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
            for container in sorted(
                self._mine(),
                key=is_of_a_run,
            ):
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

    def run(
        self,
        *arguments: str,
        text: str | None = None,
    ) -> str:
        """Run a command of Compose; ``text`` is its input.

        Raises `AssertionError` with its output if it fails.
        """
        command = [
            *compose_command(),
            "-f",
            str(self.file),
            *arguments,
        ]
        process = subprocess.run(
            command,
            env=self._environment,
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    def operator(self, service: str) -> Node:
        """Return a node as its own platform sees it."""
        port = {
            "bank": self._ports[0],
            "partner": self._ports[1],
        }[service]
        address = f"http://127.0.0.1:{port}"
        headers = {"authorization": f"Bearer {self._tokens[service]}"}
        return Node(
            service,
            Path("/nowhere"),
            {},
            addresses={"operator": address},
            headers=headers,
        )

    def container(self, service: str) -> Any:
        """Return a service's container."""
        return self._client.containers.get(self.run("ps", "-q", service).strip())

    def address(
        self,
        service: str,
        network: str,
    ) -> str:
        """Return a service's address in a network of the project."""
        networks = self.container(service).attrs["NetworkSettings"]["Networks"]
        return str(networks[f"{self.name}-{network}"]["IPAddress"])

    def host_address(self, network: str) -> str:
        """Return this machine's address in a network of the project."""
        pool = self._client.api.inspect_network(f"{self.name}-{network}")["IPAM"]["Config"][0]
        return str(pool["Gateway"])

    def wait_run(
        self,
        node_id: str,
        job_id: str,
    ) -> Any:
        """Return the container of a node's run, once it runs."""
        labels = [f"bfia.node={node_id}", f"bfia.job={job_id}"]

        def running() -> Any:
            return self._client.containers.list(filters={"label": labels})

        return wait_for(
            running,
            60,
            0.1,
            f"{job_id} runs at {node_id}",
        )[0]

    def networks_of(
        self,
        container: Any,
    ) -> Mapping[str, Any]:
        """Return the networks of a container, or of the sandbox that it is in."""
        _, _, sandbox = container.attrs["HostConfig"]["NetworkMode"].partition(":")
        if sandbox:
            container = self._client.containers.get(sandbox)
        networks: Mapping[str, Any] = container.attrs["NetworkSettings"]["Networks"]
        return networks

    def open_doors(
        self,
        container: Any,
        doors: Mapping[str, str],
    ) -> set[str]:
        """Return the descriptions of the doors that are open from a container's network."""
        output: bytes = self._client.containers.run(
            BASE,
            [
                "python3",
                "-c",
                LOOK,
                *doors.values(),
            ],
            network_mode=f"container:{container.id}",
            remove=True,
        )
        is_open = json.loads(output)
        return {description for description, door in doors.items() if is_open[door]}

    @contextmanager
    def serving(
        self,
        container: Any,
    ) -> Iterator[None]:
        """Listen at port 9000 of a container's network."""
        server = self._client.containers.run(
            BASE,
            ["python3", "-c", SERVES],
            network_mode=f"container:{container.id}",
            detach=True,
        )
        try:
            wait_for(
                lambda: b"ready" in server.logs(),
                30,
                0.1,
                "the server listens",
            )
            yield
        finally:
            server.remove(force=True)

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


# The vendor's program waits for a file before it begins. A shell around it would lose the variables
# with dots in their names.
GO = "/tmp/go"
WAIT_FOR_GO = f"until [ -e {GO} ]; do sleep 0.1; done"


@pytest.fixture(scope="module")
def waiting_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The image of the shell vendor on a base that has busybox and nothing else.

    Its containers wait for the file `GO`.
    """
    name, folder = f"bfia-shell-vendor:{os.getpid()}", tmp_path_factory.mktemp("base")
    quiet = os.environ | {"DOCKER_BUILDKIT": "0"}

    def docker(*words: str) -> str:
        return subprocess.run(
            ["docker", *words],
            check=True,
            env=quiet,
            capture_output=True,
            text=True,
        ).stdout

    def build(tag: str, *lines: str) -> None:
        (folder / "Dockerfile").write_text("\n".join(lines))
        docker(
            "build",
            "-q",
            "-t",
            tag,
            str(folder),
        )

    has_busybox = docker("create", BASE).strip()
    docker("cp", f"{has_busybox}:/usr/bin/busybox", str(folder / "busybox"))
    docker("rm", has_busybox)
    install = 'RUN ["/bin/busybox", "--install", "-s", "/bin"]'
    build(f"{name}-base", "FROM scratch", "COPY busybox /bin/busybox", install)
    vendor = str(ROOT / "examples" / "shell_vendor")
    base = f"BASE={name}-base"
    docker(
        "build",
        "-q",
        "-t",
        f"{name}-vendor",
        "--build-arg",
        base,
        vendor,
    )
    wait = f"RUN sed -i 's|^set -u$|set -u; {WAIT_FOR_GO}|' /app/run.sh"
    build(name, f"FROM {name}-vendor", "USER 0", wait, "USER 65534:65534")
    yield name
    docker("rmi", "-f", name, f"{name}-vendor", f"{name}-base")


def run_config(
    file: str,
    environment_file: Path,
) -> "subprocess.CompletedProcess[str]":
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


@pytest.mark.parametrize(
    "file",
    ["one-node.yml", "two-nodes.yml"],
)
def test_the_file_and_the_example_environment_are_valid(file, tmp_path):
    done = run_config(file, COMPOSE / ".env.example")
    assert done.returncode == 0, done.stderr
    assert "not set" not in done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    for name in {
        "bank",
        "partner",
    } & set(services):
        ports = [str(p) for p in services[name]["ports"]]
        assert any("7382" in p and "127.0.0.1" in p for p in ports), (
            "operators' port on the loopback address only"
        )
    (tmp_path / "empty").touch()
    done = run_config(file, tmp_path / "empty")
    assert done.returncode != 0
    assert "BANK_TOKEN" in done.stderr


@pytest.fixture(scope="module")
def project(
    gateway_image: str,
    mariadb_image: str,
    waiting_image: str,
) -> Iterator[Project]:
    """Two nodes with the shell vendor's component and a table each."""
    images = {
        "GATEWAY_IMAGE": gateway_image,
        "MARIADB_IMAGE": mariadb_image,
    }
    registration = example("shell_vendor/register.json") | {"metadata": {"image": waiting_image}}
    with Project("two-nodes.yml", images) as project:
        exchange_invitations(project)
        for service, role in (
            ("bank", "guest"),
            ("partner", "host"),
        ):
            node = project.operator(service)
            node.register(registration)
            jobs.upload(node, role)
        yield project


def exchange_invitations(project: Project) -> None:
    """Make both nodes partners, as compose/README.md says."""
    names = ("bank", "partner")
    invitations = {}
    for name in names:
        project.run(
            "exec",
            "-T",
            name,
            "bfia-gateway",
            "identity",
            "rotate",
        )
        invitations[name] = project.run(
            "exec",
            "-T",
            name,
            "bfia-gateway",
            "partner",
            "invite",
        )
    for name, partner in permutations(names):
        accept = ("bfia-gateway", "partner", "accept", "-", "--yes")
        project.run(
            "exec",
            "-T",
            name,
            *accept,
            text=invitations[partner],
        )
    for name, node in (
        ("bank", jobs.HOST),
        ("partner", jobs.GUEST),
    ):
        tested = project.run(
            "exec",
            "-T",
            name,
            "bfia-gateway",
            "route",
            "test",
            node,
            "--json",
        )
        steps = {step["name"]: step for step in json.loads(tested)["steps"]}
        assert steps["signature"]["result"] == "ok"


def let_go(
    project: Project,
    job_id: str,
) -> None:
    """Let the waiting runs of a job begin."""
    for node_id in (jobs.GUEST, jobs.HOST):
        run = project.wait_run(node_id, job_id)
        assert run.exec_run(["touch", GO]).exit_code == 0


def test_a_job_runs_across_two_nodes_one_of_which_is_made_anew_meanwhile(project):
    """The job's image has a shell and no Python."""
    bank, partner = (
        project.operator("bank"),
        project.operator("partner"),
    )
    job_id = bank.submit(jobs.counting_job(jobs.GUEST, jobs.HOST))
    project.wait_run(jobs.GUEST, job_id)

    project.run(
        "up",
        "-d",
        "--force-recreate",
        "--no-deps",
        "bank",
    )
    project.wait_healthy()
    let_go(project, job_id)

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
    assert "done" in project.run(
        "exec",
        "-T",
        "bank",
        "sh",
        "-c",
        log,
    )


def test_a_run_in_compose_reaches_its_gateways_listener_alone(project):
    bank = project.operator("bank")
    job_ids = [bank.submit(jobs.counting_job(jobs.GUEST, jobs.HOST)) for _ in range(2)]
    run, other_run = (project.wait_run(jobs.GUEST, job_id) for job_id in job_ids)
    (other,) = project.networks_of(other_run).values()
    gateway = project.address("bank", "bank")
    listener = {"the listener for containers": "bank-runs:7381"}
    with listening() as port, project.serving(other_run):
        doors = {
            "another task": f"{other['IPAddress']}:9000",
            "the database": f"{project.address('mariadb', 'database')}:3306",
            "the database by name": "mariadb:3306",
            "the operators' port": f"{project.address('bank', 'bank-operators')}:7382",
            "the peers' port": f"{project.address('bank', 'between')}:7380",
            "the partner's peers' port": "partner-peers:7380",
        }
        doors_at_host = {
            "the host": f"{project.host_address('bank-operators')}:{port}",
        }
        never_open = {
            "the operators' port at the listener's address": f"{gateway}:7382",
            "the peers' port at the listener's address": f"{gateway}:7380",
            "the host by its address in the network": f"{project.host_address('bank')}:{port}",
            "the internet": "example.org:80",
        }

        everything = {
            **listener,
            **doors,
            **doors_at_host,
            **never_open,
        }
        assert project.open_doors(
            run,
            everything,
        ) == set(listener)
        # The gateway itself reaches them, so that they are closed to the run alone.
        reached = project.open_doors(
            project.container("bank"),
            {**doors, **doors_at_host},
        )
        assert reached == {*doors, *doors_at_host}

    assert bank.get("/api/v1/engine")["isolation"] == {
        "tasks": True,
        "host": True,
        "outside": True,
        "gaps": [],
    }
    for job_id in job_ids:
        let_go(project, job_id)
        bank.wait_job(job_id, 120)
