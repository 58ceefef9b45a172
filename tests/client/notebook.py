"""Runs a notebook as its reader would: every cell in its order, in one namespace; a cell's last value is shown."""

import ast
import json
from pathlib import Path
from typing import Any


def run(file: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the names that the cells leave, and what each shows. Raises what a cell raises."""
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for number, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        where = f"{file.name}, cell {number}"
        exec(compile(tree, where, "exec"), names)
        value = (
            eval(compile(ast.Expression(last.value), where, "eval"), names)
            if isinstance(last, ast.Expr)
            else None
        )
        shown.append(repr(value))
    return names, shown
