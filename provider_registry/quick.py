"""Says quickly that a document keeps a schema: most do, and the library that names each mistake takes its time.

Only the keywords that this room's schemas use are known; another one is refused when the schema is compiled.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]

_ANNOTATIONS = frozenset({"$schema", "$id", "title", "description", "examples", "x-rule"})
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def compiled(schema: Mapping[str, Any]) -> Check:
    """Return a function that is true only for values without a mistake.

    Raises ValueError for a keyword that this module does not know.
    """
    unknown = schema.keys() - _ANNOTATIONS - _MAKERS.keys()
    if unknown:
        raise ValueError(f"no quick check for {', '.join(sorted(unknown))}")
    checks = [_MAKERS[name](limit) for name, limit in schema.items() if name in _MAKERS]
    if "additionalProperties" in schema:
        others, known = compiled(schema["additionalProperties"]), frozenset(schema.get("properties", ()))
        checks.append(
            lambda value: type(value) is not dict or all(others(v) for k, v in value.items() if k not in known)
        )
    if len(checks) == 1:
        return checks[0]
    return lambda value: all(check(value) for check in checks)


def _type(names: str | list[str]) -> Check:
    kinds = frozenset(kind for name in ([names] if isinstance(names, str) else names) for kind in _TYPES[name])
    return lambda value: type(value) in kinds


def _required(names: list[str]) -> Check:
    needed = frozenset(names)
    return lambda value: type(value) is not dict or needed <= value.keys()


def _properties(schemas: Mapping[str, Any]) -> Check:
    checks = {name: compiled(schema) for name, schema in schemas.items()}

    def check(value: Any) -> bool:
        if type(value) is dict:
            for name, part in value.items():
                known = checks.get(name)
                if known is not None and not known(part):
                    return False
        return True

    return check


def _items(schema: Mapping[str, Any]) -> Check:
    check = compiled(schema)
    return lambda value: type(value) is not list or all(check(item) for item in value)


def _longest(kind: type[str | list[Any] | dict[str, Any]]) -> Callable[[int], Check]:
    return lambda limit: lambda value: type(value) is not kind or len(value) <= limit


def _pattern(text: str) -> Check:
    search = re.compile(text).search
    return lambda value: type(value) is not str or search(value) is not None


_MAKERS: Mapping[str, Callable[[Any], Check]] = {
    "type": _type,
    "required": _required,
    "properties": _properties,
    "additionalProperties": lambda _: lambda _value: True,
    "items": _items,
    "maxLength": _longest(str),
    "maxItems": _longest(list),
    "maxProperties": _longest(dict),
    "minItems": lambda limit: lambda value: type(value) is not list or len(value) >= limit,
    "pattern": _pattern,
}
