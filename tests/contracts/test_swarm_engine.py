"""The engine contract over a Swarm of three machines, and further promises of that engine.

A Swarm lacks two capabilities, so two tests of the contract expect a refusal or less:

- ``test_mounts_are_read_only_or_writable``: no folder is shared: refused with NOT_SUPPORTED
- ``test_a_run_does_not_get_more_memory_than_granted``: the run is killed; managers do not report
  why, so there is no ``oom_killed``
"""

import contextlib
import io
import os
import re
import shlex
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import docker
import pytest

from engines.base import (
    CreateFailed,
    EngineDown,
    EngineError,
    ImageNotFound,
    Limits,
    Missing,
    Mount,
    Running,
)
from engines.docker.daemon import Source
from engines.swarm import SwarmEngine, SwarmOptions
from engines.swarm.tasks import Task
from engines.watch import KILL_SECONDS, wait_for_end
from tests.contracts.engine_acts import (
    WAITS,
    ExitListener,
    a_spec,
    exits,
    launch_run,
    shell,
    used_by_others,
    wait_for,
    wait_for_exit,
    wait_for_output,
)
from tests.contracts.engine_contract import ClusterContract
from tests.contracts.harnesses import SwarmHarness
from tests.contracts.test_isolation import open_doors
from tests.e2e.nodes import ROOT
from tests.services.clusters import drained, machine, the_last_of

pytestmark = pytest.mark.swarm


@pytest.fixture
def harness() -> Iterator[SwarmHarness]:
    with contextlib.closing(SwarmHarness()) as harness:
        yield harness


@pytest.fixture
def manager(harness: SwarmHarness) -> Iterator[docker.DockerClient]:
    with contextlib.closing(docker.DockerClient(harness.manager, timeout=60)) as client:
        yield client


class TestSwarm(ClusterContract):
    """With the harness of this module."""


def test_a_daemon_that_is_no_manager_is_refused():
    worker = f"unix://{os.environ['BFIA_TEST_SWARM']}/2/s"
    with (
        contextlib.closing(SwarmEngine("alpha", "first", SwarmOptions(worker))) as engine,
        pytest.raises(
            EngineDown,
            match="not a manager of a Swarm",
        ),
    ):
        engine.check()


# Parts of a service's description, as the manager returns it.
Description = dict[str, Any]


def template_of(
    manager: docker.DockerClient,
    name: str,
) -> Description:
    """Return the template of a run's task."""
    return dict(manager.services.get(name).attrs["Spec"]["TaskTemplate"])


def test_a_task_is_hardened(harness, manager):
    engine = harness.engine()
    spec = launch_run(harness, engine, WAITS)

    template = template_of(manager, spec.name)

    container = template["ContainerSpec"]
    # By its content, as another image may take over the name.
    assert container["Image"] == engine.image_digest(harness.image)
    assert container["CapabilityDrop"] == ["ALL"]
    assert container["Init"] is True
    assert container["User"] == "65534:65534"
    assert template["RestartPolicy"]["Condition"] == "none"


def test_a_task_is_limited_and_other_nodes_count_its_reservation(harness, manager):
    engine = harness.engine()
    limits = Limits(
        cpu=64,
        memory=96 << 20,
        pids=33,
    )

    spec = launch_run(
        harness,
        engine,
        WAITS,
        limits=limits,
        reserved=Limits(memory=64 << 20),
    )

    resources = template_of(manager, spec.name)["Resources"]
    cores = manager.nodes.list()[0].attrs["Description"]["Resources"]["NanoCPUs"]
    assert resources["Limits"] == {
        "NanoCPUs": cores,  # a Swarm refuses more than a machine has
        "MemoryBytes": 96 << 20,
        "Pids": 33,
    }
    assert resources["Reservations"] == {"MemoryBytes": 64 << 20}
    beta = harness.engine(node="beta")
    wait_for(
        lambda: used_by_others(beta).memory - used_by_others(engine).memory == 64 << 20,
        "only another node counts the reservation",
    )


@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        ('{{"bank"}}', '{{"customers"}}'),
        ('bank{{$x:="-guest-0', 'task-out"}}'),
    ],
    ids=["in each name", "across both names"],
)
def test_a_folder_whose_name_is_a_template_is_mounted_and_no_other(
    harness, tmp_path, namespace, name
):
    """Attack: a partner chooses the names of a job and a task.

    A machine of the Swarm that fills in templates would mount another folder.
    """
    engine = harness.engine(sources=(Source(tmp_path, str(tmp_path)),))
    customers = tmp_path / "bank" / "customers"
    customers.mkdir(parents=True)
    (customers / "data_0").write_text("secret")
    folder = tmp_path / namespace / name
    folder.mkdir(parents=True)
    for opened in (folder, *folder.parents[: len(tmp_path.parents) - 1]):
        opened.chmod(0o777)
    target = f"/bfia/storage/{namespace}/{name}"
    text = f"find /bfia -name data_0 | grep . && exit 3; echo mine > {shlex.quote(target)}/data_0"
    mounts = (Mount(folder, target, read_only=False),)

    spec = launch_run(
        harness,
        engine,
        shell(text),
        mounts=mounts,
    )

    assert wait_for_exit(engine, spec.name).code == 0, engine.logs(spec.name)
    assert (folder / "data_0").read_text() == "mine\n"


def wait_until_networkless(
    manager: docker.DockerClient,
    name: str,
) -> None:
    """Wait until the manager has no network of this name."""
    wait_for(lambda: manager.networks.list(names=[name]) == [], "the manager forgets its network")


def test_a_removed_run_leaves_nothing(harness, manager):
    engine = harness.engine()
    spec = launch_run(harness, engine, exits(0))
    wait_for_exit(engine, spec.name)
    assert [network.name for network in manager.networks.list(names=[spec.name])] == [spec.name]

    engine.remove(spec.name)

    assert engine.list() == []
    wait_until_networkless(manager, spec.name)


def test_a_refused_run_leaves_nothing(harness, manager):
    engine = harness.engine()
    spec = a_spec(
        harness,
        exits(0),
        limits=Limits(memory=1),
    )

    with pytest.raises(CreateFailed, match="memory"):
        engine.launch(spec)
    engine.remove(spec.name)

    wait_until_networkless(manager, spec.name)


def test_a_run_that_outlives_its_kill_is_an_error():
    engine = SimpleNamespace(probe=lambda _: Running())

    with pytest.raises(EngineError, match="still runs"):
        wait_for_end(engine, "run", lambda: True, -KILL_SECONDS)


@pytest.mark.parametrize(
    ("state", "container", "has_started"),
    [
        ("preparing", {}, False),
        ("shutdown", {}, False),  # its machine was drained during the pull of the image
        ("shutdown", {"ContainerID": "c", "ExitCode": 143}, True),
        ("complete", {"ContainerID": "c"}, True),
        ("rejected", {}, False),
    ],
)
def test_a_task_has_started_once_it_had_a_container(state, container, has_started):
    now = "2026-11-26T04:00:00Z"
    status = {
        "State": state,
        "Timestamp": now,
        "ContainerStatus": container,
    }
    task = {
        "ID": "t",
        "Status": status,
        "DesiredState": "shutdown",
        "CreatedAt": now,
        "Spec": {"ContainerSpec": {}},
    }

    assert Task(task).has_started is has_started


def test_the_network_of_a_lost_run_is_removed_at_the_next_start(harness, manager):
    labels = {
        "bfia.node": "alpha",
        "bfia.installation": harness.installation,
    }
    name = f"bfia-{uuid.uuid4().hex[:16]}"
    network = manager.networks.create(
        name,
        driver="overlay",
        scope="swarm",
        labels=labels,
    )

    harness.engine().watch(ExitListener())

    wait_for(lambda: manager.networks.list(ids=[network.id]) == [], "it is removed")


def test_an_image_that_a_machine_lacks_is_named_and_leaves_nothing(manager):
    name = f"bfia-contract-{uuid.uuid4().hex[:12]}"
    with contextlib.closing(SwarmHarness("==2")) as harness:  # the manager is machine 1
        engine = harness.engine()
        text = f"FROM {harness.image}\nLABEL only={name}\n"
        manager.images.build(
            fileobj=io.BytesIO(text.encode()),
            tag=name,
            rm=True,
        )
        try:
            spec = a_spec(
                harness,
                exits(0),
                image=name,
            )
            with pytest.raises(ImageNotFound, match="a machine of the Swarm lacks the image"):
                engine.launch(spec)
            assert engine.probe(spec.name) == Missing()
            assert engine.list() == []
        finally:
            manager.images.remove(
                name,
                force=True,
            )


def reachable(
    engine: SwarmEngine,
    harness: SwarmHarness,
    *doors: str,
) -> list[str]:
    """Return the addresses (``host:port``) that a run reaches."""
    return [door for door, is_open in open_doors(harness, engine, *doors).items() if is_open]


def addresses_in(text: str) -> list[str]:
    """Return the addresses of eth0 and eth1 in the output of ``ip -4 -o address``."""
    addresses = []
    for line in text.splitlines():
        words = line.split()
        if words[1] in ("eth0", "eth1"):
            addresses.append(words[3].split("/")[0])
    return addresses


def test_runs_do_not_reach_each_other_and_reach_the_gateway(harness):
    engine = harness.engine()
    neighbour = launch_run(
        harness, engine, shell("ip -4 -o address; exec python3 -m http.server 8000")
    )
    wait_for_output(engine, neighbour.name, b"eth1")
    addresses = addresses_in(engine.logs(neighbour.name).stdout.decode())
    assert len(addresses) == 2, addresses  # in its own network, and on its machine

    with socket.create_server((os.environ["BFIA_TEST_SWARM_HOST"], 0)) as server:
        gateway = "{}:{}".format(*server.getsockname())
        doors = [f"{host}:8000" for host in (*addresses, neighbour.name)]
        assert reachable(engine, harness, *doors, gateway) == [gateway]


# ------------------------------------------------------------ the third machine, lost or drained


@pytest.fixture
def third() -> Iterator[SwarmHarness]:
    """A harness of the third machine alone, locked for this test."""
    with the_last_of("swarm"), contextlib.closing(SwarmHarness("==3")) as harness:
        yield harness


def test_the_capacity_is_that_of_all_machines(third):
    engine = third.engine()
    with contextlib.closing(docker.APIClient(third.manager, timeout=60)) as manager:
        machines = manager.nodes()
    nano_cpus = sum(node["Description"]["Resources"]["NanoCPUs"] for node in machines)
    assert len(machines) == 3

    wait_for(
        lambda: engine.capacity().cpu == nano_cpus / 1e9, "all three machines are ready and counted"
    )


def test_a_run_on_a_machine_that_is_drained_is_lost_however_it_ends(third):
    """A run that ends with code 0 on SIGTERM is lost as well.

    A run that the gateway has stopped keeps its code on a drained machine.
    """
    engine = third.engine()
    reported = ExitListener()
    act = shell("trap 'exit 0' TERM; echo up; sleep 600 & wait")
    lost = a_spec(third, act)
    stopped = a_spec(third, act)
    for spec in (lost, stopped):
        engine.launch(spec)
        wait_for_output(engine, spec.name, b"up")
    engine.stop(stopped.name, 1)
    engine.watch(reported)

    with drained():
        reported.wait_for(lost.name)
        assert engine.probe(lost.name) == Missing()
        assert wait_for_exit(engine, stopped.name).code == 0
        engine.stop(lost.name, 1)
        engine.remove(lost.name)

    assert [run.name for run in engine.list()] == [stopped.name]


def documented_rules(values: Mapping[str, str]) -> list[str]:
    """Return the commands of docs/swarm.md, with values of the test for the example addresses."""
    page = (ROOT / "docs" / "swarm.md").read_text(encoding="utf-8")
    rules = re.findall(r"^(iptables -I .*?)(?: +#.*)?$", page, re.MULTILINE)
    del rules[-1]  # the last rule is for the gateway's own machine
    examples = "|".join(values)
    return [re.sub(examples, lambda match: values[match[0]], rule) for rule in rules]


@contextlib.contextmanager
def applied_rules(rules: Sequence[str]) -> Iterator[None]:
    """Apply rules of the packet filter at the third machine for a while."""
    for rule in rules:
        machine("swarm", "in", *shlex.split(rule))
    try:
        yield
    finally:
        for rule in rules:
            machine("swarm", "in", *shlex.split(rule.replace(" -I ", " -D ")))


@pytest.mark.s3
def test_the_documented_rules_leave_a_run_only_gateway_and_storage(third):
    """The commands of docs/swarm.md run literally at the machine, except for the addresses."""
    host = os.environ["BFIA_TEST_SWARM_HOST"]
    storage = urlsplit(os.environ["BFIA_TEST_S3"])
    engine = third.engine()
    with socket.create_server((host, 0)) as gateway, socket.create_server((host, 0)) as operators:
        gateway_port = gateway.getsockname()[1]
        operator_port = operators.getsockname()[1]
        rules = documented_rules(
            {
                "10.0.0.7": str(storage.hostname),
                "9000": str(storage.port),
                "10.0.0.5": host,
                "7381": str(gateway_port),
            }
        )
        assert len(rules) == 4
        open_addresses = [f"{host}:{gateway_port}", storage.netloc]
        closed_addresses = [
            f"{host}:{operator_port}",
            f"{host.rpartition('.')[0]}.11:2377",
            "10.214.3.1:2377",
            "192.0.2.1:80",
            "169.254.169.254:80",
        ]
        with applied_rules(rules):
            reached = reachable(engine, third, *open_addresses, *closed_addresses)
    assert reached == open_addresses
