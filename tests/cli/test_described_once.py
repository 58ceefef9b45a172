"""The description of a component alone says its parameters: everything else follows it."""

import pytest
import yaml

from engines.base import LaunchSpec
from tests import forks
from tests.cli import call_node, json_from_node
from tests.e2e.nodes import wait_for
from tests.inprocess import ME
from tests.memory_engine import Script
from tests.registry.builders import a_data, a_description, a_parameter, a_request

FORM = "/api/v1/providers/acme:1.0.0@docker/components/{}/parameters"
# Beginnings of the variables that come from the description.
FROM_DESCRIPTION = ("runtime.component.parameter.", "runtime.component.output.")


@pytest.fixture(scope="module")
def launches() -> list[LaunchSpec]:
    """The launches of the node, the first one first."""
    return []


@pytest.fixture(scope="module")
def node(shared_world, launches):
    def script(launch):
        launches.append(launch)
        return Script()

    return shared_world.node(scripts={"acme:1.0.0": script})


def register(node, output, *parameters):
    """Register the component with one output and these parameters, in place of the former."""
    description = a_description(
        inputParam=list(parameters),
        inputData=[],
        outputData=[a_data(output)],
    )
    response = node.post("/v2/provider/register", a_request(description))
    assert response.json()["code"] == 0, response.text


def draft(node):
    """Draft a job in a process of its own, so that the node's log does not mix with the draft."""
    parties = ["--party", f"guest={ME}", "--party", f"host={ME}"]
    url = node.addresses()["operator"]
    result = forks.run(["job", "draft", "acme/Algo", *parties, "--url", url])
    assert result.returncode == 0, result.stderr
    return result.stdout


def submit(node, job):
    """Submit a job in YAML, and return the body of the response."""
    return node.post("/v1/platform/schedule/job/create_all", yaml.safe_load(job)).json()


def run_job(node, launches, job):
    """Run a job; return what its two containers get from the description in their environment."""
    response = submit(node, job)
    assert response["code"] == 0, response
    session = f"session_{response['data']['job_id']}"

    def environments():
        every = [dict(launch.environment) for launch in launches]
        return [values for values in every if values["config.session_id"] == session]

    wait_for(lambda: len(environments()) == 2, 60, 0.01, "both parties are launched")
    return [described_values(environment) for environment in environments()]


def described_values(environment):
    """Return the variables of an environment that come from the description."""
    names = [name for name in environment if name.startswith(FROM_DESCRIPTION)]
    return {name: environment[name] for name in names}


def test_a_changed_description_changes_form_draft_check_and_environment(node, launches):
    depth = a_parameter(
        "depth",
        type="int",
        validator="(1,10)",
        defaultValue="3",
    )
    register(node, "scores", depth)
    form = node.get(FORM.format("Algo"))
    assert form.headers["content-type"] == "application/schema+json"
    field = form.json()["properties"]["depth"]
    assert field["type"] == "integer"
    assert field["maximum"] == 10
    assert field["default"] == 3
    assert json_from_node("provider", node, "parameters", "acme", "Algo") == form.json()
    first_job = draft(node).replace("# depth: 3", "depth: 5")
    for environment in run_job(node, launches, first_job):
        assert environment.pop("runtime.component.parameter.depth") == "5"
        assert list(environment) == ["runtime.component.output.scores"]

    shape = a_parameter(
        "shape",
        bindingData=["flat", "tall"],
        optional="false",
    )
    register(
        node,
        "ranks",
        shape,
        a_parameter("edge", defaultValue="0.1"),
    )
    assert list(node.get(FORM.format("Algo")).json()["properties"]) == ["shape", "edge"]
    assert "flat, tall" in call_node("provider", node, "parameters", "acme").stdout
    assert "shape: is missing; Algo requires it" in submit(node, first_job)["msg"]
    second_job = draft(node).replace("shape: flat", "shape: tall")
    for environment in run_job(node, launches, second_job):
        assert environment.pop("runtime.component.parameter.shape") == "tall"
        assert list(environment) == ["runtime.component.output.ranks"]


def test_an_unknown_component_has_no_form(node):
    register(node, "scores", a_parameter())
    response = node.get(FORM.format("Alog"))
    assert response.status_code == 404
    assert response.json()["data"]["reason"] == "COMPONENT_UNKNOWN"
