"""A log of each attempt; an output in pieces, to go on where a download stopped."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.admin.files import one_range
from gateway.bootstrap.node import Gateway
from tests.cleaning.ended import a_run_of, left_behind, logs_of
from tests.inprocess import ask, running

ROWS = b"id,x\n1,a\n2,b\n"
MORE = b"id,x\n3,c\n"
WHOLE = ROWS + MORE


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory):
    with running(tmp_path_factory.mktemp("node")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def path(node: Gateway) -> str:
    run = left_behind(node, "job-range", 5).runs[0]
    folder: Path = node.storage.path(run.outputs["out_name"])
    (folder / "data_0").write_bytes(ROWS)
    (folder / "data_1").write_bytes(MORE)
    return "/api/v1/jobs/job-range/outputs/a/guest.0/out/download"


def get(node: Gateway, path: str, **headers: str):
    return ask(node, "operator", "GET", path, headers=headers)


def test_a_download_goes_on_where_it_stopped(node: Gateway, path: str):
    whole = get(node, path)
    assert (whole.status_code, whole.content) == (200, WHOLE)
    assert whole.headers["content-length"] == str(len(WHOLE)) and whole.headers["accept-ranges"] == "bytes"
    for text, part in (
        ("bytes=0-3", WHOLE[:4]),
        ("bytes=4-", WHOLE[4:]),
        (f"bytes={len(ROWS) - 2}-{len(ROWS) + 2}", WHOLE[len(ROWS) - 2 : len(ROWS) + 3]),
        (f"bytes={len(ROWS)}-", MORE),
        ("bytes=-3", WHOLE[-3:]),
        ("bytes=5-999", WHOLE[5:]),
    ):
        answer = get(node, path, range=text)
        assert (answer.status_code, answer.content) == (206, part), text
        start = WHOLE.index(part) if part != MORE else len(ROWS)
        assert answer.headers["content-range"].startswith(f"bytes {start}-")
        assert answer.headers["content-range"].endswith(f"/{len(WHOLE)}")


def test_what_is_not_there_is_refused_and_what_has_changed_comes_whole(node: Gateway, path: str):
    beyond = get(node, path, range=f"bytes={len(WHOLE)}-")
    assert beyond.status_code == 416 and beyond.headers["content-range"] == f"bytes */{len(WHOLE)}"
    assert beyond.json()["data"]["reason"] == "RANGE_NOT_THERE"
    etag = get(node, path).headers["etag"]
    assert get(node, path, **{"range": "bytes=2-", "if-range": etag}).status_code == 206
    assert get(node, path, **{"range": "bytes=2-", "if-range": '"another"'}).content == WHOLE


@pytest.mark.parametrize("text", ["", "bytes=", "bytes=-", "bytes=3-1", "bytes=0-1,3-4", "lines=0-1", "bytes=x-y"])
def test_what_is_no_range_asks_for_all(text: str):
    assert one_range(text, 10) is None


def test_the_log_of_every_attempt_is_there(node: Gateway):
    local = left_behind(node, "job-again", 5)
    first = replace(local.runs[0])
    second = replace(a_run_of(local.spec, attempt=1), task_id="task_job-again-2")
    node.store.local_jobs.update("job-again", lambda job: replace(job, runs=(first, second)))
    logs_of(node, second).mkdir(parents=True)
    (logs_of(node, second) / "stdout.log").write_text("hello again\n")
    place = "/api/v1/jobs/job-again/runs/guest.0/a/log?stream=stdout"
    assert get(node, place).text == "hello again\n"
    assert get(node, place + "&attempt=1").text == "hello again\n"
    assert get(node, place + "&attempt=0").text.startswith("hello\n")
    missing = get(node, place + "&attempt=2")
    assert missing.status_code == 404 and "but 0, 1" in missing.json()["msg"]
    assert get(node, place + "&attempt=x").json()["data"]["problems"][0]["path"] == "attempt"
