"""A component's parameters stand in its description and nowhere else: whatever shows or checks them follows it."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from engines.base import LaunchSpec
from gateway.bootstrap.node import Gateway
from tests import forks
from tests.cli import call_node, json_from_node
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, ask, running
from tests.memory_engine import MemoryEngine, Script
from tests.registry.builders import a_data, a_description, a_parameter, a_request

IMAGE = "acme:1.0.0"
FORM = "/api/v1/providers/acme:1.0.0@docker/components/Algo/parameters"
launched: list[LaunchSpec] = []


def script(launch: LaunchSpec) -> Script:
    launched.append(launch)
    return Script()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    make = MemoryEngine.making({IMAGE: script})
    with running(tmp_path_factory.mktemp("node"), make_engine=make) as gateway:
        yield gateway


def described(
    node: Gateway,
    output: str,
    *parameters: dict[str, Any],
) -> None:
    """Register the component as it is now."""
    description = a_description(
        inputParam=list(parameters),
        inputData=[],
        outputData=[a_data(output)],
    )
    answer = ask(node, "operator", "POST", "/v2/provider/register", json=a_request(description))
    assert answer.json()["code"] == 0, answer.text


def drafted(node: Gateway, *words: str) -> str:
    """Draft a job in a process of its own, away from the node's log."""
    parties = ["--party", f"guest={ME}", "--party", f"host={ME}"]
    done = forks.run(["job", "draft", *words, *parties, "--url", node.addresses()["operator"]])
    assert done.returncode == 0, done.stderr
    return done.stdout


def submitted(node: Gateway, job: str) -> Any:
    body = yaml.safe_load(job)
    return ask(node, "operator", "POST", "/v1/platform/schedule/job/create_all", json=body).json()


def environments(node: Gateway, job: str) -> list[dict[str, str]]:
    """Return what the containers of a job found in their environment, all but what every one finds there."""
    answer = submitted(node, job)
    assert answer["code"] == 0, answer
    session = f"session_{answer['data']['job_id']}"

    def of_job() -> list[dict[str, str]]:
        return [
            dict(one.environment)
            for one in launched
            if one.environment["config.session_id"] == session
        ]

    wait_for(lambda: len(of_job()) == 2, 60, 0.01, "both parties are launched")
    start = ("runtime.component.parameter.", "runtime.component.output.")
    return [{k: v for k, v in one.items() if k.startswith(start)} for one in of_job()]


def test_a_changed_description_changes_form_draft_check_and_environment(node):
    described(
        node,
        "scores",
        a_parameter(
            "depth",
            type="int",
            validator="(1,10)",
            defaultValue="3",
        ),
    )
    served = ask(node, "operator", "GET", FORM)
    assert served.headers["content-type"] == "application/schema+json"
    assert (
        served.json()["properties"]["depth"].items()
        >= {
            "type": "integer",
            "maximum": 10,
            "default": 3,
        }.items()
    )
    assert json_from_node("provider", node, "parameters", "acme", "Algo") == served.json()
    before = drafted(node, "acme/Algo").replace("# depth: 3", "depth: 5")
    for environment in environments(node, before):
        assert environment.pop("runtime.component.parameter.depth") == "5"
        assert list(environment) == ["runtime.component.output.scores"]

    chosen = a_parameter("shape", bindingData=["flat", "tall"], optional="false")
    described(node, "ranks", chosen, a_parameter("edge", defaultValue="0.1"))
    assert list(ask(node, "operator", "GET", FORM).json()["properties"]) == ["shape", "edge"]
    assert "flat, tall" in call_node("provider", node, "parameters", "acme").stdout
    assert "shape: is missing; Algo requires it" in submitted(node, before)["msg"]
    for environment in environments(
        node, drafted(node, "acme/Algo").replace("shape: flat", "shape: tall")
    ):
        assert environment.pop("runtime.component.parameter.shape") == "tall"
        assert list(environment) == ["runtime.component.output.ranks"]


def test_a_component_that_is_not_there_has_no_form(node):
    described(node, "scores", a_parameter())
    answer = ask(node, "operator", "GET", FORM.replace("Algo", "Alog"))
    assert answer.status_code == 404
    assert answer.json()["data"]["reason"] == "COMPONENT_UNKNOWN"
