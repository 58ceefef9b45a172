"""The archive in which a model travels from one node to another: a zip of a manifest and the files.

``manifest.json`` comes first and names every file with size and sha256. A member is called
``guest.0/1/data_0`` (party, number of the part, file); of the manifest's own names none becomes a path.
"""

import hashlib
import json
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.data.files import nearest
from gateway.data.storage import METADATA, FileStorage
from gateway.domain.dag import ComponentRef
from gateway.domain.models import LONGEST_ID, ModelPart, PartyModel, id_rule
from gateway.domain.problems import LARGEST_NAME, Problem
from gateway.domain.run import Address, FileSum
from gateway.domain.spec import Party
from gateway.errors import Invalid, TooLarge, problems_of

MANIFEST = "manifest.json"
FORMAT = "bfia-gateway model 1"
LARGEST_MANIFEST = 16 * 1024 * 1024
MOST_MEMBERS = 100_000
_CHUNK = 1024 * 1024
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1
_UNREADABLE = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    ValueError,
    OverflowError,
)
"""what zipfile raises for what is no proper archive"""
_FIRST_TIME = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST = datetime(1980, 1, 1, tzinfo=UTC)
_LATEST = datetime(2107, 12, 31, tzinfo=UTC)
"""what a zip can say of when a member was made"""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _File(_Strict):
    name: str = Field(pattern=r"^(data_(0|[1-9][0-9]{0,8})|metadata)$")
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class _Part(_Strict):
    task: str
    provider: str
    provider_version: str
    component: str
    key: str
    output: str
    parameters: dict[str, Any]
    files: list[_File] = Field(min_length=1)


class _Party(_Strict):
    role: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")
    index: int = Field(ge=0, lt=10**9)
    node: str = Field(min_length=1, max_length=255)


class _Holder(_Strict):
    role: str
    index: int
    parts: list[_Part] = Field(min_length=1)


class _Manifest(_Strict):
    format: Literal["bfia-gateway model 1"]
    model_id: str
    version: str
    job_id: str = Field(max_length=LONGEST_ID)
    flow_id: str = Field(max_length=LARGEST_NAME)
    created_at: datetime
    parties: list[_Party] = Field(min_length=1)
    models: list[_Holder] = Field(min_length=1)


@dataclass(frozen=True)
class Item:
    """A party's model as an archive holds it; its addresses are those that it gets here."""

    model: PartyModel
    members: tuple[tuple[str, ...], ...]
    """per part the names of its files in the archive"""

    @property
    def version_key(self) -> tuple[str, str]:
        """Model id and version."""
        return self.model.model_id, self.model.version


# ---------------------------------------------------------------- writing


def write(storage: FileStorage, models: Sequence[PartyModel]) -> Iterator[bytes]:
    """Yield the archive of a version's parts. The same parts give the same bytes."""
    out = _Drain()
    when = min(max(models[0].created_at, _EARLIEST), _LATEST).astimezone(UTC).timetuple()[:6]
    with zipfile.ZipFile(out, "w") as archive:  # type: ignore[call-overload]
        archive.writestr(
            zipfile.ZipInfo(MANIFEST, when), json.dumps(manifest(models), ensure_ascii=False, indent=1)
        )
        yield out.take()
        for model in models:
            for number, part in enumerate(model.parts):
                for file in part.files:
                    info = zipfile.ZipInfo(_member(model.party.label, number, file.name), when)
                    with (
                        storage.open_file(part.address, file.name) as source,
                        archive.open(info, "w", force_zip64=True) as member,
                    ):
                        while data := source.read(_CHUNK):
                            member.write(data)
                            yield out.take()
                    yield out.take()
    yield out.take()


def manifest(models: Sequence[PartyModel]) -> dict[str, Any]:
    """Return what an archive says of its content."""
    first = models[0]
    return {
        "format": FORMAT,
        "model_id": first.model_id,
        "version": first.version,
        "job_id": first.job_id,
        "flow_id": first.flow_id,
        "created_at": first.created_at.isoformat(),
        "parties": [{"role": p.role, "index": p.index, "node": p.node} for p in first.parties],
        "models": [
            {"role": m.party.role, "index": m.party.index, "parts": [part_as_dict(p) for p in m.parts]}
            for m in models
        ],
    }


def part_as_dict(part: ModelPart) -> dict[str, Any]:
    """Return a part without its address, which is each node's own affair."""
    return {
        "task": part.task,
        "provider": part.component.provider,
        "provider_version": part.component.version,
        "component": part.component.name,
        "key": part.key,
        "output": part.output,
        "parameters": dict(part.parameters),
        "files": [{"name": f.name, "size": f.size, "sha256": f.sha256} for f in part.files],
    }


class _Drain:
    """A file that can only be written to; what was written is taken out again."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def take(self) -> bytes:
        data, self._parts = b"".join(self._parts), []
        return data


# ---------------------------------------------------------------- reading


def read(path: Path) -> list[Item]:
    """Read what an archive says it holds, and compare that with its members.

    Raises `Invalid` with every problem. The files themselves are checked by `unpacked`.
    """
    with _opened(path) as archive:
        said = _manifest(archive)
        problems = _wrong(said)
        if problems:
            raise Invalid(problems, reason="ARCHIVE_INVALID")
        items = [_item(said, holder) for holder in said.models]
        sizes = {
            name: file.size
            for item in items
            for part, names in zip(item.model.parts, item.members, strict=True)
            for file, name in zip(part.files, names, strict=True)
        }
        problems = _differences(archive, sizes)
        if problems:
            raise Invalid(problems, reason="ARCHIVE_INVALID")
    return items


def check_room(items: Sequence[Item], root: Path, reserve: int) -> None:
    """Raise `TooLarge` with NO_SPACE where a disk has not what the items take and ``reserve``, both in bytes."""
    needed = sum(file.size for item in items for part in item.model.parts for file in part.files)
    free = shutil.disk_usage(nearest(root)).free
    if needed + max(reserve, 0) > free:
        text = f"its files take {needed} bytes, the storage has {free} free"
        kept = f" and keeps {reserve} back (limits.storage_reserve_bytes)" if reserve > 0 else ""
        raise TooLarge(f"{text}{kept}: delete data first", reason="NO_SPACE")


@contextmanager
def unpacked(
    path: Path, items: Sequence[Item], storage: FileStorage
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Unpack the files aside; entering what this gives puts them all into the storage, or none of them.

    Raises `Invalid` where one is not what the manifest says. What an import that died has left at the same place
    is replaced.
    """
    parts = [(part, names) for item in items for part, names in zip(item.model.parts, item.members, strict=True)]
    with storage.staging() as staging:
        with _opened(path) as archive:
            for number, (part, names) in enumerate(parts):
                (staging.folder / str(number)).mkdir()
                for file, name in zip(part.files, names, strict=True):
                    _extract(archive, name, file, staging.folder / str(number) / file.name)
        yield partial(_in_place, storage, staging.folder, [part.address for part, _ in parts])


@contextmanager
def _in_place(storage: FileStorage, folder: Path, addresses: Sequence[Address]) -> Iterator[None]:
    done: list[Address] = []
    try:
        for number, address in enumerate(addresses):
            with storage.staging() as staging:
                staging.table.rmdir()
                (folder / str(number)).rename(staging.table)
                with storage.published(staging, address, overwrite=True):
                    pass
            done.append(address)
        yield
    except BaseException:
        for address in done:
            storage.delete(address)
        raise


def _extract(archive: zipfile.ZipFile, name: str, file: FileSum, target: Path) -> None:
    digest, size = hashlib.sha256(), 0
    try:
        with archive.open(name) as source, target.open("xb") as out:
            while data := source.read(_CHUNK):
                size += len(data)
                if size > file.size:
                    break
                digest.update(data)
                out.write(data)
    except _UNREADABLE as error:
        raise Invalid([Problem(name, "cannot be read", str(error))], reason="ARCHIVE_INVALID") from error
    if size != file.size or digest.hexdigest() != file.sha256:
        rule = f"must have {file.size} bytes with sha256 {file.sha256}"
        raise Invalid([Problem(name, rule, digest.hexdigest())], reason="CHECKSUM_MISMATCH")


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(path)
    except (*_UNREADABLE, OSError) as error:  # OSError: an offset that lies nowhere
        raise Invalid([Problem("(archive)", "is no zip archive", str(error))], reason="ARCHIVE_INVALID") from error
    size = path.stat().st_size
    problems = [
        Problem(info.filename, "must be stored or deflated, not encrypted, and lie inside the archive")
        for info in archive.infolist()
        if info.compress_type not in _METHODS or info.flag_bits & _ENCRYPTED or not 0 <= info.header_offset < size
    ]
    if problems:
        archive.close()
        raise Invalid(problems, reason="ARCHIVE_INVALID")
    return archive


def _manifest(archive: zipfile.ZipFile) -> _Manifest:
    names = archive.namelist()
    if names.count(MANIFEST) != 1:
        raise Invalid([Problem(MANIFEST, "must be there once", names.count(MANIFEST))], reason="ARCHIVE_INVALID")
    try:
        with archive.open(MANIFEST) as file:
            data = _whole(file, LARGEST_MANIFEST)
        return _Manifest.model_validate_json(data)
    except ValidationError as error:
        problems = [
            one._replace(path=f"{MANIFEST}.{one.path}", got=None if one.got is None else str(one.got)[:200])
            for one in problems_of(error.errors(include_url=False), _Manifest)
        ]
        raise Invalid(problems, reason="ARCHIVE_INVALID") from error
    except _UNREADABLE as error:
        raise Invalid([Problem(MANIFEST, "cannot be read", str(error))], reason="ARCHIVE_INVALID") from error


def _whole(file: Any, limit: int) -> bytes:
    data: bytes = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"has more than {limit} bytes")
    return data


def _wrong(said: _Manifest) -> list[Problem]:
    """Find what the manifest's form alone does not tell."""
    problems = []
    for key in ("model_id", "version"):
        text = getattr(said, key)
        if rule := id_rule(text):
            problems.append(Problem(f"{MANIFEST}.{key}", rule, text))
    if not _FIRST_TIME <= _with_zone(said.created_at) <= _LATEST:
        rule = "must lie in the years 1970 to 2107"
        problems.append(Problem(f"{MANIFEST}.created_at", rule, said.created_at.isoformat()))
    parties = [(p.role, p.index) for p in said.parties]
    if len(set(parties)) != len(parties):
        problems.append(Problem(f"{MANIFEST}.parties", "must name every party once"))
    holders = [(h.role, h.index) for h in said.models]
    if len(set(holders)) != len(holders):
        problems.append(Problem(f"{MANIFEST}.models", "must name every party once"))
    for i, holder in enumerate(said.models):
        at = f"{MANIFEST}.models[{i}]"
        if (holder.role, holder.index) not in parties:
            problems.append(Problem(at, "must be one of the parties", f"{holder.role}.{holder.index}"))
        if len({(p.task, p.key) for p in holder.parts}) != len(holder.parts):
            problems.append(Problem(f"{at}.parts", "must name every task and key once"))
        for j, part in enumerate(holder.parts):
            names = [f.name for f in part.files]
            data = [name for name in names if name != METADATA]
            whole = sorted(data) == sorted(f"data_{n}" for n in range(len(data)))
            if len(set(names)) != len(names) or not data or not whole:
                rule = "must name data_0, data_1, … without a gap, and each file once"
                problems.append(Problem(f"{at}.parts[{j}].files", rule, names[:20]))
    return problems


def _item(said: _Manifest, holder: _Holder) -> Item:
    key = hashlib.sha256(f"{said.model_id}\n{said.version}".encode()).hexdigest()[:32]
    parties = tuple(Party(p.role, p.index, p.node) for p in said.parties)
    party = next(p for p in parties if (p.role, p.index) == (holder.role, holder.index))
    created = _with_zone(said.created_at)
    parts = tuple(
        ModelPart(
            part.task,
            ComponentRef(part.provider, part.provider_version, part.component),
            part.key,
            part.output,
            Address(f"model-{key}", f"{party.label}-{number}"),
            tuple(FileSum(f.name, f.size, f.sha256) for f in part.files),
            part.parameters,
        )
        for number, part in enumerate(holder.parts)
    )
    model = PartyModel(
        said.model_id, said.version, party, parties, said.job_id, said.flow_id, created, parts, imported=True
    )
    members = tuple(
        tuple(_member(party.label, number, file.name) for file in part.files)
        for number, part in enumerate(holder.parts)
    )
    return Item(model, members)


def _with_zone(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _differences(archive: zipfile.ZipFile, sizes: dict[str, int]) -> list[Problem]:
    """Compare the members with what the manifest names."""
    infos = archive.infolist()
    if len(infos) > MOST_MEMBERS:
        return [Problem("(archive)", f"must not have more than {MOST_MEMBERS} members", len(infos))]
    problems = []
    seen: set[str] = set()
    for info in infos:
        if info.filename in seen:
            problems.append(Problem(info.filename, "must be there once"))
        seen.add(info.filename)
        if info.filename == MANIFEST:
            continue
        if info.filename not in sizes:
            problems.append(Problem(info.filename, "is not in the manifest"))
        elif info.file_size != sizes[info.filename]:
            rule = f"must have the {sizes[info.filename]} bytes that the manifest says"
            problems.append(Problem(info.filename, rule, info.file_size))
    problems += [Problem(name, "is in the manifest, and not in the archive") for name in sizes if name not in seen]
    return problems


def _member(label: str, number: int, file: str) -> str:
    return f"{label}/{number}/{file}"
