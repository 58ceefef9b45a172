"""Lets FATE unpickle tables and other parties' messages with the allowlist alone."""

import copyreg
import io
import pickle
from enum import Enum
from typing import Any

from fate.arch.computing.serdes import _restricted_serdes, _unrestricted_serdes
from fate.arch.federation.api import _serdes

from fatevendor.allowlist import REFERENCES, allowlist
from fatevendor.unpickling import Unpickler

ALLOWLIST = allowlist()
TABLE_VALUE = "a value of a table"  # of any party, as workers join tables


class MessageUnpickler(Unpickler):
    """Reads a message of another party, as FATE's own class does."""

    def __init__(
        self,
        ctx: Any,
        federation: Any,
        name: str,
        tag: str,
        party: tuple[str, str],
        file: io.BytesIO,
    ) -> None:
        super().__init__(file, ALLOWLIST, f"a message of {' '.join(party)}")
        # FATE's references read these.
        self._ctx = ctx
        self._federation = federation
        self._tag = tag
        self._party = party

    def persistent_load(self, pid: Any) -> Any:
        """Return the table, tensor or context to which the message refers."""
        if type(pid) not in REFERENCES:
            raise self.refusal("a reference")
        return pid.load(self)


class HasNames(Exception):
    """A value contains the name of a class or function."""


class PlainUnpickler(pickle.Unpickler):
    """Reads a value without any names, which is most of them, in C. Raises `HasNames`."""

    def find_class(self, module: str, name: str) -> Any:
        """Leave the value to another unpickler."""
        raise HasNames


class Serdes:
    """Pickles and unpickles the keys and values of FATE's tables.

    FATE's main process sends this class by its name to workers.
    """

    @staticmethod
    def serialize(value: Any) -> bytes:
        """Pickle a value."""
        return pickle.dumps(value)

    @staticmethod
    def deserialize(data: bytes) -> Any:
        """Unpickle a value. Raises `ValueRefused`."""
        try:
            return PlainUnpickler(io.BytesIO(data)).load()
        except HasNames:
            return Unpickler(io.BytesIO(data), ALLOWLIST, TABLE_VALUE).load()


def get_serdes() -> type[Serdes]:
    """Return the class for FATE's tables."""
    return Serdes


def restrict() -> None:
    """Let this process of FATE unpickle with the list alone, whatever FATE's settings are."""
    pickle_enums_by_value()
    _restricted_serdes.get_restricted_serdes = get_serdes
    _unrestricted_serdes.get_unrestricted_serdes = get_serdes
    _serdes.TableRemotePersistentUnpickler = MessageUnpickler


def pickle_enums_by_value() -> None:
    """Let FATE pickle members of its enumerations by their values.

    Python 3.11.2, as in Debian, pickles a call of `getattr` instead, which the list does not have.
    """
    for kind in Enum.__subclasses__():
        if kind.__module__.startswith("fate."):
            copyreg.pickle(kind, class_and_value)


def class_and_value(member: Enum) -> tuple[type[Enum], tuple[Any]]:
    """Return what a member of an enumeration is made from."""
    return type(member), (member.value,)
