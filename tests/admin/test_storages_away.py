"""Remote storages that are away, full, gone or locked: messages and remains of uploads."""

import copy
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from adapter.bfia.examples import A_PROVIDER
from gateway.data.file_storage import leftovers
from gateway.domain.run import Address
from gateway.domain.spec import JobSpec
from gateway.errors import Invalid, Refused
from gateway.language.catalogue import translate
from tests import storages as real
from tests.admin.test_datasets import a_job_with_dataset
from tests.cli import call_node
from tests.e2e.nodes import ROOT, free_ports, wait_for
from tests.inprocess import PEER, Node
from tests.world import UNREACHABLE, World
from tools.chaos.proxy import Proxy

pytestmark = pytest.mark.s3
# A table of 2 MB, which exceeds the quota of the storage small.
TABLE = b"id,x\n" + b"".join(b"%d,%s\n" % (n, b"7" * 100) for n in range(20_000))


@dataclass(frozen=True)
class Site:
    """A node with several storages."""

    node: Node
    # between the node and its storage lake
    proxy: Proxy
    lake: real.Place
    # a bucket with a quota
    small: real.Place


@pytest.fixture(scope="module")
def site(shared_world: World) -> Iterator[Site]:
    server = os.environ["BFIA_TEST_S3"].removeprefix("http://")
    host, port = server.split(":")
    with real.bucket() as lake, real.bucket() as small, Proxy(host, int(port)) as proxy:
        script = ["bash", str(ROOT / ".ci" / "s3.sh"), "quota", small.name, "4096"]
        subprocess.run(
            script,
            check=True,
            capture_output=True,
        )
        storages = {
            "cluster": {
                "url": f"hdfs://127.0.0.1:{free_ports(1)[0]}/joint",
                "share_key": True,
            },
            "lake": s3_settings(f"127.0.0.1:{proxy.port}", lake.name),
            "small": s3_settings(server, small.name),
            "gone": s3_settings(server, "no-such-bucket"),
            "locked": s3_settings(
                server,
                lake.name,
                password="not-the-key",
            ),
            "secretive": s3_settings(
                server,
                lake.name,
                share_key=False,
            ),
        }
        node = shared_world.node(
            routes={PEER: UNREACHABLE},
            settings={"storages": storages},
        )
        provider = copy.deepcopy(A_PROVIDER)
        for component in provider["components_description"].values():
            component["storageEngine"] = ["s3", "file"]
        node.post("/v2/provider/register", provider)
        yield Site(node, proxy, lake, small)


def s3_settings(
    server: str,
    bucket: str,
    **changes: Any,
) -> dict[str, Any]:
    """Return the settings of a storage in a bucket."""
    return {
        "url": f"s3://{server}/{bucket}",
        "region": "default",
        "username": os.environ["BFIA_TEST_S3_KEY"],
        "password": os.environ["BFIA_TEST_S3_SECRET"],
        "share_key": True,
        **changes,
    }


def upload(
    node: Node,
    name: str,
    storage: str,
    table: bytes = b"id,x\n1,2\n",
) -> Any:
    """Upload a table, and return the body of the response."""
    form = {
        "namespace": "ns",
        "name": name,
        "storage": storage,
    }
    files = {"file": ("t.csv", table)}
    return node.request("POST", "/v2/component/upload/file", data=form, files=files).json()


def storage_problem(node: Node) -> str:
    """Return why the check of the storages fails, or "" if it does not."""
    return str(node.get("/health/ready").json()["checks"]["storage"]["cause"])


def wait_for_problems(
    node: Node,
    *expected: str,
    absent: str = "",
) -> None:
    """Wait until the check of the storages names all problems, and does not name ``absent``."""

    def has_problems() -> bool:
        problem = storage_problem(node)
        if absent and absent in problem:
            return False
        return all(text in problem for text in expected)

    wait_for(has_problems, about=f"problems {expected} without {absent!r}")


def files_of(
    bucket: real.Place,
    name: str = "",
) -> list[str]:
    """Return the files of a table (of all tables if ``name`` is "") in a bucket.

    They include uploads that are not complete.
    """
    uploads = real.client().list_multipart_uploads(Bucket=bucket.name).get("Uploads", [])
    paths = [upload["Key"] for upload in uploads]
    for entry in bucket.operator.list("/", recursive=True):
        if not entry.path.endswith("/"):
            paths.append(entry.path)
    return [path for path in paths if path.startswith(f"ns/{name}")]


def test_a_storage_that_is_away_is_named_and_refuses_its_own_data_only(site):
    node = site.node
    assert upload(node, "here", "file")["code"] == 0
    assert upload(node, "there", "lake")["code"] == 0
    cluster_away = "storage cluster (hdfs) cannot be reached"
    wait_for_problems(node, cluster_away, absent="lake")
    remote = {"dataset_id": "ns#there"}
    node.participant.create_job(a_job_with_dataset("job-there", remote), PEER)

    site.proxy.turn("cut")
    wait_for_problems(node, "storage lake (s3) cannot be reached")
    with pytest.raises(Refused) as refused:
        node.participant.create_job(a_job_with_dataset("job-late", remote), PEER)
    assert refused.value.reason == "STORAGE_UNREACHABLE"
    assert "storage lake (s3)" in refused.value.message
    node.participant.create_job(
        a_job_with_dataset("job-here", {"dataset_id": "ns#here"}),
        PEER,
    )

    # the check ends before the time limit of the storage's library
    site.proxy.turn("blackhole")
    wait_for_problems(node, "storage lake (s3) took longer than 2 s", cluster_away)
    storages = node.get("/api/v1/storages").json()["storages"]
    (lake,) = [storage for storage in storages if storage["name"] == "lake"]
    assert not lake["ok"]
    assert "STORAGE_SLOW" in lake["cause"]

    site.proxy.turn("")
    wait_for_problems(node, absent="lake")
    for job_id in ("job-there", "job-here"):
        node.participant.stop_job(job_id, "", None, PEER)

    def is_deleted():
        return node.request("DELETE", "/api/v1/datasets/ns/there").is_success

    wait_for(is_deleted, about="the dataset is not in use")


def test_a_storage_that_a_component_lacks_is_named_with_the_next_step(site):
    node = site.node
    assert upload(node, "near", "file")["code"] == 0
    assert upload(node, "far", "lake")["code"] == 0
    listing = call_node("data", node, "list").stdout
    assert re.search(r"ns#far .* lake ", listing)
    assert not re.search("ns#near .* file ", listing)
    details = call_node("data", node, "show", "ns#far").stdout
    assert re.search(r"storage +│ lake +\n", details), details

    provider = copy.deepcopy(A_PROVIDER) | {"version": "9.9.9"}
    for component in provider["components_description"].values():
        component |= {
            "version": "9.9.9",
            "storageEngine": ["file"],
        }
    node.post("/v2/provider/register", provider)
    job = job_of_version(
        "9.9.9",
        a_job_with_dataset("job-far", {"dataset_id": "ns#far"}),
    )
    with pytest.raises(Invalid) as refused:
        node.participant.create_job(job, PEER)

    (problem,) = refused.value.problems
    rule = "the description's storageEngine lists file, and the data of guest.0 lies in: s3"
    assert problem.reason == refused.value.reason == "STORAGE_MISMATCH"
    assert problem.rule == rule
    assert problem.got is None
    assert str(problem).endswith(rule)
    cause = f"STORAGE_MISMATCH: {rule}"
    (item,) = [item for item in node.admission.dry_run(job, PEER) if item.cause == cause]
    assert item.remedy.startswith(
        "upload the data with --storage into one that the component lists"
    )
    assert "列出 file，而 guest.0 的数据位于：s3" in translate(item.cause, "zh")
    assert "用 --storage 将数据上传" in translate(item.remedy, "zh")


def test_a_job_in_a_storage_that_keeps_its_key_is_refused(site):
    node = site.node
    assert upload(node, "kept", "secretive")["code"] == 0
    job = a_job_with_dataset("job-kept", {"dataset_id": "ns#kept"})

    with pytest.raises(Invalid) as refused:
        node.participant.create_job(job, PEER)

    (problem,) = refused.value.problems
    assert problem.path.startswith("dag.components.")
    assert problem.reason == refused.value.reason == "STORAGE_KEY_NOT_SHARED"
    assert problem.rule.startswith("runs at storage secretive (s3) ")
    assert "set role (S3 with STS) or share_key: true" in problem.rule
    assert "存储 secretive（s3）处的运行" in translate(problem.rule, "zh")


def job_of_version(version: str, job: JobSpec) -> JobSpec:
    """Return a job of one task whose component has another version."""
    (task,) = job.dag.nodes
    component = replace(
        task.component,
        version=version,
    )
    dag = replace(
        job.dag,
        nodes=(replace(task, component=component),),
    )
    return replace(job, dag=dag)


def test_a_dataset_that_cannot_be_deleted_now_stays_in_use(site):
    table = "/api/v1/datasets/ns/stays"
    assert upload(site.node, "stays", "lake")["code"] == 0
    site.proxy.turn("cut")
    assert "STORAGE_UNREACHABLE" in site.node.request("DELETE", table).text
    assert not site.node.datasets.get("ns#stays").disabled
    site.proxy.turn("")
    assert site.node.request("DELETE", table).is_success
    assert files_of(site.lake, "stays") == []


def test_a_dataset_is_shown_and_disabled_while_its_storage_is_away(site):
    table = "/api/v1/datasets/ns/away"
    assert upload(site.node, "away", "lake")["code"] == 0
    site.proxy.turn("cut")
    dataset = site.node.get(table).json()
    assert dataset["count"] == 1
    assert dataset["there"] is False
    assert "cannot be reached" in dataset["away"]
    assert site.node.post(f"{table}/disable", {}).json()["disabled"]
    site.proxy.turn("")
    dataset = site.node.get(table).json()
    assert dataset["disabled"] is True
    assert dataset["there"] is True
    assert dataset["away"] == ""


def test_a_list_names_the_storages_that_are_away(site):
    site.lake.operator.write("left/t/data_0", b"x")
    page = site.node.get("/api/v1/datasets").json()
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
    assert refused["data"]["reason"] == reason, refused
    assert f"storage {storage} (" in refused["message"]
    assert os.environ["BFIA_TEST_S3_SECRET"] not in str(refused)
    assert "not-the-key" not in str(refused)
    assert site.node.datasets.record_of(Address("ns", "t")) is None
    assert files_of(site.small) == []
    # if the node could not delete the remains either, it leaves a note for `gc`
    has_no_note = leftovers(site.node.storage.root) == before
    assert has_no_note == (storage == "small")


def test_a_storage_that_goes_in_the_middle_of_an_upload_and_comes_back(site):
    """``gc`` deletes the parts that were sent: the node could not delete them at the time."""
    node = site.node
    before = set(leftovers(node.storage.root))

    def body() -> Iterator[bytes]:
        for key, value in (("namespace", "ns"), ("name", "t"), ("storage", "lake")):
            yield f'--b\r\ncontent-disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
        yield b'--b\r\ncontent-disposition: form-data; name="file"; filename="t.csv"\r\n\r\nid,x\n'
        for number in range(32):
            yield b"".join(b"%d,%s\n" % (number * 9999 + n, b"7" * 1000) for n in range(1000))
            if number == 16:
                wait_for(lambda: files_of(site.lake, "t."), about="a part of the table was sent")
                site.proxy.turn("cut")
        yield b"\r\n--b--\r\n"

    headers = {"content-type": "multipart/form-data; boundary=b"}
    url = "/v2/component/upload/file"
    refused = node.request("POST", url, content=body(), headers=headers).json()
    assert refused["data"]["reason"] == "STORAGE_UNREACHABLE", refused
    assert "storage lake (s3)" in refused["message"]
    (note,) = set(leftovers(node.storage.root)) - before
    assert node.datasets.record_of(Address("ns", "t")) is None
    assert node.post("/api/v1/gc", {"orphans": True}).is_success
    assert note in leftovers(node.storage.root)

    site.proxy.turn("slow")  # 10 KiB a second
    assert upload(node, "t", "lake")["code"] == 0
    site.proxy.turn("")
    node.post("/api/v1/gc", {"orphans": True})
    assert len(files_of(site.lake, "t.")) == 2  # data_0 and metadata
    assert note not in leftovers(node.storage.root)
    assert list(node.storage.iter_rows(node.datasets.resolve("ns#t")))
