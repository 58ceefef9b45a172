"""`doctor` says what the attestation reports of this node prove."""

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from gateway.config.schema.tee import TeePolicy, TeeSettings
from gateway.diagnostics.attestation import attestation, reports_of
from gateway.domain.applications import APPROVED, Kind, Side, new_application
from gateway.domain.attestation import AttestationPolicy
from gateway.domain.attestation_policies import Demand
from gateway.runtime.trials import Result
from gateway.store.applications import SqlApplications
from gateway.store.database import open_database
from gateway.store.store import Store
from tests.trust.software_tee import SoftwareTee, policy


def settings(file, **providers):
    """Return settings with policies of providers and a key of software reports."""
    tee = TeeSettings(
        providers={name: TeePolicy(**values) for name, values in providers.items()},
        software_keys=[file],
    )
    return SimpleNamespace(tee=tee)


def check(file, **providers):
    return reports_of(settings(file, **providers))


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


def test_reports_that_cannot_be_verified_fail_with_all_their_sources(tmp_path):
    key = SoftwareTee().write_key(tmp_path / "key.pem")
    kunpeng = AttestationPolicy("Kunpeng", ("ab",))
    contracts = [
        Demand("contract 3 with JG2", kunpeng),
        Demand("contract 4 with JG3", kunpeng),
    ]

    step = reports_of(settings(key, acme=policy()), contracts)

    assert step.result is Result.FAILED
    assert "contract 3 with JG2: reports of this platform cannot be verified" in step.cause
    assert "contract 4 with JG3: reports of this platform cannot be verified" in step.cause
    assert "plug-in" in step.remedy
    assert step.found == (
        "for provider acme: Software; for contract 3 with JG2: Kunpeng; "
        "for contract 4 with JG3: Kunpeng"
    )


@pytest.mark.parametrize(
    ("ends_after", "listed"),
    [(None, True), (timedelta(days=1), True), (timedelta(days=-1), False)],
    ids=["no end", "in force", "ended"],
)
def test_contracts_in_force_are_listed_from_the_database(tmp_path, ends_after, listed):
    now = datetime.now(UTC)
    contract = new_application(
        Kind.CONTRACT,
        "contract-1",
        "JG2",
        Side.MINE,
        "JG2",
        {},
        now,
    )
    store = Store(open_database(f"sqlite:///{tmp_path / 'state.db'}"))
    with closing(store):
        SqlApplications(store).add(
            replace(
                contract,
                status=APPROVED,
                tee=AttestationPolicy("SGX_DCAP", ("ab",)),
                expires_at=now + ends_after if ends_after else None,
            )
        )
        node = SimpleNamespace(
            settings=SimpleNamespace(tee=TeeSettings()),
            store=store,
            database_ready=True,
        )
        step = attestation(node)

    assert ("contract 1 with JG2: SGX_DCAP" in step.found) is listed


def test_an_unusable_key_fails(tmp_path):
    step = check(tmp_path / "missing.pem", acme=policy())

    assert step.result is Result.FAILED


def test_without_a_policy_nothing_is_checked(tmp_path):
    assert check(tmp_path / "missing.pem").result is Result.OK
