"""Makes arrays and tensors from pickled values, so that no state leads numpy or PyTorch astray."""

import io
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy
import pandas
import torch
from pandas.core.indexes.base import _new_Index

from fatevendor.unpickling import Allowed, Allowlist, Unpickler

# ---------------------------------------------------------------- numpy's and pandas' arrays

# A state sets the flags of all other types, for numpy to take a message's bytes for addresses.
NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
OBJECTS = "O8"
DTYPES = {name: numpy.dtype(name) for name in (*NUMBERS, OBJECTS)}


def dtype_named(name: str, align: bool, copy: bool) -> numpy.dtype[Any]:
    """Return numpy's own type of an array's items, which no state changes."""
    return DTYPES[name]


def check_dtype(dtype: numpy.dtype[Any], state: Any) -> None:
    """Check that a state of a type is its own."""
    if state != dtype.__reduce__()[2]:
        raise ValueError("another state than the type's own")


def empty_array(kind: Any, shape: Any, typecode: Any) -> numpy.ndarray[Any, Any]:
    """Return an array that gets its state later."""
    return numpy.empty(0, numpy.int8)


def fill_array(array: numpy.ndarray[Any, Any], state: Any) -> None:
    """Give an array its items, once: others may refer to the memory of its items later."""
    if array.size:
        raise ValueError("an array with items")
    _, _, dtype, _, items = state
    if dtype not in DTYPES.values() or isinstance(items, list) is not dtype.hasobject:
        raise ValueError("not the items of this type")
    array.__setstate__(state)


def scalar(dtype: numpy.dtype[Any], content: bytes) -> Any:
    """Return a number of numpy's."""
    (number,) = numpy.frombuffer(content, dtype)
    return number


def index_of(kind: Any, fields: dict[str, Any]) -> Any:
    """Return an index of pandas', of a copy of the array in the message."""
    return _new_Index(pandas.Index, {"data": fields["data"].copy(), "name": fields["name"]})


# ---------------------------------------------------------------- tensors

STORAGES = {
    "torch.BoolStorage": torch.bool,
    "torch.ByteStorage": torch.uint8,
    "torch.CharStorage": torch.int8,
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.IntStorage": torch.int32,
    "torch.LongStorage": torch.int64,
    "torch.ShortStorage": torch.int16,
}
STORAGE_NAMES = Allowlist(
    Allowed(name, "a type of tensors", constant=dtype) for name, dtype in STORAGES.items()
)
SIZE_BYTES = 8  # of the number of items before them


@dataclass(frozen=True)
class Storage:
    """The numbers of tensors."""

    numbers: torch.Tensor


class StorageUnpickler(Unpickler):
    """Reads the parts in front of a storage's numbers."""

    def persistent_load(self, pid: Any) -> Any:
        """Return the type of the numbers, of all that is said about the storage."""
        _, dtype, _, _, _, _ = pid
        if not isinstance(dtype, torch.dtype):
            raise self.refusal("a storage of another type")
        return dtype


def storage_from(content: bytes) -> Storage:
    """Return the storage in its pickled form, which is a file of PyTorch's older format."""
    stream = io.BytesIO(content)
    read = partial(_part_of_storage, stream)
    for _ in ("magic number", "version", "machine"):
        read()
    dtype = read()
    read()  # the key of the storage
    stream.read(SIZE_BYTES)
    data = stream.read()
    if not data:
        return Storage(torch.empty(0, dtype=dtype))
    return Storage(torch.frombuffer(bytearray(data), dtype=dtype).clone())


def _part_of_storage(stream: io.BytesIO) -> Any:
    return StorageUnpickler(stream, STORAGE_NAMES, "a storage").load()


def tensor_of(
    storage: Storage,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    *hooks: Any,
) -> torch.Tensor:
    """Return a tensor, whose numbers have to be in the storage."""
    view = storage.numbers.as_strided(size, stride, offset)
    tensor = torch.empty(0, dtype=view.dtype).set_(view)
    return tensor.requires_grad_(bool(requires_grad))
