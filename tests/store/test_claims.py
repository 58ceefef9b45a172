"""The ledger in the database: two gateways on it never give away more than there is."""

import threading
from dataclasses import replace
from random import Random

import pytest

from engines.base import Capacity
from engines.process.engine import this_machine
from gateway.config.schema import ResourceSettings, Settings
from gateway.domain.resources import GIB, Amounts, NodeCapacity, Pool
from gateway.domain.states import JobStatus
from gateway.errors import Conflict, Refused
from gateway.jobs.engine_capacities import INTERVAL, EngineCapacities
from gateway.jobs.resources import Resources
from gateway.runtime.context import NodeContext
from gateway.store import schema
from gateway.store.store import Store
from tests.builders import a_local_job, a_spec, at
from tests.memory_engine import MemoryEngine
from tests.store.test_repositories import at_once

pytestmark = pytest.mark.xdist_group("claims")  # one database for the module

MEANS = NodeCapacity("n1", Amounts.of(8, 16 * GIB, 0), 8)


def resources(store: Store, freed: list[list[str]] | None = None) -> Resources:
    return Resources(lambda: MEANS, store, lambda: at(0), ([] if freed is None else freed).append)


def a_job_that_needs(
    cpu: float,
    number: int,
    priority: int = 0,
):
    spec = a_spec(job_id=f"job-{number}", job_params={"common": {"priority": priority}})
    return a_local_job(
        spec=spec,
        status=JobStatus.READY,
        pool=Pool(Amounts.of(cpu, GIB), 1),
    )


def test_two_gateways_race_for_the_last_cores(stores: tuple[Store, Store]):
    """Each of 16 jobs wants 3 of 8 cores, from both gateways at once, again and again; some give back."""
    gateways = [resources(store) for store in stores]
    jobs = [a_job_that_needs(3, i) for i in range(16)]
    for job in jobs:
        stores[0].local_jobs.add(job, "flow")
    seen, given_back = [], []

    def work(number: int) -> int:
        mine, random = gateways[number % 2], Random(number)
        granted = 0
        for job in jobs:
            try:
                mine.hold(job)
                granted += 1
            except Refused as error:
                assert error.reason == "RESOURCES_BUSY"
            view = mine.view()
            seen.append(
                (
                    view["remaining"]["cpu"],
                    view["held"]["cpu"],
                    sum(h["cpu"] for h in view["holders"]),
                )
            )
            if random.random() < 0.3:
                mine.give_back(job.id)
                given_back.append(job.id)
        return granted

    granted = sum(at_once(8, work))
    assert granted > 2
    assert given_back
    for remaining, held, sum_ in seen:
        assert 0 <= remaining <= 8
        assert 8 - remaining == held == sum_
    for job in jobs:
        for gateway in gateways:
            gateway.release(job.id)
    assert [g.view()["remaining"]["cpu"] for g in gateways] == [8, 8]


def test_the_next_in_line_is_notified_when_resources_are_free(store: Store):
    freed: list[list[str]] = []
    mine = resources(store, freed)
    first, low, high = (
        a_job_that_needs(8, 1),
        a_job_that_needs(8, 2),
        a_job_that_needs(8, 3, priority=7),
    )
    for job in (first, low, high):
        store.local_jobs.add(job, "flow")
    mine.hold(first)
    for job in (low, high):
        with pytest.raises(Refused):
            mine.hold(job)
    mine.release(first.id)
    assert freed[-1] == [high.id]
    with pytest.raises(Refused, match="kept for jobs that go first"):
        mine.hold(low)
    mine.hold(high)
    mine.hold(high)
    assert [h["job_id"] for h in mine.view()["holders"]] == [high.id]


def test_a_job_with_an_unreadable_record_releases_its_reservations(store: Store):
    job, mine = a_job_that_needs(8, 1), resources(store)
    store.local_jobs.add(job, "flow")
    mine.hold(job)
    with store.write() as connection:
        t = schema.local_job
        connection.execute(
            t.update().values(state='{"status": "NOWHERE"}', version=t.c.version + 1)
        )
    mine.release(job.id)
    assert mine.view()["remaining"]["cpu"] == 8


def test_a_job_that_has_ended_reserves_nothing(store: Store):
    job = a_job_that_needs(1, 1)
    store.local_jobs.add(job, "flow")
    store.local_jobs.update(job.id, lambda local: replace(local, status=JobStatus.FINISHED))
    with pytest.raises(Conflict, match="has ended here"):
        resources(store).hold(job)  # as it was read before
    assert resources(store).view()["holders"] == []


FAR = "ssh://far"


def capacities(
    store: Store,
    engine: MemoryEngine,
    first_look: float = 60.0,
) -> EngineCapacities:
    context = NodeContext("n1", store, lambda: at(0))
    return EngineCapacities(context, {FAR: engine}, a_configuration(), first_look=first_look)


def a_configuration(**resources: float) -> Settings:
    return Settings.model_validate(
        {
            "node": {"id": "n1"},
            "engine": {"kind": "process"},
            "resources": resources,
        }
    )


def resources_of(store: Store, found: EngineCapacities) -> Resources:
    return Resources(
        lambda: replace(MEANS, further=found.by_engine()), store, lambda: at(0), lambda jobs: None
    )


def an_engine(cores: float, *, down: bool = False) -> MemoryEngine:
    engine = MemoryEngine(
        node="n1",
        installation="i",
        images={},
        capacity=Capacity(cores, 16 * GIB),
    )
    engine.world.down = down
    return engine


def a_far_job(
    far: float,
    number: int,
    main: float = 0,
):
    local = a_job_that_needs(main, number)
    return replace(local, pool=Pool(Amounts.of(main), 1, {FAR: Amounts.of(far)}))


def test_claims_on_a_further_engine_survive_a_restart_with_new_totals(
    stores: tuple[Store, Store],
):
    store, other = stores
    first, second = (resources_of(one, capacities(one, an_engine(16))) for one in stores)
    one, two = a_far_job(10, 1, main=2), a_far_job(10, 2)
    for job in (one, two):
        store.local_jobs.add(job, "flow")
    first.hold(one)
    with pytest.raises(
        Refused, match=f"needs cpu 10 at engine {FAR} on node n1, free cpu 6, held by job job-1"
    ):
        second.hold(two)  # another gateway on the same database
    smaller = resources_of(other, capacities(other, an_engine(12)))
    shown = smaller.view()
    assert [(e["held"]["cpu"], e["remaining"]["cpu"]) for e in shown["engines"]] == [
        (2, 6),
        (10, 2),
    ]
    assert shown["holders"][0]["engines"][FAR]["cpu"] == 10
    for gateway in (first, smaller, second):  # it is returned once, whoever says so
        gateway.release(one.id)
    second.hold(two)
    assert [e["held"]["cpu"] for e in first.view()["engines"]] == [0, 10]
    nine = resources_of(other, capacities(other, an_engine(9)))
    assert nine.view()["engines"][1]["remaining"]["cpu"] == -1
    nine.hold(two)  # it keeps what it has
    nine.give_back(two.id)
    with pytest.raises(Refused, match=f"needs cpu 10, engine {FAR} of node n1 has cpu 9") as caught:
        nine.hold(two)
    assert caught.value.reason == "RESOURCES_NEVER"


def test_what_others_use_of_a_cluster_is_free_again_once_it_is_seen_to_be(store: Store):
    engine = MemoryEngine(
        node="n1",
        installation="i",
        images={},
        capacity=Capacity(16, 16 * GIB, others=Capacity(8, GIB)),
    )
    found = capacities(store, engine)
    mine, told = resources_of(store, found), list[str]()
    found._caps[FAR] = ResourceSettings(cpu=12)  # of which they take what is over 16 - 12 only
    found._on_change = lambda: told.append("changed")
    job = a_far_job(10, 1)
    store.local_jobs.add(job, "flow")
    with pytest.raises(
        Refused, match=f"needs cpu 10 at engine {FAR} on node n1, free cpu 8, others use cpu 4"
    ):
        mine.hold(job)
    shown = mine.view()["engines"][1]
    assert (shown["total"]["cpu"], shown["others"]["cpu"], shown["remaining"]["cpu"]) == (12, 4, 8)
    engine._capacity = replace(engine._capacity, others=Capacity(4, GIB))
    found.look(FAR)
    mine.hold(job)
    assert told == ["changed"]


def test_an_engine_down_at_the_start_has_the_capacity_last_seen(store: Store):
    assert (
        capacities(store, an_engine(16, down=True)).by_engine()[FAR].total is None
    )  # nobody has ever seen it
    capacities(store, an_engine(16)).by_engine()
    capacities(store, an_engine(14)).by_engine()
    engine = an_engine(4, down=True)
    found = capacities(store, engine)
    job = a_far_job(10, 1)
    store.local_jobs.add(job, "flow")
    mine = resources_of(store, found)
    with pytest.raises(
        Refused, match=f"ENGINE_DOWN: engine {FAR} of node n1 has not answered since 2026"
    ):
        mine.hold(job)
    none = a_far_job(0, 2)
    store.local_jobs.add(none, "flow")
    with pytest.raises(Refused, match=f"ENGINE_DOWN: engine {FAR}"):
        mine.hold(none)  # whose task would fail there
    assert mine.view()["engines"][1]["total"]["cpu"] == 14
    assert mine.view()["waiting"][1]["reason"].startswith("ENGINE_DOWN"), "as it was written down"
    told: list[str] = []
    found._on_change = lambda: told.append("changed")
    found.look(FAR)
    assert told == []
    engine.world.down = False
    found.look(FAR)
    assert (told, found.by_engine()[FAR].total) == (["changed"], Amounts.of(4, 16 * GIB))


def test_the_main_engine_while_down_has_the_capacity_this_gateway_last_saw(store: Store):
    def cores(engine: MemoryEngine, owner: str) -> float:
        context = NodeContext("n1", store, lambda: at(0), owner)
        found = EngineCapacities(
            context, {"": engine}, a_configuration(cpu=20, cpu_overcommit=2), first_look=60.0
        )
        return found().total.cpu / 1000

    assert cores(an_engine(24), "first") == 40
    assert cores(an_engine(1, down=True), "first") == 40
    assert cores(an_engine(1, down=True), "second") == min(this_machine().cpu, 20) * 2


def test_gpus_are_held_however_counted_and_older_claims_hold_none(
    stores: tuple[Store, Store],
):
    engine = MemoryEngine(
        node="n1",
        installation="i",
        images={},
        capacity=Capacity(8, GIB, 3),
    )
    first, second = (resources_of(one, capacities(one, engine)) for one in stores)
    jobs = [
        replace(a_far_job(0, n), pool=Pool(Amounts(), 1, {FAR: Amounts.of(gpu=2)})) for n in (1, 2)
    ]
    for job in jobs:
        stores[0].local_jobs.add(job, "flow")
    first.hold(jobs[0])
    with pytest.raises(
        Refused,
        match=f"needs gpu 2 at engine {FAR} on node n1, free gpu 1, held by job job-1 .gpu 2",
    ):
        second.hold(jobs[1])
    engine.world.down = True
    after = resources_of(stores[1], capacities(stores[1], engine)).view()["engines"][1]
    assert (after["total"]["gpu"], after["held"]["gpu"], after["remaining"]["gpu"]) == (3, 2, 1)
    with stores[0].write() as connection:
        connection.execute(schema.resource_claim.update().values(further={FAR: [2000, GIB, 0]}))
    assert second.ledger().claims["job-1"].further == {FAR: Amounts.of(2, GIB)}


class Hanging(MemoryEngine):
    """Tells what it has only when it is let go."""

    def capacity(self) -> Capacity:
        assert self.let_go.wait(60)
        return super().capacity()

    let_go: threading.Event


def test_no_request_waits_long_for_an_engine_that_hangs(store: Store):
    engine = Hanging(
        node="n1",
        installation="i",
        images={},
        capacity=Capacity(4, GIB),
    )
    engine.let_go = threading.Event()
    found, told = capacities(store, engine, 0.0), threading.Event()
    found._on_change = told.set
    assert found.by_engine()[FAR].total is None and found.by_engine()[FAR].away
    engine.let_go.set()
    assert told.wait(60)
    assert (found.by_engine()[FAR].total, found.by_engine()[FAR].away) == (Amounts.of(4, GIB), "")


def test_claims_of_ended_jobs_are_released_within_a_minute_and_logged(store: Store):
    now = [0.0]
    found = Resources(lambda: MEANS, store, lambda: at(now[0]), lambda jobs: None)
    job = a_job_that_needs(3, 1)
    store.local_jobs.add(job, "flow")
    found.hold(job)
    over = {
        "status": JobStatus.FINISHED,
        "ended_at": at(0),
        "closed": True,
    }
    store.local_jobs.update(job.id, lambda local: replace(local, **over))  # its own return is lost
    for look in range(4):
        now[0] = look * INTERVAL + 0.1
        found.reconcile()
        if not found.view()["held"]["cpu"]:
            break
    assert 20 < now[0] <= 60 - INTERVAL, (
        "it may return it by itself first, and a look may have been just before"
    )
    found.reconcile()
    assert found.view()["returned_by_reconciler"] == 1
    events = [e.event for e in store.timeline(job.id)]
    assert events.count("resources returned by the reconciler") == 1
