"""The flow of a job: which component instances there are and who needs whose output."""

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from gateway.domain.problems import LARGEST_NAME, Problem, name_rule, near

X = TypeVar("X")

_SHOWN = 10
"""how many of a component's outputs a problem lists"""


@dataclass(frozen=True)
class ComponentRef:
    """The key of a component: vendor, version, class name."""

    provider: str
    version: str
    name: str

    def __str__(self) -> str:
        return f"{self.provider}:{self.version}/{self.name}"


@dataclass(frozen=True)
class DagInput:
    """An input that is another instance's output."""

    type: str
    task: str
    key: str


@dataclass(frozen=True)
class DagOutput:
    """An output of a task: what kind it is, and the key by which others name it."""

    type: str
    key: str


@dataclass(frozen=True)
class DagNode:
    """One named component instance; its name is the task's name."""

    name: str
    component: ComponentRef
    inputs: tuple[DagInput, ...] = ()
    outputs: tuple[DagOutput, ...] = ()

    @property
    def upstream(self) -> frozenset[str]:
        """Names of the tasks whose outputs it takes."""
        return frozenset(i.task for i in self.inputs)


@dataclass(frozen=True)
class Dag:
    """The tasks of a job, in the order of its description."""

    nodes: tuple[DagNode, ...]
    version: str = "2.0"
    _by_name: dict[str, DagNode] = field(
        init=False,
        repr=False,
        compare=False,
        default_factory=dict,
    )

    def __post_init__(self) -> None:
        self._by_name.update({node.name: node for node in self.nodes})

    def get(self, name: str) -> DagNode | None:
        """Return a task by its name; None where it is unknown."""
        return self._by_name.get(name)

    def __getitem__(self, name: str) -> DagNode:
        return self._by_name[name]

    def type_of(self, task: str, key: str) -> str:
        """Return what the flow calls an output: dataset, model, report; empty where it is not in the flow."""
        node = self.get(task)
        return next((o.type for o in (node.outputs if node else ()) if o.key == key), "")


def check(dag: Dag, path: str = "dag") -> list[Problem]:
    """Find everything wrong with the flow: names, duplicate keys, inputs without a matching output, cycles."""
    if not dag.nodes:
        return [Problem(f"{path}.components", "must hold at least one component", [])]
    problems: list[Problem] = []
    seen: set[str] = set()
    for i, node in enumerate(dag.nodes):
        at = f"{path}.components[{i}]"
        if rule := name_rule(node.name, LARGEST_NAME // 2):
            problems.append(Problem(f"{at}.name", rule, node.name))
        if "." in node.name:
            problems.append(Problem(f"{at}.name", "must not contain a dot", node.name))
        if node.name in seen:
            problems.append(Problem(f"{at}.name", "must be unique in the flow", node.name))
        seen.add(node.name)
        keys: set[str] = set()
        for j, output in enumerate(node.outputs):
            if rule := name_rule(output.key, LARGEST_NAME // 2):
                problems.append(Problem(f"{at}.output[{j}].key", rule, output.key))
            elif output.key in keys:
                problems.append(
                    Problem(f"{at}.output[{j}].key", "must be unique in its component", output.key)
                )
            keys.add(output.key)
        for j, wanted in enumerate(node.inputs):
            problems += _check_input(dag, node, wanted, f"{at}.input[{j}]")
    try:
        TopologicalSorter({n.name: n.upstream for n in dag.nodes}).prepare()
    except CycleError as error:
        problems.append(
            Problem(f"{path}.components", "must not form a cycle", " -> ".join(error.args[1]))
        )
    return problems


def _check_input(
    dag: Dag,
    node: DagNode,
    wanted: DagInput,
    at: str,
) -> list[Problem]:
    edge = f"{wanted.task}.{wanted.key}"
    if not wanted.task or not wanted.key:
        return [Problem(f"{at}.key", "must read <task>.<output key>", edge.strip("."))]
    source = dag.get(wanted.task)
    if source is None:
        return [
            Problem(
                f"{at}.key", f"{node.name} needs the output of a task that is not in the flow", edge
            )
        ]
    output = next((o for o in source.outputs if o.key == wanted.key), None)
    if output is None:
        has = ", ".join(o.key for o in source.outputs[:_SHOWN]) or "no output"
        has += ", …" if len(source.outputs) > _SHOWN else ""
        rule = f"{node.name} needs an output that {wanted.task} does not have ({has})"
        meant = near(wanted.key, [o.key for o in source.outputs[:_SHOWN]])
        return [Problem(f"{at}.key", rule, edge, meant and f"{wanted.task}.{meant}")]
    if group(output.type) != group(wanted.type):
        return [
            Problem(
                f"{at}.type",
                f"{node.name} needs {edge} as {wanted.type}, but it is a {output.type}",
                wanted.type,
            )
        ]
    return []


RolesOf = Callable[[DagNode], Iterable[str] | None]
"""roles that take part in a task; None where the component is not known"""

_DATA = frozenset(
    {"data", "dataset", "datasets", "training_set", "test_set", "validate_set", "cache"}
)


def group(kind: str) -> str:
    """Fold an artefact type into data, model or metric, the groups in which types agree."""
    if kind in _DATA:
        return "data"
    return "model" if "model" in kind else "metric"


def once_per_component(ask: Callable[[DagNode], X]) -> Callable[[DagNode], X]:
    """Return the function with one call per component: a flow may have many tasks of one."""
    known: dict[ComponentRef, X] = {}

    def asked(task: DagNode) -> X:
        if task.component not in known:
            known[task.component] = ask(task)
        return known[task.component]

    return asked


def order(dag: Dag) -> list[str]:
    """Return the names so that each follows all it needs; equal ranks in the flow's own order."""
    place = {node.name: i for i, node in enumerate(dag.nodes)}
    sorter = TopologicalSorter({n.name: n.upstream for n in dag.nodes})
    sorter.prepare()
    names: list[str] = []
    while sorter.is_active():
        rank = sorted(sorter.get_ready(), key=place.__getitem__)
        names += rank
        sorter.done(*rank)
    return names


def ready(
    dag: Dag,
    done: Set[str],
    begun: Set[str],
) -> list[str]:
    """Return the tasks that may start now: not started, and all they need is done."""
    return [n.name for n in dag.nodes if n.name not in begun and n.upstream <= done]


def downstream(dag: Dag, names: Iterable[str]) -> frozenset[str]:
    """Return these tasks and everything that needs their output, directly or not."""
    found = set(names)
    for name in order(dag):
        if dag[name].upstream & found:
            found.add(name)
    return frozenset(found)
