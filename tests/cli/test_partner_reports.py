"""``partner report`` and ``partner show``: what was found when a partner's platform was checked."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.client import EXIT_BAD_INPUT
from gateway.conformance.platforms.findings import fails
from tests.cli import call_node, json_from_node
from tests.conformance.platforms.reports import report_content, signed_report
from tests.inprocess import ME, PEER
from tests.world import UNREACHABLE, NodeSetup

NODE = NodeSetup(routes={PEER: {**UNREACHABLE, "institution": "bank"}})


def cli(node: Any, *words: str) -> Any:
    """Run a command about partners."""
    return call_node("partner", node, *words)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A signed report about the partner."""
    file = tmp_path / "report.json"
    write_report(file, report_content(PEER))
    return file


def write_report(file: Path, content: dict[str, Any]) -> None:
    """Write a signed report."""
    envelope = signed_report(content)
    file.write_text(json.dumps(envelope))


def test_a_report_is_kept_shown_and_deleted(node, file: Path):
    assert "peer check" in cli(node, "show", PEER).stdout
    stored = cli(node, "report", PEER, str(file))
    assert stored.exit_code == 0
    assert "checked on 2026-03-04, 2 deviations: 1 holds, 1 deviates, 1 fails" in stored.stdout

    shown = cli(node, "show", PEER).stdout
    assert "http://127.0.0.1:9" in shown
    assert "institution: bank" in shown
    assert "checked on 2026-03-04, 2 deviations" in shown
    assert f"bfia-gateway partner report {PEER}" in shown
    partner = json_from_node(
        "partner",
        node,
        "show",
        PEER,
    )
    assert partner["report"]["deviations"] == 2

    details = cli(node, "report", PEER).stdout
    assert "C-2-code" in details
    assert "Answer 0; 200 is the code of version 1.0." in details
    assert "C-2-envelope" not in details

    deleted = cli(node, "report", PEER, "--delete")
    assert deleted.exit_code == 0
    assert "peer check" in cli(node, "show", PEER).stdout


def test_a_kept_report_is_saved_as_it_was_signed(node, file: Path, tmp_path: Path):
    copy = tmp_path / "copy.json"
    cli(node, "report", PEER, str(file))
    save = (
        "report",
        PEER,
        "--save",
        str(copy),
    )
    cli(node, *save)
    assert json.loads(copy.read_text()) == json.loads(file.read_text())
    again = cli(node, *save)
    assert again.exit_code == EXIT_BAD_INPUT
    assert "exists already" in again.output


def test_one_deviation_is_no_plural(node, file: Path):
    findings = {"C-2-code": fails("a success has the code 200")}
    write_report(file, report_content(PEER, findings))
    stored = cli(node, "report", PEER, str(file))
    assert "checked on 2026-03-04, 1 deviation: 1 fails" in stored.stdout


def test_a_report_about_another_node_is_refused_with_the_next_step(node, file: Path):
    write_report(file, report_content(ME))
    refused = cli(node, "report", PEER, str(file))
    assert refused.exit_code == EXIT_BAD_INPUT
    assert f"node_id: is another node than {PEER}" in refused.output
    assert str(file) in refused.output


def test_a_file_that_is_no_report_is_refused(node, file: Path):
    file.write_text("{}")
    words = (
        "report",
        PEER,
        str(file),
        "--json",
    )
    refused = cli(node, *words)
    assert refused.exit_code == EXIT_BAD_INPUT
    assert "REPORT_SIGNATURE_WRONG" in refused.output


def test_a_file_and_its_deletion_contradict_each_other(node, file: Path):
    words = (
        "report",
        PEER,
        str(file),
        "--delete",
    )
    assert cli(node, *words).exit_code == EXIT_BAD_INPUT
