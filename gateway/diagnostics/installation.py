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
from gateway.config.secrets import database_url
from gateway.domain.problems import Problem
from gateway.errors import GatewayError
from gateway.language.catalogue import ENGLISH, reason_of
from gateway.runtime import trials
from gateway.runtime.trials import Step
from gateway.store.database import SchemaRevisions, schema_revisions
from gateway.store.store import Store
from route_table.live import LiveRoutes


@dataclass
class Installation:
    """The node under examination.

    Each cached property is determined once, by the first check that needs it.
    """

    settings: Settings
    config: Path | None  # the settings' file
    store: Store
    engine: Engine

    @cached_property
    def revisions(self) -> SchemaRevisions:
        """The schema's revision in the database, and the revision that this version needs.

        The first is None for a database without our tables. Raises `GatewayError` if the database
        does not respond.
        """
        return schema_revisions(database_url(self.settings))

    @cached_property
    def database_up(self) -> bool:
        """Whether the database responds, with any schema or none.

        The cause of a failure is reported by the check of the database alone.
        """
        try:
            _ = self.revisions  # connects to the database
        except GatewayError:
            return False
        return True

    @cached_property
    def database_ready(self) -> bool:
        """Whether the database responds and has a schema that this version can use.

        Checks of stored records need that.
        """
        return self.database_up and self.revisions.are_compatible

    @cached_property
    def engine_up(self) -> bool:
        """Whether the engine responds.

        The cause of a failure is reported by the check of the engine alone.
        """
        try:
            self.engine.check()
        except EngineError:
            return False
        return True


@dataclass(frozen=True)
class Risk:
    """A weakness, or a problem, and what helps against it."""

    cause: str
    remedy: str  # empty if the remedy of another risk covers it


def causes_and_remedies(risks: Sequence[Risk]) -> tuple[str, str]:
    """Return the causes of several risks as one text, and their remedies as another.

    A remedy that several risks share is named once; a risk with the remedy "" adds none.
    """
    causes = "; ".join(risk.cause for risk in risks)
    remedies = dict.fromkeys(risk.remedy for risk in risks)
    return causes, "; ".join(filter(None, remedies))


def warning_of(
    risks: Sequence[Risk],
    text: str = "",
) -> Step:
    """Return one warning of several risks.

    - ``risks``: at least one
    - ``text``: names the objects of the check, such as storages; "" for none
    """
    causes, remedies = causes_and_remedies(risks)
    return trials.warning(causes, remedies, text)


def explained_step(reason: str) -> str:
    """Return the next step that the catalogue of reasons gives for a reason, in English.

    Without its full stop, so that it can be joined with others; "" for an unknown reason.
    """
    explanation = reason_of(reason)
    if explanation is None:
        return ""
    return explanation.next_step[ENGLISH].rstrip(".")


def routes_in_file(settings: Settings) -> LiveRoutes:
    """Return the routes of the settings' file.

    The PEM files that the routes name are not checked: the check of certificates does that. An
    unusable file gives an empty table with `problems`.
    """

    def no_problems(*_: object) -> tuple[Problem, ...]:
        return ()

    return LiveRoutes(
        settings.route_table.file,
        files=no_problems,
        quiet=True,
        proxy=settings.outbound.default,
    )
