"""``bfia-gateway model …``: the models that trainings left at a node."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    AsJson,
    CallFailed,
    Config,
    Force,
    Url,
    amount,
    connect,
    fitting,
    reporting,
    segment,
    show,
    table,
)
from gateway.cli.console import PAGE, After, Limit, of_all, print_more, say
from gateway.cli.inputs import new_file

commands = typer.Typer(help="Models that trainings left here: look, deploy, export, import.", no_args_is_help=True)

ModelId = Annotated[str, typer.Argument(help="Id of the model.")]
Version = Annotated[str, typer.Argument(help="Its version.")]


def add(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="model")


@commands.command("list")
def list_models(
    model_id: Annotated[str, typer.Option(help="Only versions of this model.")] = "",
    after: After = "",
    limit: Limit = PAGE,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """List the versions that lie here, the newest first.

    Example: bfia-gateway model list
    """
    with reporting(as_json), connect(config, url) as node:
        found = node.get("/api/v1/models", model_id=model_id or None, after=after or None, limit=limit)
        if as_json:
            show(found)
            return
        rows = [
            [
                m["model_id"],
                m["version"],
                ", ".join(m["here"]),
                "yes" if m["deployed"] else "no",
                "imported" if m["imported"] else m["job_id"],
                m["created_at"][:19].replace("T", " "),
                amount(m["bytes"]),
            ]
            for m in found["models"]
        ]
        heads = ["model", "version", "parties here", "deployed", "from", "made (UTC)", "size"]
        table(of_all(found, len(rows), "version"), heads, rows)
        print_more(found)


@commands.command("show")
def show_model(
    model_id: ModelId,
    version: Version,
    verify: Annotated[bool, typer.Option("--verify", help="Compare the files with their checksums.")] = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Show a version with its parties and files; with --verify the exit code is 1 if one is gone or changed.

    Example: bfia-gateway model show credit 3 --verify
    """
    with reporting(as_json), connect(config, url) as node:
        found = node.get(_path(model_id, version), verify=verify)
        if as_json:
            show(found)
        else:
            _describe(found)
        if damage := found.get("damage"):
            raise CallFailed("\n".join(damage), reason="MODEL_DAMAGED")
        if verify and not as_json:
            say("every file is as it was when the model was saved")


@commands.command("deploy")
def deploy_model(
    model_id: ModelId,
    version: Version,
    node_id: Annotated[
        list[str] | None,
        typer.Option("--node", help="May predict with it though it did not train it; again for more."),
    ] = None,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Let jobs predict with a version. Without --node, who was granted it before stays so.

    Example: bfia-gateway model deploy credit 3 --node JG0100003300000030
    """
    with reporting(as_json), connect(config, url) as node:
        body = {"nodes": node_id} if node_id else None
        _told(node.post(_path(model_id, version, "/deploy"), body), as_json)


@commands.command("undeploy")
def undeploy_model(
    model_id: ModelId, version: Version, config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False
) -> None:
    """Take no further job that predicts with a version; those under way go on.

    Example: bfia-gateway model undeploy credit 3
    """
    with reporting(as_json), connect(config, url) as node:
        _told(node.post(_path(model_id, version, "/undeploy")), as_json)


@commands.command("export")
def export_model(
    model_id: ModelId,
    version: Version,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")],
    force: Force = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Write a version into an archive: a zip of a manifest with checksums and the files.

    Example: bfia-gateway model export credit 3 -o credit-3.zip
    """
    with reporting(as_json), connect(config, url) as node:
        with fitting():
            new_file(output, force)
        size = node.download(_path(model_id, version, "/export"), output)
        if as_json:
            show({"file": str(output), "bytes": size})
        else:
            say(f"wrote {output} ({amount(size)})")


@commands.command("import")
def import_model(
    archive: Annotated[Path, typer.Argument(help="An archive that `model export` wrote.")],
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Add the version that an archive holds; nothing is kept unless every checksum is right.

    Example: bfia-gateway model import credit-3.zip
    """
    with reporting(as_json), connect(config, url) as node:
        _told(node.upload("/api/v1/models/import", archive, "application/zip"), as_json)


@commands.command("delete")
def delete_model(
    model_id: ModelId, version: Version, config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False
) -> None:
    """Delete a version and its files. Refused while it is deployed, or used by a job that is not over.

    Example: bfia-gateway model delete credit 3
    """
    with reporting(as_json), connect(config, url) as node:
        found = node.delete(_path(model_id, version))
        if as_json:
            show(found)
        else:
            say(f"deleted version {version} of model {model_id}")


def _path(model_id: str, version: str, what: str = "") -> str:
    return f"/api/v1/models/{segment(model_id)}/{segment(version)}{what}"


def _told(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show(found)
        return
    state = "deployed" if found["deployed"] else "not deployed"
    more = f", also for {', '.join(found['granted'])}" if found["granted"] else ""
    parties = ", ".join(found["here"])
    say(f"version {found['version']} of model {found['model_id']} ({parties}): {state}{more}")


def _describe(found: dict[str, Any]) -> None:
    _told(found, False)
    parties = ", ".join(f"{p['role']}.{p['index']} at {p['node']}" for p in found["parties"])
    say(f"trained by {parties} in {found['job_id']}")
    rows = [
        [m["party"], p["task"], p["component"], f["name"], amount(f["size"]), f["sha256"]]
        for m in found["models"]
        for p in m["parts"]
        for f in p["files"]
    ]
    table("", ["party", "task", "component", "file", "size", "sha256"], rows)
