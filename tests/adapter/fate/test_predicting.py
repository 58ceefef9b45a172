"""Predictions that FATE's tools ask for: refused, each for its own reason, or given the model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.bootstrap.node import Gateway
from gateway.domain.dag import ComponentRef
from gateway.domain.models import Kept, ModelPart, PartyModel
from gateway.domain.run import Address
from gateway.domain.spec import Party
from gateway.store.models import SqlModels
from provider_registry.registration import provider_from_request
from tests.builders import T0
from tests.contracts.apis import IMAGE, registration
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, STRANGER, ask, running
from tests.memory_engine import MemoryEngine, Script

PARTIES = (Party("guest", 0, ME), Party("host", 0, ME))
THING = ComponentRef("vendor", "1.0.0", "Thing")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    def engine(settings: Any, installation: str) -> MemoryEngine:
        images = {IMAGE: lambda _: Script(code=None)}
        return MemoryEngine(node=settings.node.id, installation=installation, images=images)

    home: Path = tmp_path_factory.mktemp("node")
    with running(home, make_engine=engine, fate={"enabled": True}) as gateway:
        gateway.registry.register(provider_from_request(registration()))
        trained(gateway, "v-own", PARTIES)
        trained(gateway, "v-others", tuple(Party(p.role, p.index, STRANGER) for p in PARTIES))
        yield gateway


def trained(node: Gateway, version: str, by: tuple[Party, ...]) -> None:
    """Keep a model of nodes at this one, as an import does that was trained elsewhere."""
    kept = []
    for party in PARTIES:
        address = place(version, party.role)
        folder = node.storage.path(address)
        folder.mkdir(parents=True)
        (folder / "data_0").write_text("{}")
        part = ModelPart("a", THING, "model0", "model", address)
        kept.append(Kept(PartyModel("credit", version, party, by, f"job-{version}", "flow", T0, (part,))))
    SqlModels(node.store).add(kept)


def place(version: str, role: str) -> Address:
    return Address(f"job-{version}-{role}-0", "task_a-model0")


def predict(node: Gateway, version: str) -> dict[str, Any]:
    dag = {
        "parties": [{"role": role, "party_id": [ME]} for role in ("guest", "host")],
        "stage": "predict",
        "conf": {"model_warehouse": {"model_id": "credit", "model_version": version}},
        "tasks": {"a": {"component_ref": "Thing", "parameters": {}}},
    }
    schema = {"kind": "bfia", "schema_version": "2.2.0", "dag": dag}
    answer = ask(node, "operator", "POST", "/v2/job/submit", json={"dag_schema": schema})
    assert answer.status_code == 200
    return dict(answer.json())


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("v-of-nobody", "MODEL_UNKNOWN"),
        ("v-others", "MODEL_NOT_AUTHORISED"),
        ("v-own", "MODEL_NOT_DEPLOYED"),
    ],
)
def test_a_model_that_may_not_be_used_refuses_the_job_at_its_creation(node: Gateway, version: str, reason: str):
    if version != "v-of-nobody":
        node.models.undeploy("credit", version)
    before = set(node.coordinator.jobs(None))
    said = predict(node, version)
    assert (said["code"], said["data"]["reason"]) == (1002, reason)
    assert version in said["message"]
    assert not (set(node.coordinator.jobs(None)) - before) & {j.job_id for j in node.store.local_jobs.list()}


def test_the_deployed_model_is_where_the_containers_look_for_it(node: Gateway):
    node.models.deploy("credit", "v-own")
    said = predict(node, "v-own")
    assert said["code"] == 0, said
    assert (said["data"]["model_id"], said["data"]["model_version"]) == ("credit", "v-own")
    engine = node.engine
    assert isinstance(engine, MemoryEngine)
    wait_for(lambda: len({spec.labels["bfia.role"] for spec in engine.launches}) == 2, 30, 0.02, "both run")
    for spec in engine.launches:
        address = place("v-own", spec.labels["bfia.role"])
        assert json.loads(spec.environment["runtime.component.input.model"]) == address.as_dict()
    node.coordinator.stop(said["job_id"])
