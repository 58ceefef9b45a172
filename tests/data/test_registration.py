"""Tables that are registered where they lie: what is found out, what is refused, and that their bytes stay."""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.admin.outputs import preview
from gateway.config.loader import load
from gateway.data import registration
from gateway.data.combined_storage import Storages
from gateway.data.datasets import Datasets
from gateway.data.registration import Registration, located, warnings_of
from gateway.data.upload import Edit
from gateway.domain.datasets import Dataset, MemoryDatasets
from gateway.domain.run import Address
from gateway.errors import Conflict, GatewayError, Invalid, NotFound
from tests import storages as real
from tests.contracts.test_storage import KINDS, opened
from tests.data.test_combined_storage import CLUSTER, LAKE, at

ID = Address("bank", "customers")


def a_registration(
    id_: Address,
    place: str,
    **more: Any,
) -> Registration:
    return Registration(
        namespace=id_.namespace,
        name=id_.name,
        place=place,
        **more,
    )


@dataclass
class Site:
    """A node's tables, one storage of a kind, and how a place there is written."""

    storage: Storages
    kind: str
    tables: Datasets

    def write(self, path: str, data: str | bytes) -> None:
        content = data.encode() if isinstance(data, str) else data
        if self.kind == "file":
            (self.storage.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.storage.root / path).write_bytes(content)
        else:
            self.storage.remotes["lake"].remote.operator().write(path, content)

    def place(self, path: str) -> str:
        return f"file://{self.storage.root}/{path}" if self.kind == "file" else f"lake:{path}"

    def register(self, path: str, **more: Any) -> Dataset:
        return self.tables.register(a_registration(ID, self.place(path), **more))

    def rows(self, dataset: Dataset) -> list[list[str]]:
        return list(self.storage.iter_rows(dataset.address))


@pytest.fixture(params=KINDS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with opened(request.param, tmp_path) as (storage, _):
        yield Site(storage, request.param, Datasets(storage, MemoryDatasets()))


@pytest.fixture
def here(tmp_path: Path) -> Site:
    storage = at(tmp_path / "storage")
    return Site(storage, "file", Datasets(storage, MemoryDatasets()))


def parquet(**columns: list[Any]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def test_a_folder_of_files_is_one_table_and_stays_when_its_entry_goes(site: Site) -> None:
    site.write("warehouse/y=2026/part-00000.csv", "id,x\n1,1.5\n2,\n")
    site.write("warehouse/y=2026/part-00001.csv", "id,x\n3,2\n")
    site.write("warehouse/y=2026/_SUCCESS", "")
    found = site.register("warehouse/y=2026", match_id_name="id", count=True)
    assert (found.count, found.partitions, found.columns, found.types) == (
        3,
        2,
        ("id", "x"),
        ("string", "float"),
    )
    where = site.tables.resolve("bank#customers")
    assert where.as_dict() == {"namespace": "warehouse", "name": "y=2026"}
    assert site.rows(found) == [["1", "1.5"], ["2", ""], ["3", "2"]]
    assert b"".join(site.storage.stream(where)) == b"id,x\n1,1.5\n2,\n3,2\n"
    assert preview(site.storage, where, 2, table=True)["rows"] == [["1", "1.5"], ["2", ""]]
    assert "data_0" in warnings_of(site.storage, found)[0]
    before = site.storage.files(where)
    _, after = site.tables.edit(ID, Edit(description="of 2026", label_name="x"))
    assert (
        after.description == "of 2026"
        and site.tables.get("bank#customers").meta["label_name"] == "x"
    )
    site.tables.delete("bank#customers")
    assert site.storage.files(where) == before and not site.tables.exists(ID)


def test_a_disabled_table_gets_no_second_name(site: Site) -> None:
    storage = "" if site.kind == "file" else "lake"
    real.upload(site.tables, "id\n1\n", address=Address("bank", "accounts"), storage=storage)
    known = site.tables.get("bank#accounts")
    site.tables.switch(Address("bank", "accounts"), disabled=True)
    for place in (f"bank/{known.address.name}", f"bank/{known.address.name}/data_0"):
        with pytest.raises(Conflict, match="is dataset bank#accounts already") as refused:
            site.register(place)
        assert refused.value.reason == "DATASET_EXISTS"
    assert [dataset.dataset_id for dataset in site.tables.list()] == ["bank#accounts"]


def test_files_of_a_registered_folder_get_no_second_name(here: Site) -> None:
    here.write("in/t/a.csv", "id,x\n1,2\n")
    here.register("in/t")
    here.tables.switch(ID, disabled=True)
    with pytest.raises(Conflict, match="is dataset bank#customers already"):
        here.tables.register(a_registration(Address("bank", "other"), here.place("in/t/a.csv")))
    here.write("in/t2/a.csv", "id,x\n1,2\n")
    here.tables.register(a_registration(Address("bank", "other"), here.place("in/t2/a.csv")))


def test_a_folder_of_folders_is_no_table(site: Site) -> None:
    site.write("warehouse/t/y=2026/a.csv", "id\n1\n")
    with pytest.raises(Invalid, match="files alone, but has y=2026"):
        site.register("warehouse/t")


def test_a_registered_folder_gets_its_match_id_later(here: Site) -> None:
    here.write("in/t/a.csv", "id,x\n1,2\n")
    here.write("in/t/b.csv", "id,x\n2,2\n")
    here.register("in/t")
    _, after = here.tables.edit(ID, Edit(match_id_name="id"))
    assert after.meta["match_id_name"] == "id" and after.types == ("string", "int")
    with pytest.raises(Invalid, match="repeats"):
        here.tables.edit(ID, Edit(match_id_name="x"))
    here.write("in/t/b.csv", "x,id\n2\n")
    here.write("in/t/a.csv", "x,id\n1,1\n")
    here.register("in/t", overwrite=True)
    with pytest.raises(Invalid, match="file:3: must have a match id"):
        here.tables.edit(ID, Edit(match_id_name="id"))


def test_one_file_is_a_table_and_what_becomes_of_it_is_noticed(site: Site) -> None:
    site.write("in/customers.csv", "id,x\n1,2\n")
    found = site.register("in/customers.csv")
    assert found.count == 1 and site.tables.change(found) == "" and site.rows(found) == [["1", "2"]]
    assert site.tables.resolve("bank#customers").as_dict() == {
        "namespace": "in",
        "name": "customers.csv",
    }
    site.write("in/customers.csv", "id,x\n1,2\n3,4\n")
    assert "1 file of 13 bytes, it had 1 file of 9" in site.tables.change(found)
    with pytest.raises(Conflict) as refused:
        site.tables.resolve("bank#customers")
    assert refused.value.reason == "DATASET_CHANGED" and "in/customers" not in refused.value.message
    with pytest.raises(Conflict):
        site.register("in/customers.csv")
    site.tables.switch(ID, disabled=True)
    assert site.register("in/customers.csv", overwrite=True).disabled
    site.tables.switch(ID, disabled=False)
    assert site.tables.resolve("bank#customers")
    site.storage.delete(Address("in", "customers.csv", found.storage)) if site.kind == "file" else (
        site.storage.remotes["lake"].remote.operator().delete("in/customers.csv")
    )
    with pytest.raises(Conflict, match="gone"):
        site.tables.resolve("bank#customers")


def test_parquet_is_read_from_its_end_and_shown(site: Site) -> None:
    site.write(
        "lake/t/a.parquet",
        parquet(
            id=[1, 2],
            name=["甲", None],
            rate=[0.5, 1.0],
            ok=[True, None],
        ),
    )
    site.write(
        "lake/t/b.parquet",
        parquet(
            id=[3],
            name=["乙"],
            rate=[0.0],
            ok=[False],
        ),
    )
    found = site.register("lake/t", match_id_name="id", count=True)
    assert found.types == ("string", "string", "float", "boolean")
    assert (found.format, found.count, found.columns) == (
        "parquet",
        3,
        ("id", "name", "rate", "ok"),
    )
    seen = preview(site.storage, found.address, 2, table=True)
    assert (seen["columns"], seen["rows"]) == (
        list(found.columns),
        [["1", "甲", "0.5", "True"], ["2", "", "1.0", ""]],
    )
    assert (
        site.tables.format("bank#customers") == "parquet"
        and "dataFormat" in warnings_of(site.storage, found)[1]
    )
    with pytest.raises(Invalid, match="repeats that of line"):
        site.write(
            "lake/t/c.parquet",
            parquet(
                id=[1],
                name=["丙"],
                rate=[0.0],
                ok=[False],
            ),
        )
        site.register(
            "lake/t",
            match_id_name="id",
            count=True,
            overwrite=True,
        )


BROKEN: dict[str, tuple[dict[str, str | bytes], str]] = {
    "nothing": ({}, "nothing lies at"),
    "empty files": ({"t/a.csv": ""}, "but empty files"),
    "a header alone": ({"t/a.csv": "id,x\n"}, "at least one row"),
    "other columns": (
        {"t/a.csv": "id,x\n1,2\n", "t/b.csv": "1,2\n"},
        r"b\.csv: must begin with the header of a\.csv",
    ),
    "semicolons": ({"t/a.csv": "id;x\n1;2\n"}, "UTF-8 with commas.*data upload converts"),
    "gbk": (
        {"t/a.csv": "编号,姓名\n1,甲乙丙\n".encode("gbk")},
        "UTF-8 with commas.*data upload converts",
    ),
    "cells": ({"t/a.csv": "id,x\n1\n"}, "must have 2 cells"),
    "not text": (
        {"t/a.csv": "id\n1\n", "t/b.csv": b"id\n\xff\n"},
        r"b\.csv:2: must be UTF-8 text.*data upload --encoding",
    ),
    "no such column": ({"t/a.csv": "key,x\n1,2\n"}, "match_id_name: must name a column"),
    "repeated ids": ({"t/a.csv": "id\n1\n", "t/b.csv": "id\n1\n"}, "repeats that of line 2"),
    "broken parquet": ({"t/a.parquet": b"PAR1 and no more"}, "cannot be read as Parquet"),
    "two schemas": (
        {"t/a": parquet(id=[1]), "t/b": parquet(id=["1"])},
        "must have the columns and types of a",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_table_is_refused(case: str, here: Site) -> None:
    files, rule = BROKEN[case]
    for path, data in files.items():
        here.write(f"in/{path}", data)
    with pytest.raises((Invalid, NotFound), match=rule):
        here.register("in/t", match_id_name="id", count=True)
    assert here.tables.list() == []


def test_too_many_files_are_refused_and_vanished_ones_are_missing(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.write("in/t/a.csv", "id\n1\n")
    here.write("in/t/b.csv", "id\n2\n")
    with monkeypatch.context() as patch, pytest.raises(Invalid, match="must have at most 1 files"):
        patch.setattr(registration, "MAX_PARTITIONS", 1)
        here.register("in/t")
    found = here.register("in/t")
    for path in (here.storage.root / "in" / "t").iterdir():
        path.unlink()
    with pytest.raises(NotFound) as caught:
        here.storage.partitions(found.address)
    assert caught.value.reason == "DATA_MISSING"


def test_the_ids_of_a_parquet_table_are_checked_when_they_are_named_later(here: Site) -> None:
    here.write("in/t.parquet", parquet(x=[5, 6], id=["a", "a"]))
    here.register("in/t.parquet")
    with pytest.raises(Invalid, match="repeats"):
        here.tables.edit(ID, Edit(match_id_name="id"))
    assert here.tables.edit(ID, Edit(match_id_name="x"))[1].meta["match_id_name"] == "x"


def test_a_comma_divides_names_that_hold_other_delimiters(here: Site) -> None:
    here.write("in/t.csv", "id,per|year;net\n1,2\n")
    assert here.register("in/t.csv").columns == ("id", "per|year;net")


def test_of_a_large_table_the_beginning_is_read_unless_all_is_asked_for(here: Site) -> None:
    here.write(
        "in/t.csv", "id,x\n" + "".join(f"{i},{'7' * 100}\n" for i in range(20_000)) + "last,seven\n"
    )
    sampled = here.register("in/t.csv")
    assert (sampled.count, sampled.types) == (None, ("int", "int"))
    counted = here.register("in/t.csv", count=True, overwrite=True)
    assert (counted.count, counted.types) == (20_001, ("string", "string"))


@pytest.mark.parametrize(
    ("place", "address"),
    [
        ("s3://joint/a/b/c.csv", Address("a/b", "c.csv", "lake")),
        ("s3://127.0.0.1:1/joint/a/b", Address("a", "b", "lake")),
        ("lake:a/b/", Address("a", "b", "lake")),
        ("hdfs://127.0.0.1:1/joint/a/b", Address("a", "b", "cluster")),
        ("hdfs:///joint/a/b", Address("a", "b", "cluster")),
        ("/FOLDER/a/b.csv", Address("a", "b.csv")),
    ],
)
def test_a_place_is_found_by_its_address_or_by_the_storages_name(
    place: str,
    address: Address,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storages = at(tmp_path, LAKE, CLUSTER)
    monkeypatch.setattr(storages, "taken", lambda asked: True)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.csv").touch()
    assert replace(
        located(storages, place.replace("/FOLDER", str(tmp_path))), in_place=""
    ) == replace(address, in_place="")


@pytest.mark.parametrize(
    ("place", "rule"),
    [
        ("s3://other/a/b", r"lake \(s3://127.0.0.1:1/joint\), .*add it.*s3://HOST:PORT/other"),
        ("hdfs://10.0.0.9:8020/warehouse/a/b", r"add it.*hdfs://10.0.0.9:8020/warehouse"),
        ("hdfs://127.0.0.1:1/elsewhere/a/b", "one of this node's storages"),
        ("file:///etc/passwd", "a file elsewhere is uploaded"),
        ("oss://joint/a/b", "one of this node's storages"),
        ("customers.csv", "one of this node's storages"),
        ("lake:customers.csv", "in two parts"),
        ("lake:a/../b", "begin with a dot"),
        ("lake:job-1-guest-0/task-out", "output of a job"),
    ],
)
def test_a_place_elsewhere_names_the_storages_and_what_to_add(
    place: str,
    rule: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(GatewayError, match=rule):
        located(at(tmp_path, LAKE, CLUSTER), place)


@pytest.mark.parametrize(
    "kind", ["standalone", "eggroll", "path", "mysql", "hive", "linkis", "localfs", "oss"]
)
def test_other_kinds_of_address_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    """Where a table is registered, where a storage is named, and where a component lists nothing else."""
    with pytest.raises(
        Invalid, match=f"(data import|a file elsewhere is uploaded).*{kind}://h:1/a/b"
    ):
        located(at(tmp_path, LAKE), f"{kind}://h:1/a/b")
    for settings in (
        {"storages": {"lake": {"url": f"{kind}://h:1/a"}}},
        {"storage": {"url": f"{kind}://h:1/a"}},
    ):
        with pytest.raises(Invalid, match=f"s3://.*{kind}://h:1/a"):
            load(None, {"node": {"id": "JG0100001100000010"}, **settings})
    assert at(tmp_path, LAKE, stand_in=False).serving([kind]) == []


def test_two_storages_of_one_bucket_are_told_apart_by_name(tmp_path: Path) -> None:
    twice = at(tmp_path, LAKE, replace(LAKE, name="other", host="10.0.0.9"))
    with pytest.raises(Invalid, match="write lake:a/b or other:a/b"):
        located(twice, "s3://joint/a/b")


def test_a_link_in_the_nodes_folder_leads_nowhere(here: Site, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "t.csv").write_text("id\n1\n")
    here.write("in/x", "")
    (here.storage.root / "in" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(Invalid, match="symbolic link"):
        here.register("in/link/t.csv")


def test_no_upload_and_no_second_entry_touches_a_registered_table(here: Site) -> None:
    here.write("bank/deep/t.csv", "id\n1\n")
    here.register("bank/deep/t.csv")

    def upload(address: Address) -> Callable[[], Dataset]:
        return lambda: real.upload(here.tables, "id\n2\n", address, overwrite=True)

    other = a_registration(Address("bank", "second"), here.place("bank/deep/t.csv"))
    acts = [upload(ID), upload(Address("bank", "deep")), lambda: here.tables.register(other)]
    acts.append(lambda: here.tables.delete("bank#deep"))  # type: ignore[arg-type, return-value]
    for act in acts:
        with pytest.raises(Conflict, match="bank#customers"):
            act()
    upload(Address("bank", "uploaded"))()
    with pytest.raises(Conflict, match="needs another name"):
        here.tables.register(
            a_registration(Address("bank", "uploaded"), here.place("bank/deep/t.csv"))
        )
    assert (here.storage.root / "bank/deep/t.csv").read_text() == "id\n1\n"


def test_parquet_is_not_uploaded(here: Site) -> None:
    with pytest.raises(Invalid, match="data register"):
        real.upload(here.tables, parquet(id=[1]), ID)
