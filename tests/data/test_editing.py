"""The metadata of a table is changed without a new upload."""

import pytest

from gateway.data.upload import Edit
from gateway.errors import Conflict, Invalid
from tests.data.sites import TABLE, TABLE_ID

CONTENT = "id,name,x\n007,a,1\n008,b,2\n009,b,\n"


def refused_paths(site, **change):
    """Return the paths of the problems with an edit, which changes nothing."""
    record = site.datasets.get(TABLE_ID)
    metadata = site.storage.metadata(TABLE)
    with pytest.raises(Invalid) as refusal:
        site.datasets.edit(TABLE, Edit(**change))
    assert site.datasets.get(TABLE_ID) == record
    assert site.storage.metadata(TABLE) == metadata
    return [problem.path for problem in refusal.value.problems]


def test_an_edit_changes_the_record_and_the_metadata_of_the_table(site):
    meta = {"source": "crm", "owner": "risk"}
    stored = site.store(
        CONTENT,
        extra=meta,
        description="customers",
    )
    edit = Edit(
        match_id_name="id",
        label_name="x",
        meta={"source": None, "year": 2026},
    )

    before, after = site.datasets.edit(TABLE, edit)

    new_meta = {
        "owner": "risk",
        "year": 2026,
        "match_id_name": "id",
        "label_name": "x",
    }
    assert before == stored
    assert after == site.datasets.get(TABLE_ID)
    assert after.meta == new_meta | {
        "delimiter": ",",
        "encoding": "utf-8",
    }
    assert after.types == ("string", "string", "int")
    assert after.description == "customers"
    metadata = site.storage.metadata(TABLE)
    assert metadata["id_column"] == "id"
    assert metadata["label_column"] == "x"
    assert metadata["meta"] == new_meta | {"delimiter": ","}
    assert site.parts() == [CONTENT]
    site.repository.delete("testspace", "test_guest")
    assert site.datasets.get(TABLE_ID) == after, "the metadata of the table says the same"


def test_an_empty_value_clears_a_field(site):
    site.store(
        CONTENT,
        match_id_name="id",
        label_name="x",
        description="customers",
    )
    edit = Edit(
        description="",
        label_name="",
        match_id_name="",
    )

    _, after = site.datasets.edit(TABLE, edit)

    assert after.description == ""
    assert "label_name" not in after.meta
    assert "match_id_name" not in after.meta


def test_every_problem_of_an_edit_is_reported(site):
    site.store(CONTENT, extend_sid=True)
    meta = {
        "delimiter": ";",
        "label_name": "x",
        "bad": float("nan"),
    }

    paths = refused_paths(
        site,
        label_name="y",
        match_id_name="sid",
        description="\ud800",
        meta=meta,
    )

    assert paths == [
        "description",
        "meta",
        "meta.delimiter",
        "meta.label_name",
        "label_name",
        "match_id_name",
    ]


@pytest.mark.parametrize(
    ("options", "change", "path"),
    [
        ({"extend_sid": True}, {"label_name": "x", "match_id_name": "x"}, "label_name"),
        ({"extend_sid": True}, {"match_id_name": "x"}, "file:4"),
        ({}, {"match_id_name": "name"}, "file:4"),
        ({"partitions": 2, "match_id_name": "id"}, {"match_id_name": "x"}, "match_id_name"),
    ],
    ids=["label and id", "blank id", "repeated id", "divided by another id"],
)
def test_a_column_that_cannot_be_the_match_id_is_refused(site, options, change, path):
    site.store(CONTENT, **options)

    assert refused_paths(site, **change) == [path]


def test_ids_may_repeat_in_a_table_that_has_sids(site):
    site.store(CONTENT, extend_sid=True)

    _, after = site.datasets.edit(
        TABLE,
        Edit(match_id_name="name"),
    )

    assert after.meta["match_id_name"] == "name"


def test_a_table_keeps_the_match_id_by_which_it_is_divided(site):
    site.store(
        CONTENT,
        partitions=2,
        match_id_name="id",
    )

    _, after = site.datasets.edit(
        TABLE,
        Edit(match_id_name="id", label_name="x"),
    )

    assert after.meta["match_id_name"] == "id"
    assert after.meta["label_name"] == "x"


def test_others_change_a_table_while_its_ids_are_checked(site, monkeypatch):
    site.store(CONTENT)
    iter_rows = site.storage.iter_rows
    reads = []

    def disable_and_read(address):
        if not reads:
            site.datasets.switch(TABLE, disabled=True)
        reads.append(address)
        return iter_rows(address)

    monkeypatch.setattr(site.storage, "iter_rows", disable_and_read)
    before, after = site.datasets.edit(
        TABLE,
        Edit(match_id_name="id"),
    )

    assert before.disabled
    assert after.disabled
    assert len(reads) == 2, "the ids of the changed table are checked again"
    assert site.datasets.get(TABLE_ID) == after


def test_a_table_written_by_a_job_is_not_edited(site):
    folder = site.storage.path(TABLE)
    folder.mkdir(parents=True)
    (folder / "data_0").write_text(CONTENT)

    with pytest.raises(Conflict) as refusal:
        site.datasets.edit(TABLE, Edit(description="mine"))

    assert refusal.value.reason == "DATASET_NOT_UPLOADED"
    assert not (folder / "metadata").exists()
