"""Of each path of FATE's tools it is described what stands in its answer, and the recorded ones keep to it."""

import json
from pathlib import Path
from typing import Any

import pytest

from adapter.fate.envelope import Told
from adapter.fate.tools.deps import answer_of

EXCHANGES = json.loads((Path(__file__).parent / "golden" / "client-exchanges.json").read_text(encoding="utf-8"))
GOOD = [one for one in EXCHANGES if one["answers"].get("code") == 0]


@pytest.mark.parametrize("one", GOOD, ids=lambda one: one["path"])
def test_a_recorded_answer_has_what_is_described(one: dict[str, Any]):
    model = answer_of(one["path"])
    model.model_validate(one["answers"])
    assert model is not Told or "data" not in one["answers"], "what stands in data is not described"


def test_an_answer_without_what_is_described_is_none():
    with pytest.raises(ValueError, match="party_id"):
        answer_of("/v2/site/info/query").model_validate({"code": 0, "message": "success", "data": {}})
