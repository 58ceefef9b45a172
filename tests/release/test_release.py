"""A release built from the last commit: the same bytes again, and every changed byte is found."""

import shutil

import pytest

from tools.release.__main__ import build_release
from tools.release.verify import problems_of


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release")
    build_release(folder, "HEAD")
    return folder


def test_a_release_is_correct(release):
    assert problems_of(release) == []


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_one_changed_byte_in_any_file_is_found(release, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(release, copy)
    unnoticed = []
    for path in sorted(copy.iterdir()):
        content = path.read_bytes()
        flip_a_bit(path)
        if not problems_of(copy):
            unnoticed.append(path.name)
        path.write_bytes(content)
    assert unnoticed == []
    assert problems_of(copy) == []


def test_missing_and_additional_files_are_found(release, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(release, copy)
    wheel = next(copy.glob("bfia_gateway-*.whl"))
    wheel.rename(copy / "other.whl")
    problems = problems_of(copy)
    assert f"{wheel.name}: missing" in problems
    assert "other.whl: not listed in SHA256SUMS" in problems
