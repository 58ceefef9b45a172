"""Refusals, gaps and losses of a daemon, played by a stand-in for its client, without Docker."""

import ipaddress
import queue
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError, ImageNotFound, NotFound

from engines import firewall
from engines.base import (
    CommandNotFound,
    CreateFailed,
    DiskUse,
    EngineDown,
    EngineError,
    Limits,
    Mount,
    NoSpace,
    PortInUse,
)
from engines.base import ImageNotFound as NoImage
from engines.docker import ContainerdEngine, DockerOptions, network, service_networks
from engines.docker import engine as containers
from engines.docker.client import remove, translated
from engines.docker.container_files import ContainerFiles
from engines.docker.daemon import Source, as_the_daemon_sees
from engines.docker.images import Images
from engines.docker.network import NodeNetwork
from engines.docker.pulls import follow
from engines.docker.sandbox_image import archive
from engines.docker.sandboxes import LABEL, Sandboxes
from engines.docker.service_networks import ServiceNetworks
from engines.firewall import Firewall
from engines.image import Image
from engines.registry.names import PullRules
from tests.builders import raising
from tests.contracts.engine_acts import wait_for
from tests.contracts.scripted_daemon import RUN, RUN_LABELS, Daemon, a_run, api_error

IN_HOST_NETWORK = DockerOptions(network_mode="host")


class FarDaemon(Daemon):
    """A daemon on another machine."""

    def is_here(self) -> bool:
        return False


def ignore_progress(_: str) -> None: ...


# ------------------------------------------------------------ images and containers


@pytest.mark.parametrize(
    ("folder", "path_at_daemon"),
    [
        ("storage/ns/name", "/srv/data/ns/name"),
        ("storage", "/srv/data"),
        ("runs/bfia-1/log", "/volumes/runs/_data/bfia-1/log"),
    ],
)
def test_a_folder_below_a_source_has_the_daemons_path(tmp_path, folder, path_at_daemon):
    assert mounted_path(tmp_path, folder) == path_at_daemon


def test_a_folder_outside_all_sources_keeps_its_path(tmp_path):
    assert mounted_path(tmp_path, "storage-2/x") == str(tmp_path / "storage-2" / "x")


def mounted_path(home: Path, folder: str) -> str:
    """Return the daemon's path of a folder in a home with a storage and runs."""
    sources = (
        Source(
            home / "storage",
            bind="/srv/data",
        ),
        Source(
            home / "runs",
            volume="runs",
        ),
    )

    def path_of_volume(volume: str) -> str:
        return f"/volumes/{volume}/_data"

    mount = as_the_daemon_sees(
        Mount(home / folder, "/in"),
        sources,
        path_of_volume,
    )
    return str(mount["Source"])


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("storage/../../etc", "/in"),
        ("storage/a", "/in/../../etc"),
    ],
)
def test_a_mount_that_leads_out_of_its_folder_is_refused(tmp_path, source, target):
    with pytest.raises(CreateFailed, match="leads out"):
        as_the_daemon_sees(
            Mount(tmp_path / source, target),
            (Source(tmp_path, "/srv"),),
            str,
        )


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        (500, "write /var/lib/docker/x: no space left on device", NoSpace),
        (
            500,
            'starting container process caused: exec: "x": executable file not found in $PATH',
            CommandNotFound,
        ),
        (500, 'exec: "/x/y": stat /x/y: no such file or directory: unknown', CommandNotFound),
        (500, 'exec: "docker-init": executable file not found in $PATH', CreateFailed),
        (500, "driver failed programming external connectivity", CreateFailed),
        (500, "Bind for 127.0.0.1:80 failed: port is already allocated", PortInUse),
        (404, "Service Unavailable", CreateFailed),
        (503, "Service Unavailable", EngineDown),  # it starts or stops
        (502, "<html>Bad Gateway</html>", EngineDown),
        (500, "error while dialing: dial unix /run/containerd/containerd.sock", EngineDown),
        (500, "cannot create network: the daemon is shutting down", EngineDown),
    ],
)
def test_the_words_of_the_daemon_are_understood(status, text, error):
    with pytest.raises(error) as caught, translated(CreateFailed):
        raise api_error(status, text)
    assert type(caught.value) is error
    assert str(caught.value).endswith(text)


def test_a_refusal_keeps_the_daemons_words():
    with pytest.raises(EngineError, match="odd words"), translated():
        raise api_error(500, "odd words")


def test_long_ids_are_shortened_except_digests():
    words = f"network {'a1' * 32} not found, sha256:{'b2' * 32} is"
    shortened = f"^network {'a1' * 6} not found, sha256:{'b2' * 32} is$"
    with pytest.raises(EngineError, match=shortened), translated():
        raise api_error(404, words)


def test_a_missing_image_is_named_as_such():
    with pytest.raises(NoImage), translated(CreateFailed):
        raise api_error(404, "No such image: sha256:1")


def test_only_a_removal_in_progress_counts_as_removed():
    remove(
        Daemon(remove_container=[api_error(409)]),
        "c",
    )
    with pytest.raises(APIError):
        remove(
            Daemon(remove_container=[api_error(500)]),
            "c",
        )


@pytest.mark.parametrize(
    ("name", "response", "error"),
    [
        ("", None, NoImage),
        ("a:1", api_error(404, "No such image"), NoImage),
        ("a", api_error(400), EngineError),
    ],
)
def test_an_image_that_cannot_be_inspected(name, response, error):
    with pytest.raises(EngineError) as caught:
        Images(Daemon(inspect_image=[response]), PullRules()).find(name)

    assert type(caught.value) is error


def test_a_daemon_that_goes_away_while_it_asks_a_registry():
    rules = PullRules(frozenset({"shop:5000"}))
    images = Images(
        Daemon(get=[OSError("reset")]),
        rules,
    )

    with pytest.raises(EngineDown, match="during the request for shop:5000/a:1: reset"):
        images.registry_digest("shop:5000/a:1", 1.0)


@pytest.mark.parametrize(
    ("event", "error", "words"),
    [
        (OSError("reset"), EngineDown, "while it pulled shop:5000/a:1: reset"),
        (
            {"error": "manifest unknown"},
            EngineError,
            "shop:5000/a:1 cannot be pulled: manifest unknown",
        ),
    ],
    ids=["connection lost", "refused"],
)
def test_a_pull_that_fails(event, error, words):
    rules = PullRules(frozenset({"shop:5000"}))
    events: Any = queue.SimpleQueue()
    events.put(event)

    with pytest.raises(error, match=words):
        follow(
            "shop:5000/a:1",
            events,
            time.monotonic() + 60,
            rules,
            ignore_progress,
        )


@pytest.mark.parametrize(
    ("responses", "words"),
    [
        ({"create_container": [api_error(500, "no cgroup")]}, "no cgroup"),
        (
            {
                "create_container": [api_error(409)],
                "inspect_container": [api_error(404, "no", NotFound)],
            },
            "taken by a container that the daemon hides",
        ),
    ],
)
def test_a_container_that_cannot_be_created(monkeypatch, responses, words):
    monkeypatch.setattr(containers, "NAME_TIMEOUT", -1.0)
    daemon = Daemon(
        info=[{}],
        inspect_image=[{"Id": "i"}],
        create_host_config=[{}],
        **responses,
    )
    engine = ContainerdEngine("n", "i", IN_HOST_NETWORK, daemon)

    with pytest.raises(CreateFailed, match=words):
        engine.launch(a_run(limits=Limits()))


def test_a_gpu_that_another_gateway_chose_too_is_named_as_the_cause(monkeypatch):
    monkeypatch.setattr(containers, "NAME_TIMEOUT", -1.0)
    gpu = {"NamedResourceSpec": {"Kind": "NVIDIA-GPU", "Value": "GPU-1"}}
    of_both_gateways = [
        {"Names": [f"/{name}"], "Labels": {"bfia.gpu": "GPU-1"}} for name in (RUN, "another")
    ]
    daemon = Daemon(
        info=[{"GenericResources": [gpu]}],
        inspect_image=[{"Id": "i"}],
        create_host_config=[{}],
        containers=[[], of_both_gateways],
        create_container=[{"Id": "c"}],
        remove_container=[None],
    )
    engine = ContainerdEngine("n", "i", IN_HOST_NETWORK, daemon)

    with pytest.raises(CreateFailed, match="another gateway chose the same gpu"):
        engine.launch(a_run(name=RUN, limits=Limits(gpu=1)))

    assert "remove_container" in daemon.calls
    assert "start" not in daemon.calls


def test_a_container_that_is_removed_during_its_measurement_uses_no_disk():
    daemon = Daemon(
        inspect_container=[{"Config": {"Labels": RUN_LABELS}}],
        containers=[api_error(404, "no", NotFound)],
    )
    engine = ContainerdEngine("n", "i", IN_HOST_NETWORK, daemon)

    assert engine.disk_use(RUN, 10) == DiskUse()
    assert daemon.calls == ["inspect_container", "containers"]


def test_the_network_of_the_host_reaches_all_services():
    engine = ContainerdEngine("n", "i", IN_HOST_NETWORK, Daemon())

    assert engine.obstacle_to(()) == ""


@pytest.mark.parametrize(
    "command",
    [None, [""]],
)
def test_an_image_without_a_command_is_refused(command):
    with pytest.raises(CommandNotFound, match="has no command"):
        ContainerFiles(Daemon()).check_executable("c", Image("i"), command, {}, [])


# ------------------------------------------------------------ networks and the packet filter

# A network as a daemon describes it, with settings other than ours.
NET = {
    "Id": "n",
    "Name": "net",
    "Options": {},
    "Internal": True,
    "IPAM": {"Config": None},
}
# The same with our settings.
OUR_NET = {
    **NET,
    "Options": {"com.docker.network.bridge.name": NodeNetwork(Daemon(), "net", {}).bridge},
}
POOL = {"Config": [{"Subnet": "10.9.0.0/24"}]}


def a_network(**responses: Any) -> tuple[NodeNetwork, Daemon]:
    """Return the node's network at a daemon, which has it unless ``responses`` say otherwise."""
    daemon = Daemon(**{"networks": [[NET]], **responses})
    return NodeNetwork(daemon, "net", {}), daemon


def test_a_network_that_another_gateway_is_creating_is_waited_for():
    node_network, _ = a_network(
        networks=[
            [],
            [],
            [NET],
        ],
        create_network=[api_error(409)],
    )

    assert node_network.ensure() == "n"


@pytest.mark.parametrize("status", [403, 500])
def test_a_network_that_cannot_be_created_is_an_error(monkeypatch, status):
    monkeypatch.setattr(network, "CREATE_TIMEOUT", 0.0)
    refusal = api_error(status)
    node_network, _ = a_network(
        networks=[[]],
        create_network=[refusal],
    )

    with pytest.raises(APIError) as caught:
        node_network.ensure()

    assert caught.value is refusal


def test_a_recreated_network_gets_other_addresses_if_its_own_are_taken():
    with_pool = {**NET, "IPAM": POOL}
    node_network, daemon = a_network(
        networks=[
            [with_pool],
            [],
        ],
        create_network=[
            api_error(403),
            {"Id": "new"},
        ],
        inspect_network=[{**with_pool, "Id": "new"}],
    )
    first_address = next(ipaddress.ip_network("10.9.0.0/24").hosts())
    assert node_network.address() == str(first_address)

    node_network.forget()

    assert node_network.ensure() == "new"
    assert daemon.calls.count("create_network") == 2


def test_a_network_in_use_stays_although_its_settings_differ():
    node_network, _ = a_network(
        networks=[[OUR_NET]],
        remove_network=[api_error(403)],
    )

    assert node_network.ensure() == "n"


def test_a_network_without_addresses_is_useless():
    node_network, _ = a_network(
        networks=[[OUR_NET]],
        remove_network=[api_error(403)],
    )
    node_network.ensure()

    with pytest.raises(EngineError, match="has no IPv4 addresses"):
        node_network.address()


def test_a_network_that_cannot_be_replaced_is_an_error():
    node_network, _ = a_network(
        networks=[[OUR_NET]],
        remove_network=[api_error(500)],
    )

    with pytest.raises(APIError):
        node_network.ensure()


class Iptables:
    """A stand-in for iptables, which ends with this code and these words.

    A code below 0: it does not end in time.
    """

    def __init__(
        self,
        code: int,
        words: str = "",
    ) -> None:
        self._code = code
        self._words = words

    def __call__(
        self,
        command: list[str],
        **_: Any,
    ) -> Any:
        if self._code < 0:
            raise subprocess.TimeoutExpired(command, 1)
        return subprocess.CompletedProcess(
            command,
            self._code,
            "",
            self._words,
        )


@pytest.mark.parametrize(
    ("path", "iptables", "cause"),
    [
        (None, Iptables(0), "there is no iptables here"),
        ("iptables", Iptables(-1), "iptables cannot be used: Command"),
        ("iptables", Iptables(4, "Permission denied\nmore"), "Permission denied"),
        ("iptables", Iptables(4), "refused"),
    ],
)
def test_a_packet_filter_that_cannot_be_used_is_a_gap_and_gives_no_way_out(
    monkeypatch, caplog, path, iptables, cause
):
    monkeypatch.setattr(firewall.shutil, "which", lambda *_, **__: path)
    monkeypatch.setattr(firewall.subprocess, "run", iptables)
    monkeypatch.setattr(network, "CHECK_EVERY", 0.0)
    node_network, _ = a_network(
        networks=[[{**OUR_NET, "IPAM": POOL}]], remove_network=[api_error(403)]
    )
    services = ServiceNetworks(Daemon(), "net", {}, "o")

    assert cause in str(Firewall("b", "o").fault())
    with pytest.raises(EngineError):
        Firewall("b", "o").close_except([1])

    node_network.close_host([1])
    assert any(cause in gap for gap in node_network.isolation().gaps)
    assert not node_network.isolation().host

    with monkeypatch.context() as working:
        working.setattr(Firewall, "close_except", lambda *_: None)  # iptables works again
        for _ in range(2):
            node_network.stay_closed()
        assert caplog.text.count("made anew") == 2

    for _ in range(3):
        node_network.stay_closed()
    # Once for each repair, and a single time for the broken filter.
    assert caplog.text.count("could reach this host") == 3

    assert "iptables cannot be used" in services.obstacle()
    no_way = r"containers cannot reach 10\.1\.1\.1:9000: iptables cannot be used"
    with pytest.raises(CreateFailed, match=no_way):
        services.ensure(("10.1.1.1:9000",), [])


def test_services_cannot_be_reached_from_a_daemon_on_another_machine():
    obstacle = ServiceNetworks(FarDaemon(), "net", {}, "o").obstacle()

    assert "another" not in obstacle
    assert "packet filter that the gateway cannot use" in obstacle


def test_forgetting_the_networks_of_services_forgets_each_of_them():
    services = ServiceNetworks(FarDaemon(), "net", {}, "o")
    node_network, _ = a_network()
    node_network.ensure()
    services._by_services[("lake:9000",)] = service_networks._ServiceNetwork(
        node_network, Firewall("b", "o")
    )

    services.forget()

    assert node_network._id is None


def test_a_network_of_services_in_use_is_removed_by_the_next_attempt(monkeypatch):
    for name in ("check", "close_except", "open_to", "remove"):
        monkeypatch.setattr(Firewall, name, lambda *_: None)
    # The name ends with a digest of the services.
    created = {**NET, "Name": "net-02943df1"}
    daemon = Daemon(
        networks=[[], [created]],
        create_network=[{"Id": "n"}],
        inspect_network=[created],
        remove_network=[api_error(403), None],
    )
    services = ServiceNetworks(daemon, "net", {}, "o")
    services.ensure(("10.1.1.1:9000",), [])

    with pytest.raises(EngineError):
        services.remove()
    services.remove()

    assert daemon.calls.count("remove_network") == 2


def test_a_service_whose_name_cannot_be_resolved_is_named(monkeypatch):
    unknown = raising(OSError(2, "Name or service not known"))
    monkeypatch.setattr(service_networks.socket, "gethostbyname", unknown)

    with pytest.raises(CreateFailed, match="lake cannot be resolved: Name or service not known"):
        service_networks.addresses(("lake:9000",))


def test_in_the_network_of_the_host_there_is_none_of_ours():
    engine = ContainerdEngine("n", "i", IN_HOST_NETWORK)

    assert engine.network_id() == "host"
    assert engine._network_of(a_run()) == (
        "host",
        {},
    )


# ------------------------------------------------------------ sandboxes


def sandboxes(limit: int = 1, **responses: Any) -> tuple[Sandboxes, Daemon]:
    """Return a pool of sandboxes, and its daemon.

    ``limit``: the most sandboxes that are kept; 0: the pool has no thread.
    """
    defaults = {
        "create_host_config": [{}],
        "create_container": [{"Id": "s"}],
    }
    daemon = Daemon(**{**defaults, **responses})
    return Sandboxes(daemon, {LABEL: "o"}, {}, limit, "", None), daemon


def test_the_program_of_a_sandbox_waits_until_it_is_ended(tmp_path):
    file = tmp_path / "wait.tar"
    file.write_bytes(archive("amd64"))
    subprocess.run(
        ["tar", "-xf", file, "-C", tmp_path],
        check=True,
    )

    with subprocess.Popen([tmp_path / "wait"]) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.02)
        process.kill()


# Responses of a daemon without the image of sandboxes.
WITHOUT_IMAGE = {
    "inspect_image": [api_error(404, "no", ImageNotFound)],
    "import_image_from_data": [""],
    "start": [None],
}


def test_the_image_of_sandboxes_is_imported_where_it_is_missing():
    pool, daemon = sandboxes(**WITHOUT_IMAGE, version=[{"Arch": "amd64"}])

    pool.prepare("net")

    assert "import_image_from_data" in daemon.calls


def test_there_is_no_image_of_sandboxes_for_a_rare_architecture():
    pool, _ = sandboxes(**WITHOUT_IMAGE, version=[{"Arch": "s390x"}])

    with pytest.raises(EngineError, match="not available for the architecture s390x"):
        pool.prepare("net")


def test_a_sandbox_that_does_not_start_is_removed():
    pool, daemon = sandboxes(
        inspect_image=[{}],
        start=[api_error(500)],
        remove_container=[None],
    )

    with pytest.raises(EngineError):
        pool.prepare("net")

    assert daemon.calls[-1] == "remove_container"


def test_a_sandbox_of_another_network_is_not_used():
    pool, daemon = sandboxes(
        limit=0,
        inspect_image=[{}],
        start=[None],
        remove_container=[None],
    )
    pool.prepare("old")

    with pool.start("new") as sandbox:
        assert sandbox == ""
    with pool.start("old") as sandbox:
        assert sandbox == ""  # it is kept for its removal alone

    pool.close()
    assert daemon.calls.count("remove_container") == 1


def test_a_sandbox_that_cannot_be_removed_at_the_end_is_left(caplog):
    pool, daemon = sandboxes(
        limit=0,
        inspect_image=[{}],
        start=[None],
        remove_container=[api_error(500)],
    )
    pool.prepare("net")

    pool.close()

    assert daemon.calls.count("remove_container") == 1
    assert "left until the gateway's next start" in caplog.text


def test_a_sandbox_that_stays_is_removed_by_the_next_attempt():
    pool, daemon = sandboxes(
        limit=0,
        inspect_image=[{}],
        start=[None],
        remove_container=[api_error(500), None],
    )
    pool.prepare("net")

    with pytest.raises(EngineError):
        pool.drain()
    pool.drain()
    pool.drain()

    assert daemon.calls.count("remove_container") == 2


def test_a_sandbox_is_removed_if_no_run_is_known_to_come():
    pool, daemon = sandboxes(
        inspect_image=[{}],
        start=[None],
        containers=[[]],  # none of an earlier process
        remove_container=[None],
    )
    pool.prepare("net")

    with closing(pool):
        pool.begin()

        wait_for(lambda: "remove_container" in daemon.calls, "it is removed")

    assert daemon.calls.count("remove_container") == 1
