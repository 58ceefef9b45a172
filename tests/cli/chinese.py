"""Checks that texts of the product have a Chinese translation."""

import re
from collections.abc import Iterable

from gateway.language import catalogue

CHINESE_LETTER = re.compile("[\u4e00-\u9fff]")

# Quoted values and commands; neither is translated.
QUOTED = re.compile("（实际为 .*?）|`.*?`|\".*?\"|'.*?'")
# Commands without quotes.
COMMANDS = re.compile(
    "register FILE|data upload --encoding|data grant|provider register|bfia-gateway( [a-z]+)+"
)


def check_chinese(texts: Iterable[str]) -> None:
    """Fail if the translation of a text is partly English."""
    untranslated = {}
    for text in texts:
        english = english_in(text)
        if english:
            untranslated[text] = english
    assert untranslated == {}, f"gateway/language/zh.yml has no Chinese for {untranslated}: add it"


def english_in(text: str) -> list[str]:
    """Return the English phrases (three words) in the Chinese translation of a text.

    Values and commands do not count. A translation without any Chinese is returned as it is.
    """
    chinese = QUOTED.sub(
        "",
        catalogue.translate(text, "zh"),
    )
    if not has_chinese(chinese):
        return [chinese]
    return re.findall("[a-z]{2,} [a-z]{2,} [a-z]{2,}", COMMANDS.sub("", chinese))


def has_chinese(text: str) -> bool:
    """True if a text has a Chinese letter."""
    return CHINESE_LETTER.search(text) is not None
