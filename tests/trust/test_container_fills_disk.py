"""Attack: a container whose job requested no disk fills a disk, or its inodes, by its own /tmp."""

from dataclasses import replace
from uuid import uuid4

import pytest

from engines.base import DiskUse, Exited, Limits
from engines.docker import ContainerdEngine, DockerOptions
from gateway.bootstrap import parts
from gateway.data import workspace
from tests.contracts.engine_acts import exits, launch_run, wait_for_output
from tests.contracts.harnesses import DockerHarness, ProcessHarness
from tests.core.example_jobs import run_to_end
from tests.e2e.nodes import wait_for
from tests.inprocess import running
from tests.services.own_docker import remove_network

MIB = 1024**2
# End of a program: waits to be stopped.
WAIT = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
print("done", flush=True)
signal.pause()
"""
WRITE = "open('/tmp/big', 'wb').write(b'x' * {size})" + WAIT
# The names need escaping in JSON.
MAKE_FILES = (
    """
for n in range({files}):
    open(f"/tmp/{{n}}\\"Kind\\":", "w").close()
"""
    + WAIT
)


class AttackedEngine(ContainerdEngine):
    """Runs one program for every image."""

    image = DockerHarness("").image
    program = ""

    def image_digest(self, image):
        return super().image_digest(self.image)

    def image_metadata(self, image):
        return super().image_metadata(self.image)

    def launch(self, spec):
        command = ("python3", "-c", self.program)
        super().launch(replace(spec, image=self.image, digest="", command=command))


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Give a node with 0.05 GiB disk for jobs, which measures the disk of runs very often."""
    network = f"bfia-fills-{uuid4().hex[:8]}"

    def make_engine(settings, installation):
        options = DockerOptions(network=network)
        return AttackedEngine(settings.node.id, installation, options)

    run_timing = parts.run_timing

    def frequent_probes(settings):
        """Probe runs often: their disk is measured with each probe."""
        return replace(
            run_timing(settings),
            probe_every=0.1,
        )

    monkeypatch.setattr(parts, "run_timing", frequent_probes)
    monkeypatch.setattr(workspace, "PAUSE_FACTOR", 0)
    with running(
        tmp_path,
        make_engine=make_engine,
        pace=parts.Pace(
            disk_check=0.1,
            files=1000,
        ),
        engine={"kind": "docker"},
        resources={"disk_gib": 0.05},
    ) as node:
        yield node
        remove_network(network, node.engine.remove_network)


@pytest.mark.docker
@pytest.mark.parametrize(
    ("program", "disk_gib", "message"),
    [
        (WRITE.format(size=64 * MIB), 0.02, "it may take 0.020 GiB of disk"),
        (WRITE.format(size=64 * MIB), None, "the node's limit, as the job sets no resources.disk"),
        (MAKE_FILES.format(files=3000), None, "more than 1000 files"),
    ],
    ids=["requested disk", "the node's disk", "files"],
)
def test_a_container_that_fills_a_disk_ends(node, program, disk_gib, message):
    """Its own layer counts, and so do empty files."""
    node.engine.program = program

    failure = run_to_end(node, disk_gib).ending.failure

    assert failure.reason == "NO_SPACE"
    assert message in failure.message
    wait_for(lambda: not node.engine.list(), 30, about="the containers are removed")


@pytest.mark.docker
@pytest.mark.parametrize(
    ("program", "size", "files"),
    [
        (WRITE.format(size=5 * MIB), 5 * MIB, 2),
        (MAKE_FILES.format(files=50), 0, 51),
    ],
    ids=["one large file", "many empty files"],
)
def test_an_engine_measures_what_a_container_wrote_outside_its_mounts(
    harness, program, size, files
):
    engine = harness.engine()
    spec = launch_run(
        harness,
        engine,
        exits(0),
        command=("python3", "-c", program),
    )
    wait_for_output(engine, spec.name, b"done")

    disk_use = engine.disk_use(spec.name, 1000)

    assert disk_use.size == size
    assert files <= disk_use.files < files + 10  # some are made by the engine
    assert engine.disk_use(spec.name, 1).files > 1
    engine.remove(spec.name)
    assert engine.disk_use(spec.name, 10) == DiskUse()


@pytest.fixture
def process_harness(tmp_path):
    harness = ProcessHarness(tmp_path / "runs")
    yield harness
    harness.close()


def test_the_working_folder_of_a_local_run_is_measured_too(process_harness):
    engine = process_harness.engine()
    commands = [
        "dd if=/dev/zero of=big bs=1M count=3 2>/dev/null",
        "touch a b c",
        "ulimit -n",
        "ulimit -Hn",
        "sleep 600",
    ]
    spec = launch_run(
        process_harness,
        engine,
        exits(0),
        command=("sh", "-c", "; ".join(commands)),
        limits=Limits(pids=None),
    )
    wait_for_output(engine, spec.name, b"\n")

    disk_use = engine.disk_use(spec.name, 100)

    assert disk_use.files == 4
    assert 3 * MIB <= disk_use.size < 4 * MIB
    for limit in engine.logs(spec.name).stdout.split():
        assert int(limit) <= 65_536  # open files
    engine.stop(spec.name, 0)
    assert isinstance(engine.probe(spec.name), Exited)
