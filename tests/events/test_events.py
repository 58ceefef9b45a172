"""Events: read in order, from any number on; followed; delivered at least once, also over a kill."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
import pytest

from gateway.bootstrap.node import Gateway
from gateway.config.schema import WebhookSettings as Hook
from gateway.domain.events import KINDS
from gateway.domain.spec import Note
from gateway.errors import Invalid
from gateway.events import webhooks as webhooks_module
from gateway.events.feed import Feed, Page
from gateway.events.webhooks import Pace, Webhooks, signature
from gateway.store import queries, schema
from gateway.store.store import Store
from tests.adapter.bfia.scripted import ScriptedPeer, says, scripted
from tests.builders import T0
from tests.contracts.databases import a_store
from tests.e2e import jobs
from tests.e2e.nodes import ROOT, Federation, example, process_engine, wait_for
from tests.inprocess import ask, running
from tests.plain import NO_TLS
from tools.docs import translated

QUICK = Pace(
    look=0.02,
    first=0.02,
    longest=0.1,
)
SIX = ["job PENDING", "job READY", "job RUNNING", "task RUNNING", "task SUCCESS", "job FINISHED"]
NAMES = ["created", "ready", "started", "task_started", "task_ended", "finished"]


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with a_store(database_url) as store:
        yield store


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    hooks = [{"url": "http://me:hunter2@127.0.0.1:9/x?key=hunter3", "secret": "hunter4"}]
    with running(tmp_path_factory.mktemp("node"), events={"webhooks": hooks}) as gateway:
        yield gateway


def happen(
    store: Store,
    *lines: str,
    job: str = "job-1",
) -> None:
    store.note(job, "scheduler", [Note(T0, line, "n1", {"task": "a"}) for line in lines])


def inserted(
    connection: Any,
    job: str,
    event: str,
    **more: Any,
) -> None:
    row = {
        "job_id": job,
        "event": event,
        "side": "scheduler",
        "at": 0.0,
        "actor": "",
        "detail": "{}",
    }
    connection.execute(schema.timeline.insert().values(**row, **more))


def names(page: Page) -> list[str]:
    return [e.event for e in page.events]


def test_events_come_in_order_and_from_any_number_on(store):
    feed = Feed(store, "n1")
    happen(
        store,
        *SIX[:3],
        "status reported",
        "task RUNNING",
        "status reported",
        "task SUCCESS",
        "job FINISHED",
    )
    page = feed.after(0)
    assert names(page) == NAMES
    assert page.next == feed.newest() == 8
    assert names(feed.after(page.events[3].id)) == NAMES[4:]
    assert feed.after(page.next).events == ()
    few = feed.after(0, limit=2)
    assert names(few) == NAMES[:2]
    assert few.next == few.events[-1].id
    assert names(feed.after(0, ("finished", "created"))) == ["created", "finished"]
    happen(store, "job PENDING", job="job-2")
    assert [e.job_id for e in feed.after(0, job_id="job-2").events] == ["job-2"]


def test_numbers_go_on_after_a_job_was_deleted(store):
    """Else a reader that has come to the newest would miss what takes the same number again."""
    feed = Feed(store, "n1")
    happen(store, "job PENDING", "job FINISHED")
    store.add_submission("job-1", "flow", "n1", T0)
    read = feed.after(0).next
    assert queries.drop_job(store, "job-1", T0, "operator", {})
    happen(store, "job PENDING", job="job-2")
    assert [(e.event, e.job_id) for e in feed.after(read).events] == [
        ("deleted", "job-1"),
        ("created", "job-2"),
    ]


def test_a_gap_among_new_numbers_is_waited_for_but_not_for_ever(store):
    now = [100.0]
    feed = Feed(store, "n1", lambda: now[0])
    feed._timeout = 10.0  # as with a database that many write to
    happen(store, *["job PENDING"] * 5)
    assert feed.after(0).next == 5
    with store.write() as connection:
        connection.execute(schema.timeline.delete().where(schema.timeline.c.id == 3))
    feed = Feed(store, "n1", lambda: now[0])
    feed._timeout = 10.0
    assert feed.after(0).next == 2, "number 3 may be another's that is about to appear"
    with store.write() as connection:
        inserted(connection, "job-late", "job FINISHED", id=3)
    assert [e.id for e in feed.after(2).events] == [3, 4, 5]
    with store.write() as connection:
        connection.execute(schema.timeline.delete().where(schema.timeline.c.id == 4))
    assert feed.after(3).next == 3
    now[0] += 10.5
    assert feed.after(3).next == 5, "nobody came: the number is not used"


@pytest.mark.mariadb
def test_an_event_committed_late_is_not_skipped(mariadb_url):
    """Of two writers the one with the lower number commits last."""
    with a_store(mariadb_url) as store:
        feed, start = Feed(store, "n1"), Feed(store, "n1").newest()
        with store.write() as slow:
            inserted(slow, "job-slow", "job PENDING")
            happen(store, "job PENDING", job="job-quick")
            assert feed.newest() > start
            page = feed.after(start)
            assert page.events == ()
            assert page.next == start
        assert [e.job_id for e in feed.after(page.next).events] == ["job-slow", "job-quick"]


def test_the_document_shows_the_table_of_the_code():
    for name, language, heads in (
        ("events.md", "en", "| Event | Means | In the timeline |"),
        ("events.zh-CN.md", "zh", "| 事件 | 含义 | 时间线中 |"),
    ):
        lines = [heads, "|---|---|---|"]
        for kind in KINDS:
            means = translated(kind.means, language)
            lines.append(
                f"| `{kind.name}` | {means} | {', '.join(f'`{e}`' for e in kind.entries)} |"
            )
        assert "\n".join(lines) in (ROOT / "docs" / name).read_text(encoding="utf-8"), name


def follow(
    node: Gateway,
    count: int,
    headers: dict[str, str] | None = None,
    **query: Any,
) -> list[Any]:
    """Return so many events of a stream, as (id, event, data), and leave."""
    found, fields = [], {}
    url = node.addresses()["operator"] + "/api/v1/events"
    with httpx.stream(
        "GET",
        url,
        params=query,
        headers=headers,
        timeout=120,
        trust_env=False,
        verify=NO_TLS,
    ) as answer:
        assert answer.status_code == 200
        assert "text/event-stream" in answer.headers["content-type"]
        for line in answer.iter_lines():
            key, _, value = line.partition(": ")
            fields[key] = value
            if not line:
                if "event" in fields:
                    found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
                if len(found) == count:
                    return found
                fields = {}
    return found


def test_a_stream_resumes_where_it_was_interrupted(node):
    happen(node.store, "job PENDING", "job READY", "job FINISHED", job="job-cut")
    seen = follow(node, 3, after="0", job_id="job-cut")
    assert [name for _, name, _ in seen] == ["connected", "created", "ready"]
    number = str(seen[-1][0])
    for again in (
        follow(node, 2, after=number, job_id="job-cut"),
        follow(node, 2, headers={"last-event-id": number}, job_id="job-cut"),
        follow(
            node,
            2,
            headers={"last-event-id": number},
            after="0",
            job_id="job-cut",
        ),
    ):
        assert [name for _, name, _ in again] == ["connected", "finished"]
    data = again[1][2]
    assert data["job_id"] == "job-cut"
    assert data["event"] == "finished"
    assert data["detail"] == {"task": "a"}


def test_every_wrong_parameter_is_reported_at_once(node):
    answer = ask(node, "operator", "GET", "/api/v1/events?after=x&follow=2&events=no,finished")
    assert answer.status_code == 400
    assert [p["path"] for p in answer.json()["data"]["problems"]] == ["after", "follow", "events"]


def test_a_failing_receiver_is_shown_without_its_password(node):
    happen(node.store, "job PENDING")

    def shown() -> Any:
        return ask(node, "operator", "GET", "/api/v1/events/webhooks").json()["webhooks"][0]

    wait_for(lambda: shown()["tries"], 30)
    assert "Connect" in shown()["cause"]
    assert shown()["behind"] >= 1
    assert "hunter" not in str(shown())


@pytest.mark.parametrize(
    "hooks",
    [
        [{"url": "ftp://x", "secret": "hunter2"}],
        [
            {
                "url": "http://x/",
                "events": ["nothing"],
                "secret": "hunter2",
            }
        ],
        [{"url": "http://x/?k=hunter2"}, {"url": "http://x/?k=hunter2"}],
    ],
)
def test_an_invalid_receiver_prevents_the_start(tmp_path, hooks):
    with pytest.raises(Invalid) as caught, running(tmp_path, events={"webhooks": hooks}):
        pass
    assert "events" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def sent(receiver: ScriptedPeer, job_id: str) -> list[str]:
    """Return the names of the events of a job that a receiver got, also of those that it refused."""
    return [asked.body["event"] for asked in receiver.asked if asked.body["job_id"] == job_id]


def webhooks(
    store: Store,
    *hooks: Hook,
    holder: str = "gateway-1",
) -> Webhooks:
    return Webhooks(hooks, store, Feed(store, "n1"), holder, lambda: datetime.now(UTC), QUICK)


@contextmanager
def delivering(store: Store, *hooks: Hook) -> Iterator[Webhooks]:
    found = webhooks(store, *hooks)
    found.start()
    yield found
    wait_for(lambda: all(h["behind"] == 0 for h in found.state()), 30)
    found.stop()


def test_refused_and_missed_events_are_delivered_in_order(store):
    with scripted() as (receiver, url):
        receiver.will(*[says(status=500)] * 3, says())
        with delivering(store, Hook(url=url)):
            happen(store, *SIX[:3])
        happen(store, *SIX[3:])  # while nobody delivers
        with delivering(store, Hook(url=url)):
            pass
        assert sent(receiver, "job-1") == [NAMES[0]] * 3 + NAMES
        assert {asked.body["node"] for asked in receiver.asked} == {"n1"}


def test_a_new_receiver_gets_new_chosen_events_with_a_valid_signature(store):
    happen(store, *SIX, job="job-old")
    with scripted() as (chosen, url), scripted() as (silent, other):
        with delivering(
            store,
            Hook(
                url=url,
                events=["finished"],
                secret="the secret",
            ),
            Hook(url=other, events=["rejected"]),
        ):
            happen(store, *SIX)
        [asked] = chosen.asked
        assert asked.body["job_id"] == "job-1"
        assert asked.body["event"] == "finished"
        assert silent.asked == []
        headers = asked.headers
        assert headers["x-bfia-signature"] == signature(
            "the secret", headers["x-bfia-timestamp"], asked.raw
        )
        assert headers["x-bfia-signature"] != signature(
            "another", headers["x-bfia-timestamp"], asked.raw
        )
        assert headers["x-bfia-event-id"] == str(asked.body["id"])


def test_deliveries_survive_errors_and_stop_if_another_gateway_delivers(store, monkeypatch):
    with scripted() as (receiver, url):
        with delivering(store, Hook(url=url)) as found:
            real, failed = found._feed.after, list[int]()

            def once(*given: Any, **named: Any) -> Page:
                if not failed:
                    failed.append(1)
                    raise ZeroDivisionError
                return real(*given, **named)

            monkeypatch.setattr(found._feed, "after", once)
            happen(store, *SIX[:3])
        assert failed
        assert sent(receiver, "job-1") == NAMES[:3]
        happen(store, *SIX[3:])
        monkeypatch.setattr(webhooks_module.stored, "move_cursor", lambda *_: False)
        with httpx.Client(verify=NO_TLS) as http:
            assert webhooks(store, Hook(url=url))._deliver_some(Hook(url=url), http) == QUICK.look
        assert len(sent(receiver, "job-1")) == 4


def test_one_of_two_gateways_on_a_database_delivers(store):
    with scripted() as (receiver, url):
        both = [webhooks(store, Hook(url=url), holder=f"gateway-{n}") for n in (1, 2)]
        for one in both:
            one.start()
        for n in range(10):
            happen(store, *SIX, job=f"job-{n}")
        wait_for(lambda: len(receiver.asked) >= 60, 60)
        for one in both:
            one.stop()
        numbers = [asked.body["id"] for asked in receiver.asked]
        assert numbers == sorted(numbers)
        assert len(set(numbers)) == len(numbers) == 60


def test_receivers_that_say_little_keep_their_connection(store):
    came = set()

    def answers(handler: BaseHTTPRequestHandler) -> None:
        came.add(handler.client_address)
        says({"taken": True})(handler)

    with scripted() as (receiver, url):
        receiver.will(answers)
        with delivering(store, Hook(url=url)):
            happen(store, *SIX)
        assert sent(receiver, "job-1") == NAMES
        assert len(came) == 1


def test_of_an_answer_only_the_status_counts(store):
    def answers(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort")

    with scripted() as (receiver, url):
        receiver.will(answers)
        with delivering(store, Hook(url=url)):
            happen(store, *SIX)
        assert sent(receiver, "job-1") == NAMES


def test_an_answer_without_end_is_not_read(store):
    """Attack: a receiver answers 200 and goes on sending, until the gateway's memory is full."""

    def answers(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.wfile.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        with suppress(OSError):  # the gateway has hung up
            while not receiver.over.wait(0.05):
                handler.wfile.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")

    with scripted() as (receiver, url):
        receiver.will(answers)
        with delivering(store, Hook(url=url)):
            happen(store, *SIX)
        assert sent(receiver, "job-1") == NAMES


@pytest.mark.slow
def test_no_event_is_lost_when_the_gateway_is_killed(tmp_path):
    """Both ends fail: the node is killed while the receiver refuses."""
    with scripted() as (receiver, url):
        engine = process_engine("unionpay:2.0.0", command=["/bin/false"])
        hooks = {"webhooks": [{"url": url}]}
        with Federation(tmp_path, [jobs.GUEST], engine, events=hooks) as federation:
            node = federation[jobs.GUEST]
            jobs.prepare(federation)
            receiver.will(*[says(status=500)] * 2, says())
            job_id = node.submit(example("create_all_psi_sbt.json"))
            wait_for(lambda: receiver.asked, 30, 0.005)
            node.kill()
            node.start()
            node.wait_job(job_id, 60, "FAILED")

            def all_came() -> list[dict[str, Any]]:
                got = [
                    asked.body["id"] for asked in receiver.asked if asked.body["job_id"] == job_id
                ]
                page = node.get(
                    "/api/v1/events",
                    after=0,
                    follow=0,
                    job_id=job_id,
                )["events"]
                finished = [e["event"] for e in page].count(
                    "finished"
                ) == 2  # it schedules it and takes part
                return (
                    list(page)
                    if finished and list(dict.fromkeys(got)) == [e["id"] for e in page]
                    else []
                )

            page = wait_for(all_came, 60, 0.1, "each event came, in order")
            assert page[0]["event"] == "created"
