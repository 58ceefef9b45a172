"""The figures of a run stand in both READMEs, each at its place."""

import shutil
from pathlib import Path

import pytest

from tests.e2e.nodes import ROOT
from tools.bench.readme import NEEDED, Missing, write

SHOWN = {
    "makespan": [[n, f"{n}.1 s", f"{n}.2 s", f"{n}.3 s", f"{n}.4 s", f"1.{n}", "9"] for n in (1, 3, 10)],
    "channel": [[size, f"{size} median", f"{size} rate"] for size in ("1 KiB", "1 MiB", "64 MiB")],
    "create": [
        ["1, rested", "", "14 ms", "x"],
        [1, "11/s", "95 ms", "x"],
        [8, "y", "y", "x"],
        [32, "24/s", "1.3 s"],
    ],
    "memory": [["107 MB"]],
    "upload": [["0.25 GiB", "2 s", "130 MB/s", "27 MB"]],
    "thousand": [[1000, "1000", "0", "9.5/s", "21 ms", "151 ms"]],
    "beside": [[200, "1 s", "2 s", "1.3", "30 s"]],
    "ended": [[10_000, "1 s", "1 s", "1.04"]],
    "failover": [["10.5 s"], ["9.5 s"], ["9.9 s"]],
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("README.md", "README.zh-CN.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_both_pages_show_every_figure_and_keep_the_rest(root: Path):
    write(root, "4 cores", SHOWN)
    write(root, "3 cores", SHOWN)  # and again in the same place
    for name in ("README.md", "README.zh-CN.md"):
        before, after = ((folder / name).read_text(encoding="utf-8") for folder in (ROOT, root))
        for said in (
            "3 cores",
            "10.2 s",
            "1.3",
            "64 MiB rate",
            "14 ms",
            "24/s",
            "107 MB",
            "27 MB",
            "151 ms",
            "1.04",
        ):
            assert said in after, said
        assert "9.5 s" in after and "10.5 s" in after and "4 cores" not in after
        assert after.count("## ") == before.count("## ")
        assert (
            after.splitlines()[:20] == before.splitlines()[:20]
            and after.splitlines()[-1] == before.splitlines()[-1]
        )


@pytest.mark.parametrize("part", NEEDED)
def test_a_part_that_was_not_measured_is_named_and_nothing_is_written(root: Path, part: str):
    before = (root / "README.md").read_text(encoding="utf-8")
    with pytest.raises(Missing, match=part):
        write(root, "2 cores", {name: rows for name, rows in SHOWN.items() if name != part})
    assert (root / "README.md").read_text(encoding="utf-8") == before
