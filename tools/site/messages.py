"""The messages with which the code gives each reason, read from its source."""

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from gateway import errors
from tools.site import ROOT

_PACKAGES = ("gateway", "adapter", "provider_registry", "route_table", "engines")
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_MOST_MESSAGES = 5  # shown for a reason


@dataclass(frozen=True, order=True)
class Message:
    """The form of a message; its values are ⟨named⟩.

    ``status``: the HTTP status of a request that is refused with it; 0 if it is the message of a
    job, a task or a problem of an input.
    """

    text: str
    status: int


@cache
def messages(reasons: frozenset[str]) -> Mapping[str, Sequence[Message]]:
    """Return the messages of each reason, the longest first."""
    nodes = list(_nodes())
    reader = _Reader(reasons, _reasons_of_classes(nodes))
    by_reason: dict[str, set[Message]] = defaultdict(set)
    for node in nodes:
        if isinstance(node, _Function):
            for reason, message in reader.messages_in(node):
                by_reason[reason].add(message)
    shown = {}
    for reason, texts in by_reason.items():
        longest_first = sorted(texts, key=_by_length)
        shown[reason] = longest_first[:_MOST_MESSAGES]
    return shown


def _nodes() -> Iterator[ast.AST]:
    """Yield the nodes of the product's syntax trees."""
    for package in _PACKAGES:
        folder = ROOT / package
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            yield from ast.walk(ast.parse(text))


def _reasons_of_classes(nodes: Iterable[ast.AST]) -> Mapping[str, str]:
    """Return the reason of each class of errors that has one of its own."""
    by_class = {}
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        for statement in node.body:
            if not isinstance(statement, ast.Assign):
                continue
            if _is_reason(statement.targets[0]):
                by_class[node.name] = _text(statement.value)
    return by_class


def _is_reason(target: ast.expr) -> bool:
    """Return whether an assignment sets the attribute ``reason``."""
    return isinstance(target, ast.Name) and target.id == "reason"


def _by_length(message: Message) -> tuple[int, Message]:
    """Sort long messages first."""
    return -len(message.text), message


@dataclass(frozen=True)
class _Reader:
    """Finds the messages in functions.

    ``reasons``: all that are explained to users; ``by_class``: the reason of a class of errors.
    """

    reasons: Collection[str]
    by_class: Mapping[str, str]

    def messages_in(
        self,
        function: _Function,
    ) -> Iterator[tuple[str, Message]]:
        """Yield the reasons and messages of the calls of a function that have both.

        A message is a text of the call, or a variable that a text was assigned to before.
        """
        variables: dict[str, str] = {}
        for node in _in_order(function):
            if isinstance(node, ast.Call):
                yield from self._messages_of_call(node, variables)
                continue
            target = node.targets[0]
            if isinstance(target, ast.Name):
                variables[target.id] = _text(node.value)

    def _messages_of_call(
        self,
        call: ast.Call,
        variables: Mapping[str, str],
    ) -> Iterator[tuple[str, Message]]:
        """Yield the reason and the message of a call; nothing without either."""
        values = list(call.args)
        for keyword in call.keywords:
            values.append(keyword.value)
        texts = []
        for value in values:
            if isinstance(value, ast.Name):
                texts.append(variables.get(value.id, ""))
            else:
                texts.append(_text(value))
        reasons = [text for text in texts if text in self.reasons]
        class_reason = self.by_class.get(_name_of(call.func), "")
        if class_reason in self.reasons:
            reasons.append(class_reason)
        sentences = list(filter(_is_sentence, texts))
        if reasons and sentences:
            message = Message(sentences[0], _status(call))
            yield reasons[0], message


def _in_order(function: _Function) -> Sequence[ast.Assign | ast.Call]:
    """Return the assignments and calls of a function in the order of its text."""
    nodes = []
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.Call):
            nodes.append(node)
    return sorted(nodes, key=_place)


def _place(node: ast.Assign | ast.Call) -> tuple[int, int]:
    """Return where a statement begins: line and column."""
    return node.lineno, node.col_offset


def _is_sentence(text: str) -> bool:
    """Return whether a text can be read alone: several words, and no value before its first."""
    return " " in text and not text.startswith("⟨text⟩")


def _status(call: ast.Call) -> int:
    """Return the HTTP status of the error that a call makes; 0 if it makes none."""
    name = _name_of(call.func)
    error = getattr(errors, name, None)
    if isinstance(error, type) and issubclass(error, errors.GatewayError):
        return error.code
    return 0


def _text(value: ast.expr) -> str:
    """Return a literal text, with ⟨name⟩ for each value in it; empty for other expressions."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if not isinstance(value, ast.JoinedStr):
        return ""
    parts = []
    for part in value.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value))
        elif isinstance(part, ast.FormattedValue):
            parts.append(f"⟨{_name_of(part.value)}⟩")
    return "".join(parts)


def _name_of(value: ast.expr) -> str:
    """Return a word for a value in a message: the last name in its expression."""
    names = []
    for part in ast.walk(value):
        if isinstance(part, ast.Attribute):
            names.append(part.attr.strip("_"))
        if isinstance(part, ast.Name):
            names.append(part.id.strip("_"))
    if isinstance(value, ast.Attribute | ast.Name):
        return names[0]
    return (names or ["value"])[-1]
