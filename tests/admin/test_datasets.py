"""Datasets as admins see them: looked at, granted, disabled, deleted, and what jobs get of it."""

import copy
import csv
import hashlib
import io
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

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
from tests.inprocess import ME, PEER, STRANGER, ask, running

NAME, TABLE = "ns#t", "/api/v1/datasets/ns/t"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(
        tmp_path_factory.mktemp("node"), auth={"mode": "on", "token": "0123456789abcdef0123"}
    ) as gateway:
        for other in (PEER, STRANGER):
            answer = call(
                gateway,
                "PUT",
                f"/api/v1/routes/{other}",
                json={"route": {"url": "http://127.0.0.1:1"}},
            )
            assert answer.status_code == 200
        call(gateway, "POST", "/v2/provider/register", json=A_PROVIDER)
        yield gateway


@pytest.fixture(autouse=True)
def fresh(
    node: Gateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BFIA_GATEWAY_TOKEN", "0123456789abcdef0123")
    for job_id in node.store.local_jobs.unfinished():
        node.participant.stop_job(job_id, "", None, "")
    gone = (200, 404)  # until a job that uses it has ended, it is kept
    wait_for(lambda: call(node, "DELETE", TABLE).status_code in gone, about="the table is deleted")
    assert uploaded(node, tmp_path).exit_code == 0


def call(
    node: Gateway,
    method: str,
    path: str,
    **more: Any,
) -> Any:
    headers = {"authorization": "Bearer 0123456789abcdef0123"}
    return ask(node, "operator", method, path, headers=headers, **more)


cli = partial(call_node, "data")


def uploaded(
    node: Gateway,
    folder: Path,
    *more: str,
) -> Result:
    file = folder / "t.csv"
    with file.open("w", newline="", encoding="gbk") as out:
        csv.writer(out, delimiter=";").writerows(
            [("id", "y", "x"), *((f"u{i}", i % 2, i / 4) for i in range(9))]
        )
    words = ("--namespace", "ns", "--name", "t", "--match-id", "id", "--label", "y")
    return cli(node, "upload", str(file), *words, "--partitions", "2", "--extend-sid", *more)


def a_job(
    job_id: str,
    params: Any = None,
    partner: str = PEER,
) -> JobSpec:
    own = {"dataset_id": NAME} if params is None else params
    body = copy.deepcopy(A_JOB)
    node = body["dag"]["components"][0]
    return a_spec(
        _dag(node),
        {"guest": (ME,), "host": (partner,)},
        job_id=job_id,
        scheduler=partner,
        initiator=ME,
        task_params={"guest": {"0": {node["name"]: own}}},
    )


def _dag(node: Any) -> Any:
    ref = ComponentRef(node["provider"], node["version"], node["componentName"])
    return Dag((DagNode(node["name"], ref, (), (DagOutput("dataset", "data0"),)),))


def reason(node: Gateway, spec: JobSpec) -> tuple[str, str]:
    with pytest.raises(NotAllowed) as refused:
        node.participant.create_job(spec, PEER)
    return refused.value.reason, refused.value.problems[0].path


def test_a_dataset_is_listed_shown_previewed_and_fetched(node, tmp_path):
    assert NAME in cli(node, "list", "--namespace", "ns").stdout
    assert (
        json.loads(cli(node, "list", "--namespace", "nothing", "--json").stdout)["datasets"] == []
    )
    found = json.loads(cli(node, "show", NAME, "--json").stdout)
    assert found["columns"] == [
        {"name": "sid", "type": "string"},
        {"name": "id", "type": "string"},
        {"name": "y", "type": "int"},
        {"name": "x", "type": "float"},
    ]
    told = [
        found[key]
        for key in ("count", "delimiter", "match_id_name", "label_name", "sid", "disabled")
    ]
    assert told == [9, ";", "id", "y", "sid", False]
    assert found["origin"] == "file:t.csv"
    assert found["used_by"] == []
    assert found["grants"] == []
    shown = cli(node, "show", NAME)
    assert "no job under way" in shown.stdout
    assert "jobs with every node" in shown.stdout
    seen = json.loads(cli(node, "preview", NAME, "--rows", "3", "--json").stdout)
    assert len(seen["rows"]) == 3
    assert seen["left_out"] == "the rows after the first 3"
    target = tmp_path / "got.csv"
    assert cli(node, "download", NAME, "-o", str(target)).exit_code == 0
    assert len([line for line in target.read_text().splitlines() if line.startswith("sid,")]) == 1
    assert call(node, "GET", f"{TABLE}/download").content == target.read_bytes()
    gone = cli(node, "show", "ns#other")
    assert gone.exit_code == 1
    assert "DATASET_UNKNOWN" in gone.stderr
    assert cli(node, "show", "no-id").exit_code == 2


def test_options_and_part_of_data_are_kept_shown_and_edited(node):
    free = {"options": {"engine": "x", "depth": [1, 2]}, "part_of_data": [["u0", "0"], ["u1", "1"]]}
    file = {"file": ("t.csv", b"id,x\n1,2\n")}
    form = {
        "namespace": "ns",
        "name": "free",
        "meta": json.dumps(free),
    }
    assert (
        call(node, "POST", "/v2/component/upload/file", data=form, files=file).json()["code"] == 0
    )
    url = "/api/v1/datasets/ns/free"
    assert call(node, "GET", url).json()["meta"] == free
    assert '"part_of_data"' in "".join(cli(node, "show", "ns#free").stdout.split())
    changed = call(
        node, "PATCH", url, json={"meta": {"part_of_data": [], "options": {"depth": 3}}}
    ).json()
    assert changed["meta"] == {"options": {"depth": 3}, "part_of_data": []}
    assert node.storage.metadata(Address("ns", "free"))["meta"]["options"] == {"depth": 3}
    call(node, "DELETE", url)


def test_what_changed_behind_the_gateway_is_not_what_was_uploaded(node, tmp_path):
    file = tmp_path / "one.csv"
    file.write_text("id;x\n1;2\n")
    assert cli(node, "upload", str(file), "--namespace", "ns", "--name", "one").exit_code == 0
    url = "/api/v1/datasets/ns/one/download"
    whole = call(node, "GET", url)
    assert whole.headers["x-checksum-sha256"] == hashlib.sha256(whole.content).hexdigest()
    lying = node.storage.path(Address("ns", "one")) / "data_0"
    lying.write_bytes(lying.read_bytes().replace(b"2", b"3"))
    changed = call(node, "GET", url)
    assert (
        changed.headers["x-checksum-sha256"] == whole.headers["x-checksum-sha256"]
    )  # it is not read for it
    assert changed.headers["etag"] != whole.headers["etag"]
    fetched = cli(node, "download", "ns#one", "-o", str(tmp_path / "got.csv"))
    assert fetched.exit_code == 1
    assert "nothing was kept" in fetched.stderr
    call(node, "DELETE", "/api/v1/datasets/ns/one")


def test_the_meta_of_a_table_is_edited_without_a_new_upload(node):
    words = (
        "--label",
        "x",
        "--description",
        "units",
        "--meta",
        '{"source": "crm"}',
        "-m",
        "wrong column",
    )
    changed = cli(node, "edit", NAME, *words)
    assert (changed.exit_code, changed.stdout) == (0, "changed ns#t: match id id, label x\n"), (
        changed.stderr
    )
    found = call(node, "GET", TABLE).json()
    assert [
        found[key] for key in ("description", "label_name", "match_id_name", "meta", "delimiter")
    ] == [
        "units",
        "x",
        "id",
        {"source": "crm"},
        ";",
    ]
    assert node.storage.metadata(Address("ns", "t"))["label_column"] == "x"
    noted = next(e for e in node.audit.list(limit=5) if e.action == f"PATCH {TABLE}")
    assert noted.detail["before"]["label_name"] == "y"
    assert noted.detail["after"]["label_name"] == "x"
    assert noted.detail["reason"] == "wrong column"
    divided = cli(node, "edit", NAME, "--match-id", "x", "--label", "z")
    assert divided.exit_code == 2
    assert "2 partitions" in divided.stderr
    assert "label_name: must name" in divided.stderr
    assert (
        cli(node, "edit", NAME).exit_code == cli(node, "edit", NAME, "--meta", "{").exit_code == 2
    )
    assert call(node, "PATCH", TABLE, json={"meta": []}).status_code == 400
    assert call(node, "GET", TABLE).json() == found


def test_a_dataset_serves_everybody_until_it_is_granted_to_somebody(node):
    assert node.participant.create_job(a_job("job-open"), PEER)
    assert cli(node, "grant", NAME, STRANGER, "--days", "1", "-m", "contract").exit_code == 0
    for params in (None, {"namespace": "ns", "name": "t"}):
        key = "dataset_id" if params is None else "name"
        path = f"config.task_params.guest.0.echo_1.{key}"
        assert reason(node, a_job("job-not", params)) == ("NOT_AUTHORISED", path)
    listed = cli(node, "grants", "--node", STRANGER).stdout
    assert NAME in listed
    assert "in force" in listed
    assert "contract" in listed
    assert node.participant.create_job(a_job("job-granted", partner=STRANGER), STRANGER)


def test_a_grant_that_is_revoked_stops_the_start_and_is_written_down(node):
    assert cli(node, "grant", NAME, PEER).exit_code == 0
    node.participant.create_job(a_job("job-revoked"), PEER)
    assert cli(node, "revoke", NAME, PEER).exit_code == 0
    for start in (
        lambda: node.participant.hold("job-revoked", PEER),
        lambda: node.participant.start_job("job-revoked", PEER),
        lambda: node.participant.start_task("job-revoked", "task-1", "echo_1", PEER),
    ):
        with pytest.raises(NotShared) as refused:
            start()
        assert refused.value.reason == "NOT_AUTHORISED"
        assert "was revoked" in refused.value.why
    noted = [e for e in node.audit.list() if e.action == "start of job job-revoked not allowed"]
    assert noted[0].who == PEER
    assert NAME in noted[0].detail["message"]
    assert "revoked" in noted[0].detail["message"]
    assert any(e.event == "start not allowed" for e in node.store.timeline("job-revoked"))
    assert reason(node, a_job("job-after"))[0] == "NOT_AUTHORISED"  # its end does not open it
    action = f"DELETE {TABLE}/grants/{PEER}"
    [revoked] = node.audit.list(limit=1, action=action)
    assert revoked.detail["before"]["state"] == "in force"
    assert revoked.detail["after"]["state"] == "revoked"


def test_a_disabled_dataset_takes_no_jobs(node):
    node.participant.create_job(a_job("job-before"), PEER)
    assert cli(node, "disable", NAME, "-m", "units").stdout == "ns#t is disabled\n"
    assert reason(node, a_job("job-late"))[0] == "DATASET_DISABLED"
    with pytest.raises(NotShared):
        node.participant.start_job("job-before", PEER)
    assert "disabled" in cli(node, "list").stdout
    assert cli(node, "enable", NAME).exit_code == 0
    node.participant.start_job("job-before", PEER)


def test_a_dataset_that_a_job_uses_is_neither_deleted_nor_replaced(node, tmp_path):
    node.participant.create_job(a_job("job-uses"), PEER)
    cli(node, "grant", NAME, PEER)
    refused = cli(node, "delete", NAME, "--yes")
    assert refused.exit_code == 1
    assert "DATASET_IN_USE" in refused.stderr
    assert "job-uses" in refused.stderr
    assert json.loads(cli(node, "show", NAME, "--json").stdout)["used_by"] == ["job-uses"]
    assert not node.datasets.get(NAME).disabled
    kept = node.datasets.get(NAME)
    refused = uploaded(node, tmp_path, "--overwrite")
    assert refused.exit_code == 1
    assert "DATASET_IN_USE" in refused.stderr
    assert "job-uses" in refused.stderr
    assert node.datasets.get(NAME) == kept
    node.participant.stop_job("job-uses", "", None, PEER)
    wait_for(lambda: not node.sharing.users(Address("ns", "t")), 20)
    assert cli(node, "delete", NAME, "--yes").exit_code == 0
    assert not node.storage.exists(Address("ns", "t"))
    assert node.sharing.grants.all() == []


def test_a_grant_to_a_node_that_nobody_knows_is_refused_unless_forced(node):
    typo = PEER[:-1] + ("1" if PEER[-1] != "1" else "2")
    made = cli(node, "grant", NAME, typo)
    assert made.exit_code == 2 and f"did you mean {PEER}" in made.stderr, made.stderr
    assert node.sharing.grants.all() == []
    assert call(node, "PUT", f"{TABLE}/grants/{PEER}", json={}).json()["warnings"] == []
    forced = call(node, "PUT", f"{TABLE}/grants/another", json={"force": True}).json()
    assert "no route to another" in forced["warnings"][0]
    assert "did you mean" not in forced["warnings"][0]
    for wrong in ("bad id", "J" * 101, "JG-"):
        bad = cli(node, "grant", NAME, wrong, "--force")
        assert bad.exit_code == 2
        assert "must be a node id" in bad.stderr


def test_a_name_that_holds_what_separates_the_parts_of_an_id_is_refused(node, tmp_path):
    for namespace, name, where in (("ns", "b#c", "name"), ("n#s", "b", "namespace")):
        file = tmp_path / "t.csv"
        file.write_text("id\n1\n")
        refused = cli(node, "upload", str(file), "--namespace", namespace, "--name", name)
        assert (
            refused.exit_code == 2
            and f"{where}: must not hold #, which separates" in refused.stderr
        )


def test_what_cannot_be_granted_is_refused_with_every_problem(node):
    bad = call(node, "PUT", f"{TABLE}/grants/{ME}", json={"expires_at": "2020-01-01T00:00:00Z"})
    assert bad.status_code == 400
    assert [p["path"] for p in bad.json()["data"]["problems"]] == ["node", "expires_at"]
    both = call(
        node,
        "PUT",
        f"{TABLE}/grants/{PEER}",
        json={"expires_at": "2099-01-01T00:00:00Z", "days": 1},
    )
    assert both.json()["code"] == 400
    far = call(
        node, "PUT", f"{TABLE}/grants/{PEER}", json={"expires_at": "0001-01-01T00:00:00+14:00"}
    )
    assert far.json()["code"] == 400
    never = cli(node, "revoke", NAME, STRANGER)
    assert never.exit_code == 1
    assert "GRANT_UNKNOWN" in never.stderr


def test_a_node_of_listed_datasets_gives_none_away_unasked(tmp_path):
    with running(tmp_path, data={"grants": "listed"}) as other:
        call(other, "POST", "/v2/provider/register", json=A_PROVIDER)
        assert uploaded(other, tmp_path).exit_code == 0
        call(other, "PUT", f"/api/v1/routes/{PEER}", json={"route": {"url": "http://127.0.0.1:1"}})
        assert reason(other, a_job("job-1"))[0] == "NOT_AUTHORISED"
        assert other.participant.create_job(a_job("job-own", partner=ME), "")
        assert cli(other, "grant", NAME, PEER).exit_code == 0
        assert other.participant.create_job(a_job("job-2"), PEER)


def test_who_hands_a_job_in_is_told_which_dataset_is_not_granted_where(tmp_path):
    with (
        running(tmp_path / "one") as one,
        running(tmp_path / "two", PEER, data={"grants": "listed"}) as two,
    ):
        assert uploaded(two, tmp_path).exit_code == 0
        for here, there, name in ((one, two, PEER), (two, one, ME)):
            route = {"url": there.addresses()["peer"], "signing": "off"}
            assert (
                call(here, "PUT", f"/api/v1/routes/{name}", json={"route": route}).status_code
                == 200
            )
            call(here, "POST", "/v2/provider/register", json=A_PROVIDER)
        body = copy.deepcopy(A_JOB)
        body["config"]["role"] = {"guest": [ME], "host": [PEER]}
        theirs, none = {"namespace": "ns", "name": "t"}, {"dataset_id": ""}
        body["config"]["task_params"] = {
            "host": {"0": {"echo_1": theirs}},
            "guest": {"0": {"echo_1": none}},
        }
        said = call(one, "POST", "/v1/platform/schedule/job/create_all", json=body).json()
        assert said["code"] != 0
        assert "NOT_AUTHORISED" in said["msg"]
        assert NAME in said["msg"]
        assert PEER in said["msg"]
        (job,) = call(one, "GET", "/api/v1/jobs").json()["jobs"]
        shown = call(one, "GET", f"/api/v1/jobs/{job['job_id']}").json()
        assert shown["status"] == "REJECTED"
        assert shown["failure"]["reason"] == "NOT_AUTHORISED"


def test_an_encoding_is_recognised_where_none_or_auto_is_given(node, tmp_path):
    file = tmp_path / "gbk.csv"
    file.write_bytes("编号,姓名\n1,王芳\n".encode("gbk"))
    for words in ((), ("--encoding", "auto"), ("--encoding", "gbk")):
        done = cli(
            node, "upload", str(file), "--namespace", "ns", "--name", "gbk", "--overwrite", *words
        )
        assert done.exit_code == 0 and "read as GB" in done.stdout, done.stderr


def test_names_are_offered_to_the_shell(node, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "bfia-gateway data show ns")
    monkeypatch.setenv("_BFIA_GATEWAY_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "bfia-gateway data show ns")
    monkeypatch.setenv("COMP_CWORD", "3")
    monkeypatch.setenv("BFIA_GATEWAY_URL", node.addresses()["operator"])
    offered = CliRunner().invoke(app, [], prog_name="bfia-gateway")
    assert NAME in offered.stdout.splitlines(), offered.output
    monkeypatch.setenv("BFIA_GATEWAY_URL", "http://127.0.0.1:1")
    assert CliRunner().invoke(app, [], prog_name="bfia-gateway").stdout.strip() == ""


def test_a_table_that_another_program_left_is_listed(node):
    for namespace in ("upload", "job-1-guest-0"):
        folder = node.storage.root / namespace / "guest"
        folder.mkdir(parents=True)
        (folder / "data_0").write_bytes(b"\x1f\x8b")
    page = call(node, "GET", "/api/v1/datasets").json()
    url = "/api/v1/datasets/upload/guest"
    table = {
        "dataset_id": "upload#guest",
        "namespace": "upload",
        "name": "guest",
        "storage": "file",
        "url": url,
    }
    assert table in page["unregistered"]
    namespaces = {unregistered["namespace"] for unregistered in page["unregistered"]}
    assert "ns" not in namespaces
    assert "job-1-guest-0" not in namespaces
    description = call(node, "GET", url).json()
    assert description["origin"] == ""
    printed = cli(node, "list").stdout
    assert "left in the storage, not registered" in printed
    assert "upload#guest" in printed


@pytest.mark.parametrize("query", ["unregistered=false", "namespace=ns", "after=ns~t"])
def test_unregistered_tables_are_listed_once_and_on_request(node, query):
    folder = node.storage.root / "upload" / "once"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data_0").write_bytes(b"\x1f\x8b")
    page = call(node, "GET", f"/api/v1/datasets?{query}").json()
    assert page["unregistered"] == []
    assert page["warnings"] == []


PLACED = "/api/v1/datasets/ns/placed"


def placed(
    node: Gateway,
    file: str,
    data: bytes,
    *more: str,
) -> Result:
    path = node.storage.root / "warehouse" / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return cli(node, "register", f"file://{path}", "--namespace", "ns", "--name", "placed", *more)


def test_a_table_is_registered_where_it_lies_and_its_entry_deleted(node, tmp_path):
    made = placed(node, "t.csv", b"id,y\n1,0\n2,1\n", "--match-id", "id", "--label", "y")
    assert made.stdout == "registered ns#placed: 2 rows, 2 columns, 1 file of csv\n", made.stderr
    assert "data_0" in made.stderr
    assert "csv, where it lies" in cli(node, "show", "ns#placed").stdout
    noted = [e for e in node.audit.list(limit=5) if e.action == "POST /api/v1/datasets"]
    assert noted[0].detail["after"]["place"].endswith("/warehouse/t.csv")
    run = node.participant.create_job(a_job("job-placed", {"dataset_id": "ns#placed"}), PEER)
    assert run
    node.participant.stop_job("job-placed", "", None, PEER)
    (node.storage.root / "warehouse" / "t.csv").write_text("id,y\n1,0\n")
    assert "jobs are refused until" in cli(node, "show", "ns#placed").stdout
    seen = cli(node, "preview", "ns#placed")
    assert "its files changed: 1 file of 9 bytes" in seen.stderr
    with pytest.raises(Invalid, match="registered where it lies, and its files changed"):
        node.participant.create_job(
            a_job("job-changed", {"namespace": "ns", "name": "placed"}), PEER
        )
    target = tmp_path / "placed.csv"
    assert cli(node, "download", "ns#placed", "-o", str(target)).exit_code == 0
    assert target.read_text() == "id,y\n1,0\n"
    wait_for(lambda: call(node, "DELETE", PLACED).status_code == 200, about="the entry is deleted")
    assert (node.storage.root / "warehouse" / "t.csv").exists()
    assert call(node, "GET", PLACED).status_code == 404
    denied = cli(node, "register", "s3://other/a/b", "--namespace", "ns", "--name", "x")
    assert denied.exit_code == 2
    assert "write in node.yml storages" in denied.stderr


def test_a_table_of_parquet_serves_components_that_list_it(node, monkeypatch):
    file = io.BytesIO()
    pq.write_table(pa.table({"id": [1, 2], "x": [0.5, None]}), file)
    assert (
        "2 rows, 2 columns, 1 file of parquet" in placed(node, "t.parquet", file.getvalue()).stdout
    )
    seen = json.loads(cli(node, "preview", "ns#placed", "--json").stdout)
    assert seen["columns"] == ["id", "x"]
    assert seen["rows"] == [["1", "0.5"], ["2", ""]]
    whole = call(node, "GET", f"{PLACED}/download")
    assert whole.content == file.getvalue()
    assert 'filename="ns-placed.parquet"' in whole.headers["content-disposition"]
    with pytest.raises(Invalid, match="FORMAT_MISMATCH: the table is parquet") as mismatch:
        node.participant.create_job(a_job("job-parquet", {"dataset_id": "ns#placed"}), PEER)
    assert mismatch.value.problems[0].path == "config.task_params.guest.0.echo_1.dataset_id"
    folder = node.storage.root / "in" / "parts"
    folder.mkdir(parents=True)
    for name in ("a.parquet", "b.parquet"):
        (folder / name).write_bytes(file.getvalue())
    assert cli(node, "register", str(folder), "--namespace", "ns", "--name", "parts").exit_code == 0
    refused = call(node, "GET", "/api/v1/datasets/ns/parts/download").json()
    assert refused["data"]["reason"] == "NOT_ONE_FILE"
    assert refused["msg"].endswith(f"fetch them at file://{folder}")
    assert call(node, "DELETE", "/api/v1/datasets/ns/parts").status_code == 200
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'bfia-gateway[parquet]'" in cli(node, "preview", "ns#placed").stderr
    again = placed(node, "t.parquet", file.getvalue(), "--overwrite")
    assert again.exit_code == 1
    assert "PARQUET_NOT_INSTALLED" in again.stderr
    assert call(node, "DELETE", PLACED).status_code == 200
