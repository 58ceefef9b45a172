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
REFERENCE = ROOT / "examples" / "reference_vendor"
SHELL = ROOT / "examples" / "shell_vendor"
SHELL_REGISTRATION = str(SHELL / "register.json")


def check(*words: str) -> tuple[int, dict[str, Any]]:
    """Check a registration; return the command's exit code and its JSON."""
    result = call("provider", "check", *words, "--json")
    assert result.stdout, result.stderr
    return result.exit_code, json.loads(result.stdout)


def broken_clauses(report: dict[str, Any]) -> list[dict[str, tuple[str, str]]]:
    """Return result and evidence of the clauses that are not ok, by clause, per component.

    Fails unless each component was checked for all clauses.
    """
    components = []
    for component in report["components"]:
        assert len(component["clauses"]) == len(CLAUSES)
        broken = {}
        for clause in component["clauses"]:
            if clause["result"] != "ok":
                broken[clause["clause"]] = (clause["result"], clause["seen"])
        components.append(broken)
    return components


def base_image() -> str:
    return os.environ.get("BFIA_TEST_BASE_IMAGE", "bfia-base:py311")


@pytest.mark.slow
def test_the_reference_vendor_keeps_every_clause():
    python = ROOT / ".venv-vendor" / "bin" / "python"

    code, report = check(
        str(REFERENCE / "register_reference.json"),
        "--command",
        f"env PYTHONPATH={REFERENCE} {python} -m refvendor",
        "--component",
        "HeteroLR",
        "--parameter",
        "max_iter=1",
        "--parameter",
        'encrypt_param={"method": "Paillier", "key_length": 1024}',
    )

    assert broken_clauses(report) == [{}]
    assert code == 0
    assert report["good"] is True


@pytest.mark.docker
def test_the_shell_vendors_image_keeps_every_clause_in_containers(tmp_path):
    image = f"bfia-conformance-shell:{uuid4().hex[:12]}"
    table = tmp_path / "guest.csv"
    table.write_text("id,y\na,1\nb,0\n")
    with contextlib.closing(Daemon()) as client:

        def networks() -> set[str]:
            return {str(network.name) for network in client.networks.list(names=["bfia-check-"])}

        networks_before = networks()

        def is_network_removed() -> bool:
            return networks() <= networks_before

        client.images.build(
            path=str(SHELL),
            tag=image,
            buildargs={"BASE": base_image()},
            labels={"component.1.name": "Echo", "component.1.version": "0.9"},
            rm=True,
        )
        try:
            code, report = check(SHELL_REGISTRATION, "--image", image, "--data", f"guest={table}")
            # Networks of other checks may be removed at the same time.
            wait_for(is_network_removed, about="its network is removed")
        finally:
            client.images.remove(image, force=True)

    assert broken_clauses(report) == [{}]
    assert code == 0
    assert report["good"] is True
    (warning,) = report["description"]["warnings"]
    assert warning["path"] == "components_description.Echo.version"
    assert "0.9" in f"{warning}"
    evidence = {}
    for clause in report["components"][0]["clauses"]:
        evidence[clause["clause"]] = clause["seen"]
    assert "cannot be changed" in evidence["input-untouched"]


@pytest.mark.docker
def test_a_container_that_allocates_without_end_is_killed_and_named(tmp_path):
    image = f"bfia-conformance-large:{uuid4().hex[:12]}"
    program = "blocks = []\nwhile True: blocks.append(bytes(range(256)) * 65536)"
    command = json.dumps(["python3", "-c", program])
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(f"FROM {base_image()}\nENTRYPOINT []\nCMD {command}\n")
    with contextlib.closing(Daemon()) as client:
        client.images.build(
            path=str(tmp_path),
            tag=image,
            rm=True,
        )
        try:
            code, report = check(SHELL_REGISTRATION, "--image", image, "--memory", "0.1")
        finally:
            client.images.remove(image, force=True)

    assert code == 1
    _, evidence = broken_clauses(report)[0]["works"]
    assert "OOM_KILLED" in evidence


def test_a_program_that_does_not_start_is_one_row_with_a_remedy(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)

    result = call("provider", "check", SHELL_REGISTRATION, "--command", str(script))

    assert result.exit_code == 1
    assert "COMMAND_NOT_FOUND" in result.stdout
    assert "Echo: together\n" in result.stderr, "in a pipe, each step is printed on its own line"
    assert f"{len(CLAUSES) - 1} of {len(CLAUSES)} clauses not shown" in result.stdout
    assert " not shown │" not in result.stdout
    assert re.search("BFIA +\n? *.*section", result.stdout)


def test_without_an_image_the_registration_alone_is_checked():
    code, report = check(SHELL_REGISTRATION)
    assert code == 0
    assert report["good"] is True
    assert report["components"] == []


def test_a_refused_registration_names_every_problem(tmp_path):
    count = {
        "roleList": "guest",
        "titel": "t",
        "inputData": [
            {"name": "t", "category": "table"},
            7,
        ],
    }
    file = tmp_path / "register.json"
    file.write_text(json.dumps({"name": "tiny", "components_description": {"Count": count}}))

    code, report = check(str(file), "--command", sys.executable)

    assert code == 1
    assert report["provider"] is None
    assert report["components"] == []
    errors = {problem["path"] for problem in report["description"]["errors"]}
    assert "version" in errors
    assert "metadata" in errors
    assert "components_description.Count.roleList" in errors
    assert "components_description.Count.inputData[1]" in errors
    warnings = {problem["path"] for problem in report["description"]["warnings"]}
    assert "components_description.Count.titel" in warnings
    assert "components_description.Count.inputData[0].category" in warnings
    assert not warnings & errors


COMMAND = ["--command", sys.executable]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--component", "Nothing"], "there are: Echo"),
        ([*COMMAND, "--clause", "nothing"], "there are: starts"),
        ([*COMMAND, "--data", "guest"], "ROLE=FILE.csv"),
        ([*COMMAND, "--data", "guest=/nowhere.csv"], "cannot be read"),
        (
            [*COMMAND, "--data", "other.model=run.sh"],
            "no component that is checked reads data of other.model",
        ),
        ([*COMMAND, "--parameter", "=1"], "NAME=VALUE"),
        ([*COMMAND, "--parameter", "fial=3"], "has a parameter fial"),
        (
            [*COMMAND, "--parameter", "fail=nine"],
            "Echo, --parameter fail: cannot be read as int (got 'nine')",
        ),
        (
            [*COMMAND, "--parameter", "host.fail=no"],
            "Echo, --parameter host.fail: cannot be read as int (got 'no')",
        ),
        (["--engine", "process"], "--command"),
        ([*COMMAND, "--image", "a:1"], "name two programs"),
        (["--command", "'true"], "--command cannot be read: No closing quotation"),
        (["--command", "nosuchcmd -x"], "'nosuchcmd' is not an executable"),
        (["--command", "./run"], f"'run' is not an executable in {SHELL}; correct the path"),
        (
            ["--command", "sh run.sh"],
            f"'run.sh' is in {SHELL}, and the program is started in a folder of its own",
        ),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_started(monkeypatch, words, message):
    monkeypatch.chdir(SHELL)
    result = call("provider", "check", SHELL_REGISTRATION, *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "together" not in result.stderr
