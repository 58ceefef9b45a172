"""Questions of other nodes about jobs, in a database whose own defaults tell little apart."""

import pytest

from gateway.store.repositories import SqlJobAudits
from tests.contracts.databases import careless_database
from tests.contracts.test_repositories import a_store


@pytest.mark.mariadb
def test_ids_of_questions_are_told_apart_to_the_letter(worker_id: str):
    with careless_database(f"{worker_id}_audits") as url, a_store(url) as store:
        audits = SqlJobAudits(store)
        ids = ("a", "A", "名", "á")
        assert [audits.add("n", one, f"job-{number}") for number, one in enumerate(ids)] == [
            "job-0",
            "job-1",
            "job-2",
            "job-3",
        ]
        assert audits.add("n", "A", "job-9") == "job-1"
