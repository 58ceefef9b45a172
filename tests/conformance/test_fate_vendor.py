"""The wrapper of FATE's components, without FATE: what it reads, tells FATE and sends."""

import json
from pathlib import Path

import pytest

from adapter.bfia.channel import ptp_pb2
from examples.fate_vendor.fatevendor import csv_tables
from examples.fate_vendor.fatevendor.channel import PASSING_CODES, SUCCESS, Channel, Refused
from examples.fate_vendor.fatevendor.components import COMPONENTS
from examples.fate_vendor.fatevendor.fate_config import task_config
from examples.fate_vendor.fatevendor.task import Unusable, read_task
from tests.cli import call
from tests.e2e.nodes import example

REGISTRATION = Path("examples/fate_vendor/register.json")
HEADERS = {
    "x-ptp-session-id": "session_1",
    "x-ptp-target-node-id": "10000",
}
INTERNAL_ERROR = "E0000000500"


def variables(**changes):
    """Return the variables of a guest that trains; None removes one."""
    values = {
        "config.self_role": "guest.0",
        "config.task_id": "task_1",
        "config.session_id": "session_1",
        "config.token": "secret",
        "config.node_id.host.0": "10000",
        "config.node_id.guest.0": "9999",
        "system.storage": "file:///data",
        "system.transport": "gateway:7381",
        "system.callback": "http://gateway:7381/callback?run=1",
        "runtime.component.name": "HeteroSecureBoost",
        "runtime.component.parameter.id": "id",
        "runtime.component.parameter.num_trees": "2",
        "runtime.component.parameter.goss": "False",
        "runtime.component.parameter.objective": "binary:bce",
        "runtime.component.parameter.he_param": '{"kind": "paillier", "key_length": 1024}',
        "runtime.component.input.train_data": '{"namespace": "n", "name": "in"}',
        "runtime.component.output.model": '{"namespace": "n", "name": "out"}',
    }
    values |= {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in values.items() if value is not None}


def config_of(**changes):
    """Return FATE's description of a task."""
    task = read_task(variables(**changes))
    schemas = {name: {"schema": name} for name in task.inputs_in(task.stage.tables)}
    models = {name: Path("/inputs", name) for name in task.inputs_in(task.stage.models)}
    return task_config(task, Path("/scratch"), schemas, models, 4711)


# ---------------------------------------------------------------- the registration


def test_the_registration_has_no_findings():
    result = call("provider", "check", str(REGISTRATION))
    assert result.exit_code == 0
    assert "0 errors, 0 warnings" in result.stdout
    assert "run on engines of kind docker, swarm, kubernetes" in result.stdout


def test_the_wrapper_runs_every_registered_component():
    registration = example("fate_vendor/register.json")
    assert set(registration["components_description"]) == set(COMPONENTS)


# ---------------------------------------------------------------- FATE's task


def test_nodes_become_fates_parties_and_the_session_its_federation():
    federation = config_of()["conf"]["federation"]
    assert federation == {
        "type": "osx",
        "metadata": {
            "federation_id": "session_1",
            "parties": {
                "local": {"role": "guest", "partyid": "9999"},
                "parties": [
                    {"role": "guest", "partyid": "9999"},
                    {"role": "host", "partyid": "10000"},
                ],
            },
            "osx_config": {"host": "127.0.0.1", "port": 4711},
        },
    }


def test_parameters_keep_their_types_and_the_columns_stay_here():
    assert config_of()["parameters"] == {
        "num_trees": 2,
        "goss": False,
        "objective": "binary:bce",
        "he_param": {"kind": "paillier", "key_length": 1024},
    }


TABLE = '{"namespace": "n", "name": "in"}'
MODEL = '{"namespace": "n", "name": "model"}'
IN_TRAINING = {"metric", "train_output_data", "output_model"}


@pytest.mark.parametrize(
    ("component", "added", "stage", "inputs", "outputs"),
    [
        ("PSI", {}, "default", {"input_data"}, {"metric", "output_data"}),
        ("FeatureScale", {}, "train", {"train_data"}, IN_TRAINING),
        ("HeteroLR", {}, "train", {"train_data"}, IN_TRAINING),
        (
            "HeteroLR",
            {"input.validate_data": TABLE, "input.warm_start_model": MODEL},
            "train",
            {"train_data", "validate_data", "warm_start_model"},
            IN_TRAINING,
        ),
        (
            "HeteroLR",
            {"input.validate_data": TABLE, "input.model": MODEL},
            "predict",
            {"test_data", "input_model"},
            {"metric", "test_output_data"},
        ),
        (
            "HeteroSecureBoost",
            {"parameter.cv_param": '{"n_splits": 5}'},
            "cross_validation",
            {"cv_data"},
            {"metric", "cv_output_datas"},
        ),
        ("Evaluation", {}, "default", {"input_datas"}, {"metric"}),
    ],
)
def test_a_task_has_the_inputs_and_outputs_of_its_stage(component, added, stage, inputs, outputs):
    changes = {f"runtime.component.{name}": value for name, value in added.items()}
    config = config_of(runtime__component__name=component, **changes)
    assert config["stage"] == stage
    assert set(config["input_artifacts"]) == inputs
    assert set(config["output_artifacts"]) == outputs


def test_an_input_model_is_a_file_and_every_fold_has_a_table():
    predicts = config_of(**{"runtime.component.input.model": MODEL})
    assert predicts["input_artifacts"]["input_model"]["uri"] == "file:///inputs/model"
    validates = config_of(**{"runtime.component.parameter.cv_param": '{"n_splits": 5}'})
    assert validates["output_artifacts"]["cv_output_datas"]["uri"].endswith("_{index}")


def test_an_arbiter_has_no_table():
    config = config_of(
        config__self_role="arbiter.0",
        **{"config.node_id.arbiter.0": "10001", "runtime.component.input.train_data": None},
    )
    assert config["input_artifacts"] == {}
    assert config["role"] == "arbiter"


def test_everything_wrong_with_the_variables_is_named():
    wrong = variables(
        config__token=None,
        system__storage="oss://store:9000",
        runtime__component__name="Unknown",
        **{"config.node_id.host.1": "10000", "runtime.component.output.model": "nowhere"},
    )
    with pytest.raises(Unusable) as error:
        read_task(wrong)
    text = str(error.value)
    names = ["config.token", "system.storage", "runtime.component.name", "output.model", "twice"]
    assert [name for name in names if name not in text] == []


# ---------------------------------------------------------------- tables


@pytest.fixture
def table(tmp_path):
    """Return a function that writes a table and returns its folder."""

    def write(header, **metadata):
        (tmp_path / "data_0").write_text(f"{header}\n", encoding="utf-8")
        (tmp_path / "metadata").write_text(json.dumps(metadata), encoding="utf-8")
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("header", "metadata", "columns", "options"),
    [
        ("id,y,x0", {}, {}, ("id", "y", None)),
        (
            "number,x0,bad",
            {"id_column": "number", "label_column": "bad"},
            {},
            ("number", "bad", None),
        ),
        ("a,b,c", {"id_column": "a"}, {"id": "b", "label": "c"}, ("b", "c", None)),
        ("sample_id,id,x0", {}, {}, ("id", None, "sample_id")),
    ],
)
def test_the_columns_of_ids_and_labels(table, header, metadata, columns, options):
    folder = table(header, **metadata)
    read = csv_tables.reading_options(folder, columns)
    names = ("match_id_name", "label_name", "sample_id_name")
    assert tuple(read.get(name) for name in names) == options


@pytest.mark.parametrize("header", ["", "sample_id"])
def test_a_table_without_columns_is_unusable(table, header):
    with pytest.raises(csv_tables.TableUnusable, match=r"^the table has no columns$"):
        csv_tables.reading_options(table(header), {})


@pytest.mark.parametrize("files", [["metadata"], ["metadata", "data_0"]])
def test_a_table_without_content_is_unusable(tmp_path, files):
    for name in files:
        (tmp_path / name).write_text("{}" if name == "metadata" else "", encoding="utf-8")
    with pytest.raises(csv_tables.TableUnusable, match=r"^the table has no columns$"):
        csv_tables.reading_options(tmp_path, {})


def test_a_later_table_gets_the_columns_of_the_trainings_in_their_order():
    header = ["id", "x2", "new", "y", "x1"]
    options = {"match_id_name": "id", "label_name": "y"}
    assert csv_tables.feature_columns(header, options, None) == ["x2", "new", "x1"]
    assert csv_tables.feature_columns(header, options, ["x1", "x2"]) == ["x1", "x2"]
    with pytest.raises(csv_tables.TableUnusable, match="no columns x3, x4,"):
        csv_tables.feature_columns(header, options, ["x1", "x3", "x4"])


def test_parts_of_a_table_are_read_in_the_order_of_their_numbers(tmp_path):
    for number in (10, 2, 0):
        (tmp_path / f"data_{number}").touch()
    names = [file.name for file in csv_tables.csv_files(tmp_path)]
    assert names == ["data_0", "data_2", "data_10"]


def test_a_report_is_written_with_its_metadata(tmp_path):
    report = tmp_path / "report"
    report.write_text("[]", encoding="utf-8")
    address = {"namespace": "n", "name": "out"}
    csv_tables.copy_file(report, tmp_path / "out", address)
    metadata = json.loads((tmp_path / "out" / "metadata").read_text(encoding="utf-8"))
    assert (tmp_path / "out" / "data_0").read_text(encoding="utf-8") == "[]"
    assert metadata.items() >= (address | {"count": 1, "partitions": 1}).items()


# ---------------------------------------------------------------- the channel


class Gateway:
    """A gateway that answers requests in turn, and keeps them."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    def post(self, path, body, headers):
        self.requests.append((path, body, headers))
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return ptp_pb2.TransportOutbound(**answer).SerializeToString()

    def channel(self):
        """Return a task's channel at this gateway, which waits for nothing."""
        return Channel("task_1", "secret", self.post, ptp_pb2, sleep=lambda _: None)


def test_a_push_gets_token_task_and_a_number_that_repeats_keep():
    gateway = Gateway(OSError("refused"), {"code": PASSING_CODES[0]}, {"code": SUCCESS})
    message = ptp_pb2.PushInbound(topic="session_1-guest-9999", payload=b"ids")
    gateway.channel().push(message, HEADERS)
    first, *repeats = gateway.requests
    path, body, headers = first
    pushed = ptp_pb2.PushInbound.FromString(body)
    assert path == "/v1/interconn/chan/push"
    assert (pushed.topic, pushed.payload) == ("task_1/session_1-guest-9999", b"ids")
    assert headers.items() >= (HEADERS | {"x-ptp-token": "secret"}).items()
    assert pushed.metadata["sequence"]
    assert repeats == [first, first]


def test_a_refused_push_fails_instead_of_passing_unseen():
    gateway = Gateway({"code": INTERNAL_ERROR, "message": "no"})
    with pytest.raises(Refused, match=f"push of task_1/t: {INTERNAL_ERROR} no"):
        gateway.channel().push(ptp_pb2.PushInbound(topic="t"), HEADERS)


def test_a_pop_waits_on_until_there_is_a_message():
    gateway = Gateway({"code": SUCCESS}, {"code": SUCCESS, "payload": b"ids"})
    response = gateway.channel().pop(ptp_pb2.PopInbound(topic="t", timeout=3_600_000), HEADERS)
    (_, first, first_headers), (_, second, second_headers) = gateway.requests
    assert response.payload == b"ids"
    assert ptp_pb2.PopInbound.FromString(first).topic == "task_1/t"
    assert (first, first_headers) == (second, second_headers)
    assert first_headers["x-ptp-pop-id"]


def test_a_release_without_a_topic_is_not_passed_on():
    gateway = Gateway()
    response = gateway.channel().release(ptp_pb2.PopInbound(), HEADERS)
    assert response.code == SUCCESS
    assert gateway.requests == []
