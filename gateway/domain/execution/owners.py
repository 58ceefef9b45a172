"""Whose a run is, when a gateway begins anew or is lost."""

from dataclasses import replace

from gateway.domain import approval, preparing
from gateway.domain.execution.messages import OwnerLost, Restarted
from gateway.domain.execution.records import due_again, with_run
from gateway.domain.execution.transitions import failed, stopped
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Failure
from gateway.domain.states import RunStatus


def restarted(local: LocalJob, event: Restarted) -> LocalJob:
    """Have what a gateway had in hand when it ended done again."""
    mine = event.owner in ("", local.home) or not local.home
    if mine:
        told = approval.confirming(local, due_again).approval
        local = replace(local, close=due_again(local.close), ask=due_again(local.ask), approval=told)
        local = _fetched_again(local)
    runs = tuple(_let_go(run) if event.owner in ("", run.owner) else run for run in local.runs)
    return replace(local, runs=runs)


def owner_lost(local: LocalJob, event: OwnerLost) -> LocalJob:
    """Give what a lost gateway had not begun to its heir; what it had begun has failed with it."""
    changed = local
    for run in local.runs:
        if run.owner == event.owner and not run.over:
            changed = with_run(changed, run.run_id, lambda r: _without_owner(r, event), at=event.at)
    if local.home == event.owner:
        changed = _fetched_again(replace(changed, home=event.heir))
    return changed


def _fetched_again(local: LocalJob) -> LocalJob:
    """Have images fetched anew: what fetched them ended with its gateway."""
    fetch = preparing.to_fetch(local)
    return local if fetch is None else preparing.fetching(local, due_again(fetch))


def _without_owner(run: Run, event: OwnerLost) -> Run:
    if run.status is RunStatus.WAITING:
        return replace(run, owner=event.heir)
    if run.status is RunStatus.STOPPING or run.stop_at is not None:
        return failed(run, stopped(run), event.at)
    text = "the gateway that ran the container, and its channel with it, did not come back in time"
    return failed(run, Failure("CHANNEL_LOST", text), event.at)


def _let_go(run: Run) -> Run:
    return replace(
        run,
        launch=due_again(run.launch),
        stop=due_again(run.stop),
        collect=due_again(run.collect),
        seal=due_again(run.seal),
        told=replace(run.told, call=due_again(run.told.call)),
        probe_at=None if run.exit is None else run.probe_at,
    )
