"""FATE's descriptions of jobs -> ours, and back; what cannot be kept is refused, all of it at once."""

import json
from pathlib import Path
from typing import Any

import pytest

from adapter.fate.dag import description
from adapter.fate.dag.read import job_spec
from adapter.fate.dag.wire import DagSchema
from gateway.domain import dag as flow
from gateway.domain import validation
from gateway.domain.spec import JobSpec, Party
from gateway.errors import Invalid
from provider_registry.registration import provider_from_request
from provider_registry.registry import Registry
from tests.e2e.nodes import example
from tests.registry.memory import MemoryRepository

GUEST, HOST = "JG0100001100000010", "JG0100002200000020"
GOLDEN = Path(__file__).parent / "golden"
TRAIN, ALIGN = "hetero_secureboost_1", "intersect_rsa_1"


class Described:
    """What FATE's pipeline wrote for the components of the user's provider, recorded; and what becomes of it."""

    def __init__(self, *providers: str) -> None:
        self.document: dict[str, Any] = json.loads(
            (GOLDEN / "pipeline-bfia.json").read_text(encoding="utf-8")
        )
        self.dag, self.tasks = self.document["dag"], self.document["dag"]["tasks"]
        registry = Registry(MemoryRepository())
        for name in providers or ("unionpay",):
            registry.register(
                provider_from_request({**example("register_unionpay.json"), "name": name})
            )
        self.registry = registry

    def read(self) -> tuple[JobSpec, list[str]]:
        return read(self.document, self.registry)

    def refused(self) -> dict[str, str]:
        with pytest.raises(Invalid) as refusal:
            self.read()
        return {p.path.removeprefix("dag_schema.dag."): p.rule for p in refusal.value.problems}


@pytest.fixture
def job() -> Described:
    return Described()


def read(document: dict[str, Any], registry: Registry) -> tuple[JobSpec, list[str]]:
    return job_spec(DagSchema.model_validate(document), registry, "job-1", GUEST, GUEST, "trace-1")


def faultless(spec: JobSpec) -> bool:
    return not flow.check(spec.dag) and validation.check(spec) == ([], [])


def test_the_pipelines_job_is_the_users_job(job):
    spec, warnings = job.read()
    assert warnings == []
    assert faultless(spec)
    assert spec.initiator == GUEST
    assert spec.initiator_role == "guest"
    assert spec.scheduler == GUEST
    assert spec.parties == (Party("guest", 0, GUEST), Party("host", 0, HOST))
    assert [(n.name, str(n.component)) for n in spec.dag.nodes] == [
        (ALIGN, "unionpay:2.0.0/Intersection"),
        (TRAIN, "unionpay:2.0.0/HeteroSecureBoost"),
    ]
    assert [(i.type, i.task, i.key) for i in spec.dag[TRAIN].inputs] == [
        ("dataset", ALIGN, "train_data")
    ]
    outputs = [(o.type, o.key) for o in spec.dag[TRAIN].outputs]
    assert outputs[:2] == [("dataset", "train_data"), ("model", "model")]
    assert {key for kind, key in outputs if kind == "report"} == {
        "train-loss",
        "train-auc",
        "train-ks",
    }
    for role in ("guest", "host"):
        assert spec.task_params[role]["0"] == {ALIGN: {"dataset_id": f"testspace#test_{role}"}}
        assert spec.job_params[role]["0"] == {
            "resources": {
                "cpu": -1,
                "disk": -1,
                "memory": -1,
            }
        }
    assert spec.task_params["common"][TRAIN]["num_trees"] == 2


@pytest.mark.parametrize("kind", ["bfia", "fate"])
def test_there_and_back_nothing_is_lost(job, kind):
    job.document["kind"] = kind
    job.dag["conf"] |= {
        "priority": 3,
        "auto_retries": 1,
        "sync_type": "callback",
        "task": {"timeout": 60},
        "inheritance": {"job_id": "job-0", "task_list": [ALIGN]},
    }
    job.tasks[TRAIN]["conf"]["timeout"] = 30
    spec = job.read()[0]
    assert spec.protocol == kind
    assert faultless(spec)
    assert spec.old_job_id == "job-0"
    assert spec.settings.by_callback
    limits = spec.settings.time_limits
    assert limits.of(TRAIN).timeout == 30
    assert limits.of(ALIGN).timeout == 60
    assert read(description.dag_schema(spec, kind), job.registry)[0] == spec


def test_without_outputs_a_task_has_all_of_its_description(job):
    job.document["kind"] = "fate"
    for task in job.tasks.values():
        task["outputs"] = None
        task["conf"] = None  # only one provider has them
    spec = job.read()[0]
    assert [o.key for o in spec.dag[ALIGN].outputs] == ["train_data", "train-intersection"]
    assert spec.dag[ALIGN].component.provider == "unionpay"
    assert faultless(spec)


def test_a_readers_dataset_becomes_the_input_of_the_tasks_that_consume_it(job):
    job.tasks["reader_0"] = {"component_ref": "reader", "parameters": {"namespace": "experiment"}}
    channel = {"producer_task": "reader_0", "output_artifact_key": "output_data"}
    job.tasks[ALIGN] |= {
        "inputs": {"data": {"train_data": {"task_output_artifact": channel}}},
        "dependent_tasks": ["reader_0"],
    }
    for role, node in (("guest", GUEST), ("host", HOST)):
        site = job.dag["party_tasks"][f"{role}_{node}"]
        site["tasks"] = {"reader_0": {"parameters": {"name": f"breast_{role}"}}}
    spec = job.read()[0]
    assert [n.name for n in spec.dag.nodes] == [ALIGN, TRAIN]
    assert faultless(spec)
    assert spec.task_params["host"]["0"][ALIGN] == {"dataset_id": "experiment#breast_host"}
    del job.dag["party_tasks"][f"host_{HOST}"]["tasks"]
    found = job.refused()
    assert list(found) == ["tasks.reader_0.parameters"]
    assert "host.0" in found["tasks.reader_0.parameters"]


def test_a_model_of_an_earlier_job_makes_it_a_prediction(job):
    job.dag["conf"]["model_warehouse"] = {"model_id": "m", "model_version": 3}
    job.dag["stage"] = "predict"
    common = job.read()[0].job_params["common"]
    assert common == {
        "job_type": "predict",
        "model_id": "m",
        "model_version": "3",
    }
    artifact = {"model_warehouse": {"model_id": "other", "model_version": "1"}}
    job.tasks[TRAIN]["inputs"]["model"] = {"input_model": artifact}
    assert "must be the model that the rest" in str(job.refused())


def test_what_cannot_be_kept_is_refused_all_at_once(job):
    job.tasks["more"] = {"component_ref": "Nothing", "dependent_tasks": [ALIGN]}
    job.tasks[ALIGN]["parties"] = [{"role": "guest", "party_id": [GUEST]}]
    job.tasks[ALIGN]["inputs"]["data"]["train_data"]["data_warehouse"] = [
        {"dataset_id": "a#b"},
        {"dataset_id": "c#d", "parties": [{"role": "guest", "party_id": [GUEST]}]},
        {"namespace": "only"},
    ]
    job.tasks[TRAIN]["inputs"]["data"]["train_data"]["task_output_artifact"]["producer_task"] = (
        "gone"
    )
    job.dag["party_tasks"]["x"] = {"parties": [{"role": "host", "party_id": ["J"]}]}
    job.dag["party_tasks"][f"guest_{GUEST}"]["tasks"] = {"nobody": {"parameters": {"a": 1}}}
    job.dag["stage"] = "predcit"  # it would train
    found = job.refused()
    assert set(found) == {
        "stage",
        "tasks.more.component_ref",
        "tasks.more.dependent_tasks[0]",
        f"tasks.{ALIGN}.parties",
        f"tasks.{ALIGN}.inputs.data.train_data.data_warehouse",
        f"tasks.{TRAIN}.inputs.data.train_data.task_output_artifact.producer_task",
        f"tasks.{TRAIN}.dependent_tasks[0]",
        "party_tasks.x.parties[0]",
        f"party_tasks.guest_{GUEST}.tasks.nobody",
    }
    assert "host.0" in found[f"tasks.{ALIGN}.parties"]


def test_an_input_without_its_origin_is_refused(job):
    job.tasks[TRAIN]["inputs"]["data"]["train_data"] = {"task_output_artifact": {}}
    job.tasks[TRAIN]["inputs"]["model"] = {"input_model": {"model_warehouse": {"model_id": "m"}}}
    at = f"tasks.{TRAIN}.inputs"
    found = job.refused()
    for part in ("producer_task", "output_artifact_key"):
        assert found[f"{at}.data.train_data.task_output_artifact.{part}"] == "is required"
    assert (
        "must have model_id and model_version" in found[f"{at}.model.input_model.model_warehouse"]
    )


def test_settings_of_fates_engines_warn_and_other_engines_are_refused(job):
    job.dag["conf"] |= {
        "engine": {"name": "spark"},
        "cores": 8,
        "task": {"engine_run": {"cores": 4}, "provider": "unionpay"},
    }
    job.tasks[TRAIN]["conf"]["launcher_name"] = "deepspeed"
    warnings = job.read()[1]
    assert [w.partition(": ")[0].removeprefix("dag_schema.dag.") for w in warnings] == [
        f"tasks.{TRAIN}.conf.launcher_name",
        "conf.cores",
        "conf.task.engine_run",
    ]
    spec = job.read()[0]
    (problem,) = validation.check(spec)[0]
    assert problem.path == "config.job_params.common.engine.name"
    assert "Spark" in problem.rule


@pytest.mark.parametrize("provider", ["", "unionpay", "unionpai"])
def test_a_typo_in_a_components_name_is_reported_with_a_suggestion(job, provider):
    task = job.tasks[ALIGN]
    task |= {"component_ref": "Intersectoin", "conf": {"provider": provider} if provider else {}}
    (found,) = (rule for path, rule in job.refused().items() if path.startswith(f"tasks.{ALIGN}."))
    assert "did you mean Intersection?" in found
    task["component_ref"] = "SomethingElse"
    assert not any("did you mean" in rule for rule in job.refused().values())


def test_an_ambiguous_component_lists_its_providers():
    job = Described("unionpay", "other")
    del job.tasks[TRAIN]["conf"]
    assert "other:2.0.0, unionpay:2.0.0" in job.refused()[f"tasks.{TRAIN}.component_ref"]
    job.dag["conf"]["task"] = {"provider": "other:2.0.0@docker"}
    assert job.read()[0].dag[TRAIN].component.provider == "other"
