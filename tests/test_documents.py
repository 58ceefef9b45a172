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
    shown = re.search(rf"<!-- states: {name} -->\n```mermaid\n(.*?)\n?```", text, re.DOTALL)
    assert shown is not None
    moves = [
        f"  {old} --> {new}"
        for old in table
        for new in [*type(old), "[*]"]
        if new in (table[old] or ("[*]",))
    ]
    assert shown.group(1).splitlines() == ["stateDiagram-v2", *moves]


def test_what_the_architecture_says_is_where_is_there():
    """A module by its path, and in parentheses behind it names that it defines."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    cells = [
        line.split(" | ", 1)[1] for line in text.splitlines() if re.match(r"\| [a-z].* \| ", line)
    ]
    named = [
        one
        for cell in cells
        for one in re.findall(r"`([\w./-]+/[\w.-]+)`(?: \((`\w+`(?:, `\w+`)*))?", cell)
    ]
    assert len(named) > 30
    gone = []
    for path, names in named:
        place = ROOT / path
        code = place.with_suffix(".py") if not place.exists() else place
        if not code.exists():
            gone.append(path)
            continue
        written = code.read_text(encoding="utf-8") if code.is_file() else ""
        there = set(re.findall(r"(?:def|class) (\w+)", written)) | set(
            re.findall(r"^(\w+) = ", written, re.M)
        )
        gone += [f"{path} ({name})" for name in re.findall(r"\w+", names) if name not in there]
    assert gone == []


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
    found = []
    for name in files:
        path = ROOT / name
        if path.is_file() and path.stat().st_size < 2_000_000:
            text = path.read_text(encoding="utf-8", errors="ignore")
            found += [f"{name}: {m.group()}" for m in forbidden.finditer(text)]
    assert found == []


def test_the_examples_of_the_readme_exist():
    for readme in ("README.md", "README.zh-CN.md"):
        text = (ROOT / readme).read_text(encoding="utf-8")
        targets = set(re.findall(r"^\t?([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        for command in re.findall(r"make ([a-z-]+)", text):
            assert command in targets, f"{readme} names make {command}"
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (ROOT / link).exists(), f"{readme} links {link}"


def test_every_link_between_documents_leads_somewhere():
    gone = []
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("compose/*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not (page.parent / link).exists():
                gone.append(f"{page.relative_to(ROOT)} links {link}")
    assert gone == []


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
