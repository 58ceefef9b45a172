"""A run of a provider that has to prove its TEE gets inputs only after its report was verified."""

import json
import time

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from adapter.bfia.examples import A_PROVIDER
from gateway.domain.attestation import run_binding
from tests.core.example_jobs import IMAGE, wait_for_end
from tests.inprocess import PEER, uploaded
from tests.memory_engine import Script
from tests.trust.attested import TABLE, TEE, started_run, submit_example
from tests.trust.software_tee import policy, public_pem, unified
from tests.world import UNREACHABLE, NodeSetup

VERIFY = "/v1/interconn/tee/uas/verify"


@pytest.fixture(scope="module")
def node(shared_world, tmp_path_factory):
    key = TEE.write_key(tmp_path_factory.mktemp("keys") / "tee.pem")
    setup = NodeSetup(
        routes={PEER: {**UNREACHABLE, "signing": "off"}},
        scripts={IMAGE: Script(code=None)},
        providers=[A_PROVIDER],
        settings={
            "tee": {
                "providers": {"example": policy(signers=[])},
                "software_keys": [str(key)],
            }
        },
    )
    node = shared_world.node(setup)
    uploaded(node, "ns", "table", TABLE)
    return node


@pytest.fixture
def started(node):
    """A running run of the guest with an input."""
    return started_run(node, submit_example(node))


def test_a_verified_run_gets_its_input_encrypted_for_its_key(node, started):
    assert "runtime.component.input.train_data" not in started.launch.environment

    response = started.submit(started.report())

    assert response["code"] == 0, response
    train_data = response["data"]["inputs"]["train_data"]
    assert (train_data["namespace"], train_data["name"]) == ("ns", "table")
    assert "data_0" in train_data["files"]
    sealed = started.fetch(name="train_data", file="data_0").content
    content = TEE.open_input(sealed)
    assert b"a,1" in content
    assert content not in sealed
    attestation = started.run().attestation
    assert attestation.platform == "Software"
    assert not attestation.is_hardware
    assert started.audit()[0]["hardware"] is False
    node.engine.finish(started.name)


def test_the_provider_names_the_demanded_platform(node):
    provider = node.get("/api/v1/providers/example:1.0.0@docker").json()

    assert provider["attestation"] == "Software"


def test_a_second_report_with_another_key_is_refused(started):
    assert started.submit(started.report())["code"] == 0
    second_key = X25519PrivateKey.generate()

    response = started.submit(
        started.report(channel=second_key),
        key=public_pem(second_key),
    )

    assert response["data"]["reason"] == "TEE_REPORT_REPEATED"
    assert TEE.open_input(started.fetch().content)


def test_a_repeated_report_gets_the_same_response(started):
    """The run repeats it if the gateway was killed before the first response arrived."""
    report = started.report()
    first = started.submit(report)

    assert started.submit(report) == first

    assert len(started.audit()) == 1


def test_a_path_outside_the_inputs_is_refused(started):
    started.submit(started.report())

    response = started.fetch(name="train_data", file="../table/data_0").json()

    assert response["data"]["reason"] == "NOT_FOUND"


def other_image(started):
    run = started.run()
    return run_binding(run.run_id, run.token, "memory:another-image").hex()


def tampered(report):
    body = json.loads(report["json_report"])
    body["json_attributes"] = body["json_attributes"].replace("true", "True")
    return unified("Software", body)


ATTACKS = {
    "a wrong measurement": (
        lambda started: started.report(hex_ta_measurement="cd" * 32),
        "TEE_MEASUREMENT_MISMATCH",
    ),
    "an old report": (
        lambda started: TEE.report(started.binding, time.time() - 3600),
        "TEE_REPORT_OLD",
    ),
    "a report of the future": (
        lambda started: TEE.report(started.binding, time.time() + 3600),
        "TEE_REPORT_OLD",
    ),
    "a report of another run": (
        lambda started: TEE.report(run_binding("r", "t", "d").hex(), time.time()),
        "TEE_OTHER_RUN",
    ),
    "a report of another image": (
        lambda started: TEE.report(other_image(started), time.time()),
        "TEE_OTHER_RUN",
    ),
    "a report for another channel key": (
        lambda started: started.report(channel=X25519PrivateKey.generate()),
        "TEE_KEY_MISMATCH",
    ),
    "a tampered report": (
        lambda started: tampered(started.report()),
        "TEE_SIGNATURE_INVALID",
    ),
    "an unknown signer": (
        lambda started: started.report(signing=Ed25519PrivateKey.generate()),
        "TEE_SIGNATURE_INVALID",
    ),
    "debug mode": (
        lambda started: started.report(bool_debug_disabled="false"),
        "TEE_DEBUG_MODE",
    ),
    "a platform that is not verified": (
        lambda started: unified("CSV", {"b64_quote": "AAAA"}),
        "TEE_PLATFORM_UNSUPPORTED",
    ),
    "a report without a platform": (
        lambda started: {"str_report_version": "2.0"},
        "TEE_REPORT_INVALID",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_refused_report_gets_nothing_and_ends_the_run(node, started, attack):
    make_report, reason = ATTACKS[attack]

    response = started.submit(make_report(started))

    assert response["data"]["reason"] == reason
    assert started.run().failure.reason == reason
    assert started.audit()[0]["reason"] == reason
    assert started.fetch(name="train_data", file="data_0").json()["code"] != 0
    assert wait_for_end(node, started.job_id).ending.failure.reason == reason


def test_a_key_of_another_kind_is_refused(started):
    response = started.submit(started.report(), key="no key")

    assert response["data"]["reason"] == "TEE_KEY_INVALID"


def test_without_a_report_no_input_is_given(started):
    response = started.fetch(name="train_data", file="data_0").json()

    assert response["data"]["reason"] == "TEE_REPORT_MISSING"


@pytest.mark.parametrize("code", [0, 1])
def test_a_run_that_ends_without_a_report_fails(node, started, code):
    node.engine.finish(started.name, code)

    job = wait_for_end(node, started.job_id)

    assert job.ending.failure.reason == "TEE_REPORT_MISSING"


def test_another_runs_token_is_refused(started):
    url = started.url.replace("?run=", "?run=x")

    response = httpx.post(
        url,
        json={"report": "{}", "pem_public_key": ""},
        trust_env=False,
    ).json()

    assert response["data"]["reason"] == "RUN_UNKNOWN"


def verify(node, report, **headers):
    return node.post(
        VERIFY,
        {"nonce": "00ff", "report": report},
        listener="peer",
        headers=headers or {"x-source-node-id": PEER},
    )


def test_without_a_key_the_node_signs_no_result(world):
    setup = NodeSetup(routes={PEER: {**UNREACHABLE, "signing": "off"}})

    response = verify(world.node(setup), "{}").json()

    assert response["result_code"] == "TEE_SERVICE_WITHOUT_KEY"


def test_another_node_has_a_report_verified(node):
    node.keyring.make("ed25519")
    node.keyring.switch()

    response = verify(node, json.dumps(TEE.report("00" * 32, time.time()))).json()

    assert response["result_code"] == "0"
    assert "proves no hardware" in response["result_msg"]
    report = json.loads(json.loads(response["attestation_result"])["json_report"])
    result = json.loads(report["str_uas_result"])
    assert result["hex_nonce"] == "00FF"
    assert result["str_tee_platform"] == "Software"


def test_a_node_learns_why_a_report_is_refused(node):
    node.keyring.make("ed25519")
    node.keyring.switch()

    response = verify(node, tampered(TEE.report("00" * 32, time.time())))

    assert response.status_code == 200
    assert response.json()["result_code"] == "TEE_SIGNATURE_INVALID"


def test_a_request_without_a_report_has_status_400(node):
    response = node.post(
        VERIFY,
        {"nonce": "zz"},
        listener="peer",
        headers={"x-source-node-id": PEER},
    )

    assert response.status_code == 400
    problems = response.json()["data"]["problems"]
    assert {problem["path"] for problem in problems} == {"nonce", "report"}


def test_a_node_without_a_route_has_no_report_verified(node):
    response = verify(node, "{}", **{"x-source-node-id": "JG0000000000000404"})

    assert response.json()["data"]["reason"] == "NOT_AUTHORISED"
