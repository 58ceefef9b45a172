"""What a daemon refuses, lacks or loses in between: told by a stand-in for its client, without Docker."""

import ipaddress
import queue
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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
from engines.docker.gpus import Gpus
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
from tests.contracts.engine_acts import a_spec, exits
from tests.contracts.harnesses import MemoryHarness


class Daemon(Connection):
    """Its client, which responds to each method with the next of its answers; the last one stays."""

    base_url, api_version, timeout, _auth_configs = "http://daemon", "1", 1, None

    def __init__(self, **answers: Any) -> None:
        self._answers = {name: list(found) for name, found in answers.items()}
        self.asked: list[str] = []

    def __call__(self) -> Any:
        return self

    def is_here(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        def answer(*args: Any, **named: Any) -> Any:
            self.asked.append(name)
            left = self._answers[name]
            found = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(found, Exception):
                raise found
            return found

        return answer


def says(
    status: int,
    words: str = "no",
    kind: type[APIError] = APIError,
) -> APIError:
    response = requests.Response()
    response.status_code = status
    return kind(words, response, words)


def quiet(_: str) -> None: ...


# ------------------------------------------------------------ images and containers


def test_only_what_lies_below_a_source_is_seen_elsewhere(tmp_path):
    sources = (
        Source(tmp_path / "storage", bind="/srv/data"),
        Source(tmp_path / "runs", volume="runs"),
    )

    def seen(path: Path) -> str:
        mount = as_the_daemon_sees(
            Mount(path, "/in"), sources, lambda volume: f"/volumes/{volume}/_data"
        )
        return str(mount["Source"])

    assert seen(tmp_path / "storage" / "ns" / "name") == "/srv/data/ns/name"
    assert seen(tmp_path / "storage") == "/srv/data"
    assert seen(tmp_path / "runs" / "bfia-1" / "log") == "/volumes/runs/_data/bfia-1/log"
    assert seen(tmp_path / "storage-2" / "x") == str(tmp_path / "storage-2" / "x")
    for source, target in (("storage/../../etc", "/in"), ("storage/a", "/in/../../etc")):
        with pytest.raises(CreateFailed, match="leads out"):
            as_the_daemon_sees(Mount(tmp_path / source, target), (Source(tmp_path, "/srv"),), str)


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
        (503, "Service Unavailable", EngineDown),  # it begins or ends
        (502, "<html>Bad Gateway</html>", EngineDown),
        (500, "error while dialing: dial unix /run/containerd/containerd.sock", EngineDown),
        (500, "cannot create network: the daemon is shutting down", EngineDown),
    ],
)
def test_the_words_of_the_daemon_are_understood(status, text, error):
    with pytest.raises(error) as raised, translated(CreateFailed):
        raise says(status, text)
    assert type(raised.value) is error
    assert str(raised.value).endswith(text)


def test_a_refusal_keeps_the_daemons_words():
    with pytest.raises(EngineError, match="odd words"), translated():
        raise says(500, "odd words")
    with (
        pytest.raises(EngineError, match=f"^network {'a1' * 6} not found, sha256:{'b2' * 32} is$"),
        translated(),
    ):
        raise says(404, f"network {'a1' * 32} not found, sha256:{'b2' * 32} is")
    with pytest.raises(NoImage), translated(CreateFailed):
        raise says(404, "No such image: sha256:1")
    remove(Daemon(remove_container=[says(409)]), "c")
    with pytest.raises(APIError):
        remove(Daemon(remove_container=[says(500)]), "c")


@pytest.mark.parametrize(
    ("name", "answer", "kind"),
    [("", None, NoImage), ("a:1", says(404, "No such image"), NoImage), ("a", says(400), 0)],
)
def test_an_image_that_cannot_be_looked_at(name, answer, kind):
    with pytest.raises(kind or EngineError) as caught:
        Images(Daemon(inspect_image=[answer]), PullRules()).find(name)
    assert kind or type(caught.value) is EngineError


def test_a_daemon_that_goes_away_while_it_fetches_or_asks_a_registry():
    rules = PullRules(frozenset({"shop:5000"}))
    images = Images(Daemon(get=[OSError("reset")]), rules)
    with pytest.raises(EngineDown, match="during the request for shop:5000/a:1: reset"):
        images.registry_digest("shop:5000/a:1", 1.0)
    events: Any = queue.SimpleQueue()
    events.put(OSError("reset"))
    with pytest.raises(EngineDown, match="while it pulled shop:5000/a:1: reset"):
        follow("shop:5000/a:1", events, time.monotonic() + 60, rules, quiet)
    events.put({"error": "manifest unknown"})
    with pytest.raises(EngineError, match="shop:5000/a:1 cannot be pulled: manifest unknown"):
        follow("shop:5000/a:1", events, time.monotonic() + 60, rules, quiet)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"create_container": [says(500, "no cgroup")]}, "no cgroup"),
        (
            {"create_container": [says(409)], "inspect_container": [says(404, "no", NotFound)]},
            "taken by a container that the daemon hides",
        ),
    ],
)
def test_a_container_that_cannot_be_created(monkeypatch, answers, words):
    monkeypatch.setattr(containers, "NAME_TIMEOUT", -1.0)
    engine: Any = ContainerdEngine("n", "i", DockerOptions(network_mode="host"))
    engine._client = Daemon(
        info=[{}],
        create_host_config=[{}],
        **answers,
    )
    engine._images = SimpleNamespace(find=lambda _: Image("i"))
    engine._gpus = Gpus(engine._client)
    with pytest.raises(CreateFailed, match=words):
        engine.launch(a_spec(MemoryHarness(), exits(0), limits=Limits()))


def test_a_container_that_is_gone_meanwhile_has_written_nothing(monkeypatch):
    engine: Any = ContainerdEngine("n", "i", DockerOptions(network_mode="host"))
    monkeypatch.setattr(engine, "_inspect", lambda _: {})
    engine._client = Daemon(containers=[says(404, "no", NotFound)])
    assert engine.disk_use("bfia-run", 10) == DiskUse()
    assert engine.no_way_to(()) == ""


def test_an_image_without_a_command():
    for command in (None, [""]):
        with pytest.raises(CommandNotFound, match="has no command"):
            ContainerFiles(Daemon()).check_executable("c", Image("i"), command, {}, [])


# ------------------------------------------------------------ networks and the packet filter

NET = {
    "Id": "n",
    "Name": "net",
    "Options": {},
    "Internal": True,
    "IPAM": {"Config": None},
}
POOL = {"Config": [{"Subnet": "10.9.0.0/24"}]}


def a_network(**answers: Any) -> tuple[NodeNetwork, Daemon]:
    daemon = Daemon(**{"networks": [[NET]], **answers})
    return NodeNetwork(daemon, "net", {}), daemon


def test_a_network_that_another_gateway_is_just_creating_is_waited_for(monkeypatch):
    found, _ = a_network(networks=[[], [], [NET]], create_network=[says(409)])
    assert found.ensure() == "n"
    monkeypatch.setattr(network, "CREATE_TIMEOUT", 0.0)
    for refused in (says(403), says(500)):
        found, _ = a_network(networks=[[]], create_network=[refused])
        with pytest.raises(APIError) as caught:
            found.ensure()
        assert caught.value is refused


def test_a_recreated_network_gets_other_addresses_if_its_own_are_taken():
    seen = {**NET, "IPAM": POOL}
    made = {
        "create_network": [says(403), {"Id": "new"}],
        "inspect_network": [{**seen, "Id": "new"}],
    }
    found, asked = a_network(networks=[[seen], []], **made)
    assert found.address() == str(next(ipaddress.ip_network("10.9.0.0/24").hosts()))
    found.forget()
    assert found.ensure() == "new"
    assert asked.asked.count("create_network") == 2


def test_a_used_network_stays_and_one_without_addresses_is_useless():
    ours = {
        **NET,
        "Options": {"com.docker.network.bridge.name": NodeNetwork(Daemon(), "net", {}).bridge},
    }
    found, _ = a_network(networks=[[ours]], remove_network=[says(403)])
    assert found.ensure() == "n"  # though it was made with other settings
    with pytest.raises(EngineError, match="has no IPv4 addresses"):
        found.address()
    found, _ = a_network(networks=[[ours]], remove_network=[says(500)])
    with pytest.raises(APIError):
        found.ensure()


class Ran:
    """A stand-in for iptables, which fails with these words."""

    def __init__(self, code: int, words: str = "") -> None:
        self._code, self._words = code, words

    def __call__(self, command: list[str], **_: Any) -> Any:
        if self._code < 0:
            raise subprocess.TimeoutExpired(command, 1)
        return subprocess.CompletedProcess(command, self._code, "", self._words)


@pytest.mark.parametrize(
    ("path", "ran", "why"),
    [
        (None, Ran(0), "there is no iptables here"),
        ("iptables", Ran(-1), "iptables cannot be used: Command"),
        ("iptables", Ran(4, "Permission denied\nmore"), "Permission denied"),
        ("iptables", Ran(4), "refused"),
    ],
)
def test_a_packet_filter_that_cannot_be_used_is_a_gap_and_gives_no_way_out(
    monkeypatch, caplog, path, ran, why
):
    monkeypatch.setattr(firewall.shutil, "which", lambda *_, **__: path)
    monkeypatch.setattr(firewall.subprocess, "run", ran)
    assert why in str(Firewall("b", "o").fault())
    with pytest.raises(EngineError):
        Firewall("b", "o").close_except([1])
    ours = {
        **NET,
        "Options": {"com.docker.network.bridge.name": NodeNetwork(Daemon(), "net", {}).bridge},
    }
    found, _ = a_network(networks=[[{**ours, "IPAM": POOL}]], remove_network=[says(403)])
    found.close_host([1])
    assert any(why in gap for gap in found.isolation().gaps)
    assert not found.isolation().host
    monkeypatch.setattr(network, "CHECK_EVERY", 0.0)
    with monkeypatch.context() as again:
        again.setattr(Firewall, "close_except", lambda *_: None)  # it can be used again
        for _ in range(2):
            found.stay_closed()
        assert caplog.text.count("made anew") == 2
    for _ in range(3):
        found.stay_closed()
    assert caplog.text.count("could reach this host") == 3, "and once that it cannot be"
    services = ServiceNetworks(Daemon(), "net", {}, "o")
    assert "iptables cannot be used" in services.lacks()
    with pytest.raises(
        CreateFailed, match=r"containers cannot reach 10\.1\.1\.1:9000: iptables cannot be used"
    ):
        services.ensure(("10.1.1.1:9000",), [])


def test_services_that_cannot_be_reached_from_containers(monkeypatch):
    far = Daemon()
    monkeypatch.setattr(far, "is_here", lambda: False, raising=False)
    assert "another" not in ServiceNetworks(far, "net", {}, "o").lacks()
    assert (
        "packet filter that the gateway cannot use" in ServiceNetworks(far, "net", {}, "o").lacks()
    )

    def unknown(_: str) -> str:
        raise OSError(2, "Name or service not known")

    services = ServiceNetworks(far, "net", {}, "o")
    one, _ = a_network()
    one.ensure()
    services._by_services[("lake:9000",)] = service_networks._ServiceNetwork(
        one, Firewall("b", "o")
    )
    services.forget()
    assert one._id is None
    monkeypatch.setattr(service_networks.socket, "gethostbyname", unknown)
    with pytest.raises(CreateFailed, match="lake cannot be resolved: Name or service not known"):
        service_networks.addresses(("lake:9000",))


def test_in_the_network_of_the_host_there_is_none_of_ours():
    engine = ContainerdEngine("n", "i", DockerOptions(network_mode="host"))
    assert engine.network_id() == "host"
    assert engine._network_of(a_spec(MemoryHarness(), exits(0))) == ("host", {})


# ------------------------------------------------------------ sandboxes


def sandboxes(**answers: Any) -> tuple[Sandboxes, Daemon]:
    daemon = Daemon(
        **{
            "create_host_config": [{}],
            "create_container": [{"Id": "s"}],
            **answers,
        }
    )
    return Sandboxes(daemon, {}, {}, 1, "", None), daemon


def test_the_program_of_a_sandbox_waits_until_it_is_ended(tmp_path):
    file = tmp_path / "wait.tar"
    file.write_bytes(archive("amd64"))
    subprocess.run(["tar", "-xf", file, "-C", tmp_path], check=True)
    with subprocess.Popen([tmp_path / "wait"]) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.02)
        process.kill()


def test_a_sandboxes_image_is_made_where_it_is_missing():
    lacks = {
        "inspect_image": [says(404, "no", ImageNotFound)],
        "import_image_from_data": [""],
        "start": [None],
    }
    pool, daemon = sandboxes(**lacks, version=[{"Arch": "amd64"}])
    pool.prepare("net")
    assert "import_image_from_data" in daemon.asked
    pool, daemon = sandboxes(**lacks, version=[{"Arch": "s390x"}])
    with pytest.raises(EngineError, match="not available for the architecture s390x"):
        pool.prepare("net")


def test_dead_sandboxes_are_removed_and_those_of_other_networks_unused():
    pool, daemon = sandboxes(
        inspect_image=[{}],
        start=[says(500)],
        remove_container=[None],
    )
    with pytest.raises(EngineError):
        pool.prepare("net")
    assert daemon.asked[-1] == "remove_container"
    pool, daemon = sandboxes(
        inspect_image=[{}],
        start=[None],
        remove_container=[says(500), None],
    )
    pool.prepare("old")
    pool._closed = True  # no thread of its own
    with pool.start("new") as found:
        assert found == ""
    pool._end()  # the daemon refuses
    assert daemon.asked.count("remove_container") == 1
    pool._ready.append(Sandbox("net", "s"))  # and no start was lately
    pool._swept = True
    due = pool._next()
    assert due is not None
    assert not pool._ready
    due()
    assert daemon.asked.count("remove_container") == 2


# ------------------------------------------------------------ a Swarm


def a_swarm(**answers: Any) -> tuple[Any, Daemon]:
    engine: Any = SwarmEngine("n", "i")
    engine._client = Daemon(**answers)
    return engine, engine._client


@pytest.mark.parametrize(
    ("answer", "ended"),
    [
        (None, True),
        (says(404, "no", NotFound), True),
        (says(500, "rpc error: update out of sequence"), False),
        (says(500), None),
    ],
)
def test_a_task_is_ended_unless_another_has_just_changed_it(answer, ended):
    engine, _ = a_swarm(update_service=[answer])
    service = {"ID": "s", "Version": {"Index": 1}}
    if ended is None:
        with pytest.raises(APIError):
            engine._end(service)
        return
    assert engine._end(service) is ended


def test_a_machine_that_left_the_swarm_is_gone():
    assert a_swarm(inspect_node=[says(404, "no", NotFound)])[0]._is_gone("m")


def test_a_runs_network_is_kept_while_used_and_then_removed(monkeypatch):
    monkeypatch.setattr(swarm, "PAUSE", 0.0)
    assert a_swarm(create_network=[says(409, "already exists")])[0]._network("r") == "r"
    with pytest.raises(APIError):
        a_swarm(create_network=[says(500)])[0]._network("r")
    for last in (None, says(404, "no", NotFound)):
        engine, daemon = a_swarm(remove_network=[says(400, "in use"), last])
        engine._remove_network("r", time.monotonic() + 60)
        assert daemon.asked == 2 * ["remove_network"]


def test_a_run_is_created_again_while_its_former_network_is_removed(monkeypatch):
    monkeypatch.setattr(swarm, "PAUSE", 0.0)
    daemon = {
        "nodes": [[]],
        "create_network": [{}],
        "create_service": [says(400, "network r not found"), {}],
    }
    engine, asked = a_swarm(**daemon)
    engine._create(a_spec(MemoryHarness(), exits(0), limits=Limits()), Image("i"))
    assert asked.asked.count("create_service") == 2


def test_no_name_in_a_task_is_a_template():
    """Attack: a Swarm fills in templates, and partners choose names of jobs, and so of folders and variables."""
    evil = '{{"bank"}}{{{'
    spec = replace(a_spec(MemoryHarness(), exits(0)), environment={evil: evil})
    mount = DockerMount(f"/bfia/{evil}", f"/mnt/{evil}", type="bind")
    container = template(spec, "i", Image(), [mount], "net", 1.0, SwarmOptions())["ContainerSpec"]
    mounted, variable = container["Mounts"][0], container["Env"][-1]
    assert container["Healthcheck"]["Test"] == [
        "NONE"
    ]  # nor has its image a say about the daemon's work
    for text in (mounted["Source"], mounted["Target"], variable):
        assert "{{" not in text.replace('{{"{{"}}', "")
        assert text.replace('{{"{{"}}', "{{").endswith(evil)


def test_machines_fetch_an_image_from_its_own_repository(monkeypatch):
    """Attack: another vendor's index has the same image for the manager, and another one for other machines."""
    started: list[str] = []

    def begun(
        spec: LaunchSpec,
        image: str,
        *_: Any,
    ) -> None:
        assert spec.labels["proxy"] == ""
        assert spec.labels["bfia.task"] == "task_1"  # nor do its labels count
        started.append(image)

    monkeypatch.setattr(swarm, "template", begun)
    spec = replace(a_spec(MemoryHarness(), exits(0), limits=Limits()), image="shop:5000/a:1")
    places = ("evil:5000/a@sha256:1", "shop:5000/a@sha256:2", "shop:5000/b@sha256:3")
    for known, expected in ((places, places[1]), (places[::2], places[0]), ((), "i")):
        engine, _ = a_swarm(
            nodes=[[]],
            create_network=[{}],
            create_service=[{}],
        )
        engine._create(spec, Image("i", {"proxy": "on", "bfia.task": "another"}, known))
        assert started.pop() == expected


def test_a_run_that_is_removed_or_late_while_it_begins_is_named():
    engine, _ = a_swarm(inspect_service=[says(404, "no", NotFound)])
    with pytest.raises(CreateFailed, match="was removed before it had begun"):
        engine._has_started("bfia-run", unplaced=False, late=False)
    then = "2026-11-26T04:00:00Z"
    task: dict[str, Any] = {
        "ID": "t",
        "NodeID": "m",
        "DesiredState": "running",
        "CreatedAt": then,
    }
    task["Spec"] = {"ContainerSpec": {"Labels": {"bfia.run": "bfia-run"}}}
    task["Status"] = {
        "State": "preparing",
        "Timestamp": then,
        "Message": "pulls",
    }
    service = {"ID": "s", "Spec": {"Labels": {"bfia.node": "n", "bfia.installation": "i"}}}
    engine, _ = a_swarm(inspect_service=[service], tasks=[[task]])
    with pytest.raises(
        CreateFailed, match=r"did not begin in time on its machine \(preparing\): pulls"
    ):
        engine._has_started("bfia-run", unplaced=True, late=True)


def test_a_swarm_shares_no_volumes():
    with pytest.raises(CreateFailed, match="volume v: a Swarm shares no volumes"):
        swarm._no_volume("v")
