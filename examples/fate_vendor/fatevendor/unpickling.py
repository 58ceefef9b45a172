"""Unpickles values from other parties. Needs nothing but Python.

Python's unpickler calls every function that the bytes name, and lets them replace methods of an
object. This one knows a list of names, and no value gets hold of a class or function: it gets an
`Allowed`, which can be used as the list says.
"""

import io
import pickle
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from .task import TaskFailed

LONGEST_NAME = 100  # characters of a name in an error


class ValueRefused(TaskFailed):
    """A value contains something that is not allowed."""

    def __init__(self, origin: str, what: str) -> None:
        super().__init__(origin, what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.args[0]} is refused: {self.what} is not allowed"


@dataclass(frozen=True, eq=False)
class Allowed:
    """A name in values, and the operations that are allowed with it.

    - ``call``: gets the arguments in the value, and has to check them
    - ``new``: makes an instance without a state
    - ``states``: the classes with ``set_state``, which checks and sets an instance's state
    - ``constant``: put in place of the name; by default, this entry is
    """

    name: str  # with the module
    reason: str
    call: Callable[..., Any] | None = None
    new: Callable[[], Any] | None = None
    states: tuple[type, ...] = ()
    set_state: Callable[[Any, Any], None] | None = None
    constant: Any = None


class Allowlist:
    """The names that values may contain."""

    def __init__(self, entries: Iterable[Allowed]) -> None:
        self._names: dict[str, Allowed] = {}
        self._states: dict[type, Allowed] = {}
        for entry in entries:
            self._names[entry.name] = entry
            for kind in entry.states:
                self._states[kind] = entry

    def named(self, name: str) -> Allowed | None:
        """Return the entry of a name, if it is allowed."""
        return self._names.get(name)

    def of_instance(self, instance: Any) -> Allowed | None:
        """Return the entry that sets states of an instance, if there is one."""
        return self._states.get(type(instance))


# Numbers, texts, bytes, containers and references.
PLAIN_OPERATIONS = [
    pickle.PROTO,
    pickle.FRAME,
    pickle.STOP,
    pickle.MEMOIZE,
    pickle.BINPUT,
    pickle.LONG_BINPUT,
    pickle.BINGET,
    pickle.LONG_BINGET,
    pickle.MARK,
    pickle.POP,
    pickle.POP_MARK,
    pickle.NONE,
    pickle.NEWTRUE,
    pickle.NEWFALSE,
    pickle.BININT,
    pickle.BININT2,
    pickle.LONG1,
    pickle.LONG4,
    pickle.BINFLOAT,
    pickle.BINUNICODE,
    pickle.BINUNICODE8,
    pickle.SHORT_BINBYTES,
    pickle.BINBYTES,
    pickle.BINBYTES8,
    pickle.EMPTY_TUPLE,
    pickle.TUPLE,
    pickle.TUPLE1,
    pickle.TUPLE2,
    pickle.TUPLE3,
    pickle.EMPTY_LIST,
    pickle.EMPTY_DICT,
    pickle.EMPTY_SET,
    pickle.FROZENSET,
    pickle.BINPERSID,
    pickle.GLOBAL,
    pickle.STACK_GLOBAL,
]
SMALL_INTEGERS = re.compile(rb"(?:K.)+", re.DOTALL)  # some of `pickle.BININT1` in a row


def plain_operations() -> dict[int, Any]:
    """Return Python's own methods for the plain operations."""
    methods = pickle._Unpickler.dispatch
    return {code: methods[code] for (code,) in PLAIN_OPERATIONS}


class Unpickler(pickle._Unpickler):  # in Python, as the operations of the one in C are fixed
    """Reads one value. Raises `ValueRefused`.

    ``origin`` describes the value in the error, such as ``a message of host 10000``.
    """

    def __init__(
        self,
        stream: io.BytesIO,
        allowlist: Allowlist,
        origin: str,
    ) -> None:
        super().__init__(stream)
        self._allowlist = allowlist
        self._origin = origin

    def refusal(self, what: str) -> ValueRefused:
        """Return the error for a value that contains something not allowed."""
        return ValueRefused(self._origin, what)

    def find_class(self, module: str, name: str) -> Any:
        """Return the entry of a name, or its constant."""
        full_name = f"{module}.{name}"
        entry = self._allowlist.named(full_name)
        if entry is None:
            raise self.refusal(ascii(full_name)[:LONGEST_NAME])
        if entry.constant is None:
            return entry
        return entry.constant

    def persistent_load(self, pid: Any) -> Any:
        """Refuse a reference to something outside of the value."""
        raise self.refusal("a reference")

    def refuse_operation(self) -> None:
        """Refuse an operation that FATE's values do not contain."""
        raise self.refusal("an operation of pickle")

    def load_small_integers(self) -> None:
        """Read a row of small integers in one step, as ciphertexts are long lists of bytes."""
        self.append(self.read(1)[0])
        frame = self._unframer.current_frame
        if frame is None:
            return
        row = SMALL_INTEGERS.match(frame.getvalue(), frame.tell())
        if row:
            self.stack.extend(row[0][1::2])
            frame.seek(row.end())

    def load_short_texts(self) -> None:
        """Read a row of short texts in one step, as there is one for each row of a table."""
        frame = self._unframer.current_frame
        if frame is None:
            super().load_short_binunicode()
            return
        content = frame.getvalue()
        end = frame.tell()
        while True:
            start = end + 1
            end = start + content[end]
            if end > len(content):
                raise self.refusal("a text without its end")
            text = str(content[start:end], "utf-8", "surrogatepass")
            self.append(text)
            if content.startswith(pickle.MEMOIZE, end):
                self.memo[len(self.memo)] = text
                end += 1
            if not content.startswith(pickle.SHORT_BINUNICODE, end):
                break
            end += 1
        frame.seek(end)

    def load_reduce(self) -> None:
        """Call an entry."""
        arguments = self.stack.pop()
        entry = self.stack[-1]
        if not isinstance(entry, Allowed) or entry.call is None:
            raise self.refusal(f"a call of {describe(entry)}")
        self.stack[-1] = self._apply(entry.call, arguments, f"this call of {entry.name}")

    def load_newobj(self) -> None:
        """Make an instance of an entry's class."""
        arguments = self.stack.pop()
        entry = self.stack[-1]
        if not isinstance(entry, Allowed) or entry.new is None or arguments != ():
            raise self.refusal(f"an instance of {describe(entry)}")
        self.stack[-1] = entry.new()

    def load_build(self) -> None:
        """Set the state of an instance."""
        state = self.stack.pop()
        instance = self.stack[-1]
        entry = self._allowlist.of_instance(instance)
        if entry is None:
            raise self.refusal(f"a state of {describe(instance)}")
        what = f"this state of {describe(instance)}"
        self._apply(entry.set_state, (instance, state), what)

    def load_append(self) -> None:
        """Append an item to a list."""
        self._check_container(self.stack[-2], list)
        super().load_append()

    def load_appends(self) -> None:
        """Append items to a list."""
        self._check_container(self.metastack[-1][-1], list)
        super().load_appends()

    def load_setitem(self) -> None:
        """Set an item of a dictionary."""
        self._check_container(self.stack[-3], dict)
        super().load_setitem()

    def load_setitems(self) -> None:
        """Set items of a dictionary."""
        self._check_container(self.metastack[-1][-1], dict)
        super().load_setitems()

    def load_additems(self) -> None:
        """Add items to a set."""
        self._check_container(self.metastack[-1][-1], set)
        super().load_additems()

    def _apply(self, function: Callable[..., Any], arguments: Any, what: str) -> Any:
        """Call a function of an entry; if it raises anything, the value is refused."""
        try:
            return function(*arguments)
        except ValueRefused as error:  # of a value inside
            raise self.refusal(error.what) from error
        except BaseException as error:  # a panic of FATE's library in Rust is no `Exception`
            raise self.refusal(what) from error

    def _check_container(self, container: Any, kind: type) -> None:
        if not isinstance(container, kind):
            raise self.refusal(f"an item of {describe(container)}")

    dispatch: ClassVar[dict[int, Any]] = {
        **dict.fromkeys(range(256), refuse_operation),
        **plain_operations(),
        pickle.BININT1[0]: load_small_integers,
        pickle.SHORT_BINUNICODE[0]: load_short_texts,
        pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_newobj,
        pickle.BUILD[0]: load_build,
        pickle.APPEND[0]: load_append,
        pickle.APPENDS[0]: load_appends,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.ADDITEMS[0]: load_additems,
    }


def describe(value: Any) -> str:
    """Return the name of an entry, or of the class of another value."""
    if isinstance(value, Allowed):
        return value.name
    return type(value).__name__


def set_attributes(instance: Any, state: Any) -> None:
    """Set the attributes of an instance. Raises `ValueError` if one has the name of a method."""
    for name in state:
        if callable(getattr(type(instance), name, None)):
            raise ValueError(f"{name} is a method")
    instance.__dict__.update(state)
