"""A container whose job asked for nothing writes to its own /tmp until a disk, or its inodes, are used up."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.base import Exited, ImageMetadata, LaunchSpec, Limits, Written
from engines.docker import ContainerdEngine, DockerOptions
from engines.process.engine import ProcessEngine
from gateway.bootstrap.node import Gateway
from tests.contracts.engine_acts import a_spec, exits, said
from tests.contracts.harnesses import DockerHarness, ProcessHarness
from tests.core.test_engine_failures import ended
from tests.core.test_shells import submit
from tests.e2e.nodes import wait_for
from tests.inprocess import running

MIB = 1024**2
WRITES = "import time\nopen('/tmp/big', 'wb').write(b'x' * {size})\nprint('done', flush=True)\ntime.sleep(600)"
MAKES_FILES = """
import os, time
for n in range({files}):
    open(f"/tmp/{{n}}\\"Kind\\":", "w").close()
print("done", flush=True)
time.sleep(600)
"""


@contextmanager
def attacked(tmp_path: Path, program: str, **settings: Any) -> Iterator[Gateway]:
    """Serve a node with a real daemon whose every image runs the program."""
    base = DockerHarness("").image

    class Attacked(ContainerdEngine):
        def image_digest(self, image: str) -> str:
            return super().image_digest(base)

        def image_facts(self, image: str) -> ImageMetadata:
            return super().image_facts(base)

        def launch(self, spec: LaunchSpec) -> None:
            super().launch(replace(spec, image=base, digest="", command=("python3", "-c", program)))

    def make(settings: Any, installation: str) -> ContainerdEngine:
        network = f"bfia-fills-{installation[:8]}"
        return Attacked(settings.node.id, installation, DockerOptions(network=network))

    limits = {"disk_check_seconds": 0.1} | settings.pop("limits", {})
    with running(tmp_path, make_engine=make, engine={"kind": "docker"}, limits=limits, **settings) as node:
        yield node
        wait_for(lambda: list(node.engine.list()) == [], 30, about="the containers are taken away")
        assert isinstance(node.engine, ContainerdEngine)
        node.engine.remove_network()


@pytest.mark.docker
def test_the_containers_own_layer_counts_as_its_disk(tmp_path: Path) -> None:
    with attacked(tmp_path, WRITES.format(size=64 * MIB)) as node:
        failure = ended(node, submit(node, disk=0.03).json()["data"]["job_id"]).ending.failure
        assert failure.reason == "NO_SPACE" and "it may take 0.030 GiB of disk" in failure.message


@pytest.mark.docker
def test_a_job_that_asked_for_no_disk_is_bounded_by_what_the_node_has(tmp_path: Path) -> None:
    with attacked(tmp_path, WRITES.format(size=64 * MIB), resources={"disk_gib": 0.04}) as node:
        failure = ended(node, submit(node).json()["data"]["job_id"]).ending.failure
        assert failure.reason == "NO_SPACE" and "it asked for none: resources.disk" in failure.message


@pytest.mark.docker
def test_files_without_content_are_counted(tmp_path: Path) -> None:
    with attacked(tmp_path, MAKES_FILES.format(files=3000), limits={"files": 1000}) as node:
        failure = ended(node, submit(node).json()["data"]["job_id"]).ending.failure
        assert failure.reason == "NO_SPACE" and "more than 1000 files" in failure.message


@pytest.mark.docker
def test_an_engine_tells_what_a_container_wrote_beside_its_mounts(harness: DockerHarness, tmp_path: Path) -> None:
    engine = harness.engine()
    for program, size, files in ((WRITES.format(size=5 * MIB), 5 * MIB, 2), (MAKES_FILES.format(files=50), 0, 51)):
        spec = a_spec(harness, exits(0), command=("python3", "-c", program))
        engine.launch(spec)
        said(engine, spec.name, b"done")
        found = engine.written(spec.name, 1000)
        assert found.size == size and files <= found.files < files + 10, "the engine makes some itself"
        assert engine.written(spec.name, 1).files > 1
        engine.remove(spec.name)
        assert engine.written(spec.name, 10) == Written()


def test_a_local_runs_working_folder_is_measured_too(tmp_path: Path) -> None:
    harness = ProcessHarness(tmp_path / "runs")
    try:
        engine: ProcessEngine = harness.engine()
        program = "dd if=/dev/zero of=big bs=1M count=3 2>/dev/null; touch a b c; ulimit -n; ulimit -Hn; sleep 600"
        spec = a_spec(harness, exits(0), command=("sh", "-c", program), limits=Limits(pids=None))
        engine.launch(spec)
        said(engine, spec.name, b"\n")
        found = engine.written(spec.name, 100)
        assert found.files == 4 and 3 * MIB <= found.size < 4 * MIB
        assert all(int(n) <= 65_536 for n in engine.logs(spec.name).stdout.split())
        engine.stop(spec.name, 0)
        assert isinstance(engine.probe(spec.name), Exited)
    finally:
        harness.close()
