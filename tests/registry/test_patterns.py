"""Regular expressions of vendors: what RE2 supports is matched in linear time, the rest is refused explicitly."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider_registry.types import MAX_PATTERN, MAX_VALUE, flaw, full_match


@pytest.mark.parametrize(
    ("pattern", "value", "matches"),
    [
        ("[a-z]+", "abc", True),
        ("[a-z]+", "abc1", False),
        (r"(\w+)@(\w+)\.(com|org)", "a@b.org", True),
        ("(?i)abc", "ABC", True),
        ("[一-龥]+", "中文", True),
        ("a|ab", "ab", True),
        ("a*b*", "a" * MAX_VALUE, True),
        ("a", "a\n", False),
    ],
)
def test_the_whole_value_has_to_match(pattern, value, matches):
    assert flaw(pattern) is None
    assert full_match(pattern, value) is matches


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        ("(a+)+$", "a" * (MAX_VALUE - 1) + "!"),
        ("(a|a)*b", "a" * MAX_VALUE),
        ("(.*a){25}", "a" * 24 + "b" * 4000),
        ("a?" * 40 + "a" * 40 + "b", "a" * 60),
    ],
)
def test_a_catastrophic_expression_takes_no_time(pattern, value):
    began = time.process_time()
    assert full_match(pattern, value) is False
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("pattern", "cause"),
    [
        ("(", "missing )"),
        ("(?=a)b", "(?="),
        (r"(a)\1", r"\1"),
        ("(?P<n>a)(?P=n)", "(?P"),
        ("((((a{9}){9}){9}){9}){9}", "{9}"),
        (r"\pL{1000}", "too large"),
        ("a" * (MAX_PATTERN + 1), "longer than"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_cause(pattern, cause):
    assert cause in (flaw(pattern) or "")
    assert full_match(pattern, "a") is None


@given(st.text("ab|*+?(){}[]^$\\.1,-:= 龥", max_size=30), st.text("ab1\n龥", max_size=600))
@settings(max_examples=300)
def test_any_expression_is_either_matched_or_refused(pattern, value):
    assert (full_match(pattern, value) is None) is (flaw(pattern) is not None)
