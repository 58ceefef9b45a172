"""Providers that run at another daemon than the node's own: allowed by the admin, or refused by name."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body, ending_fields
from engines.base import Capacity, EngineDown, ImageNotFound, Missing, Running
from engines.multi import SeveralEngines
from gateway.bootstrap.node import Gateway
from gateway.cli.main import app
from gateway.domain.resources import GIB
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JobStatus, Outcome, RunStatus
from gateway.errors import Invalid, Refused
from provider_registry.registration import provider_from_request
from tests.builders import a_local_job, a_spec
from tests.contracts.apis import IMAGE, registration, serving
from tests.contracts.engine_acts import a_spec as a_launch
from tests.contracts.engine_acts import exits
from tests.contracts.engine_contract import EngineContract
from tests.contracts.harnesses import MemoryHarness
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, Node, ask, settings
from tests.memory_engine import MemoryEngine, MemoryWorld, Script

ADDRESS, FAR = "ssh://bfia@10.0.0.9", "far"
FAR_WORLD, SWARM_WORLD = MemoryWorld(), MemoryWorld()


class SeveralHarness(MemoryHarness):
    """The memory engine as the main one of two."""

    def _made(
        self,
        node: str,
        installation: str,
        **options: Any,
    ) -> Any:
        other = MemoryEngine(
            node=node,
            installation=installation,
            images={},
        )
        return SeveralEngines(super()._made(node, installation), {"far": other})


class TestSeveral(EngineContract):
    @pytest.fixture
    def harness(self) -> Iterator[SeveralHarness]:
        harness = SeveralHarness()
        yield harness
        harness.close()


@pytest.fixture
def worlds() -> tuple[MemoryWorld, MemoryWorld]:
    return MemoryWorld(), MemoryWorld()


def both(worlds: tuple[MemoryWorld, MemoryWorld]) -> SeveralEngines:
    near, far = (
        MemoryEngine(
            node="alpha",
            installation="first",
            images={image: Script(code=None)},
            world=world,
        )
        for image, world in zip(("near:1", "far:1"), worlds, strict=True)
    )
    return SeveralEngines(near, {"far": far})


def launch(image: str, engine: str) -> Any:
    return replace(a_launch(MemoryHarness(), exits(0)), image=image, engine=engine)


def test_a_run_goes_to_its_engine_and_is_found_there_by_another_instance(worlds):
    first, near, far = both(worlds), launch("near:1", ""), launch("far:1", "far")
    for spec in (near, far):
        first.launch(spec)
    with pytest.raises(ImageNotFound):
        first.launch(launch("far:1", ""))
    again = both(worlds)
    assert {found.name for found in again.list()} == {near.name, far.name}
    assert isinstance(again.probe(far.name), Running)
    assert again.main.probe(far.name) == Missing()
    again.remove(far.name)
    assert first.probe(far.name) == Missing()
    assert isinstance(first.probe(near.name), Running)
    assert first.image_digest("far:1") == first.at("far").image_digest("far:1")


def test_a_run_at_a_further_engine_has_no_address_here(worlds):
    engine, near, far = both(worlds), launch("near:1", ""), launch("far:1", "far")
    for spec in (near, far):
        engine.launch(spec)
        at = engine.at(spec.engine)
        assert isinstance(at, MemoryEngine)
        at.addresses[spec.name] = "172.18.0.2"
    assert engine.address(near.name) == "172.18.0.2"
    assert engine.address(far.name) == ""


def test_an_engine_that_is_away_hides_its_own_runs_only(worlds):
    engine, near, far = both(worlds), launch("near:1", ""), launch("far:1", "far")
    for spec in (near, far):
        engine.launch(spec)
    worlds[1].down = True
    assert [found.name for found in engine.list()] == [near.name]
    engine.check()
    assert isinstance(engine.probe(near.name), Running)
    for again in (engine, both(worlds)):  # whether or not it knew where the run is
        with pytest.raises(EngineDown):
            again.probe(far.name)
    assert "far" in engine.isolation().gaps[-1]
    with pytest.raises(EngineDown, match="elsewhere"):
        engine.launch(launch("near:1", "elsewhere"))


def test_an_image_is_inspected_where_it_is_and_queried_at_the_main_engine(worlds):
    engine = both(worlds)
    assert engine.image_facts("far:1") == engine.at("far").image_facts("far:1")
    assert engine.registry_digest("near:1", 1.0) == engine.main.image_digest("near:1")
    with pytest.raises(ImageNotFound):
        engine.registry_digest("far:1", 1.0)
    with pytest.raises(ImageNotFound):
        engine.image_facts("nowhere:1")


class Newer(MemoryEngine):
    """Has another version of each image."""

    def image_digest(self, image: str) -> str:
        return f"newer-{super().image_digest(image)}"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A node with an engine of its own and one far away; the same vendor is registered for three daemons."""
    home = tmp_path_factory.mktemp("node")
    (home / "routes.yml").write_text(yaml.safe_dump({PEER: {"url": "http://127.0.0.1:9"}}))
    any_port = "127.0.0.1:0"
    listen: dict[str, Any] = {part: {"bind": any_port} for part in ("peer", "operator")}
    listen["container"] = {"bind": any_port, "advertise": "http://10.0.0.5:7381"}
    docker = {"base_url": "unix:///run/own.sock"}
    named = {
        FAR: {"base_url": ADDRESS, "cpu": 12},
        "big": {"base_url": "unix:///run/big.sock", "memory_gib": 4},
        "swarm": {"base_url": "tcp://10.0.0.8:1"},
    }
    made = settings(
        home,
        listen=listen,
        engine={"kind": "docker", "docker": docker},
        engines=named,
    )

    def engine(settings: Any, installation: str) -> SeveralEngines:
        near, far, big, swarm = (
            kind(
                node=ME,
                installation=installation,
                images={image: Script(code=None)},
                world=world,
                capacity=Capacity(cores, 8 * GIB, gpus),
            )
            for kind, image, cores, gpus, world in (
                (MemoryEngine, f"near-{IMAGE}", 2, 0, MemoryWorld()),
                (MemoryEngine, IMAGE, 16, 0, FAR_WORLD),
                (Newer, f"near-{IMAGE}", 32, 2, MemoryWorld()),
                (MemoryEngine, f"near-{IMAGE}", 64, 0, SWARM_WORLD),
            )
        )
        return SeveralEngines(
            near,
            {
                FAR: far,
                "big": big,
                "swarm": swarm,
            },
        )

    gateway = Node(made, engine=engine)
    for version, device, metadata in (
        ("1.0.0", "docker", {"base_url": ADDRESS}),
        ("2.0.0", "docker", {"base_url": "tcp://10.0.0.66:2375"}),
        ("3.0.0", "docker", {"base_url": "unix:///run/own.sock"}),
        ("4.0.0", "docker", {"engine": "big", "base_url": "unix:///run/own.sock"}),
        ("5.0.0", "swarm", {}),
        ("6.0.0", "k8s", {}),
    ):
        body = registration() | {"version": version, "device": device}
        image = IMAGE if version == "1.0.0" else f"near-{IMAGE}"
        body["metadata"] = {**metadata, "image": image}
        for one in body["components_description"].values():
            one["version"] = version
        gateway.registry.register(provider_from_request(body))
    with serving(gateway):
        gateway.capacities.look(FAR)
        yield gateway


def job(
    version: str,
    name: str = "daemon",
    cpu: float = -1,
    **more: int,
) -> Any:
    params = {"guest": {"0": {"resources": {"cpu": cpu, **more}}}}
    spec = a_spec(
        "a",
        {"guest": (ME,)},
        job_id=f"job-{name}-{version}",
        initiator=ME,
        scheduler=ME,
        job_params=params,
    )
    (task,) = spec.dag.nodes
    component = replace(task.component, version=version)
    return replace(spec, dag=replace(spec.dag, nodes=(replace(task, component=component),)))


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.0.0", ["DAEMON_NOT_ALLOWED", "tcp://10.0.0.66:2375", "(engines)"]),
        ("6.0.0", ["@k8s is to run at k8s"]),
    ],
    ids=["address", "device"],
)
def test_a_daemon_or_device_that_is_not_configured_is_refused(node, version, words):
    with pytest.raises((Invalid, Refused)) as caught:
        node.participant.create_job(job(version), ME)
    assert caught.value.problems[0].path == "dag.components[0]"
    assert all(word in caught.value.message for word in words)
    assert node.store.local_jobs.find(f"job-daemon-{version}") is None


def test_addresses_of_daemons_are_shown_to_operators_and_not_to_partners(node):
    def said(
        listener: str,
        path: str,
        spec: Any,
    ) -> str:
        body, headers = create_body(spec, PROFILES["spec"]), {"x-source-node-id": PEER}
        answer = ask(node, listener, "POST", path, json=body, headers=headers).json()
        assert answer["code"] in (400, 409), answer
        return str(answer)

    spec = job("2.0.0", "told")
    theirs = said("peer", "/v1/interconn/schedule/job/create", replace(spec, scheduler=PEER))
    assert "DAEMON_NOT_ALLOWED" in theirs
    assert "10.0.0" not in theirs
    assert "tcp://…" in theirs
    ours = said("operator", "/v1/platform/schedule/job/create_all", spec)
    assert "DAEMON_NOT_ALLOWED" in ours
    assert "tcp://10.0.0.66" in ours
    ending = Ending(
        Outcome.FAILED, node.clock(), Failure("ENGINE_DOWN", f"engine {ADDRESS} has not answered")
    )
    assert ending_fields(ending)["failed_by"]["message"] == "engine ssh://… has not answered"


def far(node: Gateway) -> Any:
    """Return what the operators are shown of the further engine."""
    near, far, *_ = ask(node, "operator", "GET", "/api/v1/resources").json()["engines"]
    assert near["main"] is True
    assert near["total"]["cpu"] == 2
    assert near["held"]["cpu"] == 0
    assert near["total"]["disk_gib"] > 0
    assert "disk_gib" not in far["total"]  # it is the storage's
    assert far["engine"] == FAR
    return far


def test_each_engine_has_totals_of_its_own_and_a_task_holds_where_it_runs(node):
    with pytest.raises(Refused, match=r"^guest\.0 asks for cpu 8, the engine of node \w+ has 2"):
        node.participant.create_job(job("3.0.0", "wide", 8), ME)
    with pytest.raises(
        Refused, match=f"cpu 13 .guest.0., engine {FAR} of node .* has cpu 12"
    ):  # less than it has
        node.participant.create_job(job("1.0.0", "wider", 13), ME)
    first, second = job("1.0.0", "wide", 8), job("1.0.0", "next", 5)
    node.coordinator.submit_job(first, ME)
    wait_for(lambda: far(node)["held"]["cpu"] == 8, 20, 0.01, "it holds eight cores there")
    assert far(node)["total"]["cpu"] == 12
    assert far(node)["remaining"]["cpu"] == 4
    assert far(node)["cores"] == 16
    shown = ask(node, "operator", "GET", f"/api/v1/jobs/{first.job_id}").json()["resources"]
    assert shown["total"]["cpu"] == 0
    assert shown["engines"][FAR]["total"]["cpu"] == 8
    node.coordinator.submit_job(second, ME)

    def why() -> str:
        found = ask(node, "operator", "GET", "/api/v1/resources").json()["waiting"]
        return next((one["reason"] for one in found if one["job_id"] == second.job_id), "")

    said = wait_for(why, 20, 0.01, "the next one waits")
    assert (
        said
        == f"needs cpu 5 at engine {FAR} on node {ME}, free cpu 4, held by job {first.job_id} (cpu 8)"
    )
    printed = CliRunner().invoke(app, ["resources", "--url", node.addresses()["operator"]]).stdout
    assert f"engine {FAR}" in printed
    assert first.job_id in printed
    metrics = ask(node, "operator", "GET", "/metrics").text
    assert f'bfia_engine_resources_free{{engine="{FAR}",kind="cpu"}} 4.0' in metrics
    assert 'bfia_resources_held{kind="cpu"} 0.0' in metrics
    items = node.participant.dry_run(job("1.0.0", "planned", 5), ME)
    (told,) = [item for item in items if item.check == "resources"]
    assert told.found == f"cpu 5 at engine {FAR}"
    assert told.cause == said
    FAR_WORLD.down = True
    try:
        node.capacities.look(FAR)
        wait_for(
            lambda: why().startswith(f"ENGINE_DOWN: engine {FAR} of node {ME} has not"),
            20,
            0.01,
            "it is said",
        )
        away = far(node)
        assert away["total"]["cpu"] == 12
        assert away["held"]["cpu"] == 8
        assert bool(away["cause"]) is True
        metrics = ask(node, "operator", "GET", "/metrics").text
        assert f'bfia_engine_answers{{engine="{FAR}"}} 0.0' in metrics
        assert 'bfia_engine_answers{engine="main"} 1.0' in metrics
    finally:
        FAR_WORLD.down = False
        node.capacities.look(FAR)
    node.coordinator.stop_job(first.job_id, "", ME)
    wait_for(lambda: far(node)["held"]["cpu"] == 5, 20, 0.01, "the next one has its turn")
    node.coordinator.stop_job(second.job_id, "", ME)
    wait_for(lambda: far(node)["held"]["cpu"] == 0, 20, 0.01, "all is returned")


def test_gpus_belong_to_the_engine_of_a_task_and_more_are_refused(node):
    with pytest.raises(
        Refused, match=f"^one task at a time needs gpu 1 .guest.0., engine {FAR} of .* has gpu 0$"
    ):
        node.participant.create_job(job("1.0.0", "none", gpu=1), ME)
    with pytest.raises(
        Refused, match=r"^one task at a time needs gpu 3 .guest.0., engine big of .* has gpu 2$"
    ):
        node.participant.create_job(job("4.0.0", "three", gpu=3), ME)
    first, second = job("4.0.0", "two", gpu=2), job("4.0.0", "one", gpu=1)
    node.coordinator.submit_job(first, ME)
    assert isinstance(node.engine, SeveralEngines)
    big = node.engine.at("big")
    assert isinstance(big, MemoryEngine)
    wait_for(lambda: [one.limits.gpu for one in big.launches] == [2], 20, 0.01, "it runs with both")
    local = node.store.local_jobs.get(first.job_id)
    assert local.runs[0].limits["gpu"] == 2
    assert local.runs[0].limit_origins["gpu"] == "guest.0"
    (told,) = [item for item in node.participant.dry_run(second, ME) if item.check == "resources"]
    assert told.found == "gpu 1 at engine big"
    assert f"free gpu 0, held by job {first.job_id} (gpu 2)" in told.cause
    metrics = ask(node, "operator", "GET", "/metrics").text
    assert 'bfia_engine_resources_held{engine="big",kind="gpu"} 2.0' in metrics
    assert f'engine="{FAR}",kind="gpu"' not in metrics


def test_a_provider_chooses_an_engine_by_its_device(node):
    spec = job("5.0.0", "chosen", 5)
    (told,) = [item for item in node.participant.dry_run(spec, ME) if item.check == "resources"]
    assert told.found == "cpu 5 at engine swarm, free now"
    node.coordinator.submit_job(spec, ME)

    def run() -> str:
        runs = ask(node, "operator", "GET", f"/api/v1/jobs/{spec.job_id}").json()["runs"]
        return next((str(run["engine"]) for run in runs if run["status"] == "RUNNING"), "")

    assert wait_for(run, 60, 0.01, "it runs") == "swarm"
    node.coordinator.stop_job(spec.job_id, "", ME)
    wait_for(lambda: node.store.local_jobs.get(spec.job_id).closed, 20, 0.01, "all is returned")


def test_what_ran_at_a_further_engine_is_taken_over_by_the_image_there(node):
    old = job("4.0.0", "old")
    (new,) = node.planner.first_runs(old, old.dag["a"])
    assert isinstance(node.engine, SeveralEngines)
    assert new.engine == "big"
    digest = node.engine.at("big").image_digest(new.image)
    assert digest != node.engine.image_digest(new.image)
    for address in new.outputs.values():
        folder = node.storage.root / address.namespace / address.name
        folder.mkdir(parents=True)
        (folder / "data_0").write_bytes(b"id\n1\n")
    done = replace(new, status=RunStatus.SUCCESS, image_digest=digest)
    node.store.local_jobs.add(a_local_job(done, status=JobStatus.FINISHED, spec=old), "flow")
    offer = node.inheritance.offer(replace(old, job_id="job-new", old_job_id=old.job_id))
    assert offer.tasks == ["a"]
    assert offer.lacking == {}


def test_every_engine_is_shown_with_what_holds_there(node):
    SWARM_WORLD.down = True
    try:
        shown = ask(node, "operator", "GET", "/api/v1/engine").json()
    finally:
        SWARM_WORLD.down = False
    assert shown["answers"]
    assert "at swarm: unknown" in shown["isolation"]["gaps"][-1]
    each = {one["name"]: one for one in shown["engines"]}
    assert [name for name, one in each.items() if one["answers"]] == [FAR, "big"]
    assert each["swarm"]["cause"].startswith("ENGINE_DOWN")
    assert each["big"]["isolation"]["tasks"]


def test_a_daemon_that_goes_away_ends_no_containers_elsewhere(node):
    """Killed by hand while a far daemon is away, a container has failed by itself."""
    near, distant = job("3.0.0", "killed"), job("1.0.0", "hidden")
    runs = {}
    for spec, name in ((near, ""), (distant, FAR)):
        node.coordinator.submit_job(spec, ME)
        (run,) = wait_for(
            lambda spec=spec: [
                r
                for r in node.store.local_jobs.get(spec.job_id).runs
                if r.status is RunStatus.RUNNING
            ],
            20,
            0.01,
            "its container is up",
        )
        runs[spec.job_id] = run
        assert run.engine == name
        assert isinstance(node.engine, SeveralEngines)
        assert [found.name for found in node.engine.at(name).list()] == [run.name]

    def now(spec: Any) -> Any:
        return node.store.local_jobs.get(spec.job_id).runs[0]

    FAR_WORLD.down = True
    try:
        FAR_WORLD.go_away()
        assert now(distant).away_at is not None
        assert now(near).away_at is None
        assert isinstance(node.engine.main, MemoryEngine)
        node.engine.main.finish(runs[near.job_id].name, 137)
        wait_for(lambda: now(near).over, 20, 0.01, "it has ended")
        assert now(near).failure.reason == "EXIT_137"
        assert runs[distant.job_id].name not in ask(node, "operator", "GET", "/api/v1/orphans").text
        assert not now(distant).over
    finally:
        FAR_WORLD.down = False
    node.coordinator.stop_job(distant.job_id, "", ME)
    wait_for(lambda: node.store.local_jobs.get(distant.job_id).closed, 20, 0.01, "all is returned")
