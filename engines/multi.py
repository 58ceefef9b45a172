"""Several engines as one.

A run starts in the engine that it names, and is looked up in all of them: only the engines know
their runs. An engine that does not respond hides its own runs and no others.
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

    def __init__(
        self,
        main: Engine,
        further: Mapping[str, Engine],
    ) -> None:
        """``further``: the further engines by the names in `LaunchSpec.engine`."""
        self.main = main
        self.further = dict(further)
        self.kind = main.kind
        self.capabilities = main.capabilities
        for engine in self.further.values():
            self.capabilities &= engine.capabilities
        self._engine_by_run: dict[str, Engine] = {}  # only the runs that were launched or found

    def at(self, name: str) -> Engine:
        """Return an engine by its name in `LaunchSpec.engine`; the main engine for an empty name.

        Raises `EngineDown` if the node has no engine of this name.
        """
        if not name:
            return self.main
        if name not in self.further:
            raise EngineDown(f"this node has no engine {name} any more")
        return self.further[name]

    def check(self) -> None:
        """Check only the main engine: a further engine may be down."""
        self.main.check()

    def capacity(self) -> Capacity:
        """Return the capacity of the main engine."""
        return self.main.capacity()

    def image_digest(self, image: str) -> str:
        """Return the digest of an image in the first engine that has it."""

        def digest_at(engine: Engine) -> str:
            return engine.image_digest(image)

        return self._first_with_image(digest_at)

    def image_metadata(self, image: str) -> ImageMetadata:
        """Return the metadata of an image in the first engine that has it."""

        def metadata_at(engine: Engine) -> ImageMetadata:
            return engine.image_metadata(image)

        return self._first_with_image(metadata_at)

    def ensure_image(
        self,
        image: str,
        on_progress: Callable[[str], None],
    ) -> str:
        """Pull an image into the main engine; further engines get theirs from their admins."""
        return self.main.ensure_image(image, on_progress)

    def registry_digest(self, image: str, seconds: float) -> str:
        """Ask the registry through the main engine."""
        return self.main.registry_digest(image, seconds)

    def isolation(self) -> Isolation:
        """Return the isolation that holds in every engine; each gap names its engine.

        A further engine whose isolation cannot be checked adds a gap and changes nothing else.
        """
        total = self.main.isolation()
        for name, engine in self.further.items():
            try:
                isolation = engine.isolation()
            except EngineError as error:
                total = _with_gaps(total, name, [f"unknown: {error}"])
            else:
                total = _common_isolation(total, name, isolation)
        return total

    def launch(self, spec: LaunchSpec) -> None:
        """Start a run in the engine that its launch names."""
        engine = self.at(spec.engine)
        engine.launch(spec)
        self._engine_by_run[spec.name] = engine

    def probe(self, name: str) -> Probe:
        """Ask the run's engine."""
        return self._engine_of(name).probe(name)

    def address(self, name: str) -> str:
        """Return the IP address of a run at the main engine; empty for a run at a further engine.

        A run at a further engine may have the same IP address as another run at the main engine.
        """
        engine = self._engine_of(name)
        if engine is not self.main:
            return ""
        return engine.address(name)

    def disk_use(self, name: str, max_files: int) -> DiskUse:
        """Ask the run's engine."""
        return self._engine_of(name).disk_use(name, max_files)

    def stop(self, name: str, grace: float) -> None:
        """Have the run's engine stop the run."""
        self._engine_of(name).stop(name, grace)

    def logs(self, name: str, tail: int | None = None) -> Logs:
        """Ask the run's engine."""
        return self._engine_of(name).logs(name, tail)

    def save_logs(self, name: str, directory: Path) -> None:
        """Have the run's engine save the logs."""
        self._engine_of(name).save_logs(name, directory)

    def remove(self, name: str) -> None:
        """Remove a run, also one that was created and never started.

        No probe shows such a run, so it is removed from every engine that may have it.
        """
        self._engine_of(name).remove(name)
        engine = self._engine_by_run.pop(name, None)
        if engine is None:
            # No engine knew the run, so the removal above was requested from the main engine.
            for further_engine in self.further.values():
                further_engine.remove(name)

    def list(self) -> Sequence[ListedRun]:
        """Return the runs of all engines; a further engine that does not respond is skipped."""
        runs = list(self.main.list())
        for engine in self.further.values():
            with suppress(EngineDown):
                runs.extend(engine.list())
        return runs

    def watch(
        self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None
    ) -> Watch:
        """Watch all engines.

        ``on_away`` is called with the name of the engine that does not respond; empty: the main
        engine.
        """
        with ExitStack() as watches:
            watches.callback(self.main.watch(on_exit, on_away).close)
            for name, engine in self.further.items():
                on_engine_away = _reporting(name, on_away)
                watches.callback(engine.watch(on_exit, on_engine_away).close)
            # Without an error the watches stay open: a stack is a `Watch` by its method `close`.
            return watches.pop_all()

    def close(self) -> None:
        """Close all engines."""
        for engine in self._all():
            engine.close()

    def _first_with_image(self, look: Callable[[Engine], Result]) -> Result:
        """Return the result of ``look(engine)`` for the first engine that has an image.

        The further engines' errors are ignored: if none of them has the image, the main engine's
        `ImageNotFound` is raised.
        """
        try:
            return look(self.main)
        except ImageNotFound as error:
            for engine in self.further.values():
                with suppress(EngineError):
                    return look(engine)
            raise error

    def _all(self) -> Iterator[Engine]:
        """Yield the main engine, then the further ones."""
        yield self.main
        yield from self.further.values()

    def _engine_of(self, name: str) -> Engine:
        """Return the engine of a run, the main engine if none has the run.

        Raises `EngineDown` if no engine that responds has the run, and another does not respond.
        """
        if name in self._engine_by_run:
            return self._engine_by_run[name]
        errors: list[EngineDown] = []
        for engine in self._all():
            try:
                probe = engine.probe(name)
            except EngineDown as error:
                errors.append(error)
                continue
            if not isinstance(probe, Missing):
                self._engine_by_run[name] = engine
                return engine
        if errors:
            raise errors[0]
        return self.main


def _common_isolation(total: Isolation, engine: str, isolation: Isolation) -> Isolation:
    """Return what ``total`` and a further engine both isolate, with the gaps of both."""
    common = Isolation(
        tasks=total.tasks and isolation.tasks,
        host=total.host and isolation.host,
        outside=total.outside and isolation.outside,
        gaps=total.gaps,
    )
    return _with_gaps(common, engine, isolation.gaps)


def _with_gaps(
    isolation: Isolation,
    engine: str,
    gaps: Sequence[str],
) -> Isolation:
    """Return the isolation with further gaps, which are at the named engine."""
    gaps_of_engine = [f"at {engine}: {gap}" for gap in gaps]
    return replace(isolation, gaps=(*isolation.gaps, *gaps_of_engine))


def _reporting(
    engine: str,
    on_away: Callable[[str], None] | None,
) -> Callable[[str], None] | None:
    """Return a callback that passes the engine's name, as in `LaunchSpec.engine`, to ``on_away``.

    None if ``on_away`` is None.
    """
    if on_away is None:
        return None

    def report(_: str) -> None:  # an engine reports itself under an empty name
        on_away(engine)

    return report
