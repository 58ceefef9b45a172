"""What only the Docker engine promises: hardening, limits, network, executables, events, its absence."""

import contextlib
import io
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import NotFound
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


def test_a_container_is_hardened_and_limited(harness, engine, daemon):
    limits = Limits(
        cpu=0.5,
        memory=64 * MIB,
        pids=33,
    )
    name = launch_run(harness, engine, WAITS, limits=limits).name
    found = daemon.api.inspect_container(name)
    host = found["HostConfig"]
    assert host["NanoCpus"] == 500_000_000
    assert host["Memory"] == host["MemorySwap"] == 64 * MIB
    assert host["PidsLimit"] == 33
    assert host["CapDrop"] == ["ALL"]
    assert [option.partition("=")[0] for option in host["SecurityOpt"]] == [
        "no-new-privileges:true",
        "seccomp",
    ]
    assert host["Privileged"] is False
    assert host["Init"] is True
    assert host["LogConfig"]["Type"] == "json-file"
    assert set(host["LogConfig"]["Config"]) == {"max-size", "max-file"}
    assert found["Mounts"] == []
    assert found["Config"]["User"] == "65534:65534"
    assert found["Config"]["Labels"]["bfia.image"] == harness.image
    assert found["Image"] == engine.image_digest(harness.image)


def test_a_read_only_root_leaves_only_a_small_tmp_to_write(harness):
    engine = harness.engine(read_only_root=True)
    text = "echo x > /new 2>/dev/null && exit 1; echo x > /tmp/new || exit 2; exit 0"
    output_of(harness, engine, shell(text))


def test_an_image_keeps_its_own_user(harness, engine, daemon):
    name = f"bfia-contract-{uuid.uuid4().hex[:12]}"
    text = f'FROM {harness.image}\nUSER 1234\nWORKDIR /tmp\nENTRYPOINT ["sh", "-c"]\nCMD ["id -u; pwd"]\n'
    daemon.images.build(
        fileobj=io.BytesIO(text.encode()),
        tag=name,
        rm=True,
        nocache=True,  # another test may be removing the image whose layers the cache would give
    )
    try:
        assert output_of(harness, engine, exits(0), image=name, command=None) == b"1234\n/tmp\n"
        engine.remove(engine.list()[0].name)
    finally:
        daemon.images.remove(name, force=True)


@contextlib.contextmanager
def built(daemon: docker.DockerClient, *lines: str) -> Iterator[str]:
    """Build an image of these lines of a Dockerfile, and remove it at the end."""
    name = f"bfia-contract-{uuid.uuid4().hex[:12]}"
    daemon.images.build(
        fileobj=io.BytesIO("\n".join(lines).encode()),
        tag=name,
        rm=True,
    )
    try:
        yield name
    finally:
        daemon.images.remove(name, force=True)


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
        for _ in range(2):  # what was learnt of the image by the first start serves the second
            assert output_of(harness, engine, exits(0), image=image, command=None) == printed
        for left in engine.list():
            engine.remove(left.name)


def test_a_working_directory_opens_nothing_that_is_mounted(harness, engine, daemon, tmp_path):
    """Attack: an image's working directory is a folder of the host, named itself or through a link."""
    folder = tmp_path / "shared"
    closed = folder / "closed"
    closed.mkdir(parents=True)
    closed.chmod(0o755)
    mount = Mount(folder, "/data", read_only=False)
    for directory in ("/data/closed", "/link/closed", "/other"):
        lines = ("RUN ln -s /data /link && ln -s /data/closed /other", f"WORKDIR {directory}")
        with built(daemon, f"FROM {harness.image}", *lines) as image:
            spec = launch_run(harness, engine, exits(0), image=image, mounts=(mount,))
            wait_for_exit(engine, spec.name)
            engine.remove(spec.name)
        assert closed.stat().st_mode & 0o777 == 0o755


def test_an_image_with_a_user_of_its_own_keeps_its_home(harness, engine, daemon):
    tell = shell("echo $HOME $USER")
    for user, printed in (("1234", b"/home/app bfia\n"), ("root", b"/bfia/home bfia\n")):
        with built(daemon, f"FROM {harness.image}", "ENV HOME=/home/app", f"USER {user}") as image:
            assert output_of(harness, engine, tell, image=image) == printed
            for left in engine.list():
                engine.remove(left.name)


APP = "app:x:0:0::/:/bin/sh"
LONG = "9" * 20


@pytest.mark.parametrize(
    ("user", "line", "found"),
    [
        ("00", APP, "65534"),
        ("+0:0", APP, "65534"),
        ("own", "own:x:1234:1234::/:/bin/sh", "1234"),
        ("own:own", "own:x:1234:1234::/:/bin/sh", "1234"),
        ("app", APP, ""),
        ("app", f"\u00a0{APP}", ""),  # a daemon drops every kind of space
        ("app", "app:x", ""),
        ("app", "app:x:4294967296:0::/:/bin/sh", ""),  # 2**32, of which it keeps 32 bits
        ("\u0660", "\u0660:x:0:0::/:/bin/sh", ""),  # a digit for Python alone
        (LONG, f"{LONG}:x:0:0::/:/bin/sh", ""),  # a name for a daemon
    ],
)
def test_no_image_is_root_by_another_name(harness, engine, daemon, user, line, found):
    """Attack: an image's user is root in a spelling of its own, or by its /etc/passwd, here behind a link."""
    name = f"bfia-contract-{uuid.uuid4().hex[:12]}"
    text = f"FROM {harness.image}\nRUN echo '{line}' >> /etc/passwd && echo own:x:1234: >> /etc/group && "
    text += f"mv /etc/passwd /etc/users && ln -s ../etc/users /etc/passwd && chmod 755 /etc/users\nUSER {user}\n"
    text += (
        "" if found else 'ENTRYPOINT ["/etc/passwd"]\n'
    )  # which was looked for as a program before
    daemon.images.build(
        fileobj=io.BytesIO(text.encode()),
        tag=name,
        rm=True,
        nocache=True,  # another test may be removing the image whose layers the cache would give
    )
    try:
        if found:
            assert output_of(harness, engine, shell("id -u"), image=name).decode() == f"{found}\n"
        else:
            with pytest.raises(
                CreateFailed, match=f"the image's user {user} is root by its /etc/passwd"
            ):
                engine.launch(a_spec(harness, shell("id -u"), image=name))
            assert engine.list() == []
    finally:
        for left in engine.list():
            engine.remove(left.name)
        daemon.images.remove(name, force=True)


def test_an_image_has_no_say_about_its_containers_labels_and_checks(harness, engine, daemon):
    """Attack: an image's labels hold every GPU, or have a proxy of the host serve its port; the daemon itself
    checks its health a thousand times a second, beyond the run's limits.
    """
    name = f"bfia-contract-{uuid.uuid4().hex[:12]}"
    text = f"FROM {harness.image}\nLABEL {GPUS}=GPU-8f2c traefik.enable=true bfia.job=another\n"
    text += "HEALTHCHECK --interval=1ms CMD true\n"
    daemon.images.build(
        fileobj=io.BytesIO(text.encode()),
        tag=name,
        rm=True,
        nocache=True,  # another test may be removing the image whose layers the cache would give
    )
    try:
        spec = launch_run(harness, engine, WAITS, image=name)
        config = daemon.api.inspect_container(spec.name)["Config"]
        labels = config["Labels"]
        assert config["Healthcheck"]["Test"] == ["NONE"]
        assert labels[GPUS] == ""
        assert labels["traefik.enable"] == ""
        assert labels["bfia.job"] == spec.labels["bfia.job"]
        assert labels["bfia.image"] == name
    finally:
        engine.remove(spec.name)
        daemon.images.remove(name, force=True)


def test_a_container_that_was_made_but_not_started_is_started(harness, engine, daemon):
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
def volume(harness: DockerHarness, daemon: docker.DockerClient) -> Iterator[str]:
    """Give a volume that holds ns/in/text and an ns/out that everybody may write to."""
    found = daemon.volumes.create(f"bfia-contract-{uuid.uuid4().hex[:12]}")
    text = "mkdir -p /v/ns/in /v/ns/out && chmod 777 /v/ns/out && printf text > /v/ns/in/text"
    daemon.containers.run(
        harness.image, ["sh", "-c", text], remove=True, volumes={found.name: {"bind": "/v"}}
    )
    yield found.name
    for left in daemon.containers.list(
        all=True,
        ignore_removed=True,
        filters={"volume": found.name},
    ):
        left.remove(force=True)
    found.remove(force=True)


def test_mounts_below_the_storage_come_from_its_volume(harness, volume):
    storage = Path("/seen/only/by/the/gateway")
    engine = harness.engine(sources=(Source(storage, volume=volume),))
    mounts = (
        Mount(storage / "ns" / "in", "/in"),
        Mount(storage / "ns" / "out", "/out", read_only=False),
    )
    output_of(harness, engine, COPIES, mounts=mounts)
    copied = (Mount(storage / "ns" / "out", "/in"),)
    assert output_of(harness, engine, shell("cat /in/text"), mounts=copied) == b"text"


def test_containers_reach_the_host_at_the_gateway_and_are_identified(harness, engine):
    with socket.create_server((engine.gateway_address(), 0)) as server:
        server.settimeout(60)
        host, port = server.getsockname()[:2]
        name = launch_run(harness, engine, shell(f"echo hello | nc -w 60 {host} {port}")).name
        connection, (address, _) = server.accept()
        with connection:
            assert engine.address(name) == address != host
            probe = engine.probe(name)
            assert isinstance(probe, Running)
            assert not probe.cut_off
            assert connection.makefile("rb").readline() == b"hello\n"
    wait_for_exit(engine, name)
    assert engine.address("bfia-0000000000000000") == ""


def test_a_container_that_is_taken_off_its_network_is_told(harness, engine, daemon):
    name = launch_run(harness, engine, shell("sleep 60")).name
    (network,) = daemon.containers.get(name).attrs["NetworkSettings"]["Networks"]
    daemon.networks.get(network).disconnect(name, force=True)
    probe = engine.probe(name)
    assert isinstance(probe, Running)
    assert probe.cut_off
    engine.stop(name, 0)
    assert isinstance(engine.probe(name), Exited)


def test_a_network_that_was_taken_away_comes_back_with_its_addresses(harness, daemon):
    node = f"node-{uuid.uuid4().hex[:8]}"
    engine = harness.engine(node, network=None)
    other = f"bfia-contract-{uuid.uuid4().hex[:12]}"
    try:
        before = engine.gateway_address()
        with socket.create_server((before, 0)) as server:  # it goes on to listen on the new bridge
            server.settimeout(60)
            daemon.api.remove_network(engine.network_id())
            words = f"echo hello | nc -w 60 {before} {server.getsockname()[1]}"
            name = launch_run(harness, engine, shell(words), node=node).name
            with server.accept()[0] as connection, connection.makefile("rb") as said:
                assert said.readline() == b"hello\n"
        wait_for_exit(engine, name)
        engine.remove(name)
        assert engine.gateway_address() == before
        pools = daemon.api.inspect_network(engine.network_id())["IPAM"]["Config"]
        daemon.api.remove_network(engine.network_id())
        taken = IPAMConfig(pool_configs=[IPAMPool(subnet=pools[0]["Subnet"])])
        daemon.api.create_network(other, ipam=taken)
        with pytest.raises(CreateFailed, match="made anew with other addresses"):
            launch_run(harness, engine, exits(0), node=node)
        assert engine.gateway_address() != before
        assert not engine.list()
        wait_for_exit(engine, launch_run(harness, engine, exits(0), node=node).name)
    finally:
        for found in engine.list():
            engine.remove(found.name)
        engine.remove_network()
        with contextlib.suppress(NotFound):
            daemon.api.remove_network(other)
