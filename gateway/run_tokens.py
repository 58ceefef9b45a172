"""The tokens by which a container proves which run it is.

A token is a random id, which the database keeps, and a code over it, which only the gateway that starts the
container can compute: whoever reads the database, or a copy of it, cannot make a token.
"""

import hmac

_CODE = 32
"""characters"""


class RunTokens:
    """Issues and checks the tokens of the runs that one gateway starts."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(self, id_: str) -> str:
        """Return the token that belongs to an id."""
        return id_ + self._code(id_)

    def id_of(self, token: str) -> str | None:
        """Return the id that a token belongs to; None for one that was not issued here."""
        id_, code = token[:-_CODE], token[-_CODE:]
        genuine = hmac.compare_digest(code.encode("utf-8", "replace"), self._code(id_).encode())
        return id_ if genuine else None

    def _code(self, id_: str) -> str:
        return hmac.digest(self._key, id_.encode("utf-8", "replace"), "sha256").hex()[:_CODE]
