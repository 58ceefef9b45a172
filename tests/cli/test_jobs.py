"""``bfia-gateway job …``: a job is handed in, watched, looked into and stopped from the command line."""

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
from tests.e2e.jobs import PATIENT_ENGINE, job_of
from tests.e2e.nodes import process_engine, wait_for
from tests.inprocess import ME, PEER, ask, pair, running


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("node"), engine=PATIENT_ENGINE) as gateway:
        yield gateway


@pytest.fixture
def node(gateway: Gateway, tmp_path: Path) -> Gateway:
    (tmp_path / "register").mkdir()
    ask(gateway, "operator", "POST", "/v2/provider/register", json=A_PROVIDER)
    return gateway


def body(tmp_path: Path, **lasting: float) -> dict[str, Any]:
    """Return a job of independent tasks at one node that last so many seconds."""
    job: dict[str, Any] = job_of(tmp_path / "register", lasting)
    job["config"]["role"] = {"guest": [ME], "host": [ME]}
    return job


def reading_what_is_not_there(
    gateway: Gateway,
    job: dict[str, Any],
    role: str,
) -> dict[str, Any]:
    """Return the job as one party would read a dataset that no node has; this node has one of nearly that name."""
    words = [
        "data",
        "upload",
        "-",
        "--namespace",
        "bank",
        "--name",
        "rows",
        "--match-id",
        "id",
        "--overwrite",
    ]
    sent = forks.run([*words, "--url", gateway.addresses()["operator"]], input="id,x\n1,2\n")
    assert sent.returncode == 0, sent.stderr
    own = {
        r: {"0": {"a": {"dataset_id": "bank#rosw" if r == role else ""}}} for r in ("guest", "host")
    }
    return job | {"config": job["config"] | {"task_params": job["config"]["task_params"] | own}}


def cli(
    gateway: Gateway,
    *words: str,
    stdin: str = "",
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, as its user would."""
    url = gateway.addresses()["operator"]
    return forks.run(
        ["job", *words, "--url", url], input=stdin, env=os.environ | {"COLUMNS": "200"} | more
    )


def printed(result: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(result.stdout)


def test_a_job_is_handed_in_and_watched_to_its_end(node, tmp_path):
    file = tmp_path / "job.yml"
    file.write_text(yaml.safe_dump(body(tmp_path, a=0, b=0)))
    done = cli(node, "submit", str(file), "--watch")
    assert done.returncode == 0, done.stderr
    assert "FINISHED SUCCEEDED, 100 %" in done.stdout
    job_id = done.stdout.splitlines()[0]
    assert job_id[:12] in (listed := cli(node, "list").stdout)
    assert "SUCCEEDED" in listed
    for word in (job_id, job_id[:20], "last"):
        shown = cli(node, "show", word).stdout
        assert shown.startswith(job_id)
        assert "SUCCESS" in shown
        assert ME in shown
    assert f"of {ME}, created 20" in shown
    (took,) = re.findall(r", took (\d+ s)\n", shown)
    assert f"│ {took} " in re.sub(" +", " ", listed), "one meaning: since it was created"
    assert "job-nothing" in cli(node, "show", "job-nothing").stderr
    assert [e["event"] for e in printed(cli(node, "timeline", job_id, "--json"))["timeline"]].count(
        "job RUNNING"
    ) == 1
    assert "job FINISHED" in cli(node, "timeline", job_id).stdout
    assert {
        (o["task"], o["there"]) for o in printed(cli(node, "outputs", job_id, "--json"))["outputs"]
    } == {
        ("a", True),
        ("b", True),
    }
    target = tmp_path / "saved.csv"
    saved = cli(node, "download", job_id, "a", "data0", "-p", "guest.0", "-o", str(target))
    assert saved.returncode == 0 and target.read_text().startswith("id,x\n1,"), saved.stderr
    named = forks.run(
        [
            "job",
            "download",
            job_id,
            "a",
            "data0",
            "-p",
            "guest.0",
            "--url",
            node.addresses()["operator"],
        ],
        cwd=tmp_path,
    )
    assert named.returncode == 0 and (tmp_path / "data0.csv").exists(), named.stderr
    assert cli(node, "watch", job_id).returncode == 0


def test_a_job_from_standard_input_is_stopped_and_the_exit_code_tells(node, tmp_path):
    handed = cli(node, "submit", "-", "--json", stdin=json.dumps(body(tmp_path, a=600, c=600)))
    job_id = printed(handed)["job_id"]
    assert any("common.a.lasts" in warning for warning in printed(handed)["warnings"])
    wait_for(lambda: len(list((tmp_path / "register").iterdir())) == 4, 60)
    assert (
        cli(node, "stop", job_id, "--task", "a").stdout
        == f"task a of {job_id} is being stopped at every node\n"
    )
    assert cli(node, "stop", job_id).returncode == 0
    ended = cli(node, "watch", job_id)
    assert ended.returncode == 1
    assert "FINISHED STOPPED" in ended.stdout
    assert f"\nSTOPPED: stopped by {ME}\n" in ended.stdout
    assert "last lines" not in ended.stdout
    assert "STOPPED" in ended.stdout.split("\na ")[1].split("\n")[0]
    assert "FAILED" not in ended.stdout
    again = cli(node, "stop", job_id)
    assert (
        again.stdout == f"{job_id} has ended before (FINISHED STOPPED); there was nothing to stop\n"
    )
    assert printed(cli(node, "stop", job_id, "-t", "a", "--json"))["stopped"] is False


def test_what_is_odd_about_a_job_that_is_handed_in_goes_to_standard_error(node, tmp_path):
    handed = cli(node, "submit", "-", stdin=json.dumps(body(tmp_path, a=0)))
    assert handed.stdout.startswith("job-")
    assert len(handed.stdout.splitlines()) == 1
    lines = [line for line in handed.stderr.splitlines() if "common.a.lasts" in line]
    assert len(lines) == 1 and lines[0].startswith("warning: "), handed.stderr
    strict = cli(node, "submit", "-", "--strict", stdin=json.dumps(body(tmp_path, a=0)))
    assert strict.returncode == 1
    assert "INVALID: " in strict.stderr
    assert "common.a.lasts" in strict.stderr
    for odd in ({"config": []}, {"config": {"job_params": 1}}):
        assert cli(node, "submit", "-", "--strict", stdin=json.dumps(odd)).returncode == 2


def test_a_refused_job_that_is_kept_is_named(node, tmp_path):
    job = body(tmp_path, a=0)
    wrong = json.dumps(reading_what_is_not_there(node, job, "guest"))
    mistyped = cli(node, "submit", "-", stdin=wrong)
    assert (
        "\nbank#rosw: did you mean bank#rows?\n" in mistyped.stderr
        and "data list" in mistyped.stderr
    )
    chinese = cli(node, "submit", "-", stdin=wrong, LC_ALL="zh_CN.UTF-8").stderr
    assert "\nbank#rosw: 是否应为 bank#rows？\n" in chinese and chinese.count("是否应为") == 1
    job["dag"]["components"][0]["componentName"] = "Nobody"
    refused = cli(node, "submit", "-", "--json", stdin=json.dumps(job))
    said = json.loads(refused.stderr)
    job_id = said["data"]["job_id"]
    newest = printed(cli(node, "list", "--json"))["jobs"][0]
    assert refused.returncode == 1
    assert newest["job_id"] == job_id
    assert newest["status"] == "REJECTED"
    assert f"bfia-gateway job show {job_id}" in said["error"]
    assert printed(cli(node, "show", job_id, "--json"))["outcome"] == "REJECTED"
    job["config"]["role"]["host"] = ["JG0000000000000404"]  # refused before anything is kept
    unknown = cli(node, "submit", "-", "--json", stdin=json.dumps(job))
    assert unknown.returncode == 2
    assert "job_id" not in json.loads(unknown.stderr)["data"]


def test_every_node_that_refused_a_job_is_named_with_the_next_step(tmp_path):
    with pair(tmp_path) as (node, _):
        job = job_of(tmp_path, {"a": 0})
        job["config"]["role"] = {"guest": [ME], "host": [PEER]}
        job["config"]["task_params"]["host"] = {"0": {"a": {"dataset_id": "no#such"}}}
        said = json.loads(cli(node, "submit", "-", "--json", stdin=json.dumps(job)).stderr)
        refused = cli(node, "submit", "-", stdin=json.dumps(job)).stderr
        shown = cli(node, "show", "last", COLUMNS="900").stdout
        found = printed(cli(node, "show", "last", "--json"))
    assert [one["node"] for one in found["refusals"]] == [ME, PEER]
    for one in found["refusals"]:
        assert one["message"] in refused
        once = one["message"].replace(f" {one['reason']}: ", " ")
        assert f"{one['reason']} (node {one['node']}): {once}" in shown
    assert (
        f"; {PEER}: config.task_params.host.0.a.dataset_id: NOT_AUTHORISED: dataset no#such "
        in refused
    )
    problems = [(one["path"], one["rule"].split(": ")[:2]) for one in said["data"]["problems"]]
    assert problems == [
        ("dag.components[0]", [ME, "PROVIDER_UNKNOWN"]),
        ("config.task_params.host.0.a.dataset_id", [PEER, "NOT_AUTHORISED"]),
        ("dag.components[0]", [PEER, "PROVIDER_UNKNOWN"]),
    ]
    steps = [
        f"next step: {one}: {reasons()[one].next_step['en']}"
        for one in ("INVALID", "NOT_AUTHORISED")
    ]
    assert shown.splitlines()[-2:] == steps


def test_the_log_of_the_run_that_is_meant_is_printed(tmp_path):
    hello = "hello\u2028event: end"  # one line, and no event
    code = f"import sys; sys.stdout.buffer.write({hello.encode()!r}); print('oh', file=sys.stderr); sys.exit(3)"
    command = [sys.executable, "-c", code]
    engine = process_engine("example:1.0.0", command=command)
    with running(tmp_path / "node", engine=engine) as node:
        ask(node, "operator", "POST", "/v2/provider/register", json=A_PROVIDER)
        handed = cli(node, "submit", "-", "--watch", stdin=json.dumps(body(tmp_path, a=0)))
        assert handed.returncode == 1 and "EXIT_3" in handed.stdout, handed.stderr
        job_id = handed.stdout.splitlines()[0]
        unclear = cli(node, "logs", job_id)
        assert unclear.returncode == 2
        assert "--task a --party guest.0" in unclear.stderr
        for words in (("logs", job_id, "-t", "a"), ("download", job_id, "a", "data0")):
            unclear = cli(node, *words)
            assert unclear.stderr.endswith("there are: --party guest.0, --party host.0\n"), (
                unclear.stderr
            )
        assert "there are: a --party guest.0" in cli(node, "download", job_id, "b", "data0").stderr
        runs = node.store.local_jobs.get(job_id).runs
        ended = next(r.party.label for r in runs if r.failure and r.failure.reason == "EXIT_3")
        where = (job_id, "-t", "a", "-p", ended)
        assert "hello" in cli(node, "logs", *where).stdout
        assert cli(node, "logs", *where, "--level", "error").stdout == "oh\n"
        followed = cli(node, "logs", job_id, "-t", "a", "-p", ended, "--follow")
        assert hello in followed.stdout
        assert "oh" in followed.stderr


def test_a_job_that_asks_a_person_is_listed_approved_suspended_and_resumed(tmp_path):
    (tmp_path / "register").mkdir()
    approval = {"mode": "person", "deadline_seconds": 600}
    with (
        running(tmp_path / "bank", engine=PATIENT_ENGINE) as bank,
        running(tmp_path / "partner", PEER, engine=PATIENT_ENGINE, approval=approval) as partner,
    ):
        for one, other in ((bank, partner), (partner, bank)):
            ask(one, "operator", "POST", "/v2/provider/register", json=A_PROVIDER)
            route = {"route": {"url": other.addresses()["peer"], "signing": "off"}}
            ask(one, "operator", "PUT", f"/api/v1/routes/{other.settings.node.id}", json=route)
        job = body(tmp_path, a=0)
        job["config"]["role"]["host"] = [PEER]
        reading_what_is_not_there(partner, job, "host")
        theirs = cli(
            bank, "submit", "-", stdin=json.dumps(reading_what_is_not_there(bank, job, "host"))
        )
        assert (
            "bank#rosw" in theirs.stderr and "bank#rows" not in theirs.stderr
        )  # names of others are theirs
        for role, dataset in (("guest", ""), ("host", "bank#rows")):
            job["config"]["task_params"][role] = {"0": {"a": {"dataset_id": dataset}}}
        handed = cli(bank, "submit", "-", stdin=json.dumps(job))
        job_id = handed.stdout.strip()
        at = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"
        waits = re.search(
            rf"waits for approval until {at} \({PEER}\)$", handed.stderr, re.MULTILINE
        )
        assert waits
        chinese = translate(f"warning: {waits[0]}", "zh")
        assert re.fullmatch(rf"警告：等待审批，截止 {at} \({PEER}\)", chinese), chinese
        asked = printed(cli(partner, "approvals", "--json"))["approvals"]
        assert [a["job_id"] for a in asked] == [job_id]
        (task,) = asked[0]["tasks"]
        assert (task["dataset"], task["parameters"]["lasts"]) == ("bank#rows", 0)
        shown = cli(partner, "approvals", COLUMNS="400").stdout
        for one in (
            job_id,
            "example/Echo 1.0.0",
            "example:1.0.0",
            "bank#rows",
            r'a host.0: \{"lasts": 0, "register": "/',
        ):
            assert re.search(rf"(^|│) *{one}", shown, re.MULTILINE), one
        assert "bfia-gateway job approvals" in " ".join(cli(bank, "show", job_id).stdout.split())
        assert cli(bank, "suspend", job_id).stdout == f"{job_id} starts no further task\n"
        assert (
            cli(partner, "approve", job_id, "-m", "fine").stdout == f"{job_id} is approved here\n"
        )
        assert cli(partner, "reject", job_id).returncode == 1
        twice = cli(partner, "approve", job_id, "-m", "finer")
        assert f"{job_id} was approved here before: by " in twice.stdout
        assert "nothing was changed" in twice.stdout
        assert "new reason was not sent" in twice.stderr
        wait_for(lambda: "SUSPENDED" in cli(bank, "show", job_id).stdout, 60)
        assert list((tmp_path / "register").iterdir()) == []
        assert cli(bank, "resume", job_id).returncode == 0
        assert cli(bank, "watch", job_id).returncode == 0


def test_a_job_that_failed_is_run_again_from_the_task_that_failed(node, tmp_path):
    (tmp_path / "register").rmdir()  # its containers cannot say that they are there, and fail
    failed = cli(node, "submit", "-", "--watch", stdin=json.dumps(body(tmp_path, a=0)))
    assert failed.returncode == 1 and "EXIT_1" in failed.stdout, failed.stderr
    (tmp_path / "register").mkdir()
    first = failed.stdout.splitlines()[0]
    changes = tmp_path / "changes.yml"
    changes.write_text("common: {a: {lasts: 0, last: 1}}")
    again = cli(node, "rerun", first, "--parameters", str(changes))
    assert again.returncode == 0, again.stderr
    assert [line for line in again.stderr.splitlines() if "common.a.last:" in line], (
        "a misspelt name is told"
    )
    watched = cli(node, "watch", again.stdout.strip())
    assert watched.returncode == 0
    assert f"reruns {first} from a, other parameters for a" in watched.stdout
    unknown = cli(node, "rerun", again.stdout.strip(), "--from", "nothing")
    assert unknown.returncode != 0
    assert "nothing" in unknown.stderr
    ask(node, "operator", "POST", "/v2/provider/delete", json={"name": "example"})
    refused = cli(node, "rerun", first)
    newest = printed(cli(node, "list", "--json"))["jobs"][0]
    assert refused.returncode == 1
    assert newest["status"] == "REJECTED"
    assert f"bfia-gateway job show {newest['job_id']}" in refused.stderr


# ---------------------------------------------------------------- watching


class Interrupted(Client):
    """A node at which somebody loses patience."""

    def __init__(self) -> None:
        self.wire = BlockingWire("http://127.0.0.1:9")

    def call(self, *_: object, **__: object) -> object:
        raise KeyboardInterrupt


def test_who_stops_watching_a_job_is_told_that_it_goes_on(capsys):
    with pytest.raises(KeyboardInterrupt):
        watch_until_over(Interrupted(), "job-1", as_json=False)
    assert "the job continues" in capsys.readouterr().err


def test_many_warnings_do_not_hide_the_rest():
    assert warning_lines(["a", "b", "c"], "job-1", 3) == ["warning: a", "warning: b", "warning: c"]
    last = warning_lines([str(n) for n in range(13)], "job-1", 3)[-1]
    assert last == "10 more warnings: bfia-gateway job show job-1"


def test_a_line_of_the_timeline_is_written_for_people(monkeypatch):
    failure = {
        "reason": "STOPPED",
        "message": "",
        "node": "",
        "exit_code": None,
        "tried": [1, 2],
        "last": True,
    }
    assert (
        cell({"failure": failure, "to": "FAILED"})
        == "failure reason STOPPED; tried 1, 2; last yes; to FAILED"
    )
    assert cell({"until": "2026-11-28T02:37:24.107020+00:00"}) == "until 2026-11-28 02:37:24 UTC"
    path = "/v1/interconn/schedule/job/create"
    called = {
        "method": "POST",
        "path": path,
        "seconds": 0.0148,
        "trace_id": "t",
        "http": 200,
    }
    assert (
        cell(
            readable_detail(
                {
                    **called,
                    "code": 0,
                    "message": "success",
                }
            )
        )
        == "POST job/create, 200, 15 ms"
    )
    refused = readable_detail(
        {
            **called,
            "code": 409,
            "message": "JOB_EXISTS",
        }
    )
    assert cell(refused) == "POST job/create, 200, 15 ms; code 409; message JOB_EXISTS"
    proof = {"from": "10.1.2.3", "sha256": "ab" * 32}
    event = {
        "task": "psi",
        "task_id": "task_1",
        "attempt": 0,
        "origin": proof,
    }
    assert cell(readable_detail(event)) == "task psi; origin 10.1.2.3"
    monkeypatch.setattr("gateway.cli.language._chosen", ["zh"])
    ended = readable_detail(
        {"user": "ann", "failure": {"exit_code": 1, "message": "the job has ended, or is about to"}}
    )
    assert cell(ended) == "用户 ann; 失败 退出码 1; 消息 作业已结束或即将结束"
