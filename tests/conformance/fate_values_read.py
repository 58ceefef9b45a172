"""Reads values as a FATE process of the wrapper does, in `.venv-fate`.

It prints JSON: ordinary values that differ from Python's results, and the outcome of each attack.
"""

import json
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy
import pandas
import torch
from fate.arch.dataframe.manager.block_manager import BlockType, Int32Block
from fate.arch.dataframe.manager.schema_manager import Schema
from fate.arch.federation.api import _serdes
from fate.arch.tensor.phe._keypair import PHETensorEncryptor
from fate.arch.unify import device
from fate_utils import paillier
from fatevendor.fate_values import Serdes
from fatevendor.unpickling import ValueRefused

# ---------------------------------------------------------------- ordinary values


def ordinary_values() -> list[Any]:
    """Return values as FATE's components have them in tables."""
    _, public_key, coder = paillier.keygen(1024)
    numbers = coder.encode_f64_vec(numpy.arange(3.0))
    ids = pandas.Index([f"id_{number}" for number in range(20_000)], name="id")
    a_tensor = torch.arange(6.0, dtype=torch.float64)
    return [
        1,
        ("text", b"bytes", [None, 0.5, {"a": {1, 2}}]),
        a_tensor.reshape(2, 3).T,
        torch.arange(10)[2:5],
        torch.tensor([True, False]),
        torch.zeros(0),
        torch.Size([2, 3]),
        torch.device("cpu"),
        torch.int32,
        numpy.arange(6.0).reshape(2, 3).T,
        numpy.array(["text", None, 1], dtype=object),
        numpy.float64(0.5),
        numpy.int32(5),
        ids,
        pandas.Index([3, 4]),
        device.CPU,
        BlockType.float64,
        Schema(
            match_id_name="id",
            columns=["x", "值", "l" * 300],
        ),
        Int32Block([0, 1]),
        public_key,
        public_key.encrypt_encoded(numbers, False),
    ]


def is_read_as_python_reads_it(value: Any) -> bool:
    """Return whether the value is the same as by Python's unpickler."""
    data = pickle.dumps(value)
    read = Serdes.deserialize(data)
    expected = pickle.loads(data)
    if isinstance(value, torch.Tensor):
        same = torch.equal(read, expected) and read.stride() == expected.stride()
        return same and read.dtype == expected.dtype
    return type(read) is type(expected) and pickle.dumps(read) == pickle.dumps(expected)


# ---------------------------------------------------------------- attacks


class Call:
    """Pickled as the call of a function, and perhaps a state for the result."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self.parts = (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.parts


def instance_with(instance: Any, **attributes: Any) -> Any:
    """Return an instance with attributes that its class would not set."""
    instance.__dict__.update(attributes)
    return instance


def array_of(dtype: Any, items: Any) -> Call:
    """Return an array of one item, with any state."""
    state = (1, (1,), dtype, False, items)
    return Call(numpy.core.multiarray._reconstruct, numpy.ndarray, (0,), b"b", state=state)


def tensor_of(content: bytes, size: int = 1, state: Any = None) -> Call:
    """Return a tensor with these bytes for its numbers, which PyTorch unpickles by themselves."""
    storage = Call(torch.storage._load_from_bytes, content)
    hooks: dict[str, Any] = {}
    return Call(
        torch._utils._rebuild_tensor_v2,
        *(storage, 0, (size,), (1,), False, hooks),
        state=state,
    )


def bytes_of_tensor(tensor: torch.Tensor) -> bytes:
    """Return what PyTorch pickles for a tensor's numbers."""
    _, (storage, *_) = tensor.__reduce_ex__(4)[:2]
    _, (content,) = storage.__reduce__()
    return content


def operations(value: Any) -> bytes:
    """Return the pickled operations that make a value, for a part of another."""
    return pickle.dumps(value, protocol=3)[2:-1]


FLAGS_OF_NUMBERS = (3, "|", None, None, None, -1, -1, 0)
NO_OBJECTS = Call(numpy.dtype, "O8", False, True, state=FLAGS_OF_NUMBERS)
RUNS_A_COMMAND = Call(os.system, "touch marker")
HOSTILE = pickle.dumps(RUNS_A_COMMAND)
ZERO = bytes_of_tensor(torch.zeros(1))
A_STATE = operations((1, (1,), numpy.dtype("i8"), False, b"A" * 8))
ATTACKS = {
    "a function": RUNS_A_COMMAND,
    "a function in an array": numpy.array(
        [RUNS_A_COMMAND],
        dtype=object,
    ),
    "a function in an index": pandas.Index([RUNS_A_COMMAND]),
    "a function in a block": instance_with(
        Int32Block([0]),
        _field_indexes=[RUNS_A_COMMAND],
    ),
    "a function as a tensor's numbers": tensor_of(HOSTILE),
    "a function before a tensor's numbers": tensor_of(
        HOSTILE + ZERO,
    ),
    "a function of FATE's": Call(
        _serdes.logging.getLogger,
        "name",
    ),
    "addresses as objects": array_of(
        NO_OBJECTS,
        b"A" * 8,
    ),
    "bytes as objects": array_of(
        numpy.dtype("O"),
        b"A" * 8,
    ),
    "too few bytes": array_of(
        numpy.dtype("i8"),
        b"A",
    ),
    "texts of a fixed length": numpy.array(
        ["a", "b"],
    ),
    "fields": numpy.zeros(
        1,
        dtype=[("a", "O")],
    ),
    "a tensor beyond its numbers": tensor_of(
        ZERO,
        size=1000,
    ),
    "a state of a tensor": tensor_of(
        ZERO,
        state={"data": 1},
    ),
    "a state of a member": Call(
        device,
        device.CPU.value,
        state={"type": "cuda"},
    ),
    "another method": instance_with(
        Int32Block([0]),
        convert_block=1,
    ),
    "no encryption": instance_with(
        PHETensorEncryptor(None, None, None), encrypt_tensor=torch.Size([1])
    ),
}
ATTACKS_IN_BYTES = {
    "a second state of an array": b"".join(
        [
            operations(numpy.arange(3)),
            A_STATE,
            pickle.BUILD,
            pickle.STOP,
        ]
    ),
    "a broken key": b"".join(
        [
            b"cfate_utils.paillier\nPK\n",
            pickle.EMPTY_TUPLE,
            pickle.NEWOBJ,
            operations([1, 2]),
            pickle.BUILD,
            pickle.STOP,
        ]
    ),
}


def outcome(data: bytes) -> str:
    """Return how the reading of an attack ends."""
    try:
        read = Serdes.deserialize(data)
    except ValueRefused as refusal:
        return str(refusal)
    return f"read as {type(read).__name__}"


def main() -> None:
    """Read all values and print the outcomes."""
    different = [
        type(value).__name__ for value in ordinary_values() if not is_read_as_python_reads_it(value)
    ]
    attacks = {name: pickle.dumps(value) for name, value in ATTACKS.items()} | ATTACKS_IN_BYTES
    outcomes = {name: outcome(data) for name, data in attacks.items()}
    json.dump({"different": different, "attacks": outcomes}, sys.stdout)


if __name__ == "__main__":
    main()
