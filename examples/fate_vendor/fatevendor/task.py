"""Reads a container's variables and says what FATE is to execute. Needs nothing but Python."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .components import COMPONENTS, Component, Stage

ROLES = ("guest", "host", "arbiter")
STORAGES = ("file", "s3", "hdfs")
COLUMNS = ("id", "label")  # parameters that tell how to read a table, which FATE does not know


class TaskFailed(Exception):
    """A failure of the task; the text tells the user what is wrong, and contains no credential."""


class Unusable(Exception):
    """The variables break the contract; ``problems`` are all that is wrong."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Party:
    """A party of the task, and its node."""

    role: str
    node: str

    def in_fate(self) -> dict[str, str]:
        """Return the party as FATE names it."""
        return {"role": self.role, "partyid": self.node}


@dataclass(frozen=True)
class Task:
    """What a container is to do."""

    component: Component
    own: Party
    parties: list[Party]
    id: str
    session: str
    token: str
    transport: str  # host:port
    storage: str  # the address, with credentials
    callback: str
    self_role: str  # such as guest.0
    parameters: dict[str, Any]
    columns: dict[str, str]  # the columns of ids and labels, where parameters name them
    inputs: dict[str, dict[str, str]]  # name -> address
    outputs: dict[str, dict[str, str]]  # name -> address

    @property
    def stage(self) -> Stage:
        """The stage in which FATE runs the component."""
        return self.component.stage(self.inputs, self.parameters)

    def inputs_in(self, names: Iterable[str]) -> list[str]:
        """Return those of some names that the task has as inputs."""
        return [name for name in names if name in self.inputs]


class _Variables:
    """The variables, with the problems found in them."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self.problems: list[str] = []

    def text(self, name: str) -> str:
        """Return a variable that is needed."""
        value = self._values.get(name, "")
        if not value:
            self.problems.append(f"{name} is not set")
        return value

    def below(self, prefix: str) -> dict[str, str]:
        """Return the variables whose names have a prefix, without it."""
        return {
            name.removeprefix(prefix): value
            for name, value in self._values.items()
            if name.startswith(prefix) and value
        }

    def addresses(self, kind: str) -> dict[str, dict[str, str]]:
        """Return the addresses of all inputs, or of all outputs."""
        addresses = {}
        for name, text in self.below(f"runtime.component.{kind}.").items():
            try:
                address = json.loads(text)
                addresses[name] = {key: address[key] for key in ("namespace", "name")}
            except (ValueError, KeyError, TypeError):
                self.problems.append(f"runtime.component.{kind}.{name} is not an address")
        return addresses

    def parameters(self) -> dict[str, Any]:
        """Return the values of the parameters that the job sets."""
        texts = self.below("runtime.component.parameter.")
        return {name: parameter_value(text) for name, text in texts.items()}

    def parties(self) -> dict[str, Party]:
        """Return the parties by their names, such as guest.0.

        FATE tells parties apart by role and node only, so a node can have a role once.
        """
        parties: dict[str, Party] = {}
        for name, node in self.below("config.node_id.").items():
            party = Party(name.partition(".")[0], node)
            if party.role not in ROLES:
                self.problems.append(f"FATE has no role {party.role!r}")
            if party in parties.values():
                self.problems.append(f"node {node} is {party.role} twice, as FATE cannot have it")
            parties[name] = party
        return parties


def read_task(values: Mapping[str, str]) -> Task:
    """Return the task that the variables describe. Raises `Unusable` with all problems."""
    variables = _Variables(values)
    parties = variables.parties()
    parameters = variables.parameters()
    columns = {name: str(parameters.pop(name)) for name in COLUMNS if name in parameters}
    self_role = variables.text("config.self_role")
    if self_role not in parties:
        variables.problems.append(f"config.node_id.{self_role} is not set")
    component = COMPONENTS.get(variables.text("runtime.component.name"))
    if component is None:
        variables.problems.append(f"runtime.component.name is none of {', '.join(COMPONENTS)}")
    storage = variables.text("system.storage")
    if storage.partition("://")[0] not in STORAGES:
        variables.problems.append(f"system.storage is none of {', '.join(STORAGES)}")
    task_fields = {
        "id": variables.text("config.task_id"),
        "session": variables.text("config.session_id"),
        "token": variables.text("config.token"),
        "transport": variables.text("system.transport"),
        "callback": variables.text("system.callback"),
        "inputs": variables.addresses("input"),
        "outputs": variables.addresses("output"),
    }
    if component is None or variables.problems:
        raise Unusable(variables.problems)
    return Task(
        component=component,
        own=parties[self_role],
        parties=[parties[name] for name in sorted(parties, key=_place)],
        storage=storage,
        self_role=self_role,
        parameters=parameters,
        columns=columns,
        **task_fields,
    )


def path_of(address: Mapping[str, str]) -> str:
    """Return the path of an address in a storage."""
    return f"{address['namespace']}/{address['name']}"


def _place(party: str) -> tuple[int, int]:
    """Return the place of a party among all: by role, then by number."""
    role, _, number = party.partition(".")
    return ROLES.index(role), int(number)


def parameter_value(text: str) -> Any:
    """Return a parameter's value: JSON or, where the text is none, the text itself."""
    if text in ("True", "False"):
        return text == "True"
    try:
        return json.loads(text)
    except ValueError:
        return text
