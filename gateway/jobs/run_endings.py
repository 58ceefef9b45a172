"""The end of a run.

Its container is stopped and removed, its logs are saved, and its model is fingerprinted (sealed).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import structlog

from engines.base import EngineError
from gateway.data.combined_storage import Storages
from gateway.data.reports import output_warnings
from gateway.domain.execution import messages
from gateway.domain.run import LocalJob, Run
from gateway.domain.states import RunStatus
from gateway.errors import Conflict, GatewayError, StorageAway, TooLarge
from gateway.jobs.container_probes import ContainerProbes
from gateway.jobs.launcher import Launching
from gateway.runtime.context import NodeContext
from gateway.runtime.loop import wait_for_database

log = structlog.get_logger(__name__)

# Attempts to revoke the credentials of a run at a storage that does not respond.
_MAX_REVOCATION_TRIES = 10


class RunEndings:
    """Ends the runs of this node."""

    def __init__(
        self,
        context: NodeContext,
        launching: Launching,
        storage: Storages,
        probes: ContainerProbes,
        stop_grace: float,
        end_credentials: Callable[[Run], None],
        on_channel: Callable[[Run], str],
    ) -> None:
        """``stop_grace``: seconds that a container has to end by itself before it is killed.

        ``end_credentials`` revokes the credentials of a run whose container is gone; it raises
        `StorageFailed`. ``on_channel`` returns in words for which message a run waits on the
        channel; empty if the run waits for none.
        """
        self._store = context.store
        self._clock = context.clock
        self._engine = launching.engine
        self._workspace = launching.workspace
        self._disk = launching.disk
        self._storage = storage
        self._probes = probes
        self._stop_grace = stop_grace
        self._end_credentials = end_credentials
        self._on_channel = on_channel

    def stop(
        self,
        run: Run,
        action: messages.StopRun,
    ) -> list[messages.Event]:
        """Stop a run's container; return the event of its state, then the event of the stop.

        If the engine fails, the only event is that of a stop that is tried again.
        """
        channel_wait = self._on_channel(run)  # asked first: a stopped container waits for nothing
        try:
            self._engine.stop(run.name, action.grace)
        except EngineError as error:
            return [messages.Done(action, self._clock(), final=False, message=str(error))]
        warnings: tuple[str, ...] = ()
        if channel_wait:
            warnings = (f"when it was stopped, {channel_wait}",)
        return [
            self._probes.probe(run),
            messages.Done(
                action,
                self._clock(),
                warnings=warnings,
            ),
        ]

    def collect(
        self,
        local: LocalJob,
        run: Run,
        action: messages.Collect,
    ) -> messages.Event:
        """Save a run's logs and remove its container, credentials and working folder.

        The order matters: logs can be saved only before the container is removed, and credentials
        are revoked only after that. If a step fails, the whole action is repeated later.
        """
        try:
            self._engine.stop(run.name, self._stop_grace)
            self._engine.save_logs(
                run.name,
                self._workspace.logs(run),
            )
            self._engine.remove(run.name)
            self.revoke_credentials(run)
            warnings = self._warnings(local, run)
            self._workspace.clear(run)
        except (EngineError, OSError, StorageAway) as error:
            return messages.Done(
                action,
                self._clock(),
                final=False,
                message=str(error),
            )
        return messages.Done(
            action,
            self._clock(),
            warnings=warnings,
        )

    def revoke_credentials(self, run: Run) -> None:
        """Revoke a run's credentials at the storages.

        Raises `StorageAway` if the revocation has to be tried again. After `_MAX_REVOCATION_TRIES`
        tries, or after any other error, a warning is logged and the credentials stay.
        """
        try:
            self._end_credentials(run)
        except GatewayError as error:
            # Each try of `collect` is also a try of the revocation.
            if isinstance(error, StorageAway) and run.collect.tries < _MAX_REVOCATION_TRIES:
                raise
            log.warning(
                "the credentials of a run outlast it",
                run=run.name,
                cause=error.message,
            )

    def seal(self, local: LocalJob, run: Run) -> messages.Event:
        """Fingerprint the files of a run's models; an output that was never written is left out.

        The event has no fingerprints if the files cannot be read or exceed the run's disk limit, or
        if the run no longer has to be sealed.
        """
        bytes_left = self._disk.bounds(run).get("disk")

        def watch(size: int) -> None:
            """Take the size of a file before it is read, and 0 at intervals while it is read.

            Raises `Conflict` if the run no longer has to be sealed, as its job was stopped, and
            `TooLarge` above the run's disk limit.
            """
            nonlocal bytes_left
            if size == 0:
                current = wait_for_database(partial(self._store.local_jobs.get, local.id))
                if not _is_unsealed(current, run):
                    raise Conflict("stopped")
            elif bytes_left is not None:
                bytes_left -= size
                if bytes_left < 0:
                    raise TooLarge("they have more bytes than the disk that it may take")

        outputs = run.data.outputs
        sealed = []
        try:
            model_names = run.sealing.outputs
            written = [name for name in model_names if self._storage.exists(outputs[name])]
            for name in written:
                for file in self._storage.sums(outputs[name], watch):
                    sealed.append(replace(file, output=name))
        except (GatewayError, OSError) as error:
            is_final = isinstance(error, TooLarge)  # another try would find the same files
            return messages.Sealed(
                run.run_id,
                files=None,
                at=self._clock(),
                message=str(error),
                final=is_final,
            )
        return messages.Sealed(
            run.run_id,
            tuple(sealed),
            self._clock(),
        )

    def _warnings(
        self,
        local: LocalJob,
        run: Run,
    ) -> tuple[str, ...]:
        """Return warnings about the outputs of a successful run, or the storage of a failed one.

        Empty for a failed run if the storage works, or if its failure names the storage already.
        """
        if run.status is RunStatus.SUCCESS:
            return output_warnings(self._storage, local.spec, run)
        if run.failure is None or run.failure.reason.startswith("STORAGE_"):
            return ()
        failure = self._storage.storage_failure(run)
        if failure is None:
            return ()
        return (f"{failure.reason}: {failure.message}",)


def _is_unsealed(local: LocalJob, run: Run) -> bool:
    """Return whether a run still has to be sealed, according to the current record of its job."""
    return any(entry.run_id == run.run_id and entry.unsealed for entry in local.runs)
