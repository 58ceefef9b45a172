"""The console's files and texts, as its tests read them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.console import session

FILES = Path(session.__file__).with_name("static")


def modules() -> list[Path]:
    """Return the console's own JavaScript."""
    scripts = FILES.rglob("*.js")
    return [script for script in scripts if "vendor" not in script.parts]


def words() -> dict[str, dict[str, str]]:
    """Return the console's texts by language and key."""
    script = (FILES / "words.js").read_text(encoding="utf-8")
    _, _, literal = script.partition("words = ")
    # The object literal becomes JSON: quoted languages, no trailing commas.
    with_quotes = re.sub(
        r"^  (\w+):",
        r'"\1":',
        literal.rstrip(";\n"),
        flags=re.M,
    )
    without_commas = re.sub(r",(\s*})", r"\1", with_quotes)
    return dict(json.loads(without_commas))


def translator(language: str) -> Callable[..., str]:
    """Return the lookup of the pages' texts by key in a language such as ``zh-CN``.

    A key without a text in the language has the English one; a state without a text is itself.
    """
    all_texts = words()
    english = all_texts["en"]
    texts = english | all_texts[language[:2]]

    def translate(key: str, **values: Any) -> str:
        state = key.removeprefix("=")
        text = texts.get(key, state)
        if values:
            return text.format(**values)
        return text

    return translate
