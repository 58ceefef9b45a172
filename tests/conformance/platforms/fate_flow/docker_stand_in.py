"""A stand-in for the ``docker`` package inside FATE-Flow's server: containers are threads.

Every container reports SUCCESS to the callback of its environment and ends; no image is needed. The
names are those that FATE-Flow's manager of containers uses.
"""

import json
import threading
import time
import urllib.request
from collections.abc import Mapping
from typing import Any

_REPORT_TIMEOUT = 30.0  # seconds; the server answers its own container
# Seconds before each report. FATE-Flow ignores one that comes before it has recorded the start of
# the container, and those that come after the task's end.
_REPORT_PAUSES = (0.3, 1.0, 3.0, 10.0)
_containers: dict[str, "_Container"] = {}


class errors:
    """Errors of the package."""

    class NotFound(Exception):
        """No container has this name."""

    class APIError(Exception):
        """The daemon refuses a request."""


class _Container:
    """A container that succeeds."""

    def __init__(self, name: str, environment: Mapping[str, Any]) -> None:
        self.status = "running"
        self.attrs = {"State": {"ExitCode": 0}}
        self._name = name
        self._environment = environment
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        """Report the success several times, then end."""
        for pause in _REPORT_PAUSES:
            time.sleep(pause)
            self._report_success()
        self.status = "exited"

    def _report_success(self) -> None:
        """Report the success."""
        report = {
            "task_id": self._environment["config.task_id"],
            "role": self._environment["config.self_role"],
            "status": "SUCCESS",
        }
        request = urllib.request.Request(
            str(self._environment["system.callback"]),
            json.dumps(report).encode(),
            {"content-type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=_REPORT_TIMEOUT).close()

    def remove(self, force: bool) -> None:
        """Remove the container; FATE-Flow always forces it."""
        assert force
        _containers.pop(self._name, None)


class _Containers:
    """The containers of a daemon."""

    def run(
        self,
        image: str,
        command: Any,
        *,
        name: str,
        environment: Mapping[str, Any],
        **_: Any,
    ) -> None:
        """Start a container; its image and its command do not matter.

        Raises `errors.APIError` for a name in use, as Docker does.
        """
        if name in _containers:
            raise errors.APIError(f"{name} is in use")
        _containers[name] = _Container(name, environment)

    def get(self, name: str) -> _Container:
        """Return a container. Raises `errors.NotFound`."""
        if name not in _containers:
            raise errors.NotFound(name)
        return _containers[name]


class DockerClient:
    """A connection to a daemon that does not exist."""

    def __init__(self, base_url: str) -> None:
        self.containers = _Containers()
