"""The console script before its commands are loaded, and what it says where there is no node's folder."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import jobs
from gateway.cli.client import Client
from gateway.cli.jobs import in_short
from gateway.cli.main import app
from tests.inprocess import running

_INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # what began this in the background ignores it
class Finder:
    def find_spec(self, name, *_):
        if name == "gateway.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from gateway.cli.begin import main
main()
"""


def test_an_interrupt_while_the_commands_are_loaded_prints_nothing():
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_without_a_configuration_the_commands_say_where_to_go(tmp_path: Path):
    done = CliRunner().invoke(app, ["job", "list", "--config", str(tmp_path / "node.yml")])
    assert done.exit_code == 2
    for word in ("is not there", "--config", "--url", "bfia-gateway init"):
        assert word in done.stderr


def test_another_listener_of_a_node_is_named_as_what_it_is(tmp_path: Path):
    with running(tmp_path) as node:
        done = CliRunner().invoke(app, ["data", "list", "--url", node.addresses()["peer"]])
    assert done.exit_code == 1
    assert "PATH_UNKNOWN" in done.stderr and "listen.operator" in done.stderr


class Interrupted(Client):
    """A node at which somebody loses patience."""

    def __init__(self) -> None:
        pass

    def call(self, *_: object, **__: object) -> object:
        raise KeyboardInterrupt


def test_who_stops_watching_a_job_is_told_that_it_goes_on(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(KeyboardInterrupt):
        jobs._watch(Interrupted(), "job-1", as_json=False)
    assert "the job goes on" in capsys.readouterr().err


def test_many_warnings_do_not_hide_the_rest():
    assert in_short(["a", "b", "c"], "job-1", 3) == ["warning: a", "warning: b", "warning: c"]
    last = in_short([str(n) for n in range(13)], "job-1", 3)[-1]
    assert last == "10 more warnings: bfia-gateway job show job-1"


def test_a_line_of_the_timeline_is_written_for_people():
    failure = {"reason": "STOPPED", "message": "", "node": "", "exit_code": None, "tried": [1, 2], "last": True}
    assert jobs._detail({"detail": {"failure": failure, "to": "FAILED"}}) == (
        "failure reason STOPPED; tried 1, 2; last yes, to FAILED"
    )
