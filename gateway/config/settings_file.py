"""The configuration's file: read as YAML, without knowing what a setting is."""

from pathlib import Path
from typing import Any

import yaml

from gateway.config.loader import KeyTwice, load_yaml, wrong_in
from gateway.data.whole_files import MIB, NotFit, whole
from gateway.domain.problems import Problem
from gateway.errors import Invalid

HIDDEN = "(not shown)"
"""instead of what may be a secret"""


def read(path: Path) -> tuple[str, dict[str, Any]]:
    """Return a file's text and what it says. Raises `Invalid`; the text of a problem shows nothing of a value."""
    try:
        text = whole(path, MIB).decode()
        data: Any = load_yaml(text)
    except OSError as error:
        raise Invalid([Problem(str(path), "cannot be read", error.strerror)]) from error
    except NotFit as error:
        raise Invalid([Problem(str(path), str(error).removeprefix(f"{path} "))]) from error
    except UnicodeDecodeError as error:
        raise Invalid([Problem(str(path), "must be text in UTF-8", f"byte {error.start}")]) from error
    except KeyTwice as error:
        rule = f"stands in line {error.first} and again in line {error.second}; keep one of them"
        raise Invalid([Problem(error.key, rule, HIDDEN)]) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise Invalid([Problem(str(path), f"must be YAML: {wrong_in(error)}")]) from error
    if _deep(data):
        raise Invalid([Problem(str(path), "is nested too deeply")])
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise Invalid([Problem(str(path), "must be a YAML mapping (name: value)", type(data).__name__)])
    return text, data


_LEVELS = 50
"""more than any configuration has; the reader of YAML takes more than Python can go through"""


def _deep(data: Any) -> bool:
    """Tell whether something is nested deeper than makes sense; what an alias repeats is looked at once."""
    seen: set[int] = set()
    layer = [data] if isinstance(data, dict | list) else []
    for _ in range(_LEVELS):
        inner = [v for one in layer for v in (one.values() if isinstance(one, dict) else one)]
        layer = [v for v in inner if isinstance(v, dict | list) and id(v) not in seen]
        seen.update(map(id, layer))
    return bool(layer)
