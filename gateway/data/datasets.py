"""The tables of this node: storing what is uploaded, and finding it again by id."""

import json
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from gateway.data import parquet
from gateway.data.combined_storage import Storages
from gateway.data.file_storage import Staging
from gateway.data.parquet import PARQUET
from gateway.data.registration import (
    CSV,
    Registration,
    change,
    check_ids,
    dataset_at,
    overlap,
    shown_place,
)
from gateway.data.storage import METADATA, taken
from gateway.data.table_reader import BLOCK, Findings
from gateway.data.upload import Edit, Reception, Source, Upload, storage_errors, write_table
from gateway.domain.datasets import Dataset, DatasetRepository
from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.errors import Conflict, GatewayError, Invalid, NotAllowed, NotFound, StorageFailed

T = TypeVar("T")
_SHOWN = 5
_ODD = re.compile(r"[^A-Za-z0-9._-]")
_NEVER_EXPIRES = (
    4102444800.0  # 2100-01-01: readers of metadata need a time, and nothing here expires
)


class Datasets:
    """Use cases over the storage and the record of what is in it."""

    def __init__(
        self,
        storage: Storages,
        repository: DatasetRepository,
        roots: Sequence[Path] = (),
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        users: Callable[[Address], Sequence[str]] = lambda address: (),
    ) -> None:
        """``users``: the jobs that are not over and name a dataset."""
        self._storage = storage
        self._repository = repository
        self._roots = tuple(roots)
        self._clock = clock
        self._users = users
        self._changing = threading.Lock()
        """held while a record is read and written again"""

    # ------------------------------------------------------------ uploading

    def upload_from_path(self, upload: Upload, path: str) -> Dataset:
        """Store a file of this server. Raises `NotAllowed`, `Invalid`, `Conflict`; nothing is left then."""
        with (
            open_below(self._roots, path) as file,
            storage_errors(),
            self._storage.staging() as staging,
        ):
            return self._store(upload, file, f"path:{path}", staging)

    def receive(self, max_bytes: int | None = None) -> Reception:
        """Begin to receive a file. Raises `GatewayError` (STORAGE_FAILED)."""
        with storage_errors(), ExitStack() as stack:
            staging = stack.enter_context(self._storage.staging())
            received = Reception(staging, max_bytes)
            stack.pop_all()
            return received

    def store_while_received(
        self,
        upload: Upload,
        received: Reception,
        filename: str,
    ) -> None:
        """Store a file while it is received; `Reception.finish` raises what `upload_from_file` does."""
        received.begin(
            lambda source: self._store(upload, source, f"file:{filename}", received.staging)
        )

    def upload_from_file(
        self,
        upload: Upload,
        received: Reception,
        filename: str,
    ) -> Dataset:
        """Store a file that was received. Raises `Invalid`, `Conflict`; nothing is left then."""
        with received.opened() as source:
            return self._store(upload, source, f"file:{filename}", received.staging)

    def register(self, wanted: Registration) -> Dataset:
        """Record a table that stays where it lies. Raises `Invalid`, `NotFound`, `Conflict`."""
        self._refuse_registering(wanted)
        with storage_errors():
            dataset = dataset_at(self._storage, wanted, self._clock())
        with self._changing:
            old = self._refuse_registering(wanted)
            self._refuse_second_name(dataset, wanted.place)
            dataset = _switched_as(old, dataset)
            self._repository.put(dataset)
        return dataset

    def _refuse_second_name(self, dataset: Dataset, place: str) -> None:
        """Raise `Conflict` where what is to be registered is, or lies in, or holds another dataset.

        By a second name, it would be used although the first is disabled, or granted to nobody.
        """
        shown = shown_place(self._storage, dataset.address)
        for other in self.list():
            if other.dataset_id == dataset.dataset_id:
                continue
            if overlap(shown, shown_place(self._storage, other.address)):
                text = f"what lies at {place} is dataset {other.dataset_id} already"
                raise Conflict(text, reason="DATASET_EXISTS")

    def _refuse_registering(self, wanted: Registration) -> Dataset | None:
        """Return what was registered under an id, if it is to be replaced. Raises `Conflict`."""
        known = self.known(wanted.address)
        if known is not None and known.in_place:
            if not wanted.overwrite:
                raise taken(wanted.address)
            return known
        if known is not None or self._storage.taken(wanted.address) or self.exists(wanted.address):
            text = f"{wanted.address.dataset_id} lies in this node's storage: {wanted.place} needs another name"
            raise Conflict(text, reason="DATASET_EXISTS")
        return None

    def _refuse_registered(self, address: Address) -> None:
        """Raise `Conflict` where a table would go that was registered where it lies, or its entry."""
        path = f"{address.namespace}/{address.name}"
        for one in self.list():
            below = not one.storage and f"{one.place}/".startswith(f"{path}/")
            if one.in_place and (
                below or (one.namespace, one.name) == (address.namespace, address.name)
            ):
                text = (
                    f"dataset {one.dataset_id} was registered where it lies: delete its entry first"
                )
                raise Conflict(text, reason="DATASET_EXISTS")

    def _refuse_taken(self, upload: Upload) -> None:
        self._refuse_registered(upload.address)
        if upload.overwrite:
            self._refuse_used(upload.address)
            return
        known = self.known(upload.address)
        where = known.address if known is not None else upload.address
        if self._storage.taken(where) or self._storage.exists(upload.address):
            raise taken(upload.address)

    def _refuse_used(self, address: Address) -> None:
        if users := self._users(address):
            raise used_by(address.dataset_id, users, "stop it, or give the new table another name")

    def _store(
        self,
        upload: Upload,
        source: Source,
        origin: str,
        staging: Staging,
    ) -> Dataset:
        address, storage, place = upload.address, self._storage.named(upload.storage), ""
        self._refuse_taken(upload)
        if storage:  # what was there before stays whole until this is
            plain = _ODD.sub("_", address.name)[:200]  # a run's policy there must name it
            place = f"{plain}.{secrets.token_hex(4)}"
        where = Address(address.namespace, place or address.name, storage)
        with (
            storage_errors(),
            self._storage.parts(staging, where) as parts,
            BufferedReader(source, BLOCK) as reader,
        ):
            found = write_table(reader, upload, parts, staging.folder / "ids", origin, self._clock)
            dataset = replace(found, storage=storage, place=place)
            (staging.table / METADATA).write_bytes(metadata_of(dataset))
            with (
                self._storage.published(staging, where, overwrite=upload.overwrite),
                self._changing,
            ):
                dataset, old = self._recorded(dataset, overwrite=upload.overwrite)
        if (
            old is not None and old.address != where
        ):  # not above, where a failure deletes what replaced it
            with storage_errors():
                self._delete_old(old.address)
        return dataset

    def _recorded(self, dataset: Dataset, *, overwrite: bool) -> tuple[Dataset, Dataset | None]:
        """Record what was uploaded; return it and what it replaces. Raises `Conflict` where another was faster."""
        address = Address(dataset.namespace, dataset.name)
        while True:
            self._refuse_registered(address)
            if overwrite:
                self._refuse_used(address)
            old = self._repository.get(dataset.namespace, dataset.name)
            if old is not None and not overwrite and (dataset.storage or old.storage):
                raise taken(address)
            new = _switched_as(old, dataset)
            if self._repository.replace(old, new):
                return new, old
            if not overwrite:  # by another gateway
                raise taken(address)

    def _delete_old(self, address: Address) -> None:
        """Delete what was replaced; where its storage is away, `gc` does."""
        with self._storage.staging() as staging:
            staging.note(address)
            try:
                self._storage.delete(address)
            except StorageFailed:
                staging.stays = True
            except NotFound:  # the storage is not among this node's any more
                pass

    # ------------------------------------------------------------ reading

    def resolve(
        self,
        dataset_id: str = "",
        *,
        namespace: str = "",
        name: str = "",
    ) -> Address:
        """Return where a dataset lies.

        Raises `NotFound` (DATASET_UNKNOWN), `NotAllowed` (DATASET_DISABLED), `Conflict` (DATASET_CHANGED).
        """
        address = _address(dataset_id or Address(namespace, name))
        known = self.known(address)
        if known is not None and known.disabled:
            raise NotAllowed(f"dataset {known.dataset_id} is disabled", reason="DATASET_DISABLED")
        place = self._place(address, known)
        if known is not None and self.change(known):  # partners read this: how is for `data show`
            text = f"dataset {known.dataset_id} was registered where it lies, and its files changed or are gone"
            raise Conflict(text, reason="DATASET_CHANGED")
        if not self._storage.exists(place):
            raise _unknown(address, "is not in this node's storage")
        return place

    def change(self, dataset: Dataset) -> str:
        """Say what became of the files of a table that was registered where it lies; empty where nothing did."""
        return change(self._storage, dataset) if dataset.in_place else ""

    def format(
        self,
        dataset_id: str = "",
        *,
        namespace: str = "",
        name: str = "",
    ) -> str:
        """Return in which format a table lies: csv or parquet."""
        if dataset_id:
            namespace, _, name = dataset_id.partition("#")
        known = self.known(Address(namespace, name))
        return known.format if known is not None else CSV

    def known(self, address: Address) -> Dataset | None:
        """Return what is recorded of a dataset; None: nothing."""
        return self._repository.get(address.namespace, address.name)

    def uploaded(self, address: Address) -> bool:
        """Tell whether a dataset was uploaded; what a job left there was not, whatever it says of itself."""
        known = self.known(address)
        return known is not None and known.origin != ""

    def exists(self, address: Address) -> bool:
        """Tell whether anything lies at an address."""
        return self._storage.exists(self._place(address, self.known(address)))

    def _place(self, address: Address, known: Dataset | None) -> Address:
        if known is not None:
            return known.address
        found = self._storage.find(address.namespace, address.name)
        return address if self.keeper(found) else found  # the place of a dataset is not its id

    def keeper(self, address: Address) -> Sequence[str]:
        """Say which uploaded dataset lies at a place of a storage elsewhere."""
        uploaded = self.list() if address.storage else []
        return [
            f"dataset {one.dataset_id}" for one in uploaded if one.place and one.address == address
        ]

    def switch(self, address: Address, *, disabled: bool) -> tuple[Dataset, Dataset]:
        """Disable a dataset for jobs, or enable it; return it before and after. Raises `NotFound`."""
        return self._set(address, disabled=disabled)

    def publish(self, address: Address, nodes: Sequence[str]) -> tuple[Dataset, Dataset]:
        """Let nodes see what a dataset is like; return it before and after. Raises `NotFound`."""
        return self._set(address, published=tuple(sorted(set(nodes))))

    def _set(self, address: Address, **values: Any) -> tuple[Dataset, Dataset]:
        with self._changing:
            known = self.known(address)  # its storage may be away
            before = known or self.get(address)
            after = replace(before, **values)
            if after != before:
                self._repository.put(after if self.uploaded(address) else replace(after, origin=""))
        return before, after

    def edit(self, address: Address, change: Edit) -> tuple[Dataset, Dataset]:
        """Change a table's meta; return it before and after. Raises `NotFound`, `Conflict`, `Invalid`."""
        while True:
            before = self.get(address)
            if not self.uploaded(address):
                text = f"{before.dataset_id} was not uploaded; only the meta of an uploaded table can be changed"
                raise Conflict(text, reason="DATASET_NOT_UPLOADED")
            after = change.of(before)
            match_id = after.meta.get("match_id_name")
            with storage_errors():
                if match_id and match_id != before.meta.get("match_id_name"):
                    self._check_ids(
                        before, match_id
                    )  # reads all of it: others do not wait meanwhile
                with self._changing:
                    if self.get(address) == before:
                        if not before.in_place:
                            self._storage.write_metadata(before.address, metadata_of(after))
                        self._repository.put(after)
                        return before, after

    def _check_ids(self, dataset: Dataset, column: str) -> None:
        """Raise `Invalid` unless each row has an id in a column, and one of its own where it has no sid."""
        findings = Findings()
        at, found = dataset.columns.index(column), self._storage.iter_rows(dataset.address)
        if dataset.format == PARQUET:
            at, found = 0, parquet.rows_of(self._storage, dataset.address, [column])
        cells = (row[at] if at < len(row) else "" for row in found)
        check_ids(self._storage, cells, findings, repeats=bool(dataset.sid))
        if findings:
            raise findings.error()

    def get(self, dataset: Address | str) -> Dataset:
        """Return what the storage says of a dataset, or the record where both agree or the storage is away.

        Raises `NotFound`.
        """
        address = _address(dataset)
        known = self.known(address)
        if known is not None and known.in_place:
            return known
        try:
            found = self._described(address, self._place(address, known))
        except StorageFailed:
            if known is None:
                raise
            return known
        if found is None or (known is not None and known.checksum == found.checksum):
            if known is None:
                raise _unknown(address, "is not known on this node")
            return known
        return _switched_as(known, found)

    def list(self) -> list[Dataset]:
        """Return every uploaded dataset, by namespace and name."""
        return self._repository.list()

    def delete(self, dataset: Address | str) -> None:
        """Delete a dataset and what is known of it; of one that was registered where it lies only this.

        Raises `NotFound`, `Conflict`.
        """
        address = _address(dataset)
        before = self.known(address)
        if before is not None and before.in_place:
            self._repository.delete(address.namespace, address.name)
            return
        self._refuse_registered(address)
        place = self._place(address, before)
        there = False
        with (
            storage_errors(),
            suppress(NotFound),
        ):  # of a storage that is not among this node's any more
            there = self._storage.delete(place)
        known = self._repository.delete(address.namespace, address.name)
        if not (there or known):
            raise _unknown(address, "is not known on this node")

    def _described(self, address: Address, place: Address) -> Dataset | None:
        """Return what a table in the storage says of itself; None where there is none."""
        if not self._storage.exists(place):
            return None
        metadata: Mapping[str, Any] = {}
        with suppress(GatewayError):
            metadata = self._storage.metadata(place)
        found = replace(dataset_of(address, metadata), storage=place.storage)
        if not found.origin:  # other programs name no size, and some count no rows
            is_counted = found.count or found.columns
            size = sum(
                file.size for name, file in self._storage.files(place).items() if name != METADATA
            )
            found = replace(found, size=size, count=found.count if is_counted else None)
        return found if place.name == address.name else replace(found, place=place.name)


def _address(dataset: Address | str) -> Address:
    """Return the address named by either form. Raises `NotFound` for what cannot be one."""
    if isinstance(dataset, Address):
        return dataset
    namespace, hash_sign, name = dataset.partition("#")
    if not hash_sign:
        text = f"invalid dataset id {dataset!r}: expected namespace#name"
        raise NotFound(text, reason="DATASET_UNKNOWN")
    return Address(namespace, name)


def _unknown(address: Address, why: str) -> NotFound:
    return NotFound(f"dataset {address.dataset_id} {why}", reason="DATASET_UNKNOWN")


def used_by(
    dataset_id: str,
    users: Sequence[str],
    remedy: str,
) -> Conflict:
    """Return the refusal to take a dataset from jobs that are not over."""
    more = f" and {len(users) - _SHOWN} more" if len(users) > _SHOWN else ""
    text = (
        f"dataset {dataset_id} is used by {', '.join(users[:_SHOWN])}{more}, not over yet; {remedy}"
    )
    return Conflict(text, reason="DATASET_IN_USE")


def metadata_of(dataset: Dataset) -> bytes:
    """Return a dataset as the JSON file ``metadata`` beside its partitions.

    The keys of the interconnection standard are name, namespace, count, partitions, column_info, data_type,
    description, create_time, expire_time and file_type. Ours besides: ``meta`` as uploaded but with the delimiter
    that the partitions have; ``origin``, the uploaded file; which columns are id, label and sid.
    """
    meta = {**dataset.meta, "delimiter": ","}
    encoding = meta.pop("encoding", None)
    columns = zip(dataset.columns, dataset.types, strict=True)
    document = {
        "name": dataset.name,
        "namespace": dataset.namespace,
        "count": dataset.count,
        "partitions": dataset.partitions,
        "column_info": [{"name": name, "type": kind} for name, kind in columns],
        "data_type": "dense",
        "description": dataset.description,
        "create_time": dataset.created_at.timestamp(),
        "expire_time": _NEVER_EXPIRES,
        "file_type": "csv",
        "id_column": meta.get("match_id_name"),
        "label_column": meta.get("label_name"),
        "sid_column": dataset.sid or None,
        "meta": meta,
        "origin": {
            "source": dataset.origin,
            "delimiter": dataset.meta.get("delimiter"),
            "encoding": encoding,
            "checksum": dataset.checksum,
            "size": dataset.size,
            "stored": dataset.stored,
        },
    }
    return json.dumps(
        document,
        ensure_ascii=False,
        allow_nan=False,
        indent=1,
    ).encode()


def _switched_as(old: Dataset | None, dataset: Dataset) -> Dataset:
    return (
        dataset if old is None else replace(dataset, disabled=old.disabled, published=old.published)
    )


def dataset_of(address: Address, document: Mapping[str, Any]) -> Dataset:
    """Read a metadata file, as far as it can be read: other programs write some too."""
    origin = _of(dict, document.get("origin"))
    columns = [c for c in _of(list, document.get("column_info")) if isinstance(c, dict)]
    meta = dict(_of(dict, document.get("meta")))
    meta |= {key: origin[key] for key in ("delimiter", "encoding") if key in origin}
    return Dataset(
        namespace=address.namespace,
        name=address.name,
        columns=tuple(str(c.get("name", "")) for c in columns),
        types=tuple(str(c.get("type", "string")) for c in columns),
        count=max(0, _of(int, document.get("count"))),
        partitions=max(0, _of(int, document.get("partitions"))) or 1,
        meta=meta,
        checksum=_of(str, origin.get("checksum")),
        size=max(0, _of(int, origin.get("size"))),
        stored=_of(str, origin.get("stored")),
        created_at=_time(document.get("create_time")),
        origin=_of(str, origin.get("source")),
        sid=_of(str, document.get("sid_column")),
        description=_of(str, document.get("description")),
    )


def _of(kind: type[T], value: Any) -> T:
    """Return what is of a type, else the empty value of that type."""
    return value if type(value) is kind else kind()


def _time(value: Any) -> datetime:
    try:
        return datetime.fromtimestamp(float(value), UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


OTHER_WAY = "to send a file from your own machine use POST /v2/component/upload/file"


def open_below(roots: Sequence[Path], requested: str) -> Source:
    """Open a file below a root, a relative path below the first that has it. Raises `NotAllowed`, `Invalid`."""
    if not roots:
        raise NotAllowed(
            f"uploading by server path is off on this node: data.roots is empty in its settings; {OTHER_WAY}",
            reason="PATH_NOT_ALLOWED",
        )
    path = PurePosixPath(requested)
    if not requested.strip() or "\0" in requested or path == PurePosixPath("."):
        raise Invalid([Problem("file", "must be the path of a file on this server", requested)])
    if ".." in path.parts:
        raise _elsewhere(requested, "must not go up with ..")
    known = [(root, Path(os.path.realpath(root))) for root in roots]
    if path.is_absolute():
        known = [pair for pair in known if any(map(path.is_relative_to, pair))]
        if not known:
            raise _elsewhere(requested, "must lie below one of the folders in data.roots")
    for root, real in known:
        with suppress(OSError, ValueError):  # too long, unreadable, not encodable: not there
            return _opened(root / path, real, requested)
    rule = f"must be a file on this server, below one of the folders in data.roots; there is none; {OTHER_WAY}"
    raise Invalid([Problem("file", rule, requested)], reason="FILE_NOT_FOUND")


def _opened(
    path: Path,
    root: Path,
    requested: str,
) -> Source:
    """Open a file, then check where that one lies, whatever was changed meanwhile. Raises `OSError`."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not Path(os.path.realpath(f"/proc/self/fd/{handle}")).is_relative_to(root):
            raise _elsewhere(requested, "must not lead out of data.roots by a symbolic link")
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Invalid([Problem("file", "must be a regular file", requested)])
        return Source(handle)
    except BaseException:
        os.close(handle)
        raise


def _elsewhere(requested: str, rule: str) -> NotAllowed:
    return NotAllowed(f"file: {rule} (got {requested!r}); {OTHER_WAY}", reason="PATH_NOT_ALLOWED")
