"""The release on machines: its image in Docker, and its bundle without a network."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from uuid import uuid4

import pytest

from tests.e2e.nodes import wait_for
from tools.release.artefacts import ReleaseError
from tools.release.builders import build_release
from tools.release.images.debian import download_packages, locked_packages, write_locks
from tools.release.images.dependencies import download_wheels
from tools.release.images.trial import NODE
from tools.release.machines import build_x86_64, cache_folder
from tools.release.packages import build_gateway, build_reference_vendor
from tools.release.source import export

pytestmark = [pytest.mark.scale, pytest.mark.docker]

ROOT = Path(__file__).resolve().parents[2]
FORMER = "648138eb"  # the commit whose database is upgraded
FORMER_SCHEMA = "0020_gpus"
# Debian's useradd with its libraries, which the tests' small image lacks.
USERADD = (
    "passwd libaudit1 libcap-ng0 libpam0g libpam-modules libselinux1 libpcre2-8-0 libsemanage2 "
    "libsemanage-common libsepol2 libacl1 libattr1"
)


def run(*command, **options):
    """Run a command; return its output. Fails with all of it."""
    process = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    assert process.returncode == 0, process.stdout[-8000:]
    return process.stdout


def build_of_today(build):
    """Build the files for x86_64, with today's packages if Debian has replaced a locked one.

    The lock's own versions are the release's; a test must not fail because Debian has newer ones.
    """
    sources = build.source.folder
    try:
        download_packages(locked_packages("x86_64", sources), cache_folder())
    except ReleaseError:
        write_locks(["x86_64"], build.scratch / "apt", sources)
    return build_x86_64(build)


BUILDERS = (build_gateway, build_reference_vendor, build_of_today)


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """The files for x86_64 of the last commit."""
    folder = tmp_path_factory.mktemp("release")
    build_release(folder, "HEAD", BUILDERS)
    return folder


@pytest.fixture(scope="module")
def bundle(release, tmp_path_factory):
    """The folder of the unpacked bundle."""
    folder = tmp_path_factory.mktemp("bundle")
    (file,) = release.glob("bfia-gateway-0*-x86_64.tar.gz")
    with tarfile.open(file) as archive:
        archive.extractall(folder, filter="tar")
    (unpacked,) = folder.iterdir()
    return unpacked


@pytest.fixture(scope="module")
def former(tmp_path_factory):
    """The former version: its wheel, and the wheels of its lock."""
    folder = tmp_path_factory.mktemp("former")
    source = export(ROOT, FORMER, folder / "source")
    lock = source.folder / "requirements" / "gateway.txt"
    download_wheels(lock, "x86_64", folder / "wheels")
    command = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
    ]
    run(
        *command,
        "--directory",
        str(folder / "wheels"),
        cwd=source.folder,
    )
    lock.rename(folder / "requirements.txt")
    return folder


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """The name of an image that plays a small machine with Python 3.11."""
    name = f"bfia-machine:{uuid4().hex[:12]}"
    work = tmp_path_factory.mktemp("machine")
    run(
        "bash",
        str(ROOT / ".ci" / "mkbase.sh"),
        str(work),
        name,
        *USERADD.split(),
    )
    yield name
    run(
        "docker",
        "image",
        "rm",
        "--force",
        name,
    )


@pytest.fixture(scope="module")
def image(release):
    """The gateway's image, loaded into Docker under a name of its own."""
    (file,) = release.glob("bfia-gateway-image-*-x86_64.tar")
    name = f"bfia-release:{uuid4().hex[:12]}"
    with tarfile.open(file) as archive:
        (description,) = json.load(archive.extractfile("manifest.json"))
    digest = description["Config"].rpartition("/")[2]
    run(
        "docker",
        "load",
        "--quiet",
        "--input",
        str(file),
    )
    run("docker", "tag", f"sha256:{digest}", name)
    yield name
    run(
        "docker",
        "image",
        "rm",
        "--force",
        name,
    )


def inside(machine, word, folders):
    """Run a part of `inside_machine` without a network; return its result."""
    mounts = []
    for source, target in folders.items():
        mounts += ["--volume", f"{source}:{target}:ro"]
    script = ROOT / "tests" / "scale" / "inside_machine.py"
    output = run(
        *(
            "docker",
            "run",
            "--rm",
            "--init",
            "--network",
            "none",
            *mounts,
        ),
        *(
            "--volume",
            f"{script}:/inside.py:ro",
            machine,
            "python3.11",
            "/inside.py",
            word,
        ),
    )
    return json.loads(output.splitlines()[-1])


def test_a_second_build_gives_the_same_bytes(release, tmp_path):
    build_release(tmp_path / "again", "HEAD", BUILDERS)

    for file in release.iterdir():
        again = tmp_path / "again" / file.name
        assert again.read_bytes() == file.read_bytes(), file.name


def test_published_definitions_accept_inventories_and_provenance(release, tmp_path):
    """CycloneDX' and in-toto's own libraries, in an environment of their own, find no mistake."""
    python = tmp_path / "environment" / "bin" / "python"
    run(sys.executable, "-m", "venv", str(python.parents[1]))
    requirements = ROOT / "requirements" / "attestations.txt"
    options = ["--quiet", "--disable-pip-version-check", "--require-hashes"]
    run(str(python), "-m", "pip", "install", *options, "-r", str(requirements))
    check = [str(python), str(ROOT / "tests" / "scale" / "check_attestations.py")]

    output = run(*check, str(release))
    assert "bfia_gateway-0.1.0-py3-none-any.whl.cdx.json: correct" in output
    assert "bfia-gateway-image-0.1.0-x86_64.tar.cdx.json: correct" in output
    assert "provenance.json: correct" in output

    damaged = damaged_attestations(release, tmp_path / "damaged")
    process = subprocess.run(
        [*check, str(damaged)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1
    assert "wheel.cdx.json: " in process.stdout
    assert ": correct" not in process.stdout


def damaged_attestations(release, folder):
    """Return a folder with an inventory and a provenance that have a wrong field each."""
    folder.mkdir()
    (path,) = release.glob("bfia_gateway-*.whl.cdx.json")
    inventory = json.loads(path.read_text())
    inventory["components"][0]["type"] = "thing"
    (folder / "wheel.cdx.json").write_text(json.dumps(inventory))
    provenance = json.loads((release / "provenance.json").read_text())
    provenance["subject"][0]["digests"] = {}
    (folder / "provenance.json").write_text(json.dumps(provenance))
    return folder


def test_the_image_runs_a_job_with_a_read_only_root(image):
    trial = ROOT / "tools" / "release" / "images" / "trial.py"
    output = run(
        *(
            "docker",
            "run",
            "--rm",
            "--read-only",
            "--tmpfs",
            "/tmp",
            "--network",
            "none",
        ),
        *(
            "--cap-drop",
            "ALL",
            "--security-opt",
            "no-new-privileges:true",
        ),
        *(
            "--volume",
            f"{trial}:/trial.py:ro",
            "--volume",
            f"{ROOT}/examples:/examples:ro",
        ),
        *(
            "--entrypoint",
            "python3",
            image,
            "/trial.py",
            "/examples",
            "/var/lib/bfia/state",
        ),
    )
    result = json.loads(output.splitlines()[-1])

    assert result["job"]["outcome"] == "SUCCEEDED"
    assert result["job"]["counts"]["guest.0"] == {"rows": 3, "peer_rows": 5}
    assert "failed" not in result["doctor"]


def test_the_image_serves_and_is_healthy_as_a_user_of_its_own(image):
    name = f"bfia-release-{uuid4().hex[:12]}"
    volumes = []
    for folder in ("/etc/bfia", "/var/lib/bfia/state", "/var/lib/bfia/storage"):
        volumes += ["--volume", f"{name}{folder.replace('/', '-')}:{folder}"]
    options = [
        "--read-only",
        "--network",
        "none",
        *volumes,
    ]
    init = [
        "init",
        "--node",
        NODE,
        "--output",
        "/etc/bfia/node.yml",
        "--engine",
        "process",
    ]
    try:
        run(
            "docker",
            "run",
            "--rm",
            *options,
            image,
            *init,
        )
        run(
            "docker",
            "run",
            "--detach",
            "--name",
            name,
            *options,
            image,
        )

        def is_healthy():
            return health(name) == "healthy"

        wait_for(is_healthy, about="the image is healthy", seconds=180)
        assert (
            run(
                "docker",
                "exec",
                name,
                "id",
                "-u",
            ).strip()
            == "10001"
        )
    finally:
        run("docker", "rm", "--force", name)
        names = [volume.partition(":")[0] for volume in volumes[1::2]]
        run(
            "docker",
            "volume",
            "rm",
            "--force",
            *names,
        )


def health(name):
    return run(
        "docker",
        "inspect",
        "--format",
        "{{.State.Health.Status}}",
        name,
    ).strip()


def test_the_bundle_installs_without_a_network_up_to_the_demos_result(machine, bundle):
    result = inside(machine, "install", {bundle: "/bundle"})

    assert result == {
        "again": True,
        "demo": True,
        "user": "bfia",
        "data_stay": True,
        "programs_stay": False,
    }


def test_a_former_version_is_upgraded_and_rolled_back(machine, bundle, former):
    folders = {
        bundle: "/bundle",
        former: "/old",
        ROOT / "examples": "/examples",
        ROOT / "tools" / "release" / "images" / "trial.py": "/trial.py",
    }
    result = inside(machine, "upgrade", folders)
    newest = result["after"]["schema"]

    assert newest > FORMER_SCHEMA
    assert [
        result[step]["schema"]
        for step in (
            "before",
            "after",
            "back",
            "finally",
        )
    ] == [
        FORMER_SCHEMA,
        newest,
        FORMER_SCHEMA,
        newest,
    ]
    for step in ("before", "after", "back", "finally"):
        assert result[step]["outcomes"] == ["SUCCEEDED"], step
    assert "is installed already" in result["again"]
    assert result["kept"] == 1
