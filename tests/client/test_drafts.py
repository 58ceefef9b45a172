"""Drafts of jobs that cannot be made, without a node."""

from typing import Any

import pytest

from bfia_gateway_client import Client, Invalid
from bfia_gateway_client.drafting import Component, chained, job


def test_a_draft_of_no_components_is_refused():
    with Client("http://127.0.0.1:9") as client, pytest.raises(Invalid) as caught:
        client.jobs.draft([], {}, {})
    assert [problem.path for problem in caught.value.problems] == ["components"]


def test_a_required_parameter_without_any_value_is_missing_in_a_draft():
    form: dict[str, Any] = {
        "properties": {
            "rate": {},
            "depth": {"default": 3},
            "word": {"enum": ["yes", "no"]},
            "note": {},
        },
        "required": ["rate", "depth", "word"],
    }
    component = Component(
        name="Fit",
        provider="acme",
        version="1",
        roles=["guest"],
        inputs=[],
        outputs=[],
        form=form,
    )
    tasks = chained([component])

    with pytest.raises(Invalid) as caught:
        job(tasks, {"guest": "G"}, {}, {}, "draft")
    assert [problem.path for problem in caught.value.problems] == ["parameters.fit.rate"]

    drafted = job(tasks, {"guest": "G"}, {}, {"fit": {"rate": 0.5}}, "draft")
    parameters = drafted["config"]["task_params"]["common"]["fit"]
    assert parameters == {"rate": 0.5, "depth": 3, "word": "yes"}
