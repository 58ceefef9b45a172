"""Scripted runs, for tests of what uses an engine. Passes the same contract suite as the real ones."""

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from engines.base import (
    CAPABILITIES,
    FIRST_SIGNAL_CODE,
    HOW_TO_HAVE_IT,
    KILLED,
    Capacity,
    CreateFailed,
    DiskUse,
    EngineDown,
    EngineError,
    Exited,
    ImageMetadata,
    ImageNotFound,
    Isolation,
    LaunchSpec,
    ListedRun,
    Missing,
    Probe,
    Running,
    Watch,
    belongs_to,
    check_digest,
    check_launch,
    signal_of,
)
from engines.logs import StreamingEngine
from engines.process.engine import this_machine
from engines.watch import Subscription

TERMINATED = 15


@dataclass(frozen=True)
class Script:
    """What a run does."""

    code: int | None = 0
    """the exit code; None: it runs until it is stopped, or ended by `MemoryEngine.finish`"""
    stdout: bytes = b""
    stderr: bytes = b""
    oom_killed: bool = False
    on_term: int | None = FIRST_SIGNAL_CODE + TERMINATED
    """the exit code when it is asked to end; None: it takes no notice and is killed"""
    refused: EngineError | None = None
    """raised by `launch` instead"""
    body: "Callable[[LaunchSpec, Inside], int] | None" = None
    """runs in a thread of its own and returns the exit code; one that raises ends with code 1"""


Image = Script | Callable[[LaunchSpec], Script]
"""A script, or what writes one for a run by its environment."""


class Inside:
    """What a script's body has at hand."""

    def __init__(self, run: "_Run") -> None:
        self._run = run
        self.asked_to_end = run.asked_to_end

    def say(self, text: bytes) -> None:
        """Write to stdout."""
        self._run.stdout += text


@dataclass
class _Run:
    spec: LaunchSpec
    script: Script
    probe: Probe
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    asked_to_end: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)


class MemoryWorld:
    """What outlives an engine object: its runs."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.runs: dict[str, _Run] = {}
        self.subscriptions: list[Subscription] = []
        self.down = False
        """while it is set, every call raises `EngineDown`"""

    def go_away(self) -> None:
        """Report to subscribers that the engine does not answer; it does again unless it is ``down``."""
        for subscription in list(self.subscriptions):
            subscription.report_away()


class MemoryEngine(StreamingEngine):
    """Scripts in threads; see `engines.base.Engine` for what each method promises."""

    kind = "memory"
    capabilities = CAPABILITIES

    @classmethod
    def making(cls, images: Mapping[str, Image], **more: Any) -> Callable[[Any, str], Self]:
        """Return what makes the engine of a node in this process from settings and installation."""
        return lambda settings, installation: cls(
            node=settings.node.id,
            installation=installation,
            images=images,
            **more,
        )

    def __init__(
        self,
        *,
        node: str,
        installation: str,
        images: Mapping[str, Image],
        world: MemoryWorld | None = None,
        capacity: Capacity | None = None,
    ) -> None:
        """``capacity``: what it claims to have; default this machine's."""
        self._node = node
        self._capacity = capacity or this_machine()
        self._installation = installation
        self._images = images
        self.world = MemoryWorld() if world is None else world
        self.launches: list[LaunchSpec] = []
        """every call of `launch`, repetitions included"""
        self.fetchable: dict[str, Callable[[Callable[[str], None]], Image]] = {}
        """images that can be pulled, each by a function that reports progress and returns its script"""
        self.addresses: dict[str, str] = {}
        """what `address` returns, by the run's name"""
        self.writings: dict[str, DiskUse] = {}
        """what `disk_use` returns, by the run's name"""
        self._watches: list[Watch] = []

    def check(self) -> None:
        if self.world.down:
            raise EngineDown("the engine does not answer")

    def capacity(self) -> Capacity:
        self.check()
        return self._capacity

    def image_digest(self, image: str) -> str:
        self._image(image)
        return f"memory:{image}"

    def image_facts(self, image: str) -> ImageMetadata:
        self._image(image)
        return ImageMetadata(self.image_digest(image))

    def ensure_image(self, image: str, on_progress: Callable[[str], None]) -> str:
        self.check()
        if image not in self._images and image in self.fetchable:
            self._images = {**self._images, image: self.fetchable[image](on_progress)}
        return self.image_digest(image)

    def registry_digest(self, image: str, seconds: float) -> str:
        self.check()
        return f"memory:{image}" if image in self.fetchable else self.image_digest(image)

    def isolation(self) -> Isolation:
        self.check()
        return Isolation(
            tasks=True,
            host=True,
            outside=True,
        )

    def launch(self, spec: LaunchSpec) -> None:
        self.check()
        check_launch(spec)
        image = self._image(spec.image)
        check_digest(spec, self.image_digest(spec.image))
        with self.world.lock:
            self.launches.append(spec)
            known = self.world.runs.get(spec.name)
            if known is not None:
                if not belongs_to(known.spec.labels, self._node, self._installation):
                    raise CreateFailed(f"the name {spec.name} is taken by another installation")
                return
            script = image(spec) if callable(image) else image
            if script.refused is not None:
                raise script.refused
            run = _Run(
                spec,
                script,
                Running(datetime.now(UTC)),
                bytearray(script.stdout),
                bytearray(script.stderr),
            )
            self.world.runs[spec.name] = run
            if script.body is not None:
                threading.Thread(
                    target=self._act,
                    args=(run, script.body),
                    name=f"memory-{spec.name}",
                    daemon=True,
                ).start()
            elif script.code is not None:
                self._end(run, script.code)

    def finish(self, name: str, code: int = 0) -> None:
        """End a run that goes on, as its program would. Raises KeyError for an unknown name."""
        with self.world.lock:
            self._end(self.world.runs[name], code)

    def cut_off(self, name: str) -> None:
        """Take a run that goes on off its network. Raises KeyError for an unknown name."""
        with self.world.lock:
            self.world.runs[name].probe = Running(datetime.now(UTC), cut_off=True)

    def probe(self, name: str) -> Probe:
        run = self._run(name)
        return Missing() if run is None else run.probe

    def address(self, name: str) -> str:
        return self.addresses.get(name, "")

    def disk_use(self, name: str, most: int) -> DiskUse:
        self.check()
        return self.writings.get(name, DiskUse())

    def stop(self, name: str, grace: float) -> None:
        run = self._run(name)
        if run is None or run.ended.is_set():
            return
        run.asked_to_end.set()
        if run.script.on_term is not None:
            if run.script.body is None:
                self._end(run, run.script.on_term)
            else:
                run.ended.wait(max(0.0, grace))
        self._end(run, FIRST_SIGNAL_CODE + KILLED)

    def remove(self, name: str) -> None:
        run = self._run(name)
        if run is not None:
            self._end(run, FIRST_SIGNAL_CODE + KILLED)
            with self.world.lock:
                self.world.runs.pop(name, None)

    def list(self) -> Sequence[ListedRun]:
        self.check()
        with self.world.lock:
            return [
                ListedRun(name, dict(run.spec.labels), run.probe)
                for name, run in self.world.runs.items()
                if belongs_to(run.spec.labels, self._node, self._installation)
            ]

    def watch(
        self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None
    ) -> Watch:
        mine = self._owns
        with self.world.lock:
            watch = Subscription(lambda name: on_exit(name) if mine(name) else None, on_away)
            self.world.subscriptions.append(watch)
            for name, run in self.world.runs.items():
                if run.ended.is_set():
                    watch.report(name)
        self._watches.append(watch)
        return watch

    def close(self) -> None:
        for watch in self._watches:
            watch.close()

    def _owns(self, name: str) -> bool:
        with self.world.lock:
            run = self.world.runs.get(name)
        return run is None or belongs_to(run.spec.labels, self._node, self._installation)

    def _image(self, image: str) -> Image:
        self.check()
        if image not in self._images:
            raise ImageNotFound(f"there is no image {image}", HOW_TO_HAVE_IT)
        return self._images[image]

    def _streams(self, name: str) -> Sequence[Sequence[bytes]]:
        run = self._run(name)
        return () if run is None else ([bytes(run.stdout)], [bytes(run.stderr)])

    def _run(self, name: str) -> _Run | None:
        self.check()
        with self.world.lock:
            run = self.world.runs.get(name)
        return (
            run
            if run is not None and belongs_to(run.spec.labels, self._node, self._installation)
            else None
        )

    def _act(self, run: _Run, body: Callable[[LaunchSpec, Inside], int]) -> None:
        try:
            code = body(run.spec, Inside(run))
        except Exception:
            run.stderr += traceback.format_exc().encode()
            code = 1
        self._end(run, code)

    def _end(self, run: _Run, code: int) -> None:
        """Record the exit; the first one counts."""
        with self.world.lock:
            if run.ended.is_set():
                return
            started = run.probe.started_at if isinstance(run.probe, Running) else None
            run.probe = Exited(
                code, signal_of(code), run.script.oom_killed, started, datetime.now(UTC)
            )
            run.ended.set()
            for subscription in self.world.subscriptions:
                subscription.report(run.spec.name)
