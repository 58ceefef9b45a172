"""The ledger in the database: gateways that share it never reserve more than the node has."""

import threading
from dataclasses import replace
from random import Random

import pytest

from engines.base import Capacity
from engines.process.engine import this_machine
from gateway.config.schema import Settings
from gateway.domain.amounts import GIB, Amounts, Pool
from gateway.domain.resources import NodeCapacity
from gateway.domain.states import JobStatus
from gateway.errors import Conflict, Refused
from gateway.jobs.engine_capacities import INTERVAL, EngineCapacities
from gateway.jobs.resources import Resources
from gateway.runtime.context import NodeContext
from gateway.store import schema
from tests.builders import a_local_job, a_spec, at, returning
from tests.memory_engine import MemoryEngine
from tests.store.kinds import on_sqlite
from tests.store.parallel import in_parallel

pytestmark = pytest.mark.xdist_group("claims")  # one database for the module

NODE_CAPACITY = NodeCapacity("n1", Amounts.of(8, 16 * GIB, 0), 8)
FAR = "far"  # the name of the node's further engine


class ChangeableEngine(MemoryEngine):
    """An engine with a capacity that tests change."""

    def __init__(self, capacity):
        super().__init__(node="n1", installation="i", images={})
        self.size = capacity

    def capacity(self):
        self.check()
        return self.size


class HangingEngine(ChangeableEngine):
    """An engine that tells its capacity only when the test releases it."""

    def __init__(self, capacity):
        super().__init__(capacity)
        self.released = threading.Event()

    def capacity(self):
        assert self.released.wait(60)
        return super().capacity()


# ------------------------------------------------------------ the main engine


def test_two_gateways_race_for_the_last_cores(stores):
    """Each of 16 jobs requests 3 of 8 cores from both gateways, repeatedly; some give them back."""
    gateways = [a_pool(store) for store in stores]
    jobs = [a_job_that_needs(3, number) for number in range(16)]
    store_jobs(stores[0], jobs)
    views = []
    returned_jobs = []

    def request_all(number):
        """Request the resources of every job from one gateway; return the number of grants."""
        gateway = gateways[number % 2]
        random = Random(number)
        grants = 0
        for job in jobs:
            if is_granted(gateway, job):
                grants += 1
            views.append(gateway.view())
            if random.random() < 0.3:
                gateway.give_back(job.id)
                returned_jobs.append(job.id)
        return grants

    grants = sum(in_parallel(8, request_all))

    assert grants > 2
    assert returned_jobs
    for view in views:
        remaining = view["remaining"]["cpu"]
        assert 0 <= remaining <= 8
        assert view["held"]["cpu"] == 8 - remaining
        assert sum(holder["cpu"] for holder in view["holders"]) == 8 - remaining
    for job in jobs:
        for gateway in gateways:
            gateway.release(job.id)
    for gateway in gateways:
        assert gateway.view()["remaining"]["cpu"] == 8


@on_sqlite
def test_the_next_in_line_is_notified_when_resources_are_free(store):
    notifications = []
    pool = a_pool(store, notifications.append)
    first = a_job_that_needs(8, 1)
    low = a_job_that_needs(8, 2)
    high = a_job_that_needs(
        8,
        3,
        priority=7,
    )
    store_jobs(store, [first, low, high])
    pool.hold(first)
    for job in (low, high):
        with pytest.raises(Refused):
            pool.hold(job)

    pool.release(first.id)

    assert notifications[-1] == [high.id]
    with pytest.raises(Refused, match="kept for jobs that go first"):
        pool.hold(low)
    pool.hold(high)
    pool.hold(high)
    [holder] = pool.view()["holders"]
    assert holder["job_id"] == high.id


@on_sqlite
def test_a_job_with_an_unreadable_record_releases_its_reservations(store):
    job = a_job_that_needs(8, 1)
    pool = a_pool(store)
    store_jobs(store, [job])
    pool.hold(job)
    table = schema.local_job
    unreadable = {
        "state": '{"status": "NOWHERE"}',
        "version": table.c.version + 1,
    }
    with store.write() as connection:
        connection.execute(table.update().values(**unreadable))

    pool.release(job.id)

    assert pool.view()["remaining"]["cpu"] == 8


@on_sqlite
def test_a_job_that_has_ended_reserves_nothing(store):
    job = a_job_that_needs(1, 1)
    store_jobs(store, [job])
    end_job(
        store,
        job,
        status=JobStatus.FINISHED,
    )

    with pytest.raises(Conflict, match="has ended here"):
        a_pool(store).hold(job)  # the record from before its end
    assert a_pool(store).view()["holders"] == []


@on_sqlite
def test_claims_of_ended_jobs_are_released_within_a_minute_and_logged(store):
    now = 0.0
    pool = Resources(returning(NODE_CAPACITY), store, lambda: at(now), ignore_jobs)
    job = a_job_that_needs(3, 1)
    store_jobs(store, [job])
    pool.hold(job)
    # This end releases nothing, as if the gateway was killed between the two.
    end_job(
        store,
        job,
        status=JobStatus.FINISHED,
        ended_at=at(0),
        closed=True,
    )

    for number in range(4):
        now = number * INTERVAL + 0.1
        pool.reconcile()
        if not pool.view()["held"]["cpu"]:
            break

    # Not before 20 s, as the job has time to release its claim itself. The last search may have
    # been just before the end, which leaves an interval less than a minute.
    assert 20 < now <= 60 - INTERVAL
    pool.reconcile()
    assert pool.view()["returned_by_reconciler"] == 1
    events = [entry.event for entry in store.timeline(job.id)]
    assert events.count("resources returned by the reconciler") == 1


@on_sqlite
def test_the_main_engine_while_down_has_the_capacity_this_gateway_last_saw(store):
    settings = a_configuration(resources={"cpu": 20, "cpu_overcommit": 2})

    def cores_of_node(engine, gateway):
        context = NodeContext(
            "n1",
            store,
            returning(at(0)),
            gateway,
        )
        capacities = EngineCapacities(
            context,
            {"": engine},
            settings,
            first_look=60.0,
        )
        return capacities().total.cpu / 1000  # of milli-cores

    assert cores_of_node(an_engine(24), "first") == 40
    assert cores_of_node(an_engine(1, down=True), "first") == 40
    assert cores_of_node(an_engine(1, down=True), "second") == min(this_machine().cpu, 20) * 2


# ------------------------------------------------------------ a further engine


def test_claims_on_a_further_engine_survive_a_restart_with_new_totals(stores):
    store, second_store = stores
    first = a_pool_with_far_engine(
        store,
        far_capacity(store, an_engine(16)),
    )
    second = a_pool_with_far_engine(
        second_store,
        far_capacity(second_store, an_engine(16)),
    )
    holder = a_far_job(
        10,
        1,
        main=2,
    )
    waiting = a_far_job(10, 2)
    store_jobs(store, [holder, waiting])
    first.hold(holder)
    busy = f"needs cpu 10 at engine {FAR} on node n1, free cpu 6, held by job job-1"
    with pytest.raises(Refused, match=busy):
        second.hold(waiting)

    smaller = a_pool_with_far_engine(
        second_store,
        far_capacity(second_store, an_engine(12)),
    )
    view = smaller.view()
    main_engine, far_engine = view["engines"]
    assert main_engine["held"]["cpu"] == 2
    assert main_engine["remaining"]["cpu"] == 6
    assert far_engine["held"]["cpu"] == 10
    assert far_engine["remaining"]["cpu"] == 2
    assert view["holders"][0]["engines"][FAR]["cpu"] == 10

    # The claim is returned once, however many gateways release it.
    for pool in (first, smaller, second):
        pool.release(holder.id)
    second.hold(waiting)
    assert [engine["held"]["cpu"] for engine in first.view()["engines"]] == [0, 10]

    too_small = a_pool_with_far_engine(
        second_store,
        far_capacity(second_store, an_engine(9)),
    )
    assert too_small.view()["engines"][1]["remaining"]["cpu"] == -1
    too_small.hold(waiting)  # keeps the claim it has
    too_small.give_back(waiting.id)
    never = f"needs cpu 10, engine {FAR} of node n1 has cpu 9"
    with pytest.raises(Refused, match=never) as refusal:
        too_small.hold(waiting)
    assert refusal.value.reason == "RESOURCES_NEVER"


@on_sqlite
def test_what_others_use_of_a_cluster_is_free_again_once_it_is_seen_to_be(store):
    engine = ChangeableEngine(Capacity(16, 16 * GIB, others=Capacity(8, GIB)))
    # With a cap of 12 of 16 cores, the others' 8 cores take 4 from the jobs.
    settings = a_configuration(
        engine={"kind": "docker"},
        engines={FAR: {"base_url": "tcp://10.0.0.9:2376", "cpu": 12}},
        listen={"container": {"advertise": "http://10.0.0.5:7381"}},
    )
    changes = []
    capacities = far_capacity(
        store,
        engine,
        settings=settings,
        on_change=changes.append,
    )
    pool = a_pool_with_far_engine(store, capacities)
    job = a_far_job(10, 1)
    store_jobs(store, [job])

    busy = f"needs cpu 10 at engine {FAR} on node n1, free cpu 8, others use cpu 4"
    with pytest.raises(Refused, match=busy):
        pool.hold(job)
    far_engine = pool.view()["engines"][1]
    assert far_engine["total"]["cpu"] == 12
    assert far_engine["others"]["cpu"] == 4
    assert far_engine["remaining"]["cpu"] == 8

    engine.size = replace(
        engine.size,
        others=Capacity(4, GIB),
    )
    capacities.look(FAR)
    pool.hold(job)
    assert changes == [FAR]


@on_sqlite
def test_an_engine_down_at_the_start_has_the_capacity_last_seen(store):
    never_seen = far_capacity(store, an_engine(16, down=True))
    assert never_seen.by_engine()[FAR].total is None

    for cores in (16, 14):
        far_capacity(store, an_engine(cores)).by_engine()
    engine = an_engine(4, down=True)
    changes = []
    capacities = far_capacity(
        store,
        engine,
        on_change=changes.append,
    )
    pool = a_pool_with_far_engine(store, capacities)
    job = a_far_job(10, 1)
    job_without_demand = a_far_job(0, 2)  # its task would fail at the engine all the same
    store_jobs(store, [job, job_without_demand])

    silent = f"ENGINE_DOWN: engine {FAR} of node n1 has not answered since 2026"
    with pytest.raises(Refused, match=silent):
        pool.hold(job)
    with pytest.raises(Refused, match=f"ENGINE_DOWN: engine {FAR}"):
        pool.hold(job_without_demand)
    view = pool.view()
    assert view["engines"][1]["total"]["cpu"] == 14
    assert view["waiting"][1]["reason"].startswith("ENGINE_DOWN")

    capacities.look(FAR)
    assert changes == []

    engine.world.down = False
    capacities.look(FAR)
    assert changes == [FAR]
    assert capacities.by_engine()[FAR].total == Amounts.of(4, 16 * GIB)


def test_gpus_are_held_however_counted_and_older_claims_hold_none(stores):
    engine = ChangeableEngine(Capacity(8, GIB, 3))
    first, second = [a_pool_with_far_engine(store, far_capacity(store, engine)) for store in stores]
    two_gpus = Pool(
        Amounts(),
        1,
        {FAR: Amounts.of(gpu=2)},
    )
    jobs = [replace(a_far_job(0, number), pool=two_gpus) for number in (1, 2)]
    store_jobs(stores[0], jobs)
    first.hold(jobs[0])

    busy = f"needs gpu 2 at engine {FAR} on node n1, free gpu 1, held by job job-1 .gpu 2"
    with pytest.raises(Refused, match=busy):
        second.hold(jobs[1])

    engine.world.down = True
    restarted = a_pool_with_far_engine(
        stores[1],
        far_capacity(stores[1], engine),
    )
    far_engine = restarted.view()["engines"][1]
    assert far_engine["total"]["gpu"] == 3
    assert far_engine["held"]["gpu"] == 2
    assert far_engine["remaining"]["gpu"] == 1

    claim_without_gpus = {FAR: [2000, GIB, 0]}
    with stores[0].write() as connection:
        connection.execute(schema.resource_claim.update().values(further=claim_without_gpus))
    assert second.ledger().claims["job-1"].further == {FAR: Amounts.of(2, GIB)}


@on_sqlite
def test_no_request_waits_long_for_an_engine_that_hangs(store):
    engine = HangingEngine(Capacity(4, GIB))
    changed = threading.Event()
    capacities = far_capacity(store, engine, on_change=lambda name: changed.set(), first_look=0.0)

    silent = capacities.by_engine()[FAR]
    assert silent.total is None
    assert silent.away

    engine.released.set()
    assert changed.wait(60)
    answering = capacities.by_engine()[FAR]
    assert answering.total == Amounts.of(4, GIB)
    assert answering.away == ""


# ------------------------------------------------------------ builders


def ignore_jobs(job_ids):
    """Do nothing for the jobs that could go on."""


def a_pool(store, freed=ignore_jobs):
    """Build the pool of a node without further engines; ``freed`` as for `Resources`."""
    return Resources(
        returning(NODE_CAPACITY),
        store,
        returning(at(0)),
        freed,
    )


def a_pool_with_far_engine(store, capacities):
    def node_capacity():
        return replace(
            NODE_CAPACITY,
            further=capacities.by_engine(),
        )

    return Resources(
        node_capacity,
        store,
        returning(at(0)),
        ignore_jobs,
    )


def far_capacity(
    store,
    engine,
    *,
    settings=None,
    on_change=None,
    first_look=60.0,
):
    """Build the capacities of a node whose only engine is the further one.

    ``on_change`` is called with the name of that engine; ``first_look`` as for `EngineCapacities`.
    """

    def report_change():
        if on_change:
            on_change(FAR)

    return EngineCapacities(
        NodeContext("n1", store, returning(at(0))),
        {FAR: engine},
        settings or a_configuration(),
        report_change,
        first_look,
    )


def a_configuration(**settings):
    defaults = {
        "node": {"id": "n1"},
        "engine": {"kind": "process"},
    }
    return Settings.model_validate(defaults | settings)


def an_engine(cores, *, down=False):
    engine = ChangeableEngine(Capacity(cores, 16 * GIB))
    engine.world.down = down
    return engine


def a_job_that_needs(cpu, number, priority=0):
    """Build a ready job that needs these cores, and one GiB, of the main engine."""
    return a_local_job(
        spec=a_spec(
            job_id=f"job-{number}",
            job_params={"common": {"priority": priority}},
        ),
        status=JobStatus.READY,
        pool=Pool(
            Amounts.of(cpu, GIB),
            1,
        ),
    )


def a_far_job(far, number, main=0):
    """Build a ready job that needs cores of the further engine, and perhaps of the main one."""
    pool = Pool(
        Amounts.of(main),
        1,
        {FAR: Amounts.of(far)},
    )
    return replace(
        a_job_that_needs(main, number),
        pool=pool,
    )


def store_jobs(store, jobs):
    for job in jobs:
        store.local_jobs.add(job, "flow")


def end_job(store, job, **changes):
    def end(local):
        return replace(local, **changes)

    store.local_jobs.update(job.id, end)


def is_granted(pool, job):
    """Request the resources of a job; the only refusal may be that they are in use."""
    try:
        pool.hold(job)
    except Refused as error:
        assert error.reason == "RESOURCES_BUSY"
        return False
    return True
