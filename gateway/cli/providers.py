"""``bfia-gateway provider …``: algorithm images and the components in them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import DEFAULT_CONFIG, AsJson, Config, Url, connect, read_object, reporting, show, table

commands = typer.Typer(help="Algorithm images and the components in them.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="The registration, JSON or YAML; -: standard input.")]


def add(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="provider")


@commands.command("register")
def register(file: File, config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False) -> None:
    """Register an image with the descriptions of its components, or register it anew.

    Example: bfia-gateway provider register register_unionpay.json
    """
    with reporting(as_json), connect(config, url) as node:
        body = read_object(file)
        done = node.post(_path_for(body), body)
        show(done) if as_json else typer.echo(done.get("message") or "registered")


@commands.command("list")
def list_providers(
    name: Annotated[str, typer.Option(help="Only this provider's.")] = "",
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """List what is registered.

    Example: bfia-gateway provider list --name unionpay
    """
    with reporting(as_json), connect(config, url) as node:
        found = node.get("/v2/provider/query", name=name or None)["data"]
        if as_json:
            show(found)
            return
        rows = [
            [p["provider_name"], p["metadata"].get("image"), ", ".join(p["components_description"])] for p in found
        ]
        table("providers", ["provider", "image", "components"], rows)


def _path_for(body: dict[str, Any]) -> str:
    """Return where a registration goes: one component with its image, or a provider with all of them."""
    return "/v1/platform/schedule/component/register" if "imageUrl" in body else "/v2/provider/register"
