"""The descriptions: files, command line, registration body and code say the same."""

import subprocess
import sys
from pathlib import Path

from refvendor import IMAGE, PROVIDER, VERSION
from refvendor.__main__ import main
from refvendor.components import REGISTRY
from refvendor.registration import registration

HERE = Path(__file__).parent.parent


def test_the_registration_file_is_what_the_image_prints(capsys):
    assert main(["--registration"]) == 0
    assert capsys.readouterr().out == (HERE / "register_reference.json").read_text(encoding="utf-8")


def test_described_components_are_those_that_run():
    body = registration()
    assert set(body["components_description"]) == set(REGISTRY)
    assert body["name"] == PROVIDER
    assert body["version"] == VERSION
    assert body["metadata"]["image"] == IMAGE
    for name, text in body["components_description"].items():
        assert text["componentName"] == name
        assert set(text["roleList"]) == set(REGISTRY[name])
        assert text["provider"] == body["name"]
        assert text["version"] == body["version"]


def test_the_lock_names_no_index_and_pins_every_package_by_hash():
    for file in ("requirements.txt", "requirements-test.txt"):
        text = (HERE / file).read_text()
        assert "://" not in text
        packages = [line for line in text.splitlines() if "==" in line]
        assert packages
        assert all(line.endswith("\\") for line in packages)
        assert text.count("--hash=sha256:") >= len(packages)


def test_a_component_loads_only_what_it_runs_with():
    code = (
        "import sys; from refvendor.__main__ import main; "
        "import refvendor.components.intersection; main(['--registration']); sys.exit('numpy' in "
        "sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=HERE, check=False).returncode == 0
