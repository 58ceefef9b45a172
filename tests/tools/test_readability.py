"""The meter of readability: its counts, and its limits."""

import pytest

from tools.readability import AIMS, Counts, above_aims, measure_module, measure_page, violations

EXAMPLE = '''
"""Tell whether a job stands in the queue."""

LIMIT = 3  # of what is queued


def first(jobs):
    found = [job for job in jobs if job.ready and job.due]
    return found[0] if found else None
'''


# Counts of a package with 9.0 tokens per line, which is above the aim.
DENSE_PACKAGE = Counts(
    code_lines=10,
    tokens=90,
)


def places(source: str) -> list[tuple[int, str]]:
    """Return line and kind of the places that count against a source, in their order."""
    measured = measure_module(source)
    return [(place.line, place.kind) for place in sorted(measured.places)]


def violations_with_limit(limit: float) -> list[str]:
    """Return the violations of the dense package with its own limit of tokens per line."""
    limits = {"gateway/jobs": {"tokens per line": limit}}
    return violations({"gateway/jobs": DENSE_PACKAGE}, limits)


def test_each_place_that_counts_is_named_with_its_line():
    assert places(EXAMPLE) == [
        (2, "idiom 'Tell whether'"),
        (2, "idiom 'stands in'"),
        (4, "idiom 'of what'"),
        (4, "idiom 'what is'"),
        (8, "name found"),
        (9, "conditional expression"),
    ]


def test_docstrings_and_comments_are_no_tokens():
    bare = measure_module("x = 1\n").counts
    commented = measure_module('"""A module."""\n\nx = 1  # the first\n').counts

    assert bare.tokens == 3
    assert bare.code_lines == 1
    assert commented.tokens == 3
    assert commented.code_lines == 1
    assert commented.words == 4


def test_decisions_of_an_inner_function_count_once():
    source = (
        "def outer():\n    def inner():\n        if a or b:\n            pass\n    return inner\n"
    )
    assert measure_module(source).counts.decisions == 1 + 3


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("x = (y := 1)", ":="),
        ("f = lambda: 1", "lambda"),
        ("x = 1 if y else 2", "conditional expression"),
        ("def f(wanted): pass", "name wanted"),
    ],
)
def test_what_folds_a_line_or_names_nothing_counts(line, kind):
    assert places(line) == [(1, kind)]


def test_a_page_counts_without_its_code():
    page = "What is sent.\n\n```sh\nwhat is sent\n```\n\nThe `what is` flag.\n"
    measured = measure_page(page)
    assert [place.line for place in measured.places] == [1]


def test_a_package_fails_above_its_aim_unless_it_has_a_limit():
    figures = DENSE_PACKAGE.figures()
    assert above_aims(figures) == {"tokens per line": 9.0}

    aim = AIMS["tokens per line"]
    message = f"gateway/jobs: 9.0 tokens per line of code; at most {aim}"
    assert violations({"gateway/jobs": DENSE_PACKAGE}, {}) == [message]
    assert violations_with_limit(9.0) == []
    assert violations_with_limit(8.9) != []
