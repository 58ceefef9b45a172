"""``bfia-gateway data …``: this node's datasets, and which partners may use them."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bfia_gateway_client.calls import segment
from bfia_gateway_client.progress import Progress
from gateway.cli import options
from gateway.cli.client import EXIT_BAD_INPUT, CallFailed, Client, content, opened
from gateway.cli.command import (
    Columns,
    Output,
    amount,
    command,
    listing,
    print_json,
    save,
    say,
    size,
    table,
    warn,
    when,
)
from gateway.cli.language import t
from gateway.errors import counted

commands = typer.Typer(name="data")

DatasetId = Annotated[
    str,
    typer.Argument(
        metavar="NAMESPACE#NAME",
        help="The dataset's id.",
        autocompletion=options.datasets,
    ),
]
SOURCE_PASSWORD = "BFIA_GATEWAY_SOURCE_PASSWORD"


def _option(
    kind: type,
    default: Any,
    text: str,
    *names: str,
) -> tuple[Any, Any]:
    return Annotated[kind, typer.Option(*names, help=text)], default


_TABLE = {
    "namespace": _option(str, ..., "First part of the dataset's id."),
    "name": _option(str, ..., "Second part."),
    "match_id": _option(str, "", "Column with the ids to match with other parties."),
    "label": _option(str, "", "Column with the label."),
    "description": _option(str, "", "Free text."),
}
"""options of every way to a dataset"""
_SENT = _TABLE | {
    "partitions": _option(int, 1, "Into how many files it is divided, by match id."),
    "extend_sid": _option(
        bool, False, "Put a unique column sid first; match ids may repeat then.", "--extend-sid"
    ),
    "overwrite": _option(bool, False, "Replace a dataset of the same id.", "--overwrite"),
    "storage": _option(
        str, "", "Which of the node's storages, `file` for its folder; else the first."
    ),
}
"""options of a table that is sent"""


def _path(dataset: str, rest: str = "") -> str:
    """Return a dataset's path on the operator listener. Raises `CallFailed`."""
    namespace, _, name = dataset.partition("#")
    if not (namespace and name):
        raise CallFailed(f"invalid dataset id {dataset!r}: expected namespace#name", EXIT_BAD_INPUT)
    return f"/api/v1/datasets/{segment(namespace)}/{segment(name)}{rest}"


@command(
    commands,
    "upload",
    "breast_guest.csv --namespace experiment --name guest --match-id id --label y",
    options=_SENT,
)
def upload(
    node: Client,
    file: Annotated[Path, typer.Argument(help="A table as CSV; - reads standard input.")],
    delimiter: Annotated[
        str,
        typer.Option(
            help="Character between the cells; recognised where none is given.", show_default=False
        ),
    ] = "",
    encoding: Annotated[
        str,
        typer.Option(help="Such as utf-8 or gbk; auto, or none: recognised.", show_default=False),
    ] = "",
    head: Annotated[
        bool, typer.Option("--head/--no-head", help="The first line names the columns.")
    ] = True,
    **table: Any,
) -> Output:
    """Send a table to the node. An upload that is interrupted, or refused, leaves nothing there."""
    from bfia_gateway_client.transfers import Watched

    encoding = "" if encoding == "auto" else encoding
    sent_as = "stdin.csv" if str(file) == "-" else file.name
    with opened(file) as source, Progress(f"sending {sent_as}", translate=t) as shown:
        watched = Watched(source, shown.moved)
        found = _sent(node, sent_as, watched, table | {"head": head}, delimiter, encoding)
    yield found
    _print_stored(found)
    say(_read_as(found))
    warn(found.get("warnings", []))


@command(
    commands,
    "import",
    '--from mysql+pymysql://reader@10.0.0.9/crm --query "select id, y, income from customers"'
    " --namespace experiment --name guest --match-id id --label y --password-file crm.password",
    options=_SENT,
)
def import_dataset(
    node: Client,
    source: Annotated[str, typer.Option("--from", help="The database, without a password.")],
    query: Annotated[str, typer.Option(help="A SELECT; its columns are the table's.")],
    password_file: Annotated[
        Path | None,
        typer.Option(help=f"File with the password; without it, {SOURCE_PASSWORD} is used."),
    ] = None,
    **table: Any,
) -> Output:
    """Send the rows of a query to the node as a table. This machine reads the database, in a read-only session."""
    from gateway.data.table_format import UTF8
    from gateway.store.source import Source

    word = os.environ.get(SOURCE_PASSWORD, "")
    if password_file is not None:
        word = content(password_file).decode(errors="replace")
    database = Source(source, word.rstrip("\r\n"))
    with database.selected(query) as rows:
        found = _sent(node, database.name, rows, table, ",", UTF8)
    yield found
    _print_stored(found)
    warn(found.get("warnings", []))


def _sent(
    node: Client,
    sent_as: str,
    file: Any,
    table: dict[str, Any],
    delimiter: str,
    encoding: str,
) -> dict[str, Any]:
    from bfia_gateway_client.transfers import send_table

    meta = {"match_id_name": table.pop("match_id"), "label_name": table.pop("label")}
    meta |= {"delimiter": delimiter, "encoding": encoding}
    try:
        return node.done(send_table(node.wire, sent_as, file, table, meta))
    except CallFailed as error:
        if error.reason != "DATASET_EXISTS":
            raise
        text = f"DATASET_EXISTS: {table['namespace']}#{table['name']} exists; to replace it: --overwrite"
        raise CallFailed(text, error.code, error.reason, error.data) from None


def _print_stored(found: Mapping[str, Any]) -> None:
    rows, columns = counted(found["count"], "row"), counted(len(found["columns"]), "column")
    say(
        f"stored {found['dataset_id']}: {rows}, {columns}, {counted(found['partitions'], 'partition')}"
    )


def _read_as(found: Mapping[str, Any]) -> str:
    from gateway.data.table_format import encoding_name

    delimiter = "tab" if found["delimiter"] == "\t" else found["delimiter"]
    return f"read as {encoding_name(found['encoding'])}, delimiter {delimiter}"


@command(
    commands,
    "register",
    "s3://joint/warehouse/customers --namespace experiment --name guest --match-id id",
    options=_TABLE,
)
def register(
    node: Client,
    place: Annotated[
        str, typer.Argument(help="Such as s3://bucket/path, file:///path or lake:path.")
    ],
    count: Annotated[
        bool, typer.Option("--count", help="Read all of it: count rows, check that no id repeats.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Register it again, as its files changed.")
    ] = False,
    reason: options.Reason = "",
    **table: Any,
) -> Output:
    """Register a table where it lies in one of the node's storages: CSV or Parquet, a file or a folder.

    Nothing is copied, and `data delete` leaves the files.
    """
    body = {
        "place": place,
        "count": count,
        "overwrite": overwrite,
        "reason": reason,
    }
    body |= {
        "match_id_name": table.pop("match_id"),
        "label_name": table.pop("label"),
        **table,
    }
    found = node.call("POST", "/api/v1/datasets", body, timeout=None)
    yield found
    columns, files = counted(len(found["columns"]), "column"), counted(found["partitions"], "file")
    rows = "rows not counted" if found["count"] is None else counted(found["count"], "row")
    say(f"registered {found['dataset_id']}: {rows}, {columns}, {files} of {found['format']}")
    warn(found["warnings"])


@command(commands, "list", "--namespace experiment", options=options.paged())
def list_datasets(
    node: Client,
    namespace: Annotated[str, typer.Option(help="Only of this namespace.")] = "",
    **page: Any,
) -> Output:
    """List the datasets that were uploaded here."""
    found = node.get("/api/v1/datasets", namespace=namespace, **page)
    yield found
    columns = {
        "dataset": "dataset_id",
        "rows": "count",
        "columns": "columns",
        "size": size("size"),
    }
    place: Columns = {"storage": lambda one: one["storage"].removeprefix("file")}
    more = {
        "created (UTC)": when("created_at", 16),
        "disabled": "disabled",
        "description": "description",
    }
    listing(
        found,
        "datasets",
        "dataset",
        {
            **columns,
            **place,
            **more,
        },
    )


@command(commands, "show", "experiment#breast_hetero_guest")
def show_dataset(node: Client, dataset: DatasetId) -> Output:
    """Show a dataset: its columns, where it came from, who may use it, which jobs do."""
    found = node.get(_path(dataset))
    yield found
    read_as = f"{found['format']}, where it lies" if found["in_place"] else _read_as(found)
    count, came_from = found["count"], f"{found['origin']} ({amount(found['size'])}), {t(read_as)}"
    if count is None:
        count = "not counted (data register --count)"
    if not found["origin"]:
        came_from = f"{t('left in the storage, not uploaded')} ({amount(found['size'])})"
        count = t("not known") if found["count"] is None else count
    rows = [
        ["rows", count],
        ["partitions", found["partitions"]],
        ["state", t("disabled" if found["disabled"] else "enabled")],
        ["description", found["description"]],
        ["from", came_from],
        ["created (UTC)", found["created_at"][:16].replace("T", " ")],
        ["match id", found["match_id_name"]],
        ["label", found["label_name"]],
        ["sid", found["sid"]],
        ["meta", json.dumps(found["meta"], ensure_ascii=False) if found["meta"] else ""],
        ["sha256", found["checksum"]],
        ["used by", found["used_by"] or t("no job under way")],
    ]
    rows += [["changed", _changed(found)]] if found["changed"] else []
    rows += [["storage", ": ".join(filter(None, (found["storage"], found["away"])))]]
    table(dataset, ["", ""], rows)
    listing({"columns": found["columns"]}, "columns", "column", {"name": "name", "type": "type"})
    if found["grants"]:
        _print_grants(found)
    else:
        say(_ungranted(found["grants_default"]))
    warn(found["warnings"])


@command(
    commands,
    "edit",
    'experiment#breast_hetero_guest --label y --match-id id --description "customers"',
)
def edit(
    node: Client,
    dataset: DatasetId,
    match_id: Annotated[str | None, typer.Option(help="Column with the ids; '' for none.")] = None,
    label: Annotated[str | None, typer.Option(help="Column with the label; '' for none.")] = None,
    description: Annotated[str | None, typer.Option(help="Free text.")] = None,
    meta: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Free keys to set as a JSON object; null deletes one."),
    ] = None,
    reason: options.Reason = "",
) -> Output:
    """Change the metadata of an uploaded dataset, without a new upload. What is left out stays.

    A table of several partitions is divided by its match id, and keeps it.
    """
    change: dict[str, Any] = {
        "match_id_name": match_id,
        "label_name": label,
        "description": description,
    }
    if meta is not None:
        try:
            change["meta"] = json.loads(meta)
        except (ValueError, RecursionError):
            raise CallFailed(
                f"--meta must be a JSON object (got {meta!r})", EXIT_BAD_INPUT
            ) from None
    change = {key: value for key, value in change.items() if value is not None}
    if not change:
        raise CallFailed(
            "nothing to change: give --match-id, --label, --description or --meta", EXIT_BAD_INPUT
        )
    found = node.call("PATCH", _path(dataset), {**change, "reason": reason}, timeout=None)
    yield found
    say(
        f"changed {dataset}: match id {found['match_id_name'] or 'none'}, label {found['label_name'] or 'none'}"
    )


@command(commands, "preview", "experiment#breast_hetero_guest --rows 5")
def preview(
    node: Client,
    dataset: DatasetId,
    rows: Annotated[
        int,
        typer.Option(
            min=0,
            max=100,
            help="How many rows.",
        ),
    ] = 10,
) -> Output:
    """Show the first rows of a dataset."""
    found = node.get(_path(dataset, "/preview"), rows=rows)
    yield found
    about = node.get(_path(dataset))
    keys = (about["match_id_name"], about["label_name"])
    table(
        "",
        found["columns"],
        found["rows"],
        [one for one in reversed(found["columns"]) if one not in keys],
    )
    if found["left_out"]:
        say(f"not shown: {found['left_out']}", err=True)
    if found["changed"]:
        warn([_changed(found)])


@command(commands, "download", "experiment#breast_hetero_guest -o guest.csv")
def download(
    node: Client,
    dataset: DatasetId,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; default: NAME.csv, or .parquet."),
    ] = None,
    force: options.Force = False,
) -> Output:
    """Fetch a dataset as it is stored; its checksum is compared before the file appears."""
    target = output or Path(f"{dataset.partition('#')[2]}.{node.get(_path(dataset))['format']}")
    yield from save(node, _path(dataset, "/download"), target, force)


@command(commands, "delete", "experiment#breast_hetero_guest --yes")
def delete(
    node: Client,
    dataset: DatasetId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Delete a dataset and its grants. Refused while a job that is not over uses it.

    The files of a table that was registered where it lies stay.
    """
    path = _path(dataset)
    if not yes and not as_json:
        typer.confirm(t(f"Delete {dataset} for good?"), abort=True, err=True)
    found = node.delete(path)
    print_json(found) if as_json else say(f"deleted {dataset}")


@command(commands, "disable", 'experiment#breast_hetero_guest -m "units are wrong"')
def disable(
    node: Client,
    dataset: DatasetId,
    reason: options.Reason = "",
) -> Output:
    """Disable a dataset: jobs that name it are refused, nothing further of those here starts."""
    yield node.post(_path(dataset, "/disable"), {"reason": reason})
    say(f"{dataset} is disabled")


@command(commands, "enable", "experiment#breast_hetero_guest")
def enable(
    node: Client,
    dataset: DatasetId,
    reason: options.Reason = "",
) -> Output:
    """Enable a disabled dataset again."""
    yield node.post(_path(dataset, "/enable"), {"reason": reason})
    say(f"{dataset} is enabled")


@command(commands, "publish", "experiment#breast_hetero_guest --to JG0100002200000020")
def publish(
    node: Client,
    dataset: DatasetId,
    to: Annotated[
        list[str] | None,
        typer.Option(help="Only for this node; may be repeated.", autocompletion=options.nodes),
    ] = None,
    reason: options.Reason = "",
) -> Output:
    """Let partners with a contract see name, columns and count, and apply for its use. Rows are never shown."""
    yield node.call("PUT", _path(dataset, "/published"), {"nodes": to or [], "reason": reason})
    say(f"{dataset} is published for {', '.join(to) if to else 'every partner with a contract'}")


@command(commands, "unpublish", "experiment#breast_hetero_guest")
def unpublish(node: Client, dataset: DatasetId) -> Output:
    """Show a dataset to no partner any more. Grants stay."""
    yield node.call("DELETE", _path(dataset, "/published"))
    say(f"{dataset} is not published")


@command(commands, "grant", "experiment#breast_hetero_guest JG0100002200000020 --days 90")
def grant(
    node: Client,
    dataset: DatasetId,
    node_id: options.NodeId,
    days: Annotated[
        float, typer.Option(min=0, help="Days until it ends; 0: when it is revoked.")
    ] = 0.0,
    reason: options.Reason = "",
    force: Annotated[
        bool, typer.Option("--force", help="Also to a node that has no route here.")
    ] = False,
) -> Output:
    """Let jobs with a partner node use a dataset; from its first grant on it serves no job with others.

    A node without a route here is refused: its id may be a typo.
    """
    body = {
        "reason": reason,
        **({"force": True} if force else {}),
        **({"days": days} if days else {}),
    }
    found = node.call("PUT", _path(dataset, f"/grants/{segment(node_id)}"), body)
    yield found
    say(f"{dataset} is granted to {node_id} {_until(found)}")
    warn(found.get("warnings", []))


@command(commands, "revoke", "experiment#breast_hetero_guest JG0100002200000020")
def revoke(
    node: Client,
    dataset: DatasetId,
    node_id: options.NodeId,
) -> Output:
    """End a grant immediately: nothing further starts of a job with that node that uses the dataset.

    It stays on record and keeps the dataset from serving others.
    """
    yield node.delete(_path(dataset, f"/grants/{segment(node_id)}"))
    say(f"{dataset} is no longer granted to {node_id}")


@command(commands, "grants", "--node JG0100002200000020", options=options.paged())
def grants(
    node: Client,
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="[NAMESPACE#NAME]",
            help="Only of this one.",
            autocompletion=options.datasets,
        ),
    ] = "",
    node_id: Annotated[
        str, typer.Option("--node", help="Only to this node.", autocompletion=options.nodes)
    ] = "",
    **page: Any,
) -> Output:
    """List what was granted to whom, until when; ended grants too."""
    found = node.get(
        "/api/v1/dataset-grants",
        node=node_id,
        dataset_id=dataset,
        **page,
    )
    yield found
    _print_grants(found)
    say(_ungranted(found["default"]))


def _changed(found: Mapping[str, Any]) -> str:
    return f"{found['changed']}; jobs are refused until it is registered again (data register --overwrite)"


def _print_grants(found: Mapping[str, Any]) -> None:
    columns: Columns = {
        "dataset": "dataset_id",
        "node": "node",
        "state": "state",
        "until": lambda one: _ends(one) or _until(one),
    }
    listing(
        found,
        "grants",
        "grant",
        {
            **columns,
            "by": "granted_by",
            "why": "reason",
        },
    )


def _until(found: Mapping[str, Any]) -> str:
    return f"until {end}" if (end := _ends(found)) else "until it is revoked"


def _ends(found: Mapping[str, Any]) -> str:
    end = found["revoked_at"] or found["expires_at"]
    return f"{end[:16].replace('T', ' ')} UTC" if end else ""


def _ungranted(default: str) -> str:
    """Return whom a dataset without any grant serves; ``default`` is the node's ``data.grants``."""
    who = "jobs with every node" if default == "open" else "no job with another node"
    return f"a dataset that was never granted serves {who} (data.grants: {default})"
