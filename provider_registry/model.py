"""A provider, the components in its image, their parameters, inputs and outputs, and what is wrong with them.

All values are frozen; the mappings inside them are read-only by convention.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from gateway.domain.problems import Problem as Problem
from gateway.domain.problems import Unfit
from gateway.domain.problems import near as near

ANY = "*"
"""as a version in a job: the newest one in use"""


class InvalidDescription(Unfit):
    """A description or a registration cannot be used; ``warnings``: what is unusual about the rest of it."""

    def __init__(self, problems: tuple[Problem, ...], warnings: tuple[Problem, ...] = ()) -> None:
        super().__init__(problems)
        self.warnings = warnings


def group_of(category: str) -> str:
    """Return the group that a category or a flow's output type belongs to: data, model or metric."""
    lowered = category.lower()
    if any(
        word in lowered for word in ("data", "training_set", "test_set", "validate_set", "cache")
    ):
        return "data"
    return "model" if "model" in lowered else "metric"


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
        below = self.lower is not None and (
            number < self.lower or (self.lower_open and number == self.lower)
        )
        above = self.upper is not None and (
            number > self.upper or (self.upper_open and number == self.upper)
        )
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
class Component:
    """One algorithm of an image. ``document`` is its description exactly as it was registered."""

    name: str
    title: str
    provider: str
    version: str
    description: str
    roles: tuple[str, ...]
    storage_engines: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    inputs: tuple[DataSpec, ...]
    outputs: tuple[DataSpec, ...]
    results: Mapping[str, str]
    """result code -> what it means"""
    document: Mapping[str, Any]


DEVICES = ("docker", "swarm", "k8s")
"""what a job's components may be registered for; of one that is registered for several, the first is meant"""


def differing(one: Component, other: Component) -> list[str]:
    """Return in which of its parts a component differs from that of another vendor, as flows use them."""

    def parts(component: Component) -> dict[str, Any]:
        return {
            "roles": set(component.roles),
            "inputs": [(one.name, one.group) for one in component.inputs],
            "outputs": [(one.name, one.group) for one in component.outputs],
            "parameters": {one.name: one.type for one in component.parameters},
        }

    theirs = parts(other)
    return [name for name, part in parts(one).items() if part != theirs[name]]


STRICT = "strict"  # metadata.values of a vendor whose descriptions list every value
FATE, YACL = "fate", "yacl"
"""``metadata.profile`` of an image that swaps namespace and name, or reads ``system.storage.host.url``"""


@dataclass(frozen=True)
class Provider:
    """A vendor's image on one kind of device, and the components in it.

    ``images`` holds the image of those components that were registered one by one with an image other than
    the provider's. ``warnings`` are those of the registration.
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
    """jobs under way continue with it, new ones are refused"""

    @property
    def key(self) -> str:
        """The provider's identity: name, version and kind of device."""
        return f"{self.name}:{self.version}@{self.device}"

    @property
    def place(self) -> str:
        """What the provider says of its engine: its name, its daemon's address, or a device other than Docker."""
        named = self.metadata.get("engine")
        device = self.device if self.device in DEVICES[1:] else ""
        return (named if isinstance(named, str) else "") or self.base_url or device

    @property
    def strict_values(self) -> bool:
        """Whether values outside the choices and ranges of its descriptions refuse a job."""
        return self.metadata.get("values") == STRICT

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
            "components_description": {
                name: dict(c.document) for name, c in self.components.items()
            },
            "warnings": [list(w) for w in self.warnings],
        }


# Bounds. Descriptions come from other institutions: a document is checked once, without recursion, before
# anything else reads it, and problems repeat only a little of what was found.

MAX_DEPTH = 24
MAX_VALUES = 100_000
MAX_BITS = 4096
"""size of an integer; the interpreter refuses to write out much longer ones"""
MAX_COMPONENTS = 500
MAX_PROBLEMS = 200
MAX_QUOTE = 200
"""characters of a found value that a problem repeats"""

ROOT = "(document)"
MORE = Problem(ROOT, f"has more than the {MAX_PROBLEMS} problems listed here")
_PLAIN_KEY = re.compile(r"[\w-]{1,128}")


def unfit(document: Any) -> Problem | None:
    """Say why a value cannot be stored as JSON in UTF-8, or is too large; None if it can be used."""
    level: list[Any] = [document]
    values = 0
    for _ in range(MAX_DEPTH):
        values += len(level)
        if values > MAX_VALUES:
            return Problem(ROOT, f"must not hold more than {MAX_VALUES} values", values)
        below: list[Any] = []
        for value in level:
            if isinstance(value, str):
                if not encodable(value):
                    return Problem(ROOT, "must be text that UTF-8 can hold", shorten(value))
            elif isinstance(value, (list, tuple)):
                below.extend(value)
            elif isinstance(value, Mapping):
                below.extend(value)
                below.extend(value.values())
            elif problem := _unfit_number(value):
                return problem
        if not below:
            return None
        level = below
    return Problem(ROOT, f"must not nest deeper than {MAX_DEPTH} levels", MAX_DEPTH + 1)


def _unfit_number(value: Any) -> Problem | None:
    match value:
        case int() if value.bit_length() > MAX_BITS:
            return Problem(ROOT, f"must not hold integers beyond {MAX_BITS} bits", shorten(value))
        case float() if not math.isfinite(value):
            return Problem(ROOT, "must hold finite numbers only", repr(value))
        case None | int() | float():
            return None
        case _:
            return Problem(ROOT, "must hold JSON values only", type(value).__name__)


def shorten(value: Any) -> Any:
    """Return a JSON value that shows what was found, small enough to be repeated in a response."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, int):
        return value if abs(value) < 10**18 else "an integer of many digits"
    if isinstance(value, str):
        text = value if encodable(value) else value.encode("utf-8", "replace").decode()
        return text if len(text) <= MAX_QUOTE else text[:MAX_QUOTE] + "…"
    if not isinstance(value, (Mapping, list, tuple)):
        return f"a {type(value).__name__}"
    if (
        len(value) <= MAX_QUOTE // 2
        and unfit(value) is None
        and len(text := as_text(value)) <= MAX_QUOTE
    ):
        return json.loads(text)
    return (
        f"an object with {len(value)} fields"
        if isinstance(value, Mapping)
        else f"a list of {len(value)} values"
    )


def as_text(value: Any) -> str:
    """Return the text form of a JSON value: text as it is, anything else as JSON.

    A value nested too deeply for the encoder, or with an integer too long for it, gives an empty text.
    """
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (RecursionError, ValueError, TypeError):
        return ""


def texts(value: Any) -> tuple[str, ...]:
    """Read a list of texts, or one text for a list of one; blanks are left out."""
    values = [value] if isinstance(value, str) else value or []
    return tuple(v.strip() for v in values if v.strip())


def join(path: str, *steps: str | int) -> str:
    """Extend a path: ``join("a", "b", 3)`` is ``a.b[3]``; odd keys are quoted."""
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            path += f".{step}" if path else step
        else:
            path += f"[{json.dumps(shorten(step), ensure_ascii=False)}]"
    return path


def bounded(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems with what they found cut short, and at most MAX_PROBLEMS of them."""
    kept = [
        Problem(p.path, p.rule, shorten(p.got), p.suggestion)
        for p in islice(problems, MAX_PROBLEMS + 1)
    ]
    if len(kept) > MAX_PROBLEMS:
        kept[MAX_PROBLEMS] = MORE
    return tuple(kept)


def encodable(text: str) -> bool:
    """Tell whether UTF-8 can hold a text: JSON's escapes can spell half a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
