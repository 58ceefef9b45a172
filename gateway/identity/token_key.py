"""A private key in a PKCS#11 token: a hardware security module, a smart card or SoftHSM."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.errors import SigningFailed
from gateway.identity.signers import SIGN_TIMEOUT, SIGNER_TIMEOUT

if TYPE_CHECKING:
    from gateway.identity.token_session import TokenSession


@dataclass(frozen=True)
class TokenAddress:
    """The place of a private key in a token."""

    module: str  # path of the vendor's PKCS#11 library
    token: str  # label of the token
    key: str  # label of the private key


class TokenKey:
    """A `gateway.identity.signers.KeyHolder` that stays logged in to a token.

    Thread-safe. A refused PIN is not tried again before it changes, and no PIN is tried when the
    token has a single try left: no repetition of ours can lock the token.
    """

    def __init__(
        self,
        address: TokenAddress,
        read_pin: Callable[[], str],
        timeout: float = SIGN_TIMEOUT,
    ) -> None:
        """``read_pin`` returns the PIN at each login, and may raise `SigningFailed`.

        ``timeout``: seconds for one signature, including a login.
        """
        self._address = address
        self._read_pin = read_pin
        self._timeout = timeout
        self._lock = threading.Lock()
        # The last call of the library: its thread may still run after `timeout`
        self._call: _Call | None = None
        self._session: TokenSession | None = None  # None: not logged in
        self._refused_pin = ""  # the last PIN that the token refused; "" for none

    def signature(self, content: bytes, algorithm: str) -> bytes:
        """Return the token's signature. Raises `SigningFailed`.

        The library of a network device may hang, so it is called in a thread of its own.
        """
        if not self._lock.acquire(timeout=self._timeout):
            raise self._timed_out()
        try:
            if self._call is not None and self._call.is_alive():
                raise self._timed_out()
            self._call = _Call(self._sign, content, algorithm)
            self._call.start()
            self._call.join(self._timeout)
            if self._call.is_alive():
                raise self._timed_out()
            return self._call.result()
        finally:
            self._lock.release()

    def _timed_out(self) -> SigningFailed:
        """Return the error of a token that does not respond."""
        text = f"the token {self._address.token} has not signed within {self._timeout:g} s"
        return SigningFailed(text, reason=SIGNER_TIMEOUT)

    def _sign(self, content: bytes, algorithm: str) -> bytes:
        """Sign, and log in first if that is necessary.

        A new session is opened if there is none, or if signing fails in the one that is open:
        tokens end sessions by themselves. Raises `SigningFailed`.
        """
        try:
            from pkcs11.exceptions import PKCS11Error
        except ImportError as error:
            text = "PKCS#11 needs the extra pkcs11: pip install 'bfia-gateway[pkcs11]'"
            raise SigningFailed(text, reason="TOKEN_MISSING") from error
        if self._session is not None:
            try:
                return self._session.signature(content, algorithm)
            except PKCS11Error:
                self._close()
        self._session = self._open()
        try:
            return self._session.signature(content, algorithm)
        except PKCS11Error as error:
            self._close()
            text = f"the token {self._address.token} cannot sign ({type(error).__name__})"
            raise SigningFailed(text) from error

    def _open(self) -> "TokenSession":
        """Log in to the token. Raises `SigningFailed`."""
        from gateway.identity import token_session

        address = self._address
        token = token_session.find_token(address.module, address.token)
        pin = self._read_pin()
        if pin == self._refused_pin:
            text = f"the token {address.token} has refused this PIN, which is not tried again"
            raise SigningFailed(text, reason=token_session.PIN_REFUSED)
        try:
            return token_session.open_session(token, pin, address.key)
        except token_session.WrongPin:
            self._refused_pin = pin
            raise

    def _close(self) -> None:
        """Forget the session, and end it if the token has not."""
        from pkcs11.exceptions import PKCS11Error

        session = self._session
        self._session = None
        if session is not None:
            with suppress(PKCS11Error):
                session.close()


class _Call(threading.Thread):
    """One call in a thread that does not keep the process alive."""

    def __init__(
        self,
        sign: Callable[[bytes, str], bytes],
        content: bytes,
        algorithm: str,
    ) -> None:
        super().__init__(name="token", daemon=True)
        self._sign = sign
        self._content = content
        self._algorithm = algorithm
        self._signature = b""
        self._error: Exception | None = None

    def run(self) -> None:
        """Make the call, and store its result or its error."""
        try:
            self._signature = self._sign(self._content, self._algorithm)
        except Exception as error:  # any kind: `result` raises it again for the caller
            self._error = error

    def result(self) -> bytes:
        """Return the result of the ended call, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._signature
