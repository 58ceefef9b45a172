"""The components of this image: name -> role -> function."""

from __future__ import annotations

from collections.abc import Mapping

from refvendor.components import hetero_lr, hetero_secureboost, intersection
from refvendor.contract import Component

REGISTRY: Mapping[str, Mapping[str, Component]] = {
    "Intersection": {"guest": intersection.guest, "host": intersection.host},
    "HeteroSecureBoost": {"guest": hetero_secureboost.guest, "host": hetero_secureboost.host},
    "HeteroLR": {"guest": hetero_lr.guest, "host": hetero_lr.host, "arbiter": hetero_lr.arbiter},
}
