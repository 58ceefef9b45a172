"""The problems of a job's body, read back from the message of another node."""

import time

from gateway.domain.problems import Problem, Unfit, job_problems_in

PROBLEMS = [
    Problem("config.a[0]", "must be one of a; b", "it's", "its"),
    Problem("config.x", 'must not hold "', 'say "x"'),
    Problem("dag.b", "is missing"),
    Problem("dag[1]", "must be a number (of tasks)", [1, "(x)"]),
    Problem("config.role", "is not known: see the list; did it change?"),
    Problem("config.y", "no dataset a#b: see the list", "a#b", reason="DATASET_UNKNOWN"),
]


def test_problems_are_read_back_from_a_nodes_message():
    message = str(Unfit(tuple(PROBLEMS)))

    problems = list(job_problems_in(message, "n2"))

    assert [problem._replace(got=None) for problem in problems] == [
        problem._replace(got=None, node="n2") for problem in PROBLEMS
    ]
    values = [problem.got for problem in problems]
    assert values == ["it's", 'say "x"', None, '[1, "(x)"]', None, "a#b"]


def test_a_message_without_paths_holds_no_problems():
    assert list(job_problems_in("config.a and more: no; config.b", "n2")) == []


def test_a_hostile_message_is_read_within_a_second():
    """A message made for a slow regular expression costs no time."""
    message = "config.a: x" + " (got x); did you mean " * 700
    cpu_seconds = time.process_time()

    list(job_problems_in(message, "n2"))

    assert time.process_time() - cpu_seconds < 1


def test_a_huge_rule_is_cut():
    [problem] = job_problems_in("config.a: " + "x" * 10**6, "n2")

    assert len(problem.rule) < 10**5
