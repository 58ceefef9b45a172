"""The archive in which a model travels between nodes: a zip of ``manifest.json`` and the files.

A party's model has parts, each of which is an output of a task. The manifest names every file with
its size and sha256. A member is called ``guest.0/1/data_0`` (party, number of the part, file); any
other member is refused. Names in an archive never become paths, and its sizes are checked before
anything is unpacked.
"""

import hashlib
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from gateway.data.combined_storage import Storages
from gateway.data.file_storage import Staging
from gateway.data.reception import storage_errors
from gateway.data.storage import METADATA, Storage
from gateway.domain.dag import ComponentRef
from gateway.domain.models import LONGEST_ID, ModelPart, PartyModel, id_rule
from gateway.domain.problems import LARGEST_NAME, Problem
from gateway.domain.run import Address, FileSum
from gateway.domain.spec import Party
from gateway.errors import Invalid, problems_of

MANIFEST = "manifest.json"
LARGEST_MANIFEST = 16 * 1024 * 1024  # bytes
MOST_MEMBERS = 100_000
# Bytes of the zip's list of members. zipfile reads it as a whole, into objects that take ten times
# the memory.
LARGEST_DIRECTORY = 16 * 1024 * 1024

_FORMAT = "bfia-gateway model 1"
_CHUNK = 1024 * 1024  # bytes copied at a time
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MEMBERS_NAMED = 5  # in an error about their compression
_FILES_NAMED = 20  # in an error about a part's files

# Errors that zipfile may raise for a damaged archive.
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
    OSError,
)


class _Member(NamedTuple):
    """A file of a model and its name in the archive."""

    name: str
    part: Address  # of the part at this node
    file: FileSum


# ---------------------------------------------------------------- manifest


class _Entry(BaseModel):
    """An object in the manifest, without further keys."""

    model_config = ConfigDict(extra="forbid")


class _FileEntry(_Entry):
    name: str = Field(pattern=r"^(data_(0|[1-9][0-9]{0,8})|metadata)$")
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class _PartEntry(_Entry):
    task: str
    provider: str
    provider_version: str
    component: str
    key: str  # the output's key in the flow that trained it
    output: str  # the output's name in the component's description
    parameters: dict[str, Any]
    files: list[_FileEntry] = Field(min_length=1)


class _PartyEntry(_Entry):
    """A party of the job that trained the model."""

    role: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")
    index: int = Field(ge=0, lt=10**9)
    node: str = Field(min_length=1, max_length=255)


class _ModelEntry(_Entry):
    """One party's model; the party is also in the list of parties."""

    role: str
    index: int
    parts: list[_PartEntry] = Field(min_length=1)


# A time of training, within bounds that every computer can represent.
_CreatedAt = Annotated[
    AwareDatetime,
    Field(
        ge=datetime(1970, 1, 1, tzinfo=UTC),
        lt=datetime(2108, 1, 1, tzinfo=UTC),
    ),
]


class _Manifest(_Entry):
    format: Literal["bfia-gateway model 1"]  # `_FORMAT`, as Literal accepts no constant
    model_id: str
    version: str
    job_id: str = Field(max_length=LONGEST_ID)
    flow_id: str = Field(max_length=LARGEST_NAME)
    created_at: _CreatedAt
    parties: list[_PartyEntry] = Field(min_length=1)
    models: list[_ModelEntry] = Field(min_length=1)


# ---------------------------------------------------------------- writing


def write(
    storage: Storage,
    models: Sequence[PartyModel],
) -> Iterator[bytes]:
    """Yield the archive of a model's version, given the model of each party at this node.

    Equal models give equal bytes. The files are read while the archive is sent, so that the archive
    is never in memory as a whole. Raises `NotFound` for a file that is gone.
    """
    sink = Sink()
    with zipfile.ZipFile(sink, "w") as archive:  # type: ignore[call-overload]
        manifest = json.dumps(
            _manifest_of(models),
            ensure_ascii=False,
            indent=1,
        )
        # A `ZipInfo` without a date gets the same one each time, so equal models give equal bytes.
        archive.writestr(zipfile.ZipInfo(MANIFEST), manifest)
        yield sink.take()
        for member in _members(models):
            # Zip64 has to be chosen before the first byte: a file may be larger than 2 GiB.
            with (
                storage.open_file(member.part, member.file.name) as source,
                archive.open(zipfile.ZipInfo(member.name), "w", force_zip64=True) as target,
            ):
                data = source.read(_CHUNK)
                while data:
                    target.write(data)
                    yield sink.take()
                    data = source.read(_CHUNK)
    yield sink.take()


def part_as_dict(part: ModelPart) -> dict[str, Any]:
    """Return a part for JSON, without its address, which is different at each node.

    The result has the form of `_PartEntry`.
    """
    files = []
    for file in part.files:
        files.append({"name": file.name, "size": file.size, "sha256": file.sha256})
    return {
        "task": part.task,
        "provider": part.component.provider,
        "provider_version": part.component.version,
        "component": part.component.name,
        "key": part.key,
        "output": part.output,
        "parameters": dict(part.parameters),
        "files": files,
    }


def _manifest_of(models: Sequence[PartyModel]) -> dict[str, Any]:
    """Return the content of the manifest, in the form of `_Manifest`.

    All models are of one version, so that ids, job and parties are taken from the first one.
    """
    first = models[0]
    parties = []
    for party in first.parties:
        parties.append({"role": party.role, "index": party.index, "node": party.node})
    entries = []
    for model in models:
        entries.append(
            {
                "role": model.party.role,
                "index": model.party.index,
                "parts": list(map(part_as_dict, model.parts)),
            }
        )
    return {
        "format": _FORMAT,
        "model_id": first.model_id,
        "version": first.version,
        "job_id": first.job_id,
        "flow_id": first.flow_id,
        "created_at": first.created_at.isoformat(),
        "parties": parties,
        "models": entries,
    }


def _members(models: Sequence[PartyModel]) -> Iterator[_Member]:
    """Yield every file of the models with its name in the archive.

    The names are ``<party>/<number of the part>/<file>``.
    """
    for model in models:
        for number, part in enumerate(model.parts):
            for file in part.files:
                name = f"{model.party.label}/{number}/{file.name}"
                yield _Member(name, part.address, file)


class Sink:
    """A write-only file in memory, whose content `take` removes."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        """Append some bytes."""
        self._data += data
        return len(data)

    def flush(self) -> None:
        """Do nothing; zipfile calls this."""

    def take(self) -> bytes:
        """Remove and return the bytes written since the last call."""
        data = bytes(self._data)
        self._data.clear()
        return data


# ---------------------------------------------------------------- reading


def read(path: Path) -> list[PartyModel]:
    """Return the models in an archive, without unpacking their files.

    Raises `Invalid` with every contradiction inside the manifest or, if there is none, between the
    manifest and the members.
    """
    with _open_archive(path) as archive:
        manifest = _read_manifest(archive)
        problems = list(_manifest_problems(manifest))
        if problems:
            raise Invalid(problems, reason="ARCHIVE_INVALID")
        models = [_model_of(manifest, entry) for entry in manifest.models]
        problems = list(_member_problems(archive, models))
        if problems:
            raise Invalid(problems, reason="ARCHIVE_INVALID")
    return models


@contextmanager
def unpack(
    path: Path,
    models: Sequence[PartyModel],
    storage: Storages,
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Unpack the files of some models into staging folders; yield a function to publish them.

    The function returns a context: entering it publishes all parts, and if its block raises, none
    stays. Raises `Invalid`, and `GatewayError` (STORAGE_FAILED).
    """
    with ExitStack() as stack, _open_archive(path) as archive:
        stagings: dict[Address, Staging] = {}
        for model in models:
            for part in model.parts:
                stagings[part.address] = stack.enter_context(storage.staging())
        for member in _members(models):
            target = stagings[member.part].table / member.file.name
            _extract(archive, member, target)
        yield partial(_publish, storage, stagings)


@contextmanager
def _publish(
    storage: Storages,
    stagings: Mapping[Address, Staging],
) -> Iterator[None]:
    """Publish all staged parts; if the block raises, none stays.

    Raises `StorageFailed`.
    """
    with ExitStack() as stack:
        for address, staging in stagings.items():
            # Only parts of models without a record here are unpacked, so files at the address
            # have no record either, as after an import that died.
            stack.enter_context(storage.published(staging, address, overwrite=True))
        yield


def _extract(
    archive: zipfile.ZipFile,
    member: _Member,
    target: Path,
) -> None:
    """Write a member to a file.

    Of a larger member, at most one chunk beyond the expected size is written. Raises `Invalid`
    unless its size and checksum are right, and `GatewayError` (STORAGE_FAILED) if the file cannot
    be written.
    """
    digest = hashlib.sha256()
    size = 0
    expected = member.file
    with storage_errors(), target.open("xb") as out:
        for data in _chunks_of(archive, member):
            size += len(data)
            digest.update(data)
            out.write(data)
            if size > expected.size:
                break
    if size != expected.size or digest.hexdigest() != expected.sha256:
        rule = f"must have {expected.size} bytes with sha256 {expected.sha256}"
        problem = Problem(member.name, rule, digest.hexdigest())
        raise Invalid([problem], reason="CHECKSUM_MISMATCH")


def _chunks_of(archive: zipfile.ZipFile, member: _Member) -> Iterator[bytes]:
    """Yield the content of a member in chunks. Raises `Invalid` if it cannot be read."""
    try:
        with archive.open(member.name) as source:
            data = source.read(_CHUNK)
            while data:
                yield data
                data = source.read(_CHUNK)
    except _UNREADABLE as error:
        raise _invalid(member.name, "cannot be read", str(error)) from error


class _BoundedReads(io.FileIO):
    """A file that refuses large reads, whose sizes zipfile takes from the archive."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as a file does. Raises `ValueError` for more than `LARGEST_DIRECTORY` bytes."""
        if size is not None and size > LARGEST_DIRECTORY:
            raise ValueError(f"its list of members has more than {LARGEST_DIRECTORY} bytes")
        return super().read(size) or b""  # by its type, a read may also return None


@contextmanager
def _open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive and check its list of members.

    Raises `Invalid` unless it is a zip archive with at most `MOST_MEMBERS` members, stored or
    deflated.
    """
    with _BoundedReads(path) as file:
        try:
            archive = zipfile.ZipFile(file)
        except _UNREADABLE as error:
            raise _invalid("(archive)", "is not a zip archive", str(error)) from error
        members = archive.infolist()
        unsupported = [info.filename for info in members if info.compress_type not in _COMPRESSIONS]
        if unsupported or len(members) > MOST_MEMBERS:
            rule = f"must have at most {MOST_MEMBERS} members, stored or deflated"
            raise _invalid("(archive)", rule, unsupported[:_MEMBERS_NAMED])
        yield archive


def _read_manifest(archive: zipfile.ZipFile) -> _Manifest:
    """Return the manifest of an archive.

    Raises `Invalid` with every problem of its form.
    """
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
        problems = []
        for problem in problems_of(error.errors(include_url=False), _Manifest):
            problems.append(problem._replace(path=f"{MANIFEST}.{problem.path}"))
        raise Invalid(problems, reason="ARCHIVE_INVALID") from error


def _invalid(path: str, rule: str, got: Any = None) -> Invalid:
    """Return the refusal of an archive with one problem; ``got`` is the wrong value, if any."""
    return Invalid(
        [Problem(path, rule, got)],
        reason="ARCHIVE_INVALID",
    )


def _manifest_problems(manifest: _Manifest) -> Iterator[Problem]:
    """Yield the problems that a manifest of the right form may have.

    These are ids that are not allowed, two models of one party, models of a party that is not
    listed, and impossible names of files.
    """
    for key in ("model_id", "version"):
        text = getattr(manifest, key)
        rule = id_rule(text)
        if rule:
            yield Problem(f"{MANIFEST}.{key}", rule, text)
    parties = {(party.role, party.index) for party in manifest.parties}
    with_model = {(model.role, model.index) for model in manifest.models}
    is_repeated = len(with_model) < len(manifest.models)
    if is_repeated or not with_model <= parties:
        rule = "must name each of the parties at most once, and no other"
        yield Problem(f"{MANIFEST}.models", rule)
    for index, model in enumerate(manifest.models):
        yield from _part_problems(model, f"{MANIFEST}.models[{index}]")


def _part_problems(model: _ModelEntry, path: str) -> Iterator[Problem]:
    """Yield a problem for each part of a party's model with impossible names of files.

    The names must be data_0, data_1, … and perhaps metadata, in any order, each once. ``path``
    leads to the model in the manifest.
    """
    for index, part in enumerate(model.parts):
        names = [file.name for file in part.files]
        data = sorted(set(names) - {METADATA})
        # Both lists are sorted as texts, so data_10 comes before data_2 in each.
        expected = sorted(f"data_{number}" for number in range(len(data)))
        is_repeated = len(set(names)) < len(names)
        if is_repeated or not data or data != expected:
            rule = "must name data_0, data_1, … without a gap, and each file once"
            yield Problem(f"{path}.parts[{index}].files", rule, names[:_FILES_NAMED])


def _model_of(manifest: _Manifest, entry: _ModelEntry) -> PartyModel:
    """Return one party's model; its parts get addresses in a namespace of the model's version.

    ``entry`` is one of the models of the manifest, whose party is in the list of parties.
    """
    parties = tuple(Party(party.role, party.index, party.node) for party in manifest.parties)
    role_and_index = (entry.role, entry.index)
    party = next(party for party in parties if (party.role, party.index) == role_and_index)
    version_key = f"{manifest.model_id}\n{manifest.version}".encode()
    namespace = f"model-{hashlib.sha256(version_key).hexdigest()[:32]}"
    parts = []
    for number, part in enumerate(entry.parts):
        address = Address(namespace, f"{party.label}-{number}")
        parts.append(_part_of(part, address))
    return PartyModel(
        model_id=manifest.model_id,
        version=manifest.version,
        party=party,
        parties=parties,
        job_id=manifest.job_id,
        flow_id=manifest.flow_id,
        created_at=manifest.created_at,
        parts=tuple(parts),
        imported=True,
    )


def _part_of(entry: _PartEntry, address: Address) -> ModelPart:
    """Return a part of a model from its entry in the manifest.

    ``address`` is the one at this node that its files will have.
    """
    return ModelPart(
        task=entry.task,
        component=ComponentRef(entry.provider, entry.provider_version, entry.component),
        key=entry.key,
        output=entry.output,
        address=address,
        files=tuple(FileSum(file.name, file.size, file.sha256) for file in entry.files),
        parameters=entry.parameters,
    )


def _member_problems(
    archive: zipfile.ZipFile,
    models: Sequence[PartyModel],
) -> Iterator[Problem]:
    """Yield the differences between the archive's members and the files in its manifest.

    The checksums are compared later, while the members are unpacked.
    """
    members = archive.infolist()
    expected = {member.name: member.file.size for member in _members(models)}
    actual = {info.filename: info.file_size for info in members}
    if len(actual) < len(members):
        yield Problem("(archive)", "must have each member once")
    actual.pop(MANIFEST, None)
    for name in actual.keys() | expected.keys():
        if name not in expected:
            yield Problem(name, "is not in the manifest")
        elif actual.get(name) != expected[name]:
            rule = f"must have the {expected[name]} bytes that the manifest says"
            yield Problem(name, rule, actual.get(name))
