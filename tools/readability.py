"""Measures how the code reads, package by package, and fails if a figure is above its limit.

    python -m tools.readability                   # the table, part of `make check`
    python -m tools.readability --places PATH...  # each place that counts, as file:line
    python -m tools.readability --worst 10        # the modules to look at first
    python -m tools.readability --ratchet         # lower the limits of packages that read better

The figures are a thermometer: a package that meets every aim may still be hard to read, but one
that misses an aim is. ``readability_limits.json`` has the limits of packages that miss an aim;
they may only fall.
"""

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
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
    "idiom": (
        "relative clauses in place of a noun, per 1000 words of docstrings, comments and pages"
    ),
}

# Folders whose subfolders are measured one by one, and folders that are measured as a whole.
DIVIDED = ("gateway", "adapter", "tests")
WHOLE = ("engines", "provider_registry", "route_table", "clients", "tools", "examples")
GENERATED = ("_pb2.py", "/migrations/versions/", "bfia_gateway_client/types.py", "/.venv")
# Pages made from the code; their texts are measured there.
DERIVED_PAGES = ("commands.md", "endpoints.md", "reasons.md", "settings.md")

# Names that do not say what a variable holds.
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

# Relative clauses and old-fashioned words in place of a noun.
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

# Types of tokens that are not code.
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
SHORT_MODULE = 40  # lines of code; figures of modules up to this length mean little

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DENSE: Mapping[type, str] = {
    ast.IfExp: "conditional expression",
    ast.NamedExpr: ":=",
    ast.Lambda: "lambda",
}
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

    def add(self, counts: "Counts") -> None:
        """Add the counts of another file."""
        for column in fields(self):
            total = getattr(self, column.name) + getattr(
                counts,
                column.name,
            )
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

    def add_place(self, node: ast.AST, kind: str) -> None:
        """Record the line of a node as a place that counts."""
        self.places.add(Place(getattr(node, "lineno", 0), kind))


def ratio(count: float, base: int) -> float:
    """Return the quotient to one decimal; 0 for an empty base."""
    if not base:
        return 0.0
    return round(count / base, 1)


# ------------------------------------------------------------ one file


def measure(path: Path) -> Measured:
    """Measure a module or a page. Raises `SyntaxError` for a module that cannot be parsed."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return measure_page(text)
    return measure_module(text)


def measure_page(text: str) -> Measured:
    """Measure the prose of a Markdown page, without its code blocks."""
    measured = Measured()
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            prose = re.sub(r"`[^`]*`", "code", line)
            count_words(prose, number, measured)
    return measured


def measure_module(source: str) -> Measured:
    """Measure the text of a Python module."""
    measured = Measured()
    nodes = list(ast.walk(ast.parse(source)))
    for node in nodes:
        count_function(node, measured)
        count_dense_expression(node, measured)
        count_name(node, measured)
    docstring_lines: set[int] = set()
    for docstring in docstrings(nodes):
        docstring_lines.update(lines_of(docstring))
        count_words(str(docstring.value), docstring.lineno, measured)
    count_tokens(source, docstring_lines, measured)
    return measured


def docstrings(nodes: Iterable[ast.AST]) -> Iterator[ast.Constant]:
    """Yield docstrings, and all other strings that are statements, such as below a constant."""
    for node in nodes:
        body = getattr(node, "body", ())
        if isinstance(node, (ast.Lambda, ast.IfExp)):
            continue  # their body is an expression
        for statement in body:
            if isinstance(statement, ast.Expr) and is_text(statement.value):
                yield statement.value


def is_text(node: ast.expr) -> TypeGuard[ast.Constant]:
    """True for a string literal."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def lines_of(node: ast.Constant | FunctionNode) -> range:
    """Return the numbers of the lines that a node covers."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def count_function(node: ast.AST, measured: Measured) -> None:
    """Count the lines and decisions of a function; one decision for the function itself."""
    if isinstance(node, FUNCTIONS):
        measured.counts.decisions += 1 + decisions_below(node)
        measured.counts.function_lines += len(lines_of(node))


def decisions_below(node: ast.AST) -> int:
    """Count the decisions of a function, without functions and classes inside it."""
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


def count_dense_expression(node: ast.AST, measured: Measured) -> None:
    """Count an expression that folds a decision, an assignment or a function into a line."""
    kind = DENSE.get(type(node))
    if kind is not None:
        measured.counts.dense += 1
        measured.add_place(node, kind)


def count_name(node: ast.AST, measured: Measured) -> None:
    """Count the name that a node gives to a variable or parameter."""
    name = stored_name(node)
    if name:
        measured.counts.names += 1
    if name in PLACEHOLDERS:
        measured.counts.placeholders += 1
        measured.add_place(node, f"name {name}")


def stored_name(node: ast.AST) -> str:
    """Return the name that a node gives to a variable or parameter; empty for any other node."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            return name
        case ast.arg(arg=name):
            return name
    return ""


def count_tokens(
    source: str,
    docstring_lines: set[int],
    measured: Measured,
) -> None:
    """Count tokens and lines of code without docstrings, and the words of comments."""
    lines_of_code = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            count_words(token.string.lstrip("# "), line, measured)
        if token.type not in NO_TOKEN and line not in docstring_lines:
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
    for folder in (*DIVIDED, *WHOLE):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not is_generated(path):
                yield path


def is_generated(path: Path) -> bool:
    """True for a module that a program writes, and for one of an installed package."""
    return any(part in path.as_posix() for part in GENERATED)


def pages() -> Iterator[Path]:
    """Yield the English pages that people write."""
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]):
        is_english = not path.name.endswith(".zh-CN.md")
        if is_english and path.name not in DERIVED_PAGES:
            yield path


def package_of(path: Path) -> str:
    """Return the name under which a file is measured."""
    relative = path.relative_to(ROOT)
    if relative.suffix == ".md":
        return "pages"
    is_in_divided_folder = relative.parts[0] in DIVIDED and len(relative.parts) > 2
    if is_in_divided_folder:
        return "/".join(relative.parts[:2])
    return relative.parts[0]


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
    """Return a line for each figure above the package's limit; without a limit, above the aim."""
    lines = []
    for package, counts in packages.items():
        allowed = {**AIMS, **limits.get(package, {})}
        for name, value in counts.figures().items():
            if value > allowed[name]:
                lines.append(f"{package}: {value} {COLUMNS[name]}; at most {allowed[name]}")
    return lines


# ------------------------------------------------------------ the command


def main() -> int:
    """Run the command; return 1 if a figure is above its limit."""
    options = parse_options()
    if options.places:
        print_places(options.places)
        return 0
    measured = {path: measure(path) for path in (*modules(), *pages())}
    if options.worst:
        print_worst(measured, options.worst)
        return 0
    packages = by_package(measured)
    limits = read_limits()
    if options.ratchet:
        write_limits(packages, limits)
        return 0
    print_table(packages)
    lines = violations(packages, limits)
    for line in lines:
        print(line)
    return int(bool(lines))


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
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
    return parser.parse_args()


def print_places(paths: list[Path]) -> None:
    """Print each place that counts in some files or folders."""
    for path in python_files(paths):
        for place in sorted(measure(path).places):
            print(f"{path}:{place.line}: {place.kind}")


def python_files(paths: list[Path]) -> Iterator[Path]:
    """Yield files as they are, and the Python files in folders."""
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob("*.py"))
        else:
            yield path


def print_worst(
    measured: Mapping[Path, Measured],
    number: int,
) -> None:
    """Print the modules that are furthest from each aim."""
    long_modules = {
        path.relative_to(ROOT).as_posix(): file.counts.figures()
        for path, file in measured.items()
        if file.counts.code_lines > SHORT_MODULE
    }
    for aim in AIMS:
        rows = sorted(
            ((figures[aim], path) for path, figures in long_modules.items()), reverse=True
        )
        worst = [f"{path} {value}" for value, path in rows[:number]]
        print(f"{aim}: {', '.join(worst)}")


def print_table(packages: Mapping[str, Counts]) -> None:
    """Print the figures of each package, with a star after each one above its aim."""
    headings = [f"{name:>17}" for name in AIMS]
    print(f"{'package':<24}{'tokens':>9}{''.join(headings)}")
    for package, counts in packages.items():
        cells = [figure_cell(name, value) for name, value in counts.figures().items()]
        print(f"{package:<24}{counts.tokens:>9,}{''.join(cells)}")


def figure_cell(name: str, value: float) -> str:
    """Return a figure as the table shows it."""
    if value > AIMS[name]:
        return f"{value:>16}*"
    return f"{value:>16} "


def read_limits() -> dict[str, dict[str, float]]:
    """Return the limits of packages above an aim; none without the file."""
    if not LIMITS.exists():
        return {}
    limits: dict[str, dict[str, float]] = json.loads(LIMITS.read_text(encoding="utf-8"))
    return limits


def write_limits(
    packages: Mapping[str, Counts],
    limits: Mapping[str, Mapping[str, float]],
) -> None:
    """Lower the limits to today's figures, and drop the limits of packages that meet every aim."""
    lowered = {}
    for package, counts in packages.items():
        before = limits.get(package, {})
        lower = {
            name: min(value, before.get(name, value))
            for name, value in above_aims(counts.figures()).items()
        }
        if lower:
            lowered[package] = lower
    LIMITS.write_text(
        json.dumps(lowered, indent=1) + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    sys.exit(main())
