"""An installed package adds a platform of attestation reports."""

from datetime import UTC, datetime

import pytest

from gateway.attestation.verifiers import Verifiers, platforms
from gateway.domain.attestation import ReportRefused, read_report
from tests.trust.software_tee import unified

MODULE = """\
from gateway.domain.attestation import Claims


class Verifier:
    def verify(self, report, now):
        return Claims(report.platform, report.body["hash"], "", bytes(64), "UpToDate", False, True)
"""
NOW = datetime(2026, 11, 30, tzinfo=UTC)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package whose entry points name platforms."""

    def install(*names):
        (tmp_path / "acme_tee.py").write_text(MODULE)
        info = tmp_path / "acme_tee-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-tee\nVersion: 1.0\n")
        lines = [f"{name} = acme_tee:Verifier" for name in names]
        group = "[bfia_gateway.tee_verifiers]"
        (info / "entry_points.txt").write_text("\n".join([group, *lines]))
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_a_plug_in_verifies_reports_of_its_platform(install):
    install("Acme")

    claims = Verifiers({}).verify(read_report(unified("Acme", {"hash": "ab"})), NOW)

    assert claims.measurement == "ab"
    assert "Acme" in platforms()


def test_a_plug_in_does_not_replace_a_built_in_platform(install):
    install("Software")

    with pytest.raises(ReportRefused) as refused:
        Verifiers({}).verify(read_report(unified("Software", {"hash": "ab"})), NOW)

    assert refused.value.reason == "TEE_REPORT_INVALID"
