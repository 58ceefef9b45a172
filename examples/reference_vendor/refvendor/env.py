"""Reads the dotted environment variables of a run into one object, or names everything that is
wrong with them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refvendor.contract import BadParameters, Task
from refvendor.forms import FORMS, JsonForm

REQUIRED = (
    "system.storage",
    "system.transport",
    "config.self_role",
    "config.task_id",
    "config.session_id",
    "runtime.component.name",
)
PARAMETER_PREFIX = "runtime.component.parameter."
INPUT_PREFIX = "runtime.component.input."
OUTPUT_PREFIX = "runtime.component.output."
NODE_PREFIX = "config.node_id."
INSTITUTION_PREFIX = "config.inst_id."
DEFAULT_DEADLINE = 3600.0  # seconds
MOST_SECONDS = 1e9
MOST_INDEX_DIGITS = 9
MOST_CHARACTERS_SHOWN = 200  # of an invalid address
# A role with or without the index of a party.
_ROLE = re.compile(r"([a-z_]+)(?:\.(\d+))?")


@dataclass(frozen=True)
class Address:
    """The name of a table or report in the storage."""

    namespace: str
    name: str


@dataclass(frozen=True)
class Session:
    """What the transport needs to know about this run besides its task."""

    session_id: str
    token: str
    trace_id: str
    institutions: Mapping[str, str]  # ``role.index`` -> institution id


@dataclass(frozen=True)
class Environment:
    """Everything that the platform tells a run. Optional texts are empty if they are not set."""

    task: Task
    session: Session
    storage: str  # URL
    transport: str  # address of the transport module
    callback: str  # URL
    log_path: str  # directory for a copy of the log lines
    inputs: Mapping[str, Address]
    outputs: Mapping[str, Address]
    deadline: float  # seconds in total that the run may wait for its peers
    form: str  # of messages to the transport, out of `FORMS`; a setting of the image
    # where to submit an attestation report, and the first half of its user data; empty: none
    attestation_url: str = ""
    attestation_binding: str = ""


def read_environment(environ: Mapping[str, str]) -> Environment:
    """Read the variables. Raises `BadParameters` with every one that is missing or invalid."""
    reader = EnvironmentReader(environ)
    reader.check_required()
    role, index = reader.self_role()
    parties = reader.parties()
    reader.check_own_node(role, index, parties)
    inputs = reader.addresses(INPUT_PREFIX)
    outputs = reader.addresses(OUTPUT_PREFIX)
    deadline = reader.deadline()
    form = reader.form()
    if reader.problems:
        raise BadParameters("; ".join(reader.problems))
    task = Task(
        component=environ["runtime.component.name"],
        task_id=environ["config.task_id"],
        role=role,
        index=index,
        parties=parties,
        parameters=reader.parameters(),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
    )
    session = Session(
        session_id=environ["config.session_id"],
        token=environ.get("config.token", ""),
        trace_id=environ.get("config.trace_id", ""),
        institutions=reader.with_prefix(INSTITUTION_PREFIX),
    )
    return Environment(
        task=task,
        session=session,
        storage=environ["system.storage"],
        transport=environ["system.transport"],
        callback=environ.get("system.callback", ""),
        log_path=environ.get("config.log.path", ""),
        inputs=inputs,
        outputs=outputs,
        deadline=deadline,
        form=form,
        attestation_url=environ.get("system.attestation.url", ""),
        attestation_binding=environ.get("system.attestation.binding", ""),
    )


class EnvironmentReader:
    """Reads variables and collects the problems with them."""

    def __init__(
        self,
        environ: Mapping[str, str],
    ) -> None:
        self.problems: list[str] = []
        self._environ = environ

    def with_prefix(
        self,
        prefix: str,
    ) -> dict[str, str]:
        """Return the variables whose names start with a prefix, without it."""
        return {
            name.removeprefix(prefix): text
            for name, text in self._environ.items()
            if name.startswith(prefix)
        }

    def check_required(self) -> None:
        """Record every required variable that is missing or empty."""
        for name in REQUIRED:
            if not self._environ.get(name):
                self.problems.append(f"{name}: is required, got nothing")

    def self_role(self) -> tuple[str, int]:
        """Return this party's role and index; an empty role if the variable is missing or
        invalid.
        """
        text = self._environ.get("config.self_role", "")
        if not text:
            return "", 0
        match = _ROLE.fullmatch(text.strip())
        if match is None or len(match[2] or "") > MOST_INDEX_DIGITS:
            self.problems.append(
                f"config.self_role: must be one role.index such as guest.0, got {text!r}"
            )
            return "", 0
        return match[1], int(match[2] or 0)

    def parties(self) -> dict[str, tuple[str, ...]]:
        """Return the node ids of each role's parties in the order of their index."""
        nodes_by_role: dict[str, dict[int, str]] = {}
        for name, node in self.with_prefix(NODE_PREFIX).items():
            match = _ROLE.fullmatch(name)
            index = match[2] if match else None
            if match is None or index is None or len(index) > MOST_INDEX_DIGITS or not node:
                self.problems.append(
                    f"{NODE_PREFIX}{name}: must be named config.node_id.<role>.<number> and not "
                    f"empty, got {node!r}"
                )
                continue
            nodes_by_role.setdefault(match[1], {})[int(index)] = node
        parties = {}
        for role, nodes in nodes_by_role.items():
            self._check_gap(role, nodes)
            parties[role] = tuple(nodes[index] for index in sorted(nodes))
        return parties

    def _check_gap(
        self,
        role: str,
        nodes: Mapping[int, str],
    ) -> None:
        """Record the first index that is missing below a role's last."""
        first_missing = 0
        while first_missing in nodes:
            first_missing += 1
        if first_missing < max(nodes):
            self.problems.append(f"config.node_id.{role}.{first_missing}: is required, got nothing")

    def check_own_node(
        self,
        role: str,
        index: int,
        parties: Mapping[str, tuple[str, ...]],
    ) -> None:
        """Record that this party is not among the parties."""
        if role and index >= len(parties.get(role, ())):
            self.problems.append(f"config.node_id.{role}.{index}: is required, got nothing")

    def addresses(
        self,
        prefix: str,
    ) -> dict[str, Address]:
        """Return the addresses of inputs or outputs by name, without empty variables."""
        addresses = {}
        for name, text in self.with_prefix(prefix).items():
            if not text:
                continue
            address = _parse_address(text)
            if address is None:
                excerpt = text[:MOST_CHARACTERS_SHOWN]
                self.problems.append(
                    f'{prefix}{name}: must be JSON {{"namespace": text, "name": text}}, got '
                    f"{excerpt!r}"
                )
            else:
                addresses[name] = address
        return addresses

    def deadline(self) -> float:
        """Return the seconds that the run may wait for its peers."""
        text = self._environ.get("config.deadline", "")
        if not text:
            return DEFAULT_DEADLINE
        try:
            seconds = float(text)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < MOST_SECONDS:
            self.problems.append(
                f"config.deadline: must be a number of seconds above 0, got {text!r}"
            )
        return seconds

    def form(self) -> str:
        """Return the form of messages to the transport."""
        form = self._environ.get("CHANNEL_FORM") or JsonForm.name
        if form not in FORMS:
            self.problems.append(f"CHANNEL_FORM: must be one of {', '.join(FORMS)}, got {form!r}")
        return form

    def parameters(self) -> dict[str, Any]:
        """Return the component's parameters by name."""
        texts = self.with_prefix(PARAMETER_PREFIX)
        return {name: decode_parameter(text) for name, text in texts.items() if name}


def decode_parameter(text: str) -> Any:
    """Return a parameter's value: JSON if the text is JSON, true and false in any case, else the
    text.

    A number stays text if its spelling would be lost (``1e5``, ``007``), since it may be a salt or
    a name.
    """
    lowered = text.strip().lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if value is None or _is_infinite(value):
        return text
    if isinstance(value, int | float) and json.dumps(value) != text:
        return text
    return value


def _is_infinite(value: Any) -> bool:
    """True for the numbers that Python reads from JSON although the standard has none of them."""
    return isinstance(value, float) and not math.isfinite(value)


def _parse_address(text: str) -> Address | None:
    """Return an address; None unless the text is JSON with namespace and name."""
    try:
        value = json.loads(text)
        address = Address(value["namespace"], value["name"])
    except (ValueError, RecursionError, TypeError, KeyError):
        return None
    for part in (address.namespace, address.name):
        if not isinstance(part, str) or not part:
            return None
    return address
