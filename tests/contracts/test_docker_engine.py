"""Promises of the Docker engine alone: hardening, users of images, volumes, networks."""

import contextlib
import io
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.types import IPAMConfig, IPAMPool

from engines.base import (
    CreateFailed,
    Exited,
    Limits,
    Missing,
    Mount,
    Running,
)
from engines.docker import ContainerdEngine
from engines.docker.daemon import Source
from engines.docker.gpus import GPUS
from tests.contracts.engine_acts import (
    COPIES,
    WAITS,
    a_spec,
    exits,
    launch_run,
    output_of,
    shell,
    wait_for_exit,
)
from tests.contracts.harnesses import DockerHarness

MIB = 1024 * 1024
pytestmark = pytest.mark.docker


@pytest.fixture
def engine(harness: DockerHarness) -> ContainerdEngine:
    return harness.engine()


def remove_runs(engine: ContainerdEngine) -> None:
    for run in engine.list():
        engine.remove(run.name)


@contextlib.contextmanager
def built(daemon: docker.DockerClient, *lines: str) -> Iterator[str]:
    """Build an image from these lines of a Dockerfile; remove it at the end."""
    name = f"bfia-contract-{uuid.uuid4().hex[:12]}"
    daemon.images.build(
        fileobj=io.BytesIO("\n".join(lines).encode()),
        tag=name,
        rm=True,
        nocache=True,  # another test may be removing the image whose layers the cache has
    )
    try:
        yield name
    finally:
        daemon.images.remove(
            name,
            force=True,
        )


def test_a_container_is_hardened_and_limited(harness, engine, daemon):
    limits = Limits(
        cpu=0.5,
        memory=64 * MIB,
        pids=33,
    )

    name = launch_run(harness, engine, WAITS, limits=limits).name

    container = daemon.api.inspect_container(name)
    host = container["HostConfig"]
    assert host["NanoCpus"] == 500_000_000
    assert host["Memory"] == 64 * MIB
    assert host["MemorySwap"] == 64 * MIB
    assert host["PidsLimit"] == 33
    assert host["CapDrop"] == ["ALL"]
    security_options = [option.partition("=")[0] for option in host["SecurityOpt"]]
    assert security_options == ["no-new-privileges:true", "seccomp"]
    assert host["Privileged"] is False
    assert host["Init"] is True
    assert host["LogConfig"]["Type"] == "json-file"
    assert set(host["LogConfig"]["Config"]) == {"max-size", "max-file"}
    assert container["Mounts"] == []
    assert container["Config"]["User"] == "65534:65534"
    assert container["Config"]["Labels"]["bfia.image"] == harness.image
    assert container["Image"] == engine.image_digest(harness.image)


def test_a_read_only_root_leaves_only_a_small_tmp_to_write(harness):
    engine = harness.engine(read_only_root=True)
    text = "echo x > /new 2>/dev/null && exit 1; echo x > /tmp/new || exit 2; exit 0"

    output_of(harness, engine, shell(text))


def test_an_image_keeps_its_own_user(harness, engine, daemon):
    lines = (
        f"FROM {harness.image}",
        "USER 1234",
        "WORKDIR /tmp",
        'ENTRYPOINT ["sh", "-c"]',
        'CMD ["id -u; pwd"]',
    )
    with built(daemon, *lines) as image:
        output = output_of(
            harness,
            engine,
            exits(0),
            image=image,
            command=None,
        )
        remove_runs(engine)

    assert output == b"1234\n/tmp\n"


# A program that writes into the image's working directory.
IN_APP = (
    "RUN mkdir /app && echo 'echo started in $PWD > out && cat out' > /app/main.sh",
    "WORKDIR /app",
)


@pytest.mark.parametrize(
    ("lines", "printed"),
    [
        (IN_APP, b"started in /app\n"),
        ((*IN_APP, "USER 1234"), b"started in /app\n"),
        ((*IN_APP, "RUN chmod 700 /app"), b"started in /app\n"),
        (("RUN echo 'pwd; touch out' > /main.sh", 'CMD ["/main.sh"]'), b"/tmp\n"),
        (("RUN echo 'pwd; touch out' > /main.sh && rm -rf /tmp", 'CMD ["/main.sh"]'), b"/tmp\n"),
    ],
    ids=["of root", "of root, with a user of its own", "closed", "none", "none, and no /tmp"],
)
def test_the_working_directory_of_an_image_can_be_written(harness, daemon, lines, printed):
    start = 'CMD ["main.sh"]'
    with built(daemon, f"FROM {harness.image}", 'ENTRYPOINT ["sh"]', start, *lines) as image:
        engine = harness.engine()

        first = output_of(
            harness,
            engine,
            exits(0),
            image=image,
            command=None,
        )
        # The engine remembers the image's properties from the first start.
        second = output_of(
            harness,
            engine,
            exits(0),
            image=image,
            command=None,
        )

        assert first == printed
        assert second == printed
        remove_runs(engine)


@pytest.mark.parametrize(
    "directory",
    ["/data/closed", "/link/closed", "/other"],
)
def test_a_working_directory_opens_nothing_that_is_mounted(
    harness, engine, daemon, tmp_path, directory
):
    """Attack: an image's working directory is a folder of the host, by its name or a link."""
    folder = tmp_path / "shared"
    closed = folder / "closed"
    closed.mkdir(parents=True)
    closed.chmod(0o755)
    mounts = (Mount(folder, "/data", read_only=False),)
    links = "RUN ln -s /data /link && ln -s /data/closed /other"

    with built(daemon, f"FROM {harness.image}", links, f"WORKDIR {directory}") as image:
        spec = launch_run(
            harness,
            engine,
            exits(0),
            image=image,
            mounts=mounts,
        )
        wait_for_exit(engine, spec.name)
        engine.remove(spec.name)

    assert closed.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("user", "printed"),
    [
        ("1234", b"/home/app bfia\n"),
        ("root", b"/bfia/home bfia\n"),
    ],
)
def test_an_image_with_a_user_of_its_own_keeps_its_home(harness, engine, daemon, user, printed):
    lines = (f"FROM {harness.image}", "ENV HOME=/home/app", f"USER {user}")
    with built(daemon, *lines) as image:
        output = output_of(
            harness,
            engine,
            shell("echo $HOME $USER"),
            image=image,
        )
        remove_runs(engine)

    assert output == printed


# A line of /etc/passwd that makes the user app root.
APP_IS_ROOT = "app:x:0:0::/:/bin/sh"
OWN_USER = "own:x:1234:1234::/:/bin/sh"
LONG_NUMBER = "9" * 20


@contextlib.contextmanager
def image_with_user(
    daemon: docker.DockerClient, base: str, user: str, line: str, *lines: str
) -> Iterator[str]:
    """Build an image with this user and a further line of /etc/passwd, which is a link."""
    add_user = (
        f"RUN echo '{line}' >> /etc/passwd && echo own:x:1234: >> /etc/group && "
        "mv /etc/passwd /etc/users && ln -s ../etc/users /etc/passwd && chmod 755 /etc/users"
    )
    with built(daemon, f"FROM {base}", add_user, f"USER {user}", *lines) as image:
        yield image


@pytest.mark.parametrize(
    ("user", "line", "user_id"),
    [
        ("00", APP_IS_ROOT, b"65534\n"),
        ("+0:0", APP_IS_ROOT, b"65534\n"),
        ("own", OWN_USER, b"1234\n"),
        ("own:own", OWN_USER, b"1234\n"),
    ],
)
def test_root_in_another_spelling_is_replaced(
    harness,
    engine,
    daemon,
    user,
    line,
    user_id,
):
    """Attack: an image's user is root in a spelling of its own."""
    with image_with_user(daemon, harness.image, user, line) as image:
        output = output_of(
            harness,
            engine,
            shell("id -u"),
            image=image,
        )
        remove_runs(engine)

    assert output == user_id


@pytest.mark.parametrize(
    ("user", "line"),
    [
        ("app", APP_IS_ROOT),
        ("app", f"\u00a0{APP_IS_ROOT}"),  # a daemon drops every kind of space
        ("app", "app:x"),
        ("app", "app:x:4294967296:0::/:/bin/sh"),  # 2**32: 0 in the 32 bits of a daemon
        ("\u0660", "\u0660:x:0:0::/:/bin/sh"),  # a digit for Python alone
        (LONG_NUMBER, f"{LONG_NUMBER}:x:0:0::/:/bin/sh"),  # a name for a daemon
    ],
)
def test_a_user_who_is_root_by_its_passwd_is_refused(harness, engine, daemon, user, line):
    """Attack: an image's user is root by its /etc/passwd."""
    program = 'ENTRYPOINT ["/etc/passwd"]'  # the search for the program reads the file, too
    with image_with_user(daemon, harness.image, user, line, program) as image:
        refusal = f"the image's user {user} is root by its /etc/passwd"
        with pytest.raises(CreateFailed, match=refusal):
            engine.launch(a_spec(harness, shell("id -u"), image=image))
        assert engine.list() == []


def test_an_image_has_no_say_about_its_containers_labels_and_checks(harness, engine, daemon):
    """Attack: an image's labels claim a GPU, or have a proxy of the host serve its port.

    Its health check would run in the daemon a thousand times a second, beyond the run's limits.
    """
    lines = (
        f"FROM {harness.image}",
        f"LABEL {GPUS}=GPU-8f2c traefik.enable=true bfia.job=another",
        "HEALTHCHECK --interval=1ms CMD true",
    )
    with built(daemon, *lines) as image:
        spec = launch_run(
            harness,
            engine,
            WAITS,
            image=image,
        )
        config = daemon.api.inspect_container(spec.name)["Config"]
        engine.remove(spec.name)

    labels = config["Labels"]
    assert config["Healthcheck"]["Test"] == ["NONE"]
    assert labels[GPUS] == ""
    assert labels["traefik.enable"] == ""
    assert labels["bfia.job"] == spec.labels["bfia.job"]
    assert labels["bfia.image"] == image


def test_a_container_that_was_created_but_not_started_is_started(harness, engine, daemon):
    spec = a_spec(harness, exits(3))
    daemon.api.create_container(
        harness.image,
        command=list(spec.command or ()),
        name=spec.name,
        labels=dict(spec.labels),
    )
    assert engine.probe(spec.name) == Missing()

    engine.launch(spec)

    assert wait_for_exit(engine, spec.name).code == 3


@pytest.fixture
def volume(
    harness: DockerHarness,
    daemon: docker.DockerClient,
) -> Iterator[str]:
    """A volume with the file ns/in/text and the folder ns/out, which every user may write."""
    volume = daemon.volumes.create(f"bfia-contract-{uuid.uuid4().hex[:12]}")
    text = "mkdir -p /v/ns/in /v/ns/out && chmod 777 /v/ns/out && printf text > /v/ns/in/text"
    daemon.containers.run(
        harness.image, ["sh", "-c", text], remove=True, volumes={volume.name: {"bind": "/v"}}
    )
    yield volume.name
    users = daemon.containers.list(
        all=True,
        ignore_removed=True,
        filters={"volume": volume.name},
    )
    for container in users:
        container.remove(force=True)
    volume.remove(force=True)


def test_mounts_below_the_storage_come_from_its_volume(harness, volume):
    storage = Path("/seen/only/by/the/gateway")
    engine = harness.engine(sources=(Source(storage, volume=volume),))
    mounts = (
        Mount(storage / "ns" / "in", "/in"),
        Mount(
            storage / "ns" / "out",
            "/out",
            read_only=False,
        ),
    )

    output_of(
        harness,
        engine,
        COPIES,
        mounts=mounts,
    )

    written = (Mount(storage / "ns" / "out", "/in"),)
    assert output_of(harness, engine, shell("cat /in/text"), mounts=written) == b"text"


def test_containers_reach_the_host_at_the_gateway_and_are_identified(harness, engine):
    with socket.create_server((engine.gateway_address(), 0)) as server:
        server.settimeout(60)
        host, port = server.getsockname()[:2]
        name = launch_run(harness, engine, shell(f"echo hello | nc -w 60 {host} {port}")).name
        connection, (address, _) = server.accept()
        with connection:
            assert address != host
            assert engine.address(name) == address
            probe = engine.probe(name)
            assert isinstance(probe, Running)
            assert not probe.cut_off
            assert connection.makefile("rb").readline() == b"hello\n"
    wait_for_exit(engine, name)
    assert engine.address("bfia-0000000000000000") == ""


def test_a_container_without_its_network_is_reported_as_cut_off(harness, engine, daemon):
    name = launch_run(harness, engine, shell("sleep 60")).name
    (network,) = daemon.containers.get(name).attrs["NetworkSettings"]["Networks"]

    daemon.networks.get(network).disconnect(name, force=True)

    probe = engine.probe(name)
    assert isinstance(probe, Running)
    assert probe.cut_off
    engine.stop(name, 0)
    assert isinstance(engine.probe(name), Exited)


@pytest.fixture
def own_node() -> str:
    """The name of a node that no other test uses."""
    return f"node-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def network_owner(
    harness: DockerHarness,
    own_node: str,
) -> Iterator[ContainerdEngine]:
    """An engine with a network of its own, which is removed with the engine's runs."""
    engine = harness.engine(
        own_node,
        network=None,
    )
    yield engine
    remove_runs(engine)
    engine.remove_network()


def test_a_recreated_network_has_its_former_addresses(harness, own_node, network_owner, daemon):
    engine = network_owner
    address = engine.gateway_address()
    with socket.create_server((address, 0)) as server:  # it goes on to listen on the new bridge
        server.settimeout(60)
        daemon.api.remove_network(engine.network_id())
        text = f"echo hello | nc -w 60 {address} {server.getsockname()[1]}"

        name = launch_run(harness, engine, shell(text), node=own_node).name

        connection, _ = server.accept()
        with connection, connection.makefile("rb") as stream:
            assert stream.readline() == b"hello\n"
    wait_for_exit(engine, name)
    assert engine.gateway_address() == address


def test_a_recreated_network_gets_other_addresses_if_its_own_are_taken(
    harness, own_node, network_owner, daemon
):
    engine = network_owner
    address = engine.gateway_address()
    pools = daemon.api.inspect_network(engine.network_id())["IPAM"]["Config"]
    daemon.api.remove_network(engine.network_id())
    pool_config = IPAMConfig(pool_configs=[IPAMPool(subnet=pools[0]["Subnet"])])
    rival = f"bfia-contract-{uuid.uuid4().hex[:12]}"
    daemon.api.create_network(
        rival,
        ipam=pool_config,
    )
    try:
        with pytest.raises(CreateFailed, match="made anew with other addresses"):
            launch_run(
                harness,
                engine,
                exits(0),
                node=own_node,
            )

        assert engine.gateway_address() != address
        assert not engine.list()
        wait_for_exit(
            engine,
            launch_run(harness, engine, exits(0), node=own_node).name,
        )
    finally:
        daemon.api.remove_network(rival)
