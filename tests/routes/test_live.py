"""The table in force while its file is edited, broken, removed and put back."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from route_table.live import MAX_BYTES, Change, LiveRoutes
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


def test_without_a_file_there_is_an_empty_table_and_no_problem():
    live = LiveRoutes(None)
    assert live.table == RouteTable(0)
    assert live.problems == ()
    assert not live.reload()


def test_the_file_is_read_at_once(file):
    live = LiveRoutes(file)
    assert live.table.version == 1
    assert live.table.resolve("A").url == "http://h:1"
    assert live.problems == ()


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


def test_an_edit_makes_a_new_version(file):
    live = LiveRoutes(file)
    before = live.table
    file.write_text(OTHER)
    assert live.reload()
    assert live.table.version == 2
    assert live.table.resolve("A").url == "http://h:2"
    assert before.resolve("A").url == "http://h:1"


def test_an_unchanged_file_changes_nothing(file):
    live = LiveRoutes(file)
    before = live.table
    assert not live.reload()
    assert live.table is before


def test_a_new_remark_in_the_file_is_kept_and_changes_no_route(file):
    live = LiveRoutes(file)
    before = live.table
    file.write_text(GOOD + "# a remark\n")
    assert not live.reload()
    assert live.table.routes == before.routes
    live.edit(Change("B", {"host": "b", "port": 2}), "ann")
    live.reload()
    assert sorted(file.read_text().splitlines()) == sorted(
        [GOOD.strip(), "# a remark", "B:", "  host: b", "  port: 2"]
    )


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


def test_a_truncated_file_does_not_empty_the_table(file):
    live = LiveRoutes(file)
    file.write_text("")
    assert not live.reload()
    assert live.table.knows("A")
    assert rules(live) == [("(document)", "has no entries; write {} for a table without routes")]


def test_a_removed_file_keeps_the_table(file):
    live = LiveRoutes(file)
    file.unlink()
    assert not live.reload()
    assert live.table.knows("A")
    assert rules(live) == [("route_table.file", "does not exist")]
    file.write_text(GOOD)
    live.reload()
    assert live.problems == ()


def test_a_file_with_a_byte_order_mark_is_read(file):
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert LiveRoutes(file).table.knows("A")


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


def test_what_is_no_file_is_a_problem_and_is_not_opened(tmp_path):
    assert rules(LiveRoutes(tmp_path)) == [("route_table.file", "is not a file")]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert rules(LiveRoutes(pipe)) == [("route_table.file", "is not a file")]


def test_a_path_that_cannot_be_looked_at_is_a_problem(tmp_path):
    live = LiveRoutes(tmp_path / ("x" * 300))
    [problem] = live.problems
    assert problem.path == "route_table.file"
    assert live.table.routes == {}


def test_a_refused_edit_is_logged_once(file, caplog):
    caplog.set_level(logging.INFO, logger="route_table.live")
    live = LiveRoutes(file)
    file.write_text("A: 1\n")
    live.reload()
    live.reload()
    file.write_text("A: 1\n\n")
    live.reload()
    assert [r.getMessage() for r in caplog.records] == [
        "route table changed",
        "route table file not accepted",
    ]


def test_readers_in_other_threads_see_whole_tables_only(file):
    live = LiveRoutes(file)

    def edit_and_read(i):
        staged = file.with_name(f"routes.{i}")
        staged.write_text("".join(f"N{k}: {{host: h, port: {i + 1}}}\n" for k in range(50)))
        staged.replace(file)
        live.reload()
        return {route.url for route in live.table.routes.values()}

    with ThreadPoolExecutor(8) as pool:
        for urls in pool.map(edit_and_read, range(40)):
            assert len(urls) == 1
    live.reload()
    assert live.problems == ()
    assert 2 <= live.table.version <= 42
