"""Several engines at one node: what a job holds where, what never fits, what waits for an engine that is away."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import admission, resources
from gateway.domain import run as domain_run
from gateway.domain.execution import machine
from gateway.domain.execution.messages import Launch
from gateway.domain.resources import (
    GIB,
    Amounts,
    Claim,
    ClaimState,
    Ledger,
    Means,
    Never,
    Pool,
    Portions,
    Room,
    Seat,
)
from gateway.domain.spec import JobSpec
from tests.builders import T0, a_local_job, a_run, a_spec, at
from tests.domain.strategies import dags

FAR = "ssh://far"


def means(cpu: float = 4, far: float = 16, **more: object) -> Means:
    """A small main engine beside a large one."""
    rooms = {FAR: Room(Amounts.of(far, 64 * GIB), far)}
    return replace(Means("n1", Amounts.of(cpu, 8 * GIB, 10 * GIB), cpu, further=rooms), **more)


def held(spec: JobSpec, has: Means, **engines: str) -> Pool | None:
    """Return what the job is to hold; ``engines``: task -> engine."""
    seats = {task: Seat(engine, frozenset({"guest", "host"})) for task, engine in engines.items()}
    return resources.pool(resources.demand(spec, has.node, has.defaults, seats), has)


def asking(dag: str, common: object = None, **asked: float) -> JobSpec:
    params = {"guest": {"0": {"resources": asked}}, "common": common or {}}
    return a_spec(dag, {"guest": ("n1",)}, job_params=params)


def test_a_job_holds_of_the_engine_that_its_tasks_run_at_and_of_no_other():
    spec = asking("a; b; c", cpu=4, memory=2)
    assert held(spec, means(), a=FAR, b=FAR, c=FAR) == Pool(Amounts(), 3, {FAR: Amounts.of(12, 6 * GIB)})
    assert held(spec, means()) == Pool(Amounts.of(4, 2 * GIB), 1)


def test_what_is_larger_than_the_main_engine_fits_a_larger_one_and_the_other_way_round():
    with pytest.raises(Never, match=r"^guest\.0 asks for cpu 8, the engine of node n1 has 4$"):
        held(asking("a", cpu=8), means())
    assert held(asking("a", cpu=8), means(), a=FAR) == Pool(Amounts(), 1, {FAR: Amounts.of(8)})
    with pytest.raises(Never, match=rf"^guest\.0 asks for cpu 3, engine {FAR} of node n1 has 2$"):
        held(asking("a", cpu=3), means(far=2), a=FAR)
    with pytest.raises(
        Never, match=rf"needs memory 65 GiB \(guest.0\), engine {FAR} of node n1 has memory 64 GiB$"
    ):
        held(asking("a", memory=65), means(), a=FAR)


def test_all_engines_that_are_too_small_are_named_at_once():
    with pytest.raises(Never) as caught:
        held(asking("a -> b", cpu=8), means(far=2), b=FAR)
    assert str(caught.value) == (
        "guest.0 asks for cpu 8, the engine of node n1 has 4; "
        f"guest.0 asks for cpu 8, engine {FAR} of node n1 has 2"
    )


def test_a_share_is_of_each_engine():
    half = means(share=0.5)
    assert held(asking("a; b; c", cpu=4), half, a=FAR, b=FAR, c=FAR) == Pool(Amounts(), 2, {FAR: Amounts.of(8)})
    with pytest.raises(Never, match=r"engine .* has cpu 16, of which one job may hold cpu 8"):
        held(asking("a", cpu=9), half, a=FAR)


def test_the_disk_is_the_storages_wherever_a_task_runs():
    spec = asking("a; b", disk=3, cpu=1)
    assert held(spec, means(), b=FAR) == Pool(Amounts.of(1, 0, 6 * GIB), 2, {FAR: Amounts.of(1)})
    chain = asking("a -> b", disk=3)
    assert held(chain, means(), b=FAR) == Pool(Amounts.of(0, 0, 3 * GIB), 1, {FAR: Amounts()})
    with pytest.raises(Never, match="disk 11 GiB"):
        held(asking("a", disk=11), means(), a=FAR)


def test_as_many_tasks_are_under_way_as_fit_whichever_they_are():
    """Two nodes must never run different ones of the tasks that are started: they would wait for each other."""
    spec = asking("a; b; c; d", cpu=2)
    assert held(spec, means(cpu=2), a=FAR, b=FAR) == Pool(Amounts.of(2), 1, {FAR: Amounts.of(2)})
    assert held(spec, means(cpu=2), a=FAR, b=FAR, c=FAR) == Pool(Amounts.of(2), 4, {FAR: Amounts.of(6)})
    chain = asking("a -> b -> c", cpu=2)
    assert held(chain, means(), b=FAR) == Pool(Amounts.of(2), 1, {FAR: Amounts.of(2)})
    fan = asking("a -> b; a -> c; b -> d; c -> d", cpu=2)
    assert held(fan, means(), b=FAR, c=FAR) == Pool(Amounts.of(2), 2, {FAR: Amounts.of(4)})


def test_a_party_counts_at_the_engines_where_it_has_a_role_in_a_task():
    params = {role: {"0": {"resources": {"cpu": 3}}} for role in ("guest", "arbiter")}
    spec = a_spec("a -> b", {"guest": ("n1",), "arbiter": ("n1",)}, job_params=params)
    seats = {"a": Seat("", frozenset({"guest"})), "b": Seat(FAR, frozenset({"guest", "arbiter"}))}
    has = means()
    assert resources.pool(resources.demand(spec, "n1", has.defaults, seats), has) == Pool(
        Amounts.of(3), 1, {FAR: Amounts.of(6)}
    )


def test_of_an_engine_that_never_answered_nothing_is_said_to_be_too_much():
    unknown = means(further={FAR: Room(None, away="engine ssh://far has not answered")})
    pool = held(asking("a; b", cpu=1000), unknown, a=FAR, b=FAR)
    assert pool == Pool(Amounts(), 2, {FAR: Amounts.of(2000)})
    assert resources.outgrown(pool, unknown) == ""
    assert resources.outgrown(pool, means()) == f"needs cpu 2000, engine {FAR} of node n1 has cpu 16"


def test_nobody_waits_for_an_engine_that_was_taken_out_of_the_settings():
    gone = means(further={})
    assert resources.outgrown(Pool(Amounts(), 1, {FAR: Amounts.of(2)}), gone) == (
        f"needs cpu 2 of engine {FAR}, which node n1 has no longer"
    )
    for none in (Pool(Amounts.of(2), 1, {FAR: Amounts()}), Pool(Amounts(), 1, {FAR: Amounts()})):
        assert resources.outgrown(none, gone) == f"needs cpu 0 of engine {FAR}, which node n1 has no longer"


def test_a_job_that_needs_nothing_waits_for_a_further_engine_and_is_bounded_by_none():
    spec = asking("a; b -> c")
    assert held(spec, means()) is None
    pool = held(spec, means(), c=FAR)
    assert pool == Pool(Amounts(), 3, {FAR: Amounts()}), "no fewer of its tasks at once than the flow lets run"
    asked = Claim("job-a", Amounts(), ClaimState.WAITING, T0, T0, further=pool.further)
    there, why = ask(ledger(away={FAR: "it has not answered"}), asked)
    assert why == "ENGINE_DOWN: it has not answered"
    assert ask(replace(there, away={}), asked)[1] == ""
    runs = [a_run(name, engine=engine) for name, engine in (("a", ""), ("b", ""), ("c", FAR))]
    assert domain_run.may_launch(a_local_job(*runs, pool=pool)) == {run.run_id for run in runs}


@given(dags(), st.randoms())
def test_the_breadth_is_no_less_than_any_set_of_tasks_that_can_run_together(dag, random):
    names = {node.name for node in dag.nodes if random.random() < 0.7}
    together: list[str] = []
    for name in sorted(names, key=lambda _: random.random()):
        if all(not related(dag, name, other) for other in together):
            together.append(name)
    assert len(together) <= resources.breadth(dag, names) <= len(names)


@given(dags(), st.randoms(), st.integers(1, 3), st.integers(0, 9))
def test_whichever_tasks_are_under_way_fit_into_what_the_job_holds_and_that_into_the_node(dag, random, cpu, disk):
    spec = replace(asking("a", cpu=cpu, disk=disk), dag=dag)
    engines = {node.name: random.choice(("", FAR)) for node in dag.nodes}
    has = means(cpu=random.randint(3, 7), far=random.randint(3, 7))
    pool = held(spec, has, **engines)
    assert pool is not None and pool.tasks_at_once >= 1
    assert pool.portions.fits(Portions({"": has.total, FAR: has.room(FAR).total or Amounts()}))
    under_way: list[str] = []
    for name in sorted(engines, key=lambda _: random.random()):
        if len(under_way) < pool.tasks_at_once and all(not related(dag, name, other) for other in under_way):
            under_way.append(name)
    runs = [a_run(name, limits={"cpu": cpu, "disk": disk * GIB}, engine=engines[name]) for name in under_way]
    assert domain_run.may_launch(a_local_job(*runs, pool=pool)) == {run.run_id for run in runs}


def related(dag, one: str, other: str) -> bool:
    return other in above(dag, one) or one in above(dag, other)


def above(dag, name: str) -> set[str]:
    ups = set(dag[name].upstream)
    return ups.union(*(above(dag, up) for up in ups))


# ---------------------------------------------------------------- who waits for what


def a_claim(job: str, since: float = 0.0, **cpu: float) -> Claim:
    """``main``, ``far``: cores at each engine."""
    further = {FAR: Amounts.of(cpu["far"])} if "far" in cpu else {}
    main = Amounts.of(cpu.get("main"))
    return Claim(job, main, ClaimState.WAITING, at(since), at(since), 0, "n9", further=further)


def ledger(**more: object) -> Ledger:
    return replace(Ledger(Amounts.of(4), node="n1", further={FAR: Amounts.of(16)}), **more)


def ask(there: Ledger, claim: Claim, now: float = 0.0) -> tuple[Ledger, str]:
    there, held = admission.apply(there, claim, at(now))
    return there, "" if held else there.claims[claim.job_id].reason


def test_a_full_engine_lets_the_jobs_of_another_through_and_is_named_to_its_own():
    there, _ = ask(ledger(), a_claim("job-a", main=1, far=16))
    there, why = ask(there, a_claim("job-b", main=3))
    assert why == ""
    there, why = ask(there, a_claim("job-c", main=1, far=1))
    assert why == (
        "needs cpu 1 on node n1, free cpu 0, held by job job-a (cpu 1), job job-b (cpu 3); "
        f"needs cpu 1 at engine {FAR} on node n1, free cpu 0, held by job job-a (cpu 16)"
    )
    assert there.held_at(FAR) == Amounts.of(16)
    assert there.without("job-a").held_at(FAR) == Amounts()


def test_a_job_holds_at_all_its_engines_or_at_none():
    there, _ = ask(ledger(), a_claim("job-a", far=10))
    there, why = ask(there, a_claim("job-b", main=4, far=10))
    assert "free cpu 6" in why
    assert there.remaining == Amounts.of(4)


def test_what_an_engine_holds_stays_while_it_is_away_and_nothing_more_is_held_of_it():
    there, _ = ask(ledger(), a_claim("job-a", far=10))
    away = replace(there, away={FAR: f"engine {FAR} of node n1 has not answered since noon"})
    there, why = ask(away, a_claim("job-b", far=1))
    assert why == f"ENGINE_DOWN: engine {FAR} of node n1 has not answered since noon"
    assert (there.held_at(FAR), there.further[FAR]) == (Amounts.of(10), Amounts.of(16))
    assert admission.admissible(there, at(1)) == []
    assert admission.admissible(replace(there, away={}), at(1)) == ["job-b"]


def test_nothing_is_kept_for_an_old_job_whose_engine_is_away():
    there = ledger(away={FAR: "it has not answered"})
    there, _ = ask(there, a_claim("job-old", main=4, far=1))
    there, _ = ask(there, a_claim("job-old", main=4, far=1), 10_000.0)
    there, why = ask(there, a_claim("job-young", 10_000.0, main=4), 10_000.0)
    assert why == ""


def test_an_old_job_is_waited_for_at_each_of_its_engines_and_no_other():
    rules = admission.Rules(ageing=10, fresh=1000)
    there, _ = ask(ledger(), a_claim("job-a", far=16))
    for claim in (a_claim("job-old", main=4, far=4), a_claim("job-young", 1.0, main=1)):
        there = there.with_claim(claim)
    assert admission.admissible(there, at(5), rules) == ["job-young"]
    assert admission.admissible(there, at(50), rules) == []


def test_an_engine_that_the_settings_no_longer_name_is_told():
    there, why = ask(ledger(further={}), a_claim("job-a", far=1))
    assert why == f"there is no engine {FAR} on node n1 any more"
    assert there.held == Amounts()


# ---------------------------------------------------------------- the job's own pool


def test_a_run_borrows_of_its_engines_part_and_says_where_it_waits():
    pool = Pool(Amounts.of(4, disk=2 * GIB), 2, {FAR: Amounts.of(2)})
    near, far, late = (
        a_run(name, limits={"cpu": 2.0, "disk": disk}, engine=engine)
        for name, engine, disk in (("a", "", 1.0 * GIB), ("b", FAR, 1.0 * GIB), ("c", FAR, 0.0))
    )
    local, actions = machine.step(a_local_job(near, far, late, pool=pool), T0)
    assert actions == [Launch(near.run_id), Launch(far.run_id)]
    assert domain_run.remaining(local) == Portions({"": Amounts.of(2), FAR: Amounts()})
    assert domain_run.waits_for(local, local.runs[2]) == (
        f"needs cpu 2 of the job's pool at engine {FAR}, free cpu 0, borrowed by b"
    )


def test_a_job_of_a_version_that_did_not_count_further_engines_goes_on():
    run = a_run("a", limits={"cpu": 4.0}, engine=FAR)
    local, actions = machine.step(a_local_job(run, pool=Pool(Amounts.of(4), 1)), T0)
    assert actions == [Launch(run.run_id)]
    assert domain_run.remaining(local)[""] == Amounts()
