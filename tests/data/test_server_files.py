"""Uploads from the server's disk: files below the allowed roots, and no others."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.data.datasets import Datasets
from gateway.data.upload import Upload
from gateway.domain.run import Address
from gateway.errors import Invalid, NotAllowed
from tests.data.sites import TABLE, Site


@pytest.fixture
def site(tmp_path):
    """A site whose roots have files; another file is outside the roots."""
    site = Site(tmp_path)
    first, second = site.roots
    for root in site.roots:
        (root / "in").mkdir(parents=True)
    (first / "in" / "a.csv").write_text("id\n1\n")
    (second / "in" / "a.csv").write_text("id\n2\n")
    (second / "in" / "b.csv").write_text("id\n3\n")
    (tmp_path / "secret.csv").write_text("id\n9\n")
    return site


@pytest.mark.parametrize(
    ("path", "row"),
    [
        ("in/a.csv", "1"),
        ("in/b.csv", "3"),
        ("in//./b.csv", "3"),
        ("ROOT/in/a.csv", "2"),
    ],
    ids=["first root", "second root", "dots", "absolute"],
)
def test_a_path_is_looked_up_below_each_root_in_order(site, path, row):
    path = path.replace(
        "ROOT",
        str(site.roots[1]),
    )

    dataset = site.datasets.upload_from_path(Upload(TABLE), path)

    assert site.parts() == [f"id\n{row}\n"]
    assert dataset.origin == f"path:{path}"


def test_a_root_may_be_a_link(site, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(site.roots[0])
    datasets = Datasets(site.storage, site.repository, [link])

    for folder in (Path(), link, site.roots[0]):
        path = str(folder / "in" / "a.csv")
        datasets.upload_from_path(Upload(TABLE, overwrite=True), path)
        assert site.parts() == ["id\n1\n"]


def test_a_link_inside_a_root_is_followed(site):
    (site.roots[0] / "inside").symlink_to(site.roots[0] / "in")

    site.datasets.upload_from_path(Upload(TABLE), "inside/a.csv")

    assert site.parts() == ["id\n1\n"]


@pytest.mark.parametrize("path", ["out.csv", "up/secret.csv", "ROOT/up/secret.csv"])
def test_a_link_out_of_a_root_is_not_followed(site, tmp_path, path):
    root = site.roots[0]
    (root / "out.csv").symlink_to(tmp_path / "secret.csv")
    (root / "up").symlink_to(tmp_path)

    with pytest.raises(NotAllowed) as refusal:
        upload = Upload(Address("n", "x"))
        site.datasets.upload_from_path(
            upload,
            path.replace("ROOT", str(root)),
        )
    assert refusal.value.reason == "PATH_NOT_ALLOWED"


@pytest.mark.parametrize(
    "path", ["../secret.csv", "in/../../secret.csv", "/etc/hostname", "/nowhere/at/all"]
)
def test_a_path_outside_the_roots_is_refused(site, path):
    with pytest.raises(NotAllowed, match="/v2/component/upload/file") as refusal:
        site.datasets.upload_from_path(Upload(TABLE), path)
    assert refusal.value.reason == "PATH_NOT_ALLOWED"


@pytest.mark.parametrize(
    "path",
    ["", " ", ".", "in", "gone.csv", "a\0", "\ud800", "x" * 300, "in/a.csv/x", "pipe"],
    ids=[
        "empty",
        "blank",
        "root",
        "folder",
        "missing",
        "NUL",
        "half a character",
        "too long",
        "below a file",
        "pipe",
    ],
)
def test_a_path_that_is_no_file_is_refused(site, path):
    os.mkfifo(site.roots[0] / "pipe")

    with pytest.raises(Invalid) as refusal:
        site.datasets.upload_from_path(Upload(TABLE), path)
    assert [problem.path for problem in refusal.value.problems] == ["file"]


def test_without_roots_nothing_is_uploaded_from_disk(site):
    datasets = Datasets(site.storage, site.repository, [])

    with pytest.raises(NotAllowed, match=r"data\.roots is empty"):
        datasets.upload_from_path(Upload(TABLE), "in/a.csv")


STEP = st.sampled_from(["..", ".", "in", "up", "secret.csv", "a.csv", "/", "\0", ""])


@settings(max_examples=100)
@given(st.lists(STEP, max_size=6))
def test_no_path_leads_to_a_file_outside_the_roots(steps):
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        root = site.roots[0]
        (root / "in").mkdir(parents=True)
        (root / "in" / "a.csv").write_text("id\n1\n")
        (root / "up").symlink_to(folder)
        (Path(folder) / "secret.csv").write_text("id\n9\n")
        try:
            site.datasets.upload_from_path(
                Upload(TABLE),
                "/".join(steps),
            )
        except (Invalid, NotAllowed):
            assert site.is_empty()
        else:
            assert site.parts() == ["id\n1\n"]
