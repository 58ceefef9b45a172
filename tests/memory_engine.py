"""An engine whose runs are scripts in this process.

It passes the contract suite of the real engines.
"""

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from engines.base import (
    CAPABILITIES,
    FIRST_SIGNAL_CODE,
    KILLED,
    MISSING_IMAGE_REMEDY,
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
    """The behaviour of a run."""

    # the exit code; None: it runs until it is stopped, or ended by `MemoryEngine.finish`
    code: int | None = 0
    stdout: bytes = b""
    stderr: bytes = b""
    oom_killed: bool = False
    # the exit code after SIGTERM; None: it ignores SIGTERM and is killed
    on_term: int | None = FIRST_SIGNAL_CODE + TERMINATED
    # raised by `launch`
    refused: EngineError | None = None
    # called in a thread; returns the exit code (1 if it raises)
    body: "Callable[[LaunchSpec, Inside], int] | None" = None


# A script, or a function that writes one for a run.
Image = Script | Callable[[LaunchSpec], Script]


class Inside:
    """The container's side of a run, for the body of its script."""

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
    """The runs of an engine, which outlive the engine object."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.runs: dict[str, _Run] = {}
        self.subscriptions: list[Subscription] = []
        self.down = False  # True: every call raises `EngineDown`

    def go_away(self) -> None:
        """Report a lost connection to subscribers; the engine answers again unless it is
        ``down``.
        """
        for subscription in list(self.subscriptions):
            subscription.report_away()


class MemoryEngine(StreamingEngine):
    """Scripts in threads; see `engines.base.Engine` for what each method promises."""

    kind = "memory"
    capabilities = CAPABILITIES

    @classmethod
    def making(
        cls,
        images: Mapping[str, Image],
        **kwargs: Any,
    ) -> Callable[[Any, str], Self]:
        """Return a function that makes a node's engine from its settings and installation id.

        ``kwargs`` are further arguments of the class.
        """

        def make(settings: Any, installation: str) -> Self:
            return cls(
                node=settings.node.id,
                installation=installation,
                images=images,
                **kwargs,
            )

        return make

    def __init__(
        self,
        *,
        node: str,
        installation: str,
        images: Mapping[str, Image],
        world: MemoryWorld | None = None,
        capacity: Capacity | None = None,
    ) -> None:
        """``world``: existing runs; None: no runs. ``capacity`` None: this machine's."""
        self._node = node
        self._capacity = capacity or this_machine()
        self._installation = installation
        self.images = images
        self.world = MemoryWorld() if world is None else world
        # every call of `launch`, repetitions included
        self.launches: list[LaunchSpec] = []
        # images that can be pulled, each by a function that reports progress and returns its script
        self.fetchable: dict[str, Callable[[Callable[[str], None]], Image]] = {}
        # results of `address`, by the run's name
        self.addresses: dict[str, str] = {}
        # results of `disk_use`, by the run's name
        self.writings: dict[str, DiskUse] = {}
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

    def image_metadata(self, image: str) -> ImageMetadata:
        self._image(image)
        return ImageMetadata(self.image_digest(image))

    def ensure_image(
        self,
        image: str,
        on_progress: Callable[[str], None],
    ) -> str:
        self.check()
        if image not in self.images and image in self.fetchable:
            self.images = {**self.images, image: self.fetchable[image](on_progress)}
        return self.image_digest(image)

    def registry_digest(self, image: str, seconds: float) -> str:
        self.check()
        if image in self.fetchable:
            return f"memory:{image}"
        return self.image_digest(image)

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
            existing = self.world.runs.get(spec.name)
            if existing is not None:
                if not self._is_own(existing):
                    raise CreateFailed(f"the name {spec.name} is taken by another installation")
                return
            script = image
            if callable(image):
                script = image(spec)
            assert isinstance(script, Script)
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
            self._begin(run)

    def _begin(self, run: _Run) -> None:
        """Start a script's body, or end the run that its script ends immediately."""
        script = run.script
        if script.body is not None:
            thread = threading.Thread(
                target=self._act,
                args=(run, script.body),
                name=f"memory-{run.spec.name}",
                daemon=True,
            )
            thread.start()
        elif script.code is not None:
            self._end(run, script.code)

    def finish(self, name: str, code: int = 0) -> None:
        """End a run as its program would. Raises KeyError for an unknown name."""
        with self.world.lock:
            self._end(self.world.runs[name], code)

    def cut_off(self, name: str) -> None:
        """Disconnect a run from its network. Raises KeyError for an unknown name."""
        with self.world.lock:
            self.world.runs[name].probe = Running(
                datetime.now(UTC),
                cut_off=True,
            )

    def probe(self, name: str) -> Probe:
        run = self._run(name)
        if run is None:
            return Missing()
        return run.probe

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
        runs = []
        with self.world.lock:
            for name, run in self.world.runs.items():
                if self._is_own(run):
                    runs.append(ListedRun(name, dict(run.spec.labels), run.probe))
        return runs

    def watch(
        self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None
    ) -> Watch:
        def report(name: str) -> None:
            if self._owns(name):
                on_exit(name)

        with self.world.lock:
            watch = Subscription(report, on_away)
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
        """Return whether a run belongs to this installation, also if it was removed."""
        with self.world.lock:
            run = self.world.runs.get(name)
        return run is None or self._is_own(run)

    def _is_own(self, run: _Run) -> bool:
        return belongs_to(run.spec.labels, self._node, self._installation)

    def _image(self, image: str) -> Image:
        self.check()
        if image not in self.images:
            raise ImageNotFound(f"there is no image {image}", MISSING_IMAGE_REMEDY)
        return self.images[image]

    def _streams(self, name: str) -> Sequence[Sequence[bytes]]:
        run = self._run(name)
        if run is None:
            return ()
        return [bytes(run.stdout)], [bytes(run.stderr)]

    def _run(self, name: str) -> _Run | None:
        """Return a run of this installation; None if there is none of that name."""
        self.check()
        with self.world.lock:
            run = self.world.runs.get(name)
        if run is None or not self._is_own(run):
            return None
        return run

    def _act(
        self,
        run: _Run,
        body: Callable[[LaunchSpec, Inside], int],
    ) -> None:
        try:
            code = body(run.spec, Inside(run))
        except Exception:
            run.stderr += traceback.format_exc().encode()
            code = 1
        self._end(run, code)

    def _end(self, run: _Run, code: int) -> None:
        """Record the exit of a run and report it, unless the run has ended already."""
        with self.world.lock:
            if run.ended.is_set():
                return
            started = None
            if isinstance(run.probe, Running):
                started = run.probe.started_at
            run.probe = Exited(
                code, signal_of(code), run.script.oom_killed, started, datetime.now(UTC)
            )
            run.ended.set()
            for subscription in self.world.subscriptions:
                subscription.report(run.spec.name)
