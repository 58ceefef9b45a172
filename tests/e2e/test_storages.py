"""The user's job with data in S3 and HDFS, at one party or both, in processes and containers."""

import copy
import io
import json
import os
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
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

ALIGN = "intersect_rsa_1"
TRAIN = "hetero_secureboost_1"


def settings_of(place: real.Place, **fields: Any) -> dict[str, Any]:
    """Return the settings of a bucket (``lake``) or a folder of HDFS (``cluster``).

    ``fields`` are further settings of the bucket, which shares its key unless they have a role.
    """
    url = urlsplit(place.url)
    if url.scheme == "hdfs":
        cluster = {
            "url": f"hdfs://{url.netloc}{place.name}",
            "username": real.HDFS_USER,
            "datanodes": real.data_nodes(),
            "share_key": True,
        }
        return {"cluster": cluster}
    lake = {
        "url": f"s3://{url.netloc}/{place.name}",
        "region": "default",
        "username": os.environ["BFIA_TEST_S3_KEY"],
        "password": os.environ["BFIA_TEST_S3_SECRET"],
        "share_key": "role" not in fields,
    }
    return {"lake": lake | fields}


def names(place: real.Place) -> list[str]:
    """Return the paths of all files of a bucket or folder."""
    entries = place.operator.list(
        "/",
        recursive=True,
    )
    return [entry.path for entry in entries if not entry.path.endswith("/")]


def top_folders(place: real.Place) -> set[str]:
    """Return the first parts of the paths of all files."""
    return {name.split("/")[0] for name in names(place)}


def ended_credentials(place: real.Place) -> int:
    """Return how many runs' credentials for a bucket have ended."""
    s3 = real.client()
    try:
        policy = str(s3.get_bucket_policy(Bucket=place.name)["Policy"])
    except s3.exceptions.ClientError:  # no run has ended yet
        return 0
    return policy.count("*:bfia-")


@dataclass(frozen=True)
class Places:
    """The bucket and the folder of HDFS of the module."""

    lake: real.Place
    cluster: real.Place


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    with real.bucket() as bucket, real.folder() as folder:
        yield Places(bucket, folder)


@pytest.fixture(scope="module")
def bare_image(
    reference_image: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """The reference vendor's image, which sends bare payloads."""
    lines = [f"FROM {reference_image}", "ENV CHANNEL_FORM=bare"]
    folder = tmp_path_factory.mktemp("image") / "bare"
    with small_image(folder, f"bfia-reference-vendor-bare:{os.getpid()}", lines) as name:
        yield name


PROCESS = pytest.mark.parametrize(
    "federation",
    ["process"],
    indirect=True,
)
DOCKER = pytest.mark.parametrize(
    "federation",
    ["docker"],
    indirect=True,
)


@pytest.fixture(scope="module")
def federation(
    request: pytest.FixtureRequest,
    places: Places,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Federation]:
    """Two nodes with S3, where each run has a key of its own, and HDFS.

    In containers the images of both nodes send different forms of messages.
    """
    in_containers = request.param == "docker"
    engine = {"kind": "docker"} if in_containers else process_engine("unionpay:2.0.0")
    federation = Federation(
        tmp_path_factory.mktemp("storages"),
        [jobs.GUEST, jobs.HOST],
        engine,
    )
    for node in federation.nodes.values():
        lake = settings_of(
            places.lake,
            role=os.environ["BFIA_TEST_S3_ROLE"],
        )
        node.settings["storages"] = lake | settings_of(places.cluster)
    bare_image = request.getfixturevalue("bare_image") if in_containers else ""
    with federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        if bare_image:
            provider = example("register_unionpay.json")
            provider["metadata"]["image"] = bare_image
            federation[jobs.HOST].register(provider)
        yield federation


@pytest.fixture
def guest(federation: Federation) -> Node:
    return federation[jobs.GUEST]


@pytest.fixture
def host(federation: Federation) -> Node:
    return federation[jobs.HOST]


# ---------------------------------------------------------------- the user's job


@dataclass(frozen=True)
class Side:
    """A node, its role, and the storage of its party's data."""

    node: Node
    role: str
    # "lake", "cluster" or "file"
    storage: str

    @property
    def party(self) -> str:
        """The party in the job."""
        return f"{self.role}.0"


def check_job_at(
    places: Places,
    guest: Side,
    host: Side,
) -> None:
    """Run the user's job with data in storages; check what is stored, shown and deleted."""
    sides = (guest, host)
    for side in sides:
        jobs.upload(
            side.node,
            side.role,
            storage=side.storage,
            overwrite=True,
        )
    ended_before = ended_credentials(places.lake)

    job_id = guest.node.submit(jobs.quick_job(jobs.GUEST, jobs.HOST))
    guest.node.wait_job(job_id, 240)

    for side in sides:
        check_location(places, side, job_id)
        check_outputs(side, job_id)
        check_no_secret(side.node, job_id)
    runs_at_lake = 2 * [side.storage for side in sides].count("lake")
    wait_for(
        lambda: ended_credentials(places.lake) == ended_before + runs_at_lake,
        about="the credentials of each task have ended",
    )
    delete_job(guest.node, host.node, job_id)
    for place in (places.lake, places.cluster):
        assert [name for name in names(place) if job_id in name] == []
    for side in sides:  # the uploaded tables stay
        preview = side.node.get(f"/api/v1/datasets/testspace/test_{side.role}/preview")
        assert preview["rows"]


def check_location(
    places: Places,
    side: Side,
    job_id: str,
) -> None:
    """Check that a job's files of a party are in the storage of its data only."""
    folders = {
        "lake": top_folders(places.lake),
        "cluster": top_folders(places.cluster),
        "file": {path.name for path in side.node.storage.glob("*")},
    }
    job_folder = f"{job_id}-{side.role}-0"
    storages = {storage for storage, content in folders.items() if job_folder in content}
    assert storages == {side.storage}, folders


def check_outputs(side: Side, job_id: str) -> None:
    """Check that outputs can be read as rows, as a file and as a part of it."""
    node = side.node
    outputs = []
    for output in node.get(f"/api/v1/jobs/{job_id}/outputs")["outputs"]:
        if output["party"] == side.party:
            outputs.append(output)
    assert outputs
    for output in outputs:
        if output["task"] == ALIGN:
            assert output["there"], output
    path = f"/api/v1/jobs/{job_id}/outputs/{ALIGN}/{side.party}/train_data"
    assert len(node.get(path, rows=3)["rows"]) == 3
    content = node.ask("GET", f"{path}/download").content
    assert content.startswith(b"id,")
    part = node.ask(
        "GET",
        f"{path}/download",
        headers={"range": "bytes=10-29"},
    )
    assert part.status_code == 206
    assert part.content == content[10:30]
    (model,) = [m for m in node.get("/api/v1/models")["models"] if m["version"] == job_id]
    assert model["here"] == [side.party]


def check_no_secret(node: Node, job_id: str) -> None:
    """Check that neither archive nor logs contain the storage's secret."""
    content = node.ask("GET", f"/api/v1/jobs/{job_id}/archive").content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = b"".join(archive.read(name) for name in archive.namelist())
    for text in (files.decode(errors="replace"), node.log(), node.run_logs()):
        assert os.environ["BFIA_TEST_S3_SECRET"] not in text


@PROCESS
def test_a_start_with_a_key_in_the_configuration_says_how_to_move_it(guest):
    log = guest.log()

    assert "the configuration file contains secrets in clear" in log
    assert "storages.lake.password" in log
    assert "bfia-gateway move-secrets --config" in log
    assert os.environ["BFIA_TEST_S3_SECRET"] not in log


def delete_job(
    guest: Node,
    host: Node,
    job_id: str,
) -> None:
    """Delete a job's models at both nodes, and the job."""
    for node in (guest, host):
        models = node.get("/api/v1/models")["models"]
        model_id = next(m["model_id"] for m in models if m["version"] == job_id)
        deleted = node.ask("DELETE", f"/api/v1/models/{model_id}/{job_id}")
        assert deleted.is_success, deleted.text
    wait_for(
        lambda: guest.ask("DELETE", f"/api/v1/jobs/{job_id}").is_success,
        60,
        about="the job is deleted",
    )


@PROCESS
def test_a_job_reads_and_writes_where_each_partys_data_lies(guest, host, places):
    check_job_at(
        places,
        Side(guest, "guest", "lake"),
        Side(host, "host", "file"),
    )


@pytest.mark.docker
@DOCKER
def test_images_of_different_forms_read_and_write_in_every_storage(guest, host, places):
    check_job_at(
        places,
        Side(guest, "guest", "cluster"),
        Side(host, "host", "lake"),
    )


# ---------------------------------------------------------------- tables of other programs


def write_guest_s_table(places: Places) -> int:
    """Write the guest's table as a folder of two files; return its number of columns."""
    table = (jobs.DATA / "breast_hetero_guest.csv").read_bytes()
    header, *rows = table.splitlines(keepends=True)
    for number, part in enumerate((rows[:200], rows[200:])):
        name = f"warehouse/2026/guest/part-{number}.csv"
        places.lake.operator.write(name, b"".join([header, *part]))
    return len(header.split(b","))


def register_table(
    node: Node,
    role: str,
    place: str,
) -> None:
    """Register a table that a storage has already."""
    body = {
        "place": place,
        "namespace": "warehouse",
        "name": role,
        "count": True,
    }
    dataset = node.post("/api/v1/datasets", body)
    assert dataset["count"] > 500, dataset
    assert dataset["in_place"], dataset


@PROCESS
def test_tables_that_lie_there_already_are_read_without_a_copy(guest, host, places):
    """The guest's is a folder, for which its run gets a key; the host's is one file."""
    columns = write_guest_s_table(places)
    host_table = (jobs.DATA / "breast_hetero_host.csv").read_bytes()
    places.cluster.operator.write("warehouse/host.csv", host_table)
    files_at_lake = set(names(places.lake))
    files_at_cluster = set(names(places.cluster))
    register_table(guest, "guest", f"s3://{places.lake.name}/warehouse/2026/guest")
    register_table(host, "host", f"hdfs://{places.cluster.name}/warehouse/host.csv")
    body = jobs.align_job(jobs.GUEST, jobs.HOST)
    for role in ("guest", "host"):
        body["config"]["task_params"][role]["0"][ALIGN] = {"dataset_id": f"warehouse#{role}"}

    job_id = guest.submit(body)
    guest.wait_job(job_id, 240)

    path = f"/api/v1/jobs/{job_id}/outputs/{ALIGN}/guest.0/train_data"
    assert len(guest.get(path, rows=1)["columns"]) == columns
    delete_dataset(guest, "warehouse/guest")
    delete_dataset(host, "warehouse/host")
    # The tables' files stay.
    assert files_at_lake <= set(names(places.lake))
    assert files_at_cluster <= set(names(places.cluster))


def delete_dataset(node: Node, dataset: str) -> None:
    """Delete a dataset as soon as no job uses it."""
    path = f"/api/v1/datasets/{dataset}"
    wait_for(lambda: node.ask("DELETE", path).is_success, about="the job is over")


@PROCESS
def test_a_component_that_lacks_its_datas_storage_kind_is_refused(guest):
    jobs.upload(
        guest,
        "guest",
        storage="lake",
        overwrite=True,
    )

    refusal = jobs.refusal_with(guest, "9.9.9", "hdfs")

    assert "storageEngine lists hdfs, and the data of guest.0 lies in: s3" in refusal
    assert "lies in: s3 (got" not in refusal
    assert not [job for job in guest.get("/api/v1/jobs")["jobs"] if "9.9.9" in str(job)]


# ---------------------------------------------------------------- credentials of runs


@pytest.mark.kerberos
def test_a_job_at_hdfs_with_kerberos_leaves_no_token(tmp_path, monkeypatch):
    site = real.kerberos()
    monkeypatch.setenv("KRB5_CONFIG", str(site.folder / "krb5.conf"))
    federation = Federation(
        tmp_path,
        [jobs.GUEST, jobs.HOST],
        process_engine("unionpay:2.0.0"),
    )
    guest = federation[jobs.GUEST]
    vault = {
        "url": f"hdfs://{site.host}:{site.port}/bfia/{uuid.uuid4().hex[:12]}",
        "principal": "bfia@BFIA.TEST",
        "keytab": str(site.folder / "client.keytab"),
        "web": site.web,
    }
    guest.settings["storages"] = {"vault": vault}
    with federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)

        job_id = guest.submit(jobs.align_job(jobs.GUEST, jobs.HOST))
        guest.wait_job(job_id, 240)

        path = f"/api/v1/jobs/{job_id}/outputs/{ALIGN}/guest.0/train_data"
        assert len(guest.get(path, rows=3)["rows"]) == 3
        token_files = guest.home / "state" / "hdfs-tokens"
        wait_for(
            lambda: token_files.is_dir() and not list(token_files.iterdir()),
            about="the tokens of all runs are cancelled",
        )


@pytest.fixture
def thief(
    reference_image: str,
    tmp_path: Path,
) -> Iterator[str]:
    """An image whose component is `thief.py`."""
    lines = [f"FROM {reference_image}", "COPY thief.py /", 'ENTRYPOINT ["python3", "/thief.py"]']
    component = Path(__file__).with_name("thief.py")
    with small_image(tmp_path / "image", f"thief:{uuid.uuid4().hex}", lines, component) as name:
        yield name


def thief_s_provider(image: str) -> Any:
    """Return the registration of the component."""
    provider = copy.deepcopy(A_PROVIDER)
    provider["metadata"]["image"] = image
    parameters = []
    for name, kind in (("attacks", "object"), ("stolen", "string")):
        parameter = {
            "name": name,
            "title": name,
            "type": kind,
            "optional": True,
        }
        parameters.append(parameter)
    description = provider["components_description"]["Echo"]
    description |= {
        "storageEngine": ["s3"],
        "inputParam": parameters,
    }
    return provider


@dataclass(frozen=True)
class Theft:
    """A run of the thief: its storage address, its output, and its attacks' results."""

    storage: str
    output: str
    results: dict[str, str]


def run_thief(
    node: Node,
    place: real.Place,
    attacks: list[tuple[str, str]],
    **parameters: str,
) -> Theft:
    """Run a job of the thief and check that it may use its own input and output.

    ``parameters`` are further ones.
    """
    values = {
        "attacks": [list(attack) for attack in attacks],
        "dataset_id": "bank#mine",
        **parameters,
    }
    body = copy.deepcopy(A_JOB)
    body["config"]["role"] = {"guest": [jobs.GUEST]}
    body["config"]["task_params"] = {
        "common": {},
        "guest": {"0": {"echo_1": values}},
    }
    job_id = node.submit(body)
    node.wait_job(job_id, 240)
    (output,) = [name for name in names(place) if name.startswith(job_id)]
    report = json.loads(bytes(place.operator.read(output)))
    assert report["own"] == {
        "read": "done",
        "write": "done",
        "list": "done",
    }
    assert len(report["found"]) == len(attacks)
    return Theft(report["url"], output, report["found"])


def check_denied(theft: Theft) -> None:
    """Check that the storage denied all attacks."""
    for attack, result in theft.results.items():
        assert result == "denied", attack


def file_of_dataset(
    place: real.Place,
    name: str,
) -> str:
    """Return the path of a dataset's only file."""
    return next(path for path in names(place) if f"/{name}." in path)


@pytest.mark.docker
def test_the_server_denies_what_a_containers_credentials_exclude(thief, tmp_path):
    """Attack: a run uses its credentials for other files, and an ended run's for all."""
    with real.bucket() as place:
        federation = Federation(
            tmp_path,
            [jobs.GUEST],
            {"kind": "docker"},
        )
        node = federation[jobs.GUEST]
        node.settings["storages"] = settings_of(
            place,
            role=os.environ["BFIA_TEST_S3_ROLE"],
        )
        with federation:
            node.register(thief_s_provider(thief))
            for name in ("mine", "other"):
                node.upload(jobs.DATA / "breast_hetero_guest.csv", "bank", name)
            contents = {name: bytes(place.operator.read(name)) for name in names(place)}
            table = file_of_dataset(place, "mine")
            other_table = file_of_dataset(place, "other")
            old_output = run_thief(node, place, []).output

            attacks = [
                ("read", old_output),
                ("read", other_table),
                ("list", "/"),
                ("list", f"{old_output.split('/')[0]}/"),
                ("write", old_output),
                ("write", table),
                ("write", "elsewhere/data_0"),
                ("delete", table),
                ("delete", old_output),
            ]
            theft = run_thief(node, place, attacks)
            check_denied(theft)

            wait_for(
                lambda: ended_credentials(place) == 2, about="both runs' credentials have ended"
            )
            attacks = [
                ("read", table),
                ("read", theft.output),
                ("write", theft.output),
            ]
            check_denied(run_thief(node, place, attacks, stolen=theft.storage))
        for name, content in contents.items():
            assert bytes(place.operator.read(name)) == content, name
