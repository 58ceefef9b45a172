"""Runs the kit on the tiny vendor, by the process engine."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engines.process.engine import ProcessEngine
from gateway.conformance.check import Checked, Given, check, described
from gateway.conformance.clauses import CLAUSES, Clause
from gateway.conformance.sandbox import NODE, Sandbox, Timeouts

VENDOR = Path(__file__).with_name("tiny_vendor.py")
Run = Callable[..., Checked]


def registration() -> dict[str, Any]:
    """The body that registers the tiny vendor."""
    return {
        "name": "tiny",
        "version": "1",
        "device": "docker",
        "metadata": {"image": "tiny:1", "base_url": ""},
        "components_description": {
            "Count": {
                "componentName": "Count",
                "title": "Count",
                "provider": "tiny",
                "version": "1",
                "description": "counts rows",
                "desVersion": "1.2.0",
                "roleList": ["guest", "host"],
                "storageEngine": ["file"],
                "inputParam": [
                    {
                        "name": "greeting",
                        "title": "Greeting",
                        "type": "string",
                        "optional": "true",
                        "defaultValue": "hello",
                    }
                ],
                "inputData": [
                    {"name": "table", "description": "rows", "category": "dataset", "dataFormat": ["csv"]}
                ],
                "outputData": [
                    {"name": "counts", "description": "numbers", "category": "report", "dataFormat": ["json"]}
                ],
                "result": [
                    {"resultCode": "00000000", "resultMessage": "ok"},
                    {"resultCode": "99999999", "resultMessage": "failed"},
                ],
            }
        },
    }


@pytest.fixture
def checked(tmp_path: Path) -> Run:
    """Check the tiny vendor with one mistake, or none."""

    def run(
        mistake: str = "",
        given: Given = Given(),
        clauses: Sequence[Clause] = CLAUSES,
        body: dict[str, Any] | None = None,
    ) -> Checked:
        command = (sys.executable, "-I", "-S", str(VENDOR), *([mistake] if mistake else []))
        engine = ProcessEngine(
            node=NODE, installation="test", images={"tiny:1": command}, run_root=tmp_path / "process"
        )
        sandbox = Sandbox(engine, "tiny:1", "test", tmp_path / "sandbox", Timeouts(30.0, 10.0, grace=1.0))
        provider = described(body or registration()).provider
        assert provider is not None
        try:
            return check(sandbox, provider.components["Count"], given, lambda step: None, clauses)
        finally:
            sandbox.close()

    return run
