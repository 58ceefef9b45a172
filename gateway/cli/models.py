"""``bfia-gateway model …``: models of trainings, and jobs that predict with them."""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from bfia_gateway_client.calls import path_of
from gateway.cli import options
from gateway.cli.client import EXIT_BAD_INPUT, CallFailed, Client, open_input
from gateway.cli.command import Output, command, save
from gateway.cli.output import print_json, say
from gateway.cli.tables import Columns, listing, table
from gateway.cli.values import amount, compact, short, size, when

commands = typer.Typer(name="model")

ModelId = Annotated[str, typer.Argument(help="Id of the model.")]
Version = Annotated[str, typer.Argument(help="Its version.")]


@command(commands, "list", options=options.paged())
def list_models(node: Client, **paging: Any) -> Output:
    """List the versions stored here, the newest first."""
    page_of_models = node.get("/api/v1/models", **paging)
    yield page_of_models
    job_ids = [version["job_id"] for version in page_of_models["models"]]
    short_ids = dict(zip(job_ids, short(job_ids), strict=True))

    def origin(version: Mapping[str, Any]) -> str:
        """Return the job of the training, or that the version was imported."""
        if version["imported"]:
            return "imported"
        return str(short_ids[version["job_id"]])

    columns: Columns = {
        "model": "model_id",
        "version": "version",
        "parties here": "here",
        "deployed": "deployed",
        "from": origin,
        "made (UTC)": when("created_at"),
        "size": size("bytes"),
    }
    listing(
        page_of_models,
        "models",
        columns,
        noun="version",
        dispensable=("from", "deployed"),
    )


@command(commands, "show", "credit 3 --verify")
def show_model(
    node: Client,
    model_id: ModelId,
    version: Version,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare the files with their checksums.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show a version with its parties and files; with --verify the exit code is 1 if one is gone or
    changed.
    """
    model = node.get(
        path_of("models", model_id, version),
        verify=verify,
    )
    if as_json:
        print_json(model)
    else:
        _print_in_full(model)
    damage = model.get("damage")
    if damage:
        raise CallFailed("\n".join(damage), reason="MODEL_DAMAGED")
    if verify and not as_json:
        say("every file is as it was when the model was saved")


@command(
    commands,
    "predict",
    "credit 3 --data guest.0=bank#september --data host.0=shop#september",
    timeout=120,
)
def predict(
    node: Client,
    model_id: ModelId,
    version: Version,
    data: Annotated[
        list[str],
        typer.Option(
            help="Party and table, as in guest.0=bank#september; for each that trained with one."
        ),
    ],
    dry_run: options.DryRun = False,
) -> Output:
    """Predict with a version: the flow and parameters of its training, with other tables.

    Shows what differs from the training; --dry-run creates no job.
    """
    datasets = dict(_parse_table(text) for text in data)
    body = {"datasets": datasets, "dry_run": dry_run}
    prediction = node.post(path_of("models", model_id, version, "predict"), body)
    yield prediction
    rows = []
    for change in prediction["differences"]:
        rows.append([change["path"], compact(change["before"]), compact(change["after"])])
    table("differs from the training", ["where", "training", "prediction"], rows)
    job_id = prediction["job_id"]
    if job_id:  # none for a dry run
        say(f"{job_id}; watch it with: bfia-gateway job watch {quote(job_id)}")
    else:
        say("nothing was created")


def _parse_table(text: str) -> tuple[str, str]:
    """Return the party and the dataset id of an option ``--data``. Raises `CallFailed`."""
    party, separator, table_id = text.partition("=")
    if not (party and separator and table_id):
        raise CallFailed(
            f"--data {text!r} must be PARTY=NAMESPACE#NAME, as in guest.0=bank#september",
            EXIT_BAD_INPUT,
        )
    return party, table_id


@command(commands, "deploy", "credit 3 --node JG0100003300000030")
def deploy(
    node: Client,
    model_id: ModelId,
    version: Version,
    node_id: Annotated[
        list[str] | None,
        typer.Option(
            "--node", help="May predict with it though it did not train it; may be repeated."
        ),
    ] = None,
) -> Output:
    """Let jobs predict with a version. Without --node, earlier grants stay."""
    body = None
    if node_id:
        body = {"nodes": node_id}
    model = node.post(path_of("models", model_id, version, "deploy"), body)
    yield model
    _print_model(model)


@command(commands, "undeploy", "credit 3")
def undeploy(
    node: Client,
    model_id: ModelId,
    version: Version,
) -> Output:
    """Take no further job that predicts with a version; those under way continue."""
    model = node.post(path_of("models", model_id, version, "undeploy"))
    yield model
    _print_model(model)


@command(commands, "export", "credit 3 -o credit-3.zip")
def export(
    node: Client,
    model_id: ModelId,
    version: Version,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")],
    force: options.Force = False,
) -> Output:
    """Write a version into an archive: a zip of a manifest with checksums and the files."""
    yield from save(node, path_of("models", model_id, version, "export"), output, force)


@command(commands, "import", "credit-3.zip")
def import_model(
    node: Client,
    archive: Annotated[Path, typer.Argument(help="An archive that `model export` wrote.")],
) -> Output:
    """Add the version that an archive holds; nothing is kept unless every checksum is right."""
    from bfia_gateway_client.wire import File

    with open_input(archive) as file:
        upload = File(archive.name, file, "application/zip")
        model = node.call(
            "POST",
            "/api/v1/models/import",
            file=upload,
            timeout=None,
        )
    yield model
    _print_model(model)


@command(commands, "delete", "credit 3")
def delete_model(
    node: Client,
    model_id: ModelId,
    version: Version,
) -> Output:
    """Delete a version and its files. Refused while it is deployed, or used by a job that is not
    over.
    """
    yield node.delete(path_of("models", model_id, version))
    say(f"deleted version {version} of model {model_id}")


def _print_in_full(model: Mapping[str, Any]) -> None:
    """Print a version with the parties of its training, and a table of the files at this node."""
    _print_model(model)
    trainers = [f"{p['role']}.{p['index']} at {p['node']}" for p in model["parties"]]
    parties = ", ".join(trainers)
    say(f"trained by {parties} in {model['job_id']}")
    say(f"digest {model['digest'] or '-'}")
    table(
        "",
        ["party", "task", "component", "file", "size", "sha256"],
        _file_rows(model),
    )


def _file_rows(model: Mapping[str, Any]) -> list[list[str]]:
    """Return a row per file of a version at this node: its party, task and component, and its name,
    size and checksum.
    """
    rows = []
    for party in model["models"]:
        for part in party["parts"]:
            origin = [party["party"], part["task"], part["component"]]
            for file in part["files"]:
                rows.append([*origin, file["name"], amount(file["size"]), file["sha256"]])
    return rows


def _print_model(model: Mapping[str, Any]) -> None:
    """Print a version in a line: its parties at this node, its deployment and its grants."""
    state = "deployed" if model["deployed"] else "not deployed"
    grants = f", also for {', '.join(model['granted'])}" if model["granted"] else ""
    parties = ", ".join(model["here"])
    say(f"version {model['version']} of model {model['model_id']} ({parties}): {state}{grants}")
