"""The types of the Python client's responses, from the operators' OpenAPI document."""

import ast
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, TypeGuard

from tools.docs.endpoints import described

CLIENT = "clients/python/bfia_gateway_client"
_ROOT = Path(__file__).resolve().parents[2]
_INTRO = '''"""Responses of a node by its OpenAPI document: written by ``make docs``, never by hand.

Further fields of a response, as of a node newer than this client, are kept as attributes.
Fields that an older node does not send are empty.
"""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Response(BaseModel):
    """The base of all responses."""

    model_config = ConfigDict(
        extra="allow",
        defer_build=True,
        protected_namespaces=(),
        populate_by_name=True,
    )
'''
# Classes whose names say more than their schemas' names.
_NAMES = {
    "Attempt": "TaskAttempt",
    "Listed": "ListedJob",
    "TaskView": "Task",
    "OutputSpec": "DagOutput",
    "Outputs-Output": "Outputs",
    "gateway__admin__responses__jobs__Party": "Party",
    "gateway__domain__dry_run__Item": "Check",
    "gateway__domain__spec__Party": "TrainingParty",
    "gateway__jobs__retention__Item": "RemovedItem",
}
# Fields that a class must have to be the base of another one: fewer are equal by chance.
_MIN_BASE_FIELDS = 6
_LONGEST_DOCSTRING = 100  # characters
_RESERVED = ("from", "for")  # fields that are keywords of Python, and so get an underscore
_PLAIN = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}
# Defaults of fields that an older node does not send.
_EMPTY = {
    "str": '""',
    "int": "0",
    "float": "0.0",
    "bool": "False",
    "Any": "None",
    "None": "None",
}

_Schema = Mapping[str, Any]


def module() -> str:
    """Return the module: the responses that the client reads, and the classes of their fields."""
    schemas = _schemas_by_class()
    classes = _Classes(schemas, _names_in_client() & schemas.keys())
    return "\n\n".join([_INTRO, *classes.sources()])


def _schemas_by_class() -> dict[str, _Schema]:
    """Return the schemas of the operators' listener by the names of their classes."""
    schemas = described()["operator"]["components"]["schemas"]
    return {_NAMES.get(name, name): schema for name, schema in schemas.items()}


def _names_in_client() -> set[str]:
    """Return the names that the client's modules read from their types, as in ``types.Job``."""
    names = set()
    for file in sorted((_ROOT / CLIENT).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if _is_attribute_of_types(node):
                names.add(node.attr)
    return names


def _is_attribute_of_types(node: ast.AST) -> TypeGuard[ast.Attribute]:
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    return node.value.id == "types"


class _Classes:
    """The sources of classes, each after its base and the classes of its fields."""

    def __init__(
        self,
        schemas: Mapping[str, _Schema],
        names: Set[str],
    ) -> None:
        """``schemas``: by class; ``names``: the classes that the client reads."""
        self._schemas = schemas
        self._names = sorted(names)
        self._sources: dict[str, str] = {}  # by class, in the order of the module

    def sources(self) -> list[str]:
        """Return the sources of all classes that the client needs."""
        for name in self._names:
            self._add(name)
        return list(self._sources.values())

    def _add(self, name: str) -> None:
        if name in self._sources:
            return
        schema = self._schemas[name]
        for reference in _references(schema):
            self._add(name_of(reference))
        base = self._base_of(schema)
        if base:
            self._add(base)
            schema = _without_fields(schema, self._schemas[base])
        self._sources[name] = "\n".join(_class_lines(name, schema, base or "Response"))

    def _base_of(self, schema: _Schema) -> str:
        """Return the class with the most fields that a schema extends; empty if there is none."""
        bases = [name for name in self._names if _extends(schema, self._schemas[name])]
        return max(
            bases,
            key=self._field_count,
            default="",
        )

    def _field_count(self, name: str) -> int:
        return len(self._schemas[name]["properties"])


def _extends(schema: _Schema, base: _Schema) -> bool:
    """True if a schema has all fields of another one, which is not small, and more."""
    fields = schema.get("properties", {})
    base_fields = base.get("properties", {})
    if not _MIN_BASE_FIELDS <= len(base_fields) < len(fields):
        return False
    has_equal_fields = all(fields.get(name) == field for name, field in base_fields.items())
    required = set(schema.get("required", ())) & set(base_fields)
    return has_equal_fields and required == set(base.get("required", ()))


def _without_fields(schema: _Schema, base: _Schema) -> _Schema:
    """Return a schema without the fields of its base."""
    fields = dict(schema["properties"])
    for name in base["properties"]:
        del fields[name]
    return {**schema, "properties": fields}


# ---------------------------------------------------------------- the source of a class


def _class_lines(
    name: str,
    schema: _Schema,
    base: str,
) -> Iterator[str]:
    """Yield the lines of a class; an enumeration becomes another name of ``str``."""
    description = " ".join(str(schema.get("description", "")).replace("\\", "").split())
    if "enum" in schema:
        values = f"One of {', '.join(schema['enum'])}."
        docstring = f"{description} {values}".strip()
        yield from (f"{name} = str", f'"""{docstring}"""', "")
        return
    yield f"class {name}({base}):"
    summary = description.partition(". ")[0].rstrip(".")
    if summary:
        yield from (f'    """{summary[:_LONGEST_DOCSTRING]}."""', "")
    required = schema.get("required", ())
    for field, field_schema in schema["properties"].items():
        yield from _field_lines(field, field_schema, field in required)
    yield ""


def _field_lines(
    field: str,
    schema: _Schema,
    is_required: bool,
) -> Iterator[str]:
    """Yield the declaration of a field, and its description if there is one."""
    name = field
    annotation = _annotation(schema)
    default = schema.get("default")
    if is_required:
        value = _empty_value(annotation)
    else:
        value = f" = {_literal(default)}"
        if default is None and not annotation.endswith("None"):
            annotation += " | None"
    if field in _RESERVED:
        name = f"{field}_"
        if is_required:
            value = f' = Field(alias="{field}")'
    yield f"    {name}: {annotation}{value}"
    if schema.get("description"):
        yield f'    """{schema["description"]}"""'


def _empty_value(annotation: str) -> str:
    """Return the default of a field that an older node may not send, such as `` = 0``.

    Fields with objects and times have none: the text is empty.
    """
    if annotation.endswith("None"):
        return " = None"
    if annotation.startswith(("list[", "dict[")):
        factory, _, _ = annotation.partition("[")
        return f" = Field(default_factory={factory})"
    if annotation in _EMPTY:
        return f" = {_EMPTY[annotation]}"
    return ""


def _literal(value: Any) -> str:
    """Return the source of a default."""
    if isinstance(value, str):
        return f'"{value}"'
    if value == []:
        return "Field(default_factory=list)"
    return repr(value)


def _annotation(schema: _Schema) -> str:
    """Return the type of a field."""
    if "$ref" in schema:
        return name_of(schema["$ref"])
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(map(_annotation, schema["anyOf"])))
    match schema:
        case {"type": "array"}:
            return f"list[{_annotation(schema.get('items', {}))}]"
        case {"type": "object", "additionalProperties": Mapping() as values}:
            return f"dict[str, {_annotation(values)}]"
        case {"type": "object"}:
            return "dict[str, Any]"
        case {"type": "string", "format": "date-time"}:
            return "datetime"
    return _PLAIN.get(schema.get("type", ""), "Any")


def _references(schema: Any) -> Iterator[str]:
    """Yield the references to other schemas in a schema, at any depth."""
    if isinstance(schema, list):
        for inner in schema:
            yield from _references(inner)
    elif isinstance(schema, Mapping):
        if "$ref" in schema:
            yield schema["$ref"]
        for inner in schema.values():
            yield from _references(inner)


def name_of(reference: str) -> str:
    """Return the class of a referenced schema, such as ``#/components/schemas/Job``."""
    schema = reference.rpartition("/")[2]
    return _NAMES.get(schema, schema)
