"""Refusals, gaps and losses of a daemon, played by a stand-in for its client, without Docker."""

import ipaddress
import queue
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import requests
from docker.errors import APIError, ImageNotFound, NotFound
from docker.types import Mount as DockerMount

from engines.base import (
    CommandNotFound,
    CreateFailed,
    DiskUse,
    EngineDown,
    EngineError,
    LaunchSpec,
    Limits,
    Mount,
    NoSpace,
    PortInUse,
)
from engines.base import ImageNotFound as NoImage
from engines.docker import ContainerdEngine, DockerOptions, firewall, network, service_networks
from engines.docker import engine as containers
from engines.docker.client import Connection, remove, translated
from engines.docker.container_files import ContainerFiles
from engines.docker.daemon import Source, as_the_daemon_sees
from engines.docker.firewall import Firewall
from engines.docker.images import Images
from engines.docker.network import NodeNetwork
from engines.docker.pulls import follow
from engines.docker.sandbox_image import archive
from engines.docker.sandboxes import Sandbox, Sandboxes
from engines.docker.service_networks import ServiceNetworks
from engines.image import Image
from engines.registry.names import PullRules
from engines.swarm import SwarmEngine, SwarmOptions
from engines.swarm import engine as swarm
from engines.swarm.tasks import template
from tests.builders import raising
from tests.contracts.engine_acts import a_spec, exits
from tests.contracts.harnesses import MemoryHarness

# The name of a run: other names are never asked for at a daemon.
RUN = "bfia-0000000000000000"
# The labels of a run of node n, installation i.
RUN_LABELS = {
    "bfia.node": "n",
    "bfia.installation": "i",
}
IN_HOST_NETWORK = DockerOptions(network_mode="host")


class Daemon(Connection):
    """A connection whose client returns scripted responses, by method.

    Each call takes the method's next response and raises it if it is an exception. The last
    response is repeated.
    """

    # Attributes of docker's client that the engine reads.
    base_url = "http://daemon"
    api_version = "1"
    timeout = 1
    _auth_configs = None

    def __init__(self, **responses: Any) -> None:
        self._responses = {name: list(values) for name, values in responses.items()}
        self.calls: list[str] = []  # names of the methods, in order

    def __call__(self) -> Any:
        return self

    def is_here(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        def respond(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            remaining = self._responses[name]
            response = remaining.pop(0) if len(remaining) > 1 else remaining[0]
            if isinstance(response, Exception):
                raise response
            return response

        return respond


class FarDaemon(Daemon):
    """A daemon on another machine."""

    def is_here(self) -> bool:
        return False


def api_error(
    status: int,
    words: str = "no",
    kind: type[APIError] = APIError,
) -> APIError:
    response = requests.Response()
    response.status_code = status
    return kind(words, response, words)


def ignore_progress(_: str) -> None: ...


def a_run(**fields: Any) -> LaunchSpec:
    return a_spec(MemoryHarness(), exits(0), **fields)


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
def test_an_image_without_a_command(command):
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


def sandboxes(**responses: Any) -> tuple[Sandboxes, Daemon]:
    """Return a pool of one sandbox, and its daemon."""
    defaults = {
        "create_host_config": [{}],
        "create_container": [{"Id": "s"}],
    }
    daemon = Daemon(**{**defaults, **responses})
    return Sandboxes(daemon, {}, {}, 1, "", None), daemon


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


def test_sandboxes_of_other_networks_are_not_used_and_removed():
    pool, daemon = sandboxes(
        inspect_image=[{}],
        start=[None],
        remove_container=[api_error(500), None],
    )
    pool.prepare("old")
    pool._closed = True  # so that no thread is started
    with pool.start("new") as sandbox:
        assert sandbox == ""
    pool._end()  # the daemon refuses the removal
    assert daemon.calls.count("remove_container") == 1

    pool._ready.append(Sandbox("net", "s"))  # not needed: no run was started lately
    pool._swept = True
    action = pool._next()

    assert action is not None
    assert not pool._ready
    action()
    assert daemon.calls.count("remove_container") == 2


# ------------------------------------------------------------ a Swarm


def a_swarm(**responses: Any) -> tuple[SwarmEngine, Daemon]:
    daemon = Daemon(**responses)
    return SwarmEngine("n", "i", client=daemon), daemon


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine repeat requests without a pause."""
    monkeypatch.setattr(swarm, "PAUSE", 0.0)


SERVICE_TO_END = {
    "ID": "s",
    "Version": {"Index": 1},
}


@pytest.mark.parametrize(
    ("response", "is_ended"),
    [
        (None, True),
        (api_error(404, "no", NotFound), True),
        (api_error(500, "rpc error: update out of sequence"), False),
    ],
    ids=["updated", "gone", "changed by another client"],
)
def test_a_task_is_ended_unless_another_client_has_just_changed_it(response, is_ended):
    engine, _ = a_swarm(update_service=[response])

    assert engine._end(SERVICE_TO_END) is is_ended


def test_a_task_that_the_manager_does_not_end_is_an_error():
    engine, _ = a_swarm(update_service=[api_error(500)])

    with pytest.raises(APIError):
        engine._end(SERVICE_TO_END)


def test_a_machine_that_left_the_swarm_is_gone():
    engine, _ = a_swarm(inspect_node=[api_error(404, "no", NotFound)])

    assert engine._is_gone("m")


def test_an_existing_network_of_a_run_is_used():
    engine, _ = a_swarm(create_network=[api_error(409, "already exists")])

    assert engine._network("r") == "r"


def test_a_network_of_a_run_that_cannot_be_created_is_an_error():
    engine, _ = a_swarm(create_network=[api_error(500)])

    with pytest.raises(APIError):
        engine._network("r")


@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize(
    "second_response", [None, api_error(404, "no", NotFound)], ids=["removed", "gone"]
)
def test_a_runs_network_is_removed_once_it_is_not_in_use(second_response):
    engine, daemon = a_swarm(
        inspect_service=[api_error(404, "no", NotFound)],
        networks=[[{"Name": RUN}]],
        remove_network=[
            api_error(400, "in use"),
            second_response,
        ],
    )

    engine.remove(RUN)

    assert daemon.calls.count("remove_network") == 2


@pytest.mark.usefixtures("without_pauses")
def test_a_run_is_created_again_while_its_former_network_is_removed():
    engine, daemon = a_swarm(
        nodes=[[]],
        create_network=[{}],
        create_service=[
            api_error(400, "network r not found"),
            {},
        ],
    )

    engine._create(
        a_run(limits=Limits()),
        Image("i"),
    )

    assert daemon.calls.count("create_service") == 2


def container_of_task(spec: LaunchSpec, *mounts: DockerMount) -> Any:
    """Return the container of a run's task."""
    task = template(
        spec,
        "i",
        Image(),
        list(mounts),
        "net",
        1.0,
        SwarmOptions(),
    )
    return task["ContainerSpec"]


def test_no_name_in_a_task_is_a_template():
    """Attack: a Swarm fills in templates.

    Partners choose names of jobs, and thereby of folders and variables.
    """
    evil = '{{"bank"}}{{{'
    mount = DockerMount(
        f"/bfia/{evil}",
        f"/mnt/{evil}",
        type="bind",
    )

    container = container_of_task(
        a_run(environment={evil: evil}),
        mount,
    )

    mounted = container["Mounts"][0]
    for text in (mounted["Source"], mounted["Target"], container["Env"][-1]):
        assert "{{" not in text.replace('{{"{{"}}', "")
        assert text.replace('{{"{{"}}', "{{").endswith(evil)


def test_the_health_check_of_an_image_is_switched_off():
    """A check would be work of the daemon, beyond the limits of the run."""
    assert container_of_task(a_run())["Healthcheck"]["Test"] == ["NONE"]


REPOSITORIES = ("evil:5000/a@sha256:1", "shop:5000/a@sha256:2", "shop:5000/b@sha256:3")


@pytest.mark.parametrize(
    ("digests", "image"),
    [
        (REPOSITORIES, "shop:5000/a@sha256:2"),
        (REPOSITORIES[::2], "evil:5000/a@sha256:1"),
        ((), "i"),
    ],
    ids=["from its own", "its own is unknown", "from none"],
)
def test_machines_fetch_an_image_from_its_own_repository(monkeypatch, digests, image):
    """Attack: another vendor's index has the same image for the manager.

    For other machines, the index has another image.
    """
    templates: list[tuple[LaunchSpec, str]] = []
    monkeypatch.setattr(swarm, "template", lambda spec, image, *_: templates.append((spec, image)))
    engine, _ = a_swarm(
        nodes=[[]],
        create_network=[{}],
        create_service=[{}],
    )
    image_labels = {
        "proxy": "on",
        "bfia.task": "another",
    }

    engine._create(
        a_run(
            limits=Limits(),
            image="shop:5000/a:1",
        ),
        Image("i", image_labels, digests),
    )

    ((spec, fetched_image),) = templates
    assert fetched_image == image
    assert spec.labels["proxy"] == ""  # the image's labels do not count
    assert spec.labels["bfia.task"] == "task_1"


def test_a_run_that_is_removed_before_it_begins_is_named():
    engine, _ = a_swarm(inspect_service=[api_error(404, "no", NotFound)])

    with pytest.raises(CreateFailed, match="was removed before it had begun"):
        engine._has_started(
            "bfia-run",
            unplaced=False,
            late=False,
        )


def test_a_run_that_begins_too_late_is_named():
    now = "2026-11-26T04:00:00Z"
    status = {
        "State": "preparing",
        "Timestamp": now,
        "Message": "pulls",
    }
    task = {
        "ID": "t",
        "NodeID": "m",
        "DesiredState": "running",
        "CreatedAt": now,
        "Spec": {"ContainerSpec": {"Labels": {"bfia.run": RUN}}},
        "Status": status,
    }
    service = {
        "ID": "s",
        "Spec": {"Labels": RUN_LABELS},
    }
    engine, _ = a_swarm(
        inspect_service=[service],
        tasks=[[task]],
    )

    words = r"did not begin in time on its machine \(preparing\): pulls"
    with pytest.raises(CreateFailed, match=words):
        engine._has_started(
            RUN,
            unplaced=True,
            late=True,
        )


def test_a_swarm_shares_no_volumes(tmp_path):
    options = SwarmOptions(sources=(Source(tmp_path, volume="v"),))
    engine = SwarmEngine("n", "i", options, Daemon())
    spec = a_run(mounts=(Mount(tmp_path / "in", "/in"),))

    with pytest.raises(CreateFailed, match="volume v: a Swarm shares no volumes"):
        engine._create(spec, Image("i"))
