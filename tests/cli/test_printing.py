"""What commands print of a node's answers: the node is scripted, so that each case takes a moment."""

import errno
import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
import yaml
from typer.testing import Result

from engines.base import EngineDown
from engines.process.engine import ProcessEngine
from gateway.cli import client as cli_client
from gateway.cli import main as cli_main
from gateway.cli import node as cli_node
from gateway.cli import options
from gateway.cli.access import _difference
from gateway.cli.client import (
    EXIT_BAD_INPUT,
    EXIT_NO_ANSWER,
    CallFailed,
    Client,
    content,
    read_object,
    who,
)
from gateway.cli.command import reporting
from gateway.cli.init import docker_responds
from gateway.cli.job_notes import last_lines, lineage, warning_lines
from gateway.cli.jobs import _print_created
from gateway.cli.outputs import _print_report, _report_summary
from gateway.cli.providers import _from_file, _print_change, _required
from gateway.data import reading
from gateway.data.reading import NotFit
from gateway.domain.execution.runs import exit_failure
from gateway.domain.problems import Problem
from gateway.errors import DatabaseAway, Invalid
from gateway.identity.keys import Keyring
from tests.builders import a_run
from tests.cli import NOBODY, call, raising
from tests.registry.builders import a_request

AMOUNTS = {
    "cpu": 4,
    "memory_gib": 8,
    "disk_gib": 9,
    "gpu": 0,
}
TOTALS = {
    "total": AMOUNTS,
    "held": AMOUNTS,
    "others": {},
    "remaining": AMOUNTS,
}
RUN = {
    "party": {"role": "guest", "index": 0},
    "task_name": "a",
    "status": "SUCCESS",
    "log": "/log",
    "attempt": 0,
    "node": "n1",
}
JOB: dict[str, Any] = {
    "job_id": "job-0123",
    "status": "RUNNING",
    "tasks": [],
    "runs": [RUN],
    "outcome": None,
}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Give what the node answers, by method and path; an exception is raised."""
    script: dict[str, Any] = {"GET /api/v1/jobs": {"jobs": [{"job_id": "job-0123"}]}}

    def scripted(
        self: Client,
        method: str,
        path: str,
        body: Any = None,
        **_: Any,
    ) -> Any:
        answer = script[f"{method} {path}"]
        if isinstance(answer, Exception):
            raise answer
        return deepcopy(answer)  # commands change it

    monkeypatch.setattr(Client, "call", scripted)
    monkeypatch.setattr(Client, "lines", lambda *_, **__: iter(()))
    return script


def asked(*words: str) -> Result:
    return call(*words, "--url", NOBODY)


def listed(*words: str) -> str:
    """Return what a command that succeeds prints, with single spaces."""
    done = asked(*words)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_new_parameters_undraining_and_a_deletion_of_nothing_are_said(answers, tmp_path):
    file = tmp_path / "new.yml"
    file.write_text("common: {b: {x: 2}}\n")
    answers["POST /api/v1/jobs/job-0123/parameters"] = {"version": 2}
    said = listed("job", "params", "job-0123", str(file), "--reason", "sooner")
    assert said == "job-0123 continues with version 2 of its parameters"
    answers["POST /api/v1/undrain"] = {"draining": False}
    assert listed("undrain") == "the node takes jobs"
    answers["DELETE /api/v1/jobs/job-0123/tasks/a/outputs"] = {"items": [], "bytes": 0}
    assert listed("job", "clean", "job-0123", "a") == "nothing to delete"


def test_a_prediction_shows_what_differs_from_the_training(answers):
    differs = {
        "path": "config.task_params.guest.0.a.dataset_id",
        "before": "bank#may",
        "after": "bank#june",
    }
    for job_id, last in (
        ("job-9", "watch it with: bfia-gateway job watch job-9"),
        ("", "nothing was created"),
    ):
        answers["POST /api/v1/models/credit/3/predict"] = {
            "job_id": job_id,
            "differences": [differs],
        }
        said = listed("model", "predict", "credit", "3", "--data", "guest.0=bank#june")
        assert "differs from the training" in said and "bank#may" in said and said.endswith(last)
    wrong = asked("model", "predict", "credit", "3", "--data", "guest.0")
    assert wrong.exit_code == EXIT_BAD_INPUT and "must be PARTY=NAMESPACE#NAME" in wrong.stderr


def test_an_absent_engines_resources_and_later_fixes_are_shown(answers):
    first = {
        "engine": "docker",
        "away": "",
        "cause": "",
        **TOTALS,
    }
    away = {
        **first,
        "engine": "far",
        "away": "ENGINE_DOWN",
        "cause": "no daemon answers",
        "total": None,
    }
    away |= dict.fromkeys(("held", "remaining"), AMOUNTS)
    found = {
        "node": "n1",
        **TOTALS,
        "engines": [first, {**away, "total": AMOUNTS}],
        "holders": [],
        "waiting": [],
    }
    answers["GET /api/v1/resources"] = {
        **found,
        "returns_ignored": 1,
        "returned_by_reconciler": 0,
        "expired": 2,
    }
    said = listed("resources")
    assert "node n1, engine far" in said
    assert "ENGINE_DOWN: no daemon answers" in said
    assert (
        "returns with nothing to return: 1 jobs that held something and were never started: 2"
        in said
    )


def test_applications_and_routes_that_are_not_in_force_are_listed(answers):
    one = {
        "number": 3,
        "side": "theirs",
        "partner": "n2",
        "kind": "contract",
        "subject": "n2",
        "url": "https://b",
        "status": "APPLIED",
        "at": "2026-11-27T03:00:00+00:00",
        "expires_at": None,
        "key": "ed25519 a1b2",
        "signed": True,
        "trouble": "PEER_UNREACHABLE: n2 is silent",
    }
    answers["GET /api/v1/applications"] = {"applications": [one], "next": None}
    said = listed("partner", "applications")
    assert all(word in said for word in ("APPLIED", "ed25519 a1b2", "n2 is silent"))
    answers["GET /api/v1/routes"] = {
        "version": 1,
        "routes": [],
        "problems": ["B: port must be a number"],
    }
    assert "not in force, B: port must be a number" in listed("route", "list")
    refused = asked("route", "rollback")
    assert refused.exit_code == EXIT_BAD_INPUT
    assert "there is no version before this one" in refused.stderr
    made = {
        "version": 2,
        "changes": [],
        "not_in_file": ["line 3: must be a mapping"],
    }
    answers["POST /api/v1/route-versions/1/rollback"] = made
    said = listed("route", "rollback", "1")
    assert "does not hold this version: line 3: must be a mapping correct it" in said


def test_a_cause_stands_before_the_warnings_and_equal_advice_once(answers):
    failure = {
        "reason": "NOT_AUTHORISED",
        "node": "n2",
        "message": "n2: a.b: NOT_AUTHORISED: not granted",
    }
    waits = {"reason": "JOB", "message": "the job waits: APPROVAL"}
    task = {
        "name": "a",
        "status": "PENDING",
        "nodes": {},
        "waiting": waits,
    }
    job = JOB | {
        "parties": [],
        "tasks": [task],
        "scheduler": "n1",
        "progress": 0,
        "runs": [],
    }
    answers["GET /api/v1/jobs/job-0123"] = job | {"failure": failure, "warnings": ["x is odd"]}
    answers["GET /api/v1/reasons/NOT_AUTHORISED"] = {"next_step": "Ask its admin."}
    cause = "NOT_AUTHORISED (node n2): a.b: not granted next step: NOT_AUTHORISED: Ask its admin. warning: x is odd"
    shown = listed("job", "show", "job-0123")
    assert cause in shown
    assert "a APPROVAL" in shown
    assert "\nRUNNING, 0 %" in asked("job", "show", "job-0123").output, "no bar of nothing"
    of = {
        "check": "components",
        "standing": "warning",
        "found": "",
        "cause": "is odd " * 9,
        "remedy": "correct it " * 4,
    }
    checks = [of | {"about": f"config.task_params.common.a.{n}"} for n in "xyz"]
    node = {
        "node": "n1",
        "parties": [],
        "checks": checks,
    }
    answers["POST /api/v1/jobs/plan"] = {
        "good": True,
        "warning_count": 3,
        "nodes": [node],
    }
    assert (
        call("job", "plan", "-", "--url", NOBODY, input="{}").output.count("correct it " * 4) == 1
    )


def test_lists_have_one_line_a_row_in_80_columns(answers, monkeypatch):
    monkeypatch.setattr("gateway.cli.language._chosen", ["zh"])
    monkeypatch.setenv("COLUMNS", "80")
    job = {
        "job_id": "job-" + "0" * 32,
        "flow_id": "draft",
        "outcome": "SUCCEEDED",
        "status": "FINISHED",
    }
    at = "2026-11-27T11:30:20.123456+00:00"
    job |= {
        "created_at": at,
        "ended_at": at,
        "user": "admin-a",
        "sides": ["scheduler", "participant"],
    }
    answers["GET /api/v1/jobs"] = {
        "jobs": [job],
        "total": 1,
        "next": None,
    }
    version = {
        "version": 12,
        "at": at,
        "author": "operator",
        "reason": "invitation accepted",
    }
    version |= {
        "changes": [
            {
                "node": "JG0127000000000002",
                "before": None,
                "after": {},
            }
        ]
    }
    answers["GET /api/v1/route-versions"] = {
        "versions": [version],
        "total": 1,
        "next": None,
    }
    for words in ("job list", "route history"):
        assert len(asked(*words.split()).stdout.splitlines()) == 4, words


def test_what_a_partner_offers_is_listed_in_words(answers):
    columns = [{"name": "id", "data_type": "varchar"}, {"name": "x", "data_type": "int"}]
    one = {
        "dataset_id": "a#b",
        "join_columns": "id",
        "column_metas": columns,
        "count": 9,
    }
    answers["GET /api/v1/partners/n2/datasets"] = {"records": [one], "total": 3}
    shown = listed("partner", "offers", "n2")
    assert "1 of 3 offers" in shown
    assert "id, x" in shown
    assert "varchar" not in shown
    assert all(heading in shown for heading in ("dataset id", "match id", "columns", "rows"))


def test_a_log_without_lines_and_a_stop_that_others_learn_later_are_said(answers):
    answers["GET /api/v1/jobs/job-0123"] = JOB | {
        "local_waiting": {"reason": "CONFIRMING", "message": "goes on telling n2"}
    }
    assert "guest.0 of a (SUCCESS) wrote nothing" in listed("job", "logs", "job-0123")
    answers["POST /v1/platform/schedule/job/stop_all"] = {}
    assert (
        listed("job", "stop", "job-0123")
        == "job-0123 is stopped here; the gateway goes on telling n2"
    )
    before = {
        "by": "li",
        "decided_at": "2026-11-27T03:00:00+00:00",
        "failure": {"message": "not this data"},
    }
    answers["POST /api/v1/jobs/job-0123/reject"] = {"repeated": True, "approval": before}
    said = listed("job", "reject", "job-0123", "-m", "really")
    assert "by li at 2026-11-27T03:00:00 UTC (not this data); nothing was changed" in said


def test_unreadable_new_jobs_and_continued_ones_are_still_named(answers, capsys):
    answers["GET /api/v1/jobs/job-0123"] = CallFailed("the node is silent", EXIT_NO_ANSWER)
    _print_created(Client(NOBODY, ""), {"job_id": "job-0123"}, False)
    assert capsys.readouterr().out.strip() == "job-0123"
    assert list(lineage({"old_job_id": "job-1", "inherited_runs": [{"task_name": "a"}]})) == [
        "continues job-1; taken over: a"
    ]


def test_a_drain_cancelled_by_another_and_a_dataset_that_stays(answers, monkeypatch):
    monkeypatch.setattr(cli_node.time, "sleep", lambda seconds: None)
    answers["POST /api/v1/drain"] = {
        "draining": True,
        "jobs": [],
        "process": {},
    }
    answers["GET /api/v1/drain"] = {
        "draining": False,
        "jobs": [],
        "process": {},
    }
    cancelled = asked("drain")
    assert cancelled.exit_code == 1
    assert "draining was cancelled by another user" in cancelled.stderr
    left = written_by("drain", "--no-wait", "--json")
    assert left["draining"] is True
    answers["GET /api/v1/drain"] = CallFailed("not allowed", 1, "NOT_AUTHORISED")
    assert "not allowed" in asked("drain").stderr
    kept = asked("data", "delete", "ns#t")
    assert kept.exit_code == 1 and "Delete ns#t for good?" in kept.stderr


def written_by(*words: str) -> Any:
    return json.loads(asked(*words).stdout)


def test_a_beginning_that_several_jobs_have_is_refused(answers):
    answers["GET /api/v1/jobs"] = {"jobs": [{"job_id": f"job-01{n}" + "0" * 26} for n in range(7)]}
    refused = asked("job", "show", "job-01")
    assert refused.exit_code == EXIT_BAD_INPUT
    assert "write more of it" in refused.stderr
    assert ", …" in refused.stderr


def test_no_node_chooses_where_an_archive_is_written(answers, tmp_path, monkeypatch):
    """Attack: a gateway names its last job so that the archive lies where a program reads it."""
    written: list[Path] = []
    monkeypatch.setattr(
        Client, "download", lambda _, __, target, *___, **____: written.append(target) or 1
    )
    answers["GET /api/v1/jobs"] = {"jobs": [{"job_id": f"{tmp_path}/plugins/job"}]}
    assert asked("job", "archive", "last").exit_code == 0
    assert written == [Path("job.zip")]


def test_no_name_of_others_is_completed_that_a_shell_would_run(answers):
    """Attack: a partner gives a job an id that an operator's shell, which completes it, takes for a command."""
    evil = [
        "$(id)",
        "job-1$(id)",
        "`id`",
        "a;id",
        "a|id",
        "a&id",
        "a>b",
        "--url=b",
        "a b",
        "a'b",
        "~b",
        "a*",
        "!a",
        "a\n",
    ]
    plain = ["job-1", "bank#客户.2026", "unionpay:2.0.0@docker", "unionpay:2.0.0/HeteroLR"]
    answers["GET /api/v1/jobs"] = {"jobs": [{"job_id": one} for one in [*evil, *plain]]}
    context: Any = SimpleNamespace(params={"url": NOBODY})
    assert options._jobs(context, "") == plain


def test_a_suggested_command_is_one_for_a_shell_too():
    """Attack: a partner gives a job an id that a shell, into which a suggestion is copied, takes for a command."""
    run = {
        "task_name": "a;id",
        "party": "guest.0",
        "status": "FAILED",
        "last_lines": ["x"],
        "attempt": 0,
    }
    lines = [
        *last_lines({"job_id": "$(id)", "runs": [run]}),
        *warning_lines(["a", "b"], "$(id)", 1),
    ]
    assert "job logs '$(id)' --task 'a;id' --party guest.0" in lines[0]
    assert lines[-1].endswith("job show '$(id)'")
    failed = exit_failure(replace(a_run(), task_name="a;id", exit=None), "$(id)").message
    assert failed.endswith("bfia-gateway job logs '$(id)' --task 'a;id' --party guest.0")


def test_reports_and_outputs_that_are_not_there_are_said(answers):
    assert _report_summary(Client(NOBODY, ""), {"there": False}) == "not there"
    with pytest.raises(CallFailed, match="the report has 9 bytes"):
        _print_report(
            {
                "problem": "has 9 bytes",
                "values": {},
                "series": [],
            }
        )
    output = {
        "key": "out",
        "type": "dataset",
        "there": False,
        "namespace": "ns",
        "name": "t",
        "columns": [],
    }
    answers["GET /api/v1/jobs/job-0123/metadata/a/guest.0"] = {"outputs": [output]}
    assert "not there" in listed("job", "metadata", "job-0123", "a", "guest.0")


def test_many_provider_changes_are_cut_and_a_refused_file_is_named(tmp_path, capsys):
    changes = [
        {
            "path": f"p{n}",
            "before": 1,
            "after": 2,
        }
        for n in range(60)
    ]
    done = {
        "provider_name": "vendor",
        "changed": True,
        "action": "retired",
        "revision": 3,
        "changes": changes,
    }
    _print_change(done)
    assert "and more: bfia-gateway provider diff vendor" in capsys.readouterr().out
    file = tmp_path / "register.json"
    file.write_text(json.dumps({**a_request(), "components_description": {"Thing": {}}}))
    with pytest.raises(CallFailed, match="would be refused"):
        _from_file(file)
    schema = {"properties": {"depth": {"x-bfia": {"dependsOn": ["kind = tree"]}}}, "required": []}
    needed = schema | {"allOf": [{"then": {"required": ["depth"]}}]}
    assert _required("depth", needed) == "yes, where kind = tree"
    assert _required("depth", schema) == "no; goes with kind = tree"


@pytest.mark.parametrize(
    ("detail", "said"),
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
)
def test_what_the_audit_says_of_a_request(detail, said):
    assert _difference({"detail": detail}) == said


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "node.yml"
    body = {
        "node": {"id": "JG1"},
        "engine": {"kind": "process"},
        "listen": {"operator": {"bind": "127.0.0.1:0"}},
        "database": {"url": f"sqlite:///{tmp_path / 'node.db'}"},
    }
    file.write_text(yaml.safe_dump(body))
    return file


def test_what_the_configuration_leaves_open_or_lacks_is_said(config):
    said = call("job", "list", "--config", str(config))
    assert said.exit_code == EXIT_BAD_INPUT
    assert "lets the operator listener choose its port" in said.stderr
    for name, words in (
        ("x" * 256, "1 to 255 characters"),
        ("oidc:ann", "of those who log in by OpenID"),
    ):
        refused = call("token", "create", name, "--role", "admin", "--config", str(config))
        assert refused.exit_code == EXIT_BAD_INPUT
        assert words in refused.stderr
    shown = call("identity", "show", "--config", str(config))
    assert "this node has no key pair and signs nothing" in shown.stdout
    invited = call("partner", "invite", "--address", "https://me", "--config", str(config))
    assert invited.exit_code == 1
    assert "this node has no key pair" in invited.stderr
    Keyring(config.parent / "var").make("ed25519")
    state = yaml.safe_load(config.read_text()) | {"state_dir": str(config.parent / "var")}
    config.write_text(yaml.safe_dump(state))
    shown = call("identity", "show", "--config", str(config))
    assert shown.exit_code == 0
    assert "ed25519" in shown.stdout
    assert "use" in shown.stdout


def test_what_cannot_be_written_or_read_is_a_sentence(config, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    made = call("init", "--engine", "process", "-o", str(tmp_path / "file" / "node.yml"))
    assert made.exit_code == EXIT_BAD_INPUT
    assert "give another --output" in made.stderr
    template = call("provider", "init", "overlap", "-o", str(tmp_path / "file" / "overlap"))
    assert template.exit_code == EXIT_BAD_INPUT
    assert "cannot be written: " in template.stderr
    saved = call("backup", str(tmp_path / "file" / "all.zip"), "--config", str(config))
    assert saved.exit_code == EXIT_BAD_INPUT
    assert "cannot be written: " in saved.stderr
    odd = tmp_path / "odd.yml"
    odd.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(NotFit, match="is not text in UTF-8"):
        read_object(odd)
    with pytest.raises(NotFit, match="larger than 1 MiB, which is the most that is read"):
        reading.check_size(bytes(reading.MIB + 1), "it", reading.MIB)
    assert content(odd) == b"\xff\xfe\x00"
    monkeypatch.setattr(cli_client.getpass, "getuser", raising(KeyError("no name")))
    assert who() == "somebody"
    with pytest.raises(typer.Exit) as ended, reporting(False):
        raise DatabaseAway("the database does not answer")
    assert ended.value.exit_code == EXIT_NO_ANSWER
    assert "does not answer" in capsys.readouterr().err
    for error in (KeyboardInterrupt(), OSError(errno.EIO, "Input/output error")):
        monkeypatch.setattr(cli_main, "translated", lambda command, error=error: raising(error))
        with pytest.raises((SystemExit, OSError)) as left:
            cli_main.main()
        assert getattr(left.value, "code", None) == (
            130 if isinstance(error, KeyboardInterrupt) else None
        )
    assert docker_responds() in (True, False)


def test_a_check_says_why_it_cannot_begin(tmp_path, monkeypatch):
    file = tmp_path / "register.json"
    file.write_text(json.dumps(a_request()))

    def refused(*words: str) -> str:
        done = call("provider", "check", str(file), *words)
        assert done.exit_code in (1, EXIT_BAD_INPUT), done.output
        return " ".join(done.stderr.split())

    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(a_request() | {"name": "a b"}))
    shown = call("provider", "check", str(broken))
    assert shown.exit_code == 1
    assert "error" in shown.stdout
    assert "where" in shown.stdout
    monkeypatch.setattr(ProcessEngine, "check", raising(EngineDown("no daemon answers")))
    assert "no daemon answers; start Docker, or give --command" in refused("--command", "/bin/true")
    monkeypatch.undo()
    for error, words in (
        (
            OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"),
            "is Docker on another machine?",
        ),
        (EngineDown("no daemon answers"), "the sandbox cannot be used: no daemon answers"),
        (
            Invalid([Problem("file:2", "must have 2 cells")]),
            "a table of --data cannot be used: file:2: must have",
        ),
    ):
        monkeypatch.setattr("gateway.conformance.check.check", raising(error))
        assert words in refused("--command", "/bin/true")
