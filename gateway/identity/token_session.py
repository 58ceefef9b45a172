"""A session with a PKCS#11 token: the login, and signatures with one private key.

Needs python-pkcs11, the extra ``pkcs11``; `gateway.identity.token_key` imports this module late.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import pkcs11
from pkcs11 import Mechanism, ObjectClass, TokenFlag
from pkcs11.exceptions import (
    MultipleObjectsReturned,
    MultipleTokensReturned,
    NoSuchKey,
    NoSuchToken,
    PinIncorrect,
    PinInvalid,
    PinLenRange,
    PinLocked,
    PKCS11Error,
    UserAlreadyLoggedIn,
)

from gateway.errors import SigningFailed

# Reasons of failures; see gateway/language/reasons.yml.
TOKEN_MISSING = "TOKEN_MISSING"
PIN_REFUSED = "TOKEN_PIN_REFUSED"
_KEY_MISSING = "TOKEN_KEY_MISSING"
_SIGNER_FAILED = "SIGNER_FAILED"

# Algorithm of `gateway.identity.keys.KEY_GENERATORS` -> mechanism of PKCS#11; SM2 has none.
_MECHANISMS = {
    "ed25519": Mechanism.EDDSA,
    "ecdsa-p256-sha256": Mechanism.ECDSA,
    "rsa-v1_5-sha256": Mechanism.SHA256_RSA_PKCS,
}


class WrongPin(SigningFailed):
    """The token has refused a PIN that was tried."""

    reason = PIN_REFUSED


@dataclass(frozen=True)
class TokenSession:
    """A session in which the token's user is logged in."""

    key: Any  # a `pkcs11.PrivateKey` of a class made at run time, with the methods of its rights

    def signature(self, content: bytes, algorithm: str) -> bytes:
        """Return a signature over ``content``.

        Raises `PKCS11Error` if the session has ended or the token cannot sign, and `SigningFailed`
        for an algorithm that PKCS#11 does not have.
        """
        mechanism = _MECHANISMS.get(algorithm)
        if mechanism is None:
            text = f"PKCS#11 has no mechanism for {algorithm}: use a command"
            raise SigningFailed(text, reason=_SIGNER_FAILED)
        if mechanism is Mechanism.ECDSA:  # signs a digest
            content = hashlib.sha256(content).digest()
        signature: bytes = self.key.sign(content, mechanism=mechanism)
        return signature

    def close(self) -> None:
        """End the session. Raises `PKCS11Error` if the token has ended it already."""
        self.key.session.close()


def find_token(module: str, label: str) -> "pkcs11.Token":
    """Return the token with a label, as the vendor's library sees it now.

    ``module``: path of that library. Raises `SigningFailed` (TOKEN_MISSING).
    """
    try:
        return pkcs11.lib(module).get_token(token_label=label)
    except (NoSuchToken, MultipleTokensReturned) as error:
        text = f"{module} does not have exactly one token with the label {label}"
        raise SigningFailed(text, reason=TOKEN_MISSING) from error
    # The library raises `RuntimeError` for a file that is not of PKCS#11.
    except (PKCS11Error, RuntimeError, OSError) as error:
        text = f"the PKCS#11 library {module} cannot be used ({type(error).__name__}: {error})"
        raise SigningFailed(text, reason=TOKEN_MISSING) from error


def open_session(token: "pkcs11.Token", pin: str, key_label: str) -> TokenSession:
    """Log in to a token and return the session with its private key.

    Raises `WrongPin`, and `SigningFailed` for any other failure.
    """
    session = _log_in(token, pin)
    try:
        key = session.get_key(
            object_class=ObjectClass.PRIVATE_KEY,
            label=key_label,
        )
    except (NoSuchKey, MultipleObjectsReturned) as error:
        session.close()
        text = f"the token {token.label} does not have exactly one private key named {key_label}"
        raise SigningFailed(text, reason=_KEY_MISSING) from error
    except PKCS11Error as error:
        session.close()
        text = f"the token {token.label} cannot be read ({type(error).__name__})"
        raise SigningFailed(text, reason=_SIGNER_FAILED) from error
    return TokenSession(key)


def _log_in(token: "pkcs11.Token", pin: str) -> "pkcs11.Session":
    """Return a new session of the token's user. Raises `WrongPin` and `SigningFailed`."""
    danger = login_danger(int(token.flags))
    if danger:
        raise SigningFailed(f"the token {token.label} {danger}", reason=PIN_REFUSED)
    try:
        return token.open(user_pin=pin)
    except UserAlreadyLoggedIn:  # a login holds for all sessions of the process
        return token.open()
    except (PinIncorrect, PinInvalid, PinLenRange, PinLocked) as error:
        text = f"the token {token.label} refuses the PIN ({type(error).__name__})"
        raise WrongPin(text) from error
    except PKCS11Error as error:
        text = f"the token {token.label} cannot be opened ({type(error).__name__})"
        raise SigningFailed(text, reason=_SIGNER_FAILED) from error


def login_danger(flags: int) -> str:
    """Return why no PIN may be tried at a token with these flags; "" if one may.

    ``flags``: the flags in CK_TOKEN_INFO of PKCS#11.
    """
    if flags & TokenFlag.USER_PIN_LOCKED:
        return "is locked after wrong PINs"
    if flags & TokenFlag.USER_PIN_FINAL_TRY:
        return "would be locked by one more wrong PIN: log in by hand"
    return ""
