"""Prepared network namespaces for runs, because making one takes most of a container's start.

A sandbox is a container in the node's network whose only process waits. A run that joins its namespace has its
address and is bound by the same rules. Each is used by one run and removed after it.
"""

import io
import logging
import struct
import tarfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from secrets import token_hex
from typing import Any

from docker.errors import APIError, ImageNotFound
from docker.types import LogConfig

from engines.base import EngineError
from engines.docker.client import Connection, remove, translated

log = logging.getLogger(__name__)

LABEL = "bfia.sandbox"
"""label that holds the owner; a sandbox lacks the labels of a run, so that it is never taken for one"""
MEMORY = 8 * 1024 * 1024
"""bytes that one takes, nearly all of it the daemon's"""
_JOINED = "container:"
_IMAGE, _TAG = "bfia-sandbox", "1"
_QUIET = 1.0
"""seconds without a start before anything is prepared or removed: what starts needs the machine more"""
_IDLE = 600.0
"""seconds for which a start makes another one likely"""
_PAUSE = 60.0
"""seconds after a failure, and between two looks for idle ones"""
_STOP_TIMEOUT = 2
"""seconds by which the daemon, when it ends, ends it after the run in it: the program ignores its SIGTERM"""
_CLOSE_TIMEOUT = 30.0
_AT_ONCE = 4

_WAITS = {
    "amd64": (62, bytes.fromhex("b822000000 0f05 ebf7")),  # pause(), again and again
    "arm64": (
        183,
        bytes.fromhex("000080d2 010080d2 020080d2 030080d2 280980d2 010000d4 faffff17"),
    ),  # ppoll()
}
"""the machine's number in ELF files, and a program for it, by the daemon's architecture"""


class Sandboxes:
    """Keeps as many as runs were started lately; a thread of its own prepares and removes them."""

    def __init__(
        self,
        client: Connection,
        labels: Mapping[str, str],
        runs: Mapping[str, Any],
        most: int,
        user: str,
        dns: list[str] | None,
    ) -> None:
        """``labels``: its own, with the owner; ``runs``: how the daemon finds the runs that may use one.

        ``most`` are kept, 0: none.
        """
        self._client = client
        self._labels = dict(labels)
        self._runs = runs
        self._user = user
        self._dns = dns
        self._condition = threading.Condition()
        self._ready: deque[tuple[str, str]] = deque()
        """network and sandbox"""
        self._left: deque[str] = deque()
        """those to remove"""
        self._starts: deque[float] = deque(maxlen=most)
        self._starting = 0
        self._quiet_at = 0.0
        self._network = ""
        self._swept = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Remove those that an earlier process left, then prepare as many as are needed."""
        with self._condition:
            if self._thread is None and self._starts.maxlen and not self._closed:
                self._thread = threading.Thread(
                    target=self._run,
                    name="engine-sandboxes",
                    daemon=True,
                )
                self._thread.start()

    def prepare(self, network: str) -> None:
        """Prepare one in that network. Raises `EngineError`."""
        with translated():
            api = self._client()
            host = api.create_host_config(
                network_mode=network,
                cap_drop=["ALL"],
                security_opt=["no-new-privileges:true"],
                read_only=True,
                dns=self._dns,
                log_config=LogConfig(type="none"),
            )
            made = api.create_container(
                self._image(),
                name=f"{_IMAGE}-{token_hex(6)}",
                user=self._user,
                labels=self._labels,
                host_config=host,
                stop_timeout=_STOP_TIMEOUT,
            )
            try:
                api.start(made["Id"])
            except APIError:
                self._remove(made["Id"])
                raise
        with self._condition:
            self._ready.append((network, made["Id"]))

    @contextmanager
    def start(self, network: str) -> Iterator[str]:
        """Give one in that network for the start of a run, empty if none is ready or without a network."""
        self.begin()
        found = ""
        with self._condition:
            self._starting += 1
            if network:
                self._starts.append(time.monotonic())
                self._network = network
            while network and self._ready and not found:
                there, sandbox = self._ready.popleft()
                if there == network:
                    found = sandbox
                else:
                    self._left.append(sandbox)
        try:
            yield found
        except BaseException:
            self.discard(found)
            raise
        finally:
            with self._condition:
                self._starting -= 1
                self._quiet_at = time.monotonic() + _QUIET
                self._condition.notify()

    def discard(self, sandbox: str) -> None:
        """Remove one that no run uses any more, soon."""
        with self._condition:
            if later := self._thread is not None and not self._closed:
                self._left += [sandbox] if sandbox else []
                self._condition.notify()
        if sandbox and not later:
            self._remove(sandbox)

    def drain(self) -> None:
        """Remove all that no run uses."""
        with self._condition:
            self._starts.clear()
            left = [*self._left, *(sandbox for _, sandbox in self._ready)]
            self._left.clear()
            self._ready.clear()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self._remove, left))

    def close(self) -> None:
        """Remove all that no run uses, and prepare no more."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT)
        else:
            self._end()

    def _run(self) -> None:
        while (due := self._due()) is not None:
            try:
                due()
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

    def _due(self) -> Callable[[], None] | None:
        """Return what is to be done, once nothing starts; None at the end."""
        with self._condition:
            while not self._closed:
                rest = self._quiet_at - time.monotonic()
                if not self._starting and rest <= 0 and (due := self._next()) is not None:
                    return due
                self._condition.wait(_PAUSE if self._starting or rest <= 0 else rest)
        return None

    def _next(self) -> Callable[[], None] | None:
        if not self._swept:
            return self._sweep
        likely = sum(time.monotonic() - start < _IDLE for start in self._starts)
        if len(self._ready) > likely:
            self._left.append(self._ready.popleft()[1])
        if self._left:
            return partial(self._remove, self._left.popleft())
        wanted = len(self._ready) < likely and self._network
        return partial(self.prepare, self._network) if wanted else None

    def _sweep(self) -> None:
        with translated():
            runs = self._client().containers(all=True, filters=dict(self._runs))
            found = self._client().containers(
                all=True, filters={"label": f"{LABEL}={self._labels[LABEL]}"}
            )
        used = {sandbox_of(run["HostConfig"]["NetworkMode"]) for run in runs}
        with self._condition:
            self._left += (c["Id"] for c in found if c["Id"] not in used)
            self._swept = True

    def _image(self) -> str:
        """Return the sandboxes' image, which is made here rather than fetched."""
        api = self._client()
        try:
            api.inspect_image(f"{_IMAGE}:{_TAG}")  # type: ignore[no-untyped-call]
            return f"{_IMAGE}:{_TAG}"
        except ImageNotFound:
            architecture = api.version()["Arch"]
        if architecture not in _WAITS:
            raise EngineError(f"sandboxes are not available for the architecture {architecture}")
        entry = 'ENTRYPOINT ["/wait"]'
        api.import_image_from_data(
            archive(architecture),
            repository=_IMAGE,
            tag=_TAG,
            changes=[entry],
        )
        return f"{_IMAGE}:{_TAG}"

    def _remove(self, sandbox: str) -> None:
        with translated():
            remove(self._client(), sandbox)


def joined(sandbox: str) -> str:
    """Return the network mode of a container in a sandbox."""
    return _JOINED + sandbox


def sandbox_of(network_mode: str) -> str:
    """Return the sandbox that a container with this network mode is in; empty if in none."""
    return network_mode.removeprefix(_JOINED) if network_mode.startswith(_JOINED) else ""


def archive(architecture: str) -> bytes:
    """Return the files of the sandboxes' image: a program that waits."""
    program = tarfile.TarInfo("wait")
    content = _elf(*_WAITS[architecture])
    program.mode, program.size = 0o755, len(content)
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w") as files:
            files.addfile(program, io.BytesIO(content))
        return buffer.getvalue()


_BASE, _HEADS = 0x400000, 64 + 56
"""where the program is loaded, and the size of the two headers before it"""


def _elf(machine: int, code: bytes) -> bytes:
    """Return a static 64-bit program of one segment."""
    size = _HEADS + len(code)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    head = struct.pack(
        "<HHIQQQIHHHHHH", 2, machine, 1, _BASE + _HEADS, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    return (
        ident + head + struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x10000) + code
    )
