"""The example data: counts that documents and jobs rely on, and a generator that repeats itself."""

import csv
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent.parent


def read(path):
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    return header, rows


def test_the_breast_cancer_files_have_their_counts():
    guest_header, guest = read(EXAMPLES / "data" / "breast_hetero_guest.csv")
    host_header, host = read(EXAMPLES / "data" / "breast_hetero_host.csv")
    assert guest_header[:2] == ["id", "y"]
    assert host_header[0] == "id"
    assert len(guest_header) == 12
    assert len(host_header) == 21
    guest_ids, host_ids = [row[0] for row in guest], [row[0] for row in host]
    assert (len(set(guest_ids)), len(set(host_ids))) == (len(guest), len(host)) == (540, 535)
    assert len(set(guest_ids) & set(host_ids)) == 509
    assert {len(value) for value in guest_ids + host_ids} == {8}
    for ids in (guest_ids, host_ids):
        assert ids != sorted(ids)
    shared = set(guest_ids) & set(host_ids)
    assert [i for i in guest_ids if i in shared] != [i for i in host_ids if i in shared]
    assert {row[1] for row in guest} == {"0", "1"}


def test_credit_data_repeats_itself_and_overlaps(tmp_path):
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        command = [
            sys.executable,
            EXAMPLES / "credit_data.py",
            tmp_path / name,
            "--rows",
            "400",
            "--seed",
            seed,
        ]
        subprocess.run(command, check=True)
    for file in ("credit_guest.csv", "credit_host.csv"):
        same, again, differing = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert same == again != differing
    (_, guest), (_, host) = (
        read(tmp_path / "a" / f"credit_{party}.csv") for party in ("guest", "host")
    )
    assert len({row[0] for row in guest} & {row[0] for row in host}) == 340
    assert 0.12 < sum(row[1] == "1" for row in guest) / 400 < 0.25
