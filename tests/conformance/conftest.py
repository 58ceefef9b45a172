"""Runs the kit on the tiny vendor, by the process engine."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engines.process.engine import ProcessEngine
from gateway.conformance.check import CheckedComponent, TrialInput, check, check_registration
from gateway.conformance.clauses import CLAUSES, Clause
from gateway.conformance.plans import Timeouts
from gateway.conformance.sandbox import NODE, Sandbox
from provider_registry.model import Component
from tests.registry.builders import a_data, a_description, a_parameter, a_request

VENDOR = Path(__file__).with_name("tiny_vendor.py")
Run = Callable[..., CheckedComponent]


def registration(**changes: Any) -> dict[str, Any]:
    """The body that registers the tiny vendor."""
    count = a_description(
        "Count",
        provider="tiny",
        version="1",
        storageEngine=["file"],
        inputParam=[a_parameter("greeting", defaultValue="hello")],
        inputData=[a_data("table")],
        outputData=[a_data("counts", category="report", dataFormat=["json"])],
        result=[
            {"resultCode": code, "resultMessage": said}
            for code, said in (("00000000", "ok"), ("99999999", "no"))
        ],
    )
    return a_request(
        count | changes,
        name="tiny",
        version="1",
        metadata={"image": "tiny:1", "base_url": ""},
    )


def sandbox_of(
    folder: Path,
    *command: str,
    timeouts: Timeouts = Timeouts(30.0, 10.0, grace=1.0),
) -> Sandbox:
    images = {"tiny:1": command}
    engine = ProcessEngine(
        node=NODE,
        installation="test",
        images=images,
        run_root=folder / "process",
    )
    return Sandbox(engine, "tiny:1", "test", folder / "sandbox", timeouts)


def count(**changes: Any) -> Component:
    provider = check_registration(registration(**changes)).provider
    assert provider is not None
    return provider.components["Count"]


@pytest.fixture
def checked(tmp_path: Path) -> Run:
    """Check the tiny vendor with some mistakes, or none."""

    def run(
        mistakes: Sequence[str] = (),
        given: TrialInput = TrialInput(),
        clauses: Sequence[Clause] = CLAUSES,
        component: Component | None = None,
    ) -> CheckedComponent:
        sandbox = sandbox_of(tmp_path, sys.executable, "-I", "-S", str(VENDOR), *mistakes)
        try:
            return check(sandbox, component or count(), given, lambda step: None, clauses)
        finally:
            sandbox.close()

    return run
