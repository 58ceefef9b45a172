"""A data scientist's first hour at two nodes: the notebook, and further calls of the client."""

import asyncio
import io
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import polars
import pytest

from bfia_gateway_client import (
    AsyncClient,
    Client,
    Invalid,
    JobFailed,
    NoAnswer,
    NotANode,
    Refused,
    StillRunning,
)
from tests.client import notebook
from tests.e2e import jobs
from tests.e2e.nodes import ROOT, Federation, example, process_engine

# Tasks of the notebook's job.
ALIGN = "intersection"
TRAIN = "heterosecureboost"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Two nodes; the partner has uploaded its table and granted it to the bank."""
    home = tmp_path_factory.mktemp("first-hour")
    engine = process_engine("bfia-reference-vendor:1.0.0")
    registration = example("reference_vendor/register_reference.json")
    with Federation(home, [jobs.GUEST, jobs.HOST], engine) as federation:
        for node in federation.nodes.values():
            with Client(node.operator) as client:
                registered = client.providers.register(registration)
                assert registered.provider_name == "reference:1.0.0@docker"
                assert registered.action == "registered"
        with Client(federation[jobs.HOST].operator) as partner:
            partner.data.upload(
                jobs.DATA / "breast_hetero_host.csv", "shop", "baskets", match_id="id"
            )
            assert partner.data.grant("shop#baskets", jobs.GUEST, days=1).state == "in force"
        yield federation


@pytest.fixture
def client(two: Federation) -> Iterator[Client]:
    with Client(two[jobs.GUEST].operator) as client:
        yield client


@pytest.fixture(scope="module")
def hour(two: Federation) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The values of the notebook's variables, and the text that each cell shows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT / "examples")
        patch.setenv("BFIA_GATEWAY_URL", two[jobs.GUEST].operator)
        patch.setenv("PARTNER_NODE", jobs.HOST)
        patch.setenv("PARTNER_URL", two[jobs.HOST].operator)
        yield notebook.run(Path("first_hour.ipynb"))


def test_the_notebook_trains_reads_curves_and_predicts(hour):
    names, texts = hour
    assert "('heterosecureboost', 'train-loss')" in "".join(texts)
    assert names["auc"] > 0.98
    assert len(names["loss"]) == 3
    assert len(names["common"]) > 400
    assert len(names["scores"]) == len(names["common"])
    assert len(names["predicted"]) == len(names["common"])
    assert isinstance(
        names["predicted"],
        pandas.DataFrame | polars.DataFrame,
    )


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_table_is_a_frame_of_either_library_and_its_ids_stay_text(client, hour, library):
    names, _ = hour
    job_id = names["job_id"]
    table: Any = client.jobs.table(
        job_id,
        ALIGN,
        "train_data",
        to=library,
        progress=False,
    )
    assert type(table).__module__.startswith(library)
    assert len(table) == len(names["common"])
    assert {len(row_id) for row_id in table["id"]} == {8}  # "02474471" has kept its zero

    file = io.BytesIO(b"id,x,note\n007,0.5,1\nNA,,None\n")
    client.data.upload(
        file,
        "bank",
        library,
        match_id="id",
        progress=False,
    )
    uploaded: Any = client.data.table(
        f"bank#{library}",
        to=library,
        text=["note"],
        progress=False,
    )
    assert list(uploaded["id"]) == ["007", "NA"]
    assert list(uploaded["note"]) == ["1", "None"]
    assert uploaded["x"][0] == 0.5
    assert uploaded["x"].count() == 1

    curve: Any = client.jobs.curve(
        job_id,
        TRAIN,
        "train-loss",
        to=library,
    )
    assert list(curve.columns) == ["tree", "loss"]
    assert len(curve) == 3


def test_a_missing_table_or_a_report_is_refused_and_leaves_no_file(client, hour, tmp_path):
    job_id = hour[0]["job_id"]
    for arguments, paths in (
        ((TRAIN, "none"), ["task"]),
        ((TRAIN, "train_data", "host.0"), []),
    ):
        with pytest.raises((Invalid, Refused)) as caught:
            client.jobs.download(job_id, *arguments, file=tmp_path / "out", progress=False)
        assert [problem.path for problem in caught.value.problems] == paths
    with pytest.raises(Invalid, match="is a report, not a table"):
        client.jobs.table(
            job_id,
            TRAIN,
            "train-auc",
            progress=False,
        )
    with pytest.raises(Invalid, match="loss"):
        client.jobs.curve(
            job_id,
            TRAIN,
            "train-loss",
            series="nothing",
        )
    with pytest.raises(Invalid, match="has no tables: report\\(\\) returns its values"):
        client.jobs.curve(job_id, TRAIN, "train-auc")
    assert list(tmp_path.iterdir()) == []
    file = client.jobs.download(
        job_id, TRAIN, "train_data", file=tmp_path / "scores.csv", progress=False
    )
    assert file.read_text().startswith("id,")


def test_logs_are_read_line_by_line_and_followed_by_both_clients(two, client, hour):
    job_id = hour[0]["job_id"]
    lines = list(client.jobs.logs(job_id, TRAIN))
    assert lines
    assert list(client.jobs.logs(job_id, TRAIN, "guest.0", tail=2)) == lines[-2:]

    async def follow():
        async with AsyncClient(two[jobs.GUEST].operator) as client:
            states = [job.status async for job in client.jobs.states(job_id)]
            log = client.jobs.logs(
                job_id,
                TRAIN,
                follow=True,
            )
            return [line async for line in log], states

    followed_lines, states = asyncio.run(follow())
    assert followed_lines == lines
    assert states == ["FINISHED"]
    with pytest.raises(Invalid, match="there are: intersection"):
        next(client.jobs.logs(job_id, "nothing"))


def test_a_model_travels_through_an_archive(client, two, hour, tmp_path):
    version = hour[0]["job_id"]
    assert client.models.show("first-hour", version, verify=True).model_dump()["damage"] == []
    archive = client.models.export(
        "first-hour",
        version,
        tmp_path / "model.zip",
        progress=False,
    )

    async def import_at_partner():
        async with AsyncClient(two[jobs.HOST].operator) as partner:
            return await partner.models.import_(archive)

    imported = asyncio.run(import_at_partner())
    assert imported.version == version
    assert imported.here == ["guest.0", "host.0"]


def test_a_draft_names_everything_that_is_missing_or_mistyped(client, hour):
    components = ["reference/Intersection", "reference/HeteroSecureBoost"]
    with pytest.raises(Invalid) as caught:
        client.jobs.draft(
            components,
            {
                "guest": jobs.GUEST,
                "hots": jobs.HOST,
            },
            {"guest": "bank#customers"},
            parameters={
                "heterosecureboost": {"num_tree": 3},
                "intersect": {},
            },
        )
    suggestions = {problem.path: problem.suggestion for problem in caught.value.problems}
    assert suggestions == {
        "parties.host": "",
        "data.host": "",
        "parties.hots": "host",
        "parameters.heterosecureboost.num_tree": "num_trees",
        "parameters.intersect": "intersection",
    }
    with pytest.raises(Refused, match="did you mean reference"):
        client.jobs.draft(
            ["referense/Intersection"],
            {},
            {},
        )
    with pytest.raises(Invalid, match="it has Intersection"):
        client.jobs.draft(
            ["reference/Nothing"],
            {},
            {},
        )
    with pytest.raises(Invalid, match="PROVIDER/COMPONENT"):
        client.jobs.draft(
            ["Intersection"],
            {},
            {},
        )


def test_a_refusal_carries_reason_problems_and_the_next_step(client):
    with pytest.raises(Invalid) as caught:
        client.jobs.submit(
            {
                "flow_id": "x",
                "dag": {
                    "version": "2.0",
                    "components": [],
                },
                "config": {"role": 1},
            }
        )
    assert caught.value.reason == "INVALID"
    assert "config.role" in {problem.path for problem in caught.value.problems}
    assert caught.value.next_step.startswith("Correct what is listed")
    assert str(caught.value).endswith(f"Next step: {caught.value.next_step}")

    parties = {
        "guest": jobs.GUEST,
        "host": jobs.HOST,
    }
    data = {
        "guest": "bank#nothing",
        "host": "shop#baskets",
    }
    with pytest.raises(Invalid) as caught:
        client.jobs.submit(client.jobs.draft(["reference/Intersection"], parties, data))
    (problem,) = caught.value.problems
    assert problem.path == "config.task_params.guest.0.intersection.dataset_id"
    assert caught.value.data["job_id"]
    assert problem.rule == "dataset bank#nothing is not in this node's storage"
    assert problem.node == jobs.GUEST
    assert problem.reason == caught.value.reason == "DATASET_UNKNOWN"
    assert problem.next_step == caught.value.next_step


@pytest.mark.parametrize(
    "value",
    [float("nan"), object(), "\ud800"],
    ids=["nan", "object", "text"],
)
def test_a_job_that_json_cannot_express_is_refused(client, value):
    with pytest.raises(Invalid, match="JSON cannot express"):
        client.jobs.submit({"flow_id": value})


def test_wrong_arguments_are_refused_before_a_request(client):
    wrong: Any = "x"
    for call in (client.jobs.submit, client.jobs.plan):
        with pytest.raises(Invalid, match="must be a mapping"):
            call(wrong)
    for limit in (0, -1):
        with pytest.raises(Invalid, match="must be 1 or more"):
            client.jobs.list(limit=limit)
    with pytest.raises(Invalid, match="must not be empty"):
        client.jobs.show("")
    with pytest.raises(Invalid, match="namespace#name"):
        client.data.show("customers")
    with pytest.raises(Invalid, match="No such file"):
        client.data.upload("nowhere.csv", "bank", "none")


def test_an_unknown_job_and_a_second_dataset_have_a_next_step(client, two):
    with pytest.raises(Refused) as refused:
        client.jobs.show("job-404")
    assert refused.value.reason == "JOB_UNKNOWN"
    assert refused.value.status == 404
    assert refused.value.next_step
    client.data.upload(
        io.BytesIO(b"id\n1\n"),
        "bank",
        "twice",
        progress=False,
    )
    with pytest.raises(Refused) as exists:
        client.data.upload(
            io.BytesIO(b"id\n1\n"),
            "bank",
            "twice",
            progress=False,
        )
    assert exists.value.reason == "DATASET_EXISTS"
    assert exists.value.next_step
    guest = two[jobs.GUEST]
    with Client(guest.operator, language="zh") as chinese, pytest.raises(Refused) as refused:
        chinese.jobs.show("job-404")
    assert refused.value.next_step.endswith("。")
    with Client(guest.peer) as peer_listener, pytest.raises((Refused, NotANode)):
        peer_listener.jobs.list()


def test_a_job_that_fails_raises_its_failure(client):
    components = ["reference/Intersection"]
    parties = {
        "guest": jobs.GUEST,
        "host": jobs.HOST,
    }
    data = {
        "guest": "bank#twice",
        "host": "shop#baskets",
    }
    wrong = {"intersection": {"id": "nothing"}}
    job_id = client.jobs.submit(client.jobs.draft(components, parties, data, parameters=wrong))
    with pytest.raises(StillRunning, match="after 0 s"):
        client.jobs.watch(
            job_id,
            progress=False,
            timeout=0,
        )
    with pytest.raises(JobFailed) as caught:
        client.jobs.watch(
            job_id,
            progress=False,
        )
    assert caught.value.next_step
    assert f"{job_id} FAILED: " in str(caught.value)
    job = client.jobs.watch(
        job_id,
        check=False,
        progress=False,
    )
    assert job.outcome == "FAILED"
    assert job.failure is not None
    assert caught.value.reason == job.failure.reason
    assert caught.value.data["task"] == "intersection"


def test_routes_are_added_tested_and_rolled_back(client):
    assert client.routes.test(jobs.HOST).good
    before = client.routes.history(limit=1)[0].version
    added = client.routes.add(
        "JG0100003300000030",
        url="http://127.0.0.1:9",
        reason="a partner",
    )
    assert [change.node for change in added.changes] == ["JG0100003300000030"]
    assert client.routes.change("JG0100003300000030", enabled=False).version == before + 2
    assert client.routes.version(before + 2).changes[0].field == "enabled"
    client.routes.rollback(
        before,
        reason="not yet",
    )
    assert {route.node for route in client.routes.list()} == {jobs.HOST}
    with pytest.raises(Invalid) as caught:
        client.routes.add(
            "JG0100003300000030",
            url="nowhere",
        )
    assert caught.value.reason == "ROUTE_INVALID"
    assert caught.value.problems


def test_after_a_cut_the_next_step_is_to_check_for_the_change():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def close_connections():
            for _ in range(4):
                connection, _ = server.accept()
                connection.recv(65536)
                connection.close()

        threading.Thread(target=close_connections, daemon=True).start()
        with Client(f"http://127.0.0.1:{server.getsockname()[1]}") as client:
            for call, arguments, step in (
                (client.jobs.submit, [{}], "jobs.list"),
                (client.providers.register, [{"name": "plan"}], "jobs.list"),
                (client.jobs.plan, [{}], "Check the address"),
                (client.session, [], "Check the address"),
            ):
                with pytest.raises(NoAnswer) as caught:
                    call(*arguments)
                assert step in caught.value.next_step


def test_an_address_without_a_listener_does_not_show_the_token():
    with Client("http://127.0.0.1:9", "bfia_secret") as client, pytest.raises(NoAnswer) as caught:
        client.session()
    assert "bfia_secret" not in str(caught.value)
    assert caught.value.next_step


def test_a_missing_or_wrong_address_or_token_is_refused(monkeypatch):
    monkeypatch.delenv("BFIA_GATEWAY_URL", raising=False)
    with pytest.raises(Invalid, match="set BFIA_GATEWAY_URL"):
        Client()
    for url in ("127.0.0.1:7382", "ftp://x"):
        with pytest.raises(Invalid, match="is not a valid address"):
            Client(url)
    with pytest.raises(Invalid, match="copy the token again"):
        Client("http://127.0.0.1:9", "a b")
