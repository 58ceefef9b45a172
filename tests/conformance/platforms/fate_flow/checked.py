"""A check of a live FATE-Flow, in several lanes: most clauses wait for its ticks of two seconds."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gateway.conformance.platforms.check import CheckResult, Judgement, judge
from gateway.conformance.platforms.clauses import Clause, clauses
from gateway.conformance.platforms.findings import Evidence
from gateway.conformance.platforms.node import CheckedNode, Identity
from gateway.conformance.platforms.partner import Partner
from gateway.conformance.platforms.trial import Trial, TrialOptions
from gateway.identity.keys import KEY_GENERATORS, KeyPair
from tests.conformance.platforms.checked import PROBE
from tests.conformance.platforms.fate_flow.site import BfiaSite
from tests.registry.builders import a_data, a_description

THEIRS = "9999"
_CHECKS = tuple(f"JG000000000000078{lane}" for lane in range(4))  # the check's id in each lane
_TIMEOUT = 60.0  # seconds of a step; FATE-Flow admits one job in each of its ticks
_SHORT_TIMEOUT = 6.0  # seconds for an event that never comes
# Clauses whose event never comes, as the recorded report says.
NEVER_COMES = ("C-3.9-reports",)


@contextmanager
def fate_flow_lanes(folder: Path, utils: Path | None = None) -> Iterator[Sequence[Trial]]:
    """Serve FATE-Flow and open a trial in each lane.

    ``utils``: the part of the adapter that the wheel lacks, from FATE-Flow's source; without it,
    our own replacement.
    """
    key = KeyPair(KEY_GENERATORS["ed25519"]())
    with ExitStack() as stack:
        evidence = [Evidence() for _ in _CHECKS]
        partners = [Partner(("127.0.0.1", 0), each, key) for each in evidence]
        for partner in partners:
            stack.callback(partner.close)
        ports = {check: partner.port for check, partner in zip(_CHECKS, partners, strict=True)}
        site = stack.enter_context(BfiaSite(THEIRS, folder / "fate_flow", ports, utils))
        site.register_probe(_probe())
        trials = []
        for check, partner, exchanges in zip(_CHECKS, partners, evidence, strict=True):
            url = f"http://127.0.0.1:{site.port}"
            node = CheckedNode(url, THEIRS, Identity(check, key), exchanges, per_second=1000)
            stack.callback(node.close)
            options = TrialOptions(PROBE, _TIMEOUT)
            trials.append(Trial(node, partner, exchanges, options))
        yield trials


def _probe() -> dict[str, object]:
    """Return the description of the component; FATE-Flow demands more texts than the standard."""
    data = a_data(description="a table")
    return a_description(
        "Probe",
        description="succeeds",
        inputParam=[],
        inputData=[data],
        outputData=[data],
    )


def check_in_lanes(trials: Sequence[Trial]) -> CheckResult:
    """Try every clause in one of the lanes; then stop every job that was created."""
    with ThreadPoolExecutor(len(trials)) as pool:
        parts = list(pool.map(_judgements, trials, _shares(len(trials))))
    by_clause = {judgement.clause.id: judgement for part in parts for judgement in part}
    jobs = [job for trial in trials for job in trial.clean_up()]
    return CheckResult(tuple(by_clause[clause.id] for clause in clauses()), tuple(jobs))


def _shares(count: int) -> list[Sequence[Clause]]:
    """Return the clauses in so many parts of about the same length."""
    return [clauses()[lane::count] for lane in range(count)]


def _judgements(trial: Trial, share: Sequence[Clause]) -> list[Judgement]:
    """Try some clauses one after the other."""
    judgements = []
    for clause in share:
        trial.options = _options(clause)
        judgements.append(Judgement(clause, judge(trial, clause)))
    return judgements


def _options(clause: Clause) -> TrialOptions:
    """Return how long the steps of a clause may take."""
    if clause.id in NEVER_COMES:
        return TrialOptions(PROBE, _SHORT_TIMEOUT)
    return TrialOptions(PROBE, _TIMEOUT)
