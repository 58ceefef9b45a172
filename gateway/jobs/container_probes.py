"""Probes of the containers of runs: through their engine, and at their own control ports."""

from collections.abc import Collection

import structlog

from engines.base import EngineDown, EngineError, Exited, Missing
from gateway.data.combined_storage import Storages
from gateway.domain.execution import messages
from gateway.domain.execution.results import result_of
from gateway.domain.run import Exit, LocalJob, Run
from gateway.domain.spec import Failure
from gateway.domain.states import TaskStatus
from gateway.errors import StorageAway, StorageFailed
from gateway.jobs.launcher import Launching
from gateway.ports import Clock
from gateway.runtime.context import Peers

log = structlog.get_logger(__name__)

# Bytes at the end of standard output in which a result code is looked for.
_LAST_OUTPUT = 16 * 1024


class ContainerProbes:
    """Turns the state of a container into an event of its run."""

    def __init__(
        self,
        launching: Launching,
        storage: Storages,
        peers: Peers,
        clock: Clock,
    ) -> None:
        self._engine = launching.engine
        self._launching = launching
        self._storage = storage
        self._peers = peers
        self._clock = clock

    def probe(self, run: Run) -> messages.Event:
        """Return the event for the state of a run's container, as its engine reports it.

        If the engine does not respond, the event says so. If it responds with an error, the
        container counts as running. A container that runs without a network, or has written too
        much to the disk, has the event `Broken`.
        """
        try:
            state = self._engine.probe(run.name)
        except EngineDown:
            return messages.EngineSilent(run.run_id, self._clock())
        except EngineError:
            return messages.Inspected(run.run_id, self._clock())
        if isinstance(state, Missing):
            return messages.Gone(run.run_id, self._clock())
        if isinstance(state, Exited):
            return self._exit_event(run, state)
        # The loss of the network matters only until the run has reported: up to its report, the run
        # needs the other parties.
        if state.cut_off and run.container_report.status is None:
            return messages.Broken(
                run.run_id,
                _network_lost(run),
                self._clock(),
            )
        disk_failure = self._launching.disk.excess(run)
        if disk_failure:
            return messages.Broken(run.run_id, disk_failure, self._clock())
        return messages.Inspected(run.run_id, self._clock())

    def ask_container(
        self,
        local: LocalJob,
        run: Run,
    ) -> list[messages.Event]:
        """Ask a container at its control port whether it has ended its work.

        Returns the event of its end; no event if the container has no control port, does not
        respond, has not ended its work, or has reported its end before.
        """
        control_port = run.software.declared.get("control_port")
        if not control_port or run.container_report.is_final:
            return []
        address = self._launching.address_of(run)
        if not address:
            return []
        adapter = self._peers.adapter(local.spec.protocol)
        status = adapter.container_status(run, address)
        if status is None:
            return []
        cause = None
        if status is TaskStatus.FAILED:
            cause = self.storage_failure(run, "")
        return [messages.Reported(run.run_id, status, self._clock(), cause=cause)]

    def storage_failure(self, run: Run, message: str) -> Failure | None:
        """Return the failure of a remote storage that may have made a run fail.

        None if the storage works, and for a run that is over or was requested to stop. ``message``
        is the run's own; an error code of the storage in it counts without a check.
        """
        if run.over or run.stop_at is not None:
            return None
        error = self._storage.storage_failure(run, message)
        if error is None:
            return None
        return Failure(error.reason, error.message)

    def last_words(self, run: Run) -> tuple[str, str]:
        """Return result code and result message in the last line of a container's standard output.

        Both are empty if that line has none, or if the engine fails.
        """
        try:
            logs = self._engine.logs(
                run.name,
                tail=_LAST_OUTPUT,
            )
        except EngineError:
            return "", ""
        return result_of(logs.stdout.splitlines())

    def _exit_event(self, run: Run, state: Exited) -> messages.Event:
        """Return the event for the exit of a container.

        Outputs are looked for only after exit code 0 of a run that has not been requested to stop:
        if it has reported success, only those of a run whose outputs later tasks read. They decide
        whether the run has succeeded. If their storage does not
        respond, the run counts as running and is probed again; if it responds with an error, the
        run fails with this error.
        """
        missing: tuple[str, ...] = ()
        if state.code == 0 and run.stop_at is None:
            try:
                missing = self._missing_outputs(run)
            except StorageAway as error:
                log.warning(
                    "a run has ended and its outputs cannot be seen",
                    run=run.name,
                    cause=error.message,
                )
                return messages.Inspected(run.run_id, self._clock())
            except StorageFailed as error:
                failure = Failure(error.reason, error.message)
                return messages.Broken(run.run_id, failure, self._clock())
        exit_ = Exit(
            code=state.code,
            signal=state.signal,
            oom_killed=state.oom_killed,
            started_at=state.started_at,
            finished_at=state.finished_at,
            missing_outputs=missing,
        )
        result_code = ""
        result_message = ""
        if not run.container_report.result_code:  # no report had a result code
            result_code, result_message = self.last_words(run)
        return messages.Exited(
            run.run_id,
            exit_,
            self._clock(),
            result_code=result_code,
            result_message=result_message,
            cause=self._cause_of_exit(run, state, result_message),
        )

    def _cause_of_exit(
        self,
        run: Run,
        state: Exited,
        message: str,
    ) -> Failure | None:
        """Return the failure of storage or network that caused an exit; None if neither has failed.

        The storage is considered after an exit code other than 0. The network matters only to a run
        that has neither reported nor been requested to stop. ``message`` is the run's own.
        """
        if state.code:
            cause = self.storage_failure(run, message)
            if cause is not None:
                return cause
        is_undecided = run.container_report.status is None and run.stop_at is None
        if is_undecided and state.cut_off and not state.oom_killed:
            return _network_lost(run)
        return None

    def _missing_outputs(self, run: Run) -> tuple[str, ...]:
        """Return the names of the outputs that are not in storage, of those that decide on a run.

        Raises `StorageFailed`.
        """
        return tuple(
            name
            for name in _deciding_outputs(run)
            if not self._storage.exists(run.data.outputs[name])
        )


def _deciding_outputs(run: Run) -> Collection[str]:
    """Return the names of the outputs that decide whether an exited run has succeeded.

    None for a run that has reported a failure, and for one that has reported success and whose
    outputs no later task reads.
    """
    status = run.container_report.status
    has_no_reader = status is TaskStatus.SUCCESS and not run.data.needed_outputs
    if status is TaskStatus.FAILED or has_no_reader:
        return ()
    return tuple(run.data.outputs)


def _network_lost(run: Run) -> Failure:
    """Return the failure of a container that was taken off its network."""
    who = f"the container of {run.party.label} in task {run.task_name}"
    return Failure("NETWORK_LOST", f"{who} was taken off its network and reaches no other party")
