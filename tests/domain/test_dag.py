"""Flows: groups of data types, order, cycles, ready tasks, downstream tasks."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.dag import Dag, DagInput, check, downstream, group, order, ready
from tests.builders import a_dag, a_node
from tests.domain.strategies import REPEATABLE, dags

GROUPS = {
    "data": "data",
    "dataset": "data",
    "datasets": "data",
    "training_set": "data",
    "test_set": "data",
    "validate_set": "data",
    "model": "model",
    "input_model": "model",
    "model_1": "model",
    "metric": "metric",
    "report": "metric",
    "": "metric",
}


@pytest.mark.parametrize(("data_type", "expected"), GROUPS.items())
def test_a_data_type_belongs_to_a_group(data_type, expected):
    assert group(data_type) == expected


@pytest.mark.parametrize(
    ("flow", "expected"),
    [
        ("x; y; y -> p; x -> q", ["x", "y", "p", "q"]),
        ("b -> c; a -> c", ["b", "a", "c"]),
    ],
)
def test_tasks_of_equal_rank_keep_the_order_of_the_flow(flow, expected):
    assert order(a_dag(flow)) == expected


@given(dags())
@REPEATABLE
def test_an_acyclic_flow_is_sound_and_sorted_upstream_first(dag):
    names = order(dag)

    assert check(dag) == []
    assert sorted(names) == sorted(node.name for node in dag.nodes)
    for node in dag.nodes:
        for upstream in node.upstream:
            assert names.index(upstream) < names.index(node.name)


@given(dags(), st.data())
@REPEATABLE
def test_an_edge_back_from_downstream_makes_a_cycle_that_is_named(dag, data):
    node = data.draw(st.sampled_from(dag.nodes))
    source = data.draw(st.sampled_from(sorted(downstream(dag, [node.name]))))
    closed_node = replace(node, inputs=(*node.inputs, DagInput("dataset", source, "out")))
    nodes = {n.name: n for n in dag.nodes}
    nodes[node.name] = closed_node
    cyclic = Dag(tuple(nodes.values()))

    [problem] = check(cyclic)

    names = problem.got.split(" -> ")
    for before, after in itertools.pairwise(names):
        assert before in cyclic[after].upstream


@given(dags(), st.data())
@REPEATABLE
def test_tasks_become_ready_only_after_their_upstreams_in_any_order(dag, data):
    ended_tasks: set[str] = set()
    begun_tasks: set[str] = set()

    while ready_tasks := ready(dag, ended_tasks, begun_tasks):
        assert not begun_tasks & set(ready_tasks)
        for task in ready_tasks:
            assert dag[task].upstream <= ended_tasks
        begun_tasks |= set(ready_tasks)
        while begun_tasks - ended_tasks and not ready(dag, ended_tasks, begun_tasks):
            running_tasks = sorted(begun_tasks - ended_tasks)
            ended_tasks.add(data.draw(st.sampled_from(running_tasks)))

    assert ended_tasks == begun_tasks == {node.name for node in dag.nodes}


@given(dags(), st.data())
@REPEATABLE
def test_downstream_has_the_first_tasks_and_exactly_their_followers(dag, data):
    names = [node.name for node in dag.nodes]
    first = data.draw(st.frozensets(st.sampled_from(names)))

    tasks = downstream(dag, first)

    assert tasks >= first
    for node in dag.nodes:
        follows = bool(node.upstream & tasks)
        assert (node.name in tasks) is (node.name in first or follows)


def test_only_the_first_misspelled_inputs_are_compared_with_outputs():
    """Attack: comparing the keys of thousands of inputs would take minutes."""
    misspelled = [DagInput("dataset", "a", f"ou{number}") for number in range(100)]
    reader = replace(a_node("reader"), inputs=tuple(misspelled))

    problems = check(Dag((a_node("a"), reader)))

    suggestions = [problem.suggestion for problem in problems]
    assert len(problems) == 100
    assert suggestions[0] == "a.out"
    assert len(list(filter(None, suggestions))) <= 10
