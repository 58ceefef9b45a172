"""GPUs as a Docker daemon and a Swarm count and hand them out: a daemon of the test's own names two.

NVIDIA's hook, which would put a device into a container, is a program that does nothing; the daemon tells it by
NVIDIA_VISIBLE_DEVICES which device a container gets. Kubernetes' are in `test_kubernetes_engine`.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import docker
import pytest

from engines.base import CreateFailed, Engine, Limits
from engines.docker.gpus import GPUS
from engines.image import Image
from engines.swarm import SwarmEngine, SwarmOptions
from engines.swarm.tasks import devices, template
from tests.contracts.engine_acts import a_spec, output_of, shell, wait_for_output
from tests.contracts.test_far_daemons import OwnHarness
from tests.services.own_docker import BASE, Daemon, OwnDocker

pytestmark = [pytest.mark.docker, pytest.mark.own_docker, pytest.mark.slow]
CARDS = ("GPU-8f2c", "GPU-41d0")
TELLS = shell("env | grep ^NVIDIA_VISIBLE_DEVICES; exec sleep 600")
ONE = Limits(gpu=1)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnDocker]:
    tools = tmp_path_factory.mktemp("tools")
    hook = tools / "nvidia-container-runtime-hook"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    with contextlib.closing(OwnDocker()) as daemon, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        daemon.start(
            *(word for card in CARDS for word in ("--node-generic-resource", f"NVIDIA-GPU={card}"))
        )
        daemon.load(BASE)
        yield daemon


@pytest.fixture
def harness(daemon: OwnDocker) -> Iterator[OwnHarness]:
    with contextlib.closing(OwnHarness(daemon.url)) as harness:
        yield harness
        for engine in harness.engines:
            for found in engine.list():
                engine.remove(found.name)


@pytest.fixture
def api(daemon: OwnDocker) -> Iterator[docker.DockerClient]:
    with contextlib.closing(Daemon(daemon.url)) as client:
        yield client


def card_of(engine: Engine, name: str) -> str:
    """Return what a run that tells it was given."""
    wait_for_output(engine, name, b"\n")
    told = dict(line.split("=", 1) for line in engine.logs(name).stdout.decode().splitlines())
    return told["NVIDIA_VISIBLE_DEVICES"]


def test_each_run_gets_its_own_device_and_one_more_names_the_holders(harness, api):
    engine = harness.engine()
    assert engine.capacity().gpu == 2
    first, second = (a_spec(harness, TELLS, limits=ONE) for _ in range(2))
    third, both = (
        a_spec(harness, TELLS, "beta", limits=ONE),
        a_spec(harness, TELLS, limits=Limits(gpu=2)),
    )
    for spec in (first, second, first):  # launched again, it keeps what it has
        engine.launch(spec)
    assert (card_of(engine, first.name), card_of(engine, second.name)) == CARDS
    assert api.containers.get(second.name).labels[GPUS] == CARDS[1]
    again = harness.engine("beta")  # another node of this daemon
    with pytest.raises(CreateFailed) as refused:
        again.launch(third)
    holders = ", ".join(sorted((first.name, second.name)))
    assert str(refused.value) == f"needs gpu 1, free 0 of the daemon's 2, held by {holders}"
    engine.stop(first.name, 0)  # what has ended holds nothing
    again.launch(third)
    assert card_of(again, third.name) == CARDS[0]
    engine.stop(second.name, 0)
    again.remove(third.name)
    engine.launch(both)
    assert card_of(engine, both.name) == ",".join(CARDS)
    output_of(harness, engine, shell('test -z "$NVIDIA_VISIBLE_DEVICES"'))


def test_two_gateways_that_choose_the_same_device_end_up_with_one_each(harness):
    slow, quick = harness.engine(), harness.engine()
    first, second = (a_spec(harness, TELLS, limits=ONE) for _ in range(2))
    create = slow._create

    def overtaken(*made_of: Any) -> str:
        quick.launch(second)  # between the other's choice and its container
        return create(*made_of)

    slow._create = overtaken  # type: ignore[method-assign]
    slow.launch(first)
    assert card_of(slow, first.name) == CARDS[1]
    assert card_of(quick, second.name) == CARDS[0]


def test_a_swarm_counts_its_devices_and_refuses_more_in_its_own_words(harness, api, daemon):
    api.swarm.init(advertise_addr=daemon.inner)
    (machine,) = (node.attrs["Description"]["Resources"] for node in api.nodes.list())
    assert devices(machine, "NVIDIA-GPU") == 2
    counted = [{"DiscreteResourceSpec": {"Kind": "FPGA", "Value": 3}}]
    assert devices({"GenericResources": counted}, "FPGA") == 3
    assert devices(machine, "FPGA") == 0
    assert devices({}, "FPGA") == 0
    options = SwarmOptions(daemon.url, grace=0.0, place_seconds=2.0)
    with contextlib.closing(SwarmEngine("alpha", harness.installation, options)) as engine:
        assert engine.capacity().gpu == 2
        more = a_spec(harness, TELLS, limits=Limits(gpu=3))
        with pytest.raises(
            CreateFailed, match=r"no machine of the Swarm takes it: .* .insufficient resources on 1"
        ):
            engine.launch(more)
    made = template(more, "image", Image(), (), "network", 2.0, SwarmOptions(gpu="FPGA"))
    reserved = made["Resources"]["Reservations"]["GenericResources"]
    assert reserved == [{"DiscreteResourceSpec": {"Kind": "FPGA", "Value": 3}}]
    api.swarm.leave(force=True)
