"""Routes changed by the API, by gateways and in the file: comments stay, no change is lost."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from route_table.document import parse
from route_table.editing import Change, apply
from route_table.live import LiveRoutes, MemoryVersions, StaleVersion, UnknownVersion
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
LAST_LINE = FILE.splitlines(keepends=True)[-1]


def edit(node, **values):
    """Return a change of some keys of an entry."""
    return Change(node, values, replaces=False)


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "routes.yml"
    file.write_text(FILE)
    return file


def urls(text):
    """Return the URLs of a table's routes, by node."""
    return {node: route.url for node, route in parse(text).routes.items()}


def comments(text):
    return {line.partition("#")[2].strip() for line in text.splitlines() if "#" in line}


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        (edit("JG01", port=9), "port: 7380", "port: 9"),
        (edit("JG01", host="h"), "host: 10.0.0.1   # their", "host: h          # their"),
        (edit("JG02", deadline=4), "2.5   # slow line", "4     # slow line"),
        (edit("JG02", enabled=False), "# slow line", "# slow line\n  enabled: false"),
        (edit("JG03", port=4), "port: 3}", "port: 4}"),
        (Change("JG01", {"host": "10.0.0.1", "port": 7}), "  port: 7380", "  port: 7"),
        (Change("JG03", None), LAST_LINE, ""),
        (
            Change("JG04", {"host": "h4", "port": 4}),
            LAST_LINE,
            f"{LAST_LINE}JG04:\n  host: h4\n  port: 4\n",
        ),
    ],
)
def test_a_change_touches_its_own_line_only(change, old, new):
    assert apply(FILE, change) == FILE.replace(old, new)


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (Change("JG01", None), 'the bank\n\n# the insurer\n"JG02":\n'),
        (Change("JG02", None), f"# the insurer\n\n{LAST_LINE}"),
        (edit("JG01", enabled=False), "  enabled: false\n\n# the insurer\n"),
        (edit("JG01", port=None, url="http://x"), "  url: http://x\n\n# the insurer\n"),
        (
            Change("JG01", {"url": "http://x"}),
            "# the data company\n  url: http://x\n\n# the insurer\n",
        ),
    ],
)
def test_the_comments_around_a_change_stay_in_their_place(change, lines):
    edited = apply(FILE, change)

    assert lines in edited
    assert {"routes of the bank", "in one line"} <= comments(edited)


def test_the_comments_below_the_last_entry_outlive_it():
    text = "# top\nA: {host: a, port: 1}\n# end\n"

    assert apply(text, Change("A", None)) == "# top\n# end\n{}\n"


def test_another_kind_of_address_replaces_the_former_one():
    text = "X: {url: 'https://x', ca: /ca.pem}\nY: {url: 'http://y'}\n"
    by_via = apply(text, edit("X", via="Y"))
    assert parse(by_via).routes["X"] == Route("X", "", via="Y")
    back = apply(
        by_via,
        edit("X", host="h", port=9),
    )
    assert parse(back).routes["X"] == Route("X", "http://h:9")
    assert parse(apply(back, edit("X", url="http://u"))).routes["X"] == Route("X", "http://u")


@pytest.mark.parametrize(
    ("address", "extra"),
    [
        ({"url": "http://u"}, {"port": 8}),
        ({"via": "B"}, {"url": "http://u"}),
        ({"via": "B"}, {"host": "h"}),
    ],
)
def test_two_kinds_of_address_in_one_change_are_refused(address, extra):
    text = "A: {host: a, port: 1}\nB: {host: b, port: 2}\n"

    with pytest.raises(InvalidRoutes) as refused:
        apply(text, edit("A", **address, **extra))

    (key,) = extra
    assert [problem.path for problem in refused.value.problems] == [f"A.{key}"]


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
def test_a_change_has_the_same_effect_in_every_style(text):
    before = urls(text)
    assert before["A"] == "http://h:1"
    assert before["B"] == "http://b:2"

    assert urls(apply(text, edit("B", port=3))) == before | {"B": "http://b:3"}
    for node in ("A", "C"):
        replaced = apply(text, Change(node, {"url": "http://new"}))
        assert urls(replaced) == before | {node: "http://new"}

    removed = apply(text, Change("A", None))
    del before["A"]
    assert urls(removed) == before


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
@given(
    st.dictionaries(NODES, ROUTES, max_size=4),
    NODES,
    st.none() | ROUTES,
)
def test_any_change_of_any_table_gives_that_table(routes, node, route):
    before = {each: replace(other_route, node=each) for each, other_route in routes.items()}
    expected = dict(before)
    expected.pop(node, None)
    values = None
    if route is not None:
        values = entry_of(route)
        expected[node] = replace(route, node=node)

    after = apply(
        dump(RouteTable(0, before)),
        Change(node, values),
    )

    assert parse(after).routes == expected


def test_a_change_that_makes_no_route_is_refused_with_every_problem(file):
    live = LiveRoutes(file)
    table = live.table
    broken = edit(
        "JG01",
        port=0,
        profile="fat",
        colour="red",
    )

    with pytest.raises(InvalidRoutes) as refusal:
        live.edit(broken, "ann")

    paths = {problem.path for problem in refusal.value.problems}
    assert paths == {"JG01.port", "JG01.profile", "JG01.colour"}
    assert live.table is table
    assert len(live.history()) == 1
    live.reload()
    assert file.read_text() == FILE


def test_an_edit_takes_effect_and_reaches_the_file_immediately(file):
    live = LiveRoutes(file)
    file.chmod(0o640)

    version = live.edit(
        edit("JG01", url="https://new"),
        "ann",
        "they moved",
    )

    assert live.table.resolve("JG01").url == "https://new"
    assert version.number == 2
    assert version.author == "ann"
    assert version.reason == "they moved"
    assert version.source == "api"
    text = file.read_text()
    assert urls(text)["JG01"] == "https://new"
    assert {"routes of the bank", "the insurer"} <= comments(text)
    assert file.stat().st_mode & 0o777 == 0o640
    assert live.problems == ()
    assert not live.reload()
    assert len(live.history()) == 2


def test_an_edit_of_a_version_that_is_not_the_newest_is_refused(file):
    live = LiveRoutes(file)
    assert live.edit(Change("JG01", None), "ann", expected=1).number == 2

    with pytest.raises(StaleVersion, match="at version 2, not 1"):
        live.edit(
            Change("JG02", None),
            "ann",
            expected=1,
        )
    with pytest.raises(StaleVersion, match="at version 2, not 1"):
        live.rollback(1, "ann", "", 1)


def test_a_rollback_is_a_version_of_its_own(file):
    live = LiveRoutes(file)
    live.edit(Change("JG01", None), "ann")
    live.edit(Change("JG02", None), "ann")

    version = live.rollback(1, "bob")

    assert version.number == 4
    assert version.reason == "back to version 1"
    assert file.read_text() == FILE
    with pytest.raises(UnknownVersion, match="the newest is 4"):
        live.rollback(9, "bob")


def authors(live, limit=100):
    """Return the authors of the newest versions, the newest first."""
    return [version.author for version in live.history(limit=limit)]


def test_a_changed_file_is_the_next_version_as_a_whole(file):
    versions = MemoryVersions()
    live = LiveRoutes(file, versions)
    without_file = LiveRoutes(None, versions)
    changed = FILE.replace("port: 7380", "port: 7381") + "# a new remark\n"
    file.write_text(changed)

    live.edit(edit("JG02", deadline=5), "ann")  # reads the file first
    assert live.table.routes["JG01"].url == "http://10.0.0.1:7381"
    assert authors(live) == ["ann", "file", "file"]
    assert file.read_text() == changed.replace("deadline: 2.5   #", "deadline: 5     #")

    without_file.edit(Change("JG03", None), "bob")
    file.write_text(changed)
    live.reload()
    assert live.table.routes == parse(changed).routes, "it replaces the changes of others"
    assert authors(live, limit=2) == ["file", "bob"]


def test_an_edit_during_an_invalid_file_holds_until_it_is_corrected(file):
    live = LiveRoutes(file)
    file.write_text("JG01: {}\n")
    live.edit(
        Change("JG05", {"host": "h5", "port": 5}),
        "ann",
    )
    assert live.problems
    assert live.table.knows("JG05")
    assert file.read_text() == "JG01: {}\n"

    file.write_text("JG01: {host: h, port: 1}\n")
    live.reload()

    assert not live.problems
    assert urls(file.read_text()) == {"JG01": "http://h:1"}
    assert len(live.table.routes) == 1


def test_a_restart_uses_the_newest_version(file):
    versions = MemoryVersions()
    LiveRoutes(file, versions)
    other_gateway = LiveRoutes(None, versions)
    other_gateway.edit(Change("JG01", None), "ann")

    restarted = LiveRoutes(file, versions)
    assert not restarted.table.knows("JG01")
    assert "JG01" not in urls(file.read_text())

    other_gateway.edit(Change("JG02", None), "ann")
    assert restarted.reload()
    assert not restarted.table.knows("JG02")
    assert "JG02" not in urls(file.read_text())


def test_a_restart_uses_an_edit_of_the_file_made_while_down(file):
    versions = MemoryVersions()
    LiveRoutes(file, versions)
    file.write_text("JG09: {host: h, port: 1}\n")
    assert list(LiveRoutes(file, versions).table.routes) == ["JG09"]

    broken_text = "JG09: {host: h, prot: 1}\n"
    file.write_text(broken_text)
    restarted = LiveRoutes(file, versions)
    assert list(restarted.table.routes) == ["JG09"]
    assert restarted.problems
    assert file.read_text() == broken_text


def test_an_unwritable_file_is_a_problem_and_the_change_is_in_force(file):
    live = LiveRoutes(file)
    obstacle = file.parent / f".{file.name}.part"  # in the place of the new file
    obstacle.mkdir()

    live.edit(Change("JG01", None), "ann")
    [problem] = live.problems
    assert problem.rule.partition(",")[0] == "cannot be written"
    assert not live.table.knows("JG01")

    obstacle.rmdir()
    live.reload()
    assert live.problems == ()
    assert "JG01" not in urls(file.read_text())


def test_a_removed_route_serves_running_jobs_to_their_end(file):
    nodes_of_jobs = {"JG01"}
    versions = MemoryVersions()
    live = LiveRoutes(
        file,
        versions,
        in_use=nodes_of_jobs.__contains__,
    )
    live.edit(edit("JG01", enabled=False), "ann")
    live.edit(Change("JG02", None), "ann")
    restarted = LiveRoutes(
        file,
        versions,
        in_use=nodes_of_jobs.__contains__,
    )

    for routes in (live, restarted):
        assert routes.resolve("JG01").url == "http://10.0.0.1:7380"
        assert not routes.table.knows("JG01")
        with pytest.raises(UnknownNode):
            routes.resolve("JG02")

    nodes_of_jobs.clear()
    with pytest.raises(UnknownNode):
        live.resolve("JG01")


NODES_OF_RACE = 10
EDITS_OF_RACE = 200


def test_concurrent_edits_leave_table_history_and_file_in_agreement(tmp_path):
    file = tmp_path / "routes.yml"
    numbers = range(NODES_OF_RACE)
    file.write_text("".join(f"N{n}:  # node {n}\n  host: h\n  port: 1\n" for n in numbers))
    versions = MemoryVersions()
    live = LiveRoutes(file, versions)
    followed_tables = []
    done = threading.Event()

    def follow():
        while not done.wait(0.05):
            live.reload()
            followed_tables.append(live.table)

    def edit_file(number):
        text = file.read_text().replace("port: 1\n", f"port: {10 + number}\n", 1)
        staged = file.with_name(f"staged.{number}")
        staged.write_text(text)
        staged.replace(file)

    def edit_once(number):
        if number % 20 == 0:
            edit_file(number)
        else:
            live.edit(edit(f"N{number % NODES_OF_RACE}", deadline=100 + number), "ann")

    follower = threading.Thread(target=follow)
    follower.start()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(edit_once, range(EDITS_OF_RACE)))
    done.set()
    follower.join()
    live.reload()

    assert live.problems == ()
    assert parse(file.read_text()).routes == live.table.routes
    history = {version.number: version for version in versions.list(None, 10_000)}
    assert list(history) == list(range(len(history), 0, -1))
    by_api = [version for version in history.values() if version.author == "ann"]
    assert len(by_api) == EDITS_OF_RACE - EDITS_OF_RACE // 20
    for table in [*followed_tables[::5], live.table]:  # each is a complete, accepted version
        assert parse(history[table.version].text).routes == table.routes
    assert comments(file.read_text()) == {f"node {number}" for number in numbers}


class RacedVersions(MemoryVersions):
    """Another gateway adds its first version just before this one."""

    def add(self, version):
        if version.number == 1:
            text = "JG9: {url: 'http://other'}\n"
            super().add(replace(version, text=text, author="other"))
        return super().add(version)


def test_an_edit_is_made_again_after_a_faster_one_of_another_gateway():
    live = LiveRoutes(None, RacedVersions())

    version = live.edit(
        Change("JG1", {"host": "h", "port": 1}),
        "ann",
    )

    assert version.number == 2
    assert live.table.knows("JG1")
    assert live.table.knows("JG9")


def test_a_table_that_cannot_be_edited_says_so():
    with pytest.raises(InvalidRoutes, match="cannot be edited; correct it in the file"):
        apply("A: [", Change("A", None))
