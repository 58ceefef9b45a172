"""Runs the cells of a notebook in order and in one namespace; a cell shows its last value."""

import ast
import json
from pathlib import Path
from typing import Any


def run(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Run a notebook; return the values of its variables, and the text that each cell shows.

    An exception of a cell is raised.
    """
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {"__name__": "__main__"}
    texts = []
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            value = run_cell(
                "".join(cell["source"]),
                f"{file.name}, cell {number}",
                names,
            )
            texts.append(repr(value))
    return names, texts


def run_cell(
    source: str,
    name: str,
    names: dict[str, Any],
) -> Any:
    """Run the statements of a cell, and return the value of its last expression or None."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, name, "exec"), names)
        return None
    tree.body.pop()
    exec(compile(tree, name, "exec"), names)
    return eval(
        compile(
            ast.Expression(last.value),
            name,
            "eval",
        ),
        names,
    )
