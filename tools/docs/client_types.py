"""The types of the Python client's responses, from what the operators' listener says of its own."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.docs.endpoints import described

CLIENT = "clients/python/bfia_gateway_client"
_ROOT = Path(__file__).resolve().parents[2]
_INTRO = '''"""What a node responds, as it describes itself: written by ``make docs``, never by hand.

A response may have further fields, of a node that is newer than this client: they are kept as attributes.
What a node that is older does not say is empty.
"""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Response(BaseModel):
    """What all of them are."""

    model_config = ConfigDict(extra="allow", defer_build=True, protected_namespaces=(), populate_by_name=True)
'''
_NAMES = {
    "Attempt": "TaskAttempt",
    "Listed": "ListedJob",
    "TaskView": "Task",
    "OutputSpec": "DagOutput",
    "Outputs-Output": "Outputs",
    "gateway__admin__deps__Party": "Party",
    "gateway__domain__dry_run__Item": "Check",
    "gateway__domain__spec__Party": "TrainingParty",
    "gateway__jobs__retention__Item": "RemovedItem",
}
"""schema -> class, where another name says more"""
_LEAST = 6
"""fields of a class that another one extends: fewer are alike by chance"""
_PLAIN = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}
_EMPTY = {
    "str": '""',
    "int": "0",
    "float": "0.0",
    "bool": "False",
    "Any": "None",
    "None": "None",
}
"""what a field is of which a node says nothing"""


def module() -> str:
    """Return the module: the schemas of the responses that the client reads, and those that these
    are made of.
    """
    schemas = described()["operator"]["components"]["schemas"]
    names = {_NAMES.get(schema, schema): schema for schema in schemas}
    wanted = sorted(used() & names.keys())
    classes: dict[str, str] = {}

    def add(name: str) -> None:
        """Add a class after those that it is made of."""
        if name not in classes:
            schema = schemas[names[name]]
            for other in map(name_of, _references(schema)):
                add(other)
            brief = (one for one in wanted if _extends(schema, schemas[names[one]]))
            if base := max(
                brief, key=lambda one: len(schemas[names[one]]["properties"]), default=""
            ):
                add(base)
            own = _without(schema, schemas[names[base]]) if base else schema
            classes[name] = "\n".join(_class(name, own, base or "Response"))

    for name in wanted:
        add(name)
    return "\n\n".join([_INTRO, *classes.values()])


def used() -> set[str]:
    """Return the names that the client's modules take from their types."""
    found = set()
    for file in sorted((_ROOT / CLIENT).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "types"
            ):
                found.add(node.attr)
    return found


def _extends(schema: Mapping[str, Any], brief: Mapping[str, Any]) -> bool:
    """Tell whether a schema has all that another one, not a small one, has, and more."""
    found, fields = schema.get("properties", {}), brief.get("properties", {})
    alike = all(found.get(name) == of for name, of in fields.items())
    required = {*brief.get("required", ())} == {*schema.get("required", ())} & {*fields}
    return alike and required and _LEAST <= len(fields) < len(found)


def _without(schema: Mapping[str, Any], brief: Mapping[str, Any]) -> dict[str, Any]:
    left = {
        name: of for name, of in schema["properties"].items() if name not in brief["properties"]
    }
    return {**schema, "properties": left}


def _class(
    name: str,
    schema: Mapping[str, Any],
    base: str,
) -> Iterator[str]:
    about = " ".join(str(schema.get("description", "")).replace("\\", "").split())
    if "enum" in schema:
        words = ", ".join(schema["enum"])
        yield from (f"{name} = str", f'"""{f"{about} " if about else ""}One of {words}."""', "")
        return
    yield f"class {name}({base}):"
    if about := about.partition(". ")[0].rstrip("."):
        yield from (f'    """{about[:100]}."""', "")
    required = schema.get("required", ())
    for field, of in schema["properties"].items():
        kind = _type(of)
        own = f"{field}_" if field in ("from", "for") else field
        alias = f'alias="{field}"' if own != field else ""
        if field in required:
            default = f" = Field({alias})" if alias else _empty(kind)
        else:
            kind = (
                kind if kind.endswith("None") or of.get("default") is not None else f"{kind} | None"
            )
            default = f" = {_default(of.get('default'))}"
        yield f"    {own}: {kind}{default}"
        if text := of.get("description"):
            yield f'    """{text}"""'
    yield ""


def _empty(kind: str) -> str:
    """Return the default of a field that an older node may not know; objects and times have
    none.
    """
    of = "None" if kind.endswith("None") else kind
    if of.startswith(("list[", "dict[")):
        return f" = Field(default_factory={of[:4]})"
    return f" = {_EMPTY[of]}" if of in _EMPTY else ""


def _default(value: Any) -> str:
    return (
        f'"{value}"'
        if isinstance(value, str)
        else "Field(default_factory=list)"
        if value == []
        else repr(value)
    )


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return name_of(schema["$ref"])
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    match schema.get("type"):
        case "array":
            return f"list[{_type(schema.get('items', {}))}]"
        case "object":
            inner = schema.get("additionalProperties")
            return f"dict[str, {_type(inner) if isinstance(inner, Mapping) else 'Any'}]"
        case "string" if schema.get("format") == "date-time":
            return "datetime"
    return _PLAIN.get(schema.get("type", ""), "Any")


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            yield schema["$ref"]
        for inner in schema.values():
            yield from _references(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _references(inner)


def name_of(reference: str) -> str:
    """Return the class of a schema."""
    schema = reference.rpartition("/")[2]
    return _NAMES.get(schema, schema)
