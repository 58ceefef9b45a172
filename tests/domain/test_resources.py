"""The resources that a job claims at a node and at its engines."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain import resources
from gateway.domain import run as domain_run
from gateway.domain.amounts import GIB, Amounts, AmountsByEngine, Pool
from gateway.domain.dag import Dag
from gateway.domain.resources import Defaults, EngineCapacity, Never, NodeCapacity, TaskPlacement
from gateway.domain.spec import JobSpec
from tests.builders import a_local_job, a_run, a_spec
from tests.domain.pools import FAR_ENGINE, a_capacity, a_pool
from tests.domain.strategies import REPEATABLE, dags

GUEST_ONLY = {"guest": ("n1",)}
GUEST_AND_HOST = {
    "guest": ("n1",),
    "host": ("n1",),
}
GUEST_AND_ARBITER = {
    "guest": ("n1",),
    "arbiter": ("n1",),
}

# Flows.
WIDE = "a -> b; a -> c; a -> d; b -> e"
FAN = "a -> b; a -> c; b -> d; c -> d"


def job_asking(
    dag: str = "a",
    roles: Mapping[str, tuple[str, ...]] = GUEST_ONLY,
    common: Mapping[str, Any] | None = None,
    **amounts: Mapping[str, Any],
) -> JobSpec:
    """Return a job; ``amounts`` has the request of the first party of each role."""
    params = {role: {"0": {"resources": of_role}} for role, of_role in amounts.items()}
    return a_spec(dag, roles, job_params={**params, "common": common or {}})


# Capacities.
DEFAULT_CAPACITY = a_capacity()
TWO_ENGINES = a_capacity(4, 8, 10, far=16)
SMALL_MAIN_ENGINE = a_capacity(2, 8, 10, far=16)
HALF_SHARE = replace(TWO_ENGINES, share=0.5)
SITE_DEFAULTS = a_capacity(defaults=Defaults(cpu=1, roles={"arbiter": Defaults(cpu=0.5)}))
WITH_GPUS = a_capacity(
    total=Amounts.of(8, gpu=1),
    further={FAR_ENGINE: EngineCapacity(Amounts.of(8, gpu=4), 8)},
)
UNKNOWN_FAR_ENGINE = a_capacity(
    further={FAR_ENGINE: EngineCapacity(None, away="it has not answered")}
)

# Amounts of a party that refuses the site's defaults.
UNBOUNDED = {
    "cpu": -1,
    "memory": -1,
    "disk": -1,
    "gpu": -1,
}


@dataclass(frozen=True)
class PoolCase:
    """A job at a node, and the pool that it claims, or the reason why it never gets one.

    ``engines`` has the engine of each task that does not run at the main one.
    """

    spec: JobSpec
    capacity: NodeCapacity = DEFAULT_CAPACITY
    engines: Mapping[str, str] = field(default_factory=dict)
    pool: Pool | None = None
    refusal: str = ""


POOLS: dict[str, PoolCase] = {
    "both roles": PoolCase(
        spec=job_asking(
            roles=GUEST_AND_HOST,
            guest={"cpu": 2, "memory": 4},
            host={"cpu": 1},
        ),
        pool=a_pool(1, 3, 4),
    ),
    "no amounts": PoolCase(
        spec=job_asking(guest=UNBOUNDED),
        pool=None,
    ),
    "the site's defaults": PoolCase(
        spec=job_asking(
            roles={
                "guest": ("n1",),
                "arbiter": ("n1",),
            },
            guest={
                "cpu": -1,
                "memory": 2,
                "disk": -1,
            },
        ),
        capacity=SITE_DEFAULTS,
        pool=a_pool(1, 1.5, 2),
    ),
    "tasks that overlap": PoolCase(
        spec=job_asking(
            WIDE,
            guest={"cpu": 2},
        ),
        pool=a_pool(3, 6),
    ),
    "fewer that fit": PoolCase(
        spec=job_asking(
            WIDE,
            guest={"cpu": 3},
        ),
        pool=a_pool(2, 6),
    ),
    "one task at a time": PoolCase(
        spec=job_asking(
            WIDE,
            common={"task_parallelism": 1},
            guest={"cpu": 2},
        ),
        pool=a_pool(1, 2),
    ),
    "more than the node has": PoolCase(
        spec=job_asking(
            roles=GUEST_AND_HOST,
            guest={"cpu": 8},
            host={"cpu": 4},
        ),
        refusal="one task at a time needs cpu 12 (guest.0 cpu 8; host.0 cpu 4), node n1 has cpu 8",
    ),
    "more than a job's share": PoolCase(
        spec=job_asking(guest={"cpu": 6, "memory": 1}),
        capacity=a_capacity(share=0.5),
        refusal="one task at a time needs cpu 6 (guest.0), node n1 has cpu 8, "
        "of which one job may hold cpu 4",
    ),
    "a node that counts its cores several times": PoolCase(
        spec=job_asking(
            "a; b",
            guest={"cpu": 2},
        ),
        capacity=a_capacity(16, cores=2),
        pool=a_pool(2, 4),
    ),
    "more cores than the engine has": PoolCase(
        spec=job_asking(guest={"cpu": 4}),
        capacity=a_capacity(16, cores=2),
        refusal="guest.0 asks for cpu 4, the engine of node n1 has 2",
    ),
    # ---- several engines
    "no task at the further engine": PoolCase(
        spec=job_asking(
            "a; b",
            guest={"cpu": 4},
        ),
        capacity=TWO_ENGINES,
        pool=a_pool(1, 4),
    ),
    "more than the main engine has": PoolCase(
        spec=job_asking(guest={"cpu": 8}),
        capacity=TWO_ENGINES,
        engines={"a": FAR_ENGINE},
        pool=a_pool(1, far=8),
    ),
    "more memory than the further engine has": PoolCase(
        spec=job_asking(guest={"memory": 65}),
        capacity=TWO_ENGINES,
        engines={"a": FAR_ENGINE},
        refusal="one task at a time needs memory 65 GiB (guest.0), "
        f"engine {FAR_ENGINE} of node n1 has memory 64 GiB",
    ),
    "more than both engines have": PoolCase(
        spec=job_asking(
            "a -> b",
            guest={"cpu": 8},
        ),
        capacity=a_capacity(4, far=2),
        engines={"b": FAR_ENGINE},
        refusal="guest.0 asks for cpu 8, the engine of node n1 has 4; "
        f"guest.0 asks for cpu 8, engine {FAR_ENGINE} of node n1 has 2",
    ),
    "a share of each engine": PoolCase(
        spec=job_asking(
            "a; b; c",
            guest={"cpu": 4},
        ),
        capacity=HALF_SHARE,
        engines=dict.fromkeys("abc", FAR_ENGINE),
        pool=a_pool(2, far=8),
    ),
    "disk counts at the node's storage": PoolCase(
        spec=job_asking(
            "a; b",
            guest={"cpu": 1, "disk": 3},
        ),
        capacity=TWO_ENGINES,
        engines={"b": FAR_ENGINE},
        pool=Pool(Amounts.of(1, 0, 6 * GIB), 2, {FAR_ENGINE: Amounts.of(1)}),
    ),
    "disk of a chain counts once": PoolCase(
        spec=job_asking(
            "a -> b",
            guest={"disk": 3},
        ),
        capacity=TWO_ENGINES,
        engines={"b": FAR_ENGINE},
        pool=Pool(Amounts.of(0, 0, 3 * GIB), 1, {FAR_ENGINE: Amounts()}),
    ),
    "tasks beside a small engine": PoolCase(
        spec=job_asking(
            "a; b; c; d",
            guest={"cpu": 2},
        ),
        capacity=SMALL_MAIN_ENGINE,
        engines=dict.fromkeys("abc", FAR_ENGINE),
        pool=a_pool(4, 2, far=6),
    ),
    "a fan at the further engine": PoolCase(
        spec=job_asking(
            FAN,
            guest={"cpu": 2},
        ),
        capacity=TWO_ENGINES,
        engines={"b": FAR_ENGINE, "c": FAR_ENGINE},
        pool=a_pool(2, 2, far=4),
    ),
    "an engine of unknown size": PoolCase(
        spec=job_asking(
            "a; b",
            guest={"cpu": 1000},
        ),
        capacity=a_capacity(further={FAR_ENGINE: EngineCapacity(None, away="it has not answered")}),
        engines={"a": FAR_ENGINE, "b": FAR_ENGINE},
        pool=a_pool(2, far=2000),
    ),
    "amounts of others": PoolCase(
        spec=job_asking(
            "a; b; c",
            guest={"cpu": 2},
        ),
        capacity=a_capacity(others=Amounts.of(4)),
        pool=a_pool(2, 4),
    ),
    "one task despite the amounts of others": PoolCase(
        spec=job_asking(
            "a; b; c",
            guest={"cpu": 2},
        ),
        capacity=a_capacity(others=Amounts.of(7)),
        pool=a_pool(1, 2),
    ),
    # ---- GPUs
    "one GPU for two tasks": PoolCase(
        spec=job_asking(
            "a; b",
            guest={"gpu": 1},
        ),
        capacity=WITH_GPUS,
        pool=Pool(Amounts.of(gpu=1), 1),
    ),
    "GPUs of the further engine": PoolCase(
        spec=job_asking(
            "a; b",
            guest={"gpu": 2},
        ),
        capacity=WITH_GPUS,
        engines=dict.fromkeys("ab", FAR_ENGINE),
        pool=Pool(
            Amounts(),
            2,
            {FAR_ENGINE: Amounts.of(gpu=4)},
        ),
    ),
    "too many GPUs": PoolCase(
        spec=job_asking(
            roles=GUEST_AND_HOST,
            guest={"gpu": 2},
        ),
        capacity=WITH_GPUS,
        refusal="one task at a time needs gpu 2 (guest.0 gpu 2), node n1 has gpu 1",
    ),
    "no GPU at the node": PoolCase(
        spec=job_asking(guest={"gpu": 1}),
        refusal="one task at a time needs gpu 1 (guest.0), node n1 has gpu 0",
    ),
    "a share of the only GPU": PoolCase(
        spec=job_asking(guest={"gpu": 1}),
        capacity=replace(WITH_GPUS, share=0.5),
        pool=Pool(Amounts.of(gpu=1), 1),
    ),
    "no amounts at the further engine": PoolCase(
        spec=job_asking("a; b -> c"),
        capacity=TWO_ENGINES,
        engines={"c": FAR_ENGINE},
        pool=Pool(Amounts(), 3, {FAR_ENGINE: Amounts()}),
    ),
}


def claim_pool(
    spec: JobSpec,
    capacity: NodeCapacity,
    engines: Mapping[str, str],
) -> Pool | None:
    """Return the pool that a job claims; None if it needs nothing. Raises `Never`."""
    roles = frozenset({"guest", "host"})
    placements = {task: TaskPlacement(engine, roles) for task, engine in engines.items()}
    demand = resources.demand(spec, capacity.node, capacity.defaults, placements)
    return resources.pool(demand, capacity)


POSSIBLE = {name: case for name, case in POOLS.items() if not case.refusal}
IMPOSSIBLE = {name: case for name, case in POOLS.items() if case.refusal}


@pytest.mark.parametrize("case", POSSIBLE.values(), ids=POSSIBLE)
def test_a_job_claims_the_amounts_of_its_parallel_tasks(case: PoolCase):
    assert claim_pool(case.spec, case.capacity, case.engines) == case.pool


@pytest.mark.parametrize("case", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_job_that_never_fits_is_refused_with_the_reason(case: PoolCase):
    with pytest.raises(Never) as refusal:
        claim_pool(case.spec, case.capacity, case.engines)

    assert str(refusal.value) == case.refusal


def test_a_party_counts_at_the_engines_where_it_has_a_role_in_a_task():
    spec = job_asking(
        "a -> b",
        GUEST_AND_ARBITER,
        guest={"cpu": 3},
        arbiter={"cpu": 3},
    )
    placements = {
        "a": TaskPlacement("", frozenset({"guest"})),
        "b": TaskPlacement(FAR_ENGINE, frozenset({"guest", "arbiter"})),
    }

    pool = resources.pool(
        resources.demand(spec, "n1", Defaults(), placements),
        TWO_ENGINES,
    )

    assert pool == Pool(
        Amounts.of(3),
        1,
        {FAR_ENGINE: Amounts.of(6)},
    )


# ---------------------------------------------------------------- amounts of a party


def test_each_amount_names_its_origin():
    amounts = {
        "cpu": -1,
        "memory": 2,
        "disk": -1,
    }
    spec = job_asking(roles=GUEST_AND_ARBITER, guest=amounts)

    guest, arbiter = (
        resources.run_limits(spec, party, SITE_DEFAULTS.defaults) for party in spec.parties
    )

    assert (guest.cpu, guest.memory, guest.disk) == (1, 2 * GIB, None)
    assert guest.origins == {
        "cpu": "site default",
        "memory": "guest.0",
        "disk": "the node's bound",
    }
    assert (arbiter.cpu, arbiter.origins["cpu"]) == (0.5, "site default for arbiter")


def test_a_number_of_gpus_may_be_a_text():
    spec = job_asking(guest={"gpu": "2"})
    [guest] = spec.parties

    limits = resources.run_limits(spec, guest, Defaults())

    assert (limits.gpu, limits.origins["gpu"]) == (2, "guest.0")


@pytest.mark.parametrize(
    ("cpu", "milli_cpus"),
    [
        (5e-324, {1}),
        (0.1, {100}),
        (0.30000000000000004, {300, 301}),
    ],
    ids=["almost nothing", "a tenth", "a rounding error"],
)
def test_amounts_are_never_counted_as_less_than_requested(cpu: float, milli_cpus: set[int]):
    assert Amounts.of(cpu=cpu).cpu in milli_cpus


# ---------------------------------------------------------------- engines that change


@pytest.mark.parametrize(
    ("cores", "capacity", "problem"),
    [
        (2000, UNKNOWN_FAR_ENGINE, ""),
        (2000, TWO_ENGINES, f"needs cpu 2000, engine {FAR_ENGINE} of node n1 has cpu 16"),
        (2, a_capacity(), f"needs cpu 2 of engine {FAR_ENGINE}, which node n1 has no longer"),
        (0, a_capacity(), f"needs cpu 0 of engine {FAR_ENGINE}, which node n1 has no longer"),
    ],
    ids=["unknown size", "too small", "removed", "removed, nothing needed"],
)
def test_a_claim_that_an_engine_has_no_longer_is_a_problem(
    cores: float,
    capacity: NodeCapacity,
    problem: str,
):
    pool = Pool(
        Amounts(),
        1,
        {FAR_ENGINE: Amounts.of(cores)},
    )

    assert resources.refusal_if_outgrown(pool, capacity) == problem


MAIN_ENGINE = ""
NO_CORES = a_capacity(0, far=16)
LESS_THAN_NOTHING_AT_FAR = a_capacity(0, far=-1)


@pytest.mark.parametrize(
    ("engines", "capacity"),
    [
        ([], TWO_ENGINES),
        ([FAR_ENGINE], NO_CORES),
    ],
    ids=["both engines have room", "the further engine has room"],
)
def test_an_engine_with_resources_is_no_problem(engines: list[str], capacity: NodeCapacity):
    assert resources.nothing_at(engines, capacity) == ""


@pytest.mark.parametrize(
    ("engines", "capacity", "problem"),
    [
        ([MAIN_ENGINE], NO_CORES, "node n1 has cpu 0, memory 64 GiB: the ResourceQuota"),
        ([], a_capacity(memory=0), "node n1 has cpu 8, memory 0 GiB: the ResourceQuota"),
        ([], a_capacity(memory=-1), "node n1 has cpu 8, memory -"),
        (
            [FAR_ENGINE, MAIN_ENGINE],
            LESS_THAN_NOTHING_AT_FAR,
            f"engine {FAR_ENGINE} of node n1 has cpu -",
        ),
        ([MAIN_ENGINE, FAR_ENGINE], LESS_THAN_NOTHING_AT_FAR, "node n1 has cpu 0"),
    ],
    ids=["no cores", "no memory", "negative memory", "the first is far", "the first is main"],
)
def test_an_engine_without_resources_for_any_run_is_named(
    engines: list[str],
    capacity: NodeCapacity,
    problem: str,
):
    assert resources.nothing_at(engines, capacity).startswith(problem)


# ---------------------------------------------------------------- at large


def upstream_tasks(dag: Dag, task: str) -> set[str]:
    """Return every task on which another one depends."""
    tasks = set(dag[task].upstream)
    for name in dag[task].upstream:
        tasks |= upstream_tasks(dag, name)
    return tasks


def are_independent(
    dag: Dag,
    first: str,
    second: str,
) -> bool:
    """True if neither task depends on the other."""
    return second not in upstream_tasks(dag, first) and first not in upstream_tasks(dag, second)


def pick_independent_tasks(
    dag: Dag,
    tasks: set[str],
    random: Random,
    limit: int,
) -> list[str]:
    """Return up to ``limit`` tasks that can run in parallel, picked at random."""
    picked: list[str] = []
    for task in random.sample(sorted(tasks), len(tasks)):
        if len(picked) == limit:
            break
        if all(are_independent(dag, task, earlier) for earlier in picked):
            picked.append(task)
    return picked


@given(dags(), st.randoms())
@settings(REPEATABLE, max_examples=60)
def test_the_breadth_is_that_of_the_largest_parallel_set_of_tasks(dag, random):
    tasks = {node.name for node in dag.nodes if random.random() < 0.7}

    parallel = pick_independent_tasks(
        dag,
        tasks,
        random,
        limit=len(tasks),
    )

    assert len(parallel) <= resources.breadth(dag, tasks) <= len(tasks)


@given(
    dags(),
    st.randoms(),
    st.integers(1, 3),
    st.integers(0, 9),
)
@settings(REPEATABLE, max_examples=60)
def test_running_tasks_fit_the_jobs_claim_and_the_claim_fits_the_node(
    dag,
    random,
    cpu,
    disk,
):
    spec = replace(
        job_asking(
            "a",
            guest={"cpu": cpu, "disk": disk},
        ),
        dag=dag,
    )
    engines = {node.name: random.choice((MAIN_ENGINE, FAR_ENGINE)) for node in dag.nodes}
    capacity = a_capacity(
        random.randint(3, 7),
        far=random.randint(3, 7),
    )

    pool = claim_pool(spec, capacity, engines)

    assert pool is not None
    assert pool.tasks_at_once >= 1
    far_total = capacity.of(FAR_ENGINE).total or Amounts()
    node_total = AmountsByEngine({MAIN_ENGINE: capacity.total, FAR_ENGINE: far_total})
    assert pool.by_engine.fits(node_total)
    running = pick_independent_tasks(
        dag,
        set(engines),
        random,
        limit=pool.tasks_at_once,
    )
    limits = {"cpu": cpu, "disk": disk * GIB}
    runs = [a_run(task, limits=limits, engine=engines[task]) for task in running]
    local = a_local_job(*runs, pool=pool)
    assert domain_run.may_launch(local) == {run.run_id for run in runs}
