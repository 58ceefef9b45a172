"""``bfia-gateway provider …``: algorithm images, the components in them, and what became of them."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    AsJson,
    CallFailed,
    Client,
    Config,
    Url,
    connect,
    providers,
    read_object,
    reporting,
    segment,
    show,
    table,
)
from gateway.cli.console import PAGE, After, Limit, of_all, print_more, say
from gateway.cli.inputs import who
from gateway.errors import counted

if TYPE_CHECKING:
    from provider_registry.model import Component

commands = typer.Typer(
    help="Algorithm images, the components in them, and what became of them. A provider's full name is "
    "name:version@device; parts may be left out where that is clear.",
    no_args_is_help=True,
)

File = Annotated[Path, typer.Argument(help="The registration, JSON or YAML; -: standard input.")]
Name = Annotated[
    str,
    typer.Argument(
        help="name:version@device, such as unionpay:2.0.0@docker; unionpay may do.", autocompletion=providers
    ),
]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; kept in the history.")]
_CHANGES = 20
"""how many changes are shown after a change; `provider diff` shows more"""


def add(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="provider")


@commands.command("register")
def register(
    file: File,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse it if its image cannot be looked at.")] = False,
    reason: Reason = "",
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Register an image with the descriptions of its components, or register it anew.

    Every problem of a description is told with its path, and nothing is stored then (exit code 2). Warnings are
    kept, and shown by `provider show`. The image's digest is pinned: another image under the same name is not
    started until `provider approve`.

    Example: bfia-gateway provider register register_unionpay.json -m "version of November"
    """
    with reporting(as_json), connect(config, url, timeout=180) as node:
        body = read_object(file)
        query = {"strict": "true" if strict else None, "reason": reason or None, "author": who()}
        done = node.post("/api/v1/providers", body, **query)
        _told(done, as_json)
        if not as_json:
            _warned(done["warnings"])


@commands.command("list")
def list_providers(
    name: Annotated[str, typer.Option(help="Only the versions of this provider.")] = "",
    version: Annotated[str, typer.Option(help="Only this version.")] = "",
    component: Annotated[str, typer.Option(help="Only images with this component.")] = "",
    owner: Annotated[str, typer.Option(help="Only the providers of this vendor.")] = "",
    in_use: Annotated[bool, typer.Option("--in-use", help="Without retired ones.")] = False,
    after: After = "",
    limit: Limit = PAGE,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """List what is registered.

    Example: bfia-gateway provider list --component HeteroLR
    """
    query = {"name": name, "version": version, "component": component, "owner": owner, "after": after}
    with reporting(as_json), connect(config, url) as node:
        asked = {key: value for key, value in query.items() if value}
        found = node.get("/api/v1/providers", **asked, retired="false" if in_use else None, limit=limit)
        if as_json:
            show(found)
            return
        rows = [
            [
                p["provider_name"],
                p["image"],
                "pinned" if all(p["images"].values()) and p["images"] else "not pinned",
                ", ".join(p["components"]),
                p["owner"] or "admins",
                p["warning_count"] or "",
                "retired" if p["retired"] else "",
            ]
            for p in found["providers"]
        ]
        heads = ["provider", "image", "digest", "components", "owner", "warnings", ""]
        table(of_all(found, len(rows), "provider"), heads, rows)
        print_more(found)


@commands.command("show")
def show_provider(name: Name, config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False) -> None:
    """Show a provider: its images and their digests, its components, the jobs that use it, and every warning.

    Example: bfia-gateway provider show unionpay:2.0.0@docker
    """
    with reporting(as_json), connect(config, url) as node:
        found = node.get(path_of(node, name))
        if as_json:
            show(found)
            return
        rows: list[list[Any]] = [["revision", found["revision"]], ["owner", found["owner"] or "admins"]]
        rows += [[f"image {i}", digest or "not pinned"] for i, digest in found["images"].items()]
        rows += [["retired", "yes: no new job gets it"]] if found["retired"] else []
        rows += [["used by", ", ".join(found["jobs"])]] if found["jobs"] else []
        table(found["provider_name"], ["", ""], rows)
        parts = [
            [
                name,
                ", ".join(c["roleList"]),
                len(c["inputParam"]),
                ", ".join(d["name"] for d in c["inputData"]),
                ", ".join(d["name"] for d in c["outputData"]),
            ]
            for name, c in found["components_description"].items()
        ]
        table("components", ["component", "roles", "parameters", "inputs", "outputs"], parts)
        _warned(found["warnings"])


@commands.command("history")
def history(
    name: Name,
    limit: Annotated[int, typer.Option(help="How many revisions.", min=1, max=1000)] = 20,
    after: Annotated[int, typer.Option(help="The next page: what the last one ended with.", min=0)] = 0,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Show who changed a provider, when and why. A deleted one needs its full name.

    Example: bfia-gateway provider history unionpay:2.0.0@docker
    """
    with reporting(as_json), connect(config, url) as node:
        found = node.get(f"{path_of(node, name)}/history", limit=limit, after=after or None)
        if as_json:
            show(found)
            return
        rows = [[r["revision"], r["at"][:19], r["author"], r["action"], r["reason"]] for r in found["history"]]
        table("revisions", ["revision", "at (UTC)", "by", "what", "why"], rows)
        if found["next"]:
            say(f"more: --after {found['next']}", err=True)


@commands.command("diff")
def diff(
    name: Name,
    since: Annotated[int, typer.Option(min=-1, help="Revision to start from; default: the one before.")] = -1,
    until: Annotated[int, typer.Option(min=0, help="Revision to compare with it; default: the newest.")] = 0,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Show what differs between two revisions of a provider, place by place.

    Example: bfia-gateway provider diff unionpay --since 1 --until 3
    """
    with reporting(as_json), connect(config, url) as node:
        query = {"since": since if since >= 0 else None, "until": until or None}
        found = node.get(f"{path_of(node, name)}/diff", **query)
        if as_json:
            show(found)
        else:
            say(f"revision {found['since']} → {found['until']} of {found['provider_name']}")
            say(found["diff"] or "nothing differs")


@commands.command("retire")
def retire(
    name: Name, reason: Reason = "", config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False
) -> None:
    """Have no new job use a provider. Jobs under way go on with it; `provider unretire` takes it back.

    Example: bfia-gateway provider retire unionpay:1.0.0 -m "has a known flaw"
    """
    _changed(name, "retire", {"reason": reason}, config, url, as_json)


@commands.command("unretire")
def unretire(
    name: Name, reason: Reason = "", config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False
) -> None:
    """Take a retired provider into use again.

    Example: bfia-gateway provider unretire unionpay:1.0.0
    """
    _changed(name, "unretire", {"reason": reason}, config, url, as_json)


@commands.command("approve")
def approve(
    name: Name,
    image: Annotated[str, typer.Option(help="Only this image; default: all of the provider.")] = "",
    reason: Reason = "",
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Pin the images as they are now: after DIGEST_CHANGED, or when one was not here at the registration.

    Example: bfia-gateway provider approve unionpay:2.0.0 -m "rebuilt with the fix"
    """
    _changed(name, "approve", {"reason": reason, "image": image}, config, url, as_json)


@commands.command("give")
def give(
    name: Annotated[str, typer.Argument(help="The provider's name, without version and device.")],
    to: Annotated[str, typer.Option(help="Name of the vendor's tokens; empty: back to the admins.")],
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Make a vendor the owner of a provider's name: only its tokens, and admins, may change it. For admins.

    Example: bfia-gateway provider give unionpay --to ann
    """
    with reporting(as_json), connect(config, url) as node:
        done = node.call("PUT", f"/api/v1/provider-owners/{segment(name)}", {"owner": to})
        if as_json:
            show(done)
        else:
            say(f"{name} belonged to {done['before'] or 'the admins'}, now to {to or 'the admins'}")


def _changed(name: str, what: str, body: dict[str, str], config: Path, url: str, as_json: bool) -> None:
    with reporting(as_json), connect(config, url, timeout=180) as node:
        _told(node.post(f"{path_of(node, name)}/{what}", {**body, "author": who()}), as_json)


def _told(done: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show(done)
        return
    if not done["changed"]:
        say(f"{done['provider_name']} stays as it is: nothing differs from revision {done['revision']}")
        return
    say(f"{done['provider_name']} {done['action']}, revision {done['revision']}")
    if done["action"] != "registered":
        for change in done["changes"][:_CHANGES]:
            say(f"  {_words(change)}")
        if len(done["changes"]) > _CHANGES:
            say(f"  and more: bfia-gateway provider diff {done['provider_name']}")


def _words(change: dict[str, Any]) -> str:
    before, after = (json.dumps(change[side], ensure_ascii=False) for side in ("before", "after"))
    return f"{change['path']}: {before} → {after}"


def _warned(warnings: list[dict[str, Any]]) -> None:
    if warnings:
        rows = [
            [w["path"], w["rule"], json.dumps(w["got"], ensure_ascii=False), w.get("suggestion")] for w in warnings
        ]
        table(counted(len(warnings), "warning"), ["where", "what", "found", "did you mean"], rows)


def path_of(node: Client, name: str) -> str:
    """Return the path of the one provider that a name, perhaps without version or device, stands for."""
    if ":" not in name or "@" not in name:
        keys = [
            p["provider_name"] for p in node.get("/api/v1/providers", provider_name=name, limit=1000)["providers"]
        ]
        if len(keys) != 1:
            text = f"{name} may be any of {', '.join(keys)}" if keys else f"no provider {name} is registered"
            raise CallFailed(text, EXIT_BAD_INPUT, "PROVIDER_AMBIGUOUS" if keys else "PROVIDER_UNKNOWN")
        name = keys[0]
    return f"/api/v1/providers/{quote(name, safe=':@')}"


Components = Mapping[str, "Component"]
"""by name"""


def components_of(name: str, config: Path, url: str) -> Components:
    """Return the components of a provider by its name, perhaps in part, or of a registration's file.

    Raises `CallFailed`.
    """
    if os.path.isfile(name):  # False, too, for what is too long to be a file's name
        return from_file(Path(name))
    with connect(config, url) as node:
        return from_node(node, name)


def from_file(file: Path) -> Components:
    """Read a registration from a file. Raises `CallFailed` with every problem of it."""
    from provider_registry.model import InvalidDescription
    from provider_registry.registration import provider_from_component, provider_from_request

    body = read_object(file)
    try:
        return (provider_from_component(body) if "imageUrl" in body else provider_from_request(body)).components
    except InvalidDescription as error:
        text = "\n".join([f"{file} would be refused:", *(f"  {p}" for p in error.problems)])
        raise CallFailed(text, EXIT_BAD_INPUT, "INVALID") from None


def from_node(node: Client, name: str) -> Components:
    """Read what a node has registered. Raises `CallFailed` where the name does not stand for one provider."""
    from provider_registry import description

    found = node.get(path_of(node, name))
    return {
        key: description.component(document, provider=found["name"], version=found["version"])[0]
        for key, document in found["components_description"].items()
    }


def chosen(components: Components, component: str, provider: str) -> "Component":
    """Return the component of that name; where none is named, the only one. Raises `CallFailed`."""
    if component in components:
        return components[component]
    if not component and len(components) == 1:
        return next(iter(components.values()))
    there = ", ".join(components) or "none"
    text = f"{provider} has no component {component}" if component else f"say which component of {provider}"
    raise CallFailed(f"{text}; there are: {there}", EXIT_BAD_INPUT, "COMPONENT_UNKNOWN")


def add_parameters(commands: typer.Typer) -> None:
    """Add the command to ``provider``."""
    commands.command("parameters")(parameters)


def parameters(
    name: Annotated[
        str,
        typer.Argument(
            help="name:version@device, such as unionpay; or a registration's file.", autocompletion=providers
        ),
    ],
    component: Annotated[str, typer.Argument(help="Which of its components; default: the only one.")] = "",
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Show what a job may tell a component: kinds, defaults, allowed values. With --json as a JSON Schema.

    The schema is what a form or an editor works with; a node serves it, too. Of a file it is shown without a node.

    Example: bfia-gateway provider parameters unionpay HeteroLR

    Example: bfia-gateway provider parameters register.json HeteroLR --json > hetero_lr.schema.json
    """
    with reporting(as_json):
        from provider_registry.forms import form

        found = form(chosen(components_of(name, config, url), component, name))
        if as_json:
            show(found)
            return
        rows = [
            [name, _kind(field), _needed(name, found, field), _default(field), allowed(field), field["title"]]
            for name, field in found["properties"].items()
        ]
        said = found["x-bfia"]
        table(
            f"{said['componentName']} of {said['provider']} {said['version']}",
            ["parameter", "kind", "needed", "default", "allowed", "what it is"],
            rows,
        )


def allowed(field: Mapping[str, Any]) -> str:
    """Return in a line which values a field of a form may have; empty where any."""
    labels = field["x-bfia"].get("labels", {})
    if (values := field.get("enum", field.get("items", {}).get("enum"))) is not None:
        texts = [value if isinstance(value, str) else _json(value) for value in values]
        return ", ".join(f"{text} ({labels[text]})" if text in labels else text for text in texts)
    if validator := field["x-bfia"].get("validator"):
        return str(validator)
    source = field["x-bfia"].get("choicesFrom")
    return f"what {source}() offers" if source else ""


def _kind(field: Mapping[str, Any]) -> str:
    return str(field["x-bfia"]["type"])


def _needed(name: str, schema: Mapping[str, Any], field: Mapping[str, Any]) -> str:
    conditions = field["x-bfia"].get("dependsOn")
    if name in schema.get("required", ()):
        return "yes"
    if any(name in one["then"]["required"] for one in schema.get("allOf", ())):
        return f"where {' or '.join(conditions)}"
    return f"no; goes with {' or '.join(conditions)}" if conditions else "no"


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default", "")
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
