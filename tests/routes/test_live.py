"""The table in force while its file is edited, broken, removed and put back."""

import os

import pytest

from route_table.live import MAX_BYTES, LiveRoutes
from route_table.model import RouteTable

GOOD = "A: {host: h, port: 1}\n"
OTHER = "A: {host: h, port: 2}\n"


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "routes.yml"
    file.write_text(GOOD)
    return file


def rules(live):
    return [(p.path, p.rule) for p in live.problems]


def test_a_missing_file_is_an_empty_table_and_a_problem_until_it_appears(tmp_path):
    file = tmp_path / "routes.yml"
    live = LiveRoutes(file)
    assert live.table == RouteTable(0)
    assert rules(live) == [("route_table.file", "does not exist")]
    assert not live.reload()
    file.write_text(GOOD)
    assert live.reload()
    assert live.table.version == 1
    assert live.problems == ()


def test_an_invalid_edit_keeps_the_table_and_tells_why(file):
    live = LiveRoutes(file)
    before = live.table
    file.write_text("A: {host: h, prot: 2}\n")
    assert not live.reload()
    assert live.table is before
    assert rules(live) == [
        ("A.prot", "line 1: unknown key; did you mean port?"),
        ("A.port", "line 1: is missing; give host and port, or url"),
    ]
    file.write_text(GOOD)
    assert not live.reload()
    assert live.table is before
    assert live.problems == ()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"A: \xff", ("(document)", "must be UTF-8 text")),
        (b"#" * (MAX_BYTES + 1), ("route_table.file", f"must not be larger than {MAX_BYTES} bytes")),
    ],
)
def test_content_that_is_no_text_is_a_problem(file, content, problem):
    live = LiveRoutes(file)
    file.write_bytes(content)
    assert not live.reload()
    assert rules(live) == [problem]
    assert live.table.knows("A")


def test_a_file_that_empties_or_goes_keeps_the_table(file):
    live = LiveRoutes(file)
    for spoil in (lambda: file.write_text(""), file.unlink):
        spoil()
        assert not live.reload()
        assert live.table.knows("A") and len(live.problems) == 1
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    live.reload()
    assert live.problems == ()


def test_what_is_no_file_is_a_problem_and_is_not_opened(tmp_path):
    assert rules(LiveRoutes(tmp_path)) == [("route_table.file", "is not a file")]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert rules(LiveRoutes(pipe)) == [("route_table.file", "is not a file")]
