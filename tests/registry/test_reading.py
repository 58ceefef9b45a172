"""The text of a registration: sizes, trailing commas, duplicate keys, and what is not JSON."""

import json
from dataclasses import replace

import pytest

from provider_registry.model import InvalidDescription
from provider_registry.registration import MAX_BYTES, read, read_value
from tests.registry.builders import a_component_request, a_description, a_request


def test_text_and_value_read_the_same():
    for body in (a_request(a_description(title="余", x=1)), a_component_request()):
        assert read(json.dumps(body).encode()) == read_value(body)


def test_a_trailing_comma_is_a_warning():
    said = json.dumps(a_request(a_description(description='[1,] is no \\"list\\",}')))
    plain = read(said.encode())[0]
    for text in (said[:-1] + " ,\n}", (said[:-1] + ",}").ljust(70_000)):
        provider, single = read(text.encode())
        warning, *others = provider.warnings
        assert warning.path == "(document)" and "has a comma before a closing bracket" in warning.rule
        assert (replace(provider, warnings=tuple(others)), single) == (plain, False)


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (b"[" * (50 * 1024**2), f"must not be longer than {MAX_BYTES} bytes"),
        (b"[" * MAX_BYTES, "must not nest so deeply"),
        (b"[" + b"0," * 999_999 + b"0]", "must not hold more than 250000 commas"),
        (b'{"name": "a"' + b" " * 70_000, "must be JSON: "),
        (b'{"name": "a,}', "must be JSON: "),
        (b'{"name": ,}', "must be JSON: "),
        (b'{"name": "\xff",}', "must be JSON: "),
        (b'{"name": %s}' % (b"1" * 5000), "must be JSON: "),
        (json.dumps(a_request(metadata={"image": "a", "x": [0] * 200_000})).encode(), "must not hold more than"),
    ],
    ids=[
        "50 MB of brackets",
        "2 MB of brackets",
        "1,000,000 values",
        "cut off",
        "cut off in a text",
        "a comma too many and no value",
        "not UTF-8",
        "an integer of many digits",
        "many values",
    ],
)
def test_a_hostile_text_is_refused(body: bytes, rule: str):
    with pytest.raises(InvalidDescription) as refused:
        read(body)
    [problem] = refused.value.problems
    assert problem.path == "(document)" and problem.rule.startswith(rule)


@pytest.mark.parametrize("end", ["}", ",}"])
def test_every_duplicate_key_is_refused_with_its_name(end: str):
    text = '{"name": "a", "name": "b", "metadata": {"image": "a", "x": [{"y": 1, "y": 2}]}' + end
    with pytest.raises(InvalidDescription) as refused:
        read(text.encode())
    assert {(p.path, p.rule) for p in refused.value.problems} == {
        ("name", "duplicate key"),
        ("y", "duplicate key"),
    }
