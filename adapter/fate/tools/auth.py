"""How FATE's own tools say who they are: an application's id and a signature, in place of a token in a header.

``flow init --app-id … --app-token …`` makes them sign: MD5 over id, user, nonce and time, then over that and the
token, which is never sent. It proves who asks and not what, and holds for a minute. So one that was heard with a
change, by any gateway of the node, is good for nothing else, and one that came with a look for that same question
only: its answer is heard by whoever hears it. Of a second's requests FATE's tools sign one in 9,000 like another,
since nonces have four digits and times whole seconds. Let such a listener be reached through TLS only.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import uuid4

from adapter.fate.signing import VALID_MS, Heard
from gateway.auth import Identity, NotLetIn, Role
from gateway.ports import Clock

_HEADERS = ("appid", "nonce", "timestamp", "signature")


@dataclass(frozen=True)
class ClientApp:
    """An application of this site's own people."""

    token: str
    role: Role


class ClientSignatures:
    """Recognises who signed a request."""

    def __init__(self, apps: Mapping[str, ClientApp], clock: Clock, heard: Heard | None = None) -> None:
        self._apps = apps
        self._clock = clock
        self._heard = heard or Heard()

    def identify(self, headers: Mapping[str, str], look: str) -> Identity | None:
        """Return who signed; None where nobody did. Raises `NotLetIn` with the reason. Names are in lower case.

        ``look``: the question, of a request that changes nothing; empty for any other. May wait for a database.
        """
        said = {name: headers.get(name, "") for name in _HEADERS}
        if not any(said.values()):
            return None
        if missing := [name for name, value in said.items() if not value]:
            raise NotLetIn(f"a signed request lacks {', '.join(missing)}", reason="SIGNATURE_MISSING")
        app = self._apps.get(said["appid"])
        if app is None:
            text = f"nobody here knows the application {said['appid'][:40]!r}: the setting fate.clients names them"
            raise NotLetIn(text, reason="APP_UNKNOWN")
        if not said["timestamp"].isascii() or not said["timestamp"].isdecimal() or len(said["timestamp"]) > 15:
            raise NotLetIn("Timestamp must be milliseconds since 1970", reason="SIGNATURE_WRONG")
        age = int(self._clock().timestamp() * 1000) - int(said["timestamp"])
        if abs(age) > VALID_MS:
            text = f"the request was signed {age} ms ago: more than {VALID_MS}; compare the clocks"
            raise NotLetIn(text, reason="SIGNATURE_EXPIRED")
        parts = (said["appid"], headers.get("username", ""), said["nonce"], said["timestamp"])
        wanted = signature(parts, app.token)
        if not hmac.compare_digest(wanted.encode(), said["signature"].lower().encode()):
            raise NotLetIn("the signature does not fit the application's token", reason="SIGNATURE_WRONG")
        if not self._heard.fits(
            wanted, hashlib.sha256(look.encode("utf-8", "replace")).hexdigest() if look else uuid4().hex
        ):
            text = "this signature came with another request already: sign each by itself, or try once more"
            raise NotLetIn(text, reason="SIGNATURE_USED")
        return Identity(said["appid"], app.role)


def signature(parts: tuple[str, str, str, str], token: str) -> str:
    """Return the signature over id, user, nonce and time."""
    return _md5(_md5("".join(parts)) + token)


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
