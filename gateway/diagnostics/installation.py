"""The node that ``doctor`` examines, and the parts that its checks share."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from engines.base import (
    Engine,
    EngineError,
)
from gateway.config.schema import Settings
from gateway.domain.problems import Problem
from gateway.errors import GatewayError
from gateway.language.catalogue import ENGLISH, reason_of
from gateway.runtime import trials
from gateway.runtime.trials import Step
from gateway.store.database import schema_revisions
from gateway.store.store import Store
from route_table.live import LiveRoutes


@dataclass
class Installation:
    """The node under examination."""

    settings: Settings
    config: Path | None  # the settings' file
    store: Store
    engine: Engine

    @cached_property
    def revisions(self) -> tuple[str | None, str]:
        """The schema's revision in the database, and this version's. Raises `GatewayError`."""
        return schema_revisions(self.settings.database.url)

    @cached_property
    def database_up(self) -> bool:
        """Whether the database responds."""
        try:
            return bool(self.revisions)
        except GatewayError:
            return False

    @cached_property
    def database_ready(self) -> bool:
        """Whether the database responds and has this version's schema."""
        return self.database_up and self.revisions[0] == self.revisions[1]

    @cached_property
    def engine_up(self) -> bool:
        """Whether the engine responds."""
        try:
            self.engine.check()
        except EngineError:
            return False
        return True


@dataclass(frozen=True)
class Risk:
    """A weakness that does not keep the node from working."""

    cause: str
    remedy: str


def warning_of(
    risks: Sequence[Risk],
    text: str = "",
) -> Step:
    """Return one warning of several risks; ``text`` is the result that it goes with."""
    causes = "; ".join(risk.cause for risk in risks)
    remedies = "; ".join(dict.fromkeys(risk.remedy for risk in risks))
    return trials.warning(causes, remedies, text)


def explained_step(reason: str) -> str:
    """Return the next step of a reason without its full stop; "" for an unknown reason."""
    explanation = reason_of(reason)
    if explanation is None:
        return ""
    return explanation.next_step[ENGLISH].rstrip(".")


def routes_in_file(settings: Settings) -> LiveRoutes:
    """Return the routes of the settings' file; the PEM files that they name are not checked."""

    def no_problems(*_: object) -> tuple[Problem, ...]:
        return ()

    return LiveRoutes(
        settings.route_table.file,
        files=no_problems,
        quiet=True,
    )
