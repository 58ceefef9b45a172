"""Builders of the files for one kind of machine: the images, and the offline bundle."""

import os
from collections.abc import Sequence
from pathlib import Path

from tools.release.artefacts import Artefact, Build, Component
from tools.release.bundle.contents import BundleParts, write_bundle
from tools.release.images.debian import ARCHITECTURES, DebianPackage, locked_packages
from tools.release.images.dependencies import download_wheels
from tools.release.images.gateway import (
    VENDOR_VERSION,
    ImageSource,
    base_layer,
    write_gateway_image,
    write_vendor_image,
)
from tools.release.requirements import components_of
from tools.release.site import FOLDER

GATEWAY_LOCK = "requirements/gateway-all.txt"
VENDOR_LOCK = "examples/reference_vendor/requirements.txt"
INSTALLER_LOCK = "tools/release/bundle/pip.txt"
CACHE = Path("~/.cache/bfia-release")  # BFIA_RELEASE_CACHE replaces it


def build_x86_64(build: Build) -> list[Artefact]:
    """Build the images and the bundle for x86_64."""
    return build_for(build, "x86_64")


def build_aarch64(build: Build) -> list[Artefact]:
    """Build the images and the bundle for aarch64."""
    return build_for(build, "aarch64")


def build_for(build: Build, machine: str) -> list[Artefact]:
    """Build the images and the bundle for a machine.

    Packages come from the locks, with their hashes: those of Debian from a cache or its mirror, the
    wheels from pip. Raises `ReleaseError`.
    """
    sources = build.source.folder
    version = build.source.version
    scratch = build.scratch / machine
    gateway = build.artefact(f"bfia_gateway-{version}-py3-none-any.whl").path
    refvendor = build.artefact(f"bfia_reference_vendor-{VENDOR_VERSION}-py3-none-any.whl").path
    wheels = download_wheels(sources / GATEWAY_LOCK, machine, scratch / "gateway")
    vendor_wheels = download_wheels(sources / VENDOR_LOCK, machine, scratch / "vendor")
    (pip,) = download_wheels(sources / INSTALLER_LOCK, machine, scratch / "pip")
    source = ImageSource(
        folder=sources,
        commit=build.source.commit,
        version=version,
        epoch=build.source.epoch,
        machine=machine,
        cache=cache_folder(),
    )
    base = base_layer(source)
    debian = debian_components(locked_packages(machine, sources), machine)
    python = components_of(sources, GATEWAY_LOCK, required="requirements/gateway.txt")
    vendor_python = components_of(sources, VENDOR_LOCK)
    image = build.output / f"bfia-gateway-image-{version}-{machine}.tar"
    digest = write_gateway_image(image, source, base, wheels, [gateway])
    vendor = build.output / f"bfia-reference-vendor-image-{VENDOR_VERSION}-{machine}.tar"
    vendor_digest = write_vendor_image(vendor, source, base, vendor_wheels, refvendor)
    parts = BundleParts(
        folder=sources,
        commit=build.source.commit,
        version=version,
        epoch=build.source.epoch,
        machine=machine,
        gateway=gateway,
        dependencies=wheels,
        vendor=refvendor,
        vendor_dependencies=vendor_wheels,
        pip=pip,
        images={image.name: image, vendor.name: vendor},
        site=build.scratch / FOLDER,
    )
    bundle = build.output / f"{parts.name}.tar.gz"
    write_bundle(bundle, parts)
    everything = distinct([*python, *vendor_python, *debian])
    return [
        Artefact(image, distinct([*python, *debian]), digest),
        Artefact(vendor, distinct([*vendor_python, *debian]), vendor_digest),
        Artefact(bundle, everything),
    ]


def cache_folder() -> Path:
    """Return the folder for downloads that later builds need again."""
    folder = Path(os.environ.get("BFIA_RELEASE_CACHE") or CACHE).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def debian_components(packages: Sequence[DebianPackage], machine: str) -> list[Component]:
    """Return Debian's packages as an SBOM lists them; the licences are in the image itself."""
    architecture = ARCHITECTURES[machine]
    components = []
    for package in packages:
        purl = f"pkg:deb/debian/{package.name}@{package.version}?arch={architecture}"
        components.append(
            Component(
                name=package.name,
                version=package.version,
                purl=purl,
                licence="",
                sha256=(package.sha256,),
            )
        )
    return components


def distinct(components: Sequence[Component]) -> tuple[Component, ...]:
    """Return components without repetition; the first of several with the same address counts."""
    by_address: dict[str, Component] = {}
    for component in components:
        by_address.setdefault(component.purl, component)
    return tuple(by_address.values())
