"""What is answered before or beside FATE's paths: an unknown path, a wrong method, a body too large, no token.

FATE's own nodes and tools read FATE's envelope only, and its nodes ask three times where the HTTP status is not
200. So whatever lies below ``/v2`` and is not the standard's is answered as FATE answers it.
"""

from fastapi.responses import JSONResponse

from adapter.fate.envelope import fault
from gateway.errors import GatewayError

_FATES = "/v2/"
_NOT_FATES = ("/v2/schedule", "/v2/provider", "/v2/component")
"""the standard's own below ``/v2``, and the users' interface"""
_AS_200 = (404, 405, 413)


def in_fates_words(path: str, error: GatewayError, status: int) -> JSONResponse | None:
    """Return FATE's answer to a request that no path of FATE's has taken, which else would have this HTTP status.

    None where the path is none of FATE's.
    """
    if not path.startswith(_FATES) or _below(path, _NOT_FATES):
        return None
    return JSONResponse(fault(error), status_code=200 if status in _AS_200 else status)


def _below(path: str, prefixes: tuple[str, ...]) -> bool:
    return any(path == prefix or path.startswith(prefix + "/") for prefix in prefixes)
