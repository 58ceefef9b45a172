"""``bfia-gateway provider …`` against a node."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from gateway.wiring import Gateway
from tests.inprocess import running
from tests.registry.builders import a_component_request, a_description, a_request


@pytest.fixture
def node(tmp_path: Path):
    with running(tmp_path / "node") as gateway:
        yield gateway


def cli(gateway: Gateway, *words: str) -> Result:
    return CliRunner().invoke(app, ["provider", *words, "--url", gateway.addresses()["operator"]])


def written(folder: Path, body: object) -> str:
    file = folder / "registration.json"
    file.write_text(json.dumps(body))
    return str(file)


def test_an_image_is_registered_in_either_form_and_listed(node: Gateway, tmp_path: Path):
    first = cli(node, "register", written(tmp_path, a_request()))
    assert first.exit_code == 0 and first.stdout == "create success\n"
    assert cli(node, "register", written(tmp_path, a_component_request("Other"))).exit_code == 0
    listed = cli(node, "list", "--name", "acme").stdout
    assert "acme:1.0.0@docker" in listed and "Algo, Other" in listed


def test_a_broken_description_is_refused_with_all_its_problems(node: Gateway, tmp_path: Path):
    body = a_request(a_description(roleList=[], inputParam=3))
    refused = cli(node, "register", written(tmp_path, body))
    assert refused.exit_code == 2
    assert "components_description.Algo.roleList" in refused.stderr and ".inputParam" in refused.stderr
