"""Faults of a node towards its own platform are found by the clauses that name them."""

from collections.abc import Iterator
from functools import partial

import pytest

from gateway.conformance.platforms.check import Judgement, check, judge
from gateway.conformance.platforms.clauses import clause_of, selected
from gateway.conformance.platforms.findings import Verdict
from gateway.conformance.platforms.node import CheckedNode
from gateway.conformance.platforms.operators import JOB_LIST, STATUS, STOP_SUBMITTED, SUBMIT
from gateway.conformance.platforms.trial import STATUS_ALL, Trial, TrialOptions
from tests.conformance.platforms.checked import PROBE, Site
from tests.conformance.platforms.proxy import (
    Forward,
    Mutant,
    Proxy,
    Request,
    Response,
    refusal,
    success,
)
from tests.conformance.platforms.sides import (
    OPERATOR_CLAUSES,
    TOKEN,
    node_with_sides,
    trial_of,
)
from tests.e2e.nodes import wait_for

# Seconds for a step that a mutant prevents; enough for the steps of a node on a busy machine.
SHORT = TrialOptions(PROBE, timeout=6.0)


def at(path: str, response: Response) -> Mutant:
    """Return a mutant with a response of its own for one path."""

    def mutant(request: Request, forward: Forward) -> Response:
        if request.path == path:
            return response
        return forward(request)

    return mutant


def with_the_token(request: Request, forward: Forward) -> Response:
    """Let everybody in."""
    return forward(request.with_headers(authorization=f"Bearer {TOKEN}"))


MUTANTS = {
    "C-5.1-submit": at(SUBMIT, success(job_id="job-of-nobody")),
    "C-5.1-refused": at(SUBMIT, success(job_id="job-of-nobody")),
    "C-5.1-wrong": at(SUBMIT, success(job_id="job-of-nobody")),
    "C-5.2-stop": at(STOP_SUBMITTED, success()),
    "C-5.2-unknown": at(STOP_SUBMITTED, success()),
    "C-5.3-status": at(STATUS, success(job_status="RUNNING")),
    "C-5.3-unknown": at(STATUS, success()),
    "C-5.6-list": at(JOB_LIST, success(job_list={})),
    "S-operator": with_the_token,
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with node_with_sides(tmp_path_factory.mktemp("checked")) as checked:
        yield checked


@pytest.fixture(scope="module")
def proxy(site: Site) -> Iterator[Proxy]:
    """A proxy before the listener for operators."""
    proxy = Proxy(site.node.addresses()["operator"])
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def trial(site: Site) -> Iterator[Trial]:
    """One trial of the node, for all clauses that hold."""
    with trial_of(site) as trial:
        yield trial


@pytest.mark.parametrize("clause_id", OPERATOR_CLAUSES)
def test_our_node_keeps_the_clauses_about_its_platform(trial: Trial, clause_id: str):
    finding = judge(trial, clause_of(clause_id))
    assert finding.verdict is Verdict.HOLDS, finding.observation


@pytest.mark.parametrize("clause_id", MUTANTS)
def test_a_fault_towards_the_platform_is_caught(site: Site, proxy: Proxy, clause_id: str):
    with (
        trial_of(
            site,
            operators=proxy.url,
            options=SHORT,
        ) as trial,
        proxy.mutated(MUTANTS[clause_id]),
    ):
        finding = judge(trial, clause_of(clause_id))
    assert finding.verdict is Verdict.FAILS, finding.observation


def test_every_clause_about_the_platform_has_a_fault():
    assert set(MUTANTS) == set(OPERATOR_CLAUSES)


def ignore(judgement: Judgement) -> None:
    """Show no progress."""


def test_every_submitted_job_is_stopped_and_named(site: Site):
    clauses = selected(["C-5.1-submit", "C-5.3-status", "C-5.6-list"])
    with trial_of(site) as trial:
        result = check(trial, clauses, ignore)
    assert len(result.jobs) == len(clauses)
    for job_id, stopped in result.jobs:
        assert stopped
        wait_for(partial(is_finished, site, job_id), 30, 0.1, "the job has ended")


def is_finished(site: Site, job_id: str) -> bool:
    """Return whether a job has ended."""
    response = site.node.get(
        f"{STATUS}?job_id={job_id}",
        token=TOKEN,
    )
    return bool(response.json()["data"]["job_status"] == "FINISHED")


def test_a_refused_request_for_states_fails_its_own_clause_only(site: Site):
    """A node that shows the state of a job by GET only can be checked by the other clauses."""
    peer = Proxy(site.node.addresses()["peer"])
    checked = CheckedNode(
        peer.url,
        site.trial.node.node_id,
        site.trial.node.identity,
        site.trial.evidence,
        per_second=1000,
    )
    trial = Trial(
        checked,
        site.trial.partner,
        site.trial.evidence,
        SHORT,
    )
    with peer.mutated(refuses_states_by_post):
        by_post = judge(trial, clause_of("C-3.7-status"))
        stop = judge(trial, clause_of("C-3.5-stop"))
    peer.close()
    checked.close()
    assert by_post.verdict is Verdict.DEVIATES
    assert stop.verdict is Verdict.HOLDS


def refuses_states_by_post(request: Request, forward: Forward) -> Response:
    """Refuse the POST of status_all."""
    if request.path == STATUS_ALL and request.method == "POST":
        return refusal()
    return forward(request)
