"""What holds for every command: where it finds its node, what it takes and prints, how it ends."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import typer
import yaml
from rich.cells import cell_len
from rich.console import Console

from bfia_gateway_client.calls import next_step_of
from gateway.bootstrap.parts import Pace
from gateway.cli.client import TOKEN, URL, CallFailed, Client, new_file, read_object
from gateway.cli.command import reporting
from gateway.cli.data import _print_grants
from gateway.cli.init import TLS_FILES
from gateway.cli.job_tree import draw_job
from gateway.cli.jobs import run_of
from gateway.cli.output import print_json, say
from gateway.cli.tables import listing, table
from gateway.cli.values import lasted, short
from gateway.config.loader import load
from gateway.config.tls import Tls
from gateway.data.reading import NotFit
from gateway.errors import Invalid
from gateway.language.catalogue import reasons, translate
from tests.certificates import Authority
from tests.cleaning.ended import left_behind
from tests.cli import NOBODY, all_commands, call, call_node, json_from_node, raising
from tests.e2e.nodes import ROOT, free_ports
from tests.inprocess import running

SECRET = "bfia_0123456789abcdef"
SELDOM = Pace(cleaning=3600.0)


@pytest.fixture(autouse=True)
def _no_address_from_outside(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(URL, raising=False)
    monkeypatch.delenv(TOKEN, raising=False)


# ---------------------------------------------------------------- help


def test_every_command_shows_an_example():
    said = {name: one.help for name, one in all_commands().items() if not hasattr(one, "commands")}
    assert {
        "gc",
        "serve",
        "job submit",
        "job plan",
        "data grant",
        "route test",
        "provider check",
    } < set(said)
    without = [
        n for n, text in said.items() if f"Example: bfia-gateway {n}" not in " ".join(text.split())
    ]
    assert without == []
    assert call("route", "test", "-h").stdout == call("route", "test", "--help").stdout
    done = call("route", "test", "--help")
    assert done.exit_code == 0
    assert "Example: bfia-gateway route test" in " ".join(done.stdout.split())


def test_the_version_is_shown_and_an_uncallable_node_refused(tmp_path):
    assert call("--version").stdout != ""
    file = tmp_path / "node.yml"
    for name in ("JG 01/x", "", "-JG", "JG/..", "j" * 101, "节点"):
        refused = call("init", "--node", name, "-o", str(file))
        assert refused.exit_code == 2
        assert "letters, digits" in refused.stderr
        assert not file.exists()
        with pytest.raises(Invalid, match="must be a node id"):
            load(None, {"node": {"id": name}, "engine": {"kind": "process"}})
    chosen = call("init", "--node", "JG-01.x", "--engine", "process", "-o", str(file))
    assert chosen.exit_code == 0
    assert not chosen.stderr
    beside = call("init", "--engine", "process", "-o", str(tmp_path / "other.yml"))
    assert beside.exit_code == 2
    assert "routes.yml; give --force, or --output in another folder" in beside.stderr
    left_open = call("init", "--engine", "process", "-o", str(tmp_path / "other" / "node.yml"))
    assert left_open.exit_code == 0
    assert "no two nodes may have the same" in left_open.stderr
    folder = tmp_path / "third"
    made = call(
        *(
            "init",
            "--node",
            "JG0100001100000010",
            "--engine",
            "process",
            "-o",
            str(folder / "node.yml"),
        ),
        *("--port", "7390", "--auth", "--tls", str(folder / "tls")),
    )
    assert made.exit_code == 0
    assert "node.key" in made.stderr
    assert "token create" in made.stdout
    (recipe,) = re.findall(
        r"```bash\n(mkdir -p tls.*?)```", (ROOT / "docs/operations.md").read_text(), re.DOTALL
    )
    subprocess.run(
        ["bash", "-ec", recipe],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    settings = load(folder / "node.yml")
    assert settings.auth.mode == "on"
    assert settings.listen.peer.bind == "0.0.0.0:7390"
    assert settings.listen.container.bind == "127.0.0.1:7391"
    assert settings.listen.peer.tls is not None
    assert (
        Tls(*(str(folder / "tls" / name) for name in TLS_FILES))
        .context()
        .cert_store_stats()["x509_ca"]
        == 1
    )
    assert "certificate: tls/node.pem" in (folder / "node.yml").read_text().replace('"', "")
    invited = call(
        *(
            "partner",
            "invite",
            "--address",
            "https://me",
            "--config",
            str(tmp_path / "other" / "node.yml"),
        )
    )
    assert invited.exit_code == 0
    assert "change node.id first" in invited.stderr


# ---------------------------------------------------------------- the node and its token


def test_an_address_with_the_other_scheme_is_named_with_the_right_one(tmp_path):
    plain, secure = free_ports(2)
    files = Authority(tmp_path / "tls").sign("node")
    tls = {"certificate": files.certificate, "key": files.key}
    peer, any_port = {"bind": f"127.0.0.1:{secure}", "tls": tls}, {"bind": "127.0.0.1:0"}
    listen = {
        "peer": peer,
        "container": any_port,
        "operator": {"bind": f"127.0.0.1:{plain}"},
    }
    with running(tmp_path / "node", listen=listen):
        for wrong, right, port in (("https", "http", plain), ("http", "https", secure)):
            failed = call("job", "list", "--url", f"{wrong}://127.0.0.1:{port}")
            expected = f"{right} is spoken at {wrong}://127.0.0.1:{port}, not {wrong}: name the node by --url {right}://"
            assert failed.exit_code == 3
            assert f"{expected}127.0.0.1:{port}\n" in failed.stderr


def test_the_address_and_the_token_come_from_the_configuration(tmp_path):
    (port,) = free_ports(1)
    operator, any_port = {"bind": f"127.0.0.1:{port}"}, {"bind": "127.0.0.1:0"}
    listen = {
        "peer": any_port,
        "container": any_port,
        "operator": operator,
    }
    auth = {"mode": "on", "token": "a-token-of-this-test"}
    with running(tmp_path / "node", listen=listen, auth=auth):
        file = tmp_path / "node.yml"
        body = {
            "node": {"id": "JG1"},
            "engine": {"kind": "process"},
            "listen": {"operator": operator},
            "auth": auth,
        }
        file.write_text(yaml.safe_dump(body))
        assert call("gc", "--dry-run", "--config", str(file)).exit_code == 0
        refused = call("gc", "--dry-run", "--url", f"http://127.0.0.1:{port}")
        assert refused.exit_code == 1
        assert "NO_TOKEN" in refused.stderr
        assert f"export {TOKEN}" in refused.stderr
        assert "Bearer" not in refused.stderr
        assert "本节点要求令牌" in translate(refused.stderr, "zh")
        file.write_text(
            yaml.safe_dump(body | {"auth": {"mode": "on", "token": "another-token-of-it"}})
        )
        assert call("gc", "--dry-run", "--config", str(file)).exit_code == 1


def test_an_absent_node_differs_from_a_wrong_setting_or_listener(tmp_path):
    silent = call("gc", "--url", NOBODY, "--json")
    assert silent.exit_code == 3
    assert json.loads(silent.stderr)["reason"] == "NO_ANSWER"
    assert "bfia-gateway serve" in silent.stderr
    assert "Errno" not in silent.stderr
    for command in ("gc", "serve"):
        missing = call(command, "--config", str(tmp_path / "none.yml"))
        assert missing.exit_code == 2
        for word in ("none.yml is not there", "--config", "--url", "bfia-gateway init"):
            assert word in missing.stderr
    assert call("gc", "--url", "http://[").exit_code == 2
    with running(tmp_path) as node:
        done = call("data", "list", "--url", node.addresses()["peer"])
    assert done.exit_code == 1
    assert "PATH_UNKNOWN" in done.stderr
    assert "listen.operator" in done.stderr


@pytest.mark.parametrize(
    "text", [f"{SECRET}\r{SECRET}", f"{SECRET}é", f"{SECRET} {SECRET}", f"{SECRET}\udcff"]
)
def test_a_token_that_can_be_none_is_told_by_its_name_and_not_shown(monkeypatch, text):
    monkeypatch.setenv(TOKEN, text)
    said = call("job", "list", "--url", NOBODY)
    assert said.exit_code == 2
    assert f"{TOKEN} holds characters" in said.stderr
    assert SECRET not in said.output


def test_a_token_is_masked_in_whatever_the_client_says(monkeypatch):
    error = httpx.LocalProtocolError(f"Illegal header value b'Bearer {SECRET}'")
    monkeypatch.setattr(httpx.Client, "request", raising(error))
    with Client(NOBODY, SECRET) as node, pytest.raises(CallFailed) as caught:
        node.get("/health/live")
    assert SECRET not in str(caught.value)
    assert "Bearer …" in str(caught.value)


# ---------------------------------------------------------------- what is given


@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
def test_what_is_sent_or_configured_is_a_file_too(tmp_path, kind):
    what = {
        "device": Path("/dev/zero"),
        "pipe": tmp_path / "pipe",
        "folder": tmp_path,
    }[kind]
    os.mkfifo(tmp_path / "pipe")
    upload = ["data", "upload", str(what), "--namespace", "bank", "--name", "rows"]
    for words in (upload, ["model", "import", str(what)]):
        said = call(*words, "--url", NOBODY)
        assert said.exit_code == 2 and "and no file" in said.stderr, said.output
    for words in (["job", "list"], ["doctor"], ["token", "list"]):
        said = call(*words, "--config", str(what))
        assert (
            said.exit_code == 2 and f"{what}: is a" in said.output and "and no file" in said.output
        ), said.output
    said = call("job", "archive", "job-1", "-o", str(what), "--force", "--url", NOBODY)
    assert said.exit_code == 2 and "is never replaced" in said.stderr, said.output


def test_a_file_that_is_there_is_replaced_only_by_force(tmp_path):
    there = tmp_path / "rows.csv"
    there.write_text("mine")
    for words in (
        ["job", "download", "job-1", "a", "k", "-p", "guest.0"],
        ["job", "archive", "job-1"],
        ["data", "download", "bank#rows"],
        ["model", "export", "credit", "3"],
    ):
        said = call(*words, "-o", str(there), "--url", NOBODY)
        assert said.exit_code == 2 and "give --force" in said.stderr, said.output
        assert call(*words, "-o", str(there), "--force", "--url", NOBODY).exit_code == 3
        long = call(*words, "-o", "a" * 300, "--url", NOBODY)
        assert long.exit_code == 2 and "File name too long" in long.stderr, long.output
    assert there.read_text() == "mine"
    with pytest.raises(NotFit, match="or name another file"):  # not each command has -o
        new_file(there, force=False)
    new_file(tmp_path / "new.csv", force=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\na: 2\n", "duplicate key a in lines 1 and 2"),
        ('{"a": 1\n "b": 2}', "is neither JSON nor YAML: line 2 column 5"),
        ("a: [1", "is neither JSON nor YAML: line 2 column 1: did not find"),
        ("[1]", "holds a list"),
        ("", "holds nothing"),
        ('{"a": {"b": [1, NaN]}}', "not JSON compliant"),
        ("a: 2026-01-02", "Object of type date is not JSON serializable"),
        ("a:\n  2026-01-02: 1\n", "keys must be str"),
        ("a: &a [*a]\n", "Circular reference"),
    ],
)
def test_a_file_that_cannot_be_sent_is_refused_with_the_cause(tmp_path, text, said):
    (tmp_path / "file").write_text(text)
    with pytest.raises(NotFit, match=re.escape(said)):
        read_object(tmp_path / "file")


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path):
    with pytest.raises(NotFit, match=r"nothere.json cannot be read: No such file") as refused:
        read_object(tmp_path / "nothere.json")
    assert "JSON nor YAML" not in str(refused.value)


# ---------------------------------------------------------------- what is printed


def test_a_table_fits_80_columns_in_a_pipe_or_as_many_as_columns_says(capsys, monkeypatch):
    prose, job_id = "a sentence that goes on for quite a while " * 9, "job-" + "0" * 32
    rows = [[job_id, "FAILED", prose]] * 2
    monkeypatch.delenv("COLUMNS")
    table("2 jobs", ["job", "state", "why"], rows)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(job_id in line for line in lines) == 2
    url = "http://127.0.0.1:7380"
    table(
        "",
        ["name", "version", "description", "warnings", "at", "why"],
        [["rows", 1, "", "", url, "x" * 99 + prose]],
    )
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert url in out
    assert "version" in out
    assert "description" not in out
    assert "warnings" not in out
    monkeypatch.setenv("COLUMNS", "1000")
    table("2 jobs", ["job", "state", "why"], rows)
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if job_id in line).count("sentence") == 9


def test_of_a_wide_list_what_can_be_spared_is_left_out(capsys, monkeypatch):
    url = "https://gateway.partner.example:7380"
    route = {
        "node": "JG0100001100000010",
        "address": url,
        "profile": "spec",
        "deadline": "10 s",
        "relay": False,
    }
    route["via"] = ""  # an empty column is not left out: there is none
    found, columns = {"routes": [route]}, {name: name for name in route}
    for width, kept, more in (("72", 3, "2 columns"), ("80", 4, "1 column"), ("90", 5, "")):
        monkeypatch.setenv("COLUMNS", width)
        listing(found, "routes", "route", columns, dispensable=("via", "deadline", "relay"))
        shown = capsys.readouterr()
        _, heading, _, line = shown.out.splitlines()
        assert len(heading.split("┃")) == kept
        assert url in line
        assert shown.err == (f"and {more} more: --json has all\n" if more else "")


def test_a_wide_table_shows_the_columns_that_fit_or_one_row_each(capsys, monkeypatch):
    columns, id_ = [*(f"area_error_{n}" for n in range(10)), "id", "y"], "JG0100001100000010"
    monkeypatch.delenv("COLUMNS")
    table("", columns, [[*["0.123456789012345678"] * 10, id_, 1]] * 2, columns[-3::-1])
    shown = capsys.readouterr()
    heading, _, *lines = shown.out.splitlines()
    assert re.findall("[a-z_0-9]+", heading) == ["area_error_0", "area_error_1", "id", "y"]
    assert len(lines) == 2
    assert all(id_ in line and len(line) <= 80 for line in lines)
    assert shown.err == "and 8 columns more: --json has all\n"
    assert translate(shown.err, "zh") == "另有 8 列：--json 输出全部\n"
    assert translate("not shown: the rows after the first 3", "zh") == "未显示：前 3 行之后的各行"
    table("", columns, [["0.123456789012345678"] * 12] * 2)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.split() == ["area_error_9", "│", "0.123456789012345678"] for line in lines) == 2
    table("", ["note", "more"], [["x" * 300, "y"]], ["more", "note"])
    assert capsys.readouterr().out.count("x") == 300, "one column is shown, however wide it is"


@pytest.mark.parametrize("width", ["80", "120"])
def test_a_table_that_would_break_words_shows_each_row_by_itself(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    approval = {
        "job": "job-" + "0" * 32,
        "requested by": "JG0100001100000010",
        "as": "host.0",
        "note": "",
    }
    approval |= {
        "components": "citybank/JointMean 1.0.0",
        "image": "citybank-mean:1.0.0",
        "dataset": "a#baskets",
    }
    table("", list(approval), [list(approval.values())] * 2)
    filled = [key for key, value in approval.items() if value]
    lines = [line.split("│") for line in capsys.readouterr().out.splitlines()]
    assert [line[0].strip() for line in lines] == [*filled, "", *filled]
    assert [line[1].strip() for line in lines if line[1:]] == [approval[key] for key in filled] * 2


def test_ids_stay_in_one_line(capsys, monkeypatch):
    prose, node = "a sentence that goes on for quite a while " * 3, "JG0100001100000010"
    monkeypatch.delenv("COLUMNS")
    table("", ["check", "about", "result", "found"], [["route", node, "PROBLEM", prose]] * 2)
    lines = capsys.readouterr().out.splitlines()
    assert sum(node in line for line in lines) == 2
    assert max(map(len, lines)) <= 80


def test_what_to_do_stands_below_a_narrow_table_in_one_line(capsys, monkeypatch):
    line = "chmod 600 " + "/a/long/path" * 9
    rows = [["file\nmodes", "mine", "WARNING", line], ["disk", "", "ok", ""]]
    monkeypatch.delenv("COLUMNS")
    table("", ["step", "about", "result", "what to do"], rows)
    *shown, heading, remedy = capsys.readouterr().out.splitlines()
    assert heading == "what to do:"
    assert remedy == f"  file modes mine: {line}"
    assert "what to do" not in shown[0]
    assert len(shown) == 5
    monkeypatch.setenv("COLUMNS", "200")
    table("", ["step", "about", "result", "what to do"], rows)
    assert "what to do" in capsys.readouterr().out.splitlines()[0]


def test_chinese_text_beside_long_words_stays_readable(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS")
    table(
        "",
        ["time", "event", "by", "more"],
        [["11:59:23.590", "作业在本节点已就绪", "JG01" * 9, "a/" * 90]],
    )
    lines = capsys.readouterr().out.splitlines()
    assert "作业在本节点已就绪" in lines[1]
    assert max(cell_len(line) for line in lines) <= 80


def test_how_long_something_took_is_said_in_two_units():
    took = [
        lasted("2026-11-21T08:00:00+00:00", f"2026-11-2{at}+00:00")
        for at in ("1T08:00:00.9", "1T09:00:07", "3T09:01:00")
    ]
    assert took == ["0 s", "1 h", "2 d 1 h"]
    assert lasted(None, None) == ""


def test_ids_are_shown_as_far_as_they_differ():
    one, other = "job-" + "a" * 32, "job-" + "a" * 12 + "b" * 20
    assert short([one, other, "job-mine"]) == [
        "job-" + "a" * 13,
        "job-" + "a" * 12 + "b",
        "job-mine",
    ]
    assert short([one]) == [one[:12]]
    assert short([]) == []


def test_what_others_wrote_is_no_markup_and_steers_no_terminal(capsys):
    table("Tokens of [red]ann\x1b", ["[b]path"], [["[/red]GET /\x1b[2J\x9b31m\u202egpj\rok"]])
    with pytest.raises(typer.Exit), reporting():
        raise CallFailed("JOB_UNKNOWN: no job \x1b]0;x\x07 here\nnor there")
    said = capsys.readouterr()
    assert "[red]ann?" in said.out
    assert "[b]path" in said.out
    assert "[/red]GET /?[2J?31m?gpj?ok" in said.out
    assert said.err == "JOB_UNKNOWN: no job ?]0;x? here\nnor there\n"
    say("a log's line \x1b[2J of\ttwo\nlines")
    assert capsys.readouterr().out == "a log's line ?[2J of\ttwo\nlines\n"
    value = {"a\x9b": ["\x1b", "\u202e", "\x7f", "\n"]}
    print_json(value)
    shown = capsys.readouterr().out
    assert json.loads(shown) == value
    assert not set(shown) & set("\x1b\x9b\u202e\x7f")
    job = {
        "job_id": "job-1",
        "scheduler": "[red]n1",
        "status": "FINISHED\x1b[2J",
        "outcome": "FAILED",
        "progress": 0,
        "parties": [{"node": "[/]n1", "role": "guest"}],
        "runs": [],
        "tasks": [
            {
                "name": "[/b]a",
                "nodes": {"[/]n1": {"guest": "\x1b"}},
                "waiting": {"message": "[x]\x9b"},
            }
        ],
        "failure": {"reason": "EXIT_1", "message": "[bold]\x1b]0;x\x07"},
    }
    Console().print(draw_job(job))
    shown = capsys.readouterr().out
    assert not set(shown) & set("\x1b\x9b\x07")
    for text in ("[red]n1", "[/]n1 (guest)", "[/b]a", "[x]?", "[bold]?]0;x?", "FINISHED?[2J"):
        assert text in shown, shown


def test_a_job_shows_an_attempt_that_failed_until_a_later_one_succeeds(capsys):
    run = {"task_name": "pair", "party": "guest.0"}
    failed = run | {
        "attempt": 0,
        "status": "FAILED",
        "last_lines": ["error"],
        "warnings": ["slow"],
    }
    away = {"away_at": "2026-11-27", "waiting": {"message": "its engine has not answered"}}
    job = {
        "job_id": "j",
        "scheduler": "n",
        "status": "RUNNING",
        "progress": 0,
        "parties": [],
        "tasks": [],
    }
    for status, more, shown in (
        (
            "FAILED",
            {"last_lines": ["worse"]},
            {"attempt 1:", "error", "warning:", "job logs j", "worse"},
        ),
        (
            "RUNNING",
            away,
            {"attempt 1:", "error", "warning:", "pair as guest.0: its engine has not answered"},
        ),
        ("SUCCESS", {}, set()),
    ):
        Console(width=200).print(
            draw_job(job | {"runs": [failed, run | more | {"attempt": 1, "status": status}]})
        )
        said = capsys.readouterr().out
        assert {one for one in ("attempt 1:", "error", "warning:", *shown) if one in said} == shown


def test_the_end_of_a_grant_stands_below_its_heading_alone(capsys):
    grant = {
        "dataset_id": "a#b",
        "node": "n",
        "state": "VALID",
        "granted_by": "li",
        "reason": "",
        "revoked_at": None,
    }
    _print_grants(
        {"grants": [grant | {"expires_at": end} for end in ("2026-12-27T11:29:03+00:00", None)]}
    )
    shown = capsys.readouterr().out
    assert "2026-12-27 11:29 UTC" in shown and shown.count("until") == 2, (
        "in the heading, and until it is revoked"
    )


def test_a_failure_elsewhere_names_its_node_and_the_command_there():
    parties = [
        {
            "role": role,
            "index": 0,
            "node": node,
        }
        for role, node in (("guest", "JG1"), ("host", "JG2"))
    ]
    job = {
        "job_id": "job-1",
        "parties": parties,
        "runs": [{"task_name": "a", "party": "guest.0"}],
    }
    failure = {
        "reason": "EXIT_1",
        "role": "host",
        "node": "JG2",
        "task": "a",
    }
    for language, step in reasons()["EXIT_n"].next_step.items():
        said = next_step_of(step, job, failure)
        assert "JG2" in said and "bfia-gateway job logs job-1 --task a --party host.0" in said, (
            language
        )
    assert "job logs '$(x)' --task" in next_step_of(step, job | {"job_id": "$(x)"}, failure)
    with pytest.raises(CallFailed, match=r"--party guest.0; host.0 plays at node JG2"):
        run_of(job, "a", "host.0")
    with pytest.raises(CallFailed, match=r"--task a --party guest.0$"):
        run_of(job, "b", "guest.0")


def test_a_full_disk_behind_the_output_is_a_sentence():
    command = [sys.executable, "-m", "gateway.cli.main", "--help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "the output cannot be written: No space left on device\n"


# ---------------------------------------------------------------- cleaning up


def test_gc_lists_as_a_table_for_people_and_as_json_for_scripts(tmp_path):
    with running(tmp_path, pace=SELDOM, retention={"logs_seconds": 1}) as node:
        name = left_behind(node, "job-old", 5).runs[0].name
        dry = call_node("gc", node, "--dry-run")
        assert dry.exit_code == 0 and name in dry.stdout and "1 would be removed" in dry.stdout, (
            dry.output
        )
        found = json_from_node("gc", node, "--dry-run")
        assert [(i["kind"], i["name"], i["removed"]) for i in found["items"]] == [
            ("logs", name, False)
        ]
        assert [(i["name"], i["removed"]) for i in json_from_node("gc", node)["items"]] == [
            (name, True)
        ]
        assert "nothing to remove" in call_node("gc", node).stdout


def test_a_job_is_archived_cleaned_and_deleted(tmp_path):
    with running(tmp_path, pace=SELDOM) as node:
        run = left_behind(node, "job-old", 5).runs[0]
        target = tmp_path / "job.zip"
        assert call_node("job", node, "archive", "job-old", "-o", str(target)).exit_code == 0
        assert b"SHA256SUMS" in target.read_bytes()
        assert (
            call_node(
                "job", node, "archive", "job-none", "-o", str(tmp_path / "none.zip")
            ).exit_code
            == 1
        )
        assert sorted(p.name for p in tmp_path.glob("*.zip*")) == ["job.zip"]
        dry = call_node("job", node, "clean", "job-old", "a", "--metrics", "--dry-run")
        assert dry.exit_code == 0
        assert "would be deleted: 1" in dry.stdout
        assert node.storage.exists(run.outputs["report_name"])
        assert call_node("job", node, "clean", "job-old", "a", "--metrics").exit_code == 0
        assert not node.storage.exists(run.outputs["report_name"])
        asked = call_node("job", node, "delete", "job-old")
        assert asked.exit_code == 1
        assert "Delete job-old for good, at every node of it?" in asked.stderr
        assert node.store.local_jobs.find("job-old") is not None
        deleted = call_node("job", node, "delete", "job-old", "--yes")
        assert deleted.exit_code == 1 and "has no route" in deleted.output, (
            "the job's other node is not known here"
        )
        assert node.store.local_jobs.find("job-old") is None
        assert "0 cancelled" in call_node("job", node, "cancel-waiting").stdout
