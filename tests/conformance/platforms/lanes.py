"""A check in several lanes beside each other: most clauses only wait for events."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import httpx

from gateway.conformance.platforms.check import CheckResult, Judgement, judge
from gateway.conformance.platforms.clauses import Clause
from gateway.conformance.platforms.findings import Evidence
from gateway.conformance.platforms.node import CheckedNode, Identity
from gateway.conformance.platforms.partner import Partner
from gateway.conformance.platforms.trial import Trial, TrialOptions
from gateway.domain.spec import NodeId
from gateway.identity.keys import KeyPair
from tests.conformance.platforms.checked import PROBE

CHECKS = tuple(f"JG000000000000078{lane}" for lane in range(4))  # the check's id in each lane
_TIMEOUT = 60.0  # seconds of a step


@dataclass(frozen=True)
class Lanes:
    """The partners that the check plays in each lane."""

    partners: Mapping[NodeId, Partner]
    evidence: Mapping[NodeId, Evidence]
    key: KeyPair | None

    @property
    def ports(self) -> dict[NodeId, int]:
        """The ports of the partners by their ids."""
        return {check: partner.port for check, partner in self.partners.items()}

    @contextmanager
    def trials(
        self,
        url: str,
        node_id: NodeId,
        make_client: Callable[[], httpx.Client | None] = lambda: None,
    ) -> Iterator[list[Trial]]:
        """Open a trial of a node in each lane; ``make_client`` makes its connections."""
        with ExitStack() as stack:
            trials = []
            for check, partner in self.partners.items():
                node = CheckedNode(
                    url,
                    node_id,
                    Identity(check, self.key),
                    self.evidence[check],
                    per_second=1000,
                    http=make_client(),
                )
                stack.callback(node.close)
                options = TrialOptions(PROBE, _TIMEOUT)
                trials.append(Trial(node, partner, self.evidence[check], options))
            yield trials


@contextmanager
def lanes(key: KeyPair | None = None) -> Iterator[Lanes]:
    """Play a partner in each lane; ``key`` signs its requests and responses."""
    with ExitStack() as stack:
        evidence = {check: Evidence() for check in CHECKS}
        partners = {}
        for check in CHECKS:
            partner = Partner(("127.0.0.1", 0), evidence[check], key)
            stack.callback(partner.close)
            partners[check] = partner
        yield Lanes(partners, evidence, key)


def check_in_lanes(
    trials: Sequence[Trial],
    clauses: Sequence[Clause],
    timeouts: Mapping[str, float] | None = None,
) -> CheckResult:
    """Try every clause in one of the lanes; then stop every job that was created.

    ``timeouts``: seconds of a step, by clause, if they are not the usual ones.
    """
    shares = [clauses[lane :: len(trials)] for lane in range(len(trials))]

    def try_share(trial: Trial, share: Sequence[Clause]) -> list[Judgement]:
        return [_judgement(trial, clause, timeouts or {}) for clause in share]

    with ThreadPoolExecutor(len(trials)) as pool:
        parts = list(pool.map(try_share, trials, shares))
    by_clause = {judgement.clause.id: judgement for part in parts for judgement in part}
    jobs = [job for trial in trials for job in trial.clean_up()]
    return CheckResult(tuple(by_clause[clause.id] for clause in clauses), tuple(jobs))


def _judgement(
    trial: Trial,
    clause: Clause,
    timeouts: Mapping[str, float],
) -> Judgement:
    """Try a clause."""
    trial.options = TrialOptions(PROBE, timeouts.get(clause.id, _TIMEOUT))
    return Judgement(clause, judge(trial, clause))
