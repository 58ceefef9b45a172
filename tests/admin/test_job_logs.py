"""A job's steps in the log: one line per note of its timeline, at each node, under one trace id."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.store.timeline import LONGEST_TEXT
from tests.builders import T0, a_job, a_local_job, a_run
from tests.contracts.databases import a_store
from tests.e2e.nodes import ROOT, Federation, wait_for
from tests.inprocess import ME, PEER
from tests.logs.talk import IMAGE, job, registration

# A program that logs by `logging` and by `structlog`; its argument is the format.
LOGS_OF_BOTH_KINDS = """
import logging, sys, warnings
import structlog
from gateway.cli.serve import configure_logs
from gateway.runtime.context import traced
configure_logs(sys.argv[1])
with traced("trace_of_the_work"):
    log = logging.getLogger("gateway.broker.session")
    log.error("payload\\nunreadable", extra={"session": "S1", "number": 7})
    logging.getLogger("route_table.live").info("route table %s", "changed", extra={"routes": 2})
    structlog.get_logger("x").info("own", trace_id="trace_of_its_own", got="t" + "0a" * 32)
    structlog.get_logger("x").info("refused", sha256="0c" * 32, why="no key sha256:" + "0d" * 32)
try:
    raise ValueError("0b" * 32)
except ValueError:
    logging.getLogger("engines.watch").exception("subscriber failed")
    structlog.get_logger("x").exception("own failed")
logging.getLogger("httpx").info("never shown")
warnings.warn("old thing", DeprecationWarning, stacklevel=1)
"""


@pytest.fixture
def store(tmp_path: Path):
    with a_store(f"sqlite:///{tmp_path / 'test.db'}") as store:
        yield store


def test_each_note_is_one_line_with_its_main_fields(store):
    local = a_local_job(a_run()).with_note(T0, "job READY here", "n2")
    failure = {
        "reason": "EXIT_1",
        "message": "m" * 2 * LONGEST_TEXT,
        "exit_code": 1,
    }

    def note_failure(job):
        return job.with_note(
            T0,
            "ending as FAILED",
            "n1",
            failure=failure,
            other="x",
        )

    with capture_logs() as lines:
        store.local_jobs.add(local, "flow")
        store.jobs.add(a_job(), "flow")
        store.jobs.update("job-1", note_failure)

    assert lines[0] == {
        "event": "job READY here",
        "job": "job-1",
        "side": "participant",
        "by": "n2",
        "trace_id": "trace-1",
        "log_level": "info",
    }
    assert [(e["event"], e["side"]) for e in lines[1:]] == [("ending as FAILED", "scheduler")]
    assert lines[1]["reason"] == "EXIT_1"
    assert lines[1]["exit_code"] == 1
    assert len(lines[1]["message"]) <= LONGEST_TEXT + 1
    assert "other" not in lines[1]


@pytest.mark.parametrize("token", ["0123456789abcdef" * 4, "0123456789abcdef" * 2])
def test_a_runs_token_is_not_in_the_log(store, token):
    store.local_jobs.add(
        a_local_job(a_run(run_id=token, token=token)),
        "flow",
    )

    def note_failure(job):
        return job.with_note(
            T0,
            "run FAILED",
            message=f"at /cb?run={token}: no",
        )

    with capture_logs() as lines:
        store.local_jobs.update("job-1", note_failure)

    assert lines[0]["message"] == "at /cb?run=***: no"
    assert token in store.timeline("job-1")[0].detail["message"]


def log_both_kinds(log_format: str) -> str:
    """Return the log of a process that uses `logging` and `structlog`."""
    command = [sys.executable, "-W", "default", "-c", LOGS_OF_BOTH_KINDS, log_format]
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"NO_COLOR": "1"},
        check=True,
        timeout=300,
    )
    assert process.stdout == ""
    return process.stderr


def test_both_ways_of_logging_end_in_one_form():
    records = [json.loads(line) for line in log_both_kinds("json").splitlines()]
    lines = {record["event"]: record for record in records}
    assert "never shown" not in lines
    assert len(lines) == 7
    unreadable = lines["payload\nunreadable"]
    assert unreadable["session"] == "S1"
    assert unreadable["number"] == 7
    assert unreadable["level"] == "error"
    assert unreadable["trace_id"] == "trace_of_the_work"
    assert unreadable["timestamp"].endswith("Z")
    assert lines["route table changed"]["routes"] == 2
    assert lines["own"]["trace_id"] == "trace_of_its_own"
    assert lines["own"]["got"] == "t***"
    assert lines["refused"]["sha256"] == "0c" * 32
    assert lines["refused"]["why"] == f"no key sha256:{'0d' * 32}"
    for event in ("subscriber failed", "own failed"):
        assert lines[event]["exception"].startswith("Traceback")
        assert "0b0b" not in lines[event]["exception"]
    assert any("old thing" in event for event in lines)


@pytest.mark.slow
def test_one_trace_id_finds_the_steps_of_a_job_at_both_nodes(tmp_path):
    command = [sys.executable, "-c", "print(42)"]
    engine = {
        "kind": "process",
        "process": {"images": {IMAGE: {"command": command}}},
    }
    body = job("guest", "host")
    body["config"]["role"]["host"] = [PEER]
    with Federation(tmp_path, [ME, PEER], engine) as federation:
        for node in federation.nodes.values():
            node.register(registration())
        job_id = federation[ME].submit(body)
        trace_id = federation[ME].wait_job(job_id)["trace_id"]
        wait_for(lambda: federation[PEER].job(job_id)["status"] == "FINISHED", 20)
        for node in federation.nodes.values():
            lines = [line for line in node.log().splitlines() if f"trace_id={trace_id}" in line]
            lines_of_job = [line for line in lines if f"job={job_id}" in line]
            for entry in node.timeline(job_id):
                assert any(entry["event"] in line for line in lines_of_job), entry
            assert any("run SUCCESS" in line for line in lines)

            # the id of a run is its token
            with a_store(f"sqlite:///{node.home / 'gateway.db'}") as database:
                tokens = [run.run_id for run in database.local_jobs.get(job_id).runs]
            assert tokens
            assert not any(token in node.log() for token in tokens)
