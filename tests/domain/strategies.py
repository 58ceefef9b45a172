"""What hypothesis draws for the tests of the core: flows, plots for the world, shifts for the workshop.

Structure and trouble are drawn here; the many small times inside a simulation come from the plot's seed.
"""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st

from gateway.domain.dag import Dag
from gateway.domain.spec import JobSpec, Party
from gateway.domain.states import TaskStatus
from tests.builders import a_local_job, a_node, a_run, a_spec
from tests.domain.plot import Fate, Outage, Plot
from tests.domain.workshop import Program, Shift

REPEATABLE = settings(
    derandomize=True,
    deadline=None,
    max_examples=100,
)
"""The same examples in every run."""

PLAYED = settings(REPEATABLE, phases=(Phase.explicit, Phase.generate))
"""For simulations: a failure tells its story, and looking for a smaller one would take minutes."""

SEEDS = st.integers(0, 2**32 - 1)
NEVER = st.just(0.0)


def seconds(most: float) -> st.SearchStrategy[float]:
    """Draw a time; nothing at all is likely."""
    return st.one_of(NEVER, st.integers(0, 1000).map(lambda n: n * most / 1000))


def some_of(items: list, one_in: int) -> st.SearchStrategy[frozenset]:
    """Draw a set in which each item is with a chance of one in so many."""
    flags = st.lists(st.integers(0, one_in - 1), min_size=len(items), max_size=len(items))
    return flags.map(
        lambda drawn: frozenset(x for x, n in zip(items, drawn, strict=True) if n == one_in - 1)
    )


@st.composite
def dags(draw: st.DrawFn, most: int = 6) -> Dag:
    """Draw a flow without a cycle, its components in any order."""
    names = [f"t{i}" for i in range(draw(st.integers(1, most)))]
    nodes = [a_node(name, sorted(draw(some_of(names[:i], 3)))) for i, name in enumerate(names)]
    return Dag(tuple(draw(st.permutations(nodes))))


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    """Draw a job of 1 to 4 nodes that share 1 to 3 roles."""
    nodes = [f"n{i}" for i in range(1, draw(st.integers(1, 4)) + 1)]
    names = ("guest", "host", "arbiter")[: draw(st.integers(1, 3))]
    roles = {
        r: draw(
            st.lists(
                st.sampled_from(nodes),
                min_size=1,
                max_size=4,
                unique=True,
            )
        )
        for r in names
    }
    return a_spec(draw(dags()), roles)


@st.composite
def plots(draw: st.DrawFn, *, calm: bool = False) -> Plot:
    """Draw what will happen to a job; ``calm``: nodes do as they are asked, and nothing gets lost."""
    spec = draw(specs())
    roles = sorted({p.role for p in spec.parties})
    tasks = [n.name for n in spec.dag.nodes]
    narrowed = sorted(draw(some_of(tasks, 2)))
    task_roles = {t: draw(st.frozensets(st.sampled_from(roles), min_size=1)) for t in narrowed}
    seed = draw(SEEDS)
    times = Random(seed)
    alone = all(len(spec.parties_at(n)) == 1 for n in spec.nodes)
    plot = Plot(
        spec,
        task_roles,
        unknown=draw(some_of(tasks, 3)) if alone else frozenset(),
        fates={(t, p.node, p.role): _fate(times) for t in tasks for p in spec.parties},
        needs=draw(some_of(list(spec.nodes), 2)),
        pushes=draw(some_of(list(spec.nodes), 2)),
        planners=draw(st.integers(1, 2)),
        seed=seed,
    )
    return plot if calm else draw(troubled(plot))


@st.composite
def troubled(draw: st.DrawFn, plot: Plot) -> Plot:
    """Draw what goes wrong in a plot: refusals, failures, a stop, outages, a bad network, crashes."""
    nodes, tasks = list(plot.spec.nodes), [n.name for n in plot.spec.dag.nodes]
    places = [(t, n) for t in tasks for n in nodes]
    failing = draw(
        st.one_of(
            st.just(frozenset()), st.frozensets(st.sampled_from(sorted(plot.fates)), max_size=2)
        )
    )
    fails = {key: replace(plot.fates[key], status=TaskStatus.FAILED) for key in sorted(failing)}
    once = draw(
        st.one_of(
            st.just(frozenset()), st.frozensets(st.sampled_from(sorted(plot.fates)), max_size=2)
        )
    )
    fails |= {
        k: replace(plot.fates[k], fails=draw(st.integers(1, 2))) for k in sorted(once - failing)
    }
    return replace(
        plot,
        spec=replace(
            plot.spec, job_params={"common": {**draw(time_limits(tasks)), **draw(quorums(plot))}}
        ),
        fates={**plot.fates, **fails},
        asks={
            n: (draw(seconds(40.0)), draw(st.sampled_from((True, True, False, None))))
            for n in draw(some_of(nodes, 4))
        },
        suspended=draw(st.one_of(st.none(), st.none(), st.tuples(seconds(20.0), st.just(60.0)))),
        refuses_create=draw(some_of(nodes, 30)),
        refuses_start=draw(some_of(nodes, 30)),
        refuses_task=draw(some_of(places, 40)),
        forgets=draw(some_of(places, 15)),
        busy=tuple(
            (n, *sorted((draw(seconds(40.0)), draw(seconds(40.0)))))
            for n in draw(some_of(nodes, 4))
        ),
        stop_at=draw(st.one_of(st.none(), st.none(), st.none(), seconds(30.0))),
        stop_tasks=tuple((draw(seconds(30.0)), t) for t in sorted(draw(some_of(tasks, 12)))),
        outages=tuple(draw(st.lists(outages(nodes), max_size=1))) if draw(st.booleans()) else (),
        trouble=draw(st.sampled_from((0.0, 0.1, 0.3, 0.6))),
        crash=draw(st.sampled_from((0.0, 0.01, 0.05))),
        stalls=draw(st.sampled_from((0.0, 0.0, 0.2))),
        trouble_until=draw(st.sampled_from((10.0, 45.0))),
    )


@st.composite
def quorums(draw: st.DrawFn, plot: Plot) -> dict[str, Any]:
    """Draw which parties the job can do without; mostly none."""
    if draw(st.integers(0, 2)) < 2:
        return {}
    count = Counter(p.role for p in plot.spec.parties)
    return {
        "min_parties": {role: draw(st.integers(0, most)) for role, most in sorted(count.items())}
    }


@st.composite
def stumbling(draw: st.DrawFn) -> Plot:
    """Draw a plot in which tasks fail once or twice, are tried twice more, and the network is bad meanwhile."""
    plot = draw(plots(calm=True))
    fails = {
        key: replace(fate, fails=draw(st.sampled_from((0, 0, 1, 2))))
        for key, fate in plot.fates.items()
    }
    limits = {"auto_retries": 2, "auto_retry_delay": draw(st.sampled_from((0, 0, 2, 20.5)))}
    return replace(
        plot,
        spec=replace(plot.spec, job_params={"common": limits}),
        fates=fails,
        stop_at=draw(st.one_of(st.none(), st.none(), st.none(), seconds(60.0))),
        stop_tasks=tuple(
            (draw(seconds(40.0)), t.name)
            for t in plot.spec.dag.nodes
            if draw(st.integers(0, 9)) == 9
        ),
        trouble=draw(st.sampled_from((0.0, 0.1, 0.3, 0.6))),
        crash=draw(st.sampled_from((0.0, 0.01, 0.03))),
        stalls=draw(st.sampled_from((0.0, 0.0, 0.2))),
        trouble_until=draw(st.sampled_from((10.0, 45.0, 100.0))),
    )


@st.composite
def time_limits(draw: st.DrawFn, tasks: list[str]) -> dict:
    """Draw how long a job and its tasks may take, and how often they are tried again; often none of it."""
    if draw(st.booleans()):
        return {}
    limits = {
        "auto_retries": draw(st.sampled_from((0, 1, 1, 2))),
        "auto_retry_delay": draw(st.sampled_from((0, 0, 2, 20.5))),
        "task_timeout": draw(st.sampled_from((None, None, 5, 25))),
        "timeout": draw(st.sampled_from((None, None, None, 40))),
    }
    own = draw(some_of(tasks, 4))
    return limits | {"tasks": {t: {"auto_retries": draw(st.integers(0, 2))} for t in sorted(own)}}


def _fate(times: Random) -> Fate:
    runs = times.choice((0.0, times.uniform(0.0, 1.0)))
    return Fate(runs, runs + times.choice((0.0, times.uniform(0.0, 3.0), times.uniform(0.0, 30.0))))


@st.composite
def outages(draw: st.DrawFn, nodes: list[str]) -> Outage:
    begins = draw(seconds(40.0))
    lasts = draw(st.sampled_from((3.0, 15.0, 40.0, 900.0)))
    return Outage(draw(st.sampled_from(nodes)), begins, begins + lasts, draw(st.booleans()))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw what a container says and how it exits; what never ends by itself says SUCCESS."""
    end = draw(st.one_of(seconds(5.0), seconds(60.0)))
    last = draw(st.sampled_from((None, TaskStatus.SUCCESS, TaskStatus.SUCCESS, TaskStatus.FAILED)))
    says = [(draw(seconds(1.0)), TaskStatus.RUNNING)] if draw(st.booleans()) else []
    says += [(end, last)] if last else []
    late = draw(st.sampled_from((-0.5, 0.0, 0.1, 0.1, 60.0, None)))
    code = draw(st.sampled_from((0, 0, 0, 1, 137)))
    return Program(
        tuple(says),
        exits=None
        if late is None and last is TaskStatus.SUCCESS
        else max(end + (late or 0.0), 0.0),
        code=code,
        oom=code == 137 and draw(st.booleans()),
        missing=draw(st.sampled_from(((), (), ("out",)))),
        vanishes=draw(st.sampled_from((None,) * 9 + (0.5,))),
        refused=draw(st.sampled_from(("",) * 9 + ("IMAGE_NOT_FOUND",))),
    )


@st.composite
def shifts(draw: st.DrawFn, *, calm: bool = False) -> Shift:
    """Draw a node's part in a job and what will happen to it; ``calm``: every call is answered, nothing dies."""
    tasks = ("a", "b", "c")[: draw(st.integers(1, 3))]
    roles = draw(st.sampled_from((("guest",), ("guest", "host"))))
    runs = [a_run(t, party=Party(r, 0, "n1")) for t in tasks for r in roles]
    does = {run.name: draw(programs()) for run in runs}
    stop = draw(st.one_of(st.none(), st.none(), seconds(0.5), seconds(60.0)))
    if stop is None and any(p.exits is None for p in does.values()):
        stop = 200.0  # a report may get lost, and then nothing else ends such a container
    stopped = sorted(draw(some_of(list(tasks), 8)))
    return Shift(
        a_local_job(*runs),
        does,
        tuple((draw(seconds(20.0)), t) for t in stopped),
        stop,
        trouble=0.0 if calm else draw(st.sampled_from((0.0, 0.2, 0.5))),
        crash=0.0 if calm else draw(st.sampled_from((0.0, 0.02, 0.1))),
        trouble_until=draw(st.sampled_from((10.0, 60.0))),
        seed=draw(SEEDS),
    )
