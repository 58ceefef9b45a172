"""Where a parameter's type, default, allowed values, check, conditions and widget contradict one another."""

from collections.abc import Iterator, Mapping, Sequence

from provider_registry import regex
from provider_registry.limits import join
from provider_registry.lint import listed, near, repeats
from provider_registry.model import Parameter, Problem
from provider_registry.types import Kind, kind_of, number, reads_as

Allowed = Mapping[str, frozenset[str] | None]
"""the allowed values of every parameter of a component, None for any"""

_CHOOSES = ("select", "selectTree", "radio", "checkbox")
_WORDS = (Kind.BOOLEAN, Kind.OBJECT, Kind.LIST)


def contradictions(parameters: Sequence[Parameter], path: str) -> Iterator[Problem]:
    """Find them in all parameters of a component."""
    allowed: Allowed = {p.name: None if p.binding is None else frozenset(p.binding) for p in parameters}
    for i, parameter in enumerate(parameters):
        at = join(path, i)
        kind = kind_of(parameter.type)
        if parameter.default:
            yield from _of_default(parameter, kind, join(at, "defaultValue"))
        if parameter.binding:
            yield from _of_binding(parameter, kind, join(at, "bindingData"))
        yield from _of_check(parameter, kind, join(at, "validator"))
        yield from _of_widget(parameter, kind, at)
        for k, condition in enumerate(parameter.depends_on):
            yield from _unmet_condition(parameter.name, condition, allowed, join(at, "dependsOn", k))
    yield from _circles(parameters, allowed, path)


def _of_default(parameter: Parameter, kind: Kind, at: str) -> Iterator[Problem]:
    default = parameter.default or ""
    if not reads_as(kind, default):
        yield Problem(at, f"cannot be read as {parameter.type}", default)
    if parameter.binding and default not in parameter.binding:
        rule = f"is none of {listed(parameter.binding)}"
        yield Problem(at, rule, default, near(default, parameter.binding))
    check = parameter.validator
    if check is None:
        return
    if _outside(parameter, default):
        yield Problem(at, f"lies outside {check.text}", default)
    if check.pattern is not None and regex.is_plain(check.pattern):
        [matches] = regex.full_matches([(check.pattern, default)], seconds=0)
        if matches is False:
            yield Problem(at, f"does not match {check.text}", default)


def _of_binding(parameter: Parameter, kind: Kind, at: str) -> Iterator[Problem]:
    binding = parameter.binding or ()
    yield from repeats(binding, at)
    unreadable = [value for value in binding if value and not reads_as(kind, value)]
    if unreadable:
        yield Problem(at, f"lists values that are no {parameter.type}: {listed(unreadable)}", unreadable)
    outside = [value for value in binding if _outside(parameter, value)]
    if outside:
        check = parameter.validator.text if parameter.validator else ""
        yield Problem(at, f"lists values outside {check}: {listed(outside)}", outside)


def _of_check(parameter: Parameter, kind: Kind, at: str) -> Iterator[Problem]:
    check = parameter.validator
    if check is not None and check.pattern is None and kind in _WORDS:
        yield Problem(at, f"is a range, which values of type {parameter.type} are never held against", check.text)


def _of_widget(parameter: Parameter, kind: Kind, at: str) -> Iterator[Problem]:
    widget, bound = parameter.ui_type, parameter.binding or parameter.binding_function
    place = join(at, "UIType")
    if widget in _CHOOSES and not bound and not (widget == "checkbox" and kind is Kind.BOOLEAN):
        yield Problem(place, "lets somebody choose, and bindingData lists nothing to choose from", widget)
    if widget == "numberPicker" and kind not in (Kind.INTEGER, Kind.NUMBER, Kind.OTHER):
        yield Problem(place, f"is for numbers, and the type is {parameter.type}", widget)
    if widget == "switch" and kind not in (Kind.BOOLEAN, Kind.OTHER) and len(parameter.binding or ()) != 2:
        yield Problem(place, f"is for true and false, and the type is {parameter.type}", widget)
    if parameter.ui_pattern in ("readOnly", "hidden") and not parameter.optional and not parameter.default:
        rule = "keeps a form from giving a value that is required and has no default"
        yield Problem(join(at, "UIPattern"), rule, parameter.ui_pattern)


def _outside(parameter: Parameter, value: str) -> bool:
    read = number(value)
    return read is not None and parameter.validator is not None and not parameter.validator.in_range(read)


def _unmet_condition(own: str, condition: str, allowed: Allowed, at: str) -> Iterator[Problem]:
    """Say whether a condition names a parameter, or a value of one, that the description does not have."""
    name, _, value = (condition, "", "") if condition in allowed else condition.partition(".")
    if name not in allowed:
        meant = near(name, allowed)
        hint = f"{meant}.{value}" if meant and value else meant
        yield Problem(at, "names a parameter that is not described", condition, hint)
        return
    if name == own:
        yield Problem(at, "depends on the parameter itself", condition)
        return
    values = allowed[name]
    if value and values is not None and value not in values:
        meant = near(value, values)
        yield Problem(at, f"names a value that {name} does not list", condition, meant and f"{name}.{meant}")


def _circles(parameters: Sequence[Parameter], allowed: Allowed, path: str) -> Iterator[Problem]:
    """Find parameters that are each shown only when the other is; the first of each circle is told."""
    needs: dict[str, list[str]] = {}
    for parameter in parameters:
        names = [c if c in allowed else c.partition(".")[0] for c in parameter.depends_on]
        needs[parameter.name] = [name for name in names if name in allowed and name != parameter.name]
    needed_by: dict[str, list[str]] = {}
    for name, others in needs.items():
        for other in others:
            needed_by.setdefault(other, []).append(name)
    news = [name for name, others in needs.items() if not others]
    shown = set(news)
    while news:
        more = [name for name in needed_by.pop(news.pop(), ()) if name not in shown]
        shown.update(more)
        news += more
    waiting = needs.keys() - shown
    for i, parameter in enumerate(parameters):
        if parameter.name in waiting:
            circle = [p.name for p in parameters if p.name in waiting]
            yield Problem(join(path, i, "dependsOn"), f"goes round in a circle: {listed(circle)}", circle)
            return
