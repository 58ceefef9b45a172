"""The reference vendor's parties exchange messages, each in a form of its own."""

import os
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import jobs
from tests.e2e.nodes import VENDOR_COMMAND, Federation, example, process_engine

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
