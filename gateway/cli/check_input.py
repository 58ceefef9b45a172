"""Input of ``provider check``: data, parameters, selected components and clauses."""

from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.cli.client import EXIT_BAD_INPUT, CallFailed, content
from gateway.cli.output import say

if TYPE_CHECKING:
    from gateway.conformance.check import RegistrationCheck, TrialInput
    from provider_registry.model import Component

X = TypeVar("X")


def read_trial_input(
    data: Sequence[str],
    parameters: Sequence[str],
    registration: "RegistrationCheck",
) -> "TrialInput":
    """Read the options --data (a table for a role, or one input's content) and --parameter.

    Raises `CallFailed`.
    """
    from gateway.conformance.check import TrialInput

    tables: dict[str, bytes] = {}
    files: dict[tuple[str, str], bytes] = {}
    for text in data:
        target, file = _pair(text, "--data ROLE=FILE.csv or --data ROLE.INPUT=FILE")
        role, _, name = target.partition(".")
        if name and not name.isdecimal():
            files[role, name] = content(Path(file))
        else:  # only a role, or a role with its index: the 0 of guest.0 is dropped
            tables[role] = content(Path(file))
    common, of_roles = _parameters(parameters, _roles_of(registration))
    return TrialInput(
        tables=tables,
        parameters=common,
        of_roles=of_roles,
        files=files,
    )


def _roles_of(registration: "RegistrationCheck") -> set[str]:
    """Return the roles of all components; none if the description was refused."""
    if registration.provider is None:
        return set()
    components = registration.provider.components.values()
    return {role for component in components for role in component.roles}


def _parameters(
    pairs: Sequence[str],
    roles: Set[str],
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Parse the ``pairs`` of --parameter.

    Return the values for all roles by name, and those for single roles by role and name.
    """
    common: dict[str, str] = {}
    of_roles: dict[str, dict[str, str]] = {}
    for text in pairs:
        target, value = _pair(text, "--parameter NAME=VALUE or ROLE.NAME=VALUE")
        role, _, name = target.partition(".")
        if name and role in roles:
            of_roles.setdefault(role, {})[name] = value
        else:
            common[target] = value
    return common, of_roles


def _pair(text: str, form: str) -> tuple[str, str]:
    """Split ``name=value``. Raises `CallFailed`, which shows the ``form`` of the option."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise CallFailed(f"{text!r} must read {form}", EXIT_BAD_INPUT)
    return name, value


def select(
    available: Mapping[str, X],
    names: Sequence[str],
    *,
    noun: str,
    reason: str,
) -> list[X]:
    """Return the named entries, each once; all entries if there are no names.

    Raises `CallFailed` with the ``reason`` for an unknown name. ``noun`` is the word for one entry
    in its message.
    """
    unknown = [name for name in names if name not in available]
    if unknown:
        choices = ", ".join(available) or "none"
        text = f"there is no {noun} {', '.join(unknown)}; there are: {choices}"
        raise CallFailed(text, EXIT_BAD_INPUT, reason)
    return [available[name] for name in dict.fromkeys(names or available)]


def validate(
    trial_input: "TrialInput",
    components: "Sequence[Component]",
    *,
    strict: bool,
) -> None:
    """Check the user's parameters and data against the components.

    Raises `CallFailed` for a parameter or data of no component, and for a value for which a node
    would reject a job. A value that a node would only report is a warning here. ``strict``: whether
    the provider asks nodes to reject further values, as explained in `provider_registry.values`.
    """
    _check_parameter_names(trial_input, components)
    # "": the values for all roles.
    parameters_by_role = {"": trial_input.parameters, **trial_input.of_roles}
    errors = []
    for component in components:
        for role, parameters in parameters_by_role.items():
            errors += _value_errors(component, role, parameters, strict=strict)
    if errors:
        raise CallFailed("\n".join(errors), EXIT_BAD_INPUT, "INVALID")
    _check_data(trial_input, components)


def _value_errors(
    component: "Component",
    role: str,
    parameters: Mapping[str, Any],
    *,
    strict: bool,
) -> list[str]:
    """Return the errors in the values for a component, and print the warnings.

    A missing parameter does not count as an error: the trial makes up a value for it.
    """
    from provider_registry import values

    declared = {parameter.name for parameter in component.parameters}
    used = {name: value for name, value in parameters.items() if name in declared}
    problems = values.check(
        used,
        component,
        path=role,
        strict=strict,
    )
    # A problem's ``got`` is None if the parameter is missing.
    for problem in problems.warnings:
        if problem.got is not None:
            say(f"warning: {component.name}, --parameter {problem}", err=True)
    errors = [problem for problem in problems.errors if problem.got is not None]
    return [f"{component.name}, --parameter {problem}" for problem in errors]


def _check_parameter_names(
    trial_input: "TrialInput",
    components: "Sequence[Component]",
) -> None:
    """Raise `CallFailed` for parameters that none of the components has."""
    declared: dict[str, None] = {}
    for component in components:
        declared |= dict.fromkeys(parameter.name for parameter in component.parameters)
    names = [*trial_input.parameters]
    for parameters in trial_input.of_roles.values():
        names += parameters
    unknown = [name for name in names if name not in declared]
    if unknown:
        text = (
            f"no component that is checked has a parameter {', '.join(unknown)}; there are: "
            f"{', '.join(declared)}"
        )
        raise CallFailed(text, EXIT_BAD_INPUT, "PARAMETER_UNKNOWN")


def _check_data(trial_input: "TrialInput", components: "Sequence[Component]") -> None:
    """Raise `CallFailed` for data that none of the components reads."""
    roles: set[str] = set()
    inputs: set[str] = set()
    for component in components:
        roles.update(component.roles)
        inputs.update(data.name for data in component.inputs)
    unused = list(_unused_data(trial_input, roles, inputs))
    if unused:
        text = f"no component that is checked reads data of {', '.join(unused)}; there are roles "
        text += f"{', '.join(sorted(roles))} and inputs {', '.join(sorted(inputs)) or 'none'}"
        raise CallFailed(text, EXIT_BAD_INPUT, "INPUT_UNKNOWN")


def _unused_data(
    trial_input: "TrialInput",
    roles: Set[str],
    inputs: Set[str],
) -> Iterator[str]:
    """Yield every target of --data that no component reads.

    A target is a role ("host"), or a role with an input ("host.model"). ``roles`` and ``inputs``
    are those of the components.
    """
    for role in trial_input.tables:
        if role not in roles:
            yield role
    for role, name in trial_input.files:
        is_read = role in roles and name in inputs
        if not is_read:
            yield f"{role}.{name}"
