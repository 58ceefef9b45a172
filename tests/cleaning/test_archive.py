"""The archive of a job: complete, with correct checksums, without secrets, in constant memory."""

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.admin import job_archive
from gateway.domain.spec import Ending
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import NotFound
from gateway.jobs.archive import Entry, of_files, write
from gateway.jobs.secret_masking import masked, without_secrets
from tests.builders import a_job, a_spec, raising
from tests.cleaning.ended import logs_of, run_job, run_left_behind, with_confirmed_stops
from tests.e2e.jobs import PATIENT_ENGINE
from tests.inprocess import Node, pair

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MIB = 1024 * 1024  # bytes


def unpack(content: bytes) -> dict[str, bytes]:
    """Return the files of an archive, by name; fail unless SHA256SUMS fits exactly those files."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        files = {}
        for name in archive.namelist():
            files[name] = archive.read(name)
    listed_sums = {}
    listing = files.pop("SHA256SUMS").decode()
    for line in listing.splitlines():
        digest, name = line.split("  ", 1)
        listed_sums[name] = digest
    sums = {}
    for name, data in files.items():
        sums[name] = hashlib.sha256(data).hexdigest()
    assert listed_sums == sums
    return files


def state_in(files: dict[str, bytes]) -> dict[str, Any]:
    """Return the state of the job in an archive."""
    return json.loads(files["state.json"])


def archive_of(
    node: Node,
    job_id: str,
) -> dict[str, bytes]:
    """Download a job's archive and return its files, by name."""
    response = node.get(f"/api/v1/jobs/{job_id}/archive")
    assert response.status_code == 200, response.text
    assert f'"{job_id}.zip"' in response.headers["content-disposition"]
    return unpack(response.content)


def test_one_file_has_all_that_a_node_knows_of_a_job(tmp_path):
    with pair(tmp_path, engine=PATIENT_ENGINE) as (scheduler, participant):
        job_id = run_job(tmp_path / "register", scheduler, participant)

        files = archive_of(scheduler, job_id)
        check_run_files(files, "guest.0")
        check_timeline(files, scheduler, job_id)
        assert state_in(files)["sides"] == ["scheduler", "participant"]

        files = archive_of(participant, job_id)
        check_run_files(files, "host.0")
        check_timeline(files, participant, job_id)
        assert state_in(files)["sides"] == ["participant"]


def check_run_files(
    files: dict[str, bytes],
    party: str,
) -> None:
    """Fail unless an archive has the files of a job and of a party's run of it."""
    run = f"runs/{party}/first/attempt-0"
    assert "job.json" in files
    assert "state.json" in files
    assert "timeline.jsonl" in files
    assert f"{run}/environment.json" in files
    assert f"{run}/log/stdout.log" in files
    assert f"{run}/log/stderr.log" in files

    submitted = json.loads(files["job.json"])
    common = submitted["config"]["task_params"]["common"]
    assert common["first"]["lasts"] == 0
    state = state_in(files)
    assert state["job"]["outcome"] == "SUCCEEDED"
    environment = json.loads(files[f"{run}/environment.json"])
    assert environment["runtime.component.parameter.name"] == "first"
    assert environment["config.token"] == "***"
    assert environment["system.callback"].endswith("run=***")


def check_timeline(
    files: dict[str, bytes],
    node: Node,
    job_id: str,
) -> None:
    """Fail unless an archive's timeline is the beginning of the node's."""
    archived = []
    for line in files["timeline.jsonl"].splitlines():
        entry = json.loads(line)
        archived.append(entry["event"])
    timeline = node.store.timeline(job_id)
    stored = [entry.event for entry in timeline]
    assert archived
    assert archived == stored[: len(archived)]


def test_a_job_without_a_part_at_this_node_can_be_archived(world):
    node = world.node()
    spec = a_spec("a", job_id="job-scheduled")
    ended = replace(
        with_confirmed_stops(a_job(spec=spec)),
        status=JobStatus.FINISHED,
        ending=Ending(Outcome.STOPPED, NOW),
        outcome=Outcome.STOPPED,
        ended_at=NOW,
    )
    assert node.store.jobs.add(ended, "flow")

    files = archive_of(node, "job-scheduled")

    assert set(files) == {"job.json", "state.json", "timeline.jsonl"}


def test_an_archive_names_what_another_gateway_has(world, monkeypatch):
    node = world.node()
    run = run_left_behind(node, "job-1", 5)
    refuse = raising(NotFound("another gateway has it", reason="LOGS_ELSEWHERE"))
    monkeypatch.setattr(node.run_logs, "check_here", refuse)
    monkeypatch.setattr(job_archive, "job_in_full", refuse)

    files = archive_of(node, "job-1")

    assert state_in(files)["job"]["reason"] == "LOGS_ELSEWHERE"
    assert b"log: LOGS_ELSEWHERE another gateway has it" in files["INCOMPLETE"]
    assert run.task_name in str(files)


def test_secrets_are_masked_everywhere_in_an_archive(world):
    node = world.node()
    run = run_left_behind(node, "job-secret", 5)
    component_logs = logs_of(node, run) / "log" / "deep"
    component_logs.mkdir(parents=True)
    (component_logs / "own.log").write_text(f"callback ?run={run.run_id}\n")
    (component_logs / "link").symlink_to("/etc/passwd")

    files = archive_of(node, "job-secret")

    text = b"".join(files.values()).decode()
    assert run.token not in text
    assert run.run_id not in text
    log = "runs/guest.0/a/attempt-0/log"
    assert files[f"{log}/stdout.log"] == f"hello\nmy token is {'*' * 32}\n".encode()
    assert f"{log}/log/deep/own.log" in files
    assert not any("link" in name for name in files)
    assert "root:" not in text
    assert files["reports/guest.0/a/attempt-0/report"] == b'{"auc": 0.5}\n'


def test_an_unknown_job_has_no_archive(world):
    node = world.node()
    assert node.get("/api/v1/jobs/job-none/archive").status_code == 404


def test_a_field_named_like_a_secret_hides_all_below_it():
    document = {
        "password": "hunter2",
        "db": {
            "access_key": "hunter3",
            "url": "mysql://me:hunter4@host/db",
        },
        "api_token": {
            "value": "hunter5",
            "origin": "common",
        },
        "secrets": [
            "hunter6",
            {"a": 7},
        ],
        "key_length": 1024,
        "empty_secret": "",
        "text": "uses hunter8",
    }

    masked_document = without_secrets(document, ["hunter8"])

    assert "hunter" not in json.dumps(masked_document)
    assert masked_document["key_length"] == 1024
    assert masked_document["empty_secret"] == ""
    assert masked_document["api_token"] == {
        "value": "***",
        "origin": "common",
    }
    assert masked_document["db"]["url"] == "mysql://me:***@host/db"


@pytest.mark.parametrize(
    "size",
    range(1, 12),
)
def test_a_secret_across_two_pieces_is_masked_too(size):
    text = b"xx-secret-yysecretsecret-zz-secre"
    pieces = []
    for start in range(0, len(text), size):
        end = start + size
        pieces.append(text[start:end])

    masked_text = b"".join(masked(pieces, [b"secret"]))

    assert masked_text == b"xx-******-yy************-zz-secre"


def test_an_archive_is_written_in_constant_memory():
    mebibyte = bytes(MIB)

    def large() -> Iterator[bytes]:
        for _ in range(64):
            yield mebibyte

    pieces = write([Entry("large", large)], NOW)
    sizes = [len(piece) for piece in pieces]

    assert max(sizes) < 4 * MIB
    assert sum(sizes) > 0


def test_an_archive_names_unreadable_files_and_has_the_others(tmp_path):
    (tmp_path / "good").write_text("readable")

    def broken() -> Iterator[bytes]:
        raise PermissionError(13, "not permitted")
        yield b""  # makes it a generator

    def elsewhere() -> Iterator[bytes]:
        raise NotFound("another gateway has it", reason="LOGS_ELSEWHERE")
        yield b""  # makes it a generator

    entries = [
        Entry("bad", broken),
        Entry("gone", elsewhere),
        *of_files(tmp_path, "log", []),
    ]

    files = unpack(b"".join(write(entries, NOW)))

    assert files["log/good"] == b"readable"
    assert files["INCOMPLETE"] == (
        b"bad: not permitted\ngone: LOGS_ELSEWHERE another gateway has it\n"
    )


def test_an_archive_names_a_folder_with_too_many_files(tmp_path):
    for number in range(10_001):
        (tmp_path / str(number)).touch()

    *entries, note = of_files(tmp_path, "log", [])
    files = unpack(b"".join(write([note], NOW)))

    assert len(entries) == 10_000
    assert files["INCOMPLETE"] == (
        b"log/INCOMPLETE: only the first 10000 files and folders are in the archive\n"
    )


def test_a_file_name_that_is_not_utf8_does_not_break_the_archive(tmp_path):
    for name in (b"bad\xff.log", b"bad\xfe.log", b"two\nlines.log"):
        path = os.fsencode(tmp_path) + b"/" + name
        file = Path(os.fsdecode(path))
        file.write_bytes(name)

    entries = of_files(tmp_path, "log", [])
    files = unpack(b"".join(write(entries, NOW)))

    assert files == {
        "log/bad?.log": b"bad\xfe.log",
        "log/bad?.log (2)": b"bad\xff.log",
        "log/two?lines.log": b"two\nlines.log",
    }
