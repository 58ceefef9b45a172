"""A container whose job asked for nothing writes to its own /tmp until a disk, or its inodes, are used up."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from engines.base import DiskUse, Exited, ImageMetadata, LaunchSpec, Limits
from engines.docker import ContainerdEngine, DockerOptions
from engines.process.engine import ProcessEngine
from gateway.bootstrap import parts
from gateway.data import workspace
from tests.contracts.engine_acts import exits, launched, said
from tests.contracts.harnesses import DockerHarness, ProcessHarness
from tests.core.test_engine_failures import ended
from tests.core.test_shells import submit
from tests.e2e.nodes import wait_for
from tests.inprocess import running
from tests.services.own_docker import remove_network

MIB = 1024**2
WAITS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
print("done", flush=True)
signal.pause()
"""
WRITES = "open('/tmp/big', 'wb').write(b'x' * {size})" + WAITS
MAKES_FILES = (
    """
for n in range({files}):
    open(f"/tmp/{{n}}\\"Kind\\":", "w").close()
"""
    + WAITS
)


class Attacked(ContainerdEngine):
    """Runs one program, whatever image it is asked for."""

    image, program = DockerHarness("").image, ""

    def image_digest(self, image: str) -> str:
        return super().image_digest(self.image)

    def image_facts(self, image: str) -> ImageMetadata:
        return super().image_facts(self.image)

    def launch(self, spec: LaunchSpec) -> None:
        super().launch(
            replace(
                spec,
                image=self.image,
                digest="",
                command=("python3", "-c", self.program),
            )
        )


@pytest.mark.docker
def test_a_container_that_fills_a_disk_ends_by_what_it_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own layer counts, and so do files without content; who asked for no disk has what the node may give."""

    name = f"bfia-fills-{uuid4().hex[:8]}"

    def make(settings: Any, installation: str) -> Attacked:
        return Attacked(settings.node.id, installation, DockerOptions(network=name))

    usual = parts.run_timing  # it is while a run is probed that its disk is looked at
    monkeypatch.setattr(
        parts, "run_timing", lambda settings: replace(usual(settings), probe_every=0.1)
    )
    monkeypatch.setattr(workspace, "PAUSE_FACTOR", 0)
    pace, resources = parts.Pace(disk_check=0.1, files=1000), {"disk_gib": 0.05}
    with running(
        tmp_path,
        make_engine=make,
        pace=pace,
        engine={"kind": "docker"},
        resources=resources,
    ) as node:
        engine = node.engine
        assert isinstance(engine, Attacked)
        for engine.program, disk, told in (
            (WRITES.format(size=64 * MIB), 0.02, "it may take 0.020 GiB of disk"),
            (WRITES.format(size=64 * MIB), None, "it asked for none: resources.disk"),
            (MAKES_FILES.format(files=3000), None, "more than 1000 files"),
        ):
            failure = ended(node, submit(node, disk=disk).json()["data"]["job_id"]).ending.failure
            assert failure.reason == "NO_SPACE" and told in failure.message
        wait_for(lambda: list(engine.list()) == [], 30, about="the containers are taken away")
        remove_network(name, engine.remove_network)


@pytest.mark.docker
def test_an_engine_measures_what_a_container_wrote_outside_its_mounts(
    harness: DockerHarness, tmp_path: Path
) -> None:
    engine = harness.engine()
    for program, size, made in (
        (WRITES.format(size=5 * MIB), 5 * MIB, 2),
        (MAKES_FILES.format(files=50), 0, 51),
    ):
        spec = launched(harness, engine, exits(0), command=("python3", "-c", program))
        said(engine, spec.name, b"done")
        found = engine.disk_use(spec.name, 1000)
        assert found.size == size and made <= found.files < made + 10, (
            "the engine makes some itself"
        )
        assert engine.disk_use(spec.name, 1).files > 1
        engine.remove(spec.name)
        assert engine.disk_use(spec.name, 10) == DiskUse()


def test_a_local_runs_working_folder_is_measured_too(tmp_path: Path) -> None:
    harness = ProcessHarness(tmp_path / "runs")
    try:
        engine: ProcessEngine = harness.engine()
        program = "dd if=/dev/zero of=big bs=1M count=3 2>/dev/null; touch a b c; ulimit -n; ulimit -Hn; sleep 600"
        spec = launched(
            harness, engine, exits(0), command=("sh", "-c", program), limits=Limits(pids=None)
        )
        said(engine, spec.name, b"\n")
        found = engine.disk_use(spec.name, 100)
        assert found.files == 4 and 3 * MIB <= found.size < 4 * MIB
        assert all(int(n) <= 65_536 for n in engine.logs(spec.name).stdout.split())
        engine.stop(spec.name, 0)
        assert isinstance(engine.probe(spec.name), Exited)
    finally:
        harness.close()
