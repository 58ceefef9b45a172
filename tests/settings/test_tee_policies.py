"""The section ``tee``: policies of attestation reports, and all problems with them."""

import pytest

from gateway.config.loader import load
from gateway.config.schema.tee import policies_of, software_keys_of
from gateway.errors import Invalid
from tests.trust.software_tee import SoftwareTee, policy

SGX = {
    "platform": "SGX_DCAP",
    "measurements": ["AB" * 32],
}


def settings(tmp_path, **tee):
    return load(
        None,
        {
            "node": {"id": "JG0100001100000010"},
            "engine": {"kind": "process"},
            "state_dir": str(tmp_path),
            "tee": tee,
        },
    )


def problems_of(tmp_path, **tee):
    with pytest.raises(Invalid) as refused:
        settings(tmp_path, **tee)
    return {problem.path: problem.rule for problem in refused.value.problems}


def test_a_policy_holds_for_its_provider(tmp_path):
    tee = settings(tmp_path, providers={"acme": SGX}).tee

    policies = policies_of(tee)

    assert policies["acme"].measurements == ("ab" * 32,)
    assert policies["acme"].tcb == ("UpToDate",)


def test_every_problem_of_the_policies_is_named(tmp_path):
    providers = {
        "a": {"platform": "CSV", "measurements": ["00"]},
        "b": {**SGX, "measurements": ["xyz"], "max_age": 0},
        "c": {"platform": "SGX_DCAP"},
    }

    problems = problems_of(tmp_path, providers=providers)

    assert "Hygon" in problems["tee.providers.a.platform"]
    assert "hexadecimal" in problems["tee.providers.b.measurements[0]"]
    assert "tee.providers.b.max_age" in problems
    assert "tee.providers.c.measurements" in problems


RULES = {
    "a short measurement of SGX": ({**SGX, "measurements": ["00"]}, "64 hexadecimal digits"),
    "a signer of TDX": (
        {"platform": "TDX", "measurements": ["00" * 240], "signers": ["00"]},
        "signers must be empty",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_policy_that_no_report_can_meet_is_refused(tmp_path, name):
    values, rule = RULES[name]

    problems = problems_of(tmp_path, providers={"acme": values})

    assert rule in problems["tee.providers.acme"]


def test_software_reports_need_a_key(tmp_path):
    problems = problems_of(tmp_path, providers={"acme": policy()})

    assert "software_keys must name a key" in problems["tee"]


def test_every_unusable_key_is_named(tmp_path):
    good = SoftwareTee().write_key(tmp_path / "good.pem")
    bad = tmp_path / "bad.pem"
    bad.write_text("no key")
    files = [str(good), str(bad), str(tmp_path / "missing.pem")]

    with pytest.raises(Invalid) as refused:
        software_keys_of(settings(tmp_path, software_keys=files).tee)

    paths = [problem.path for problem in refused.value.problems]
    assert paths == ["tee.software_keys[1]", "tee.software_keys[2]"]
