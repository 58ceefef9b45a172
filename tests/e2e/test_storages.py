"""The user's job where banks keep their data: S3 and HDFS, at one party or both, in processes and containers."""

import copy
import io
import json
import os
import uuid
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from adapter.bfia.examples import A_JOB, A_PROVIDER
from tests import storages as real
from tests.e2e import jobs
from tests.e2e.conftest import small_image
from tests.e2e.nodes import Federation, Node, example, process_engine, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.hdfs]

ALIGN, TRAIN = "intersect_rsa_1", "hetero_secureboost_1"


def settings_of(place: real.Place, **more: Any) -> dict[str, Any]:
    """Return the settings of a bucket, or a folder of HDFS, of the test's own."""
    url = urlsplit(place.url)
    if url.scheme == "hdfs":
        settings = {"username": real.HDFS_USER, "datanodes": real.data_nodes()}
        return {"cluster": {"url": f"hdfs://{url.netloc}{place.name}", **settings}}
    key = {
        "username": os.environ["BFIA_TEST_S3_KEY"],
        "password": os.environ["BFIA_TEST_S3_SECRET"],
    }
    return {
        "lake": {
            "url": f"s3://{url.netloc}/{place.name}",
            "region": "default",
            **key,
            **more,
        }
    }


def names(place: real.Place) -> list[str]:
    return [
        entry.path
        for entry in place.operator.list("/", recursive=True)
        if not entry.path.endswith("/")
    ]


@pytest.fixture(scope="module")
def places() -> Iterator[tuple[real.Place, real.Place]]:
    with real.bucket() as bucket, real.folder() as folder:
        yield bucket, folder


@pytest.fixture(scope="module")
def bare_image(reference_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The reference vendor's image, built to send bare payloads."""
    lines = [f"FROM {reference_image}", "ENV CHANNEL_FORM=bare"]
    folder = tmp_path_factory.mktemp("image") / "bare"
    with small_image(folder, f"bfia-reference-vendor-bare:{os.getpid()}", lines) as name:
        yield name


PROCESS, DOCKER = (
    pytest.mark.parametrize("two", [engine], indirect=True) for engine in ("process", "docker")
)


@pytest.fixture(scope="module")
def two(
    request: pytest.FixtureRequest,
    places: tuple[real.Place, real.Place],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Federation]:
    """Each node has S3, with a key of its own for each run, and HDFS; images have different forms of messages."""
    in_containers = request.param == "docker"
    bare = request.getfixturevalue("bare_image") if in_containers else ""
    engine: Any = {"kind": "docker"} if in_containers else process_engine("unionpay:2.0.0")
    made = Federation(tmp_path_factory.mktemp("storages"), [jobs.GUEST, jobs.HOST], engine)
    for node in made.nodes.values():
        node.settings["storages"] = settings_of(places[0], role=os.environ["BFIA_TEST_S3_ROLE"])
        node.settings["storages"] |= settings_of(places[1])
    with made as federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        if bare:
            provider = example("register_unionpay.json")
            federation[jobs.HOST].register(
                provider | {"metadata": provider["metadata"] | {"image": bare}}
            )
        yield federation


@PROCESS
def test_a_job_reads_and_writes_where_each_partys_data_lies(
    two: Federation,
    places: tuple[real.Place, real.Place],
    pair: tuple[str, str] = ("lake", "file"),
) -> None:
    guest, host = two[jobs.GUEST], two[jobs.HOST]
    sides = [(guest, "guest", pair[0]), (host, "host", pair[1])]
    for node, role, storage in sides:
        jobs.upload(node, role, storage=storage, overwrite=True)
    ended = _ended(places[0])
    job_id = guest.submit(jobs.quick_job(jobs.GUEST, jobs.HOST))
    guest.wait_job(job_id, 240)
    at = dict(zip(("lake", "cluster"), places, strict=True))
    for node, role, storage in sides:
        party, left = f"{role}.0", f"{job_id}-{role}-0"
        found = {name: {path.split("/")[0] for path in names(place)} for name, place in at.items()}
        found["file"] = {path.name for path in node.storage.glob("*")}
        assert {name for name in found if left in found[name]} == {storage}, found
        lines = [
            one
            for one in node.get(f"/api/v1/jobs/{job_id}/outputs")["outputs"]
            if one["party"] == party
        ]
        assert lines
        assert all(one["there"] for one in lines if one["task"] == ALIGN)
        path = f"/api/v1/jobs/{job_id}/outputs/{ALIGN}/{party}/train_data"
        shown, whole = node.get(path, rows=3), node.ask("GET", f"{path}/download")
        assert len(shown["rows"]) == 3
        assert whole.content.startswith(b"id,")
        part = node.ask("GET", f"{path}/download", headers={"range": "bytes=10-29"})
        assert part.status_code == 206
        assert part.content == whole.content[10:30]
        report = node.get("/api/v1/models")["models"]
        assert [one["here"] for one in report if one["version"] == job_id] == [[party]]
        archive = node.ask("GET", f"/api/v1/jobs/{job_id}/archive").content
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            everything = b"".join(opened.read(name) for name in opened.namelist())
        for text in (everything.decode(errors="replace"), node.log(), node.run_logs()):
            assert os.environ["BFIA_TEST_S3_SECRET"] not in text
    tasks = 2 * pair.count("lake")
    wait_for(
        lambda: _ended(places[0]) == ended + tasks, about="the credentials of each task have ended"
    )
    gone = guest.ask("DELETE", f"/api/v1/models/{_flow(guest, job_id)}/{job_id}")
    assert gone.is_success, gone.text
    assert host.ask("DELETE", f"/api/v1/models/{_flow(host, job_id)}/{job_id}").is_success
    wait_for(
        lambda: guest.ask("DELETE", f"/api/v1/jobs/{job_id}").is_success,
        60,
        about="the job is deleted",
    )
    for place in places:
        assert [name for name in names(place) if job_id in name] == []
    for node, role, _ in sides:  # the uploaded tables stay
        assert len(node.get(f"/api/v1/datasets/testspace/test_{role}/preview")["rows"])


@pytest.mark.docker
@DOCKER
def test_images_of_different_forms_read_and_write_in_every_storage(two, places):
    test_a_job_reads_and_writes_where_each_partys_data_lies(two, places, ("cluster", "lake"))


def _flow(node: Any, version: str) -> str:
    return next(
        one["model_id"] for one in node.get("/api/v1/models")["models"] if one["version"] == version
    )


@PROCESS
def test_tables_that_lie_there_already_are_read_without_a_copy(two, places):
    """The guest's is a folder of another program's files, for which its run gets a key; the host's is one file."""
    (header, *rows), bucket = (
        (jobs.DATA / "breast_hetero_guest.csv").read_bytes().splitlines(True),
        places[0],
    )
    for number, some in enumerate((rows[:200], rows[200:])):
        bucket.operator.write(f"warehouse/2026/guest/part-{number}.csv", b"".join([header, *some]))
    places[1].operator.write(
        "warehouse/host.csv", (jobs.DATA / "breast_hetero_host.csv").read_bytes()
    )
    before = {place.name: set(names(place)) for place in places}
    wanted = {
        "guest": f"s3://{bucket.name}/warehouse/2026/guest",
        "host": f"hdfs://{places[1].name}/warehouse/host.csv",
    }
    job = jobs.align_job(jobs.GUEST, jobs.HOST)
    for role, node in (("guest", two[jobs.GUEST]), ("host", two[jobs.HOST])):
        body = {
            "place": wanted[role],
            "namespace": "warehouse",
            "name": role,
            "count": True,
        }
        found = node.post("/api/v1/datasets", body)
        assert found["count"] > 500 and found["in_place"], found
        job["config"]["task_params"][role]["0"][ALIGN] = {"dataset_id": f"warehouse#{role}"}
    guest = two[jobs.GUEST]
    job_id = guest.submit(job)
    guest.wait_job(job_id, 240)
    shown = guest.get(f"/api/v1/jobs/{job_id}/outputs/{ALIGN}/guest.0/train_data", rows=1)
    assert len(shown["columns"]) == len(header.split(b","))
    for role, node in (("guest", guest), ("host", two[jobs.HOST])):
        entry = f"/api/v1/datasets/warehouse/{role}"
        wait_for(
            partial(lambda at, path: at.ask("DELETE", path).is_success, node, entry),
            about="the job is over",
        )
    assert all(before[place.name] <= set(names(place)) for place in places)


@PROCESS
def test_a_component_that_lacks_its_datas_storage_kind_is_refused(two):
    jobs.upload(two[jobs.GUEST], "guest", storage="lake", overwrite=True)
    refusal = jobs.refusal_with(two[jobs.GUEST], "9.9.9", "hdfs")
    assert "storageEngine lists hdfs, and the data of guest.0 lies in: s3" in refusal
    assert "lies in: s3 (got" not in refusal
    assert not [job for job in two[jobs.GUEST].get("/api/v1/jobs")["jobs"] if "9.9.9" in str(job)]


@pytest.fixture
def thief(reference_image: str, tmp_path: Path) -> Iterator[str]:
    """Give the name of an image whose component is `thief.py`."""
    lines = [f"FROM {reference_image}", "COPY thief.py /", 'ENTRYPOINT ["python3", "/thief.py"]']
    component = Path(__file__).with_name("thief.py")
    with small_image(tmp_path / "image", f"thief:{uuid.uuid4().hex}", lines, component) as name:
        yield name


@pytest.mark.docker
def test_the_server_denies_what_a_containers_credentials_exclude(thief, tmp_path):
    """Its own input and output it reads and writes; those of a run that has ended open nothing any more."""
    with real.bucket() as place:
        made = Federation(tmp_path, [jobs.GUEST], {"kind": "docker"})
        made[jobs.GUEST].settings["storages"] = settings_of(
            place, role=os.environ["BFIA_TEST_S3_ROLE"]
        )
        with made:
            node = made[jobs.GUEST]
            provider = copy.deepcopy(A_PROVIDER)
            provider["metadata"]["image"] = thief
            described = provider["components_description"]["Echo"]
            types = {"attacks": "object", "stolen": "string"}
            inputs = [
                {
                    "name": name,
                    "title": name,
                    "type": kind,
                    "optional": True,
                }
                for name, kind in types.items()
            ]
            described |= {"storageEngine": ["s3"], "inputParam": inputs}
            node.register(provider)
            for name in ("mine", "other"):
                node.upload(jobs.DATA / "breast_hetero_guest.csv", "bank", name)
            data, other = (
                next(one for one in names(place) if f"/{name}." in one)
                for name in ("mine", "other")
            )
            before = {name: bytes(place.operator.read(name)) for name in names(place)}
            _, output, _ = _attacked(node, place, [])
            attacks = [
                ("read", output),
                ("read", other),
                ("list", "/"),
                ("list", f"{output.split('/')[0]}/"),
                ("write", output),
                ("write", data),
                ("write", "elsewhere/data_0"),
                ("delete", data),
                ("delete", output),
            ]
            url, later, found = _attacked(node, place, attacks)
            assert set(found.values()) == {"denied"} and len(found) == len(attacks), found
            wait_for(lambda: _ended(place) == 2, about="both runs' credentials have ended")
            _, _, found = _attacked(
                node, place, [("read", data), ("read", later), ("write", later)], stolen=url
            )
            assert set(found.values()) == {"denied"} and len(found) == 3, found
        after = {name: bytes(place.operator.read(name)) for name in before}
        assert after == before


def _attacked(
    node: Node,
    place: real.Place,
    attacks: list[tuple[str, str]],
    **more: str,
) -> tuple[str, str, dict[str, str]]:
    """Run a job; return its credentials, where its output lies, and what became of its attacks."""
    body = copy.deepcopy(A_JOB)
    body["config"]["role"] = {"guest": [jobs.GUEST]}
    given = {
        "attacks": [list(one) for one in attacks],
        "dataset_id": "bank#mine",
        **more,
    }
    body["config"]["task_params"] = {"common": {}, "guest": {"0": {"echo_1": given}}}
    job_id = node.submit(body)
    node.wait_job(job_id, 240)
    (output,) = (name for name in names(place) if name.startswith(job_id))
    said = json.loads(bytes(place.operator.read(output)))
    assert said["own"] == {
        "read": "done",
        "write": "done",
        "list": "done",
    }, said
    return said["url"], output, said["found"]


def _ended(place: real.Place) -> int:
    s3 = real.client()
    try:
        return str(s3.get_bucket_policy(Bucket=place.name)["Policy"]).count("*:bfia-")
    except s3.exceptions.ClientError:  # no run has ended yet
        return 0
