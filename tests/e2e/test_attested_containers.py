"""Attested runs in containers of Docker and of Kubernetes, with reports in software."""

import contextlib
import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests import storages as real
from tests.e2e import jobs
from tests.e2e.conftest import small_image
from tests.e2e.nodes import VENDOR_COMMAND, Federation, Node, example, wait_for
from tests.e2e.test_storages import settings_of
from tests.services.clusters import pushed
from tests.trust.software_tee import policy, public_pem

ROWS = 509  # of the intersection
VERSIONS = {
    "none": "1.0.0",
    "another image": "1.0.1",
    "replay": "1.0.2",
}
ENGINES = [
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param(
        "kubernetes",
        marks=[pytest.mark.slow, pytest.mark.docker, pytest.mark.kubernetes, pytest.mark.s3],
    ),
]


@dataclass
class Vendor:
    """Makes images of the attested vendor that attack in some way."""

    base: str
    folder: Path
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    def image(self, attack: str, folder: Path, *files: Path):
        """Build an image in a folder; it is removed at the end of the context."""
        key = self.folder / "tee.key"
        key.write_bytes(self.key.private_bytes_raw())
        key.chmod(0o644)
        name = attack.replace(" ", "-")
        script = Path(__file__).with_name("attested_vendor.py")
        lines = [
            f"FROM {self.base}",
            f'ENV ATTACK="{attack}"',
            "COPY attested_vendor.py /app/",
            "COPY tee.key *.json /attested/",
            'ENTRYPOINT ["python3", "-m", "attested_vendor"]',
        ]
        return small_image(
            folder / name,
            f"bfia-attested-{os.getpid()}:{name}",
            lines,
            script,
            key,
            *files,
        )


@pytest.fixture(scope="module")
def vendor(reference_image, tmp_path_factory):
    return Vendor(reference_image, tmp_path_factory.mktemp("vendor"))


@dataclass(frozen=True)
class Site:
    """A node with an engine."""

    node: Node
    engine: str

    def run(self, attack: str, image: str) -> str:
        """Register an image and run a job with it; return the job's id."""
        name = image
        if self.engine == "kubernetes":
            name = pushed(image)
        version = VERSIONS[attack]
        provider = example("reference_vendor/register_reference.json")
        provider["version"] = version
        provider["metadata"]["image"] = name
        for description in provider["components_description"].values():
            description["version"] = version
        self.node.register(provider)
        body = jobs.align_job(jobs.GUEST, jobs.GUEST)
        body["dag"]["components"][0] |= {
            "provider": "reference",
            "version": version,
            "output": [{"type": "dataset", "key": "train_data"}],
        }
        return self.node.submit(body)

    def record(self, job_id: str):
        return self.node.get(f"/api/v1/jobs/{job_id}")

    def report_of(self, run) -> dict:
        """Return the report that a run has left in its log."""
        folder = self.node.home / "state" / "runs" / run["name"]
        wait_for(
            (folder / "stderr.log").exists,
            about="the run's log is kept",
        )
        for line in (folder / "stdout.log").read_text().splitlines():
            if '"report"' in line:
                return json.loads(line)["report"]
        raise AssertionError("the run has printed no report")

    def refusal(self, job_id: str) -> str:
        """Return the reason for which a job failed."""

        def failure():
            return self.record(job_id)["failure"]

        return wait_for(failure, 240, about="the job has failed")["reason"]


@pytest.fixture(scope="module", params=ENGINES)
def site(request, vendor, tmp_path_factory):
    """A node that demands reports; with Kubernetes, its data is at S3."""
    home = tmp_path_factory.mktemp(request.param)
    key = home / "tee.pem"
    key.write_text(public_pem(vendor.key))
    command = [*VENDOR_COMMAND, "--measurement"]
    measurement = subprocess.check_output(command, text=True).strip()
    tee = {
        "providers": {"reference": policy(measurements=[measurement])},
        "software_keys": [str(key)],
    }
    federation = Federation(
        home,
        [jobs.GUEST],
        {"kind": "docker"},
        tee=tee,
    )
    node = federation[jobs.GUEST]
    with contextlib.ExitStack() as stack:
        if request.param == "kubernetes":
            bucket = stack.enter_context(real.bucket())
            node.reached_at(os.environ["BFIA_TEST_KUBERNETES_HOST"])
            kubeconfig = f"{os.environ['BFIA_TEST_KUBERNETES']}/gateway.conf"
            node.settings["engine"] = {
                "kind": "kubernetes",
                "kubernetes": {"kubeconfig": kubeconfig},
                "docker": {"registries": [os.environ["BFIA_TEST_KUBERNETES_REGISTRY"]]},
            }
            node.settings["storages"] = settings_of(
                bucket,
                role=os.environ["BFIA_TEST_S3_ROLE"],
            )
        stack.enter_context(federation)
        for role in ("guest", "host"):
            jobs.upload(node, role)
        yield Site(node, request.param)


def test_containers_get_their_inputs_by_their_own_reports_only(site, vendor, tmp_path):
    with vendor.image("none", tmp_path) as image:
        job_id = site.run("none", image)
        site.node.wait_job(job_id, 240)

    runs = site.record(job_id)["runs"]
    assert {run["attestation"]["is_hardware"] for run in runs} == {False}
    path = f"/api/v1/jobs/{job_id}/outputs/intersect_rsa_1/guest.0/train_data/download"
    assert len(site.node.ask("GET", path).text.splitlines()) == 1 + ROWS

    with vendor.image("another image", tmp_path) as image:
        assert site.refusal(site.run("another image", image)) == "TEE_OTHER_RUN"

    recorded = tmp_path / "report.json"
    recorded.write_text(json.dumps(site.report_of(runs[0])))
    recorded.chmod(0o644)
    with vendor.image("replay", tmp_path, recorded) as image:
        assert site.refusal(site.run("replay", image)) == "TEE_OTHER_RUN"
