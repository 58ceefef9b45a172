"""What other institutions read of a failure does not say where things lie on our machines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.outward import without_folders


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
    ],
)
def test_of_a_path_the_last_part_is_told(text: str, told: str):
    assert without_folders(text) == told == without_folders(told)


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
    assert without_folders(text) == text


@given(st.text(st.sampled_from("/a.: '~v1…"), max_size=40))
def test_whatever_is_said_is_told_the_same_a_second_time(text: str):
    assert without_folders(without_folders(text)) == without_folders(text)
