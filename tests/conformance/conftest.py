"""Runs the conformance check on the tiny vendor, with the process engine, and opens storages."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engines.process.engine import ProcessEngine
from gateway.conformance.check import CheckedComponent, TrialInput, check, check_registration
from gateway.conformance.clauses import CLAUSES, Clause
from gateway.conformance.plans import Timeouts
from gateway.conformance.sandbox import NODE, Sandbox
from provider_registry.model import Component
from tests import storages
from tests.registry.builders import a_data, a_description, a_parameter, a_request

VENDOR = Path(__file__).with_name("tiny_vendor.py")
CheckVendor = Callable[..., CheckedComponent]


def ignore_step(step: str) -> None:
    """Take the name of a step of a check, which is printed for users."""


def registration(**changes: Any) -> dict[str, Any]:
    """Return the registration of the tiny vendor; ``changes`` apply to its component."""
    count = a_description(
        "Count",
        provider="tiny",
        version="1",
        storageEngine=["file"],
        inputParam=[a_parameter("greeting", defaultValue="hello")],
        inputData=[a_data("table")],
        outputData=[a_data("counts", category="report", dataFormat=["json"])],
        result=[
            {"resultCode": "00000000", "resultMessage": "ok"},
            {"resultCode": "99999999", "resultMessage": "no"},
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
    timeouts: Timeouts = Timeouts(
        30.0,
        10.0,
        grace=1.0,
    ),
    engine_type: type[ProcessEngine] = ProcessEngine,
) -> Sandbox:
    """Return a sandbox below a folder that runs a command in place of the tiny vendor's image."""
    engine = engine_type(
        node=NODE,
        installation="test",
        images={"tiny:1": command},
        run_root=folder / "process",
    )
    return Sandbox(engine, "tiny:1", "test", folder / "sandbox", timeouts)


def count_component(**changes: Any) -> Component:
    """Return the tiny vendor's component; ``changes`` apply to its description."""
    provider = check_registration(registration(**changes)).provider
    assert provider is not None
    return provider.components["Count"]


@pytest.fixture
def check_vendor(tmp_path: Path) -> CheckVendor:
    """A function that checks the tiny vendor with some mistakes, by default none."""

    def run(
        mistakes: Sequence[str] = (),
        trial_input: TrialInput = TrialInput(),
        clauses: Sequence[Clause] = CLAUSES,
        component: Component | None = None,
    ) -> CheckedComponent:
        component = component or count_component()
        sandbox = sandbox_of(tmp_path, sys.executable, "-I", "-S", str(VENDOR), *mistakes)
        try:
            return check(sandbox, component, trial_input, ignore_step, clauses)
        finally:
            sandbox.close()

    return run


@pytest.fixture(
    params=[
        "file",
        pytest.param("s3", marks=pytest.mark.s3),
        pytest.param("hdfs", marks=pytest.mark.hdfs),
    ]
)
def storage_url(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """The address of an empty storage, as a run gets it."""
    if request.param == "file":
        yield f"file://{tmp_path}/storage"
        return
    monkeypatch.setenv("HADOOP_USER_NAME", "")  # restored after the test
    places = {"s3": storages.bucket, "hdfs": storages.folder}
    with places[request.param]() as place:
        yield place.url
