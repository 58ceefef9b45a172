"""``job draft`` and ``provider parameters`` of a registration's file: no node is asked."""

import json
from pathlib import Path

import pytest
import yaml

from tests.cli import call
from tests.registry.builders import a_data, a_description, a_parameter, a_request


def test_a_draft_chains_its_tasks_and_says_who_reads_what(tmp_path):
    find = a_description(
        "Find", inputParam=[], outputData=[a_data("both"), a_data("seen", category="report")]
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
            a_parameter("note", optional="false", description="d"),
            a_parameter(
                "word",
                title="word",
                defaultValue="no",
                description="set it\nbefore: a training",
            ),
        ],
        inputData=[a_data(), a_data("model", category="model")],
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
    ]
    words += ["--party", "arbiter=G", "--data", "guest=bank#all"]
    done = call(*words, "--url", "http://127.0.0.1:9")
    job = yaml.safe_load(done.stdout)
    assert [
        (c["name"], c["provider"], c["version"], [i["key"] for i in c["input"]])
        for c in job["dag"]["components"]
    ] == [
        ("find", "acme", "7", []),
        ("fit", "acme", "7", ["find.both"]),
        ("fit_2", "acme", "7", ["find.both"]),
    ]
    assert job["dag"]["components"][0]["output"] == [
        {"type": "dataset", "key": "both"},
        {"type": "report", "key": "seen"},
    ]
    config = job["config"]
    assert config["initiator"] == {"role": "guest", "node_id": "G"}
    assert config["role"] == {
        "guest": ["G"],
        "host": ["H"],
        "arbiter": ["G"],
    }
    told = config["task_params"]
    assert told["common"] == {
        "find": {},
        "fit": {"rate": 1e-05, "note": None},
        "fit_2": {"rate": 1e-05, "note": None},
    }
    assert told["guest"] == {"0": {"find": {"dataset_id": "bank#all"}}}
    assert list(told) == ["common", "guest", "host"] and "# change this" in done.stdout
    assert "        #   set it before: a training\n" in done.stdout
    hint = "# change this: the node of this role"
    assert hint not in done.stdout
    (tmp_path / "node.yml").write_text("node: {id: JG1}\nengine: {kind: process}\n")
    own = call(*words[:5], "--party", "arbiter=G", "--config", str(tmp_path / "node.yml"))
    assert f"    guest: [JG1]\n    host: [JG1]  {hint}\n    arbiter: [G]\n" in own.stdout
    all_set = done.stdout.replace('# word: "no"', 'word: "no"')
    assert yaml.safe_load(all_set)["config"]["task_params"]["common"]["fit"]["word"] == "no"


@pytest.mark.parametrize(
    "name", ["register_unionpay.json", "reference_vendor/register_reference.json"]
)
def test_a_table_that_is_read_on_is_not_of_ids_alone(name):
    file = Path(__file__).parents[2] / "examples" / name
    parties = ["--party", "guest=G", "--party", "host=H", "--url", "http://127.0.0.1:9"]

    def told(*components: str) -> dict[str, object]:
        done = call("job", "draft", *(f"{file}/{c}" for c in components), *parties)
        assert done.exit_code == 0, done.output
        return dict(yaml.safe_load(done.stdout)["config"]["task_params"]["common"])

    assert told("Intersection", "HeteroSecureBoost")["intersection"] == {"only_output_key": False}
    assert told("Intersection")["intersection"] == {}


def test_a_parameter_is_shown_with_its_description_else_its_title(tmp_path):
    described = a_parameter("rate", title="Rate", description="how fast it learns")
    file = tmp_path / "register.json"
    file.write_text(
        json.dumps(
            a_request(a_description(inputParam=[described, a_parameter("depth", title="Depth")]))
        )
    )
    shown = call("provider", "parameters", str(file)).stdout
    assert "how fast it learns" in shown
    assert "Rate" not in shown
    assert "Depth" in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["acme"], "must read PROVIDER/COMPONENT"),
        (["FILE/Alog"], "has no component Alog; there are: Algo"),
        (["FILE/Algo"], "--party guest=NODE, --party host=NODE"),
        (["FILE/Algo", "--party", "ghost=X"], "roles are guest, host"),
        (["FILE/Algo", "--data", "guest"], "must read --data ROLE=DATASET"),
    ],
)
def test_what_a_draft_cannot_be_made_of_is_said(tmp_path, words, says):
    file = tmp_path / "register.json"
    file.write_text(json.dumps(a_request()))
    words = [word.replace("FILE", str(file)) for word in words]
    done = call("job", "draft", *words, "--url", "http://127.0.0.1:9")
    assert done.exit_code == 2
    assert says in done.stderr
