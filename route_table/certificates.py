"""The PEM files that routes and listeners name: whether they can be used, and until when."""

import logging
import os
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple, cast

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
)

from route_table import sm2
from route_table.model import Bearer, Identity, Problem, Unusable, read_file, short

log = logging.getLogger(__name__)

_LIST = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)
MAX_FILE = 1024 * 1024
"""bytes"""
_LEAST_RSA = 2048
"""bits"""
PublicKey = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey | rsa.RSAPublicKey | sm2.PublicKey
"""by which a signed request is checked"""


class Expiry(NamedTuple):
    """Until when a certificate that a file holds is valid; of several, the one that ends first."""

    path: str
    file: str
    ends: datetime


def problems(
    identity: Identity,
    at: str,
    now: datetime,
) -> Iterator[Problem]:
    """Yield what is wrong with the files of an identity; ``at`` is the path of what names them."""
    for key, check in (("ca", _check_authorities), ("certificate", _check_chain)):
        if (file := getattr(identity, key)) is not None:
            try:
                check(certificates(file), now)
            except Unusable as error:
                yield Problem(f"{at}.{key}", str(error), short(file))
    if identity.key is not None:
        try:
            private = _key(identity.key)
        except Unusable as error:
            yield Problem(f"{at}.key", str(error), short(identity.key))
            return
        if identity.certificate is not None and not _fits(private, identity.certificate):
            rule = f"is not the key of the certificate in {short(identity.certificate)}"
            yield Problem(f"{at}.key", rule, short(identity.key))


def _check_authorities(found: list[x509.Certificate], now: datetime) -> None:
    if all(one.not_valid_after_utc <= now for one in found):
        raise Unusable("holds expired authorities only; get the current ones")


def _check_chain(found: list[x509.Certificate], now: datetime) -> None:
    _usable(found[0])
    for one in found:
        if one.not_valid_after_utc <= now:
            raise Unusable(f"has expired on {one.not_valid_after_utc.date()}; renew it")
        if one.not_valid_before_utc > now:
            raise Unusable(f"is valid only from {one.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on")


@lru_cache(maxsize=1024)
def bearer(pem: str) -> Bearer:
    """Return the names, key pin and serial number of a certificate in PEM form. Raises Unusable."""
    try:
        found = x509.load_pem_x509_certificate(pem.encode())
        names = {*_names(found), pin(found)}
    except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm) as error:
        raise Unusable(f"is not a certificate that can be read: {error}") from error
    return Bearer(frozenset(names), found.serial_number, found.issuer.public_bytes())


def bears(file: str, name: str) -> bool:
    """Tell whether a file's first certificate has a subject alternative name. Raises Unusable."""
    return name.lower() in _names(certificates(file)[0])


def pin(certificate: x509.Certificate) -> str:
    """Return ``sha256:`` and the hexadecimal digest of a certificate's public key (SubjectPublicKeyInfo)."""
    return key_pin(certificate.public_key())


def key_pin(key: PublicKeyTypes | sm2.PublicKey) -> str:
    """Return ``sha256:`` and the hexadecimal digest of a public key (SubjectPublicKeyInfo)."""
    return (
        "sha256:"
        + sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    )


def written(key: PublicKeyTypes | sm2.PublicKey) -> str:
    """Return a public key as routes hold it: base64 of its SubjectPublicKeyInfo, a PEM file without its frame."""
    return b64encode(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()


@lru_cache(maxsize=1024)
def public_key(text: str) -> PublicKey:
    """Read a public key that routes hold. Raises ValueError where no request can be signed with such a one."""
    der = b64decode(text, validate=True)
    if sm2.is_public(der):
        return sm2.PublicKey(der)
    try:
        key: Any = load_der_public_key(der)
    except UnsupportedAlgorithm as error:
        raise ValueError from error
    signature_algorithm(key)
    return cast(PublicKey, key)


def signature_algorithm(key: object) -> str:
    """Return how a kind of key signs in the words of RFC 9421, or ``sm2``. Raises ValueError otherwise."""
    if isinstance(key, ed25519.Ed25519PublicKey):
        return "ed25519"
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return "ecdsa-p256-sha256"
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= _LEAST_RSA:
        return "rsa-v1_5-sha256"
    if isinstance(key, sm2.PublicKey):
        return "sm2"
    raise ValueError(
        "must be a key for Ed25519, SM2, ECDSA on P-256, or RSA with 2048 bits or more"
    )


def _names(certificate: x509.Certificate) -> set[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    names = [
        *found.get_values_for_type(x509.DNSName),
        *found.get_values_for_type(x509.UniformResourceIdentifier),
    ]
    return {name.lower() for name in (*names, *map(str, found.get_values_for_type(x509.IPAddress)))}


class RevocationList:
    """A file of certificate revocation lists (PEM, or one in DER), read again when it changes.

    Lists that no authority of ``ca`` signed are not used. While a changed file cannot be read, the lists read
    before it stay in force.
    """

    def __init__(self, file: str, ca: str) -> None:
        """Raises Unusable where the file cannot be used."""
        self._file = file
        self._ca = ca
        self._looked = time.monotonic()
        self._stamp = stamp(file)
        self._revoked = self._read()

    def revokes(self, certificate: Bearer) -> bool:
        """Tell whether a certificate is revoked; a changed file counts after a second at most."""
        if time.monotonic() - self._looked >= 1.0:
            self._looked = time.monotonic()
            if (current := stamp(self._file)) != self._stamp:
                try:
                    self._revoked = self._read()
                    self._stamp = current
                except Unusable as error:
                    log.warning(
                        "revocation list not accepted",
                        extra={"file": self._file, "cause": str(error)},
                    )
        return (certificate.issuer, certificate.serial) in self._revoked

    def _read(self) -> frozenset[tuple[bytes, int]]:
        lists = revocation_lists(self._file, self._ca)
        return frozenset(
            (found.issuer.public_bytes(), entry.serial_number) for found in lists for entry in found
        )


def revocation_lists(file: str, ca: str) -> list[x509.CertificateRevocationList]:
    """Return the lists in a file, each signed by an authority in ``ca``. Raises Unusable."""
    content = read_file(file, MAX_FILE)
    parts = _LIST.findall(content)
    try:
        lists = [x509.load_pem_x509_crl(part) for part in parts] or [
            x509.load_der_x509_crl(content)
        ]
    except ValueError as error:
        raise Unusable("holds no certificate revocation list in PEM or DER form") from error
    authorities = {one.subject: one for one in certificates(ca)}
    for found in lists:
        authority = authorities.get(found.issuer)
        key: Any = authority.public_key() if authority else None
        if key is None or not found.is_signature_valid(key):
            raise Unusable("holds a list that no authority of client_ca has signed")
    return lists


def stamp(file: str) -> tuple[int, int]:
    """Return time and size of a file, which change with its content; zeros for one that is not there."""
    try:
        found = os.stat(file)
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


def expiries(identity: Identity, at: str) -> Iterator[Expiry]:
    """Yield until when the files of an identity are good; those that cannot be read are left out."""
    for key in ("ca", "certificate"):
        file = getattr(identity, key)
        if file is not None:
            try:
                ends = [one.not_valid_after_utc for one in certificates(file)]
            except Unusable:
                continue
            yield Expiry(f"{at}.{key}", file, max(ends) if key == "ca" else min(ends))


def certificates(file: str) -> list[x509.Certificate]:
    """Return the certificates in a PEM file, at least one. Raises Unusable."""
    content = read_file(file, MAX_FILE)
    try:
        return x509.load_pem_x509_certificates(content)
    except (ValueError, x509.InvalidVersion) as error:
        raise Unusable("holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)") from error


def _key(file: str) -> PrivateKeyTypes:
    content = read_file(file, MAX_FILE)
    try:
        return load_pem_private_key(content, None)
    except TypeError as error:
        raise Unusable(
            "is protected by a password; give a key without one, readable by this user only"
        ) from error
    except Exception as error:  # the library raises many kinds for what is not a key
        raise Unusable("holds no private key in PEM form (-----BEGIN PRIVATE KEY-----)") from error


def _usable(certificate: x509.Certificate) -> None:
    """Raise `Unusable` for a certificate whose kind of key TLS here does not know, such as SM2."""
    try:
        certificate.public_key()
    except (UnsupportedAlgorithm, ValueError) as error:
        rule = "is for a key of a kind that TLS cannot use here, such as SM2; get one for an RSA or EC P-256 key"
        raise Unusable(rule) from error


def _fits(private: PrivateKeyTypes, file: str) -> bool:
    """Tell whether a key is that of a file's first certificate; unreadable files are reported elsewhere."""
    try:
        own = certificates(file)[0]
        _usable(own)
        public = own.public_key()
    except Unusable:
        return True
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return public.public_bytes(*form) == private.public_key().public_bytes(*form)
