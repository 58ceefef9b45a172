"""SM2 signatures with SM3 (GB/T 32918.2), by the OpenSSL 3 that Python's own ssl module is linked to.

`cryptography`, which reads and uses all other keys, has no SM2. The two classes have those methods of its keys
that signing needs. The signer's id is the usual one, ``1234567812345678``.
"""

import _ssl
import ssl
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import (
    CDLL,
    POINTER,
    addressof,
    byref,
    c_char_p,
    c_int,
    c_long,
    c_size_t,
    c_void_p,
    create_string_buffer,
)
from functools import cache
from textwrap import wrap
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

_ID = b"1234567812345678"
_SPKI = bytes.fromhex("3059301306072a8648ce3d020106082a811ccf5501822d034200")
"""SubjectPublicKeyInfo of this curve, before the point"""
_SIZE = 32
"""bytes of each of the two numbers of a signature"""
_LONGEST_SIGNATURE = 72
_BEGIN, _END = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
_POINTER = POINTER(c_void_p)
_CALLS: dict[str, tuple[Any, ...]] = {
    "ERR_clear_error": (None,),
    "EVP_sm3": (c_void_p,),
    "EVP_PKEY_Q_keygen": (c_void_p, c_void_p, c_void_p, c_char_p),
    "EVP_PKEY_free": (None, c_void_p),
    "EVP_PKEY2PKCS8": (c_void_p, c_void_p),
    "PKCS8_PRIV_KEY_INFO_free": (None, c_void_p),
    "i2d_PKCS8_PRIV_KEY_INFO": (c_int, c_void_p, _POINTER),
    "i2d_PUBKEY": (c_int, c_void_p, _POINTER),
    "d2i_AutoPrivateKey": (c_void_p, c_void_p, POINTER(c_char_p), c_long),
    "d2i_PUBKEY": (c_void_p, c_void_p, POINTER(c_char_p), c_long),
    "EVP_MD_CTX_new": (c_void_p,),
    "EVP_MD_CTX_free": (None, c_void_p),
    "EVP_DigestSignInit": (c_int, c_void_p, _POINTER, c_void_p, c_void_p, c_void_p),
    "EVP_DigestVerifyInit": (c_int, c_void_p, _POINTER, c_void_p, c_void_p, c_void_p),
    "EVP_PKEY_CTX_set1_id": (c_int, c_void_p, c_char_p, c_size_t),
    "EVP_DigestSign": (c_int, c_void_p, c_char_p, POINTER(c_size_t), c_char_p, c_size_t),
    "EVP_DigestVerify": (c_int, c_void_p, c_char_p, c_size_t, c_char_p, c_size_t),
}
"""function of OpenSSL -> its result, and its arguments"""


class Lacking(ValueError):
    """There is no SM2 on this machine."""


class PublicKey:
    """A point of the curve."""

    def __init__(self, spki: bytes) -> None:
        """Raises ValueError for what is no such key."""
        if not is_public(spki):
            raise ValueError("is not a key for SM2")
        self._spki = spki
        with _read("d2i_PUBKEY", spki):
            pass

    def public_bytes(self, *_: object) -> bytes:
        """Return SubjectPublicKeyInfo in DER."""
        return self._spki

    def verify(self, signature: bytes, content: bytes) -> None:
        """Raise `InvalidSignature` unless content was signed so with this key."""
        if len(signature) != 2 * _SIZE:
            raise InvalidSignature
        r, s = (int.from_bytes(half, "big") for half in (signature[:_SIZE], signature[_SIZE:]))
        der = encode_dss_signature(r, s)
        with (
            _read("d2i_PUBKEY", self._spki) as key,
            _context("EVP_DigestVerifyInit", key) as context,
        ):
            try:
                _called("EVP_DigestVerify", context, der, len(der), content, len(content))
            except ValueError as error:
                raise InvalidSignature from error


class PrivateKey:
    """A key that signs."""

    def __init__(self, pkcs8: bytes) -> None:
        """Raises ValueError for what is no such key."""
        self._pkcs8 = pkcs8
        with _read("d2i_AutoPrivateKey", pkcs8) as key:
            self._public = PublicKey(_der("i2d_PUBKEY", key))

    @classmethod
    def generate(cls) -> "PrivateKey":
        """Make a key."""
        with (
            _freed("EVP_PKEY_free", _called("EVP_PKEY_Q_keygen", None, None, b"SM2")) as key,
            _freed("PKCS8_PRIV_KEY_INFO_free", _called("EVP_PKEY2PKCS8", key)) as plain,
        ):
            return cls(_der("i2d_PKCS8_PRIV_KEY_INFO", plain))

    @classmethod
    def from_pem(cls, pem: bytes) -> "PrivateKey":
        """Read a key in PKCS #8. Raises ValueError."""
        return cls(b64decode(pem.decode("latin-1").partition(_BEGIN)[2].partition(_END)[0]))

    def public_key(self) -> PublicKey:
        """Return the key that others check with."""
        return self._public

    def private_bytes(self, *_: object) -> bytes:
        """Return PKCS #8 in PEM form, without a password."""
        return "\n".join([_BEGIN, *wrap(b64encode(self._pkcs8).decode(), 64), _END, ""]).encode()

    def sign(self, content: bytes) -> bytes:
        """Return both numbers of a signature, one after the other."""
        der, size = create_string_buffer(_LONGEST_SIGNATURE), c_size_t(_LONGEST_SIGNATURE)
        with (
            _read("d2i_AutoPrivateKey", self._pkcs8) as key,
            _context("EVP_DigestSignInit", key) as context,
        ):
            _called("EVP_DigestSign", context, der, byref(size), content, len(content))
        return b"".join(
            number.to_bytes(_SIZE, "big") for number in decode_dss_signature(der.raw[: size.value])
        )


def is_public(spki: bytes) -> bool:
    """Tell whether a SubjectPublicKeyInfo is that of a key on this curve."""
    return spki.startswith(_SPKI) and len(spki) == len(_SPKI) + 1 + 2 * _SIZE


@cache
def _library() -> CDLL:
    """Return OpenSSL with its functions declared. Raises `Lacking`."""
    lacking = Lacking(
        f"SM2 needs a Python that is linked to OpenSSL 3 with SM2, not to {ssl.OPENSSL_VERSION}"
    )
    try:
        found = CDLL(
            getattr(_ssl, "__file__", None)
        )  # names are looked up in the libraries that it is linked to
        for name, (result, *arguments) in _CALLS.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (AttributeError, OSError) as error:
        raise lacking from error
    key = found.EVP_PKEY_Q_keygen(None, None, b"SM2")
    found.EVP_PKEY_free(key)
    found.ERR_clear_error()
    if not key:
        raise lacking
    return found


def _called(name: str, *arguments: Any) -> int:
    """Return what a function of OpenSSL returns. Raises ValueError where that is a failure."""
    library = _library()
    found: int | None = getattr(library, name)(*arguments)
    if not found or found < 0:
        library.ERR_clear_error()  # else Python's ssl takes it for an error of its next connection
        raise ValueError("is not a key or a signature for SM2")
    return found


def _der(name: str, what: int) -> bytes:
    """Return what a function of OpenSSL writes in DER."""
    out = create_string_buffer(_called(name, what, None))
    _called(name, what, byref(c_void_p(addressof(out))))
    return out.raw


@contextmanager
def _freed(by: str, what: int) -> Iterator[int]:
    try:
        yield what
    finally:
        getattr(_library(), by)(what)


@contextmanager
def _read(name: str, der: bytes) -> Iterator[int]:
    with _freed("EVP_PKEY_free", _called(name, None, byref(c_char_p(der)), len(der))) as key:
        yield key


@contextmanager
def _context(init: str, key: int) -> Iterator[int]:
    """Give what signs or checks with a key."""
    with _freed("EVP_MD_CTX_free", _called("EVP_MD_CTX_new")) as context:
        of_key = c_void_p()
        _called(init, context, byref(of_key), _called("EVP_sm3"), None, key)
        _called("EVP_PKEY_CTX_set1_id", of_key, _ID, len(_ID))
        yield context
