"""Writes an image as one tar archive: an OCI layout that Docker's ``load`` reads, too."""

import gzip
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from tools.release.images.tree import Tree

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
COMPRESSION = 1  # of gzip: a twentieth more bytes than 6, in a quarter of the time


@dataclass(frozen=True)
class Layer:
    """A layer, compressed; ``diff_id`` is the digest of its tar archive."""

    content: bytes
    diff_id: str
    comment: str


@dataclass(frozen=True)
class Image:
    """An image without its layers; ``reference`` is its name with a tag."""

    reference: str
    architecture: str  # Debian's and OCI's name of it
    epoch: int  # seconds since 1970
    config: Mapping[str, Any]  # the container's: User, Env, Entrypoint …
    annotations: Mapping[str, str] = field(default_factory=dict)


def layer_of(tree: Tree, epoch: int, comment: str) -> Layer:
    """Return the layer with the files of a tree."""
    plain = io.BytesIO()
    tree.write(plain, epoch)
    compressed = gzip.compress(plain.getvalue(), COMPRESSION, mtime=0)
    return Layer(compressed, digest_of(plain.getvalue()), comment)


def digest_of(content: bytes) -> str:
    """Return the digest of bytes, as OCI writes it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def write_image(
    file: Path,
    image: Image,
    layers: Sequence[Layer],
) -> str:
    """Write an image into a tar archive; return the digest of its manifest."""
    blobs: dict[str, bytes] = {}
    descriptors = []
    for layer in layers:
        descriptors.append(_add_blob(blobs, LAYER_TYPE, layer.content))
    config = _add_blob(blobs, CONFIG_TYPE, _json(_config_of(image, layers)))
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config,
        "layers": descriptors,
        "annotations": dict(image.annotations),
    }
    manifest_descriptor = _add_blob(blobs, MANIFEST_TYPE, _json(manifest))
    digest = str(manifest_descriptor["digest"])
    manifest_descriptor["platform"] = {"architecture": image.architecture, "os": "linux"}
    manifest_descriptor["annotations"] = {"org.opencontainers.image.ref.name": image.reference}
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [manifest_descriptor],
    }
    for_docker = {
        "Config": _path_of(str(config["digest"])),
        "RepoTags": [image.reference],
        "Layers": [_path_of(str(descriptor["digest"])) for descriptor in descriptors],
    }
    files = {_path_of(blob): content for blob, content in blobs.items()}
    files["oci-layout"] = _json({"imageLayoutVersion": "1.0.0"})
    files["index.json"] = _json(index)
    files["manifest.json"] = _json([for_docker])
    with file.open("wb") as stream:
        _write_archive(stream, files, image.epoch)
    return digest


def _config_of(image: Image, layers: Sequence[Layer]) -> dict[str, Any]:
    created = datetime.fromtimestamp(image.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    history = [{"created": created, "created_by": layer.comment} for layer in layers]
    return {
        "created": created,
        "architecture": image.architecture,
        "os": "linux",
        "config": dict(image.config),
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": history,
    }


def _add_blob(
    blobs: dict[str, bytes],
    media_type: str,
    content: bytes,
) -> dict[str, Any]:
    """Add a blob and return its descriptor."""
    digest = digest_of(content)
    blobs[digest] = content
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _path_of(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _write_archive(
    stream: IO[bytes],
    files: Mapping[str, bytes],
    epoch: int,
) -> None:
    archive = Tree()
    for path, content in files.items():
        archive.add_file(path, content)
    archive.write(stream, epoch)
