"""``bfia-gateway provider …`` against a node: an image's whole life, in tables for people and JSON for scripts."""

import json
import re
from functools import partial
from pathlib import Path

import pytest

from engines.base import ImageMetadata
from gateway.bootstrap.node import Gateway
from gateway.language.catalogue import translate
from tests.cli import call_node
from tests.inprocess import running
from tests.memory_engine import MemoryEngine, Script
from tests.registry.builders import a_component_request, a_description, a_parameter, a_request

IMAGE = "acme:1.0.0"


class Engine(MemoryEngine):
    digest = "sha256:1"

    def image_facts(self, image: str) -> ImageMetadata:
        self.image_digest(image)
        return ImageMetadata(self.digest)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory):
    make = Engine.making({IMAGE: Script()})
    with running(tmp_path_factory.mktemp("node"), make_engine=make) as gateway:
        yield gateway


@pytest.fixture
def node(gateway: Gateway):
    yield gateway
    for provider in gateway.registry.query():
        gateway.registry.remove(provider.key)


cli = partial(call_node, "provider")


def written(folder: Path, body: object) -> str:
    file = folder / "registration.json"
    file.write_text(json.dumps(body))
    return str(file)


def test_an_image_is_registered_changed_compared_retired_and_taken_back(node, tmp_path):
    plain = a_request(a_description(storageEngine=["file"]))
    first = cli(node, "register", written(tmp_path, plain), "-m", "the first")
    assert first.exit_code == 0 and first.stdout == "acme:1.0.0@docker registered, revision 1\n", (
        first.output
    )
    parameter = a_parameter(title="new", validator="(1,0)")
    changed = a_request(a_description(storageEngine=["file"], inputParam=[parameter]))
    second = cli(node, "register", written(tmp_path, changed))
    assert 'inputParam[p].title: "p" → "new"' in second.stdout
    assert "1 warning\n" in second.stdout
    assert "lower bound above" in second.stdout
    same = cli(node, "register", written(tmp_path, changed)).stdout
    assert same.startswith("acme:1.0.0@docker is unchanged: nothing differs from revision 2\n")
    assert cli(node, "register", written(tmp_path, a_component_request("Other"))).exit_code == 0
    listed = cli(node, "list", "--component", "Other").stdout
    assert "acme:1.0.0@docker" in listed
    assert "Algo, Other" in listed
    assert "pinned" in listed
    shown = cli(node, "show", "acme").stdout
    assert "sha256:1" in shown
    assert "revision" in shown
    assert "Other" in shown
    difference = cli(node, "diff", "acme:1.0.0", "--since", "1", "--until", "2").stdout
    assert "~ components_description.Algo.inputParam[p].title: p → new" in difference
    assert cli(node, "retire", "acme", "-m", "flawed").exit_code == 0
    assert "retired" in cli(node, "list").stdout
    assert json.loads(cli(node, "list", "--in-use", "--json").stdout)["providers"] == []
    assert cli(node, "unretire", "acme").exit_code == 0
    past = json.loads(cli(node, "history", "acme:1.0.0@docker", "--json").stdout)["history"]
    assert [(r["revision"], r["action"], r["reason"]) for r in past][-2:] == [
        (2, "updated", ""),
        (1, "registered", "the first"),
    ]
    assert "flawed" in cli(node, "history", "acme").stdout


def test_a_moved_image_is_approved(node, tmp_path, monkeypatch):
    cli(node, "register", written(tmp_path, a_request()))
    monkeypatch.setattr(node.engine, "digest", "sha256:2")
    approved = cli(node, "approve", "acme", "-m", "rebuilt")
    assert approved.exit_code == 0
    assert '"sha256:1" → "sha256:2"' in approved.stdout


def test_an_image_that_is_not_here_is_told_and_strict_refuses_it(node, tmp_path):
    file = written(tmp_path, a_request(name="far", metadata={"image": "far:1"}))
    refused = cli(node, "register", file, "--strict")
    assert refused.exit_code == 2
    assert "IMAGE_NOT_USABLE" in refused.stderr
    odd = a_description(inputParam=[a_parameter(validator="(1,0)")])
    warned = cli(
        node, "register", written(tmp_path, a_request(odd, name="far", metadata={"image": "far:1"}))
    )
    lines = warned.stdout.splitlines()
    assert warned.exit_code == 0 and "IMAGE_NOT_FOUND" in lines[2] and "4 warnings" in lines[1], (
        warned.stdout
    )
    place = "  components_description.Algo.inputParam[0].validator"
    assert (
        f"{place}: has a lower bound above the upper one, so nothing is checked (got '(1,0)')"
        in lines
    )
    assert "not pinned" in cli(node, "list", "--name", "far").stdout
    assert cli(node, "approve", "far").exit_code == 1


def test_a_name_that_is_not_clear_is_answered_with_what_there_is(node, tmp_path):
    for version in ("1.0.0", "2.0.0"):
        cli(node, "register", written(tmp_path, a_request(version=version)))
    unclear = cli(node, "retire", "acme")
    said = "acme may be any of acme:1.0.0@docker, acme:2.0.0@docker: name version and device, too\n"
    assert unclear.exit_code == 2
    assert unclear.stderr == said
    assert re.search(r"可能是 .+：请同时给出版本与设备", translate(said, "zh"))
    for what in ("retire", "unretire", "retire"):
        assert cli(node, what, "acme:1.0.0").stdout.startswith("acme:1.0.0@docker ")
    assert "acme:2.0.0@docker" in cli(node, "show", "acme").stdout
    assert cli(node, "unretire", "acme").stdout.startswith("acme:1.0.0@docker ")
    for name, said in (
        ("nobody", "no provider nobody is registered\n"),
        ("amce:1.0.0", "did you mean acme?"),
    ):
        unknown = cli(node, "show", name)
        assert unknown.exit_code == 1
        assert said in unknown.stderr
    assert cli(node, "history", "nobody:1@docker").exit_code == 1


def test_a_name_is_given_to_a_vendor(node, tmp_path):
    cli(node, "register", written(tmp_path, a_request()))
    assert (
        cli(node, "give", "acme", "--to", "ann").stdout
        == "acme belonged to the admins, now to ann\n"
    )
    assert "ann" in cli(node, "list", "--owner", "ann").stdout
    assert cli(node, "give", "acme", "--to", "").exit_code == 0
