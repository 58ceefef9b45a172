"""The schemas that are shipped, and how documents are held against them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from provider_registry import schema
from tests.registry.builders import a_component_request, a_description, a_parameter, a_request, places, replaced

ODD: list[Any] = [
    None,
    True,
    0,
    1.5,
    10**30,
    "",
    "a",
    "a b",
    "TRUE",
    "x" * 30_000,
    [],
    ["a"],
    [None],
    {},
    {"x": 1},
]
GOOD = {
    "description-1.json": a_description(
        inputParam=[a_parameter(bindingData=[{"label": "a", "value": 1}, "b"], dependsOn=["a"], groupTag="x")]
    ),
    "registration.json": a_request(),
    "component-registration.json": a_component_request(),
}


@pytest.mark.parametrize("name", schema.FILES)
@given(data=st.data())
def test_a_document_has_problems_exactly_where_it_breaks_the_shipped_schema(name: str, data: st.DataObject):
    document: Any = GOOD[name]
    for _ in range(data.draw(st.integers(0, 2))):
        path = data.draw(st.sampled_from(list(places(document))))
        document = replaced(document, path, data.draw(st.sampled_from(ODD)))
    shipped = Draft202012Validator(dict(schema.FILES[name].document))
    assert bool(schema.FILES[name].problems(document)) is not shipped.is_valid(document)
