"""The machine's clock is put back: nothing stands still until it has caught up."""

import threading
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml

from engines.memory import MemoryEngine, Script
from gateway.clock import SteadyClock
from gateway.domain.states import JobStatus
from gateway.errors import GatewayError
from gateway.wiring import Gateway
from provider_registry.registration import provider_from_request
from tests.builders import a_spec, at
from tests.contracts.apis import IMAGE, registration, serving
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, settings


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
