import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.dag import Dag, DagInput, check, downstream, group, order, ready
from tests.builders import a_dag
from tests.domain.strategies import REPEATABLE, dags


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        *(
            (k, "data")
            for k in ("data", "dataset", "datasets", "training_set", "test_set", "validate_set")
        ),
        *((k, "model") for k in ("model", "input_model", "model_1")),
        *((k, "metric") for k in ("metric", "report", "")),
    ],
)
def test_types_agree_within_their_group(kind, expected):
    assert group(kind) == expected


def test_equal_ranks_keep_the_order_of_the_flow():
    assert order(a_dag("x; y; y -> p; x -> q")) == ["x", "y", "p", "q"]
    assert order(a_dag("b -> c; a -> c")) == ["b", "a", "c"]


@given(dags())
@REPEATABLE
def test_an_acyclic_flow_is_sound_and_sorted_upstream_first(dag):
    assert check(dag) == []
    names = order(dag)
    assert sorted(names) == sorted(node.name for node in dag.nodes)
    for node in dag.nodes:
        assert all(names.index(up) < names.index(node.name) for up in node.upstream)


@given(dags(), st.data())
@REPEATABLE
def test_reversing_an_edge_makes_a_cycle_where_there_is_a_second_path(dag, data):
    node = data.draw(st.sampled_from(dag.nodes))
    below = sorted(downstream(dag, [node.name]))
    source = data.draw(st.sampled_from(below))
    closed = replace(node, inputs=(*node.inputs, DagInput("dataset", source, "out")))
    cyclic = Dag(tuple(closed if n.name == node.name else n for n in dag.nodes))
    [problem] = check(cyclic)
    edges = problem.got.split(" -> ")
    assert all(before in cyclic[after].upstream for before, after in itertools.pairwise(edges))


@given(dags(), st.data())
@REPEATABLE
def test_whatever_ends_first_tasks_become_ready_only_after_their_upstreams(dag, data):
    done: set[str] = set()
    begun: set[str] = set()
    while now := ready(dag, done, begun):
        assert not set(now) & begun
        assert all(dag[name].upstream <= done for name in now)
        begun |= set(now)
        while begun - done and not ready(dag, done, begun):
            done.add(data.draw(st.sampled_from(sorted(begun - done))))
    assert done == begun == {node.name for node in dag.nodes}


@given(dags(), st.data())
@REPEATABLE
def test_downstream_is_closed_and_holds_nothing_else(dag, data):
    first = data.draw(st.frozensets(st.sampled_from([n.name for n in dag.nodes])))
    found = downstream(dag, first)
    assert found >= first
    for node in dag.nodes:
        assert (node.name in found) is (node.name in first or bool(node.upstream & found))
