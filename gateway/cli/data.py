"""``bfia-gateway data …``: this node's datasets, and which partners may use them.

The commands yield the value that ``--json`` prints; the code after the yield prints it as text.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bfia_gateway_client.calls import segment
from bfia_gateway_client.progress import Progress
from gateway.cli import options
from gateway.cli.client import EXIT_BAD_INPUT, CallFailed, Client, content, open_input
from gateway.cli.command import Output, command, save
from gateway.cli.language import t
from gateway.cli.output import print_json, say, warn
from gateway.cli.tables import Columns, listing, table
from gateway.cli.values import amount, size, translate_own, when
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
_WITHOUT_END = "until it is revoked"  # of a grant that does not expire


def _option(
    kind: type,
    default: Any,
    text: str,
    *names: str,
) -> tuple[Any, Any]:
    """Return an option with its default, for `command`.

    ``names`` are passed for a switch only; an option with a value is named after its parameter.
    """
    return Annotated[kind, typer.Option(*names, help=text)], default


# Options of all commands that add a dataset.
_TABLE = {
    "namespace": _option(str, ..., "First part of the dataset's id."),
    "name": _option(str, ..., "Second part."),
    "match_id": _option(str, "", "Column with the ids to match with other parties."),
    "label": _option(str, "", "Column with the label."),
    "description": _option(str, "", "Free text."),
}
# Options of the commands that send a table.
_UPLOAD = _TABLE | {
    "partitions": _option(int, 1, "Into how many files it is divided, by match id."),
    "extend_sid": _option(
        bool, False, "Put a unique column sid first; match ids may repeat then.", "--extend-sid"
    ),
    "overwrite": _option(bool, False, "Replace a dataset of the same id.", "--overwrite"),
    "storage": _option(
        str,
        "",
        "Name of a storage, or `file` for the node's own folder; default: the first storage.",
    ),
}


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
    options=_UPLOAD,
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
        typer.Option(
            help="Such as utf-8 or gbk; recognised if it is omitted or `auto`.", show_default=False
        ),
    ] = "",
    head: Annotated[
        bool, typer.Option("--head/--no-head", help="The first line names the columns.")
    ] = True,
    **table_options: Any,
) -> Output:
    """Send a table to the node. An upload that is interrupted, or refused, leaves nothing there."""
    from bfia_gateway_client.transfers import ReportingFile

    if encoding == "auto":
        encoding = ""
    sent_as = "stdin.csv" if str(file) == "-" else file.name
    with open_input(file) as source, Progress(f"sending {sent_as}", translate=t) as progress:
        watched = ReportingFile(source, progress.advance)
        fields = table_options | {"head": head}
        stored = _send_table(
            node,
            watched,
            sent_as=sent_as,
            fields=fields,
            delimiter=delimiter,
            encoding=encoding,
        )
    yield stored
    _print_stored(stored)
    say(_format_text(stored))
    warn(stored.get("warnings", []))


@command(
    commands,
    "import",
    '--from mysql+pymysql://reader@10.0.0.9/crm --query "select id, y, income from customers"'
    " --namespace experiment --name guest --match-id id --label y --password-file crm.password",
    options=_UPLOAD,
)
def import_dataset(
    node: Client,
    source: Annotated[str, typer.Option("--from", help="The database, without a password.")],
    query: Annotated[str, typer.Option(help="A SELECT; its columns are the table's.")],
    password_file: Annotated[
        Path | None,
        typer.Option(help=f"File with the password; without it, {SOURCE_PASSWORD} is used."),
    ] = None,
    **table_options: Any,
) -> Output:
    """Send the rows of a query to the node as a table. This machine reads the database, in a
    read-only session.
    """
    from gateway.data.table_format import UTF8
    from gateway.store.source import Source

    password = os.environ.get(SOURCE_PASSWORD, "")
    if password_file is not None:
        password = content(password_file).decode(errors="replace")
    database = Source(source, password.rstrip("\r\n"))
    with database.selected(query) as rows:
        stored = _send_table(
            node,
            rows,
            sent_as=database.name,
            fields=table_options,
            delimiter=",",
            encoding=UTF8,
        )
    yield stored
    _print_stored(stored)
    warn(stored.get("warnings", []))


def _send_table(
    node: Client,
    file: Any,
    *,
    sent_as: str,
    fields: Mapping[str, Any],
    delimiter: str,
    encoding: str,
) -> dict[str, Any]:
    """Send a table; return the stored dataset. Raises `CallFailed`.

    ``sent_as`` is the file's name in the request, ``fields`` are the options `_UPLOAD` by name. The
    node recognises an empty ``delimiter`` or ``encoding``.
    """
    from bfia_gateway_client.transfers import send_table

    form = dict(fields)
    meta = {
        "match_id_name": form.pop("match_id"),
        "label_name": form.pop("label"),
        "delimiter": delimiter,
        "encoding": encoding,
    }
    try:
        return node.run_call(send_table(node.wire, sent_as, file, form, meta))
    except CallFailed as error:
        if error.reason != "DATASET_EXISTS":
            raise
        dataset_id = f"{form['namespace']}#{form['name']}"
        text = f"DATASET_EXISTS: {dataset_id} exists; to replace it: --overwrite"
        raise CallFailed(text, error.code, error.reason, error.data) from None


def _print_stored(stored: Mapping[str, Any]) -> None:
    """Print the numbers of rows, columns and partitions of an uploaded dataset."""
    rows = counted(stored["count"], "row")
    columns = counted(len(stored["columns"]), "column")
    partitions = counted(stored["partitions"], "partition")
    say(f"stored {stored['dataset_id']}: {rows}, {columns}, {partitions}")


def _format_text(dataset: Mapping[str, Any]) -> str:
    """Return encoding and delimiter of an uploaded table, as a phrase."""
    from gateway.data.table_format import encoding_name

    delimiter = "tab" if dataset["delimiter"] == "\t" else dataset["delimiter"]
    return f"read as {encoding_name(dataset['encoding'])}, delimiter {delimiter}"


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
    **table_options: Any,
) -> Output:
    """Register a table that is already in one of the node's storages: CSV or Parquet, a file or a
    folder.

    Nothing is copied, and `data delete` leaves the files.
    """
    body = {
        "place": place,
        "count": count,
        "overwrite": overwrite,
        "reason": reason,
        "match_id_name": table_options.pop("match_id"),
        "label_name": table_options.pop("label"),
        **table_options,
    }
    dataset = node.call("POST", "/api/v1/datasets", body, timeout=None)
    yield dataset
    rows = "rows not counted"
    if dataset["count"] is not None:
        rows = counted(dataset["count"], "row")
    columns = counted(len(dataset["columns"]), "column")
    files = counted(dataset["partitions"], "file")
    say(f"registered {dataset['dataset_id']}: {rows}, {columns}, {files} of {dataset['format']}")
    warn(dataset["warnings"])


@command(commands, "list", "--namespace experiment", options=options.paged())
def list_datasets(
    node: Client,
    namespace: Annotated[str, typer.Option(help="Only of this namespace.")] = "",
    **paging: Any,
) -> Output:
    """List the datasets that were uploaded here, and tables that other programs left in the
    storages.
    """
    response = node.get("/api/v1/datasets", namespace=namespace, **paging)
    yield response
    columns: Columns = {
        "dataset": "dataset_id",
        "rows": "count",
        "columns": "columns",
        "size": size("size"),
        "storage": _storage_name,
        "created (UTC)": when("created_at", length=16),
        "disabled": "disabled",
        "description": "description",
    }
    listing(response, "datasets", columns, noun="dataset")
    if response.get("unregistered"):
        _print_unregistered(response["unregistered"])
    warn(response.get("warnings", []))


def _storage_name(dataset: Mapping[str, Any]) -> str:
    """Return the name of a dataset's storage; empty for the node's folder."""
    name = str(dataset["storage"])
    if name == "file":
        return ""
    return name


def _print_unregistered(tables: Sequence[Mapping[str, Any]]) -> None:
    """Print the tables in the storages that are no datasets yet."""
    rows = [[entry["dataset_id"], entry["storage"]] for entry in tables]
    table("left in the storage, not registered", ["dataset", "storage"], rows)


@command(commands, "show", "experiment#breast_hetero_guest")
def show_dataset(node: Client, dataset: DatasetId) -> Output:
    """Show a dataset: its columns, its origin, who may use it, which jobs do."""
    response = node.get(_path(dataset))
    yield response
    table(dataset, ["", ""], _dataset_rows(response))
    columns: Columns = {"name": "name", "type": "type"}
    listing({"columns": response["columns"]}, "columns", columns, noun="column")
    if response["grants"]:
        _print_grants(response)
    else:
        say(_default_grant_text(response["grants_default"]))
    warn(response["warnings"])


def _dataset_rows(dataset: Mapping[str, Any]) -> list[list[Any]]:
    """Return the facts about a dataset, each with its name."""
    meta = ""
    if dataset["meta"]:
        meta = json.dumps(dataset["meta"], ensure_ascii=False)
    rows = [
        ["rows", _row_count(dataset)],
        ["partitions", dataset["partitions"]],
        ["state", t("disabled" if dataset["disabled"] else "enabled")],
        ["description", dataset["description"]],
        ["from", _origin(dataset)],
        ["created (UTC)", dataset["created_at"][:16].replace("T", " ")],
        ["match id", dataset["match_id_name"]],
        ["label", dataset["label_name"]],
        ["sid", dataset["sid"]],
        ["meta", meta],
        ["sha256", dataset["checksum"]],
        ["used by", dataset["used_by"] or t("no job under way")],
    ]
    if dataset["changed"]:
        rows.append(["changed", _change_text(dataset)])
    # "away" says why the storage cannot be used now; it is empty for one that can.
    storage = ": ".join(filter(None, (dataset["storage"], dataset["away"])))
    rows.append(["storage", storage])
    return rows


def _row_count(dataset: Mapping[str, Any]) -> Any:
    """Return the number of a dataset's rows, or why it is not known."""
    if dataset["count"] is not None:
        return dataset["count"]
    if not dataset["origin"]:  # another program left the table in the storage
        return t("not known")
    return "not counted (data register --count)"


def _origin(dataset: Mapping[str, Any]) -> str:
    """Return where a dataset came from, its size and its form."""
    size_text = amount(dataset["size"])
    if not dataset["origin"]:
        return f"{t('left in the storage, not uploaded')} ({size_text})"
    if dataset["in_place"]:
        format_text = f"{dataset['format']}, where it lies"
    else:
        format_text = _format_text(dataset)
    return f"{dataset['origin']} ({size_text}), {t(format_text)}"


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
    """Change the metadata of an uploaded dataset, without a new upload. Omitted options change
    nothing.

    The match id of an uploaded table with several partitions cannot be changed, as it decides the
    partition of each row.
    """
    values = {
        "match_id_name": match_id,
        "label_name": label,
        "description": description,
        "meta": _parse_meta(meta),
    }
    change = {key: value for key, value in values.items() if value is not None}
    if not change:
        text = "nothing to change: give --match-id, --label, --description or --meta"
        raise CallFailed(text, EXIT_BAD_INPUT)
    response = node.call("PATCH", _path(dataset), {**change, "reason": reason}, timeout=None)
    yield response
    new_match_id = response["match_id_name"] or "none"
    new_label = response["label_name"] or "none"
    say(f"changed {dataset}: match id {new_match_id}, label {new_label}")


def _parse_meta(text: str | None) -> Any:
    """Parse the value of ``--meta``; None without the option. Raises `CallFailed`."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        message = f"--meta must be a JSON object (got {text!r})"
        raise CallFailed(message, EXIT_BAD_INPUT) from None


@command(commands, "preview", "experiment#breast_hetero_guest --rows 5")
def preview(
    node: Client,
    dataset: DatasetId,
    rows: Annotated[
        int,
        typer.Option(min=0, max=100, help="How many rows."),
    ] = 10,
) -> Output:
    """Show the first rows of a dataset."""
    response = node.get(_path(dataset, "/preview"), rows=rows)
    yield response
    description = node.get(_path(dataset))
    key_columns = (description["match_id_name"], description["label_name"])
    columns = response["columns"]
    # In a narrow terminal the last columns are left out first, but not match id and label.
    dispensable = [name for name in reversed(columns) if name not in key_columns]
    table("", columns, response["rows"], dispensable)
    if response["left_out"]:
        say(f"not shown: {response['left_out']}", err=True)
    if response["changed"]:
        warn([_change_text(response)])


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
    target = output
    if target is None:
        extension = node.get(_path(dataset))["format"]
        target = Path(f"{dataset.partition('#')[2]}.{extension}")
    yield from save(node, _path(dataset, "/download"), target, force)


@command(commands, "delete", "experiment#breast_hetero_guest --yes")
def delete(
    node: Client,
    dataset: DatasetId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Delete a dataset and its grants. Refused while a job that is not over uses it.

    The files of a registered table stay.
    """
    path = _path(dataset)
    if not yes and not as_json:
        typer.confirm(
            t(f"Delete {dataset} for good?"),
            abort=True,
            err=True,
        )
    response = node.delete(path)
    if as_json:
        print_json(response)
    else:
        say(f"deleted {dataset}")


@command(commands, "disable", 'experiment#breast_hetero_guest -m "units are wrong"')
def disable(
    node: Client,
    dataset: DatasetId,
    reason: options.Reason = "",
) -> Output:
    """Disable a dataset: new jobs with it are refused, and no further task of the present ones
    starts.
    """
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
    """Let partners with a contract see name, columns and count, and apply for its use. Rows are
    never shown.
    """
    yield node.call("PUT", _path(dataset, "/published"), {"nodes": to or [], "reason": reason})
    partners = ", ".join(to) if to else "every partner with a contract"
    say(f"{dataset} is published for {partners}")


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
        float, typer.Option(min=0, help="Valid for this number of days; 0: until it is revoked.")
    ] = 0.0,
    reason: options.Reason = "",
    force: Annotated[
        bool, typer.Option("--force", help="Also to a node that has no route here.")
    ] = False,
) -> Output:
    """Let jobs with a partner node use a dataset; from its first grant on it serves no job with
    others.

    A node without a route here is refused: its id may be a typo.
    """
    body: dict[str, Any] = {"reason": reason}
    if force:
        body["force"] = True
    if days:
        body["days"] = days
    response = node.call("PUT", _path(dataset, f"/grants/{segment(node_id)}"), body)
    yield response
    say(f"{dataset} is granted to {node_id} {_until(response)}")
    warn(response.get("warnings", []))


@command(commands, "revoke", "experiment#breast_hetero_guest JG0100002200000020")
def revoke(
    node: Client,
    dataset: DatasetId,
    node_id: options.NodeId,
) -> Output:
    """End a grant immediately: no further task starts in jobs with that node that use the dataset.

    The node's permits for the dataset end, too. The ended grant stays on record, so the dataset
    still counts as granted: it serves no nodes without a grant.
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
        str,
        typer.Option(
            "--node",
            help="Only to this node.",
            autocompletion=options.nodes,
        ),
    ] = "",
    **paging: Any,
) -> Output:
    """List which dataset was granted to whom and until when, including ended grants."""
    response = node.get(
        "/api/v1/dataset-grants",
        node=node_id,
        dataset_id=dataset,
        **paging,
    )
    yield response
    _print_grants(response)
    say(_default_grant_text(response["default"]))


def _change_text(dataset: Mapping[str, Any]) -> str:
    """Return how the files of a registered dataset have changed, and what to do about it."""
    return (
        f"{dataset['changed']}; jobs are refused until it is registered again (data register "
        "--overwrite)"
    )


def _print_grants(response: Mapping[str, Any]) -> None:
    """Print a page of grants."""
    columns: Columns = {
        "dataset": "dataset_id",
        "node": "node",
        "state": "state",
        "until": _grant_end,
        "by": _grantor,
        "why": _grant_reason,
    }
    listing(response, "grants", columns, noun="grant")


def _grantor(grant: Mapping[str, Any]) -> str:
    """Return who granted; a name that this program entered is translated."""
    return translate_own(grant["granted_by"])


def _grant_reason(grant: Mapping[str, Any]) -> str:
    """Return the reason of a grant; a reason that this program entered is translated."""
    return translate_own(grant["reason"])


def _grant_end(grant: Mapping[str, Any]) -> str:
    """Return the end of a grant for the column ``until``: a time, or that it has no end."""
    return _end_of(grant) or _WITHOUT_END


def _until(grant: Mapping[str, Any]) -> str:
    """Return how long a grant is or was valid, as the end of a sentence."""
    end = _end_of(grant)
    if not end:
        return _WITHOUT_END
    return f"until {end}"


def _end_of(grant: Mapping[str, Any]) -> str:
    """Return the time of a grant's revocation or expiry; empty without either."""
    end = grant["revoked_at"] or grant["expires_at"]
    if not end:
        return ""
    return f"{end[:16].replace('T', ' ')} UTC"


def _default_grant_text(default: str) -> str:
    """Return who may use a dataset without any grant, by the setting ``data.grants``."""
    who = "jobs with every node" if default == "open" else "no job with another node"
    return f"a dataset that was never granted serves {who} (data.grants: {default})"
