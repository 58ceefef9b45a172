"""SM2 signatures with SM3 (GB/T 32918.2) and SM2 encryption (GB/T 32918.4), computed by the OpenSSL
3 of Python's ssl module.

`cryptography`, used for all other keys, has no SM2. The two classes of keys here have the same
methods as `cryptography`'s keys, as far as signing needs them. The signer's id is the standard's
default.
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

_SIGNER_ID = b"1234567812345678"  # the default of GB/T 32918.2, which both sides hash
# The beginning of SubjectPublicKeyInfo in DER, before the point: it names the curve.
_SPKI = bytes.fromhex("3059301306072a8648ce3d020106082a811ccf5501822d034200")
_SIZE = 32  # bytes of each of the two numbers of a signature
_POINT_SIZE = 1 + 2 * _SIZE  # bytes of a public key's point: its form and two coordinates
_MAX_DER_SIGNATURE = 72  # bytes
_BEGIN = "-----BEGIN PRIVATE KEY-----"
_END = "-----END PRIVATE KEY-----"
_PEM_WIDTH = 64  # characters of a line
_POINTER = POINTER(c_void_p)
# Function of OpenSSL -> the types of its result and of its arguments, for ctypes.
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
    "EVP_PKEY_CTX_new": (c_void_p, c_void_p, c_void_p),
    "EVP_PKEY_CTX_free": (None, c_void_p),
    "EVP_PKEY_encrypt_init": (c_int, c_void_p),
    "EVP_PKEY_encrypt": (c_int, c_void_p, c_char_p, POINTER(c_size_t), c_char_p, c_size_t),
    "EVP_PKEY_decrypt_init": (c_int, c_void_p),
    "EVP_PKEY_decrypt": (c_int, c_void_p, c_char_p, POINTER(c_size_t), c_char_p, c_size_t),
}


class Sm2Unavailable(ValueError):
    """The OpenSSL of this Python has no SM2."""


class PublicKey:
    """A public key for SM2, with the interface of `cryptography`'s keys."""

    def __init__(self, spki: bytes) -> None:
        """Read SubjectPublicKeyInfo in DER.

        Raises `ValueError` if it is not a valid key for SM2.
        """
        if not is_public(spki):
            raise ValueError("is not a key for SM2")
        self._spki = spki
        with _key_from_der("d2i_PUBKEY", spki):
            pass  # only to check the point

    def public_bytes(self, *_: object) -> bytes:
        """Return SubjectPublicKeyInfo in DER, whatever encoding and format the arguments name."""
        return self._spki

    def verify(self, signature: bytes, content: bytes) -> None:
        """Check a signature, two numbers of 32 bytes each, of a content.

        Raises `InvalidSignature`.
        """
        if len(signature) != 2 * _SIZE:
            raise InvalidSignature
        r = int.from_bytes(signature[:_SIZE], "big")
        s = int.from_bytes(signature[_SIZE:], "big")
        der = encode_dss_signature(r, s)
        with (
            _key_from_der("d2i_PUBKEY", self._spki) as key,
            _digest_context("EVP_DigestVerifyInit", key) as context,
        ):
            try:
                _call(
                    "EVP_DigestVerify",
                    context,
                    der,
                    len(der),
                    content,
                    len(content),
                )
            except ValueError as error:
                raise InvalidSignature from error

    def encrypt(self, content: bytes) -> bytes:
        """Return a content encrypted for the owner of the private key.

        The result is DER: the point of the one-time key, the digest (SM3) and the ciphertext.
        Raises `ValueError` for an empty content.
        """
        with _key_from_der("d2i_PUBKEY", self._spki) as key:
            return _transform("EVP_PKEY_encrypt", key, content)


class PrivateKey:
    """A private key for SM2, with the interface of `cryptography`'s keys."""

    def __init__(self, pkcs8: bytes) -> None:
        """Read PKCS #8 in DER. Raises `ValueError` if it is not a valid key for SM2."""
        self._pkcs8 = pkcs8
        with _key_from_der("d2i_AutoPrivateKey", pkcs8) as key:
            self._public = PublicKey(_der("i2d_PUBKEY", key))

    @classmethod
    def generate(cls) -> "PrivateKey":
        """Generate a key. Raises `Sm2Unavailable`."""
        with (
            _freeing("EVP_PKEY_free", _call("EVP_PKEY_Q_keygen", None, None, b"SM2")) as key,
            _freeing("PKCS8_PRIV_KEY_INFO_free", _call("EVP_PKEY2PKCS8", key)) as unencrypted,
        ):
            return cls(_der("i2d_PKCS8_PRIV_KEY_INFO", unencrypted))

    @classmethod
    def from_pem(cls, pem: bytes) -> "PrivateKey":
        """Read PKCS #8 in PEM form, without a password. Raises `ValueError`."""
        _, _, after_begin = pem.decode("latin-1").partition(_BEGIN)
        body, _, _ = after_begin.partition(_END)
        return cls(b64decode(body))

    def public_key(self) -> PublicKey:
        """Return the public key of the pair."""
        return self._public

    def private_bytes(self, *_: object) -> bytes:
        """Return PKCS #8 in PEM form, without a password, whatever form the arguments name."""
        body = wrap(b64encode(self._pkcs8).decode(), _PEM_WIDTH)
        return "\n".join([_BEGIN, *body, _END, ""]).encode()

    def sign(self, content: bytes) -> bytes:
        """Return a signature: its two numbers (r and s), 32 bytes each."""
        der = create_string_buffer(_MAX_DER_SIGNATURE)
        size = c_size_t(_MAX_DER_SIGNATURE)
        with (
            _key_from_der("d2i_AutoPrivateKey", self._pkcs8) as key,
            _digest_context("EVP_DigestSignInit", key) as context,
        ):
            _call(
                "EVP_DigestSign",
                context,
                der,
                byref(size),
                content,
                len(content),
            )
        r, s = decode_dss_signature(der.raw[: size.value])
        return r.to_bytes(_SIZE, "big") + s.to_bytes(_SIZE, "big")

    def decrypt(self, encrypted: bytes) -> bytes:
        """Return the content that `PublicKey.encrypt` has encrypted.

        Raises `ValueError` if it was changed, or encrypted for another key.
        """
        with _key_from_der("d2i_AutoPrivateKey", self._pkcs8) as key:
            return _transform("EVP_PKEY_decrypt", key, encrypted)


def is_public(spki: bytes) -> bool:
    """Return whether a SubjectPublicKeyInfo in DER holds a key on the curve of SM2.

    Only the curve and the length are compared: the point may still be off the curve.
    """
    return spki[:-_POINT_SIZE] == _SPKI


# ------------------------------------------------------------ OpenSSL


@cache
def _library() -> CDLL:
    """Return OpenSSL with the types of its functions declared. Raises `Sm2Unavailable`."""
    unavailable = Sm2Unavailable(
        f"SM2 needs a Python that is linked to OpenSSL 3 with SM2, not to {ssl.OPENSSL_VERSION}"
    )
    try:
        # Names are looked up in the libraries that Python's ssl module is linked to. A module that
        # is built into Python has no file; None then means the running program.
        library = CDLL(getattr(_ssl, "__file__", None))
        for name, (result, *arguments) in _CALLS.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except (AttributeError, OSError) as error:
        raise unavailable from error
    # OpenSSL 3 may lack SM2, which only the attempt to use it shows. Freeing NULL does nothing.
    key = library.EVP_PKEY_Q_keygen(None, None, b"SM2")
    library.EVP_PKEY_free(key)
    library.ERR_clear_error()
    if not key:
        raise unavailable
    return library


def _call(name: str, *arguments: Any) -> int:
    """Call a function of OpenSSL and return its result.

    Raises `ValueError` if it reports a failure.
    """
    library = _library()
    result: int | None = getattr(library, name)(*arguments)
    if not result or result < 0:
        library.ERR_clear_error()  # else Python's ssl takes it for an error of its next connection
        raise ValueError("is not a key or a signature for SM2")
    return result


def _der(encode: str, value: int) -> bytes:
    """Return the DER form of one of OpenSSL's values.

    ``encode`` is OpenSSL's ``i2d`` function for this type of value.
    """
    size = _call(encode, value, None)
    buffer = create_string_buffer(size)
    _call(encode, value, byref(c_void_p(addressof(buffer))))
    return buffer.raw


def _transform(
    function: str,
    key: int,
    content: bytes,
) -> bytes:
    """Return the result of one of OpenSSL's functions that encrypt or decrypt with a key.

    Raises `ValueError`.
    """
    with _freeing("EVP_PKEY_CTX_free", _call("EVP_PKEY_CTX_new", key, None)) as context:
        _call(f"{function}_init", context)
        size = c_size_t()
        _call(function, context, None, byref(size), content, len(content))
        result = create_string_buffer(size.value)
        _call(function, context, result, byref(size), content, len(content))
        return result.raw[: size.value]


@contextmanager
def _freeing(free: str, value: int) -> Iterator[int]:
    """Yield a value of OpenSSL, and free it at the end with one of OpenSSL's functions."""
    try:
        yield value
    finally:
        # Not by `_call`, which takes the missing result of these functions for a failure.
        getattr(_library(), free)(value)


@contextmanager
def _key_from_der(decode: str, der: bytes) -> Iterator[int]:
    """Yield a key for OpenSSL, which one of its ``d2i`` functions reads."""
    key = _call(
        decode,
        None,
        byref(c_char_p(der)),
        len(der),
    )
    with _freeing("EVP_PKEY_free", key):
        yield key


@contextmanager
def _digest_context(initialize: str, key: int) -> Iterator[int]:
    """Yield OpenSSL's context for signing or verifying with a key, with SM3 and the signer's id."""
    with _freeing("EVP_MD_CTX_free", _call("EVP_MD_CTX_new")) as context:
        key_context = c_void_p()
        _call(
            initialize,
            context,
            byref(key_context),
            _call("EVP_sm3"),
            None,
            key,
        )
        _call("EVP_PKEY_CTX_set1_id", key_context, _SIGNER_ID, len(_SIGNER_ID))
        yield context
