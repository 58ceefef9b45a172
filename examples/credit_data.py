"""Writes made-up credit data of two parties: a bank with the label and a partner with payment
behaviour.

Everything here is synthetic: whether a person defaults is drawn from a logit over columns of both
parties, so a joint model beats either party alone. Needs numpy only.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
OVERLAP = 0.85
"""share of each party's ids that the other has too"""
BANK = {
    "utilisation": 0.55,
    "debt_to_income": 0.45,
    "delinquencies": 0.45,
    "income": -0.3,
    "employment_years": -0.25,
}
PARTNER = {
    "late_bills": 0.65,
    "cash_advances": 0.4,
    "bill_payment_ratio": -0.5,
    "average_balance": -0.35,
}
"""each party's columns, standard normal, and how much each of them adds to the risk"""


def main() -> None:
    """Write both tables, as the arguments say."""
    parser = argparse.ArgumentParser(
        description="Write credit_guest.csv and credit_host.csv; the data is synthetic."
    )
    parser.add_argument("outdir", type=Path)
    parser.add_argument(
        "--rows",
        type=int,
        default=2000,
        help="ids per party (default 2000)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=7,
    )
    options = parser.parse_args()
    write(options.outdir, options.rows, options.seed)


def write(
    outdir: Path,
    rows: int,
    seed: int,
) -> None:
    """Write the two files; the same rows and seed give the same bytes."""
    rng = np.random.default_rng(seed)
    common = round(rows * OVERLAP)
    people = 2 * rows - common
    columns = {name: rng.standard_normal(people) for name in (*BANK, *PARTNER)}
    risk = sum(
        (weight * columns[name] for name, weight in (BANK | PARTNER).items()), np.full(people, -2.3)
    )
    columns["y"] = (rng.random(people) < 1 / (1 + np.exp(-risk))).astype(float)
    ids = rng.permutation(10**9 // (people + 1) * np.arange(1, people + 1))
    outdir.mkdir(
        parents=True,
        exist_ok=True,
    )
    for party, names, members in (
        ("guest", ["y", *BANK], rng.permutation(rows)),
        ("host", [*PARTNER], rng.permutation(np.arange(rows - common, people))),
    ):
        with (outdir / f"credit_{party}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(
                file,
                lineterminator="\n",
            )
            writer.writerow(["id", *names])
            writer.writerows(
                [f"{ids[i]:09d}", *(f"{columns[name][i]:.4g}" for name in names)] for i in members
            )


if __name__ == "__main__":
    main()
