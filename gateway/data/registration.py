"""Finds out what a table is that is registered where it lies, in one of the node's storages: nothing is copied."""

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
from gateway.data.remote_storage import FILE, HDFS, S3, Remote
from gateway.data.storage import PARTITION, Storage, Stored, wrong_names
from gateway.data.table_format import (
    BLOCK,
    UTF8,
    UTF8_BOM,
    Format,
    encoding_name,
    recognise_format,
)
from gateway.data.table_reader import Findings, Lines, Table, rows
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
_OUTPUT = re.compile(r"^[^/]+-(guest|host|arbiter)-\d+$")
"""the namespace of what a job left"""
_IMPORTED_MODEL = re.compile(r"^model-[0-9a-f]{32}$")
"""the namespace of a model from another node's archive"""
_SAMPLE = 1024 * 1024
"""bytes of the first file that show the types of columns where not all is read"""
_FORM = Format(UTF8, ",")


class Registration(BaseModel):
    """A table that is registered where it lies."""

    place: str = Field(
        description="Such as s3://bucket/path, hdfs://host:port/path, file:///path, or lake:path in that storage.",
        examples=["s3://joint/warehouse/customers"],
    )
    namespace: Annotated[str, follows(namespace_rule)] = Field(
        description="First part of the dataset's id."
    )
    name: Annotated[str, follows(dataset_rule)] = Field(description="Second part.")
    match_id_name: str = Field(default="", description="Column that holds the ids.")
    label_name: str = Field(default="", description="Column that holds the label.")
    description: Annotated[str, follows(text_rule)] = Field(default="", description="Free text.")
    meta: Annotated[dict[str, Any], follows(meta_rule)] = Field(
        default_factory=dict, description="Free keys."
    )
    overwrite: bool = Field(default=False, description="In place of an entry of that id.")
    count: bool = Field(
        default=False,
        description="Read all of it: count the rows of CSV, check each row and that no match id repeats.",
    )

    @property
    def address(self) -> Address:
        """Return what names it."""
        return Address(self.namespace, self.name)

    @property
    def all_meta(self) -> dict[str, Any]:
        """Return its metadata with the names of its columns."""
        return with_names(self.meta, self.label_name, self.match_id_name)


def is_of_jobs(namespace: str) -> bool:
    """Return whether a namespace is that of a job's outputs or an imported model."""
    return bool(_OUTPUT.search(namespace) or _IMPORTED_MODEL.search(namespace))


def dataset_at(
    storages: Storages,
    wanted: Registration,
    now: datetime,
) -> Dataset:
    """Return what lies at a place. Raises `NotFound` where nothing does, `Invalid` where it is not a table."""
    address = located(storages, wanted.place)
    parts = _parts(storages, address, wanted.place)
    form = PARQUET if parquet.is_parquet(storages, address, parts[0]) else CSV
    look = _look_at_parquet if form == PARQUET else _look_at_csv
    seen = look(storages, address, parts, wanted)
    types = dict(zip(seen.columns, seen.types, strict=True))
    if wanted.match_id_name:
        types[wanted.match_id_name] = "string"  # as in what is uploaded
    return Dataset(
        namespace=wanted.namespace,
        name=wanted.name,
        columns=seen.columns,
        types=tuple(types.values()),
        count=seen.rows,
        partitions=len(parts),
        meta=wanted.all_meta,
        checksum="",
        size=sum(part.size for part in parts),
        created_at=now,
        origin=f"place:{shown_place(storages, address)}",
        description=wanted.description,
        storage=address.storage,
        place=f"{address.namespace}/{address.name}",
        in_place=address.in_place,
        stamp=_stamp(parts),
        format=form,
        warnings=seen.warnings,
    )


def change(storage: Storage, dataset: Dataset) -> str:
    """Say what became of a registered table's files since then; empty where they are the same."""
    parts = storage.partitions(dataset.address) if storage.exists(dataset.address) else []
    if not parts:
        return "its files are gone"
    if _stamp(parts) == dataset.stamp:
        return ""
    was = f"{counted(dataset.partitions, 'file')} of {dataset.size} bytes"
    return f"its files changed: {counted(len(parts), 'file')} of {sum(p.size for p in parts)} bytes, it had {was}"


def warnings_of(storage: Storage, dataset: Dataset) -> list[str]:
    """Say who may not be able to read a registered table."""
    found = []
    names = [part.name for part in storage.partitions(dataset.address)]
    if dataset.in_place == FILE or names != [f"{PARTITION}{n}" for n in range(len(names))]:
        found.append(
            "a container finds it at its own place; images that look for data_0, data_1, … alone do not: "
            "call the files so where you can"
        )
    if dataset.format == PARQUET:
        found.append(
            "jobs may use it in components whose input lists parquet in dataFormat; others are refused"
        )
    return found


# ---------------------------------------------------------------- where it lies


def located(storages: Storages, place: str) -> Address:
    """Return the address of a place in one of the node's storages. Raises `Invalid`, `NotFound`."""
    found = list(dict.fromkeys(_candidates(storages, place)))
    if not found:
        known = ", ".join(
            [f"{name} ({_url(one.remote)})" for name, one in storages.remotes.items()]
        )
        rule = (
            f"must lie in one of this node's storages: {f'{known}, or ' if known else ''}the folder "
            f"file://{storages.root}; {_missing_storage(place)}"
        )
        raise Invalid([Problem("place", rule, place)], reason="STORAGE_UNKNOWN")
    if len(found) > 1:
        names = " or ".join(f"{storage}:{path}" for storage, path in found)
        raise Invalid([Problem("place", f"lies in several storages: write {names}", place)])
    storage, path = found[0]
    folder, _, name = path.strip("/").rpartition("/")
    if not folder:
        rule = "must be a file in a folder, or a folder in a folder: containers get its place in two parts"
        raise Invalid([Problem("place", rule, place)])
    if _OUTPUT.search(folder):
        rule = f"is an output of a job: jobs name it as {folder}#{name}, and data grant lets partners use it"
        raise Invalid([Problem("place", rule, place)])
    for kind in (FILE, FOLDER):
        address = Address(folder, name, storage, kind)
        if wrong := wrong_names(address):
            raise Invalid(
                [Problem("place", f"has a part that {one.rule}", one.got) for one in wrong]
            )
        if _is(storages, address):
            return address
    raise NotFound(f"nothing lies at {place}", reason="DATA_MISSING")


def _candidates(storages: Storages, place: str) -> Iterator[tuple[str, str]]:
    """Yield the storages that a place may be in, each with the path there."""
    kind, scheme, rest = place.partition("://")
    if not scheme:
        name, colon, path = place.partition(":")
        if colon and name in storages.remotes:
            yield name, path
        elif place.startswith("/"):
            yield from _candidates(storages, f"file://{place}")
        return
    if kind == FILE:
        path = os.path.normpath(rest)
        for root in dict.fromkeys((storages.root, Path(os.path.realpath(storages.root)))):
            if Path(path).is_relative_to(root):
                yield "", str(Path(path).relative_to(root))
        return
    host, _, path = rest.partition("/")
    for name, one in storages.remotes.items():
        remote = one.remote
        if remote.kind != kind:
            continue
        if kind == S3 and host == remote.folder:
            yield name, path
        here = host in (remote.host, f"{remote.host}:{remote.port}") or (kind == HDFS and not host)
        folder = remote.folder.strip("/")
        if here and (not folder or f"{path}/".startswith(f"{folder}/")):
            yield name, path.removeprefix(folder)


def _missing_storage(place: str) -> str:
    """Say what makes a place one of this node's storages."""
    kind, _, rest = place.partition("://")
    host, _, path = rest.partition("/")
    if kind == S3:
        return (
            f"to add it, write in node.yml storages: {{other: {{url: s3://HOST:PORT/{host}, username: ACCESS_KEY, "
            "password_file: FILE}}"
        )
    if kind == HDFS:
        top = path.partition("/")[0]
        return f"to add it, write in node.yml storages: {{other: {{url: hdfs://{host or 'HOST:PORT'}/{top}}}}}"
    if kind in ("mysql", "mariadb", "mysql+pymysql", "mariadb+pymysql"):
        return "the rows of a database come by data import"
    return "of other places, s3:// and hdfs:// can be added (storages in node.yml); a file elsewhere is uploaded"


def _is(storages: Storages, address: Address) -> bool:
    """Tell whether a place is what its address says, a file or a folder."""
    if address.storage:
        if address.in_place == FOLDER:
            return bool(storages.names(f"{address.namespace}/{address.name}", address.storage))
        return storages.taken(address)
    path = storages.path(address)
    if os.path.realpath(path) != str(
        Path(os.path.realpath(storages.root)) / address.namespace / address.name
    ):
        raise Invalid([Problem("place", "must not lead through a symbolic link", str(path))])
    return path.is_file() if address.in_place == FILE else path.is_dir()


def _url(remote: Remote) -> str:
    return f"{remote.kind}://{remote.host}:{remote.port}/{remote.folder.strip('/')}"


def shown_place(storages: Storages, address: Address) -> str:
    """Return where something lies, whatever the node calls that storage; empty: not known."""
    path = f"{address.namespace}/{address.name}"
    if not address.storage:
        return f"file://{storages.root}/{path}"
    if address.storage not in storages.remotes:
        return ""
    return f"{_url(storages.remotes[address.storage].remote)}/{path}"


def overlap(one: str, other: str) -> bool:
    """Tell whether two places are the same, or one lies in the other."""
    return bool(one and other) and (
        f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
    )


# ---------------------------------------------------------------- what it is


def _parts(
    storages: Storages,
    address: Address,
    place: str,
) -> list[Stored]:
    """Return the files of a table. Raises `NotFound`, `Invalid` for a folder of folders."""
    parts = storages.partitions(address) if storages.exists(address) else []
    if address.in_place == FOLDER:
        names = storages.names(f"{address.namespace}/{address.name}", address.storage)
        inner = [name for name in names if name[0] not in "._"]
        if more := sorted(set(inner) - set(storages.files(address))):
            shown_names = ", ".join(more[:5]) + (", …" if len(more) > 5 else "")
            raise Invalid(
                [Problem("place", f"must hold files alone, but has {shown_names}", place)]
            )
    if not parts:
        raise NotFound(f"nothing lies at {place} but empty files", reason="DATA_MISSING")
    if len(parts) > MAX_PARTITIONS:
        raise Invalid([Problem("place", f"must have at most {MAX_PARTITIONS} files", len(parts))])
    return parts


def _stamp(parts: Sequence[Stored]) -> str:
    return hashlib.sha256(repr([tuple(part) for part in parts]).encode()).hexdigest()[:32]


def _look_at_parquet(
    storages: Storages,
    address: Address,
    parts: Sequence[Stored],
    wanted: Registration,
) -> Schema:
    findings, found = Findings(), list[Schema]()
    for part in parts:
        with storages.open_file(address, part.name) as file:
            found.append(parquet.schema(file, part.name))
        if found[-1][:2] != found[0][:2]:
            rule = f"must have the columns and types of {parts[0].name}"
            findings.add("columns", part.name, rule, ", ".join(found[-1].columns))
    check_header(found[0].columns, wanted.all_meta, findings)
    if wanted.count and wanted.match_id_name and not findings:
        cells = (row[0] for row in parquet.rows_of(storages, address, [wanted.match_id_name]))
        check_ids(storages, cells, findings)
    if findings:
        raise findings.error()
    return Schema(found[0].columns, found[0].types, sum(one.rows or 0 for one in found))


def check_ids(
    storages: Storages,
    cells: Iterable[str],
    findings: Findings,
    *,
    repeats: bool = False,
) -> None:
    """Find the rows of a table whose match id is missing or another's; the first is in line 2.

    ``repeats``: ids may repeat, as in a table with sids.
    """
    with storages.staging() as staging:
        ids = IdCheck(staging.folder / "ids")
        for line, cell in enumerate(cells, 2):
            ids.refuse_blank([cell.encode()], [line], findings)
            if not repeats:
                ids.see([cell.encode()], [line])
        ids.finish(findings)


def _look_at_csv(
    storages: Storages,
    address: Address,
    parts: Sequence[Stored],
    wanted: Registration,
) -> Schema:
    """Read the header of every file and the beginning of the first, or with ``count`` all of it."""
    findings = Findings()
    table: Table | None = None
    count, whole = 0, True
    with storages.staging() as staging:
        ids = IdCheck(staging.folder / "ids")
        for part in parts:
            with io.BufferedReader(storages.open_file(address, part.name), BLOCK) as file:
                lines = _lines(file, part.name, findings)
                source = rows(lines, ",", findings)
                _, header = next(source, (0, []))
                if table is None:
                    check_header(header, wanted.all_meta, findings)
                    if findings:
                        raise findings.error()
                    table = Table(header, _FORM, wanted.match_id_name, findings)
                elif header != table.columns:
                    rule = f"must begin with the header of {parts[0].name}: each file is a table of its own"
                    findings.add("header", part.name, rule, ",".join(header))
                elif not wanted.count:
                    whole = False
                    continue
                for block in table.blocks(file, lines, source):
                    numbers = range(
                        count + 2, count + 2 + len(block.keys)
                    )  # lines, as if all were one file
                    if block.rows:
                        ids.refuse_blank(block.keys, numbers, findings)
                    ids.see(block.keys, numbers)
                    count += block.row_count
                    if lines.bytes > _SAMPLE and not wanted.count:
                        whole = False
                        break
        ids.finish(findings)
    if not count and not findings:
        findings.add("empty", parts[0].name, "must have at least one row after the header")
    if findings or table is None:
        raise findings.error()
    kinds = tuple(kind or "string" for kind in table.kinds)
    warnings = table.warnings.texts(table.kinds, has_header=True, is_complete=whole)
    return Schema(tuple(table.columns), kinds, count if whole else None, tuple(warnings))


def _lines(
    file: "io.BufferedReader[Any]",
    name: str,
    findings: Findings,
) -> Lines:
    names = file.peek()[:BLOCK].partition(b"\n")[0]
    form = recognise_format(file, delimiter="," if b"," in names else "")
    if form.encoding not in (UTF8, UTF8_BOM) or form.delimiter != ",":
        rule = f"must be UTF-8 with commas, this is {encoding_name(form.encoding)} with {form.delimiter!r}"
        remedy = "containers get it as it is; data upload converts such a file"
        raise Invalid([Problem(name, f"{rule}: {remedy}")])
    return Lines(file, form.encoding, findings, name)
