"""What a run left in the storage: its outputs, what else, and whether its inputs are as they were."""

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

from engines.files import is_folder, walk
from gateway.conformance.evidence import Written
from gateway.data.storage import FileStorage
from gateway.domain.run import Address
from gateway.errors import GatewayError
from provider_registry.model import Component

_LARGEST = 64 << 20
"""bytes of an output whose form is looked at"""


def looked_at(storage: FileStorage, component: Component, outputs: Mapping[str, Address]) -> dict[str, Written]:
    """Look at each output."""
    formats = {o.name: (o.formats[0].lower() if o.formats else "") for o in component.outputs}
    return {
        name: Written(True, _form(storage, address, formats[name])) if storage.exists(address) else Written(False)
        for name, address in outputs.items()
    }


def files(storage: FileStorage) -> frozenset[Path]:
    """Return every file of the storage, and whatever else is no folder."""
    return frozenset(Path(e.path) for e in walk(storage.root) if not is_folder(e))


def files_in(folder: Path) -> tuple[str, ...]:
    """Return the files below a folder that a component filled, by their paths in it; none without it."""
    return tuple(sorted(os.path.relpath(entry.path, folder) for entry in walk(folder) if _is_file(entry)))


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # such as a link whose path is too long
        return False


def strays(storage: FileStorage, before: Set[Path], belongs: Iterable[Address]) -> tuple[str, ...]:
    """Return every file of the storage that was not there before and lies at none of these addresses."""
    kept = {storage.path(address) for address in belongs}
    new = [path for path in files(storage) - before if kept.isdisjoint((path, *path.parents))]
    return tuple(sorted(str(path.relative_to(storage.root)) for path in new))


def stamps(storage: FileStorage, addresses: Iterable[Address]) -> dict[Address, str | None]:
    """Return what changes where the data at an address changes; None where there is none."""
    return {a: storage.checksum(a) if storage.exists(a) else None for a in addresses}


def _form(storage: FileStorage, address: Address, expected: str) -> str:
    """Say what is wrong with an output's form; empty for nothing."""
    try:
        size, _ = storage.stamp(address)
        if size == 0:
            return "is empty"
        storage.metadata(address)
        if size > _LARGEST:
            return ""
        content = b"".join(storage.stream(address))
    except GatewayError as error:
        return f"cannot be read: {error.message}"
    if expected == "json":
        try:
            json.loads(content)
        except (ValueError, RecursionError) as error:
            return f"is no JSON: {error}"
    if expected == "csv":
        try:
            header = next(csv.reader(io.StringIO(content.decode("utf-8-sig"))), [])
        except (csv.Error, UnicodeDecodeError) as error:
            return f"is no CSV in UTF-8: {error}"
        if not any(header):
            return "has no header line"
    return ""
