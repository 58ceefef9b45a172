"""``bfia-gateway data …``: this node's datasets, and which partner nodes may use them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    AsJson,
    CallFailed,
    Config,
    Force,
    Url,
    amount,
    connect,
    datasets,
    fitting,
    nodes,
    reporting,
    segment,
    show,
    table,
)
from gateway.cli.console import PAGE, After, Limit, print_more, say
from gateway.cli.inputs import finite, new_file, opened
from gateway.errors import counted

DatasetId = Annotated[
    str, typer.Argument(metavar="NAMESPACE#NAME", help="The dataset's id.", autocompletion=datasets)
]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; kept in the audit.")]


def address_of(dataset: str) -> tuple[str, str]:
    """Return namespace and name. Raises `CallFailed` for what is no dataset's id."""
    namespace, hash_sign, name = dataset.partition("#")
    if not (namespace and hash_sign and name):
        raise CallFailed(f"{dataset!r} is no dataset's id; it reads namespace#name", EXIT_BAD_INPUT)
    return namespace, name


def path_of(dataset: str, what: str = "") -> str:
    """Return a dataset's path on the operators' listener, with ``what`` behind it. Raises `CallFailed`."""
    namespace, name = address_of(dataset)
    return f"/api/v1/datasets/{segment(namespace)}/{segment(name)}{what}"


Partner = Annotated[str, typer.Argument(help="Id of the partner node.", autocompletion=nodes)]


def add_grants(app: typer.Typer) -> None:
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


commands = typer.Typer(
    help="Datasets of this node, and which partner nodes may use them.",
    no_args_is_help=True,
    epilog="Exit codes: 0 done, 1 the node said no, 2 bad input, 3 no answer from the node, 130 interrupted.",
)


def add(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="data")


@commands.command("upload")
def upload(
    file: Annotated[Path, typer.Argument(help="A table as CSV in UTF-8; - reads standard input.")],
    namespace: Annotated[str, typer.Option(help="First part of the dataset's id.")],
    name: Annotated[str, typer.Option(help="Second part.")],
    match_id: Annotated[str, typer.Option(help="Column with the ids to match with other parties.")] = "",
    label: Annotated[str, typer.Option(help="Column with the label.")] = "",
    delimiter: Annotated[str, typer.Option(help="Character between the cells.")] = ",",
    head: Annotated[bool, typer.Option("--head/--no-head", help="The first line names the columns.")] = True,
    partitions: Annotated[int, typer.Option(help="Into how many files it is divided, by match id.")] = 1,
    extend_sid: Annotated[bool, typer.Option("--extend-sid", help="Put a unique column sid first.")] = False,
    description: Annotated[str, typer.Option(help="Free text.")] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a dataset of the same id.")] = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Send a table to the node. An upload that is broken off, or refused, leaves nothing there.

    Example: bfia-gateway data upload breast_guest.csv --namespace experiment --name guest --match-id id --label y
    """
    import json

    from gateway.cli.client import Watched, bar

    meta = {"delimiter": delimiter, "match_id_name": match_id, "label_name": label}
    fields = {
        "namespace": namespace,
        "name": name,
        "head": json.dumps(head),
        "partitions": str(partitions),
        "extend_sid": json.dumps(extend_sid),
        "overwrite": json.dumps(overwrite),
        "description": description,
        "meta": json.dumps({key: value for key, value in meta.items() if value}, ensure_ascii=False),
    }
    with reporting(as_json), connect(config, url) as node:
        try:
            name_sent = "stdin.csv" if str(file) == "-" else file.name
            with fitting(), opened(file) as (source, size), bar(f"sending {name_sent}", size, as_json) as shown:
                sent = Watched(source, shown.moved, lambda: shown.says("the node checks and stores it"))
                found = node.send_form("/v2/component/upload/file", fields, name_sent, sent)["data"]
        except CallFailed as error:
            if error.reason != "DATASET_EXISTS":
                raise
            text = f"DATASET_EXISTS: {namespace}#{name} exists; to replace it: --overwrite"
            raise CallFailed(text, error.code, error.reason, error.data) from None
        except OSError as error:
            raise CallFailed(f"{file} cannot be read: {error.strerror}", EXIT_BAD_INPUT) from error
        if as_json:
            show(found)
        else:
            columns = len(found["columns"])
            what = ", ".join(
                counted(number, thing)
                for number, thing in (
                    (found["count"], "row"),
                    (columns, "column"),
                    (found["partitions"], "partition"),
                )
            )
            say(f"stored {found['dataset_id']}: {what}")


@commands.command("list")
def list_datasets(
    namespace: Annotated[str, typer.Option(help="Only of this namespace.")] = "",
    contains: Annotated[str, typer.Option(help="Only whose id holds this text.")] = "",
    disabled: Annotated[bool, typer.Option("--disabled", help="Only disabled ones.")] = False,
    after: Annotated[str, typer.Option(help="Only behind this id: the next page.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 100,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """List the datasets that were uploaded here.

    Example: bfia-gateway data list --namespace experiment
    """
    with reporting(as_json), connect(config, url) as node:
        query = {"namespace": namespace, "contains": contains, "after": after}
        asked = {key: value for key, value in query.items() if value}
        found = node.get("/api/v1/datasets", limit=limit, disabled=disabled or None, **asked)
        if as_json:
            show(found)
            return
        rows = [
            [
                d["dataset_id"],
                d["count"],
                d["columns"],
                amount(d["size"]),
                d["created_at"][:16].replace("T", " "),
                "disabled" if d["disabled"] else "",
                d["description"],
            ]
            for d in found["datasets"]
        ]
        columns = ["dataset", "rows", "columns", "size", "created (UTC)", "", "description"]
        table(f"{len(rows)} of {found['total']} datasets", columns, rows)
        if found["next"]:
            say(f"more: bfia-gateway data list --after {found['next']}", err=True)


@commands.command("show")
def show_dataset(
    dataset: DatasetId, config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False
) -> None:
    """Show a dataset: its columns, where it came from, who may use it, which jobs do.

    Example: bfia-gateway data show experiment#breast_hetero_guest
    """
    with reporting(as_json), connect(config, url) as node:
        found = node.get(path_of(dataset))
        if as_json:
            show(found)
            return
        rows = [
            ["rows", found["count"]],
            ["partitions", found["partitions"]],
            ["state", "disabled" if found["disabled"] else "enabled"],
            ["description", found["description"]],
            ["from", f"{found['origin']} ({amount(found['size'])}, delimiter {found['delimiter']!r})"],
            ["created (UTC)", found["created_at"][:16].replace("T", " ")],
            ["match id", found["match_id_name"]],
            ["label", found["label_name"]],
            ["sid", found["sid"]],
            ["sha256", found["checksum"]],
            ["used by", ", ".join(found["used_by"]) or "no job under way"],
        ]
        table(dataset, ["", ""], rows)
        table("columns", ["name", "type"], [[c["name"], c["type"]] for c in found["columns"]])
        if found["grants"]:
            print_grants(found["grants"])
        else:
            say(ungranted(found["grants_default"]))


@commands.command("preview")
def preview(
    dataset: DatasetId,
    rows: Annotated[int, typer.Option(min=0, max=100, help="How many rows.")] = 10,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Show the first rows of a dataset.

    Example: bfia-gateway data preview experiment#breast_hetero_guest --rows 5
    """
    with reporting(as_json), connect(config, url) as node:
        found = node.get(path_of(dataset, "/preview"), rows=rows)
        if as_json:
            show(found)
            return
        table("", found["columns"], found["rows"])
        if found["left_out"]:
            say(f"not shown: {found['left_out']}", err=True)


@commands.command("download")
def download(
    dataset: DatasetId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default: NAME.csv.")
    ] = None,
    force: Force = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Fetch a dataset as it lies in the storage; its checksum is compared before the file appears.

    Example: bfia-gateway data download experiment#breast_hetero_guest -o guest.csv
    """
    from gateway.cli.client import bar

    with reporting(as_json), connect(config, url) as node, bar(f"fetching {dataset}", None, as_json) as shown:
        target = output or Path(address_of(dataset)[1] + ".csv")
        with fitting():
            new_file(target, force)
        begun = False

        def watch(count: int, total: int | None) -> None:
            nonlocal begun
            if not begun:
                shown.begin(f"fetching {dataset}", total)
                begun = True
            shown.moved(count)

        size = node.download(path_of(dataset, "/download"), target, watch)
        if as_json:
            show({"file": str(target), "bytes": size})
        else:
            say(f"wrote {target} ({amount(size)})")


@commands.command("delete")
def delete(
    dataset: DatasetId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Delete a dataset and its grants. Refused while a job that is not over uses it.

    Example: bfia-gateway data delete experiment#breast_hetero_guest --yes
    """
    path = _path_or_exit(dataset, as_json)
    if not yes and not as_json:
        typer.confirm(f"Delete {dataset} for good?", abort=True, err=True)
    with reporting(as_json), connect(config, url) as node:
        found = node.delete(path)
        show(found) if as_json else say(f"deleted {dataset}")


@commands.command("disable")
def disable(
    dataset: DatasetId,
    reason: Reason = "",
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Take a dataset out of use: jobs that name it are refused, nothing further of those here starts.

    Example: bfia-gateway data disable experiment#breast_hetero_guest -m "units are wrong"
    """
    _switch(dataset, "disable", reason, config, url, as_json)


@commands.command("enable")
def enable(
    dataset: DatasetId,
    reason: Reason = "",
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Take a disabled dataset into use again.

    Example: bfia-gateway data enable experiment#breast_hetero_guest
    """
    _switch(dataset, "enable", reason, config, url, as_json)


add_grants(commands)


def _switch(dataset: str, what: str, reason: str, config: Path, url: str, as_json: bool) -> None:
    with reporting(as_json), connect(config, url) as node:
        found = node.post(path_of(dataset, f"/{what}"), {"reason": reason})
        show(found) if as_json else say(f"{dataset} is {what}d")


def _path_or_exit(dataset: str, as_json: bool) -> str:
    with reporting(as_json):
        return path_of(dataset)
