"""The two vendors of this repository, checked by the command as a vendor would."""

import contextlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gateway.conformance.clauses import CLAUSES
from tests.cli import call
from tests.e2e.nodes import wait_for
from tests.services.own_docker import Daemon

ROOT = Path(__file__).resolve().parents[2]
SHELL = ROOT / "examples" / "shell_vendor"


def check(*words: str) -> tuple[int, dict[str, Any]]:
    done = call("provider", "check", *words, "--json")
    assert done.stdout, done.stderr
    return done.exit_code, json.loads(done.stdout)


def not_ok(found: dict[str, Any]) -> list[dict[str, tuple[str, str]]]:
    """Return for each component the clauses that are not kept, with what was seen."""
    assert all(len(component["clauses"]) == len(CLAUSES) for component in found["components"])
    return [
        {c["clause"]: (c["result"], c["seen"]) for c in component["clauses"] if c["result"] != "ok"}
        for component in found["components"]
    ]


@pytest.mark.slow
def test_the_reference_vendor_keeps_every_clause():
    home = ROOT / "examples" / "reference_vendor"
    vendor = f"env PYTHONPATH={home} {ROOT / '.venv-vendor' / 'bin' / 'python'} -m refvendor"
    code, found = check(
        str(home / "register_reference.json"),
        *("--command", vendor, "--component", "HeteroLR"),
        *(
            "--parameter",
            "max_iter=1",
            "--parameter",
            'encrypt_param={"method": "Paillier", "key_length": 1024}',
        ),
    )
    assert not_ok(found) == [{}]
    assert code == 0
    assert found["good"] is True


@pytest.mark.docker
def test_the_shell_vendors_image_keeps_every_clause_in_containers(tmp_path):
    image = f"bfia-conformance-shell:{uuid4().hex[:12]}"
    base = os.environ.get("BFIA_TEST_BASE_IMAGE", "bfia-base:py311")
    label = {"component.1.name": "Echo", "component.1.version": "0.9"}
    table = tmp_path / "guest.csv"
    table.write_text("id,y\na,1\nb,0\n")
    with contextlib.closing(Daemon()) as client:

        def networks() -> set[str]:
            return {str(n.name) for n in client.networks.list(names=["bfia-check-"])}

        before = networks()
        client.images.build(
            path=str(SHELL),
            tag=image,
            buildargs={"BASE": base},
            labels=label,
            rm=True,
        )
        try:
            code, found = check(
                str(SHELL / "register.json"), "--image", image, "--data", f"guest={table}"
            )
            wait_for(
                lambda: networks() <= before,
                about="its network is removed, and those of other checks are",
            )
        finally:
            client.images.remove(image, force=True)
    assert not_ok(found) == [{}]
    assert code == 0
    assert found["good"] is True
    (warning,) = found["description"]["warnings"]
    assert warning["path"] == "components_description.Echo.version"
    assert "0.9" in f"{warning}"
    seen = {c["clause"]: c["seen"] for c in found["components"][0]["clauses"]}
    assert "cannot be changed" in seen["input-untouched"]


@pytest.mark.docker
def test_a_container_that_allocates_without_end_is_killed_and_named(tmp_path):
    image = f"bfia-conformance-large:{uuid4().hex[:12]}"
    endless = ["python3", "-c", "held = []\nwhile True: held.append(bytes(range(256)) * 65536)"]
    base = os.environ.get("BFIA_TEST_BASE_IMAGE", "bfia-base:py311")
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nENTRYPOINT []\nCMD {json.dumps(endless)}\n")
    with contextlib.closing(Daemon()) as client:
        client.images.build(
            path=str(tmp_path),
            tag=image,
            rm=True,
        )
        try:
            code, found = check(str(SHELL / "register.json"), "--image", image, "--memory", "0.1")
        finally:
            client.images.remove(image, force=True)
    seen = {name: said for name, (_, said) in not_ok(found)[0].items()}
    assert code == 1
    assert "OOM_KILLED" in seen["works"]
    assert len(found["components"][0]["clauses"]) == len(CLAUSES)


def test_what_does_not_start_is_one_row_with_what_to_do(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    words = ["provider", "check", str(SHELL / "register.json"), "--command", str(script)]
    done = call(*words)
    assert done.exit_code == 1
    assert "COMMAND_NOT_FOUND" in done.stdout
    assert "Echo: together\n" in done.stderr, "in a pipe, what is being done is a line each"
    others = f"{len(CLAUSES) - 1} of {len(CLAUSES)} clauses not shown"
    assert others in done.stdout
    assert " not shown │" not in done.stdout
    assert re.search("BFIA +\n? *.*section", done.stdout)


def test_without_an_image_the_registration_alone_is_checked():
    code, found = check(str(SHELL / "register.json"))
    assert code == 0
    assert found["good"] is True
    assert found["components"] == []


def test_a_refused_registration_names_every_problem(tmp_path):
    file = tmp_path / "register.json"
    count = {
        "roleList": "guest",
        "titel": "t",
        "inputData": [{"name": "t", "category": "table"}, 7],
    }
    file.write_text(json.dumps({"name": "tiny", "components_description": {"Count": count}}))
    code, found = check(str(file), "--command", sys.executable)
    assert code == 1
    assert found["provider"] is None
    assert found["components"] == []
    paths = {p["path"] for p in found["description"]["errors"]}
    place = "components_description.Count."
    assert {"version", "metadata", f"{place}roleList", f"{place}inputData[1]"} <= paths
    warned = {p["path"] for p in found["description"]["warnings"]}
    assert {f"{place}titel", f"{place}inputData[0].category"} <= warned
    assert not warned & paths


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--component", "Nothing"], "there are: Echo"),
        (["--clause", "nothing"], "there are: starts"),
        (["--data", "guest"], "ROLE=FILE.csv"),
        (["--data", "guest=/nowhere.csv"], "cannot be read"),
        (
            ["--data", "other.model=run.sh"],
            "no component that is checked reads data of other.model",
        ),
        (["--parameter", "=1"], "NAME=VALUE"),
        (["--parameter", "fial=3"], "has a parameter fial"),
        (
            ["--parameter", "fail=nine"],
            "Echo, --parameter fail: cannot be read as int (got 'nine')",
        ),
        (
            ["--parameter", "host.fail=no"],
            "Echo, --parameter host.fail: cannot be read as int (got 'no')",
        ),
        (["--engine", "process"], "--command"),
        (["--image", "a:1"], "name two programs"),
        (["--command", "'true"], "--command cannot be read: No closing quotation"),
        (["--command", "nosuchcmd -x"], "'nosuchcmd' is not an executable"),
        (["--command", "./run"], f"'run' is not an executable in {SHELL}; correct the path"),
        (
            ["--command", "sh run.sh"],
            f"'run.sh' is in {SHELL}, and the program is started in a folder of its own",
        ),
    ],
)
def test_a_wrong_option_is_named(monkeypatch, words, says):
    monkeypatch.chdir(SHELL)
    command = [] if "process" in words or "Nothing" in words else ["--command", sys.executable]
    done = call("provider", "check", str(SHELL / "register.json"), *command, *words)
    assert done.exit_code == 2
    assert says in done.stderr and "together" not in done.stderr, "before anything is started"
