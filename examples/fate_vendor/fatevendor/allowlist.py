"""The names that FATE's components pickle, in messages or in tables of their own, with the reasons.

They were collected from runs of every component in all its stages.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import torch
from fate.arch.dataframe import DataFrame
from fate.arch.dataframe.manager import block_manager, data_manager, schema_manager
from fate.arch.federation.api import _serdes, _table_meta
from fate.arch.histogram import _histogram_distributed, _histogram_splits
from fate.arch.histogram.values import _cipher, _plain, _values
from fate.arch.protocol.phe import ou, paillier
from fate.arch.tensor.distributed import _tensor as distributed
from fate.arch.tensor.inside import _op_quantile
from fate.arch.tensor.phe import _keypair, _tensor
from fate.arch.unify import _infra_def
from fate.ml.ensemble.learner.decision_tree.tree_core import decision_tree
from fate_utils import ou as ou_numbers
from fate_utils import paillier as paillier_numbers
from fate_utils import quantile

from fatevendor import array_values
from fatevendor.unpickling import Allowed, Allowlist, set_attributes

# References of a message to something outside of its pickled part.
REFERENCES = {
    _serdes._ContextPersistentId: "the receiver's own context",
    _serdes._NumpySafeTensorPersistentId: "the bytes of an array",
    _serdes._TablePersistentId: "a table, which has messages of its own",
    _serdes._TorchSafeTensorPersistentId: "the bytes of a tensor",
}
# Classes of FATE's in Python.
INSTANCES = {
    **REFERENCES,
    block_manager.BlockManager: "which columns of a table are together",
    block_manager.BoolBlock: "columns of a type",
    block_manager.Float32Block: "columns of a type",
    block_manager.Float64Block: "columns of a type",
    block_manager.IndexBlock: "ids",
    block_manager.Int32Block: "columns of a type",
    block_manager.Int64Block: "columns of a type",
    block_manager.NPObjectBlock: "columns of texts",
    block_manager.PHETensorBlock: "encrypted columns",
    data_manager.DataManager: "the columns of a table",
    schema_manager.Schema: "the columns' names",
    schema_manager.SchemaManager: "the columns' names",
    DataFrame: "a table, such as the gradients of boosting",
    _table_meta.TableMeta: "the number of a table's parts, and the form of its values",
    _histogram_splits.HistogramSplits: "boosting and binning: possible splits",
    _cipher.HistogramEncryptedValues: "boosting and binning: encrypted sums",
    _plain.HistogramPlainValues: "boosting and binning: sums",
    _values.HistogramValuesContainer: "boosting and binning: several sums",
    ou.Coder: "OU: turns numbers into integers",
    ou.PK: "OU: a public key",
    paillier.Coder: "Paillier: turns numbers into integers",
    paillier.PK: "Paillier: a public key",
    distributed.DTensor: "a tensor in parts",
    distributed.Shardings: "the parts of a tensor",
    distributed._ShardingShapes: "the shapes of its parts",
    _op_quantile.GKSummary: "binning: quantiles",
    _keypair.PHETensorCoder: "turns tensors into integers",
    _keypair.PHETensorEncryptor: "the arbiter's public key",
    _tensor.PHETensor: "an encrypted tensor",
    _tensor.PHETensorEncoded: "a tensor of integers",
    decision_tree.Node: "boosting: a node of a tree",
}
# Classes of FATE's with a check of states: one in Python, the others in Rust.
OWN_STATES = {
    _histogram_distributed.DistributedHistogram: "boosting and binning: a histogram",
    ou_numbers.CiphertextVector: "OU: encrypted numbers",
    ou_numbers.Coder: "OU: turns numbers into integers",
    ou_numbers.PK: "OU: a public key",
    ou_numbers.PlaintextVector: "OU: integers",
    paillier_numbers.CiphertextVector: "Paillier: encrypted numbers",
    paillier_numbers.Coder: "Paillier: turns numbers into integers",
    paillier_numbers.PK: "Paillier: a public key",
    paillier_numbers.PlaintextVector: "Paillier: integers",
    quantile.QuantileSummaryStream: "binning: quantiles",
}
# Enumerations.
MEMBERS = {
    block_manager.BlockType: "the type of columns",
    _infra_def.device: "where a tensor is",
}
# Functions and classes of libraries.
CALLS: dict[str, tuple[Callable[..., Any], str]] = {
    "collections.OrderedDict": (OrderedDict, "the hooks of a tensor, always none"),
    "numpy.core.multiarray._reconstruct": (array_values.empty_array, "an array"),
    "numpy.core.multiarray.scalar": (array_values.scalar, "a number"),
    "pandas.core.indexes.base._new_Index": (array_values.index_of, "ids, and columns' names"),
    "torch.Size": (torch.Size, "the shape of a tensor"),
    "torch._utils._rebuild_tensor_v2": (array_values.tensor_of, "a tensor"),
    "torch.device": (torch.device, "where a tensor is"),
    "torch.storage._load_from_bytes": (array_values.storage_from, "the numbers of a tensor"),
}
CONSTANTS = {
    "fate.arch.protocol.phe.ou.evaluator": (ou.evaluator, "OU: adds encrypted numbers"),
    "fate.arch.protocol.phe.paillier.evaluator": (paillier.evaluator, "Paillier: the same"),
    "torch.bool": (torch.bool, "the type of a tensor"),
    "torch.float32": (torch.float32, "the type of a tensor"),
    "torch.float64": (torch.float64, "the type of a tensor"),
    "torch.int32": (torch.int32, "the type of a tensor"),
    "torch.int64": (torch.int64, "the type of a tensor"),
}
ARRAYS = [
    Allowed(
        "numpy.dtype",
        "the type of an array",
        call=array_values.dtype_named,
        states=tuple(type(dtype) for dtype in array_values.DTYPES.values()),
        set_state=array_values.check_dtype,
    ),
    Allowed(
        "numpy.ndarray",
        "the class of an array",
        states=(numpy.ndarray,),
        set_state=array_values.fill_array,
    ),
    Allowed("pandas.core.indexes.base.Index", "the class of ids, and of columns' names"),
]


def allowlist() -> Allowlist:
    """Return the whole list."""
    entries = list(ARRAYS)
    for kind, reason in INSTANCES.items():
        new = partial(object.__new__, kind)
        entries.append(instances(kind, reason, new, set_attributes))
    for kind, reason in OWN_STATES.items():
        new = partial(kind.__new__, kind)
        entries.append(instances(kind, reason, new, kind.__setstate__))
    for kind, reason in MEMBERS.items():
        entries.append(Allowed(full_name(kind), reason, call=kind))
    for name, (function, reason) in CALLS.items():
        entries.append(Allowed(name, reason, call=function))
    for name, (value, reason) in CONSTANTS.items():
        entries.append(Allowed(name, reason, constant=value))
    return Allowlist(entries)


def instances(
    kind: type,
    reason: str,
    new: Callable[[], Any],
    set_state: Callable[[Any, Any], None],
) -> Allowed:
    """Allow instances of a class."""
    return Allowed(full_name(kind), reason, new=new, states=(kind,), set_state=set_state)


def full_name(kind: type) -> str:
    """Return the name of a class, with its module."""
    return f"{kind.__module__}.{kind.__qualname__}"
