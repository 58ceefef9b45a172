"""GPUs of a Docker daemon and a Swarm: a daemon of the tests names two of them.

In place of NVIDIA's hook, which puts a device into a container, is a program that does nothing.
The daemon sets NVIDIA_VISIBLE_DEVICES to the device of a container. For the GPUs of Kubernetes see
`test_kubernetes_capacity`.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import docker
import pytest

from engines.base import CreateFailed, Engine, Limits
from engines.docker.client import Connection
from engines.docker.gpus import GPUS
from engines.image import Image
from engines.swarm import SwarmEngine, SwarmOptions
from engines.swarm.tasks import devices, run_template
from tests.contracts.engine_acts import a_spec, launch_run, output_of, shell, wait_for_output
from tests.contracts.test_far_daemons import OwnHarness
from tests.services.own_docker import BASE, Daemon, OwnDocker

pytestmark = [pytest.mark.docker, pytest.mark.own_docker, pytest.mark.slow]
CARDS = ("GPU-8f2c", "GPU-41d0")
PRINTS_DEVICES = shell("env | grep ^NVIDIA_VISIBLE_DEVICES; exec sleep 600")
ONE_GPU = Limits(gpu=1)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnDocker]:
    tools = tmp_path_factory.mktemp("tools")
    hook = tools / "nvidia-container-runtime-hook"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    resources = [
        word for card in CARDS for word in ("--node-generic-resource", f"NVIDIA-GPU={card}")
    ]
    with contextlib.closing(OwnDocker()) as daemon, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        daemon.start(*resources)
        daemon.load(BASE)
        yield daemon


@pytest.fixture
def harness(daemon: OwnDocker) -> Iterator[OwnHarness]:
    with contextlib.closing(OwnHarness(daemon.url)) as harness:
        yield harness
        harness.remove_runs()  # `OwnHarness` leaves the runs to their daemon, which goes on here


@pytest.fixture
def api(daemon: OwnDocker) -> Iterator[docker.DockerClient]:
    with contextlib.closing(Daemon(daemon.url)) as client:
        yield client


def devices_of(engine: Engine, name: str) -> str:
    """Return the devices of a run that prints them, separated by commas."""
    wait_for_output(engine, name, b"\n")
    variable, _, devices = engine.logs(name).stdout.decode().strip().partition("=")
    assert variable == "NVIDIA_VISIBLE_DEVICES"
    return devices


def test_each_run_gets_its_own_device_and_one_more_names_the_holders(harness, api):
    alpha = harness.engine()
    beta = harness.engine("beta")  # another node of this daemon
    assert alpha.capacity().gpu == 2
    first = a_spec(
        harness,
        PRINTS_DEVICES,
        limits=ONE_GPU,
    )
    second = a_spec(
        harness,
        PRINTS_DEVICES,
        limits=ONE_GPU,
    )
    third = a_spec(
        harness,
        PRINTS_DEVICES,
        "beta",
        limits=ONE_GPU,
    )

    for spec in (first, second, first):  # the second launch changes nothing
        alpha.launch(spec)

    assert devices_of(alpha, first.name) == CARDS[0]
    assert devices_of(alpha, second.name) == CARDS[1]
    assert api.containers.get(second.name).labels[GPUS] == CARDS[1]
    with pytest.raises(CreateFailed) as refusal:
        beta.launch(third)
    holders = ", ".join(sorted((first.name, second.name)))
    assert str(refusal.value) == f"needs gpu 1, free 0 of the daemon's 2, held by {holders}"

    alpha.stop(first.name, 0)  # an ended run holds nothing
    beta.launch(third)
    assert devices_of(beta, third.name) == CARDS[0]

    alpha.stop(second.name, 0)
    beta.remove(third.name)
    both = launch_run(
        harness,
        alpha,
        PRINTS_DEVICES,
        limits=Limits(gpu=2),
    )
    assert devices_of(alpha, both.name) == ",".join(CARDS)


def test_a_run_that_asks_for_no_device_gets_none(harness):
    output_of(harness, harness.engine(), shell('test -z "$NVIDIA_VISIBLE_DEVICES"'))


class LateClient:
    """A client of a daemon that calls a function before each creation of a container."""

    def __init__(self, api: docker.APIClient, before_creation: Callable[[], None]) -> None:
        self._api = api
        self._before_creation = before_creation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def create_container(self, *arguments: Any, **fields: Any) -> Any:
        self._before_creation()
        return self._api.create_container(*arguments, **fields)


class LateConnection(Connection):
    """The connection of a `LateClient`."""

    def __init__(self, url: str, before_creation: Callable[[], None]) -> None:
        super().__init__(url, tls={})
        self._before_creation = before_creation

    def __call__(self) -> Any:
        return LateClient(super().__call__(), self._before_creation)


def test_two_gateways_that_choose_the_same_device_end_up_with_one_each(harness, daemon):
    quick = harness.engine()
    first = a_spec(
        harness,
        PRINTS_DEVICES,
        limits=ONE_GPU,
    )
    second = a_spec(
        harness,
        PRINTS_DEVICES,
        limits=ONE_GPU,
    )

    def launch_second() -> None:
        quick.launch(second)  # after the slow engine's choice, before its container

    slow = harness.engine(client=LateConnection(daemon.url, launch_second))

    slow.launch(first)

    assert devices_of(slow, first.name) == CARDS[1]
    assert devices_of(quick, second.name) == CARDS[0]


COUNTED_RESOURCE = {"DiscreteResourceSpec": {"Kind": "FPGA", "Value": 3}}


def test_a_swarm_counts_its_devices_and_refuses_more_in_its_own_words(harness, api, daemon):
    api.swarm.init(advertise_addr=daemon.inner)
    (node,) = api.nodes.list()
    resources = node.attrs["Description"]["Resources"]
    assert devices(resources, "NVIDIA-GPU") == 2
    assert devices(resources, "FPGA") == 0
    assert devices({"GenericResources": [COUNTED_RESOURCE]}, "FPGA") == 3
    assert devices({}, "FPGA") == 0
    options = SwarmOptions(
        daemon.url,
        grace=0.0,
        place_seconds=2.0,
    )
    spec = a_spec(
        harness,
        PRINTS_DEVICES,
        limits=Limits(gpu=3),
    )

    with contextlib.closing(SwarmEngine("alpha", harness.installation, options)) as engine:
        assert engine.capacity().gpu == 2
        refusal = r"no machine of the Swarm takes it: .* .insufficient resources on 1"
        with pytest.raises(CreateFailed, match=refusal):
            engine.launch(spec)

    task = run_template(
        spec,
        "image",
        Image(),
        (),
        "network",
        2.0,
        SwarmOptions(gpu="FPGA"),
    )
    assert task["Resources"]["Reservations"]["GenericResources"] == [COUNTED_RESOURCE]
    api.swarm.leave(force=True)
