"""Masking of secrets in the archives and bundles of jobs.

Two kinds of secrets are masked: known ones, such as the tokens of runs, wherever they occur, and
every value with a name that marks the value as secret.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

MASK = "***"  # in place of a secret
# Names, or parts of names, that mark a value as secret.
_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)|secret|token|credential|(access|private|api)_?key$|authori[sz]ation",
    re.I,
)
_SECRET_IN_QUERY = re.compile(r"([?&](?:password|token)=)[^&\s]+")
_PASSWORD_IN_URL = re.compile(r"(://[^/@\s:]*):[^/@\s]*@")


def without_secrets(
    value: Any,
    secrets: Sequence[str] = (),
    hidden: bool = False,
) -> Any:
    """Return plain data with its secrets masked.

    These are values with a name that marks them as secret, and ``secrets`` wherever they occur in a
    text. ``hidden``: the whole value is secret, because of its own name or the name of an object
    around it.
    """
    if isinstance(value, Mapping):
        return _object_without_secrets(value, secrets, hidden)
    if isinstance(value, (list, tuple)):
        return [without_secrets(member, secrets, hidden) for member in value]
    if hidden and _can_be_secret(value):
        return MASK
    if isinstance(value, str):
        return _masked_text(value, secrets)
    return value


def _object_without_secrets(
    value: Mapping[Any, Any],
    secrets: Sequence[str],
    hidden: bool,
) -> dict[str, Any]:
    """Return an object with its secrets masked; if ``hidden``, all values except ``origin``."""
    plain = {}
    for key, member in value.items():
        name = str(key)
        is_secret = bool(_SECRET_NAME.search(name))
        inherits = hidden and name != "origin"  # an origin only names the source of a value
        plain[name] = without_secrets(member, secrets, is_secret or inherits)
    return plain


def _can_be_secret(value: Any) -> bool:
    """Return whether a value may be a secret; a boolean, None or an empty text discloses none."""
    if isinstance(value, bool) or value == "":
        return False
    return isinstance(value, (str, int, float))


def _masked_text(text: str, secrets: Sequence[str]) -> str:
    """Return a text with ``secrets`` masked, and with the passwords and tokens in URLs masked."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, MASK)
    text = _SECRET_IN_QUERY.sub(rf"\1{MASK}", text)
    return _PASSWORD_IN_URL.sub(rf"\1:{MASK}@", text)


def masked(
    pieces: Iterable[bytes],
    secrets: Iterable[bytes],
) -> Iterator[bytes]:
    """Yield bytes with every secret masked, even if it is split between two pieces.

    The mask is as long as the secret, so that the number of bytes does not change.
    """
    patterns = [secret for secret in secrets if secret]
    # Bytes at the end of a piece that may be the beginning of a secret.
    overlap = max(map(len, patterns), default=1) - 1
    pending = b""
    for piece in pieces:
        pending += piece
        for secret in patterns:
            pending = pending.replace(secret, b"*" * len(secret))
        complete = len(pending) - overlap  # bytes that no further piece can make part of a secret
        if complete > 0:
            yield pending[:complete]
            pending = pending[complete:]
    if pending:
        yield pending
