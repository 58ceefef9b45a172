"""A node plays its partners' last requests against another version before it upgrades."""

import json
import os
import sys
from pathlib import Path

import pytest

from gateway.http.exchange_book import FOLDER, kept_exchanges
from tests.cli import call
from tests.e2e import jobs
from tests.e2e.nodes import Node

pytestmark = pytest.mark.slow

# A version of the gateway whose response to a creation has another code and lacks its message.
NEW_VERSION = """#!{python}
import sys
sys.path[:0] = {path!r}
import adapter.bfia.envelope as envelope
original = envelope.ok
def ok(data=None, profile=None):
    answer = original(data, profile)
    return answer.model_copy(update={{"msg": None, "code": 7}})
envelope.ok = ok
from gateway.cli import begin
begin()
"""
SAME_VERSION = """#!{python}
import sys
sys.path[:0] = {path!r}
from gateway.cli import begin
begin()
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """A participant that has run a job, and is stopped."""
    folder = tmp_path_factory.mktemp("rehearsal")
    with jobs.patient_nodes(folder / "nodes") as federation:
        guest = federation[jobs.GUEST]
        jobs.upload(guest, "guest")
        job_id = guest.submit(jobs.job_of(folder, {"a": 0}))
        guest.wait_job(job_id)
        federation[jobs.HOST].stop()
        yield federation[jobs.HOST]


def write_program(file: Path, text: str) -> Path:
    """Write a program that stands for another version of the gateway."""
    file.write_text(text.format(python=sys.executable, path=[os.getcwd(), *sys.path]))
    file.chmod(0o755)
    return file


def rehearse(node: Node, program: Path) -> tuple[int, dict]:
    """Rehearse an upgrade; return the exit code and the report."""
    result = call(
        "upgrade",
        "rehearse",
        "--new",
        str(program),
        "--json",
        "--config",
        str(node.home / "node.yml"),
    )
    return result.exit_code, json.loads(result.stdout or result.stderr)


def test_a_node_keeps_its_partners_requests_without_their_values(host):
    exchanges = kept_exchanges(host.home / "state" / FOLDER)

    paths = {exchange.path.rpartition("/schedule/")[2] for exchange in exchanges}
    assert {"job/create", "job/start", "task/start", "job/stop"} <= paths
    assert {exchange.partner for exchange in exchanges} == {jobs.GUEST}
    creation = next(exchange for exchange in exchanges if exchange.path.endswith("job/create"))
    assert creation.response["code"] == 0
    assert creation.headers["x-auth-sign"] == "x"
    file = next((host.home / "state" / FOLDER).iterdir())
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_same_version_answers_alike(host, tmp_path):
    code, report = rehearse(host, write_program(tmp_path / "same", SAME_VERSION))

    assert report["differences"] == []
    assert report["requests"] >= 4
    assert code == 0


def test_a_version_that_answers_otherwise_is_found(host, tmp_path):
    code, report = rehearse(host, write_program(tmp_path / "new", NEW_VERSION))

    changes = {entry["request"]: entry["changes"] for entry in report["differences"]}
    assert changes["POST /v1/interconn/schedule/job/stop"] == "code 7 instead of 0"
    assert code == 1


def test_a_program_that_is_missing_is_named(host, tmp_path):
    code, report = rehearse(host, tmp_path / "nosuch")

    assert "nosuch does not exist" in report["error"]
    assert code != 0
