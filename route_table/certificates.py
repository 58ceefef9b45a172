"""The PEM files that routes and listeners name: whether they can be used, and until when."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from route_table.model import Identity, Problem
from route_table.tree import short

MAX_FILE = 1024 * 1024
"""bytes"""


class Expiry(NamedTuple):
    """Until when a certificate that a file holds is valid; of several, the one that ends first."""

    path: str
    file: str
    ends: datetime


class Unusable(Exception):
    """A file cannot be used; the text is the rule that it breaks."""


def problems(identity: Identity, at: str, now: datetime) -> Iterator[Problem]:
    """Yield what is wrong with the files of an identity; ``at`` is the path of what names them."""
    for key in ("ca", "certificate"):
        file = getattr(identity, key)
        if file is None:
            continue
        try:
            found = certificates(file)
            if key == "certificate":
                _usable(found[0])
            for one in found if key == "certificate" else ():
                if one.not_valid_after_utc <= now:
                    raise Unusable(f"has expired on {one.not_valid_after_utc.date()}; renew it")
                if one.not_valid_before_utc > now:
                    raise Unusable(f"is valid only from {one.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on")
            if key == "ca" and all(one.not_valid_after_utc <= now for one in found):
                raise Unusable("holds expired authorities only; get the present ones")
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
    content = _content(file)
    try:
        found = x509.load_pem_x509_certificates(content)
    except (ValueError, x509.InvalidVersion) as error:
        raise Unusable("holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)") from error
    if not found:
        raise Unusable("holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)")
    return found


def _key(file: str) -> PrivateKeyTypes:
    content = _content(file)
    try:
        return load_pem_private_key(content, None)
    except TypeError as error:
        raise Unusable("is protected by a password; give a key without one, readable by this user only") from error
    except Exception as error:  # the library has many words for what is no key
        raise Unusable("holds no private key in PEM form (-----BEGIN PRIVATE KEY-----)") from error


def _usable(certificate: x509.Certificate) -> None:
    """Raise `Unusable` for a certificate whose kind of key TLS here does not know, such as SM2."""
    try:
        certificate.public_key()
    except (UnsupportedAlgorithm, ValueError) as error:
        rule = "is for a key of a kind that TLS cannot use here (such as SM2); get one for an RSA or EC P-256 key"
        raise Unusable(rule) from error


def _fits(private: PrivateKeyTypes, file: str) -> bool:
    """Tell whether a key is that of a file's first certificate; what cannot be read is told elsewhere."""
    try:
        own = certificates(file)[0]
        _usable(own)
        public = own.public_key()
    except Unusable:
        return True
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return public.public_bytes(*form) == private.public_key().public_bytes(*form)


def _content(file: str) -> bytes:
    path = Path(file)
    try:
        if not path.is_file():
            raise Unusable("is not a file" if path.exists() else "does not exist")
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE + 1)
    except OSError as error:
        raise Unusable(f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise Unusable("is no path") from error
    if len(content) > MAX_FILE:
        raise Unusable(f"must not be larger than {MAX_FILE} bytes")
    return content
