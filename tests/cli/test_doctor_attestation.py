"""`doctor` says what the attestation reports of this node prove."""

from types import SimpleNamespace

from gateway.config.schema.tee import TeePolicy, TeeSettings
from gateway.diagnostics.attestation import reports_of
from gateway.runtime.trials import Result
from tests.trust.software_tee import SoftwareTee, policy


def check(file, **providers):
    tee = TeeSettings(
        providers={name: TeePolicy(**values) for name, values in providers.items()},
        software_keys=[file],
    )
    return reports_of(SimpleNamespace(tee=tee))


def test_software_reports_are_said_to_prove_no_hardware(tmp_path):
    key = SoftwareTee().write_key(tmp_path / "key.pem")

    step = check(key, acme=policy())

    assert step.result is Result.WARNING
    assert "acme are signed by software and prove no hardware" in step.cause


def test_reports_of_sgx_are_said_to_be_untried_on_hardware(tmp_path):
    key = SoftwareTee().write_key(tmp_path / "key.pem")

    step = check(key, acme={"platform": "SGX_DCAP", "measurements": ["00" * 32]})

    assert step.result is Result.OK
    assert "on no machine with a TEE" in step.found


def test_an_unusable_key_fails(tmp_path):
    step = check(tmp_path / "missing.pem", acme=policy())

    assert step.result is Result.FAILED


def test_without_a_policy_nothing_is_checked(tmp_path):
    assert check(tmp_path / "missing.pem").result is Result.OK
