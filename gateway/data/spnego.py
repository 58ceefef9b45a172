"""Kerberos tickets for requests by HTTP (SPNEGO, RFC 4559), from the system's GSSAPI library.

The library takes the keytab, the cache of tickets and its configuration from the environment. It is
loaded at the first ticket: a node without Kerberos does not need it.
"""

import ctypes
from base64 import b64encode
from functools import cache
from typing import Any

_LIBRARY = "libgssapi_krb5.so.2"  # of MIT Kerberos; in Debian's libgssapi-krb5-2
# Object identifiers in DER, without tag and length.
_HOST_BASED_SERVICE = bytes.fromhex("2a864886f71201020104")  # a name such as HTTP@host
_SPNEGO = bytes.fromhex("2b0601050502")  # the mechanism
_ERRORS = 0xFFFF0000  # bits of a status that mean errors; the others are only information
_MECHANISM_STATUS = 2  # kind of status with the cause, as opposed to that of GSSAPI itself


class NoTicket(Exception):
    """There is no ticket for a service; the message says why."""


class _Oid(ctypes.Structure):
    """An object identifier, as the library takes it."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("elements", ctypes.c_char_p),
    )


class _Buffer(ctypes.Structure):
    """Bytes, as the library takes and returns them."""

    _fields_ = (
        ("length", ctypes.c_size_t),
        ("value", ctypes.c_void_p),
    )


@cache
def _library() -> Any:
    """Return the library. Raises `NoTicket` if it is not installed."""
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError:
        raise NoTicket(f"{_LIBRARY} is not installed (libgssapi-krb5-2)") from None


def authorization(host: str) -> str:
    """Return the header ``authorization`` of a request to the HTTP service of a host.

    Raises `NoTicket`.
    """
    library = _library()
    name = _service_name(library, host)
    try:
        return f"Negotiate {b64encode(_first_token(library, name)).decode()}"
    finally:
        library.gss_release_name(ctypes.byref(ctypes.c_uint32()), ctypes.byref(name))


def _service_name(library: Any, host: str) -> ctypes.c_void_p:
    """Return the library's name of the HTTP service of a host. Raises `NoTicket`."""
    text = f"HTTP@{host}".encode()
    buffer = _Buffer(len(text), ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p))
    name = ctypes.c_void_p()
    minor = ctypes.c_uint32()
    status = library.gss_import_name(
        ctypes.byref(minor),
        ctypes.byref(buffer),
        ctypes.byref(_oid(_HOST_BASED_SERVICE)),
        ctypes.byref(name),
    )
    _check(library, status, minor)
    return name


def _first_token(library: Any, name: ctypes.c_void_p) -> bytes:
    """Return the first token of a security context with a service. Raises `NoTicket`."""
    context = ctypes.c_void_p()
    minor = ctypes.c_uint32()
    token = _Buffer()
    status = library.gss_init_sec_context(
        ctypes.byref(minor),
        None,  # the credentials of the keytab
        ctypes.byref(context),
        name,
        ctypes.byref(_oid(_SPNEGO)),
        0,  # flags
        0,  # lifetime: the default
        None,  # channel bindings
        None,  # token of the service
        None,  # the mechanism in use
        ctypes.byref(token),
        None,  # flags in force
        None,  # lifetime in force
    )
    try:
        _check(library, status, minor)
        return ctypes.string_at(token.value or 0, token.length)
    finally:
        library.gss_release_buffer(ctypes.byref(minor), ctypes.byref(token))
        library.gss_delete_sec_context(ctypes.byref(minor), ctypes.byref(context), None)


def _oid(elements: bytes) -> _Oid:
    """Return an object identifier for the library."""
    return _Oid(len(elements), elements)


def _check(
    library: Any,
    status: int,
    minor: ctypes.c_uint32,
) -> None:
    """Raise `NoTicket` with the library's words if the status of a call means an error."""
    if not status & _ERRORS:
        return
    more = ctypes.c_uint32()
    text = _Buffer()
    ignored = ctypes.c_uint32()
    library.gss_display_status(
        ctypes.byref(ignored),
        minor,
        _MECHANISM_STATUS,
        None,
        ctypes.byref(more),
        ctypes.byref(text),
    )
    cause = ctypes.string_at(text.value or 0, text.length).decode(errors="replace")
    library.gss_release_buffer(ctypes.byref(ignored), ctypes.byref(text))
    raise NoTicket(cause or f"GSSAPI status {status:#x}")
