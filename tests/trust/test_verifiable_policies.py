"""Policies of attestation reports that a node could never verify are named beforehand."""

from types import SimpleNamespace

import pytest

from gateway.attestation.verifiers import Verifiers
from gateway.domain.attestation import STORAGE_RULE, Attestation, AttestationPolicy
from gateway.jobs.launcher import Launching, LaunchRules
from tests.builders import T0, a_local_job, a_run, returning
from tests.trust.software_tee import MEASUREMENT, SoftwareTee, hash_of

TEE = SoftwareTee()
WITHOUT_KEYS = Verifiers({})
WITH_KEY = Verifiers({hash_of(TEE.signing): TEE.signing.public_key()})


def a_policy(platform="Software", signers=()):
    return AttestationPolicy(platform, (MEASUREMENT,), tuple(signers))


def problems_of(verifiers, policy):
    """Return path and reason of each problem, and the texts."""
    problems = verifiers.problems(policy, "tee.providers.acme")
    places = [(problem.path, problem.reason) for problem in problems]
    return places, " ".join(problem.rule for problem in problems)


PLATFORM = [("tee.providers.acme.platform", "TEE_NOT_VERIFIABLE")]


@pytest.mark.parametrize(
    ("platform", "cause"),
    [
        ("Software", "tee.software_keys names no key"),
        ("Kunpeng", "no recorded report"),
        ("Gone", "no such platform is known"),
    ],
)
def test_a_platform_without_verifier_or_key_is_named_with_its_cause(platform, cause):
    places, text = problems_of(WITHOUT_KEYS, a_policy(platform))

    assert places == PLATFORM
    assert cause in text


@pytest.mark.parametrize("platform", ["SGX_DCAP", "TDX"])
def test_a_platform_of_intel_needs_its_library(platform, monkeypatch):
    assert problems_of(WITHOUT_KEYS, a_policy(platform)) == ([], "")
    monkeypatch.setattr("gateway.attestation.verifiers.has_dcap", returning(False))

    places, text = problems_of(WITHOUT_KEYS, a_policy(platform))

    assert places == PLATFORM
    assert "is not installed" in text


def test_signers_without_a_key_here_are_named():
    places, _ = problems_of(WITH_KEY, a_policy(signers=["ab" * 32]))

    assert places == [("tee.providers.acme.signers", "TEE_NOT_VERIFIABLE")]


@pytest.mark.parametrize("signers", [[], ["ab" * 32, hash_of(TEE.signing)]])
def test_a_policy_with_a_known_signer_has_no_problem(signers):
    assert problems_of(WITH_KEY, a_policy(signers=signers)) == ([], "")


def test_a_policy_after_the_creation_still_keeps_inputs_from_open_storages():
    """A launch refuses a storage that was fine when the job was created."""
    rules = LaunchRules(
        allow={},
        signatures=None,
        pinned=None,
        limits=None,
        demanded_report=returning(Attestation("Software", a_policy())),
        limits_access=returning(False),
    )
    context = SimpleNamespace(store=None, clock=returning(T0))
    launching = Launching(context, None, None, None, None, None, rules)
    run = a_run()
    run.data.inputs["train_data"] = SimpleNamespace(storage="lake")

    event = launching.launch(
        a_local_job(run),
        run,
        fetching=False,
    )

    assert event.failure.reason == "TEE_STORAGE"
    assert event.failure.message == STORAGE_RULE
