"""The output of commands about reports, providers and the audit log."""

import errno
import json
from pathlib import Path

import pytest

from engines.base import EngineDown
from engines.process.engine import ProcessEngine
from gateway.cli.access import _difference
from gateway.cli.client import EXIT_BAD_INPUT, CallFailed, Client
from gateway.cli.outputs import _print_report, _report_summary
from gateway.cli.providers import _from_file, _print_change, _required
from gateway.domain.problems import Problem
from gateway.errors import Invalid
from tests.cli import NOBODY, call, raising
from tests.registry.builders import a_request

# ---------------------------------------------------------------- outputs and providers


def test_a_report_that_does_not_exist_is_not_there():
    assert _report_summary(Client(NOBODY, ""), {"there": False}) == "not there"


def test_a_report_that_is_too_large_is_refused():
    report = {
        "problem": "has 9 bytes",
        "values": {},
        "series": [],
    }
    with pytest.raises(CallFailed, match="the report has 9 bytes"):
        _print_report(report)


def test_a_long_list_of_changes_of_a_provider_is_cut(capsys):
    changes = [{"path": f"p{number}", "before": 1, "after": 2} for number in range(60)]
    _print_change(
        {
            "provider_name": "vendor",
            "changed": True,
            "action": "retired",
            "revision": 3,
            "changes": changes,
        }
    )
    assert "and more: bfia-gateway provider diff vendor" in capsys.readouterr().out


def test_a_registration_that_would_be_refused_is_not_sent(tmp_path):
    file = tmp_path / "register.json"
    file.write_text(json.dumps({**a_request(), "components_description": {"Thing": {}}}))
    with pytest.raises(CallFailed, match="would be refused"):
        _from_file(file)


def test_a_parameter_is_required_or_goes_with_another():
    schema = {
        "properties": {"depth": {"x-bfia": {"dependsOn": ["kind = tree"]}}},
        "required": [],
    }
    assert _required("depth", schema) == "no; goes with kind = tree"
    required = schema | {"allOf": [{"then": {"required": ["depth"]}}]}
    assert _required("depth", required) == "yes, where kind = tree"


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        (
            {
                "reason": "SIGNATURE_MISSING",
                "from": "10.0.0.9",
                "message": "not signed",
                "repeated": 3,
            },
            "from 10.0.0.9: not signed, 3 times more",
        ),
        ({"reason": "NO_TOKEN", "from": "10.0.0.9"}, "from 10.0.0.9: NO_TOKEN"),
        ({"before": {"a": 1}, "after": None}, '{"a": 1} → –'),
        ({}, ""),
    ],
    ids=["refused-again", "refused", "changed", "no-detail"],
)
def test_the_audit_shows_a_refusal_or_a_change(detail, expected):
    assert _difference({"detail": detail}) == expected


# ---------------------------------------------------------------- provider check


def test_a_check_of_a_wrong_description_prints_its_problems(tmp_path):
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(a_request() | {"name": "a b"}))
    refused = call("provider", "check", str(file))
    assert refused.exit_code == 1
    assert "error" in refused.stdout
    assert "where" in refused.stdout


def test_a_check_without_docker_suggests_a_command(tmp_path, monkeypatch):
    monkeypatch.setattr(ProcessEngine, "check", raising(EngineDown("no daemon answers")))
    message = refused_check(tmp_path)
    assert "no daemon answers; start Docker, or give --command" in message


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"),
            "is Docker on this machine?",
        ),
        (EngineDown("no daemon answers"), "the sandbox cannot be used: no daemon answers"),
        (
            Invalid([Problem("file:2", "must have 2 cells")]),
            "a table of --data cannot be used: file:2: must have",
        ),
    ],
    ids=["address", "engine", "table"],
)
def test_a_check_that_cannot_begin_says_why(tmp_path, monkeypatch, error, message):
    monkeypatch.setattr("gateway.conformance.check.check", raising(error))
    assert message in refused_check(tmp_path)


def refused_check(folder: Path) -> str:
    """Check a good description; return the message of the refusal with single spaces."""
    file = folder / "register.json"
    file.write_text(json.dumps(a_request()))
    refused = call(
        "provider",
        "check",
        str(file),
        "--command",
        "/bin/true",
    )
    assert refused.exit_code in (1, EXIT_BAD_INPUT), refused.output
    return " ".join(refused.stderr.split())
