"""Events: numbered and in order, followed as a stream, delivered at least once, also over a
kill.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
import pytest

from gateway.config.schema.events import WebhookSettings as Hook
from gateway.domain.events import KINDS
from gateway.domain.spec import Note
from gateway.errors import Invalid
from gateway.events import webhooks as webhooks_module
from gateway.events.feed import Feed, Page
from gateway.events.webhooks import Pace, Webhooks, signature
from gateway.store import queries, schema
from gateway.store.events import newest_number
from gateway.store.store import Store
from route_table.proxies import DefaultProxy
from tests.adapter.bfia.scripted import ScriptedPeer, says, scripted
from tests.builders import T0
from tests.contracts.databases import a_store
from tests.e2e import jobs
from tests.e2e.nodes import ROOT, Federation, Node, example, process_engine, wait_for
from tests.inprocess import running
from tests.plain import NO_TLS
from tests.world import NodeSetup
from tools.docs import translated

NODE = NodeSetup(
    settings={
        "events": {
            "webhooks": [
                {
                    "url": "http://me:hunter2@127.0.0.1:9/x?key=hunter3",
                    "secret": "hunter4",
                }
            ]
        }
    }
)

# Pauses of deliveries, in seconds.
QUICK = Pace(
    look=0.02,
    first=0.02,
    longest=0.1,
)

# Entries of a timeline, and the events that they become.
ENTRIES = [
    "job PENDING",
    "job READY",
    "job RUNNING",
    "task RUNNING",
    "task SUCCESS",
    "job FINISHED",
]
NAMES = [
    "created",
    "ready",
    "started",
    "task_started",
    "task_ended",
    "finished",
]


@pytest.fixture
def store(database_url) -> Iterator[Store]:
    with a_store(database_url) as store:
        yield store


def write(
    store: Store,
    *entries: str,
    job: str = "job-1",
) -> None:
    """Write entries into the timeline of a job."""
    notes = [Note(T0, entry, "n1", {"task": "a"}) for entry in entries]
    store.note(job, "scheduler", notes)


def insert(
    connection: Any,
    job: str,
    entry: str,
    **columns: Any,
) -> None:
    """Insert an entry in a transaction of the test."""
    row = {
        "job_id": job,
        "event": entry,
        "side": "scheduler",
        "at": 0.0,
        "actor": "",
        "detail": "{}",
        **columns,
    }
    connection.execute(schema.timeline.insert().values(**row))


def delete(store: Store, number: int) -> None:
    """Delete an entry, as if it had not been committed yet."""
    with store.write() as connection:
        connection.execute(schema.timeline.delete().where(schema.timeline.c.id == number))


def names_of(page: Page) -> list[str]:
    return [event.event for event in page.events]


def job_ids_of(page: Page) -> list[str]:
    return [event.job_id for event in page.events]


# ---------------------------------------------------------------- the feed


def test_events_come_in_order_and_after_any_number(store):
    feed = Feed(store, "n1")
    write(
        store,
        *ENTRIES[:3],
        "status reported",
        "task RUNNING",
        "status reported",
        "task SUCCESS",
        "job FINISHED",
    )

    page = feed.after(0)
    assert names_of(page) == NAMES
    assert page.next == 8
    assert feed.newest() == 8
    assert feed.after(page.next).events == ()

    fourth = page.events[3].id
    assert names_of(feed.after(fourth)) == NAMES[4:]


def test_events_are_chosen_by_number_name_and_job(store):
    feed = Feed(store, "n1")
    write(store, *ENTRIES)
    write(store, "job PENDING", job="job-2")

    first_two = feed.after(0, limit=2)
    assert names_of(first_two) == NAMES[:2]
    assert first_two.next == first_two.events[-1].id

    by_name = feed.after(
        0,
        ("finished", "created"),
        job_id="job-1",
    )
    assert names_of(by_name) == ["created", "finished"]
    assert job_ids_of(feed.after(0, job_id="job-2")) == ["job-2"]


def test_numbers_continue_after_a_job_was_deleted(store):
    """Else a reader at the newest event would miss an event that reuses its number."""
    feed = Feed(store, "n1")
    write(store, "job PENDING", "job FINISHED")
    store.add_submission("job-1", "flow", "n1", T0)
    newest = feed.after(0).next

    assert queries.drop_job(
        store,
        "job-1",
        T0,
        "operator",
        {},
    )
    write(store, "job PENDING", job="job-2")

    page = feed.after(newest)
    assert names_of(page) == ["deleted", "created"]
    assert job_ids_of(page) == ["job-1", "job-2"]


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_the_feed_waits_for_a_missing_number_for_some_seconds(store):
    clock = Clock()
    write(store, *["job PENDING"] * 5)
    delete(store, 3)
    feed = Feed(
        store,
        "n1",
        clock,
        gap_timeout=10.0,
    )
    assert feed.after(0).next == 2, "another writer may be about to commit number 3"

    with store.write() as connection:
        insert(
            connection,
            "job-late",
            "job FINISHED",
            id=3,
        )
    assert [event.id for event in feed.after(2).events] == [3, 4, 5]

    delete(store, 4)
    assert feed.after(3).next == 3
    clock.seconds += 10.5
    assert feed.after(3).next == 5, "number 4 was not used"


@pytest.mark.mariadb
def test_an_event_committed_late_is_not_skipped(mariadb_url):
    """Of two writers, the one with the lower number commits last."""
    with a_store(mariadb_url) as store:
        feed = Feed(store, "n1")
        start = feed.newest()
        with store.write() as slow:
            insert(slow, "job-slow", "job PENDING")
            write(store, "job PENDING", job="job-quick")
            assert feed.newest() > start
            page = feed.after(start)
            assert page.events == ()
            assert page.next == start

        assert job_ids_of(feed.after(page.next)) == ["job-slow", "job-quick"]


@pytest.mark.parametrize(
    ("page", "language", "heading"),
    [
        ("events.md", "en", "| Event | Means | In the timeline |"),
        ("events.zh-CN.md", "zh", "| 事件 | 含义 | 时间线中 |"),
    ],
)
def test_the_document_shows_the_table_of_the_code(page, language, heading):
    lines = [heading, "|---|---|---|"]
    for kind in KINDS:
        meaning = translated(kind.means, language)
        entries = ", ".join(f"`{entry}`" for entry in kind.entries)
        lines.append(f"| `{kind.name}` | {meaning} | {entries} |")
    assert "\n".join(lines) in (ROOT / "docs" / page).read_text(encoding="utf-8")


# ---------------------------------------------------------------- the API


def follow(
    node: Any,
    count: int,
    headers: dict[str, str] | None = None,
    **query: Any,
) -> list[tuple[int, str, Any]]:
    """Return the first events of a stream, as (id, name, data), and disconnect."""
    events: list[tuple[int, str, Any]] = []
    with httpx.stream(
        "GET",
        node.addresses()["operator"] + "/api/v1/events",
        params=query,
        headers=headers,
        timeout=120,
        trust_env=False,
        verify=NO_TLS,
    ) as response:
        assert response.status_code == 200
        assert "text/event-stream" in response.headers["content-type"]
        fields: dict[str, str] = {}
        for line in response.iter_lines():
            if line:
                key, _, value = line.partition(": ")
                fields[key] = value
                continue
            if "event" in fields:
                data = json.loads(fields["data"])
                events.append((int(fields["id"]), fields["event"], data))
            if len(events) == count:
                break
            fields = {}
    return events


@pytest.mark.parametrize(
    ("last_id", "start"),
    [
        ("999999999", 999_999_999),
        ("1000000000", 1_000_000_000),  # has more digits than the index of a party may have
        (str(2**63 - 1), 2**63 - 1),
        (str(2**63), 0),  # no database has such a number: the stream begins at the newest event
        ("9" * 5000, 0),
        ("-1", 0),
        ("x", 0),
    ],
)
def test_a_stream_resumes_after_a_number_of_any_size(last_id, start, node):
    ((number, name, _),) = follow(node, 1, headers={"last-event-id": last_id})

    assert (number, name) == (start or newest_number(node.store), "connected")


@pytest.mark.parametrize(
    "way",
    ["after", "last-event-id", "both"],
)
def test_a_stream_resumes_at_its_interruption(way, node):
    job_id = f"job-{way}"
    write(
        node.store,
        "job PENDING",
        "job READY",
        "job FINISHED",
        job=job_id,
    )
    first = follow(
        node,
        3,
        after="0",
        job_id=job_id,
    )
    assert [name for _, name, _ in first] == ["connected", "created", "ready"]

    last_number, _, _ = first[-1]
    last_id = {"last-event-id": str(last_number)}
    if way == "after":
        rest = follow(
            node,
            2,
            after=str(last_number),
            job_id=job_id,
        )
    elif way == "last-event-id":
        rest = follow(
            node,
            2,
            headers=last_id,
            job_id=job_id,
        )
    else:  # the header wins
        rest = follow(
            node,
            2,
            headers=last_id,
            after="0",
            job_id=job_id,
        )

    assert [name for _, name, _ in rest] == ["connected", "finished"]
    _, _, data = rest[1]
    assert data["job_id"] == job_id
    assert data["event"] == "finished"
    assert data["detail"] == {"task": "a"}


def test_all_wrong_parameters_are_reported_together(node):
    response = node.get("/api/v1/events?after=x&follow=2&events=no,finished")
    assert response.status_code == 400
    problems = response.json()["data"]["problems"]
    assert [problem["path"] for problem in problems] == ["after", "follow", "events"]


def test_a_failing_receiver_is_shown_without_its_password(node):
    write(node.store, "job PENDING")

    def state() -> Any:
        (webhook,) = node.get("/api/v1/events/webhooks").json()["webhooks"]
        return webhook

    wait_for(lambda: state()["tries"], 30)
    assert "Connect" in state()["cause"]
    assert state()["behind"] >= 1
    assert "hunter" not in str(state())


@pytest.mark.parametrize(
    "hooks",
    [
        pytest.param(
            [{"url": "ftp://x", "secret": "hunter2"}],
            id="scheme",
        ),
        pytest.param(
            [{"url": "http://x/", "events": ["nothing"], "secret": "hunter2"}],
            id="event",
        ),
        pytest.param(
            [
                {"url": "http://x/?k=hunter2"},
                {"url": "http://x/?k=hunter2"},
            ],
            id="twice",
        ),
    ],
)
def test_an_invalid_receiver_prevents_the_start(hooks, tmp_path):
    with pytest.raises(Invalid) as refused, running(tmp_path, events={"webhooks": hooks}):
        pass
    assert "events" in str(refused.value)
    assert "hunter2" not in str(refused.value)


# ---------------------------------------------------------------- webhooks


def delivered(
    receiver: ScriptedPeer,
    job_id: str = "job-1",
) -> list[str]:
    """Return the events of a job that a receiver got, including the ones that it refused."""
    bodies = [request.body for request in receiver.requests]
    return [body["event"] for body in bodies if body["job_id"] == job_id]


def webhooks(
    store: Store,
    *hooks: Hook,
    feed: Feed | None = None,
    holder: str = "gateway-1",
    proxy: DefaultProxy = DefaultProxy(),
) -> Webhooks:
    """Return the webhooks of a gateway, which is called ``holder`` among those on the database."""

    def now() -> datetime:
        return datetime.now(UTC)

    feed = feed or Feed(store, "n1")
    return Webhooks(
        hooks,
        store,
        feed,
        holder,
        now,
        QUICK,
        proxy=proxy,
    )


@contextmanager
def delivering(
    store: Store,
    *hooks: Hook,
    feed: Feed | None = None,
    proxy: DefaultProxy = DefaultProxy(),
) -> Iterator[None]:
    """Deliver events; at the end wait until every receiver has the newest one."""
    deliveries = webhooks(
        store,
        *hooks,
        feed=feed,
        proxy=proxy,
    )
    deliveries.start()
    yield

    def are_up_to_date() -> bool:
        return all(state["behind"] == 0 for state in deliveries.state())

    wait_for(are_up_to_date, 30)
    deliveries.stop()


def test_refused_and_missed_events_are_delivered_in_order(store):
    with scripted() as (receiver, url):
        three_errors = [says(status=500)] * 3
        receiver.will(*three_errors, says())
        with delivering(store, Hook(url=url)):
            write(store, *ENTRIES[:3])
        write(store, *ENTRIES[3:])  # while no gateway delivers
        with delivering(store, Hook(url=url)):
            pass

        repeated = [NAMES[0]] * 3
        assert delivered(receiver) == repeated + NAMES
        assert {request.body["node"] for request in receiver.requests} == {"n1"}


def test_a_new_receiver_gets_new_chosen_events_with_a_valid_signature(store):
    write(store, *ENTRIES, job="job-old")
    with scripted() as (receiver, url), scripted() as (unaffected, unaffected_url):
        signed = Hook(
            url=url,
            events=["finished"],
            secret="the secret",
        )
        with delivering(store, signed, Hook(url=unaffected_url, events=["rejected"])):
            write(store, *ENTRIES)

        assert unaffected.requests == []
        (request,) = receiver.requests
        assert request.body["job_id"] == "job-1"
        assert request.body["event"] == "finished"
        headers = request.headers
        timestamp = headers["x-bfia-timestamp"]
        assert headers["x-bfia-signature"] == signature(
            "the secret",
            timestamp,
            request.raw,
        )
        assert headers["x-bfia-signature"] != signature(
            "another",
            timestamp,
            request.raw,
        )
        assert headers["x-bfia-event-id"] == str(request.body["id"])


def test_events_pass_the_proxy_once_its_password_can_be_read(store, tmp_path):
    password = tmp_path / "password"
    address = "http://receiver.bank.example/events"
    with scripted() as (proxy, url):
        user_at = url.replace("http://", "http://gateway@")
        default = DefaultProxy(user_at, password)
        with delivering(store, Hook(url=address), proxy=default):
            write(store, *ENTRIES[:1])
            password.write_text("open sesame\n")

        (request,) = proxy.requests
        assert request.target == address
        assert request.body["event"] == NAMES[0]


def test_a_replaced_password_of_the_proxy_counts_at_the_next_try(store, tmp_path):
    password = tmp_path / "password"
    password.write_text("old")
    with scripted() as (proxy, url):
        proxy.will(*[says(status=407)] * 1000)
        deliveries = webhooks(
            store,
            Hook(url="http://receiver.bank.example/events"),
            proxy=DefaultProxy(url.replace("http://", "http://gateway@"), password),
        )
        deliveries.start()
        write(store, *ENTRIES[:1])
        wait_for(lambda: proxy.requests, 30)
        first = proxy.requests[0].headers["proxy-authorization"]
        password.write_text("new")

        def has_new_login() -> bool:
            logins = {request.headers["proxy-authorization"] for request in proxy.requests}
            return logins > {first}

        try:
            wait_for(has_new_login, 30)
        finally:
            deliveries.stop()


class FailingFeed(Feed):
    """A feed whose first read fails."""

    has_failed = False

    def after(self, *args: Any, **kwargs: Any) -> Page:
        if not self.has_failed:
            self.has_failed = True
            raise ZeroDivisionError
        return super().after(*args, **kwargs)


def test_deliveries_continue_after_an_unexpected_error(store):
    feed = FailingFeed(store, "n1")
    with scripted() as (receiver, url):
        with delivering(store, Hook(url=url), feed=feed):
            write(store, *ENTRIES[:3])
        assert feed.has_failed
        assert delivered(receiver) == NAMES[:3]


def test_deliveries_stop_if_another_gateway_has_taken_over(store, monkeypatch):
    with scripted() as (receiver, url):
        hook = Hook(url=url)
        with delivering(store, hook):
            write(store, *ENTRIES[:3])
        write(store, *ENTRIES[3:])

        monkeypatch.setattr(webhooks_module.stored, "move_cursor", lambda *_: False)
        with httpx.Client(verify=NO_TLS) as http:
            pause = webhooks(store, hook).deliver_some(hook, http)
        assert pause == QUICK.look
        assert len(delivered(receiver)) == 4, "one event more than before"


def test_one_of_two_gateways_on_a_database_delivers(store):
    with scripted() as (receiver, url):
        gateways = [webhooks(store, Hook(url=url), holder=f"gateway-{n}") for n in (1, 2)]
        for gateway in gateways:
            gateway.start()
        for n in range(10):
            write(store, *ENTRIES, job=f"job-{n}")
        wait_for(lambda: len(receiver.requests) >= 60, 60)
        for gateway in gateways:
            gateway.stop()

        numbers = [request.body["id"] for request in receiver.requests]
        assert len(numbers) == 60
        assert numbers == sorted(set(numbers)), "in order and none twice"


def test_receivers_with_short_responses_keep_their_connection(store):
    clients = set()

    def respond(handler: BaseHTTPRequestHandler) -> None:
        clients.add(handler.client_address)
        says({"taken": True})(handler)

    with scripted() as (receiver, url):
        receiver.will(respond)
        with delivering(store, Hook(url=url)):
            write(store, *ENTRIES)
        assert delivered(receiver) == NAMES
        assert len(clients) == 1


def test_only_the_status_of_a_response_counts(store):
    def cut_off(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort")

    with scripted() as (receiver, url):
        receiver.will(cut_off)
        with delivering(store, Hook(url=url)):
            write(store, *ENTRIES)
        assert delivered(receiver) == NAMES


def test_a_response_without_end_is_not_read(store):
    """Attack: a receiver answers 200 and sends until the gateway's memory is full."""

    def send_without_end(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.wfile.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        with suppress(OSError):  # the gateway has hung up
            while not receiver.over.wait(0.05):
                handler.wfile.write(chunk)

    with scripted() as (receiver, url):
        receiver.will(send_without_end)
        with delivering(store, Hook(url=url)):
            write(store, *ENTRIES)
        assert delivered(receiver) == NAMES


@pytest.mark.slow
def test_no_event_is_lost_when_the_gateway_is_killed(tmp_path):
    """Both ends fail: the node is killed while the receiver refuses."""
    engine = process_engine(
        "unionpay:2.0.0",
        command=["/bin/false"],
    )
    with scripted() as (receiver, url):
        hooks = {"webhooks": [{"url": url}]}
        with Federation(tmp_path, [jobs.GUEST], engine, events=hooks) as federation:
            node = federation[jobs.GUEST]
            jobs.prepare(federation)
            receiver.will(
                says(status=500),
                says(status=500),
                says(),
            )
            job_id = node.submit(example("create_all_psi_sbt.json"))
            wait_for(lambda: receiver.requests, 30, 0.005)
            node.kill()
            node.start()
            node.wait_job(job_id, 60, "FAILED")

            events = wait_for(
                lambda: all_delivered(node, receiver, job_id), 60, 0.1, "each event came, in order"
            )
            assert events[0]["event"] == "created"


def all_delivered(
    node: Node,
    receiver: ScriptedPeer,
    job_id: str,
) -> list[dict[str, Any]]:
    """Return the events of a finished job; none unless its receiver got each, in their order."""
    events = list(node.get("/api/v1/events", after=0, follow=0, job_id=job_id)["events"])
    names = [event["event"] for event in events]
    if names.count("finished") < 2:  # as scheduler and as party
        return []
    bodies = [request.body for request in receiver.requests]
    numbers = [body["id"] for body in bodies if body["job_id"] == job_id]
    without_repeats = list(dict.fromkeys(numbers))
    if without_repeats != [event["id"] for event in events]:
        return []
    return events
