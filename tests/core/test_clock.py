"""The machine's clock is put back: nothing stands still until it has caught up."""

import os
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml

from adapter.fate.signing import App, signature
from engines.memory import MemoryEngine, Script
from gateway.auth import Role, new_token
from gateway.bootstrap.node import Gateway
from gateway.data.upload import Upload
from gateway.domain.run import Address
from gateway.domain.states import JobStatus
from gateway.errors import GatewayError
from gateway.runtime.clock import SteadyClock, resume
from provider_registry.registration import provider_from_request
from tests.builders import a_spec, at
from tests.contracts.apis import IMAGE, registration, serving
from tests.e2e.nodes import wait_for
from tests.events.receiver import receiving
from tests.events.test_feed import happen
from tests.inprocess import ME, PEER, ask, settings

SECRET = "0123456789abcdef0123"


class Machine:
    """Both of its clocks."""

    def __init__(self) -> None:
        self.wall, self.ticks = 1000.0, 0.0

    def passes(self, seconds: float, step: float = 0.0) -> None:
        self.wall, self.ticks = self.wall + seconds + step, self.ticks + seconds


def test_a_clock_that_is_put_back_goes_on_and_one_that_is_put_forward_is_followed():
    machine = Machine()
    clock = SteadyClock(lambda: at(machine.wall), lambda: machine.ticks)

    def told(seconds: float, step: float = 0.0) -> float:
        machine.passes(seconds, step)
        return (clock() - at(0)).total_seconds()

    assert told(5) == 1005
    assert told(5, step=-1) == 1009, "a second is no step: the machine knows better"
    assert told(5, step=3600) == 4614
    assert told(5, step=-3600) == 4619 and told(10) == 4629
    assert told(5, step=1800) == 4634, "still behind"
    assert told(5, step=1800) == 4639 and told(5, step=100) == 4744
    assert told(1, step=-3600) == 4745 and told(3599) == 8344 and told(10) == 8354


def test_a_process_that_is_started_again_goes_on_from_the_time_of_the_one_before(tmp_path: Path):
    chosen = settings(tmp_path, ME)

    def started_at(step: timedelta) -> timedelta:
        clock = SteadyClock(lambda: datetime.now(UTC) + step)
        node = Gateway(
            chosen, clock=clock, engine=lambda _, name: MemoryEngine(node=ME, installation=name, images={})
        )
        ahead = clock() - datetime.now(UTC)
        node.heartbeat.beat()
        node.stop()
        return ahead

    assert round(started_at(timedelta(hours=2)) / timedelta(hours=1)) == 2
    assert round(started_at(timedelta(hours=1)) / timedelta(hours=1)) == 2, "what waits was due by that time"


def test_a_clock_that_was_more_than_a_day_ahead_was_wrong_and_is_followed_back():
    machine = Machine()
    clock = SteadyClock(lambda: at(machine.wall), lambda: machine.ticks)
    for last, then in ((None, 1000), (at(900), 1000), (at(1000 + 86_401), 1000), (at(1000 + 86_000), 87_000)):
        resume(clock, last)
        assert clock() == at(then)
    machine.passes(5)
    assert clock() == at(87_005)


def test_what_is_due_stays_due_when_the_clock_is_put_back(tmp_path: Path):
    """A partner is out of reach, so the job is given up after a while; an hour more is not waited for."""
    step = timedelta()
    clock = SteadyClock(lambda: datetime.now(UTC) + step)
    chosen = settings(tmp_path, ME)
    (tmp_path / "routes.yml").write_text(yaml.safe_dump({PEER: {"url": "http://127.0.0.1:9"}}))
    node = Gateway(
        chosen,
        clock=clock,
        engine=lambda _, name: MemoryEngine(node=ME, installation=name, images={IMAGE: Script()}),
    )
    node.registry.register(provider_from_request(registration()))
    node.scheduler._timing = replace(node.scheduler._timing, create_deadline=2.0)
    spec = replace(a_spec("a", {"guest": (ME,), "host": (PEER,)}), scheduler=ME, initiator=ME)

    def hand_in() -> None:
        with suppress(GatewayError):
            node.coordinator.submit_job(spec, ME)

    with serving(node):
        asking = threading.Thread(target=hand_in)
        asking.start()
        wait_for(lambda: (job := node.store.jobs.find(spec.job_id)) and job.nodes[PEER].create.tries, 20, 0.01)
        step = timedelta(hours=-1)
        wait_for(lambda: node.store.jobs.get(spec.job_id).status is JobStatus.REJECTED, 20, 0.02, "it is given up")
        asking.join(60)


def test_what_others_clocks_have_a_part_in_goes_by_the_machines_clock(tmp_path: Path):
    """A signature, a file's time, an event's, and the ends that people name, after an hour's step back."""
    step = timedelta()
    fate = {"enabled": True, "clients": {"ann": {"app_token": SECRET}}}
    more = {"auth": {"mode": "on", "token": SECRET}, "data": {"roots": [str(tmp_path)]}}

    def wall() -> datetime:
        return datetime.now(UTC) + step

    with receiving() as receiver:
        hooks = {"webhooks": [{"url": receiver.url}]}
        chosen = settings(tmp_path, ME, fate=fate, events=hooks, **more)
        node = Gateway(
            chosen,
            clock=SteadyClock(wall),
            engine=lambda _, name: MemoryEngine(node=ME, installation=name, images={}),
        )
        (tmp_path / "t.csv").write_text("id\n1\n")
        table = node.datasets.upload_from_path(Upload(Address("ns", "t")), str(tmp_path / "t.csv")).address
        copying = chosen.state_dir / "runs" / "a-run" / "copying"
        copying.mkdir(parents=True)
        step = timedelta(hours=-1)
        now, soon = wall(), wall() + timedelta(minutes=30)
        os.utime(copying, (now.timestamp(), now.timestamp()))
        text, token = new_token("bob", Role.ADMIN, now, soon)
        node.tokens.add(token)
        stamp = str(int(now.timestamp() * 1000))
        signed = {"appid": "ann", "nonce": "1234", "timestamp": stamp}
        signed["signature"] = signature(App("ann", SECRET), "", "1234", stamp)
        with serving(node):
            assert ask(node, "operator", "GET", "/v2/site/info/query", headers=signed).json()["code"] == 0
            bearer = {"authorization": f"Bearer {text}"}
            assert ask(node, "operator", "GET", "/api/v1/jobs", headers=bearer).status_code == 200
            assert "log_copy" not in [item.kind for item in node.cleaner.plan()]
            assert node.sharing.grant(table, PEER, "bob", expires_at=soon)[1].expires_at == soon
            happen(node.store, "job PENDING")
            wait_for(lambda: receiver.got, 30)
            assert int(receiver.got[0][0]["x-bfia-timestamp"]) < soon.timestamp()
