"""The clauses by which platforms are judged are complete, and can be selected."""

import re
from pathlib import Path

import pytest

from gateway.conformance.platforms.check import SCENARIOS
from gateway.conformance.platforms.clauses import Clause, clauses, selected
from gateway.conformance.platforms.standards import STANDARDS

ROOT = Path(__file__).parents[3]
CHINESE = re.compile("[\u4e00-\u9fff]")


def test_every_clause_has_one_scenario():
    ids = [clause.id for clause in clauses()]
    assert len(set(ids)) == len(ids)
    assert set(ids) == set(SCENARIOS)


@pytest.mark.parametrize("clause", clauses(), ids=str)
def test_a_clause_has_its_texts_in_both_languages(clause: Clause):
    for text in (clause.says, clause.remedy):
        assert text.en.endswith(".")
        assert CHINESE.search(text.zh)
        assert not CHINESE.search(text.en)


def test_clauses_are_selected_by_the_beginning_of_their_ids():
    ids = [clause.id for clause in selected(["C-3.4", "T-3"])]
    assert "C-3.4-repeat" in ids
    assert "T-3-type" in ids
    assert all(name.startswith(("C-3.4", "T-3")) for name in ids)


def test_a_prefix_of_no_clause_is_refused():
    with pytest.raises(KeyError, match="C-9"):
        selected(["C-3.4", "C-9"])


def test_an_earlier_version_of_the_standard_has_fewer_clauses():
    counts = [len(selected([], standard)) for standard in STANDARDS]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] == len(clauses())


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_files_of_a_new_version_exist(language: str):
    page = (ROOT / "tools/docs" / f"platform_conformance.{language}.md").read_text(encoding="utf-8")
    _, _, files = page.rpartition("|---|---|\n")
    names = re.findall(r"^\| `([^`]+)` \|", files, re.MULTILINE)
    assert len(names) == 5
    assert all((ROOT / name).exists() for name in names)
