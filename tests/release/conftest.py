"""A signed release of the last commit, without images."""

import shutil

import pytest

from tools.release import signatures
from tools.release.builders import WITHOUT_IMAGES, build_release


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    """The file of a private key."""
    path = tmp_path_factory.mktemp("key") / "release.key"
    signatures.make_key(path)
    return path


@pytest.fixture(scope="module")
def public_key(key):
    """The content of the public key's file."""
    return key.with_name("release.key.pub").read_bytes()


@pytest.fixture(scope="module")
def release(tmp_path_factory, key):
    """The release's folder, which no test changes."""
    folder = tmp_path_factory.mktemp("release")
    build_signed(folder, key)
    return folder


@pytest.fixture
def copy(release, tmp_path):
    """A copy of the release that a test may damage."""
    folder = tmp_path / "copy"
    shutil.copytree(release, folder)
    return folder


def build_signed(folder, key):
    build_release(
        folder,
        "HEAD",
        WITHOUT_IMAGES,
    )
    private_key = signatures.read_private_key(key)
    signatures.sign_release(folder, private_key)
