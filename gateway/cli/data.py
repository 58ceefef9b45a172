"""``bfia-gateway data …``: this node's datasets, and which partner nodes may use them."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli import data_grants
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
    fitting,
    reporting,
    show,
    table,
)
from gateway.cli.console import say
from gateway.cli.data_grants import print_grants, ungranted
from gateway.cli.data_ids import DatasetId, Reason, address_of, path_of
from gateway.cli.inputs import new_file, opened
from gateway.text import counted

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

    from gateway.cli.transfer import Watched, bar

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
    from gateway.cli.transfer import bar

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


data_grants.add(commands)


def _switch(dataset: str, what: str, reason: str, config: Path, url: str, as_json: bool) -> None:
    with reporting(as_json), connect(config, url) as node:
        found = node.post(path_of(dataset, f"/{what}"), {"reason": reason})
        show(found) if as_json else say(f"{dataset} is {what}d")


def _path_or_exit(dataset: str, as_json: bool) -> str:
    with reporting(as_json):
        return path_of(dataset)
