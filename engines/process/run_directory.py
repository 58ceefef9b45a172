"""The state of one local run, read from its directory and the process table alone."""

import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engines.base import FIRST_SIGNAL_CODE, KILLED, Exited, Missing, Probe, Running, Written
from engines.files import size_below, try_to_remove
from engines.logs import STREAMS
from engines.process import supervisor
from engines.process.tracking import (
    exits_within,
    kill_session,
    open_process,
    opened,
    same_machine,
    send,
)

_KILL_TIMEOUT = 5.0
"""seconds that a supervisor may take to kill its run"""


class RunDirectory:
    """One run's directory; `engines.process.supervisor` says what is in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, labels: Mapping[str, str]) -> None:
        """Create the directory. Raises OSError."""
        self.work.mkdir(parents=True, exist_ok=True, mode=0o700)
        supervisor.write(self._file(supervisor.SPEC), json.dumps({"labels": dict(labels)}))

    @property
    def work(self) -> Path:
        """The folder in which the run was started."""
        return self.path / supervisor.WORK

    def log(self, stream: str) -> Path:
        """Return the file of a stream, ``stdout`` or ``stderr``."""
        return self.path / f"{stream}.log"

    def written(self, most: int) -> Written:
        """Measure the working folder and the streams; ``most`` + 1 files are counted."""
        size, files = size_below(self.work, most)
        for stream in STREAMS:
            with suppress(FileNotFoundError):
                size += self.log(stream).stat().st_blocks * 512
        return Written(size, files)

    @property
    def own_log(self) -> Path:
        """The supervisor's own log."""
        return self.path / supervisor.OWN_LOG

    @property
    def claimed(self) -> bool:
        """Whether the run was started, and possibly has exited."""
        return os.path.exists(self._file(supervisor.SUPERVISOR))

    def labels(self) -> dict[str, str] | None:
        """Return the labels, None if there is no such run."""
        spec = self._read(supervisor.SPEC)
        return None if spec is None else dict(spec["labels"])

    def probe(self) -> Probe:
        """Return the state of the run; record its exit if its supervisor could not."""
        recorded = self._exit()
        if recorded is not None:
            return recorded
        identity = self._read(supervisor.SUPERVISOR)
        if identity is None or not same_machine(identity):
            return Missing()
        with opened(identity) as descriptor:
            if descriptor is not None:
                return Running(_moment(self._started()))
        return self._record_exit()

    def stop(self, grace: float) -> None:
        """Send SIGTERM to every process of the run; kill them after the grace; return when they are gone."""
        with opened(self._read(supervisor.SUPERVISOR)) as descriptor:
            if descriptor is None:
                self.probe()
                return
            if grace > 0:
                send(descriptor, signal.SIGTERM)
            if not exits_within(descriptor, max(0.0, grace)):
                self._kill(descriptor)
        self.probe()

    def kill(self) -> None:
        """Kill every process of the run."""
        with opened(self._read(supervisor.SUPERVISOR)) as descriptor:
            if descriptor is not None:
                self._kill(descriptor)
        if self._exit() is None:
            kill_session(self._read(supervisor.CHILD))

    def open_supervisor(self) -> int | None:
        """Return a descriptor of the supervisor, which the caller closes; None if it has exited."""
        return open_process(self._read(supervisor.SUPERVISOR))

    def delete(self) -> None:
        """Delete the directory, as far as that is possible."""
        try_to_remove(self.path)

    def _kill(self, descriptor: int) -> None:
        send(descriptor, supervisor.KILL_ALL)
        if not exits_within(descriptor, _KILL_TIMEOUT):
            send(descriptor, signal.SIGKILL)
            exits_within(descriptor, _KILL_TIMEOUT)
            kill_session(self._read(supervisor.CHILD))

    def _record_exit(self) -> Probe:
        """Record the exit of a run whose supervisor is gone."""
        recorded = self._exit()  # it may have been written just before the supervisor exited
        if recorded is not None:
            return recorded
        kill_session(self._read(supervisor.CHILD))
        end: dict[str, Any] = {
            "code": FIRST_SIGNAL_CODE + KILLED,
            "signal": KILLED,
            "started": self._started(),
            "finished": time.time(),
        }
        try:
            supervisor.write(self._file(supervisor.EXIT), json.dumps(end), exclusive=True)
        except FileNotFoundError:
            return Missing()
        except OSError:  # such as a full disk: it has exited all the same, and a later probe records it
            return _exited(end)
        return self._exit() or Missing()

    def _exit(self) -> Exited | None:
        end = self._read(supervisor.EXIT)
        return None if end is None else _exited(end)

    def _started(self) -> float | None:
        child = self._read(supervisor.CHILD)
        return None if child is None else float(child["started"])

    def _read(self, name: str) -> dict[str, Any] | None:
        """Return the object in the file, None if there is no such file or it is damaged."""
        try:
            with open(self._file(name), encoding="utf-8") as file:
                value = json.load(file)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)


def _exited(end: dict[str, Any]) -> Exited:
    return Exited(
        code=end["code"],
        signal=end["signal"],
        started_at=_moment(end["started"]),
        finished_at=_moment(end["finished"]),
    )


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
