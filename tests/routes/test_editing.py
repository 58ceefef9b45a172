"""Routes changed by others than the file's editor: comments kept, versions complete, nothing lost."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from route_table.document import parse
from route_table.editing import Change, apply
from route_table.live import LiveRoutes, MemoryVersions, StaleVersion, UnknownVersion, Version
from route_table.model import InvalidRoutes, Route, RouteTable, UnknownNode
from tests.routes.builders import dump, entry_of

FILE = """\
# routes of the bank
JG01:          # the data company
  host: 10.0.0.1   # their new address
  port: 7380

# the insurer
"JG02":
  url: https://b.example:7380
  deadline: 2.5   # slow line

JG03: {host: h3, port: 3}   # in one line
"""
JG03 = FILE.splitlines(keepends=True)[-1]


def edit(node: str, **values: Any) -> Change:
    """Return a change of some keys of an entry."""
    return Change(node, values, replaces=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "routes.yml"
    path.write_text(FILE)
    return path


def urls(text: str) -> dict[str, str]:
    return {node: route.url for node, route in parse(text).routes.items()}


def remarks(text: str) -> set[str]:
    return {line.partition("#")[2].strip() for line in text.splitlines() if "#" in line}


@pytest.mark.parametrize(
    ("change", "line", "instead"),
    [
        (edit("JG01", port=9), "port: 7380", "port: 9"),
        (edit("JG01", host="h"), "host: 10.0.0.1   # their", "host: h          # their"),
        (edit("JG02", deadline=4), "2.5   # slow line", "4     # slow line"),
        (edit("JG02", enabled=False), "# slow line", "# slow line\n  enabled: false"),
        (edit("JG03", port=4), "port: 3}", "port: 4}"),
        (Change("JG01", {"host": "10.0.0.1", "port": 7}), "  port: 7380", "  port: 7"),
        (Change("JG03", None), JG03, ""),
        (Change("JG04", {"host": "h4", "port": 4}), JG03, f"{JG03}JG04:\n  host: h4\n  port: 4\n"),
    ],
)
def test_a_change_touches_its_own_line_only(
    change: Change,
    line: str,
    instead: str,
):
    assert apply(FILE, change) == FILE.replace(line, instead)


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (Change("JG01", None), 'the bank\n\n# the insurer\n"JG02":\n'),
        (Change("JG02", None), f"# the insurer\n\n{JG03}"),
        (edit("JG01", enabled=False), "  enabled: false\n\n# the insurer\n"),
        (edit("JG01", port=None, url="http://x"), "  url: http://x\n\n# the insurer\n"),
        (
            Change("JG01", {"url": "http://x"}),
            "# the data company\n  url: http://x\n\n# the insurer\n",
        ),
    ],
)
def test_the_comments_around_a_change_stay_in_their_place(change: Change, lines: str):
    edited = apply(FILE, change)
    assert lines in edited and {"routes of the bank", "in one line"} <= remarks(edited)


def test_another_kind_of_address_replaces_the_one_that_was_there():
    text = "X: {url: 'https://x', ca: /ca.pem}\nY: {url: 'http://y'}\n"
    by_via = apply(text, edit("X", via="Y"))
    assert parse(by_via).routes["X"] == Route("X", "", via="Y")
    back = apply(by_via, edit("X", host="h", port=9))
    assert parse(back).routes["X"] == Route("X", "http://h:9")
    assert parse(apply(back, edit("X", url="http://u"))).routes["X"] == Route("X", "http://u")


@pytest.mark.parametrize(
    "text",
    [
        '{"A": {"host": "h", "port": 1}, "B": {"host": "b", "port": 2}}\n',
        "A: {host: h,\n  port: 1}\nB:\n\n  # far below\n  host: b\n\n  port: 2",
        "? A\n: {host: h, port: 1}\n? B\n: {host: b, port: 2}\n",
        "---\nA: {host: h, port: 1}\nB: {host: b, port: 2}\n...\n",
        "A: {host: h, port: 1}\r\nB:\r\n  host: b\r\n  port: 2\r\n",
        "0123: {host: z, port: 9}\nA: {host: h, port: 1}\n22:30: {host: z, port: 9}\n"
        "B: {host: b, port: 2}\nno: {host: z, port: 9}\n",
    ],
)
def test_whatever_the_style_the_wanted_table_comes_out(text: str):
    before = urls(text)
    assert (before["A"], before["B"]) == ("http://h:1", "http://b:2")
    assert urls(apply(text, edit("B", port=3))) == before | {"B": "http://b:3"}
    assert urls(apply(text, Change("A", None))) == {
        node: url for node, url in before.items() if node != "A"
    }
    for node in "AC":
        assert urls(apply(text, Change(node, {"url": "http://new"}))) == before | {
            node: "http://new"
        }


NODES = st.sampled_from(["A", "B", "0123", "no", "22:30", "x.y", "1e3"])
ROUTES = st.builds(
    Route,
    node=st.just(""),
    url=st.sampled_from(["http://h", "http://h:81", "https://h/p"]),
    profile=st.sampled_from(["spec", "fate"]),
    institution=st.sampled_from([None, "0099", "JG"]),
    deadline=st.sampled_from([10.0, 2.5, 60.0]),
    enabled=st.booleans(),
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(NODES, ROUTES, max_size=4), NODES, st.none() | ROUTES)
def test_any_change_of_any_table_gives_that_table(
    routes: dict[str, Route],
    node: str,
    route: Route | None,
):
    before = {n: replace(route, node=n) for n, route in routes.items()}
    expected = {n: route for n, route in before.items() if n != node}
    values = None
    if route is not None:
        values = entry_of(route)
        expected[node] = replace(route, node=node)
    after = parse(apply(dump(RouteTable(0, before)), Change(node, values))).routes
    assert after == expected


def test_a_change_that_makes_no_route_is_refused_with_every_problem(file: Path):
    live = LiveRoutes(file)
    before = live.table
    with pytest.raises(InvalidRoutes) as refused:
        live.edit(
            edit(
                "JG01",
                port=0,
                profile="fat",
                colour="red",
            ),
            "ann",
        )
    assert {p.path for p in refused.value.problems} == {"JG01.port", "JG01.profile", "JG01.colour"}
    assert live.table is before and len(live.history()) == 1
    live.reload()
    assert file.read_text() == FILE


def test_an_edit_takes_effect_and_reaches_the_file_immediately(file: Path):
    live = LiveRoutes(file)
    file.chmod(0o640)
    version = live.edit(edit("JG01", url="https://new"), "ann", "they moved")
    assert live.table.resolve("JG01").url == "https://new"
    assert (version.number, version.author, version.reason, version.source) == (
        2,
        "ann",
        "they moved",
        "api",
    )
    assert urls(file.read_text())["JG01"] == "https://new"
    assert {"routes of the bank", "the insurer"} <= remarks(file.read_text())
    assert file.stat().st_mode & 0o777 == 0o640
    assert live.problems == () and not live.reload() and len(live.history()) == 2


def test_an_edit_of_a_version_that_is_not_the_newest_is_refused(file: Path):
    live = LiveRoutes(file)
    assert live.edit(Change("JG01", None), "ann", expected=1).number == 2
    for change in (
        lambda: live.edit(Change("JG02", None), "ann", expected=1),
        lambda: live.rollback(1, "ann", "", 1),
    ):
        with pytest.raises(StaleVersion, match="at version 2, not 1"):
            change()


def test_a_rollback_is_a_version_of_its_own(file: Path):
    live = LiveRoutes(file)
    live.edit(Change("JG01", None), "ann")
    live.edit(Change("JG02", None), "ann")
    version = live.rollback(1, "bob")
    assert version.number == 4 and version.reason == "back to version 1"
    assert file.read_text() == FILE
    with pytest.raises(UnknownVersion, match="the newest is 4"):
        live.rollback(9, "bob")


def test_a_changed_file_is_the_next_version_as_a_whole(file: Path):
    versions = MemoryVersions()
    live, without = LiveRoutes(file, versions), LiveRoutes(None, versions)
    changed = FILE.replace("port: 7380", "port: 7381") + "# a new remark\n"
    file.write_text(changed)
    live.edit(edit("JG02", deadline=5), "ann")  # which takes up the file first
    assert live.table.routes["JG01"].url == "http://10.0.0.1:7381"
    assert [v.author for v in live.history()] == ["ann", "file", "file"]
    assert file.read_text() == changed.replace("deadline: 2.5   #", "deadline: 5     #")
    without.edit(Change("JG03", None), "bob")
    file.write_text(changed)
    live.reload()
    assert live.table.routes == parse(changed).routes, (
        "it replaces what others changed since it was read"
    )
    assert [v.author for v in live.history(limit=2)] == ["file", "bob"]


def test_an_edit_during_an_invalid_file_holds_until_it_is_corrected(file: Path):
    live = LiveRoutes(file)
    file.write_text("JG01: {}\n")
    live.edit(Change("JG05", {"host": "h5", "port": 5}), "ann")
    assert live.problems and live.table.knows("JG05") and file.read_text() == "JG01: {}\n"
    file.write_text("JG01: {host: h, port: 1}\n")
    live.reload()
    assert (
        not live.problems
        and urls(file.read_text()) == {"JG01": "http://h:1"}
        and len(live.table.routes) == 1
    )


def test_a_restart_uses_the_newest_version_and_an_edit_made_while_down(file: Path):
    versions = MemoryVersions()
    LiveRoutes(file, versions)
    without = LiveRoutes(None, versions)
    without.edit(Change("JG01", None), "ann")  # another gateway, while this one is down
    again = LiveRoutes(file, versions)
    assert not again.table.knows("JG01") and "JG01" not in urls(file.read_text())
    without.edit(Change("JG02", None), "ann")
    assert again.reload() and not again.table.knows("JG02") and "JG02" not in urls(file.read_text())
    file.write_text("JG09: {host: h, port: 1}\n")
    assert list(LiveRoutes(file, versions).table.routes) == ["JG09"]
    file.write_text("JG09: {host: h, prot: 1}\n")
    broken = LiveRoutes(file, versions)
    assert list(broken.table.routes) == ["JG09"] and broken.problems
    assert file.read_text() == "JG09: {host: h, prot: 1}\n"


def test_an_unwritable_file_is_a_problem_and_the_change_is_in_force(file: Path, monkeypatch):
    live = LiveRoutes(file)
    (file.parent / f".{file.name}.part").mkdir()
    live.edit(Change("JG01", None), "ann")
    assert [p.rule.partition(",")[0] for p in live.problems] == ["cannot be written"]
    assert not live.table.knows("JG01")
    (file.parent / f".{file.name}.part").rmdir()
    live.reload()
    assert live.problems == () and "JG01" not in urls(file.read_text())


def test_a_removed_route_serves_running_jobs_to_their_end(file: Path):
    busy = {"JG01"}
    versions = MemoryVersions()
    live = LiveRoutes(file, versions, in_use=busy.__contains__)
    live.edit(edit("JG01", enabled=False), "ann")
    live.edit(Change("JG02", None), "ann")
    for routes in (live, LiveRoutes(file, versions, in_use=busy.__contains__)):
        assert routes.resolve("JG01").url == "http://10.0.0.1:7380"
        assert not routes.table.knows("JG01")
        with pytest.raises(UnknownNode):
            routes.resolve("JG02")
    busy.clear()
    with pytest.raises(UnknownNode):
        live.resolve("JG01")


def test_concurrent_edits_leave_table_history_and_file_in_agreement(tmp_path: Path):
    file = tmp_path / "routes.yml"
    file.write_text("".join(f"N{i}:  # node {i}\n  host: h\n  port: 1\n" for i in range(10)))
    versions = MemoryVersions()
    live = LiveRoutes(file, versions)
    seen: list[RouteTable] = []
    done = threading.Event()

    def follow() -> None:
        while not done.wait(0.05):
            live.reload()
            seen.append(live.table)

    def by_file(i: int) -> None:
        text = file.read_text().replace("port: 1\n", f"port: {10 + i}\n", 1)
        staged = file.with_name(f"staged.{i}")
        staged.write_text(text)
        staged.replace(file)

    def by_api(i: int) -> None:
        live.edit(edit(f"N{i % 10}", deadline=100 + i), "ann")

    def edit_number(i: int) -> None:
        if i % 20 == 0:
            by_file(i)
        else:
            by_api(i)

    follower = threading.Thread(target=follow)
    follower.start()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(edit_number, range(200)))
    done.set()
    follower.join()
    live.reload()
    assert live.problems == ()
    assert parse(file.read_text()).routes == live.table.routes
    kept = {v.number: v for v in versions.list(None, 10_000)}
    assert list(kept) == list(range(len(kept), 0, -1))
    assert sum(v.author == "ann" for v in kept.values()) == 190
    for table in [*seen[::5], live.table]:  # whoever looked saw an accepted version, whole
        assert parse(kept[table.version].text).routes == table.routes
    assert remarks(file.read_text()) == {f"node {i}" for i in range(10)}


def test_an_edit_that_another_gateway_was_faster_than_is_made_again():
    class Raced(MemoryVersions):
        def add(self, version: Version) -> bool:
            if version.number == 1:
                super().add(replace(version, text="JG9: {url: 'http://other'}\n", author="other"))
            return super().add(version)

    live = LiveRoutes(None, Raced())
    assert live.edit(Change("JG1", {"host": "h", "port": 1}), "ann").number == 2
    assert live.table.knows("JG1") and live.table.knows("JG9")


def test_a_table_that_cannot_be_edited_says_so():
    with pytest.raises(InvalidRoutes, match="cannot be edited; correct it in the file"):
        apply("A: [", Change("A", None))
