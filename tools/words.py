"""Finds words that this project does not use: in identifiers, comments, docstrings, messages and
Chinese texts.

    python tools/words.py [FILE...]      # everything that git tracks, without arguments

``CONTRIBUTING.md`` has the terms to use instead.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
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
    r"\b(?<!there )is no (?!longer|more|less|such|one|other|need|way|reason|later)[a-z]": "is not a valid …",
    r"\bwithh(old|eld)": "redact",
}

CHINESE = {
    "供应方|供应商|算法提供方|(?<!身份)(?<!算法)提供方": "算法提供商 (provider), 厂商 (vendor) or 身份提供方",
    "退役|停用(算法提供商|厂商|的版本)": "下线 (retire)",
}
CHINESE_IN = ("*.zh-CN.md", "gateway/language/*.yml", "*/words.js")


def tracked() -> list[Path]:
    """Return the Python files of the product and its tools, and the files with Chinese texts."""
    line = ["git", "ls-files", *ROOTS, *CHINESE_IN]
    listed = subprocess.run(
        line,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    found = [path for name in listed if (path := Path(name)).is_file()]
    return [path for path in found if path.suffix == ".py" or any(map(path.match, CHINESE_IN))]


def parts(name: str) -> list[str]:
    """Return the words of an identifier, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield names that a file defines."""
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


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield comments and all strings with more than one word."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) and " " in token.string:
            yield token.start[0], token.string


def problems(path: Path) -> Iterator[str]:
    """Yield a line for each word that should be another."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        for pattern, instead in CHINESE.items():
            for match in re.finditer(pattern, text):
                yield f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}: say {instead}"
        return
    for line, name in identifiers(ast.parse(text)):
        for word in parts(name):
            for form, instead in IDENTIFIERS.items():
                if re.fullmatch(form, word):
                    yield f"{path}:{line}: {name}: say {instead}"
    for line, sentence in prose(text):
        for pattern, instead in PROSE.items():
            for match in re.finditer(pattern, sentence, re.IGNORECASE):
                at = line + sentence.count("\n", 0, match.start())
                yield f'{path}:{at}: "{match.group()}": say {instead}'


def main() -> None:
    """Print what was found; exit with 1 if there is anything."""
    files = [Path(name) for name in sys.argv[1:]] or [
        path for path in tracked() if path != Path("tools/words.py")
    ]
    found = [line for path in files for line in problems(path)]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
