"""Metadata of outputs at a partner: only with a grant, always audited, and never a row."""

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from adapter.bfia import interconn
from gateway.data.outputs import OutputQuery
from gateway.domain.datasets import Grant
from gateway.domain.run import Address
from gateway.store.repositories import SqlGrants
from tests.cleaning.ended import a_job_over, ago, left_behind
from tests.cli import call_node
from tests.e2e.nodes import wait_for
from tests.inprocess import PEER, STRANGER, Node
from tests.world import UNREACHABLE

JOB = "job-00000000000000000000000000000071"
PATH = "/v1/interconn/schedule/output/metadata"
OUTPUT_KEYS = ("out", "model", "report")

SECRET = "row-that-stays-here"  # a value of the table, which no partner may learn
TABLE = f"id,x\n{SECRET},2\n"
METADATA = {
    "count": 2,
    "column_info": [
        {"name": "id", "type": "string"},
        {
            "name": "x",
            "type": "float",
            "sample": SECRET,
        },
    ],
    "description": "the intersection",
    "id_column": "id",
    "create_time": 1_790_000_000,
    "rows": [[SECRET, 1]],
    "meta": {"first": SECRET},
}


@pytest.fixture(scope="module")
def nodes(shared_world) -> tuple[Node, Node]:
    """The owner of the outputs, and a partner of the job that calls the owner by BFIA's paths."""
    routes = {STRANGER: UNREACHABLE}
    owner = shared_world.node(routes=routes)
    partner = shared_world.node(
        node_id=PEER,
        routes=routes,
        settings={"fate": {"enabled": True}},
    )
    shared_world.connect(
        owner,
        partner,
        signing="off",
    )
    left_behind(owner, JOB, 60.0)
    for key in OUTPUT_KEYS:
        folder = owner.storage.root / f"{JOB}-guest-0" / f"task_{JOB}-{key}"
        (folder / "data_0").write_text(TABLE)
        if key == "out":
            (folder / "metadata").write_text(json.dumps(METADATA))
    job = replace(
        a_job_over(JOB, 60.0),
        node=PEER,
        runs=(),
    )
    assert partner.store.local_jobs.add(job, "flow")
    return owner, partner


@pytest.fixture
def owner(nodes: tuple[Node, Node]) -> Node:
    """The node with the outputs, none of them granted."""
    owner, _ = nodes
    for key in OUTPUT_KEYS:
        SqlGrants(owner.store).forget(address_of(key))
    return owner


@pytest.fixture
def partner(nodes: tuple[Node, Node]) -> Node:
    """The node that asks for metadata of the outputs."""
    return nodes[1]


def address_of(key: str) -> Address:
    """Return the address of an output in the owner's storage."""
    return Address(f"{JOB}-guest-0", f"task_{JOB}-{key}")


def dataset_id_of(key: str) -> str:
    """Return the address of an output as commands have it."""
    address = address_of(key)
    return f"{address.namespace}#{address.name}"


def grant(
    owner: Node,
    key: str,
    grantee: str = PEER,
) -> None:
    """Grant an output to a node."""
    granted = call_node(
        "data",
        owner,
        "grant",
        dataset_id_of(key),
        grantee,
    )
    assert granted.exit_code == 0, granted.stderr


def get_metadata(
    node: Node, party: str = "guest.0", key: str = "", task: str = "a", job: str = JOB
) -> Any:
    """Return the outputs of a task, or one output by its key, as operators see them."""
    path = f"/api/v1/jobs/{job}/metadata/{task}/{party}"
    if key:
        path += f"/{key}"
    response = node.get(path)
    assert SECRET not in response.text
    return response.json()


def reason_for(node: Node, **output: str) -> str:
    """Return the reason of the refusal of an output's metadata."""
    return get_metadata(node, **output)["data"]["reason"]


def request_by_node(
    owner: Node,
    sender: str,
    **fields: str,
) -> Any:
    """Send a partner's request for metadata to the owner; return the body of the response."""
    body = {
        "job_id": JOB,
        "task_name": "a",
        "role": "guest.0",
        **fields,
    }
    headers = {"x-node-id": sender}
    response = owner.request(
        "POST",
        PATH,
        listener="peer",
        json=body,
        headers=headers,
    )
    assert response.status_code == 200
    assert SECRET not in response.text
    return response.json()


# ---------------------------------------------------------------- ids


def test_the_ids_of_an_output_are_known_from_its_partys_dataset(owner, tmp_path):
    """An image of the standard writes the columns, and not which of them has the ids."""
    table = tmp_path / "people.csv"
    table.write_text("uid,x\n007,1\n")
    uploaded = call_node(
        "data",
        owner,
        "upload",
        str(table),
        "--namespace",
        "bank",
        "--name",
        "people",
        "--match-id",
        "uid",
    )
    assert uploaded.exit_code == 0, uploaded.output
    job_id = "job-00000000000000000000000000000072"
    local = a_job_over(job_id, 60.0)
    parameters = {"guest": {"0": {"a": {"dataset_id": "bank#people"}}}}
    local = replace(local, spec=replace(local.spec, task_params=parameters))
    assert owner.store.local_jobs.add(local, "flow")
    folder = owner.storage.root / f"{job_id}-guest-0" / f"task_{job_id}-out"
    folder.mkdir(parents=True)
    (folder / "data_0").write_text("uid,score\n007,0.5\n")
    columns = [{"name": "uid", "type": "int"}, {"name": "score", "type": "float"}]
    (folder / "metadata").write_text(json.dumps({"count": 1, "column_info": columns}))

    (output,) = get_metadata(owner, key="out", job=job_id)["outputs"]

    assert output["id_column"] == "uid"


# ---------------------------------------------------------------- grants


def test_without_a_grant_the_refusal_only_says_how_to_get_one(owner, partner):
    # jobs may use every dataset of this node; metadata needs a grant nevertheless
    assert owner.settings.data.grants == "open"

    refused = get_metadata(partner, key="out")

    assert refused["code"] == 403
    assert refused["data"]["reason"] == "NOT_AUTHORISED"
    assert f"bfia-gateway data grant '{dataset_id_of('out')}' {PEER}" in refused["msg"]

    def audited() -> list[Any]:
        return [entry for entry in owner.audit.list() if PATH in entry.action]

    (entry,) = wait_for(audited, 20, 0.02, "it is in the audit")
    assert entry.who == f"node {PEER}"
    assert entry.status == 403


def test_a_grant_reveals_columns_and_count_and_is_recorded(owner, partner):
    grant(owner, "out")

    (output,) = get_metadata(partner, key="out")["outputs"]

    assert output == {
        "task": "a",
        "party": "guest.0",
        "key": "out",
        "type": "dataset",
        **address_of("out").as_dict(),
        "there": True,
        "count": 2,
        "columns": [
            {"name": "id", "type": "string"},
            {"name": "x", "type": "float"},
        ],
        "partitions": 1,
        "bytes": len(TABLE),
        "description": "the intersection",
        "id_column": "id",
        "label_column": "",
        "created_at": "2026-09-21T14:13:20+00:00",
    }
    entry, *_ = owner.audit.list()
    assert entry.who == f"node {PEER}"
    assert entry.action == f"POST {PATH}"
    assert entry.status == 200
    assert entry.detail["outputs"] == [dataset_id_of("out")]
    printed = call_node(
        "job",
        partner,
        "metadata",
        JOB,
        "a",
        "guest.0",
        "out",
    )
    assert printed.exit_code == 0
    assert "id string, x float" in printed.stdout
    assert SECRET not in printed.stdout


def test_a_task_reveals_only_granted_and_described_outputs(owner, partner):
    grant(owner, "report")
    (output,) = get_metadata(partner, "guest")["outputs"]
    assert output["key"] == "report"
    # without metadata the columns stay unknown: the file's first line could be a row
    assert output["count"] is None
    assert output["columns"] == []
    assert output["bytes"] > 0
    assert reason_for(partner, key="out") == "NOT_AUTHORISED"


def test_an_expired_grant_reveals_nothing(owner, partner):
    expired = Grant(
        address_of("out"),
        PEER,
        ago(60),
        "ann",
        expires_at=ago(30),
    )
    SqlGrants(owner.store).put(expired)
    assert reason_for(partner, key="out") == "NOT_AUTHORISED"


def test_a_revoked_grant_reveals_nothing(owner, partner):
    grant(owner, "out")
    for _ in range(2):  # a second revocation changes nothing
        revoked = call_node(
            "data",
            owner,
            "revoke",
            dataset_id_of("out"),
            PEER,
        )
        assert revoked.exit_code == 0
    refused = get_metadata(partner, key="out")
    assert refused["data"]["reason"] == "NOT_AUTHORISED"
    assert "revoked" in refused["msg"]


def test_a_node_outside_the_job_learns_nothing_in_spite_of_a_grant(owner):
    grant(owner, "out", STRANGER)
    refused = request_by_node(owner, STRANGER)
    assert refused["code"] == 404
    assert refused["data"]["reason"] == "JOB_UNKNOWN"
    unknown = request_by_node(
        owner,
        STRANGER,
        job_id="none",
    )
    assert refused["msg"].replace(JOB, "none") == unknown["msg"]


def test_a_disabled_output_is_closed_in_spite_of_a_grant(owner, partner, monkeypatch):
    grant(owner, "out")
    monkeypatch.setattr(owner.sharing, "is_disabled", lambda address: True)
    assert "is disabled at node" in get_metadata(partner, key="out")["msg"]


def test_the_operators_of_the_owner_need_no_grant(owner):
    outputs = get_metadata(owner)["outputs"]
    assert [output["key"] for output in outputs] == list(OUTPUT_KEYS)


def test_a_task_may_be_named_by_its_id(owner):
    assert get_metadata(owner, task=f"task_{JOB}") == get_metadata(owner, task="a")


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ({"party": "arbiter"}, "PARTY_UNKNOWN"),
        ({"task": "z"}, "TASK_UNKNOWN"),
        ({"task": "b"}, "OUTPUT_MISSING"),
        ({"key": "z"}, "OUTPUT_UNKNOWN"),
        ({"job": "job-nowhere"}, "JOB_UNKNOWN"),
    ],
)
def test_the_operators_of_the_owner_learn_why_an_output_is_unknown(owner, output, reason):
    assert reason_for(owner, **output) == reason


# ---------------------------------------------------------------- damaged and hostile metadata


@pytest.fixture
def out_folder(owner: Node) -> Iterator[Any]:
    """The folder of the output ``out``; its metadata is restored after the test."""
    folder = owner.storage.path(address_of("out"))
    metadata = (folder / "metadata").read_bytes()
    yield folder
    (folder / "metadata").write_bytes(metadata)


def test_an_output_with_broken_metadata_has_only_a_size(owner, out_folder):
    (out_folder / "metadata").write_bytes(b"{")
    (output,) = get_metadata(owner, key="out")["outputs"]
    assert output["there"] is True
    assert output["count"] is None
    assert output["columns"] == []
    assert output["bytes"] > 0


def test_an_output_without_one_of_its_parts_is_missing(owner, out_folder):
    (out_folder / "metadata").write_bytes(b"{")

    # data_1 is missing
    third_part = out_folder / "data_2"
    third_part.write_text("id,x\n")
    (output,) = get_metadata(owner, key="out")["outputs"]
    third_part.unlink()
    assert output["there"] is False
    assert output["bytes"] == 0

    part = out_folder / "data_0"
    moved = part.rename(out_folder.with_name("aside"))
    (output,) = get_metadata(owner, key="out")["outputs"]
    moved.rename(part)
    assert output["there"] is False


def test_fields_of_a_partner_beyond_the_metadata_are_ignored():
    output = {
        "task": "a",
        "party": "guest.0",
        "key": "out",
        "type": "dataset",
        "namespace": "n",
        "name": "m",
        "there": True,
        "rows": [[SECRET]],
        "columns": [{"name": "x", "type": "int", "sample": SECRET}],
    }
    peer: Any = SimpleNamespace(ask=lambda command, body: {"outputs": [output]})
    (metadata,) = interconn.ask_output_metadata(
        peer,
        OutputQuery("job", "a", "guest"),
    )
    assert metadata.columns[0].name == "x"
    assert SECRET not in json.dumps(metadata.as_dict())
