"""Examines tables that are registered in place, in one of the node's storages, without a copy."""

import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from gateway.data import parquet
from gateway.data.combined_storage import Storages
from gateway.data.id_check import IdCheck
from gateway.data.parquet import PARQUET, Schema
from gateway.data.remote import FILE, HDFS, S3, Remote
from gateway.data.storage import PARTITION, Storage, Stored, wrong_names
from gateway.data.table_format import (
    BLOCK,
    UTF8,
    UTF8_BOM,
    Format,
    encoding_name,
    recognise_format,
)
from gateway.data.table_reader import Block, Findings, Lines, Table, rows
from gateway.data.upload import (
    MAX_PARTITIONS,
    check_header,
    dataset_rule,
    follows,
    meta_rule,
    namespace_rule,
    text_rule,
    with_names,
)
from gateway.domain.datasets import Dataset
from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.errors import Invalid, NotFound, counted

FOLDER = "folder"
CSV = "csv"
# Bytes of the first file that are read for the types of the columns. With `Registration.count`, all
# bytes of all files are read.
_SAMPLE = 1024 * 1024
_FORM = Format(UTF8, ",")  # of every CSV file that containers read in place
# Namespaces of a job's outputs, and of a model from an archive
_OUTPUT = re.compile(r"^[^/]+-(guest|host|arbiter)-\d+$")
_IMPORTED_MODEL = re.compile(r"^model-[0-9a-f]{32}$")
_DATABASE_KINDS = ("mysql", "mariadb", "mysql+pymysql", "mariadb+pymysql")
_MAX_NAMES_SHOWN = 5


class Registration(BaseModel):
    """A request to register a table in place."""

    place: str = Field(
        description="Such as s3://bucket/path, hdfs://host:port/path, file:///path, or lake:path "
        "in that storage.",
        examples=["s3://joint/warehouse/customers"],
    )
    namespace: Annotated[str, follows(namespace_rule)] = Field(
        description="First part of the dataset's id."
    )
    name: Annotated[str, follows(dataset_rule)] = Field(description="Second part.")
    match_id_name: str = Field(
        default="",
        description="Column that holds the ids.",
    )
    label_name: str = Field(
        default="",
        description="Column that holds the label.",
    )
    description: Annotated[str, follows(text_rule)] = Field(
        default="",
        description="Free text.",
    )
    meta: Annotated[dict[str, Any], follows(meta_rule)] = Field(
        default_factory=dict, description="Free keys."
    )
    overwrite: bool = Field(
        default=False,
        description="In place of an entry of that id.",
    )
    count: bool = Field(
        default=False,
        description="Read all of it: count the rows of CSV, check each row and that no match id "
        "repeats.",
    )

    @property
    def address(self) -> Address:
        """The dataset's id as an address."""
        return Address(self.namespace, self.name)

    @property
    def all_meta(self) -> dict[str, Any]:
        """The metadata with the names of label and match id."""
        return with_names(self.meta, self.label_name, self.match_id_name)


def is_of_jobs(namespace: str) -> bool:
    """Return whether a namespace belongs to a job's outputs or to an imported model.

    Records of jobs and models know such data, so it is not listed as unregistered.
    """
    return bool(_OUTPUT.search(namespace) or _IMPORTED_MODEL.search(namespace))


def dataset_at(
    storages: Storages,
    registration: Registration,
    now: datetime,
) -> Dataset:
    """Examine the files of a registration and return their dataset.

    Raises `NotFound` if there are no files, `Invalid` if they are not a table.
    """
    address = locate(storages, registration.place)
    partitions = _partitions(storages, address, registration.place)
    if parquet.is_parquet(storages, address, partitions[0]):
        file_format = PARQUET
        schema = _parquet_schema(storages, address, partitions, registration)
    else:
        file_format = CSV
        schema = _csv_schema(storages, address, partitions, registration)
    types = dict(zip(schema.columns, schema.types, strict=True))  # the names are unique
    if registration.match_id_name:
        types[registration.match_id_name] = "string"  # as in an upload
    return Dataset(
        namespace=registration.namespace,
        name=registration.name,
        columns=schema.columns,
        types=tuple(types.values()),
        count=schema.rows,
        partitions=len(partitions),
        meta=registration.all_meta,
        checksum="",
        size=sum(partition.size for partition in partitions),
        created_at=now,
        origin=f"place:{shown_place(storages, address)}",
        description=registration.description,
        storage=address.storage,
        # The path in the storage; a registration's place also names the storage.
        place=f"{address.namespace}/{address.name}",
        in_place=address.in_place,
        stamp=_stamp(partitions),
        format=file_format,
        warnings=schema.warnings,
    )


def describe_change(storage: Storage, dataset: Dataset) -> str:
    """Return how a registered table's files have changed since the registration, in words.

    Returns "" if they have not changed. Raises `StorageFailed`.
    """
    partitions: list[Stored] = []
    if storage.exists(dataset.address):
        partitions = storage.partitions(dataset.address)
    if not partitions:
        return "its files are gone"
    if _stamp(partitions) == dataset.stamp:
        return ""
    size = sum(partition.size for partition in partitions)
    before = f"{counted(dataset.partitions, 'file')} of {dataset.size} bytes"
    return f"its files changed: {counted(len(partitions), 'file')} of {size} bytes, it had {before}"


def warnings_of(storage: Storage, dataset: Dataset) -> list[str]:
    """Return warnings that some components cannot read a registered table.

    Such components look for files of the names ``data_<n>``, or read no Parquet. Raises `NotFound`.
    """
    warnings = []
    names = [partition.name for partition in storage.partitions(dataset.address)]
    standard_names = [f"{PARTITION}{number}" for number in range(len(names))]
    if dataset.in_place == FILE or names != standard_names:
        warnings.append(
            "a container finds it at its own place; images that look for data_0, data_1, … alone "
            "do not: call the files so where you can"
        )
    if dataset.format == PARQUET:
        warnings.append(
            "jobs may use it in components whose input lists parquet in dataFormat; others are "
            "refused"
        )
    return warnings


# ---------------------------------------------------------------- the place of a table


def locate(storages: Storages, place: str) -> Address:
    """Return the address of a file or folder in one of the node's storages.

    ``place`` is written as in `Registration.place`. The address has the folder above the table in
    place of a namespace. Raises `Invalid`, and `NotFound` if there is nothing at the place.
    """
    storage, path = _only_candidate(storages, place)
    folder, _, name = path.strip("/").rpartition("/")
    if not folder:
        rule = (
            "must be a file in a folder, or a folder in a folder: "
            "containers get its place in two parts"
        )
        raise Invalid([Problem("place", rule, place)])
    if _OUTPUT.search(folder):
        rule = (
            f"is an output of a job: jobs name it as {folder}#{name}, "
            "and data grant lets partners use it"
        )
        raise Invalid([Problem("place", rule, place)])
    for kind in (FILE, FOLDER):
        address = Address(folder, name, storage, kind)
        _check_parts(address)
        if _is_of_kind(storages, address):
            return address
    raise NotFound(f"nothing lies at {place}", reason="DATA_MISSING")


def _only_candidate(
    storages: Storages,
    place: str,
) -> tuple[str, str]:
    """Return the storage of a place and the path in it.

    Raises `Invalid` unless the place can mean exactly one path in one storage.
    """
    candidates = list(dict.fromkeys(_candidates(storages, place)))
    if not candidates:
        raise _unknown_storage(storages, place)
    if len(candidates) > 1:
        names = " or ".join(f"{storage}:{path}" for storage, path in candidates)
        raise Invalid([Problem("place", f"lies in several storages: write {names}", place)])
    return candidates[0]


def _unknown_storage(storages: Storages, place: str) -> Invalid:
    """Return the error of a place in no storage of this node.

    Its text names the storages that are possible, and ends with the way to add another one.
    """
    remotes = [f"{name} ({_url(storage.remote)})" for name, storage in storages.remotes.items()]
    known = ", ".join(remotes)
    rule = (
        f"must lie in one of this node's storages: {f'{known}, or ' if known else ''}the folder "
        f"file://{storages.root}; {_way_to_add(place)}"
    )
    return Invalid(
        [Problem("place", rule, place)],
        reason="STORAGE_UNKNOWN",
    )


def _candidates(
    storages: Storages,
    place: str,
) -> Iterator[tuple[str, str]]:
    """Yield the storages that may have a place, each with the path in it.

    The node's own folder has the name "". ``place`` is written as in `Registration.place`. A pair
    may come twice.
    """
    kind, separator, rest = place.partition("://")
    if not separator:
        yield from _candidates_by_name(storages, place)
    elif kind == FILE:
        yield from _in_folder(storages, rest)
    else:
        for name, storage in storages.remotes.items():
            for path in _paths_in(storage.remote, kind, rest):
                yield name, path


def _candidates_by_name(
    storages: Storages,
    place: str,
) -> Iterator[tuple[str, str]]:
    """Yield the storage of ``name:path``, or the folder for an absolute path.

    Nothing for any other text.
    """
    name, colon, path = place.partition(":")
    if colon and name in storages.remotes:
        yield name, path
    elif place.startswith("/"):
        yield from _in_folder(storages, place)


def _in_folder(
    storages: Storages,
    path: str,
) -> Iterator[tuple[str, str]]:
    """Yield the path in the node's folder, which may itself be reached by a symbolic link.

    So an absolute path may begin with the folder's name in the settings or with its real path.
    """
    normal_path = Path(os.path.normpath(path))
    roots = (storages.root, Path(os.path.realpath(storages.root)))
    for root in dict.fromkeys(roots):
        if normal_path.is_relative_to(root):
            yield "", str(normal_path.relative_to(root))


def _paths_in(
    remote: Remote,
    kind: str,
    location: str,
) -> Iterator[str]:
    """Yield the paths in a storage that ``kind://location`` may mean.

    The location of S3 may begin with the bucket or with the host, that of HDFS with the host or,
    for the default NameNode, with a slash.
    """
    if remote.kind != kind:
        return
    host, _, path = location.partition("/")
    if kind == S3 and host == remote.folder:  # the first part of the location is the bucket
        yield path
    hosts = [remote.host, f"{remote.host}:{remote.port}"]
    if kind == HDFS:
        hosts.append("")  # in hdfs:///path, which has the default NameNode
    folder = remote.folder.strip("/")
    is_below_folder = not folder or f"{path}/".startswith(f"{folder}/")
    if host in hosts and is_below_folder:
        yield path.removeprefix(folder)


def _way_to_add(place: str) -> str:
    """Return how to make a place in no storage of this node available, as the end of a message.

    It depends on the kind, the text before ``://``.
    """
    kind, _, rest = place.partition("://")
    host, _, path = rest.partition("/")
    if kind == S3:  # ``host`` is the bucket
        return (
            f"to add it, write in node.yml storages: "
            f"{{other: {{url: s3://HOST:PORT/{host}, username: ACCESS_KEY, "
            "password_file: FILE}}"
        )
    if kind == HDFS:
        top = path.partition("/")[0]
        return (
            "to add it, write in node.yml storages: "
            f"{{other: {{url: hdfs://{host or 'HOST:PORT'}/{top}}}}}"
        )
    if kind in _DATABASE_KINDS:
        return "the rows of a database come by data import"
    return (
        "of other places, s3:// and hdfs:// can be added (storages in node.yml); "
        "a file elsewhere is uploaded"
    )


def _check_parts(address: Address) -> None:
    """Raise `Invalid` if a part of an address cannot be the name of a folder.

    The problems are reported for the place as a whole.
    """
    problems = []
    for problem in wrong_names(address):
        problems.append(Problem("place", f"has a part that {problem.rule}", problem.got))
    if problems:
        raise Invalid(problems)


def _is_of_kind(storages: Storages, address: Address) -> bool:
    """Return whether there is a file or a folder at an address, as its ``in_place`` says.

    Raises `Invalid` if a symbolic link leads there: the target may be outside of the storage.
    """
    if address.storage:  # "" is the node's own folder, any other name a storage elsewhere
        if address.in_place == FOLDER:
            return bool(storages.names(f"{address.namespace}/{address.name}", address.storage))
        return storages.taken(address)  # unlike `exists`, it also counts incomplete data
    path = storages.path(address)
    real_root = Path(os.path.realpath(storages.root))
    if os.path.realpath(path) != str(real_root / address.namespace / address.name):
        raise Invalid([Problem("place", "must not lead through a symbolic link", str(path))])
    if address.in_place == FILE:
        return path.is_file()
    return path.is_dir()


def _url(remote: Remote) -> str:
    """Return the URL of a storage elsewhere, without credentials."""
    return f"{remote.kind}://{remote.host}:{remote.port}/{remote.folder.strip('/')}"


def shown_place(storages: Storages, address: Address) -> str:
    """Return the URL of an address; the same for two names of one storage.

    Returns "" for a storage that the settings do not name any more.
    """
    path = f"{address.namespace}/{address.name}"
    if not address.storage:
        return f"file://{storages.root}/{path}"
    if address.storage not in storages.remotes:
        return ""
    return f"{_url(storages.remotes[address.storage].remote)}/{path}"


def overlap(place: str, second: str) -> bool:
    """Return whether two places are the same, or one is below the other.

    False if either is "", a place in a storage that the settings do not name any more.
    """
    if "" in (place, second):
        return False
    return f"{place}/".startswith(f"{second}/") or f"{second}/".startswith(f"{place}/")


# ---------------------------------------------------------------- the content of a table


def _partitions(
    storages: Storages,
    address: Address,
    place: str,
) -> list[Stored]:
    """Return the files of a table, at least one.

    ``place`` is the address as the user wrote it. Raises `NotFound` without files, `Invalid` for
    too many, or for a folder with folders in it.
    """
    partitions: list[Stored] = []
    if storages.exists(address):
        partitions = storages.partitions(address)
    if address.in_place == FOLDER:
        _refuse_subfolders(storages, address, place)
    if not partitions:
        raise NotFound(f"nothing lies at {place} but empty files", reason="DATA_MISSING")
    if len(partitions) > MAX_PARTITIONS:
        rule = f"must have at most {MAX_PARTITIONS} files"
        raise Invalid([Problem("place", rule, len(partitions))])
    return partitions


def _refuse_subfolders(storages: Storages, address: Address, place: str) -> None:
    """Raise `Invalid` for a folder with folders in it, except hidden ones (``.name``, ``_name``).

    ``place`` is the folder as the user wrote it.
    """
    names = storages.names(f"{address.namespace}/{address.name}", address.storage)
    visible = {name for name in names if name[0] not in "._"}
    subfolders = sorted(visible - set(storages.files(address)))
    if not subfolders:
        return
    shown_names = ", ".join(subfolders[:_MAX_NAMES_SHOWN])
    if len(subfolders) > _MAX_NAMES_SHOWN:
        shown_names += ", …"
    raise Invalid([Problem("place", f"must hold files alone, but has {shown_names}", place)])


def _stamp(partitions: Sequence[Stored]) -> str:
    """Return a text that changes if any of the files changes.

    It depends on their names, sizes and stamps, not on their content.
    """
    text = repr([tuple(partition) for partition in partitions])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _parquet_schema(
    storages: Storages,
    address: Address,
    partitions: Sequence[Stored],
    registration: Registration,
) -> Schema:
    """Return the schema of a table of Parquet files.

    Raises `Invalid` if the files have different schemas, if the columns of the label or the match
    id are missing, or, with ``count``, for blank or repeated match ids.
    """
    findings = Findings()
    schemas: dict[str, Schema] = {}
    for partition in partitions:
        with storages.open_file(address, partition.name) as file:
            schemas[partition.name] = parquet.schema(file, partition.name)
    first = schemas[partitions[0].name]
    for name, schema in schemas.items():
        is_same = (schema.columns, schema.types) == (first.columns, first.types)
        if not is_same:
            rule = f"must have the columns and types of {partitions[0].name}"
            findings.add(
                "columns",
                name,
                rule,
                ", ".join(schema.columns),
            )
    check_header(first.columns, registration.all_meta, findings)
    match_id = registration.match_id_name
    checks_ids = registration.count and match_id
    if checks_ids and not findings:
        cells = (row[0] for row in parquet.rows_of(storages, address, [match_id]))
        check_ids(storages, cells, findings)
    if findings:
        raise findings.error()
    return Schema(first.columns, first.types, sum(schema.rows or 0 for schema in schemas.values()))


def check_ids(
    storages: Storages,
    cells: Iterable[str],
    findings: Findings,
    *,
    may_repeat: bool = False,
) -> None:
    """Report the rows of a table whose match id is missing or repeated.

    - ``cells``: the match ids of all rows; the first row is in line 2
    - ``may_repeat``: ids may repeat, as in a table with sids
    """
    with storages.staging() as staging:  # a temporary folder: nothing is published
        ids = IdCheck(staging.folder / "ids")
        for line, cell in enumerate(cells, 2):
            ids.report_blank([cell.encode()], [line], findings)
            if not may_repeat:
                ids.see([cell.encode()], [line])
        ids.finish(findings)


def _csv_schema(
    storages: Storages,
    address: Address,
    partitions: Sequence[Stored],
    registration: Registration,
) -> Schema:
    """Return the schema of a table of CSV files.

    The headers of all files are read, and the first rows of the first file; with ``count`` all rows
    of all files. Raises `Invalid`.
    """
    findings = Findings()
    with storages.staging() as staging:  # a temporary folder: nothing is published
        examination = _CsvExamination(registration, IdCheck(staging.folder / "ids"), findings)
        for partition in partitions:
            with io.BufferedReader(storages.open_file(address, partition.name), BLOCK) as file:
                examination.read(file, partition.name)
        examination.ids.finish(findings)
    table = examination.table
    if not examination.row_count and not findings:
        findings.add("empty", partitions[0].name, "must have at least one row after the header")
    if findings or table is None:
        raise findings.error()
    types = tuple(kind or "string" for kind in table.kinds)
    warnings = table.warnings.texts(
        table.kinds,
        has_header=True,
        is_complete=examination.is_complete,
    )
    count = None
    if examination.is_complete:
        count = examination.row_count
    return Schema(
        tuple(table.columns),
        types,
        count,
        tuple(warnings),
    )


class _CsvExamination:
    """Reads the files of one table in order.

    The first file's header is that of the table; the others must repeat it.
    """

    def __init__(
        self,
        registration: Registration,
        ids: IdCheck,
        findings: Findings,
    ) -> None:
        """Begin with no file; problems are added to ``findings``."""
        self._registration = registration
        self._findings = findings
        self._first_file = ""
        self.ids = ids
        self.table: Table | None = None  # from the first file on
        self.row_count = 0  # rows read so far, of all files
        self.is_complete = True  # False: some rows were not read

    def read(self, file: "io.BufferedReader[Any]", name: str) -> None:
        """Check a file's header, and its rows as far as they are needed.

        With ``count`` all rows are needed, otherwise the first rows of the first file. Raises
        `Invalid`.
        """
        lines = _lines(file, name, self._findings)
        source = rows(lines, ",", self._findings)
        _, header = next(source, (0, []))
        reads_all = self._registration.count
        if self.table is None:
            self.table = self._begin(header, name)
        else:
            self._compare(header, name)
            # After a header that differs, the rows are read as well: their problems are reported.
            if header == self.table.columns and not reads_all:
                self.is_complete = False
                return
        for block in self.table.blocks(file, lines, source):
            self._check_block(block)
            if lines.bytes > _SAMPLE and not reads_all:
                self.is_complete = False
                return

    def _check_block(self, block: Block) -> None:
        """Check the match ids of a block, and count its rows.

        Lines are numbered as if all files were one, after a header in line 1.
        """
        first_line = self.row_count + 2
        numbers = range(first_line, first_line + len(block.ids))
        if block.rows:  # a block of the fast path has no ``rows``, and no blank ids
            self.ids.report_blank(block.ids, numbers, self._findings)
        self.ids.see(block.ids, numbers)
        self.row_count += block.row_count

    def _begin(self, header: list[str], name: str) -> Table:
        """Return the table that begins with the first file's header.

        Raises `Invalid` with all problems of the header.
        """
        check_header(header, self._registration.all_meta, self._findings)
        if self._findings:
            raise self._findings.error()
        self._first_file = name
        return Table(header, _FORM, self._registration.match_id_name, self._findings)

    def _compare(self, header: list[str], name: str) -> None:
        """Report a later file's header that differs from the first one's.

        ``name`` is the later file's.
        """
        assert self.table is not None
        if header != self.table.columns:
            rule = (
                f"must begin with the header of {self._first_file}: each file is a table of its own"
            )
            self._findings.add(
                "header",
                name,
                rule,
                ",".join(header),
            )


def _lines(
    file: "io.BufferedReader[Any]",
    name: str,
    findings: Findings,
) -> Lines:
    """Return the lines of a file. Raises `Invalid` unless it is UTF-8 with commas.

    ``name`` is the file's, for problems.
    """
    first_line = file.peek()[:BLOCK].partition(b"\n")[0]
    # A header with a comma is divided by commas, even if its names have other delimiters in them.
    delimiter = "," if b"," in first_line else ""
    form = recognise_format(file, delimiter=delimiter)
    if form.encoding not in (UTF8, UTF8_BOM) or form.delimiter != ",":
        encoding = encoding_name(form.encoding)
        rule = f"must be UTF-8 with commas, this is {encoding} with {form.delimiter!r}"
        remedy = "containers get it as it is; data upload converts such a file"
        raise Invalid([Problem(name, f"{rule}: {remedy}")])
    return Lines(file, form.encoding, findings, name)
