"""The files of a release that name its images by their digests."""

import shutil
from pathlib import Path

import pytest
import yaml

from tests.e2e.nodes import ROOT
from tests.services.clusters import kubectl
from tools.release.artefacts import Artefact, ReleaseError
from tools.release.image_references import write_references

DIGESTS = {"x86_64": f"sha256:{'1' * 64}", "aarch64": f"sha256:{'2' * 64}"}
VENDOR_DIGEST = f"sha256:{'3' * 64}"


def image(kind, version, machine, digest):
    """Return an image as its builder returns it."""
    path = Path(f"bfia-{kind}-image-{version}-{machine}.tar")
    return Artefact(path, (), digest)


@pytest.fixture
def compose(tmp_path):
    """The folder ``compose`` of a release with images."""
    folder = tmp_path / "compose"
    shutil.copytree(ROOT / "compose", folder)
    artefacts = [Artefact(Path("CHANGELOG.md"))]
    for machine, digest in DIGESTS.items():
        artefacts.append(image("gateway", "0.1.0", machine, digest))
        artefacts.append(image("reference-vendor", "1.0.0", machine, VENDOR_DIGEST))
    write_references(folder, artefacts)
    return folder


def test_all_images_are_listed_with_their_digests(compose):
    lines = (compose / "images.txt").read_text().splitlines()
    assert len(lines) == 4
    assert f"{DIGESTS['aarch64']}  bfia-gateway-image-0.1.0-aarch64.tar" in lines


@pytest.mark.parametrize("machine", DIGESTS)
def test_compose_takes_the_gateway_by_its_digest(compose, machine):
    (line,) = [
        line
        for line in (compose / f"images-{machine}.env").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert line == f"GATEWAY_IMAGE=bfia-gateway:0.1.0@{DIGESTS[machine]}"
    for file in ("one-node.yml", "two-nodes.yml", "swarm-stack.yml"):
        assert "${GATEWAY_IMAGE:-bfia-gateway:0.1.0}" in (compose / file).read_text()


@pytest.mark.kubernetes
@pytest.mark.parametrize(
    ("machine", "architecture"),
    [
        ("x86_64", "amd64"),
        ("aarch64", "arm64"),
    ],
)
def test_kubernetes_takes_the_gateway_by_its_digest(compose, machine, architecture):
    text = kubectl("kustomize", str(compose / f"kubernetes-{machine}"))
    manifests = list(yaml.safe_load_all(text))
    (gateway,) = [manifest for manifest in manifests if manifest["kind"] == "StatefulSet"]
    pod = gateway["spec"]["template"]["spec"]
    images = [container["image"] for container in pod["containers"]]
    assert images == [f"bfia-gateway:0.1.0@{DIGESTS[machine]}"]
    assert pod["nodeSelector"] == {"kubernetes.io/arch": architecture}


def test_a_manifest_that_does_not_fit_is_refused(compose):
    artefact = image("gateway", "0.2.0", "x86_64", DIGESTS["x86_64"])
    shutil.rmtree(compose / "kubernetes-x86_64")
    with pytest.raises(ReleaseError, match=r"lacks the line image: bfia-gateway:0\.2\.0"):
        write_references(compose, [artefact])


def test_a_release_without_images_names_no_digest(tmp_path):
    write_references(tmp_path, [Artefact(Path("CHANGELOG.md"))])
    assert [file.name for file in tmp_path.iterdir()] == ["images.txt"]
