"""A contract between two nodes demands attestation reports of the runs under it at both."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from adapter.bfia.examples import A_PROVIDER
from gateway.config.schema.tee import TeePolicy
from tests.core.example_jobs import IMAGE, wait_for_end
from tests.inprocess import ME, PEER, uploaded
from tests.memory_engine import MemoryEngine, Script
from tests.trust.agreeing import (
    apply_for,
    approve,
    call_api,
    change_application,
    credentials,
    forget_all,
    make_contract,
    newest_waiting,
    status_of,
    two_nodes,
    wait_for_status,
)
from tests.trust.attested import TABLE, TEE, started_run, submit_example
from tests.trust.contract_sender import APPLY, Sender
from tests.trust.software_tee import hash_of, policy

# Measurements of programs: in the provider's policy, in the contract's, in both.
OF_PROVIDER = "ab" * 32
OF_CONTRACT = "cb" * 32
OF_BOTH = "bb" * 32
MISMATCH = "TEE_MEASUREMENT_MISMATCH"
CONFLICT = "TEE_POLICY_CONFLICT"
CONTRACT = policy(measurements=[OF_BOTH, OF_CONTRACT])
OF_UNKNOWN_SIGNER = policy(measurements=[OF_BOTH], signers=["ee" * 32])


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two nodes that demand reports of the example provider."""
    home = tmp_path_factory.mktemp("nodes")
    key = TEE.write_key(home / "tee.pem")
    own_policy = policy(measurements=[OF_PROVIDER, OF_BOTH])
    tee = {
        "providers": {"example": own_policy},
        "software_keys": [str(key)],
    }
    make_engine = MemoryEngine.making({IMAGE: Script(code=None)})
    with two_nodes(
        home,
        make_engine=make_engine,
        tee=tee,
    ) as nodes:
        for node in nodes:
            node.post("/v2/provider/register", A_PROVIDER)
        uploaded(nodes[0], "ns", "table", TABLE)
        yield nodes


@pytest.fixture
def nodes(pair):
    yield pair
    forget_all(*pair)


@pytest.fixture
def contract(nodes):
    """A contract on the application of `ME`, with its numbers at both nodes."""
    return make_contract(*nodes, tee=CONTRACT)


def report_of(run, measurement):
    return run.report(hex_ta_measurement=measurement)


@pytest.fixture
def run(nodes, contract):
    """A run of `ME` under the contract."""
    me, _ = nodes
    return started_run(me, submit_example(me, PEER))


def paths_of(body):
    """Return the paths of the problems in a response."""
    problems = body["data"]["problems"]
    return {problem["path"] for problem in problems}


def applied(me, peer):
    """Apply for the contract; return its numbers at both nodes."""
    mine = apply_for(
        me,
        "contract",
        peer,
        tee=CONTRACT,
    )
    return mine, newest_waiting(peer)


def shown(node, number):
    """Return an application as a node shows it."""
    return call_api(node, "GET", f"/applications/{number}")


def test_both_nodes_have_the_policy_of_the_contract(nodes, contract):
    numbers = dict(zip(nodes, contract, strict=True))
    for node, number in numbers.items():
        application = shown(node, number)
        assert application["tee"]["measurements"] == CONTRACT["measurements"]
        assert application["tee_agreed"] is True


# Measurement of the report -> whether it passes, at `ME` with a policy of its own for the provider.
REPORTS = {
    OF_BOTH: True,
    OF_PROVIDER: False,  # the contract does not have it
    OF_CONTRACT: False,  # the provider's policy does not have it
}


@pytest.mark.parametrize("measurement", REPORTS)
def test_a_report_has_to_meet_the_provider_and_the_contract(run, contract, measurement):
    response = run.submit(report_of(run, measurement))

    [entry] = run.audit()
    number, _ = contract
    assert entry["demanded_by"] == ["provider example", f"contract {number} with {PEER}"]
    if REPORTS[measurement]:
        assert response["code"] == 0
        run.end()
        return
    assert response["data"]["reason"] == MISMATCH
    assert entry["reason"] == MISMATCH
    assert run.fetch_refusal() == "RUN_OVER"
    assert run.end_reason() == MISMATCH


def test_the_partners_runs_are_under_the_contract_too(nodes, contract):
    me, peer = nodes
    job_id = submit_example(me, PEER)
    run = started_run(peer, job_id)

    assert run.refusal(report_of(run, OF_PROVIDER)) == MISMATCH

    _, number = contract
    [entry] = run.audit()
    assert f"contract {number} with {ME}" in entry["demanded_by"]
    failure = wait_for_end(me, job_id).ending.failure
    assert failure.node == PEER
    assert failure.reason == MISMATCH


def test_a_job_without_the_partner_is_not_under_the_contract(nodes, contract):
    me, _ = nodes
    run = started_run(me, submit_example(me))

    response = run.submit(report_of(run, OF_PROVIDER))

    assert response["code"] == 0
    run.end()


def test_a_policy_changed_after_the_verification_counts_at_the_hand_over(nodes, run):
    report = report_of(run, OF_BOTH)
    run.submit(report)
    assert run.input()
    narrower = policy(measurements=[OF_CONTRACT])

    make_contract(*nodes, tee=narrower)

    assert run.fetch_refusal() == CONFLICT
    assert run.refusal(report) == "RUN_OVER"
    *_, entry = run.audit()
    assert entry["reason"] == CONFLICT
    assert run.end_reason() == CONFLICT


def test_the_end_of_a_contract_does_not_free_a_running_run(nodes, contract, run):
    me, _ = nodes
    number, _ = contract
    now = datetime.now(UTC)
    change_application(
        me,
        number,
        expires_at=now - timedelta(days=1),
    )

    assert run.refusal(report_of(run, OF_PROVIDER)) == MISMATCH
    run.end_reason()


def test_contradictions_refuse_a_job_all_at_once(nodes):
    me, _ = nodes
    contrary = policy(
        measurements=[OF_CONTRACT],
        tcb=["SWHardeningNeeded"],
    )
    make_contract(*nodes, tee=contrary)

    with pytest.raises(AssertionError, match=CONFLICT) as refused:
        submit_example(me, PEER)

    for path in ("tee.measurements", "tee.tcb"):
        assert path in str(refused.value)
    assert f"with {PEER}" in str(refused.value)


def test_the_approving_node_may_tighten_the_policy(nodes):
    me, peer = nodes
    mine, theirs = applied(me, peer)
    narrower = policy(
        measurements=[OF_CONTRACT],
        max_age=60,
    )

    approve(peer, theirs, tee=narrower)

    wait_for_status(me, mine, "APPROVED")
    agreed = shown(me, mine)["tee"]
    assert agreed["measurements"] == [OF_CONTRACT]
    assert agreed["max_age"] == 60


def test_an_approval_that_contradicts_the_application_is_refused(nodes):
    me, peer = nodes
    _, theirs = applied(me, peer)
    contrary = policy(
        measurements=["dd" * 32],
        signers=[hash_of(TEE.signing)],
        tcb=["x"],
    )

    refusal = call_api(
        peer,
        "POST",
        f"/applications/{theirs}/approve",
        {"tee": contrary},
        status=400,
    )

    assert refusal["data"]["reason"] == CONFLICT
    assert paths_of(refusal) == {"tee.measurements", "tee.tcb"}
    assert status_of(peer, theirs) == "APPLIED"


def test_every_problem_of_a_policy_is_named_before_anything_is_sent(nodes):
    me, peer = nodes
    body = {
        "kind": "contract",
        "partner": PEER,
        "url": peer.addresses()["peer"],
        "tee": {
            "platform": "CSV",
            "measurements": ["xyz"],
            "max_age": 0,
            "more": 1,
        },
    }

    refusal = call_api(me, "POST", "/applications", body, 400)

    assert paths_of(refusal) == {
        "tee.platform",
        "tee.measurements[0]",
        "tee.max_age",
        "tee.more",
    }
    assert not me.stored_applications.list()


def test_reports_that_this_node_cannot_verify_are_not_applied_for(nodes):
    me, _ = nodes
    body = {
        "kind": "contract",
        "partner": PEER,
        "url": "ftp://x",
        "tee": OF_UNKNOWN_SIGNER,
    }

    refusal = call_api(me, "POST", "/applications", body, 400)

    assert paths_of(refusal) == {"url", "tee.signers"}
    assert not me.stored_applications.list()


def test_reports_that_this_node_cannot_verify_are_not_approved(nodes):
    me, peer = nodes
    _, theirs = applied(me, peer)

    refusal = call_api(
        peer,
        "POST",
        f"/applications/{theirs}/approve",
        {"tee": OF_UNKNOWN_SIGNER},
        status=400,
    )

    assert refusal["data"]["reason"] == "TEE_NOT_VERIFIABLE"
    assert paths_of(refusal) == {"tee.signers"}
    assert status_of(peer, theirs) == "APPLIED"


def test_a_job_whose_reports_this_node_cannot_verify_is_refused(nodes, contract):
    """The partner may have tightened the contract, or a key was removed since."""
    me, _ = nodes
    number, _ = contract
    change_application(
        me,
        number,
        tee_approved=TeePolicy(**OF_UNKNOWN_SIGNER).as_policy(),
    )

    with pytest.raises(AssertionError, match="TEE_NOT_VERIFIABLE") as refused:
        submit_example(me, PEER)

    assert "tee.signers" in str(refused.value)
    sources = f"provider example and contract {number} with {PEER}"
    assert f"demanded by {sources}: reports of these signers" in str(refused.value)


def test_a_policy_is_only_for_contracts(nodes, contract):
    me, _ = nodes
    body = {
        "kind": "project",
        "partner": PEER,
        "subject": "p",
        "tee": CONTRACT,
    }

    refusal = call_api(me, "POST", "/applications", body, 400)

    assert "tee" in paths_of(refusal)


def test_a_partner_that_ignores_the_policy_does_not_lift_it(nodes):
    """An older product approves the contract and does not repeat its policy."""
    me, peer = nodes
    mine, theirs = applied(me, peer)
    change_application(peer, theirs, tee=None)

    approve(peer, theirs)

    wait_for_status(me, mine, "APPROVED")
    assert shown(me, mine)["tee_agreed"] is False
    run = started_run(me, submit_example(me, PEER))
    assert run.refusal(report_of(run, OF_PROVIDER)) == MISMATCH
    run.end_reason()


def test_an_update_of_the_partner_does_not_lift_the_policy(nodes, contract):
    me, peer = nodes
    number, _ = contract
    body = {
        **credentials(peer),
        "contract_id": me.stored_applications.get(number).id,
        "tee": None,
    }

    peer.protocol.peer(ME).ask("/v1/interconn/node/update", body)

    assert shown(me, number)["tee"] is not None


def test_an_application_with_a_policy_in_no_form_is_refused(nodes):
    me, peer = nodes
    tee = {
        "platform": "SGX_DCAP",
        "measurements": [],
        "max_age": "x",
    }
    sender = Sender(me.card.key())

    refusal = sender.ask(
        peer,
        "POST",
        APPLY,
        {**credentials(me), "tee": tee},
        ME,
    )

    assert paths_of(refusal) == {"tee.measurements", "tee.max_age"}
    assert not peer.stored_applications.list()


def test_the_stricter_time_limit_holds(nodes):
    me, _ = nodes
    impatient = policy(
        measurements=[OF_BOTH],
        max_age=1,
    )
    make_contract(*nodes, tee=impatient)
    run = started_run(me, submit_example(me, PEER))
    report = TEE.report(
        run.binding,
        time.time() - 30,
        hex_ta_measurement=OF_BOTH,
    )

    assert run.refusal(report) == "TEE_REPORT_OLD"
    run.end_reason()
