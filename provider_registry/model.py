"""A provider, the components in its image, and the problems of their descriptions.

All values are frozen; the mappings inside them are read-only by convention.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Any

from gateway.domain.problems import Problem as Problem
from gateway.domain.problems import Unfit
from gateway.domain.problems import near as near

# As a version in a job: the newest version in use. As a part of a query: any value.
ANY = "*"
# The devices on which jobs find providers, in the order of preference. A registration may name
# another device, with a warning.
DEVICES = ("docker", "swarm", "k8s")
# Reason of refusals: a provider's images do not run on the kind of engine that they would get.
ENGINE_UNSUITABLE = "ENGINE_UNSUITABLE"
STRICT = "strict"  # ``metadata.values`` of a vendor whose descriptions list every allowed value
# The values of ``metadata.profile``, for images that read their variables differently:
FATE = "fate"  # the image expects the namespace and the name of an address exchanged
YACL = "yacl"  # the image reads the storage's address from ``system.storage.host.url``

# A category with one of these words is data: train_data, validate_set, sample_cache.
_DATA_WORDS = re.compile("data|training_set|test_set|validate_set|cache")


class InvalidDescription(Unfit):
    """A description or a registration cannot be used.

    ``problems`` are the reasons; ``warnings`` are the warnings about the valid parts.
    """

    def __init__(
        self,
        problems: tuple[Problem, ...],
        warnings: tuple[Problem, ...] = (),
    ) -> None:
        """Take the problems, at least one, and the warnings."""
        super().__init__(problems)
        self.warnings = warnings


def group_of(category: str) -> str:
    """Return the group of an input's or output's category: data, model or metric.

    The category is that of a description or of a flow, in the vendor's words: a data word decides
    before ``model``, and anything else is a metric.
    """
    lowered = category.lower()
    if _DATA_WORDS.search(lowered):
        return "data"
    if "model" in lowered:
        return "model"
    return "metric"


@dataclass(frozen=True)
class Validator:
    """A description's check of a parameter: a range or a regular expression.

    Without any argument, it is the check that every value passes.
    """

    text: str = ""  # the description's own notation; empty without a check
    lower: float = -math.inf  # minus infinity: no lower bound
    upper: float = math.inf  # infinity: no upper bound
    pattern: str | None = None  # the expression, which must match the whole value; None for a range
    lower_open: bool = False  # the bound itself is excluded
    upper_open: bool = False

    def in_range(self, number: float | None) -> bool:
        """Return whether a number is in the range; True for None, which is not a number.

        A bound belongs to the range unless it is open. An expression has no range: all numbers are
        in it.
        """
        if number is None:
            return True
        # Pairs of a bound and whether it is open.
        bounds = ((self.lower, self.lower_open), (self.upper, self.upper_open))
        is_excluded_bound = (number, True) in bounds
        return self.lower <= number <= self.upper and not is_excluded_bound


@dataclass(frozen=True)
class Parameter:
    """A parameter of a component.

    ``depends_on``, ``ui_pattern``, ``ui_type`` and ``groups`` describe a form; no job is refused
    for them.
    """

    name: str
    title: str
    description: str
    type: str
    optional: bool
    default: str | None = None  # None: no default; empty: the description gives a blank one
    binding: tuple[str, ...] | None = None  # the allowed values as text; None: any value
    binding_function: str | None = None  # name of a callback that would supply the allowed values
    validator: Validator = Validator()
    depends_on: tuple[str, ...] = ()
    ui_pattern: str = "editable"
    ui_type: str = "input"
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataSpec:
    """An input or output of a component; the first of ``formats`` is its default."""

    name: str
    description: str
    category: str
    formats: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """The group of the category: data, model or metric."""
        return group_of(self.category)


@dataclass(frozen=True)
class Component:
    """One algorithm of an image."""

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
    results: Mapping[str, str]  # result code -> its meaning
    document: Mapping[str, Any]  # the description exactly as it was registered


def component_differences(component: Component, replacement: Component) -> list[str]:
    """Return the names of the aspects in which a replacement would break flows of a component.

    Aspects are ``roles``, ``inputs``, ``outputs`` and ``parameters``; empty if the replacement
    fits.
    """
    expected = _flow_aspects(component)
    actual = _flow_aspects(replacement)
    return [aspect for aspect in expected if expected[aspect] != actual[aspect]]


def _flow_aspects(component: Component) -> dict[str, Any]:
    """Return the values of a component on which a flow relies, by aspect."""
    name_and_group = attrgetter("name", "group")
    name_and_type = attrgetter("name", "type")
    return {
        "roles": set(component.roles),
        "inputs": list(map(name_and_group, component.inputs)),
        "outputs": list(map(name_and_group, component.outputs)),
        "parameters": dict(map(name_and_type, component.parameters)),
    }


@dataclass(frozen=True)
class Provider:
    """A vendor's image for one kind of device, with the components in it."""

    name: str
    version: str
    device: str
    protocol: str
    image: str
    base_url: str
    metadata: Mapping[str, Any]
    components: Mapping[str, Component]
    warnings: tuple[Problem, ...] = ()  # of the registration
    # Component -> its image, for components registered one by one with an image other than the
    # provider's.
    images: Mapping[str, str] = field(default_factory=dict)
    # Image -> the approved digest; images without an entry may have any.
    digests: Mapping[str, str] = field(default_factory=dict)
    retired: bool = False  # running jobs continue with it, new ones are refused

    @property
    def key(self) -> str:
        """The provider's identity: ``name:version@device``."""
        return f"{self.name}:{self.version}@{self.device}"

    @property
    def place(self) -> str:
        """The engine that the provider asks for; "" for the node's main one.

        That is a name (``metadata.engine``), the address of a daemon (``base_url``), or a device
        other than Docker, in this order.
        """
        # The first device is Docker, which is not a place of its own.
        other_device = self.device if self.device in DEVICES[1:] else ""
        return self.metadata.get("engine") or self.base_url or other_device

    @property
    def strict_values(self) -> bool:
        """Whether a value outside its parameter's choices or range refuses the job."""
        return self.metadata.get("values") == STRICT

    @property
    def engine_kinds(self) -> tuple[str, ...]:
        """The kinds of engines on which the images run; empty: any.

        They are values of ``engine.kind`` in a node's settings.
        """
        kinds = self.metadata.get("engine_kinds")
        return tuple(kinds or ())

    def runs_on(self, engine_kind: str) -> bool:
        """Return whether the images run on engines of a kind."""
        if not self.engine_kinds:
            return True
        return engine_kind in self.engine_kinds

    def image_for(self, component: str) -> str:
        """Return the image with a component.

        That is the provider's own image, unless the component was registered with another image.
        """
        return self.images.get(component, self.image)

    def every_image(self) -> tuple[str, ...]:
        """Return each image of this provider once.

        The provider's own comes first; empty for a provider that names no image.
        """
        images = dict.fromkeys([self.image, *self.images.values()])
        return tuple(filter(None, images))

    def document(self) -> dict[str, Any]:
        """Return the provider as JSON values for the store; `registration.from_document` reads it.

        ``image`` and ``base_url`` are in the metadata. ``digests`` and ``retired`` are left out
        while they are empty or False.
        """
        document: dict[str, Any] = {
            "name": self.name,
            "version": self.version,
            "device": self.device,
            "protocol": self.protocol,
            "metadata": dict(self.metadata),
            "images": dict(self.images),
        }
        if self.digests:
            document["digests"] = dict(self.digests)
        if self.retired:
            document["retired"] = True
        document["components_description"] = {
            name: dict(component.document) for name, component in self.components.items()
        }
        # Each warning is a list of the fields of `Problem`.
        document["warnings"] = list(map(list, self.warnings))
        return document


# Bounds. Descriptions come from other institutions: a document is checked once, without recursion,
# before anything else reads it, and problems repeat only a little of its values.

MAX_DEPTH = 24  # levels of nesting
MAX_VALUES = 100_000  # in a document, counting the keys of objects
MAX_BITS = 4096  # size of an integer; the interpreter refuses to write out much longer ones
MAX_COMPONENTS = 500  # in a registration
MAX_PROBLEMS = 200  # reported about a document
MAX_QUOTE = 200  # characters of a value that a problem repeats

ROOT = "(document)"  # the path of problems of a document as a whole
MORE = Problem(ROOT, f"has more than the {MAX_PROBLEMS} problems listed here")
_PLAIN_KEY = re.compile(r"[\w-]{1,128}")
_FIRST_UNQUOTED = 10**18  # integers from this size on are described instead of repeated


def document_problem(document: Any) -> Problem | None:
    """Return why a parsed document cannot be stored as JSON in UTF-8, or is too large.

    Returns None if it is usable.
    """
    level: list[Any] = [document]
    values = 0
    for _ in range(MAX_DEPTH):
        values += len(level)
        if values > MAX_VALUES:
            return Problem(ROOT, f"must not hold more than {MAX_VALUES} values", values)
        next_level, problem = _descend(level)
        if problem is not None or not next_level:
            return problem
        level = next_level
    return Problem(ROOT, f"must not nest deeper than {MAX_DEPTH} levels", MAX_DEPTH + 1)


def _descend(level: list[Any]) -> tuple[list[Any], Problem | None]:
    """Return the values inside those of a level, and the problem of its first unusable scalar.

    The keys of objects count as values. The problem is None if all scalars of the level are usable.
    """
    next_level: list[Any] = []
    for value in level:
        if isinstance(value, (list, tuple)):
            next_level.extend(value)
        elif isinstance(value, Mapping):
            next_level.extend(value)
            next_level.extend(value.values())
        else:
            problem = _scalar_problem(value)
            if problem is not None:
                return [], problem
    return next_level, None


def _scalar_problem(value: Any) -> Problem | None:
    """Return why a text, number or constant cannot be stored as JSON; None if it can.

    A value of any other type cannot; lists and objects are for `_descend`.
    """
    match value:
        case str() if not encodable(value):
            return Problem(ROOT, "must be text that UTF-8 can hold", shorten(value))
        case int() if value.bit_length() > MAX_BITS:
            return Problem(ROOT, f"must not hold integers beyond {MAX_BITS} bits", shorten(value))
        case float() if not math.isfinite(value):
            return Problem(ROOT, "must hold finite numbers only", repr(value))
        case None | str() | int() | float():
            return None
    return Problem(ROOT, "must hold JSON values only", type(value).__name__)


def shorten(value: Any) -> Any:
    """Return a JSON value that is small enough to be repeated in a problem.

    Short values stay as they are. Long text is cut, and large objects, lists and integers become a
    text about them. Anything that JSON does not know becomes a text, too.
    """
    match value:
        case float() if not math.isfinite(value):
            return repr(value)
        case int() if abs(value) >= _FIRST_UNQUOTED:
            return "an integer of many digits"
        case None | int() | float():  # also a boolean, which Python counts among the integers
            return value
        case str():
            return _shorten_text(value)
        case Mapping():
            summary = f"an object with {len(value)} fields"
            return _shorten_structure(value, summary)
        case list() | tuple():
            summary = f"a list of {len(value)} values"
            return _shorten_structure(value, summary)
    return f"a {type(value).__name__}"


def _shorten_text(value: str) -> str:
    """Return a text of at most `MAX_QUOTE` characters that UTF-8 can hold; "…" marks a cut."""
    text = value.encode("utf-8", "replace").decode()
    if len(text) > MAX_QUOTE:
        return text[:MAX_QUOTE] + "…"
    return text


def _shorten_structure(value: Any, summary: str) -> Any:
    """Return an object or a list as plain JSON if it is short, else its summary.

    A value that cannot be stored as JSON, or is nested too deeply, also gives the summary.
    """
    if len(value) > MAX_QUOTE // 2 or document_problem(value) is not None:
        return summary
    text = as_text(value)
    if len(text) > MAX_QUOTE:
        return summary
    return json.loads(text)


def as_text(value: Any) -> str:
    """Return the text form of a JSON value: text as it is, anything else as JSON.

    A value nested too deeply for the encoder, or with an integer too long for it, gives an empty
    text.
    """
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (RecursionError, ValueError, TypeError):
        return ""


def texts(value: Any) -> tuple[str, ...]:
    """Return the entries of a list of texts, stripped; empty ones are left out.

    A single text counts as a list, None as an empty one.
    """
    entries: Iterable[str] = value or []
    if isinstance(value, str):
        entries = [value]
    stripped = map(str.strip, entries)
    return tuple(filter(None, stripped))


def join(path: str, *steps: str | int) -> str:
    """Return a path extended by keys and indexes: ``join("a", "b", 3)`` is ``a.b[3]``.

    The empty path is that of the whole document. Keys with other characters than letters, digits,
    _ and - are quoted: ``a["b.c"]``.
    """
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not _PLAIN_KEY.fullmatch(step):
            path += f"[{json.dumps(shorten(step), ensure_ascii=False)}]"
        elif path:
            path += f".{step}"
        else:
            path = step
    return path


def bounded(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems with their values shortened, at most `MAX_PROBLEMS`.

    `MORE` follows them if there are further problems.
    """
    result = [
        problem._replace(got=shorten(problem.got)) for problem in islice(problems, MAX_PROBLEMS + 1)
    ]
    if len(result) > MAX_PROBLEMS:
        result[MAX_PROBLEMS] = MORE
    return tuple(result)


def encodable(text: str) -> bool:
    """Return whether UTF-8 can hold a text.

    It cannot hold half a surrogate pair, which an escape in JSON can spell.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
