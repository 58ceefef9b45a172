"""The storages of a node: the folder that every node has, and named ones elsewhere (S3, HDFS)."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import structlog

from gateway.data.file_storage import FileStorage, Staging
from gateway.data.remote_storage import FILE, SAMPLE_SECONDS, Remote, RemoteStorage
from gateway.data.storage import Parts, Storage, Stored, wrong_names
from gateway.data.table_search import TableListing, TableSearch
from gateway.domain.problems import Problem
from gateway.domain.run import Address, Run
from gateway.errors import GatewayError, Invalid, NotFound, StorageFailed

log = structlog.get_logger(__name__)

T = TypeVar("T")


_SECONDS = 2.0
"""within which a storage answers that is asked whether it is there"""


class Storages(Storage):
    """All storages of a node as one: an address says in which of them something lies."""

    def __init__(
        self,
        folder: FileStorage,
        remotes: Sequence[Remote] = (),
        *,
        stand_in: bool = True,
    ) -> None:
        """``remotes``: the first is where uploads go. ``stand_in``: the folder serves every component."""
        self.folder = folder
        self.remotes: Mapping[str, RemoteStorage] = {
            one.name: RemoteStorage(one) for one in remotes
        }
        self._places: Mapping[str, FileStorage | RemoteStorage] = {**self.remotes, "": folder}
        self.stand_in = stand_in
        self._asked: dict[str, Future[None]] = {}
        """the last question to each, which one that hangs is not asked again meanwhile"""
        self._asking = threading.Lock()

    @property
    def root(self) -> Path:
        """Return the folder that every node has."""
        return self.folder.root

    def named(self, name: str) -> str:
        """Return the storage for what is uploaded: the one that is named, else the first. Raises `Invalid`."""
        known = [*self.remotes, FILE]
        name = name or known[0]
        if name not in known:
            raise Invalid(
                [
                    Problem(
                        "storage", f"must be one of this node's storages: {', '.join(known)}", name
                    )
                ]
            )
        return "" if name == FILE else name

    def path(self, address: Address) -> Path:
        """Return the place of an address in the folder. Raises `Invalid`."""
        return self.folder.path(address)

    def find(self, namespace: str, name: str) -> Address:
        """Return where something lies that the database knows nothing of; in the folder where it lies nowhere."""
        failed = None
        for storage in ("", *self.remotes):
            try:
                place = Address(namespace, name, storage)
                if not wrong_names(place) and self.taken(place):
                    return place
            except StorageFailed as error:  # it may lie in another
                failed = error
        if failed is not None:
            raise failed
        return Address(namespace, name)

    def check(self, seconds: float = _SECONDS) -> None:
        """Look whether every storage elsewhere answers. Raises `StorageFailed`, which names all that do not."""
        if failed := list(self.failures(seconds).values()):
            raise StorageFailed(
                "; ".join(error.message for error in failed), reason=failed[0].reason
            )

    def failures(self, seconds: float = _SECONDS) -> dict[str, StorageFailed]:
        """Ask all storages elsewhere at the same time; return what is the matter with those that do not answer."""
        with self._asking:
            for name, storage in self.remotes.items():
                if name not in self._asked or self._asked[name].done():
                    self._asked[name] = _in_background(storage.check_answers)
            asked = dict(self._asked)
        wait(asked.values(), seconds)
        found = {}
        for name, answer in asked.items():
            try:
                answer.result(0)
            except TimeoutError:
                found[name] = self.remotes[name].slow(seconds)
            except StorageFailed as error:
                found[name] = error
        return found

    @property
    def secrets(self) -> list[str]:
        """Return what nobody may see: the keys of the storages, as they are and as an address has them."""
        keys = [
            remote.remote.password for remote in self.remotes.values() if remote.remote.password
        ]
        return [*keys, *(quote(key, safe="") for key in keys)]

    # ------------------------------------------------------------ for components

    def kind(self, storage: str) -> str:
        """Return what ``storageEngine`` calls a storage."""
        return self.remotes[storage].remote.kind if storage in self.remotes else FILE

    def kinds(self) -> list[str]:
        """Return what ``storageEngine`` calls the storages of this node."""
        return list(dict.fromkeys(self.kind(name) for name in self._places))

    def serving(self, engines: Sequence[str]) -> list[str]:
        """Return the storages that serve a component whose description lists these kinds, the preferred first."""
        listed = {engine.lower() for engine in engines}
        found = [name for name in self._places if not listed or self.kind(name) in listed]
        return found if "" in found or not self.stand_in else [*found, ""]

    def at_registration(self, engines: Sequence[str]) -> str:
        """Say what becomes of a component that lists none of this node's storages; empty where it lists one."""
        kinds = self.kinds()
        if not engines or set(kinds) & {engine.lower() for engine in engines}:
            return ""
        has = f"this node has {', '.join(kinds)} (storages)"
        if self.stand_in:
            return f"{has}: it works on data in the node's folder alone (storage.stand_in)"
        return f"{has}: jobs that use it are refused (STORAGE_MISMATCH)"

    def remote_of(self, run: Run) -> RemoteStorage | None:
        """Return the storage elsewhere in which a run reads and writes; None for the folder."""
        first = next(iter((*run.outputs.values(), *run.inputs.values())), Address("", ""))
        at = self._at(first)
        return at if isinstance(at, RemoteStorage) else None

    def trouble(self, run: Run, words: str = "") -> GatewayError | None:
        """Return what is the matter with the storage elsewhere of a run that failed with these words."""
        try:
            if (at := self.remote_of(run)) is None:
                return None
        except NotFound as gone:  # it is not among this node's any more
            return gone
        if (meant := at.meaning(words)) is not None:
            return meant
        try:
            _in_background(at.check).result(SAMPLE_SECONDS)
        except TimeoutError:
            return at.slow(SAMPLE_SECONDS)
        except GatewayError as error:
            return error
        return None

    # ------------------------------------------------------------ as one storage

    def _at(self, address: Address) -> Storage:
        if address.storage not in self._places:
            text = f"storage {address.storage} is not among this node's storages any more (setting storages)"
            raise NotFound(text, reason="STORAGE_UNKNOWN")
        return self._places[address.storage]

    def files(self, address: Address) -> Mapping[str, Stored]:
        return self._at(address).files(address)

    def exists(self, address: Address) -> bool:
        return address.storage in self._places and self._at(address).exists(address)

    def taken(self, address: Address) -> bool:
        return self._at(address).taken(address)

    def open_file(
        self,
        address: Address,
        name: str,
        start: int = 0,
    ) -> BufferedReader:
        return self._at(address).open_file(address, name, start)

    def names(self, namespace: str, storage: str = "") -> list[str]:
        return self._at(Address(namespace, "", storage)).names(namespace)

    def namespaces(self) -> set[str]:
        found = self.folder.namespaces()
        for remote in self.remotes.values():
            try:
                found |= remote.namespaces()
            except StorageFailed as error:  # what lies elsewhere is there all the same
                log.warning(
                    "a storage is left out", storage=remote.remote.name, cause=error.message
                )
        return found

    def find_tables(
        self, search: TableSearch
    ) -> tuple[Mapping[str, TableListing], Mapping[str, StorageFailed]]:
        """Search all storages at the same time; return the listings and the failures by storage."""
        failures = self.failures(search.seconds)
        searches = {}
        for name, storage in self._places.items():
            if name not in failures:
                searches[name] = _in_background(partial(storage.find_tables, search))
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
        """Begin a write on the node's own disk, wherever it is going."""
        return self.folder.staging()

    @contextmanager
    def published(
        self,
        staging: Staging,
        address: Address,
        *,
        overwrite: bool,
    ) -> Iterator[None]:
        if address.storage:
            staging.note(address)  # of a write that is cut short, `gc` deletes there what was sent
        with self._at(address).published(staging, address, overwrite=overwrite):
            yield

    @contextmanager
    def parts(self, staging: Staging, address: Address) -> Iterator[Parts]:
        if address.storage:
            staging.note(address)
        with self._at(address).parts(staging, address) as parts:
            yield parts

    def write_metadata(self, address: Address, data: bytes) -> None:
        self._at(address).write_metadata(address, data)

    def delete(self, address: Address) -> bool:
        return self._at(address).delete(address)

    def copy(self, source: Address, target: Address) -> None:
        """Copy all files at an address of a storage elsewhere to another there, unless something lies there."""
        place = self._at(target)
        if isinstance(place, RemoteStorage):
            place.copy(source, target)


def _in_background(work: Callable[[], T]) -> "Future[T]":
    """Call a function on a thread that does not keep the process from ending."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised to the caller
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
