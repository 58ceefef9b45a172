"""Keys of a hand-in that nobody reads."""

import copy
from typing import Any

from adapter.bfia import wire
from adapter.bfia.examples import A_JOB
from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import create_body
from adapter.bfia.validation import MOST_UNREAD as MOST
from adapter.bfia.validation import unread
from tests.builders import a_spec
from tests.e2e.nodes import example


def found(body: dict[str, Any]) -> dict[str, str]:
    return {key.path: key.near for key in unread(wire.CreateAll.model_validate(body))}


def test_a_job_as_it_is_in_the_standard_has_none():
    for body in (example("create_all_psi_sbt.json"), A_JOB):
        assert found(body) == {}


def test_what_nodes_send_each_other_has_none_but_the_id():
    for profile in PROFILES.values():
        assert set(found(create_body(a_spec("a -> b"), profile))) == {"job_id"}


def test_each_is_named_by_its_path_with_what_was_meant():
    body = copy.deepcopy(example("create_all_psi_sbt.json"))
    body |= {"job_id": "job-mine", "old_jobid": "x"}
    body["config"] |= {"job_parms": {}, "task_parms": 1, "colour": "red"}
    body["dag"]["components"][0]["inputs"] = []
    body["dag"]["components"][1]["output"][0]["tpye"] = "model"
    assert found(body) == {
        "job_id": "",
        "old_jobid": "old_job_id",
        "config.job_parms": "job_params",
        "config.task_parms": "task_params",
        "config.colour": "",
        "dag.components[0].inputs": "input",
        "dag.components[1].output[0].tpye": "type",
    }
    told = {str(key.problem) for key in unread(wire.CreateAll.model_validate(body))}
    assert any("the node chooses the id of a submitted job" in text for text in told)


def test_a_flood_is_cut():
    body = example("create_all_psi_sbt.json") | {f"k{i}": {"deep": ["x"] * 9} for i in range(MOST + 50)}
    keys = unread(wire.CreateAll.model_validate(body))
    assert len(keys) == MOST and keys[0].got == "an object"
