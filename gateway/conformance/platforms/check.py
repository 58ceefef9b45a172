"""Runs the clauses against a node."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gateway.conformance.platforms.clauses import Clause, Level
from gateway.conformance.platforms.findings import (
    Broken,
    CannotTry,
    Deviation,
    Finding,
    Verdict,
    deviates,
    fails,
    not_tried,
)
from gateway.conformance.platforms.scenarios import (  # noqa: F401  modules register scenarios
    SCENARIOS,
    common,
    containers,
    disturbances,
    identity,
    leaks,
    management,
    operators,
    participant,
    scheduling,
    submission,
    transport,
)
from gateway.conformance.platforms.trial import Trial


@dataclass(frozen=True)
class Judgement:
    """A clause and the finding about it."""

    clause: Clause
    finding: Finding

    @property
    def breaks_the_standard(self) -> bool:
        """Whether the node breaks something that the standard demands."""
        return self.clause.level is Level.MUST and self.finding.verdict is Verdict.FAILS


@dataclass(frozen=True)
class CheckResult:
    """The findings of a check, and the jobs that it created at the node."""

    judgements: tuple[Judgement, ...]
    # Jobs that the check created there, each with whether its stop was accepted.
    jobs: tuple[tuple[str, bool], ...]

    @property
    def good(self) -> bool:
        """Whether no *must* was broken."""
        return not any(judgement.breaks_the_standard for judgement in self.judgements)

    def count(self, verdict: Verdict) -> int:
        """Return the number of clauses with a verdict."""
        return sum(judgement.finding.verdict is verdict for judgement in self.judgements)


def check(
    trial: Trial,
    clauses: Sequence[Clause],
    progress: Callable[[Judgement], None],
) -> CheckResult:
    """Try clauses one after the other, then stop every job that was created.

    ``progress`` is called for each judgement.
    """
    judgements = []
    try:
        for clause in clauses:
            judgement = Judgement(clause, judge(trial, clause))
            progress(judgement)
            judgements.append(judgement)
    finally:
        jobs = trial.clean_up()
    return CheckResult(tuple(judgements), tuple(jobs))


def judge(trial: Trial, clause: Clause) -> Finding:
    """Try one clause; the finding holds the exchanges that show it."""
    mark = len(trial.evidence)
    try:
        finding = SCENARIOS[clause.id](trial)
    except CannotTry as reason:
        finding = not_tried(str(reason))
    except Deviation as deviation:
        finding = deviates(deviation.dialect, str(deviation))
    except Broken as reason:
        finding = fails(str(reason))
    return replace(finding, exchanges=trial.evidence.since(mark))
