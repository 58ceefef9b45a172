"""The meta of a table is changed without a new upload."""

from pathlib import Path
from typing import Any

import pytest

from gateway.data.upload import Edit
from gateway.domain.datasets import Dataset
from gateway.errors import Conflict, Invalid
from tests.data.test_datasets import HERE, Site

TABLE = "id,name,x\n007,a,1\n008,b,2\n009,b,\n"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def refused(site: Site, **change: Any) -> list[str]:
    before = site.datasets.get("testspace#test_guest"), site.storage.metadata(HERE)
    with pytest.raises(Invalid) as caught:
        site.datasets.edit(HERE, Edit(**change))
    assert (site.datasets.get("testspace#test_guest"), site.storage.metadata(HERE)) == before
    return [problem.path for problem in caught.value.problems]


def test_what_is_given_changes_in_the_record_and_beside_the_data(site: Site) -> None:
    stored = site.store(TABLE, extra={"source": "crm", "owner": "risk"}, description="customers")
    change = Edit(
        match_id_name="id",
        label_name="x",
        meta={"source": None, "year": 2026},
    )
    before, after = site.datasets.edit(HERE, change)
    assert before == stored and after == site.datasets.get("testspace#test_guest")
    free = {
        "owner": "risk",
        "year": 2026,
        "match_id_name": "id",
        "label_name": "x",
    }
    assert after.meta == {
        **free,
        "delimiter": ",",
        "encoding": "utf-8",
    }
    assert after.types == ("string", "string", "int") and after.description == "customers"
    found = site.storage.metadata(HERE)
    assert (found["id_column"], found["label_column"], found["meta"]) == (
        "id",
        "x",
        {**free, "delimiter": ","},
    )
    assert site.parts() == [TABLE]
    site.repository.delete("testspace", "test_guest")
    assert site.datasets.get("testspace#test_guest") == after
    site.repository.put(after)
    _, last = site.datasets.edit(
        HERE,
        Edit(
            description="",
            label_name="",
            match_id_name="",
        ),
    )
    assert last.description == "" and not {"label_name", "match_id_name"} & set(last.meta)


def test_what_a_table_cannot_be_called_is_refused_with_every_problem(site: Site) -> None:
    site.store(TABLE, extend_sid=True)
    change = {
        "label_name": "y",
        "match_id_name": "sid",
        "description": "\ud800",
    }
    meta = {
        "delimiter": ";",
        "label_name": "x",
        "bad": float("nan"),
    }
    paths = [
        "description",
        "meta",
        "meta.delimiter",
        "meta.label_name",
        "label_name",
        "match_id_name",
    ]
    assert refused(site, **change, meta=meta) == paths
    assert refused(site, label_name="x", match_id_name="x") == ["label_name"]
    assert refused(site, match_id_name="x") == ["file:4"]  # blank
    site.store(TABLE, overwrite=True)
    assert refused(site, match_id_name="name") == ["file:4"]  # repeated


def test_ids_may_repeat_in_a_table_that_has_sids(site: Site) -> None:
    site.store(TABLE, extend_sid=True)
    _, after = site.datasets.edit(HERE, Edit(match_id_name="name"))
    assert after.meta["match_id_name"] == "name"


def test_others_change_a_table_while_its_ids_are_checked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.store(TABLE)
    check, checked = site.datasets._check_ids, list[str]()

    def checking(dataset: Dataset, column: str) -> None:
        if not checked:
            site.datasets.switch(HERE, disabled=True)
        checked.append(column)
        check(dataset, column)

    monkeypatch.setattr(site.datasets, "_check_ids", checking)
    before, after = site.datasets.edit(HERE, Edit(match_id_name="id"))
    assert before.disabled and after.disabled and checked == ["id", "id"]
    assert site.datasets.get("testspace#test_guest") == after


def test_a_table_keeps_the_match_id_by_which_it_is_divided(site: Site) -> None:
    site.store(TABLE, partitions=2, match_id_name="id")
    assert refused(site, match_id_name="x") == ["match_id_name"]
    site.datasets.edit(HERE, Edit(match_id_name="id", label_name="x"))


def test_what_a_job_left_is_not_edited(site: Site) -> None:
    path = site.storage.path(HERE)
    path.mkdir(parents=True)
    (path / "data_0").write_text(TABLE)
    with pytest.raises(Conflict) as caught:
        site.datasets.edit(HERE, Edit(description="mine"))
    assert caught.value.reason == "DATASET_NOT_UPLOADED" and not (path / "metadata").exists()
