"""Odd rows are stored, with a warning at the upload that names the line and an example."""

import pytest

from gateway.data.table_format import BLOCK
from tests.data.sites import TABLE

NUMBERS = "".join(f"{number},{number},0.5\n" for number in range(2, 8))


@pytest.mark.parametrize(
    ("table", "line", "example"),
    [
        ("sep=;\nid;x\n1;2.5\n2;2.7\n", "line 1, sep=;", "not stored"),
        ('"sep=,"\r\nid,x\r\n1,2.5\r\n', "line 1, sep=,", "not stored"),
        ("39, State-gov, 77516\n50, Self-emp, 83311\n", "line 1", "'39'"),
        ("1 1:0.5 3:0.25\n0 2:1.5\n1 1:0.1 2:0.2 3:0.3\n", "line 1", "'1 1:0.5 3:0.25'"),
        ('id,tags\n1,"a:1.5;b:0.2"\n', "line 2", "'a:1.5;b:0.2'"),
        ("id;x\n1;3,14\n2;2,71\n", "line 2", "'3,14'"),
        (f"no,X1,X2\nID,AGE,LIMIT\n{NUMBERS}", "line 2", "'ID'"),
        (f"id,n,x\n{NUMBERS}Total,27,\n", "line 8", "'Total'"),
        (f"id,n,x\n{NUMBERS}8,NA,1\n", "line 8", "'NA'"),
        ("name,n\nann,1\nbob,2\n合计,3\n", "line 4", "'合计'"),
        (
            "name,n,x\nann,1,1\nbob,2,2\nTotal amount funded: 7500,,\n",
            "line 4",
            "'Total amount funded: 7500'",
        ),
        ("id,y,x0\n1,0,2\n2,1,3\n,,\n,,\n", "line 4", "empty in every column: 2"),
    ],
    ids=[
        "separator for Excel",
        "quoted separator for Excel",
        "no header",
        "LIBSVM",
        "pairs in a cell",
        "decimal commas",
        "second header",
        "total",
        "not available",
        "Chinese total",
        "total in words",
        "empty rows",
    ],
)
def test_odd_rows_are_stored_with_a_warning(site, table, line, example):
    [warning] = site.store(table).warnings

    assert line in warning
    assert example in warning


@pytest.mark.parametrize("odd_row", [",,\n", "Total,,\n", "x,NA,1\n"])
def test_odd_rows_are_found_far_from_the_beginning(site, odd_row):
    usual_rows = BLOCK // 10  # which fill more than one block
    rows = "".join(f"{number},{number},0.5\n" for number in range(usual_rows))

    [warning] = site.store(f"id,n,x\n{rows}{odd_row}").warnings

    assert f"line {usual_rows + 2}" in warning


@pytest.mark.parametrize(
    "table",
    [
        f"id,n,x\n{NUMBERS}",
        "phone,device_id,seq_id,x0\n10000,device_a,seq_1,0\n10002,device_b,seq_3,1\n",
        "card,n\n11010119900101123X,1\n110101199001011232,2\n110101199001011240,3\n",
        "id,at\n1,2026-11-24 12:30:11\n2,\n",
        "id,address\n1,http://10.0.0.1:80\n2,http://10.0.0.2:80\n",
        "name\nann\nbob\n",
    ],
    ids=["numbers", "names", "identity cards", "times", "addresses", "one column"],
)
def test_usual_tables_have_no_warnings(site, table):
    assert site.store(table).warnings == ()


def test_texts_after_many_empty_cells_are_usual(site):
    empty_rows = "1,2,\n" * (BLOCK // 4)  # which fill more than one block

    assert site.store(f"id,n,note\n{empty_rows}3,4,paid\n5,6,open\n").warnings == ()


def test_a_match_id_may_be_any_name(site):
    dataset = site.store(f"id,n,x\n{NUMBERS}U9,9,1\n", match_id_name="id")

    assert dataset.warnings == ()


def test_a_line_for_excel_is_no_row(site):
    dataset = site.store(
        "sep=;\nid;x\n1;2.5\n2;2.7\n",
        partitions=2,
        match_id_name="id",
    )

    assert dataset.columns == ("id", "x")
    assert dataset.count == 2
    assert dataset.meta["delimiter"] == ";"
    assert sorted(site.storage.iter_rows(TABLE)) == [
        ["1", "2.5"],
        ["2", "2.7"],
    ]
