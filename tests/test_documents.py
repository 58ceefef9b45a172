"""The documents say what the code does."""

import re
import subprocess
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from engines.base import EngineError
from gateway.domain.states import JOB, RUN, TASK

ROOT = Path(__file__).resolve().parents[1]


# ---------------------------------------------------------------- ARCHITECTURE.md


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("JOB", JOB),
        ("TASK", TASK),
        ("RUN", RUN),
    ],
)
def test_the_state_diagrams_are_those_of_the_tables(name, table):
    pattern = rf"<!-- states: {name} -->\n```mermaid\n(.*?)\n?```"
    diagram = re.search(pattern, read("ARCHITECTURE.md"), re.DOTALL)
    assert diagram is not None
    assert diagram.group(1).splitlines() == ["stateDiagram-v2", *moves(table)]


def moves(table: dict[Any, frozenset[Any]]) -> list[str]:
    """Return a table's moves in Mermaid's words; a state without moves is followed by the end."""
    lines = []
    for state, successors in table.items():
        if not successors:
            lines.append(f"  {state} --> [*]")
        # in the order in which the states are declared
        for successor in type(state):
            if successor in successors:
                lines.append(f"  {state} --> {successor}")
    return lines


def test_the_architecture_names_existing_modules_and_definitions():
    """A row names a module by its path; names in parentheses behind it are defined there."""
    modules = named_modules()
    assert len(modules) > 30

    missing = []
    for path, definitions in modules:
        module = module_file(path)
        if module is None:
            missing.append(path)
            continue
        defined = defined_names(module)
        for name in definitions:
            if name not in defined:
                missing.append(f"{path} ({name})")
    assert missing == []


def named_modules() -> list[tuple[str, list[str]]]:
    """Return the paths in the tables of the architecture, each with the names behind it."""
    modules = []
    for line in read("ARCHITECTURE.md").splitlines():
        if not re.match(r"\| [a-z].* \| ", line):
            continue
        for path, names in re.findall(r"`([\w./-]+/[\w.-]+)`(?: \((`\w+`(?:, `\w+`)*))?", line):
            modules.append((path, re.findall(r"\w+", names)))
    return modules


def module_file(path: str) -> Path | None:
    """Return the file or folder of a path, which may leave out ``.py``; None if there is none."""
    file = ROOT / path
    for candidate in (file, file.with_suffix(".py")):
        if candidate.exists():
            return candidate
    return None


def defined_names(module: Path) -> set[str]:
    """Return the names of functions, classes and constants of a module; none of a folder."""
    if module.is_dir():
        return set()
    source = module.read_text(encoding="utf-8")
    callables = re.findall(r"(?:def|class) (\w+)", source)
    constants = re.findall(r"^(\w+)(?:: .*)? = ", source, re.M)
    return {*callables, *constants}


# ---------------------------------------------------------------- links and examples


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_the_examples_of_the_readme_exist(readme):
    text = read(readme)
    targets = re.findall(r"^\t?([a-z-]+):", read("Makefile"), re.MULTILINE)
    for target in re.findall(r"make ([a-z-]+)", text):
        assert target in targets, f"{readme} names make {target}"
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / link).exists(), f"{readme} links {link}"


def test_every_link_between_documents_leads_somewhere():
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("compose/*.md"),
    ]
    broken = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            if not (page.parent / link).exists():
                broken.append(f"{page.relative_to(ROOT)} links {link}")
    assert broken == []


# ---------------------------------------------------------------- tables


def test_every_attack_in_the_table_has_its_test():
    english = attack_rows("docs/security.md")
    chinese = attack_rows("docs/security.zh-CN.md")
    assert len(english) > 30
    assert english == chinese

    missing = []
    for row in english:
        for name in re.findall(r"`([^`]+)`", row):
            file = f"{name}.py" if "/" in name else f"trust/test_{name}.py"
            if not (ROOT / "tests" / file).exists():
                missing.append(file)
    assert missing == []


def attack_rows(page: str) -> list[str]:
    """Return the last cell of each attack, which names its tests."""
    return re.findall(r"^\| .* \| .* \| (`.*`) \|$", read(page), re.MULTILINE)


@pytest.mark.parametrize("page", ["docs/containers.md", "docs/containers.zh-CN.md"])
def test_the_reasons_of_an_engine_are_in_the_table(page):
    first_cells = re.findall(r"^\| (`[A-Z].*`) \|", read(page), re.MULTILINE)
    listed = re.findall(r"\w+", " ".join(first_cells))
    reasons = {EngineError.reason}
    for kind in EngineError.__subclasses__():
        reasons.add(kind.reason)
    assert reasons - set(listed) == set(), f"add them to {page}"


# ---------------------------------------------------------------- what pages may contain


def test_no_file_names_a_package_index_or_a_local_path():
    listing = subprocess.run(
        ["git", "ls-files"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    # in two parts each, so that this file does not name them
    words = ["py" + r"pi\.", "index" + "-url =", "/ro" + "ot/", "/wo" + "rk/"]
    forbidden = re.compile("|".join(words))
    leaks = []
    for name in listing.stdout.split():
        path = ROOT / name
        if not path.is_file() or path.stat().st_size > 2_000_000:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        for match in forbidden.finditer(text):
            leaks.append(f"{name}: {match.group()}")
    assert leaks == []


def test_a_decision_fits_on_a_page():
    too_long = []
    for page in ROOT.glob("docs/adr/0*.md"):
        if len(page.read_text(encoding="utf-8").splitlines()) > 30:
            too_long.append(page.name)
    assert too_long == []


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md"])
def test_the_first_pages_have_short_lines(page):
    """Tables and diagrams excepted: Markdown cannot wrap a row."""
    too_long = []
    for line in read(page).splitlines():
        can_wrap = not line.startswith(("|", "  "))
        if can_wrap and len(line) >= 120:
            too_long.append(line)
    assert too_long == []


# Characters and punctuation without blanks between them.
WIDE = "\u3000-\u303f\u4e00-\u9fff\uff00-\uffef"


@pytest.mark.parametrize("page", sorted(ROOT.rglob("docs/*.zh-CN.md")), ids=attrgetter("name"))
def test_no_line_of_a_chinese_page_ends_between_two_characters(page):
    """A browser would show a blank there."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    broken = re.findall(rf"^(?![|#>]).*[{WIDE}]\n *[{WIDE}].*", text, flags=re.M)
    assert broken == [], "join these lines"


def test_the_name_of_a_test_is_a_short_sentence():
    too_long = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for name in re.findall(r"^ *(?:async )?def (test_\w{66,})\(", source, re.M):
            too_long.append(f"{path.relative_to(ROOT)}: {name}")
    assert too_long == [], "at most 70 characters"


def read(page: str) -> str:
    """Return the text of a file, by its path in the repository."""
    return (ROOT / page).read_text(encoding="utf-8")
