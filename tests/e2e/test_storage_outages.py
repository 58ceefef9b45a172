"""A storage that is cut off, slow, full, gone, or denies the node's key while jobs use it."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import storages as real
from tests.e2e import jobs
from tests.e2e.nodes import ROOT, Federation, Node, process_engine, wait_for
from tests.e2e.test_storages import settings_of
from tools.chaos.proxy import Proxy

pytestmark = [pytest.mark.slow, pytest.mark.s3]

QUOTA = 200_000  # bytes; the tables fit, a job's outputs do not


@dataclass(frozen=True)
class Site:
    """A node that plays both parties, the proxy before its main storage, and further buckets."""

    node: Node
    proxy: Proxy
    # the bucket of the storage "small", which gets a quota
    small: real.Place
    # the bucket of the storage "vanishing", which is deleted
    vanishing: real.Place

    def storage_check(self) -> str:
        """Return what the node's health check says of its storages."""
        return str(self.node.ask("GET", "/health/ready").json()["checks"].get("storage"))

    def wait_for_check(self, text: str) -> None:
        """Wait until the health check contains a text."""
        wait_for(lambda: text in self.storage_check(), 60, about=f"the node says: {text}")

    def wait_for_container(self, job_id: str, count: int = 1) -> None:
        """Wait until ``count`` containers of the job have started."""
        wait_for(
            lambda: len(jobs.events(self.node, job_id, "run RUNNING")) >= count,
            60,
            0.05,
            about="a container runs",
        )

    def collect_garbage(self) -> None:
        assert self.node.ask("POST", "/api/v1/gc", json={"orphans": True}).is_success


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("outage")
    server, port = os.environ["BFIA_TEST_S3"].removeprefix("http://").split(":")
    with (
        real.bucket() as main,
        real.bucket() as small,
        real.bucket() as vanishing,
        Proxy(server, int(port)) as proxy,
    ):
        federation = Federation(
            home,
            [jobs.GUEST],
            process_engine("unionpay:2.0.0"),
        )
        node = federation[jobs.GUEST]
        lake = settings_of(main, role=os.environ["BFIA_TEST_S3_ROLE"])["lake"]
        # The first storage takes data without a named storage.
        node.settings["storages"] = {
            "lake": lake | {"url": f"s3://127.0.0.1:{proxy.port}/{main.name}"},
            "small": settings_of(small)["lake"],
            "vanishing": settings_of(vanishing)["lake"],
        }
        with federation:
            jobs.prepare(federation)
            yield Site(node, proxy, small, vanishing)


# ---------------------------------------------------------------- the way to the storage


def test_a_job_outlives_an_outage_of_its_slow_storage(site):
    node = site.node
    site.proxy.turn("slow", share=0.4)
    body = jobs.align_job(jobs.GUEST, jobs.GUEST)
    job_id = node.submit(jobs.limited(body, auto_retries=2))
    site.wait_for_container(job_id)

    site.proxy.turn("cut")
    site.wait_for_check("STORAGE_UNREACHABLE")
    refused = node.post(
        f"{jobs.SCHEDULE}/job/create_all",
        jobs.quick_job(jobs.GUEST, jobs.GUEST),
    )
    assert "STORAGE_UNREACHABLE" in str(refused), refused

    site.proxy.turn("slow", share=0.4)
    node.wait_job(job_id, 240)
    site.proxy.turn("")
    check_outputs_of_last_attempt(node, job_id)


def check_outputs_of_last_attempt(node: Node, job_id: str) -> None:
    """Check that the outputs exist; earlier attempts, which met the outage, may have none."""
    outputs = node.get(f"/api/v1/jobs/{job_id}/outputs")["outputs"]
    last_attempt = max(output["attempt"] for output in outputs)
    for output in outputs:
        if output["attempt"] == last_attempt:
            assert output["there"], output


def test_a_key_that_is_denied_ends_a_job_at_once_with_its_reason(site):
    node = site.node
    body = jobs.quick_job(jobs.GUEST, jobs.GUEST)
    job_id = node.submit(jobs.limited(body, auto_retries=2))
    site.wait_for_container(job_id)

    site.proxy.turn("forged")
    job = node.wait_job(
        job_id,
        120,
        outcome="FAILED",
    )
    site.proxy.turn("")

    assert job["failure"]["reason"] == "STORAGE_DENIED", job["failure"]


# ---------------------------------------------------------------- the storage itself


def upload_tables(node: Node, storage: str) -> None:
    """Upload both parties' tables into a storage."""
    for role in ("guest", "host"):
        file = jobs.DATA / f"breast_hetero_{role}.csv"
        node.upload(
            file,
            storage,
            role,
            storage=storage,
        )


def submit_job_at(
    node: Node,
    storage: str,
    **common: int,
) -> str:
    """Submit a job that reads the tables in a storage; ``common`` are its parameters."""
    body = jobs.quick_job(jobs.GUEST, jobs.GUEST)
    for role in ("guest", "host"):
        table = {"dataset_id": f"{storage}#{role}"}
        body["config"]["task_params"][role]["0"]["intersect_rsa_1"] = table
    return node.submit(jobs.limited(body, **common))


def wait_until_runs_say(
    node: Node,
    job_id: str,
    cause: str,
) -> None:
    """Wait until each run that failed by itself contains a text, besides its container's."""
    wait_for(
        lambda: failed_runs_say(node, job_id, cause), 60, about=f"the failed runs name {cause}"
    )


def failed_runs_say(
    node: Node,
    job_id: str,
    cause: str,
) -> bool:
    """Return whether each run that failed by itself contains a text; False without such runs."""
    failed_runs = []
    for run in node.job(job_id)["runs"]:
        if run["status"] == "FAILED" and run["failure"]["reason"] != "STOPPED":
            failed_runs.append(run)
    return bool(failed_runs) and all(cause in str(run) for run in failed_runs)


def set_quota(bucket: str, size: int) -> None:
    """Limit the size of a bucket in bytes."""
    script = ["bash", str(ROOT / ".ci" / "s3.sh"), "quota", bucket, str(size)]
    subprocess.run(
        script,
        check=True,
        capture_output=True,
    )


def processes_of(job_id: str) -> list[int]:
    """Return the process ids of a job's containers, which have its id in their environment."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if job_id.encode() in (process / "environ").read_bytes():
                pids.append(int(process.name))
    return pids


@contextmanager
def suspended_containers(job_id: str) -> Iterator[None]:
    """Suspend a job's containers, so that they neither read nor write for a while."""
    pids = wait_for(lambda: processes_of(job_id), about="a container runs")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def try_to_delete(bucket: str) -> bool:
    """Empty and delete a bucket; return False if something was written in between."""
    s3 = real.client()
    real.empty(s3, bucket)
    try:
        return bool(s3.delete_bucket(Bucket=bucket))
    except s3.exceptions.ClientError as error:
        assert error.response["Error"]["Code"] == "BucketNotEmpty"
        return False


def test_a_storage_that_is_full_is_named_with_what_the_container_says(site):
    node = site.node
    upload_tables(node, "small")
    set_quota(site.small.name, QUOTA)

    job_id = submit_job_at(node, "small")

    failure = node.wait_job(job_id, 240, outcome="FAILED")["failure"]
    assert failure["reason"] == "STORAGE_FULL"
    assert "QuotaExceeded" in failure["message"], failure
    wait_until_runs_say(node, job_id, "storage small (s3) is full: its quota is reached")
    site.wait_for_check("storage small (s3) is full")
    site.collect_garbage()
    for table in ("guest", "host"):
        path = f"/api/v1/datasets/small/{table}"
        wait_for(lambda path=path: node.ask("DELETE", path).is_success, 60)
    wait_for(lambda: "small" not in site.storage_check(), 60, about="there is room again")


def test_a_bucket_that_goes_in_the_middle_of_a_job_ends_it_with_its_reason(site):
    node = site.node
    bucket = site.vanishing.name
    upload_tables(node, "vanishing")
    job_id = submit_job_at(
        node,
        "vanishing",
        auto_retries=2,
    )
    site.wait_for_container(job_id, count=2)  # one of each party

    with suspended_containers(job_id):  # they would find an empty bucket before it is deleted
        wait_for(lambda: try_to_delete(bucket), about="the bucket is gone")

    job = node.wait_job(
        job_id,
        240,
        outcome="FAILED",
    )
    assert job["failure"]["reason"] == "STORAGE_GONE", job["failure"]
    wait_until_runs_say(node, job_id, "storage vanishing (s3) has no such bucket")
    site.wait_for_check("storage vanishing (s3) has no such bucket")
    site.collect_garbage()
