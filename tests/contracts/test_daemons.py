"""Providers at further daemons: the admin allows each daemon by name, all others are refused."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body, ending_fields
from engines.base import Capacity, Engine, EngineDown, ImageNotFound, LaunchSpec, Missing, Running
from engines.multi import SeveralEngines
from gateway.bootstrap.node import Gateway
from gateway.cli.main import app
from gateway.domain.amounts import GIB
from gateway.domain.dry_run import Item, Standing
from gateway.domain.run import Run
from gateway.domain.spec import Ending, Failure, JobSpec
from gateway.domain.states import JobStatus, Outcome, RunStatus
from gateway.errors import Invalid, Refused
from provider_registry.registration import provider_from_request
from tests.builders import a_local_job, a_spec
from tests.contracts.apis import IMAGE, registration
from tests.contracts.engine_acts import a_spec as a_launch
from tests.contracts.engine_acts import exits
from tests.contracts.engine_contract import EngineContract
from tests.contracts.harnesses import MemoryHarness
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, Node, ask, serving, settings
from tests.memory_engine import MemoryEngine, MemoryWorld, Script

ADDRESS = "ssh://bfia@10.0.0.9"  # of the daemon of the engine FAR
FAR = "far"
FAR_WORLD = MemoryWorld()
SWARM_WORLD = MemoryWorld()


class SeveralHarness(MemoryHarness):
    """The memory engine as the main one of two."""

    def _build(
        self,
        node: str,
        installation: str,
        **options: Any,
    ) -> Any:
        far = MemoryEngine(
            node=node,
            installation=installation,
            images={},
        )
        return SeveralEngines(
            super()._build(node, installation),
            {"far": far},
        )


class TestSeveral(EngineContract):
    @pytest.fixture
    def harness(self) -> Iterator[SeveralHarness]:
        harness = SeveralHarness()
        yield harness
        harness.close()


# ------------------------------------------------------------ two engines without a node


class Pair:
    """The worlds of a near and a far engine, which outlive the engine objects."""

    def __init__(self) -> None:
        self.near = MemoryWorld()
        self.far = MemoryWorld()

    def engines(self) -> SeveralEngines:
        """Return new engine objects: the main one has the image near:1, the far one far:1."""
        near = _an_engine("near:1", self.near)
        return SeveralEngines(
            near,
            {"far": _an_engine("far:1", self.far)},
        )


def _an_engine(image: str, world: MemoryWorld) -> MemoryEngine:
    return MemoryEngine(
        node="alpha",
        installation="first",
        images={image: Script(code=None)},
        world=world,
    )


@pytest.fixture
def pair() -> Pair:
    return Pair()


def a_launch_at(image: str, engine: str) -> LaunchSpec:
    spec = a_launch(MemoryHarness(), exits(0))
    return replace(
        spec,
        image=image,
        engine=engine,
    )


def test_a_run_goes_to_its_engine_and_another_instance_finds_it(pair):
    near = a_launch_at("near:1", "")
    far = a_launch_at("far:1", "far")
    first = pair.engines()
    first.launch(near)
    first.launch(far)
    with pytest.raises(ImageNotFound):
        first.launch(a_launch_at("far:1", ""))

    second = pair.engines()

    assert {run.name for run in second.list()} == {near.name, far.name}
    assert isinstance(second.probe(far.name), Running)
    assert second.main.probe(far.name) == Missing()
    second.remove(far.name)
    assert first.probe(far.name) == Missing()
    assert isinstance(first.probe(near.name), Running)
    assert first.image_digest("far:1") == first.at("far").image_digest("far:1")


def test_only_runs_of_the_main_engine_have_an_address(pair):
    near = a_launch_at("near:1", "")
    far = a_launch_at("far:1", "far")
    engine = pair.engines()
    for spec in (near, far):
        engine.launch(spec)
        memory_engine_at(engine, spec.engine).addresses[spec.name] = "172.18.0.2"

    assert engine.address(near.name) == "172.18.0.2"
    assert engine.address(far.name) == ""


def memory_engine_at(engine: Engine, name: str) -> MemoryEngine:
    """Return one of several engines; "" is the main one."""
    assert isinstance(engine, SeveralEngines)
    memory_engine = engine.at(name)
    assert isinstance(memory_engine, MemoryEngine)
    return memory_engine


def test_an_engine_that_is_away_hides_only_its_own_runs(pair):
    near = a_launch_at("near:1", "")
    far = a_launch_at("far:1", "far")
    engine = pair.engines()
    engine.launch(near)
    engine.launch(far)

    pair.far.down = True

    assert [run.name for run in engine.list()] == [near.name]
    engine.check()
    assert isinstance(engine.probe(near.name), Running)
    with pytest.raises(EngineDown):
        engine.probe(far.name)
    newcomer = pair.engines()  # has never seen the run
    with pytest.raises(EngineDown):
        newcomer.probe(far.name)
    assert "far" in engine.isolation().gaps[-1]
    with pytest.raises(EngineDown, match="elsewhere"):
        engine.launch(a_launch_at("near:1", "elsewhere"))


class UnwatchableEngine(MemoryEngine):
    """An engine that cannot be watched."""

    def watch(self, on_exit: Any, on_away: Any = None) -> Any:
        raise EngineDown("no watch")


def test_no_engine_stays_watched_if_another_cannot_be(pair):
    exited: list[str] = []
    near = a_launch_at("near:1", "")
    unwatchable = UnwatchableEngine(node="alpha", installation="first", images={})
    engine = SeveralEngines(_an_engine("near:1", pair.near), {"far": unwatchable})
    engine.launch(near)

    with pytest.raises(EngineDown):
        engine.watch(exited.append)
    engine.stop(near.name, 0.0)

    assert exited == []


def test_only_the_main_engine_asks_registries_for_images(pair):
    engine = pair.engines()

    assert engine.image_metadata("far:1") == engine.at("far").image_metadata("far:1")
    assert engine.registry_digest("near:1", 1.0) == engine.main.image_digest("near:1")
    with pytest.raises(ImageNotFound):
        engine.registry_digest("far:1", 1.0)
    with pytest.raises(ImageNotFound):
        engine.image_metadata("nowhere:1")


# ------------------------------------------------------------ a node with four engines


class NewerImages(MemoryEngine):
    """An engine of another kind, with another version of each image."""

    kind = "kubernetes"

    def image_digest(self, image: str) -> str:
        return f"newer-{super().image_digest(image)}"


def four_engines(settings: Any, installation: str) -> SeveralEngines:
    """Return the main engine and three named ones; only the engine FAR lacks the near image."""

    def engine(
        image: str,
        cores: int,
        world: MemoryWorld,
        gpus: int = 0,
        engine_class: type[MemoryEngine] = MemoryEngine,
    ) -> MemoryEngine:
        return engine_class(
            node=ME,
            installation=installation,
            images={image: Script(code=None)},
            world=world,
            capacity=Capacity(cores, 8 * GIB, gpus),
        )

    near_image = f"near-{IMAGE}"
    named = {
        FAR: engine(IMAGE, 16, FAR_WORLD),
        "big": engine(
            near_image,
            32,
            MemoryWorld(),
            gpus=2,
            engine_class=NewerImages,
        ),
        "swarm": engine(near_image, 64, SWARM_WORLD),
    }
    return SeveralEngines(
        engine(near_image, 2, MemoryWorld()),
        named,
    )


# Providers of the node by version: device and metadata.
PROVIDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "1.0.0": (
        "docker",
        {"base_url": ADDRESS},
    ),
    "2.0.0": (
        "docker",
        {"base_url": "tcp://10.0.0.66:2375"},
    ),
    "3.0.0": (
        "docker",
        {"base_url": "unix:///run/own.sock"},
    ),
    "4.0.0": (
        "docker",
        {"engine": "big", "base_url": "unix:///run/own.sock"},
    ),
    "5.0.0": ("swarm", {}),
    "6.0.0": ("k8s", {}),
    "7.0.0": (
        "docker",
        {"engine_kinds": ["kubernetes", "process"]},
    ),
    "8.0.0": (
        "docker",
        {"engine_kinds": ["kubernetes"], "engine": "big"},
    ),
}


def register_provider(gateway: Gateway, version: str) -> None:
    """Register the vendor in this version of `PROVIDERS`."""
    device, metadata = PROVIDERS[version]
    image = IMAGE if version == "1.0.0" else f"near-{IMAGE}"
    body = registration()
    body["version"] = version
    body["device"] = device
    body["metadata"] = {**metadata, "image": image}
    for component in body["components_description"].values():
        component["version"] = version
    gateway.registry.register(provider_from_request(body))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A node with `four_engines`; one vendor is registered for several daemons."""
    home = tmp_path_factory.mktemp("node")
    (home / "routes.yml").write_text(yaml.safe_dump({PEER: {"url": "http://127.0.0.1:9"}}))
    any_port = "127.0.0.1:0"
    listen = {
        "peer": {"bind": any_port},
        "operator": {"bind": any_port},
        "container": {
            "bind": any_port,
            "advertise": "http://10.0.0.5:7381",
        },
    }
    engines = {
        FAR: {
            "base_url": ADDRESS,
            "cpu": 12,
        },
        "big": {
            "base_url": "unix:///run/big.sock",
            "memory_gib": 4,
        },
        "swarm": {"base_url": "tcp://10.0.0.8:1"},
    }
    node_settings = settings(
        home,
        listen=listen,
        engine={
            "kind": "docker",
            "docker": {"base_url": "unix:///run/own.sock"},
        },
        engines=engines,
    )
    gateway = Node(node_settings, engine=four_engines)
    for version in PROVIDERS:
        register_provider(gateway, version)
    with serving(gateway):
        gateway.capacities.look(FAR)
        yield gateway


def a_job(
    version: str,
    name: str = "daemon",
    cpu: float = -1,
    **resources: int,
) -> JobSpec:
    """Return a job of one task with the provider of this version; ``cpu`` -1: no request."""
    params = {"guest": {"0": {"resources": {"cpu": cpu, **resources}}}}
    spec = a_spec(
        "a",
        {"guest": (ME,)},
        job_id=f"job-{name}-{version}",
        initiator=ME,
        scheduler=ME,
        job_params=params,
    )
    (task,) = spec.dag.nodes
    task = replace(
        task,
        component=replace(
            task.component,
            version=version,
        ),
    )
    return replace(
        spec,
        dag=replace(
            spec.dag,
            nodes=(task,),
        ),
    )


def get(node: Gateway, path: str) -> Any:
    """Return the body of an operator's request."""
    return ask(node, "operator", "GET", path).json()


def metrics_of(node: Gateway) -> str:
    return ask(node, "operator", "GET", "/metrics").text


def resource_item(node: Gateway, spec: JobSpec) -> Item:
    """Return the resource check of a dry run of the job."""
    items = node.participant.dry_run(spec, ME)
    (item,) = [item for item in items if item.check == "resources"]
    return item


def stop(node: Gateway, spec: JobSpec) -> None:
    node.coordinator.stop_job(spec.job_id, "", ME)


def wait_until_closed(node: Gateway, spec: JobSpec) -> None:
    """Wait until the job has returned its resources."""
    wait_for(lambda: node.store.local_jobs.get(spec.job_id).closed, 20, 0.01, "all is returned")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.0.0", ["DAEMON_NOT_ALLOWED", "tcp://10.0.0.66:2375", "(engines)"]),
        ("6.0.0", ["@k8s is to run at k8s"]),
        (
            "7.0.0",
            [
                "ENGINE_UNSUITABLE",
                "run on engines of kind kubernetes, process, and the engine of node",
                "is of kind memory",
            ],
        ),
    ],
    ids=["address", "device", "kind"],
)
def test_a_job_for_an_engine_that_is_not_here_is_refused(node, version, words):
    with pytest.raises((Invalid, Refused)) as refusal:
        node.participant.create_job(a_job(version), ME)

    assert refusal.value.problems[0].path == "dag.components[0]"
    assert all(word in refusal.value.message for word in words)
    assert node.store.local_jobs.find(f"job-daemon-{version}") is None


def components_item(node: Gateway, version: str) -> Item:
    """Return the item about components in a dry run of a job with the provider of a version."""
    items = node.participant.dry_run(a_job(version), ME)
    assert "image" not in {item.check for item in items if item.standing is Standing.PROBLEM}
    [item] = [item for item in items if item.check == "components"]
    return item


def test_a_plan_says_that_images_are_for_other_engines(node):
    item = components_item(node, "7.0.0")

    assert item.standing is Standing.PROBLEM
    assert item.cause.startswith("ENGINE_UNSUITABLE: ")
    assert "metadata.engine" in item.remedy


def test_images_run_at_the_engine_of_their_kind_that_they_name(node):
    assert components_item(node, "8.0.0").standing is not Standing.PROBLEM


def refusal_text(
    node: Gateway,
    listener: str,
    path: str,
    spec: JobSpec,
) -> str:
    """Submit a job at a listener; return the text of the refusal."""
    body = create_body(spec, PROFILES["spec"])
    headers = {"x-source-node-id": PEER}
    refusal = ask(node, listener, "POST", path, json=body, headers=headers).json()
    assert refusal["code"] in (400, 409), refusal
    return str(refusal)


def test_operators_see_the_addresses_of_daemons_and_partners_do_not(node):
    spec = a_job("2.0.0", "told")
    partner_spec = replace(spec, scheduler=PEER)

    for_partner = refusal_text(node, "peer", "/v1/interconn/schedule/job/create", partner_spec)
    for_operator = refusal_text(node, "operator", "/v1/platform/schedule/job/create_all", spec)

    assert "DAEMON_NOT_ALLOWED" in for_partner
    assert "10.0.0" not in for_partner
    assert "tcp://…" in for_partner
    assert "DAEMON_NOT_ALLOWED" in for_operator
    assert "tcp://10.0.0.66" in for_operator


def test_an_ending_for_partners_has_no_address_of_a_daemon(node):
    failure = Failure("ENGINE_DOWN", f"engine {ADDRESS} has not answered")

    fields = ending_fields(Ending(Outcome.FAILED, node.clock(), failure))

    assert fields["failed_by"]["message"] == "engine ssh://… has not answered"


def far_engine(node: Gateway) -> Any:
    """Return the resources of the engine FAR as operators see them."""
    main, far, *_ = get(node, "/api/v1/resources")["engines"]
    assert main["main"] is True
    assert main["total"]["cpu"] == 2
    assert main["held"]["cpu"] == 0
    assert main["total"]["disk_gib"] > 0
    assert "disk_gib" not in far["total"]  # the disk belongs to the node's storage
    assert far["engine"] == FAR
    return far


def waiting_reason(node: Gateway, spec: JobSpec) -> str:
    """Return the reason for which the job waits for resources; "" if it does not wait."""
    waiting = get(node, "/api/v1/resources")["waiting"]
    reasons = [entry["reason"] for entry in waiting if entry["job_id"] == spec.job_id]
    return next(iter(reasons), "")


def wait_for_cpu(
    node: Gateway,
    count: int,
    event: str,
) -> None:
    """Wait until tasks hold this many cores of the engine FAR."""
    wait_for(lambda: far_engine(node)["held"]["cpu"] == count, 20, 0.01, event)


def test_each_engine_has_totals_of_its_own_and_a_task_holds_where_it_runs(node):
    with pytest.raises(Refused, match=r"^guest\.0 asks for cpu 8, the engine of node \w+ has 2"):
        node.participant.create_job(
            a_job("3.0.0", "wide", 8),
            ME,
        )
    # The engine has 16 cores, of which the settings allow 12.
    too_wide = f"cpu 13 .guest.0., engine {FAR} of node .* has cpu 12"
    with pytest.raises(Refused, match=too_wide):
        node.participant.create_job(
            a_job("1.0.0", "wider", 13),
            ME,
        )
    first = a_job("1.0.0", "wide", 8)
    second = a_job("1.0.0", "next", 5)

    node.coordinator.submit_job(first, ME)

    wait_for_cpu(node, 8, "the first job holds eight cores of the far engine")
    far = far_engine(node)
    assert far["total"]["cpu"] == 12
    assert far["remaining"]["cpu"] == 4
    assert far["cores"] == 16
    resources = get(node, f"/api/v1/jobs/{first.job_id}")["resources"]
    assert resources["total"]["cpu"] == 0
    assert resources["engines"][FAR]["total"]["cpu"] == 8

    node.coordinator.submit_job(second, ME)

    reason = wait_for(lambda: waiting_reason(node, second), 20, 0.01, "the second job waits")
    holder = f"held by job {first.job_id} (cpu 8)"
    assert reason == f"needs cpu 5 at engine {FAR} on node {ME}, free cpu 4, {holder}"
    printed = CliRunner().invoke(app, ["resources", "--url", node.addresses()["operator"]]).stdout
    assert f"engine {FAR}" in printed
    assert first.job_id in printed
    metrics = metrics_of(node)
    assert f'bfia_engine_resources_free{{engine="{FAR}",kind="cpu"}} 4.0' in metrics
    assert 'bfia_resources_held{kind="cpu"} 0.0' in metrics
    item = resource_item(node, a_job("1.0.0", "planned", 5))
    assert item.found == f"cpu 5 at engine {FAR}"
    assert item.cause == reason

    FAR_WORLD.down = True
    try:
        node.capacities.look(FAR)
        down = f"ENGINE_DOWN: engine {FAR} of node {ME} has not"
        wait_for(
            lambda: waiting_reason(node, second).startswith(down),
            20,
            0.01,
            "the second job waits for the engine",
        )
        far = far_engine(node)
        assert far["total"]["cpu"] == 12
        assert far["held"]["cpu"] == 8
        assert bool(far["cause"]) is True
        metrics = metrics_of(node)
        assert f'bfia_engine_answers{{engine="{FAR}"}} 0.0' in metrics
        assert 'bfia_engine_answers{engine="main"} 1.0' in metrics
    finally:
        FAR_WORLD.down = False
        node.capacities.look(FAR)

    stop(node, first)
    wait_for_cpu(node, 5, "the second job holds its cores")
    stop(node, second)
    wait_for_cpu(node, 0, "all is returned")


def test_gpus_belong_to_the_engine_of_a_task_and_more_are_refused(node):
    no_gpu = f"^one task at a time needs gpu 1 .guest.0., engine {FAR} of .* has gpu 0$"
    with pytest.raises(Refused, match=no_gpu):
        node.participant.create_job(
            a_job("1.0.0", "none", gpu=1),
            ME,
        )
    too_many = r"^one task at a time needs gpu 3 .guest.0., engine big of .* has gpu 2$"
    with pytest.raises(Refused, match=too_many):
        node.participant.create_job(
            a_job(
                "4.0.0",
                "three",
                gpu=3,
            ),
            ME,
        )
    first = a_job("4.0.0", "two", gpu=2)
    second = a_job("4.0.0", "one", gpu=1)

    node.coordinator.submit_job(first, ME)

    big = memory_engine_at(node.engine, "big")
    wait_for(
        lambda: [launch.limits.gpu for launch in big.launches] == [2],
        20,
        0.01,
        "the first job runs with both GPUs",
    )
    run = node.store.local_jobs.get(first.job_id).runs[0]
    assert run.limits["gpu"] == 2
    assert run.limit_origins["gpu"] == "guest.0"
    item = resource_item(node, second)
    assert item.found == "gpu 1 at engine big"
    assert f"free gpu 0, held by job {first.job_id} (gpu 2)" in item.cause
    metrics = metrics_of(node)
    assert 'bfia_engine_resources_held{engine="big",kind="gpu"} 2.0' in metrics
    assert f'engine="{FAR}",kind="gpu"' not in metrics


def test_a_provider_chooses_an_engine_by_its_device(node):
    spec = a_job("5.0.0", "chosen", 5)
    assert resource_item(node, spec).found == "cpu 5 at engine swarm, free now"

    node.coordinator.submit_job(spec, ME)

    def engine_of_running() -> str:
        runs = get(node, f"/api/v1/jobs/{spec.job_id}")["runs"]
        engines = [str(run["engine"]) for run in runs if run["status"] == "RUNNING"]
        return next(iter(engines), "")

    assert wait_for(engine_of_running, 60, 0.01, "it runs") == "swarm"
    stop(node, spec)
    wait_until_closed(node, spec)


def test_outputs_of_a_further_engine_are_inherited_by_its_image(node):
    old = a_job("4.0.0", "old")
    (run,) = node.planner.tentative_runs(
        old,
        old.dag["a"],
    )
    assert run.engine == "big"
    assert isinstance(node.engine, SeveralEngines)
    digest = node.engine.at("big").image_digest(run.software.image)
    assert digest != node.engine.image_digest(run.software.image)
    for address in run.data.outputs.values():
        folder = node.storage.root / address.namespace / address.name
        folder.mkdir(parents=True)
        (folder / "data_0").write_bytes(b"id\n1\n")
    finished_run = replace(
        run,
        status=RunStatus.SUCCESS,
        software=replace(run.software, digest=digest),
    )
    finished_job = a_local_job(
        finished_run,
        status=JobStatus.FINISHED,
        spec=old,
    )
    node.store.local_jobs.add(finished_job, "flow")

    offer = node.inheritance.offer(replace(old, job_id="job-new", old_job_id=old.job_id))

    assert offer.tasks == ["a"]
    assert offer.lacking == {}


def test_operators_see_every_engine_with_its_isolation(node):
    SWARM_WORLD.down = True
    try:
        body = get(node, "/api/v1/engine")
    finally:
        SWARM_WORLD.down = False

    assert body["answers"]
    assert "at swarm: unknown" in body["isolation"]["gaps"][-1]
    engines = {engine["name"]: engine for engine in body["engines"]}
    assert [name for name, engine in engines.items() if engine["answers"]] == [FAR, "big"]
    assert engines["swarm"]["cause"].startswith("ENGINE_DOWN")
    assert engines["big"]["isolation"]["tasks"]


def wait_for_run(node: Gateway, spec: JobSpec) -> Run:
    """Wait until the only run of a job is running; return it."""

    def running() -> list[Run]:
        runs = node.store.local_jobs.get(spec.job_id).runs
        return [run for run in runs if run.status is RunStatus.RUNNING]

    (run,) = wait_for(running, 20, 0.01, "its container is up")
    return run


def test_a_daemon_that_goes_away_ends_no_containers_elsewhere(node):
    """A container that is killed by hand has failed by itself, although a far daemon is away."""
    near = a_job("3.0.0", "killed")
    distant = a_job("1.0.0", "hidden")
    runs = {}
    for spec, engine in ((near, ""), (distant, FAR)):
        node.coordinator.submit_job(spec, ME)
        run = wait_for_run(node, spec)
        assert run.engine == engine
        assert [listed.name for listed in node.engine.at(engine).list()] == [run.name]
        runs[spec.job_id] = run

    def stored_run(spec: JobSpec) -> Run:
        return node.store.local_jobs.get(spec.job_id).runs[0]

    FAR_WORLD.down = True
    try:
        FAR_WORLD.go_away()
        assert stored_run(distant).away_at is not None
        assert stored_run(near).away_at is None

        memory_engine_at(node.engine, "").finish(runs[near.job_id].name, 137)

        wait_for(lambda: stored_run(near).over, 20, 0.01, "it has ended")
        assert stored_run(near).failure.reason == "EXIT_137"
        orphans = ask(node, "operator", "GET", "/api/v1/orphans").text
        assert runs[distant.job_id].name not in orphans
        assert not stored_run(distant).over
    finally:
        FAR_WORLD.down = False
    stop(node, distant)
    wait_until_closed(node, distant)
