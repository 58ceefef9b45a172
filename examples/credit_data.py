"""Writes made-up credit data of two parties: a bank with the label and a partner with payment behaviour.

Everything here is synthetic. Four hidden traits drive what either party sees; whether a person defaults is drawn
from a logit over columns of both, so a joint model beats either party alone. Needs numpy only.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
SLOPE = 0.6
BAD_RATE = 0.15
OVERLAP = 0.85
"""share of each party's ids that the other has too"""
ID_DIGITS = 9


def main() -> None:
    """Write both tables, as the arguments say."""
    parser = argparse.ArgumentParser(
        description="Write credit_guest.csv and credit_host.csv; the data is synthetic."
    )
    parser.add_argument("outdir", type=Path)
    parser.add_argument("--rows", type=int, default=2000, help="ids per party (default 2000)")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    if not 10 <= options.rows <= 5_000_000:
        parser.error(f"--rows must be from 10 to 5000000, got {options.rows}")
    write(options.outdir, options.rows, options.seed)


def write(outdir: Path, rows: int, seed: int) -> None:
    """Write the two files; the same rows and seed give the same bytes."""
    rng = np.random.default_rng(seed)
    common = round(rows * OVERLAP)
    people = 2 * rows - common
    bank, partner, label = population(people, rng)
    ids = rng.permutation(10**ID_DIGITS // (people + 1) * np.arange(1, people + 1) + rng.integers(0, 97, people))
    guest = rng.permutation(rows)
    host = rng.permutation(np.arange(rows - common, people))
    outdir.mkdir(parents=True, exist_ok=True)
    _write(outdir / "credit_guest.csv", ids, guest, {"y": label, **bank})
    _write(outdir / "credit_host.csv", ids, host, partner)


def population(
    n: int, rng: np.random.Generator
) -> tuple[dict[str, Floats], dict[str, Floats], npt.NDArray[np.int64]]:
    """The bank's columns, the partner's columns and who defaulted."""
    stability, debt, discipline, activity = rng.standard_normal((4, n))

    def noise(scale: float) -> Floats:
        return rng.normal(0.0, scale, n)

    age = np.clip(np.round(38 + 9 * stability + noise(8)), 18, 75)
    income = np.round(np.exp(8.6 + 0.30 * stability + noise(0.35)), 2)
    limit = np.round(income * np.exp(0.9 + 0.2 * stability + noise(0.4)), 2)
    utilisation = np.round(_beta(0.9 * debt - 0.2 * stability, 4.0, rng), 4)
    bank = {
        "age": age,
        "income": income,
        "employment_years": np.round(np.clip((age - 18) * rng.beta(2, 3, n) + 1.5 * stability, 0, None), 1),
        "credit_limit": limit,
        "utilisation": utilisation,
        "debt_to_income": np.round(np.exp(-1.2 + 0.45 * debt + noise(0.35)), 4),
        "delinquencies": rng.poisson(np.exp(-1.2 + 0.55 * debt - 0.3 * stability)).astype(float),
        "inquiries": rng.poisson(np.exp(0.1 + 0.45 * debt)).astype(float),
        "tenure_months": np.round(np.clip(np.exp(3.4 + 0.35 * stability + noise(0.5)), 1, 480)),
        "home_owner": (rng.random(n) < _sigmoid(0.9 * stability - 0.3)).astype(float),
    }
    late = rng.poisson(np.exp(-0.7 - 0.75 * discipline)).astype(float)
    partner = {
        "monthly_spend": np.round(np.exp(7.2 + 0.45 * activity + noise(0.4)), 2),
        "night_ratio": np.round(_beta(-0.8 - 0.5 * discipline + 0.2 * activity, 8.0, rng), 4),
        "orders": rng.poisson(np.exp(2.3 + 0.5 * activity)).astype(float),
        "late_bills": late,
        "average_balance": np.round(np.exp(6.8 + 0.5 * discipline + noise(0.6)), 2),
        "cash_flow_volatility": np.round(np.exp(-0.7 - 0.35 * discipline + noise(0.35)), 4),
        "cash_advances": rng.poisson(np.exp(-1.0 - 0.6 * discipline)).astype(float),
        "gambling": (rng.random(n) < _sigmoid(-2.6 - 0.8 * discipline)).astype(float),
        "devices": 1.0 + rng.poisson(np.exp(-0.2 + 0.2 * activity)),
        "moves": rng.poisson(0.35, n).astype(float),
        "bill_payment_ratio": np.round(_beta(1.6 + 0.8 * discipline, 7.0, rng), 4),
        "active_days": rng.binomial(30, _sigmoid(0.3 + 0.7 * activity)).astype(float),
    }
    risk = sum(
        weight * _standard(column)
        for weight, column in (
            (0.55, bank["utilisation"]),
            (0.45, bank["debt_to_income"]),
            (0.45, bank["delinquencies"]),
            (0.30, bank["inquiries"]),
            (-0.30, np.log(bank["income"])),
            (-0.25, bank["employment_years"]),
            (-0.15, bank["home_owner"]),
            (0.65, partner["late_bills"]),
            (0.45, partner["cash_flow_volatility"]),
            (0.40, partner["cash_advances"]),
            (0.25, partner["gambling"]),
            (-0.50, partner["bill_payment_ratio"]),
            (-0.35, np.log(partner["average_balance"])),
            (0.15, partner["night_ratio"]),
        )
    )
    risk = risk + 0.5 * (utilisation > 0.7) * np.minimum(late, 3.0) + 0.5 * (age < 25)
    chance = _sigmoid(SLOPE * risk + _intercept(SLOPE * risk))
    return bank, partner, (rng.random(n) < chance).astype(np.int64)


def _intercept(scores: Floats) -> float:
    """The constant that makes `BAD_RATE` of the people default on average, by halving an interval."""
    low, high = -40.0, 40.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if _sigmoid(scores + middle).mean() > BAD_RATE else (middle, high)
    return low


def _beta(scores: Floats, tightness: float, rng: np.random.Generator) -> Floats:
    mean = np.clip(_sigmoid(scores), 0.02, 0.98)
    return rng.beta(mean * tightness, (1 - mean) * tightness)


def _sigmoid(scores: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-scores))


def _standard(column: Floats) -> Floats:
    return (column - column.mean()) / column.std()


def _write(
    path: Path, ids: npt.NDArray[np.int64], people: npt.NDArray[np.int64], columns: Mapping[str, Floats]
) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", *columns])
        for person in people:
            writer.writerow(
                [f"{ids[person]:0{ID_DIGITS}d}", *(f"{column[person]:.10g}" for column in columns.values())]
            )


if __name__ == "__main__":
    main()
