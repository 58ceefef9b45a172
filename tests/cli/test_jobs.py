"""``bfia-gateway job …``: jobs are submitted, watched, inspected, approved, stopped and run
again.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapter.bfia.examples import A_PROVIDER
from bfia_gateway_client.wire import BlockingWire
from gateway.bootstrap.node import Gateway
from gateway.cli.client import Client
from gateway.cli.job_notes import warning_lines
from gateway.cli.job_timeline import readable_detail
from gateway.cli.jobs import watch_until_over
from gateway.cli.values import cell
from gateway.language.catalogue import reasons, translate
from tests import forks
from tests.cli import NOBODY
from tests.e2e.jobs import PATIENT_ENGINE, job_of
from tests.e2e.nodes import process_engine, wait_for
from tests.inprocess import ME, PEER, Node
from tests.world import NodeSetup

NODE = NodeSetup(
    settings={"engine": PATIENT_ENGINE},
    providers=[A_PROVIDER],
)

MOMENT = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"


def a_job(folder: Path, **durations: float) -> dict[str, Any]:
    """Return a job of independent tasks at one node, by their durations in seconds.

    Their containers create files in ``folder/register``.
    """
    register = folder / "register"
    register.mkdir(exist_ok=True)
    job: dict[str, Any] = job_of(register, durations)
    job["config"]["role"] = {
        "guest": [ME],
        "host": [ME],
    }
    return job


def cli(
    node: Gateway, *words: str, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, as its user would."""
    url = node.addresses()["operator"]
    return forks.run(
        ["job", *words, "--url", url],
        input=stdin,
        env=os.environ | {"COLUMNS": "200"} | environment,
    )


def submit(
    node: Gateway, job: dict[str, Any], *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Submit a job from standard input."""
    return cli(node, "submit", "-", *options, stdin=json.dumps(job), **environment)


def json_of(node: Gateway, *words: str) -> Any:
    """Return the JSON that a command prints."""
    return json.loads(cli(node, *words, "--json").stdout)


def newest_job(node: Gateway) -> Any:
    """Return the first entry of the list of jobs."""
    return json_of(node, "list")["jobs"][0]


# ---------------------------------------------------------------- a job that succeeds


@pytest.fixture(scope="module")
def finished_job(node: Node, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The id of a job that was submitted from a file and watched to its end."""
    folder = tmp_path_factory.mktemp("job")
    file = folder / "job.yml"
    file.write_text(yaml.safe_dump(a_job(folder, a=0, b=0)))
    watched = cli(node, "submit", str(file), "--watch")
    assert watched.returncode == 0, watched.stderr
    assert "FINISHED SUCCEEDED, 100 %" in watched.stdout
    return watched.stdout.splitlines()[0]


def test_a_job_is_watched_again_after_its_end(node, finished_job):
    assert cli(node, "watch", finished_job).returncode == 0


def test_a_job_is_listed_with_its_duration(node, finished_job):
    listed = cli(node, "list").stdout
    assert finished_job[:12] in listed
    assert "SUCCEEDED" in listed

    # both count from the creation of the job
    shown = cli(node, "show", finished_job).stdout
    (duration,) = re.findall(r", took (\d+ s)\n", shown)
    assert f"│ {duration} " in re.sub(" +", " ", listed)


def test_a_job_is_shown_by_its_id_or_the_beginning_of_it(node, finished_job):
    for job_id in (finished_job, finished_job[:20]):
        shown = cli(node, "show", job_id).stdout
        assert shown.startswith(finished_job)
        assert "SUCCESS" in shown
        assert f"of {ME}, created 20" in shown
    assert "job-nothing" in cli(node, "show", "job-nothing").stderr


def test_the_last_job_is_shown_without_its_id(node, tmp_path):
    submitted = submit(
        node,
        a_job(tmp_path, a=0),
        "--watch",
    )
    assert submitted.returncode == 0, submitted.stderr
    job_id = submitted.stdout.splitlines()[0]
    assert cli(node, "show", "last").stdout.startswith(job_id)


def test_the_timeline_of_a_job_has_each_state_once(node, finished_job):
    timeline = json_of(node, "timeline", finished_job)["timeline"]
    events = [entry["event"] for entry in timeline]
    assert events.count("job RUNNING") == 1
    assert "job FINISHED" in cli(node, "timeline", finished_job).stdout


def test_the_outputs_of_a_job_are_listed(node, finished_job):
    outputs = json_of(node, "outputs", finished_job)["outputs"]
    assert {output["task"] for output in outputs} == {"a", "b"}
    for output in outputs:
        assert output["there"] is True


def test_an_output_is_downloaded_to_a_file(node, finished_job, tmp_path):
    download = ["download", finished_job, "a", "data0", "-p", "guest.0"]

    target = tmp_path / "saved.csv"
    saved = cli(node, *download, "-o", str(target))
    assert saved.returncode == 0, saved.stderr
    assert target.read_text().startswith("id,x\n1,")

    without_name = forks.run(
        ["job", *download, "--url", node.addresses()["operator"]],
        cwd=tmp_path,
    )
    assert without_name.returncode == 0, without_name.stderr
    assert (tmp_path / "data0.csv").exists()


# ---------------------------------------------------------------- stopping


def test_a_stopped_job_ends_with_exit_code_1(node, tmp_path):
    submitted = submit(
        node,
        a_job(tmp_path, a=600, c=600),
        "--json",
    )
    body = json.loads(submitted.stdout)
    job_id = body["job_id"]
    assert any("common.a.lasts" in warning for warning in body["warnings"])

    def all_runs_started() -> bool:
        return len(list((tmp_path / "register").iterdir())) == 4

    wait_for(all_runs_started, 60)

    stopped = cli(node, "stop", job_id, "--task", "a").stdout
    assert stopped == f"task a of {job_id} is being stopped at every node\n"
    assert cli(node, "stop", job_id).returncode == 0

    ended = cli(node, "watch", job_id)
    assert ended.returncode == 1
    assert "FINISHED STOPPED" in ended.stdout
    assert f"\nSTOPPED: stopped by {ME}\n" in ended.stdout
    assert "last lines" not in ended.stdout
    task_line = ended.stdout.split("\na ")[1].split("\n")[0]
    assert "STOPPED" in task_line
    assert "FAILED" not in ended.stdout

    again = cli(node, "stop", job_id).stdout
    assert again == f"{job_id} has ended before (FINISHED STOPPED); there was nothing to stop\n"
    assert json_of(node, "stop", job_id, "-t", "a")["stopped"] is False


# ---------------------------------------------------------------- warnings and refusals


def test_warnings_of_a_submitted_job_go_to_standard_error(node, tmp_path):
    submitted = submit(node, a_job(tmp_path, a=0))
    assert submitted.stdout.startswith("job-")
    assert len(submitted.stdout.splitlines()) == 1
    (warning,) = [line for line in submitted.stderr.splitlines() if "common.a.lasts" in line]
    assert warning.startswith("warning: ")


def test_a_job_with_warnings_is_refused_by_strict(node, tmp_path):
    refused = submit(
        node,
        a_job(tmp_path, a=0),
        "--strict",
    )
    assert refused.returncode == 1
    assert "INVALID: " in refused.stderr
    assert "common.a.lasts" in refused.stderr


@pytest.mark.parametrize(
    "config",
    [[], {"job_params": 1}],
)
def test_a_job_of_the_wrong_form_is_refused_by_strict(node, config):
    assert submit(node, {"config": config}, "--strict").returncode == 2


def upload_rows(node: Gateway) -> None:
    """Upload the dataset bank#rows."""
    words = ["data", "upload", "-", "--namespace", "bank", "--name", "rows"]
    words += ["--match-id", "id", "--overwrite", "--url", node.addresses()["operator"]]
    uploaded = forks.run(
        words,
        input="id,x\n1,2\n",
    )
    assert uploaded.returncode == 0, uploaded.stderr


def reading_datasets(
    job: dict[str, Any],
    guest: str,
    host: str,
) -> dict[str, Any]:
    """Return a job with the dataset that each role reads; "" is none."""
    config = job["config"]
    datasets = {
        "guest": {"0": {"a": {"dataset_id": guest}}},
        "host": {"0": {"a": {"dataset_id": host}}},
    }
    return job | {"config": config | {"task_params": config["task_params"] | datasets}}


def test_a_misspelt_dataset_is_refused_with_a_suggestion_in_each_language(node, tmp_path):
    upload_rows(node)
    job = reading_datasets(
        a_job(tmp_path, a=0),
        guest="bank#rosw",
        host="",
    )

    refused = submit(node, job)
    assert "\nbank#rosw: did you mean bank#rows?\n" in refused.stderr
    assert "data list" in refused.stderr

    refused = submit(
        node,
        job,
        LC_ALL="zh_CN.UTF-8",
    )
    assert "\nbank#rosw: 是否应为 bank#rows？\n" in refused.stderr
    assert refused.stderr.count("是否应为") == 1


def test_a_refused_job_is_stored_and_named(node, tmp_path):
    job = a_job(tmp_path, a=0)
    job["dag"]["components"][0]["componentName"] = "Nobody"

    refused = submit(node, job, "--json")

    assert refused.returncode == 1
    error = json.loads(refused.stderr)
    job_id = error["data"]["job_id"]
    assert f"bfia-gateway job show {job_id}" in error["error"]
    newest = newest_job(node)
    assert newest["job_id"] == job_id
    assert newest["status"] == "REJECTED"
    assert json_of(node, "show", job_id)["outcome"] == "REJECTED"


def test_a_job_for_an_unknown_node_is_refused_before_it_is_stored(node, tmp_path):
    job = a_job(tmp_path, a=0)
    job["dag"]["components"][0]["componentName"] = "Nobody"
    job["config"]["role"]["host"] = ["JG0000000000000404"]
    refused = submit(node, job, "--json")
    assert refused.returncode == 2
    assert "job_id" not in json.loads(refused.stderr)["data"]


def test_every_node_that_refused_a_job_is_named_with_the_next_step(world, tmp_path):
    guest = world.node()
    host = world.node(NodeSetup(PEER))
    world.connect(guest, host)
    job = job_of(tmp_path, {"a": 0})
    job["config"]["role"] = {
        "guest": [ME],
        "host": [PEER],
    }
    job["config"]["task_params"]["host"] = {"0": {"a": {"dataset_id": "no#such"}}}

    error = json.loads(submit(guest, job, "--json").stderr)
    refused = submit(guest, job).stderr
    shown = cli(guest, "show", "last", COLUMNS="900").stdout
    refusals = json_of(guest, "show", "last")["refusals"]

    assert [refusal["node"] for refusal in refusals] == [ME, PEER]
    for refusal in refusals:
        reason = refusal["reason"]
        message = refusal["message"]
        # the reason is printed before the node, and not again in the message
        rest = message.replace(f" {reason}: ", " ")
        shared_reason = error["data"]["reason"]
        assert message.replace(f" {shared_reason}: ", " ") in refused
        assert f"{reason} (node {refusal['node']}): {rest}" in shown
    path = "config.task_params.host.0.a.dataset_id"
    # the reason of the whole refusal, that of the node which refused first, is not said again
    without_reason = refused.replace("NOT_AUTHORISED: ", "")
    assert f"{PEER}: {path}: dataset no#such " in without_reason

    problems = []
    for problem in error["data"]["problems"]:
        assert ": " not in problem["rule"].partition(" ")[0]
        assert problem["next_step"]
        problems.append((problem["path"], problem["node"], problem["reason"]))
    assert problems == [
        ("dag.components[0]", ME, "PROVIDER_UNKNOWN"),
        (path, PEER, "NOT_AUTHORISED"),
        ("dag.components[0]", PEER, "PROVIDER_UNKNOWN"),
    ]

    steps = []
    for reason in ("NOT_AUTHORISED", "PROVIDER_UNKNOWN"):
        steps.append(f"next step: {reason}: {reasons()[reason].next_step['en']}")
    # the node that refused first comes first, whichever it was
    assert sorted(shown.splitlines()[-2:]) == steps


# ---------------------------------------------------------------- logs


def test_the_log_of_a_run_is_printed_once_it_is_named(world, tmp_path):
    line = "hello\u2028event: end"  # one line, which could be taken for the end of the stream
    program = (
        f"import sys; sys.stdout.buffer.write({line.encode()!r});"
        " print('oh', file=sys.stderr); sys.exit(3)"
    )
    engine = process_engine(
        "example:1.0.0",
        command=[sys.executable, "-c", program],
    )
    node = world.node(
        settings={"engine": engine},
        providers=[A_PROVIDER],
    )
    submitted = submit(
        node,
        a_job(tmp_path, a=0),
        "--watch",
    )
    assert submitted.returncode == 1, submitted.stderr
    assert "EXIT_3" in submitted.stdout
    job_id = submitted.stdout.splitlines()[0]

    unclear = cli(node, "logs", job_id)
    assert unclear.returncode == 2
    assert "--task a --party guest.0" in unclear.stderr
    for words in (("logs", job_id, "-t", "a"), ("download", job_id, "a", "data0")):
        unclear = cli(node, *words).stderr
        assert unclear.endswith("there are: --party guest.0, --party host.0\n"), unclear
    assert "there are: a --party guest.0" in cli(node, "download", job_id, "b", "data0").stderr

    party = party_of_failed_run(node, job_id, "EXIT_3")
    logs = ["logs", job_id, "-t", "a", "-p", party]
    assert "hello" in cli(node, *logs).stdout
    assert cli(node, *logs, "--level", "error").stdout == "oh\n"
    followed = cli(node, *logs, "--follow")
    assert line in followed.stdout
    assert "oh" in followed.stderr


def party_of_failed_run(
    node: Node,
    job_id: str,
    reason: str,
) -> str:
    """Return the party of a run that failed for a reason; other runs may have been stopped."""
    for run in node.store.local_jobs.get(job_id).runs:
        if run.failure and run.failure.reason == reason:
            return run.party.label
    raise AssertionError(f"no run failed for {reason}")


# ---------------------------------------------------------------- approval


@pytest.fixture
def bank_and_partner(world) -> tuple[Node, Node]:
    """Two connected nodes; the partner's jobs wait for the approval of a person."""
    setup = NodeSetup(
        settings={"engine": PATIENT_ENGINE},
        providers=[A_PROVIDER],
    )
    approval = {"mode": "person", "deadline_seconds": 600}
    bank = world.node(setup)
    partner = world.node(setup, node_id=PEER, settings={**setup.settings, "approval": approval})
    world.connect(
        bank,
        partner,
        signing="off",
    )
    return bank, partner


def test_the_names_of_a_partners_datasets_are_not_suggested(bank_and_partner, tmp_path):
    bank, partner = bank_and_partner
    upload_rows(partner)
    upload_rows(bank)
    job = reading_datasets(
        a_job(tmp_path, a=0),
        guest="",
        host="bank#rosw",
    )
    job["config"]["role"]["host"] = [PEER]
    refused = submit(bank, job)
    assert "bank#rosw" in refused.stderr
    assert "bank#rows" not in refused.stderr


def test_a_job_that_waits_for_a_person_is_approved_suspended_and_resumed(
    bank_and_partner, tmp_path
):
    bank, partner = bank_and_partner
    upload_rows(partner)
    job = reading_datasets(
        a_job(tmp_path, a=0),
        guest="",
        host="bank#rows",
    )
    job["config"]["role"]["host"] = [PEER]

    submitted = submit(bank, job)
    job_id = submitted.stdout.strip()
    notice = re.search(
        rf"waits for approval until {MOMENT} \({PEER}\)$", submitted.stderr, re.MULTILINE
    )
    assert notice
    chinese = translate(f"warning: {notice[0]}", "zh")
    assert re.fullmatch(rf"警告：等待审批，截止 {MOMENT} \({PEER}\)", chinese), chinese

    check_listed_for_approval(partner, job_id)
    assert "bfia-gateway job approvals" in " ".join(cli(bank, "show", job_id).stdout.split())
    assert cli(bank, "suspend", job_id).stdout == f"{job_id} starts no further task\n"
    approved = cli(partner, "approve", job_id, "-m", "fine").stdout
    assert approved == f"{job_id} is approved here\n"
    assert cli(partner, "reject", job_id).returncode == 1
    again = cli(partner, "approve", job_id, "-m", "finer")
    assert f"{job_id} was approved here before: by " in again.stdout
    assert "nothing was changed" in again.stdout
    assert "new reason was not sent" in again.stderr

    def is_suspended() -> bool:
        return "SUSPENDED" in cli(bank, "show", job_id).stdout

    wait_for(is_suspended, 60)
    assert list((tmp_path / "register").iterdir()) == []
    assert cli(bank, "resume", job_id).returncode == 0
    assert cli(bank, "watch", job_id).returncode == 0


def check_listed_for_approval(partner: Node, job_id: str) -> None:
    """Check the list of approvals, whose only job reads bank#rows."""
    (approval,) = json_of(partner, "approvals")["approvals"]
    assert approval["job_id"] == job_id
    (task,) = approval["tasks"]
    assert task["dataset"] == "bank#rows"
    assert task["parameters"]["lasts"] == 0

    listed = cli(partner, "approvals", COLUMNS="400").stdout
    parameters = r'a host.0: \{"lasts": 0, "register": "/'
    for pattern in (job_id, "example/Echo 1.0.0", "example:1.0.0", "bank#rows", parameters):
        assert re.search(rf"(^|│) *{pattern}", listed, re.MULTILINE), pattern


# ---------------------------------------------------------------- running again


@pytest.fixture
def failed_job(node: Node, tmp_path: Path) -> str:
    """The id of a job whose containers could not write their files; now they could."""
    job = a_job(tmp_path, a=0)
    register = tmp_path / "register"
    register.rmdir()
    watched = submit(node, job, "--watch")
    assert watched.returncode == 1, watched.stderr
    assert "EXIT_1" in watched.stdout
    register.mkdir()
    return watched.stdout.splitlines()[0]


def test_a_failed_job_is_run_again_from_the_failed_task(node, failed_job, tmp_path):
    changes = tmp_path / "changes.yml"
    changes.write_text("common: {a: {lasts: 0, last: 1}}")

    rerun = cli(
        node,
        "rerun",
        failed_job,
        "--parameters",
        str(changes),
    )
    assert rerun.returncode == 0, rerun.stderr
    assert "common.a.last:" in rerun.stderr, "a warning about the misspelt parameter"
    new_job = rerun.stdout.strip()
    watched = cli(node, "watch", new_job)
    assert watched.returncode == 0
    assert f"reruns {failed_job} from a, other parameters for a" in watched.stdout

    unknown_task = cli(node, "rerun", new_job, "--from", "nothing")
    assert unknown_task.returncode != 0
    assert "nothing" in unknown_task.stderr


@pytest.fixture
def provider_is_deleted_later(node: Node) -> Iterator[None]:
    """Let a test delete the provider."""
    yield
    node.post("/v2/provider/register", A_PROVIDER)


def test_a_job_without_its_provider_is_not_run_again(node, failed_job, provider_is_deleted_later):
    node.post("/v2/provider/delete", {"name": "example"})
    refused = cli(node, "rerun", failed_job)
    assert refused.returncode == 1
    newest = newest_job(node)
    assert newest["status"] == "REJECTED"
    assert f"bfia-gateway job show {newest['job_id']}" in refused.stderr


# ---------------------------------------------------------------- what is printed


class InterruptedClient(Client):
    """A client whose user presses Ctrl-C during the first request."""

    def __init__(self) -> None:
        self.wire = BlockingWire(NOBODY)

    def call(self, *_: object, **__: object) -> object:
        raise KeyboardInterrupt


def test_a_user_who_stops_watching_learns_that_the_job_continues(capsys):
    with pytest.raises(KeyboardInterrupt):
        watch_until_over(
            InterruptedClient(),
            "job-1",
            as_json=False,
        )
    assert "the job continues" in capsys.readouterr().err


def test_warnings_above_the_limit_are_counted():
    assert warning_lines(["a", "b", "c"], "job-1", 3) == ["warning: a", "warning: b", "warning: c"]
    *_, last = warning_lines([str(number) for number in range(13)], "job-1", 3)
    assert last == "10 more warnings: bfia-gateway job show job-1"


FAILURE = {
    "reason": "STOPPED",
    "message": "",
    "node": "",
    "exit_code": None,
    "tried": [1, 2],
    "last": True,
}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            {"failure": FAILURE, "to": "FAILED"},
            "failure reason STOPPED; tried 1, 2; last yes; to FAILED",
        ),
        ({"until": "2026-11-28T02:37:24.107020+00:00"}, "until 2026-11-28 02:37:24 UTC"),
    ],
    ids=["failure", "moment"],
)
def test_an_object_in_a_cell_is_written_for_people(value, text):
    assert cell(value) == text


CREATE_CALL = {
    "method": "POST",
    "path": "/v1/interconn/schedule/job/create",
    "seconds": 0.0148,
    "trace_id": "t",
    "http": 200,
}


@pytest.mark.parametrize(
    ("detail", "text"),
    [
        (CREATE_CALL | {"code": 0, "message": "success"}, "POST job/create, 200, 15 ms"),
        (
            CREATE_CALL
            | {
                "code": 409,
                "message": "JOB_EXISTS",
            },
            "POST job/create, 200, 15 ms; code 409; message JOB_EXISTS",
        ),
        (
            {
                "task": "psi",
                "task_id": "task_1",
                "attempt": 0,
                "origin": {"from": "10.1.2.3", "sha256": "ab" * 32},
            },
            "task psi; origin 10.1.2.3",
        ),
    ],
    ids=["call", "refused-call", "origin"],
)
def test_the_detail_of_an_event_is_written_for_people(detail, text):
    assert cell(readable_detail(detail)) == text


def test_the_detail_of_an_event_is_in_chinese_for_who_reads_chinese(use_language):
    use_language("zh")
    failure = {"exit_code": 1, "message": "the job has ended, or is about to"}
    detail = readable_detail({"user": "ann", "failure": failure})
    assert cell(detail) == "用户 ann; 失败 退出码 1; 消息 作业已结束或即将结束"
