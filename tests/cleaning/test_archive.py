"""The archive of a job: whole, with sums that fit, without its secrets, in constant memory."""

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.admin import job_view
from gateway.bootstrap.node import Gateway
from gateway.domain.spec import Ending
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import NotFound
from gateway.jobs.archive import Entry, masked, of_files, without_secrets, write
from tests.builders import OK, a_job, a_spec, raising
from tests.cleaning.ended import left_behind, logs_of, played
from tests.e2e.jobs import PATIENT_ENGINE
from tests.inprocess import ask, pair, running

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def opened(content: bytes) -> dict[str, bytes]:
    """Return the files of an archive; its sums name all of them and fit."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        files = {name: archive.read(name) for name in archive.namelist()}
    sums = dict(
        reversed(line.split("  ", 1)) for line in files.pop("SHA256SUMS").decode().splitlines()
    )
    assert sums == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return files


def archived(node: Gateway, job_id: str) -> dict[str, bytes]:
    answer = ask(node, "operator", "GET", f"/api/v1/jobs/{job_id}/archive")
    assert answer.status_code == 200, answer.text
    return opened(answer.content)


def test_one_file_has_all_that_a_node_knows_of_a_job(tmp_path):
    with pair(tmp_path, engine=PATIENT_ENGINE) as (me, peer):
        job_id = played(tmp_path / "register", me, peer)
        for node, role in ((me, "guest.0"), (peer, "host.0")):
            answer = ask(node, "operator", "GET", f"/api/v1/jobs/{job_id}/archive")
            assert f'"{job_id}.zip"' in answer.headers["content-disposition"]
            files = opened(answer.content)
            place = f"runs/{role}/first/attempt-0"
            assert {"job.json", "state.json", "timeline.jsonl", f"{place}/environment.json"} <= set(
                files
            )
            assert {f"{place}/log/stdout.log", f"{place}/log/stderr.log"} <= set(files)
            submitted = json.loads(files["job.json"])
            assert submitted["config"]["task_params"]["common"]["first"]["lasts"] == 0
            state = json.loads(files["state.json"])
            assert state["sides"] == ["scheduler", "participant"][node is peer :]
            assert state["job"]["outcome"] == "SUCCEEDED"
            environment = json.loads(files[f"{place}/environment.json"])
            assert environment["runtime.component.parameter.name"] == "first"
            assert environment["config.token"] == "***"
            assert environment["system.callback"].endswith("run=***")
            lines = [json.loads(line)["event"] for line in files["timeline.jsonl"].splitlines()]
            assert lines
            assert lines == [e.event for e in node.store.timeline(job_id)][: len(lines)]


def test_a_job_elsewhere_and_one_its_scheduler_forgot_can_be_archived(tmp_path, monkeypatch):
    refuses = raising(NotFound("another gateway has it", reason="LOGS_ELSEWHERE"))
    with running(tmp_path) as node:
        scheduled = a_job(spec=a_spec("a", job_id="job-scheduled"))
        done = {name: replace(one, stop=OK) for name, one in scheduled.nodes.items()}
        ending = Ending(Outcome.STOPPED, NOW)
        over = replace(
            scheduled,
            status=JobStatus.FINISHED,
            nodes=done,
            ending=ending,
            outcome=ending.outcome,
        )
        assert node.store.jobs.add(replace(over, ended_at=NOW), "flow")
        assert set(archived(node, "job-scheduled")) == {"job.json", "state.json", "timeline.jsonl"}
        run = left_behind(node, "job-1", 5).runs[0]
        monkeypatch.setattr(node.run_logs, "check_here", refuses)
        monkeypatch.setattr(job_view, "job_in_full", refuses)
        files = archived(node, "job-1")
        assert json.loads(files["state.json"])["job"]["reason"] == "LOGS_ELSEWHERE"
        assert b"log: LOGS_ELSEWHERE another gateway has it" in files["INCOMPLETE"]
        assert run.task_name in str(files)


def test_secrets_are_masked_everywhere_in_an_archive(tmp_path):
    with running(tmp_path) as node:
        run = left_behind(node, "job-secret", 5).runs[0]
        own = logs_of(node, run) / "log" / "deep"
        own.mkdir(parents=True)
        (own / "own.log").write_text(f"callback ?run={run.run_id}\n")
        (own / "link").symlink_to("/etc/passwd")
        files = archived(node, "job-secret")
        everything = b"".join(files.values()).decode()
        assert run.token not in everything
        assert run.run_id not in everything
        place = "runs/guest.0/a/attempt-0/log"
        assert files[f"{place}/stdout.log"] == f"hello\nmy token is {'*' * 32}\n".encode()
        assert f"{place}/log/deep/own.log" in files
        assert not any("link" in name for name in files)
        assert files["reports/guest.0/a/attempt-0/report"] == b'{"auc": 0.5}\n'
        assert "root:" not in everything
        assert ask(node, "operator", "GET", "/api/v1/jobs/job-none/archive").status_code == 404


def test_a_field_named_like_a_secret_hides_all_below_it():
    told = {
        "password": "hunter2",
        "db": {"access_key": "hunter3", "url": "mysql://me:hunter4@host/db"},
        "api_token": {"value": "hunter5", "origin": "common"},
        "secrets": ["hunter6", {"a": 7}],
        "key_length": 1024,
        "empty_secret": "",
        "text": "uses hunter8",
    }
    shown = without_secrets(told, ["hunter8"])
    assert "hunter" not in json.dumps(shown)
    assert shown["key_length"] == 1024
    assert shown["empty_secret"] == ""
    assert shown["api_token"] == {"value": "***", "origin": "common"}
    assert shown["db"]["url"] == "mysql://me:***@host/db"


@pytest.mark.parametrize("size", range(1, 12))
def test_a_secret_across_two_pieces_is_masked_too(size):
    text = b"xx-secret-yysecretsecret-zz-secre"
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert b"".join(masked(pieces, [b"secret"])) == b"xx-******-yy************-zz-secre"


def test_an_archive_is_written_in_constant_memory():
    piece = bytes(1024 * 1024)

    def large() -> Iterator[bytes]:
        for _ in range(64):
            yield piece

    largest, total = 0, 0
    for out in write([Entry("large", large)], NOW):
        largest, total = max(largest, len(out)), total + len(out)
    assert largest < 4 * 1024 * 1024
    assert total > 0


def test_an_archive_names_what_cannot_be_read_and_has_the_rest(tmp_path):
    (tmp_path / "good").write_text("here")

    def broken() -> Iterator[bytes]:
        raise PermissionError(13, "not permitted")
        yield b""

    def gone() -> Iterator[bytes]:
        raise NotFound("another gateway has it", reason="LOGS_ELSEWHERE")
        yield b""

    entries = [Entry("bad", broken), Entry("gone", gone), *of_files(tmp_path, "log", [])]
    files = opened(b"".join(write(entries, NOW)))
    assert files["log/good"] == b"here"
    assert files["INCOMPLETE"] == (
        b"bad: not permitted\ngone: LOGS_ELSEWHERE another gateway has it\n"
    )


def test_a_file_name_that_is_not_utf8_does_not_break_the_archive(tmp_path):
    for name in (b"bad\xff.log", b"bad\xfe.log", b"two\nlines.log"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(name)
    files = opened(b"".join(write(of_files(tmp_path, "log", []), NOW)))
    assert files == {
        "log/bad?.log": b"bad\xfe.log",
        "log/bad?.log (2)": b"bad\xff.log",
        "log/two?lines.log": b"two\nlines.log",
    }
