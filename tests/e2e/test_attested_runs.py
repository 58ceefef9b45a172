"""Two nodes whose runs bring attestation reports, by the reference vendor's report in software."""

import subprocess

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.e2e import jobs
from tests.e2e.nodes import VENDOR_COMMAND, Federation, example, process_engine
from tests.trust.software_tee import policy, public_pem


def test_two_nodes_intersect_what_attested_runs_were_given(tmp_path):
    key = Ed25519PrivateKey.generate()
    secret = tmp_path / "tee.key"
    secret.write_bytes(key.private_bytes_raw())
    public = tmp_path / "tee.pem"
    public.write_text(public_pem(key))
    measurement = subprocess.check_output([*VENDOR_COMMAND, "--measurement"], text=True).strip()
    engine = process_engine(
        command=[*VENDOR_COMMAND, "--software-attestation-key", str(secret)],
    )
    tee = {
        "providers": {"reference": policy(measurements=[measurement])},
        "software_keys": [str(public)],
    }

    with Federation(tmp_path, [jobs.GUEST, jobs.HOST], engine, tee=tee) as federation:
        guest = federation[jobs.GUEST]
        host = federation[jobs.HOST]
        for node, role in ((guest, "guest"), (host, "host")):
            node.register(example("reference_vendor/register_reference.json"))
            jobs.upload(node, role)
        body = jobs.align_job(jobs.GUEST, jobs.HOST)
        body["dag"]["components"][0] |= {
            "provider": "reference",
            "version": "1.0.0",
            "output": [{"type": "dataset", "key": "train_data"}],
        }
        job_id = guest.submit(body)
        guest.wait_job(job_id)

        for node, party in ((guest, "guest.0"), (host, "host.0")):
            (run,) = node.get(f"/api/v1/jobs/{job_id}")["runs"]
            assert run["attestation"]["measurement"] == measurement
            assert run["attestation"]["is_hardware"] is False
            path = f"/api/v1/jobs/{job_id}/outputs/intersect_rsa_1/{party}/train_data/download"
            assert len(node.ask("GET", path).text.splitlines()) == 1 + 509
