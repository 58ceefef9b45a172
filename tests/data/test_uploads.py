"""Uploads: the table that each becomes, or the problems for which it is refused."""

import csv
import hashlib
import io
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

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.data.file_storage import BufferedParts
from gateway.data.id_check import IdCheck
from gateway.data.table_format import BLOCK, ENCODINGS, UTF8_BOM, Format
from gateway.data.table_reader import Findings, PlainBlocks
from gateway.data.upload import Upload, write_table
from gateway.domain.datasets import MemoryDatasets
from gateway.errors import Conflict, GatewayError, Invalid
from tests.data.sites import NOW, TABLE, TABLE_ID, Site

ROOT = Path(__file__).parents[2]


def paths_of(problems):
    return [path for path, _ in problems]


# ------------------------------------------------------------ the stored table


def test_a_table_is_stored_as_the_components_read_it(site):
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
    [part] = site.parts()
    header, first, second = part.splitlines()
    assert header == "sid,id,y,age,name"
    assert first.endswith("-1,007,1,31,a;b")
    assert second.endswith('-2,008,0,40.5,"say ""x"", or"')
    assert site.storage.metadata(TABLE) == {
        "name": "test_guest",
        "namespace": "testspace",
        "count": 2,
        "partitions": 1,
        "column_info": [
            {"name": "sid", "type": "string"},
            {"name": "id", "type": "string"},
            {"name": "y", "type": "int"},
            {"name": "age", "type": "float"},
            {"name": "name", "type": "string"},
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
    assert site.datasets.get(TABLE_ID) == dataset


@pytest.mark.parametrize(
    ("content", "encoding", "delimiter"),
    [
        ("编号,姓名\n007,王芳\n".encode("gbk"), "gb18030", ","),
        ("编号;姓名\n007;王芳\n".encode("gb18030"), "gb18030", ";"),
        ("编号\t姓名\r\n\r\n007\t王芳".encode("utf-8-sig"), "utf-8-sig", "\t"),
        ('编号|"姓名"\n007|"王芳"\n'.encode(), "utf-8", "|"),
        ('\r\n编号,"姓名"\r\n007,"王芳"\r\n'.encode(), "utf-8", ","),
    ],
    ids=["GBK", "GB18030", "UTF-8 with a mark", "UTF-8", "empty first line"],
)
def test_encoding_and_delimiter_are_recognised(site, content, encoding, delimiter):
    dataset = site.store(content, match_id_name="编号")

    assert site.parts() == ["编号,姓名\n007,王芳\n"]
    assert dataset.meta["encoding"] == encoding
    assert dataset.meta["delimiter"] == delimiter
    metadata = site.storage.metadata(TABLE)
    assert metadata["origin"]["encoding"] == encoding
    assert metadata["origin"]["delimiter"] == delimiter
    assert metadata["meta"] == {
        "match_id_name": "编号",
        "delimiter": ",",
    }
    assert site.datasets.get(TABLE_ID) == dataset


def test_delimiters_and_line_ends_in_quotes_divide_nothing(site):
    site.store('"a;b\n",1,"x"\n"c|d",2,"y\nz"\n', head=False)

    assert site.parts() == ['x0,x1,x2\n"a;b\n",1,x\nc|d,2,"y\nz"\n']


@pytest.mark.parametrize(
    ("content", "options", "stored"),
    [
        (
            "id;a,b\n1;caffès\n".encode("cp1252"),
            {"encoding": "Windows-1252", "delimiter": ";"},
            'id,"a,b"\n1,caffès\n',
        ),
        ("id\n陳\n".encode("big5"), {"encoding": "big5"}, "id\n陳\n"),
    ],
    ids=["Windows-1252", "Big5"],
)
def test_a_requested_encoding_and_delimiter_are_used(site, content, options, stored):
    site.store(content, **options)

    assert site.parts() == [stored]


def test_a_table_without_header_gets_column_names(site):
    dataset = site.store(
        "a,1\nb,2\n",
        head=False,
        match_id_name="x0",
        label_name="x1",
    )

    assert dataset.columns == ("x0", "x1")
    assert dataset.count == 2
    assert site.parts() == ["x0,x1\na,1\nb,2\n"]


def test_rows_without_match_id_are_divided_by_their_number(site):
    numbers = "".join(f"{number}\n" for number in range(1, 50))

    site.store(f"x\n{numbers}", partitions=4)

    for number, part in enumerate(site.parts()):
        rows = part.splitlines()[1:]
        assert {zlib.crc32(row.encode()) % 4 for row in rows} <= {number}


def test_every_partition_has_the_header(site):
    site.store(
        "id\n1\n2\n",
        partitions=1024,
        match_id_name="id",
    )

    assert Counter(site.parts()) == {
        "id\n": 1022,
        "id\n1\n": 1,
        "id\n2\n": 1,
    }


def test_sids_depend_on_the_content(site):
    parts = []
    for content in ("id\n1\n", "id\n1\n", "id\n2\n"):
        site.store(
            content,
            extend_sid=True,
            overwrite=True,
        )
        [part] = site.parts()
        parts.append(part)

    first_sid = parts[0].split("\n")[1].split(",")[0]
    last_sid = parts[2].split("\n")[1].split(",")[0]
    assert parts[0] == parts[1]
    assert first_sid != last_sid


@pytest.mark.parametrize(
    ("cells", "column_type"),
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
def test_the_type_of_a_column_fits_every_cell(site, cells, column_type):
    rows = "".join(f"k,{cell}\n" for cell in cells)

    dataset = site.store(f"k,x\n{rows}")

    assert dataset.types == ("string", column_type)


# ------------------------------------------------------------ properties of every upload

CELL_TEXT = st.text(
    st.characters(
        blacklist_categories=("Cs",),
        blacklist_characters="\0",
    ),
    max_size=8,
)
SPECIAL_CELL = st.sampled_from(
    ["", '"', ",", ";", "\r", "\n", "\r\n", 'a"b', " ", "1", "\ufeff"],
)


@st.composite
def tables(draw):
    """Draw the rows of a table and the options of its upload."""
    width = draw(st.integers(1, 4))
    row = st.lists(
        CELL_TEXT | SPECIAL_CELL,
        min_size=width,
        max_size=width,
    )
    rows = [row for row in draw(st.lists(row, min_size=1, max_size=25)) if any(row)]
    rows = rows or [["x"] * width]
    options = {
        "partitions": draw(st.integers(1, 6)),
        "extend_sid": draw(st.booleans()),
        "delimiter": draw(st.sampled_from(",;|\t ü")),
    }
    if draw(st.booleans()):
        options["match_id_name"] = "c0"
        for number, row in enumerate(rows):
            row[0] = f"{number}{row[0]}"
    return rows, options


def quote(cells, delimiter):
    quoted = ['"' + cell.replace('"', '""') + '"' for cell in cells]
    return delimiter.join(quoted) + "\n"


@settings(max_examples=100)
@given(tables())
def test_every_row_arrives_once_unchanged_in_its_partition(table):
    rows, options = table
    header = [f"c{number}" for number in range(len(rows[0]))]
    content = "".join(quote(line, options["delimiter"]) for line in [header, *rows])
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        dataset = site.store(content, **options)
        stored_columns = site.storage.columns(TABLE)
        stored_rows = list(site.storage.iter_rows(TABLE))
        parts = site.parts()

    assert dataset.count == len(rows)
    assert stored_columns == list(dataset.columns)
    if options["extend_sid"]:
        assert stored_columns == ["sid", *header]
        sids = [row.pop(0) for row in stored_rows]
        assert_sids_number_the_rows(sids)
    else:
        assert stored_columns == header
    assert sorted(stored_rows) == sorted(rows)
    for number, part in enumerate(parts):
        part_header, *part_rows = csv.reader(io.StringIO(part, newline=""))
        assert part_header == list(dataset.columns)
        if "match_id_name" in options:
            column = part_header.index("c0")
            for row in part_rows:
                assert zlib.crc32(row[column].encode()) % dataset.partitions == number


def assert_sids_number_the_rows(sids):
    numbers = [int(sid.rpartition("-")[2]) for sid in sids]
    assert len(set(sids)) == len(sids)
    assert sorted(numbers) == list(range(1, len(sids) + 1))


# Lines that a block of plain rows may have, which is stored without parsing.
PLAIN_LINES = [
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
ODD_LINES = [
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
NUMBER_LINES = st.from_regex(r"k[0-9]{1,3},[0-9]{1,22}(\.[0-9])?", fullmatch=True)
LINES = st.lists(
    st.sampled_from(PLAIN_LINES) | st.sampled_from(ODD_LINES) | NUMBER_LINES,
    max_size=30,
)


@st.composite
def uploads(draw):
    """Draw the content of an upload and the upload."""
    delimiter = draw(st.sampled_from([",", ";", "|"]))
    encoding = draw(st.sampled_from(["utf-8", "gbk", "big5"]))
    header = draw(st.sampled_from(["k,x", "k"]))
    line_end = draw(st.sampled_from(["\n", "\r\n"]))
    text = line_end.join([header, *draw(LINES)]).replace(",", delimiter)
    upload = Upload(
        TABLE,
        partitions=draw(st.integers(1, 3)),
        extend_sid=draw(st.booleans()),
        match_id_name=draw(st.sampled_from(["", "k", "x"])),
        delimiter=delimiter,
        encoding=encoding,
    )
    return text.encode(ENCODINGS[encoding], "replace"), upload


@settings(max_examples=150)
@given(uploads(), st.integers(12, 60))
def test_a_block_that_is_plain_is_stored_as_row_by_row(content_and_upload, small_block):
    content, upload = content_and_upload

    by_small_blocks = write_in_blocks(content, upload, small_block)

    assert by_small_blocks == write_in_blocks(content, upload, BLOCK)


def write_in_blocks(content, upload, block):
    """Write a table from blocks of ``block`` bytes.

    Returns the problems of a refused upload; else the results of the upload and the files, both
    without the parts that depend on the first block (sids and warnings).
    """
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table"
        table.mkdir()
        parts = BufferedParts(table, "data_")
        file = io.BufferedReader(io.BytesIO(content), block)
        try:
            written = write_table(
                file, upload, parts, Path(folder) / "ids", "file:t.csv", lambda: NOW
            )
        except Invalid as refusal:
            return sorted(repr(problem) for problem in refusal.problems)
        parts.finish()
        files = {path.name: path.read_bytes() for path in table.iterdir()}

    if upload.partitions == 1:
        assert written.stored == hashlib.sha256(files["data_0"]).hexdigest()
    assert written.checksum == hashlib.sha256(content).hexdigest()
    assert written.size == len(content)
    without_sids = {}
    for name, data in files.items():
        without_sids[name] = re.sub(rb"[0-9a-f]{16}-", b"-", data)
    return replace(written, stored="", warnings=()), without_sids


# ------------------------------------------------------------ refused uploads

NULS = b"\0" * 99
WORKBOOK = "Excel workbook: save its sheet as CSV"


@pytest.mark.parametrize(
    ("content", "path", "words"),
    [
        (b"", "file", "empty"),
        (b"\n\n", "file", "empty"),
        (b"\xef\xbb\xbf", "file", "empty"),
        (b"id,x\n", "file", "row after the header"),
        ("id,x\n1,2\n".encode("utf-16"), "file:1", "UTF-16"),
        (b"id,x\n1,2\n2,\xff\n", "file:3", "UTF-8"),
        # Would be valid GBK as well.
        ("id,caffès\n1,2\n".encode("latin-1"), "file:1", "--encoding"),
        (b"id,x\n1,2\n" * 50_000 + "3,王芳\n".encode("gbk"), "file:100001", "--encoding"),
        ("id,姓名\n1,2\n".encode("gbk") * 50_000 + b"3,\xff\n", "file:100001", "GB18030"),
        (b"id;x,y\n1;2,3\n", "meta.delimiter", "--delimiter"),
        (b"id,x\n1,2\n2,\0\n", "file:3", "NUL"),
        (b'id,x\n1,"2\n', "file:2", "quote is not closed"),
        (b'id,x\n1,"2"3\n', "file:2", "CSV"),
        (b"id,x\r1,2\r", "file:1", "lone CR"),
        (b"id,x\n1,2\n3\n", "file:3", "2 cells"),
        (b"PK\x03\x04\x14\x00" + b"[Content_Types].xml" + NULS, "file", WORKBOOK),
        (b"\xd0\xcf\x11\xe0\xa1\xb1" + NULS, "file", WORKBOOK),
        (b"\x1f\x8b\x08\0\0", "file", "unpack it"),
        (b'id,x\n1,"a\nb"\n3\n', "file:4", "2 cells"),
        (b"id,\n1,2\n", "file:1", "printable name"),
        (b'id,"a\nb"\n1,2\n', "file:1", "printable name"),
        (b"id,\x1b[31m" + b"y" * 9000 + b"\n1,2\n", "file:1", "printable name"),
        (b"id,x,x\n1,2,3\n", "file:1", "another column"),
        (b"id,x\n ,2\n", "file:2", "match id"),
        ("id,x\n \u3000,2\n".encode(), "file:2", "match id"),
        (b"id,x\n1,2\n2,2\n1,3\n", "file:4", "as line 2; each id may occur once"),
        (b"key,x\n1,2\n", "meta.match_id_name", "key, x"),
        (b"\xef\xbb\xbfid,x\n1,\xd5\xc5\n", "file:2", "begins with a UTF-8 mark (GBK?)"),
    ],
    ids=[
        "nothing",
        "empty lines",
        "byte order mark alone",
        "header alone",
        "UTF-16",
        "not UTF-8",
        "Latin-1",
        "other encoding far below",
        "not GB18030 far below",
        "two delimiters",
        "NUL",
        "open quote",
        "text after a quote",
        "CR as line end",
        "short row",
        "xlsx",
        "xls",
        "gzip",
        "short row after a line break in quotes",
        "column without name",
        "line break in a column's name",
        "control character in a column's name",
        "repeated column",
        "blank id",
        "ideographic space as id",
        "repeated id",
        "no such column",
        "GBK behind a UTF-8 mark",
    ],
)
def test_a_broken_table_is_refused_with_its_line(site, content, path, words):
    problems = site.problems(content, match_id_name="id")

    rules = [rule for problem_path, rule in problems if problem_path == path]
    assert any(words in rule for rule in rules), problems


def test_concatenated_files_with_byte_order_marks_are_read_row_by_row():
    """The mark at the beginning of a line is removed; a block stored as it came would keep it."""
    blocks = PlainBlocks(Format(UTF8_BOM, ","), None)
    types = ["string", "int"]

    plain = "王,1\n".encode()
    assert blocks.stored(plain, types) == plain
    assert blocks.stored("\ufeffz,1\n".encode(), types) == b""


@pytest.mark.parametrize(
    "content",
    [b"x" * 9_000_000, "x" + ",x" * 200_000],
    ids=["line", "row"],
)
def test_an_endless_line_or_row_is_refused_early(site, content):
    assert paths_of(site.problems(content)) == ["file:1"]


def test_an_endless_row_on_many_lines_is_refused_early(site):
    assert site.problems(b'id\n"' + b'\n","' * 2_000_000) != []


def test_of_each_kind_of_problem_the_first_and_the_lines_of_more_are_named(site):
    short_rows = "1\n" * 30
    repeated_ids = "7,7\n" * 25
    blank_ids = " ,1\n 0,1\n\t,1\n"

    problems = site.problems(f"id,x\n{short_rows}{repeated_ids}{blank_ids}", match_id_name="id")

    assert paths_of(problems) == ["file:2", "file", "file:57", "file", "file:33", "file"]
    assert [rule for path, rule in problems if path == "file"] == [
        "29 more of this kind: number of cells, in lines 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, …",
        "1 more of this kind: blank ids, in lines 59",
        "23 more of this kind: repeated ids, in lines 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, …",
    ]


def test_columns_of_special_meaning_are_each_one_column(site):
    with_sid = "sid,x\n1,2\n"
    problems = site.problems(with_sid, extend_sid=True)
    assert paths_of(problems) == ["extend_sid"]

    problems = site.problems(
        "id,x\n1,2\n",
        label_name="id",
        match_id_name="id",
    )
    assert paths_of(problems) == ["meta.label_name"]

    assert site.store(with_sid).columns == ("sid", "x")


def test_nothing_is_read_as_rows_after_a_quote_that_never_closes(site):
    [(path, rule)] = site.problems('id,x\n1,2\n"3,4\n' + "5,6\n" * 100_000)

    assert path == "file:3"
    assert "a quote is not closed" in rule


def test_an_existing_name_is_refused_before_the_file_is_read(site):
    site.store("id\n1\n")
    not_a_table = b"\xff"

    with pytest.raises(Conflict):
        site.store(not_a_table)
    with pytest.raises(Invalid):
        site.store(not_a_table, overwrite=True)
    assert site.parts() == ["id\n1\n"]


def test_a_record_that_cannot_be_stored_leaves_no_table(tmp_path):
    class BrokenDatasets(MemoryDatasets):
        def put(self, dataset):
            raise ConnectionError("the database is away")

    site = Site(tmp_path, BrokenDatasets())

    with pytest.raises(GatewayError):
        site.store("id\n1\n")
    assert site.is_empty()


# Uploads tables that fill the disk, in a process that may write only one megabyte to a file.
FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from tests.data.sites import Site
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
    assert site.is_empty()
"""


def test_a_full_disk_is_named_and_nothing_stays(tmp_path):
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]

    subprocess.run(
        command,
        cwd=ROOT,
        check=True,
    )


def test_ids_that_repeat_far_apart_are_found(tmp_path):
    """Seen ids are on disk, in pieces: a repeated one may be in the same piece or in another."""
    repeats = {
        3: 1,
        5_000: 4_000,
        9_000: 12,
        9_500: 12,
        9_999: 9_998,
    }  # line -> earlier line
    ids = list(range(10_000))
    for line, earlier in repeats.items():
        ids[line] = ids[earlier]
    check = IdCheck(
        tmp_path / "ids",
        buckets=4,
        buffer_bytes=50_000,
        records_per_read=100,
    )
    findings = Findings()

    for start in range(0, len(ids), 100):
        lines = range(start, start + 100)
        check.see([b"%d" % ids[line] for line in lines], lines)
    check.finish(findings)

    first, rest = findings.error().problems
    assert first.path == "file:3"
    assert first.rule.startswith("has the same match id as line 1;")
    assert rest.rule == "4 more of this kind: repeated ids, in lines 5000, 9000, 9500, 9999"


# ------------------------------------------------------------ memory

# Prints nothing; fails if the memory grows by more than 14 MiB from few rows to many.
MEMORY_CHECK = """
    import re, sys
    from pathlib import Path
    from gateway.data.upload import Upload
    from gateway.errors import Invalid
    from tests.data.sites import TABLE, Site

    FEW, MANY = 80_000, 320_000
    site = Site(Path(sys.argv[1]))

    def send(count, id_of, **options):
        received = site.datasets.receive()
        received.write(b"id,y,a,b\\n")
        for start in range(0, count, 10_000):
            numbers = range(start, start + 10_000)
            rows = "".join(f"{id_of(i)},{i % 2},0.12345,{i}.5\\n" for i in numbers)
            received.write(rows.encode())
        upload = Upload(TABLE, match_id_name="id", overwrite=True, **options)
        try:
            return site.datasets.upload_from_file(upload, received, "t")
        finally:
            received.close()

    def peak():  # in KiB; getrusage would include the process that started this one
        return int(re.search("VmHWM:(.*)kB", Path("/proc/self/status").read_text())[1])

    unique_id = "user{:08d}".format
    for extend_sid in (True, False):  # each keeps something of its own in memory
        assert send(FEW, unique_id, partitions=64, extend_sid=extend_sid).count == FEW
    before = peak()
    stored = send(MANY, unique_id, partitions=64, extend_sid=True)
    assert stored.count == MANY and stored.size > 9e6, stored.size
    try:
        send(MANY, lambda i: "same")
        raise AssertionError
    except Invalid as error:
        assert any(f"{MANY - 2} more" in p.rule for p in error.problems), error
    growth = peak() - before
    assert growth < 14 * 1024, f"{growth} KiB"
"""


@pytest.mark.slow
def test_a_large_upload_needs_no_more_memory_than_a_small_one(tmp_path):
    """Four times the rows, then hostile ids: all are equal, and every repetition is found.

    A set of all ids, the least that a check without files would need, has 24 MB for the many rows.
    """
    command = [sys.executable, "-c", textwrap.dedent(MEMORY_CHECK), str(tmp_path)]

    subprocess.run(
        command,
        cwd=ROOT,
        check=True,
    )
