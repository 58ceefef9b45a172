"""Reports that a key of the node's settings has signed. They prove no hardware.

Structure and binding to a run are as in a processor's reports, so that the whole flow can be tried
without one. Whoever has the private key can state any measurement.
"""

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from gateway.domain.attestation import (
    SOFTWARE,
    USER_DATA_SIZE,
    Claims,
    ReportRefused,
    UnifiedReport,
    invalid,
    read_object,
    read_text,
)
from gateway.identity.keys import is_valid_signature

TCB_STATUS = "UpToDate"  # there is no firmware that could be outdated
_SIGNED_PREFIX = b"bfia-gateway software report\n"
_LARGEST_TIME = 2**40


class SoftwareVerifier:
    """Verifies software reports with the keys that the node's settings name."""

    def __init__(self, keys: Mapping[str, PublicKeyTypes]) -> None:
        """``keys``: by the SHA-256 of their DER form in hexadecimal digits."""
        self._keys = keys

    def verify(
        self,
        report: UnifiedReport,
        now: datetime,
    ) -> Claims:
        """Return the claims of a software report. Raises `ReportRefused`."""
        text = read_text(report.body, "json_attributes")
        signature = read_base64(report.body, "b64_signature")
        key_id = read_text(report.body, "hex_key_id").lower()
        key: Any = self._keys.get(key_id)
        is_valid = key is not None and is_valid_signature(
            key,
            signature,
            _SIGNED_PREFIX + text.encode("utf-8", "replace"),
        )
        if not is_valid:
            raise ReportRefused(
                "TEE_SIGNATURE_INVALID",
                "no key of tee.software_keys has signed the report",
            )
        attributes = read_object(text, "json_attributes")
        return Claims(
            platform=SOFTWARE,
            measurement=read_hex(attributes, "hex_ta_measurement").hex(),
            signer=key_id,
            user_data=read_hex(attributes, "hex_user_data", USER_DATA_SIZE),
            tcb_status=TCB_STATUS,
            is_debug=attributes.get("bool_debug_disabled") != "true",
            is_hardware=False,
            quote=base64.b64encode(text.encode()).decode(),
            issued_at=_read_time(attributes),
        )


def read_hex(
    values: Mapping[str, Any],
    name: str,
    size: int | None = None,
) -> bytes:
    """Return bytes written in hexadecimal digits. Raises `ReportRefused`."""
    try:
        content = bytes.fromhex(read_text(values, name))
    except ValueError as error:
        raise invalid(f"{name} must be hexadecimal digits") from error
    if size is not None and len(content) != size:
        raise invalid(f"{name} must have {size} bytes")
    return content


def read_base64(values: Mapping[str, Any], name: str) -> bytes:
    """Return bytes written in base64. Raises `ReportRefused`."""
    try:
        return base64.b64decode(
            read_text(values, name),
            validate=True,
        )
    except (binascii.Error, ValueError) as error:
        raise invalid(f"{name} must be base64") from error


def _read_time(attributes: Mapping[str, Any]) -> datetime:
    """Return the time of a report, which counts seconds since 1970. Raises `ReportRefused`."""
    seconds = attributes.get("int64_time")
    if not isinstance(seconds, int) or not 0 <= seconds < _LARGEST_TIME:
        raise invalid("int64_time must be the seconds since 1970")
    return datetime.fromtimestamp(seconds, UTC)
