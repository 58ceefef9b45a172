"""Several engines as one: a run starts in the engine that it names, and is looked up in all of them.

Only the engines know their runs, so a run that this object did not start is searched for in each engine. An engine
that does not respond hides its own runs and no others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
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

Result = TypeVar("Result")


class SeveralEngines:
    """A main engine and further ones, with the methods of `engines.base.Engine`.

    Capacity and pulls are those of the main engine.
    """

    def __init__(self, main: Engine, further: Mapping[str, Engine]) -> None:
        """``further``: the further engines by the names in `LaunchSpec.engine`."""
        self.main = main
        self.others = dict(further)
        self.kind = main.kind
        self.capabilities = main.capabilities
        for engine in self.others.values():
            self.capabilities &= engine.capabilities
        self._engine_by_run: dict[str, Engine] = {}  # as far as known

    def at(self, name: str) -> Engine:
        """Return an engine by its name, the main engine for an empty name. Raises `EngineDown` if unknown."""
        if not name:
            return self.main
        if name not in self.others:
            raise EngineDown(f"this node has no engine {name} any more")
        return self.others[name]

    def check(self) -> None:
        self.main.check()  # a further engine may be down

    def capacity(self) -> Capacity:
        return self.main.capacity()

    def image_digest(self, image: str) -> str:
        def digest_at(engine: Engine) -> str:
            return engine.image_digest(image)

        return self._first_with_image(digest_at)

    def image_facts(self, image: str) -> ImageMetadata:
        def metadata_at(engine: Engine) -> ImageMetadata:
            return engine.image_facts(image)

        return self._first_with_image(metadata_at)

    def ensure_image(self, image: str, on_progress: Callable[[str], None]) -> str:
        return self.main.ensure_image(image, on_progress)

    def registry_digest(self, image: str, seconds: float) -> str:
        return self.main.registry_digest(image, seconds)

    def isolation(self) -> Isolation:
        """Return the isolation that holds in every engine; each gap names its engine."""
        total = self.main.isolation()
        for name, engine in self.others.items():
            try:
                isolation = engine.isolation()
            except EngineError as error:
                total = _with_gaps(total, name, [f"unknown: {error}"])
                continue
            total = Isolation(
                tasks=total.tasks and isolation.tasks,
                host=total.host and isolation.host,
                outside=total.outside and isolation.outside,
                gaps=_with_gaps(total, name, isolation.gaps).gaps,
            )
        return total

    def launch(self, spec: LaunchSpec) -> None:
        engine = self.at(spec.engine)
        engine.launch(spec)
        self._engine_by_run[spec.name] = engine

    def probe(self, name: str) -> Probe:
        return self._engine_of(name).probe(name)

    def address(self, name: str) -> str:
        """Return the address of a run at the main engine.

        An address at a further engine may be that of another run at the main one.
        """
        engine = self._engine_of(name)
        if engine is not self.main:
            return ""
        return engine.address(name)

    def disk_use(self, name: str, max_files: int) -> DiskUse:
        return self._engine_of(name).disk_use(name, max_files)

    def stop(self, name: str, grace: float) -> None:
        self._engine_of(name).stop(name, grace)

    def logs(self, name: str, tail: int | None = None) -> Logs:
        return self._engine_of(name).logs(name, tail)

    def save_logs(self, name: str, directory: Path) -> None:
        self._engine_of(name).save_logs(name, directory)

    def remove(self, name: str) -> None:
        self._engine_of(name).remove(name)
        engine = self._engine_by_run.pop(name, None)
        if engine is None:
            # It may have been created without being started, in any engine; the main one was just asked.
            for further_engine in self.others.values():
                further_engine.remove(name)

    def list(self) -> Sequence[ListedRun]:
        runs = list(self.main.list())
        for engine in self.others.values():
            with suppress(EngineDown):
                runs.extend(engine.list())
        return runs

    def watch(
        self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None
    ) -> Watch:
        """Watch all engines; ``on_away`` is called with the name of the engine that does not respond."""
        watches = ExitStack()
        watches.callback(self.main.watch(on_exit, on_away).close)
        for name, engine in self.others.items():
            on_engine_away = None
            if on_away is not None:
                on_engine_away = _always_with(name, on_away)
            watches.callback(engine.watch(on_exit, on_engine_away).close)
        return watches

    def close(self) -> None:
        for engine in self._all():
            engine.close()

    def _first_with_image(self, look: Callable[[Engine], Result]) -> Result:
        """Return the result of the first engine that has an image. Raises the main engine's error."""
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

    def _engine_of(self, name: str) -> Engine:
        """Return the engine of a run, the main engine if none has it.

        Raises `EngineDown` if the run is in none of the engines that respond, and one does not.
        """
        if name in self._engine_by_run:
            return self._engine_by_run[name]
        first_error: EngineDown | None = None
        for engine in self._all():
            try:
                probe = engine.probe(name)
            except EngineDown as error:
                first_error = first_error or error
                continue
            if not isinstance(probe, Missing):
                self._engine_by_run[name] = engine
                return engine
        if first_error is not None:
            raise first_error
        return self.main


def _with_gaps(isolation: Isolation, engine: str, gaps: Sequence[str]) -> Isolation:
    """Return the isolation with the gaps at a further engine."""
    gaps_there = [f"at {engine}: {gap}" for gap in gaps]
    return replace(isolation, gaps=(*isolation.gaps, *gaps_there))


def _always_with(engine: str, on_away: Callable[[str], None]) -> Callable[[str], None]:
    """Return a callback that reports the engine by its name in `LaunchSpec.engine`."""

    def report(_: str) -> None:
        on_away(engine)

    return report
