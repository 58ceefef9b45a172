"""Datasets for admins: they are inspected, edited, granted, disabled, registered and deleted.

Jobs get a dataset only by a grant, and never a disabled or changed one.
"""

import copy
import csv
import hashlib
import io
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from adapter.bfia.examples import A_JOB, A_PROVIDER
from gateway.bootstrap.node import Gateway
from gateway.cli.main import app
from gateway.data.sharing import NotShared
from gateway.domain.dag import ComponentRef, Dag, DagNode, DagOutput
from gateway.domain.run import Address
from gateway.domain.spec import JobSpec
from gateway.errors import Invalid, NotAllowed
from tests.builders import a_spec
from tests.cli import call_node
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER, Node
from tests.world import UNREACHABLE, NodeSetup

TOKEN = "0123456789abcdef0123"
NODE = NodeSetup(
    routes={
        PEER: UNREACHABLE,
        STRANGER: UNREACHABLE,
    },
    token=TOKEN,
    providers=[A_PROVIDER],
)

DATASET = "ns#t"
URL = "/api/v1/datasets/ns/t"
PLACED_URL = "/api/v1/datasets/ns/placed"

cli = partial(call_node, "data")


@pytest.fixture(autouse=True)
def fresh_dataset(
    node: Node,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Upload the dataset again for each test, after the jobs of the test before have ended."""
    monkeypatch.setenv("BFIA_GATEWAY_TOKEN", TOKEN)
    for job_id in node.store.local_jobs.unfinished():
        node.participant.stop_job(job_id, "", None, "")

    def is_deleted() -> bool:
        return request(node, "DELETE", URL).status_code in (200, 404)

    wait_for(is_deleted, about="the table is deleted")
    assert upload(node, tmp_path).exit_code == 0


def request(
    node: Node,
    method: str,
    path: str,
    **kwargs: Any,
) -> httpx.Response:
    """Send a request with the admin's token."""
    return node.request(method, path, token=TOKEN, **kwargs)


def json_of(node: Gateway, *words: str) -> Any:
    """Return the JSON that a command prints."""
    return json.loads(cli(node, *words, "--json").stdout)


def upload(
    node: Gateway,
    folder: Path,
    *options: str,
) -> Result:
    """Upload the dataset: nine rows with an id, a label and a number."""
    file = folder / "t.csv"
    with file.open("w", newline="", encoding="gbk") as output:
        rows = csv.writer(
            output,
            delimiter=";",
        )
        rows.writerow(("id", "y", "x"))
        for number in range(9):
            rows.writerow((f"u{number}", number % 2, number / 4))
    words = ["upload", str(file), "--namespace", "ns", "--name", "t"]
    words += ["--match-id", "id", "--label", "y", "--partitions", "2", "--extend-sid"]
    return cli(node, *words, *options)


def a_job_with_dataset(
    job_id: str,
    parameters: Any = None,
    partner: str = PEER,
) -> JobSpec:
    """Return a partner's job with a task at this node.

    ``parameters`` of the task name its dataset; by default it is `DATASET`.
    """
    component = copy.deepcopy(A_JOB)["dag"]["components"][0]
    name = component["name"]
    reference = ComponentRef(
        component["provider"], component["version"], component["componentName"]
    )
    dag = Dag((DagNode(name, reference, (), (DagOutput("dataset", "data0"),)),))
    if parameters is None:
        parameters = {"dataset_id": DATASET}
    return a_spec(
        dag,
        {
            "guest": (ME,),
            "host": (partner,),
        },
        job_id=job_id,
        scheduler=partner,
        initiator=ME,
        task_params={"guest": {"0": {name: parameters}}},
    )


def refusal_of(node: Node, job: JobSpec) -> NotAllowed:
    """Return the refusal of a partner's job."""
    with pytest.raises(NotAllowed) as refused:
        node.participant.create_job(job, PEER)
    return refused.value


# ---------------------------------------------------------------- inspecting


def test_a_dataset_is_listed_shown_previewed_and_fetched(node, tmp_path):
    assert DATASET in cli(node, "list", "--namespace", "ns").stdout
    assert json_of(node, "list", "--namespace", "nothing")["datasets"] == []

    shown = cli(node, "show", DATASET).stdout
    assert "no job under way" in shown
    assert "jobs with every node" in shown

    preview = json_of(node, "preview", DATASET, "--rows", "3")
    assert len(preview["rows"]) == 3
    assert preview["left_out"] == "the rows after the first 3"

    target = tmp_path / "got.csv"
    assert cli(node, "download", DATASET, "-o", str(target)).exit_code == 0
    headings = [line for line in target.read_text().splitlines() if line.startswith("sid,")]
    assert len(headings) == 1
    assert request(node, "GET", f"{URL}/download").content == target.read_bytes()


def test_the_description_of_a_dataset_has_its_columns_and_use(node):
    description = json_of(node, "show", DATASET)
    assert description["columns"] == [
        {"name": "sid", "type": "string"},
        {"name": "id", "type": "string"},
        {"name": "y", "type": "int"},
        {"name": "x", "type": "float"},
    ]
    assert description["count"] == 9
    assert description["delimiter"] == ";"
    assert description["match_id_name"] == "id"
    assert description["label_name"] == "y"
    assert description["sid"] == "sid"
    assert description["disabled"] is False
    assert description["origin"] == "file:t.csv"
    assert description["used_by"] == []
    assert description["grants"] == []


def test_an_unknown_dataset_and_a_wrong_id_differ_in_the_exit_code(node):
    unknown = cli(node, "show", "ns#other")
    assert unknown.exit_code == 1
    assert "DATASET_UNKNOWN" in unknown.stderr
    assert cli(node, "show", "no-id").exit_code == 2


def test_options_and_part_of_data_are_kept_shown_and_edited(node):
    meta = {
        "options": {
            "engine": "x",
            "depth": [1, 2],
        },
        "part_of_data": [
            ["u0", "0"],
            ["u1", "1"],
        ],
    }
    form = {
        "namespace": "ns",
        "name": "free",
        "meta": json.dumps(meta),
    }
    file = {"file": ("t.csv", b"id,x\n1,2\n")}
    uploaded = request(
        node,
        "POST",
        "/v2/component/upload/file",
        data=form,
        files=file,
    )
    assert uploaded.json()["code"] == 0

    url = "/api/v1/datasets/ns/free"
    assert request(node, "GET", url).json()["meta"] == meta
    assert '"part_of_data"' in "".join(cli(node, "show", "ns#free").stdout.split())

    new_meta = {
        "part_of_data": [],
        "options": {"depth": 3},
    }
    edited = request(
        node,
        "PATCH",
        url,
        json={"meta": new_meta},
    )
    assert edited.json()["meta"] == new_meta
    stored = node.storage.metadata(Address("ns", "free"))
    assert stored["meta"]["options"] == {"depth": 3}
    request(node, "DELETE", url)


def test_a_file_changed_behind_the_gateway_is_not_the_upload(node, tmp_path):
    file = tmp_path / "one.csv"
    file.write_text("id;x\n1;2\n")
    assert cli(node, "upload", str(file), "--namespace", "ns", "--name", "one").exit_code == 0
    url = "/api/v1/datasets/ns/one/download"
    before = request(node, "GET", url)
    checksum = before.headers["x-checksum-sha256"]
    assert checksum == hashlib.sha256(before.content).hexdigest()

    stored = node.storage.path(Address("ns", "one")) / "data_0"
    stored.write_bytes(stored.read_bytes().replace(b"2", b"3"))

    after = request(node, "GET", url)
    # the checksum is the upload's; the file is not read for it
    assert after.headers["x-checksum-sha256"] == checksum
    assert after.headers["etag"] != before.headers["etag"]
    fetched = cli(
        node,
        "download",
        "ns#one",
        "-o",
        str(tmp_path / "got.csv"),
    )
    assert fetched.exit_code == 1
    assert "nothing was kept" in fetched.stderr
    request(node, "DELETE", "/api/v1/datasets/ns/one")


def test_an_unregistered_table_in_the_storage_is_listed(node):
    for namespace in ("upload", "job-1-guest-0"):
        write_foreign_table(node, namespace, "guest")

    page = request(node, "GET", "/api/v1/datasets").json()

    url = "/api/v1/datasets/upload/guest"
    table = {
        "dataset_id": "upload#guest",
        "namespace": "upload",
        "name": "guest",
        "storage": "file",
        "url": url,
    }
    assert table in page["unregistered"]
    namespaces = {table["namespace"] for table in page["unregistered"]}
    assert "ns" not in namespaces
    assert "job-1-guest-0" not in namespaces
    assert request(node, "GET", url).json()["origin"] == ""
    printed = cli(node, "list").stdout
    assert "left in the storage, not registered" in printed
    assert "upload#guest" in printed


@pytest.mark.parametrize(
    "query",
    ["unregistered=false", "namespace=ns", "after=ns~t"],
)
def test_unregistered_tables_are_listed_once_and_on_request(node, query):
    write_foreign_table(node, "upload", "once")
    page = request(node, "GET", f"/api/v1/datasets?{query}").json()
    assert page["unregistered"] == []
    assert page["warnings"] == []


def write_foreign_table(
    node: Node,
    namespace: str,
    name: str,
) -> None:
    """Write a table as another program would, with bytes that are no CSV."""
    folder = node.storage.root / namespace / name
    folder.mkdir(
        parents=True,
        exist_ok=True,
    )
    (folder / "data_0").write_bytes(b"\x1f\x8b")


def test_names_of_datasets_are_completed_by_the_shell(node, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "bfia-gateway data show ns")
    monkeypatch.setenv("_BFIA_GATEWAY_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "bfia-gateway data show ns")
    monkeypatch.setenv("COMP_CWORD", "3")

    monkeypatch.setenv("BFIA_GATEWAY_URL", node.addresses()["operator"])
    completed = CliRunner().invoke(app, [], prog_name="bfia-gateway")
    assert DATASET in completed.stdout.splitlines(), completed.output

    monkeypatch.setenv("BFIA_GATEWAY_URL", "http://127.0.0.1:1")
    without_node = CliRunner().invoke(app, [], prog_name="bfia-gateway")
    assert without_node.stdout.strip() == ""


# ---------------------------------------------------------------- uploading and editing


@pytest.mark.parametrize(
    ("namespace", "name", "field"),
    [
        ("ns", "b#c", "name"),
        ("n#s", "b", "namespace"),
    ],
)
def test_a_name_with_the_separator_of_ids_is_refused(node, tmp_path, namespace, name, field):
    file = tmp_path / "t.csv"
    file.write_text("id\n1\n")
    refused = cli(
        node,
        "upload",
        str(file),
        "--namespace",
        namespace,
        "--name",
        name,
    )
    assert refused.exit_code == 2
    assert f"{field}: must not hold #, which separates" in refused.stderr


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--encoding", "auto"),
        ("--encoding", "gbk"),
    ],
)
def test_the_encoding_of_an_upload_is_recognised_or_named(node, tmp_path, options):
    file = tmp_path / "gbk.csv"
    file.write_bytes("编号,姓名\n1,王芳\n".encode("gbk"))
    words = ["upload", str(file), "--namespace", "ns", "--name", "gbk", "--overwrite"]
    uploaded = cli(node, *words, *options)
    assert uploaded.exit_code == 0, uploaded.stderr
    assert "read as GB" in uploaded.stdout


def test_the_meta_of_a_table_is_edited_without_a_new_upload(node):
    edit = ["--label", "x", "--description", "units", "--meta", '{"source": "crm"}']
    edited = cli(node, "edit", DATASET, *edit, "-m", "wrong column")
    assert edited.exit_code == 0, edited.stderr
    assert edited.stdout == "changed ns#t: match id id, label x\n"

    description = request(node, "GET", URL).json()
    assert description["description"] == "units"
    assert description["label_name"] == "x"
    assert description["match_id_name"] == "id"
    assert description["meta"] == {"source": "crm"}
    assert description["delimiter"] == ";"
    assert node.storage.metadata(Address("ns", "t"))["label_column"] == "x"

    entry = next(entry for entry in node.audit.list(limit=5) if entry.action == f"PATCH {URL}")
    assert entry.detail["before"]["label_name"] == "y"
    assert entry.detail["after"]["label_name"] == "x"
    assert entry.detail["reason"] == "wrong column"


def test_a_wrong_edit_of_a_table_changes_nothing(node):
    before = request(node, "GET", URL).json()

    refused = cli(
        node,
        "edit",
        DATASET,
        "--match-id",
        "x",
        "--label",
        "z",
    )
    assert refused.exit_code == 2
    assert "2 partitions" in refused.stderr
    assert "label_name: must name" in refused.stderr

    assert cli(node, "edit", DATASET).exit_code == 2
    assert cli(node, "edit", DATASET, "--meta", "{").exit_code == 2
    assert request(node, "PATCH", URL, json={"meta": []}).status_code == 400
    assert request(node, "GET", URL).json() == before


# ---------------------------------------------------------------- granting


def test_a_dataset_serves_every_node_until_it_is_granted_to_one(node):
    assert node.participant.create_job(a_job_with_dataset("job-open"), PEER)

    assert cli(node, "grant", DATASET, STRANGER, "--days", "1", "-m", "contract").exit_code == 0

    for parameters, field in (
        ({"dataset_id": DATASET}, "dataset_id"),
        ({"namespace": "ns", "name": "t"}, "name"),
    ):
        refusal = refusal_of(node, a_job_with_dataset("job-not", parameters))
        assert refusal.reason == "NOT_AUTHORISED"
        assert refusal.problems[0].path == f"config.task_params.guest.0.echo_1.{field}"
    listed = cli(node, "grants", "--node", STRANGER).stdout
    assert DATASET in listed
    assert "in force" in listed
    assert "contract" in listed
    granted = a_job_with_dataset("job-granted", partner=STRANGER)
    assert node.participant.create_job(granted, STRANGER)


def test_a_revoked_grant_stops_the_start_and_is_audited(node):
    assert cli(node, "grant", DATASET, PEER).exit_code == 0
    node.participant.create_job(a_job_with_dataset("job-revoked"), PEER)
    assert cli(node, "revoke", DATASET, PEER).exit_code == 0

    participant = node.participant
    starts = (
        partial(participant.hold, "job-revoked", PEER),
        partial(participant.start_job, "job-revoked", PEER),
        partial(participant.start_task, "job-revoked", "task-1", "echo_1", PEER),
    )
    for start in starts:
        with pytest.raises(NotShared) as refused:
            start()
        assert refused.value.reason == "NOT_AUTHORISED"
        assert "was revoked" in refused.value.why

    entry, *_ = node.audit.list(action="start of job job-revoked not allowed")
    assert entry.who == PEER
    assert DATASET in entry.detail["message"]
    assert "revoked" in entry.detail["message"]
    assert "start not allowed" in {event.event for event in node.store.timeline("job-revoked")}
    # the end of the last grant does not open the dataset to every node again
    assert refusal_of(node, a_job_with_dataset("job-after")).reason == "NOT_AUTHORISED"

    (revocation,) = node.audit.list(
        limit=1,
        action=f"DELETE {URL}/grants/{PEER}",
    )
    assert revocation.detail["before"]["state"] == "in force"
    assert revocation.detail["after"]["state"] == "revoked"


def test_a_grant_to_an_unknown_node_is_refused_unless_forced(node):
    typo = PEER[:-1] + "1"
    refused = cli(node, "grant", DATASET, typo)
    assert refused.exit_code == 2, refused.stderr
    assert f"did you mean {PEER}" in refused.stderr
    assert node.sharing.grants.all() == []

    granted = request(
        node,
        "PUT",
        f"{URL}/grants/{PEER}",
        json={},
    )
    assert granted.json()["warnings"] == []

    forced = request(
        node,
        "PUT",
        f"{URL}/grants/another",
        json={"force": True},
    )
    (warning, *_) = forced.json()["warnings"]
    assert "no route to another" in warning
    assert "did you mean" not in warning


@pytest.mark.parametrize("node_id", ["bad id", "J" * 101, "JG-"])
def test_a_grant_to_an_impossible_node_id_cannot_be_forced(node, node_id):
    refused = cli(node, "grant", DATASET, node_id, "--force")
    assert refused.exit_code == 2
    assert "must be a node id" in refused.stderr


def test_a_wrong_grant_is_refused_with_every_problem(node):
    expired = {"expires_at": "2020-01-01T00:00:00Z"}
    refused = request(
        node,
        "PUT",
        f"{URL}/grants/{ME}",
        json=expired,
    )
    assert refused.status_code == 400
    problems = refused.json()["data"]["problems"]
    assert [problem["path"] for problem in problems] == ["node", "expires_at"]


@pytest.mark.parametrize(
    "body",
    [
        {"expires_at": "2099-01-01T00:00:00Z", "days": 1},
        {"expires_at": "0001-01-01T00:00:00+14:00"},
    ],
    ids=["two-ends", "before-the-first-year"],
)
def test_a_grant_needs_one_possible_end(node, body):
    assert request(node, "PUT", f"{URL}/grants/{PEER}", json=body).json()["code"] == 400


def test_a_grant_that_does_not_exist_is_not_revoked(node):
    refused = cli(node, "revoke", DATASET, STRANGER)
    assert refused.exit_code == 1
    assert "GRANT_UNKNOWN" in refused.stderr


def test_a_node_with_listed_grants_shares_nothing_by_default(world, tmp_path):
    node = world.node(
        routes={PEER: UNREACHABLE},
        providers=[A_PROVIDER],
        settings={"data": {"grants": "listed"}},
    )
    assert upload(node, tmp_path).exit_code == 0
    assert refusal_of(node, a_job_with_dataset("job-1")).reason == "NOT_AUTHORISED"
    assert node.participant.create_job(
        a_job_with_dataset("job-own", partner=ME),
        "",
    )

    assert cli(node, "grant", DATASET, PEER).exit_code == 0
    assert node.participant.create_job(a_job_with_dataset("job-2"), PEER)


def test_the_submitter_of_a_job_learns_which_dataset_is_not_granted(world, tmp_path):
    submitter = world.node(providers=[A_PROVIDER])
    owner = world.node(
        node_id=PEER, providers=[A_PROVIDER], settings={"data": {"grants": "listed"}}
    )
    world.connect(
        submitter,
        owner,
        signing="off",
    )
    assert upload(owner, tmp_path).exit_code == 0
    job = copy.deepcopy(A_JOB)
    job["config"]["role"] = {
        "guest": [ME],
        "host": [PEER],
    }
    job["config"]["task_params"] = {
        "host": {"0": {"echo_1": {"namespace": "ns", "name": "t"}}},
        "guest": {"0": {"echo_1": {"dataset_id": ""}}},
    }

    refused = submitter.post("/v1/platform/schedule/job/create_all", job).json()

    assert refused["code"] != 0
    for text in ("NOT_AUTHORISED", DATASET, PEER):
        assert text in refused["msg"]
    (listed,) = submitter.get("/api/v1/jobs").json()["jobs"]
    shown = submitter.get(f"/api/v1/jobs/{listed['job_id']}").json()
    assert shown["status"] == "REJECTED"
    assert shown["failure"]["reason"] == "NOT_AUTHORISED"


# ---------------------------------------------------------------- disabling and deleting


def test_a_disabled_dataset_takes_no_jobs(node):
    node.participant.create_job(a_job_with_dataset("job-before"), PEER)

    assert cli(node, "disable", DATASET, "-m", "units").stdout == "ns#t is disabled\n"
    assert refusal_of(node, a_job_with_dataset("job-late")).reason == "DATASET_DISABLED"
    with pytest.raises(NotShared):
        node.participant.start_job("job-before", PEER)
    assert "disabled" in cli(node, "list").stdout

    assert cli(node, "enable", DATASET).exit_code == 0
    node.participant.start_job("job-before", PEER)


def test_a_dataset_that_a_job_uses_is_neither_deleted_nor_replaced(node, tmp_path):
    node.participant.create_job(a_job_with_dataset("job-uses"), PEER)
    cli(node, "grant", DATASET, PEER)
    dataset = node.datasets.get(DATASET)

    for refused in (
        cli(node, "delete", DATASET, "--yes"),
        upload(node, tmp_path, "--overwrite"),
    ):
        assert refused.exit_code == 1
        assert "DATASET_IN_USE" in refused.stderr
        assert "job-uses" in refused.stderr
    assert json_of(node, "show", DATASET)["used_by"] == ["job-uses"]
    assert not dataset.disabled
    assert node.datasets.get(DATASET) == dataset

    def is_unused() -> bool:
        return not node.sharing.jobs_using(Address("ns", "t"))

    node.participant.stop_job("job-uses", "", None, PEER)
    wait_for(is_unused, 20)
    assert cli(node, "delete", DATASET, "--yes").exit_code == 0
    assert not node.storage.exists(Address("ns", "t"))
    assert node.sharing.grants.all() == []


# ---------------------------------------------------------------- registering in place


def register_in_place(
    node: Node,
    file: str,
    content: bytes,
    *options: str,
) -> Result:
    """Write a file into the storage's folder ``warehouse`` and register it as ns#placed."""
    path = node.storage.root / "warehouse" / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    words = ["register", f"file://{path}", "--namespace", "ns", "--name", "placed"]
    return cli(node, *words, *options)


def test_a_table_is_registered_in_place_and_its_entry_deleted(node, tmp_path):
    options = ["--match-id", "id", "--label", "y"]
    registered = register_in_place(node, "t.csv", b"id,y\n1,0\n2,1\n", *options)
    message = "registered ns#placed: 2 rows, 2 columns, 1 file of csv\n"
    assert registered.stdout == message, registered.stderr
    assert "data_0" in registered.stderr
    assert "csv, where it lies" in cli(node, "show", "ns#placed").stdout
    entry, *_ = node.audit.list(action="POST /api/v1/datasets")
    assert entry.detail["after"]["place"].endswith("/warehouse/t.csv")

    job = a_job_with_dataset("job-placed", {"dataset_id": "ns#placed"})
    assert node.participant.create_job(job, PEER)
    node.participant.stop_job("job-placed", "", None, PEER)

    def delete() -> bool:
        return request(node, "DELETE", PLACED_URL).status_code == 200

    wait_for(delete, about="the entry is deleted")
    assert (node.storage.root / "warehouse" / "t.csv").exists()
    assert request(node, "GET", PLACED_URL).status_code == 404


def test_a_registered_table_with_changed_files_takes_no_jobs(node, tmp_path):
    register_in_place(
        node,
        "t.csv",
        b"id,y\n1,0\n2,1\n",
        "--match-id",
        "id",
        "--label",
        "y",
    )
    (node.storage.root / "warehouse" / "t.csv").write_text("id,y\n1,0\n")

    assert "jobs are refused until" in cli(node, "show", "ns#placed").stdout
    preview = cli(node, "preview", "ns#placed")
    assert "its files changed: 1 file of 9 bytes" in preview.stderr
    job = a_job_with_dataset(
        "job-changed",
        {"namespace": "ns", "name": "placed"},
    )
    with pytest.raises(Invalid, match="registered where it lies, and its files changed"):
        node.participant.create_job(job, PEER)

    target = tmp_path / "placed.csv"
    assert cli(node, "download", "ns#placed", "-o", str(target)).exit_code == 0
    assert target.read_text() == "id,y\n1,0\n"
    assert request(node, "DELETE", PLACED_URL).status_code == 200


def test_a_table_outside_the_nodes_storages_is_not_registered(node):
    refused = cli(
        node,
        "register",
        "s3://other/a/b",
        "--namespace",
        "ns",
        "--name",
        "x",
    )
    assert refused.exit_code == 2
    assert "write in node.yml storages" in refused.stderr


@pytest.fixture(scope="module")
def parquet() -> bytes:
    """A file of two rows, one with a null."""
    file = io.BytesIO()
    pq.write_table(
        pa.table({"id": [1, 2], "x": [0.5, None]}),
        file,
    )
    return file.getvalue()


def test_a_table_of_parquet_serves_components_that_list_it(node, parquet):
    registered = register_in_place(node, "t.parquet", parquet)
    assert "2 rows, 2 columns, 1 file of parquet" in registered.stdout

    preview = json_of(node, "preview", "ns#placed")
    assert preview["columns"] == ["id", "x"]
    assert preview["rows"] == [
        ["1", "0.5"],
        ["2", ""],
    ]

    download = request(node, "GET", f"{PLACED_URL}/download")
    assert download.content == parquet
    assert 'filename="ns-placed.parquet"' in download.headers["content-disposition"]

    job = a_job_with_dataset("job-parquet", {"dataset_id": "ns#placed"})
    with pytest.raises(Invalid, match="FORMAT_MISMATCH: the table is parquet") as refused:
        node.participant.create_job(job, PEER)
    (problem, *_) = refused.value.problems
    assert problem.path == "config.task_params.guest.0.echo_1.dataset_id"
    assert request(node, "DELETE", PLACED_URL).status_code == 200


def test_a_table_of_several_parquet_files_is_not_downloaded(node, parquet):
    folder = node.storage.root / "in" / "parts"
    folder.mkdir(parents=True)
    for name in ("a.parquet", "b.parquet"):
        (folder / name).write_bytes(parquet)
    words = ["register", str(folder), "--namespace", "ns", "--name", "parts"]
    assert cli(node, *words).exit_code == 0

    refused = request(node, "GET", "/api/v1/datasets/ns/parts/download").json()
    assert refused["data"]["reason"] == "NOT_ONE_FILE"
    assert refused["msg"].endswith(f"fetch them at file://{folder}")
    assert request(node, "DELETE", "/api/v1/datasets/ns/parts").status_code == 200


def test_a_dataset_is_published_for_ids_of_nodes_only(node):
    names = [
        PEER,
        "link://x",
        "\0",
        "\ud800",
        "a b",
    ]
    body = json.dumps({"nodes": names})
    refusal = request(node, "PUT", f"{URL}/published", content=body)
    assert refusal.status_code == 400
    paths = [problem["path"] for problem in refusal.json()["data"]["problems"]]
    assert paths == [
        "nodes[1]",
        "nodes[2]",
        "nodes[3]",
        "nodes[4]",
    ]
    assert request(node, "GET", URL).json()["published"] == []

    published = request(node, "PUT", f"{URL}/published", json={"nodes": [PEER]})
    assert published.json()["published"] == [PEER]


def test_parquet_needs_its_package(node, parquet, monkeypatch):
    register_in_place(node, "t.parquet", parquet)
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    assert "pip install 'bfia-gateway[parquet]'" in cli(node, "preview", "ns#placed").stderr
    refused = register_in_place(node, "t.parquet", parquet, "--overwrite")
    assert refused.exit_code == 1
    assert "PARQUET_NOT_INSTALLED" in refused.stderr
    assert request(node, "DELETE", PLACED_URL).status_code == 200
