"""``bfia-gateway provider …``: algorithm images, their components and their owners.

The commands yield the value that ``--json`` prints; the code after the yield prints it as text.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bfia_gateway_client.calls import path_of, provider_named
from gateway.cli import options, vendor_texts
from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    CallFailed,
    Client,
    connect,
    read_object,
    who,
)
from gateway.cli.command import Output, command
from gateway.cli.language import t
from gateway.cli.output import say
from gateway.cli.tables import Columns, listing, table
from gateway.cli.values import difference, when
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
_LISTED_CHANGES = 20  # shown after a request that changed a provider; ``provider diff`` shows all


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

    Every problem of a description is reported with its path, and nothing is stored then (exit code
    2). Warnings are kept, and shown by `provider show`. The image's digest is pinned: another image
    under the same name is not started until `provider approve`.
    """
    provider = node.post(
        "/api/v1/providers",
        read_object(file),
        strict="true" if strict else None,
        reason=reason,
        author=who(),
    )
    yield provider
    _print_change(provider)
    _print_warnings(provider)


@command(commands, "list", "--component HeteroLR", options=options.paged())
def list_providers(
    node: Client,
    name: Annotated[str, typer.Option(help="Only the versions of this provider.")] = "",
    component: Annotated[str, typer.Option(help="Only images with this component.")] = "",
    owner: Annotated[str, typer.Option(help="Only the providers of this vendor.")] = "",
    in_use: Annotated[bool, typer.Option("--in-use", help="Without retired ones.")] = False,
    **paging: Any,
) -> Output:
    """List the registered providers."""
    response = node.get(
        "/api/v1/providers",
        name=name,
        component=component,
        owner=owner,
        retired="false" if in_use else None,
        **paging,
    )
    yield response
    columns: Columns = {
        "provider": "provider_name",
        "image": "image",
        "digest": _digest_state,
        "components": "components",
        "owner": _owner,
        "warnings": _warning_count,
        "state": _state,
    }
    if any(provider["granted"] for provider in response["providers"]):
        columns = {**columns, "extra rights": "granted"}
    listing(response, "providers", columns, noun="provider")


def _digest_state(provider: Mapping[str, Any]) -> str:
    """Return ``pinned`` if the digest of every image is pinned, else ``not pinned``."""
    digests = provider["images"].values()
    if digests and all(digests):
        return "pinned"
    return "not pinned"


def _owner(provider: Mapping[str, Any]) -> str:
    """Return the vendor that owns a provider's name, or the admins of the node."""
    return provider["owner"] or t("admins")


def _warning_count(provider: Mapping[str, Any]) -> Any:
    """Return the number of warnings; an empty text for none."""
    return provider["warning_count"] or ""


def _state(provider: Mapping[str, Any]) -> str:
    """Return whether a provider is retired; an empty text for one in use."""
    return "retired" if provider["retired"] else ""


@command(commands, "show", "unionpay:2.0.0@docker")
def show_provider(node: Client, name: Name) -> Output:
    """Show a provider: its images and their digests, its components, the jobs that use it, and
    every warning.
    """
    provider = node.get(_path(node, name))
    yield provider
    rows: list[list[Any]] = [
        ["revision", provider["revision"]],
        ["owner", _owner(provider)],
    ]
    for image, digest in provider["images"].items():
        rows.append([f"image {image}", digest or t("not pinned")])
    for privilege in provider["granted"]:
        rows.append(["extra right", privilege])
    engine_kinds = provider["metadata"].get("engine_kinds")
    if engine_kinds:
        rows.append(["kinds of engines", engine_kinds])
    if provider["attestation"]:
        rows.append(
            ["attestation", f"{provider['attestation']}: no platform verified on hardware yet"]
        )
    if provider["retired"]:
        rows.append(["retired", "yes: no new job gets it"])
    if provider["jobs"]:
        rows.append(["used by", provider["jobs"]])
    table(provider["provider_name"], ["", ""], rows)
    _print_components(provider["components_description"])
    _print_warnings(provider)


def _print_components(descriptions: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a row per component: title, roles, number of parameters, inputs and outputs."""
    rows = []
    for name, description in descriptions.items():
        inputs = [data["name"] for data in description["inputData"]]
        outputs = [data["name"] for data in description["outputData"]]
        parameter_count = len(description["inputParam"])
        title = vendor_texts.described(description, "title")
        if title == name:
            title = ""
        rows.append([name, title, description["roleList"], parameter_count, inputs, outputs])
    headings = ["component", "title", "roles", "parameters", "inputs", "outputs"]
    table("components", headings, rows)


@command(commands, "history", "unionpay:2.0.0@docker", options=options.paged(limit=20))
def history(node: Client, name: Name, **paging: Any) -> Output:
    """Show who changed a provider, when and why. A deleted one needs its full name."""
    response = node.get(_path(node, name, "history"), **paging)
    yield response
    columns: Columns = {
        "revision": "revision",
        "at (UTC)": when("at"),
        "by": "author",
        "what": "action",
        "why": "reason",
    }
    listing(response, "history", columns, title="revisions")


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
    # -1 means that the option is missing: --since 0 is the state before the first revision.
    response = node.get(
        _path(node, name, "diff"),
        since=since if since >= 0 else None,
        until=until or None,
    )
    yield response
    say(f"revision {response['since']} → {response['until']} of {response['provider_name']}")
    say(response["diff"] or "nothing differs")


@command(commands, "retire", 'unionpay:1.0.0 -m "has a known flaw"', timeout=180)
def retire(
    node: Client,
    name: Name,
    reason: options.Reason = "",
) -> Output:
    """Retire a provider: new jobs cannot use it, those under way continue. `provider unretire`
    undoes it.
    """
    yield from _change(node, name, "retire", {"reason": reason})


@command(commands, "unretire", "unionpay:1.0.0", timeout=180)
def unretire(
    node: Client,
    name: Name,
    reason: options.Reason = "",
) -> Output:
    """Put a retired provider into use again."""
    yield from _change(node, name, "unretire", {"reason": reason})


@command(commands, "approve", 'unionpay:2.0.0 -m "rebuilt with the fix"', timeout=180)
def approve(
    node: Client,
    name: Name,
    image: Annotated[str, typer.Option(help="Only this image; default: all of the provider.")] = "",
    reason: options.Reason = "",
) -> Output:
    """Pin the images as they are now: after DIGEST_CHANGED, or when one was missing at the
    registration.
    """
    yield from _change(node, name, "approve", {"reason": reason, "image": image})


@command(commands, "give", "unionpay --to ann")
def give(
    node: Client,
    name: Annotated[str, typer.Argument(help="The provider's name, without version and device.")],
    to: Annotated[
        str, typer.Option(help="Name of the vendor's tokens; empty: back to the admins.")
    ],
) -> Output:
    """Make a vendor the owner of a provider's name: only its tokens, and admins, may change it. For
    admins.
    """
    response = node.call("PUT", path_of("provider-owners", name), {"owner": to})
    yield response
    before = response["before"] or "the admins"
    say(f"{name} belonged to {before}, now to {to or 'the admins'}")


def _change(
    node: Client,
    name: str,
    action: str,
    body: Mapping[str, str],
) -> Output:
    """Change a provider and print what that changed."""
    provider = node.post(_path(node, name, action), {**body, "author": who()})
    yield provider
    _print_change(provider)


def _print_change(provider: Mapping[str, Any]) -> None:
    """Print what a request changed, and the new revision; of a registration only the revision."""
    name = provider["provider_name"]
    revision = provider["revision"]
    if not provider["changed"]:
        say(f"{name} is unchanged: nothing differs from revision {revision}")
        return
    say(f"{name} {provider['action']}, revision {revision}")
    if provider["action"] == "registered":
        return
    changes = provider["changes"]
    for change in changes[:_LISTED_CHANGES]:
        say(f"  {difference(change)}")
    if len(changes) > _LISTED_CHANGES:
        say(f"  and more: bfia-gateway provider diff {quote(name)}")


def _print_warnings(provider: Mapping[str, Any]) -> None:
    """Print a provider's warnings, first those about its image: without it nothing can run."""
    warnings = provider["warnings"]
    if not warnings:
        return
    # Rules about an image quote a reason such as IMAGE_NOT_FOUND.
    about_image = [warning for warning in warnings if "IMAGE_" in warning["rule"]]
    about_description = [warning for warning in warnings if "IMAGE_" not in warning["rule"]]
    say(counted(len(warnings), "warning"))
    for warning in about_image + about_description:
        suggestion = warning.get("suggestion", "")
        say(f"  {Problem(warning['path'], warning['rule'], warning['got'], suggestion)}")


def _path(node: Client, name: str, *action: str) -> str:
    """Return the path of the provider with a name, which may lack version and device.

    ``action``: further parts of the path. Raises `CallFailed`.
    """
    # Only a retired provider can be put into use again; any other action prefers one in use.
    is_retired = action == ("unretire",)
    full_name = node.run_call(provider_named(node.wire, name, retired=is_retired))
    return path_of("providers", full_name, *action)


# ---------------------------------------------------------------- components and their parameters


def component_of(
    provider: str,
    name: str,
    config: Path,
    url: str,
) -> "Component":
    """Return a component of a provider; ``provider``: its name, or the file of its registration.

    Without a ``name``, the only component. Raises `CallFailed`.
    """
    if os.path.isfile(provider):
        components = _from_file(Path(provider))
    else:
        components = _from_node(provider, config, url)
    if name in components:
        return components[name]
    if not name and len(components) == 1:
        return next(iter(components.values()))
    choices = ", ".join(components) or "none"
    text = f"{provider} has no component {name}" if name else f"name a component of {provider}"
    raise CallFailed(f"{text}; there are: {choices}", EXIT_BAD_INPUT, "COMPONENT_UNKNOWN")


def _from_file(file: Path) -> Mapping[str, "Component"]:
    """Return the components in the file of a registration, by name.

    Raises `CallFailed` with every problem.
    """
    from provider_registry.model import InvalidDescription
    from provider_registry.registration import provider_from_component, provider_from_request

    body = read_object(file)
    try:
        if "imageUrl" in body:  # the standard's body describes a single component
            provider = provider_from_component(body)
        else:
            provider = provider_from_request(body)
    except InvalidDescription as error:
        lines = [f"{file} would be refused:"]
        lines += [f"  {problem}" for problem in error.problems]
        raise CallFailed("\n".join(lines), EXIT_BAD_INPUT, "INVALID") from None
    return provider.components


def _from_node(
    name: str,
    config: Path,
    url: str,
) -> Mapping[str, "Component"]:
    """Return the components of a provider that is registered at a node, by name.

    Raises `CallFailed`.
    """
    from provider_registry import description

    with connect(config, url) as node:
        provider = node.get(_path(node, name))
    components = {}
    for key, document in provider["components_description"].items():
        component, _ = description.from_valid(
            document, provider=provider["name"], version=provider["version"]
        )
        components[key] = component
    return components


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
    rows = []
    for key, field in schema["properties"].items():
        row = [
            key,
            field["x-bfia"]["type"],
            t(_required(key, schema)),
            _default(field),
            allowed(field),
            vendor_texts.of_field(field, "description") or vendor_texts.of_field(field, "title"),
        ]
        rows.append(row)
    component_facts = schema["x-bfia"]
    provider = f"provider {component_facts['provider']} {component_facts['version']}"
    title = f"{component_facts['componentName']}, {provider}"
    table(title, ["parameter", "type", "required", "default", "allowed", "meaning"], rows)


def allowed(field: Mapping[str, Any]) -> str:
    """Return a field's allowed values in one line; an empty text if every value is allowed.

    ``field``: one parameter in the JSON Schema that `form` makes of a component's parameters.
    """
    facts = field["x-bfia"]
    choices = field.get(
        "enum",
        field.get("items", {}).get("enum"),
    )
    if choices is not None:
        labels = vendor_texts.labels_of(field)
        return ", ".join(_choice(value, labels) for value in choices)
    if facts.get("validator"):
        return str(facts["validator"])
    if facts.get("choicesFrom"):
        return f"what {facts['choicesFrom']}() offers"
    return ""


def _choice(value: Any, labels: Mapping[str, str]) -> str:
    """Return an allowed value with its label, if it has one."""
    text = _text_of(value)
    if text in labels:
        return f"{text} ({labels[text]})"
    return text


def _required(name: str, schema: Mapping[str, Any]) -> str:
    """Return whether a parameter is required, and the other parameters on which that depends.

    ``schema``: the JSON Schema of all parameters; its ``allOf`` has the requirements with a
    condition.
    """
    if name in schema.get("required", ()):
        return "yes"
    conditions = " or ".join(schema["properties"][name]["x-bfia"].get("dependsOn", ()))
    if any(name in rule["then"]["required"] for rule in schema.get("allOf", ())):
        return f"yes, where {conditions}"
    if conditions:
        return f"no; goes with {conditions}"
    return "no"


def _default(field: Mapping[str, Any]) -> str:
    """Return the default of a field of the schema; empty without one."""
    return _text_of(field.get("default", ""))


def _text_of(value: Any) -> str:
    """Return a value as JSON; a text without quotes."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
