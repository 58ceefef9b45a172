"""The descriptions: files, command line, registration body and code say the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from refvendor.__main__ import main
from refvendor.components import REGISTRY
from refvendor.registration import COMPONENTS, as_text, registration

HERE = Path(__file__).parent.parent
KINDS = {"string", "int", "float", "boolean", "integer", "number", "object", "list"}
CATEGORIES = {"dataset", "training_set", "test_set", "model", "report", "metric"}


def test_the_registration_file_is_what_the_image_prints(capsys):
    assert main(["--registration"]) == 0
    printed = capsys.readouterr().out
    assert printed == as_text(registration())
    assert printed == (HERE / "register_reference.json").read_text(encoding="utf-8"), (
        "write it again with: python -m refvendor --registration"
    )


def test_list_and_describe(capsys):
    main(["--list"])
    assert capsys.readouterr().out.split() == list(COMPONENTS)
    for name in COMPONENTS:
        main(["--describe", name])
        assert json.loads(capsys.readouterr().out) == registration()["components_description"][name]


def test_an_unknown_component_is_not_described(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--describe", "Nothing"])
    assert caught.value.code == 2
    assert "Intersection" in capsys.readouterr().err


def test_described_components_are_those_that_run():
    body = registration()
    assert set(body["components_description"]) == set(REGISTRY)
    for name, text in body["components_description"].items():
        assert text["componentName"] == name
        assert set(text["roleList"]) == set(REGISTRY[name])
        assert (text["provider"], text["version"]) == (body["name"], body["version"])


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_value_of_a_description_is_legal(name):
    text = registration()["components_description"][name]
    assert all(code["resultCode"] and code["resultMessage"] for code in text["result"])
    names = [parameter["name"] for parameter in text["inputParam"]]
    assert len(set(names)) == len(names)
    for parameter in text["inputParam"]:
        assert parameter["title"] and parameter["type"] in KINDS and parameter["optional"] is True
        assert isinstance(parameter["defaultValue"], str)
        offered = [binding["value"] for binding in parameter.get("bindingData", [])]
        if offered:
            assert parameter["defaultValue"] in offered
        if parameter["type"] in ("object", "list"):
            json.loads(parameter["defaultValue"])
        for dependency in parameter.get("dependsOn", []):
            assert dependency.partition(".")[0] in names
    for spec in (*text["inputData"], *text["outputData"]):
        assert spec["category"] in CATEGORIES and spec["dataFormat"]


def test_the_lock_names_no_index_and_pins_every_package_by_hash():
    for file in ("requirements.txt", "requirements-test.txt"):
        text = (HERE / file).read_text()
        assert "://" not in text
        packages = [line for line in text.splitlines() if "==" in line]
        assert packages and all(line.endswith("\\") for line in packages)
        assert text.count("--hash=sha256:") >= len(packages)


def test_a_component_loads_only_what_it_runs_with():
    code = (
        "import sys; from refvendor.__main__ import main; "
        "import refvendor.components.intersection; main(['--list']); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=HERE, check=False).returncode == 0
