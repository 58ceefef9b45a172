"""The reference vendor's parties exchange messages, each in a form of its own."""

import os
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import jobs
from tests.e2e.nodes import ROOT, VENDOR_COMMAND, Federation, example, process_engine

IMAGE = "unionpay:2.0.0"
FORMS = {jobs.GUEST: "bare", jobs.HOST: "protobuf", jobs.ARBITER: "grpc"}


def speaking(form: str) -> dict[str, Any]:
    """Return the settings of a process engine with an image that sends its messages in a form."""
    python, option, code = VENDOR_COMMAND
    with_grpcio = code.replace("import sys; ", f"import sys; sys.path.append({sysconfig.get_path('platlib')!r}); ")
    return process_engine(IMAGE, command=["/usr/bin/env", f"CHANNEL_FORM={form}", python, option, with_grpcio])


@pytest.mark.slow
def test_the_reference_vendor_trains_with_another_form_at_each_party(tmp_path: Path):
    federation = Federation(tmp_path, FORMS, speaking("json"))
    for node, form in FORMS.items():
        federation[node].settings["engine"] = speaking(form)
    with federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        guest = federation[jobs.GUEST]
        job_id = guest.submit(jobs.lr_job(jobs.GUEST, jobs.HOST, jobs.ARBITER, max_iter=2))
        assert guest.wait_job(job_id)["progress"] == 100


@pytest.fixture
def bare_image(reference_image: str) -> Iterator[str]:
    """The reference vendor's image, built to send bare payloads."""
    name = f"bfia-reference-vendor-bare:{os.getpid()}"
    recipe = f"FROM {reference_image}\nENV CHANNEL_FORM=bare\n".encode()
    quiet = os.environ | {"DOCKER_BUILDKIT": "0"}
    subprocess.run(["docker", "build", "-q", "-t", name, "-"], input=recipe, check=True, env=quiet)
    yield name
    subprocess.run(["docker", "rmi", "-f", name], check=True)


@pytest.mark.docker
def test_containers_of_images_with_different_forms_have_a_job(bare_image: str, tmp_path: Path):
    with Federation(tmp_path, [jobs.GUEST, jobs.HOST], {"kind": "docker"}) as federation:
        guest, host = federation[jobs.GUEST], federation[jobs.HOST]
        for node, role in ((guest, "guest"), (host, "host")):
            node.storage.chmod(0o755)
            jobs.upload(node, role)
        provider = example("register_unionpay.json")
        guest.register(provider)
        host.register(provider | {"metadata": provider["metadata"] | {"image": bare_image}})
        job_id = guest.submit(jobs.quick_job(jobs.GUEST, jobs.HOST))
        assert guest.wait_job(job_id)["progress"] == 100


@pytest.fixture
def shell_image(tmp_path: Path) -> Iterator[str]:
    """The image of the shell vendor on a base that has busybox and nothing else."""
    name, folder = f"bfia-shell-vendor:{os.getpid()}", tmp_path / "base"
    folder.mkdir()
    quiet = os.environ | {"DOCKER_BUILDKIT": "0"}

    def docker(*words: str) -> str:
        return subprocess.run(["docker", *words], check=True, env=quiet, capture_output=True, text=True).stdout

    has_busybox = docker("create", os.environ.get("BFIA_TEST_BASE_IMAGE", "bfia-base:py311")).strip()
    docker("cp", f"{has_busybox}:/usr/bin/busybox", str(folder / "busybox"))
    docker("rm", has_busybox)
    install = 'RUN ["/bin/busybox", "--install", "-s", "/bin"]'
    (folder / "Dockerfile").write_text(f"FROM scratch\nCOPY busybox /bin/busybox\n{install}\n")
    docker("build", "-q", "-t", f"{name}-base", str(folder))
    vendor = str(ROOT / "examples" / "shell_vendor")
    docker("build", "-q", "-t", name, "--build-arg", f"BASE={name}-base", vendor)
    yield name
    docker("rmi", "-f", name, f"{name}-base")


@pytest.mark.docker
def test_an_image_without_python_has_a_job_of_two_parties(shell_image: str, tmp_path: Path):
    with Federation(tmp_path / "nodes", [jobs.GUEST, jobs.HOST], {"kind": "docker"}) as federation:
        guest, host = federation[jobs.GUEST], federation[jobs.HOST]
        for node, role in ((guest, "guest"), (host, "host")):
            node.storage.chmod(0o755)
            jobs.upload(node, role)
            node.register(example("shell_vendor/register.json") | {"metadata": {"image": shell_image}})
        job_id = guest.submit(jobs.counting_job(jobs.GUEST, jobs.HOST))
        guest.wait_job(job_id)
        for node, role, other in ((guest, "guest", "host"), (host, "host", "guest")):
            counts = node.outputs(job_id)["echo_1", f"{role}.0", "report0"]["value"]
            assert counts == {"rows": jobs.rows_of(role), "peer_rows": jobs.rows_of(other)}
