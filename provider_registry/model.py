"""The values of this room: a provider, the components in its image, and what they take and give.

All are frozen. Mappings inside them are for reading; whoever wants another one builds another value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

DATA_CATEGORIES = ("data", "training_set", "test_set", "validate_set")
MODEL_CATEGORIES = ("model",)


class Problem(NamedTuple):
    """One thing wrong in an input: where, which rule, and what was found there."""

    path: str
    rule: str
    got: Any = None
    suggestion: str = ""
    """what to write instead, where that is obvious"""

    def __str__(self) -> str:
        got = repr(self.got)
        found = f" (got {got if len(got) <= 200 else got[:200] + '…'})"
        hint = f"; did you mean {self.suggestion}?" if self.suggestion else ""
        return f"{self.path}: {self.rule}{'' if self.rule == 'is missing' else found}{hint}"


class InvalidDescription(Exception):
    """A description or a registration cannot be used; ``problems`` holds every reason with its path.

    ``warnings`` is what else would have been told of it, as far as it can be read.
    """

    def __init__(self, problems: tuple[Problem, ...], warnings: tuple[Problem, ...] = ()) -> None:
        super().__init__("; ".join(map(str, problems[:20])))
        self.problems = problems
        self.warnings = warnings


def group_of(category: str) -> str:
    """Return the group that a category or a flow's output type belongs to: data, model or metric."""
    lowered = category.lower()
    if any(word in lowered for word in DATA_CATEGORIES):
        return "data"
    if any(word in lowered for word in MODEL_CATEGORIES):
        return "model"
    return "metric"


@dataclass(frozen=True)
class Validator:
    """A check that a description asks for: a range, or a regular expression.

    ``lower`` and ``upper`` are None where that side is open to infinity; a bound belongs to the range unless it is
    ``open``. ``pattern`` is set for an expression, which a value has to match as a whole. ``text`` is the
    description's own notation.
    """

    text: str
    lower: float | None = None
    upper: float | None = None
    pattern: str | None = None
    lower_open: bool = False
    upper_open: bool = False

    def in_range(self, number: float) -> bool:
        """Tell whether a number lies in the range."""
        below = self.lower is not None and (number < self.lower or (self.lower_open and number == self.lower))
        above = self.upper is not None and (number > self.upper or (self.upper_open and number == self.upper))
        return not (below or above)


@dataclass(frozen=True)
class Parameter:
    """A hyper-parameter of a component.

    ``default`` is None where there is none and empty where the description gives a blank. ``binding`` lists
    the allowed values as text; None means any value. ``binding_function`` names a callback that would supply
    them. ``depends_on`` and ``ui_*`` and ``groups`` are hints for a form and decide nothing.
    """

    name: str
    title: str
    description: str
    type: str
    optional: bool
    default: str | None = None
    binding: tuple[str, ...] | None = None
    binding_function: str | None = None
    validator: Validator | None = None
    depends_on: tuple[str, ...] = ()
    ui_pattern: str = "editable"
    ui_type: str = "input"
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataSpec:
    """An input or output of a component; the first of ``formats`` is what it writes or reads by default."""

    name: str
    description: str
    category: str
    formats: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """Which of dataset, model and report the category is a kind of."""
        return group_of(self.category)


@dataclass(frozen=True)
class ResultCode:
    """A code with which the component says how it ended, and what it means."""

    code: str
    message: str


@dataclass(frozen=True)
class Component:
    """One algorithm of an image. ``document`` is its description exactly as it was registered."""

    name: str
    title: str
    provider: str
    version: str
    description: str
    roles: tuple[str, ...]
    description_version: str
    storage_engines: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    inputs: tuple[DataSpec, ...]
    outputs: tuple[DataSpec, ...]
    results: tuple[ResultCode, ...]
    document: Mapping[str, Any]

    def parameter(self, name: str) -> Parameter | None:
        """Return a parameter by its name; None: the description has none of that name."""
        return next((p for p in self.parameters if p.name == name), None)

    def result_message(self, code: str) -> str | None:
        """Return what a result code means; None: the description does not say."""
        return next((r.message for r in self.results if r.code == code), None)


@dataclass(frozen=True)
class Provider:
    """A vendor's image on one kind of device, and the components in it.

    ``images`` holds the image of those components that were registered one by one with an image other than
    the provider's. ``warnings`` are what was odd, but usable, in the registration.
    """

    name: str
    version: str
    device: str
    protocol: str
    image: str
    base_url: str
    metadata: Mapping[str, Any]
    components: Mapping[str, Component]
    warnings: tuple[Problem, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    """image -> the digest that was approved; an image that is not here may be any"""
    retired: bool = False
    """jobs under way go on with it, new ones are refused"""

    @property
    def key(self) -> str:
        """What tells it from all others here: name, version and kind of device."""
        return f"{self.name}:{self.version}@{self.device}"

    def image_for(self, component: str) -> str:
        """Return the image that holds a component."""
        return self.images.get(component, self.image)

    def every_image(self) -> tuple[str, ...]:
        """Return each image of this provider once."""
        return tuple(dict.fromkeys(image for image in (self.image, *self.images.values()) if image))

    def document(self) -> dict[str, Any]:
        """Return everything as JSON values; `registration.from_document` makes the same provider of it."""
        return {
            "name": self.name,
            "version": self.version,
            "device": self.device,
            "protocol": self.protocol,
            "metadata": dict(self.metadata),
            "images": dict(self.images),
            **({"digests": dict(self.digests)} if self.digests else {}),
            **({"retired": True} if self.retired else {}),
            "components_description": {name: dict(c.document) for name, c in self.components.items()},
            "warnings": [list(w) for w in self.warnings],
        }
