"""The lists of jobs on the first page, beside many other jobs: by indexes alone."""

import re
import sqlite3

import pytest
import sqlalchemy as sa

from tests.console import FILES
from tests.inprocess import Node
from tests.world import NodeSetup

NODE = NodeSetup()

# The lists as overview.js requests them.
LISTS = (
    "status=PENDING%2CREADY%2CRUNNING&limit=5",
    "status=FINISHED&outcome=FAILED&limit=5",
)
SCAN_OF_JOBS = re.compile(r"SCAN (?:job|local_job)\b")


def statements_of(node: Node, path: str) -> list[tuple[str, tuple[object, ...]]]:
    """Read a path; return the sorted selections of the node, each with its values."""
    statements = []

    def note(
        connection: sa.Connection,
        _cursor: object,
        text: str,
        values: tuple[object, ...],
        *_: object,
    ) -> None:
        is_of_node = str(connection.engine.url) == node.settings.database.url
        if is_of_node and text.startswith("SELECT") and "ORDER BY" in text:
            statements.append((text, values))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        response = node.get(path)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert response.status_code == 200, response.text
    return statements


@pytest.mark.parametrize(
    "query",
    LISTS,
    ids=["under way", "failed"],
)
def test_the_first_page_finds_its_jobs_without_reading_the_others(node, query):
    source = (FILES / "pages" / "overview.js").read_text(encoding="utf-8")
    assert 'status: "FINISHED", outcome: "FAILED"' in source

    statements = statements_of(node, f"/api/v1/jobs?{query}")

    of_jobs = [entry for entry in statements if "job.created_at" in entry[0]]
    assert len(of_jobs) == 2  # one for each side
    _, _, file = node.settings.database.url.partition("///")
    with sqlite3.connect(file) as database:
        for text, values in of_jobs:
            plan = database.execute(f"EXPLAIN QUERY PLAN {text}", values).fetchall()
            assert not SCAN_OF_JOBS.search(str(plan)), plan
