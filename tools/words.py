"""Finds words that this project does not use in identifiers, comments, strings and Chinese texts.

    python tools/words.py [FILE...]      # without arguments: everything that git tracks

``CONTRIBUTING.md`` has the terms to use instead.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOTS = (
    "gateway",
    "adapter",
    "engines",
    "provider_registry",
    "route_table",
    "clients",
    "tools",
    "examples",
)
# Words of identifiers (regular expressions), and the words to use instead.
IDENTIFIERS = {
    "fore(tell(ing)?|told|seen)": "dry_run",
    "heard": "received, reported",
    "lifetimes": "timeouts",
    "neighbours?": "peer",
    "oddit(y|ies)|remarks?": "warning",
    "patience": "timeout",
    "said": "response",
    "settl(e|ed|ing)|weigh(ing)?": "transition",
    "strangers?": "unknown peer",
    "told": "reported, response",
    "unread": "unknown field",
    "with(hold|held|holding)": "redact",
    "outward": "redacted",
}
# Phrases of comments and strings, and the words to use instead.
PROSE = {
    r"hand(s|ed|ing)? (it |them |a job |jobs |one )?in\b": "submit",
    r"\bforet(ell|old)": "dry run",
    r"\bodd(ity|ities)\b": "warning",
    r"\bremarks?\b": "warning",
    r"\bneighbours?\b": "peer",
    r"\bstrangers?\b": "unknown peer",
    r"\bpatience\b": "timeout",
    r"\bstands? twice\b": "duplicate",
    r"\bheld against\b|\bhold(s|ing)? \w+ against\b": "validate",
    r"\b(is|are) told\b|\btold (of|by|to)\b": "reported",
    r"\bheard (of|from|by|that)\b": "received, reported",
    r"\blet in\b|\blets in\b": "allowed",
    r"\bread over\b": "ignored",
    r"\bat once\b": "immediately, or at the same time",
    r"\b(?<!there )is no (?!longer|more|less|such|one|other|need|way|reason|later)[a-z]": (
        "is not a valid …"
    ),
    r"\bwithh(old|eld)": "redact",
}

# Chinese words, and the words to use instead.
CHINESE = {
    "供应方|供应商|算法提供方|(?<!身份)(?<!算法)提供方": (
        "算法提供商 (provider), 厂商 (vendor) or 身份提供方"
    ),
    "退役|停用(算法提供商|厂商|的版本)": "下线 (retire)",
}
# Files with Chinese texts.
CHINESE_FILES = ("*.zh-CN.md", "gateway/language/*.yml", "*/words.js")
THIS_FILE = Path("tools/words.py")  # contains all of these words


@dataclass(frozen=True)
class Place:
    """A place in a file with a word that should be another one."""

    path: Path
    line: int
    text: str  # the word, as the message shows it
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}: say {self.instead}"


def tracked_files() -> list[Path]:
    """Return the Python files of the product and its tools, and the files with Chinese texts."""
    listing = subprocess.run(
        ["git", "ls-files", *ROOTS, *CHINESE_FILES],
        check=True,
        capture_output=True,
        text=True,
    )
    paths = map(Path, listing.stdout.split())
    return [path for path in paths if _is_checked(path)]


def _is_checked(path: Path) -> bool:
    """True for a present file in Python or with Chinese texts."""
    if path == THIS_FILE or not path.is_file():
        return False
    return path.suffix == ".py" or any(map(path.match, CHINESE_FILES))


def places_in(path: Path) -> Iterator[Place]:
    """Yield each place in a file with a word that should be another one."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _identifier_places(path, text)
        yield from _prose_places(path, text)
    else:
        yield from _chinese_places(path, text)


def _identifier_places(path: Path, text: str) -> Iterator[Place]:
    """Yield the identifiers that contain a word of `IDENTIFIERS`."""
    for line, name in identifiers(ast.parse(text)):
        for word in parts_of(name):
            for pattern, instead in IDENTIFIERS.items():
                if re.fullmatch(pattern, word):
                    yield Place(path, line, name, instead)


def _prose_places(path: Path, text: str) -> Iterator[Place]:
    """Yield the phrases of `PROSE` in comments and strings."""
    for first_line, prose in prose_of(text):
        for pattern, instead in PROSE.items():
            for match in re.finditer(pattern, prose, re.IGNORECASE):
                line = first_line + prose.count("\n", 0, match.start())
                yield Place(path, line, f'"{match.group()}"', instead)


def _chinese_places(path: Path, text: str) -> Iterator[Place]:
    """Yield the words of `CHINESE` in a Chinese text."""
    for pattern, instead in CHINESE.items():
        for match in re.finditer(pattern, text):
            line = text.count("\n", 0, match.start()) + 1
            yield Place(path, line, match.group(), instead)


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the names that a file defines, with their lines; 0 for the alias of an import."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.alias(asname=str()):
                yield 0, str(node.asname)


def parts_of(name: str) -> list[str]:
    """Return the words of an identifier, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def prose_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield comments and strings of more than one word, with the lines of their beginnings."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) and " " in token.string:
            yield token.start[0], token.string


def main() -> int:
    """Print each place; return 1 if there is one."""
    files = [Path(name) for name in sys.argv[1:]] or tracked_files()
    exit_code = 0
    for path in files:
        for place in places_in(path):
            print(place)
            exit_code = 1
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
