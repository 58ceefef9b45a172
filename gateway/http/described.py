"""Adds to an application's interface description what each operation answers: its schema and an example.

The framework would read it from return types; ours are plain values, so tables of models say it.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

Model = type[BaseModel]
Answers = Mapping[tuple[str, str], Model]
"""(method, path) -> what it answers in JSON"""
Tables = tuple[Callable[[str, str], Model | None], Callable[[str], Model]]
"""by method and path what an operation answers in JSON, by path how it refuses"""

_OK = ("200", "201")
_JSON = "application/json"
_PREFIX = "Answer."
_REF = "#/components/schemas/"
_BYTES = {"type": "string", "format": "binary"}
_TEXT = {"type": "string"}
_FRAMEWORKS_OWN = ("HTTPValidationError", "ValidationError")
_SAMPLES: Mapping[str, Any] = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "null": None}


def describe(app: FastAPI, tables: Callable[[], Tables]) -> None:
    """Have the application's description hold answers and refusals; ``tables`` is asked when somebody reads it."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _fill(made(), *tables())
        return made()

    app.openapi = openapi  # type: ignore[method-assign]


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, path and description of every operation."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in ("get", "put", "post", "patch", "delete"):
                yield method, path, operation


def _fill(
    document: dict[str, Any],
    answer_of: Callable[[str, str], Model | None],
    refusal_of: Callable[[str], Model],
) -> None:
    found = {(m, p): (o, answer_of(m, p), refusal_of(p)) for m, p, o in operations(document)}
    models = dict.fromkeys(model for _, *both in found.values() for model in both if model is not None)
    names, definitions = models_json_schema(
        [(model, "serialization") for model in models], ref_template=f"{_REF}{_PREFIX}{{model}}"
    )
    schemas = definitions.get("$defs", {})
    components = document.setdefault("components", {}).setdefault("schemas", {})
    components |= {f"{_PREFIX}{name}": schema for name, schema in schemas.items()}
    for name in _FRAMEWORKS_OWN:  # it is not how we refuse
        components.pop(name, None)

    def content(model: Model) -> dict[str, Any]:
        schema = names[model, "serialization"]
        return {"schema": schema, "example": sample(schema, components)}

    for operation, answer, refusal in found.values():
        responses = operation["responses"]
        responses.pop("422", None)
        responses.setdefault("default", {"description": "Refused.", "content": {_JSON: content(refusal)}})
        status = next((code for code in _OK if code in responses), "200")
        good = responses.setdefault(status, {"description": "Done."})
        kinds = good.setdefault("content", {})
        if answer is not None:
            kinds[_JSON] = content(answer) | {k: v for k, v in kinds.get(_JSON, {}).items() if k == "example"}
        for kind, said in kinds.items():
            if answer is not None and kind.endswith("+json"):
                said |= content(answer)
            if not said.get("schema"):
                said["schema"] = _TEXT if kind.startswith("text/") else _BYTES
            if kind == _JSON and not said.keys() & {"example", "examples"} and "example" not in said["schema"]:
                said["example"] = sample(said["schema"], components)


def sample(schema: Mapping[str, Any], components: Mapping[str, Any]) -> Any:
    """Return a value that keeps to a schema: its examples where it has some."""
    if "$ref" in schema:
        return sample(components[schema["$ref"].removeprefix(_REF)], components)
    for given in ("examples", "enum"):
        if schema.get(given):
            return schema[given][0]
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return sample(schema["anyOf"][0], components)
    kind = schema.get("type")
    if kind == "array":
        return [sample(schema.get("items", {}), components)]
    if kind == "object":
        rest = schema.get("additionalProperties")
        named = {name: sample(inner, components) for name, inner in schema.get("properties", {}).items()}
        return named or ({"name": sample(rest, components)} if isinstance(rest, dict) and rest else {})
    return _SAMPLES.get(str(kind), {})
