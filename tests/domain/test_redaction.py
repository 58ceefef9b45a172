"""Messages for other nodes and institutions: without foreign data, settings and paths."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.quorum import ending_for
from gateway.domain.redaction import for_others, redacted, without_others
from gateway.domain.spec import Amendment, Ending, Failure
from gateway.domain.states import Outcome
from tests.builders import T0, a_job, a_spec


@pytest.mark.parametrize(
    ("text", "redacted_text"),
    [
        (
            "[Errno 28] No space left on device: '/srv/bfia/storage/x'",
            "[Errno 28] No space left on device: '…/x'",
        ),
        ("no right to write to /var/lib/bfia/process", "no right to write to …/process"),
        ("(/a/b.log), /a/b/: no", "(…/b.log), …/: no"),
        ("/home/li/données/表.csv", "…/表.csv"),
        ("mount x:/var/lib/x failed", "mount x:…/x failed"),
        ("no such file: '/var/lib/bfia/secret dir/y'", "no such file: '…/y'"),
        ("dial unix:///var/run/docker.sock", "dial unix://…/docker.sock"),
        ("write file:///srv/storage/t/data_0", "write file://…/data_0"),
        ("engine tcp://10.9.9.9:2376 of node n1 has cpu 2", "engine tcp://… of node n1 has cpu 2"),
        ("is to run at tcp://[fe80::1]:2376, which", "is to run at tcp://…, which"),
        (
            "ssh://li@10.0.0.9/run/d.sock: li@10.0.0.9: Permission denied (10.0.0.9).",
            "ssh://…: li@…: Permission denied (…).",
        ),
        ("ssh://docker: engine.docker.daemons", "ssh://…: engine.docker.daemons"),
        (
            "HTTPSConnectionPool(host='10.0.0.9', port=2376): refused",
            "HTTPSConnectionPool(host='…'): refused",
        ),
    ],
)
def test_only_the_last_part_of_a_path_or_address_is_shown(text: str, redacted_text: str):
    assert for_others(text) == redacted_text
    assert for_others(redacted_text) == redacted_text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no such path on this listener: /v1/interconn/schedule/job/none",
        "JG2 refuses /task/start with code 7: no",
        "http://10.0.0.5:7381/v1/platform/schedule and https://shop.example/a/b/c",
        "there is no image shop.example:5000/algorithms/psi:1.0",
        "read /bfia/storage/space/name/data_0",
        'exec: "/run.py": no such file',
        "guest/host, 1/2/3 and/or",
        "../x/y ~/x/y ./x/y",
    ],
)
def test_a_text_without_a_machines_path_stays(text: str):
    assert for_others(text) == text


def test_messages_and_warnings_of_a_response_are_redacted_and_values_kept():
    response = {
        "status": "tcp://a",
        "failed_by": {"message": "at tcp://a", "reason": "X"},
        "tasks": [{"message": "/a/b"}],
        "warnings": ["tcp://a"],
        "message": None,
    }

    assert redacted(response) == {
        "status": "tcp://a",
        "failed_by": {"message": "at tcp://…", "reason": "X"},
        "tasks": [{"message": "…/b"}],
        "warnings": ["tcp://…"],
        "message": None,
    }


def test_a_response_without_messages_is_kept():
    assert redacted(["tcp://a"]) == ["tcp://a"]


# Texts made of the pieces that the redaction looks for.
PATH_LIKE_TEXTS = st.lists(st.sampled_from(["tcp://", "ssh://", *"/a@.: '~v1…"]), max_size=40).map(
    "".join
)


@given(PATH_LIKE_TEXTS)
def test_redacting_twice_changes_nothing_more(text: str):
    assert for_others(for_others(text)) == for_others(text)


GUEST = "n1"
HOST = "n2"
ARBITER = "n3"

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
    a_spec(
        "a",
        {
            "guest": (GUEST,),
            "host": (HOST, ARBITER),
            "arbiter": (ARBITER,),
        },
    ),
    task_params=PARAMS,
    job_params={"host": {"0": {"note": "hosts-note"}}},
)


@pytest.mark.parametrize(
    ("message", "redacted_message"),
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
        (
            "one [{'x': 'hosts deep'}] of them (got [{\"x\": \"hosts deep\"}])",
            "one [{'x': '…'}] of them (got …)",
        ),
        ("hosts-note, guests-key", "…, …"),
        ("shared-mode at host.0 (got 7)", "shared-mode at host.0 (got 7)"),
        ("within 5 seconds; loans_2 and cab stay", "within 5 seconds; loans_2 and cab stay"),
    ],
)
def test_a_third_party_gets_a_redacted_message(message: str, redacted_message: str):
    assert without_others(SPEC, ARBITER, message) == redacted_message


def test_a_failure_is_redacted_for_nodes_that_neither_failed_nor_submitted():
    text = "dataset bank#loans is not granted (got 'bank#loans')"
    failure = Failure("NOT_AUTHORISED", text, HOST)
    ending = Ending(Outcome.REJECTED, T0, failure)
    job = replace(
        a_job(spec=SPEC),
        ending=ending,
    )

    redacted_failure = replace(failure, message="dataset … is not granted (got '…')")
    assert ending_for(job, GUEST) == ending
    assert ending_for(job, HOST) == ending
    assert ending_for(job, ARBITER) == replace(
        ending,
        failure=redacted_failure,
    )


def test_new_parameters_are_hidden_as_those_of_the_submitted_job():
    new_params = {"host": {"0": {"a": {"note": "hosts-new-secret"}}}}
    amendment = Amendment("a1", new_params, HOST, "", T0)
    failure = Failure("X", "bank#loans with 'hosts-new-secret' failed", HOST)
    ending = Ending(Outcome.FAILED, T0, failure)
    job = replace(
        a_job(spec=SPEC),
        ending=ending,
        amendments=(amendment,),
    )

    redacted_failure = replace(failure, message="… with '…' failed")
    assert ending_for(job, ARBITER) == replace(
        ending,
        failure=redacted_failure,
    )
    assert ending_for(job, HOST) == ending
