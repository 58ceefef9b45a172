"""Commands that talk to a node: where they find it, what they print, how they end."""

import json
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.cli.client import TOKEN, URL
from gateway.cli.console import table
from gateway.cli.inputs import read_object
from gateway.cli.main import app
from gateway.config.loader import load
from gateway.data.files import NotFit
from gateway.errors import Invalid
from tests.cleaning.ended import left_behind
from tests.e2e.nodes import free_ports
from tests.inprocess import running


@pytest.fixture(autouse=True)
def _no_address_from_outside(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(URL, raising=False)
    monkeypatch.delenv(TOKEN, raising=False)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def printed(result: Result) -> Any:
    """Return the JSON that a command printed; a node in the same process may have logged before it."""
    return json.loads(result.stdout[result.stdout.index("{\n") :])


def test_gc_lists_as_a_table_for_people_and_as_json_for_scripts(tmp_path: Path):
    with running(tmp_path, retention={"every_seconds": 3600, "logs_seconds": 1}) as node:
        name = left_behind(node, "job-old", 5).runs[0].name
        url = node.addresses()["operator"]
        dry = call("gc", "--dry-run", "--url", url)
        assert dry.exit_code == 0 and name in dry.stdout and "1 would be removed" in dry.stdout, dry.output
        found = printed(call("gc", "--dry-run", "--json", "--url", url))
        assert [(i["kind"], i["name"], i["removed"]) for i in found["items"]] == [("logs", name, False)]
        done = printed(call("gc", "--json", "--url", url))
        assert [(i["name"], i["removed"]) for i in done["items"]] == [(name, True)]
        assert "nothing to remove" in call("gc", "--url", url).stdout


def test_the_address_and_the_token_come_from_the_configuration(tmp_path: Path):
    (port,) = free_ports(1)
    token = "a-token-of-this-test"
    operator = {"bind": f"127.0.0.1:{port}"}
    any_port = {"bind": "127.0.0.1:0"}
    listen = {"peer": any_port, "container": any_port, "operator": operator}
    with running(tmp_path / "node", listen=listen, auth={"mode": "on", "token": token}):
        file = tmp_path / "node.yml"
        body = {
            "node": {"id": "JG1"},
            "engine": {"kind": "process"},
            "listen": {"operator": operator},
            "auth": {"mode": "on", "token": token},
        }
        file.write_text(yaml.safe_dump(body))
        assert call("gc", "--dry-run", "--config", str(file)).exit_code == 0
        refused = call("gc", "--dry-run", "--url", f"http://127.0.0.1:{port}")
        assert refused.exit_code == 1 and "NO_TOKEN" in refused.stderr
        assert f"export {TOKEN}" in refused.stderr and "Bearer" not in refused.stderr
        file.write_text(yaml.safe_dump(body | {"auth": {"mode": "on", "token": "another-token-of-it"}}))
        assert call("gc", "--dry-run", "--config", str(file)).exit_code == 1


def test_a_node_that_does_not_answer_is_told_from_a_wrong_configuration(tmp_path: Path):
    (port,) = free_ports(1)
    silent = call("gc", "--url", f"http://127.0.0.1:{port}", "--json")
    assert silent.exit_code == 3 and json.loads(silent.stderr)["reason"] == "NO_ANSWER"
    missing = call("gc", "--config", str(tmp_path / "none.yml"))
    assert missing.exit_code == 2 and "none.yml" in missing.stderr
    assert call("gc", "--url", "http://[").exit_code == 2


def test_a_job_is_archived_cleaned_and_deleted(tmp_path: Path):
    with running(tmp_path, retention={"every_seconds": 3600}) as node:
        run = left_behind(node, "job-old", 5).runs[0]
        url = node.addresses()["operator"]
        target = tmp_path / "job.zip"
        assert call("job", "archive", "job-old", "-o", str(target), "--url", url).exit_code == 0
        assert "SHA256SUMS" in zipfile.ZipFile(target).namelist()
        again = call("job", "archive", "job-old", "-o", str(target), "--url", url)
        assert again.exit_code == 2 and "--force" in again.stderr
        assert call("job", "archive", "job-none", "-o", str(tmp_path / "none.zip"), "--url", url).exit_code == 1
        assert sorted(p.name for p in tmp_path.glob("*.zip*")) == ["job.zip"]
        dry = call("job", "clean", "job-old", "a", "--metrics", "--dry-run", "--url", url)
        assert dry.exit_code == 0 and "would be deleted: 1" in dry.stdout
        assert node.storage.exists(run.outputs["report_name"])
        assert call("job", "clean", "job-old", "a", "--metrics", "--url", url).exit_code == 0
        assert not node.storage.exists(run.outputs["report_name"])
        deleted = call("job", "delete", "job-old", "--url", url)
        assert deleted.exit_code == 1 and "has no route" in deleted.output, (
            "the job's other node is not known here"
        )
        assert node.store.local_jobs.find("job-old") is None
        assert "0 cancelled" in call("job", "cancel-waiting", "--url", url).stdout


def test_the_version_is_told_and_a_node_that_cannot_be_called_so_is_refused(tmp_path: Path):
    assert call("--version").stdout == call("version").stdout != ""
    file = tmp_path / "node.yml"
    for name in ("JG 01/x", "", "-JG", "JG/..", "j" * 101, "节点"):
        refused = call("init", "--node", name, "-o", str(file))
        assert refused.exit_code == 2 and "letters, digits" in refused.stderr and not file.exists()
        with pytest.raises(Invalid, match="must be a node id"):
            load(None, {"node": {"id": name}, "engine": {"kind": "process"}})
    chosen = call("init", "--node", "JG-01.x", "--engine", "process", "-o", str(file))
    assert chosen.exit_code == 0 and not chosen.stderr
    left_open = call("init", "--engine", "process", "-o", str(tmp_path / "other" / "node.yml"))
    assert left_open.exit_code == 0 and "no two nodes may have the same" in left_open.stderr


def test_a_row_of_a_table_in_a_pipe_is_one_line(capsys: pytest.CaptureFixture[str]):
    prose = "a sentence that goes on for quite a while " * 20
    table("2 jobs", ["job", "why"], [[f"job-{i}", prose] for i in range(2)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 jobs"
    assert next(line for line in lines if "job-1" in line).count("sentence") == 20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "duplicate key c"),
        ("a: 1\na: 2\n", "duplicate key a in lines 1 and 2"),
        ('{"a": 1\n "b": 2}', "is neither JSON nor YAML: line 2 column 5"),
        ("a: [1", "is neither JSON nor YAML: line 2 column 1: did not find"),
        ("[1]", "holds a list"),
        ("", "holds nothing"),
        ('{"a": {"b": [1, NaN]}}', "not JSON compliant"),
        ("a: 2026-01-02", "2026-01-02 is a date; put it in quotes"),
        ("a:\n  2026-01-02: 1\n", "keys must be str"),
        ("a: &a [*a]\n", "Circular reference"),
    ],
)
def test_a_file_that_cannot_be_sent_is_refused_with_the_cause(tmp_path: Path, text: str, said: str):
    (tmp_path / "file").write_text(text)
    with pytest.raises(NotFit, match=re.escape(said)):
        read_object(tmp_path / "file")


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
