"""The parts of images and bundles, without a network and without Docker."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from tools.release.artefacts import ReleaseError
from tools.release.bundle.contents import INSTALLER, sums_of
from tools.release.images.base import is_kept
from tools.release.images.bytecode import add_bytecode
from tools.release.images.debian import DebianPackage, download_packages, locked_packages
from tools.release.images.machine_trial import unpack_image
from tools.release.images.oci import Image, layer_of, write_image
from tools.release.images.tree import Tree, installed_path, merged_path

ROOT = Path(__file__).resolve().parents[2]
EPOCH = 1_700_000_000


def archive_of(tree):
    stream = io.BytesIO()
    tree.write(stream, EPOCH)
    return stream.getvalue()


def members_of(tree):
    with tarfile.open(fileobj=io.BytesIO(archive_of(tree))) as archive:
        return {member.name: member for member in archive}


def test_a_tree_gives_the_same_bytes_whatever_the_order_of_its_files():
    forwards = Tree()
    backwards = Tree()
    for tree, names in ((forwards, "abc"), (backwards, "cba")):
        for name in names:
            tree.add_file(f"folder/{name}", name.encode())

    assert archive_of(forwards) == archive_of(backwards)


def test_an_entry_has_the_times_and_owners_of_the_release():
    tree = Tree()
    tree.add_folder("var/state", 0o700, owner=10001)
    members = members_of(tree)

    assert (members["var/state"].mtime, members["var/state"].uid) == (EPOCH, 10001)
    assert (members["var"].mode, members["var"].uid) == (0o755, 0)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("./lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libc.so.6"),
        ("./lib64/ld.so", "usr/lib64/ld.so"),
        ("./library/file", "library/file"),
        ("./usr/bin/env", "usr/bin/env"),
        ("./", ""),
    ],
)
def test_files_of_packages_go_below_usr(name, path):
    assert merged_path(name) == path


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("gateway/cli/main.py", "gateway/cli/main.py"),
        ("x-1.0.data/purelib/x.py", "x.py"),
        ("x-1.0.data/platlib/x.so", "x.so"),
        ("x-1.0.data/scripts/x", ""),
    ],
)
def test_a_wheel_is_installed_without_its_scripts(name, path):
    assert installed_path(name) == path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("usr/share/doc/libc6/copyright", True),
        ("usr/share/doc/libc6/changelog.Debian.gz", False),
        ("usr/share/man/man1/sh.1.gz", False),
        ("usr/lib/python3.11/os.py", True),
        ("var/cache/apt/pkgcache.bin", False),
    ],
)
def test_licences_stay_and_manuals_go(path, expected):
    assert is_kept(path) is expected


def test_both_machines_have_the_same_packages_and_versions():
    by_machine = []
    for machine in ("x86_64", "aarch64"):
        packages = locked_packages(machine)
        by_machine.append([(package.name, package.version) for package in packages])

    assert by_machine[0] == by_machine[1]
    assert len(by_machine[0]) > 30


SHELL = DebianPackage(
    name="sh",
    version="1",
    sha256="0" * 64,
    path="pool/sh_1_all.deb",
)


@pytest.fixture
def pool(tmp_path, monkeypatch):
    """The folder of packages of a mirror that has none."""
    monkeypatch.setenv("BFIA_DEBIAN_MIRROR", tmp_path.as_uri())
    folder = tmp_path / "pool"
    folder.mkdir()
    return folder


def test_a_package_with_another_hash_is_refused(pool, tmp_path):
    (pool / "sh_1_all.deb").write_bytes(b"changed")

    with pytest.raises(ReleaseError, match=r"sh 1: .* has another hash than the lock"):
        download_packages([SHELL], tmp_path / "cache")


@pytest.mark.usefixtures("pool")
def test_a_vanished_package_is_named_with_the_next_step(tmp_path):
    next_step = r"(?s)sh 1: .*python -m tools.release.images.debian"
    with pytest.raises(ReleaseError, match=next_step):
        download_packages([SHELL], tmp_path / "cache")


def test_modules_are_compiled_the_same_way_twice():
    trees = []
    for _ in range(2):
        tree = Tree()
        tree.add_file("site/module.py", b"NAMES = frozenset({'a', 'b', 'c'})\n")
        add_bytecode(tree, ["site/"])
        trees.append(tree)
    tag = sys.implementation.cache_tag

    assert archive_of(trees[0]) == archive_of(trees[1])
    assert f"site/__pycache__/module.{tag}.pyc" in trees[0].entries


def image_of(tree, file):
    image = Image(
        reference="example:1",
        architecture="amd64",
        epoch=EPOCH,
        config={"User": "10001"},
    )
    return write_image(file, image, [layer_of(tree, EPOCH, "files")])


def test_an_image_is_an_oci_layout_that_docker_loads_too(tmp_path):
    tree = Tree()
    tree.add_file("etc/example", b"text")
    digest = image_of(tree, tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as archive:
        archive.extractall(tmp_path / "layout", filter="data")
    layout = tmp_path / "layout"
    index = json.loads((layout / "index.json").read_text())
    (docker,) = json.loads((layout / "manifest.json").read_text())

    assert [manifest["digest"] for manifest in index["manifests"]] == [digest]
    for blob in (layout / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    description = json.loads((layout / docker["Config"]).read_text())
    assert description["config"] == {"User": "10001"}
    assert docker["RepoTags"] == ["example:1"]


def test_an_image_is_unpacked_for_its_trial(tmp_path):
    tree = Tree()
    tree.add_file("etc/example", b"text")
    image_of(tree, tmp_path / "image.tar")
    unpack_image(tmp_path / "image.tar", tmp_path / "root")

    assert (tmp_path / "root" / "etc" / "example").read_bytes() == b"text"


def test_a_wheels_files_are_added_below_a_folder(tmp_path):
    with ZipFile(tmp_path / "x.whl", "w") as wheel:
        wheel.writestr("x/__init__.py", "")
        wheel.writestr("x/x.h", "")
    tree = Tree()
    tree.add_wheel(
        tmp_path / "x.whl",
        "site",
        lambda path: not path.endswith(".h"),
    )

    assert sorted(tree.entries) == ["site", "site/x", "site/x/__init__.py"]


# ------------------------------------------------------------ the installer


@pytest.fixture
def bundle(tmp_path):
    """A bundle with the installer alone, for another machine than this one."""
    tree = Tree()
    tree.add_file("install.sh", (ROOT / INSTALLER).read_bytes(), 0o755)
    tree.add_file("release.env", b"VERSION=0.1.0\nCOMMIT=0123\nMACHINE=vax\nGLIBC=2.28\n")
    tree.add_file("SHA256SUMS", sums_of(tree).encode())
    with tarfile.open(fileobj=io.BytesIO(archive_of(tree))) as archive:
        archive.extractall(tmp_path / "bundle", filter="data")
    return tmp_path / "bundle"


def install(bundle, *words, language="C"):
    """Run the installer; return its exit code and output."""
    process = subprocess.run(
        ["sh", str(bundle / "install.sh"), *words],
        env={"PATH": os.environ["PATH"], "LC_ALL": language},
        capture_output=True,
        text=True,
        check=False,
    )
    return process.returncode, process.stdout + process.stderr


def test_the_installer_names_all_problems_at_once(bundle, tmp_path):
    (bundle / "release.env").write_text("VERSION=0.1.0\nCOMMIT=0\nMACHINE=vax\nGLIBC=2.28\n")
    code, output = install(
        bundle,
        "install",
        "--python",
        "/nonexistent",
        "--engine",
        "steam",
        "--prefix",
        str(tmp_path / "prefix"),
        "--state",
        str(tmp_path / "state"),
    )

    assert code == 1
    for text in (
        "for vax",
        "Python 3.11 is missing",
        "damaged",
        "--node",
        "steam",
        "nothing was",
    ):
        assert text in output
    assert not (tmp_path / "prefix").exists()
    assert not (tmp_path / "state").exists()


def test_the_installer_speaks_chinese(bundle):
    _, output = install(
        bundle,
        "check",
        "--python",
        "/nonexistent",
        language="zh_CN.UTF-8",
    )

    assert "缺少 Python 3.11" in output
    assert "未做任何改动" in output


@pytest.mark.parametrize(
    ("language", "text"),
    [("C", "Examples:"), ("zh_CN.UTF-8", "示例：")],
)
def test_the_installers_help_has_examples(bundle, language, text):
    code, output = install(bundle, "--help", language=language)

    assert code == 0
    assert text in output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["fly"], "unknown command fly"),
        (["install", "--speed", "9"], "unknown option --speed"),
        (["install", "--node"], "--node needs a value"),
        (["install", "--prefix", "/a b"], "must not contain spaces"),
    ],
)
def test_the_installer_refuses_a_wrong_command_line(bundle, words, text):
    code, output = install(bundle, *words)

    assert code == 1
    assert text in output


# What `write_unit` of the installer needs: its settings, and a systemd that does not run here.
WRITE_UNIT = """
set -u
here=$1 prefix=$2 state=$3 unit=$4 config=$3/node.yml user=root
has_systemd() { true; }
systemctl() { :; }
getent() { false; }
eval "$(sed -n '/^write_unit() {/,/^}/p' "$5")"
write_unit
"""


@pytest.fixture
def unit(tmp_path):
    """The unit of systemd as the installer writes it, for programs in a folder of the test."""
    command = tmp_path / "prefix" / "current" / "bin" / "bfia-gateway"
    command.parent.mkdir(parents=True)
    command.symlink_to("/bin/true")
    file = tmp_path / "bfia-gateway.service"
    subprocess.run(
        [
            "sh",
            "-c",
            WRITE_UNIT,
            "sh",
            str(ROOT / "compose" / "systemd"),
            str(tmp_path / "prefix"),
            str(tmp_path / "state"),
            str(file),
            str(ROOT / INSTALLER),
        ],
        check=True,
    )
    return file


def test_the_unit_names_the_folders_of_the_installation(unit, tmp_path):
    text = unit.read_text()
    command = f"{tmp_path}/prefix/current/bin/bfia-gateway serve"
    assert f"ExecStart={command} --config {tmp_path}/state/node.yml\n" in text
    assert f"WorkingDirectory={tmp_path}/state\n" in text
    assert "User=root\n" in text
    assert "SupplementaryGroups" not in text
    assert "/opt/bfia" not in text
    assert "/var/lib/bfia" not in text


def test_systemd_accepts_the_unit(unit):
    assert verified(unit) == ""


def test_systemd_names_what_is_wrong_with_a_unit(unit):
    unit.write_text(unit.read_text().replace("KillMode=", "KillMood="))
    assert "Unknown key 'KillMood'" in verified(unit)


def verified(unit):
    """Return what systemd says about a unit; "" if all is well."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing: Debian's package systemd")
    process = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    return process.stdout + process.stderr
