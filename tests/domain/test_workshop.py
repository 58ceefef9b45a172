"""The execution rules, played in a workshop in which the engine loses answers and the process dies."""

from dataclasses import replace

from hypothesis import given, settings

from gateway.domain.spec import Party
from gateway.domain.states import RunStatus
from tests.builders import a_local_job, a_run
from tests.domain.strategies import PLAYED, shifts
from tests.domain.workshop import Program, Shift, Workshop


@given(shifts())
@settings(PLAYED, max_examples=150)
def test_whatever_goes_wrong_a_run_ends_as_its_container_did(shift):
    """Every rule of `Workshop` holds: one launch per run, one end, told at last, nothing left in the engine."""
    Workshop(shift).run()


@given(shifts(calm=True))
@settings(PLAYED, max_examples=40)
def test_nothing_is_done_twice_where_nothing_goes_wrong(shift):
    shop = Workshop(shift)
    local = shop.run()
    assert shop.closed == 1
    assert all(times == 1 for times in shop.created.values())
    assert all(len(told) == len(set(told)) for told in shop.told.values())
    assert set(shop.told) == {run.run_id for run in local.runs}


GUEST, HOST = Party("guest", 0, "n1"), Party("host", 0, "n1")


def _shift(*, stop_at: float | None = None, **programs: Program) -> Shift:
    runs = [a_run(task, party=party) for task in ("a", "b") for party in (GUEST, HOST)]
    return Shift(
        a_local_job(*runs), {f"bfia-{k}-guest.0": p for k, p in programs.items()}, stop_at=stop_at
    )


def _die_at_every_pause(shift: Shift, least: int) -> list[Workshop]:
    shops: list[Workshop] = []
    while not shops or shops[-1].lives > 1:
        shops.append(Workshop(replace(shift, dies_at=len(shops) + 1, seed=len(shops))))
        shops[-1].run()
    assert len(shops) > least
    return shops


def test_the_process_may_die_at_every_single_pause():
    for shop in _die_at_every_pause(_shift(), 20):
        assert all(run.status is RunStatus.SUCCESS for run in shop.local.runs), "\n".join(
            shop.works.story
        )
        assert all(times == 1 for times in shop.created.values())


def test_the_process_may_die_at_every_single_pause_of_a_stop():
    for shop in _die_at_every_pause(
        _shift(
            a=Program((), exits=None),
            b=Program((), exits=None),
            stop_at=0.5,
        ),
        20,
    ):
        stopped = [run for run in shop.local.runs if run.party == GUEST]
        assert all(run.failure.reason == "STOPPED" for run in stopped), "\n".join(shop.works.story)
