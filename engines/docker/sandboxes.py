"""Prepared network namespaces for runs, because creating one takes most of a container's start.

They are prepared only for runs that are known to come: the later tasks of a job whose run has just
started.

A sandbox is a container in the node's network whose only process waits. A run that joins the
sandbox's namespace has the sandbox's IP address, and the same packet filter applies to it. Each
sandbox is used by one run and removed after that run.
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

_JOINED = "container:"  # beginning of the network mode of a container that joins another one
# Seconds without a start before sandboxes are prepared or removed: starts of runs come first.
_QUIET_SECONDS = 1.0
# Seconds after a start of a job's run during which sandboxes are kept for its later runs: a task
# that takes longer hardly gains from a faster start of the next one.
_IDLE_SECONDS = 60.0
_PAUSE = 60.0  # seconds after a failure
_LOOK_INTERVAL = 10.0  # seconds between two looks for idle sandboxes
_CLOSE_TIMEOUT = 30.0  # seconds that closing waits for the thread
_PARALLEL_REMOVALS = 4

# Seconds that a daemon which shuts down waits before it kills a sandbox, whose program ignores
# SIGTERM. The wait can be short, as the run in the sandbox has ended before.
_STOP_TIMEOUT = 2


@dataclass(frozen=True)
class Sandbox:
    """A sandbox that no run uses yet."""

    network: str
    id: str


@dataclass(frozen=True)
class _Expectation:
    """The later runs of a job whose run has started."""

    runs: int
    until: float  # monotonic time after which they are not waited for any more


class Sandboxes:
    """Keeps a sandbox for each run that is known to come; a thread prepares and removes them."""

    def __init__(
        self,
        client: Connection,
        labels: Mapping[str, str],
        run_filters: Mapping[str, Any],
        limit: int,
        user: str,
        dns: list[str] | None,
    ) -> None:
        """``labels``: the labels of sandboxes, with the owner.

        ``run_filters``: select the runs that may use sandboxes. ``limit``: the most sandboxes that
        are kept; 0: none. ``user``, ``dns``: of sandboxes; ``dns`` None: the daemon's resolvers.
        """
        self._client = client
        self._labels = dict(labels)
        self._run_filters = run_filters
        self._user = user
        self._dns = dns
        self._condition = threading.Condition()
        self._ready: deque[Sandbox] = deque()
        self._unneeded: deque[str] = deque()  # ids of sandboxes to remove
        # Ids of sandboxes whose removal has failed. It is repeated after all other work, so that a
        # sandbox that cannot be removed does not keep others from being prepared.
        self._not_removed: deque[str] = deque()
        self._limit = limit
        self._expected: dict[str, _Expectation] = {}  # by the id of the job
        self._starting = 0  # number of runs that are being started at present
        self._quiet_at = 0.0  # earliest time to prepare or remove
        self._network = ""  # the network of the last start
        self._swept = False  # whether `_sweep` has looked for the sandboxes of an earlier process
        self._closed = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread unless it runs, no sandboxes are configured, or `close` was called.

        The thread removes the sandboxes of an earlier process, then prepares as many as are needed.
        """
        with self._condition:
            if self._thread is None and self._limit and not self._closed:
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
    def start(
        self,
        network: str,
        job: str = "",
        later_runs: int = 0,
    ) -> Iterator[str]:
        """Yield the id of a sandbox in a network, for the start of a run.

        The id is empty if no sandbox is ready, and for an empty ``network``. If the start fails,
        the sandbox is discarded. ``later_runs``: runs of the same job that are known to come.
        """
        self.begin()
        sandbox = ""
        with self._condition:
            self._starting += 1
            if network:
                self._expect(job, later_runs)
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
        """Remove a sandbox that no run uses any more: soon if there is a thread for it, else now.

        ``sandbox``: its id; empty: only the thread is woken, as a run has ended.
        """
        with self._condition:
            has_thread = self._thread is not None and not self._closed
            if has_thread and sandbox:
                self._unneeded.append(sandbox)
            self._condition.notify()
        if sandbox and not has_thread:
            self._remove(sandbox)

    def drain(self) -> None:
        """Remove all sandboxes that no run uses. Raises `EngineError`.

        Those that cannot be removed are tried again by the next call.
        """
        with self._condition:
            self._expected.clear()
            unused = [
                *self._unneeded,
                *self._not_removed,
                *(sandbox.id for sandbox in self._ready),
            ]
            self._unneeded.clear()
            self._not_removed.clear()
            self._ready.clear()
        with ThreadPoolExecutor(_PARALLEL_REMOVALS) as pool:
            removals = pool.map(self._remove_or_remember, unused)
            list(removals)  # reads the results, which raises the first error

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
        """Do the work of the thread until closed; pause after a failure."""
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
        """Remove the unused sandboxes; the next start of the gateway removes those that stay."""
        try:
            self.drain()
        except EngineError as error:
            log.warning("sandboxes are left until the gateway's next start: %s", error)

    def _wait_for_action(self) -> Callable[[], None] | None:
        """Wait until no run starts and there is something to do; return it, or None at the end."""
        with self._condition:
            while not self._closed:
                action = None
                wait = self._quiet_for()
                if wait == 0:
                    action = self._next()
                if action is not None:
                    return action
                self._condition.wait(wait or _LOOK_INTERVAL)
        return None

    def _quiet_for(self) -> float:
        """Return the seconds until sandboxes may be prepared or removed; 0: now.

        While a run starts, that time is not known, and `_PAUSE` is returned: the end of the start
        wakes the thread.
        """
        if self._starting:
            return _PAUSE
        return max(0.0, self._quiet_at - time.monotonic())

    def _next(self) -> Callable[[], None] | None:
        """Return the next action; None if there is nothing to do.

        Call it with the condition held.
        """
        if not self._swept:
            return self._sweep
        needed = self._expected_runs()
        if len(self._ready) > needed:
            self._unneeded.append(self._ready.popleft().id)
        if self._unneeded:
            return partial(self._remove_or_remember, self._unneeded.popleft())
        if self._network and len(self._ready) < needed:
            return partial(self.prepare, self._network)
        if self._not_removed:
            return partial(self._remove_or_remember, self._not_removed.popleft())
        return None

    def _expect(self, job: str, later_runs: int) -> None:
        """Note how many runs of a job are known to come. Call it with the condition held."""
        self._expected.pop(job, None)
        if later_runs:
            until = time.monotonic() + _IDLE_SECONDS
            self._expected[job] = _Expectation(later_runs, until)

    def _expected_runs(self) -> int:
        """Return how many sandboxes to keep ready: one for each expected run, up to the limit.

        Jobs without a start in the last `_IDLE_SECONDS` do not count any more. Call it with the
        condition held.
        """
        now = time.monotonic()
        self._expected = {
            job: expectation
            for job, expectation in self._expected.items()
            if expectation.until > now
        }
        runs = sum(expectation.runs for expectation in self._expected.values())
        return min(runs, self._limit)

    def _take_ready(self, network: str) -> str:
        """Return the id of a ready sandbox in a network; empty if there is none.

        Ready sandboxes in other networks are no longer needed. Call it with the condition held.
        """
        while self._ready:
            sandbox = self._ready.popleft()
            if sandbox.network == network:
                return sandbox.id
            self._unneeded.append(sandbox.id)
        return ""

    def _sweep(self) -> None:
        """Mark the unused sandboxes of an earlier process for removal. Raises `EngineError`."""
        sandbox_filter = {"label": f"{LABEL}={self._labels[LABEL]}"}
        with translated():
            api = self._client()
            runs = api.containers(
                all=True,
                filters=dict(self._run_filters),
            )
            sandboxes = api.containers(all=True, filters=sandbox_filter)
        used = {sandbox_of(run["HostConfig"]["NetworkMode"]) for run in runs}
        with self._condition:
            existing = {sandbox["Id"] for sandbox in sandboxes}
            self._unneeded.extend(existing - used)
            self._swept = True

    def _remove_or_remember(self, sandbox: str) -> None:
        """Remove a sandbox; note it for another try if that fails. Raises `EngineError`."""
        try:
            self._remove(sandbox)
        except EngineError:
            with self._condition:
                self._not_removed.append(sandbox)
            raise

    def _remove(self, sandbox: str) -> None:
        """Remove a sandbox, which may be gone. Raises `EngineError`."""
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
