"""Receivers get every event at least once and in order: whatever they answer, and whoever is killed."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.events import Feed, Hook, Pace, Webhooks, signature
from gateway.store.database import opened
from gateway.store.store import Store
from tests.e2e import jobs
from tests.e2e.nodes import Federation, example, process_engine, wait_for
from tests.events.receiver import Receiver, receiving
from tests.events.test_feed import happen
from tests.inprocess import ask, running

QUICK = Pace(look=0.02, first=0.02, longest=0.1)
SIX = ["job PENDING", "job READY", "job RUNNING", "task RUNNING", "task SUCCESS", "job FINISHED"]
NAMES = ["created", "ready", "started", "task_started", "task_ended", "finished"]


@pytest.fixture
def store(database_url: str):
    store = Store(opened(database_url))
    yield store
    store.close()


def webhooks(store: Store, *hooks: Hook, holder: str = "gateway-1") -> Webhooks:
    return Webhooks(hooks, store, Feed(store), "n1", holder, lambda: datetime.now(UTC), QUICK)


@contextmanager
def delivering(store: Store, *hooks: Hook) -> Iterator[Webhooks]:
    found = webhooks(store, *hooks)
    found.start()
    yield found
    wait_for(lambda: all(h["behind"] == 0 for h in found.state()), 30)
    found.stop()


def test_events_that_are_refused_or_missed_come_in_order(store: Store):
    with receiving() as receiver:
        with delivering(store, Hook(receiver.url)):
            receiver.refuse = 3
            happen(store, *SIX[:3])
        happen(store, *SIX[3:])  # while nobody delivers
        with delivering(store, Hook(receiver.url)):
            pass
        assert receiver.of("job-1") == NAMES
        assert {e["node"] for e in receiver.events} == {"n1"}


def test_a_new_receiver_gets_only_what_is_new_and_chosen_with_a_signature_that_fits(store: Store):
    happen(store, *SIX, job="job-old")
    with receiving() as chosen, receiving() as silent:
        with delivering(store, Hook(chosen.url, ("finished",), "the secret"), Hook(silent.url, ("rejected",))):
            happen(store, *SIX)
        assert [(e["job_id"], e["event"]) for e in chosen.events] == [("job-1", "finished")] and silent.got == []
        headers, body = chosen.got[0]
        assert headers["x-bfia-signature"] == signature("the secret", headers["x-bfia-timestamp"], body)
        assert headers["x-bfia-signature"] != signature("another", headers["x-bfia-timestamp"], body)
        assert headers["x-bfia-event-id"] == str(chosen.events[0]["id"])


def test_of_two_gateways_on_one_database_one_delivers(store: Store):
    with receiving() as receiver:
        both = [webhooks(store, Hook(receiver.url), holder=f"gateway-{n}") for n in (1, 2)]
        for one in both:
            one.start()
        for n in range(20):
            happen(store, *SIX, job=f"job-{n}")
        wait_for(lambda: len(receiver.got) >= 120, 60)
        for one in both:
            one.stop()
        numbers = [e["id"] for e in receiver.events]
        assert numbers == sorted(numbers) and len(set(numbers)) == len(numbers) == 120


def test_what_keeps_a_receiver_is_shown_without_its_password(tmp_path: Path):
    hooks = [{"url": "http://me:hunter2@127.0.0.1:9/x?key=hunter3", "secret": "hunter4"}]
    with running(tmp_path, events={"webhooks": hooks}) as node:
        happen(node.store, "job PENDING")

        def shown():
            return ask(node, "operator", "GET", "/api/v1/events/webhooks").json()["webhooks"][0]

        wait_for(lambda: shown()["tries"], 30)
        assert "Connect" in shown()["cause"] and shown()["behind"] >= 1
        assert "hunter" not in str(shown())


@pytest.mark.slow
def test_no_event_is_lost_over_a_kill(tmp_path: Path):
    """Both ends fail: the node is killed while the receiver refuses, and again while a job ends."""
    with receiving() as receiver:
        engine = process_engine("unionpay:2.0.0", command=["/bin/false"])
        hooks = {"webhooks": [{"url": receiver.url}]}
        with Federation(tmp_path, [jobs.GUEST], engine, events=hooks) as federation:
            node = federation[jobs.GUEST]
            jobs.prepare(federation)
            receiver.refuse = 2
            body = example("create_all_psi_sbt.json")
            first = node.submit(body)
            wait_for(lambda: receiver.refuse < 2, 30, 0.005)
            node.kill()
            node.start()
            node.wait_job(first, 60, "FAILED")
            second = node.submit(body)
            node.kill()
            node.start()
            node.wait_job(second, 60, "FAILED")
            wait_for(lambda: told(receiver, second), 60)
            for job_id in (first, second):
                page = node.get("/api/v1/events", after=0, follow=0, job_id=job_id)["events"]
                ids = [e["id"] for e in page]
                got = [e["id"] for e in receiver.events if e["job_id"] == job_id]
                once = list(dict.fromkeys(got))
                assert once == ids, (once, ids)
                assert page[0]["event"] == "created" and [e["event"] for e in page].count("finished") == 2


def told(receiver: Receiver, job_id: str) -> bool:
    """Say whether both sides of a node that schedules a job and takes part in it have told of its end."""
    return receiver.of(job_id).count("finished") == 2
