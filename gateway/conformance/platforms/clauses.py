"""The clauses of the standard that a node can be checked against, read from ``clauses.yml``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files

import yaml

from gateway.conformance.platforms.standards import LATEST, STANDARDS


class Level(StrEnum):
    """How strictly a node has to keep a clause."""

    MUST = "must"  # the standard demands it, or no job could run without it
    SHOULD = "should"  # the standard is silent; deployed platforms depend on it


@dataclass(frozen=True)
class Text:
    """A text in both languages of the report."""

    en: str
    zh: str

    def in_language(self, language: str) -> str:
        """Return the text in ``zh`` or, for any other value, in English."""
        if language == "zh":
            return self.zh
        return self.en


@dataclass(frozen=True)
class Clause:
    """One clause that a node is judged by."""

    id: str  # stable; scripts may rely on it, such as C-3.2-create
    section: str  # layer and section of the standard v1.2.0, such as control 3.2
    level: Level
    since: str  # the first version of the standard with this clause
    says: Text
    remedy: Text  # the next step of a vendor whose node breaks the clause
    # Fields of a profile that live with a breach of this clause; often none.
    profile_fields: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.id

    def applies_to(self, standard: str) -> bool:
        """Return whether a version of the standard has this clause."""
        versions = list(STANDARDS)
        return versions.index(self.since) <= versions.index(standard)


@cache
def clauses() -> tuple[Clause, ...]:
    """Return all clauses, in the order in which they are tried."""
    text = files(__package__).joinpath("clauses.yml").read_text(encoding="utf-8")
    return tuple(_read(entry) for entry in yaml.safe_load(text))


def clause_of(clause_id: str) -> Clause:
    """Return the clause with an id. Raises `KeyError` without one."""
    for clause in clauses():
        if clause.id == clause_id:
            return clause
    raise KeyError(clause_id)


def selected(
    prefixes: Iterable[str],
    standard: str = LATEST,
) -> Sequence[Clause]:
    """Return the clauses of a version of the standard whose ids begin with one of ``prefixes``.

    Without prefixes, all its clauses. Raises `KeyError` with the prefix that no clause begins with.
    """
    of_standard = [clause for clause in clauses() if clause.applies_to(standard)]
    accepted_prefixes = tuple(prefixes)
    if not accepted_prefixes:
        return of_standard
    for prefix in accepted_prefixes:
        if not any(clause.id.startswith(prefix) for clause in of_standard):
            raise KeyError(prefix)
    return [clause for clause in of_standard if clause.id.startswith(accepted_prefixes)]


def _read(entry: dict[str, object]) -> Clause:
    """Return one entry of the file as a clause."""
    return Clause(
        id=str(entry["id"]),
        section=str(entry["section"]),
        level=Level(str(entry["level"])),
        since=str(entry["since"]),
        says=_text(entry["says"]),
        remedy=_text(entry["remedy"]),
        profile_fields=_mapping(entry.get("profile")),
    )


def _mapping(value: object) -> Mapping[str, object]:
    """Return an optional mapping of the file; {} without one."""
    if isinstance(value, dict):
        return value
    return {}


def _text(value: object) -> Text:
    """Return a text with both languages."""
    assert isinstance(value, dict)
    return Text(en=str(value["en"]), zh=str(value["zh"]))
