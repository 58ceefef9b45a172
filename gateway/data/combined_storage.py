"""The storages of a node: the folder that every node has, and named ones elsewhere (S3, HDFS)."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

import structlog

from gateway.data.credentials import key_not_shared
from gateway.data.file_storage import FileStorage, Staging
from gateway.data.remote import FILE, SAMPLE_SECONDS, Remote
from gateway.data.storage import Parts, Storage, Stored, wrong_names
from gateway.data.table_search import TableListing, TableSearch
from gateway.domain.problems import Problem
from gateway.domain.run import Address, Run
from gateway.errors import GatewayError, Invalid, NotFound, StorageFailed

if TYPE_CHECKING:
    from gateway.data.remote_storage import RemoteStorage

log = structlog.get_logger(__name__)

T = TypeVar("T")

_CHECK_SECONDS = 2.0  # the longest time that a storage may take to answer a health check


class Storages(Storage):
    """All storages of a node as one; an address names the storage that it belongs to."""

    def __init__(
        self,
        folder: FileStorage,
        remotes: Sequence[Remote] = (),
        *,
        stand_in: bool = True,
    ) -> None:
        """Combine the node's folder with storages elsewhere.

        - ``remotes``: the first one receives uploads; without any, the folder does
        - ``stand_in``: the folder also serves components that list none of this node's kinds
        """
        self.folder = folder
        self.remotes = _remote_storages(remotes)
        self._by_name: Mapping[str, FileStorage | RemoteStorage] = {**self.remotes, "": folder}
        self.stand_in = stand_in
        # The last check of each storage elsewhere; a new one begins only after it has ended.
        self._checks: dict[str, Future[None]] = {}
        self._starting_checks = threading.Lock()

    @property
    def root(self) -> Path:
        """The folder that every node has."""
        return self.folder.root

    def storage_for_upload(self, name: str) -> str:
        """Return the name of the storage for an upload; the folder's is "". Raises `Invalid`.

        ``name`` is `FILE` for the folder; "" for the storage that receives uploads by default.
        """
        names = [*self.remotes, FILE]
        chosen = name or names[0]
        if chosen not in names:
            rule = f"must be one of this node's storages: {', '.join(names)}"
            raise Invalid([Problem("storage", rule, chosen)])
        if chosen == FILE:
            return ""
        return chosen

    def path(self, address: Address) -> Path:
        """Return the path of an address in the folder. Raises `Invalid`."""
        return self.folder.path(address)

    def find(self, namespace: str, name: str) -> Address:
        """Return the address of data without a record, in the first storage that has it.

        Data that is in no storage gets an address in the folder. Raises `StorageFailed` if the data
        may be in a storage that does not answer.
        """
        in_folder = Address(namespace, name)
        if wrong_names(in_folder):  # no storage can have it
            return in_folder
        failure = None
        for storage in ("", *self.remotes):
            address = Address(namespace, name, storage)
            try:
                if self.taken(address):
                    return address
            except StorageFailed as error:  # the data may be in a storage after this one
                failure = error
        if failure is not None:
            raise failure
        return in_folder

    # ------------------------------------------------------------ health

    def check(self, seconds: float = _CHECK_SECONDS) -> None:
        """Check that every storage elsewhere answers within some seconds.

        Raises `StorageFailed` with the failures of all that do not answer, and with the reason of
        the first failure.
        """
        failures = list(self.failures(seconds).values())
        if failures:
            text = "; ".join(failure.message for failure in failures)
            raise StorageFailed(text, reason=failures[0].reason)

    def failures(
        self,
        seconds: float = _CHECK_SECONDS,
    ) -> dict[str, StorageFailed]:
        """Check all storages elsewhere at the same time; return the failures by storage.

        A storage that does not answer within ``seconds`` has failed; its check goes on.
        """
        checks = self._start_checks()
        wait(checks.values(), seconds)
        failures = {}
        for name, check in checks.items():
            try:
                check.result(0)
            except TimeoutError:
                failures[name] = self.remotes[name].slow(seconds)
            except StorageFailed as error:
                failures[name] = error
        return failures

    def _start_checks(self) -> dict[str, Future[None]]:
        """Start a check of each storage elsewhere, unless its last check is still running.

        So a storage that hangs keeps one thread, not one per request. Returns the last check of
        each storage, by name.
        """
        with self._starting_checks:
            for name, storage in self.remotes.items():
                check = self._checks.get(name)
                if check is None or check.done():
                    self._checks[name] = _in_background(storage.check_answers)
            return dict(self._checks)

    @property
    def secrets(self) -> list[str]:
        """The secret keys of all storages that have one, plain and as URLs spell them.

        They are masked in logs.
        """
        passwords = (storage.remote.password for storage in self.remotes.values())
        keys = list(filter(None, passwords))
        return keys + [quote(key, safe="") for key in keys]

    # ------------------------------------------------------------ for components

    def kind(self, storage: str) -> str:
        """Return the kind of a storage, as components list it in ``storageEngine``.

        The folder, "", is of the kind `FILE`, and so is a storage that the settings do not name any
        more.
        """
        if storage in self.remotes:
            return self.remotes[storage].remote.kind
        return FILE

    def kinds(self) -> list[str]:
        """Return the kinds of this node's storages, each once.

        The first one is that of the storage that receives uploads.
        """
        return list(dict.fromkeys(map(self.kind, self._by_name)))

    def serving(self, engines: Sequence[str]) -> list[str]:
        """Return the storages that may serve a component, the preferred one first.

        ``engines`` are the kinds that the component lists; an empty list means all kinds. The
        folder's name is "". The result is empty if the component cannot run here.
        """
        storages = list(self._by_name)
        if engines:
            listed = set(map(str.lower, engines))
            storages = [name for name in storages if self.kind(name) in listed]
        if self.stand_in and "" not in storages:
            storages.append("")
        return storages

    def refusal_of_runs(self, storage: str) -> str:
        """Return why no run may use a storage, as the rule of a problem; "" if runs may.

        ``storage`` is its name; that of the folder is "".
        """
        if storage not in self.remotes:
            return ""
        remote = self.remotes[storage].remote
        if remote.serves_runs:
            return ""
        return key_not_shared(remote)

    def limits_runs(self, storage: str) -> bool:
        """Return whether a run's access to a storage can be limited to its own outputs.

        ``storage`` is its name; that of the folder is "". It is so for S3 with a role, whose
        credentials are made for each run. Any other credentials open more.
        """
        if storage not in self.remotes:
            return storage == ""
        return bool(self.remotes[storage].remote.role)

    def mismatch_consequence(self, engines: Sequence[str]) -> str:
        """Return what follows, for people, if a component lists none of this node's kinds; else "".

        ``engines`` are the kinds that the component lists; an empty list means all kinds.
        """
        kinds = self.kinds()
        listed = set(map(str.lower, engines))
        if not listed or listed.intersection(kinds):
            return ""
        has = f"this node has {', '.join(kinds)} (storages)"
        if self.stand_in:
            return f"{has}: it works on data in the node's folder alone (storage.stand_in)"
        return f"{has}: jobs that use it are refused (STORAGE_MISMATCH)"

    def remote_of(self, run: Run) -> "RemoteStorage | None":
        """Return the storage elsewhere with a run's data; None if that is in the folder.

        All data of a run is in one storage, so its first address decides. Raises `NotFound` for a
        storage that the settings do not name any more.
        """
        data = run.data
        addresses = [*data.outputs.values(), *data.inputs.values()]
        if not addresses:
            return None
        storage = self._storage_of(addresses[0])
        if isinstance(storage, FileStorage):
            return None
        return storage

    def storage_failure(
        self,
        run: Run,
        message: str = "",
    ) -> GatewayError | None:
        """Return the failure of the storage that a failed run used; None if the storage works.

        ``message`` is the run's own: a storage's error code in it counts without a check. Without
        such a code, a sample is written and read.
        """
        try:
            storage = self.remote_of(run)
        except NotFound as error:  # the storage was removed from the settings
            return error
        if storage is None:
            return None
        failure = storage.failure_in(message)
        if failure is not None:
            return failure
        try:
            _in_background(storage.check).result(SAMPLE_SECONDS)
        except TimeoutError:
            return storage.slow(SAMPLE_SECONDS)
        except GatewayError as error:
            return error
        return None

    # ------------------------------------------------------------ as one storage

    def _storage_of(self, address: Address) -> "FileStorage | RemoteStorage":
        """Return the storage of an address.

        Raises `NotFound` (STORAGE_UNKNOWN) if the settings do not name it.
        """
        if address.storage not in self._by_name:
            text = (
                f"storage {address.storage} is not among this node's storages any more "
                "(setting storages)"
            )
            raise NotFound(text, reason="STORAGE_UNKNOWN")
        return self._by_name[address.storage]

    def files(self, address: Address) -> Mapping[str, Stored]:
        return self._storage_of(address).files(address)

    def exists(self, address: Address) -> bool:
        # False for a storage that the settings do not name any more; the other methods raise
        # `NotFound` then.
        return address.storage in self._by_name and self._storage_of(address).exists(address)

    def taken(self, address: Address) -> bool:
        return self._storage_of(address).taken(address)

    def open_file(
        self,
        address: Address,
        name: str,
        start: int = 0,
    ) -> BufferedReader:
        return self._storage_of(address).open_file(address, name, start)

    def names(
        self,
        namespace: str,
        storage: str = "",
    ) -> list[str]:
        return self._storage_of(Address(namespace, "", storage)).names(namespace)

    def entries(self, address: Address) -> list[str]:
        return self._storage_of(address).entries(address)

    def delete_entry(self, address: Address, name: str) -> None:
        self._storage_of(address).delete_entry(address, name)

    def namespaces(self) -> set[str]:
        """Return the namespaces of all storages; a storage that fails is left out and logged."""
        namespaces = self.folder.namespaces()
        for name, storage in self.remotes.items():
            try:
                namespaces |= storage.namespaces()
            except StorageFailed as error:
                log.warning(
                    "a storage is left out",
                    storage=name,
                    cause=error.message,
                )
        return namespaces

    def find_tables(
        self, search: TableSearch
    ) -> tuple[Mapping[str, TableListing], Mapping[str, StorageFailed]]:
        """Search all storages at the same time; return the listings and the failures by storage.

        A storage that does not answer in time has an empty, incomplete listing.
        """
        failures = self.failures(search.seconds)
        searches = {}
        for name in self._by_name.keys() - failures.keys():
            work = partial(self._by_name[name].find_tables, search)
            searches[name] = _in_background(work)
        # Each search ends by itself after `search.seconds`; twice that allows for a slow request.
        wait(searches.values(), 2 * search.seconds)
        listings = {}
        for name, future in searches.items():
            try:
                listings[name] = future.result(0)
            except TimeoutError:
                listings[name] = TableListing([], is_complete=False)
            except StorageFailed as error:
                failures[name] = error
        return listings, failures

    def staging(self) -> Staging:
        """Begin a write, which is prepared on the node's own disk for every storage."""
        return self.folder.staging()

    @contextmanager
    def published(
        self,
        staging: Staging,
        address: Address,
        *,
        overwrite: bool,
    ) -> Iterator[None]:
        """Publish a write, as the storage of its address does.

        The address of a write elsewhere is noted first: if the process dies, or cannot delete the
        files of a failed write, `gc` deletes them by that note.
        """
        if address.storage:
            staging.note(address)
        with self._storage_of(address).published(staging, address, overwrite=overwrite):
            yield

    @contextmanager
    def parts(
        self,
        staging: Staging,
        address: Address,
    ) -> Iterator[Parts]:
        """Begin a table, as the storage of its address does.

        The address of a write elsewhere is noted first, as in `published`.
        """
        if address.storage:
            staging.note(address)
        with self._storage_of(address).parts(staging, address) as parts:
            yield parts

    def write_metadata(self, address: Address, data: bytes) -> None:
        self._storage_of(address).write_metadata(address, data)

    def delete(self, address: Address) -> bool:
        return self._storage_of(address).delete(address)

    def copy(self, source: Address, target: Address) -> None:
        """Copy all files between two addresses of a storage elsewhere, see `RemoteStorage.copy`.

        Does nothing for the folder, in which `gateway.data.workspace` copies by itself.
        """
        storage = self._storage_of(target)
        if not isinstance(storage, FileStorage):
            storage.copy(source, target)


def _remote_storages(remotes: Sequence[Remote]) -> "Mapping[str, RemoteStorage]":
    """Return the storages elsewhere by name; empty without any."""
    if not remotes:
        return {}
    # Imported late: a node whose data is in its folder does without the library of storages.
    from gateway.data.remote_storage import RemoteStorage  # noqa: PLC0415

    return {remote.name: RemoteStorage(remote) for remote in remotes}


def _in_background(work: Callable[[], T]) -> "Future[T]":
    """Call a function on a thread of its own; return the future of its result.

    Unlike the threads of an executor, this one does not keep the process from ending while a
    storage hangs.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # `Future.result` raises it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
