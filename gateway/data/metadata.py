"""The JSON file ``metadata`` next to the partitions of a table.

The keys of the interconnection standard are name, namespace, count, partitions, column_info,
data_type, description, create_time, expire_time and file_type. Our own keys:

- ``meta``: as given with the upload, but without the encoding, and with a comma as delimiter, since
  the partitions have commas
- ``origin``: about the uploaded file, with its delimiter and encoding
- ``id_column``, ``label_column``, ``sid_column``: names of columns; null for none
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from gateway.domain.datasets import Dataset
from gateway.domain.run import Address

T = TypeVar("T")

# 2100-01-01 as Unix time: readers of metadata require a time of expiry, and datasets have none.
_NEVER_EXPIRES = 4102444800.0


def metadata_of(dataset: Dataset) -> bytes:
    """Return the content of the metadata file for a dataset with CSV partitions."""
    meta = {**dataset.meta, "delimiter": ","}
    encoding = meta.pop("encoding", None)
    columns = zip(dataset.columns, dataset.types, strict=True)
    document = {
        "name": dataset.name,
        "namespace": dataset.namespace,
        "count": dataset.count,
        "partitions": dataset.partitions,
        "column_info": [{"name": name, "type": column_type} for name, column_type in columns],
        "data_type": "dense",
        "description": dataset.description,
        "create_time": dataset.created_at.timestamp(),
        "expire_time": _NEVER_EXPIRES,
        "file_type": "csv",
        "id_column": meta.get("match_id_name"),
        "label_column": meta.get("label_name"),
        "sid_column": dataset.sid or None,
        "meta": meta,
        "origin": {
            "source": dataset.origin,
            "delimiter": dataset.meta.get("delimiter"),
            "encoding": encoding,
            "checksum": dataset.checksum,
            "size": dataset.size,
            "stored": dataset.stored,
        },
    }
    return json.dumps(
        document,
        ensure_ascii=False,
        allow_nan=False,
        indent=1,
    ).encode()


def dataset_of(
    address: Address,
    document: Mapping[str, Any],
) -> Dataset:
    """Return the dataset that a metadata file describes.

    ``address`` gives the dataset's id, and ``document`` is the content of the file. Other programs
    write such files too, so a field of a wrong type counts as absent.
    """
    origin = _typed(dict, document.get("origin"))
    columns = []
    for column in _typed(list, document.get("column_info")):
        if isinstance(column, dict):
            columns.append(column)
    meta = dict(_typed(dict, document.get("meta")))
    # `metadata_of` has put these two keys of meta into origin.
    for key in ("delimiter", "encoding"):
        if key in origin:
            meta[key] = origin[key]
    return Dataset(
        namespace=address.namespace,
        name=address.name,
        columns=tuple(str(column.get("name", "")) for column in columns),
        types=tuple(str(column.get("type", "string")) for column in columns),
        count=max(0, _typed(int, document.get("count"))),
        partitions=max(0, _typed(int, document.get("partitions"))) or 1,
        meta=meta,
        checksum=_typed(str, origin.get("checksum")),
        size=max(0, _typed(int, origin.get("size"))),
        stored=_typed(str, origin.get("stored")),
        created_at=_time(document.get("create_time")),
        origin=_typed(str, origin.get("source")),
        sid=_typed(str, document.get("sid_column")),
        description=_typed(str, document.get("description")),
    )


def _typed(expected: type[T], value: Any) -> T:
    """Return the value if it has exactly this type, else the empty value of the type."""
    if type(value) is expected:
        return value
    return expected()


def _time(value: Any) -> datetime:
    """Return a Unix time as UTC; that of 0 (1970) for a value that is not a time."""
    try:
        return datetime.fromtimestamp(float(value), UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)
