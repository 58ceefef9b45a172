"""``/api/v1/events``: followed, cut off, taken up again."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.bootstrap.node import Gateway
from gateway.errors import Invalid
from tests.events.test_feed import happen
from tests.inprocess import ask, running
from tests.plain import NO_TLS


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory):
    with running(tmp_path_factory.mktemp("node")) as gateway:
        yield gateway


def follow(node: Gateway, count: int, headers: dict[str, str] | None = None, **query: Any):
    """Return so many events of a stream, as (id, event, data), and leave."""
    found, fields = [], {}
    url = node.addresses()["operator"] + "/api/v1/events"
    with httpx.stream(
        "GET", url, params=query, headers=headers, timeout=120, trust_env=False, verify=NO_TLS
    ) as answer:
        assert answer.status_code == 200 and "text/event-stream" in answer.headers["content-type"]
        for line in answer.iter_lines():
            key, _, value = line.partition(": ")
            fields[key] = value
            if not line:
                if "event" in fields:
                    found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
                if len(found) == count:
                    return found
                if found and found[-1][1] == "connected" and "late" in query.get("job_id", ""):
                    happen(node.store, "job FINISHED", job=query["job_id"])
                fields = {}
    return found


def test_a_stream_goes_on_where_it_was_cut_off(node: Gateway):
    happen(node.store, "job PENDING", "job READY", "job FINISHED", job="job-cut")
    seen = follow(node, 3, after="0", job_id="job-cut")
    assert [name for _, name, _ in seen] == ["connected", "created", "ready"]
    number = seen[-1][0]
    for again in (
        follow(node, 2, after=str(number), job_id="job-cut"),
        follow(node, 2, headers={"last-event-id": str(number)}, job_id="job-cut"),
        follow(node, 2, headers={"last-event-id": str(number)}, after="0", job_id="job-cut"),
    ):
        assert [name for _, name, _ in again] == ["connected", "finished"]
    data = again[1][2]
    assert (data["job_id"], data["event"], data["detail"]) == ("job-cut", "finished", {"task": "a"})


def test_wrong_questions_are_refused_all_at_once(node: Gateway):
    answer = ask(node, "operator", "GET", "/api/v1/events?after=x&follow=2&events=no,finished")
    assert answer.status_code == 400
    assert [p["path"] for p in answer.json()["data"]["problems"]] == ["after", "follow", "events"]


def test_a_wrong_receiver_is_refused_at_the_start(tmp_path: Path):
    for hooks in (
        [{"url": "ftp://x", "secret": "hunter2"}],
        [{"url": "http://x/", "events": ["nothing"], "secret": "hunter2"}],
        [{"url": "http://x/?k=hunter2"}, {"url": "http://x/?k=hunter2"}],
    ):
        with pytest.raises(Invalid) as caught, running(tmp_path, events={"webhooks": hooks}):
            pass
        assert "events" in str(caught.value) and "hunter2" not in str(caught.value)
