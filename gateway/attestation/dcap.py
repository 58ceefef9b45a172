"""Quotes of Intel SGX and TDX with DCAP, verified by the library dcap-qvl (extra ``tee``).

Only reports with their collateral (type Passport) are verified: the gateway asks no service of
Intel. Chain of certificates up to Intel's root, revocation lists, identity of the quoting enclave,
TCB level and signatures are the library's work.
"""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from importlib import import_module
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gateway.attestation.software import read_base64
from gateway.domain.attestation import (
    SGX,
    TDX,
    Claims,
    ReportRefused,
    UnifiedReport,
    invalid,
    read_object,
    read_text,
)

_HEX = re.compile(r"(?:[0-9A-Fa-f]{2})+")
_SGX_DEBUG = 0x02  # bit of the first byte of an enclave's attributes
# MRTD covers the firmware alone, the others the system and the programs started by it.
_TDX_MEASUREMENTS = ("mr_td", "rt_mr0", "rt_mr1", "rt_mr2", "rt_mr3")
_TDX_DEBUG = 0x01  # bit of the first byte of a trust domain's attributes


class DcapVerifier:
    """Verifies quotes of SGX or of TDX."""

    def __init__(self, platform: str) -> None:
        self._platform = platform

    def verify(
        self,
        report: UnifiedReport,
        now: datetime,
    ) -> Claims:
        """Return the claims of a quote. Raises `ReportRefused`."""
        library = _library()
        quote = read_base64(report.body, "b64_quote")
        if "json_collateral" not in report.body:
            raise ReportRefused(
                "TEE_COLLATERAL_MISSING",
                "the report has a quote without json_collateral: only reports of type Passport "
                "are verified here",
            )
        collateral = _read_collateral(library, report.body["json_collateral"])
        try:
            verified = library.verify(quote, collateral, int(now.timestamp()))
            result = json.loads(verified.to_json())
        except (ValueError, OverflowError) as error:
            raise ReportRefused("TEE_SIGNATURE_INVALID", str(error)[:500]) from error
        return _claims(self._platform, result, read_text(report.body, "b64_quote"))


def _library() -> Any:
    """Return the library. Raises `ReportRefused`."""
    try:
        return import_module("dcap_qvl")
    except ImportError as error:
        raise ReportRefused(
            "TEE_VERIFIER_MISSING",
            "the library for quotes of SGX and TDX is not installed: pip install bfia-gateway[tee]",
        ) from error


def _read_collateral(library: Any, value: Any) -> Any:
    """Return the collateral in the library's form. Raises `ReportRefused`."""
    fields = read_object(value, "json_collateral")
    tcb_info, tcb_signature = _signed_part(fields, "str_tcb_info", "tcbInfo")
    identity, identity_signature = _signed_part(fields, "str_qe_identity", "enclaveIdentity")
    return library.QuoteCollateralV3(
        pck_crl_issuer_chain=read_text(fields, "pem_pck_crl_issuer_chain"),
        root_ca_crl=_read_crl(fields, "str_root_ca_crl"),
        pck_crl=_read_crl(fields, "str_pck_crl"),
        tcb_info_issuer_chain=read_text(fields, "pem_tcb_info_issuer_chain"),
        tcb_info=tcb_info,
        tcb_info_signature=tcb_signature,
        qe_identity_issuer_chain=read_text(fields, "pem_qe_identity_issuer_chain"),
        qe_identity=identity,
        qe_identity_signature=identity_signature,
    )


def _signed_part(
    fields: Mapping[str, Any],
    name: str,
    key: str,
) -> tuple[str, bytes]:
    """Return the exact text of a signed object, and its signature.

    Intel signs the characters of the object, so it is cut out instead of written again. Raises
    `ReportRefused`.
    """
    text = read_text(fields, name)
    document = read_object(text, name)
    before, separator, after = text.partition(f'"{key}"')
    after = after.lstrip().removeprefix(":").lstrip()
    if not separator or '"' in before:
        raise invalid(f"{name} must begin with {key}")
    try:
        _, end = json.JSONDecoder().raw_decode(after)
        signature = bytes.fromhex(read_text(document, "signature"))
    except (ValueError, RecursionError) as error:
        raise invalid(f"{name} must have {key} and signature") from error
    return after[:end], signature


def _read_crl(fields: Mapping[str, Any], name: str) -> bytes:
    """Return a revocation list in DER, given as PEM or in hexadecimal digits.

    Raises `ReportRefused`.
    """
    text = read_text(fields, name).strip().rstrip("\0")
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    try:
        return x509.load_pem_x509_crl(text.encode()).public_bytes(Encoding.DER)
    except ValueError as error:
        raise invalid(f"{name} must be a revocation list in PEM or hexadecimal digits") from error


def _claims(
    platform: str,
    result: Mapping[str, Any],
    quote: str,
) -> Claims:
    """Return the claims in a result of the library. Raises `ReportRefused`."""
    bodies = result["report"]
    if "SgxEnclave" in bodies:
        body = bodies["SgxEnclave"]
        quote_platform = SGX
        measurement = body["mr_enclave"]
        signer = body["mr_signer"]
        is_debug = bool(bytes.fromhex(body["attributes"])[0] & _SGX_DEBUG)
    else:
        body = _base_of(next(iter(bodies.values())))
        quote_platform = TDX
        measurement = "".join(body[name] for name in _TDX_MEASUREMENTS)
        signer = ""
        is_debug = bool(bytes.fromhex(body["td_attributes"])[0] & _TDX_DEBUG)
    if quote_platform != platform:
        raise invalid(f"the quote is one of {quote_platform}, and the report says {platform}")
    return Claims(
        platform=platform,
        measurement=measurement,
        signer=signer,
        user_data=bytes.fromhex(body["report_data"]),
        tcb_status=result["status"],
        is_debug=is_debug,
        is_hardware=True,
        quote=quote,
    )


def _base_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a TDX report 1.0, which later versions contain as ``base``."""
    while "base" in body:
        body = body["base"]
    return body
