"""Clauses for which a check saw the same."""

from collections.abc import Iterable, Sequence

from gateway.conformance.platforms.check import Judgement


def shared_causes(breaches: Sequence[Judgement]) -> dict[str, list[str]]:
    """Return the ids of broken clauses by the cause that two or more of them have.

    A cause is the end of an observation, such as ``HTTP 500`` of ``a cycle: HTTP 500``.
    """
    ids = _ids_by_text((breach, cause) for breach in breaches for cause in _causes(breach))
    return {cause: names for cause, names in ids.items() if len(names) > 1}


def by_observation(judgements: Sequence[Judgement]) -> dict[str, list[str]]:
    """Return the ids of clauses by their observation."""
    return _ids_by_text((judgement, judgement.finding.observation) for judgement in judgements)


def _causes(judgement: Judgement) -> list[str]:
    """Return the ends of the parts of an observation, each once."""
    parts = judgement.finding.observation.split("; ")
    causes = [part.rpartition(": ")[2] for part in parts]
    return list(dict.fromkeys(causes))


def _ids_by_text(pairs: Iterable[tuple[Judgement, str]]) -> dict[str, list[str]]:
    """Return the ids of clauses by a text about each."""
    ids: dict[str, list[str]] = {}
    for judgement, text in pairs:
        ids.setdefault(text, []).append(judgement.clause.id)
    return ids
