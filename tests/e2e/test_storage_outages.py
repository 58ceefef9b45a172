"""A storage elsewhere that is cut off, slow, or takes the node's key no more, while the node works with it."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests import storages as real
from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, process_engine, wait_for
from tests.e2e.test_storages import names, settings_of
from tools.chaos.proxy import Proxy

pytestmark = [pytest.mark.slow, pytest.mark.s3]


class Site:
    """A node that plays both parties, and the way to its storage."""

    def __init__(self, node: Node, way: Proxy, place: real.Place) -> None:
        self.node, self.way, self.place = node, way, place

    def reasons(self) -> str:
        return str(self.node.ask("GET", "/health/ready").json()["checks"].get("storage"))

    def upload(self, name: str) -> dict[str, Any]:
        form = {"namespace": "outage", "name": name, "head": "true", "partitions": "3"}
        form["meta"] = '{"delimiter": ",", "match_id_name": "id"}'
        files = {"file": ("t.csv", b"id,x\n" + b"".join(b"%d,1\n" % n for n in range(5_000)), "text/csv")}
        return dict(self.node.ask("POST", "/v2/component/upload/file", data=form, files=files).json())

    def visible(self) -> list[str]:
        listed = self.node.get("/api/v1/datasets", namespace="outage")["datasets"]
        return [one["dataset_id"] for one in listed]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    host, port = os.environ["BFIA_TEST_S3"].removeprefix("http://").split(":")
    with real.bucket() as place, Proxy(host, int(port)) as way:
        made = Federation(tmp_path_factory.mktemp("outage"), [jobs.GUEST], process_engine("unionpay:2.0.0"))
        settings = settings_of(place, role=os.environ["BFIA_TEST_S3_ROLE"])
        settings["lake"]["url"] = f"s3://127.0.0.1:{way.port}/{place.name}"
        made[jobs.GUEST].settings["storages"] = settings
        with made:
            jobs.prepare(made)
            yield Site(made[jobs.GUEST], way, place)


def test_a_job_outlives_an_outage_of_its_storage(site: Site) -> None:
    node = site.node
    job_id = node.submit(jobs.limited(jobs.quick_job(jobs.GUEST, jobs.GUEST), auto_retries=2))
    wait_for(lambda: jobs.events(node, job_id, "run RUNNING"), 60, 0.05, about="a container runs")
    site.way.turn("cut")
    wait_for(lambda: "STORAGE_UNREACHABLE" in site.reasons(), 60, about="the node says that its storage is away")
    refused = node.post(f"{jobs.SCHEDULE}/job/create_all", jobs.quick_job(jobs.GUEST, jobs.GUEST))
    assert "STORAGE_UNREACHABLE" in str(refused), refused
    site.way.turn("")
    node.wait_job(job_id, 240)
    outputs = node.get(f"/api/v1/jobs/{job_id}/outputs")["outputs"]
    assert outputs and all(one["there"] for one in outputs)


def test_an_upload_or_gc_during_an_outage_leaves_nothing_half_done(site: Site) -> None:
    site.way.turn("cut")
    assert site.upload("cut")["data"]["reason"] == "STORAGE_UNREACHABLE"
    assert site.node.ask("POST", "/api/v1/gc", json={"orphans": True}).json() is not None
    site.way.turn("slow")
    assert site.upload("slow")["code"] == 0
    site.way.turn("")
    assert site.visible() == ["outage#slow"]
    site.node.post("/api/v1/gc", {"orphans": True})
    kept = {name.split("/")[1].split(".")[0] for name in names(site.place) if name.startswith("outage/")}
    assert kept == {"slow"}
    assert site.upload("cut")["code"] == 0 and sorted(site.visible()) == ["outage#cut", "outage#slow"]


def test_a_dataset_is_shown_and_disabled_during_an_outage(site: Site) -> None:
    assert site.upload("away")["code"] == 0
    one = "/api/v1/datasets/outage/away"
    site.way.turn("cut")
    found = site.node.get(one)
    assert (found["count"], found["there"]) == (5_000, False) and "cannot be reached" in found["away"]
    assert site.node.post(f"{one}/disable", {})["disabled"]
    site.way.turn("")
    found = site.node.get(one)
    assert (found["disabled"], found["there"], found["away"]) == (True, True, "")


def test_a_job_ends_over_a_slow_storage(site: Site) -> None:
    site.way.turn("slow")
    job_id = site.node.submit(jobs.quick_job(jobs.GUEST, jobs.GUEST))
    site.node.wait_job(job_id, 240)
    site.way.turn("")
    outputs = site.node.get(f"/api/v1/jobs/{job_id}/outputs")["outputs"]
    assert outputs and all(one["there"] for one in outputs)


def test_a_key_that_is_denied_ends_a_job_at_once_with_its_reason(site: Site) -> None:
    node = site.node
    job_id = node.submit(jobs.limited(jobs.quick_job(jobs.GUEST, jobs.GUEST), auto_retries=2))
    wait_for(lambda: jobs.events(node, job_id, "run RUNNING"), 60, 0.05, about="a container runs")
    site.way.turn("forged")
    job = node.wait_job(job_id, 120, outcome="FAILED")
    site.way.turn("")
    assert job["failure"]["reason"] == "STORAGE_DENIED", job["failure"]
