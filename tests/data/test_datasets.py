"""Datasets: found by their ids, described as far as is known, disabled and deleted."""

from dataclasses import replace

import pytest

from gateway.data.upload import Edit
from gateway.domain.run import Address
from gateway.errors import Conflict, GatewayError, NotAllowed, NotFound
from tests.data.sites import TABLE, TABLE_ID


def write_files(site, data, metadata):
    """Write a table straight into the storage, as containers and other programs do."""
    folder = site.storage.path(TABLE)
    folder.mkdir(parents=True)
    (folder / "data_0").write_bytes(data)
    if metadata is not None:
        (folder / "metadata").write_text(metadata)


# ------------------------------------------------------------ ids


def test_a_dataset_is_found_by_id_or_by_namespace_and_name(site):
    site.store("id\n1\n")
    site.store(
        "id\n1\n",
        address=Address("a", "b#c"),
    )

    assert site.datasets.resolve(TABLE_ID) == TABLE
    assert site.datasets.resolve(namespace="testspace", name="test_guest") == TABLE
    assert site.datasets.resolve("a#b#c") == Address("a", "b#c")


@pytest.mark.parametrize(
    "dataset_id",
    [
        "",
        "#",
        "nohash",
        "a#",
        "#b",
        "../..#x",
        "a#../../etc",
        "gone#gone",
        "\ud800#x",
    ],
)
@pytest.mark.parametrize("method", ["resolve", "get"])
def test_an_unknown_id_is_not_found(site, method, dataset_id):
    with pytest.raises(NotFound) as refusal:
        getattr(site.datasets, method)(dataset_id)
    assert refusal.value.reason == "DATASET_UNKNOWN"


# ------------------------------------------------------------ tables without a record


def test_an_uploaded_table_without_a_record_is_found_in_the_storage(site):
    site.store("id\n1\n", description="kept")
    record = site.repository.get("testspace", "test_guest")

    site.repository.delete("testspace", "test_guest")

    assert site.datasets.resolve(TABLE_ID) == TABLE
    assert site.datasets.get(TABLE_ID) == record
    assert site.datasets.list() == []


def test_a_table_without_metadata_has_no_known_columns(site):
    write_files(site, b"id\n1\n", metadata=None)

    assert site.datasets.get(TABLE_ID).columns == ()


def test_malformed_metadata_count_as_far_as_they_can_be_read(site):
    metadata = '{"count": 1, "create_time": "soon", "column_info": [{"name": "id"}, 3], "meta": []}'
    write_files(site, b"id\n1\n", metadata)

    dataset = site.datasets.get(TABLE_ID)

    assert dataset.columns == ("id",)
    assert dataset.types == ("string",)
    assert dataset.count == 1


def test_a_table_of_another_program_is_described_as_far_as_is_known(site):
    metadata = '{"count": 0, "column_info": [], "file_type": "csv", "create_time": 1790000000.5}'
    compressed = b"\x1f\x8b" + bytes(98)
    write_files(site, compressed, metadata)

    dataset = site.datasets.get(TABLE_ID)

    assert dataset.count is None
    assert dataset.size == 100
    assert dataset.columns == ()
    assert dataset.origin == ""
    with pytest.raises(Conflict, match="was not uploaded"):
        site.datasets.edit(TABLE, Edit(description="x"))


# ------------------------------------------------------------ changes


def test_a_disabled_dataset_refuses_and_stays_so_when_replaced(site):
    site.repository.put(replace(site.store("id\n1\n"), disabled=True))

    site.store("id\n2\n", overwrite=True)

    with pytest.raises(NotAllowed, match="disabled"):
        site.datasets.resolve(TABLE_ID)
    assert site.datasets.get(TABLE_ID).disabled


def test_the_storage_counts_if_the_record_is_older(site):
    old_record = site.store("id\n1\n")
    site.store("id\n1\n2\n", overwrite=True)

    site.repository.put(old_record)

    assert site.datasets.get(TABLE_ID).count == 2


def test_a_deleted_dataset_is_gone(site):
    site.store("id\n1\n")
    assert [dataset.dataset_id for dataset in site.datasets.list()] == [TABLE_ID]

    site.datasets.delete(TABLE_ID)

    assert site.is_empty()
    assert site.datasets.list() == []
    with pytest.raises(NotFound):
        site.datasets.delete(TABLE_ID)


def test_a_hostile_id_is_not_deleted(site):
    with pytest.raises(GatewayError):
        site.datasets.delete("../..#x")
