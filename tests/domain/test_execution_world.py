"""The execution rules in a simulated node whose engine loses answers and whose process dies."""

from dataclasses import replace

from hypothesis import given, settings

from gateway.domain.spec import Party
from gateway.domain.states import RunStatus
from tests.builders import a_local_job, a_run
from tests.domain.execution_world import ExecutionPlot, ExecutionWorld, Program
from tests.domain.strategies import PLAYED, execution_plots

GUEST = Party("guest", 0, "n1")
HOST = Party("host", 0, "n1")

# Pauses that an undisturbed execution of the plot below has at least.
LEAST_PAUSES = 20


@given(execution_plots())
@settings(PLAYED, max_examples=150)
def test_a_run_ends_as_its_container_did_despite_any_trouble(plot):
    """The rules of `ExecutionWorld` hold: one launch and one end per run, a report, a clean-up."""
    ExecutionWorld(plot).run()


@given(execution_plots(calm=True))
@settings(PLAYED, max_examples=40)
def test_no_action_is_repeated_without_trouble(plot):
    world = ExecutionWorld(plot)

    local = world.run()

    assert world.closes == 1
    assert all(launches == 1 for launches in world.launches.values())
    for statuses in world.told_statuses.values():
        assert len(statuses) == len(set(statuses))
    assert set(world.told_statuses) == {run.run_id for run in local.runs}


def plot_of_two_tasks(*, stop_at: float | None = None, **programs: Program) -> ExecutionPlot:
    """Return a plot with the tasks a and b of two parties; ``programs``: the guest's, by task."""
    runs = [a_run(task, party=party) for task in ("a", "b") for party in (GUEST, HOST)]
    by_container = {f"bfia-{task}-guest.0": program for task, program in programs.items()}
    return ExecutionPlot(a_local_job(*runs), by_container, stop_at=stop_at)


def play_with_death_at_every_pause(plot: ExecutionPlot) -> list[ExecutionWorld]:
    """Play the plot with a death at pause 1, at pause 2 and so on, until a process outlives it."""
    worlds: list[ExecutionWorld] = []
    process_died = True
    while process_died:
        number = len(worlds)
        world = ExecutionWorld(replace(plot, dies_at=number + 1, seed=number))
        world.run()
        worlds.append(world)
        process_died = world.lives > 1
    assert len(worlds) > LEAST_PAUSES
    return worlds


def test_the_process_may_die_at_every_pause():
    worlds = play_with_death_at_every_pause(plot_of_two_tasks())

    for world in worlds:
        statuses = {run.status for run in world.local.runs}
        assert statuses == {RunStatus.SUCCESS}, world.clockwork.log_text()
        assert all(launches == 1 for launches in world.launches.values())


def test_the_process_may_die_at_every_pause_of_a_stop():
    endless = Program((), exits_after=None)
    plot = plot_of_two_tasks(
        a=endless,
        b=endless,
        stop_at=0.5,
    )

    worlds = play_with_death_at_every_pause(plot)

    for world in worlds:
        guest_runs = [run for run in world.local.runs if run.party == GUEST]
        reasons = {run.failure.reason for run in guest_runs}
        assert reasons == {"STOPPED"}, world.clockwork.log_text()
