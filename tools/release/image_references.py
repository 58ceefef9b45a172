"""Files for Compose, Swarm and Kubernetes that name the images of a release by their digests."""

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.release.artefacts import Artefact, ReleaseError
from tools.release.images.debian import ARCHITECTURES

IMAGE_LIST = "images.txt"
GATEWAY_FILE = re.compile(r"bfia-gateway-image-(?P<version>.+)-(?P<machine>x86_64|aarch64)\.tar")
SETTINGS = """\
# bfia-gateway {version} for {machine} machines, by its digest, in place of the line in .env.
# Copy the image to a registry, and put the registry's address before its name here:
#   skopeo copy oci-archive:{file} docker://REGISTRY/bfia-gateway:{version}
GATEWAY_IMAGE=bfia-gateway:{version}@{digest}
"""
MANIFEST = """\
# For {machine} machines, with the image by its digest. Put a registry's address before its name:
#   skopeo copy oci-archive:{file} docker://REGISTRY/bfia-gateway:{version}
"""
# Lines of the manifest, and what takes their place.
IMAGE = "image: bfia-gateway:{version}\n"
IMAGE_BY_DIGEST = "image: bfia-gateway:{version}@{digest}\n"
ACCOUNT = "      serviceAccountName: bfia-gateway\n"
MACHINE = "      nodeSelector: {{kubernetes.io/arch: {architecture}}}\n"


@dataclass(frozen=True)
class GatewayImage:
    """The gateway's image for a kind of machine."""

    file: str
    version: str
    machine: str
    digest: str

    def fill(self, template: str) -> str:
        """Return the text of a file about this image."""
        return template.format(
            file=self.file,
            version=self.version,
            machine=self.machine,
            digest=self.digest,
            architecture=ARCHITECTURES[self.machine],
        )


def write_references(folder: Path, artefacts: Iterable[Artefact]) -> None:
    """Add the files with digests to the folder ``compose`` of a release.

    Without images, there is only an empty list. Raises `ReleaseError`.
    """
    images = [artefact for artefact in artefacts if artefact.image_digest]
    lines = [f"{image.image_digest}  {image.path.name}\n" for image in images]
    write(folder / IMAGE_LIST, "".join(lines))
    for image in gateway_images(images):
        write(folder / f"images-{image.machine}.env", image.fill(SETTINGS))
        write_manifests(folder / "kubernetes", image)


def write_manifests(folder: Path, image: GatewayImage) -> None:
    """Write the manifests of a folder, with an image by its digest, to a folder next to it.

    Raises `ReleaseError` if the manifest of the gateway has other lines than expected.
    """
    target = folder.with_name(f"{folder.name}-{image.machine}")
    shutil.copytree(folder, target)
    path = target / "gateway.yml"
    text = path.read_text(encoding="utf-8")
    for line, replacement in (
        (image.fill(IMAGE), image.fill(IMAGE_BY_DIGEST)),
        (ACCOUNT, ACCOUNT + image.fill(MACHINE)),
    ):
        if line not in text:
            raise ReleaseError(f"{path.name} lacks the line {line.strip()}")
        text = text.replace(line, replacement)
    write(path, image.fill(MANIFEST) + text)


def gateway_images(artefacts: Iterable[Artefact]) -> Iterator[GatewayImage]:
    """Yield the images of the gateway."""
    for artefact in artefacts:
        match = GATEWAY_FILE.fullmatch(artefact.path.name)
        if match is not None:
            yield GatewayImage(
                file=match[0],
                version=match["version"],
                machine=match["machine"],
                digest=artefact.image_digest,
            )


def write(path: Path, text: str) -> None:
    """Write a file."""
    path.write_text(text, encoding="utf-8")
