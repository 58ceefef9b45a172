"""A self-description, JSON of a vendor, read into a `Component`.

Refused is what leaves the gateway unable to run the component: a field of the wrong shape, no name, no roles, no
list of parameters, inputs or outputs, one name twice in a list. What is only shown to people, or contradicts
itself while the component may still work, is a warning: vendors' published descriptions do all of that.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from provider_registry import description, mending, schema
from provider_registry.contradictions import contradictions
from provider_registry.limits import MAX_PROBLEMS, bounded, join, refuse_unfit
from provider_registry.lint import of_component, outer_wins
from provider_registry.model import (
    Component,
    DataSpec,
    InvalidDescription,
    Parameter,
    Problem,
    ResultCode,
)

_RESPELLED = {"editeable": "editable", "redio": "radio"}
"""the format's own misspellings; both forms are read"""


def component(
    document: Any, path: str = "", *, provider: str | None = None, version: str | None = None
) -> tuple[Component, tuple[Problem, ...]]:
    """Read one description and return it with its warnings.

    ``provider`` and ``version`` are those it is registered under; they win over the inner ones. Raises
    InvalidDescription with every problem, each under ``path``.
    """
    refuse_unfit(document)
    return judged(document, path, provider=provider, version=version)


def judged(
    document: Any, path: str, *, provider: str | None = None, version: str | None = None
) -> tuple[Component, tuple[Problem, ...]]:
    """Do as `component` with a part of a document that is known to be within its bounds."""
    problems = [*schema.problems(schema.DESCRIPTION, document, path), *_repeated_names(document, path)]
    if problems:
        raise InvalidDescription(bounded(problems), _unusual_besides(document, problems, path, provider, version))
    return _with_warnings(document, path, provider, version)


def _unusual_besides(
    document: Any, problems: Sequence[Problem], path: str, provider: str | None, version: str | None
) -> tuple[Problem, ...]:
    """Return the warnings about the parts that have no error; none where too much is broken to tell."""
    if not isinstance(document, Mapping) or len(problems) > MAX_PROBLEMS:
        return ()
    whole, left_out = mending.mended(document, problems, path)
    if not schema.DESCRIPTION.kept_by(whole) or any(_repeated_names(whole, path)):
        return ()
    return mending.outside(_with_warnings(whole, path, provider, version)[1], left_out)


def _with_warnings(
    document: Mapping[str, Any], path: str, provider: str | None, version: str | None
) -> tuple[Component, tuple[Problem, ...]]:
    read, remarks = from_valid(document, path, provider=provider, version=version)
    warnings = chain(
        outer_wins(document, path, provider, version),
        of_component(read, document, path),
        remarks,
        contradictions(read.parameters, join(path, "inputParam")),
    )
    return read, bounded(warnings)


def from_valid(
    document: Mapping[str, Any], path: str = "", *, provider: str | None = None, version: str | None = None
) -> tuple[Component, list[Problem]]:
    """Read a description whose shape is known to be good; returns it and what its spellings left unclear."""
    remarks: list[Problem] = []
    parameters = tuple(
        _parameter(item, join(path, "inputParam", i), remarks) for i, item in enumerate(document["inputParam"])
    )
    read = Component(
        name=document["componentName"],
        title=description.text(document.get("title")),
        provider=provider or description.text(document.get("provider")),
        version=version or description.text(document.get("version")),
        description=description.text(document.get("description")),
        roles=tuple(dict.fromkeys(document["roleList"])),
        description_version=description.text(document.get("desVersion")),
        storage_engines=description.texts(document.get("storageEngine")),
        parameters=parameters,
        inputs=tuple(map(_data, document["inputData"])),
        outputs=tuple(map(_data, document["outputData"])),
        results=tuple(
            ResultCode(str(item["resultCode"]), description.text(item.get("resultMessage")))
            for item in document.get("result") or ()
        ),
        document=dict(document),
    )
    return read, remarks


def _parameter(item: Mapping[str, Any], path: str, remarks: list[Problem]) -> Parameter:
    """Read one parameter; what its spellings leave unclear is added to ``remarks``."""
    optional, about_optional = description.is_optional(item.get("optional"))
    values, function, about_binding = description.binding(item.get("bindingData"))
    check, about_check = description.validator(item.get("validator"))
    for name, remark in (
        ("optional", about_optional),
        ("bindingData", about_binding),
        ("validator", about_check),
    ):
        if remark:
            hint = description.suggested(item.get(name)) if name == "validator" else ""
            remarks.append(Problem(join(path, name), remark, item.get(name), hint))
    pattern = description.text(item.get("UIPattern")) or "editable"
    widget = description.text(item.get("UIType")) or "input"
    return Parameter(
        name=item["name"],
        title=description.text(item.get("title")),
        description=description.text(item.get("description")),
        type=item["type"],
        optional=optional,
        default=description.default_text(item.get("defaultValue")),
        binding=values,
        binding_function=function,
        validator=check,
        depends_on=description.depends_on(item.get("dependsOn")),
        ui_pattern=_RESPELLED.get(pattern, pattern),
        ui_type=_RESPELLED.get(widget, widget),
        groups=description.texts(item.get("groupTag")),
    )


def _data(item: Mapping[str, Any]) -> DataSpec:
    return DataSpec(
        name=item["name"],
        description=description.text(item.get("description")),
        category=item["category"],
        formats=description.texts(item.get("dataFormat")),
    )


def _repeated_names(document: Any, path: str) -> Iterator[Problem]:
    """Find names that stand twice in one list. Runs on unchecked documents, so that all is told at once."""
    if not isinstance(document, Mapping):
        return
    for field in ("inputParam", "inputData", "outputData"):
        items = document.get(field)
        if not isinstance(items, list):
            continue
        first: dict[str, int] = {}
        for i, item in enumerate(items):
            name = item.get("name") if isinstance(item, Mapping) else None
            if isinstance(name, str) and first.setdefault(name, i) != i:
                yield Problem(join(path, field, i, "name"), f"repeats the name of {field}[{first[name]}]", name)
