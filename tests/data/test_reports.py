"""Reports of any vendor become numbers and tables; odd outputs are warnings."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.data import reports
from gateway.data.reports import Series, output_warnings, read_report
from gateway.store.serialization import to_plain
from tests.builders import a_spec, raising
from tests.data.report_files import FLOW, REPORT, run_with_outputs, write_report

# ------------------------------------------------------------ reports


def read(root, value):
    """Write a value as a report in JSON and read it."""
    return read_report(
        write_report(root, json.dumps(value).encode()),
        REPORT,
    )


def test_the_reference_vendors_reports_become_values_and_a_curve(tmp_path):
    loss = [
        {"tree": 1, "loss": 0.5},
        {"tree": 2, "loss": 0.25},
    ]
    value = {
        "rows": 509,
        "auc": 0.99,
        "local_baseline": {"auc": 0.9},
        "loss": loss,
    }

    report = read(tmp_path, value)

    assert report.values == {
        "rows": 509,
        "auc": 0.99,
        "local_baseline.auc": 0.9,
    }
    assert report.series == (Series("loss", ("tree", "loss"), ((1, 0.5), (2, 0.25))),)
    assert report.format == "json"
    assert report.problem == ""


@pytest.mark.parametrize(
    ("value", "columns", "points"),
    [
        (
            [[0.0, 1.0], [0.5, 2.0]],
            ("0", "1"),
            ((0.0, 1.0), (0.5, 2.0)),
        ),
        (
            [3, 1, 2],
            ("index", "value"),
            ((0, 3), (1, 1), (2, 2)),
        ),
        (
            [{"x": 1}, {"y": 2}],
            ("x", "y"),
            ((1, None), (None, 2)),
        ),
    ],
    ids=["rows", "numbers", "objects"],
)
def test_a_list_is_a_table(tmp_path, value, columns, points):
    assert read(tmp_path, value).series == (Series("", columns, points),)


def test_a_csv_file_is_a_table(tmp_path):
    storage = write_report(tmp_path, b"party,count\nguest.0,540\nintersection,509\n")

    points = (
        ("guest.0", 540.0),
        ("intersection", 509.0),
    )
    assert read_report(storage, REPORT).series == (Series("", ("party", "count"), points),)


def test_a_long_table_is_cut(tmp_path):
    [series] = read(tmp_path, list(range(reports.MOST_POINTS_READ + 5))).series

    assert len(series.points) == reports.MOST_POINTS_READ
    assert series.left_out == 5


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe\x00", b"{", b"just words", b'a,b\n1,"2', b"a,b\n1,2\n3\n"],
    ids=["empty", "binary", "half an object", "words", "open quote", "short row"],
)
def test_a_report_that_is_neither_json_nor_csv_has_a_problem(tmp_path, content):
    report = read_report(write_report(tmp_path, content), REPORT)

    assert report.problem
    assert not report.values
    assert not report.series


def test_a_report_that_cannot_be_read_has_a_problem(tmp_path):
    storage = write_report(tmp_path, b"{}")
    folder = storage.path(REPORT)
    (folder / "data_0").rename(folder / "data_1")

    problem = read_report(storage, REPORT).problem

    assert problem == "cannot be read: ns#report lacks its part data_0"


TEXT = st.text(
    st.characters(),
    max_size=4,
)  # halves of surrogate pairs too


def lists_and_objects(values):
    return st.lists(values, max_size=4) | st.dictionaries(
        TEXT,
        values,
        max_size=4,
    )


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lists_and_objects,
    max_leaves=12,
)


@given(value=JSON_VALUES)
def test_a_report_of_any_json_can_be_sent(tmp_path_factory, value):
    report = read(tmp_path_factory.mktemp("any"), value)

    assert report.problem == ""
    json.dumps(to_plain(report), allow_nan=False, ensure_ascii=False).encode()


# ------------------------------------------------------------ warnings about outputs


def warnings(storage, run):
    return output_warnings(storage, a_spec(FLOW), run)


def test_declared_outputs_have_no_warnings(tmp_path):
    storage, run = run_with_outputs(tmp_path, b"id\n1\n", b"{}")

    assert warnings(storage, run) == ()


def test_many_warnings_are_cut(tmp_path):
    storage, run = run_with_outputs(tmp_path, b"id\n1\n", b"{}")
    for number in range(100):
        (storage.root / "ns" / f"{run.task_id}-{number}").mkdir()

    texts = warnings(storage, run)

    assert len(texts) == reports.MOST_WARNINGS + 1
    assert texts[-1] == "and more"


def test_a_storage_that_fails_is_a_warning(tmp_path, monkeypatch):
    storage, run = run_with_outputs(tmp_path, b"id\n1\n", b"{}")
    monkeypatch.setattr(
        storage,
        "names",
        raising(PermissionError(13, "not permitted")),
    )

    [text] = warnings(storage, run)

    assert text.startswith("the outputs cannot be checked: ")
    assert text.endswith("not permitted")


def test_missing_malformed_and_undeclared_outputs_are_warnings(tmp_path):
    storage, run = run_with_outputs(tmp_path, None, b"\xff")
    (storage.root / "ns" / f"{run.task_id}-extra").mkdir()
    (storage.root / "ns" / "another-task-r").mkdir()
    (storage.path(run.data.outputs["report"]) / "core.dump").write_text("")

    assert warnings(storage, run) == (
        "output d was not written",
        "report r is neither JSON nor CSV",
        "output r holds 'core.dump', which is not part of it",
        "undeclared output 'extra'",
    )
