"""Attacks on attested runs beyond wrong reports: simultaneous, broken, in bulk, at a restart."""

import importlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from adapter.bfia.examples import A_PROVIDER
from tests.core.example_jobs import IMAGE
from tests.e2e.nodes import wait_for
from tests.inprocess import PEER, Node, serving, settings, uploaded
from tests.memory_engine import MemoryEngine, MemoryWorld, Script
from tests.trust.attested import TABLE, TEE, StartedRun, started_run, submit_example
from tests.trust.software_tee import policy, public_pem, unified
from tests.world import UNREACHABLE, NodeSetup

VERIFY = "/v1/interconn/tee/uas/verify"
LONGEST = 500  # characters of a message
FLOOD = 24  # requests at the same time, more than a node has threads for other requests
PLUG_IN = """\
import threading

from gateway.domain.attestation import Claims

GATE = threading.Event()
entered = []


class Verifier:
    def verify(self, report, now):
        if "wait" in report.body:
            entered.append(1)
            GATE.wait(30)
        if "fail" in report.body:
            raise KeyError("of the plug-in")
        user_data = bytes.fromhex(report.body["user_data"])
        return Claims("Acme", "ab" * 32, "", user_data, "UpToDate", False, True)
"""


@pytest.fixture(scope="module")
def plug_in(tmp_path_factory):
    """Install a package that verifies reports of the platform Acme; return its module."""
    folder = tmp_path_factory.mktemp("plug-in")
    (folder / "attack_tee.py").write_text(PLUG_IN)
    info = folder / "attack_tee-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: attack-tee\nVersion: 1.0\n")
    group = "[bfia_gateway.tee_verifiers]"
    (info / "entry_points.txt").write_text(f"{group}\nAcme = attack_tee:Verifier\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("attack_tee")


@pytest.fixture(scope="module")
def node(shared_world, tmp_path_factory, plug_in):
    key = TEE.write_key(tmp_path_factory.mktemp("keys") / "tee.pem")
    setup = NodeSetup(
        routes={PEER: {**UNREACHABLE, "signing": "off"}},
        scripts={IMAGE: Script(code=None)},
        providers=[A_PROVIDER],
        settings={
            "tee": {
                "providers": {"example": policy()},
                "software_keys": [str(key)],
            }
        },
    )
    node = shared_world.node(setup)
    uploaded(node, "ns", "table", TABLE)
    node.keyring.make("ed25519")
    node.keyring.switch()
    return node


@pytest.fixture
def started(node):
    return started_run(node, submit_example(node))


def test_of_reports_at_the_same_time_only_one_counts(started):
    keys = [X25519PrivateKey.generate() for _ in range(8)]

    def submit(key):
        report = started.report(channel=key)
        return started.submit(report, public_pem(key))

    with ThreadPoolExecutor(len(keys)) as pool:
        responses = list(pool.map(submit, keys))

    accepted = []
    for key, response in zip(keys, responses, strict=True):
        if response["code"] == 0:
            accepted.append(public_pem(key))
    assert accepted == [started.run().attestation.public_key]


def test_one_report_sent_several_times_at_once_gets_one_response(started):
    reports = [started.report()] * 4

    with ThreadPoolExecutor(len(reports)) as pool:
        responses = list(pool.map(started.submit, reports))

    codes = {response["code"] for response in responses}
    assert codes == {0}


def nested(depth):
    return '{"a":' * depth + "1" + "}" * depth


def cut(started):
    text = json.dumps(started.report())
    return text[:-20]


def long_report(_):
    return " " * 300_000


def deep_report(_):
    return nested(100_000)


def deep_platform_report(_):
    report = unified("Software", {})
    return {**report, "json_report": nested(50_000)}


def list_as_report(_):
    return unified("Software", [1])


def wrong_digits(started):
    return started.report(hex_user_data="zz" * 64)


def cut_user_data(started):
    return started.report(hex_user_data="ab")


def endless_time(started):
    return started.report(int64_time=1e99)


def long_measurement(started):
    return started.report(hex_ta_measurement="cd" * 50_000)


def of_another_platform(started):
    user_data = started.binding + "00" * 32
    return unified("Acme", {"user_data": user_data})


def breaks_its_verifier(_):
    return unified("Acme", {"fail": True})


# What makes a broken report -> the reason of the refusal.
BROKEN = {
    cut: "TEE_REPORT_INVALID",
    long_report: "TEE_REPORT_INVALID",
    deep_report: "TEE_REPORT_INVALID",
    deep_platform_report: "TEE_REPORT_INVALID",
    list_as_report: "TEE_REPORT_INVALID",
    wrong_digits: "TEE_REPORT_INVALID",
    cut_user_data: "TEE_REPORT_INVALID",
    endless_time: "TEE_REPORT_INVALID",
    long_measurement: "TEE_MEASUREMENT_MISMATCH",
    of_another_platform: "TEE_PLATFORM_MISMATCH",
    breaks_its_verifier: "TEE_VERIFIER_FAILED",
}


@pytest.mark.parametrize("make_report", BROKEN)
def test_a_broken_report_ends_its_run_with_a_short_reason(started, make_report):
    reason = BROKEN[make_report]

    assert started.refusal(make_report(started)) == reason

    [entry] = started.audit()
    failure = started.run().failure
    assert len(entry["message"]) <= LONGEST
    assert len(failure.message) <= LONGEST
    assert started.fetch_refusal() == "RUN_OVER"
    assert started.end_reason() == reason


def test_a_report_larger_than_any_is_not_read(started):
    report = {"str_report_version": "x" * 2_000_000}

    assert started.refusal(report) == "TOO_LARGE"

    assert started.run().failure is None


def test_verifications_for_a_partner_leave_threads_for_others(node, started, plug_in):
    report = unified(
        "Acme",
        {
            "wait": True,
            "user_data": "00" * 64,
        },
    )

    def verify(_):
        response = node.post(
            VERIFY,
            {"nonce": "00ff", "report": report},
            listener="peer",
            headers={"x-source-node-id": PEER},
        )
        return response.json()["result_code"]

    with ThreadPoolExecutor(FLOOD) as pool:
        flood = pool.map(verify, range(FLOOD))
        try:
            wait_for(lambda: plug_in.entered)

            assert started.submit(started.report())["code"] == 0
            assert started.input()
            assert len(plug_in.entered) <= 2
        finally:
            plug_in.GATE.set()
        assert set(flood) == {"0"}


def test_a_gateway_restarted_after_the_verification_hands_over(tmp_path):
    key = TEE.write_key(tmp_path / "tee.pem")
    engine = MemoryEngine.making(
        {IMAGE: Script(code=None)},
        world=MemoryWorld(),
    )
    tee = {
        "providers": {"example": policy()},
        "software_keys": [str(key)],
    }

    def gateway():
        own_settings = settings(tmp_path / "me", tee=tee)
        return Node(own_settings, engine=engine)

    with serving(gateway()) as node:
        node.post("/v2/provider/register", A_PROVIDER)
        uploaded(node, "ns", "table", TABLE)
        run = started_run(node, submit_example(node))
        report = run.report()
        first = run.submit(report)
    with serving(gateway()) as node:
        launch = relocated(run.launch, node)
        again = StartedRun(node, run.job_id, launch)

        assert again.submit(report) == first
        assert again.input()
        later = TEE.report(
            run.binding,
            time.time() + 1,
        )
        assert again.refusal(later) == "TEE_REPORT_REPEATED"
        again.end()


def relocated(launch, node):
    """Return a launch whose URL is that of a gateway with other ports."""
    url = launch.environment["system.attestation.url"]
    path = url[url.index("/v1/") :]
    base = node.services.sockets.for_containers.base_url()
    environment = {**launch.environment, "system.attestation.url": base + path}
    return SimpleNamespace(name=launch.name, environment=environment)
