"""What FATE's wrapper unpickles: values with listed names alone, used as the list says."""

import functools
import io
import operator
import os
import pickle
from collections import OrderedDict
from pathlib import Path

import pytest

from examples.fate_vendor.fatevendor.unpickling import (
    Allowed,
    Allowlist,
    Unpickler,
    ValueRefused,
    set_attributes,
)


class Key:
    """A class whose instances are allowed."""

    def encrypt(self):
        return "encrypted"


KEY = f"{__name__}.Key"
ALLOWLIST = Allowlist(
    [
        Allowed("collections.OrderedDict", "a call", call=OrderedDict),
        Allowed(
            KEY,
            "instances",
            new=Key,
            states=(Key,),
            set_state=set_attributes,
        ),
        Allowed("numpy.float64", "a constant", constant="a type"),
    ]
)


def unpickle(data):
    """Return the value in pickled bytes, if it is allowed."""
    return Unpickler(io.BytesIO(data), ALLOWLIST, "a message of host 10000").load()


def key(**attributes):
    """Return an allowed instance with attributes."""
    instance = Key()
    instance.__dict__.update(attributes)
    return instance


class Calls:
    """Pickled as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


# ---------------------------------------------------------------- values of FATE


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, 255, 256, -1, 2**70, 0.5, True],
        list(b"K0K1K" * 20_000),  # the form of a ciphertext
        [[1, 2], [3], 4, "K5", b"K6"],
        [f"id_{number}" for number in range(20_000)],
        ["a", "a" * 255, "a" * 256, "值", "\ud800", "", "a"],
        {"a": (1, 2, 3, 4), "b": {"c": [b"x" * 70_000, "值"]}},
        [{1, 2}, frozenset([3])],
        OrderedDict(a=1),
    ],
)
def test_ordinary_values_are_read_as_python_reads_them(value):
    assert unpickle(pickle.dumps(value)) == value


def test_an_allowed_instance_gets_its_attributes():
    read = unpickle(pickle.dumps(key(size=3, parts=[key(size=4)])))
    assert type(read) is Key
    assert (read.size, read.parts[0].size) == (3, 4)


# ---------------------------------------------------------------- attacks

COMMAND = "touch marker"


def global_of(module, name):
    """Return the operation of pickle that pushes a class or function."""
    return f"c{module}\n{name}\n".encode()


def pushed(value):
    """Return the operations that push a plain value."""
    return pickle.dumps(value, protocol=2)[2:-1]


RUNS_A_COMMAND = Calls(os.system, COMMAND)
PICKLED = {
    "a function": RUNS_A_COMMAND,
    "a function inside": OrderedDict(a=[key(size={"b": RUNS_A_COMMAND})]),
    "code": Calls(eval, f"__import__('os').system({COMMAND!r})"),
    "a chain": Calls(getattr, Calls(__import__, "os"), "system"),
    "a function of operator": operator.methodcaller("system", COMMAND),
    "a partial function": functools.partial(os.system, COMMAND),
}
A_KEY = global_of(__name__, "Key")
AN_INSTANCE = A_KEY + pickle.EMPTY_TUPLE + pickle.NEWOBJ
A_CALL = global_of("collections", "OrderedDict")
A_CONSTANT = global_of("numpy", "float64")
A_STATE = pushed({"size": 1})
OPERATIONS = {
    "a function by an older protocol": [
        pickle.dumps(RUNS_A_COMMAND, protocol=0),
    ],
    "another name of an allowed module": [
        global_of("collections", "namedtuple"),
    ],
    "a name with dots": [
        global_of("collections", "_sys.modules"),
    ],
    "a longer name": [
        global_of("collections.OrderedDict", "fromkeys"),
    ],
    "a name from the memo": [
        pushed("system"),
        pickle.BINPUT,
        b"\x01",
        pushed("posix"),
        pickle.BINGET,
        b"\x01",
        pickle.STACK_GLOBAL,
    ],
    "a call of a class": [
        A_KEY,
        pickle.EMPTY_TUPLE,
        pickle.REDUCE,
    ],
    "a call of a constant": [
        A_CONSTANT,
        pickle.EMPTY_TUPLE,
        pickle.REDUCE,
    ],
    "a call of a text": [
        pushed(COMMAND),
        pickle.EMPTY_TUPLE,
        pickle.REDUCE,
    ],
    "a call with wrong arguments": [
        A_CALL,
        pushed((1,)),
        pickle.REDUCE,
    ],
    "an instance with arguments": [
        A_KEY,
        pushed((1,)),
        pickle.NEWOBJ,
    ],
    "an instance with keywords": [
        A_KEY,
        pickle.EMPTY_TUPLE,
        pickle.EMPTY_DICT,
        pickle.NEWOBJ_EX,
    ],
    "an instance of a function": [
        A_CALL,
        pickle.EMPTY_TUPLE,
        pickle.NEWOBJ,
    ],
    "an old operation with a call": [
        pickle.MARK,
        pushed(COMMAND),
        pickle.INST,
        b"posix\nsystem\n",
    ],
    "another old operation with a call": [
        pickle.MARK,
        A_KEY,
        pickle.OBJ,
    ],
    "the number of a class": [
        pickle.EXT1,
        b"\x01",
    ],
    "a state of a class": [
        A_KEY,
        A_STATE,
        pickle.BUILD,
    ],
    "a state of a list": [
        pickle.EMPTY_LIST,
        A_STATE,
        pickle.BUILD,
    ],
    "a state in place of a method": [
        AN_INSTANCE,
        pushed({"encrypt": 1}),
        pickle.BUILD,
    ],
    "a state of another form": [
        AN_INSTANCE,
        pushed((None, {"size": 1})),
        pickle.BUILD,
    ],
    "an item of an instance": [
        AN_INSTANCE,
        pushed("a"),
        pushed(1),
        pickle.SETITEM,
    ],
    "items of an instance": [
        AN_INSTANCE,
        pickle.MARK,
        pushed(1),
        pickle.APPENDS,
    ],
    "a reference": [
        pushed("table"),
        pickle.BINPERSID,
    ],
    "a reference as text": [
        pickle.PERSID,
        b"table\n",
    ],
    "a text without its end": [
        pickle.FRAME,
        b"\x03\0\0\0\0\0\0\0",
        pickle.SHORT_BINUNICODE,
        b"\x09a",
    ],
}
ATTACKS = {name: pickle.dumps(value) for name, value in PICKLED.items()}
for name, operations in OPERATIONS.items():
    ATTACKS[name] = b"".join([*operations, pickle.STOP])


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_not_listed_is_refused_and_not_run(attack, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueRefused, match=r"^a message of host 10000 is refused: .* not allowed$"):
        unpickle(ATTACKS[attack])
    assert not Path("marker").exists()


def test_the_error_names_the_class_in_a_short_line():
    data = global_of("posix", "system\x1b[31m" + "a" * 1000) + pickle.STOP
    with pytest.raises(ValueRefused) as error:
        unpickle(data)
    assert r"'posix.system\x1b[31maaa" in str(error.value)
    assert len(str(error.value)) < 200


def test_python_itself_would_run_the_command(tmp_path, monkeypatch):
    """The attack is one."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(ATTACKS["a function"])
    assert Path("marker").exists()
