"""``bfia-gateway data grant|revoke|grants``: which partner nodes may use this node's datasets."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from gateway.cli.client import DEFAULT_CONFIG, AsJson, Config, Url, connect, reporting, segment, show, table
from gateway.cli.completing import datasets, nodes
from gateway.cli.console import say
from gateway.cli.data_ids import DatasetId, Reason, path_of
from gateway.cli.inputs import finite
from gateway.cli.paging import PAGE, After, Limit, print_more
from gateway.text import counted

Partner = Annotated[str, typer.Argument(help="Id of the partner node.", autocompletion=nodes)]


def add(app: typer.Typer) -> None:
    """Add the commands to those of datasets."""
    app.command("grant")(grant)
    app.command("revoke")(revoke)
    app.command("grants")(grants)


def grant(
    dataset: DatasetId,
    node_id: Partner,
    days: Annotated[
        float,
        typer.Option(min=0, help="Days until it ends; 0: when it is revoked.", callback=finite()),
    ] = 0.0,
    until: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M"], help="When it ends, UTC.")
    ] = None,
    reason: Reason = "",
    force: Annotated[bool, typer.Option("--force", help="Also to a node that has no route here.")] = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Let jobs with a partner node use a dataset; from its first grant on it serves no job with others.

    A node without a route here is refused: its id may be a slip.

    Example: bfia-gateway data grant experiment#breast_hetero_guest JG0100002200000020 --days 90
    """
    body: dict[str, Any] = {"reason": reason, **({"force": True} if force else {})}
    if days:
        body["days"] = days
    if until is not None:
        body["expires_at"] = until.replace(tzinfo=UTC).isoformat()
    with reporting(as_json), connect(config, url) as node:
        found = node.call("PUT", path_of(dataset, f"/grants/{segment(node_id)}"), body)
        if as_json:
            show(found)
        else:
            say(f"{dataset} is granted to {node_id} {_until(found)}")
            for warning in found.get("warnings", []):
                say(f"warning: {warning}", err=True)


def revoke(
    dataset: DatasetId,
    node_id: Partner,
    forget: Annotated[
        bool, typer.Option("--forget", help="Take it off the record too, as if it had never been.")
    ] = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """End a grant at once: nothing further starts of a job with that node that uses the dataset.

    It stays on record and keeps the dataset from serving others; `--forget` undoes one that was a slip.

    Example: bfia-gateway data revoke experiment#breast_hetero_guest JG0100002200000020
    """
    with reporting(as_json), connect(config, url) as node:
        if not forget:
            found = node.delete(path_of(dataset, f"/grants/{segment(node_id)}"))
            show(found) if as_json else say(f"{dataset} is no longer granted to {node_id}")
            return
        found = node.delete(path_of(dataset, f"/grants/{segment(node_id)}"), forget="true")
        if as_json:
            show(found)
            return
        say(f"the grant of {dataset} to {node_id} is forgotten")
        left = node.get(path_of(dataset))
        if not left["grants"]:
            say(ungranted(left["grants_default"]))


def grants(
    dataset: Annotated[
        str, typer.Argument(metavar="[NAMESPACE#NAME]", help="Only of this one.", autocompletion=datasets)
    ] = "",
    node_id: Annotated[str, typer.Option("--node", help="Only to this node.", autocompletion=nodes)] = "",
    after: After = "",
    limit: Limit = PAGE,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """List what was granted to whom, until when; ended grants too.

    Example: bfia-gateway data grants --node JG0100002200000020
    """
    with reporting(as_json), connect(config, url) as node:
        narrow = {"node": node_id or None, "dataset_id": dataset or None}
        found = node.get("/api/v1/dataset-grants", **narrow, after=after or None, limit=limit)
        if as_json:
            show(found)
            return
        print_grants(found["grants"])
        print_more(found)
        say(ungranted(found["default"]))


def print_grants(found: list[Mapping[str, Any]]) -> None:
    """Print grants as a table."""
    rows = [[g["dataset_id"], g["node"], g["state"], _until(g), g["granted_by"], g["reason"]] for g in found]
    table(counted(len(rows), "grant"), ["dataset", "node", "state", "until", "by", "why"], rows)


def _until(found: Mapping[str, Any]) -> str:
    end = found["revoked_at"] or found["expires_at"]
    return f"until {end[:16].replace('T', ' ')} UTC" if end else "until it is revoked"


def ungranted(default: str) -> str:
    """Say whom a dataset serves that was granted to nobody; ``default`` is the node's ``data.grants``."""
    who = "jobs with every node" if default == "open" else "no job with another node"
    return f"a dataset that was never granted serves {who} (data.grants: {default})"
