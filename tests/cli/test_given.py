"""What is given on a command line is refused in words where it cannot be meant, and no token is ever shown."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner, Result

from gateway.cli import main
from gateway.cli.client import TOKEN, URL, CallFailed, Client
from gateway.cli.command import reporting
from gateway.cli.console import print_json, say, table
from gateway.cli.inputs import LARGEST, content, new_file
from gateway.cli.jobs import _tree
from gateway.data.files import NotFit

SECRET = "bfia_0123456789abcdef"
NOBODY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _no_address_from_outside(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(URL, raising=False)
    monkeypatch.delenv(TOKEN, raising=False)


def call(*words: str) -> Result:
    return CliRunner().invoke(main.app, list(words))


@pytest.mark.parametrize("text", [f"{SECRET}\r{SECRET}", f"{SECRET}é", f"{SECRET} {SECRET}", f"{SECRET}\udcff"])
def test_a_token_that_can_be_none_is_told_by_its_name_and_not_shown(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv(TOKEN, text)
    said = call("job", "list", "--url", NOBODY)
    assert said.exit_code == 2 and f"{TOKEN} holds characters" in said.stderr
    assert SECRET not in said.output


def test_the_end_of_a_line_behind_a_token_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TOKEN, f"{SECRET}\r\n")
    said = call("job", "list", "--url", NOBODY)
    assert said.exit_code == 3 and "no response" in said.stderr and SECRET not in said.output


def test_a_token_is_masked_in_whatever_the_client_says(monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object, **__: object) -> None:
        raise httpx.LocalProtocolError(f"Illegal header value b'Bearer {SECRET}'")

    monkeypatch.setattr(httpx.Client, "request", fails)
    with Client(NOBODY, SECRET) as node, pytest.raises(CallFailed) as caught:
        node.get("/health/live")
    assert SECRET not in str(caught.value) and "Bearer …" in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ["route", "add", "JG4", "--to", "http://x:1", "--deadline", "nan"],
        ["route", "add", "JG4", "--to", "http://x:1", "--deadline", "0"],
        ["route", "edit", "JG4", "--deadline", "0"],
        ["route", "edit", "JG4", "--deadline", "-1"],
        ["data", "grant", "bank#rows", "JG4", "--days", "inf"],
        ["token", "create", "ann", "--role", "admin", "--days", "1e300"],
    ],
)
def test_a_number_that_is_no_amount_is_refused(words: list[str]):
    said = call(*words, *([] if words[0] == "token" else ["--url", NOBODY]))
    assert said.exit_code == 2 and "Invalid value" in said.stderr, said.output


def test_an_argument_that_is_no_text_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.argv", ["bfia-gateway", "job", "show", os.fsdecode(b"a\xff"), "--url", NOBODY])
    with pytest.raises((SystemExit, typer.Exit)) as caught:
        main.main()
    assert isinstance(caught.value, SystemExit) and caught.value.code == 2
    assert "an argument is not text in UTF-8" in capsys.readouterr().err


def test_only_files_are_read_and_no_endless_ones(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for what in ("/dev/zero", str(tmp_path / "pipe"), str(tmp_path)):
        for command in (["job", "plan"], ["provider", "check"]):
            where = ["--url", NOBODY] if command[0] == "job" else []
            said = call(*command, what, *where)
            assert said.exit_code == 2 and "and no file" in said.stderr, said.output
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(NotFit, match="larger than 32 MiB"):
        content(large)


@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
def test_what_is_sent_or_configured_is_a_file_too(tmp_path: Path, kind: str):
    what = {"device": Path("/dev/zero"), "pipe": tmp_path / "pipe", "folder": tmp_path}[kind]
    os.mkfifo(tmp_path / "pipe")
    upload = ["data", "upload", str(what), "--namespace", "bank", "--name", "rows"]
    for words in (upload, ["model", "import", str(what)]):
        said = call(*words, "--url", NOBODY)
        assert said.exit_code == 2 and "and no file" in said.stderr, said.output
    for words in (["job", "list"], ["doctor"], ["token", "list"]):
        said = call(*words, "--config", str(what))
        assert said.exit_code == 2 and f"{what}: is a" in said.output and "and no file" in said.output, said.output
    said = call("job", "archive", "job-1", "-o", str(what), "--force", "--url", NOBODY)
    assert said.exit_code == 2 and "is never replaced" in said.stderr, said.output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "it is nested too deeply"),
        ("a: " + "[" * 100_000, "neither JSON nor YAML: it is nested too deeply"),
        ('{"a": {"\\ud800": 1}}', "surrogates not allowed"),
        ('a: "\\ud800"', "invalid Unicode character escape code"),
        ('{"a": ' + "9" * 5000 + "}", "Exceeds the limit"),
    ],
)
def test_what_no_node_could_read_is_told_before_it_is_sent(tmp_path: Path, text: str, says: str):
    file = tmp_path / "job.json"
    file.write_text(text)
    said = call("job", "submit", str(file), "--url", NOBODY)
    assert said.exit_code == 2 and says in said.stderr, said.output


def test_an_output_for_which_there_is_no_room_is_told():
    words = [sys.executable, "-m", "gateway.cli.main", "version"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("ending", ["| true", ">&-"])
def test_an_output_that_nobody_reads_leaves_no_trace(ending: str):
    line = f"{sys.executable} -m gateway.cli.main version {ending}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_others_wrote_steers_no_terminal(capsys: pytest.CaptureFixture[str]):
    table("", ["path"], [["GET /\x1b[2J\x9b31m\u202egpj\rok"]])
    with pytest.raises(typer.Exit), reporting():
        raise CallFailed("JOB_UNKNOWN: no job \x1b]0;x\x07 here\nnor there")
    said = capsys.readouterr()
    assert "GET /?[2J?31m?gpj?ok" in said.out and said.err == "JOB_UNKNOWN: no job ?]0;x? here\nnor there\n"
    say("a log's line \x1b[2J of\ttwo\nlines")
    assert capsys.readouterr().out == "a log's line ?[2J of\ttwo\nlines\n"
    value = {"a\x9b": ["\x1b", "\u202e", "\x7f", "\n"]}
    print_json(value)
    shown = capsys.readouterr().out
    assert json.loads(shown) == value and not set(shown) & set("\x1b\x9b\u202e\x7f")


def test_what_others_wrote_is_no_markup_and_no_steering_in_tables_and_jobs(capsys: pytest.CaptureFixture[str]):
    table("Tokens of [red]ann\x1b", ["[b]name"], [["[/red]bob"]])
    said = capsys.readouterr().out
    assert "[red]ann?" in said and "[b]name" in said and "[/red]bob" in said
    job = {
        "job_id": "job-1",
        "scheduler": "[red]n1",
        "status": "FINISHED\x1b[2J",
        "outcome": "FAILED",
        "progress": 0,
        "parties": [{"node": "[/]n1", "role": "guest"}],
        "runs": [],
        "tasks": [{"name": "[/b]a", "nodes": {"[/]n1": {"guest": "\x1b"}}, "waiting": {"message": "[x]\x9b"}}],
        "failure": {"reason": "EXIT_1", "message": "[bold]\x1b]0;x\x07"},
    }
    Console().print(_tree(job))
    said = capsys.readouterr().out
    assert not set(said) & set("\x1b\x9b\x07")
    for text in ("[red]n1", "[/]n1 (guest)", "[/b]a", "[x]?", "[bold]?]0;x?", "FINISHED?[2J"):
        assert text in said, said


def test_what_is_no_dataset_is_told(tmp_path: Path):
    said = call("data", "download", "nope", "--url", NOBODY)
    assert said.exit_code == 2 and "expected namespace#name" in said.stderr


def test_an_endless_configuration_is_not_read_to_its_end(tmp_path: Path):
    large = tmp_path / "node.yml"
    with large.open("wb") as file:
        file.truncate(2 * 1024**3)
    said = call("job", "list", "--config", str(large))
    assert said.exit_code == 2 and "is larger than 1 MiB" in said.stderr


def test_what_the_shell_has_opened_is_read():
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as file:
            file.write(b"a: 1")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert content(Path(f"/dev/fd/{reading}")) == b"a: 1"
    finally:
        thread.join()
        os.close(reading)


def test_a_file_that_is_there_is_replaced_only_by_force(tmp_path: Path):
    there = tmp_path / "rows.csv"
    there.write_text("mine")
    for words in (
        ["job", "download", "job-1", "a", "k", "-p", "guest.0"],
        ["job", "archive", "job-1"],
        ["job", "report", "job-1", "a", "k", "--plot", str(there)],
        ["data", "download", "bank#rows"],
        ["model", "export", "credit", "3"],
    ):
        said = call(*words, "-o", str(there), "--url", NOBODY)
        assert said.exit_code == 2 and "give --force" in said.stderr, said.output
        assert call(*words, "-o", str(there), "--force", "--url", NOBODY).exit_code == 3
        long = call(*words, "-o", "a" * 300, "--url", NOBODY)
        assert long.exit_code == 2 and "File name too long" in long.stderr, long.output
    assert there.read_text() == "mine"
    new_file(tmp_path / "new.csv", force=False)


def test_two_programs_for_one_check_are_refused(tmp_path: Path):
    file = tmp_path / "register.json"
    file.write_text(json.dumps({}))
    said = call("provider", "check", str(file), "--command", "true", "--image", "x")
    assert said.exit_code == 2 and "--image and --command" in said.stderr


def test_a_configuration_that_cannot_be_written_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for place in ("a" * 300, str(tmp_path / "file" / "node.yml"), str(tmp_path)):
        said = call("init", "--engine", "process", "-o", place, "--force")
        assert said.exit_code == 2 and "cannot be written" in said.stderr, said.output


@pytest.mark.parametrize(
    "words",
    [
        ["route", "disable", "X"],
        ["route", "remove", "X"],
        ["route", "rollback", "1"],
        ["provider", "retire", "a:1@docker"],
        ["job", "approve", "job-1"],
    ],
)
def test_a_user_without_a_name_can_change_things(words: list[str], monkeypatch: pytest.MonkeyPatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    said = call(*words, "--url", NOBODY)
    assert said.exit_code == 3 and "no response" in said.stderr, said


def test_a_name_that_is_too_long_for_a_file_is_asked_of_the_node():
    said = call("provider", "parameters", "x" * 5000, "--url", NOBODY)
    assert said.exit_code == 3 and "no response" in said.stderr, said
