"""What jobs need of a node, at which of its engines, and what their own tasks borrow of it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain import resources
from gateway.domain import run as domain_run
from gateway.domain.execution.messages import Exited, Launch, Launched, LaunchFailed, Reported
from gateway.domain.resources import (
    GIB,
    Amounts,
    AmountsByEngine,
    Defaults,
    EngineCapacity,
    Never,
    NodeCapacity,
    Pool,
    TaskPlacement,
)
from gateway.domain.run import Exit, LocalJob, Run
from gateway.domain.spec import Failure, JobSpec, Party
from gateway.domain.states import TaskStatus
from tests.builders import T0, a_local_job, a_run, a_spec
from tests.domain.script import due_commands, play
from tests.domain.strategies import REPEATABLE, dags

FAR = "ssh://far"
BOTH = {"guest": ("n1",), "host": ("n1",)}
WIDE, CHAIN, FAN = "a -> b; a -> c; a -> d; b -> e", "a -> b -> c", "a -> b; a -> c; b -> d; c -> d"


def asking(
    dag: str = "a",
    roles: dict[str, tuple[str, ...]] | None = None,
    common: object = None,
    **asked,
) -> JobSpec:
    """Build a job whose first party of a role asks for amounts."""
    params = {role: {"0": {"resources": amounts}} for role, amounts in asked.items()}
    return a_spec(dag, roles or {"guest": ("n1",)}, job_params={**params, "common": common or {}})


def means(
    cpu: float = 8,
    memory: float = 64,
    disk: float = 100,
    far: float = 0,
    **more: object,
) -> NodeCapacity:
    """A node with a main engine, and another one with so many cores."""
    engines = {FAR: EngineCapacity(Amounts.of(far, 64 * GIB), far)} if far else {}
    return replace(
        NodeCapacity("n1", Amounts.of(cpu, memory * GIB, disk * GIB), cpu, further=engines), **more
    )


def held(
    spec: JobSpec,
    has: NodeCapacity,
    **engines: str,
) -> Pool | str | None:
    """Return what the job is to hold, or why it never can; ``engines``: task -> engine."""
    seats = {
        task: TaskPlacement(engine, frozenset({"guest", "host"}))
        for task, engine in engines.items()
    }
    try:
        return resources.pool(resources.demand(spec, has.node, has.defaults, seats), has)
    except Never as never:
        return str(never)


TWO = means(4, 8, 10, far=16)
SMALL = means(2, 8, 10, far=16)
HALF = replace(TWO, share=0.5)
SITE = means(defaults=Defaults(cpu=1, roles={"arbiter": Defaults(cpu=0.5)}))
OPEN = {
    "cpu": -1,
    "memory": -1,
    "disk": -1,
    "gpu": -1,
}
CARD = means(total=Amounts.of(8, gpu=1), further={FAR: EngineCapacity(Amounts.of(8, gpu=4), 8)})


def pool(
    at_once: int,
    cpu: float = 0,
    memory: float = 0,
    far: float | None = None,
) -> Pool:
    """Return a pool; ``far``: cores of the other engine."""
    further = {} if far is None else {FAR: Amounts.of(far)}
    return Pool(Amounts.of(cpu, memory * GIB), at_once, further)


POOLS: dict[str, tuple[JobSpec, NodeCapacity, dict[str, str], Pool | str | None]] = {
    "both roles": (
        asking(
            roles=BOTH,
            guest={"cpu": 2, "memory": 4},
            host={"cpu": 1},
        ),
        means(),
        {},
        pool(1, 3, 4),
    ),
    "nothing": (asking(guest=OPEN), means(), {}, None),
    "the site's defaults": (
        asking(
            roles={"guest": ("n1",), "arbiter": ("n1",)},
            guest={
                "cpu": -1,
                "memory": 2,
                "disk": -1,
            },
        ),
        SITE,
        {},
        pool(1, 1.5, 2),
    ),
    "tasks that overlap": (asking(WIDE, guest={"cpu": 2}), means(), {}, pool(3, 6)),
    "fewer that fit": (asking(WIDE, guest={"cpu": 3}), means(), {}, pool(2, 6)),
    "one by one": (
        asking(WIDE, common={"task_parallelism": 1}, guest={"cpu": 2}),
        means(),
        {},
        pool(1, 2),
    ),
    "too much": (
        asking(
            roles=BOTH,
            guest={"cpu": 8},
            host={"cpu": 4},
        ),
        means(),
        {},
        "one task at a time needs cpu 12 (guest.0 cpu 8; host.0 cpu 4), node n1 has cpu 8",
    ),
    "over its share": (
        asking(guest={"cpu": 6, "memory": 1}),
        means(share=0.5),
        {},
        "one task at a time needs cpu 6 (guest.0), node n1 has cpu 8, of which one job may hold cpu 4",
    ),
    "overcommitted": (asking("a; b", guest={"cpu": 2}), means(16, cores=2), {}, pool(2, 4)),
    "too many cores": (
        asking(guest={"cpu": 4}),
        means(16, cores=2),
        {},
        "guest.0 asks for cpu 4, the engine of node n1 has 2",
    ),
    # several engines
    "none there": (asking("a; b", guest={"cpu": 4}), TWO, {}, pool(1, 4)),
    "too much for one only": (asking(guest={"cpu": 8}), TWO, {"a": FAR}, pool(1, far=8)),
    "too much memory": (
        asking(guest={"memory": 65}),
        TWO,
        {"a": FAR},
        f"one task at a time needs memory 65 GiB (guest.0), engine {FAR} of node n1 has memory 64 GiB",
    ),
    "too much for both": (
        asking("a -> b", guest={"cpu": 8}),
        means(4, far=2),
        {"b": FAR},
        "guest.0 asks for cpu 8, the engine of node n1 has 4; "
        f"guest.0 asks for cpu 8, engine {FAR} of node n1 has 2",
    ),
    "a share of each": (
        asking("a; b; c", guest={"cpu": 4}),
        HALF,
        dict.fromkeys("abc", FAR),
        pool(2, far=8),
    ),
    "the storage's disk": (
        asking("a; b", guest={"cpu": 1, "disk": 3}),
        TWO,
        {"b": FAR},
        Pool(Amounts.of(1, 0, 6 * GIB), 2, {FAR: Amounts.of(1)}),
    ),
    "once in a chain": (
        asking("a -> b", guest={"disk": 3}),
        TWO,
        {"b": FAR},
        Pool(Amounts.of(0, 0, 3 * GIB), 1, {FAR: Amounts()}),
    ),
    "not bounded": (
        asking("a; b; c; d", guest={"cpu": 2}),
        SMALL,
        dict.fromkeys("abc", FAR),
        pool(4, 2, far=6),
    ),
    "a fan": (asking(FAN, guest={"cpu": 2}), TWO, {"b": FAR, "c": FAR}, pool(2, 2, far=4)),
    "an unknown engine": (
        asking("a; b", guest={"cpu": 1000}),
        means(further={FAR: EngineCapacity(None, away="it has not answered")}),
        {"a": FAR, "b": FAR},
        pool(2, far=2000),
    ),
    "beside others": (
        asking("a; b; c", guest={"cpu": 2}),
        means(others=Amounts.of(4)),
        {},
        pool(2, 4),
    ),
    "one waits for others": (
        asking("a; b; c", guest={"cpu": 2}),
        means(others=Amounts.of(7)),
        {},
        pool(1, 2),
    ),
    # GPUs
    "one GPU for two tasks": (
        asking("a; b", guest={"gpu": 1}),
        CARD,
        {},
        Pool(Amounts.of(gpu=1), 1),
    ),
    "GPUs of another": (
        asking("a; b", guest={"gpu": 2}),
        CARD,
        dict.fromkeys("ab", FAR),
        Pool(Amounts(), 2, {FAR: Amounts.of(gpu=4)}),
    ),
    "too many GPUs": (
        asking(roles=BOTH, guest={"gpu": 2}),
        CARD,
        {},
        "one task at a time needs gpu 2 (guest.0 gpu 2), node n1 has gpu 1",
    ),
    "no GPU": (
        asking(guest={"gpu": 1}),
        means(),
        {},
        "one task at a time needs gpu 1 (guest.0), node n1 has gpu 0",
    ),
    "a share of the only GPU": (
        asking(guest={"gpu": 1}),
        replace(CARD, share=0.5),
        {},
        Pool(Amounts.of(gpu=1), 1),
    ),
    "nothing of another": (
        asking("a; b -> c"),
        TWO,
        {"c": FAR},
        Pool(Amounts(), 3, {FAR: Amounts()}),
    ),
}


@pytest.mark.parametrize(("spec", "has", "engines", "expected"), POOLS.values(), ids=POOLS)
def test_what_a_job_is_to_hold(
    spec: JobSpec,
    has: NodeCapacity,
    engines: dict[str, str],
    expected: Pool | str | None,
):
    assert held(spec, has, **engines) == expected


def test_a_party_counts_at_the_engines_where_it_has_a_role_in_a_task():
    spec = asking(
        "a -> b", {"guest": ("n1",), "arbiter": ("n1",)}, guest={"cpu": 3}, arbiter={"cpu": 3}
    )
    seats = {
        "a": TaskPlacement("", frozenset({"guest"})),
        "b": TaskPlacement(FAR, frozenset({"guest", "arbiter"})),
    }
    found = resources.pool(resources.demand(spec, "n1", Defaults(), seats), TWO)
    assert found == Pool(Amounts.of(3), 1, {FAR: Amounts.of(6)})


def test_where_an_amount_comes_from_is_said():
    spec = asking(
        roles={"guest": ("n1",), "arbiter": ("n1",)},
        guest={
            "cpu": -1,
            "memory": 2,
            "disk": -1,
        },
    )
    guest, arbiter = (resources.granted(spec, p, SITE.defaults) for p in spec.parties)
    assert (guest.cpu, guest.memory, guest.disk) == (1, 2 * GIB, None)
    assert guest.origins == {
        "cpu": "site default",
        "memory": "guest.0",
        "disk": "the node's bound",
    }
    assert (arbiter.cpu, arbiter.origins["cpu"]) == (0.5, "site default for arbiter")
    (party,) = (spec := asking(guest={"gpu": "2"})).parties
    found = resources.granted(spec, party, Defaults())
    assert (found.gpu, found.origins["gpu"]) == (2, "guest.0")


@pytest.mark.parametrize(
    ("cores", "has", "says"),
    [
        (2000, POOLS["an unknown engine"][1], ""),
        (2000, TWO, f"needs cpu 2000, engine {FAR} of node n1 has cpu 16"),
        (2, means(), f"needs cpu 2 of engine {FAR}, which node n1 has no longer"),
        (0, means(), f"needs cpu 0 of engine {FAR}, which node n1 has no longer"),
    ],
)
def test_what_an_engine_no_longer_has_is_said(
    cores: float,
    has: NodeCapacity,
    says: str,
):
    assert resources.outgrown(Pool(Amounts(), 1, {FAR: Amounts.of(cores)}), has) == says


@pytest.mark.parametrize(
    ("engines", "has", "says"),
    [
        ([], TWO, ""),
        ([FAR], means(0, far=16), ""),
        ([""], means(0, far=16), "node n1 has cpu 0, memory 64 GiB: the ResourceQuota"),
        ([], means(memory=0), "node n1 has cpu 8, memory 0 GiB: the ResourceQuota"),
        ([], means(memory=-1), "node n1 has cpu 8, memory -"),
        ([FAR, ""], means(0, far=-1), f"engine {FAR} of node n1 has cpu -"),
        (["", FAR], means(0, far=-1), "node n1 has cpu 0"),
    ],
)
def test_an_engine_that_has_nothing_for_any_run_is_named(
    engines: list[str],
    has: NodeCapacity,
    says: str,
):
    found = resources.nothing_at(engines, has)
    assert found.startswith(says) and bool(found) is bool(says)


@given(dags(), st.randoms())
@settings(REPEATABLE, max_examples=60)
def test_the_breadth_is_that_of_the_largest_parallel_set_of_tasks(dag, random):
    names = {node.name for node in dag.nodes if random.random() < 0.7}
    together: list[str] = []
    for name in sorted(names, key=lambda _: random.random()):
        if all(not related(dag, name, other) for other in together):
            together.append(name)
    assert len(together) <= resources.breadth(dag, names) <= len(names)


@given(dags(), st.randoms(), st.integers(1, 3), st.integers(0, 9))
@settings(REPEATABLE, max_examples=60)
def test_running_tasks_fit_the_jobs_claim_and_the_claim_fits_the_node(
    dag,
    random,
    cpu,
    disk,
):
    spec = replace(asking("a", guest={"cpu": cpu, "disk": disk}), dag=dag)
    engines = {node.name: random.choice(("", FAR)) for node in dag.nodes}
    has = means(random.randint(3, 7), far=random.randint(3, 7))
    pool = held(spec, has, **engines)
    assert pool is not None and pool.tasks_at_once >= 1
    assert pool.by_engine.fits(
        AmountsByEngine({"": has.total, FAR: has.of(FAR).total or Amounts()})
    )
    under_way: list[str] = []
    for name in sorted(engines, key=lambda _: random.random()):
        if len(under_way) < pool.tasks_at_once and all(
            not related(dag, name, other) for other in under_way
        ):
            under_way.append(name)
    runs = [
        a_run(name, limits={"cpu": cpu, "disk": disk * GIB}, engine=engines[name])
        for name in under_way
    ]
    assert domain_run.may_launch(a_local_job(*runs, pool=pool)) == {run.run_id for run in runs}


def related(
    dag,
    one: str,
    other: str,
) -> bool:
    return other in above(dag, one) or one in above(dag, other)


def above(dag, name: str) -> set[str]:
    ups = set(dag[name].upstream)
    return ups.union(*(above(dag, up) for up in ups))


# ---------------------------------------------------------------- what is asked


def test_amounts_are_never_counted_as_less_than_asked():
    assert Amounts.of(cpu=5e-324).cpu == 1
    assert Amounts.of(0.1).cpu == 100
    assert Amounts.of(0.30000000000000004).cpu in (300, 301)


# ---------------------------------------------------------------- the job's own pool


def with_pool(
    *runs: Run,
    cpu: float,
    **changes: object,
) -> LocalJob:
    return a_local_job(*runs, pool=Pool(Amounts.of(cpu), 1), **changes)


def test_a_task_borrows_from_its_job_and_the_jobs_pool_reads_4_0_4():
    local = with_pool(cpu=4)
    six = [a_run(name, limits={"cpu": 4.0}) for name in "abcdef"]
    for run in six:
        assert domain_run.remaining(local)[""] == Amounts.of(4)
        local = replace(local, runs=(*local.runs, run))
        assert due_commands(local) == [Launch(run.run_id)]
        local = play(local, 0)
        assert domain_run.remaining(local)[""] == Amounts()
        said, over = Reported(run.run_id, TaskStatus.SUCCESS, T0), Exited(run.run_id, Exit(0), T0)
        local = play(local, Launched(run.run_id, T0), said, said, over, over, said, 0)
    assert domain_run.remaining(local)[""] == Amounts.of(4)


def test_a_run_waits_with_a_reason_until_its_jobs_pool_has_enough():
    first, second = (a_run(name, limits={"cpu": 3.0}) for name in "ab")
    local = with_pool(first, second, cpu=4)
    assert due_commands(local) == [Launch(first.run_id)]
    local = play(local, 0)
    assert due_commands(local) == [], "it is not asked again and again"
    says = "needs cpu 3 of the job's pool, free cpu 1, borrowed by a"
    assert domain_run.waits_for(local, local.runs[1]) == says
    local = play(local, LaunchFailed(first.run_id, Failure("X"), T0))
    assert (
        Launch(second.run_id) in due_commands(local)
        and domain_run.waits_for(local, local.runs[1]) == ""
    )


def test_the_runs_of_one_task_borrow_together_or_not_at_all():
    host = Party("host", 0, "n1")
    both = [a_run("a", limits={"cpu": 2.0}), a_run("a", party=host, limits={"cpu": 2.0})]
    assert domain_run.may_launch(with_pool(*both, cpu=3)) == set()
    assert domain_run.may_launch(with_pool(*both, cpu=4)) == {run.run_id for run in both}
    small = a_run("b", limits={"cpu": 1.0})
    assert domain_run.may_launch(with_pool(*both, small, cpu=3)) == {small.run_id}


def test_a_run_borrows_from_its_engines_pool_and_shows_where_it_waits():
    pool = Pool(Amounts.of(4, disk=2 * GIB), 2, {FAR: Amounts.of(2)})
    near, far, late = (
        a_run(name, limits={"cpu": 2.0, "disk": disk}, engine=engine)
        for name, engine, disk in (("a", "", 1.0 * GIB), ("b", FAR, 1.0 * GIB), ("c", FAR, 0.0))
    )
    local = a_local_job(near, far, late, pool=pool)
    assert due_commands(local) == [Launch(near.run_id), Launch(far.run_id)]
    local = play(local, 0)
    assert domain_run.remaining(local) == AmountsByEngine({"": Amounts.of(2), FAR: Amounts()})
    assert domain_run.waits_for(local, local.runs[2]) == (
        f"needs cpu 2 of the job's pool at engine {FAR}, free cpu 0, borrowed by b"
    )


def test_a_job_of_a_version_that_did_not_count_further_engines_goes_on():
    local = a_local_job(a_run("a", limits={"cpu": 4.0}, engine=FAR), pool=Pool(Amounts.of(4), 1))
    assert due_commands(local) == [Launch(local.runs[0].run_id)]
    assert domain_run.remaining(play(local, 0))[""] == Amounts()
