"""``bfia-gateway job metadata``: what outputs are like, at this node or at a partner that has granted it."""

from typing import Annotated, Any

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    AsJson,
    Config,
    Url,
    amount,
    connect,
    reporting,
    segment,
    show,
    table,
)
from gateway.cli.completing import jobs

_SHOWN = 8
"""columns that a line names"""


def add(commands: typer.Typer) -> None:
    """Add the command to those of jobs."""
    commands.command("metadata")(metadata)


def metadata(
    job_id: Annotated[str, typer.Argument(help="The job's id.", autocompletion=jobs)],
    task: Annotated[str, typer.Argument(help="Name of the task in the flow.")],
    party: Annotated[str, typer.Argument(help="Whose: host.0, or host for all parties of that role.")],
    key: Annotated[str, typer.Argument(help="Key of one output in the flow; default: all of the task.")] = "",
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Show what a task's outputs are like: columns, rows, size; at a partner what it has granted to this node.

    Never what is in them. There its admin grants an output as a dataset: data grant NAMESPACE#NAME THIS-NODE.

    Example: bfia-gateway job metadata job-0123456789abcdef0123456789abcdef intersect host.0
    """
    path = f"/api/v1/jobs/{segment(job_id)}/metadata/{segment(task)}/{segment(party)}"
    with reporting(as_json), connect(config, url) as node:
        found = node.get(f"{path}/{segment(key)}" if key else path)
        if as_json:
            show(found)
            return
        title = f"outputs of {task} at {party}"
        table(title, ["key", "type", "rows", "size", "columns", "dataset id"], [_row(o) for o in found["outputs"]])


def _row(one: dict[str, Any]) -> list[str]:
    if not one["there"]:
        return [one["key"], one["type"], "", "", "not there", f"{one['namespace']}#{one['name']}"]
    names = [f"{c['name']} {c['type']}".strip() for c in one["columns"]]
    more = len(names) - _SHOWN + one["more_columns"]
    said = ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    rows = "" if one["count"] is None else str(one["count"])
    return [one["key"], one["type"], rows, amount(one["bytes"]), said, f"{one['namespace']}#{one['name']}"]
