"""Faults that platforms have are found by the clauses that name them.

Each mutant is such a fault; a proxy puts it between the check and a node of this gateway.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapter.bfia.channel.codec import INVOKE, TRANSPORT
from adapter.bfia.paths import NODE
from gateway.conformance.platforms.answers import read_answer
from gateway.conformance.platforms.check import judge
from gateway.conformance.platforms.clauses import clause_of, clauses
from gateway.conformance.platforms.findings import Exchange, Finding, Verdict
from gateway.conformance.platforms.node import CheckedNode
from gateway.conformance.platforms.standards import LATEST, STANDARDS
from gateway.conformance.platforms.transport_answers import read_transport_answer
from gateway.conformance.platforms.trial import (
    CREATE,
    REPORT,
    START,
    STATUS_ALL,
    Trial,
    TrialOptions,
)
from gateway.identity.keys import KEY_GENERATORS, KeyPair
from tests.conformance.platforms.checked import (
    CHECK,
    PROBE,
    Site,
    checked_node,
    needs_further_address,
)
from tests.conformance.platforms.mutants.before_node import (
    before_the_node,
    before_the_node_with_signatures,
)
from tests.conformance.platforms.mutants.before_partner import before_the_partner
from tests.conformance.platforms.mutants.kinds import (
    Case,
    case_id,
    changed_response,
    is_post,
    of_old_transports,
    refused_if,
    replaced,
    swallowed,
    traced,
    without,
)
from tests.conformance.platforms.proxy import Mutant, Proxy

# Seconds for a step that a mutant prevents; long enough for the steps of a node on a busy machine.
SHORT_TIMEOUT = TrialOptions(PROBE, timeout=6.0)
# A breach that is counted as caught: a failure, or a deviation that a known platform shows, too.
CAUGHT = (Verdict.FAILS, Verdict.DEVIATES)


@dataclass(frozen=True)
class Between:
    """A site with proxies in both directions."""

    site: Site
    to_node: Proxy
    to_partner: Proxy

    def judge(self, clause_id: str, standard: str = LATEST) -> Finding:
        """Judge a clause through the proxies by a trial that shares no job with another one."""
        (finding,) = self.judge_in_turn([clause_id], standard)
        return finding

    def judge_in_turn(self, clause_ids: Sequence[str], standard: str = LATEST) -> list[Finding]:
        """Judge clauses through the proxies, one after the other, by one trial."""
        trial = self.site.trial
        node = CheckedNode(
            self.to_node.url,
            trial.node.node_id,
            trial.node.identity,
            trial.evidence,
            per_second=1000,
        )
        try:
            fresh_trial = Trial(node, trial.partner, trial.evidence, SHORT_TIMEOUT)
            fresh_trial.standard = STANDARDS[standard]
            return [judge(fresh_trial, clause_of(clause_id)) for clause_id in clause_ids]
        finally:
            node.close()


@contextmanager
def between_proxies(
    home: Path,
    key: KeyPair | None = None,
    **route: Any,
) -> Iterator[Between]:
    """Serve a node, with a proxy in each direction between it and the check.

    ``route``: further fields of its route to the check.
    """
    with checked_node(home, key, **route) as site:
        to_node = Proxy(site.node.addresses()["peer"])
        to_partner = Proxy(f"http://127.0.0.1:{site.trial.partner.port}")
        entry = {"url": to_partner.url, **route}
        file = Path(str(site.node.settings.route_table.file))
        file.write_text(yaml.safe_dump({CHECK: entry}))
        site.node.routes.reload()
        yield Between(site, to_node, to_partner)
        to_node.close()
        to_partner.close()


@pytest.fixture(scope="module")
def between(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Between]:
    with between_proxies(tmp_path_factory.mktemp("mutants"), signing="off") as unsigned:
        yield unsigned


@pytest.fixture(scope="module")
def between_signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Between]:
    pair = KeyPair(KEY_GENERATORS["ed25519"]())
    home = tmp_path_factory.mktemp("signed-mutants")
    with between_proxies(home, pair, keys=pair.public, signing="required") as signed:
        yield signed


@pytest.mark.parametrize("case", before_the_node(), ids=case_id)
def test_a_fault_of_the_node_is_caught(between: Between, case: Case):
    with between.to_node.mutated(case.mutant):
        finding = between.judge(case.clause)
    assert finding.verdict in CAUGHT, finding.observation


@pytest.mark.parametrize("case", before_the_node_with_signatures(), ids=case_id)
def test_a_fault_in_the_check_of_signatures_is_caught(between_signed: Between, case: Case):
    with between_signed.to_node.mutated(case.mutant):
        finding = between_signed.judge(case.clause)
    assert finding.verdict in CAUGHT, finding.observation


@pytest.mark.parametrize("case", before_the_partner(), ids=case_id)
def test_a_fault_of_the_nodes_requests_is_caught(between: Between, case: Case):
    with between.to_partner.mutated(case.mutant):
        finding = between.judge(case.clause)
    assert finding.verdict in CAUGHT, finding.observation


def test_every_clause_has_a_mutant():
    cases = [*before_the_node(), *before_the_node_with_signatures(), *before_the_partner()]
    others = {clause.id for clause in clauses() if not needs_further_address(clause)}
    assert {case.clause for case in cases} == others


def test_a_proxy_without_a_fault_breaks_no_clause(between: Between):
    for clause_id in ("C-2-envelope", "C-3.8-end", "C-3.4-order", "T-2.2-protobuf"):
        finding = between.judge(clause_id)
        assert finding.verdict is Verdict.HOLDS, finding.observation


def test_a_lost_report_is_named_and_its_consequence_is_not_tried(between: Between):
    clause_ids = ("C-3.9-takes-reports", "C-3.9-early")
    with between.to_node.mutated(swallowed(REPORT)):
        lost, early = between.judge_in_turn(clause_ids)
    assert lost.observation.startswith("task/callback of probe_1 is answered with code 0")
    assert "but no task/start of probe_2" in lost.observation
    assert early.verdict is Verdict.NOT_TRIED
    assert "C-3.9-takes-reports" in early.observation


# Parts of an observation, by a clause and its fault.
OBSERVATIONS = (
    ("M-3-query", changed_response(f"{NODE}/query", without("data")), "has no object data"),
    ("C-2-envelope", changed_response(START, without("data")), "job/start: data is absent"),
    ("C-2-trace", traced, "config.role.guest: a text: HTTP 500, and the response holds"),
    (
        "T-2.2.2-transport",
        changed_response(TRANSPORT, of_old_transports),
        "the success code is 0, not E0000000000",
    ),
)


@pytest.mark.parametrize(
    ("clause_id", "mutant", "part"),
    OBSERVATIONS,
    ids=[clause_id for clause_id, *_ in OBSERVATIONS],
)
def test_an_observation_names_the_fault(
    between: Between,
    clause_id: str,
    mutant: Mutant,
    part: str,
):
    with between.to_node.mutated(mutant):
        finding = between.judge(clause_id)
    assert part in finding.observation


def test_deeply_nested_responses_are_no_answer():
    exchange = Exchange(True, "POST", INVOKE, {}, b"", 200, {}, b"[" * 20_000)
    assert read_transport_answer(exchange).code == ""
    assert read_answer(exchange).breaches == (("the body is not JSON", ""),)


# Faults by version 1.2.0 that version 1.0 demands: a clause and the fault.
OF_VERSION_1_0 = (
    ("C-2-code", changed_response(CREATE, replaced(code=200))),
    ("C-3.7-status", refused_if(STATUS_ALL, is_post)),
)


@pytest.mark.parametrize(("clause_id", "mutant"), OF_VERSION_1_0, ids=["code 200", "GET only"])
def test_a_node_of_version_1_0_is_judged_by_it(between: Between, clause_id: str, mutant: Mutant):
    with between.to_node.mutated(mutant):
        assert between.judge(clause_id, "1.0").verdict is Verdict.HOLDS
        assert between.judge(clause_id).verdict in CAUGHT


def test_a_later_success_code_deviates_from_version_1_0(between: Between):
    finding = between.judge("C-2-code", "1.0")
    assert (finding.verdict, finding.dialect) == (Verdict.DEVIATES, "spec")
