"""The flow of a job: its component instances and the data between them."""

from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from gateway.domain.problems import LARGEST_NAME, Problem, name_rule, near, violation

X = TypeVar("X")  # a value that depends only on the component of a task

_MAX_LISTED = 10  # largest number of a component's outputs that a problem lists
_MAX_COMPARED = 100  # outputs of a component that a misspelled key is compared with
# Only the first problems of a flow have suggestions: a comparison takes milliseconds.
_MAX_WITH_SUGGESTION = 10
# Longest name of a task, and longest key of an output, in bytes. The name of stored data contains
# both, so each may have half the length of a name.
_LONGEST = LARGEST_NAME // 2


@dataclass(frozen=True)
class ComponentRef:
    """The key of a component: vendor, version, class name."""

    provider: str
    version: str
    name: str

    def __str__(self) -> str:
        """Return the key as messages show it, such as ``vendor:1.0.0/PSI``."""
        return f"{self.provider}:{self.version}/{self.name}"

    @property
    def code(self) -> str:
        """The component's id in the management layer, without the version: ``vendor/PSI``."""
        return f"{self.provider}/{self.name}"


@dataclass(frozen=True)
class DagInput:
    """An input of a task: an output of another task."""

    type: str
    task: str  # name of the task with the output
    key: str  # key of the output


@dataclass(frozen=True)
class DagOutput:
    """An output of a task: its type, and its key for other tasks."""

    type: str
    key: str


@dataclass(frozen=True)
class DagNode:
    """One named component instance; its name is the task's name."""

    name: str
    component: ComponentRef
    inputs: tuple[DagInput, ...] = ()
    outputs: tuple[DagOutput, ...] = ()

    @cached_property
    def upstream(self) -> frozenset[str]:
        """Names of the tasks whose outputs are its inputs."""
        return frozenset(task_input.task for task_input in self.inputs)


@dataclass(frozen=True)
class Dag:
    """The tasks of a job, in the order of its description."""

    nodes: tuple[DagNode, ...]
    version: str = "2.0"  # of the flow's format, as the submitter sent it
    _by_name: dict[str, DagNode] = field(
        init=False,
        repr=False,
        compare=False,
        default_factory=dict,
    )

    def __post_init__(self) -> None:
        """Index the tasks by name; of tasks with the same name the last one counts."""
        self._by_name.update({node.name: node for node in self.nodes})

    @cached_property
    def positions(self) -> dict[str, int]:
        """The position of each task in the flow, by its name."""
        return {node.name: position for position, node in enumerate(self.nodes)}

    @cached_property
    def dependents(self) -> dict[str, list[str]]:
        """The tasks that take outputs of a task, by its name; a task without any is left out."""
        names: dict[str, list[str]] = {}
        for node in self.nodes:
            for upstream in node.upstream:
                names.setdefault(upstream, []).append(node.name)
        return names

    def get(self, name: str) -> DagNode | None:
        """Return a task by its name; None if it is unknown."""
        return self._by_name.get(name)

    def __getitem__(self, name: str) -> DagNode:
        """Return a task by its name. Raises `KeyError` if it is unknown."""
        return self._by_name[name]

    def type_of(self, task: str, key: str) -> str:
        """Return the type of an output, such as dataset, model or report.

        Empty if the flow does not have the output.
        """
        node = self.get(task)
        if node is None:
            return ""
        output = _output(node, key)
        if output is None:
            return ""
        return output.type


def _output(node: DagNode, key: str) -> DagOutput | None:
    """Return the output of a task with this key; None without one."""
    return next((output for output in node.outputs if output.key == key), None)


def check(
    dag: Dag,
    path: str = "dag",
) -> list[Problem]:
    """Return all problems of the flow; empty for a valid one.

    Problems are invalid names, duplicate keys, inputs without a matching output, and cycles. The
    first `_MAX_WITH_SUGGESTION` have suggestions. ``path`` is the path of the flow in the checked
    document.
    """
    components = f"{path}.components"
    if not dag.nodes:
        return [Problem(components, "must hold at least one component", [])]
    problems: list[Problem] = []
    names: set[str] = set()
    for i, node in enumerate(dag.nodes):
        at = f"{components}[{i}]"
        problems += _name_problems(node.name, f"{at}.name")
        if node.name in names:
            problems.append(Problem(f"{at}.name", "must be unique in the flow", node.name))
        names.add(node.name)
        problems += _output_problems(node, at)
        for j, task_input in enumerate(node.inputs):
            suggests = len(problems) < _MAX_WITH_SUGGESTION
            input_path = f"{at}.input[{j}]"
            problems += _input_problems(
                dag,
                node,
                task_input,
                input_path,
                suggests=suggests,
            )
    problems += _cycle_problems(dag, components)
    return problems


def _cycle_problems(dag: Dag, path: str) -> Iterator[Problem]:
    """Find a cycle of tasks that need each other's outputs; only one cycle is reported."""
    try:
        _sorter(dag)
    except CycleError as error:
        cycle = " -> ".join(error.args[1])  # the second argument lists the tasks of the cycle
        yield Problem(path, "must not form a cycle", cycle)


def _name_problems(name: str, path: str) -> Iterator[Problem]:
    """Find violations of the rules for a task's name.

    A name with a dot would make inputs ambiguous, which are written as ``task.key``.
    """
    yield from violation(path, name_rule(name, _LONGEST), name)
    if "." in name:
        yield Problem(path, "must not contain a dot", name)


def _output_problems(node: DagNode, at: str) -> Iterator[Problem]:
    """Find outputs of a task with an invalid key, or with the key of an earlier output."""
    keys: set[str] = set()
    for j, output in enumerate(node.outputs):
        path = f"{at}.output[{j}].key"
        rule = name_rule(output.key, _LONGEST)
        if rule:
            yield Problem(path, rule, output.key)
        elif output.key in keys:
            yield Problem(path, "must be unique in its component", output.key)
        keys.add(output.key)


def _input_problems(
    dag: Dag,
    node: DagNode,
    task_input: DagInput,
    at: str,
    *,
    suggests: bool,
) -> Iterator[Problem]:
    """Find an input that names no output, or an output of another type.

    Types match within their `group`. ``suggests``: whether a missing output gets a suggestion.
    """
    edge = f"{task_input.task}.{task_input.key}"
    if not task_input.task or not task_input.key:
        # without the dot that an absent part leaves at the end or beginning
        yield Problem(f"{at}.key", "must read <task>.<output key>", edge.strip("."))
        return
    source = dag.get(task_input.task)
    if source is None:
        rule = f"{node.name} needs the output of a task that is not in the flow"
        yield Problem(f"{at}.key", rule, edge)
        return
    output = _output(source, task_input.key)
    if output is None:
        yield _missing_output(
            node,
            task_input,
            source,
            at,
            suggests=suggests,
        )
    elif group(output.type) != group(task_input.type):
        rule = f"{node.name} needs {edge} as {task_input.type}, but it is a {output.type}"
        yield Problem(f"{at}.type", rule, task_input.type)


def _missing_output(
    node: DagNode,
    task_input: DagInput,
    source: DagNode,
    at: str,
    *,
    suggests: bool,
) -> Problem:
    """Return the problem of an input whose ``source`` task has no output with the input's key.

    The problem lists the keys of the source's outputs, at most `_MAX_LISTED`, and if ``suggests``
    the most similar one of at most `_MAX_COMPARED`.
    """
    keys = [output.key for output in source.outputs[:_MAX_COMPARED]]
    has = ", ".join(keys[:_MAX_LISTED]) or "no output"
    if len(source.outputs) > _MAX_LISTED:
        has += ", …"
    rule = f"{node.name} needs an output that {task_input.task} does not have ({has})"
    suggestion = ""
    if suggests:
        suggestion = near(task_input.key, keys)
    if suggestion:
        suggestion = f"{task_input.task}.{suggestion}"
    return Problem(f"{at}.key", rule, f"{task_input.task}.{task_input.key}", suggestion)


def _sorter(dag: Dag) -> TopologicalSorter[str]:
    """Return a sorter of the flow's tasks, ready for `get_ready`. Raises `CycleError`."""
    sorter = TopologicalSorter({node.name: node.upstream for node in dag.nodes})
    sorter.prepare()
    return sorter


# Types of inputs and outputs that are tables.
_DATA = frozenset(
    {
        "data",  # FATE's word for a dataset
        "dataset",
        "datasets",  # an input that takes several tables
        "training_set",
        "test_set",
        "validate_set",
        "cache",  # intermediate results, such as hashed ids, that any later job can reuse
    }
)


def group(type_: str) -> str:
    """Return the group of an input's or output's type: data, model or (any other type) metric.

    An input and an output match if their types are of one group.
    """
    if type_ in _DATA:
        return "data"
    if "model" in type_:
        return "model"
    return "metric"


# Called with a task: returns the roles that take part in it; None if its component is unknown.
# Wrapped by `once_per_component`, it looks each component up once.
RolesOf = Callable[[DagNode], Iterable[str] | None]


def once_per_component(ask: Callable[[DagNode], X]) -> Callable[[DagNode], X]:
    """Return a version of ``ask`` that remembers the result for each component.

    ``ask`` is called with the first task of each component only, so its result must depend on
    nothing but the component.
    """
    cache: dict[ComponentRef, X] = {}

    def cached(task: DagNode) -> X:
        if task.component not in cache:
            cache[task.component] = ask(task)
        return cache[task.component]

    return cached


def order(dag: Dag) -> list[str]:
    """Return the tasks' names in an order in which each follows its upstream tasks.

    Tasks that do not depend on each other keep the order of the flow. Raises `CycleError`.
    """
    positions = {node.name: i for i, node in enumerate(dag.nodes)}
    sorter = _sorter(dag)
    names: list[str] = []
    while sorter.is_active():
        ready_tasks = sorted(
            sorter.get_ready(),
            key=positions.__getitem__,
        )
        names += ready_tasks
        sorter.done(*ready_tasks)
    return names


def ready(
    dag: Dag,
    done: Set[str],
    started: Set[str],
) -> list[str]:
    """Return the names of the tasks that may start, in the order of the flow.

    They have not started, and all of their upstream tasks are done.
    """
    return [node.name for node in dag.nodes if node.name not in started and node.upstream <= done]


def downstream(
    dag: Dag,
    names: Iterable[str],
) -> frozenset[str]:
    """Return these tasks and all that depend on their output, directly or not.

    Raises `CycleError`.
    """
    tasks = set(names)
    for name in order(dag):
        if dag[name].upstream & tasks:
            tasks.add(name)
    return frozenset(tasks)
