"""Runs every component on made-up data, with all parties in one process: does this image work on
this machine?
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from refvendor.components import REGISTRY
from refvendor.contract import Log, Table
from refvendor.memory import TaskRun, run_parties
from refvendor.report import FAILURE_CODE, SUCCESS_CODE

ROWS = 60
UNSHARED_ROWS = 20  # of each party, in the data for Intersection
SEED = 7
SECONDS = 60.0
ENCRYPTION = {"method": "Paillier", "key_length": 1024}


@dataclass(frozen=True)
class Case:
    """A run of a component, and a function that returns the problem with it, empty if there is
    none.
    """

    component: str
    parameters: Mapping[str, Any]
    problem_with: Callable[[TaskRun], str]


def selftest(log: Log) -> int:
    """Run all cases and log a line for each.

    Returns the exit code: 0 if every one passed, else 1.
    """
    failed = 0
    for case in CASES:
        problem = _run_case(case)
        if problem:
            failed += 1
        log(
            "error" if problem else "info",
            "self-test",
            component=case.component,
            parameters=dict(case.parameters),
            result=problem or "passed",
        )
    summary = {
        "failed": failed,
        "of": len(CASES),
    }
    if failed:
        log("error", "self-test ended", **summary, result_code=FAILURE_CODE)
        return 1
    log("info", "self-test ended", **summary, result_code=SUCCESS_CODE)
    return 0


def _run_case(case: Case) -> str:
    """Run a case and return its problem, empty if there is none."""
    try:
        run = run_parties(
            case.component,
            REGISTRY[case.component],
            _inputs_of(case.component),
            case.parameters,
            seconds=SECONDS,
        )
        return case.problem_with(run.require_success())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# ------------------------------------------------------------ data


def _inputs_of(component: str) -> dict[str, dict[str, Table]]:
    """Return the inputs of every party of a component."""
    generator = random.Random(SEED)
    guest, host = _aligned_tables(generator)
    if component == "Intersection":
        guest.rows = guest.rows[:ROWS]
        host.rows = host.rows[UNSHARED_ROWS:]
        generator.shuffle(guest.rows)
        generator.shuffle(host.rows)
    inputs: dict[str, dict[str, Table]] = {
        "guest.0": {"train_data": guest},
        "host.0": {"train_data": host},
    }
    if "arbiter" in REGISTRY[component]:
        inputs["arbiter.0"] = {}
    return inputs


def _aligned_tables(generator: random.Random) -> tuple[Table, Table]:
    """Return the tables of guest and host, with the same ids in the same order and a feature of
    each that matters.
    """
    guest = Table(
        ["id", "y", "a", "b"],
        [],
    )
    host = Table(["id", "c", "d"], [])
    for row_id in _ids(ROWS + UNSHARED_ROWS):
        label = int(generator.random() < 0.5)
        guest_features = [
            label + generator.gauss(0, 0.6),
            generator.gauss(0, 1),
        ]
        host_features = [
            label + generator.gauss(0, 0.8),
            generator.gauss(0, 1),
        ]
        guest.rows.append([row_id, str(label), *_cells(guest_features)])
        host.rows.append([row_id, *_cells(host_features)])
    return guest, host


def _ids(count: int) -> list[str]:
    return [f"{number:06d}" for number in range(count)]


def _cells(features: list[float]) -> list[str]:
    return [f"{value:.6f}" for value in features]


# ------------------------------------------------------------ checks


def _missing_common_ids(run: TaskRun) -> str:
    expected = _ids(ROWS)[UNSHARED_ROWS:]
    for party in ("guest.0", "host.0"):
        ids = [row[0] for row in run[party].io.tables["train_data"].rows]
        if ids != expected:
            return f"{party} found {len(ids)} ids, {len(expected)} are common"
    return ""


def _missing_scores(run: TaskRun) -> str:
    expected = ROWS + UNSHARED_ROWS
    rows = len(run["guest.0"].io.tables["train_data"].rows)
    if rows != expected:
        return f"{rows} of {expected} rows have a score"
    return ""


CASES = (
    Case("Intersection", {"intersect_method": "raw"}, _missing_common_ids),
    Case(
        "Intersection",
        {
            "intersect_method": "rsa",
            "rsa_params": {"key_length": 1024},
        },
        _missing_common_ids,
    ),
    Case("Intersection", {"intersect_method": "ecdh"}, _missing_common_ids),
    Case(
        "HeteroSecureBoost",
        {"num_trees": 1, "encrypt_param": ENCRYPTION},
        _missing_scores,
    ),
    Case(
        "HeteroLR",
        {"max_iter": 2, "encrypt_param": ENCRYPTION},
        _missing_scores,
    ),
)
