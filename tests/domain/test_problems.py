"""A node's message about a job's body is read as the problems it was made of, and in no time."""

import time

from gateway.domain.problems import Problem, Unfit, job_problems_in

PROBLEMS = [
    Problem("config.a[0]", "must be one of a; b", "it's", "its"),
    Problem("config.x", 'must not hold "', 'say "x"'),
    Problem("dag.b", "is missing"),
    Problem("dag[1]", "must be a number (of tasks)", [1, "(x)"]),
    Problem("config.role", "is not known: see the list; did it change?"),
]


def test_problems_are_read_back_from_a_nodes_message():
    read = [*job_problems_in(f"{Unfit(tuple(PROBLEMS))}", "n2")]
    assert [(p.path, p.rule, p.suggestion) for p in read] == [
        (p.path, f"n2: {p.rule}", p.suggestion) for p in PROBLEMS
    ]
    assert [p.got for p in read] == ["it's", 'say "x"', None, '[1, "(x)"]', None]
    assert [*job_problems_in("config.a and more: no; config.b", "n2")] == []


def test_a_peers_text_is_read_in_no_time():
    began = time.process_time()
    [*job_problems_in("config.a: x" + " (got x); did you mean " * 700, "n2")]
    assert time.process_time() - began < 1
    [read] = job_problems_in("config.a: " + "x" * 10**6, "n2")
    assert len(read.rule) < 10**5
