"""Breaks one function after another and counts how many of the breaks the tests notice.

    python tools/mutants.py cover                   # once: which test runs which line (needs the
    package coverage)
    python tools/mutants.py run --count 300 > results.jsonl

Functions are chosen by a hash of their names, so that two versions of the code are compared by the
same ones. Only tests that need neither Docker nor MariaDB and are not marked slow take part. It
edits files: run it in a checkout of its own.
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
from pathlib import Path

ROOMS = ("gateway/domain", "gateway/jobs", "adapter", "provider_registry", "route_table")
TESTS = [
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
]
FAST = [
    "-m",
    "not slow and not docker and not mariadb",
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:randomly",
]
MOST_TESTS = 60
SECONDS = 120
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add,
}  # fmt: skip


def functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield a file's functions by their names, methods as ``Class.method``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield (
                    (f"{node.name}.{child.name}" if isinstance(node, ast.ClassDef) else child.name),
                    child,
                )


def mutants(function: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST]]:
    """Yield what can be broken in a function, and what it becomes."""
    for node in ast.walk(function):
        broken: ast.AST = copy.deepcopy(node)
        match broken:
            case ast.Compare(ops=[op]) if type(op) in SWAPS:
                broken.ops = [SWAPS[type(op)]()]
            case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in SWAPS:
                broken.op = SWAPS[type(op)]()
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                broken = operand
            case ast.Constant(value=bool(value)):
                broken = ast.Constant(not value)
            case ast.Constant(value=int(value)):
                broken = ast.Constant(value + 1)
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                broken = ast.Return(ast.Constant(None))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                broken = ast.IfExp(test, orelse, body)
            case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign():
                broken = ast.Pass()
            case _:
                continue
        yield node, broken  # type: ignore[misc]


def mutate(
    text: str,
    node: ast.expr | ast.stmt,
    broken: ast.AST,
) -> str:
    """Return a file's text with one piece replaced."""
    rows = text.encode().splitlines(keepends=True)
    start = sum(map(len, rows[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, rows[: (node.end_lineno or 0) - 1])) + (node.end_col_offset or 0)
    new = ast.unparse(broken)
    whole = text.encode()
    return (
        whole[:start] + (f"({new})" if isinstance(node, ast.expr) else new).encode() + whole[end:]
    ).decode()


def covering(
    database: sqlite3.Connection,
    path: Path,
    line: int,
) -> list[str]:
    """Return the tests that run a line."""
    query = (
        "select distinct context.context, line_bits.numbits from line_bits join file on file.id = file_id "
        "join context on context.id = context_id where file.path like ?"
    )
    found = set()
    for context, bits in database.execute(query, (f"%/{path}",)):
        if context and line // 8 < len(bits) and bits[line // 8] & (1 << line % 8):
            module, _, test = context.rpartition(".")
            while module and not Path(module.replace(".", "/") + ".py").exists():
                module, _, outer = module.rpartition(".")
                test = f"{outer}::{test}"
            found.add(f"{module.replace('.', '/')}.py::{test}")
    return sorted(found)


def pytest(*arguments: str, **options: object) -> int:
    """Run pytest; a run that takes too long counts as one that fails."""
    command = [sys.executable, "-m", "pytest", *FAST, *arguments]
    try:
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            timeout=SECONDS,
            **options,
        ).returncode  # type: ignore[call-overload, no-any-return]
    except subprocess.TimeoutExpired:
        return 1


def cover() -> None:
    """Run the fast tests once and write down which lines each of them runs."""
    Path(".coveragerc").write_text("[run]\ndynamic_context = test_function\n", encoding="utf-8")
    folders = [f"tests/{name}" for name in TESTS if Path("tests", name).is_dir()]
    include = ",".join(f"{room}/*" for room in ROOMS)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "coverage",
            "run",
            f"--include={include}",
            "-m",
            "pytest",
            *FAST,
            *folders,
        ],
        check=False,
    )


def run(count: int, seed: str) -> None:
    """Print a line of JSON for each mutant, and the share that was killed at the end."""
    chosen = sorted(
        (hashlib.sha256(f"{seed} {name}".encode()).hexdigest(), name, path)
        for room in ROOMS
        for path in Path(room).rglob("*.py")
        for name, node in functions(path)
        if any(mutants(node))
    )[:count]
    database = sqlite3.connect(".coverage")
    killed = 0
    for number, (digest, name, path) in enumerate(chosen, 1):
        text = path.read_text(encoding="utf-8")
        function = next(
            node for found, node in functions(path) if found == name and any(mutants(node))
        )
        node, broken = random.Random(digest).choice(list(mutants(function)))
        tests = covering(database, path, node.lineno)
        tests = sorted(random.Random(digest).sample(tests, min(len(tests), MOST_TESTS)))
        try:
            path.write_text(mutate(text, node, broken), encoding="utf-8")
            environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
            dead = bool(tests) and pytest("-x", *tests, env=environment) not in (
                0,
                5,
            )  # 5: none was left
        finally:
            path.write_text(text, encoding="utf-8")
        killed += dead
        change = f"{ast.unparse(node)[:80]} -> {ast.unparse(broken)[:80]}"
        line = {
            "n": number,
            "function": name,
            "file": str(path),
            "line": node.lineno,
            "change": change,
        }
        print(
            json.dumps(
                {
                    **line,
                    "tests": len(tests),
                    "killed": dead,
                }
            ),
            flush=True,
        )
    print(json.dumps({"mutants": len(chosen), "killed": killed}))


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["cover", "run"])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", default="1")
    given = parser.parse_args()
    cover() if given.what == "cover" else run(given.count, given.seed)


if __name__ == "__main__":
    main()
