"""Storages elsewhere that are away, full, gone or locked: what the node says, and what uploads leave."""

import copy
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest

from adapter.bfia.examples import A_PROVIDER
from gateway.bootstrap.node import Gateway
from gateway.data.file_storage import leftovers
from gateway.domain.run import Address
from gateway.errors import Invalid, Refused
from gateway.language.catalogue import translate
from tests import storages as real
from tests.admin.test_datasets import a_job_with_dataset
from tests.cli import call_node
from tests.e2e.nodes import ROOT, free_ports, wait_for
from tests.inprocess import PEER, ask, running
from tools.chaos.proxy import Proxy

pytestmark = pytest.mark.s3
MIB = 1024 * 1024
TABLE = b"id,x\n" + b"".join(b"%d,%s\n" % (n, b"7" * 100) for n in range(20_000))


@dataclass(frozen=True)
class Site:
    node: Gateway
    way: Proxy
    """to the storage lake"""
    lake: real.Place
    small: real.Place
    """a bucket with a quota"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    host, port = os.environ["BFIA_TEST_S3"].removeprefix("http://").split(":")
    with ExitStack() as stack:
        lake, small = stack.enter_context(real.bucket()), stack.enter_context(real.bucket())
        script = ["bash", str(ROOT / ".ci" / "s3.sh"), "quota", small.name, "4096"]
        subprocess.run(script, check=True, capture_output=True)
        way = stack.enter_context(Proxy(host, int(port)))

        def named(
            at: str,
            bucket: str,
            **more: str,
        ) -> dict[str, str]:
            key = {
                "username": os.environ["BFIA_TEST_S3_KEY"],
                "password": os.environ["BFIA_TEST_S3_SECRET"],
            }
            return {
                "url": f"s3://{at}/{bucket}",
                "region": "default",
                **key,
                **more,
            }

        settings = {
            "cluster": {"url": f"hdfs://127.0.0.1:{free_ports(1)[0]}/joint"},
            "lake": named(f"127.0.0.1:{way.port}", lake.name),
            "small": named(f"{host}:{port}", small.name),
            "gone": named(f"{host}:{port}", "no-such-bucket"),
            "locked": named(f"{host}:{port}", lake.name, password="not-the-key"),
        }
        node = stack.enter_context(running(tmp_path_factory.mktemp("node"), storages=settings))
        provider = copy.deepcopy(A_PROVIDER)
        for described in provider["components_description"].values():
            described["storageEngine"] = ["s3", "file"]
        ask(
            node,
            "operator",
            "PUT",
            f"/api/v1/routes/{PEER}",
            json={"route": {"url": "http://127.0.0.1:1"}},
        )
        ask(node, "operator", "POST", "/v2/provider/register", json=provider)
        yield Site(node, way, lake, small)


def upload(
    node: Gateway,
    name: str,
    storage: str,
    table: bytes = b"id,x\n1,2\n",
) -> Any:
    form, file = (
        {
            "namespace": "ns",
            "name": name,
            "storage": storage,
        },
        {"file": ("t.csv", table)},
    )
    return ask(node, "operator", "POST", "/v2/component/upload/file", data=form, files=file).json()


def health(node: Gateway) -> str:
    return str(ask(node, "operator", "GET", "/health/ready").json()["checks"]["storage"]["cause"])


def storages(node: Gateway) -> Any:
    return ask(node, "operator", "GET", "/api/v1/storages").json()["storages"]


def kept(place: real.Place, name: str = "") -> list[str]:
    """Return what lies in a bucket of a table, or of all, or is half sent."""
    half = real.client().list_multipart_uploads(Bucket=place.name).get("Uploads", [])
    whole = [
        one.path for one in place.operator.list("/", recursive=True) if not one.path.endswith("/")
    ]
    return [one for one in (*whole, *(one["Key"] for one in half)) if one.startswith(f"ns/{name}")]


def test_a_storage_that_is_away_is_named_and_refuses_only_what_lies_there(site):
    node = site.node
    assert upload(node, "here", "file")["code"] == upload(node, "there", "lake")["code"] == 0
    away = "storage cluster (hdfs) cannot be reached"
    wait_for(
        lambda: away in (cause := health(node)) and "lake" not in cause,
        about="the one alone is named",
    )
    node.participant.create_job(a_job_with_dataset("job-there", {"dataset_id": "ns#there"}), PEER)
    site.way.turn("cut")
    wait_for(lambda: "storage lake (s3) cannot be reached" in health(node), about="it is named")
    with pytest.raises(Refused) as refused:
        node.participant.create_job(
            a_job_with_dataset("job-late", {"dataset_id": "ns#there"}), PEER
        )
    assert refused.value.reason == "STORAGE_UNREACHABLE"
    assert "storage lake (s3)" in refused.value.message
    node.participant.create_job(a_job_with_dataset("job-here", {"dataset_id": "ns#here"}), PEER)
    site.way.turn("blackhole")  # nobody waits until the library gives up
    slow = "storage lake (s3) took longer than 2 s"
    wait_for(lambda: slow in (cause := health(node)) and away in cause, about="both are named")
    (shown,) = (one for one in storages(node) if one["name"] == "lake")
    assert not shown["ok"]
    assert "STORAGE_SLOW" in shown["cause"]
    site.way.turn("")
    wait_for(lambda: "lake" not in health(node), about="it is back")
    for job_id in ("job-there", "job-here"):
        node.participant.stop_job(job_id, "", None, PEER)
    wait_for(
        lambda: ask(node, "operator", "DELETE", "/api/v1/datasets/ns/there").is_success,
        about="it is not used",
    )


def test_a_storage_that_a_component_lacks_is_named_with_the_next_step(site):
    node = site.node
    assert upload(node, "near", "file")["code"] == upload(node, "far", "lake")["code"] == 0
    listed, shown = (
        call_node("data", node, "list").stdout,
        call_node("data", node, "show", "ns#far").stdout,
    )
    assert re.search(r"ns#far .* lake ", listed) and not re.search("ns#near .* file ", listed)
    assert re.search(r"storage +│ lake +\n", shown), shown
    provider = copy.deepcopy(A_PROVIDER) | {"version": "9.9.9"}
    for described in provider["components_description"].values():
        described |= {"version": "9.9.9", "storageEngine": ["file"]}
    ask(node, "operator", "POST", "/v2/provider/register", json=provider)
    made = a_job_with_dataset("job-far", {"dataset_id": "ns#far"})
    ref = replace(made.dag.nodes[0].component, version="9.9.9")
    made = replace(made, dag=replace(made.dag, nodes=(replace(made.dag.nodes[0], component=ref),)))
    with pytest.raises(Invalid) as refused:
        node.participant.create_job(made, PEER)
    (problem,) = refused.value.problems
    said = "STORAGE_MISMATCH: the description's storageEngine lists file, and the data of guest.0 lies in: s3"
    assert problem.rule == said
    assert problem.got is None
    assert str(problem).endswith(said)
    (item,) = (one for one in node.admission.dry_run(made, PEER) if one.cause == said)
    assert item.remedy.startswith(
        "upload the data with --storage into one that the component lists"
    )
    for text in (said, item.remedy):
        assert re.search(
            "列出 file，而 guest.0 的数据位于：s3|用 --storage 将数据上传", translate(text, "zh")
        )


def test_a_dataset_that_cannot_be_deleted_now_stays_in_use(site):
    table = "/api/v1/datasets/ns/stays"
    assert upload(site.node, "stays", "lake")["code"] == 0
    site.way.turn("cut")
    assert "STORAGE_UNREACHABLE" in ask(site.node, "operator", "DELETE", table).text
    assert not site.node.datasets.get("ns#stays").disabled
    site.way.turn("")
    assert ask(site.node, "operator", "DELETE", table).is_success
    assert kept(site.lake, "stays") == []


def test_a_dataset_is_shown_and_disabled_while_its_storage_is_away(site):
    table = "/api/v1/datasets/ns/away"
    assert upload(site.node, "away", "lake")["code"] == 0
    site.way.turn("cut")
    found = ask(site.node, "operator", "GET", table).json()
    assert found["count"] == 1
    assert found["there"] is False
    assert "cannot be reached" in found["away"]
    assert ask(site.node, "operator", "POST", f"{table}/disable", json={}).json()["disabled"]
    site.way.turn("")
    found = ask(site.node, "operator", "GET", table).json()
    assert found["disabled"] is True
    assert found["there"] is True
    assert found["away"] == ""


def test_a_list_names_the_storages_that_are_away(site):
    site.lake.operator.write("left/t/data_0", b"x")
    page = ask(site.node, "operator", "GET", "/api/v1/datasets").json()
    table = {
        "dataset_id": "left#t",
        "namespace": "left",
        "name": "t",
        "storage": "lake",
        "url": "/api/v1/datasets/left/t",
    }
    assert table in page["unregistered"]
    assert "storage cluster (hdfs) cannot be reached" in page["warnings"]
    printed = call_node("data", site.node, "list")
    assert "left#t" in printed.stdout
    assert "warning: storage cluster (hdfs) cannot be reached" in printed.stderr


@pytest.mark.parametrize(
    ("storage", "reason"),
    [
        ("cluster", "STORAGE_UNREACHABLE"),
        ("small", "STORAGE_FULL"),
        ("gone", "STORAGE_GONE"),
        ("locked", "STORAGE_DENIED"),
    ],
)
def test_an_upload_that_cannot_be_stored_says_why(site, storage, reason):
    before = leftovers(site.node.storage.root)
    refused = upload(site.node, "t", storage, TABLE)
    assert refused["data"]["reason"] == reason and f"storage {storage} (" in refused["message"], (
        refused
    )
    assert os.environ["BFIA_TEST_S3_SECRET"] not in str(refused)
    assert "not-the-key" not in str(refused)
    assert site.node.datasets.record_of(Address("ns", "t")) is None
    assert kept(site.small) == []
    # where nothing could be deleted either, a note stays for `gc`
    assert (leftovers(site.node.storage.root) == before) is (storage == "small")


def test_a_storage_that_goes_in_the_middle_of_an_upload_and_comes_back(site):
    """What it had been sent goes with ``gc``, as the node could not delete it then."""
    node, way, before = site.node, site.way, set(leftovers(site.node.storage.root))

    def body() -> Iterator[bytes]:
        for key, value in (("namespace", "ns"), ("name", "t"), ("storage", "lake")):
            yield f'--b\r\ncontent-disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
        yield b'--b\r\ncontent-disposition: form-data; name="file"; filename="t.csv"\r\n\r\nid,x\n'
        for number in range(32):
            yield b"".join(b"%d,%s\n" % (number * 9999 + n, b"7" * 1000) for n in range(1000))
            if number == 16:
                wait_for(lambda: kept(site.lake, "t."), about="a part of it was sent")
                way.turn("cut")
        yield b"\r\n--b--\r\n"

    kind = {"content-type": "multipart/form-data; boundary=b"}
    answer = ask(
        node, "operator", "POST", "/v2/component/upload/file", content=body(), headers=kind
    ).json()
    assert (
        answer["data"]["reason"] == "STORAGE_UNREACHABLE"
        and "storage lake (s3)" in answer["message"]
    ), answer
    (noted,) = set(leftovers(node.storage.root)) - before
    assert node.datasets.record_of(Address("ns", "t")) is None
    assert ask(node, "operator", "POST", "/api/v1/gc", json={"orphans": True}).is_success
    assert noted in leftovers(node.storage.root)
    way.turn("slow")  # 10 KiB a second
    assert upload(node, "t", "lake")["code"] == 0
    way.turn("")
    ask(node, "operator", "POST", "/api/v1/gc", json={"orphans": True})
    assert len(kept(site.lake, "t.")) == 2  # data_0 and metadata
    assert noted not in leftovers(node.storage.root) and list(
        node.storage.iter_rows(node.datasets.resolve("ns#t"))
    )
