"""Reads one registration in a process of its own: ``python -m provider_registry.worker INPUT RESULT``.

INPUT is the request's body as it came, RESULT is written whole: ``{"problems": […]}`` or ``{"provider": …,
"single": …}``. The process bounds its own time and memory, so that no description can take more of the machine.
"""

import json
import re
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from provider_registry.duplicate_keys import loaded, twice
from provider_registry.model import ROOT, InvalidDescription, Problem, Provider, bounded, counted
from provider_registry.registration import provider_from_component, provider_from_request

LAST_COMMA = re.compile(rb",\s*+[\]}]")
"""what such a comma looks like, also inside of a text"""
_STRING_OR_COMMA = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|,(?=\s*+[\]}])', re.DOTALL)
"""a text runs to the end where nothing closes it, so that every sign is looked at once"""


def without_last_commas(text: str) -> tuple[str, int]:
    """Return JSON without the commas before a closing bracket, and how many there were."""
    count = 0

    def kept(found: re.Match[str]) -> str:
        nonlocal count
        if found[0] != ",":
            return found[0]
        count += 1
        return ""

    return _STRING_OR_COMMA.sub(kept, text), count


def comma_warning(count: int) -> str:
    """Say so of a document."""
    return (
        f"has {count} commas before a closing bracket, which JSON does not know; read without"
        if count > 1
        else ("has a comma before a closing bracket, which JSON does not know; read without")
    )


MOST_BYTES = 16 * 1024**2
"""of a body: four times the characters of text that a description may hold"""
CPU_SECONDS = 20
MOST_SIGNS = 1_000_000
"""what separates values, also inside of texts; so many are parsed in a second"""
MEMORY = 512 * 1024**2
"""bytes of address space; a description within the bounds of `limits` needs a tenth of it"""


def main() -> None:
    """Bound this process, read INPUT, write RESULT; a reader never sees half of it."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    source, target = map(Path, sys.argv[1:3])
    said = told(source.read_bytes())
    part = target.with_suffix(".part")
    part.write_text(json.dumps(said, ensure_ascii=False), encoding="utf-8")
    part.rename(target)


def told(text: bytes) -> dict[str, Any]:
    """Return what the body says, or what is wrong with it, as JSON values."""
    try:
        provider, single = read(text)
    except InvalidDescription as error:
        return {"problems": [list(p) for p in error.problems]}
    return {"provider": provider.document(), "single": single}


def read(text: bytes) -> tuple[Provider, bool]:
    """Read a body of either form: (provider, whether it was one component with its image).

    Commas after a last entry are a warning, keys that stand twice in one object are not taken. Raises
    InvalidDescription.
    """
    if len(text) > MOST_BYTES:
        raise _refused(f"must not be longer than {MOST_BYTES} bytes")
    if too_many_values(text):
        raise _refused(f"must not hold more than {MOST_SIGNS} commas and opening brackets")
    try:
        body, commas = _parsed(text)
    except RecursionError:
        raise _refused("must not nest so deeply") from None
    except ValueError as error:  # no JSON, no UTF-8, or integers of thousands of digits
        raise _refused(f"must be JSON: {str(error)[:200]}") from None
    provider, single = read_value(body)
    if commas:
        provider = replace(provider, warnings=bounded([Problem(ROOT, comma_warning(commas)), *provider.warnings]))
    return provider, single


def too_many_values(text: bytes) -> bool:
    """Tell, without parsing a body, whether it is refused for the number of its values."""
    return counted(text, b",[{", MOST_SIGNS) > MOST_SIGNS


def _parsed(text: bytes) -> tuple[Any, int]:
    """Return the JSON value, and how many commas had to be left out for it.

    Raises ValueError, RecursionError; InvalidDescription where keys stand twice.
    """
    try:
        return _loaded(text), 0
    except ValueError:
        if not LAST_COMMA.search(text):
            raise
        cleaned, commas = without_last_commas(text.decode())
        if not commas:
            raise
    return _loaded(cleaned), commas


def _loaded(text: bytes | str) -> Any:
    """Raises ValueError, RecursionError; InvalidDescription where keys stand twice."""
    value, one_twice = loaded(text)
    if one_twice:
        del value  # there may be no room for both
        raise InvalidDescription(tuple(twice(text)))
    return value


def read_value(body: Any) -> tuple[Provider, bool]:
    """Read a body that is parsed already, in the same way."""
    single = isinstance(body, dict) and ("imageUrl" in body or "component_info" in body)
    return (provider_from_component if single else provider_from_request)(body), single


def _refused(rule: str) -> InvalidDescription:
    return InvalidDescription((Problem(ROOT, rule),))


if __name__ == "__main__":
    main()
