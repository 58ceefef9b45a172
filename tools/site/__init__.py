"""The documentation as a site of static pages: searchable without a network, in both languages."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("en", "zh")
CHINESE_SUFFIX = ".zh-CN.md"


def language_of(path: Path) -> str:
    """Return the language of a page by its name: NAME.md is English, NAME.zh-CN.md Chinese."""
    if path.name.endswith(CHINESE_SUFFIX):
        return "zh"
    return "en"
