"""What other institutions read of a failure does not say where things lie on our machines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.redaction import for_others, redacted


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[Errno 28] No space left on device: '/srv/bfia/storage/x'", "[Errno 28] No space left on device: '…/x'"),
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
        ("HTTPSConnectionPool(host='10.0.0.9', port=2376): refused", "HTTPSConnectionPool(host='…'): refused"),
    ],
)
def test_of_a_path_the_last_part_is_told(text: str, told: str):
    assert for_others(text) == told == for_others(told)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no such path on this listener: /v1/interconn/schedule/job/none",
        "http://10.0.0.5:7381/v1/platform/schedule and https://shop.example/a/b/c",
        "there is no image shop.example:5000/algorithms/psi:1.0",
        "read /bfia/storage/space/name/data_0",
        'exec: "/run.py": no such file',
        "guest/host, 1/2/3 and/or",
        "../x/y ~/x/y ./x/y",
    ],
)
def test_what_is_no_path_of_a_machine_stays(text: str):
    assert for_others(text) == text


def test_in_an_answer_messages_and_warnings_are_in_words_for_others_and_values_stay():
    said = {
        "status": "tcp://a",
        "failed_by": {"message": "at tcp://a", "reason": "X"},
        "tasks": [{"message": "/a/b"}],
    }
    assert redacted(said | {"warnings": ["tcp://a"], "message": None}) == {
        "status": "tcp://a",
        "failed_by": {"message": "at tcp://…", "reason": "X"},
        "tasks": [{"message": "…/b"}],
        "warnings": ["tcp://…"],
        "message": None,
    }


@given(st.lists(st.sampled_from(["tcp://", "ssh://", "a", "@", ":", ".", "/", " ", "…", "'"])).map("".join))
def test_an_address_is_taken_out_once_and_for_all(text: str):
    assert for_others(for_others(text)) == for_others(text)


@given(st.text(st.sampled_from("/a.: '~v1…"), max_size=40))
def test_whatever_is_said_is_told_the_same_a_second_time(text: str):
    assert for_others(for_others(text)) == for_others(text)
