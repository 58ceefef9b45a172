"""Prepared network namespaces for runs, because creating one takes most of a container's start.

A sandbox is a container in the node's network whose only process waits. A run that joins its namespace has its
address and is bound by the same rules. Each sandbox is used by one run and removed after it.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any

from docker.errors import APIError
from docker.types import LogConfig

from engines.base import EngineError
from engines.docker import sandbox_image
from engines.docker.client import Connection, remove, translated

log = logging.getLogger(__name__)

# Label with the owner. A sandbox lacks the labels of a run, so that it is never mistaken for one.
LABEL = "bfia.sandbox"
MEMORY = 8 * 1024 * 1024  # bytes that a sandbox takes, nearly all of it in the daemon

_JOINED = "container:"
_QUIET_SECONDS = (
    1.0  # without a start before sandboxes are prepared or removed: starts need the machine more
)
_IDLE_SECONDS = 600.0  # for which a start makes another one likely
_PAUSE = 60.0  # seconds after a failure, and between two looks for idle sandboxes
_CLOSE_TIMEOUT = 30.0  # seconds
_PARALLEL_REMOVALS = 4

# Seconds after which the daemon, when it ends, kills a sandbox, whose program ignores SIGTERM. Its run ends before.
_STOP_TIMEOUT = 2


@dataclass(frozen=True)
class Sandbox:
    """A sandbox that no run uses yet."""

    network: str
    id: str


class Sandboxes:
    """Keeps as many sandboxes as runs were started lately; a thread prepares and removes them."""

    def __init__(
        self,
        client: Connection,
        labels: Mapping[str, str],
        run_filters: Mapping[str, Any],
        limit: int,
        user: str,
        dns: list[str] | None,
    ) -> None:
        """``labels``: of sandboxes, with the owner; ``run_filters``: select the runs that may use sandboxes.

        ``limit``: the most that are kept; 0: none.
        """
        self._client = client
        self._labels = dict(labels)
        self._run_filters = run_filters
        self._user = user
        self._dns = dns
        self._condition = threading.Condition()
        self._ready: deque[Sandbox] = deque()
        self._unneeded: deque[str] = deque()  # ids of sandboxes to remove
        self._starts: deque[float] = deque(maxlen=limit)  # times of the last starts of runs
        self._starting = 0  # runs at present
        self._quiet_at = 0.0  # earliest time to prepare or remove
        self._network = ""  # of the last start
        self._swept = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Remove the sandboxes of an earlier process, then prepare as many as are needed, in a thread."""
        with self._condition:
            if self._thread is None and self._starts.maxlen and not self._closed:
                self._thread = threading.Thread(
                    target=self._run,
                    name="engine-sandboxes",
                    daemon=True,
                )
                self._thread.start()

    def prepare(self, network: str) -> None:
        """Prepare a sandbox in a network. Raises `EngineError`."""
        with translated():
            api = self._client()
            host_config = api.create_host_config(
                network_mode=network,
                cap_drop=["ALL"],
                security_opt=["no-new-privileges:true"],
                read_only=True,
                dns=self._dns,
                log_config=LogConfig(type="none"),
            )
            container = api.create_container(
                sandbox_image.ensure_image(api),
                name=f"{sandbox_image.REPOSITORY}-{token_hex(6)}",
                user=self._user,
                labels=self._labels,
                host_config=host_config,
                stop_timeout=_STOP_TIMEOUT,
            )
            try:
                api.start(container["Id"])
            except APIError:
                self._remove(container["Id"])
                raise
        with self._condition:
            self._ready.append(Sandbox(network, container["Id"]))

    @contextmanager
    def start(self, network: str) -> Iterator[str]:
        """Give a sandbox in a network for the start of a run.

        Empty if none is ready, or for an empty network. If the start fails, the sandbox is discarded.
        """
        self.begin()
        sandbox = ""
        with self._condition:
            self._starting += 1
            if network:
                self._starts.append(time.monotonic())
                self._network = network
                sandbox = self._take_ready(network)
        try:
            yield sandbox
        except BaseException:
            self.discard(sandbox)
            raise
        finally:
            with self._condition:
                self._starting -= 1
                self._quiet_at = time.monotonic() + _QUIET_SECONDS
                self._condition.notify()

    def discard(self, sandbox: str) -> None:
        """Remove a sandbox that no run uses any more, soon."""
        with self._condition:
            has_thread = self._thread is not None and not self._closed
            if has_thread:
                if sandbox:
                    self._unneeded.append(sandbox)
                self._condition.notify()
        if sandbox and not has_thread:
            self._remove(sandbox)

    def drain(self) -> None:
        """Remove all sandboxes that no run uses. Raises `EngineError`."""
        with self._condition:
            self._starts.clear()
            unused = [*self._unneeded, *(sandbox.id for sandbox in self._ready)]
            self._unneeded.clear()
            self._ready.clear()
        with ThreadPoolExecutor(_PARALLEL_REMOVALS) as pool:
            list(pool.map(self._remove, unused))

    def close(self) -> None:
        """Remove all sandboxes that no run uses, and prepare no more."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT)
        else:
            self._end()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while True:
            action = self._wait_for_action()
            if action is None:
                break
            try:
                action()
            except (EngineError, OSError) as error:
                log.warning(
                    "no sandbox for containers is prepared, which only costs them time: %s", error
                )
                with self._condition:
                    self._quiet_at = time.monotonic() + _PAUSE
        self._end()

    def _end(self) -> None:
        try:
            self.drain()
        except EngineError as error:
            log.warning("sandboxes are left until the gateway's next start: %s", error)

    def _wait_for_action(self) -> Callable[[], None] | None:
        """Return the next action, once no run starts; None at the end."""
        with self._condition:
            while not self._closed:
                wait = self._quiet_at - time.monotonic()
                is_quiet = not self._starting and wait <= 0
                if is_quiet:
                    action = self._next()
                    if action is not None:
                        return action
                if self._starting or wait <= 0:
                    wait = _PAUSE
                self._condition.wait(wait)
        return None

    def _next(self) -> Callable[[], None] | None:
        """Return the next action; None if there is nothing to do. Call it with the condition held."""
        if not self._swept:
            return self._sweep
        now = time.monotonic()
        recent_starts = [start for start in self._starts if now - start < _IDLE_SECONDS]
        if len(self._ready) > len(recent_starts):
            self._unneeded.append(self._ready.popleft().id)
        if self._unneeded:
            return partial(self._remove, self._unneeded.popleft())
        if self._network and len(self._ready) < len(recent_starts):
            return partial(self.prepare, self._network)
        return None

    def _take_ready(self, network: str) -> str:
        """Return a ready sandbox in a network, empty without; sandboxes in other networks are not needed."""
        while self._ready:
            sandbox = self._ready.popleft()
            if sandbox.network == network:
                return sandbox.id
            self._unneeded.append(sandbox.id)
        return ""

    def _sweep(self) -> None:
        """Find the sandboxes of an earlier process that no run uses."""
        with translated():
            runs = self._client().containers(all=True, filters=dict(self._run_filters))
            sandboxes = self._client().containers(
                all=True, filters={"label": f"{LABEL}={self._labels[LABEL]}"}
            )
        used = {sandbox_of(run["HostConfig"]["NetworkMode"]) for run in runs}
        with self._condition:
            for sandbox in sandboxes:
                if sandbox["Id"] not in used:
                    self._unneeded.append(sandbox["Id"])
            self._swept = True

    def _remove(self, sandbox: str) -> None:
        with translated():
            remove(self._client(), sandbox)


def network_mode_of(sandbox: str) -> str:
    """Return the network mode of a container in a sandbox."""
    return _JOINED + sandbox


def sandbox_of(network_mode: str) -> str:
    """Return the sandbox of a container with this network mode; empty if it is in none."""
    if not network_mode.startswith(_JOINED):
        return ""
    return network_mode.removeprefix(_JOINED)
