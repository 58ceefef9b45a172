"""FATE's descriptions of jobs are read and written; everything unsupported is refused together."""

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

GUEST = "JG0100001100000010"
HOST = "JG0100002200000020"
GOLDEN = Path(__file__).parent / "golden"
# Names of the tasks in the recorded job.
TRAIN = "hetero_secureboost_1"
ALIGN = "intersect_rsa_1"


class Described:
    """A job that FATE's pipeline wrote for the components of a vendor, as recorded.

    Tests change its parts and read it with the vendor's providers registered.
    """

    def __init__(self, *providers: str) -> None:
        text = (GOLDEN / "pipeline-bfia.json").read_text(encoding="utf-8")
        self.document: dict[str, Any] = json.loads(text)
        self.dag = self.document["dag"]
        self.tasks = self.dag["tasks"]
        self.registry = Registry(MemoryRepository())
        for name in providers or ("unionpay",):
            request = {**example("register_unionpay.json"), "name": name}
            self.registry.register(provider_from_request(request))

    def read(self) -> tuple[JobSpec, list[str]]:
        """Return the job and the warnings."""
        return read(self.document, self.registry)

    def problems(self) -> dict[str, str]:
        """Return the broken rule of each problem, by its path within the dag."""
        with pytest.raises(Invalid) as refusal:
            self.read()
        return {
            problem.path.removeprefix("dag_schema.dag."): problem.rule
            for problem in refusal.value.problems
        }


@pytest.fixture
def job() -> Described:
    return Described()


def read(
    document: dict[str, Any],
    registry: Registry,
) -> tuple[JobSpec, list[str]]:
    """Return the job of a document, and the warnings."""
    schema = DagSchema.model_validate(document)
    return job_spec(schema, registry, "job-1", GUEST, GUEST, "trace-1")


def check_valid(spec: JobSpec) -> None:
    """Fail unless the job has neither problems nor warnings."""
    assert not flow.check(spec.dag)
    assert validation.check(spec) == (
        [],
        [],
    )


def test_the_pipelines_job_has_the_parties_and_tasks_of_its_author(job):
    spec, warnings = job.read()

    assert warnings == []
    check_valid(spec)
    assert spec.initiator == GUEST
    assert spec.initiator_role == "guest"
    assert spec.scheduler == GUEST
    assert spec.parties == (
        Party("guest", 0, GUEST),
        Party("host", 0, HOST),
    )
    assert [(node.name, str(node.component)) for node in spec.dag.nodes] == [
        (ALIGN, "unionpay:2.0.0/Intersection"),
        (TRAIN, "unionpay:2.0.0/HeteroSecureBoost"),
    ]


def test_the_pipelines_job_has_its_inputs_and_outputs(job):
    spec, _ = job.read()

    (train_input,) = spec.dag[TRAIN].inputs
    assert train_input.type == "dataset"
    assert train_input.task == ALIGN
    assert train_input.key == "train_data"
    outputs = [(output.type, output.key) for output in spec.dag[TRAIN].outputs]
    assert outputs[:2] == [
        ("dataset", "train_data"),
        ("model", "model"),
    ]
    reports = {key for kind, key in outputs if kind == "report"}
    assert reports == {"train-loss", "train-auc", "train-ks"}


def test_the_pipelines_job_has_its_parameters(job):
    spec, _ = job.read()

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
def test_a_job_survives_the_way_to_fates_description_and_back(job, kind):
    job.document["kind"] = kind
    job.dag["conf"] |= {
        "priority": 3,
        "auto_retries": 1,
        "sync_type": "callback",
        "task": {"timeout": 60},
        "inheritance": {
            "job_id": "job-0",
            "task_list": [ALIGN],
        },
    }
    job.tasks[TRAIN]["conf"]["timeout"] = 30

    spec, _ = job.read()

    assert spec.protocol == kind
    check_valid(spec)
    assert spec.old_job_id == "job-0"
    assert spec.settings.by_callback
    limits = spec.settings.time_limits
    assert limits.of(TRAIN).timeout == 30
    assert limits.of(ALIGN).timeout == 60
    spec_from_description, _ = read(
        description.dag_schema(spec, kind),
        job.registry,
    )
    assert spec_from_description == spec


def test_a_task_without_outputs_has_those_of_its_component(job):
    job.document["kind"] = "fate"
    for task in job.tasks.values():
        task["outputs"] = None
        task["conf"] = None  # names no provider; only one has the component

    spec, _ = job.read()

    assert [output.key for output in spec.dag[ALIGN].outputs] == [
        "train_data",
        "train-intersection",
    ]
    assert spec.dag[ALIGN].component.provider == "unionpay"
    check_valid(spec)


def add_reader(job: Described) -> None:
    """Let ALIGN read its data from a task of FATE's reader, whose dataset differs by party."""
    job.tasks["reader_0"] = {
        "component_ref": "reader",
        "parameters": {"namespace": "experiment"},
    }
    artifact = {"producer_task": "reader_0", "output_artifact_key": "output_data"}
    job.tasks[ALIGN] |= {
        "inputs": {"data": {"train_data": {"task_output_artifact": artifact}}},
        "dependent_tasks": ["reader_0"],
    }
    for role, node in (("guest", GUEST), ("host", HOST)):
        party = job.dag["party_tasks"][f"{role}_{node}"]
        party["tasks"] = {"reader_0": {"parameters": {"name": f"breast_{role}"}}}


def test_a_readers_dataset_becomes_the_input_of_the_tasks_that_consume_it(job):
    add_reader(job)

    spec, _ = job.read()

    assert [node.name for node in spec.dag.nodes] == [ALIGN, TRAIN]
    check_valid(spec)
    assert spec.task_params["host"]["0"][ALIGN] == {"dataset_id": "experiment#breast_host"}


def test_an_empty_list_of_parties_means_all_parties_as_at_fate(job):
    add_reader(job)
    job.tasks["reader_0"]["parties"] = []
    job.tasks[ALIGN]["parties"] = []

    spec, _ = job.read()

    check_valid(spec)
    for role in ("guest", "host"):
        assert spec.task_params[role]["0"][ALIGN] == {"dataset_id": f"experiment#breast_{role}"}


def test_a_reader_without_a_dataset_for_a_party_is_refused(job):
    add_reader(job)
    del job.dag["party_tasks"][f"host_{HOST}"]["tasks"]

    problems = job.problems()

    assert list(problems) == ["tasks.reader_0.parameters"]
    assert "host.0" in problems["tasks.reader_0.parameters"]


def test_a_job_with_a_model_of_an_earlier_job_is_a_prediction(job):
    job.dag["conf"]["model_warehouse"] = {
        "model_id": "m",
        "model_version": 3,
    }
    job.dag["stage"] = "predict"

    spec, _ = job.read()

    assert spec.job_params["common"] == {
        "job_type": "predict",
        "model_id": "m",
        "model_version": "3",
    }


def test_a_prediction_with_two_models_is_refused(job):
    job.dag["conf"]["model_warehouse"] = {
        "model_id": "m",
        "model_version": 3,
    }
    job.dag["stage"] = "predict"
    artifact = {"model_warehouse": {"model_id": "other", "model_version": "1"}}
    job.tasks[TRAIN]["inputs"]["model"] = {"input_model": artifact}

    assert "must be the model that the rest" in str(job.problems())


def test_everything_unsupported_is_refused_together(job):
    guest = {
        "role": "guest",
        "party_id": [GUEST],
    }
    job.tasks["more"] = {
        "component_ref": "Nothing",
        "dependent_tasks": [ALIGN],
    }
    job.tasks[ALIGN]["parties"] = [guest]
    job.tasks[ALIGN]["inputs"]["data"]["train_data"]["data_warehouse"] = [
        {"dataset_id": "a#b"},
        {
            "dataset_id": "c#d",
            "parties": [guest],
        },
        {"namespace": "only"},
    ]
    train_data = job.tasks[TRAIN]["inputs"]["data"]["train_data"]
    train_data["task_output_artifact"]["producer_task"] = "gone"
    job.dag["party_tasks"]["x"] = {"parties": [{"role": "host", "party_id": ["J"]}]}
    job.dag["party_tasks"][f"guest_{GUEST}"]["tasks"] = {"nobody": {"parameters": {"a": 1}}}
    job.dag["stage"] = "predcit"  # a typo, which must not start a training

    problems = job.problems()

    assert set(problems) == {
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
    assert "host.0" in problems[f"tasks.{ALIGN}.parties"]


def test_an_input_without_its_origin_is_refused(job):
    inputs = job.tasks[TRAIN]["inputs"]
    inputs["data"]["train_data"] = {"task_output_artifact": {}}
    inputs["model"] = {"input_model": {"model_warehouse": {"model_id": "m"}}}

    problems = job.problems()

    path = f"tasks.{TRAIN}.inputs"
    artifact = f"{path}.data.train_data.task_output_artifact"
    assert problems[f"{artifact}.producer_task"] == "is required"
    assert problems[f"{artifact}.output_artifact_key"] == "is required"
    model_rule = problems[f"{path}.model.input_model.model_warehouse"]
    assert "must have model_id and model_version" in model_rule


def test_settings_of_fates_engines_warn_and_other_engines_are_refused(job):
    job.dag["conf"] |= {
        "engine": {"name": "spark"},
        "cores": 8,
        "task": {
            "engine_run": {"cores": 4},
            "provider": "unionpay",
        },
    }
    job.tasks[TRAIN]["conf"]["launcher_name"] = "deepspeed"

    spec, warnings = job.read()

    paths = [warning.partition(": ")[0] for warning in warnings]
    assert paths == [
        f"dag_schema.dag.tasks.{TRAIN}.conf.launcher_name",
        "dag_schema.dag.conf.cores",
        "dag_schema.dag.conf.task.engine_run",
    ]
    problems, _ = validation.check(spec)
    (problem,) = problems
    assert problem.path == "config.job_params.common.engine.name"
    assert "Spark" in problem.rule


with_any_provider = pytest.mark.parametrize(
    "conf",
    [
        {},
        {"provider": "unionpay"},
        {"provider": "unionpai"},
    ],
    ids=str,
)


@with_any_provider
def test_a_typo_in_a_components_name_is_reported_with_a_suggestion(job, conf):
    job.tasks[ALIGN] |= {
        "component_ref": "Intersectoin",
        "conf": conf,
    }

    problems = job.problems()

    (rule,) = [rule for path, rule in problems.items() if path.startswith(f"tasks.{ALIGN}.")]
    assert "did you mean Intersection?" in rule


@with_any_provider
def test_a_name_like_no_component_gets_no_suggestion(job, conf):
    job.tasks[ALIGN] |= {
        "component_ref": "SomethingElse",
        "conf": conf,
    }

    assert "did you mean" not in str(job.problems())


def test_an_ambiguous_component_lists_its_providers():
    job = Described("unionpay", "other")
    del job.tasks[TRAIN]["conf"]

    rule = job.problems()[f"tasks.{TRAIN}.component_ref"]

    assert "other:2.0.0, unionpay:2.0.0" in rule


def test_the_jobs_provider_decides_between_equal_components():
    job = Described("unionpay", "other")
    del job.tasks[TRAIN]["conf"]
    job.dag["conf"]["task"] = {"provider": "other:2.0.0@docker"}

    spec, _ = job.read()

    assert spec.dag[TRAIN].component.provider == "other"
