"""A dataset as the JSON file ``metadata`` beside its partitions, and back.

The keys of the interconnection standard are name, namespace, count, partitions, column_info, data_type,
description, create_time, expire_time and file_type. Ours besides: ``meta`` as uploaded but with the delimiter
that the partitions have; ``origin`` with what the uploaded file was like; which columns are id, label and sid.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.domain.dataset_model import Dataset
from gateway.domain.run import Address


def metadata_of(dataset: Dataset) -> bytes:
    """Return the file's content."""
    meta = dict(dataset.meta)
    columns = zip(dataset.columns, dataset.types, strict=True)
    document = {
        "name": dataset.name,
        "namespace": dataset.namespace,
        "count": dataset.count,
        "partitions": dataset.partitions,
        "column_info": [{"name": name, "type": kind} for name, kind in columns],
        "data_type": "dense",
        "description": dataset.description,
        "create_time": dataset.created_at.timestamp(),
        "expire_time": None,
        "file_type": "csv",
        "id_column": meta.get("match_id_name"),
        "label_column": meta.get("label_name"),
        "sid_column": dataset.sid or None,
        "meta": {**meta, "delimiter": ","},
        "origin": {
            "source": dataset.origin,
            "delimiter": meta.get("delimiter"),
            "checksum": dataset.checksum,
            "size": dataset.size,
        },
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1).encode()


def dataset_of(address: Address, document: Mapping[str, Any]) -> Dataset:
    """Return what a metadata file tells, as far as it does: other programs write some too."""
    origin = _mapping(document.get("origin"))
    columns = [c for c in _list(document.get("column_info")) if isinstance(c, Mapping)]
    meta = dict(_mapping(document.get("meta")))
    if "delimiter" in origin:
        meta["delimiter"] = origin["delimiter"]
    return Dataset(
        namespace=address.namespace,
        name=address.name,
        columns=tuple(str(c.get("name", "")) for c in columns),
        types=tuple(str(c.get("type", "string")) for c in columns),
        count=_number(document.get("count")),
        partitions=_number(document.get("partitions")) or 1,
        meta=meta,
        checksum=_text(origin.get("checksum")),
        size=_number(origin.get("size")),
        created_at=_time(document.get("create_time")),
        origin=_text(origin.get("source")),
        sid=_text(document.get("sid_column")),
        description=_text(document.get("description")),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _time(value: Any) -> datetime:
    try:
        return datetime.fromtimestamp(float(value), UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)
