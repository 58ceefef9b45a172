"""The engine contract over a Swarm of three machines, and what only that engine promises.

Of the contract, two cases are there in their second form: what a capability that the engine lacks has to be.

==========================================================  ====================================================
``test_mounts_are_read_only_or_writable``                      no folder is shared: refused with NOT_SUPPORTED
``test_a_run_does_not_get_more_memory_than_granted``        killed; managers do not report why: no ``oom_killed``
==========================================================  ====================================================
"""

import contextlib
import io
import os
import re
import shlex
import socket
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
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


def test_a_daemon_that_is_no_manager_is_none():
    worker = f"unix://{os.environ['BFIA_TEST_SWARM']}/2/s"
    with (
        contextlib.closing(SwarmEngine("alpha", "first", SwarmOptions(worker))) as engine,
        pytest.raises(EngineDown, match="not a manager of a Swarm"),
    ):
        engine.check()


def test_a_task_is_hardened_and_limited_and_started_once(harness, manager):
    engine = harness.engine()
    spec = a_spec(
        harness,
        WAITS,
        limits=Limits(
            cpu=64,
            memory=96 << 20,
            pids=33,
        ),
        reserved=Limits(memory=64 << 20),
    )
    engine.launch(spec)
    template = manager.services.get(spec.name).attrs["Spec"]["TaskTemplate"]
    container, resources = template["ContainerSpec"], template["Resources"]
    assert container["Image"] == engine.image_digest(
        harness.image
    )  # by its content, whatever the name means
    assert container["CapabilityDrop"] == ["ALL"]
    assert container["Init"] is True
    assert container["User"] == "65534:65534"
    assert template["RestartPolicy"]["Condition"] == "none"
    machine = manager.nodes.list()[0].attrs["Description"]["Resources"]["NanoCPUs"]
    assert resources["Limits"] == {
        "NanoCPUs": machine,
        "MemoryBytes": 96 << 20,
        "Pids": 33,
    }
    assert resources["Reservations"] == {"MemoryBytes": 64 << 20}
    theirs = harness.engine(node="beta")
    theirs._machines = dict  # type: ignore[method-assign]
    with pytest.raises(EngineDown, match="all are away or drained"):  # jobs wait for them
        theirs.capacity()
    del theirs._machines
    wait_for(
        lambda: used_by_others(theirs).memory - used_by_others(engine).memory == 64 << 20,
        "only another node counts it",
    )


def test_a_folder_whose_name_reads_like_a_template_is_mounted_and_no_other(harness, tmp_path):
    """Attack: a partner names job and task so that a machine of the Swarm makes another folder's path of them."""
    engine = harness.engine(sources=(Source(tmp_path, str(tmp_path)),))
    (tmp_path / "bank" / "customers").mkdir(parents=True)
    (tmp_path / "bank" / "customers" / "data_0").write_text("secret")
    for namespace, name in (
        ('{{"bank"}}', '{{"customers"}}'),
        ('bank{{$x:="-guest-0', 'task-out"}}'),
    ):
        own, inside = tmp_path / namespace / name, f"/bfia/storage/{namespace}/{name}"
        own.mkdir(parents=True)
        for folder in (own, *own.parents[: len(tmp_path.parents) - 1]):
            folder.chmod(0o777)
        text = (
            f"find /bfia -name data_0 | grep . && exit 3; echo mine > {shlex.quote(inside)}/data_0"
        )
        spec = a_spec(harness, shell(text), mounts=(Mount(own, inside, read_only=False),))
        engine.launch(spec)
        assert wait_for_exit(engine, spec.name).code == 0, engine.logs(spec.name)
        assert (own / "data_0").read_text() == "mine\n"


def test_what_is_over_leaves_nothing(harness, manager):
    engine = harness.engine()
    spec = launch_run(harness, engine, exits(0))
    wait_for_exit(engine, spec.name)
    assert [network.name for network in manager.networks.list(names=[spec.name])] == [spec.name]
    engine.remove(spec.name)
    assert engine.list() == []
    wait_for(
        lambda: manager.networks.list(names=[spec.name]) == [], "the manager forgets its network"
    )
    refused = a_spec(harness, exits(0), limits=Limits(memory=1))
    with pytest.raises(CreateFailed, match="memory"):
        engine.launch(refused)
    engine.remove(refused.name)
    wait_for(
        lambda: manager.networks.list(names=[refused.name]) == [],
        "no network of a run that never was",
    )


def test_a_run_that_outlives_its_kill_is_an_error():
    with pytest.raises(EngineError, match="still runs"):
        wait_for_end(SimpleNamespace(probe=lambda _: Running()), "run", lambda: True, -KILL_SECONDS)


@pytest.mark.parametrize(
    ("state", "container", "begun"),
    [
        ("preparing", {}, False),
        ("shutdown", {}, False),  # its machine was drained while it pulled the image
        ("shutdown", {"ContainerID": "c", "ExitCode": 143}, True),
        ("complete", {"ContainerID": "c"}, True),
        ("rejected", {}, False),
    ],
)
def test_a_task_has_begun_once_there_was_a_container(state, container, begun):
    then = "2026-11-26T04:00:00Z"
    status = {
        "State": state,
        "Timestamp": then,
        "ContainerStatus": container,
    }
    seen = {
        "ID": "t",
        "Status": status,
        "DesiredState": "shutdown",
        "CreatedAt": then,
    }
    assert Task({**seen, "Spec": {"ContainerSpec": {}}}).has_started is begun


def test_the_network_of_a_run_that_is_gone_is_removed_at_the_next_start(harness, manager):
    labels = {"bfia.node": "alpha", "bfia.installation": harness.installation}
    left = manager.networks.create(
        f"bfia-{uuid.uuid4().hex[:16]}",
        driver="overlay",
        scope="swarm",
        labels=labels,
    )
    harness.engine().watch(ExitListener())
    wait_for(lambda: manager.networks.list(ids=[left.id]) == [], "it is removed")


def test_an_image_that_a_machine_lacks_is_named_and_leaves_nothing(manager):
    with contextlib.closing(SwarmHarness("==2")) as harness:
        name, engine = f"bfia-contract-{uuid.uuid4().hex[:12]}", harness.engine()
        text = f"FROM {harness.image}\nLABEL only={name}\n"
        manager.images.build(
            fileobj=io.BytesIO(text.encode()),
            tag=name,
            rm=True,
        )
        try:
            spec = a_spec(harness, exits(0), image=name)
            with pytest.raises(ImageNotFound, match="a machine of the Swarm lacks the image"):
                engine.launch(spec)
            assert engine.probe(spec.name) == Missing()
            assert engine.list() == []
        finally:
            manager.images.remove(name, force=True)


def reached(
    engine: SwarmEngine,
    harness: SwarmHarness,
    *doors: str,
) -> list[str]:
    """Return which of these doors are open to a run."""
    return [door for door, is_open in open_doors(harness, engine, *doors).items() if is_open]


def test_runs_do_not_reach_each_other_and_reach_the_gateway(harness):
    engine = harness.engine()
    first = launch_run(harness, engine, shell("ip -4 -o address; exec python3 -m http.server 8000"))
    wait_for_output(engine, first.name, b"eth1")
    seen = [line.split() for line in engine.logs(first.name).stdout.decode().splitlines()]
    others = [words[3].split("/")[0] for words in seen if words[1] in ("eth0", "eth1")]
    assert len(others) == 2, seen  # in its own network, and on its machine
    with socket.create_server((os.environ["BFIA_TEST_SWARM_HOST"], 0)) as server:
        gateway = "{}:{}".format(*server.getsockname())
        assert reached(
            engine, harness, *(f"{one}:8000" for one in (*others, first.name)), gateway
        ) == [gateway]


# ------------------------------------------------------------ the third machine, which is lost or closed


@pytest.fixture
def third() -> Iterator[SwarmHarness]:
    with the_last_of("swarm"), contextlib.closing(SwarmHarness("==3")) as harness:
        yield harness


def test_the_capacity_is_that_of_all_machines(third):
    engine = third.engine()
    with contextlib.closing(docker.APIClient(third.manager, timeout=60)) as manager:
        machines = manager.nodes()
    nano_cpus = sum(machine["Description"]["Resources"]["NanoCPUs"] for machine in machines)
    assert len(machines) == 3
    wait_for(
        lambda: engine.capacity().cpu == nano_cpus / 1e9, "all three machines are ready and counted"
    )


def test_a_run_on_a_machine_that_is_drained_is_lost_however_it_ends(third):
    """Also one that SIGTERM ends with code 0; a stop of ours keeps its code, there as well."""
    engine, heard = third.engine(), ExitListener()
    lost, stopped = (
        a_spec(third, shell("trap 'exit 0' TERM; echo up; sleep 600 & wait")) for _ in "ab"
    )
    for spec in (lost, stopped):
        engine.launch(spec)
        wait_for_output(engine, spec.name, b"up")
    engine.stop(stopped.name, 1)
    engine.watch(heard)
    with drained():
        heard.wait_for(lost.name)
        assert engine.probe(lost.name) == Missing()
        assert wait_for_exit(engine, stopped.name).code == 0
        engine.stop(lost.name, 1)
        engine.remove(lost.name)
    assert [found.name for found in engine.list()] == [stopped.name]


@pytest.mark.s3
def test_the_documented_rules_leave_a_run_only_gateway_and_storage(third):
    """The block of docs/swarm.md, word for word but for its addresses, at the machine's own packet filter."""
    host, storage = os.environ["BFIA_TEST_SWARM_HOST"], urlsplit(os.environ["BFIA_TEST_S3"])
    engine = third.engine()
    with socket.create_server((host, 0)) as gateway, socket.create_server((host, 0)) as operators:
        door, other = gateway.getsockname()[1], operators.getsockname()[1]
        text = (ROOT / "docs" / "swarm.md").read_text(encoding="utf-8")
        rules = re.findall(r"^(iptables -I .*?)(?: +#.*)?$", text, re.MULTILINE)[
            :-1
        ]  # the last: on its own machine
        there = {
            "10.0.0.7": str(storage.hostname),
            "9000": str(storage.port),
            "10.0.0.5": host,
            "7381": str(door),
        }
        rules = [re.sub("|".join(there), lambda found: there[found[0]], rule) for rule in rules]
        assert len(rules) == 4
        open_ = [f"{host}:{door}", storage.netloc]
        closed = [
            f"{host}:{other}",
            f"{host.rpartition('.')[0]}.11:2377",
            "10.214.3.1:2377",
            "192.0.2.1:80",
        ]
        for rule in rules:
            machine("swarm", "in", *shlex.split(rule))
        try:
            assert reached(engine, third, *open_, *closed, "169.254.169.254:80") == open_
        finally:
            for rule in rules:
                machine("swarm", "in", *shlex.split(rule.replace(" -I ", " -D ")))
