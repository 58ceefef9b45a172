"""The engine contract, over every engine there is."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.engine_contract import EngineContract
from tests.contracts.harnesses import MemoryHarness, ProcessHarness


class TestMemory(EngineContract):
    @pytest.fixture
    def harness(self) -> Iterator[MemoryHarness]:
        with contextlib.closing(MemoryHarness()) as harness:
            yield harness


class TestProcess(EngineContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[ProcessHarness]:
        with contextlib.closing(ProcessHarness(tmp_path / "runs")) as harness:
            yield harness


@pytest.mark.docker
class TestDocker(EngineContract):
    """With the harness that the tests of the Docker engine share."""
