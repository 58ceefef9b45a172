"""What outputs at another node are like: with a grant, written down, and never a row."""

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from adapter.bfia import interconn
from gateway.bootstrap.node import Gateway
from gateway.data.outputs import OutputQuery
from gateway.domain.datasets import Grant
from gateway.domain.run import Address
from gateway.store.repositories import SqlGrants
from tests.cleaning.ended import a_job_over, ago, left_behind
from tests.cli import call_node
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER, ask, running

JOB = "job-00000000000000000000000000000071"
SECRET = "row-that-stays-here"
PATH = "/v1/interconn/schedule/output/metadata"
WORDS = {
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
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Gateway]]:
    """Yield the node where the outputs lie and the partner that asks; the partner calls it in BFIA's way."""
    home = tmp_path_factory.mktemp("nodes")
    for name in (ME, PEER):
        (home / name).mkdir()
        (home / name / "routes.yml").write_text(
            yaml.safe_dump({STRANGER: {"url": "http://127.0.0.1:9"}})
        )
    with running(home / ME) as here, running(home / PEER, PEER, fate={"enabled": True}) as there:
        for one, other in ((here, there), (there, here)):
            route = {"url": other.addresses()["peer"], "signing": "off"}
            name = other.settings.node.id
            assert (
                ask(
                    one, "operator", "PUT", f"/api/v1/routes/{name}", json={"route": route}
                ).status_code
                == 200
            )
        left_behind(here, JOB, 60.0)
        for key in ("out", "model", "report"):
            folder = here.storage.root / f"{JOB}-guest-0" / f"task_{JOB}-{key}"
            (folder / "data_0").write_text(f"id,x\n{SECRET},2\n")
            if key == "out":
                (folder / "metadata").write_text(json.dumps(WORDS))
        told = replace(a_job_over(JOB, 60.0), node=PEER, runs=())
        assert there.store.local_jobs.add(told, "flow")
        yield here, there


@pytest.fixture(autouse=True)
def nothing_granted(nodes: tuple[Gateway, Gateway]) -> None:
    for key in ("out", "model", "report"):
        SqlGrants(nodes[0].store).forget(address(key))


def address(key: str) -> Address:
    return Address(f"{JOB}-guest-0", f"task_{JOB}-{key}")


def granted(
    node: Gateway,
    key: str,
    to: str = PEER,
) -> None:
    at = address(key)
    done = call_node("data", node, "grant", f"{at.namespace}#{at.name}", to)
    assert done.exit_code == 0, done.stderr


def asked(
    node: Gateway,
    party: str = "guest.0",
    key: str = "",
    task: str = "a",
    job: str = JOB,
) -> Any:
    path = f"/api/v1/jobs/{job}/metadata/{task}/{party}" + (f"/{key}" if key else "")
    answer = ask(node, "operator", "GET", path)
    assert SECRET not in answer.text
    return answer.json()


def by_peer(
    node: Gateway,
    sender: str = PEER,
    **body: str,
) -> Any:
    wanted = {
        "job_id": JOB,
        "task_name": "a",
        "role": "guest.0",
        **body,
    }
    answer = ask(node, "peer", "POST", PATH, json=wanted, headers={"x-node-id": sender})
    assert answer.status_code == 200
    assert SECRET not in answer.text
    return answer.json()


def test_without_a_grant_the_refusal_only_says_how_to_get_one(nodes):
    here, there = nodes
    assert here.settings.data.grants == "open"  # that is about jobs: metadata is never open
    said = asked(there, key="out")
    assert said["code"] == 403
    assert said["data"]["reason"] == "NOT_AUTHORISED"
    at = address("out")
    assert f"bfia-gateway data grant '{at.namespace}#{at.name}' {PEER}" in said["msg"]
    (refused,) = wait_for(
        lambda: [e for e in here.audit.list() if PATH in e.action], 20, 0.02, "it is in the audit"
    )
    assert refused.who == f"node {PEER}"
    assert refused.status == 403


def test_a_grant_reveals_columns_and_count_and_is_recorded(nodes):
    here, there = nodes
    granted(here, "out")
    (one,) = asked(there, key="out")["outputs"]
    assert one == {
        "task": "a",
        "party": "guest.0",
        "key": "out",
        "type": "dataset",
        **address("out").as_dict(),
        "there": True,
        "count": 2,
        "columns": [{"name": "id", "type": "string"}, {"name": "x", "type": "float"}],
        "partitions": 1,
        "bytes": len(f"id,x\n{SECRET},2\n"),
        "description": "the intersection",
        "id_column": "id",
        "label_column": "",
        "created_at": "2026-09-21T14:13:20+00:00",
    }
    noted = here.audit.list()[0]
    assert noted.who == f"node {PEER}"
    assert noted.action == f"POST {PATH}"
    assert noted.status == 200
    assert noted.detail["outputs"] == [f"{JOB}-guest-0#task_{JOB}-out"]
    shown = call_node("job", there, "metadata", JOB, "a", "guest.0", "out")
    assert shown.exit_code == 0
    assert "id string, x float" in shown.stdout
    assert SECRET not in shown.stdout


def test_a_task_reveals_what_is_granted_and_nothing_undescribed(nodes):
    here, there = nodes
    granted(here, "report")
    (one,) = asked(there, "guest")[
        "outputs"
    ]  # the file's first line could be a row: it is not read
    assert one["key"] == "report"
    assert one["count"] is None
    assert one["columns"] == []
    assert (one["bytes"] > 0) is True
    assert asked(there, key="out")["data"]["reason"] == "NOT_AUTHORISED"


def test_a_grant_that_ended_tells_nothing_any_more(nodes):
    here, there = nodes
    SqlGrants(here.store).put(Grant(address("out"), PEER, ago(60), "ann", expires_at=ago(30)))
    assert asked(there, key="out")["data"]["reason"] == "NOT_AUTHORISED"
    granted(here, "out")
    at = address("out")
    for _ in range(2):  # ended once; by then it is no more than so
        assert call_node("data", here, "revoke", f"{at.namespace}#{at.name}", PEER).exit_code == 0
    said = asked(there, key="out")
    assert said["data"]["reason"] == "NOT_AUTHORISED"
    assert "revoked" in said["msg"]


def test_only_nodes_of_the_job_are_told_whatever_is_granted(nodes):
    granted(nodes[0], "out", STRANGER)
    said = by_peer(nodes[0], STRANGER)
    assert said["code"] == 404
    assert said["data"]["reason"] == "JOB_UNKNOWN"
    assert said["msg"].replace(JOB, "none") == by_peer(nodes[0], STRANGER, job_id="none")["msg"]


def test_a_disabled_output_is_closed_to_those_who_had_it_granted(nodes, monkeypatch):
    granted(nodes[0], "out")
    monkeypatch.setattr(nodes[0].sharing, "disabled", lambda address: True)
    assert "is disabled at node" in asked(nodes[1], key="out")["msg"]


def test_of_broken_outputs_what_is_certain_is_told(nodes):
    here, _ = nodes
    metadata = here.storage.path(address("out")) / "metadata"
    before = metadata.read_bytes()
    metadata.write_bytes(b"{")
    try:
        (one,) = asked(here, key="out")["outputs"]
        assert one["there"] is True
        assert one["count"] is None
        assert one["columns"] == []
        assert (one["bytes"] > 0) is True
        further = metadata.with_name("data_2")
        further.write_text("id,x\n")
        (one,) = asked(here, key="out")["outputs"]
        assert one["there"] is False
        assert one["bytes"] == 0
        further.unlink()
        there = metadata.with_name("data_0").rename(metadata.parent.with_name("aside"))
        assert asked(here, key="out")["outputs"][0]["there"] is False
        there.rename(metadata.with_name("data_0"))
    finally:
        metadata.write_bytes(before)


def test_the_nodes_own_people_need_no_grant(nodes):
    here, _ = nodes
    assert [o["key"] for o in asked(here)["outputs"]] == ["out", "model", "report"]
    assert asked(here, "arbiter")["data"]["reason"] == "PARTY_UNKNOWN"
    assert asked(here, task="z")["data"]["reason"] == "TASK_UNKNOWN"
    assert asked(here, task="b")["data"]["reason"] == "OUTPUT_MISSING"
    assert asked(here, key="z")["data"]["reason"] == "OUTPUT_UNKNOWN"
    assert asked(here, job="job-nowhere")["data"]["reason"] == "JOB_UNKNOWN"


def test_what_a_peer_says_beyond_the_metadata_is_left_aside():
    said = {
        "task": "a",
        "party": "guest.0",
        "key": "out",
        "type": "dataset",
        "namespace": "n",
        "name": "m",
    }
    said |= {
        "there": True,
        "rows": [[SECRET]],
        "columns": [
            {
                "name": "x",
                "type": "int",
                "sample": SECRET,
            }
        ],
    }
    peer: Any = SimpleNamespace(ask=lambda command, body: {"outputs": [said]})
    (one,) = interconn.ask_output_metadata(peer, OutputQuery("job", "a", "guest"))
    assert one.columns[0].name == "x"
    assert SECRET not in json.dumps(one.as_dict())
