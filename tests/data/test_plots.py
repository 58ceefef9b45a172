"""Reports as pictures: lines where a table is sorted, bars else, and nothing that a browser would run or load."""

from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.data.plots import MOST_BARS, MOST_POINTS, VALUES, WIDTH, names, picture
from gateway.data.reports import Report, Series
from gateway.errors import NotFound

LOSS = Series("loss", ("tree", "loss", "remark"), ((1, 0.5, "a"), (2, 0.25, "b"), (3, 0.125, None)))
COUNTS = Series("", ("party", "count"), (("guest.0", 540.0), ("intersection", 509.0)))
REPORT = Report(
    "json",
    {
        "auc": 0.99,
        "name": "x",
        "good": True,
        "ks": 0.9,
    },
    (LOSS, COUNTS),
)


def drawn(report: Report, name: str | None = None) -> tuple[ElementTree.Element, str]:
    root = ElementTree.fromstring(picture(report, "train guest.0 report0", name))
    return root, " ".join(root.itertext())


def all_of(root: ElementTree.Element, tag: str) -> list[ElementTree.Element]:
    return [e for e in root.iter() if str(e.tag).endswith("}" + tag)]


def points(line: ElementTree.Element) -> list[tuple[float, float]]:
    pairs = (pair.split(",") for pair in line.get("points", "").split())
    return [(float(x), float(y)) for x, y in pairs]


def test_what_has_numbers_can_be_drawn_and_is_named():
    assert names(REPORT) == ("loss", "", VALUES)
    assert names(Report("csv", {}, (Series("", ("a", "b"), (("x", "y"),)),))) == ()


def test_a_sorted_first_column_makes_lines_over_it():
    root, text = drawn(REPORT)
    (line,) = all_of(root, "polyline")
    (x1, y1), (x2, y2), (x3, y3) = points(line)
    assert x2 - x1 == pytest.approx(x3 - x2) and x1 < x2
    assert (y2 - y1) == pytest.approx(2 * (y3 - y2), abs=0.1) and y1 < y2, (
        "y grows downwards in a picture"
    )
    assert "train guest.0 report0: loss" in text and "tree" in text and "remark" not in text
    falls = drawn(
        Report("json", {}, (Series("ks", ("threshold", "y"), ((0.9, 1), (0.5, 2), (0.1, 1))),))
    )[0]
    assert [x for x, _ in points(*all_of(falls, "polyline"))] == [610, 350, 90]
    jumps = drawn(Report("json", {}, (Series("x", ("at", "y"), ((2, 1), (1, 2), (3, 0))),)))[0]
    assert not all_of(jumps, "polyline")


def test_others_and_single_values_are_bars_with_their_names():
    root, text = drawn(REPORT, "")
    bars = [float(e.get("width", "")) for e in all_of(root, "rect")[1:]]
    assert bars[0] / bars[1] == pytest.approx(540 / 509, rel=0.01)
    assert "guest.0" in text and "540" in text and "509" in text
    _, text = drawn(REPORT, VALUES)
    assert "auc" in text and "0.99" in text and "ks" in text and "good" not in text


def test_bars_of_several_columns_stand_side_by_side_and_are_named():
    two = Series("auc", ("party", "train", "test"), (("guest.0", 0.9, 0.8), ("host.0", 0.7, None)))
    root, text = drawn(Report("json", {}, (two,)))
    bars = [e for e in all_of(root, "rect")[1:] if float(e.get("width", "")) > 50]
    assert len(bars) == 3 and len({e.get("fill") for e in bars}) == 2
    assert "train" in text and "test" in text


def test_what_is_left_out_is_said():
    many = Series("", ("at", "y"), tuple((i, i * i) for i in range(10_000)), left_out=5)
    root, text = drawn(Report("json", {}, (many,)))
    (line,) = all_of(root, "polyline")
    assert 100 < len(points(line)) <= MOST_POINTS + 1
    assert "at of 10005 points" in text
    _, text = drawn(Report("json", {f"v{i}": i for i in range(MOST_BARS + 2)}))
    assert "2 values" in text


@pytest.mark.parametrize(
    ("report", "name", "reason"),
    [
        (Report(problem="is neither JSON nor CSV"), None, "NO_REPORT"),
        (Report("json", {"name": "x"}), None, "NO_PLOT"),
        (REPORT, "los", "NO_PLOT"),
    ],
)
def test_what_cannot_be_drawn_is_refused_and_says_what_can(
    report: Report,
    name: str | None,
    reason: str,
):
    with pytest.raises(NotFound) as caught:
        picture(report, "t", name)
    assert caught.value.reason == reason
    if name:
        assert "'loss'" in str(caught.value) and "'values'" in str(caught.value)


WORDS = st.text(max_size=8) | st.sampled_from(
    ["<script>alert(1)</script>", "]]>", "\x00\x1b", "url(http://x)", "&#0;"]
)
NUMBERS = (
    st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-9, 9)
    | st.sampled_from([1e49, 1e-49, 5e-324])
)
CELLS = st.none() | st.booleans() | WORDS | NUMBERS


@settings(max_examples=150, deadline=None)
@given(
    WORDS,
    st.dictionaries(WORDS, CELLS, max_size=4),
    st.lists(st.tuples(CELLS, CELLS), max_size=5),
    WORDS,
)
def test_whatever_stands_in_a_report_a_picture_is_only_a_picture(
    name: str,
    values: dict[str, Any],
    rows: list[tuple[Any, Any]],
    column: str,
):
    report = Report("json", values, (Series(name, (column, name), tuple(rows)),))
    for what in names(report):
        root = ElementTree.fromstring(picture(report, name, what))
        tags = {str(e.tag).rpartition("}")[2] for e in root.iter()}
        assert tags <= {"svg", "title", "text", "line", "rect", "polyline", "circle"}
        for element in root.iter():
            assert not {
                k for k in element.attrib if k.startswith("on") or "href" in k or k == "style"
            }
            for key in ("x", "y", "x1", "y1", "x2", "y2", "width", "height", "cx", "cy"):
                at = float(element.get(key, "0"))
                assert -1 <= at <= WIDTH + 1, (key, element.attrib)
