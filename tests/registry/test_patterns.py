"""Expressions written by others: which are matched where, and that none of them lasts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider_registry.regex import (
    MAX_LOOKED_INTO,
    MAX_PATTERN,
    MAX_VALUE,
    flaw,
    full_matches,
    is_plain,
    one_document,
)

CATASTROPHES = [
    ("(a+)+$", "a" * 60 + "!"),
    ("(a|a)*b", "a" * 60),
    ("(a|aa)+$", "a" * 80 + "!"),
    ("(.*a){25}", "a" * 24 + "b" * 40),
    (r"(a*)*\1b", "a" * 60),
    ("a?" * 40 + "a" * 40 + "b", "a" * 60),
    ("(a|a)" * 60 + "b", "a" * 60),
    (".*" * 20 + "b", "a" * 400),
    ("(?:(?:a+)+)+$", "a" * 60 + "!"),
]


@pytest.mark.parametrize(("pattern", "value"), CATASTROPHES)
def test_a_match_that_would_never_end_is_given_up(pattern, value):
    assert not is_plain(pattern)
    assert full_matches([(pattern, value)], seconds=0.3) in ([None], [False])


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b"])
def test_the_two_best_known_catastrophes_cannot_be_told(pattern):
    assert full_matches([(pattern, "a" * 60 + "!")], seconds=0.3) == [None]


def test_results_before_the_endless_one_count_and_later_ones_are_not_told():
    pairs = [
        ("(ab)+", "abab"),
        ("(ab)+", "aba"),
        ("(a+)+$", "a" * 60 + "!"),
        ("(cd)+", "cdcd"),
        ("x+", "xxx"),
    ]
    assert full_matches(pairs, seconds=3) == [True, False, None, None, True]


def test_hard_expressions_get_their_answer():
    pairs = [
        (r"(\w+)@(\w+)\.(com|org)", "a@b.org"),
        (r"(\w+)@(\w+)\.(com|org)", "a@b.net"),
        ("(?i)abc", "ABC"),
        ("[一-龥]+", "中文"),
        ("(?=.*[0-9])(?=.*[a-z]).{4,}", "abc1"),
    ]
    assert full_matches(pairs, seconds=20) == [True, False, True, True, True]


def test_without_time_only_plain_expressions_are_matched():
    assert full_matches([("a+", "aa"), ("(ab)+", "ab")], seconds=0) == [True, None]


def test_what_is_too_long_or_unreadable_is_not_told():
    assert (
        full_matches(
            [("a" * (MAX_PATTERN + 1), "a"), ("a*", "a" * (MAX_VALUE + 1)), ("(", "a"), ("(?i)(", "a")],
            seconds=20,
        )
        == [None] * 4
    )


def test_a_long_value_of_a_plain_expression_is_matched_too():
    assert full_matches([("a*b*", "a" * MAX_VALUE)], seconds=20) == [True]


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "abc",
        "[a-z]+",
        "^[a-z][a-z0-9_]*$",
        r"\d{4}-\d{2}-\d{2}",
        "a|b|c",
        "(a|b|c)",
        "(?:a|b)",
        r"\(x\)+",
        "[+*?]",
    ],
)
def test_plain_expressions_are_matched_in_this_process(pattern):
    assert is_plain(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a)+",
        "a|b+",
        "(a|b)(a|b)",
        r"(a)\1",
        "(?=a)b",
        "(?P<x>a)",
        "a+b+c+",
        "[一-龥]",
        r"\u4e00",
        "(?i)a",
        "(a){3}",
    ],
)
def test_other_expressions_are_not(pattern):
    assert not is_plain(pattern)


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("[a-z]+", False),
        ("(a+)+", False),
        ("(", True),
        ("[z-a]", True),
        ("*", True),
        ("(" * 300, True),
        ("a" * 600, True),
        ("(?P<n>a)(?P=n)", False),
    ],
)
def test_flaws_are_found_where_that_is_cheap(pattern, told):
    assert (flaw(pattern) is not None) is told


@given(st.text("ab|*+?(){}[]^$\\.1,-:= ", max_size=30), st.text("ab1", max_size=600))
@settings(max_examples=300)
def test_any_expression_is_judged_and_plain_ones_are_matched_without_help(pattern, value):
    flaw(pattern)
    plain = is_plain(pattern)
    [result] = full_matches([(pattern, value)], seconds=0)
    assert plain or result is None


def test_one_document_has_only_so_many_expressions_looked_into():
    bad = "(" + "a" * 400
    with one_document():
        told = [flaw(bad) for _ in range(MAX_LOOKED_INTO // len(bad) + 1)]
        assert all(told[:-1]) and told[-1] is None
    assert flaw(bad)
