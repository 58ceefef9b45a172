"""Mutation testing: breaks one function after another, and counts the breaks that tests notice.

    python tools/mutants.py cover                   # once: record which test runs which line
    python tools/mutants.py run --count 300 > results.jsonl

``cover`` needs the package coverage. Functions are selected by a hash of their names, so that two
versions of the code are compared by the same functions. Only tests without Docker, MariaDB and the
mark slow take part. The program edits files: run it in a checkout of its own.
"""

import argparse
import ast
import copy
import hashlib
import json
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = ("gateway/domain", "gateway/jobs", "adapter", "provider_registry", "route_table")
TEST_FOLDERS = (
    "domain",
    "adapter",
    "core",
    "registry",
    "routes",
    "store",
    "contracts",
    "data",
    "admin",
    "events",
    "cleaning",
)
PYTEST_OPTIONS = (
    "-m",
    "not slow and not docker and not mariadb",
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:randomly",
)
MAX_TESTS = 60  # tests that run for one mutant
TEST_TIMEOUT = 120  # seconds of one run of pytest
CHANGE_LENGTH = 80  # characters of the source before and after a break, in the results
# Exit codes of pytest for success, and for no test at all.
PASSED = 0
NO_TESTS = 5
COVERAGE_QUERY = (
    "select distinct context.context, line_bits.numbits "
    "from line_bits join file on file.id = file_id join context on context.id = context_id "
    "where file.path like ?"
)
# Operators, and the ones that break them.
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, order=True)
class Target:
    """A function to break, by the hash that selects it."""

    digest: str
    name: str  # methods as ``Class.method``
    path: Path


@dataclass(frozen=True)
class Mutation:
    """A piece of a function, and the code that replaces it."""

    node: ast.expr | ast.stmt
    replacement: ast.AST

    def apply(self, text: str) -> str:
        """Return a file's text with the piece replaced."""
        node = self.node
        source = text.encode()  # the tree counts columns in bytes
        lines = source.splitlines(keepends=True)
        start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
        end = sum(map(len, lines[: (node.end_lineno or 0) - 1])) + (node.end_col_offset or 0)
        new = ast.unparse(self.replacement)
        if isinstance(node, ast.expr):
            new = f"({new})"
        return (source[:start] + new.encode() + source[end:]).decode()

    def __str__(self) -> str:
        before = ast.unparse(self.node)[:CHANGE_LENGTH]
        after = ast.unparse(self.replacement)[:CHANGE_LENGTH]
        return f"{before} -> {after}"


def functions(path: Path) -> Iterator[tuple[str, Function]]:
    """Yield a file's functions by their names, methods as ``Class.method``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield prefix + child.name, child


def mutations(function: ast.AST) -> Iterator[Mutation]:
    """Yield every possible break of a function."""
    for node in ast.walk(function):
        replacement = broken(node)
        if replacement is not None:
            yield Mutation(node, replacement)  # type: ignore[arg-type]


def broken(node: ast.AST) -> ast.AST | None:
    """Return the broken form of a piece of code; None if it has none."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in SWAPS:
            changed = copy.deepcopy(node)
            changed.ops = [SWAPS[type(operator)]()]
            return changed
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in SWAPS:
            swapped = copy.deepcopy(node)
            swapped.op = SWAPS[type(operator)]()
            return swapped
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool(value)):
            return ast.Constant(not value)
        case ast.Constant(value=int(value)):
            return ast.Constant(value + 1)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return ast.Return(ast.Constant(None))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return ast.IfExp(test, orelse, body)
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign():
            return ast.Pass()
    return None


# ---------------------------------------------------------------- tests


def covering_tests(
    database: sqlite3.Connection,
    path: Path,
    line: int,
) -> list[str]:
    """Return the tests that run a line, as arguments of pytest."""
    tests = set()
    for context, bits in database.execute(COVERAGE_QUERY, (f"%/{path}",)):
        if context and _has_bit(bits, line):
            tests.add(_test_id(context))
    return sorted(tests)


def _has_bit(bits: bytes, number: int) -> bool:
    index, shift = divmod(number, 8)
    return index < len(bits) and bool(bits[index] & 1 << shift)


def _test_id(context: str) -> str:
    """Return the id of a test from coverage's context, such as ``tests.core.test_x.Class.test``."""
    module, _, test = context.rpartition(".")
    while module and not _module_file(module).exists():
        module, _, outer = module.rpartition(".")
        test = f"{outer}::{test}"
    return f"{_module_file(module)}::{test}"


def _module_file(module: str) -> Path:
    return Path(f"{module.replace('.', '/')}.py")


def notices_break(tests: list[str]) -> bool:
    """Return whether one of the tests fails; a timeout counts as a failure."""
    if not tests:
        return False
    command = [sys.executable, "-m", "pytest", *PYTEST_OPTIONS, "-x", *tests]
    try:
        process = subprocess.run(
            command,
            check=False,
            capture_output=True,
            timeout=TEST_TIMEOUT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    except subprocess.TimeoutExpired:
        return True
    return process.returncode not in (PASSED, NO_TESTS)


# ---------------------------------------------------------------- commands


def cover() -> None:
    """Run the fast tests once, and record which lines each of them runs."""
    Path(".coveragerc").write_text("[run]\ndynamic_context = test_function\n", encoding="utf-8")
    folders = [f"tests/{name}" for name in TEST_FOLDERS if Path("tests", name).is_dir()]
    included = ",".join(f"{package}/*" for package in PACKAGES)
    coverage = [sys.executable, "-m", "coverage", "run", f"--include={included}"]
    subprocess.run([*coverage, "-m", "pytest", *PYTEST_OPTIONS, *folders], check=False)


def run(count: int, seed: str) -> None:
    """Print a line of JSON for each mutant, and finally the number of killed ones."""
    targets = select_targets(count, seed)
    database = sqlite3.connect(".coverage")
    killed = 0
    for number, target in enumerate(targets, 1):
        result = run_target(database, target)
        killed += result["killed"]
        print(json.dumps({"n": number, **result}), flush=True)
    print(json.dumps({"mutants": len(targets), "killed": killed}))


def select_targets(count: int, seed: str) -> list[Target]:
    """Return ``count`` functions that can be broken, the same ones for the same seed."""
    targets = []
    for package in PACKAGES:
        for path in Path(package).rglob("*.py"):
            for name, function in functions(path):
                if any(mutations(function)):
                    digest = hashlib.sha256(f"{seed} {name}".encode()).hexdigest()
                    targets.append(Target(digest, name, path))
    return sorted(targets)[:count]


def run_target(
    database: sqlite3.Connection,
    target: Target,
) -> dict[str, Any]:
    """Break a function in one way, run the tests of the broken line, and restore the file."""
    path = target.path
    mutation = select_mutation(target)
    tests = covering_tests(database, path, mutation.node.lineno)
    sample_size = min(len(tests), MAX_TESTS)
    tests = sorted(random.Random(target.digest).sample(tests, sample_size))
    text = path.read_text(encoding="utf-8")
    try:
        path.write_text(
            mutation.apply(text),
            encoding="utf-8",
        )
        is_killed = notices_break(tests)
    finally:
        path.write_text(text, encoding="utf-8")
    return {
        "function": target.name,
        "file": str(path),
        "line": mutation.node.lineno,
        "change": str(mutation),
        "tests": len(tests),
        "killed": is_killed,
    }


def select_mutation(target: Target) -> Mutation:
    """Return one break of a function, the same one for the same hash."""
    for name, function in functions(target.path):
        possible = list(mutations(function))
        if name == target.name and possible:
            return random.Random(target.digest).choice(possible)
    raise LookupError(f"{target.path} has no function {target.name} that can be broken")


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["cover", "run"])
    parser.add_argument(
        "--count",
        type=int,
        default=300,
        help="number of mutants",
    )
    parser.add_argument(
        "--seed",
        default="1",
        help="selects other functions",
    )
    options = parser.parse_args()
    if options.command == "cover":
        cover()
    else:
        run(options.count, options.seed)


if __name__ == "__main__":
    main()
