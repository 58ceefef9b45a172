"""Made-up data and values, for what nobody gave."""

import io
import random
from collections.abc import Mapping
from typing import Any

from gateway.data.dataset_upload import Upload
from gateway.data.datasets import Datasets
from gateway.data.storage import FileStorage
from gateway.domain.dataset_model import MemoryDatasets
from gateway.domain.run import Address
from provider_registry.model import Component, Parameter

ROWS = 60
ID, LABEL = "id", "y"
UNKNOWN = "conformance_unknown"
"""a parameter that no description names"""


def table(role: str) -> bytes:
    """Return a table as CSV: the same ids for every role; a guest's has a label that the columns hint at."""
    chance = random.Random(role)
    header = [ID, *([LABEL] if role == "guest" else []), *(f"{role}_x{n}" for n in range(3))]
    out = io.StringIO()
    out.write(",".join(header) + "\n")
    for row in range(ROWS):
        label = row % 2
        cells = [f"{chance.gauss(label, 1.0):.4f}" for _ in range(3)]
        out.write(",".join([f"u{row:04d}", *([str(label)] if role == "guest" else []), *cells]) + "\n")
    return out.getvalue().encode()


def store(storage: FileStorage, address: Address, role: str, content: bytes) -> None:
    """Put a table where a run finds it, as an upload to a gateway does. Raises `Invalid` if it is none."""
    header = content.partition(b"\n")[0].decode("utf-8-sig", "replace").strip().split(",")
    upload = Upload(
        address,
        label_name=LABEL if LABEL in header else "",
        match_id_name=header[0],
    )
    datasets = Datasets(storage, MemoryDatasets())
    reception = datasets.receive()
    try:
        reception.write(content)
        datasets.upload_from_file(upload, reception, f"{role}.csv")
    finally:
        reception.close()
    for path in storage.path(address).iterdir():
        path.chmod(0o644)
    storage.path(address).chmod(0o755)


def store_as_it_is(storage: FileStorage, address: Address, content: bytes) -> None:
    """Put a file where a run finds it as the only part of its input."""
    folder = storage.path(address)
    folder.mkdir(parents=True)
    part = folder / "data_0"
    part.write_bytes(content)
    part.chmod(0o644)
    folder.chmod(0o755)


def required(component: Component, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all given values, and made-up ones for further parameters that must be there."""
    made = {p.name: _made_up(p) for p in component.parameters if not p.optional and p.name not in given}
    return {**made, **given}


def defaults(component: Component) -> dict[str, Any]:
    """Return the defaults of all parameters that have one."""
    return {p.name: p.default for p in component.parameters if p.default}


def _made_up(parameter: Parameter) -> Any:
    if parameter.default:
        return parameter.default
    if parameter.binding:
        return parameter.binding[0]
    kind = parameter.type.lower()
    number: float | None = 1
    if parameter.validator is not None and parameter.validator.pattern is None:
        lower, upper = parameter.validator.lower, parameter.validator.upper
        number = lower if lower is not None else upper if upper is not None else 1
        if lower is not None and upper is not None:
            number = (lower + upper) / 2
    if kind in ("int", "integer"):
        return int(number or 0)
    if kind in ("float", "number", "double"):
        return float(number or 0)
    if kind in ("bool", "boolean"):
        return False
    return {} if kind == "object" else "conformance"
