"""A storage elsewhere that is cut off, slow, or takes the node's key no more, while the node works with it."""

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests import storages as real
from tests.e2e import jobs
from tests.e2e.nodes import ROOT, Federation, Node, process_engine, wait_for
from tests.e2e.test_storages import settings_of
from tools.chaos.proxy import Proxy

pytestmark = [pytest.mark.slow, pytest.mark.s3]


class Site:
    """A node that plays both parties, and the way to its storage."""

    def __init__(
        self,
        node: Node,
        way: Proxy,
        *places: real.Place,
    ) -> None:
        self.node, self.way = node, way
        self.place, self.full, self.going = places

    def reasons(self) -> str:
        return str(self.node.ask("GET", "/health/ready").json()["checks"].get("storage"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    host, port = os.environ["BFIA_TEST_S3"].removeprefix("http://").split(":")
    with (
        real.bucket() as place,
        real.bucket() as full,
        real.bucket() as going,
        Proxy(host, int(port)) as way,
    ):
        made = Federation(
            tmp_path_factory.mktemp("outage"), [jobs.GUEST], process_engine("unionpay:2.0.0")
        )
        settings = settings_of(place, role=os.environ["BFIA_TEST_S3_ROLE"])
        settings["lake"]["url"] = f"s3://127.0.0.1:{way.port}/{place.name}"
        settings |= {
            "small": settings_of(full)["lake"],
            "vanishing": settings_of(going)["lake"],
        }  # after the first
        made[jobs.GUEST].settings["storages"] = settings
        with made:
            jobs.prepare(made)
            yield Site(made[jobs.GUEST], way, place, full, going)


def test_a_job_outlives_an_outage_of_its_slow_storage(site):
    node = site.node
    site.way.turn("slow", share=0.4)
    job_id = node.submit(jobs.limited(jobs.align_job(jobs.GUEST, jobs.GUEST), auto_retries=2))
    wait_for(lambda: jobs.events(node, job_id, "run RUNNING"), 60, 0.05, about="a container runs")
    site.way.turn("cut")
    wait_for(
        lambda: "STORAGE_UNREACHABLE" in site.reasons(),
        60,
        about="the node says that its storage is away",
    )
    refused = node.post(f"{jobs.SCHEDULE}/job/create_all", jobs.quick_job(jobs.GUEST, jobs.GUEST))
    assert "STORAGE_UNREACHABLE" in str(refused), refused
    site.way.turn("slow", share=0.4)
    node.wait_job(job_id, 240)
    site.way.turn("")
    outputs = node.get(f"/api/v1/jobs/{job_id}/outputs")["outputs"]
    last = max(
        one["attempt"] for one in outputs
    )  # an attempt that met the outage may have left nothing
    assert all(one["there"] for one in outputs if one["attempt"] == last)


def test_a_key_that_is_denied_ends_a_job_at_once_with_its_reason(site):
    node = site.node
    job_id = node.submit(jobs.limited(jobs.quick_job(jobs.GUEST, jobs.GUEST), auto_retries=2))
    wait_for(lambda: jobs.events(node, job_id, "run RUNNING"), 60, 0.05, about="a container runs")
    site.way.turn("forged")
    job = node.wait_job(job_id, 120, outcome="FAILED")
    site.way.turn("")
    assert job["failure"]["reason"] == "STORAGE_DENIED", job["failure"]


def _job_at(
    site: Site,
    storage: str,
    **common: Any,
) -> str:
    """Upload the tables into a storage, and submit a job that reads them there."""
    body = jobs.limited(jobs.quick_job(jobs.GUEST, jobs.GUEST), **common)
    for role in ("guest", "host"):
        site.node.upload(jobs.DATA / f"breast_hetero_{role}.csv", storage, role, storage=storage)
        body["config"]["task_params"][role]["0"]["intersect_rsa_1"] = {
            "dataset_id": f"{storage}#{role}"
        }
    if storage == "small":
        script = ["bash", str(ROOT / ".ci" / "s3.sh"), "quota", site.full.name, "200000"]
        subprocess.run(script, check=True, capture_output=True)
    return site.node.submit(body)


def _named(
    node: Node,
    job_id: str,
    cause: str,
) -> bool:
    """Wait until each run that failed by itself says why, beside what its container said."""

    def said() -> bool:
        failed = [run for run in node.job(job_id)["runs"] if run["status"] == "FAILED"]
        failed = [run for run in failed if run["failure"]["reason"] != "STOPPED"]
        return bool(failed) and all(cause in str(run) for run in failed)

    return bool(wait_for(said, 60, about=f"the failed runs name {cause}"))


def _deleted(bucket: str) -> bool:
    s3 = real.client()
    real.empty(s3, bucket)
    try:
        return bool(s3.delete_bucket(Bucket=bucket))
    except s3.exceptions.ClientError as error:
        assert error.response["Error"]["Code"] == "BucketNotEmpty"
        return False


def test_a_storage_that_is_full_is_named_with_what_the_container_says(site):
    node, job_id = site.node, _job_at(site, "small")
    failure = node.wait_job(job_id, 240, outcome="FAILED")["failure"]
    assert failure["reason"] == "STORAGE_FULL" and "QuotaExceeded" in failure["message"], failure
    assert _named(node, job_id, "storage small (s3) is full: its quota is reached")
    wait_for(
        lambda: "storage small (s3) is full" in site.reasons(), 60, about="the node names it, too"
    )
    assert node.ask("POST", "/api/v1/gc", json={"orphans": True}).is_success
    for table in ("guest", "host"):
        wait_for(
            lambda path=f"/api/v1/datasets/small/{table}": node.ask("DELETE", path).is_success, 60
        )
    wait_for(lambda: "small" not in site.reasons(), 60, about="there is room again")


def test_a_bucket_that_goes_in_the_middle_of_a_job_ends_it_with_its_reason(site):
    node, job_id = site.node, _job_at(site, "vanishing", auto_retries=2)
    wait_for(lambda: jobs.events(node, job_id, "run RUNNING"), 60, 0.05, about="a container runs")
    wait_for(
        lambda: _deleted(site.going.name),
        about="the bucket is gone, whatever the containers write meanwhile",
    )
    job = node.wait_job(job_id, 240, outcome="FAILED")
    assert job["failure"]["reason"] == "STORAGE_GONE", job["failure"]
    assert _named(node, job_id, "storage vanishing (s3) has no such bucket")
    wait_for(
        lambda: "storage vanishing (s3) has no such bucket" in site.reasons(),
        60,
        about="it is named",
    )
    assert node.ask("POST", "/api/v1/gc", json={"orphans": True}).is_success
