"""``job draft`` and ``provider parameters`` of a registration's file, without a node."""

import json
from pathlib import Path

import pytest
import yaml

from gateway.cli.language import set_language
from gateway.language.catalogue import CHINESE, ENGLISH
from tests.cli import call
from tests.registry.builders import a_data, a_description, a_parameter, a_request


def test_a_draft_chains_its_tasks_and_names_the_inputs_of_each(tmp_path):
    outputs = [
        a_data("both"),
        a_data("seen", category="report"),
    ]
    find = a_description(
        "Find",
        inputParam=[],
        outputData=outputs,
    )
    fit = a_description(
        "Fit",
        roleList=["guest", "host", "arbiter"],
        inputParam=[
            a_parameter(
                "rate",
                title="how\nfast\u0085",
                type="float",
                optional="false",
                defaultValue="1e-05",
            ),
            a_parameter(
                "note",
                optional="false",
                description="d",
            ),
            a_parameter(
                "word",
                title="word",
                defaultValue="no",
                description="set it\nbefore: a training",
            ),
        ],
        inputData=[
            a_data(),
            a_data("model", category="model"),
        ],
        outputData=[a_data("model", category="model")],
    )
    file = tmp_path / "register.json"
    file.write_text(json.dumps(a_request(find, fit, version="7")))
    words = [
        "job",
        "draft",
        f"{file}/Find",
        f"{file}/Fit",
        f"{file}/Fit",
        "--party",
        "guest=G",
        "--party",
        "host=H",
        "--party",
        "arbiter=G",
        "--data",
        "guest=bank#all",
    ]

    result = call(*words, "--url", "http://127.0.0.1:9")
    job = yaml.safe_load(result.stdout)
    components = job["dag"]["components"]
    assert [component["name"] for component in components] == ["find", "fit", "fit_2"]
    for component in components:
        assert component["provider"] == "acme"
        assert component["version"] == "7"
    inputs = [[data["key"] for data in component["input"]] for component in components]
    assert inputs == [
        [],
        ["find.both"],
        ["find.both"],
    ]
    assert components[0]["output"] == [
        {"type": "dataset", "key": "both"},
        {"type": "report", "key": "seen"},
    ]
    config = job["config"]
    assert config["initiator"] == {
        "role": "guest",
        "node_id": "G",
    }
    assert config["role"] == {
        "guest": ["G"],
        "host": ["H"],
        "arbiter": ["G"],
    }
    parameters = config["task_params"]
    assert parameters["common"] == {
        "find": {},
        "fit": {
            "rate": 1e-05,
            "note": None,
        },
        "fit_2": {
            "rate": 1e-05,
            "note": None,
        },
    }
    assert parameters["guest"] == {"0": {"find": {"dataset_id": "bank#all"}}}
    assert list(parameters) == ["common", "guest", "host"]
    assert "# change this" in result.stdout
    assert "        #   set it before: a training\n" in result.stdout
    hint = "# change this: the node of this role"
    assert hint not in result.stdout
    (tmp_path / "node.yml").write_text("node: {id: JG1}\nengine: {kind: process}\n")

    drafted = call(*words[:5], "--party", "arbiter=G", "--config", str(tmp_path / "node.yml"))
    assert f"    guest: [JG1]\n    host: [JG1]  {hint}\n    arbiter: [G]\n" in drafted.stdout
    all_set = result.stdout.replace('# word: "no"', 'word: "no"')
    assert yaml.safe_load(all_set)["config"]["task_params"]["common"]["fit"]["word"] == "no"


@pytest.mark.parametrize(
    "name", ["register_unionpay.json", "reference_vendor/register_reference.json"]
)
def test_a_table_with_a_reader_has_more_columns_than_the_ids(name):
    file = Path(__file__).parents[2] / "examples" / name
    parties = ["--party", "guest=G", "--party", "host=H", "--url", "http://127.0.0.1:9"]

    def common_parameters(*components):
        words = [f"{file}/{component}" for component in components]
        result = call("job", "draft", *words, *parties)
        assert result.exit_code == 0, result.output
        return yaml.safe_load(result.stdout)["config"]["task_params"]["common"]

    parameters = common_parameters("Intersection", "HeteroSecureBoost")
    assert parameters["intersection"] == {"only_output_key": False}
    assert common_parameters("Intersection")["intersection"] == {}


def test_a_parameter_is_shown_with_its_description_else_its_title(tmp_path):
    described = a_parameter(
        "rate",
        title="Rate",
        description="how fast it learns",
    )
    file = tmp_path / "register.json"
    titled = a_parameter("depth", title="Depth")
    request = a_request(a_description(inputParam=[described, titled]))
    file.write_text(json.dumps(request))
    printed = call("provider", "parameters", str(file)).stdout
    assert "how fast it learns" in printed
    assert "Rate" not in printed
    assert "Depth" in printed


@pytest.fixture
def language(request):
    """The language of the commands, from the parameter of the test."""
    set_language(request.param)
    yield request.param
    set_language(ENGLISH)


ENGLISH_TEXTS = ["Tree depth", "How deep a tree grows", "deep tree"]
CHINESE_TEXTS = ["树深", "每棵树的深度", "深树"]


@pytest.mark.parametrize(
    ("language", "texts", "foreign_texts"),
    [
        (ENGLISH, ENGLISH_TEXTS, CHINESE_TEXTS),
        (CHINESE, CHINESE_TEXTS, ENGLISH_TEXTS),
    ],
    indirect=["language"],
)
@pytest.mark.usefixtures("language")
def test_vendors_texts_are_shown_in_the_readers_language(tmp_path, texts, foreign_texts):
    choice = {"value": "9", "label": "深树", "label_en": "deep tree"}
    depth = a_parameter(
        "depth",
        title="树深",
        title_en="Tree depth",
        description="每棵树的深度",
        description_en="How deep a tree grows",
        bindingData=[choice],
    )
    file = tmp_path / "register.json"
    file.write_text(json.dumps(a_request(a_description(inputParam=[depth]))))
    parties = ["--party", "guest=G", "--party", "host=H", "--url", "http://127.0.0.1:9"]

    drafted = call("job", "draft", f"{file}/Algo", *parties).stdout
    parameters = call("provider", "parameters", str(file)).stdout

    for text in texts:
        assert text in drafted
    for text in foreign_texts:
        assert text not in drafted
        assert text not in parameters
    assert texts[1] in parameters


def test_every_comment_of_a_draft_may_be_turned_on(tmp_path):
    steps = a_parameter("steps", type="list", defaultValue="[1e-05, 0.1]")
    scale = a_parameter("scale", type="json", defaultValue='{"a b": [2e-07]}')
    algorithm = a_description(
        inputParam=[steps, scale],
        inputData=[a_data("model", category="model")],
    )
    file = tmp_path / "register.json"
    file.write_text(json.dumps(a_request(algorithm)))
    parties = ["--party", "guest=G", "--party", "host=H", "--url", "http://127.0.0.1:9"]

    drafted = call("job", "draft", f"{file}/Algo", *parties).stdout
    component = yaml.safe_load(drafted)["dag"]["components"][0]
    assert component["input"] == []

    for entry in ("{type:", "steps:", "scale:"):
        drafted = drafted.replace(f"# {entry}", entry)
    job = yaml.safe_load(drafted)
    component = job["dag"]["components"][0]
    assert component["input"] == [{"type": "model", "key": "<task>.<output>"}]
    [parameters] = job["config"]["task_params"]["common"].values()
    assert parameters == {
        "steps": [1e-05, 0.1],
        "scale": {"a b": [2e-07]},
    }


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["acme"], "must read PROVIDER/COMPONENT"),
        (["FILE/Alog"], "has no component Alog; there are: Algo"),
        (["FILE/Algo"], "--party guest=NODE, --party host=NODE"),
        (["FILE/Algo", "--party", "ghost=X"], "roles are guest, host"),
        (["FILE/Algo", "--data", "guest"], "must read --data ROLE=DATASET"),
        (["FILE/Algo", "--party", "host=A", "--party", "host=B"], "'host=B' names host again"),
    ],
)
def test_a_draft_is_refused_with_the_cause(tmp_path, words, cause):
    file = tmp_path / "register.json"
    file.write_text(json.dumps(a_request()))
    words = [word.replace("FILE", str(file)) for word in words]
    result = call("job", "draft", *words, "--url", "http://127.0.0.1:9")
    assert result.exit_code == 2
    assert cause in result.stderr
