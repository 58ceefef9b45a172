"""Hypothesis strategies for the tests of the domain: flows, jobs, and plots of both simulations.

Structure and trouble are drawn here; the many short times inside a simulation come from the plot's
seed.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st

from gateway.domain.dag import Dag
from gateway.domain.spec import JobSpec, Party
from gateway.domain.states import TaskStatus
from tests.builders import a_local_job, a_node, a_run, a_spec
from tests.domain.execution_world import ExecutionPlot, Program
from tests.domain.plot import Fate, Outage, Plot

# The same examples in every run.
REPEATABLE = settings(
    derandomize=True,
    deadline=None,
    max_examples=100,
)

# For simulations: their log explains a failure, and shrinking the example would take minutes.
PLAYED = settings(
    REPEATABLE,
    phases=(Phase.explicit, Phase.generate),
)

SEEDS = st.integers(0, 2**32 - 1)
ROLE_NAMES = ("guest", "host", "arbiter")
TASK_NAMES = ("a", "b", "c")

# Seconds at which the last container of a plot is stopped that never exits: a report may get lost,
# and then nothing else ends it.
LAST_STOP = 200.0


# ---------------------------------------------------------------- small values


def seconds(longest: float) -> st.SearchStrategy[float]:
    """Draw a time; 0 is likely."""
    thousandths = st.integers(0, 1000)
    return st.one_of(st.just(0.0), thousandths.map(lambda number: number * longest / 1000))


def seldom(
    value: st.SearchStrategy[Any],
    one_in: int,
) -> st.SearchStrategy[Any]:
    """Draw the value in one of ``one_in`` cases, else None."""
    nothing = [st.none()] * (one_in - 1)
    return st.one_of(*nothing, value)


def some_of(
    items: Iterable[Any],
    one_in: int,
) -> st.SearchStrategy[frozenset[Any]]:
    """Draw a set that has each item with a chance of one in ``one_in``."""
    candidates = list(items)
    draws = st.integers(0, one_in - 1)
    size = len(candidates)
    return st.lists(draws, min_size=size, max_size=size).map(
        lambda numbers: _drawn_items(candidates, numbers, one_in - 1)
    )


def _drawn_items(
    candidates: Sequence[Any],
    numbers: Sequence[int],
    winner: int,
) -> frozenset[Any]:
    """Return the candidates with the winning number."""
    pairs = zip(candidates, numbers, strict=True)
    return frozenset(candidate for candidate, number in pairs if number == winner)


# ---------------------------------------------------------------- flows and jobs


@st.composite
def dags(draw: st.DrawFn, largest: int = 6) -> Dag:
    """Draw a flow without a cycle, its components in any order."""
    names = [f"t{number}" for number in range(draw(st.integers(1, largest)))]
    nodes = []
    for number, name in enumerate(names):
        upstream = sorted(draw(some_of(names[:number], one_in=3)))
        nodes.append(a_node(name, upstream))
    return Dag(tuple(draw(st.permutations(nodes))))


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    """Draw a job with 1 to 4 nodes that share 1 to 3 roles."""
    nodes = [f"n{number}" for number in range(1, draw(st.integers(1, 4)) + 1)]
    names = ROLE_NAMES[: draw(st.integers(1, 3))]
    role_nodes = st.lists(
        st.sampled_from(nodes),
        min_size=1,
        max_size=4,
        unique=True,
    )
    roles = {name: draw(role_nodes) for name in names}
    return a_spec(draw(dags()), roles)


# ---------------------------------------------------------------- plots of a world


@st.composite
def plots(
    draw: st.DrawFn,
    *,
    calm: bool = False,
) -> Plot:
    """Draw a plot; in a calm one every node carries out every request and no message gets lost."""
    spec = draw(specs())
    roles = sorted({party.role for party in spec.parties})
    tasks = [node.name for node in spec.dag.nodes]
    narrowed_tasks = sorted(draw(some_of(tasks, one_in=2)))
    some_roles = st.frozensets(
        st.sampled_from(roles),
        min_size=1,
    )
    task_roles = {task: draw(some_roles) for task in narrowed_tasks}
    seed = draw(SEEDS)
    times = Random(seed)
    # Unknown roles are possible only if each node has a single role.
    one_role_each = all(len(spec.parties_at(node)) == 1 for node in spec.nodes)
    plot = Plot(
        spec,
        task_roles,
        unknown_roles=draw(some_of(tasks, one_in=3)) if one_role_each else frozenset(),
        fates={
            (task, party.node, party.role): _random_fate(times)
            for task in tasks
            for party in spec.parties
        },
        needs_resources=draw(some_of(spec.nodes, one_in=2)),
        pushes=draw(some_of(spec.nodes, one_in=2)),
        planners=draw(st.integers(1, 2)),
        seed=seed,
    )
    return plot if calm else draw(plots_with_trouble(plot))


def _random_fate(times: Random) -> Fate:
    """Return a fate that succeeds within half a minute."""
    runs_after = times.choice((0.0, times.uniform(0.0, 1.0)))
    running_time = times.choice((0.0, times.uniform(0.0, 3.0), times.uniform(0.0, 30.0)))
    return Fate(runs_after, runs_after + running_time)


@st.composite
def plots_with_trouble(draw: st.DrawFn, plot: Plot) -> Plot:
    """Draw trouble for a plot: refusals, failures, a stop, outages, a bad network, crashes."""
    nodes = list(plot.spec.nodes)
    tasks = [node.name for node in plot.spec.dag.nodes]
    tasks_at_nodes = [(task, node) for task in tasks for node in nodes]
    common = {**draw(time_limits(tasks)), **draw(quorums(plot))}
    return replace(
        plot,
        spec=replace(
            plot.spec,
            job_params={"common": common},
        ),
        fates={**plot.fates, **draw(failing_fates(plot))},
        approvals=draw(approvals(nodes)),
        suspended=draw(seldom(st.tuples(seconds(20.0), st.just(60.0)), one_in=3)),
        refuses_create=draw(some_of(nodes, one_in=30)),
        refuses_start=draw(some_of(nodes, one_in=30)),
        refuses_task=draw(some_of(tasks_at_nodes, one_in=40)),
        forgets_task=draw(some_of(tasks_at_nodes, one_in=15)),
        busy=draw(busy_times(nodes)),
        stop_at=draw(seldom(seconds(30.0), one_in=4)),
        stop_tasks=draw(task_stops(tasks, latest=30.0, one_in=12)),
        outages=tuple(draw(st.lists(outages(nodes), max_size=1))) if draw(st.booleans()) else (),
        trouble_chance=draw(st.sampled_from((0.0, 0.1, 0.3, 0.6))),
        crash_chance=draw(st.sampled_from((0.0, 0.01, 0.05))),
        stall_chance=draw(st.sampled_from((0.0, 0.0, 0.2))),
        trouble_until=draw(st.sampled_from((10.0, 45.0))),
    )


@st.composite
def failing_fates(
    draw: st.DrawFn,
    plot: Plot,
) -> dict[tuple[str, str, str], Fate]:
    """Draw up to two roles of tasks that always fail, and up to two that fail once or twice."""
    up_to_two = st.frozensets(
        st.sampled_from(sorted(plot.fates)),
        max_size=2,
    )
    none_or_two = st.one_of(st.just(frozenset()), up_to_two)
    always = draw(none_or_two)
    at_first = draw(none_or_two) - always
    fates = {}
    for key in sorted(always):
        fates[key] = replace(
            plot.fates[key],
            final_status=TaskStatus.FAILED,
        )
    for key in sorted(at_first):
        fates[key] = replace(
            plot.fates[key],
            failing_attempts=draw(st.integers(1, 2)),
        )
    return fates


@st.composite
def approvals(
    draw: st.DrawFn,
    nodes: list[str],
) -> dict[str, tuple[float, bool | None]]:
    """Draw the nodes where a person decides, each with the time and the decision (None: never)."""
    decision = st.sampled_from((True, True, False, None))
    deciding_nodes = draw(some_of(nodes, one_in=4))
    return {node: (draw(seconds(40.0)), draw(decision)) for node in deciding_nodes}


@st.composite
def busy_times(
    draw: st.DrawFn,
    nodes: list[str],
) -> tuple[tuple[str, float, float], ...]:
    """Draw the nodes without room for the job, each with begin and end."""
    times = []
    for node in draw(some_of(nodes, one_in=4)):
        begin, end = sorted((draw(seconds(40.0)), draw(seconds(40.0))))
        times.append((node, begin, end))
    return tuple(times)


@st.composite
def task_stops(
    draw: st.DrawFn,
    tasks: list[str],
    latest: float,
    one_in: int,
) -> tuple[tuple[float, str], ...]:
    """Draw tasks that a user stops, and when."""
    stopped = sorted(draw(some_of(tasks, one_in)))
    return tuple((draw(seconds(latest)), task) for task in stopped)


@st.composite
def outages(draw: st.DrawFn, nodes: list[str]) -> Outage:
    """Draw an outage, also one longer than the limit for silent nodes."""
    begins = draw(seconds(40.0))
    length = draw(st.sampled_from((3.0, 15.0, 40.0, 900.0)))
    node = draw(st.sampled_from(nodes))
    return Outage(
        node,
        begins,
        begins + length,
        hangs=draw(st.booleans()),
    )


@st.composite
def quorums(
    draw: st.DrawFn,
    plot: Plot,
) -> dict[str, Any]:
    """Draw the number of parties that the job needs of each role; mostly all of them."""
    if draw(st.integers(0, 2)) < 2:
        return {}
    parties = Counter(party.role for party in plot.spec.parties)
    needed = {role: draw(st.integers(0, count)) for role, count in sorted(parties.items())}
    return {"min_parties": needed}


@st.composite
def time_limits(
    draw: st.DrawFn,
    tasks: list[str],
) -> dict[str, Any]:
    """Draw timeouts and retries of a job and its tasks; often none."""
    if draw(st.booleans()):
        return {}
    limits = {
        "auto_retries": draw(st.sampled_from((0, 1, 1, 2))),
        "auto_retry_delay": draw(st.sampled_from((0, 0, 2, 20.5))),
        "task_timeout": draw(st.sampled_from((None, None, 5, 25))),
        "timeout": draw(st.sampled_from((None, None, None, 40))),
    }
    tasks_with_limits = sorted(draw(some_of(tasks, one_in=4)))
    task_limits = {task: {"auto_retries": draw(st.integers(0, 2))} for task in tasks_with_limits}
    return limits | {"tasks": task_limits}


@st.composite
def plots_with_retries(draw: st.DrawFn) -> Plot:
    """Draw a plot in which tasks fail up to twice, have two retries, and the network is bad."""
    plot = draw(plots(calm=True))
    tasks = [node.name for node in plot.spec.dag.nodes]
    failing_attempts = st.sampled_from((0, 0, 1, 2))
    retries = {
        "auto_retries": 2,
        "auto_retry_delay": draw(st.sampled_from((0, 0, 2, 20.5))),
    }
    return replace(
        plot,
        spec=replace(
            plot.spec,
            job_params={"common": retries},
        ),
        fates={
            key: replace(fate, failing_attempts=draw(failing_attempts))
            for key, fate in plot.fates.items()
        },
        stop_at=draw(seldom(seconds(60.0), one_in=4)),
        stop_tasks=draw(task_stops(tasks, latest=40.0, one_in=10)),
        trouble_chance=draw(st.sampled_from((0.0, 0.1, 0.3, 0.6))),
        crash_chance=draw(st.sampled_from((0.0, 0.01, 0.03))),
        stall_chance=draw(st.sampled_from((0.0, 0.0, 0.2))),
        trouble_until=draw(st.sampled_from((10.0, 45.0, 100.0))),
    )


# ---------------------------------------------------------------- plots of an execution


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw the reports and the exit of a container; one that never exits reports SUCCESS."""
    end = draw(st.one_of(seconds(5.0), seconds(60.0)))
    last_report = draw(
        st.sampled_from((None, TaskStatus.SUCCESS, TaskStatus.SUCCESS, TaskStatus.FAILED))
    )
    reports = []
    if draw(st.booleans()):
        reports.append((draw(seconds(1.0)), TaskStatus.RUNNING))
    if last_report is not None:
        reports.append((end, last_report))
    # Seconds from the end to the exit; None: it never exits by itself.
    exit_delay = draw(st.sampled_from((-0.5, 0.0, 0.1, 0.1, 60.0, None)))
    never_exits = exit_delay is None and last_report is TaskStatus.SUCCESS
    exit_code = draw(st.sampled_from((0, 0, 0, 1, 137)))
    return Program(
        tuple(reports),
        exits_after=None if never_exits else max(end + (exit_delay or 0.0), 0.0),
        exit_code=exit_code,
        out_of_memory=exit_code == 137 and draw(st.booleans()),
        missing_outputs=draw(st.sampled_from(((), (), ("out",)))),
        vanishes_after=draw(st.sampled_from((None,) * 9 + (0.5,))),
        launch_failure=draw(st.sampled_from(("",) * 9 + ("IMAGE_NOT_FOUND",))),
    )


@st.composite
def execution_plots(
    draw: st.DrawFn,
    *,
    calm: bool = False,
) -> ExecutionPlot:
    """Draw a node's part in a job; in a calm plot every call is answered and no process dies."""
    tasks = TASK_NAMES[: draw(st.integers(1, 3))]
    roles = draw(st.sampled_from((("guest",), ("guest", "host"))))
    runs = [a_run(task, party=Party(role, 0, "n1")) for task in tasks for role in roles]
    by_container = {run.name: draw(programs()) for run in runs}
    stop_at = draw(st.one_of(st.none(), st.none(), seconds(0.5), seconds(60.0)))
    one_never_exits = any(program.exits_after is None for program in by_container.values())
    if stop_at is None and one_never_exits:
        stop_at = LAST_STOP
    return ExecutionPlot(
        a_local_job(*runs),
        by_container,
        stop_tasks=draw(task_stops(list(tasks), latest=20.0, one_in=8)),
        stop_at=stop_at,
        trouble_chance=0.0 if calm else draw(st.sampled_from((0.0, 0.2, 0.5))),
        crash_chance=0.0 if calm else draw(st.sampled_from((0.0, 0.02, 0.1))),
        trouble_until=draw(st.sampled_from((10.0, 60.0))),
        seed=draw(SEEDS),
    )
