"""The page on conformance lists the clauses that there are."""

import re
from pathlib import Path

from gateway.conformance.clauses import CLAUSES, table

DOCS = Path(__file__).resolve().parents[2] / "docs"


def shown(name: str) -> str:
    found = re.search(
        r"<!-- clauses -->\n(.*?)\n<!-- end -->", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None
    return found.group(1)


def test_the_page_has_the_table_of_the_code() -> None:
    assert shown("conformance.md") == table()


def test_the_chinese_page_has_every_clause_in_its_order() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]+) \|", shown("conformance.zh-CN.md"), re.MULTILINE)
    assert [(name, section.strip()) for name, section in rows] == [(c.name, c.section) for c in CLAUSES]


def test_clauses_have_names_of_their_own() -> None:
    assert len({c.name for c in CLAUSES}) == len(CLAUSES)
