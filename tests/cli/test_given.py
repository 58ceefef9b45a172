"""What is given on a command line is refused in words where it cannot be meant, and no token is ever shown."""

import json
import os
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
from gateway.cli.inputs import new_file
from gateway.cli.jobs import _tree

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
