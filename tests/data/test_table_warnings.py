"""What is stored although it looks odd is said at the upload, with the line and an example."""

from pathlib import Path

import pytest

from gateway.data.table_format import BLOCK
from tests.data.test_datasets import HERE, Site

NUMBERS = "".join(f"{number},{number},0.5\n" for number in range(2, 8))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


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
)
def test_odd_rows_are_stored_with_a_warning(
    site: Site,
    table: str,
    line: str,
    example: str,
) -> None:
    (warning,) = site.store(table).warnings
    assert line in warning and example in warning


@pytest.mark.parametrize("odd_row", [",,\n", "Total,,\n", "x,NA,1\n"])
def test_odd_rows_are_found_far_from_the_beginning(site: Site, odd_row: str) -> None:
    rows = "".join(f"{number},{number},0.5\n" for number in range(BLOCK // 10))
    line = rows.count("\n") + 2
    (warning,) = site.store(f"id,n,x\n{rows}{odd_row}").warnings
    assert f"line {line}" in warning


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
)
def test_usual_tables_have_no_warnings(site: Site, table: str) -> None:
    assert site.store(table).warnings == ()


def test_a_match_id_may_be_any_name(site: Site) -> None:
    assert site.store(f"id,n,x\n{NUMBERS}U9,9,1\n", match_id_name="id").warnings == ()


def test_a_line_for_excel_is_no_row(site: Site) -> None:
    dataset = site.store("sep=;\nid;x\n1;2.5\n2;2.7\n", partitions=2, match_id_name="id")
    assert (dataset.columns, dataset.count, dataset.meta["delimiter"]) == (("id", "x"), 2, ";")
    assert sorted(site.storage.iter_rows(HERE)) == [["1", "2.5"], ["2", "2.7"]]
