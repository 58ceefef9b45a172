"""How FATE's own tools authenticate: an application's id and a signature, in place of a token in a header.

``flow init --app-id … --app-token …`` makes them sign (see `adapter.fate.signing`). A signature of a request that
changes something is accepted once; of a read, for the same read only. FATE's nonces have four digits and its times
whole seconds, so of the requests of one second its tools sign one in 9,000 like another.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import uuid4

from adapter.fate.signing import App, SignedHeaders, UsedSignatures
from gateway.auth import Identity, Role, Unauthenticated
from gateway.ports import Clock


@dataclass(frozen=True)
class ClientApp:
    """An application of this site's own people."""

    token: str
    role: Role


class ClientSignatures:
    """Identifies who signed a request."""

    def __init__(self, apps: Mapping[str, ClientApp], clock: Clock, used: UsedSignatures | None = None) -> None:
        self._apps = apps
        self._clock = clock
        self._used = used or UsedSignatures()

    def identify(self, headers: Mapping[str, str], read: str) -> Identity | None:
        """Return who signed, None without a signature. Raises `Unauthenticated`; may wait for the database.

        ``read``: method and path of a request that changes nothing; empty for any other.
        """
        signed = SignedHeaders(headers, "username")
        if len(signed.missing) == 4:
            return None
        if signed.missing:
            text = f"a signed request lacks {', '.join(signed.missing)}"
            raise Unauthenticated(text, reason="SIGNATURE_MISSING")
        app = self._apps.get(signed.app_id)
        if app is None:
            text = f"unknown application {signed.app_id[:40]!r}: the setting fate.clients names those there are"
            raise Unauthenticated(text, reason="APP_UNKNOWN")
        request = hashlib.sha256(read.encode("utf-8", "replace")).hexdigest() if read else uuid4().hex
        now_ms = int(self._clock().timestamp() * 1000)
        signed.check(App(signed.app_id, app.token), now_ms, self._used, request, Unauthenticated)
        return Identity(signed.app_id, app.role)
