"""Validation errors are reported in plain words, each with a suggestion where a name is
misspelt.
"""

import datetime
import enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, HttpUrl, ValidationError

from gateway.config.loader import load
from gateway.errors import Invalid, problems_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def an_even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["docker", "process"] = "docker"
    count: int = Field(default=1, ge=1, le=9)
    ratio: float = Field(default=0.5, gt=0, lt=1)
    name: str = Field(
        default="abc",
        min_length=2,
        max_length=4,
        pattern="^[a-z]+$",
    )
    on: bool = False
    colour: Colour = Colour.RED
    items: list[int] = Field(
        default=[1],
        min_length=1,
        max_length=2,
    )
    free: dict[str, Any] = {}
    at: datetime.datetime | None = None
    url: HttpUrl | None = None
    even: Annotated[int, AfterValidator(an_even)] = 0


class Needs(BaseModel):
    componentName: str
    inner: list[Inner] = []


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (
            {"kind": "dcoker"},
            "kind: must be one of docker, process (got 'dcoker'); did you mean docker?",
        ),
        ({"kidn": 1}, "kidn: is not known here; known are at, colour, count, "),
        ({"count": "x"}, "count: must be a whole number (got 'x')"),
        ({"count": 0}, "count: must be at least 1 (got 0)"),
        ({"ratio": 0}, "ratio: must be more than 0"),
        ({"name": 1}, "name: must be text (got 1)"),
        ({"name": "a"}, "name: must have at least 2 characters"),
        ({"name": "AB"}, "name: must have the form ^[a-z]+$"),
        ({"on": "maybe"}, "on: must be true or false"),
        ({"colour": "rde"}, "colour: must be one of red, blue (got 'rde'); did you mean red?"),
        ({"items": []}, "items: must not be empty"),
        ({"items": ["x"]}, "items[0]: must be a whole number"),
        ({"free": 3}, "free: must be an object"),
        ({"at": "soon"}, "at: must be a time such as"),
        ({"url": "nowhere"}, "url: must be a URL such as"),
        ({"even": 3}, "even: must be even (got 3)"),
        (3, "inner[0]: must be an object"),
    ],
)
def test_each_kind_of_mistake_has_plain_words(inner, message):
    with pytest.raises(ValidationError) as caught:
        Needs.model_validate({"componentname": "a", "inner": [inner]})
    missing, problem = map(str, problems_of(caught.value.errors(), Needs))
    assert message in problem
    assert problem.startswith("inner[0]")
    assert "nput should" not in problem  # pydantic's words
    assert "Value error" not in problem
    assert missing == (
        "componentName: is missing; did you mean componentName instead of componentname?"
    )


def test_a_configuration_is_told_in_the_same_words(tmp_path):
    file = tmp_path / "node.yml"
    file.write_text(
        "node: {id: A, institution: B}\nengine: {kind: dcoker, docker: {puull: never}}\nlimit: {}\n"
    )
    with pytest.raises(Invalid) as caught:
        load(file)
    assert {(p.path, p.suggestion) for p in caught.value.problems} == {
        ("engine.kind", "docker"),
        ("engine.docker.puull", "pull"),
        ("limit", "limits"),
    }
