"""PEM files of routes and listeners: their problems, names, keys, expiry and revocation."""

import logging
import os
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple, cast

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519
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

MAX_FILE = 1024 * 1024  # bytes of a file with certificates, keys or revocation lists
MIN_RSA_KEY = 2048  # bits
REVOCATION_CHECK = 1.0  # seconds until a change of a revocation list takes effect

_REVOCATION_LIST = re.compile(
    rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----",
    re.DOTALL,
)

# The kinds of keys that may sign requests.
PublicKey = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey | rsa.RSAPublicKey | sm2.PublicKey
# The kinds of keys to which messages may be sealed.
SealingKey = x25519.X25519PublicKey | sm2.PublicKey


class Expiry(NamedTuple):
    """The end of validity of a file's certificates.

    For a chain, this is the earliest end among its certificates; for authorities, the latest.
    """

    path: str  # path of the setting or route key that names the file
    file: str
    ends: datetime


# ------------------------------------------------------------ files of an identity


def problems(
    identity: Identity,
    path: str,
    now: datetime,
) -> Iterator[Problem]:
    """Yield the problems that an identity's files have at the time ``now``.

    ``path`` is that of the entry or setting which names the files; the problems' paths begin with
    it.
    """
    yield from _file_problem(identity.ca, _check_authorities, f"{path}.ca", now)
    yield from _file_problem(identity.certificate, _check_chain, f"{path}.certificate", now)
    if identity.key is not None:
        rule = _key_rule(identity.key, identity.certificate)
        if rule:
            yield Problem(f"{path}.key", rule, short(identity.key))


def _file_problem(
    file: str | None,
    check: Callable[[list[x509.Certificate], datetime], None],
    path: str,
    now: datetime,
) -> Iterator[Problem]:
    """Yield the problem of a file with certificates; none without a file.

    ``check`` raises `Unusable` for the certificates in it.
    """
    if file is None:
        return
    try:
        check(certificates(file), now)
    except Unusable as error:
        yield Problem(path, str(error), short(file))


def _check_authorities(
    authorities: list[x509.Certificate],
    now: datetime,
) -> None:
    """Raise `Unusable` if all authorities have expired."""
    if all(authority.not_valid_after_utc <= now for authority in authorities):
        raise Unusable("holds expired authorities only; get the current ones")


def _check_chain(
    chain: list[x509.Certificate],
    now: datetime,
) -> None:
    """Raise `Unusable` unless all certificates are valid and TLS can use the first one's key."""
    _check_kind_of_key(chain[0])
    for certificate in chain:
        ends = certificate.not_valid_after_utc
        begins = certificate.not_valid_before_utc
        if ends <= now:
            raise Unusable(f"has expired on {ends.date()}; renew it")
        if begins > now:
            raise Unusable(f"is valid only from {begins:%Y-%m-%d %H:%M} UTC on")


def _check_kind_of_key(certificate: x509.Certificate) -> None:
    """Raise `Unusable` for a certificate whose kind of key TLS does not support here."""
    try:
        certificate.public_key()
    except (UnsupportedAlgorithm, ValueError) as error:
        raise Unusable(
            "is for a key of a kind that TLS cannot use here, such as SM2; "
            "get one for an RSA or EC P-256 key"
        ) from error


def _key_rule(key_file: str, certificate_file: str | None) -> str:
    """Return the rule that a private key's file breaks; "" if it breaks none.

    ``certificate_file`` is the file with the key's certificate; None if no certificate is given.
    """
    try:
        key = _private_key(key_file)
    except Unusable as error:
        return str(error)
    if certificate_file is not None and not _is_key_of(key, certificate_file):
        return f"is not the key of the certificate in {short(certificate_file)}"
    return ""


def _private_key(file: str) -> PrivateKeyTypes:
    """Read a private key in PEM form. Raises `Unusable`."""
    content = read_file(file, MAX_FILE)
    try:
        return load_pem_private_key(content, None)
    except TypeError as error:
        rule = "is protected by a password; give a key without one, readable by this user only"
        raise Unusable(rule) from error
    except Exception as error:  # the library raises many kinds for content that is not a key
        raise Unusable("holds no private key in PEM form (-----BEGIN PRIVATE KEY-----)") from error


def _is_key_of(key: PrivateKeyTypes, certificate_file: str) -> bool:
    """Return whether a key belongs to a file's first certificate.

    True for an unusable file, which is reported as a problem of the certificate.
    """
    try:
        certificate = certificates(certificate_file)[0]
        _check_kind_of_key(certificate)
    except Unusable:
        return True
    return _public_bytes(certificate.public_key()) == _public_bytes(key.public_key())


def expiries(identity: Identity, path: str) -> Iterator[Expiry]:
    """Yield the expiry of each of an identity's files; unreadable ones are left out.

    ``path`` is that of the entry or setting which names the files.
    """
    # One valid authority is enough, but a chain needs all its certificates.
    for key, decisive_end in (("ca", max), ("certificate", min)):
        file = getattr(identity, key)
        if file is None:
            continue
        try:
            ends = [certificate.not_valid_after_utc for certificate in certificates(file)]
        except Unusable:
            continue
        yield Expiry(f"{path}.{key}", file, decisive_end(ends))


def certificates(file: str) -> list[x509.Certificate]:
    """Return the certificates in a PEM file, at least one. Raises `Unusable`."""
    content = read_file(file, MAX_FILE)
    try:
        return x509.load_pem_x509_certificates(content)
    except (ValueError, x509.InvalidVersion) as error:
        raise Unusable("holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)") from error


def stamp(file: str) -> tuple[int, int]:
    """Return a file's modification time in nanoseconds and its size in bytes.

    The result is (0, 0) for a file that does not exist.
    """
    try:
        status = os.stat(file)
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


# ------------------------------------------------------------ names and keys


@lru_cache(maxsize=1024)
def bearer(pem: str) -> Bearer:
    """Return the names, key pin, serial number and issuer of a certificate in PEM form.

    Raises `Unusable`.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        names = {*_alternative_names(certificate), pin(certificate)}
    except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm) as error:
        raise Unusable(f"is not a certificate that can be read: {error}") from error
    issuer = certificate.issuer.public_bytes()
    return Bearer(frozenset(names), certificate.serial_number, issuer)


def has_name(file: str, name: str) -> bool:
    """Return whether a file's first certificate has a subject alternative name.

    Upper and lower case do not matter. Raises `Unusable`.
    """
    return name.lower() in _alternative_names(certificates(file)[0])


def _alternative_names(certificate: x509.Certificate) -> set[str]:
    """Return a certificate's subject alternative names (DNS, URI, IP) in lower case.

    Empty for a certificate without this extension. Raises `ValueError` for a malformed one.
    """
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return set()
    names = [
        *extension.value.get_values_for_type(x509.DNSName),
        *extension.value.get_values_for_type(x509.UniformResourceIdentifier),
        *map(str, extension.value.get_values_for_type(x509.IPAddress)),
    ]
    return {name.lower() for name in names}


def pin(certificate: x509.Certificate) -> str:
    """Return the pin of a certificate's public key, see `key_pin`."""
    return key_pin(certificate.public_key())


def key_pin(key: PublicKeyTypes | sm2.PublicKey) -> str:
    """Return ``sha256:`` and the digest of a public key (SubjectPublicKeyInfo) in hexadecimal."""
    return f"sha256:{sha256(_public_bytes(key)).hexdigest()}"


def encode_key(key: PublicKeyTypes | sm2.PublicKey) -> str:
    """Return a public key in the form of routes: base64 of its SubjectPublicKeyInfo."""
    return b64encode(_public_bytes(key)).decode()


def _public_bytes(key: PublicKeyTypes | sm2.PublicKey) -> bytes:
    """Return the SubjectPublicKeyInfo of a key in DER, by which keys are compared."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@lru_cache(maxsize=1024)
def public_key(text: str) -> PublicKey:
    """Return the public key in a route's text, base64 of SubjectPublicKeyInfo.

    Raises `ValueError` if the text is not such a key, or if keys of its kind cannot sign requests.
    """
    der = b64decode(text, validate=True)
    if sm2.is_public(der):
        return sm2.PublicKey(der)
    try:
        key: Any = load_der_public_key(der)
    except UnsupportedAlgorithm as error:
        raise ValueError from error
    signature_algorithm(key)  # only for its `ValueError`
    return cast(PublicKey, key)


@lru_cache(maxsize=1024)
def sealing_key(text: str) -> SealingKey:
    """Return the sealing key in a route's text, base64 of SubjectPublicKeyInfo.

    Raises `ValueError` if the text is not such a key, or if nothing can be sealed to its kind.
    """
    der = b64decode(text, validate=True)
    if sm2.is_public(der):
        return sm2.PublicKey(der)
    try:
        key = load_der_public_key(der)
    except UnsupportedAlgorithm as error:
        raise ValueError from error
    if not isinstance(key, x25519.X25519PublicKey):
        raise ValueError
    return key


def signature_algorithm(key: object) -> str:
    """Return the name of a public key's signature algorithm in RFC 9421, or ``sm2``.

    Raises `ValueError` for a key that cannot sign requests.
    """
    match key:
        case ed25519.Ed25519PublicKey():
            return "ed25519"
        case ec.EllipticCurvePublicKey(curve=ec.SECP256R1()):
            return "ecdsa-p256-sha256"
        case rsa.RSAPublicKey() if key.key_size >= MIN_RSA_KEY:
            return "rsa-v1_5-sha256"
        case sm2.PublicKey():
            return "sm2"
    raise ValueError(
        "must be a key for Ed25519, SM2, ECDSA on P-256, or RSA with 2048 bits or more"
    )


# ------------------------------------------------------------ revocation


class RevocationList:
    """A file of certificate revocation lists (PEM, or one list in DER), read again when it changes.

    Every list must be signed by an authority in the file ``ca``. While a changed file cannot be
    read, the lists read before it stay in force.
    """

    def __init__(self, file: str, ca: str) -> None:
        """Read a file. Raises `Unusable` if it cannot be used."""
        self._file = file
        self._ca = ca
        self._last_check = time.monotonic()
        self._stamp = stamp(file)
        self._revoked = self._read()

    def revokes(self, certificate: Bearer) -> bool:
        """Return whether a certificate is revoked.

        Changes of the file take effect within a second.
        """
        if time.monotonic() - self._last_check >= REVOCATION_CHECK:
            self._last_check = time.monotonic()
            self._reload()
        return (certificate.issuer, certificate.serial) in self._revoked

    def _reload(self) -> None:
        """Read the file if it has changed since the last successful reading.

        A file that cannot be used is logged, and is tried again at the next check.
        """
        current = stamp(self._file)
        if current == self._stamp:
            return
        try:
            self._revoked = self._read()
        except Unusable as error:
            fields = {
                "file": self._file,
                "cause": str(error),
            }
            log.warning("revocation list not accepted", extra=fields)
            return
        self._stamp = current

    def _read(self) -> frozenset[tuple[bytes, int]]:
        """Return issuer (in DER) and serial number of each revoked certificate.

        Raises `Unusable` if the file, or one of its lists, cannot be used.
        """
        revoked = set()
        for revocation_list in revocation_lists(self._file, self._ca):
            issuer = revocation_list.issuer.public_bytes()
            for certificate in revocation_list:
                revoked.add((issuer, certificate.serial_number))
        return frozenset(revoked)


def revocation_lists(
    file: str,
    ca: str,
) -> list[x509.CertificateRevocationList]:
    """Return the lists in a file, each signed by an authority in ``ca``.

    Raises `Unusable` if one of the files cannot be read, or if another authority has signed a list.
    """
    lists = _parse_lists(read_file(file, MAX_FILE))
    authorities = {authority.subject: authority for authority in certificates(ca)}
    for revocation_list in lists:
        authority = authorities.get(revocation_list.issuer)
        if authority is None or not _has_signed(authority, revocation_list):
            raise Unusable("holds a list that no authority of client_ca has signed")
    return lists


def _parse_lists(content: bytes) -> list[x509.CertificateRevocationList]:
    """Return the lists in PEM form, or the one in DER.

    Raises `Unusable` for content in neither form.
    """
    in_pem = _REVOCATION_LIST.findall(content)
    try:
        if in_pem:
            return list(map(x509.load_pem_x509_crl, in_pem))
        return [x509.load_der_x509_crl(content)]
    except ValueError as error:
        raise Unusable("holds no certificate revocation list in PEM or DER form") from error


def _has_signed(
    authority: x509.Certificate,
    revocation_list: x509.CertificateRevocationList,
) -> bool:
    """Return whether a list has a valid signature of an authority."""
    key: Any = authority.public_key()
    return revocation_list.is_signature_valid(key)
