"""Reports as numbers and tables, whatever a vendor wrote; what is odd about outputs is a warning."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.data import reports
from gateway.data.file_storage import FileStorage
from gateway.data.reports import Series, output_warnings, read_report
from gateway.domain.dag import ComponentRef, Dag, DagNode, DagOutput
from gateway.domain.run import Address
from gateway.domain.states import RunStatus
from gateway.store.serialization import to_plain
from tests.builders import a_run, a_spec, raising

PLACE = Address("ns", "report")
FLOW = Dag(
    (
        DagNode(
            "a",
            ComponentRef("v", "1", "C"),
            (),
            (DagOutput("dataset", "d"), DagOutput("report", "r")),
        ),
    )
)


def written(
    root: Path,
    content: bytes,
    address: Address = PLACE,
) -> FileStorage:
    storage = FileStorage(root)
    folder = storage.path(address)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data_0").write_bytes(content)
    return storage


def read(root: Path, value: Any) -> reports.Report:
    return read_report(written(root, json.dumps(value).encode()), PLACE)


def test_the_reference_vendors_reports_become_values_and_a_curve(tmp_path: Path):
    loss = [{"tree": 1, "loss": 0.5}, {"tree": 2, "loss": 0.25}]
    found = read(
        tmp_path,
        {
            "rows": 509,
            "auc": 0.99,
            "local_baseline": {"auc": 0.9},
            "loss": loss,
        },
    )
    assert found.values == {
        "rows": 509,
        "auc": 0.99,
        "local_baseline.auc": 0.9,
    }
    assert found.series == (Series("loss", ("tree", "loss"), ((1, 0.5), (2, 0.25))),)
    assert (found.format, found.problem) == ("json", "")


def test_lists_and_csv_are_tables_and_a_long_one_is_cut(tmp_path: Path):
    for value, series in (
        ([[0.0, 1.0], [0.5, 2.0]], Series("", ("0", "1"), ((0.0, 1.0), (0.5, 2.0)))),
        ([3, 1, 2], Series("", ("index", "value"), ((0, 3), (1, 1), (2, 2)))),
        ([{"x": 1}, {"y": 2}], Series("", ("x", "y"), ((1, None), (None, 2)))),
    ):
        assert read(tmp_path, value).series == (series,)
    found = read_report(written(tmp_path, b"party,count\nguest.0,540\nintersection,509\n"), PLACE)
    assert found.series == (
        Series("", ("party", "count"), (("guest.0", 540.0), ("intersection", 509.0))),
    )
    (series,) = read(tmp_path, list(range(reports.MOST_POINTS_READ + 5))).series
    assert (len(series.points), series.left_out) == (reports.MOST_POINTS_READ, 5)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"{", b"just words", b'a,b\n1,"2', b"a,b\n1,2\n3\n"]
)
def test_what_is_neither_json_nor_csv_is_named_and_no_crash(tmp_path: Path, content: bytes):
    found = read_report(written(tmp_path, content), PLACE)
    assert found.problem and not found.values and not found.series


def test_what_cannot_be_read_is_said_and_no_crash(tmp_path: Path):
    storage = written(tmp_path, b"{}")
    (storage.path(PLACE) / "data_0").rename(storage.path(PLACE) / "data_1")
    assert read_report(storage, PLACE).problem == "cannot be read: ns#report lacks its part data_0"


TEXT = st.text(st.characters(), max_size=4)  # halves of surrogate pairs too
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(value=values)
def test_any_json_is_read_into_what_can_be_sent(
    value: Any, tmp_path_factory: pytest.TempPathFactory
):
    found = read(tmp_path_factory.mktemp("any"), value)
    assert found.problem == ""
    json.dumps(to_plain(found), allow_nan=False, ensure_ascii=False).encode()


def run_with(
    root: Path,
    data: bytes | None,
    report: bytes | None,
) -> tuple[FileStorage, Any]:
    run = a_run("a", RunStatus.SUCCESS)
    outputs = {
        "data": Address("ns", f"{run.task_id}-d"),
        "report": Address("ns", f"{run.task_id}-r"),
    }
    storage = FileStorage(root)
    for name, content in (("data", data), ("report", report)):
        if content is not None:
            written(root, content, outputs[name])
    return storage, replace(run, outputs=outputs, output_keys={"d": "data", "r": "report"})


def test_declared_outputs_are_unremarkable_and_many_warnings_are_cut(tmp_path: Path):
    storage, run = run_with(tmp_path, b"id\n1\n", b"{}")
    assert output_warnings(storage, a_spec(FLOW), run) == ()
    for number in range(100):
        (storage.root / "ns" / f"{run.task_id}-{number}").mkdir()
    found = output_warnings(storage, a_spec(FLOW), run)
    assert len(found) == reports.MOST_WARNINGS + 1 and found[-1] == "and more"


def test_a_storage_that_fails_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    storage, run = run_with(tmp_path, b"id\n1\n", b"{}")
    monkeypatch.setattr(storage, "names", raising(PermissionError(13, "not permitted")))
    (warning,) = output_warnings(storage, a_spec(FLOW), run)
    assert warning.startswith("the outputs cannot be checked: ") and warning.endswith(
        "not permitted"
    )


def test_missing_malformed_and_undeclared_outputs_are_warnings(tmp_path: Path):
    storage, run = run_with(tmp_path, None, b"\xff")
    (storage.root / "ns" / f"{run.task_id}-extra").mkdir()
    (storage.root / "ns" / "another-task-r").mkdir()
    (storage.path(run.outputs["report"]) / "core.dump").write_text("")
    assert output_warnings(storage, a_spec(FLOW), run) == (
        "output d was not written",
        "report r is neither JSON nor CSV",
        "output r holds 'core.dump', which is not part of it",
        "undeclared output 'extra'",
    )
