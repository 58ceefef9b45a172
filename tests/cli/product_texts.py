"""Collects the texts in the product's code, for the checks of their translations.

A value within a text is written as a 9: the text of ``f"{count} files"`` is ``9 files``.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gateway.domain.events import NAME_OF
from gateway.domain.scheduling import messages
from gateway.domain.states import JOB, RUN, TASK, Outcome
from tests.e2e.nodes import ROOT

# Packages, separated by spaces.
PRODUCT = "gateway adapter engines provider_registry route_table"

Function = ast.FunctionDef | ast.AsyncFunctionDef

WORD = re.compile("[a-z]{2,}")
MAX_FORMS = 16  # forms of one text; further ones differ in values only

LOG_METHODS = {"debug", "info", "warning", "error", "exception"}
# Keyword arguments of endpoints; a test of their translations has them from the endpoints.
ENDPOINT_TEXTS = ("description", "summary")
# Folders with texts of clauses and endpoints, which are collected from the running product.
COLLECTED_ELSEWHERE = ("conformance", "management")

# Names of timeline events, with the states to put in place of the braces.
STATE_EVENTS = {
    "job {}": JOB,
    "job {} here": JOB,
    "task {}": TASK,
    "run {}": RUN,
}
FURTHER_EVENTS = {"closing failed", "removing failed", "stopping failed"}
NEVER_REACHED = {"run WAITING", "task PENDING"}  # states in which a run or task only begins
REQUEST_RESULTS = ("accepted", "refused", "not answered")
# The position of the event's name among a function's arguments.
EVENT_POSITION = {
    "with_note": 1,
    "Note": 1,
    "_conclude": 1,
}
# Variables with the name of an event.
EVENT_VARIABLES = ("event", "CALLED", "STUCK")


# ---------------------------------------------------------------- modules


@cache
def parse_modules(packages: str) -> list[ast.Module]:
    """Return the parsed modules of some packages."""
    modules = []
    for package in packages.split():
        for file in sorted((ROOT / package).rglob("*.py")):
            modules.append(parse_module(file))
    return modules


@cache
def parse_module(file: Path) -> ast.Module:
    """Return a parsed module."""
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes_in(scope: ast.AST) -> tuple[ast.AST, ...]:
    """Return a module or a function with all nodes in it."""
    return tuple(ast.walk(scope))


def functions_in(module: ast.AST) -> list[Function]:
    """Return the functions and methods of a module."""
    return [node for node in nodes_in(module) if isinstance(node, Function)]


def single_assignments(scope: ast.AST) -> dict[str, ast.expr]:
    """Return the values of the variables that are assigned only once in a scope."""
    assignments: Counter[str] = Counter()
    values = {}
    for node in nodes_in(scope):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            assignments[node.id] += 1
        if isinstance(node, ast.Assign):
            values[ast.unparse(node.targets[0])] = node.value
    return {name: value for name, value in values.items() if assignments[name] == 1}


# ---------------------------------------------------------------- arguments of calls


@dataclass(frozen=True)
class CallSite:
    """A call in the code, with the values of the variables of its function."""

    function: str
    call: ast.Call
    variables: Mapping[str, list[ast.expr]]

    def argument(
        self,
        position: int,
    ) -> list[ast.expr]:
        """Return the expressions that one argument may be; [] if the call has fewer arguments."""
        if len(self.call.args) <= position:
            return []
        argument = self.call.args[position]
        if isinstance(argument, ast.Name):
            return self.variables.get(argument.id, [])
        return [argument]


@cache
def call_sites(packages: str) -> list[CallSite]:
    """Return the calls in some packages."""
    sites = []
    for module in parse_modules(packages):
        sites += _call_sites_in(module, {})
        for function in functions_in(module):
            sites += _call_sites_in(function, _assigned_values(function))
    return sites


def _call_sites_in(
    scope: ast.AST,
    variables: Mapping[str, list[ast.expr]],
) -> list[CallSite]:
    """Return the calls in a scope."""
    sites = []
    for node in nodes_in(scope):
        if isinstance(node, ast.Call):
            sites.append(CallSite(called_name(node), node, variables))
    return sites


def called_name(call: ast.Call) -> str:
    """Return the name of the function or method that is called; "" if it has none."""
    return getattr(
        call.func,
        "id",
        getattr(call.func, "attr", ""),
    )


def _assigned_values(function: Function) -> dict[str, list[ast.expr]]:
    """Return all values of a function's variables, by name."""
    values: dict[str, list[ast.expr]] = {}
    for node in nodes_in(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values.setdefault(node.targets[0].id, []).append(node.value)
    return values


@dataclass(frozen=True)
class TextSource:
    """An argument of some functions that is a text for people."""

    packages: str
    functions: frozenset[str]
    position: int
    # shorter texts are not for people, or consist of values
    min_words: int

    def texts(self) -> list[str]:
        """Return the texts in the code, including values of a variable of the calling function."""
        texts: list[str] = []
        for site in call_sites(self.packages):
            if site.function not in self.functions:
                continue
            for expression in site.argument(self.position):
                texts += _conditional_texts(expression)
        return [text for text in dict.fromkeys(texts) if count_words(text) >= self.min_words]


def source(
    packages: str,
    functions: Iterable[str],
    position: int,
    min_words: int,
) -> TextSource:
    """Return an argument of some functions as a source of texts."""
    return TextSource(packages, frozenset(functions), position, min_words)


def count_words(text: str) -> int:
    """Return the number of words of at least two letters."""
    return len(WORD.findall(text))


def _conditional_texts(expression: ast.expr) -> Iterator[str]:
    """Yield the text of an expression, or both texts of a conditional one."""
    if isinstance(expression, ast.IfExp):
        yield text_of(expression.body)
        yield text_of(expression.orelse)
    else:
        yield text_of(expression)


def text_of(expression: ast.expr) -> str:
    """Return the text of an expression."""
    parts = [expression]
    if isinstance(expression, ast.JoinedStr):
        parts = expression.values
    text = ""
    for part in parts:
        if isinstance(part, ast.Constant):
            text += str(part.value)
        else:
            text += "9"
    return text


# ---------------------------------------------------------------- rules


def rule_variables(
    packages: str,
    min_words: int,
) -> Iterator[str]:
    """Yield the texts in variables ``rule``, which become part of a problem later."""
    for module in parse_modules(packages):
        for node in nodes_in(module):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "rule":
                text = text_of(node.value)
                if count_words(text) >= min_words:
                    yield text


def texts_with_must() -> set[str]:
    """Return the product's texts that begin with ``must``."""
    rules = set()
    for module in parse_modules(PRODUCT):
        parts: set[int] = set()
        for node in nodes_in(module):
            if isinstance(node, ast.JoinedStr):
                parts |= {id(part) for part in node.values}
        for node in nodes_in(module):
            if not isinstance(node, ast.expr) or id(node) in parts:
                continue
            text = text_of(node).replace("{}", "9")
            if text.startswith("must "):
                rules.add(text)
    return rules


# ---------------------------------------------------------------- texts within texts


def value_texts(
    value: ast.expr,
    names: Mapping[str, ast.expr],
) -> list[str]:
    """Return the texts that a value may be; [] if the code does not say.

    ``names`` has the values of variables.
    """
    match value:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr():
            texts = ""
            for part in value.values:
                texts += (value_texts(part, names) or [text_of(part)])[-1]
            return [texts]
        case ast.FormattedValue():
            return value_texts(value.value, names)
        case ast.IfExp():
            return [*value_texts(value.body, names), *value_texts(value.orelse, names)]
        case ast.BoolOp(op=ast.Or()):
            return value_texts(value.values[-1], names)
        case ast.Call(
            func=ast.Name(id="counted"), args=[_, ast.Constant(value=str(singular)), *rest]
        ):
            plural = f"{singular}s"
            if rest:
                plural = ast.literal_eval(rest[0])
            return [f"1 {singular}", f"9 {plural}"]
        case ast.Name(id=name) if name in names:
            return value_texts(names[name], _without(names, name))
    return []


def _without(
    names: Mapping[str, ast.expr],
    name: str,
) -> dict[str, ast.expr]:
    """Return the names without one, so that a variable in its own value ends the search."""
    return {key: value for key, value in names.items() if key != name}


def texts_with_phrases(packages: str) -> Iterator[tuple[str, str]]:
    """Yield each text in which a value is a text of the code too, and the inner text.

    Further values are a 9, or left out if they may be empty.
    """
    for module in parse_modules(packages):
        for function in nodes_in(module):
            if not isinstance(function, ast.FunctionDef):
                continue
            names = single_assignments(function)
            for node in nodes_in(function):
                if isinstance(node, ast.JoinedStr):
                    yield from _with_each_phrase(node, names)


def _with_each_phrase(
    text: ast.JoinedStr, names: Mapping[str, ast.expr]
) -> Iterator[tuple[str, str]]:
    """Yield a text with each phrase that one of its values may be, and that phrase."""
    phrases_by_part = []
    default_parts = []
    for part in text.values:
        phrases: list[str] = []
        if isinstance(part, ast.FormattedValue):
            phrases = value_texts(part, names)
        phrases_by_part.append(phrases)
        default_parts.append("" if "" in phrases else text_of(part))
    for position, phrases in enumerate(phrases_by_part):
        before = "".join(default_parts[:position])
        after = "".join(default_parts[position + 1 :])
        for phrase in phrases:
            yield before + phrase + after, phrase


# ---------------------------------------------------------------- composed texts


def composed_texts() -> Iterator[str]:
    """Yield every form of the product's texts with values or parts, except log lines."""
    for package in PRODUCT.split():
        for file in sorted((ROOT / package).rglob("*.py")):
            if file.parent.name in COLLECTED_ELSEWHERE:
                continue
            module = parse_module(file)
            constants = [node.value for node in module.body if isinstance(node, ast.Assign)]
            for scope in [*functions_in(module), *constants]:
                yield from _composed_texts_in(scope, constants)


def _composed_texts_in(
    scope: ast.AST,
    constants: list[ast.expr],
) -> Iterator[str]:
    """Yield every form of the texts in a function or a module's constant."""
    names = single_assignments(scope)
    nodes = nodes_in(scope)
    # nodes in log lines, and in texts that have been yielded as a whole
    done: set[int] = set()
    for node in nodes:
        if _is_for_no_person(node):
            done |= _ids_below(node)
    for node in nodes:
        is_text = isinstance(node, ast.BinOp | ast.JoinedStr) or node in constants
        if not is_text or id(node) in done:
            continue
        done |= _ids_below(node)
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id in names:
                done |= _ids_below(names[part.id])
        yield from all_forms(node, names)


def _ids_below(node: ast.AST) -> set[int]:
    """Return the identities of a node and of all nodes within."""
    return {id(inner) for inner in ast.walk(node)}


def _is_for_no_person(node: ast.AST) -> bool:
    """True for calls that log, and for the texts of endpoints."""
    if isinstance(node, ast.keyword):
        return node.arg in ENDPOINT_TEXTS
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_method and node.func.attr in LOG_METHODS


def all_forms(
    node: ast.AST,
    names: Mapping[str, ast.expr],
) -> list[str]:
    """Return every text that an expression may be, up to `MAX_FORMS`."""
    match node:
        case ast.BinOp(op=ast.Add()):
            parts: list[ast.expr] = [node.left, node.right]
        case ast.JoinedStr():
            parts = node.values
        case ast.Name(id=name) if name in names:
            return all_forms(names[name], _without(names, name))
        case ast.IfExp():
            return [*all_forms(node.body, names), *all_forms(node.orelse, names)]
        case ast.FormattedValue():
            return all_forms(node.value, names)
        case ast.expr():
            return value_texts(node, {})[-1:]
        case _:
            return []
    forms = [""]
    for part in parts:
        endings = all_forms(part, names) or ["9"]
        forms = [form + ending for form in forms for ending in endings][:MAX_FORMS]
    return forms


# ---------------------------------------------------------------- timeline


def timeline_events() -> set[str]:
    """Return the names of the events in timelines that the code spells out."""
    events = set(NAME_OF) | FURTHER_EVENTS
    for form, states in STATE_EVENTS.items():
        events |= {form.format(state) for state in states}
    events |= {f"ending as {outcome}" for outcome in Outcome}
    for message in vars(messages).values():
        if hasattr(message, "call") and hasattr(message, "name"):
            events |= {f"{message.name} {result}" for result in REQUEST_RESULTS}
    for module in parse_modules("gateway/domain gateway/jobs gateway/runtime gateway/store"):
        for node in nodes_in(module):
            events |= set(_event_names(node))
    return events - NEVER_REACHED


def _event_names(node: ast.AST) -> Iterator[str]:
    """Yield the names of events in an assignment or a call."""
    if isinstance(node, ast.Assign):
        for variable, value in _assigned_pairs(node):
            if getattr(variable, "id", "") in EVENT_VARIABLES:
                yield from _constant_texts(value)
    if isinstance(node, ast.Call):
        function = called_name(node)
        if function not in EVENT_POSITION:
            return
        position = EVENT_POSITION[function]
        for argument in node.args[position : position + 1]:
            yield from _constant_texts(argument)


def _assigned_pairs(assignment: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """Return the targets and values of an assignment, which may assign a tuple."""
    target = assignment.targets[0]
    value = assignment.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def _constant_texts(node: ast.AST) -> Iterator[str]:
    """Yield the text of a constant, or both texts of a conditional expression."""
    if isinstance(node, ast.IfExp):
        yield from _constant_texts(node.body)
        yield from _constant_texts(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
