"""``bfia-gateway model …``: the models that trainings left here, and jobs that predict with them."""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from bfia_gateway_client.calls import path_of
from gateway.cli import options
from gateway.cli.client import EXIT_BAD_INPUT, CallFailed, Client, opened
from gateway.cli.command import (
    Output,
    amount,
    command,
    compact,
    listing,
    print_json,
    save,
    say,
    short,
    size,
    table,
    when,
)

commands = typer.Typer(name="model")

ModelId = Annotated[str, typer.Argument(help="Id of the model.")]
Version = Annotated[str, typer.Argument(help="Its version.")]


@command(commands, "list", options=options.paged())
def list_models(node: Client, **page: Any) -> Output:
    """List the versions stored here, the newest first."""
    found = node.get("/api/v1/models", **page)
    yield found
    columns = {
        "model": "model_id",
        "version": "version",
        "parties here": "here",
        "deployed": "deployed",
    }
    jobs = [one["job_id"] for one in found["models"]]
    ids = dict(zip(jobs, short(jobs), strict=True))
    origin = {"from": lambda one: "imported" if one["imported"] else ids[one["job_id"]]}
    more = {"made (UTC)": when("created_at"), "size": size("bytes")}
    listing(
        found,
        "models",
        "version",
        {
            **columns,
            **origin,
            **more,
        },
        spare=("from", "deployed"),
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
    """Show a version with its parties and files; with --verify the exit code is 1 if one is gone or changed."""
    found = node.get(path_of("models", model_id, version), verify=verify)
    if as_json:
        print_json(found)
    else:
        _print_model(found)
        parties = ", ".join(f"{p['role']}.{p['index']} at {p['node']}" for p in found["parties"])
        say(f"trained by {parties} in {found['job_id']}")
        rows = [
            [m["party"], p["task"], p["component"], f["name"], amount(f["size"]), f["sha256"]]
            for m in found["models"]
            for p in m["parts"]
            for f in p["files"]
        ]
        table("", ["party", "task", "component", "file", "size", "sha256"], rows)
    if damage := found.get("damage"):
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
    datasets = dict(_table_of(one) for one in data)
    body = {"datasets": datasets, "dry_run": dry_run}
    found = node.post(path_of("models", model_id, version, "predict"), body)
    yield found
    rows = [
        [one["path"], compact(one["before"]), compact(one["after"])] for one in found["differences"]
    ]
    table("differs from the training", ["where", "training", "prediction"], rows)
    say(
        f"{found['job_id']}; watch it with: bfia-gateway job watch {quote(found['job_id'])}"
        if found["job_id"]
        else "nothing was created"
    )


def _table_of(text: str) -> tuple[str, str]:
    party, found, table_id = text.partition("=")
    if not (party and found and table_id):
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
    found = node.post(
        path_of("models", model_id, version, "deploy"), {"nodes": node_id} if node_id else None
    )
    yield found
    _print_model(found)


@command(commands, "undeploy", "credit 3")
def undeploy(
    node: Client,
    model_id: ModelId,
    version: Version,
) -> Output:
    """Take no further job that predicts with a version; those under way continue."""
    found = node.post(path_of("models", model_id, version, "undeploy"))
    yield found
    _print_model(found)


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

    with opened(archive) as file:
        found = node.call(
            "POST",
            "/api/v1/models/import",
            file=File(archive.name, file, "application/zip"),
            timeout=None,
        )
    yield found
    _print_model(found)


@command(commands, "delete", "credit 3")
def delete_model(
    node: Client,
    model_id: ModelId,
    version: Version,
) -> Output:
    """Delete a version and its files. Refused while it is deployed, or used by a job that is not over."""
    yield node.delete(path_of("models", model_id, version))
    say(f"deleted version {version} of model {model_id}")


def _print_model(found: Mapping[str, Any]) -> None:
    state = "deployed" if found["deployed"] else "not deployed"
    more = f", also for {', '.join(found['granted'])}" if found["granted"] else ""
    say(
        f"version {found['version']} of model {found['model_id']} ({', '.join(found['here'])}): {state}{more}"
    )
