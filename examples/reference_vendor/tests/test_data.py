"""The example data: counts that documents and jobs rely on, and a generator that repeats itself."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from refvendor.metrics import auc

EXAMPLES = Path(__file__).parent.parent.parent


def read(path):
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    return header, rows


def generate(directory, *arguments):
    command = [sys.executable, str(EXAMPLES / "credit_data.py"), str(directory), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_breast_cancer_files_have_their_counts():
    guest_header, guest = read(EXAMPLES / "data" / "breast_hetero_guest.csv")
    host_header, host = read(EXAMPLES / "data" / "breast_hetero_host.csv")
    assert guest_header[:2] == ["id", "y"] and host_header[0] == "id"
    assert (len(guest_header), len(host_header)) == (12, 21)
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
        assert generate(tmp_path / name, "--rows", "400", "--seed", seed).returncode == 0
    for file in ("credit_guest.csv", "credit_host.csv"):
        same, again, other = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert same == again != other
    guest_header, guest = read(tmp_path / "a" / "credit_guest.csv")
    host_header, host = read(tmp_path / "a" / "credit_host.csv")
    assert guest_header[:2] == ["id", "y"] and (len(guest_header), len(host_header)) == (12, 13)
    guest_ids, host_ids = {row[0] for row in guest}, {row[0] for row in host}
    assert len(guest_ids) == len(host_ids) == 400
    assert len(guest_ids & host_ids) == 340
    assert {len(value) for value in guest_ids | host_ids} == {9}


def test_both_parties_of_the_credit_data_know_something_of_the_label(tmp_path):
    generate(tmp_path, "--rows", "3000", "--seed", "7")
    guest_header, guest = read(tmp_path / "credit_guest.csv")
    host_header, host = read(tmp_path / "credit_host.csv")
    label = {row[0]: int(row[1]) for row in guest}
    assert 0.12 < np.mean(list(label.values())) < 0.18
    place = guest_header.index("utilisation")
    assert auc([int(row[1]) for row in guest], [float(row[place]) for row in guest]) > 0.55
    common = [row for row in host if row[0] in label]
    place = host_header.index("late_bills")
    assert auc([label[row[0]] for row in common], [float(row[place]) for row in common]) > 0.6


@pytest.mark.parametrize("rows", ["5", "-1", "many"])
def test_sizes_that_cannot_work_are_refused(tmp_path, rows):
    refused = generate(tmp_path / "out", "--rows", rows)
    assert refused.returncode == 2
    assert "--rows" in refused.stderr
    assert not (tmp_path / "out").exists()
