import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.console import session

FILES = Path(session.__file__).with_name("static")


def modules() -> list[Path]:
    """Return the console's own JavaScript."""
    return [file for file in FILES.rglob("*.js") if "vendor" not in file.parts]


def words() -> dict[str, dict[str, str]]:
    """Return the console's texts by language and key."""
    text = (FILES / "words.js").read_text(encoding="utf-8").partition("words = ")[2].rstrip(";\n")
    keyed = re.sub(r"^  (\w+):", r'"\1":', text, flags=re.M)
    return dict(json.loads(re.sub(r",(\s*})", r"\1", keyed)))


def spoken(language: str) -> Callable[..., str]:
    """Return the lookup of the pages' texts by key; a state without a text is its own."""
    known = words()

    def say(key: str, **values: Any) -> str:
        text = known[language[:2]].get(key) or known["en"].get(key) or key.removeprefix("=")
        return text.format(**values) if values else text

    return say
