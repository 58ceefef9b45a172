"""Several engines as one: a run is started in the engine that it names, and found again wherever it is.

Only the engines know their runs, so a run that this object did not start is searched for in each of them. An
engine that is away hides its own runs and no others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from engines.base import (
    Capacity,
    DiskUse,
    Engine,
    EngineDown,
    EngineError,
    ImageMetadata,
    ImageNotFound,
    Isolation,
    LaunchSpec,
    ListedRun,
    Logs,
    Missing,
    Probe,
    Watch,
)

X = TypeVar("X")


class SeveralEngines:
    """Several engines, of which ``main`` stands for the whole; see `engines.base.Engine` for the methods."""

    def __init__(self, main: Engine, others: Mapping[str, Engine]) -> None:
        """``others``: the further engines by the names under which runs request them."""
        self.main = main
        self.kind = main.kind
        self.capabilities = main.capabilities.intersection(
            *(e.capabilities for e in others.values())
        )
        self.others = dict(others)
        self._place: dict[str, Engine] = {}
        """the engine of each run, as far as known"""

    def at(self, name: str) -> Engine:
        """Return the engine of that name, without one the main engine. Raises `EngineDown` for an unknown name."""
        if not name:
            return self.main
        if name not in self.others:
            raise EngineDown(f"this node has no engine {name} any more")
        return self.others[name]

    def check(self) -> None:
        self.main.check()  # one of the others may be away

    def capacity(self) -> Capacity:
        return self.main.capacity()

    def image_digest(self, image: str) -> str:
        return self._first(lambda engine: engine.image_digest(image))

    def image_facts(self, image: str) -> ImageMetadata:
        return self._first(lambda engine: engine.image_facts(image))

    def ensure_image(self, image: str, on_progress: Callable[[str], None]) -> str:
        return self.main.ensure_image(image, on_progress)

    def registry_digest(self, image: str, seconds: float) -> str:
        return self.main.registry_digest(image, seconds)

    def isolation(self) -> Isolation:
        """Return what holds in every engine; the gaps say in which one they are."""
        whole = self.main.isolation()
        for name, engine in self.others.items():
            try:
                one = engine.isolation()
            except EngineError as error:
                one = Isolation(whole.tasks, whole.host, whole.outside, (f"unknown: {error}",))
            gaps = (*whole.gaps, *(f"at {name}: {gap}" for gap in one.gaps))
            whole = Isolation(
                whole.tasks and one.tasks,
                whole.host and one.host,
                whole.outside and one.outside,
                gaps,
            )
        return whole

    def launch(self, spec: LaunchSpec) -> None:
        engine = self.at(spec.engine)
        engine.launch(spec)
        self._place[spec.name] = engine

    def probe(self, name: str) -> Probe:
        return self._of(name).probe(name)

    def address(self, name: str) -> str:
        """Return the address of a run at the main engine: elsewhere it may be that of another run here."""
        return self.main.address(name) if self._of(name) is self.main else ""

    def disk_use(self, name: str, most: int) -> DiskUse:
        return self._of(name).disk_use(name, most)

    def stop(self, name: str, grace: float) -> None:
        self._of(name).stop(name, grace)

    def logs(self, name: str, tail: int | None = None) -> Logs:
        return self._of(name).logs(name, tail)

    def save_logs(self, name: str, directory: Path) -> None:
        self._of(name).save_logs(name, directory)

    def remove(self, name: str) -> None:
        self._of(name).remove(name)
        if self._place.pop(name, None) is None:  # created and never started: in any of them
            for engine in self.others.values():
                engine.remove(name)

    def list(self) -> Sequence[ListedRun]:
        found = [*self.main.list()]
        for engine in self.others.values():
            with suppress(EngineDown):
                found += engine.list()
        return found

    def watch(
        self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None
    ) -> Watch:
        """Watch all engines; ``on_away`` is called with the name of the one that is away."""
        watches = ExitStack()
        watches.callback(self.main.watch(on_exit, on_away).close)
        for name, engine in self.others.items():
            away = None if on_away is None else lambda _, name=name: on_away(name)
            watches.callback(engine.watch(on_exit, away).close)
        return watches

    def close(self) -> None:
        for engine in self._all():
            engine.close()

    def _first(self, look: Callable[[Engine], X]) -> X:
        """Return the result of the first engine that has an image. Raises what the main engine raises."""
        try:
            return look(self.main)
        except ImageNotFound as error:
            for engine in self.others.values():
                with suppress(EngineError):
                    return look(engine)
            raise error

    def _all(self) -> Iterator[Engine]:
        yield self.main
        yield from self.others.values()

    def _of(self, name: str) -> Engine:
        """Return the engine that has the run, the main one if none has. Raises `EngineDown` if one is away."""
        if (known := self._place.get(name)) is not None:
            return known
        away: EngineDown | None = None
        for engine in self._all():
            try:
                if not isinstance(engine.probe(name), Missing):
                    self._place[name] = engine
                    return engine
            except EngineDown as error:
                away = away or error
        if away is not None:
            raise away
        return self.main
