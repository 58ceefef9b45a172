"""Which of a component's inputs and outputs a flow means.

A flow has its own keys (``data0``, ``report1``), a description its own names (``train_data``, ``train-auc``), and
the standard does not say how they meet. Rule: within a group (data, model, metric) equal names first, then what is
left by position.
"""

from collections.abc import Mapping, Sequence

from provider_registry.model import DataSpec, Problem, group_of


class Matching(dict[str, str]):
    """Key in the flow -> name in the description, with what found no partner on either side.

    ``keys_left`` are the flow's, ``specs_left`` the description's, both in their order.
    """

    def __init__(self, names: Mapping[str, str], keys_left: tuple[str, ...], specs_left: tuple[str, ...]) -> None:
        super().__init__(names)
        self.keys_left = keys_left
        self.specs_left = specs_left


def match_outputs(dag_outputs: Sequence[tuple[str, str]], specs: Sequence[DataSpec]) -> Matching:
    """Match a flow's outputs, each (type, key), with a component's."""
    return _match([(kind, key, key) for kind, key in dag_outputs], specs)


def match_inputs(dag_inputs: Sequence[tuple[str, str]], specs: Sequence[DataSpec]) -> Matching:
    """Match a flow's inputs, each (type, ``<task>.<key>``), with a component's; the names compared are the keys.

    An input that no upstream task feeds belongs to the first of the component's inputs and is not listed here.
    """
    return _match([(kind, key, key.partition(".")[2] or key) for kind, key in dag_inputs], specs)


def format_problem(format_name: str, spec: DataSpec, path: str) -> Problem | None:
    """Say that an input does not list the format of what would feed it; None if it does, or lists none."""
    if not spec.formats or format_name.lower() in (f.lower() for f in spec.formats):
        return None
    return Problem(path, f"is {format_name}; input {spec.name} reads {', '.join(spec.formats[:20])}", format_name)


def _match(wanted: Sequence[tuple[str, str, str]], specs: Sequence[DataSpec]) -> Matching:
    """Match (type, key in the flow, name to compare); a duplicate key is matched once."""
    free = list(specs)
    waiting: list[tuple[str, str]] = []
    names: dict[str, str] = {}
    for kind, key, name in wanted:
        group = group_of(kind)
        same = next((s for s in free if s.name == name and s.group == group), None)
        if same is None or key in names:
            waiting.append((group, key))
        else:
            names[key] = same.name
            free.remove(same)
    left: list[str] = []
    for group, key in waiting:
        next_free = next((s for s in free if s.group == group), None)
        if next_free is None or key in names:
            left.append(key)
        else:
            names[key] = next_free.name
            free.remove(next_free)
    ordered = {key: names[key] for _, key, _ in wanted if key in names}
    return Matching(ordered, tuple(left), tuple(s.name for s in free))
