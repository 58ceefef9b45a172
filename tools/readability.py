"""Measures how the code reads, package by package, and fails where it reads worse than was agreed.

    python -m tools.readability                   # the table, and what is above an aim: part of
    `make check`
    python -m tools.readability --places PATH...  # each place that counts, as file:line
    python -m tools.readability --worst 10        # the modules to look at first
    python -m tools.readability --ratchet         # lower the limits of packages that read better
    now

The figures are a thermometer: a package that meets them may still be hard to read, one that misses
them is. Packages that do not meet an aim yet are listed with their figure in
``readability_limits.json``; it may only fall.
"""

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[1]
LIMITS = Path(__file__).with_name("readability_limits.json")

AIMS: Mapping[str, float] = {
    "tokens per line": 7.0,
    "dense": 15.0,
    "branches": 24.0,
    "placeholders": 6.0,
    "idiom": 1.5,
}
COLUMNS: Mapping[str, str] = {
    "tokens per line": "tokens per line of code",
    "dense": "conditional expressions, := and lambdas per 1000 lines of code",
    "branches": "decisions per 100 lines of functions",
    "placeholders": "names that say nothing, per 1000 names",
    "idiom": "relative clauses in place of a noun, per 1000 words of docstrings, comments and pages",
}

# Rooms whose packages are measured one by one; every other root is one package.
DIVIDED = ("gateway", "adapter", "tests")
WHOLE = ("engines", "provider_registry", "route_table", "clients", "tools", "examples")
GENERATED = ("_pb2.py", "/migrations/versions/", "bfia_gateway_client/types.py", "/.venv")
# Derived from the code, whose texts are measured there or translated as a whole.
DERIVED_PAGES = ("endpoints.md", "reasons.md", "settings.md")

PLACEHOLDERS = frozenset(
    [
        "found",
        "one",
        "asked",
        "known",
        "left",
        "given",
        "there",
        "here",
        "wanted",
        "made",
        "shown",
        "taken",
        "whole",
        "named",
        "kept",
        "begun",
        "said",
        "told",
        "seen",
        "noted",
        "many",
        "most",
        "more",
        "whose",
        "held",
        "lies",
        "stands",
        "own",
        "began",
        "gone",
        "away",
        "other",
        "others",
        "answer",
        "answered",
        "spoken",
        "learned",
    ]
)

IDIOMS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\bof (?:which|whom|whose)\b",
        r"\bwhere (?:it|that|they|there|none|no|one|nobody|some|this|what)\b",
        r"\b(?:is|are) to (?:be|have|go|run|get|hold|do)\b",
        r"\bat once\b",
        r"\b(?:Tell|Say)s? (?:of|whether|how|which|who|why)\b",
        r"\b[Ww]hat (?:is|was|has|it|they|this|lies|comes|came|others|jobs)\b",
        r"\b(?:nobody|whoever|somebody|anybody)\b",
        r"\b(?:meanwhile|by then|anew|likewise|henceforth)\b",
        r"\b(?:lies|lie|stands|stand) (?:in|at|there|here|before|beside|below|for|behind)\b",
        r"\bbeside\b",
        r"\b(?:with|of|by) what\b",
        r"\bthose (?:of|that|which|in)\b",
    )
)

NO_TOKEN = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
        tokenize.ENCODING,
    }
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DENSE = {ast.IfExp: "conditional expression", ast.NamedExpr: ":=", ast.Lambda: "lambda"}
DECISIONS = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.comprehension,
    ast.match_case,
)


@dataclass
class Counts:
    """Counts of one file, or of the files of a package."""

    code_lines: int = 0
    tokens: int = 0
    dense: int = 0
    decisions: int = 0
    function_lines: int = 0
    names: int = 0
    placeholders: int = 0
    words: int = 0
    idioms: int = 0

    def add(self, other: "Counts") -> None:
        """Add the counts of another file."""
        for column in fields(self):
            total = getattr(self, column.name) + getattr(other, column.name)
            setattr(self, column.name, total)

    def figures(self) -> dict[str, float]:
        """Return the figures that have an aim, by name."""
        return {
            "tokens per line": ratio(self.tokens, self.code_lines),
            "dense": ratio(1000 * self.dense, self.code_lines),
            "branches": ratio(100 * self.decisions, self.function_lines),
            "placeholders": ratio(1000 * self.placeholders, self.names),
            "idiom": ratio(1000 * self.idioms, self.words),
        }


@dataclass(frozen=True, order=True)
class Place:
    """A line that counts against its module."""

    line: int
    kind: str


@dataclass
class Measured:
    """A file's counts and the places behind them."""

    counts: Counts = field(default_factory=Counts)
    places: set[Place] = field(default_factory=set)


def ratio(count: float, base: int) -> float:
    """Return the quotient to one decimal; 0 for an empty base."""
    if not base:
        return 0.0
    return round(count / base, 1)


# ------------------------------------------------------------ one file


def measure_module(source: str) -> Measured:
    """Measure the text of a Python module."""
    measured = Measured()
    tree = ast.parse(source)
    docstrings = list(documentation(tree))
    for node in ast.walk(tree):
        count_node(node, measured)
    documented = {line for docstring in docstrings for line in lines_of(docstring)}
    count_tokens(source, documented, measured)
    for docstring in docstrings:
        count_words(str(docstring.value), docstring.lineno, measured)
    return measured


def measure_page(text: str) -> Measured:
    """Measure the prose of a Markdown page, without its code blocks."""
    measured = Measured()
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            count_words(re.sub(r"`[^`]*`", "code", line), number, measured)
    return measured


def documentation(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield docstrings, and the strings that stand as statements below a constant."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for statement in body:
            if isinstance(statement, ast.Expr) and is_text(statement.value):
                yield statement.value


def is_text(node: ast.expr) -> TypeGuard[ast.Constant]:
    """True for a string literal."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def lines_of(node: ast.Constant) -> range:
    """Return the numbers of the lines that a node covers."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def count_node(node: ast.AST, measured: Measured) -> None:
    """Count decisions, dense expressions and names of one node."""
    counts = measured.counts
    if isinstance(node, FUNCTIONS):
        counts.decisions += 1 + decisions_below(node)
        counts.function_lines += (node.end_lineno or node.lineno) - node.lineno + 1
    if type(node) in DENSE:
        counts.dense += 1
        measured.places.add(Place(getattr(node, "lineno", 0), DENSE[type(node)]))
    name = stored_name(node)
    if name:
        counts.names += 1
    if name in PLACEHOLDERS:
        counts.placeholders += 1
        measured.places.add(Place(getattr(node, "lineno", 0), f"name {name}"))


def decisions_below(node: ast.AST) -> int:
    """Count the decisions of a function, without those of functions inside it."""
    total = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(child, DECISIONS):
            total += 1
        if isinstance(child, ast.BoolOp):
            total += len(child.values) - 1
        total += decisions_below(child)
    return total


def stored_name(node: ast.AST) -> str:
    """Return the name that a node gives to a variable or parameter; empty for any other node."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg):
        return node.arg
    return ""


def count_tokens(source: str, documented: set[int], measured: Measured) -> None:
    """Count tokens and lines of code, and the words of comments."""
    lines_of_code = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            count_words(token.string.lstrip("# "), line, measured)
        if token.type not in NO_TOKEN and line not in documented:
            measured.counts.tokens += 1
            lines_of_code.add(line)
    measured.counts.code_lines += len(lines_of_code)


def count_words(text: str, first_line: int, measured: Measured) -> None:
    """Count words, and the idioms among them."""
    measured.counts.words += len(re.findall(r"\w+", text))
    for idiom in IDIOMS:
        for match in idiom.finditer(text):
            line = first_line + text.count("\n", 0, match.start())
            measured.counts.idioms += 1
            measured.places.add(Place(line, f"idiom {match.group(0)!r}"))


# ------------------------------------------------------------ packages


def modules() -> Iterator[Path]:
    """Yield the Python files that people write."""
    for room in (*DIVIDED, *WHOLE):
        for path in sorted((ROOT / room).rglob("*.py")):
            if not any(part in path.as_posix() for part in GENERATED):
                yield path


def pages() -> Iterator[Path]:
    """Yield the English pages that people write."""
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]):
        if not path.name.endswith(".zh-CN.md") and path.name not in DERIVED_PAGES:
            yield path


def package_of(path: Path) -> str:
    """Return the name under which a file is measured."""
    relative = path.relative_to(ROOT)
    if relative.suffix == ".md":
        return "pages"
    if relative.parts[0] in DIVIDED and len(relative.parts) > 2:
        return "/".join(relative.parts[:2])
    return relative.parts[0]


def measure(path: Path) -> Measured:
    """Measure a module or a page. Raises `SyntaxError` for a module that is none."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return measure_page(text)
    return measure_module(text)


def by_package(measured: Mapping[Path, Measured]) -> dict[str, Counts]:
    """Return the counts of each package."""
    packages: dict[str, Counts] = defaultdict(Counts)
    for path, file in measured.items():
        packages[package_of(path)].add(file.counts)
    return dict(packages)


def above_aims(figures: Mapping[str, float]) -> dict[str, float]:
    """Return the figures that do not meet their aim."""
    return {name: value for name, value in figures.items() if value > AIMS[name]}


def violations(
    packages: Mapping[str, Counts], limits: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """Return a line for each figure above its aim, or above the limit of a package that is not
    there yet.
    """
    lines = []
    for package, counts in packages.items():
        allowed = {**AIMS, **limits.get(package, {})}
        for name, value in counts.figures().items():
            if value > allowed[name]:
                lines.append(f"{package}: {value} {COLUMNS[name]}; at most {allowed[name]}")
    return lines


# ------------------------------------------------------------ the command


def print_table(packages: Mapping[str, Counts]) -> None:
    """Print the figures of each package, with a star at those above their aim."""
    print(f"{'package':<24}{'tokens':>9}" + "".join(f"{name:>17}" for name in AIMS))
    for package, counts in packages.items():
        cells = [f"{package:<24}", f"{counts.tokens:>9,}"]
        for name, value in counts.figures().items():
            star = "*" if value > AIMS[name] else " "
            cells.append(f"{value:>16}{star}")
        print("".join(cells))


def print_worst(measured: Mapping[Path, Measured], number: int) -> None:
    """Print the modules that are furthest from each aim."""
    for name in AIMS:
        rows = []
        for path, file in measured.items():
            if file.counts.code_lines > 40:
                rows.append((file.counts.figures()[name], path.relative_to(ROOT).as_posix()))
        rows.sort(reverse=True)
        print(f"{name}: " + ", ".join(f"{path} {value}" for value, path in rows[:number]))


def print_places(paths: list[Path]) -> None:
    """Print each place that counts in some files or folders."""
    for root in paths:
        files = sorted(root.rglob("*.py")) if root.is_dir() else [root]
        for path in files:
            for place in sorted(measure(path).places):
                print(f"{path}:{place.line}: {place.kind}")


def write_limits(packages: Mapping[str, Counts], limits: Mapping[str, Mapping[str, float]]) -> None:
    """Lower the limits to today's figures, and drop those of packages that meet their aims."""
    lowered = {}
    for package, counts in packages.items():
        above = above_aims(counts.figures())
        before = limits.get(package, {})
        kept = {name: min(value, before.get(name, value)) for name, value in above.items()}
        if kept:
            lowered[package] = kept
    LIMITS.write_text(json.dumps(lowered, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Run the command; return 1 if a figure is above what is allowed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--places", nargs="+", type=Path, metavar="PATH", help="print each place that counts"
    )
    parser.add_argument(
        "--worst", type=int, metavar="N", help="print the N worst modules for each figure"
    )
    parser.add_argument(
        "--ratchet", action="store_true", help="lower the limits to today's figures"
    )
    options = parser.parse_args()
    if options.places:
        print_places(options.places)
        return 0
    measured = {path: measure(path) for path in (*modules(), *pages())}
    packages = by_package(measured)
    limits = json.loads(LIMITS.read_text(encoding="utf-8")) if LIMITS.exists() else {}
    if options.worst:
        print_worst(measured, options.worst)
        return 0
    if options.ratchet:
        write_limits(packages, limits)
        return 0
    lines = violations(packages, limits)
    print_table(packages)
    print(*lines, sep="\n", end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
