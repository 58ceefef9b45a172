"""``bfia-gateway model …``: the models that trainings left at a node."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import CallFailed, Client, segment
from gateway.cli.command import After, AsJson, Force, Limit, Output, command, group
from gateway.cli.console import Columns, amount, listing, print_json, say, size, table, when
from gateway.cli.inputs import new_file

commands = group("Models that trainings left here: show, deploy, export, import.")

ModelId = Annotated[str, typer.Argument(help="Id of the model.")]
Version = Annotated[str, typer.Argument(help="Its version.")]


@command(commands, "list")
def list_models(
    node: Client,
    model_id: Annotated[str, typer.Option(help="Only versions of this model.")] = "",
    after: After = "",
    limit: Limit = 100,
) -> Output:
    """List the versions stored here, the newest first.

    Example: bfia-gateway model list
    """
    found = node.get("/api/v1/models", model_id=model_id, after=after, limit=limit)
    yield found
    columns: Columns = {
        "model": "model_id",
        "version": "version",
        "parties here": "here",
        "deployed": "deployed",
        "from": lambda one: "imported" if one["imported"] else one["job_id"],
        "made (UTC)": when("created_at"),
        "size": size("bytes"),
    }
    listing(found, "models", "version", columns)


@command(commands, "show")
def show_model(
    node: Client,
    model_id: ModelId,
    version: Version,
    verify: Annotated[bool, typer.Option("--verify", help="Compare the files with their checksums.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a version with its parties and files; with --verify the exit code is 1 if one is gone or changed.

    Example: bfia-gateway model show credit 3 --verify
    """
    found = node.get(_path(model_id, version), verify=verify)
    if as_json:
        print_json(found)
    else:
        _print_state(found)
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


@command(commands, "deploy")
def deploy(
    node: Client,
    model_id: ModelId,
    version: Version,
    node_id: Annotated[
        list[str] | None,
        typer.Option("--node", help="May predict with it though it did not train it; may be repeated."),
    ] = None,
) -> Output:
    """Let jobs predict with a version. Without --node, earlier grants stay.

    Example: bfia-gateway model deploy credit 3 --node JG0100003300000030
    """
    found = node.post(_path(model_id, version, "/deploy"), {"nodes": node_id} if node_id else None)
    yield found
    _print_state(found)


@command(commands, "undeploy")
def undeploy(node: Client, model_id: ModelId, version: Version) -> Output:
    """Take no further job that predicts with a version; those under way go on.

    Example: bfia-gateway model undeploy credit 3
    """
    found = node.post(_path(model_id, version, "/undeploy"))
    yield found
    _print_state(found)


@command(commands, "export")
def export(
    node: Client,
    model_id: ModelId,
    version: Version,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")],
    force: Force = False,
) -> Output:
    """Write a version into an archive: a zip of a manifest with checksums and the files.

    Example: bfia-gateway model export credit 3 -o credit-3.zip
    """
    new_file(output, force)
    length = node.download(_path(model_id, version, "/export"), output)
    yield {"file": str(output), "bytes": length}
    say(f"wrote {output} ({amount(length)})")


@command(commands, "import")
def import_model(
    node: Client, archive: Annotated[Path, typer.Argument(help="An archive that `model export` wrote.")]
) -> Output:
    """Add the version that an archive holds; nothing is kept unless every checksum is right.

    Example: bfia-gateway model import credit-3.zip
    """
    found = node.upload("/api/v1/models/import", archive, "application/zip")
    yield found
    _print_state(found)


@command(commands, "delete")
def delete(node: Client, model_id: ModelId, version: Version) -> Output:
    """Delete a version and its files. Refused while it is deployed, or used by a job that is not over.

    Example: bfia-gateway model delete credit 3
    """
    yield node.delete(_path(model_id, version))
    say(f"deleted version {version} of model {model_id}")


def _path(model_id: str, version: str, rest: str = "") -> str:
    return f"/api/v1/models/{segment(model_id)}/{segment(version)}{rest}"


def _print_state(found: Mapping[str, Any]) -> None:
    state = "deployed" if found["deployed"] else "not deployed"
    more = f", also for {', '.join(found['granted'])}" if found["granted"] else ""
    say(f"version {found['version']} of model {found['model_id']} ({', '.join(found['here'])}): {state}{more}")
