"""The documents say what the code does."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engines.base import EngineError
from gateway.domain.states import JOB, RUN, TASK

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(("name", "table"), [("JOB", JOB), ("TASK", TASK), ("RUN", RUN)])
def test_the_state_diagrams_are_those_of_the_tables(name: str, table: dict[Any, frozenset[Any]]):
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    diagram = re.search(rf"<!-- states: {name} -->\n```mermaid\n(.*?)\n?```", text, re.DOTALL)
    assert diagram is not None
    moves = [
        f"  {old} --> {new}"
        for old in table
        for new in [*type(old), "[*]"]
        if new in (table[old] or ("[*]",))
    ]
    assert diagram.group(1).splitlines() == ["stateDiagram-v2", *moves]


def test_the_architecture_names_existing_modules_and_definitions():
    """A module by its path, and in parentheses behind it names that it defines."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\| [a-z].* \| ", line)]
    places = [
        place
        for row in rows
        for place in re.findall(r"`([\w./-]+/[\w.-]+)`(?: \((`\w+`(?:, `\w+`)*))?", row)
    ]
    assert len(places) > 30
    missing = []
    for path, names in places:
        module = ROOT / path
        if not module.exists():
            module = module.with_suffix(".py")
        if not module.exists():
            missing.append(path)
            continue
        defined = definitions(module)
        missing += [f"{path} ({name})" for name in re.findall(r"\w+", names) if name not in defined]
    assert missing == []


def definitions(module: Path) -> set[str]:
    """Return the names of functions, classes and constants that a module defines."""
    if module.is_dir():
        return set()
    source = module.read_text(encoding="utf-8")
    callables = re.findall(r"(?:def|class) (\w+)", source)
    constants = re.findall(r"^(\w+)(?:: .*)? = ", source, re.M)
    return {*callables, *constants}


def test_no_file_names_a_package_index_or_a_local_path():
    files = subprocess.run(
        ["git", "ls-files"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    forbidden = re.compile(
        "|".join(["py" + r"pi\.", "index" + "-url =", "/ro" + "ot/", "/wo" + "rk/"])
    )
    leaks = []
    for name in files:
        path = ROOT / name
        if path.is_file() and path.stat().st_size < 2_000_000:
            text = path.read_text(encoding="utf-8", errors="ignore")
            leaks += [f"{name}: {match.group()}" for match in forbidden.finditer(text)]
    assert leaks == []


def test_the_examples_of_the_readme_exist():
    for readme in ("README.md", "README.zh-CN.md"):
        text = (ROOT / readme).read_text(encoding="utf-8")
        targets = set(re.findall(r"^\t?([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        for command in re.findall(r"make ([a-z-]+)", text):
            assert command in targets, f"{readme} names make {command}"
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (ROOT / link).exists(), f"{readme} links {link}"


def test_every_link_between_documents_leads_somewhere():
    broken = []
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("compose/*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not (page.parent / link).exists():
                broken.append(f"{page.relative_to(ROOT)} links {link}")
    assert broken == []


def test_every_attack_in_the_table_has_its_test():
    pages = [
        (ROOT / "docs" / name).read_text(encoding="utf-8")
        for name in ("security.md", "security.zh-CN.md")
    ]
    rows = [re.findall(r"^\| .* \| .* \| (`.*`) \|$", page, re.MULTILINE) for page in pages]
    assert len(rows[0]) > 30 and rows[0] == rows[1]
    named = {name for row in rows[0] for name in re.findall(r"`([^`]+)`", row)}
    files = {name: f"{name}.py" if "/" in name else f"trust/test_{name}.py" for name in named}
    assert [file for file in files.values() if not (ROOT / "tests" / file).exists()] == []


def test_the_reasons_of_an_engine_are_in_the_table_of_both_pages():
    for name in ("containers.md", "containers.zh-CN.md"):
        listed = re.findall(
            r"^\| (`[A-Z].*`) \|", (ROOT / "docs" / name).read_text(encoding="utf-8"), re.MULTILINE
        )
        reasons = {kind.reason for kind in (EngineError, *EngineError.__subclasses__())}
        assert reasons - set(re.findall(r"\w+", " ".join(listed))) == set(), (
            f"docs/{name} lacks them: add them"
        )


def test_a_decision_fits_on_a_page():
    too_long = [
        page.name
        for page in ROOT.glob("docs/adr/0*.md")
        if len(page.read_text(encoding="utf-8").splitlines()) > 30
    ]
    assert too_long == []


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md"])
def test_the_first_pages_have_short_lines(page: str):
    """Tables and diagrams excepted: Markdown cannot wrap a row."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    long_lines = [line for line in lines if len(line) >= 120 and not line.startswith(("|", "  "))]
    assert long_lines == []


def test_the_name_of_a_test_is_a_short_sentence():
    too_long = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in re.findall(
            r"^ *(?:async )?def (test_\w{66,})\(", path.read_text(encoding="utf-8"), re.M
        )
    ]
    assert too_long == [], "at most 70 characters"
