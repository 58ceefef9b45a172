"""Tables registered in place: recognised, checked, and never changed or moved."""

import io
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.admin.outputs import preview
from gateway.config.loader import load
from gateway.data import registration
from gateway.data.datasets import Datasets
from gateway.data.registration import Registration, locate, warnings_of
from gateway.data.upload import Edit
from gateway.domain.datasets import MemoryDatasets
from gateway.domain.run import Address
from gateway.errors import Conflict, GatewayError, Invalid, NotFound
from tests.builders import returning
from tests.contracts.storage_sites import KINDS, opened
from tests.data.sites import CLUSTER, LAKE, storages_at
from tests.storages import upload

CUSTOMERS = Address("bank", "customers")
OTHER = Address("bank", "other")


def a_registration(address, place, **options):
    return Registration(
        namespace=address.namespace,
        name=address.name,
        place=place,
        **options,
    )


class Site:
    """A node's tables and one of its storages, in which files are registered."""

    def __init__(self, storage, kind):
        self.storage = storage
        self.kind = kind
        self.tables = Datasets(storage, MemoryDatasets())

    @property
    def lake(self):
        """The library's operator of the storage elsewhere."""
        return self.storage.remotes["lake"].remote.operator()

    def write(self, path, data):
        content = data.encode() if isinstance(data, str) else data
        if self.kind != "file":
            self.lake.write(path, content)
            return
        file = self.storage.root / path
        file.parent.mkdir(
            parents=True,
            exist_ok=True,
        )
        file.write_bytes(content)

    def delete(self, path):
        if self.kind == "file":
            (self.storage.root / path).unlink()
        else:
            self.lake.delete(path)

    def place(self, path):
        """Return a path in the storage as a person writes it."""
        if self.kind == "file":
            return f"file://{self.storage.root}/{path}"
        return f"lake:{path}"

    def register(self, path, address=CUSTOMERS, **options):
        return self.tables.register(a_registration(address, self.place(path), **options))

    def rows(self, dataset):
        return list(self.storage.iter_rows(dataset.address))


@pytest.fixture(params=KINDS)
def site(request, tmp_path):
    """A site for each kind of storage."""
    with opened(request.param, tmp_path) as (storage, _):
        yield Site(storage, request.param)


@pytest.fixture
def folder_site(tmp_path):
    """A site with the node's folder alone."""
    return Site(storages_at(tmp_path / "storage"), "file")


def parquet(**columns):
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def damaged_parquet(**columns):
    """Return a Parquet file whose first page of data is overwritten; its metadata are intact."""
    data = bytearray(parquet(**columns))
    data[4:200] = bytes(196)
    return bytes(data)


# ------------------------------------------------------------ folders and files


def test_a_folder_of_files_is_one_table_and_outlives_its_entry(site):
    site.write("warehouse/y=2026/part-00000.csv", "id,x\n1,1.5\n2,\n")
    site.write("warehouse/y=2026/part-00001.csv", "id,x\n3,2\n")
    site.write("warehouse/y=2026/_SUCCESS", "")

    dataset = site.register(
        "warehouse/y=2026",
        match_id_name="id",
        count=True,
    )

    assert dataset.count == 3
    assert dataset.partitions == 2
    assert dataset.columns == ("id", "x")
    assert dataset.types == ("string", "float")
    address = site.tables.resolve("bank#customers")
    assert address.as_dict() == {
        "namespace": "warehouse",
        "name": "y=2026",
    }
    assert site.rows(dataset) == [
        ["1", "1.5"],
        ["2", ""],
        ["3", "2"],
    ]
    assert b"".join(site.storage.stream(address)) == b"id,x\n1,1.5\n2,\n3,2\n"
    assert preview(site.storage, address, 2, is_declared_table=True)["rows"] == [
        ["1", "1.5"],
        ["2", ""],
    ]
    assert "data_0" in warnings_of(site.storage, dataset)[0]

    files = site.storage.files(address)
    _, edited = site.tables.edit(
        CUSTOMERS,
        Edit(description="of 2026", label_name="x"),
    )
    assert edited.description == "of 2026"
    assert site.tables.get("bank#customers").meta["label_name"] == "x"
    site.tables.delete("bank#customers")
    assert site.storage.files(address) == files
    assert not site.tables.exists(CUSTOMERS)


def test_a_folder_of_folders_is_no_table(site):
    site.write("warehouse/t/y=2026/a.csv", "id\n1\n")

    with pytest.raises(Invalid, match="files alone, but has y=2026"):
        site.register("warehouse/t")


def test_a_change_of_a_registered_file_is_noticed(site):
    site.write("in/customers.csv", "id,x\n1,2\n")
    dataset = site.register("in/customers.csv")
    assert dataset.count == 1
    assert site.tables.describe_change(dataset) == ""
    assert site.rows(dataset) == [["1", "2"]]
    address = site.tables.resolve("bank#customers")
    assert address.as_dict() == {
        "namespace": "in",
        "name": "customers.csv",
    }

    site.write("in/customers.csv", "id,x\n1,2\n3,4\n")

    assert "1 file of 13 bytes, it had 1 file of 9" in site.tables.describe_change(dataset)
    with pytest.raises(Conflict) as refusal:
        site.tables.resolve("bank#customers")
    assert refusal.value.reason == "DATASET_CHANGED"
    assert "in/customers" not in refusal.value.message, "partners read it"


def test_a_changed_file_is_registered_again_and_stays_disabled(site):
    site.write("in/customers.csv", "id,x\n1,2\n")
    site.register("in/customers.csv")
    site.write("in/customers.csv", "id,x\n1,2\n3,4\n")
    with pytest.raises(Conflict):
        site.register("in/customers.csv")

    site.tables.switch(CUSTOMERS, disabled=True)
    assert site.register("in/customers.csv", overwrite=True).disabled

    site.tables.switch(CUSTOMERS, disabled=False)
    assert site.tables.resolve("bank#customers")


def test_a_deleted_file_is_noticed(site):
    site.write("in/customers.csv", "id,x\n1,2\n")
    site.register("in/customers.csv")

    site.delete("in/customers.csv")

    with pytest.raises(Conflict, match="gone"):
        site.tables.resolve("bank#customers")


def test_vanished_files_of_a_folder_are_missing(folder_site):
    folder_site.write("in/t/a.csv", "id\n1\n")
    folder_site.write("in/t/b.csv", "id\n2\n")
    dataset = folder_site.register("in/t")

    for name in ("a.csv", "b.csv"):
        folder_site.delete(f"in/t/{name}")

    with pytest.raises(NotFound) as error:
        folder_site.storage.partitions(dataset.address)
    assert error.value.reason == "DATA_MISSING"


def test_too_many_files_are_refused(folder_site, monkeypatch):
    monkeypatch.setattr(registration, "MAX_PARTITIONS", 1)
    folder_site.write("in/t/a.csv", "id\n1\n")
    folder_site.write("in/t/b.csv", "id\n2\n")

    with pytest.raises(Invalid, match="must have at most 1 files"):
        folder_site.register("in/t")


# ------------------------------------------------------------ one name per table


@pytest.mark.parametrize(
    "part",
    ["", "/data_0"],
    ids=["table", "its part"],
)
def test_a_disabled_table_gets_no_second_name(site, part):
    storage = "" if site.kind == "file" else "lake"
    accounts = Address("bank", "accounts")
    upload(
        site.tables,
        "id\n1\n",
        address=accounts,
        storage=storage,
    )
    address = site.tables.get("bank#accounts").address
    site.tables.switch(accounts, disabled=True)

    with pytest.raises(Conflict, match="is dataset bank#accounts already") as refusal:
        site.register(f"bank/{address.name}{part}")

    assert refusal.value.reason == "DATASET_EXISTS"
    assert [dataset.dataset_id for dataset in site.tables.list()] == ["bank#accounts"]


def test_files_of_a_registered_folder_get_no_second_name(folder_site):
    folder_site.write("in/t/a.csv", "id,x\n1,2\n")
    folder_site.write("in/t2/a.csv", "id,x\n1,2\n")
    folder_site.register("in/t")
    folder_site.tables.switch(CUSTOMERS, disabled=True)

    with pytest.raises(Conflict, match="is dataset bank#customers already"):
        folder_site.register("in/t/a.csv", OTHER)
    folder_site.register("in/t2/a.csv", OTHER)


FILE_IN_NAMESPACE = "bank/deep/t.csv"


@pytest.fixture
def registered_site(folder_site):
    """A site with a registered file below the folder of its namespace."""
    folder_site.write(FILE_IN_NAMESPACE, "id\n1\n")
    folder_site.register(FILE_IN_NAMESPACE)
    yield folder_site
    assert (folder_site.storage.root / FILE_IN_NAMESPACE).read_text() == "id\n1\n"


def test_no_upload_touches_a_registered_table(registered_site):
    for address in (CUSTOMERS, Address("bank", "deep")):
        with pytest.raises(Conflict, match="bank#customers"):
            upload(
                registered_site.tables,
                "id\n2\n",
                address,
                overwrite=True,
            )


def test_no_deletion_touches_a_registered_table(registered_site):
    with pytest.raises(Conflict, match="bank#customers"):
        registered_site.tables.delete("bank#deep")


def test_a_registered_table_gets_no_second_entry(registered_site):
    with pytest.raises(Conflict, match="bank#customers"):
        registered_site.register(FILE_IN_NAMESPACE, OTHER)


def test_a_registration_does_not_take_the_name_of_an_upload(registered_site):
    upload(registered_site.tables, "id\n2\n", OTHER)

    with pytest.raises(Conflict, match="needs another name"):
        registered_site.register(FILE_IN_NAMESPACE, OTHER)


# ------------------------------------------------------------ match ids


def test_a_registered_folder_gets_its_match_id_later(folder_site):
    folder_site.write("in/t/a.csv", "id,x\n1,2\n")
    folder_site.write("in/t/b.csv", "id,x\n2,2\n")
    folder_site.register("in/t")

    _, edited = folder_site.tables.edit(
        CUSTOMERS,
        Edit(match_id_name="id"),
    )

    assert edited.meta["match_id_name"] == "id"
    assert edited.types == ("string", "int")
    with pytest.raises(Invalid, match="same match id as line 2"):
        folder_site.tables.edit(CUSTOMERS, Edit(match_id_name="x"))


def test_a_short_row_has_no_match_id(folder_site):
    folder_site.write("in/t/a.csv", "x,id\n1,1\n")
    folder_site.write("in/t/b.csv", "x,id\n2\n")
    folder_site.register("in/t")

    with pytest.raises(Invalid, match="file:3: must have a match id"):
        folder_site.tables.edit(CUSTOMERS, Edit(match_id_name="id"))


# ------------------------------------------------------------ Parquet


def test_parquet_is_read_from_its_end_and_shown(site):
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

    dataset = site.register(
        "lake/t",
        match_id_name="id",
        count=True,
    )

    assert dataset.format == "parquet"
    assert dataset.count == 3
    assert dataset.columns == ("id", "name", "rate", "ok")
    assert dataset.types == ("string", "string", "float", "boolean")
    shown_table = preview(
        site.storage,
        dataset.address,
        2,
        is_declared_table=True,
    )
    assert shown_table["columns"] == list(dataset.columns)
    assert shown_table["rows"] == [
        ["1", "甲", "0.5", "True"],
        ["2", "", "1.0", ""],
    ]
    assert site.tables.format("bank#customers") == "parquet"
    assert "dataFormat" in warnings_of(site.storage, dataset)[1]

    site.write(
        "lake/t/c.parquet",
        parquet(
            id=[1],
            name=["丙"],
            rate=[0.0],
            ok=[False],
        ),
    )
    with pytest.raises(Invalid, match="same match id as line 2"):
        site.register(
            "lake/t",
            match_id_name="id",
            count=True,
            overwrite=True,
        )


def test_the_ids_of_a_parquet_table_are_checked_when_they_are_named_later(folder_site):
    folder_site.write(
        "in/t.parquet",
        parquet(
            x=[5, 6],
            id=["a", "a"],
        ),
    )
    folder_site.register("in/t.parquet")

    with pytest.raises(Invalid, match="same match id as line 2"):
        folder_site.tables.edit(CUSTOMERS, Edit(match_id_name="id"))
    _, edited = folder_site.tables.edit(
        CUSTOMERS,
        Edit(match_id_name="x"),
    )
    assert edited.meta["match_id_name"] == "x"


def test_parquet_is_not_uploaded(folder_site):
    with pytest.raises(Invalid, match="data register"):
        upload(folder_site.tables, parquet(id=[1]), CUSTOMERS)


# ------------------------------------------------------------ content


@pytest.mark.parametrize(
    ("files", "rule"),
    [
        ({}, "nothing lies at"),
        ({"t/a.csv": ""}, "but empty files"),
        ({"t/a.csv": "id,x\n"}, "at least one row"),
        (
            {"t/a.csv": "id,x\n1,2\n", "t/b.csv": "1,2\n"},
            r"b\.csv: must begin with the header of a\.csv",
        ),
        ({"t/a.csv": "id;x\n1;2\n"}, "UTF-8 with commas.*data upload converts"),
        (
            {"t/a.csv": "编号,姓名\n1,甲乙丙\n".encode("gbk")},
            "UTF-8 with commas.*data upload converts",
        ),
        ({"t/a.csv": "id,x\n1\n"}, "must have 2 cells"),
        (
            {"t/a.csv": "id\n1\n", "t/b.csv": b"id\n\xff\n"},
            r"b\.csv:2: must be UTF-8 text.*data upload --encoding",
        ),
        ({"t/a.csv": "key,x\n1,2\n"}, "match_id_name: must name a column"),
        ({"t/a.csv": "id\n1\n", "t/b.csv": "id\n1\n"}, "same match id as line 2"),
        ({"t/a.parquet": b"PAR1 and no more"}, "cannot be read as Parquet"),
        ({"t/a.parquet": damaged_parquet(id=list(range(1000)))}, "cannot be read as Parquet"),
        (
            {
                "t/a": parquet(id=[1]),
                "t/b": parquet(id=["1"]),
            },
            "must have the columns and types of a",
        ),
    ],
    ids=[
        "nothing",
        "empty files",
        "a header alone",
        "other columns",
        "semicolons",
        "gbk",
        "cells",
        "not text",
        "no such column",
        "repeated ids",
        "broken parquet",
        "a damaged page",
        "two schemas",
    ],
)
def test_files_that_are_no_table_are_refused(folder_site, files, rule):
    for path, data in files.items():
        folder_site.write(f"in/{path}", data)

    with pytest.raises((Invalid, NotFound), match=rule):
        folder_site.register(
            "in/t",
            match_id_name="id",
            count=True,
        )
    assert folder_site.tables.list() == []


def test_a_comma_divides_names_that_hold_other_delimiters(folder_site):
    folder_site.write("in/t.csv", "id,per|year;net\n1,2\n")

    assert folder_site.register("in/t.csv").columns == ("id", "per|year;net")


def test_the_whole_of_a_large_table_is_read_only_on_request(folder_site):
    """The types of the sample differ, as only the last row has text."""
    rows = "".join(f"{number},{'7' * 100}\n" for number in range(20_000))
    folder_site.write("in/t.csv", f"id,x\n{rows}last,seven\n")

    sampled = folder_site.register("in/t.csv")
    assert sampled.count is None
    assert sampled.types == ("int", "int")

    counted = folder_site.register(
        "in/t.csv",
        count=True,
        overwrite=True,
    )
    assert counted.count == 20_001
    assert counted.types == ("string", "string")


# ------------------------------------------------------------ places


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
    tmp_path, monkeypatch, place, address
):
    storages = storages_at(tmp_path, LAKE, CLUSTER)
    monkeypatch.setattr(storages, "taken", returning(True))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.csv").touch()

    location = locate(
        storages,
        place.replace("/FOLDER", str(tmp_path)),
    )

    assert replace(location, in_place="") == address


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
def test_a_place_elsewhere_names_the_storages_and_the_setting_to_add(tmp_path, place, rule):
    with pytest.raises(GatewayError, match=rule):
        locate(storages_at(tmp_path, LAKE, CLUSTER), place)


KINDS_OF_ADDRESS = [
    "standalone",
    "eggroll",
    "path",
    "mysql",
    "hive",
    "linkis",
    "localfs",
    "oss",
]


@pytest.mark.parametrize("kind", KINDS_OF_ADDRESS)
def test_other_kinds_of_address_are_refused_by_name(tmp_path, kind):
    """At the registration of a table, in the settings, and as the only storage of a component."""
    storages = storages_at(tmp_path, LAKE, stand_in=False)

    rule = f"(data import|a file elsewhere is uploaded).*{kind}://h:1/a/b"
    with pytest.raises(Invalid, match=rule):
        locate(storages, f"{kind}://h:1/a/b")
    url = {"url": f"{kind}://h:1/a"}
    for settings in ({"storages": {"lake": url}}, {"storage": url}):
        with pytest.raises(Invalid, match=f"s3://.*{kind}://h:1/a"):
            load(None, {"node": {"id": "JG0100001100000010"}, **settings})
    assert storages.serving([kind]) == []


def test_two_storages_of_one_bucket_are_told_apart_by_name(tmp_path):
    second = replace(
        LAKE,
        name="other",
        host="10.0.0.9",
    )

    with pytest.raises(Invalid, match="write lake:a/b or other:a/b"):
        locate(storages_at(tmp_path, LAKE, second), "s3://joint/a/b")


def test_a_link_in_the_nodes_folder_leads_nowhere(folder_site, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "t.csv").write_text("id\n1\n")
    folder_site.write("in/x", "")
    (folder_site.storage.root / "in" / "link").symlink_to(tmp_path / "outside")

    with pytest.raises(Invalid, match="symbolic link"):
        folder_site.register("in/link/t.csv")
