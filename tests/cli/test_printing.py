"""What commands print of a node's responses; the node is scripted, so each case takes a moment."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import Result

from gateway.cli import node as cli_node
from gateway.cli import options
from gateway.cli.client import EXIT_BAD_INPUT, EXIT_NO_ANSWER, CallFailed, Client
from gateway.cli.job_notes import last_lines, lineage, warning_lines
from gateway.cli.jobs import _print_created
from gateway.domain.execution.exit_failures import exit_failure
from tests.builders import a_run
from tests.cli import NOBODY, call

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
    "party": {
        "role": "guest",
        "index": 0,
    },
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
MOMENT = "2026-11-27T11:30:20.123456+00:00"


@pytest.fixture
def responses(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The node's response bodies, by method and path; an exception is raised in place of one."""
    script: dict[str, Any] = {"GET /api/v1/jobs": {"jobs": [{"job_id": "job-0123"}]}}

    def respond(
        client: Client,
        method: str,
        path: str,
        body: Any = None,
        **_: Any,
    ) -> Any:
        response = script[f"{method} {path}"]
        if isinstance(response, Exception):
            raise response
        return deepcopy(response)  # commands change it

    def no_lines(*_: Any, **__: Any) -> Any:
        return iter(())

    monkeypatch.setattr(Client, "call", respond)
    monkeypatch.setattr(Client, "lines", no_lines)
    return script


def run_command(*words: str) -> Result:
    """Run a command against the scripted node."""
    return call(*words, "--url", NOBODY)


def output_of(*words: str) -> str:
    """Run a command that succeeds; return its output with single spaces."""
    result = run_command(*words)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def json_of(*words: str) -> Any:
    """Return the JSON that a command prints."""
    return json.loads(run_command(*words).stdout)


# ---------------------------------------------------------------- jobs


def test_changed_parameters_are_confirmed_with_their_version(responses, tmp_path):
    responses["POST /api/v1/jobs/job-0123/parameters"] = {"version": 2}
    file = tmp_path / "new.yml"
    file.write_text("common: {b: {x: 2}}\n")
    printed = output_of(
        "job",
        "params",
        "job-0123",
        str(file),
        "--reason",
        "sooner",
    )
    assert printed == "job-0123 continues with version 2 of its parameters"


def test_a_chinese_list_leaves_states_as_the_chinese_readme_says(responses, use_language):
    readme = Path("README.zh-CN.md").read_text(encoding="utf-8")
    assert "状态名不翻译" in readme
    waiting = {
        "job_id": "job-0123",
        "flow_id": "f",
        "status": "PENDING",
        "outcome": None,
        "created_at": "2026-11-27T03:00:00+00:00",
        "ended_at": None,
        "sides": ["participant"],
        "user": "",
    }
    responses["GET /api/v1/jobs"] = {
        "jobs": [JOB | waiting],
        "next": None,
    }
    use_language("zh")

    printed = output_of("job", "list")

    assert "状态" in printed
    assert "PENDING" in printed
    assert "待处理" not in printed


def test_an_approval_shows_the_submitter_beside_the_requesting_node(responses):
    approval = {
        "job_id": "job-0123",
        "initiator": "JG2",
        "submitted_by": ["ann"],
        "roles": ["host.0"],
        "tasks": [],
        "approval": None,
    }
    responses["GET /api/v1/approvals"] = {
        "approvals": [approval],
        "total": 1,
        "next": None,
    }

    printed = output_of("job", "approvals")

    assert "requested by ┃ submitted by" in printed
    assert "JG2 │ ann" in printed


def test_undrain_says_that_the_node_takes_jobs(responses):
    responses["POST /api/v1/undrain"] = {"draining": False}
    assert output_of("undrain") == "the node takes jobs"


def test_cleaning_a_task_without_outputs_says_so(responses):
    responses["DELETE /api/v1/jobs/job-0123/tasks/a/outputs"] = {
        "items": [],
        "bytes": 0,
        "nodes": None,
    }
    assert output_of("job", "clean", "job-0123", "a") == "nothing to delete"


@pytest.mark.parametrize(
    ("job_id", "last_words"),
    [
        ("job-9", "watch it with: bfia-gateway job watch job-9"),
        ("", "nothing was created"),
    ],
    ids=["created", "dry-run"],
)
def test_a_prediction_shows_its_differences_from_the_training(responses, job_id, last_words):
    difference = {
        "path": "config.task_params.guest.0.a.dataset_id",
        "before": "bank#may",
        "after": "bank#june",
    }
    responses["POST /api/v1/models/credit/3/predict"] = {
        "job_id": job_id,
        "differences": [difference],
    }
    printed = output_of("model", "predict", "credit", "3", "--data", "guest.0=bank#june")
    assert "differs from the training" in printed
    assert "bank#may" in printed
    assert printed.endswith(last_words)


def test_a_dataset_of_a_prediction_needs_a_party_and_a_name():
    refused = run_command("model", "predict", "credit", "3", "--data", "guest.0")
    assert refused.exit_code == EXIT_BAD_INPUT
    assert "must be PARTY=NAMESPACE#NAME" in refused.stderr


def test_a_failure_is_printed_before_the_warnings_of_a_job(responses):
    failure = {
        "reason": "NOT_AUTHORISED",
        "node": "n2",
        "message": "n2: a.b: NOT_AUTHORISED: not granted",
    }
    task = {
        "name": "a",
        "status": "PENDING",
        "nodes": {},
        "waiting": {
            "reason": "JOB",
            "message": "the job waits: APPROVAL",
        },
    }
    responses["GET /api/v1/jobs/job-0123"] = JOB | {
        "parties": [],
        "tasks": [task],
        "scheduler": "n1",
        "progress": 0,
        "runs": [],
        "failure": failure,
        "warnings": ["x is odd"],
    }
    responses["GET /api/v1/reasons/NOT_AUTHORISED"] = {"next_step": "Ask its admin."}

    printed = output_of("job", "show", "job-0123")

    expected = (
        "NOT_AUTHORISED (node n2): a.b: not granted next step: Ask its admin. warning: x is odd"
    )
    assert expected in printed
    assert "a APPROVAL" in printed
    lines = run_command("job", "show", "job-0123").output
    assert "\nRUNNING, 0 %" in lines, "no bar without progress"


def test_equal_advice_for_several_checks_is_printed_once(responses):
    checks = []
    for name in "xyz":
        check = {
            "check": "components",
            "standing": "problem",
            "about": f"config.task_params.common.a.{name}",
            "found": "",
            "cause": "is odd " * 9,
            "remedy": "correct it " * 4,
        }
        checks.append(check)
    responses["POST /api/v1/jobs/plan"] = {
        "good": False,
        "verdict": "This job would fail: 3 problems.",
        "warnings": [],
        "nodes": [{"node": "n1", "parties": [], "checks": checks}],
    }
    printed = call("job", "plan", "-", "--url", NOBODY, input="{}").output
    assert printed.count("correct it " * 4) == 1
    assert "This job would fail: 3 problems." in printed


def test_a_plan_prints_each_warning_once_with_its_nodes_and_advice(responses):
    path = "config.task_params.common.a.x"
    check = {
        "check": "components",
        "standing": "warning",
        "about": path,
        "found": "",
        "cause": "is odd",
        "remedy": "make it even",
    }
    warning = {
        "nodes": ["n1", "n2"],
        **check,
    }
    plans = [{"node": node, "parties": [], "checks": [check]} for node in ("n1", "n2")]
    responses["POST /api/v1/jobs/plan"] = {
        "good": True,
        "verdict": "No obstacle found, 1 warning: read them before you submit.",
        "warnings": [warning],
        "nodes": plans,
    }
    lines = call("job", "plan", "-", "--url", NOBODY, input="{}").output.splitlines()
    start = lines.index("1 warning")
    assert lines[start + 1 : start + 4] == [
        f"  {path} (n1, n2)",
        "    is odd",
        "    → make it even",
    ]
    assert lines.count("    is odd") == 1


@pytest.mark.parametrize(
    ("is_good", "next_step"),
    [
        (True, "next: bfia-gateway job submit 'my job.json' --watch"),
        (False, "next: mend the problems above, then bfia-gateway job plan 'my job.json'"),
    ],
)
def test_a_plan_ends_with_the_step_that_fits_it(
    responses,
    monkeypatch,
    tmp_path,
    is_good,
    next_step,
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my job.json").write_text("{}")
    responses["POST /api/v1/jobs/plan"] = {
        "good": is_good,
        "verdict": "",
        "warnings": [],
        "nodes": [],
    }
    printed = call("job", "plan", "my job.json", "--url", NOBODY).output
    assert next_step in printed


def test_a_log_without_lines_is_said_to_be_empty(responses):
    responses["GET /api/v1/jobs/job-0123"] = JOB
    assert "guest.0 of a (SUCCESS) wrote nothing" in output_of("job", "logs", "job-0123")


def test_a_stop_names_the_nodes_that_learn_of_it_later(responses):
    responses["GET /api/v1/jobs/job-0123"] = JOB | {
        "local_waiting": {"reason": "CONFIRMING", "message": "goes on telling n2"}
    }
    responses["POST /v1/platform/schedule/job/stop_all"] = {}
    printed = output_of("job", "stop", "job-0123")
    assert printed == "job-0123 is stopped here; the gateway goes on telling n2"


def test_a_second_rejection_shows_the_first_decision(responses):
    first = {
        "by": "li",
        "decided_at": "2026-11-27T03:00:00+00:00",
        "failure": {"message": "not this data"},
    }
    responses["POST /api/v1/jobs/job-0123/reject"] = {
        "repeated": True,
        "approval": first,
    }
    printed = output_of("job", "reject", "job-0123", "-m", "really")
    assert "by li at 2026-11-27T03:00:00 UTC (not this data); nothing was changed" in printed


def test_a_new_job_that_cannot_be_read_is_still_named(responses, capsys):
    responses["GET /api/v1/jobs/job-0123"] = CallFailed("the node is silent", EXIT_NO_ANSWER)
    _print_created(
        Client(NOBODY, ""),
        {"job_id": "job-0123"},
        False,
    )
    assert capsys.readouterr().out.strip() == "job-0123"


def test_a_continued_job_names_its_predecessor_and_the_inherited_tasks():
    job = {
        "old_job_id": "job-1",
        "inherited_runs": [{"task_name": "a"}],
    }
    assert list(lineage(job)) == ["continues job-1; taken over: a"]


def test_an_ambiguous_beginning_of_a_job_id_is_refused(responses):
    ids = [f"job-01{number}" + "0" * 26 for number in range(7)]
    responses["GET /api/v1/jobs"] = {"jobs": [{"job_id": job_id} for job_id in ids]}
    refused = run_command("job", "show", "job-01")
    assert refused.exit_code == EXIT_BAD_INPUT
    assert "write more of it" in refused.stderr
    assert ", …" in refused.stderr


@pytest.mark.parametrize("words", ["job list", "route history"])
def test_lists_have_one_line_a_row_in_80_columns(responses, monkeypatch, use_language, words):
    use_language("zh")
    monkeypatch.setenv("COLUMNS", "80")
    job = {
        "job_id": "job-" + "0" * 32,
        "flow_id": "draft",
        "outcome": "SUCCEEDED",
        "status": "FINISHED",
        "created_at": MOMENT,
        "ended_at": MOMENT,
        "user": "admin-a",
        "sides": ["scheduler", "participant"],
    }
    responses["GET /api/v1/jobs"] = {
        "jobs": [job],
        "total": 1,
        "next": None,
    }
    change = {
        "node": "JG0127000000000002",
        "before": None,
        "after": {},
    }
    version = {
        "version": 12,
        "at": MOMENT,
        "author": "operator",
        "reason": "invitation accepted",
        "changes": [change],
    }
    responses["GET /api/v1/route-versions"] = {
        "versions": [version],
        "total": 1,
        "next": None,
    }

    assert len(run_command(*words.split()).stdout.splitlines()) == 4


# ---------------------------------------------------------------- node, routes and partners


def test_resources_show_an_engine_that_is_down_and_later_corrections(responses):
    docker = {
        "engine": "docker",
        "away": "",
        "cause": "",
        **TOTALS,
    }
    far = {
        **docker,
        "engine": "far",
        "away": "ENGINE_DOWN",
        "cause": "no daemon answers",
    }
    responses["GET /api/v1/resources"] = {
        "node": "n1",
        **TOTALS,
        "engines": [docker, far],
        "holders": [],
        "waiting": [],
        "returns_ignored": 1,
        "returned_by_reconciler": 0,
        "expired": 2,
    }

    printed = output_of("resources")

    assert "node n1, engine far" in printed
    assert "ENGINE_DOWN: no daemon answers" in printed
    corrections = (
        "returns with nothing to return: 1 jobs that held something and were never started: 2"
    )
    assert corrections in printed


def test_applications_are_listed_with_their_trouble(responses):
    application = {
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
        "jobs_in_words": "5 of 5 used (asked: 10)",
        "scope": {},
        "tasks": [],
        "trouble": "PEER_UNREACHABLE: n2 is silent",
    }
    responses["GET /api/v1/applications"] = {
        "applications": [application],
        "next": None,
    }
    printed = output_of("partner", "applications")
    for text in (
        "the partner",
        "APPLIED",
        "ed25519 a1b2",
        "5 of 5 used (asked: 10)",
        "n2 is silent",
    ):
        assert text in printed


def test_routes_that_are_not_in_force_are_listed_and_have_no_rollback(responses):
    responses["GET /api/v1/routes"] = {
        "version": 1,
        "routes": [],
        "problems": ["B: port must be a number"],
    }
    assert "not in force, B: port must be a number" in output_of("route", "list")

    refused = run_command("route", "rollback")
    assert refused.exit_code == EXIT_BAD_INPUT
    assert "there is no version before this one" in refused.stderr


def test_a_rollback_names_the_entries_that_the_file_cannot_hold(responses):
    responses["POST /api/v1/route-versions/1/rollback"] = {
        "version": 2,
        "changes": [],
        "not_in_file": ["line 3: must be a mapping"],
    }
    printed = output_of("route", "rollback", "1")
    assert "does not hold this version: line 3: must be a mapping correct it" in printed


def test_offers_of_a_partner_are_listed_with_readable_columns(responses):
    offer = {
        "dataset_id": "a#b",
        "join_columns": "id",
        "column_metas": [
            {"name": "id", "data_type": "varchar"},
            {"name": "x", "data_type": "int"},
        ],
        "count": 9,
    }
    responses["GET /api/v1/partners/n2/datasets"] = {
        "records": [offer],
        "total": 3,
    }

    printed = output_of("partner", "offers", "n2")

    assert "1 of 3 offers" in printed
    assert "id, x" in printed
    assert "varchar" not in printed
    for heading in ("dataset id", "match id", "columns", "rows"):
        assert heading in printed


def test_a_drain_that_another_user_cancels_fails(responses, monkeypatch):
    def no_wait(seconds: float) -> None:
        """Return immediately."""

    monkeypatch.setattr(cli_node.time, "sleep", no_wait)
    responses["POST /api/v1/drain"] = {
        "draining": True,
        "jobs": [],
        "process": {},
    }
    responses["GET /api/v1/drain"] = {
        "draining": False,
        "jobs": [],
        "process": {},
    }
    cancelled = run_command("drain")
    assert cancelled.exit_code == 1
    assert "draining was cancelled by another user" in cancelled.stderr
    assert json_of("drain", "--no-wait", "--json")["draining"] is True

    responses["GET /api/v1/drain"] = CallFailed("not allowed", 1, "NOT_AUTHORISED")
    assert "not allowed" in run_command("drain").stderr


def test_a_dataset_is_deleted_only_after_confirmation(responses):
    refused = run_command("data", "delete", "ns#t")
    assert refused.exit_code == 1
    assert "Delete ns#t for good?" in refused.stderr


# ---------------------------------------------------------------- attacks by names


def test_no_node_chooses_the_folder_of_an_archive(responses, tmp_path, monkeypatch):
    """Attack: the id of a gateway's last job is a path, so that the archive gets there."""
    targets: list[Path] = []

    def record_target(
        client: Client,
        path: str,
        target: Path,
        *_: Any,
        **__: Any,
    ) -> int:
        targets.append(target)
        return 1

    monkeypatch.setattr(Client, "download", record_target)
    responses["GET /api/v1/jobs"] = {"jobs": [{"job_id": f"{tmp_path}/plugins/job"}]}
    assert run_command("job", "archive", "last").exit_code == 0
    assert targets == [Path("job.zip")]


def test_names_that_a_shell_would_run_are_not_completed(responses):
    """Attack: a partner gives a job an id that is a command for the shell that completes it."""
    commands = [
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
    responses["GET /api/v1/jobs"] = {"jobs": [{"job_id": name} for name in [*commands, *plain]]}
    context: Any = SimpleNamespace(params={"url": NOBODY})
    assert options._jobs(context, "") == plain


def test_a_suggested_command_is_quoted_for_a_shell():
    """Attack: a partner gives a job an id that is a command once a suggestion is copied."""
    run = {
        "task_name": "a;id",
        "party": "guest.0",
        "status": "FAILED",
        "last_lines": ["x"],
        "attempt": 0,
    }
    log_command = "bfia-gateway job logs '$(id)' --task 'a;id' --party guest.0"

    (log_hint, *_) = last_lines({"job_id": "$(id)", "runs": [run]})
    assert log_command in log_hint

    (*_, warnings_hint) = warning_lines(["a", "b"], "$(id)", 1)
    assert warnings_hint.endswith("job show '$(id)'")

    failure = exit_failure(
        replace(
            a_run(),
            task_name="a;id",
            exit=None,
        ),
        "$(id)",
    )
    assert failure.message.endswith(log_command)


def test_an_output_that_does_not_exist_is_not_there(responses):
    output = {
        "key": "out",
        "type": "dataset",
        "there": False,
        "namespace": "ns",
        "name": "t",
        "columns": [],
    }
    responses["GET /api/v1/jobs/job-0123/metadata/a/guest.0"] = {"outputs": [output]}
    assert "not there" in output_of("job", "metadata", "job-0123", "a", "guest.0")


def test_a_success_is_listed_with_the_number_of_its_warnings(responses):
    job = {
        "job_id": "job-0123",
        "status": "FINISHED",
        "outcome": "SUCCEEDED",
        "progress": 100,
        "flow_id": "f",
        "created_at": MOMENT,
        "ended_at": MOMENT,
        "user": "",
        "sides": ["participant"],
        "warning_count": 1,
    }
    jobs = [job, job | {"job_id": "job-0124", "warning_count": 0}]
    responses["GET /api/v1/jobs"] = {"jobs": jobs, "next": None}
    printed = output_of("job", "list")
    assert printed.count("SUCCEEDED") == 2
    assert printed.count("SUCCEEDED, 1 warning") == 1


def test_datasets_are_listed_with_the_whole_name_of_their_storage(responses):
    datasets = []
    for storage in ("file", "filestore"):
        dataset = {
            "dataset_id": f"ns#in_{storage}",
            "count": 1,
            "columns": 1,
            "size": 1,
            "storage": storage,
            "created_at": MOMENT,
            "disabled": False,
            "description": "",
        }
        datasets.append(dataset)
    responses["GET /api/v1/datasets"] = {"datasets": datasets}
    printed = output_of("data", "list")
    assert " filestore " in printed
    assert " file " not in printed
