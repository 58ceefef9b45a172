"""The profile of the route table that fits a checked node."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from adapter.bfia.profiles import PROFILES
from gateway.conformance.platforms.check import Judgement
from gateway.conformance.platforms.findings import Verdict

_DEFAULT = "spec"  # the profile of a node without deviations
_BREACHES = (Verdict.DEVIATES, Verdict.FAILS)


@dataclass(frozen=True)
class Proposal:
    """A profile for a node."""

    name: str  # of the known profile that explains most deviations
    explained: int  # deviations that the known platform shows, too
    # Fields, by name, that the breaches call for and that the known profile lacks.
    further_fields: dict[str, object] = field(default_factory=dict)


def propose(judgements: Sequence[Judgement]) -> Proposal:
    """Return the known profile that explains most deviations, and the fields that it lacks."""
    dialects = Counter(
        judgement.finding.dialect
        for judgement in judgements
        if judgement.finding.verdict is Verdict.DEVIATES
    )
    name, explained = _DEFAULT, 0
    if dialects:
        name, explained = dialects.most_common(1)[0]
    profile = PROFILES[name]
    further_fields = {}
    for judgement in judgements:
        if judgement.finding.verdict not in _BREACHES:
            continue
        for field_name, value in judgement.clause.profile_fields.items():
            if getattr(profile, field_name) != value:
                further_fields[field_name] = value
    return Proposal(name, explained, further_fields)
