"""Turns the dotted environment variables of a run into one object, or names everything wrong with them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refvendor.contract import BadParameters, Task
from refvendor.forms import FORMS, Json

REQUIRED = (
    "system.storage",
    "system.transport",
    "config.self_role",
    "config.task_id",
    "config.session_id",
    "runtime.component.name",
)
DEFAULT_DEADLINE = 3600.0
_PARAMETER = "runtime.component.parameter."
_INPUT = "runtime.component.input."
_OUTPUT = "runtime.component.output."
_ROLE = re.compile(r"([a-z_]+)(?:\.(\d+))?")


@dataclass(frozen=True)
class Address:
    """Where a table or report lies in the storage."""

    namespace: str
    name: str


@dataclass(frozen=True)
class Environment:
    """Everything the platform tells a run."""

    task: Task
    storage: str
    transport: str
    session_id: str
    callback: str
    """empty where the platform wants none"""
    trace_id: str
    token: str
    log_path: str
    """directory for a copy of the log lines; empty for none"""
    institutions: Mapping[str, str]
    """``role.index`` -> institution id"""
    inputs: Mapping[str, Address]
    outputs: Mapping[str, Address]
    deadline: float
    """seconds that the run may wait for its peers in all"""
    form: str
    """how messages are sent, one of `FORMS`: a setting of the image"""


def read(environ: Mapping[str, str]) -> Environment:
    """Read the variables. Raises `BadParameters` naming every one that is missing or cannot work."""
    problems = [f"{name}: is required, got nothing" for name in REQUIRED if not environ.get(name)]
    role, index = _self_role(environ.get("config.self_role", ""), problems)
    parties = _parties(environ, problems)
    if role and index >= len(parties.get(role, ())):
        problems.append(f"config.node_id.{role}.{index}: is required, got nothing")
    inputs = _addresses(environ, _INPUT, problems)
    outputs = _addresses(environ, _OUTPUT, problems)
    deadline = _deadline(environ.get("config.deadline", ""), problems)
    form = environ.get("CHANNEL_FORM") or Json.name
    if form not in FORMS:
        problems.append(f"CHANNEL_FORM: must be one of {', '.join(FORMS)}, got {form!r}")
    if problems:
        raise BadParameters("; ".join(problems))
    task = Task(
        component=environ["runtime.component.name"],
        task_id=environ["config.task_id"],
        role=role,
        index=index,
        parties=parties,
        parameters={
            key.removeprefix(_PARAMETER): decode(text)
            for key, text in environ.items()
            if key.startswith(_PARAMETER) and key != _PARAMETER
        },
        inputs=tuple(inputs),
        outputs=tuple(outputs),
    )
    return Environment(
        task=task,
        storage=environ["system.storage"],
        transport=environ["system.transport"],
        session_id=environ["config.session_id"],
        callback=environ.get("system.callback", ""),
        trace_id=environ.get("config.trace_id", ""),
        token=environ.get("config.token", ""),
        log_path=environ.get("config.log.path", ""),
        institutions={
            key.removeprefix("config.inst_id."): text
            for key, text in environ.items()
            if key.startswith("config.inst_id.")
        },
        inputs=inputs,
        outputs=outputs,
        deadline=deadline,
        form=form,
    )


def decode(text: str) -> Any:
    """The value of a parameter's text: JSON where the text is JSON, true and false in any case, else the text.

    A number stays text where its spelling would be lost (``1e5``, ``007``), since it may be a salt or a name.
    """
    lowered = text.strip().lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, int | float) and json.dumps(value) != text:
        return text
    return text if value is None or _is_not_finite(value) else value


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and (value != value or value in (float("inf"), float("-inf")))


def _self_role(text: str, problems: list[str]) -> tuple[str, int]:
    if not text:
        return "", 0
    match = _ROLE.fullmatch(text.strip())
    if match is None or len(match[2] or "") > 9:
        problems.append(f"config.self_role: must be one role.index such as guest.0, got {text!r}")
        return "", 0
    return match[1], int(match[2] or 0)


def _parties(environ: Mapping[str, str], problems: list[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[int, str]] = {}
    for key, node in environ.items():
        if not key.startswith("config.node_id."):
            continue
        match = _ROLE.fullmatch(key.removeprefix("config.node_id."))
        if match is None or match[2] is None or len(match[2]) > 9 or not node:
            problems.append(
                f"{key}: must be named config.node_id.<role>.<number> and not empty, got {node!r}"
            )
            continue
        found.setdefault(match[1], {})[int(match[2])] = node
    for role, nodes in found.items():
        if missing := [i for i in range(min(max(nodes) + 1, len(nodes) + 1)) if i not in nodes]:
            problems.append(f"config.node_id.{role}.{missing[0]}: is required, got nothing")
    return {role: tuple(nodes[i] for i in sorted(nodes)) for role, nodes in found.items()}


def _addresses(
    environ: Mapping[str, str],
    prefix: str,
    problems: list[str],
) -> dict[str, Address]:
    found = {}
    for key, text in environ.items():
        if not key.startswith(prefix) or not text:
            continue
        try:
            value = json.loads(text)
            address = Address(value["namespace"], value["name"])
        except (ValueError, RecursionError, TypeError, KeyError):
            address = Address("", "")
        if not all(isinstance(part, str) and part for part in (address.namespace, address.name)):
            problems.append(
                f'{key}: must be JSON {{"namespace": text, "name": text}}, got {text[:200]!r}'
            )
            continue
        found[key.removeprefix(prefix)] = address
    return found


def _deadline(text: str, problems: list[str]) -> float:
    if not text:
        return DEFAULT_DEADLINE
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        problems.append(f"config.deadline: must be a number of seconds above 0, got {text!r}")
    return seconds
