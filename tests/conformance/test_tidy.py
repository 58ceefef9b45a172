"""What a check leaves behind, and how much it says."""

from pathlib import Path

import pytest

from engines.base import EngineError
from gateway.conformance.clauses import CLAUSES
from gateway.conformance.evidence import Evidence, Requests, StateReport, Trace, Trial
from gateway.conformance.sandbox import Sandbox
from provider_registry.registration import provider_from_request
from tests.conformance.conftest import registration
from tests.contracts.engine_acts import a_spec, exits
from tests.contracts.harnesses import MemoryHarness
from tests.memory_engine import MemoryEngine, Script


class Reluctant(MemoryEngine):
    """Does not let go of the first run that it is asked to remove, and notes whether it was closed."""

    kept = ""
    closed = False

    def remove(self, name: str) -> None:
        self.kept = self.kept or name
        if name == self.kept:
            raise EngineError(f"{name} is in use")
        super().remove(name)

    def close(self) -> None:
        self.closed = True
        super().close()


def test_a_container_that_cannot_be_removed_keeps_no_other_and_is_told(tmp_path: Path):
    harness = MemoryHarness()
    specs = [a_spec(harness, exits(0)) for _ in range(3)]
    engine = Reluctant(
        node="alpha", installation=harness.installation, images={spec.image: Script(None) for spec in specs}
    )
    for spec in specs:
        engine.launch(spec)
    assert len(engine.list()) == 3
    with pytest.raises(EngineError, match="in use"):
        Sandbox(engine, "tiny:1", harness.installation, tmp_path).close()
    assert [found.name for found in engine.list()] == [engine.kept] and engine.closed


def test_a_state_that_is_told_again_and_again_is_said_once():
    words = [StateReport(status, "t", "guest", True) for status in ("RUNNING",) * 300 + ("SUCCESS",)]
    trace = Trace("guest.0", "t", "s", "k", Requests(tuple(words)), code=0, stdout=b"begins\n")
    component = provider_from_request(registration()).components["Count"]
    judge = next(clause.judge for clause in CLAUSES if clause.name == "callback-sent")
    assert judge(Evidence(component, Trial((trace,)))).seen == "guest.0 reported RUNNING (300 times), SUCCESS"
