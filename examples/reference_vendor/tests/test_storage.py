"""Both forms of reading, the one form of writing, and refusals that name the fault."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refvendor.contract import StorageFailed, Table
from refvendor.csv_tables import column_type
from refvendor.env import Address
from refvendor.storage import open_storage

IN, OUT = {"train_data": Address("ns", "in")}, {"train_data": Address("job-guest-0", "out")}


def storage(root):
    return open_storage(f"file://{root}", IN, OUT, "a test")


def lay(
    root,
    files,
    name="in",
):
    directory = root / "ns" / name
    directory.mkdir(parents=True)
    for file, text in files.items():
        (directory / file).write_text(text, encoding="utf-8")


def test_partitions_are_read_in_the_order_of_their_numbers(tmp_path):
    lay(tmp_path, {f"data_{n}": f"id,x\n{n},{n}\n" for n in range(12)})
    table = storage(tmp_path).read_table("train_data")
    assert table.header == ["id", "x"]
    assert [row[0] for row in table.rows] == [str(n) for n in range(12)]


def test_only_the_first_partition_may_have_a_header(tmp_path):
    lay(
        tmp_path,
        {
            "data_0": "id,x\n1,a\n",
            "data_1": "2,b\n",
            "data_2": "",
            "metadata": '{"partitions": 3}',
        },
    )
    assert storage(tmp_path).read_table("train_data").rows == [["1", "a"], ["2", "b"]]


def test_a_plain_file_is_read(tmp_path):
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns" / "in").write_bytes(b'\xef\xbb\xbfid,x\r\n1,"a\nb"\r\n')
    table = storage(tmp_path).read_table("train_data")
    assert table.header == ["id", "x"]
    assert table.rows == [["1", "a\nb"]]


def test_files_that_another_program_left_in_a_path_are_read_in_their_order(tmp_path):
    directory = tmp_path / "warehouse" / "2026" / "guest"
    directory.mkdir(parents=True)
    for name, text in {
        "part-1": "id\n2\n",
        "part-0": "id\n1\n",
        "_SUCCESS": "",
        ".part-0.crc": "\0",
    }.items():
        (directory / name).write_text(text)
    inputs = {"train_data": Address("warehouse/2026", "guest")}
    assert open_storage(f"file://{tmp_path}", inputs, {}).read_table("train_data").rows == [
        ["1"],
        ["2"],
    ]


def test_a_row_like_the_header_inside_a_partition_is_a_row(tmp_path):
    lay(tmp_path, {"data_0": "id,x\n1,a\nid,x\n"})
    assert storage(tmp_path).read_table("train_data").rows == [["1", "a"], ["id", "x"]]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "does not exist"),
        ({"metadata": "{}"}, "does not exist"),
        ({"data_0": "id\n1\n", "data_2": "id\n2\n"}, "data_1 is missing"),
        ({"data_0": "id\n1\n", "metadata": '{"partitions": 2}'}, "data_1 is missing"),
        ({"data_0": ""}, "no header"),
        (
            {"data_0": "id,x\n1\n2,3,4\n"},
            "line 2 has 1 cells instead of 2; partition 0 line 3 has 3 cells",
        ),
        ({"data_0": 'id,x\n1,"a"b\n'}, "not CSV"),
        ({"data_0": "id\n1\n", "metadata": "{"}, "metadata is not JSON"),
        ({"data_0": "id\n1\n", "metadata": "[]"}, "metadata is not a JSON object"),
    ],
)
def test_unreadable_input_is_refused_by_name(
    tmp_path,
    files,
    words,
):
    if files:
        lay(tmp_path, files)
    with pytest.raises(StorageFailed, match=words) as caught:
        storage(tmp_path).read_table("train_data")
    assert "train_data (ns/in)" in str(caught.value)


def test_bytes_that_are_not_utf8_are_refused(tmp_path):
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns" / "in").write_bytes(b"id\n\xff\xfe\n")
    with pytest.raises(StorageFailed, match="not UTF-8"):
        storage(tmp_path).read_table("train_data")


def test_an_input_without_address_is_named(tmp_path):
    with pytest.raises(StorageFailed, match="input other"):
        storage(tmp_path).read_table("other")


def test_a_table_is_written_as_partition_and_metadata(tmp_path):
    table = Table(
        ["id", "n", "f", "b", "s"],
        [
            ["01", "1", "1.5", "true", "a,b"],
            ["02", "", "2", "False", 'q"\n'],
        ],
        id_column="id",
    )
    io = storage(tmp_path)
    io.write_table("train_data", table)
    target = tmp_path / "job-guest-0" / "out"
    assert sorted(path.name for path in target.iterdir()) == ["data_0", "metadata"]
    assert sorted(path.name for path in target.parent.iterdir()) == ["out"], "no staging is left"
    metadata = json.loads((target / "metadata").read_text())
    created = metadata.pop("create_time")
    assert created > 1.7e9
    assert metadata == {
        "name": "out",
        "namespace": "job-guest-0",
        "count": 2,
        "partitions": 1,
        "column_info": [
            {"name": "id", "type": "string"},
            {"name": "n", "type": "int"},
            {"name": "f", "type": "float"},
            {"name": "b", "type": "boolean"},
            {"name": "s", "type": "string"},
        ],
        "id_column": "id",
        "data_type": "dense",
        "description": "a test",
        "expire_time": 4102444800.0,
        "file_type": "csv",
    }
    back = open_storage(f"file://{tmp_path}", {"x": OUT["train_data"]}, {}).read_table("x")
    assert back == table


def test_json_is_written_with_its_type(tmp_path):
    storage(tmp_path).write_json("train_data", {"auc": 0.5, "名": "值"})
    target = tmp_path / "job-guest-0" / "out"
    assert json.loads((target / "data_0").read_text(encoding="utf-8")) == {
        "auc": 0.5,
        "名": "值",
    }
    assert json.loads((target / "metadata").read_text())["file_type"] == "json"


def test_what_the_job_does_not_ask_for_is_not_written(tmp_path):
    io = storage(tmp_path)
    io.write_table("other", Table(["a"], []))
    io.write_json("model", {})
    assert list(tmp_path.iterdir()) == []


def test_a_second_attempt_replaces_all_of_the_first(tmp_path):
    target = tmp_path / "job-guest-0" / "out"
    target.mkdir(parents=True)
    for name in ("data_0", "data_1", "metadata"):
        (target / name).write_text("old")
    storage(tmp_path).write_table("train_data", Table(["id"], [["1"]]))
    assert sorted(path.name for path in target.iterdir()) == ["data_0", "metadata"]
    assert (target / "data_0").read_text() == "id\n1\n"


def test_a_failed_write_leaves_nothing(tmp_path):
    (tmp_path / "job-guest-0").write_text("a file where the directory should be")
    with pytest.raises(
        StorageFailed, match=r"output train_data \(job-guest-0/out\): cannot be written"
    ):
        storage(tmp_path).write_table("train_data", Table(["id"], [["1"]]))
    assert [path.name for path in tmp_path.iterdir()] == ["job-guest-0"]


@pytest.mark.parametrize("bad", ["..", ".", "a/../b", "/a", "a\\b", "a\x00b", "x" * 300])
def test_addresses_that_leave_the_root_are_refused(tmp_path, bad):
    for address in (Address(bad, "n"), Address("ns", bad)):
        io = open_storage(
            f"file://{tmp_path}/root",
            {"a": address},
            {"a": address},
        )
        with pytest.raises(StorageFailed, match="plain file names"):
            io.read_table("a")
        with pytest.raises(StorageFailed, match="plain file names"):
            io.write_json("a", {})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "url",
    [
        "s3://u:hunter2@h:1",
        "s3://h:1/hunter2",
        "ftp://h:1?password=hunter2",
        "hdfs://h",
        "eggroll",
        "",
        "//[",
        "file:",
    ],
)
def test_a_url_that_cannot_be_is_refused_without_its_password(url):
    with pytest.raises(StorageFailed, match=r"system\.storage") as caught:
        open_storage(url, {}, {})
    assert "hunter2" not in str(caught.value)


def test_a_url_with_escapes_and_localhost_is_understood(tmp_path):
    root = tmp_path / "with space"
    open_storage(f"file://localhost{str(root).replace(' ', '%20')}/", {}, OUT).write_json(
        "train_data", 1
    )
    assert (root / "job-guest-0" / "out" / "data_0").exists()


def test_types_of_columns():
    assert column_type([]) == column_type(["", ""]) == "string"
    assert column_type(["1", "", "-2"]) == "int"
    assert column_type(["1", "1e3"]) == "float"
    assert column_type(["1", "x"]) == "string"


CELL = st.text(
    st.characters(
        exclude_categories=("Cs",),
        exclude_characters="\x00",
    ),
    max_size=8,
)


@settings(deadline=None, max_examples=50)
@given(
    st.data(),
    st.integers(1, 4),
)
def test_every_written_table_is_read_back(
    tmp_path_factory,
    data,
    width,
):
    row = st.lists(
        CELL,
        min_size=width,
        max_size=width,
    )
    header = data.draw(row.filter(any))
    rows = data.draw(st.lists(row, max_size=6))
    if width == 1:
        header[0] = header[0] or "a"
    root = tmp_path_factory.mktemp("storage")
    storage(root).write_table("train_data", Table(header, rows))
    back = open_storage(f"file://{root}", {"x": OUT["train_data"]}, {}).read_table("x")
    assert back.header == header
    assert back.rows == rows
