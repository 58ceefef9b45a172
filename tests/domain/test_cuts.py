"""A node is cut off at the last task of its job: all nodes agree soon after the cut ends."""

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.domain.scheduling.messages import StopAt
from gateway.domain.states import Outcome
from tests.domain.plot import Outage, Plot
from tests.domain.strategies import PLAYED, plots
from tests.domain.world import World

CUT = 60.0  # seconds

# Seconds from the end of the cut until every node has ended the job at the latest.
AGREEMENT = 5.0


def last_start(world: World) -> float:
    """Return the second at which the last start of a task arrived."""
    starts = [
        float(line.split()[0])
        for line in world.clockwork.log_lines
        if "StartTaskAt(" in line and line.endswith(" arrives")
    ]
    return max(starts)


def cuts(plot: Plot, moment: float) -> list[Outage]:
    """Return cuts of a node other than the scheduling node, one for each way to treat its calls.

    ``moment``: the begin, from 0, at the start of the last task, to 1, at the end of the job.
    """
    world = World(plot)
    world.run()
    start = last_start(world)
    begins = start + moment * (world.ended_at - start)
    *_, node = [name for name in plot.spec.nodes if name != plot.spec.scheduler]
    refuses = Outage(node, begins, begins + CUT)
    return [
        refuses,
        replace(refuses, drops=True),
        replace(refuses, hangs=True),
    ]


def with_cut(plot: Plot, cut: Outage) -> Plot:
    """Return the plot with a cut."""
    return replace(
        plot,
        outages=(cut,),
        repeats_reports=True,
    )


def check_agreement(world: World, cut: Outage) -> None:
    """Fail unless the job has ended at every node soon after the cut."""
    latest = cut.ends + AGREEMENT
    assert world.ended_at < latest, f"{cut}\n{world.clockwork.log_text()}"
    for node in world.plot.spec.nodes:
        first_stop, *_ = world.clockwork.logged_at(f"{StopAt(node)} arrives")
        assert first_stop < latest, f"{cut}\n{world.clockwork.log_text()}"


@given(plots(calm=True), st.floats(0.0, 1.0))
@settings(PLAYED, max_examples=50)
def test_all_nodes_agree_within_five_seconds_of_the_end_of_a_cut(plot, moment):
    assume(len(plot.spec.nodes) > 1)
    for cut in cuts(plot, moment):
        world = World(with_cut(plot, cut))

        job = world.run()

        assert job.outcome is Outcome.SUCCEEDED
        check_agreement(world, cut)


@given(plots(calm=True), st.floats(0.0, 1.0), st.floats(0.0, CUT))
@settings(PLAYED, max_examples=30)
def test_a_stop_during_a_cut_arrives_within_five_seconds_of_its_end(plot, moment, seconds):
    assume(len(plot.spec.nodes) > 1)
    for cut in cuts(plot, moment):
        world = World(replace(with_cut(plot, cut), stop_at=cut.begins + seconds))

        world.run()

        check_agreement(world, cut)
