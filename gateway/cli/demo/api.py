"""Requests of the demo to its nodes."""

from typing import Any

import httpx

from gateway.cli.demo.failure import DemoFailed
from gateway.cli.language import language_in_use


def request(method: str, url: str, **options: Any) -> Any:
    """Send a request and return the response's JSON. ``options``: as in httpx.request.

    Raises `DemoFailed` for a refusal and without a response.
    """
    try:
        # Plain HTTP on this machine: there is no certificate, and loading the authorities would
        # take the longest.
        response = httpx.request(
            method,
            url,
            headers={"accept-language": language_in_use()},
            timeout=60,
            trust_env=False,
            verify=False,
            **options,
        )
        body = response.json()
    except (httpx.HTTPError, ValueError) as error:
        raise DemoFailed(f"{method} {url}: {error}") from error
    if response.status_code >= 400 or body.get("code", 0) != 0:
        raise DemoFailed(f"{method} {url}: {body.get('msg') or body.get('message') or body}")
    return body
