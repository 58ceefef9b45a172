"""The release script dates the changes and tags a commit only if all is in order."""

import subprocess
from datetime import date

import pytest

from tools.release.artefacts import ReleaseError
from tools.release.tagging import date_changes, make_tag

DAY = date(2026, 11, 30)


def git(repository, *words):
    name = ["-c", "user.name=tester", "-c", "user.email=tester@example.com"]
    process = subprocess.run(
        ["git", "-C", str(repository), *name, *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def commit(repository):
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "release: prepare")


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "user.name", "tester")
    git(tmp_path, "config", "user.email", "tester@example.com")
    write(tmp_path / "gateway/version.py", 'VERSION = "0.3.0"\n')
    write(tmp_path / "clients/python/bfia_gateway_client/version.py", 'VERSION = "0.3.0"\n')
    write(tmp_path / "CHANGELOG.md", "# Changes\n\n## Unreleased: 0.3.0\n\n- new\n")
    commit(tmp_path)
    return tmp_path


def test_a_dated_and_committed_release_is_tagged(repository):
    assert date_changes(repository, DAY) == "0.3.0 (2026-11-30)"
    commit(repository)
    assert make_tag(repository) == "v0.3.0"
    assert git(repository, "cat-file", "-t", "v0.3.0") == "tag\n"
    text = (repository / "CHANGELOG.md").read_text()
    assert text == "# Changes\n\n## 0.3.0 (2026-11-30)\n\n- new\n"


def test_nothing_is_tagged_while_anything_is_out_of_order(repository):
    write(repository / "clients/python/bfia_gateway_client/version.py", 'VERSION = "0.2.0"\n')
    commit(repository)
    write(repository / "draft", "")
    with pytest.raises(ReleaseError) as refusal:
        make_tag(repository)
    _, *problems = str(refusal.value).splitlines()
    assert problems == [
        "there are files that are not committed",
        "the client has version 0.2.0, the gateway 0.3.0",
        'the first section of CHANGELOG.md is "Unreleased: 0.3.0", without the date of 0.3.0: '
        "python -m tools.release date",
    ]
    assert git(repository, "tag") == ""


def test_a_tag_is_never_moved(repository):
    date_changes(repository, DAY)
    commit(repository)
    make_tag(repository)
    with pytest.raises(ReleaseError, match=r"the tag v0\.3\.0 exists"):
        make_tag(repository)


def test_changes_of_another_version_get_no_date(repository):
    write(repository / "gateway/version.py", 'VERSION = "0.4.0"\n')
    with pytest.raises(ReleaseError, match=r'not "Unreleased: 0\.4\.0"'):
        date_changes(repository, DAY)
