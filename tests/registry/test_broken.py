"""One mistake each in an otherwise good description: the right place, the right rule, and what was meant."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from provider_registry import description
from provider_registry.model import InvalidDescription

DATA = json.loads(Path(__file__).with_name("broken.json").read_text("utf-8"))
ABSENT = "<absent>"


def changed(document: Any, change: dict[str, Any]) -> Any:
    made = copy.deepcopy(document)
    for path, value in change.items():
        *way, last = [int(s) if s.isdigit() else s for s in re.findall(r"[^.\[\]]+", path)]
        place = made
        for step in way:
            place = place[step]
        if value == ABSENT:
            del place[last]
        else:
            place[last] = value
    return made


def found_in(document: Any) -> tuple[str, list[tuple[str, str, str]]]:
    try:
        _, found = description.component(document, provider="acme", version="1.0.0")
        kind = "warned"
    except InvalidDescription as error:
        found, kind = error.problems, "refused"
    return kind, [(p.path, p.rule, p.suggestion) for p in found]


def test_the_description_without_a_mistake_is_silent():
    assert found_in(DATA["good"]) == ("warned", [])


@pytest.mark.parametrize("case", DATA["broken"], ids=lambda case: case["mistake"])
def test_a_mistake_is_reported_at_its_place(case: dict[str, Any]):
    kind, found = found_in(changed(DATA["good"], case["change"]))
    expected = (case["path"], case["rule"], case["suggestion"])
    assert expected in found and kind == case["kind"]
    others = {path for path, _, _ in found} - {case["path"]}
    assert not others - set(case["change"]), "nothing else is wrong"


@pytest.mark.parametrize(
    ("validator", "inside", "outside"),
    [
        ("(0,5)", ["0", "5"], ["-1", "6"]),
        ("[0,5)", ["0", "4.9"], ["5"]),
        ("(0,5]", ["5"], ["0"]),
        ("[0,inf)", ["0", "1e9"], ["-1"]),
    ],
)
def test_bounds_are_open_only_where_the_vendor_does(validator: str, inside: list[str], outside: list[str]):
    for default in (*inside, *outside):
        change = {"inputParam[0].validator": validator, "inputParam[0].defaultValue": default}
        _, found = found_in(changed(DATA["good"], change))
        assert bool(found) is (default in outside), (validator, default)
