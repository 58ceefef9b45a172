"""What the other nodes are told of a failure names no data and no settings that are not theirs."""

from dataclasses import replace

import pytest

from gateway.domain.quorum import ending_for
from gateway.domain.redaction import without_others
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import Outcome
from tests.builders import T0, a_job, a_spec

GUEST, HOST, ARBITER = "n1", "n2", "n3"
PARAMS = {
    "common": {"a": {"mode": "shared-mode"}},
    "guest": {"0": {"a": {"dataset_id": "g#t", "key": "guests-key"}}},
    "host": {
        "0": {
            "a": {
                "namespace": "bank",
                "name": "loans",
                "limit": 5,
                "mode": "shared-mode",
                "deep": [{"x": "hosts deep"}],
                "short": "ab",
            }
        },
        "1": {"a": {"limit": 7}},
    },
}
SPEC = replace(
    a_spec("a", {"guest": (GUEST,), "host": (HOST, ARBITER), "arbiter": (ARBITER,)}),
    task_params=PARAMS,
    job_params={"host": {"0": {"note": "hosts-note"}}},
)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("dataset bank#loans is not granted at node n2", "dataset … is not granted at node n2"),
        ("bank/loans lacks its part data_0", "… lacks its part data_0"),
        ("dataset g#t is disabled", "dataset … is disabled"),
        (
            "config.task_params.host.0.a.limit: at most 3 (got 5)",
            "config.task_params.host.0.a.limit: at most 3 (got …)",
        ),
        (
            "config.task_params.host.0.a.short: no (got 'ab'); x",
            "config.task_params.host.0.a.short: no (got …); x",
        ),
        ("one [{'x': 'hosts deep'}] of them (got [{'x': 'hosts deep'}])", "one [{'x': '…'}] of them (got …)"),
        ("hosts-note, guests-key", "…, …"),
        ("shared-mode at host.0 (got 7)", "shared-mode at host.0 (got 7)"),
        ("within 5 seconds; loans_2 and cab stay", "within 5 seconds; loans_2 and cab stay"),
    ],
)
def test_a_third_party_reads_the_words_without_what_is_not_its_own(said: str, told: str):
    assert without_others(SPEC, ARBITER, said) == told


def test_only_who_has_no_part_in_the_failure_and_did_not_hand_the_job_in_is_told_less():
    text = "dataset bank#loans is not granted (got 'bank#loans')"
    failure = Failure("NOT_AUTHORISED", text, HOST)
    job = replace(a_job(spec=SPEC), ending=Ending(Outcome.REJECTED, T0, failure))
    told = {node: ending_for(job, node) for node in (GUEST, HOST, ARBITER)}
    assert told[GUEST] == told[HOST] == job.ending
    assert told[ARBITER] == replace(
        job.ending, failure=replace(failure, message="dataset … is not granted (got '…')")
    )
