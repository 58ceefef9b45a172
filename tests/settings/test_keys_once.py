"""How deep a document may be nested that people hand in."""

import pytest
import yaml

from gateway.config.loader import load_yaml


@pytest.mark.parametrize(
    "text",
    [
        "[" * 501,
        "[" * 100_000 + "]" * 100_000,
        "{a: " * 501,
        "'" + "]" * 1000 + "': " + "[" * 501,
        "- " * 100_000 + "a",
        "? " * 100_000 + "a",
        "\n".join(" " * level + "a:" for level in range(501)),
    ],
)
def test_what_is_nested_too_deeply_is_told_early_however_it_is_written(text: str):
    with pytest.raises(RecursionError):
        load_yaml(text)


def test_brackets_in_texts_are_no_nesting():
    many = "[{" * 600
    text = f"quoted: '{many}'\nblock: |\n  {many}\nplain: a{'[' * 600}  # {many}\n"
    assert load_yaml(text) == {"quoted": many, "block": f"{many}\n", "plain": "a" + "[" * 600}
    assert load_yaml("[" * 500 + "]" * 500)


def test_what_is_no_yaml_is_told_as_that_at_any_length():
    with pytest.raises(yaml.YAMLError):
        load_yaml("a: [1, 2\n" + "b: 1\n" * 200)
