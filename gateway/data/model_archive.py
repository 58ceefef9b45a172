"""The archive in which a model travels from one node to another: a zip of ``manifest.json`` and the files.

The manifest names every file with size and sha256. A member is called ``guest.0/1/data_0`` (party, number of the
part, file); no other member is allowed, and none of the archive's own names becomes a path.
"""

import hashlib
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from gateway.data.combined_storage import Storages
from gateway.data.file_storage import Staging
from gateway.data.storage import METADATA, Storage
from gateway.domain.dag import ComponentRef
from gateway.domain.models import LONGEST_ID, ModelPart, PartyModel, id_rule
from gateway.domain.problems import LARGEST_NAME, Problem
from gateway.domain.run import Address, FileSum
from gateway.domain.spec import Party
from gateway.errors import Invalid, problems_of

MANIFEST = "manifest.json"
LARGEST_MANIFEST = 16 * 1024 * 1024
MOST_MEMBERS = 100_000
LARGEST_DIRECTORY = 16 * 1024 * 1024
"""bytes of the archive's list of its members, which is read as a whole; each takes ten times as much in memory"""
_FORMAT = "bfia-gateway model 1"
_CHUNK = 1024 * 1024
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_UNREADABLE = (
    *(
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        zlib.error,
        struct.error,
        NotImplementedError,
        RuntimeError,
    ),
    *(EOFError, ValueError, OverflowError, OSError),
)
"""what zipfile raises for a damaged archive"""


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


class _PartyParts(_Strict):
    role: str
    index: int
    parts: list[_Part] = Field(min_length=1)


_Created = Annotated[
    AwareDatetime, Field(ge=datetime(1970, 1, 1, tzinfo=UTC), lt=datetime(2108, 1, 1, tzinfo=UTC))
]


class _Manifest(_Strict):
    format: Literal["bfia-gateway model 1"]
    model_id: str
    version: str
    job_id: str = Field(max_length=LONGEST_ID)
    flow_id: str = Field(max_length=LARGEST_NAME)
    created_at: _Created
    parties: list[_Party] = Field(min_length=1)
    models: list[_PartyParts] = Field(min_length=1)


def write(storage: Storage, models: Sequence[PartyModel]) -> Iterator[bytes]:
    """Yield the archive of a version's parts. The same parts give the same bytes."""
    out = Sink()
    with zipfile.ZipFile(out, "w") as archive:  # type: ignore[call-overload]
        archive.writestr(
            zipfile.ZipInfo(MANIFEST),
            json.dumps(_manifest_of(models), ensure_ascii=False, indent=1),
        )
        yield out.take()
        for member, place, file in _members(models):
            with (
                storage.open_file(place, file.name) as source,
                archive.open(zipfile.ZipInfo(member), "w", force_zip64=True) as target,
            ):
                while data := source.read(_CHUNK):
                    target.write(data)
                    yield out.take()
    yield out.take()


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
        "files": [
            {
                "name": f.name,
                "size": f.size,
                "sha256": f.sha256,
            }
            for f in part.files
        ],
    }


def _manifest_of(models: Sequence[PartyModel]) -> dict[str, Any]:
    first = models[0]
    return {
        "format": _FORMAT,
        **{name: getattr(first, name) for name in ("model_id", "version", "job_id", "flow_id")},
        "created_at": first.created_at.isoformat(),
        "parties": [
            {
                "role": p.role,
                "index": p.index,
                "node": p.node,
            }
            for p in first.parties
        ],
        "models": [
            {
                "role": m.party.role,
                "index": m.party.index,
                "parts": [part_as_dict(p) for p in m.parts],
            }
            for m in models
        ],
    }


def _members(models: Sequence[PartyModel]) -> Iterator[tuple[str, Address, FileSum]]:
    """Yield every file of the parts: its name in the archive, where its part lies, and what it is like."""
    for model in models:
        for number, part in enumerate(model.parts):
            for file in part.files:
                yield f"{model.party.label}/{number}/{file.name}", part.address, file


class Sink:
    """A file that can only be written to; what was written is taken out again."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        """Keep some bytes."""
        self._data += data
        return len(data)

    def flush(self) -> None:
        """Do nothing: there is nothing to wait for."""

    def take(self) -> bytes:
        """Return what was written since the last time."""
        data = bytes(self._data)
        self._data.clear()
        return data


def read(path: Path) -> list[PartyModel]:
    """Return what the manifest says, once it agrees with the members. Raises `Invalid` with every problem."""
    with _opened(path) as archive:
        manifest = _manifest(archive)
        if problems := list(_inconsistencies(manifest)):
            raise Invalid(problems, reason="ARCHIVE_INVALID")
        models = [_model(manifest, parts) for parts in manifest.models]
        if problems := list(
            _differences(archive, {member: file.size for member, _, file in _members(models)})
        ):
            raise Invalid(problems, reason="ARCHIVE_INVALID")
    return models


@contextmanager
def unpacked(
    path: Path,
    models: Sequence[PartyModel],
    storage: Storages,
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Unpack the files aside; entering what this gives stores all of them or none. Raises `Invalid`."""
    with ExitStack() as stack, _opened(path) as archive:
        places = {
            part.address: stack.enter_context(storage.staging()) for m in models for part in m.parts
        }
        for member, place, file in _members(models):
            _extract(archive, member, file, places[place].table / file.name)
        yield partial(_in_place, storage, places)


@contextmanager
def _in_place(storage: Storages, places: dict[Address, Staging]) -> Iterator[None]:
    with ExitStack() as stack:
        for address, staging in places.items():
            stack.enter_context(storage.published(staging, address, overwrite=True))
        yield


def _extract(
    archive: zipfile.ZipFile,
    member: str,
    file: FileSum,
    target: Path,
) -> None:
    digest, size = hashlib.sha256(), 0
    with target.open("xb") as out:
        try:
            with archive.open(member) as source:
                while size <= file.size and (data := source.read(_CHUNK)):
                    size += len(data)
                    digest.update(data)
                    out.write(data)
        except _UNREADABLE as error:
            raise _invalid(member, "cannot be read", str(error)) from error
    if size != file.size or digest.hexdigest() != file.sha256:
        rule = f"must have {file.size} bytes with sha256 {file.sha256}"
        raise Invalid([Problem(member, rule, digest.hexdigest())], reason="CHECKSUM_MISMATCH")


class _Bounded(io.FileIO):
    """A file that is read in small pieces, whatever the archive says of its own size."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > LARGEST_DIRECTORY:
            raise ValueError(f"its list of members has more than {LARGEST_DIRECTORY} bytes")
        return super().read(size) or b""


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    with _Bounded(path) as file:
        try:
            archive = zipfile.ZipFile(file)
        except _UNREADABLE as error:
            raise _invalid("(archive)", "is not a zip archive", str(error)) from error
        odd = [info.filename for info in archive.infolist() if info.compress_type not in _METHODS]
        if odd or len(archive.infolist()) > MOST_MEMBERS:
            raise _invalid(
                "(archive)",
                f"must have at most {MOST_MEMBERS} members, stored or deflated",
                odd[:5],
            )
        yield archive


def _manifest(archive: zipfile.ZipFile) -> _Manifest:
    try:
        with archive.open(MANIFEST) as file:
            data = file.read(LARGEST_MANIFEST + 1)
    except (KeyError, *_UNREADABLE) as error:
        raise _invalid(MANIFEST, "cannot be read", str(error)) from error
    if len(data) > LARGEST_MANIFEST:
        raise _invalid(MANIFEST, f"has more than {LARGEST_MANIFEST} bytes")
    try:
        return _Manifest.model_validate_json(data)
    except ValidationError as error:
        problems = problems_of(error.errors(include_url=False), _Manifest)
        named = [one._replace(path=f"{MANIFEST}.{one.path}") for one in problems]
        raise Invalid(named, reason="ARCHIVE_INVALID") from error


def _invalid(
    path: str,
    rule: str,
    got: Any = None,
) -> Invalid:
    return Invalid([Problem(path, rule, got)], reason="ARCHIVE_INVALID")


def _inconsistencies(manifest: _Manifest) -> Iterator[Problem]:
    """Find what the manifest's form alone does not tell."""
    for key in ("model_id", "version"):
        text = getattr(manifest, key)
        if rule := id_rule(text):
            yield Problem(f"{MANIFEST}.{key}", rule, text)
    parties = {(p.role, p.index) for p in manifest.parties}
    owners = {(m.role, m.index) for m in manifest.models}
    if len(owners) != len(manifest.models) or not owners <= parties:
        yield Problem(
            f"{MANIFEST}.models", "must name each of the parties at most once, and no other"
        )
    for i, owner in enumerate(manifest.models):
        for j, part in enumerate(owner.parts):
            data = sorted(f.name for f in part.files if f.name != METADATA)
            metadata = len(part.files) - len(data)
            if not data or data != sorted(f"data_{n}" for n in range(len(data))) or metadata > 1:
                rule = "must name data_0, data_1, … without a gap, and each file once"
                yield Problem(
                    f"{MANIFEST}.models[{i}].parts[{j}].files",
                    rule,
                    [f.name for f in part.files[:20]],
                )


def _model(manifest: _Manifest, owner: _PartyParts) -> PartyModel:
    key = hashlib.sha256(f"{manifest.model_id}\n{manifest.version}".encode()).hexdigest()[:32]
    parties = tuple(Party(p.role, p.index, p.node) for p in manifest.parties)
    party = next(p for p in parties if (p.role, p.index) == (owner.role, owner.index))
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
        for number, part in enumerate(owner.parts)
    )
    same = {
        name: getattr(manifest, name)
        for name in ("model_id", "version", "job_id", "flow_id", "created_at")
    }
    return PartyModel(
        party=party,
        parties=parties,
        parts=parts,
        imported=True,
        **same,
    )


def _differences(archive: zipfile.ZipFile, sizes: dict[str, int]) -> Iterator[Problem]:
    """Compare the members with what the manifest names."""
    there = {
        info.filename: info.file_size for info in archive.infolist() if info.filename != MANIFEST
    }
    if len(there) + 1 != len(archive.infolist()):
        yield Problem("(archive)", "must have each member once")
    for name in there.keys() | sizes.keys():
        if name not in sizes:
            yield Problem(name, "is not in the manifest")
        elif there.get(name) != sizes[name]:
            yield Problem(
                name, f"must have the {sizes[name]} bytes that the manifest says", there.get(name)
            )
