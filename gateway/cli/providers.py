"""``bfia-gateway provider …``: algorithm images, the components in them, and who may change them."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bfia_gateway_client.calls import path_of, provider_named
from gateway.cli import options
from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    CallFailed,
    Client,
    connect,
    read_object,
    who,
)
from gateway.cli.command import Columns, Output, command, difference, listing, say, table, when
from gateway.cli.language import t
from gateway.domain.problems import Problem
from gateway.errors import counted

if TYPE_CHECKING:
    from provider_registry.model import Component

commands = typer.Typer(name="provider")

Name = Annotated[
    str,
    typer.Argument(
        help="name:version@device, such as unionpay:2.0.0@docker; unionpay may do.",
        autocompletion=options.providers,
    ),
]
_CHANGES = 20
"""how many changes are shown after a change; `provider diff` shows more"""


@command(commands, "register", 'register_unionpay.json -m "version of November"', timeout=180)
def register(
    node: Client,
    file: Annotated[
        Path, typer.Argument(help="The registration, JSON or YAML; -: standard input.")
    ],
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse it if its image cannot be inspected.")
    ] = False,
    reason: options.Reason = "",
) -> Output:
    """Register an image with the descriptions of its components, or replace its registration.

    Every problem of a description is reported with its path, and nothing is stored then (exit code 2). Warnings
    are kept, and shown by `provider show`. The image's digest is pinned: another image under the same name is not
    started until `provider approve`.
    """
    body = read_object(file)
    found = node.post(
        "/api/v1/providers",
        body,
        strict="true" if strict else None,
        reason=reason,
        author=who(),
    )
    yield found
    _print_change(found)
    _print_warnings(found)


@command(commands, "list", "--component HeteroLR", options=options.paged())
def list_providers(
    node: Client,
    name: Annotated[str, typer.Option(help="Only the versions of this provider.")] = "",
    component: Annotated[str, typer.Option(help="Only images with this component.")] = "",
    owner: Annotated[str, typer.Option(help="Only the providers of this vendor.")] = "",
    in_use: Annotated[bool, typer.Option("--in-use", help="Without retired ones.")] = False,
    **page: Any,
) -> Output:
    """List what is registered."""
    narrow = {
        "name": name,
        "component": component,
        "owner": owner,
    }
    found = node.get(
        "/api/v1/providers",
        **narrow,
        retired="false" if in_use else None,
        **page,
    )
    yield found
    columns: Columns = {
        "provider": "provider_name",
        "image": "image",
        "digest": lambda p: "pinned" if p["images"] and all(p["images"].values()) else "not pinned",
        "components": "components",
        "owner": lambda p: p["owner"] or t("admins"),
        "warnings": lambda p: p["warning_count"] or "",
        "state": lambda p: "retired" if p["retired"] else "",
    }
    listing(found, "providers", "provider", columns)


@command(commands, "show", "unionpay:2.0.0@docker")
def show_provider(node: Client, name: Name) -> Output:
    """Show a provider: its images and their digests, its components, the jobs that use it, and every warning."""
    found = node.get(_path(node, name))
    yield found
    rows: list[list[Any]] = [
        ["revision", found["revision"]],
        ["owner", found["owner"] or t("admins")],
    ]
    rows += [[f"image {i}", digest or t("not pinned")] for i, digest in found["images"].items()]
    rows += [["retired", "yes: no new job gets it"]] if found["retired"] else []
    rows += [["used by", found["jobs"]]] if found["jobs"] else []
    table(found["provider_name"], ["", ""], rows)
    components = []
    for key, one in found["components_description"].items():
        tables = ([data["name"] for data in one[kind]] for kind in ("inputData", "outputData"))
        components.append([key, one["roleList"], len(one["inputParam"]), *tables])
    table("components", ["component", "roles", "parameters", "inputs", "outputs"], components)
    _print_warnings(found)


@command(commands, "history", "unionpay:2.0.0@docker", options=options.paged(20))
def history(
    node: Client,
    name: Name,
    **page: Any,
) -> Output:
    """Show who changed a provider, when and why. A deleted one needs its full name."""
    found = node.get(_path(node, name, "history"), **page)
    yield found
    columns: Columns = {
        "revision": "revision",
        "at (UTC)": when("at"),
        "by": "author",
        "what": "action",
    }
    listing(found, "history", "", {**columns, "why": "reason"}, "revisions")


@command(commands, "diff", "unionpay --since 1 --until 3")
def diff(
    node: Client,
    name: Name,
    since: Annotated[
        int, typer.Option(min=-1, help="Revision to start from; default: the one before.")
    ] = -1,
    until: Annotated[
        int, typer.Option(min=0, help="Revision to compare with it; default: the newest.")
    ] = 0,
) -> Output:
    """Show what differs between two revisions of a provider, place by place."""
    query = {"since": since if since >= 0 else None, "until": until or None}
    found = node.get(_path(node, name, "diff"), **query)
    yield found
    say(f"revision {found['since']} → {found['until']} of {found['provider_name']}")
    say(found["diff"] or "nothing differs")


@command(commands, "retire", 'unionpay:1.0.0 -m "has a known flaw"', timeout=180)
def retire(
    node: Client,
    name: Name,
    reason: options.Reason = "",
) -> Output:
    """Retire a provider: new jobs cannot use it, those under way continue. `provider unretire` undoes it."""
    yield from _changed(node, name, "retire", {"reason": reason})


@command(commands, "unretire", "unionpay:1.0.0", timeout=180)
def unretire(
    node: Client,
    name: Name,
    reason: options.Reason = "",
) -> Output:
    """Put a retired provider into use again."""
    yield from _changed(node, name, "unretire", {"reason": reason})


@command(commands, "approve", 'unionpay:2.0.0 -m "rebuilt with the fix"', timeout=180)
def approve(
    node: Client,
    name: Name,
    image: Annotated[str, typer.Option(help="Only this image; default: all of the provider.")] = "",
    reason: options.Reason = "",
) -> Output:
    """Pin the images as they are now: after DIGEST_CHANGED, or when one was missing at the registration."""
    yield from _changed(node, name, "approve", {"reason": reason, "image": image})


@command(commands, "give", "unionpay --to ann")
def give(
    node: Client,
    name: Annotated[str, typer.Argument(help="The provider's name, without version and device.")],
    to: Annotated[
        str, typer.Option(help="Name of the vendor's tokens; empty: back to the admins.")
    ],
) -> Output:
    """Make a vendor the owner of a provider's name: only its tokens, and admins, may change it. For admins."""
    found = node.call("PUT", path_of("provider-owners", name), {"owner": to})
    yield found
    say(f"{name} belonged to {found['before'] or 'the admins'}, now to {to or 'the admins'}")


def _changed(
    node: Client,
    name: str,
    what: str,
    body: Mapping[str, str],
) -> Output:
    found = node.post(_path(node, name, what), {**body, "author": who()})
    yield found
    _print_change(found)


def _print_change(found: Mapping[str, Any]) -> None:
    if not found["changed"]:
        say(
            f"{found['provider_name']} is unchanged: nothing differs from revision {found['revision']}"
        )
        return
    say(f"{found['provider_name']} {found['action']}, revision {found['revision']}")
    if found["action"] != "registered":
        for change in found["changes"][:_CHANGES]:
            say(f"  {difference(change)}")
        if len(found["changes"]) > _CHANGES:
            say(f"  and more: bfia-gateway provider diff {quote(found['provider_name'])}")


def _print_warnings(found: Mapping[str, Any]) -> None:
    # those of the image first: they tell whether anything can run
    warnings = sorted(found["warnings"], key=lambda one: "IMAGE_" not in one["rule"])
    if warnings:
        say(counted(len(warnings), "warning"))
    for one in warnings:
        say(f"  {Problem(one['path'], one['rule'], one['got'], one.get('suggestion', ''))}")


def _path(
    node: Client,
    name: str,
    *rest: str,
) -> str:
    """Return the path of the one provider that a name, perhaps without version or device, stands for."""
    full = node.done(provider_named(node.wire, name, retired=rest == ("unretire",)))
    return path_of("providers", full, *rest)


# ---------------------------------------------------------------- components and their parameters


def component_of(
    provider: str,
    name: str,
    config: Path,
    url: str,
) -> "Component":
    """Return a component of a provider (by its name, perhaps in part) or of a registration's file.

    Without a name, the only one. Raises `CallFailed`.
    """
    components = (
        _from_file(Path(provider))
        if os.path.isfile(provider)
        else _from_node(provider, config, url)
    )
    if name in components:
        return components[name]
    if not name and len(components) == 1:
        return next(iter(components.values()))
    there = ", ".join(components) or "none"
    text = f"{provider} has no component {name}" if name else f"name a component of {provider}"
    raise CallFailed(f"{text}; there are: {there}", EXIT_BAD_INPUT, "COMPONENT_UNKNOWN")


def _from_file(file: Path) -> Mapping[str, "Component"]:
    from provider_registry.model import InvalidDescription
    from provider_registry.registration import provider_from_component, provider_from_request

    body = read_object(file)
    try:
        return (
            provider_from_component(body) if "imageUrl" in body else provider_from_request(body)
        ).components
    except InvalidDescription as error:
        text = "\n".join([f"{file} would be refused:", *(f"  {p}" for p in error.problems)])
        raise CallFailed(text, EXIT_BAD_INPUT, "INVALID") from None


def _from_node(
    name: str,
    config: Path,
    url: str,
) -> Mapping[str, "Component"]:
    from provider_registry import description

    with connect(config, url) as node:
        found = node.get(_path(node, name))
    return {
        key: description.from_valid(document, provider=found["name"], version=found["version"])[0]
        for key, document in found["components_description"].items()
    }


@command(commands, "parameters", "unionpay HeteroLR")
def parameters(
    name: Annotated[
        str,
        typer.Argument(
            help="name:version@device, such as unionpay; or a registration's file.",
            autocompletion=options.providers,
        ),
    ],
    component: Annotated[
        str, typer.Argument(help="Which of its components; default: the only one.")
    ] = "",
    config: options.Config = DEFAULT_CONFIG,
    url: options.Url = "",
) -> Output:
    """Show a component's parameters: types, defaults, allowed values. With --json as a JSON Schema.

    The schema is for forms and editors; a node serves it, too. For a file no node is needed.

    Example: bfia-gateway provider parameters register.json HeteroLR --json > hetero_lr.schema.json
    """
    from provider_registry.forms import form

    schema = form(component_of(name, component, config, url))
    yield schema
    rows = [
        [
            *(
                key,
                field["x-bfia"]["type"],
                t(_required(key, schema)),
                _default(field),
                allowed(field),
            ),
            field.get("description", field["title"]),
        ]
        for key, field in schema["properties"].items()
    ]
    about = schema["x-bfia"]
    title = f"{about['componentName']}, provider {about['provider']} {about['version']}"
    table(title, ["parameter", "type", "required", "default", "allowed", "meaning"], rows)


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


def _required(name: str, schema: Mapping[str, Any]) -> str:
    conditions = schema["properties"][name]["x-bfia"].get("dependsOn")
    if name in schema.get("required", ()):
        return "yes"
    if any(name in one["then"]["required"] for one in schema.get("allOf", ())):
        return f"yes, where {' or '.join(conditions)}"
    return f"no; goes with {' or '.join(conditions)}" if conditions else "no"


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default", "")
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
