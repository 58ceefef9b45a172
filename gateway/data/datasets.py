"""The tables of this node: storing uploads, registering tables in place, finding datasets."""

import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import Any

from gateway.data import parquet
from gateway.data.combined_storage import Storages
from gateway.data.file_storage import Staging
from gateway.data.metadata import dataset_of, metadata_of
from gateway.data.parquet import PARQUET
from gateway.data.reception import Reception, Source, storage_errors
from gateway.data.registration import (
    CSV,
    Registration,
    check_ids,
    dataset_at,
    describe_change,
    is_of_jobs,
    overlap,
    shown_place,
)
from gateway.data.remote import FILE
from gateway.data.server_files import open_below
from gateway.data.storage import METADATA, taken_error
from gateway.data.table_format import BLOCK
from gateway.data.table_reader import Findings
from gateway.data.table_search import TableSearch
from gateway.data.upload import Edit, Upload, write_table
from gateway.domain.datasets import Dataset, DatasetRepository
from gateway.domain.run import Address
from gateway.errors import Conflict, GatewayError, NotAllowed, NotFound, StorageFailed

MAX_JOBS_NAMED = 5  # in the refusal to change a dataset that jobs use
MAX_UNREGISTERED = 1000  # unregistered tables listed of one storage
SEARCH_SECONDS = 2.0  # longest search of one storage for unregistered tables
# In a storage elsewhere (any but the node's folder), a table's place has an underscore for each of
# these characters of its name: they are not safe in access policies.
_SPECIAL_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class UnregisteredTables:
    """Tables without a record, in all storages."""

    tables: Sequence[Address]
    notes: Sequence[str]  # about storages that did not answer, or hold more tables than listed


def _utc_now() -> datetime:
    """Return the time in UTC, in which datasets are dated."""
    return datetime.now(UTC)


def _no_jobs(_address: Address) -> Sequence[str]:
    """Return no job: without a gateway there are none."""
    return ()


def _order_of_tables(table: Address) -> tuple[str, str, str]:
    """Return the sort key of listed tables."""
    return table.namespace, table.name, table.storage


class Datasets:
    """Stores, finds, changes and deletes tables: their files in the storage, and their records."""

    def __init__(
        self,
        storage: Storages,
        repository: DatasetRepository,
        roots: Sequence[Path] = (),
        clock: Callable[[], datetime] = _utc_now,
        jobs_using: Callable[[Address], Sequence[str]] = _no_jobs,
    ) -> None:
        """Take the storages and the repository of records.

        - ``roots``: folders of this server from which files may be uploaded
        - ``jobs_using``: returns the ids of the unfinished jobs that use a dataset
        """
        self._storage = storage
        self._repository = repository
        self._roots = tuple(roots)
        self._clock = clock
        self._jobs_using = jobs_using
        self._changing = threading.Lock()  # held from reading a record to writing it again

    # ------------------------------------------------------------ uploading

    def upload_from_path(self, upload: Upload, path: str) -> Dataset:
        """Store a file of this server, whose path is below one of the roots.

        Raises `NotAllowed`, `Invalid`, `Conflict`; a failed upload leaves nothing behind.
        """
        with (
            open_below(self._roots, path) as file,
            storage_errors(),
            self._storage.staging() as staging,
        ):
            return self._store(upload, file, f"path:{path}", staging)

    def receive(self, max_bytes: int | None = None) -> Reception:
        """Begin to receive a file of at most ``max_bytes``; None: of any size.

        Raises `GatewayError` (STORAGE_FAILED).
        """
        with storage_errors(), ExitStack() as stack:
            staging = stack.enter_context(self._storage.staging())
            reception = Reception(staging, max_bytes)
            stack.pop_all()  # from here on, the reception closes the staging folder
            return reception

    def store_while_received(
        self,
        upload: Upload,
        received: Reception,
        filename: str,
    ) -> None:
        """Store a file while it is received.

        `Reception.finish` returns the dataset or raises the error.
        """

        def store(source: Source) -> Dataset:
            return self._store(upload, source, f"file:{filename}", received.staging)

        received.begin(store)

    def upload_from_file(
        self,
        upload: Upload,
        received: Reception,
        filename: str,
    ) -> Dataset:
        """Store a received file. Raises `Invalid`, `Conflict`; a failed upload leaves nothing."""
        with received.open_received() as source:
            return self._store(upload, source, f"file:{filename}", received.staging)

    def _store(
        self,
        upload: Upload,
        source: Source,
        origin: str,
        staging: Staging,
    ) -> Dataset:
        """Store the table in ``source`` and record it; return the dataset.

        Raises `Invalid`, `Conflict`, and `GatewayError` (STORAGE_FAILED).
        """
        self._refuse_taken(upload)
        address = upload.address
        storage = self._storage.storage_for_upload(upload.storage)
        place = ""  # in the node's folder, the place is the table's name
        if storage:
            place = _unused_place(address.name)
        target = Address(address.namespace, place or address.name, storage)
        with (
            storage_errors(),
            self._storage.parts(staging, target) as parts,
            BufferedReader(source, BLOCK) as reader,
        ):
            table = write_table(
                reader,
                upload,
                parts,
                staging.folder / "ids",
                origin,
                self._clock,
            )
            dataset = replace(
                table,
                storage=storage,
                place=place,
            )
            (staging.table / METADATA).write_bytes(metadata_of(dataset))
            with (
                self._storage.published(
                    staging,
                    target,
                    overwrite=upload.overwrite,
                ),
                self._changing,
            ):
                dataset, replaced = self._record_upload(
                    dataset,
                    overwrite=upload.overwrite,
                )
        # Only after the block above: an error inside it would withdraw the new table.
        if replaced is not None and replaced.address != target:
            with storage_errors():
                self._delete_replaced(replaced.address)
        return dataset

    def _refuse_taken(self, upload: Upload) -> None:
        """Raise `Conflict` if an upload would replace a table that it must not replace.

        This spares reading such an upload; `_record_upload` and the storage check it again.
        """
        self._refuse_registered(upload.address)
        if upload.overwrite:
            self._refuse_used(upload.address)
            return
        record = self.record_of(upload.address)
        place = record.address if record is not None else upload.address
        # `taken`: any files, also incomplete data. `exists`: complete data, such as a job's output
        # in the node's folder while the record of the id has another place.
        if self._storage.taken(place) or self._storage.exists(upload.address):
            raise taken_error(upload.address)

    def _refuse_registered(self, address: Address) -> None:
        """Raise `Conflict` if an address is not free because of a dataset registered in place.

        That dataset has the same id, or its files are below the folder of the address.
        """
        path = f"{address.namespace}/{address.name}"
        registered = [dataset for dataset in self.list() if dataset.in_place]
        for dataset in registered:
            has_same_id = (dataset.namespace, dataset.name) == (address.namespace, address.name)
            is_below = not dataset.storage and f"{dataset.place}/".startswith(f"{path}/")
            if has_same_id or is_below:
                raise Conflict(
                    f"dataset {dataset.dataset_id} was registered where it lies: "
                    "delete its entry first",
                    reason="DATASET_EXISTS",
                )

    def _refuse_used(self, address: Address) -> None:
        """Raise `Conflict` if an unfinished job uses a dataset that an upload would replace."""
        job_ids = self._jobs_using(address)
        if job_ids:
            remedy = "stop it, or give the new table another name"
            raise used_by(address.dataset_id, job_ids, remedy)

    def _record_upload(
        self,
        dataset: Dataset,
        *,
        overwrite: bool,
    ) -> tuple[Dataset, Dataset | None]:
        """Record an uploaded dataset; return its record, and the one that it replaces, if any.

        Raises `Conflict` as `_refuse_taken`, for changes since the upload began, also by another
        gateway.
        """
        address = Address(dataset.namespace, dataset.name)
        while True:  # repeated if the record was changed between reading and replacing it
            self._refuse_registered(address)
            if overwrite:
                self._refuse_used(address)
            old = self._repository.get(dataset.namespace, dataset.name)
            # In a storage elsewhere, each upload has a new place: only the record shows that the id
            # is taken. In the node's folder, publishing the files has failed in that case. So an
            # old record there has no files, and is replaced also without ``overwrite``.
            if old is not None and not overwrite:
                is_elsewhere = dataset.storage or old.storage
                if is_elsewhere:
                    raise taken_error(address)
            new = _with_switches_of(old, dataset)
            if self._repository.replace(old, new):
                return new, old
            if not overwrite:  # another upload has recorded the id since
                raise taken_error(address)

    def _delete_replaced(self, address: Address) -> None:
        """Delete the files of a replaced dataset. If their storage is away, `gc` does it later."""
        with self._storage.staging() as staging:
            staging.note(address)
            try:
                self._storage.delete(address)
            except StorageFailed:
                staging.stays = True
            except NotFound:  # the storage was removed from the settings
                pass

    # ------------------------------------------------------------ registering in place

    def register(self, registration: Registration) -> Dataset:
        """Record a table at its place, without a copy. Raises `Invalid`, `NotFound`, `Conflict`."""
        self._record_to_replace(registration)  # checked before the files are read, and again below
        with storage_errors():
            dataset = dataset_at(self._storage, registration, self._clock())
        with self._changing:
            old = self._record_to_replace(registration)
            self._refuse_second_name(dataset, registration.place)
            dataset = _with_switches_of(old, dataset)
            self._repository.put(dataset)
        return dataset

    def _record_to_replace(self, registration: Registration) -> Dataset | None:
        """Return the record that a registration replaces; None if its id is free.

        It replaces only a dataset registered in place, and only with ``overwrite``. Raises
        `Conflict` otherwise.
        """
        address = registration.address
        record = self.record_of(address)
        if record is not None and record.in_place:
            if not registration.overwrite:
                raise taken_error(address)
            return record
        # `taken`: any files in the node's folder. `exists`: complete data in one of the storages.
        is_stored = record is not None or self._storage.taken(address)
        if is_stored or self.exists(address):
            place = registration.place
            text = f"{address.dataset_id} lies in this node's storage: {place} needs another name"
            raise Conflict(text, reason="DATASET_EXISTS")
        return None

    def _refuse_second_name(self, dataset: Dataset, place: str) -> None:
        """Raise `Conflict` if the place of a dataset overlaps with that of another dataset.

        Under a second name, data could be used that is disabled or not granted under the first.
        ``place`` is as the user wrote it.
        """
        dataset_place = shown_place(self._storage, dataset.address)
        for existing in self.list():
            if existing.dataset_id == dataset.dataset_id:
                continue
            if overlap(dataset_place, shown_place(self._storage, existing.address)):
                text = f"what lies at {place} is dataset {existing.dataset_id} already"
                raise Conflict(text, reason="DATASET_EXISTS")

    # ------------------------------------------------------------ finding

    def resolve(
        self,
        dataset_id: str = "",
        *,
        namespace: str = "",
        name: str = "",
    ) -> Address:
        """Return the address of a dataset's files, for a job.

        The dataset is given by its id, or by namespace and name. Raises `NotFound`
        (DATASET_UNKNOWN), `NotAllowed` (DATASET_DISABLED), and `Conflict` (DATASET_CHANGED) if the
        files of a table registered in place have changed since its registration.
        """
        address = _address(dataset_id or Address(namespace, name))
        record = self.record_of(address)
        if record is not None and record.disabled:
            raise NotAllowed(f"dataset {record.dataset_id} is disabled", reason="DATASET_DISABLED")
        place = self._place(address, record)
        if record is not None and self.describe_change(record):
            # Partners read this message; `data show` tells the details.
            text = (
                f"dataset {record.dataset_id} was registered where it lies, "
                "and its files changed or are gone"
            )
            raise Conflict(text, reason="DATASET_CHANGED")
        if not self._storage.exists(place):
            raise _unknown(address, "is not in this node's storage")
        return place

    def describe_change(self, dataset: Dataset) -> str:
        """Describe how the files of a table registered in place have changed.

        Returns "" if they have not.
        """
        if not dataset.in_place:
            return ""
        return describe_change(self._storage, dataset)

    def format(
        self,
        dataset_id: str = "",
        *,
        namespace: str = "",
        name: str = "",
    ) -> str:
        """Return the file format of a dataset: csv or parquet; csv without a record."""
        if dataset_id:
            namespace, _, name = dataset_id.partition("#")
        record = self.record_of(Address(namespace, name))
        return record.format if record is not None else CSV

    def record_of(self, address: Address) -> Dataset | None:
        """Return the record of a dataset; None without one, as for outputs of jobs."""
        return self._repository.get(address.namespace, address.name)

    def is_uploaded(self, address: Address) -> bool:
        """Return whether a dataset was uploaded or registered; False for a job's output."""
        record = self.record_of(address)
        return record is not None and record.origin != ""

    def exists(self, address: Address) -> bool:
        """Return whether a dataset has files."""
        return self._storage.exists(self._place(address, self.record_of(address)))

    def _place(self, address: Address, record: Dataset | None) -> Address:
        """Return the address of a dataset's files; ``record`` is its record, if any.

        Without a record, the storages are searched for files at the id itself. Files that belong to
        a dataset with another id do not count; the result is then ``address``.
        """
        if record is not None:
            return record.address
        place = self._storage.find(address.namespace, address.name)
        if self._ids_at(place):
            return address
        return place

    def reasons_to_keep(self, address: Address) -> Sequence[str]:
        """Return the reasons not to delete the files at an address: datasets with another id.

        Empty for the node's folder, where files are at the id of their dataset.
        """
        return [f"dataset {dataset_id}" for dataset_id in self._ids_at(address)]

    def _ids_at(self, address: Address) -> Sequence[str]:
        """Return the ids of the datasets that have their place at an address, not at their id.

        Only in a storage elsewhere do uploads get such a place; empty for the node's folder.
        """
        if not address.storage:
            return []
        datasets = [
            dataset for dataset in self.list() if dataset.place and dataset.address == address
        ]
        return [dataset.dataset_id for dataset in datasets]

    def get(self, dataset: Address | str) -> Dataset:
        """Return a dataset: its record, or what its metadata file in the storage says.

        The file counts if there is no record, or if it describes other content than the record.
        Tables registered in place have no such file. Raises `NotFound`, and `StorageFailed` for a
        dataset without a record.
        """
        address = _address(dataset)
        record = self.record_of(address)
        if record is None:
            return self._get_unrecorded(address)
        if record.in_place:
            return record
        try:
            stored = self._read_metadata(address, self._place(address, record))
        except StorageFailed:
            return record
        if stored is None or record.checksum == stored.checksum:
            return record
        return _with_switches_of(record, stored)

    def _get_unrecorded(self, address: Address) -> Dataset:
        """Return a dataset without a record, from its metadata.

        Raises `NotFound`, `StorageFailed`.
        """
        stored = self._read_metadata(address, self._place(address, None))
        if stored is None:
            raise _unknown(address, "is not known on this node")
        return stored

    def id_columns(self, location: Mapping[str, str]) -> Sequence[str]:
        """Return the columns of ids that a dataset declares: to match rows by, and added at upload.

        ``location`` is ``{dataset_id}`` or ``{namespace, name}``. Empty for a dataset without a
        record, and for one that declares no such column.
        """
        dataset_id = location.get("dataset_id", "")
        try:
            address = _address(dataset_id or Address(location["namespace"], location["name"]))
        except NotFound:  # malformed
            return ()
        record = self.record_of(address)
        if record is None:
            return ()
        declared = [str(record.meta.get("match_id_name") or ""), record.sid]
        return [name for name in declared if name]

    def list(self) -> list[Dataset]:
        """Return every dataset with a record, sorted by namespace and name."""
        return self._repository.list()

    def find_unregistered(
        self,
        namespace: str = "",
        max_tables: int = MAX_UNREGISTERED,
        seconds: float = SEARCH_SECONDS,
    ) -> UnregisteredTables:
        """Search the storages for tables that other programs left; outputs of jobs do not count.

        ``namespace`` is the only one to be searched; "" means all. ``max_tables`` and ``seconds``
        bound the search of each storage.
        """
        records = self.list()
        places = {record.address for record in records}
        ids = {record.dataset_id for record in records}

        def is_registered(address: Address) -> bool:
            return address in places or address.dataset_id in ids

        search = TableSearch(
            namespace=namespace,
            skips_namespace=is_of_jobs,
            skips=is_registered,
            max_tables=max_tables,
            seconds=seconds,
        )
        listings, failures = self._storage.find_tables(search)
        tables: list[Address] = []
        notes = []
        for storage, listing in listings.items():
            tables += listing.addresses
            if not listing.is_complete:
                notes.append(
                    f"storage {storage or FILE} may hold more tables than are listed: ask for one "
                    f"namespace"
                )
        tables.sort(key=_order_of_tables)
        notes += [failure.message for failure in failures.values()]
        return UnregisteredTables(tables, notes)

    def _read_metadata(self, address: Address, place: Address) -> Dataset | None:
        """Return the dataset whose files are at a place, by its metadata; None without files.

        A dataset whose metadata is missing or cannot be read has no columns. Raises
        `StorageFailed`.
        """
        if not self._storage.exists(place):
            return None
        metadata: Mapping[str, Any] = {}
        with suppress(GatewayError):
            metadata = self._storage.metadata(place)
        dataset = replace(
            dataset_of(address, metadata),
            storage=place.storage,
        )
        if not dataset.origin:  # not uploaded: another program wrote it
            dataset = self._with_size_of_files(dataset, place)
        if place.name != address.name:
            dataset = replace(dataset, place=place.name)
        return dataset

    def _with_size_of_files(self, dataset: Dataset, place: Address) -> Dataset:
        """Return a dataset that another program wrote, with its size from the files.

        The program's metadata names no size. If it lacks the number of rows, the count is None.
        """
        files = self._storage.files(place)
        size = sum(file.size for name, file in files.items() if name != METADATA)
        # A count of 0 may mean that the metadata is missing, unless it lists columns.
        is_counted = dataset.count or dataset.columns
        return replace(dataset, size=size, count=dataset.count if is_counted else None)

    # ------------------------------------------------------------ changing

    def switch(
        self,
        address: Address,
        *,
        disabled: bool,
    ) -> tuple[Dataset, Dataset]:
        """Disable or enable a dataset for jobs; return it before and after. Raises `NotFound`."""
        return self._set(address, disabled=disabled)

    def publish(
        self,
        address: Address,
        nodes: Sequence[str],
    ) -> tuple[Dataset, Dataset]:
        """Let nodes see a dataset's description; return it before and after. Raises `NotFound`."""
        return self._set(
            address,
            published=tuple(sorted(set(nodes))),
        )

    def _set(
        self,
        address: Address,
        **values: Any,
    ) -> tuple[Dataset, Dataset]:
        """Set fields of a dataset's record; return the dataset before and after."""
        with self._changing:
            # The record alone will do: `get` also reads the storage, which may be away.
            before = self.record_of(address)
            if before is None:
                before = self.get(address)
            after = replace(before, **values)
            if after != before:
                is_uploaded = self.is_uploaded(address)
                # The first change of a job's output makes a record of it. Its metadata, which a
                # program of a vendor wrote, must not let it pass as an upload.
                self._repository.put(after if is_uploaded else replace(after, origin=""))
        return before, after

    def edit(
        self,
        address: Address,
        edit: Edit,
    ) -> tuple[Dataset, Dataset]:
        """Change a table's meta; return the dataset before and after.

        Starts over if the dataset was changed since it was read. Raises `NotFound`, `Conflict`,
        `Invalid`.
        """
        while True:
            before = self.get(address)
            if not self.is_uploaded(address):
                raise Conflict(
                    f"{before.dataset_id} was not uploaded; "
                    "only the meta of an uploaded table can be changed",
                    reason="DATASET_NOT_UPLOADED",
                )
            after = edit.apply_to(before)
            match_id = after.meta.get("match_id_name")
            with storage_errors():
                if match_id and match_id != before.meta.get("match_id_name"):
                    self._check_ids(before, match_id)  # reads the whole table, so without the lock
                with self._changing:
                    if self.get(address) != before:
                        continue
                    if not before.in_place:
                        self._storage.write_metadata(before.address, metadata_of(after))
                    self._repository.put(after)
                    return before, after

    def _check_ids(self, dataset: Dataset, column: str) -> None:
        """Raise `Invalid` unless every row has an id in a column.

        In a table without sids, the ids must differ.
        """
        findings = Findings()
        ids = self._column(dataset, column)
        check_ids(
            self._storage,
            ids,
            findings,
            may_repeat=bool(dataset.sid),
        )
        if findings:
            raise findings.error()

    def _column(
        self,
        dataset: Dataset,
        column: str,
    ) -> Iterator[str]:
        """Yield the cells of one column; a row that is too short has an empty cell."""
        if dataset.format == PARQUET:
            rows = parquet.rows_of(self._storage, dataset.address, [column])
            index = 0  # only that column is read
        else:
            rows = self._storage.iter_rows(dataset.address)
            index = dataset.columns.index(column)
        for row in rows:
            yield row[index] if index < len(row) else ""

    def delete(self, dataset: Address | str) -> None:
        """Delete a dataset with its files and its record.

        Of a table registered in place only the record is deleted. Raises `NotFound`, `Conflict`.
        """
        address = _address(dataset)
        record = self.record_of(address)
        if record is not None and record.in_place:
            self._repository.delete(address.namespace, address.name)
            return
        self._refuse_registered(address)  # its files may be in the folder that would be deleted
        place = self._place(address, record)
        files_deleted = False
        with storage_errors(), suppress(NotFound):  # the storage was removed from the settings
            files_deleted = self._storage.delete(place)
        record_deleted = self._repository.delete(address.namespace, address.name)
        if not files_deleted and not record_deleted:
            raise _unknown(address, "is not known on this node")


def used_by(
    dataset_id: str,
    job_ids: Sequence[str],
    remedy: str,
) -> Conflict:
    """Return the refusal to change or delete a dataset that unfinished jobs use.

    ``remedy`` is what to do, the end of the message.
    """
    names = ", ".join(job_ids[:MAX_JOBS_NAMED])
    hidden = len(job_ids) - MAX_JOBS_NAMED
    if hidden > 0:
        names += f" and {hidden} more"
    text = f"dataset {dataset_id} is used by {names}, not over yet; {remedy}"
    return Conflict(text, reason="DATASET_IN_USE")


def _unused_place(name: str) -> str:
    """Return a new place for a table in a storage elsewhere.

    The old table stays complete at its own place until the new one is complete.
    """
    plain_name = _SPECIAL_CHARACTERS.sub("_", name)[:200]
    return f"{plain_name}.{secrets.token_hex(4)}"


def _with_switches_of(old: Dataset | None, dataset: Dataset) -> Dataset:
    """Return a dataset that is disabled and published like the one that it replaces, if any."""
    if old is None:
        return dataset
    return replace(
        dataset,
        disabled=old.disabled,
        published=old.published,
    )


def _address(dataset: Address | str) -> Address:
    """Return the address of a dataset, which may be given by its id.

    Raises `NotFound` for a malformed id.
    """
    if isinstance(dataset, Address):
        return dataset
    namespace, hash_sign, name = dataset.partition("#")
    if not hash_sign:
        text = f"invalid dataset id {dataset!r}: expected namespace#name"
        raise NotFound(text, reason="DATASET_UNKNOWN")
    return Address(namespace, name)


def _unknown(address: Address, why: str) -> NotFound:
    """Return the error of a dataset that does not exist here."""
    return NotFound(f"dataset {address.dataset_id} {why}", reason="DATASET_UNKNOWN")
