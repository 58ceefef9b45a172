"""``bfia-gateway provider …`` at a node: the life of an image, in tables and in JSON."""

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
    """An engine whose images have a digest that a test may change."""

    digest = "sha256:1"

    def image_metadata(self, image: str) -> ImageMetadata:
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


def write_registration(folder: Path, body: object) -> str:
    """Write the body of a registration, and return the name of its file."""
    file = folder / "registration.json"
    file.write_text(json.dumps(body))
    return str(file)


def test_an_image_is_registered_changed_compared_retired_and_taken_back(node, tmp_path):
    plain = a_request(a_description(storageEngine=["file"]))
    first = cli(
        node,
        "register",
        write_registration(tmp_path, plain),
        "-m",
        "the first",
    )
    assert first.exit_code == 0, first.output
    assert first.stdout == "acme:1.0.0@docker registered, revision 1\n"

    parameter = a_parameter(
        title="new",
        validator="(1,0)",
    )
    changed = a_request(a_description(storageEngine=["file"], inputParam=[parameter]))
    second = cli(node, "register", write_registration(tmp_path, changed))
    assert 'inputParam[p].title: "p" → "new"' in second.stdout
    assert "1 warning\n" in second.stdout
    assert "lower bound above" in second.stdout
    same = cli(node, "register", write_registration(tmp_path, changed)).stdout
    assert same.startswith("acme:1.0.0@docker is unchanged: nothing differs from revision 2\n")
    request = a_component_request("Other", title="其他", title_en="Another algorithm")
    assert cli(node, "register", write_registration(tmp_path, request)).exit_code == 0

    listed = cli(node, "list", "--component", "Other").stdout
    assert "acme:1.0.0@docker" in listed
    assert "Algo, Other" in listed
    assert "pinned" in listed
    details = cli(node, "show", "acme").stdout
    assert "sha256:1" in details
    assert "revision" in details
    assert "Other" in details
    assert "Another algorithm" in details
    assert "其他" not in details
    difference = cli(node, "diff", "acme:1.0.0", "--since", "1", "--until", "2").stdout
    assert "~ components_description.Algo.inputParam[p].title: p → new" in difference

    assert cli(node, "retire", "acme", "-m", "flawed").exit_code == 0
    assert "retired" in cli(node, "list").stdout
    assert json.loads(cli(node, "list", "--in-use", "--json").stdout)["providers"] == []
    assert cli(node, "unretire", "acme").exit_code == 0

    history = json.loads(cli(node, "history", "acme:1.0.0@docker", "--json").stdout)["history"]
    update, registration = history[-2:]
    assert update["revision"] == 2
    assert update["action"] == "updated"
    assert update["reason"] == ""
    assert registration["revision"] == 1
    assert registration["action"] == "registered"
    assert registration["reason"] == "the first"
    assert "flawed" in cli(node, "history", "acme").stdout


def test_a_moved_image_is_approved(node, tmp_path, monkeypatch):
    cli(node, "register", write_registration(tmp_path, a_request()))
    monkeypatch.setattr(node.engine, "digest", "sha256:2")
    approved = cli(node, "approve", "acme", "-m", "rebuilt")
    assert approved.exit_code == 0
    assert '"sha256:1" → "sha256:2"' in approved.stdout


def test_a_missing_image_is_a_warning_and_with_strict_a_refusal(node, tmp_path):
    file = write_registration(
        tmp_path,
        a_request(
            name="far",
            metadata={"image": "far:1"},
        ),
    )
    refused = cli(node, "register", file, "--strict")
    assert refused.exit_code == 2
    assert "IMAGE_NOT_USABLE" in refused.stderr
    odd = a_description(inputParam=[a_parameter(validator="(1,0)")])
    file = write_registration(
        tmp_path,
        a_request(
            odd,
            name="far",
            metadata={"image": "far:1"},
        ),
    )
    warned = cli(node, "register", file)
    lines = warned.stdout.splitlines()
    assert warned.exit_code == 0, warned.stdout
    assert "4 warnings" in lines[1]
    assert "IMAGE_NOT_FOUND" in lines[2]
    warning = (
        "  components_description.Algo.inputParam[0].validator: "
        "has a lower bound above the upper one, so nothing is checked (got '(1,0)')"
    )
    assert warning in lines
    assert "not pinned" in cli(node, "list", "--name", "far").stdout
    assert cli(node, "approve", "far").exit_code == 1


def test_an_ambiguous_name_is_refused_with_the_candidates(node, tmp_path):
    for version in ("1.0.0", "2.0.0"):
        cli(
            node,
            "register",
            write_registration(tmp_path, a_request(version=version)),
        )
    unclear = cli(node, "retire", "acme")
    message = (
        "acme may be any of acme:1.0.0@docker, acme:2.0.0@docker: name version and device, too\n"
    )
    assert unclear.exit_code == 2
    assert unclear.stderr == message
    assert re.search(r"可能是 .+：请同时给出版本与设备", translate(message, "zh"))

    for command in ("retire", "unretire", "retire"):
        assert cli(node, command, "acme:1.0.0").stdout.startswith("acme:1.0.0@docker ")
    assert "acme:2.0.0@docker" in cli(node, "show", "acme").stdout
    assert cli(node, "unretire", "acme").stdout.startswith("acme:1.0.0@docker ")
    for name, message in (
        ("nobody", "no provider nobody is registered\n"),
        ("amce:1.0.0", "did you mean acme?"),
    ):
        unknown = cli(node, "show", name)
        assert unknown.exit_code == 1
        assert message in unknown.stderr
    assert cli(node, "history", "nobody:1@docker").exit_code == 1


def test_a_name_is_given_to_a_vendor(node, tmp_path):
    cli(node, "register", write_registration(tmp_path, a_request()))
    transferred = cli(node, "give", "acme", "--to", "ann").stdout
    assert transferred == "acme belonged to the admins, now to ann\n"
    assert "ann" in cli(node, "list", "--owner", "ann").stdout
    assert cli(node, "give", "acme", "--to", "").exit_code == 0


def test_extra_rights_of_a_providers_containers_are_listed_and_shown(tmp_path, use_language):
    rights = {
        "mounts": [{"source": "/srv/models", "target": "/opt/models"}],
        "capabilities": ["NET_RAW"],
        "compute": "spark://10.0.0.9:7077",
    }
    engine = {"kind": "process", "docker": {"allow": {"acme": rights}}}
    make = Engine.making({IMAGE: Script()})
    with running(tmp_path, make_engine=make, engine=engine) as node:
        cli(node, "register", write_registration(tmp_path, a_request()))

        for command in (["list"], ["show", "acme"]):
            shown = " ".join(cli(node, *command).stdout.split())
            for right in ("/srv/models at /opt/models", "NET_RAW", "spark://10.0.0.9:7077"):
                assert right in shown

        use_language("zh")
        in_chinese = " ".join(cli(node, "show", "acme").stdout.split())
        assert "额外权限" in in_chinese
        assert "只读" in in_chinese
        assert "Linux 能力 NET_RAW" in in_chinese


def test_a_list_without_extra_rights_has_no_column_for_them(node, tmp_path):
    cli(node, "register", write_registration(tmp_path, a_request()))

    assert "rights" not in cli(node, "list").stdout
