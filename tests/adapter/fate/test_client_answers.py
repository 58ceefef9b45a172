"""The recorded responses to FATE's tools agree with the models that their paths declare."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from adapter.fate.tools import router, tables

EXCHANGES = json.loads((Path(__file__).parent / "golden" / "client-exchanges.json").read_text(encoding="utf-8"))
GOOD = [one for one in EXCHANGES if one["answers"].get("code") == 0]
PARTS: Any = SimpleNamespace(limiters=SimpleNamespace(rest=None, peers=None))
MODELS = {
    route.path: TypeAdapter(route.response_model)  # type: ignore[attr-defined]
    for one in [*router.routers(PARTS), tables.upload_router(PARTS)]
    for route in one.routes
}


@pytest.mark.parametrize("one", GOOD, ids=lambda one: one["path"])
def test_a_recorded_response_has_what_is_declared(one: dict[str, Any]):
    MODELS[one["path"]].validate_python(one["answers"])
