"""Names and labels of runs, the same for every engine."""

import hashlib
import json
import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{1,127}")

NODE = "bfia.node"
INSTALLATION = "bfia.installation"


def run_name(node: str, job: str, task: str, role: str, index: int, attempt: int) -> str:
    """Return the name of a run: short, safe for DNS, paths and container engines, and the same every time."""
    identity = json.dumps([node, job, task, role, int(index), int(attempt)], ensure_ascii=True)
    return "bfia-" + hashlib.sha256(identity.encode()).hexdigest()[:16]


def is_name(name: str) -> bool:
    """Tell whether something may be the name of a run, in every engine alike."""
    return _NAME.fullmatch(name) is not None


def labels(
    node: str, installation: str, job: str, task: str, role: str, index: int, attempt: int
) -> dict[str, str]:
    """Return the labels by which a run is found again and told from those of other nodes."""
    return {
        NODE: node,
        INSTALLATION: installation,
        "bfia.job": job,
        "bfia.task": task,
        "bfia.role": role,
        "bfia.index": str(index),
        "bfia.attempt": str(attempt),
    }


def owned(labels: Mapping[str, str], node: str, installation: str) -> bool:
    """Tell whether a run with these labels belongs to this node of this installation."""
    return labels.get(NODE) == node and labels.get(INSTALLATION) == installation


def safe_name(prefix: str, node: str) -> str:
    """Return ``prefix-node``, made short and safe for container engines; distinct nodes stay distinct."""
    plain = f"{prefix}-{node}"
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in plain)
    if safe == plain and len(plain) <= 48:
        return plain
    return f"{safe[:31]}-{hashlib.sha256(node.encode()).hexdigest()[:16]}"
