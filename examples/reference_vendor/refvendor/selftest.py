"""Runs every component on made-up data with all parties in one process: does this image work here at all?"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from refvendor.components import REGISTRY
from refvendor.contract import Log, Table
from refvendor.memory import TaskRun, run_parties

_ROWS = 60
_ENCRYPTION = {"method": "Paillier", "key_length": 1024}


def selftest(log: Log) -> int:
    """Run all cases and log one line for each; 0 if every one passed, else 1."""
    failed = 0
    for name, parameters, check in _CASES:
        try:
            run = run_parties(name, REGISTRY[name], _inputs(name), parameters, seconds=60).checked()
            trouble = check(run)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        failed += trouble is not None
        level, result = ("error", trouble) if trouble else ("info", "passed")
        log(
            level,
            "self-test",
            component=name,
            parameters=dict(parameters),
            result=result,
        )
    code = "99999999" if failed else "00000000"
    log(
        "error" if failed else "info",
        "self-test ended",
        failed=failed,
        of=len(_CASES),
        result_code=code,
    )
    return 1 if failed else 0


def _inputs(name: str) -> dict[str, dict[str, Table]]:
    rng = random.Random(7)
    ids = [f"{number:06d}" for number in range(_ROWS + 20)]
    labels = [rng.random() < 0.5 for _ in ids]
    near = [[label + rng.gauss(0, 0.6), rng.gauss(0, 1)] for label in labels]
    far = [[label + rng.gauss(0, 0.8), rng.gauss(0, 1)] for label in labels]
    places = list(range(_ROWS))
    guest_places, host_places = list(places), list(places)
    if name == "Intersection":
        host_places = list(range(20, _ROWS + 20))
        rng.shuffle(guest_places)
        rng.shuffle(host_places)
    guest = [[ids[i], str(int(labels[i])), *(f"{v:.6f}" for v in near[i])] for i in guest_places]
    host = [[ids[i], *(f"{v:.6f}" for v in far[i])] for i in host_places]
    parties: dict[str, dict[str, Table]] = {
        "guest.0": {"train_data": Table(["id", "y", "a", "b"], guest)},
        "host.0": {"train_data": Table(["id", "c", "d"], host)},
    }
    if "arbiter" in REGISTRY[name]:
        parties["arbiter.0"] = {}
    return parties


def _common_ids(run: TaskRun) -> str | None:
    expected = [f"{number:06d}" for number in range(20, _ROWS)]
    for party in ("guest.0", "host.0"):
        found = [row[0] for row in run[party].io.tables["train_data"].rows]
        if found != expected:
            return f"{party} found {len(found)} ids, {len(expected)} are common"
    return None


def _scored(run: TaskRun) -> str | None:
    rows = len(run["guest.0"].io.tables["train_data"].rows)
    return None if rows == _ROWS else f"{rows} of {_ROWS} rows have a score"


_CASES: tuple[tuple[str, Mapping[str, Any], Any], ...] = (
    ("Intersection", {"intersect_method": "raw"}, _common_ids),
    ("Intersection", {"intersect_method": "rsa", "rsa_params": {"key_length": 1024}}, _common_ids),
    ("Intersection", {"intersect_method": "ecdh"}, _common_ids),
    ("HeteroSecureBoost", {"num_trees": 1, "encrypt_param": _ENCRYPTION}, _scored),
    ("HeteroLR", {"max_iter": 2, "encrypt_param": _ENCRYPTION}, _scored),
)
