"""Datasets: what an upload becomes, what it refuses, and how a dataset is found again."""

import csv
import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import zlib
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.data.combined_storage import Storages
from gateway.data.datasets import Datasets
from gateway.data.file_storage import Buckets, FileStorage
from gateway.data.id_check import IdCheck
from gateway.data.table_format import BLOCK, ENCODINGS, UTF8_BOM, Format
from gateway.data.table_reader import Findings, PlainBlocks
from gateway.data.upload import Edit, Upload, write_table
from gateway.domain.datasets import Dataset, MemoryDatasets
from gateway.domain.run import Address
from gateway.errors import Conflict, GatewayError, Invalid, NotAllowed, NotFound
from tests.storages import upload

HERE = Address("testspace", "test_guest")
NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


class Site:
    def __init__(self, folder: Path, repository: MemoryDatasets | None = None) -> None:
        self.storage = Storages(FileStorage(folder / "storage"))
        self.repository = repository or MemoryDatasets()
        self.roots = [folder / "one", folder / "two"]
        self.datasets = Datasets(self.storage, self.repository, self.roots, lambda: NOW)

    def store(
        self,
        content: str | bytes,
        filename: str = "t.csv",
        **wanted: Any,
    ) -> Dataset:
        return upload(self.datasets, content, name=filename, **{"address": HERE, **wanted})

    def problems(self, content: str | bytes, **wanted: Any) -> list[tuple[str, str]]:
        with pytest.raises(Invalid) as caught:
            self.store(content, **wanted)
        assert self.empty()
        for problem in (
            caught.value.problems
        ):  # a program sent by mistake must not fill a terminal, nor steer it
            assert problem.rule.isprintable() and len(problem.rule) <= 500
            assert not isinstance(problem.got, str) or (
                problem.got.isprintable() and len(problem.got) <= 120
            )
        return [(p.path, p.rule) for p in caught.value.problems]

    def parts(self, address: Address = HERE) -> list[str]:
        return [
            (self.storage.path(address) / p.name).read_bytes().decode()
            for p in self.storage.partitions(address)
        ]

    def empty(self) -> bool:
        """Whether neither a table nor anything half-written is in the storage."""
        return not list(self.storage.root.glob("*/*"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def paths(problems: list[tuple[str, str]]) -> list[str]:
    return [path for path, _ in problems]


# ---------------------------------------------------------------- what is stored


def test_a_table_is_stored_as_the_components_read_it(site: Site) -> None:
    dataset = site.store(
        'id;y;age;name\n007;1;31;"a;b"\n008;0;40.5;"say ""x"", or"\n',
        delimiter=";",
        label_name="y",
        match_id_name="id",
        extend_sid=True,
        extra={"source": "crm"},
        description="customers",
    )
    assert dataset.columns == ("sid", "id", "y", "age", "name")
    assert dataset.types == ("string", "string", "int", "float", "string")
    (part,) = site.parts()
    header, first, second = part.splitlines()
    assert header == "sid,id,y,age,name"
    assert first.endswith("-1,007,1,31,a;b")
    assert second.endswith('-2,008,0,40.5,"say ""x"", or"')
    metadata = site.storage.metadata(HERE)
    assert metadata == {
        "name": "test_guest",
        "namespace": "testspace",
        "count": 2,
        "partitions": 1,
        "column_info": [
            {"name": n, "type": t} for n, t in zip(dataset.columns, dataset.types, strict=True)
        ],
        "data_type": "dense",
        "description": "customers",
        "create_time": NOW.timestamp(),
        "expire_time": datetime(2100, 1, 1, tzinfo=UTC).timestamp(),
        "file_type": "csv",
        "id_column": "id",
        "label_column": "y",
        "sid_column": "sid",
        "meta": {
            "source": "crm",
            "delimiter": ",",
            "label_name": "y",
            "match_id_name": "id",
        },
        "origin": {
            "source": "file:t.csv",
            "delimiter": ";",
            "encoding": "utf-8",
            "checksum": dataset.checksum,
            "size": dataset.size,
            "stored": hashlib.sha256(part.encode()).hexdigest(),
        },
    }
    assert site.datasets.get("testspace#test_guest") == dataset


@pytest.mark.parametrize(
    ("content", "encoding", "delimiter"),
    [
        ("编号,姓名\n007,王芳\n".encode("gbk"), "gb18030", ","),
        ("编号;姓名\n007;王芳\n".encode("gb18030"), "gb18030", ";"),
        ("编号\t姓名\r\n\r\n007\t王芳".encode("utf-8-sig"), "utf-8-sig", "\t"),
        ('编号|"姓名"\n007|"王芳"\n'.encode(), "utf-8", "|"),
        ('\r\n编号,"姓名"\r\n007,"王芳"\r\n'.encode(), "utf-8", ","),
    ],
)
def test_encoding_and_delimiter_are_recognised(
    site: Site,
    content: bytes,
    encoding: str,
    delimiter: str,
) -> None:
    dataset = site.store(content, match_id_name="编号")
    assert site.parts() == ["编号,姓名\n007,王芳\n"]
    assert (dataset.meta["encoding"], dataset.meta["delimiter"]) == (encoding, delimiter)
    metadata = site.storage.metadata(HERE)
    assert (metadata["origin"]["encoding"], metadata["origin"]["delimiter"]) == (
        encoding,
        delimiter,
    )
    assert metadata["meta"] == {"match_id_name": "编号", "delimiter": ","}
    assert site.datasets.get("testspace#test_guest") == dataset


def test_what_stands_in_quotes_divides_nothing(site: Site) -> None:
    site.store('"a;b\n",1,"x"\n"c|d",2,"y\nz"\n', head=False)
    assert site.parts() == ['x0,x1,x2\n"a;b\n",1,x\nc|d,2,"y\nz"\n']


def test_an_encoding_and_a_delimiter_that_are_named_are_used(site: Site) -> None:
    site.store("id;a,b\n1;caffès\n".encode("cp1252"), encoding="Windows-1252", delimiter=";")
    assert site.parts() == ['id,"a,b"\n1,caffès\n']
    site.store("id\n陳\n".encode("big5"), encoding="big5", overwrite=True)
    assert site.parts() == ["id\n陳\n"]


def test_rows_without_header_and_match_id_are_divided_by_their_number(site: Site) -> None:
    dataset = site.store(
        "a,1\nb,2\n",
        head=False,
        match_id_name="x0",
        label_name="x1",
    )
    assert (dataset.columns, dataset.count) == (("x0", "x1"), 2)
    assert site.parts() == ["x0,x1\na,1\nb,2\n"]
    site.store("x\n" + "".join(f"{i}\n" for i in range(1, 50)), partitions=4, overwrite=True)
    for number, part in enumerate(site.parts()):
        assert {zlib.crc32(row.encode()) % 4 for row in part.splitlines()[1:]} <= {number}


def test_every_partition_has_the_header_and_sids_depend_on_the_content(site: Site) -> None:
    site.store("id\n1\n2\n", partitions=1024, match_id_name="id")
    assert Counter(site.parts()) == {
        "id\n": 1022,
        "id\n1\n": 1,
        "id\n2\n": 1,
    }
    stored = []
    for content in ("id\n1\n", "id\n1\n", "id\n2\n"):
        site.store(content, extend_sid=True, overwrite=True)
        stored.append(site.parts())
    assert stored[0] == stored[1]
    assert stored[0][0].split("\n")[1].split(",")[0] != stored[2][0].split("\n")[1].split(",")[0]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "-2", ""], "int"),
        (["1", "2.5", "1e-3"], "float"),
        (["1", "nan"], "float"),
        (["true", "False", ""], "boolean"),
        (["1", "true"], "string"),
        (["true", "1"], "string"),
        (["1_000"], "string"),
        (["", ""], "string"),
        (["1"] * 5000 + ["x"], "string"),
        (["1"] * 5000 + ["1.5"], "float"),
        (["9" * 5000], "float"),
    ],
)
def test_the_type_of_a_column_fits_every_cell(
    site: Site,
    cells: list[str],
    kind: str,
) -> None:
    assert site.store("k,x\n" + "".join(f"k,{c}\n" for c in cells)).types == ("string", kind)


CELL = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=8
) | st.sampled_from(["", '"', ",", ";", "\r", "\n", "\r\n", 'a"b', " ", "1", "\ufeff"])


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[list[str]], dict[str, Any]]:
    width = draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(CELL, min_size=width, max_size=width), min_size=1, max_size=25))
    rows = [row for row in rows if any(row)] or [["x"] * width]
    wanted: dict[str, Any] = {
        "partitions": draw(st.integers(1, 6)),
        "extend_sid": draw(st.booleans()),
        "delimiter": draw(st.sampled_from(",;|\t ü")),
    }
    if draw(st.booleans()):
        wanted["match_id_name"] = "c0"
        rows = [[f"{i}{row[0]}", *row[1:]] for i, row in enumerate(rows)]
    return rows, wanted


def quoted(cells: list[str], delimiter: str) -> str:
    return delimiter.join('"' + cell.replace('"', '""') + '"' for cell in cells) + "\n"


@settings(max_examples=100)
@given(tables())
def test_every_row_arrives_once_unchanged_in_its_partition(
    table: tuple[list[list[str]], dict[str, Any]],
) -> None:
    rows, wanted = table
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        header = [f"c{i}" for i in range(len(rows[0]))]
        text = "".join(quoted(line, wanted["delimiter"]) for line in [header, *rows])
        dataset = site.store(text, **wanted)
        sid = wanted["extend_sid"]
        assert dataset.count == len(rows)
        assert (
            site.storage.columns(HERE)
            == list(dataset.columns)
            == (["sid", *header] if sid else header)
        )
        stored = list(site.storage.iter_rows(HERE))
        assert sorted(row[1:] if sid else row for row in stored) == sorted(rows)
        if sid:
            sids = [row[0] for row in stored]
            assert len(set(sids)) == len(rows)
            assert {int(s.rpartition("-")[2]) for s in sids} == set(range(1, len(rows) + 1))
        for number, text in enumerate(site.parts()):
            header_line, *part = csv.reader(io.StringIO(text, newline=""))
            assert header_line == list(dataset.columns)
            for row in part:
                if "match_id_name" in wanted:
                    assert zlib.crc32(row[int(sid)].encode()) % dataset.partitions == number


PLAIN = [
    "1,2",
    "-3,4.5",
    "7,",
    ",8",
    "a,b c",
    "é,王",
    "true,False",
    "1e3,.5",
    "nan,inf",
    "1,",
    ",",
    "k",
]
ODD = [
    "1_0,5",
    "1,2,3",
    "",
    " ,1",
    "\ufeffz,1",
    '"a",b',
    '"a\nb",c',
    '"a,b',
    "a\r",
    "a\rb,c",
    "\0,1",
    "b|c;d,e",
    '""',
]
NUMBERS = st.from_regex(r"k[0-9]{1,3},[0-9]{1,22}(\.[0-9])?", fullmatch=True)
LINES = st.lists(st.sampled_from(PLAIN) | st.sampled_from(ODD) | NUMBERS, max_size=30)


@settings(max_examples=150)
@given(
    LINES, st.sampled_from([",", ";", "|"]), st.sampled_from(["utf-8", "gbk", "big5"]), st.data()
)
def test_a_block_that_is_plain_is_stored_as_row_by_row(
    lines: list[str],
    delimiter: str,
    encoding: str,
    data: st.DataObject,
) -> None:
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    text = (
        end.join([data.draw(st.sampled_from(["k,x", "k"])), *lines])
        .replace(",", delimiter)
        .encode(ENCODINGS[encoding], "replace")
    )
    wanted = Upload(
        HERE,
        partitions=data.draw(st.integers(1, 3)),
        extend_sid=data.draw(st.booleans()),
        match_id_name=data.draw(st.sampled_from(["", "k", "x"])),
        delimiter=delimiter,
        encoding=encoding,
    )

    def stored(block: int) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "table"
            table.mkdir()
            parts = Buckets(table, "data_")
            file = io.BufferedReader(io.BytesIO(text), block)  # type: ignore[arg-type]
            try:
                written = write_table(
                    file, wanted, parts, Path(folder) / "ids", "file:t.csv", lambda: NOW
                )
            except Invalid as refused:
                return sorted(map(repr, refused.problems))
            parts.finish()
            sids = re.compile(rb"[0-9a-f]{16}-")  # which follow from the first block
            if wanted.partitions == 1:
                assert written.stored == hashlib.sha256((table / "data_0").read_bytes()).hexdigest()
            assert (written.checksum, written.size) == (hashlib.sha256(text).hexdigest(), len(text))
            return replace(written, stored="", warnings=()), {  # what is odd depends on the block
                path.name: sids.sub(b"-", path.read_bytes()) for path in table.iterdir()
            }

    assert stored(data.draw(st.integers(12, 60))) == stored(BLOCK)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("content", "path", "word"),
    [
        (b"", "file", "empty"),
        (b"\n\n", "file", "empty"),
        (b"\xef\xbb\xbf", "file", "empty"),
        (b"id,x\n", "file", "row after the header"),
        ("id,x\n1,2\n".encode("utf-16"), "file:1", "UTF-16"),
        (b"id,x\n1,2\n2,\xff\n", "file:3", "UTF-8"),
        ("id,caffès\n1,2\n".encode("latin-1"), "file:1", "--encoding"),  # would be GBK as well
        (b"id,x\n1,2\n" * 50_000 + "3,王芳\n".encode("gbk"), "file:100001", "--encoding"),
        ("id,姓名\n1,2\n".encode("gbk") * 50_000 + b"3,\xff\n", "file:100001", "GB18030"),
        (b"id;x,y\n1;2,3\n", "meta.delimiter", "--delimiter"),
        (b"id,x\n1,2\n2,\0\n", "file:3", "NUL"),
        (b'id,x\n1,"2\n', "file:2", "quote is not closed"),
        (b'id,x\n1,"2"3\n', "file:2", "CSV"),
        (b"id,x\r1,2\r", "file:1", "lone CR"),
        (b"id,x\n1,2\n3\n", "file:3", "2 cells"),
        (
            b"PK\x03\x04\x14\x00" + b"[Content_Types].xml" + b"\0" * 99,
            "file",
            "Excel workbook: save its sheet as CSV",
        ),
        (b"\xd0\xcf\x11\xe0\xa1\xb1" + b"\0" * 99, "file", "Excel workbook: save its sheet as CSV"),
        (b"\x1f\x8b\x08\0\0", "file", "unpack it"),
        (b'id,x\n1,"a\nb"\n3\n', "file:4", "2 cells"),
        (b"id,\n1,2\n", "file:1", "printable name"),
        (b'id,"a\nb"\n1,2\n', "file:1", "printable name"),
        (b"id,\x1b[31m" + b"y" * 9000 + b"\n1,2\n", "file:1", "printable name"),
        (b"id,x,x\n1,2,3\n", "file:1", "another column"),
        (b"id,x\n ,2\n", "file:2", "match id"),
        (b"id,x\n1,2\n2,2\n1,3\n", "file:4", "that of line 2"),
        (b"key,x\n1,2\n", "meta.match_id_name", "key, x"),
    ],
)
def test_a_broken_table_is_refused_with_its_line(
    site: Site,
    content: bytes,
    path: str,
    word: str,
) -> None:
    found = site.problems(content, match_id_name="id")
    assert any(p == path and word in rule for p, rule in found), found


def test_concatenated_files_with_byte_order_marks_are_read_row_by_row() -> None:
    """Each mark at the beginning of a line goes; a block that is stored as it came would keep it."""
    form = Format(UTF8_BOM, ",")
    blocks = PlainBlocks(form, None)
    assert blocks.stored("王,1\n".encode(), ["string", "int"]) == "王,1\n".encode()
    assert blocks.stored("\ufeffz,1\n".encode(), ["string", "int"]) == b""


def test_an_endless_line_or_row_is_refused_early(site: Site) -> None:
    assert paths(site.problems(b"x" * 9_000_000)) == ["file:1"]
    assert paths(site.problems(b'id\n"' + b'\n","' * 2_000_000)) != []
    assert paths(site.problems("x" + ",x" * 200_000)) == ["file:1"]


def test_of_each_kind_the_first_is_told_and_where_the_others_are(site: Site) -> None:
    found = site.problems(
        "id,x\n" + "1\n" * 30 + "7,7\n" * 25 + " ,1\n 0,1\n\t,1\n", match_id_name="id"
    )
    assert paths(found) == ["file:2", "file", "file:57", "file", "file:33", "file"]
    assert [rule for path, rule in found if path == "file"] == [
        "29 more of this kind: number of cells, in lines 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, …",
        "1 more of this kind: blank ids, in lines 59",
        "23 more of this kind: repeated ids, in lines 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, …",
    ]


def test_columns_of_special_meaning_are_each_one_column(site: Site) -> None:
    assert paths(site.problems("sid,x\n1,2\n", extend_sid=True)) == ["extend_sid"]
    assert site.store("sid,x\n1,2\n").columns == ("sid", "x")
    site.datasets.delete("testspace#test_guest")
    assert paths(site.problems("id,x\n1,2\n", label_name="id", match_id_name="id")) == [
        "meta.label_name"
    ]


def test_a_taken_name_is_refused_before_the_file_is_read(site: Site) -> None:
    site.store("id\n1\n")
    with pytest.raises(Conflict):
        site.store(b"\xff")
    with pytest.raises(Invalid):
        site.store(b"\xff", overwrite=True)
    assert site.parts() == ["id\n1\n"]


def test_a_record_that_cannot_be_kept_leaves_all_as_it_was(tmp_path: Path) -> None:
    class Broken(MemoryDatasets):
        def put(self, dataset: Dataset) -> None:
            raise ConnectionError("the database is away")

    site = Site(tmp_path, Broken())
    with pytest.raises(GatewayError):
        site.store("id\n1\n")
    assert site.empty()


def test_a_full_disk_is_told_and_leaves_nothing(site: Site) -> None:
    code = textwrap.dedent("""
        import resource, signal, sys
        from pathlib import Path
        from tests.data.test_datasets import Site
        from gateway.errors import GatewayError

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        site = Site(Path(sys.argv[1]))
        for content in (b"id,x\\n" + b"12345678,1\\n" * 200_000, b"x;y\\n" + b"1;2\\n" * 249_000):
            try:
                site.store(content, extend_sid=True, delimiter=";")
            except GatewayError as error:
                assert error.reason == "STORAGE_FAILED", error.reason
            else:
                raise AssertionError("was stored")
            assert site.empty()
    """)
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", code, str(site.storage.root.parent)], cwd=root, check=True
    )


# ---------------------------------------------------------------- from the server's disk


@pytest.fixture
def served(site: Site, tmp_path: Path) -> Site:
    for root in site.roots:
        (root / "in").mkdir(parents=True)
    (site.roots[0] / "in" / "a.csv").write_text("id\n1\n")
    (site.roots[1] / "in" / "a.csv").write_text("id\n2\n")
    (site.roots[1] / "in" / "b.csv").write_text("id\n3\n")
    (tmp_path / "secret.csv").write_text("id\n9\n")
    return site


def test_a_path_is_looked_up_below_each_root_in_order(served: Site, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(served.roots[0])
    absolute = str(served.roots[1] / "in" / "a.csv")
    for path, row in (("in/a.csv", "1"), ("in/b.csv", "3"), ("in//./b.csv", "3"), (absolute, "2")):
        dataset = served.datasets.upload_from_path(Upload(HERE, overwrite=True), path)
        assert served.parts() == [f"id\n{row}\n"]
        assert dataset.origin == f"path:{path}"
    datasets = Datasets(
        served.storage, served.repository, [tmp_path / "link"]
    )  # a root may itself be a link
    for root in (Path(), tmp_path / "link", served.roots[0]):
        datasets.upload_from_path(Upload(HERE, overwrite=True), str(root / "in" / "a.csv"))


def test_a_link_inside_a_root_is_followed_and_one_that_leads_out_is_not(
    served: Site, tmp_path: Path
) -> None:
    (served.roots[0] / "inside").symlink_to(served.roots[0] / "in")
    (served.roots[0] / "out.csv").symlink_to(tmp_path / "secret.csv")
    (served.roots[0] / "up").symlink_to(tmp_path)
    served.datasets.upload_from_path(Upload(HERE), "inside/a.csv")
    for path in ("out.csv", "up/secret.csv", str(served.roots[0] / "up" / "secret.csv")):
        with pytest.raises(NotAllowed) as caught:
            served.datasets.upload_from_path(Upload(Address("n", "x")), path)
        assert caught.value.reason == "PATH_NOT_ALLOWED"


def test_what_is_elsewhere_or_not_a_file_is_refused(served: Site) -> None:
    os.mkfifo(served.roots[0] / "pipe")
    for path in ("../secret.csv", "in/../../secret.csv", "/etc/hostname", "/nowhere/at/all"):
        with pytest.raises(NotAllowed, match="/v2/component/upload/file") as caught:
            served.datasets.upload_from_path(Upload(HERE), path)
        assert caught.value.reason == "PATH_NOT_ALLOWED"
    for path in ("", " ", ".", "in", "gone.csv", "a\0", "\ud800", "x" * 300, "in/a.csv/x", "pipe"):
        with pytest.raises(Invalid) as refused:
            served.datasets.upload_from_path(Upload(HERE), path)
        assert [p.path for p in refused.value.problems] == ["file"]
    with pytest.raises(NotAllowed, match=r"data\.roots is empty"):
        Datasets(served.storage, served.repository, []).upload_from_path(Upload(HERE), "in/a.csv")


@settings(max_examples=100)
@given(
    st.lists(
        st.sampled_from(["..", ".", "in", "up", "secret.csv", "a.csv", "/", "\0", ""]), max_size=6
    )
)
def test_no_path_leads_to_a_file_outside_the_roots(parts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        (site.roots[0] / "in").mkdir(parents=True)
        (site.roots[0] / "in" / "a.csv").write_text("id\n1\n")
        (site.roots[0] / "up").symlink_to(folder)
        (Path(folder) / "secret.csv").write_text("id\n9\n")
        try:
            site.datasets.upload_from_path(Upload(HERE), "/".join(parts))
        except (Invalid, NotAllowed):
            assert site.empty()
        else:
            assert site.parts() == ["id\n1\n"]


# ---------------------------------------------------------------- finding it again


def test_a_dataset_is_found_by_either_form(site: Site) -> None:
    site.store("id\n1\n")
    site.store("id\n1\n", address=Address("a", "b#c"))
    assert site.datasets.resolve("testspace#test_guest") == HERE
    assert site.datasets.resolve(namespace="testspace", name="test_guest") == HERE
    assert site.datasets.resolve("a#b#c") == Address("a", "b#c")
    for unknown in (
        "",
        "#",
        "nohash",
        "a#",
        "#b",
        "../..#x",
        "a#../../etc",
        "gone#gone",
        "\ud800#x",
    ):
        for find in (site.datasets.resolve, site.datasets.get):
            with pytest.raises(NotFound) as caught:
                find(unknown)
            assert caught.value.reason == "DATASET_UNKNOWN"


def test_a_table_that_only_lies_in_the_storage_resolves(site: Site) -> None:
    site.store("id\n1\n", description="kept")
    stored = site.repository.get("testspace", "test_guest")
    site.repository.delete("testspace", "test_guest")
    assert site.datasets.resolve("testspace#test_guest") == HERE
    assert site.datasets.get("testspace#test_guest") == stored
    assert site.datasets.list() == []


def test_what_an_algorithm_wrote_is_told_as_far_as_it_says(site: Site) -> None:
    path = site.storage.path(HERE)
    path.mkdir(parents=True)
    (path / "data_0").write_text("id\n1\n")
    assert site.datasets.get("testspace#test_guest").columns == ()
    (path / "metadata").write_text(
        '{"count": 1, "create_time": "soon", "column_info": [{"name": "id"}, 3], "meta": []}'
    )
    dataset = site.datasets.get("testspace#test_guest")
    assert (dataset.columns, dataset.types, dataset.count) == (("id",), ("string",), 1)


def test_a_table_of_another_program_is_described_as_far_as_is_known(site: Site) -> None:
    path = site.storage.path(HERE)
    path.mkdir(parents=True)
    (path / "data_0").write_bytes(b"\x1f\x8b" + bytes(98))
    (path / "metadata").write_text(
        '{"count": 0, "column_info": [], "file_type": "csv", "create_time": 1790000000.5}'
    )
    dataset = site.datasets.get("testspace#test_guest")
    assert (dataset.count, dataset.size, dataset.columns, dataset.origin) == (None, 100, (), "")
    with pytest.raises(Conflict, match="was not uploaded"):
        site.datasets.edit(HERE, Edit(description="x"))


def test_a_disabled_dataset_refuses_and_stays_so_when_replaced(site: Site) -> None:
    site.repository.put(replace(site.store("id\n1\n"), disabled=True))
    site.store("id\n2\n", overwrite=True)
    with pytest.raises(NotAllowed, match="disabled"):
        site.datasets.resolve("testspace#test_guest")
    assert site.datasets.get("testspace#test_guest").disabled


def test_the_storage_is_believed_where_the_record_is_older(site: Site) -> None:
    old = site.store("id\n1\n")
    site.store("id\n1\n2\n", overwrite=True)
    site.repository.put(old)
    assert site.datasets.get("testspace#test_guest").count == 2


def test_a_deleted_dataset_is_gone(site: Site) -> None:
    site.store("id\n1\n")
    assert [d.dataset_id for d in site.datasets.list()] == ["testspace#test_guest"]
    site.datasets.delete("testspace#test_guest")
    assert site.empty() and site.datasets.list() == []
    with pytest.raises(NotFound):
        site.datasets.delete("testspace#test_guest")
    with pytest.raises(GatewayError):
        site.datasets.delete("../..#x")


def test_nothing_is_read_as_rows_after_a_quote_that_never_closes(site: Site) -> None:
    problems = site.problems('id,x\n1,2\n"3,4\n' + "5,6\n" * 100_000)
    assert [path for path, _ in problems] == ["file:3"] and "a quote is not closed" in problems[0][
        1
    ]


def test_ids_that_repeat_far_apart_are_found(tmp_path: Path) -> None:
    """What was seen is on disk, in pieces: a repeat may be in the same piece, another one, or not written yet."""
    numbers = [*range(10_000)]
    for line, earlier in ((3, 1), (5_000, 4_000), (9_000, 12), (9_500, 12), (9_999, 9_998)):
        numbers[line] = numbers[earlier]
    check = IdCheck(tmp_path / "ids", buckets=4, buffer_bytes=50_000, records_per_read=100)
    findings = Findings()
    for at in range(0, len(numbers), 100):
        check.see([b"%d" % number for number in numbers[at : at + 100]], range(at, at + 100))
    check.finish(findings)
    first, more = findings.error().problems
    assert first.path == "file:3" and first.rule.endswith("it repeats that of line 1")
    assert more.rule == "4 more of this kind: repeated ids, in lines 5000, 9000, 9500, 9999"


# ---------------------------------------------------------------- size


@pytest.mark.slow
def test_a_large_upload_needs_no_more_memory_than_a_small_one(tmp_path: Path) -> None:
    """Four times the rows, then hostile ids: every row but one repeats one, and all of them are found.

    A set of all ids, the least that a check without files would keep, takes 24 MB more for the many rows.
    """
    code = textwrap.dedent("""
        import re, sys
        from pathlib import Path
        from gateway.data.upload import Upload
        from gateway.errors import Invalid
        from tests.data.test_datasets import HERE, Site

        FEW, MANY = 80_000, 320_000
        site = Site(Path(sys.argv[1]))

        def send(count, of, **wanted):
            received = site.datasets.receive()
            received.write(b"id,y,a,b\\n")
            for start in range(0, count, 10_000):
                some = range(start, start + 10_000)
                received.write("".join(f"{of(i)},{i % 2},0.12345,{i}.5\\n" for i in some).encode())
            wanted = Upload(HERE, match_id_name="id", overwrite=True, **wanted)
            try:
                return site.datasets.upload_from_file(wanted, received, "t")
            finally:
                received.close()

        def most():  # getrusage would tell of the process that started this one, too
            return int(re.search("VmHWM:(.*)kB", Path("/proc/self/status").read_text())[1])

        for extend_sid in (True, False):  # each keeps something of its own in memory
            assert send(FEW, "user{:08d}".format, partitions=64, extend_sid=extend_sid).count == FEW
        before = most()
        stored = send(MANY, "user{:08d}".format, partitions=64, extend_sid=True)
        assert stored.count == MANY and stored.size > 9e6, stored.size
        try:
            send(MANY, lambda i: "same")
            raise AssertionError
        except Invalid as error:
            assert any(f"{MANY - 2} more" in p.rule for p in error.problems), error
        growth = most() - before
        assert growth < 14 * 1024, f"{growth} KiB"
        print(before, growth)
    """)
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=root, check=True)
